//! Numbers are read exactly, however they are written.

use proptest::prelude::*;

use super::super::number::Decimal;
use super::*;

fn decimal(text: &str) -> Option<u64> {
    let mut number = Decimal::default();
    let (mantissa, exponent) = text.split_once(['e', 'E']).unwrap_or((text, ""));
    let mut is_fraction = false;
    for byte in mantissa.bytes() {
        match byte {
            b'-' => number.negate(),
            b'.' => is_fraction = true,
            digit if is_fraction => number.push_fraction(digit),
            digit => number.push(digit),
        }
    }
    for byte in exponent.bytes() {
        match byte {
            b'-' => number.negate_exponent(),
            b'+' => {}
            digit => number.push_exponent(digit),
        }
    }
    number.whole()
}

#[test]
fn a_number_is_whole_or_nothing() {
    for (text, whole) in [
        ("0", Some(0)),
        ("7", Some(7)),
        ("1000", Some(1000)),
        ("1002", Some(1002)),
        ("-1", None),
        ("-0", None),
        ("1.5", None),
        ("1.0", Some(1)),
        ("100.000", Some(100)),
        ("100.050", None),
        ("0.5", None),
        ("0.5e1", Some(5)),
        ("0.0050e3", Some(5)),
        ("1e3", Some(1000)),
        ("1E+3", Some(1000)),
        ("1500e-2", Some(15)),
        ("1550e-2", None),
        ("0e99999999999", Some(0)),
        ("1e99999999999", Some(u64::MAX)),
        ("1e-99999999999", None),
        ("18446744073709551614", Some(u64::MAX - 1)),
        ("18446744073709551615", Some(u64::MAX)),
        ("18446744073709551616", Some(u64::MAX)),
        ("99999999999999999999999", Some(u64::MAX)),
        ("99999999999999999999999.5", None),
        ("99999999999999999999999e-3", None),
        ("9007199254740993", Some(9_007_199_254_740_993)),
        ("1.234567890123456789012e2", None),
        ("1.234567890123456789012e21", Some(u64::MAX)),
    ] {
        assert_eq!(decimal(text), whole, "{text}");
    }
}

/// Nobody escapes a maximum by writing it with very many digits.
#[test]
fn a_number_of_very_many_digits_is_no_small_one() {
    let zeros = |count: usize| "0".repeat(count);
    assert_eq!(decimal(&format!("250.{}", zeros(60_000))), Some(250));
    assert_eq!(decimal(&format!("25{}e-60000", zeros(60_001))), Some(250));
    assert_eq!(decimal(&format!("0.{}25e60006", zeros(60_002))), Some(2500));
    assert_eq!(decimal(&format!("250.{}", zeros(70_000))), Some(u64::MAX));
    assert_eq!(decimal(&format!("250.{}1", zeros(70_000))), Some(u64::MAX));
    let largest = format!("25{}e-70000", zeros(70_001));
    assert_eq!(decimal(&largest), Some(u64::MAX));
}

proptest! {
    /// A number means the same, wherever its point is.
    #[test]
    fn the_point_may_stand_anywhere(value in 0_u64..1 << 60, shift in 0_usize..30) {
        let digits = format!("{value:030}");
        let (whole, fraction) = digits.split_at(30 - shift);
        prop_assert_eq!(decimal(&format!("{whole}.{fraction}0e{shift}")), Some(value));
        prop_assert_eq!(decimal(&format!("{value}{}e-{shift}", "0".repeat(shift))), Some(value));
    }

    #[test]
    fn whole_numbers_are_those_of_serde(value: u64) {
        prop_assert_eq!(decimal(&value.to_string()), Some(value));
        let table = table(AnswerFormat::Ollama);
        let answer = format!("{{\"eval_count\":{value}}}");
        let reading = read_whole(&table, Framing::Document, &answer);
        let output = reading.tokens.and_then(|tokens| tokens.output);
        prop_assert_eq!(output, Some(value.min((1 << 53) - 1)));
    }
}
