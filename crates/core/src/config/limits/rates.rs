//! Reads the rates of a limit, and those of a tier.

use toml::Spanned;
use toml::de::DeValue;

use super::RATE;
use crate::config::*;
use crate::limit::Rate;
use crate::limit::rate::{DayWord, RateText};

/// Rates of one limit, at most: the store checks each for every request.
const MAX_RATES: usize = 8;

pub(super) fn own_rates(section: &mut Section<'_>, day: DayWord) -> Vec<Located<Rate>> {
    section.declare("rate", || ValueKind::Rates);
    let texts = section.texts("rate");
    texts.map_or_else(Vec::new, |texts| parse_rates(section, "rate", texts, day))
}

pub(super) fn parse_rates(
    section: &Section<'_>,
    key: &str,
    texts: Vec<Located<String>>,
    day: DayWord,
) -> Vec<Located<Rate>> {
    let count = texts.len();
    if !(1..=MAX_RATES).contains(&count) {
        section.out_of_range(key, &format!("1 to {MAX_RATES} rates"));
    }
    let mut rates: Vec<Located<Rate>> = Vec::new();
    let read_rate = |text: &str| RateText::parse_with(text, day);
    for read in section.parse_all(key, Some(texts), RATE, read_rate) {
        let rate = match read.value {
            RateText::Limited(rate) => Located::new(rate, &read.span),
            RateText::Unlimited if count == 1 => continue,
            RateText::Unlimited => {
                contradiction("`unlimited` beside another rate")
                    .at(&read.span, "says nothing")
                    .help("leave it out")
                    .report_to(section.reader);
                continue;
            }
        };
        let window = |rate: &Rate| (rate.window_us, rate.calendar);
        let is_same = |first: &&Located<Rate>| window(&first.value) == window(&rate.value);
        if let Some(first) = rates.iter().find(is_same) {
            duplicate("two rates over the same window")
                .at(&rate.span, "")
                .at(&first.span, "first here")
                .help("keep the smaller one")
                .report_to(section.reader);
        }
        rates.push(rate);
    }
    rates
}

/// Whether an entry among tiers is a note. A tier may have such a name too, but a note is no rate.
pub(super) fn is_note(name: &Located<String>, value: &Spanned<DeValue<'_>>) -> bool {
    fn is_rate(value: &DeValue<'_>) -> bool {
        match value {
            DeValue::String(text) => text.starts_with("${") || RateText::parse(text).is_ok(),
            DeValue::Array(rates) => rates.iter().all(|rate| is_rate(rate.get_ref())),
            _ => false,
        }
    }
    name.value.starts_with("x-") && !is_rate(value.get_ref())
}
