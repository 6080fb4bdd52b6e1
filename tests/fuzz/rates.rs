//! Rates, lengths of time and sizes: what is understood is within its bounds, and reads back.

use tidegate::limit::rate::{
    MAX_UNITS, MAX_WINDOW_US, MIN_WINDOW_US, Rate, RateText, parse_duration, parse_size,
};

use crate::both_texts;

const WORDS: &[&str] = &[
    "1",
    "0",
    "7",
    "60",
    "100",
    "_",
    "000",
    "4294967295",
    "4294967296",
    "18446744073709551616",
    "/",
    "//",
    " ",
    "\t",
    "ms",
    "s",
    "sec",
    "m",
    "min",
    "h",
    "hour",
    "d",
    "day",
    "week",
    "us",
    "month",
    "k",
    "KiB",
    "MiB",
    "B",
    "kb",
    "+",
    "-",
    ".",
    ",",
    "e",
    "0x",
    "unlimited",
    "per",
    "\u{660}",
    "\u{b5}s",
];

#[test]
fn rates_read_back_and_stay_within_bounds() {
    bolero::check!(name = "rates")
        .with_max_len(24)
        .for_each(|input: &[u8]| both_texts(input, WORDS, check));
}

fn check(text: &str) {
    if let Ok(RateText::Limited(rate)) = RateText::parse(text) {
        assert!((1..=MAX_UNITS).contains(&rate.units), "{text:?}");
        assert!(
            (MIN_WINDOW_US..=MAX_WINDOW_US).contains(&rate.window_us),
            "{text:?}"
        );
        let told = rate.to_string();
        assert_eq!(Rate::parse(&told), Ok(rate), "{text:?} is told as {told:?}");
    }
    for error in [RateText::parse(text).err().map(|it| it.to_string())]
        .into_iter()
        .flatten()
    {
        assert!(!error.is_empty());
    }
    let alike = |one: &str| (parse_duration(one), parse_size(one));
    // Spaces around it are none of it.
    assert_eq!(alike(text), alike(&format!(" {text} ")), "{text:?}");
}
