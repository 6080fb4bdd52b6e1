//! Durations and sizes.

use proptest::prelude::*;

use super::*;

#[test]
fn durations_need_a_number_and_a_unit() {
    assert_eq!(parse_duration("25ms"), Ok(Duration::from_millis(25)));
    assert_eq!(parse_duration(" 24 h "), Ok(Duration::from_secs(86_400)));
    assert_eq!(parse_duration("0s"), Ok(Duration::ZERO));
    assert_eq!(parse_duration(""), Err(DurationError::Empty));
    assert_eq!(parse_duration("5"), Err(DurationError::NoUnit));
    assert_eq!(parse_duration("s"), Err(DurationError::NoNumber));
    assert_eq!(parse_duration("5m"), Err(DurationError::Ambiguous));
    let long = "99999999999999d";
    assert_eq!(
        parse_duration(long),
        Err(DurationError::Number(long.into()))
    );
    let unit = DurationError::Unit {
        unit: "h30min".into(),
        nearest: None,
    };
    assert_eq!(parse_duration("1h30min"), Err(unit));
}

#[test]
fn sizes_are_bytes_or_say_of_what() {
    assert_eq!(parse_size("1024"), Ok(1024));
    assert_eq!(parse_size("64KiB"), Ok(65_536));
    assert_eq!(parse_size("64 kib"), Ok(65_536));
    assert_eq!(parse_size("10MB"), Ok(10_000_000));
    assert_eq!(parse_size("0B"), Ok(0));
    assert_eq!(parse_size(""), Err(SizeError::Empty));
    for text in ["x", "KiB", "-1", "1.5MB", "99999999999TiB"] {
        assert_eq!(
            parse_size(text),
            Err(SizeError::Number(text.into())),
            "{text}"
        );
    }
    let unit = |unit: &str, nearest| {
        Err(SizeError::Unit {
            unit: unit.into(),
            nearest,
        })
    };
    assert_eq!(parse_size("64K"), unit("K", Some("KiB")));
    assert_eq!(parse_size("1KiBs"), unit("KiBs", Some("KiB")));
    assert_eq!(parse_size("1bits"), unit("bits", None));
}

proptest! {
    #[test]
    fn nothing_panics(text in "\\PC{0,20}") {
        let _ = parse_duration(&text);
        let _ = parse_size(&text);
    }
}
