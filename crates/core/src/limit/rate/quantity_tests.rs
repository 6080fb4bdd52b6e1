//! Durations and sizes.

use proptest::prelude::*;

use super::*;

#[test]
fn durations_need_a_number_and_a_unit() {
    assert_eq!(parse_duration("25ms"), Ok(Duration::from_millis(25)));
    assert_eq!(parse_duration(" 24 h "), Ok(Duration::from_secs(86_400)));
    assert_eq!(parse_duration("0s"), Ok(Duration::ZERO));
    for (text, message) in [
        ("", "a length of time is missing; write for example `10s`"),
        ("5", "the unit is missing: one of `ms s min h d`"),
        ("s", "the number is missing; write for example `10s`"),
        ("5m", "`m` may be minutes or milliseconds: `min` or `ms`?"),
        (
            "99999999999999d",
            "`99999999999999d` is not a whole number and a unit, such as `10s`",
        ),
        (
            "1h30min",
            "`h30min` is not a unit of time; there are `ms s min h d`",
        ),
    ] {
        assert_eq!(parse_duration(text).unwrap_err().to_string(), message);
    }
}

#[test]
fn sizes_are_bytes_or_say_of_what() {
    assert_eq!(parse_size("1024"), Ok(1024));
    assert_eq!(parse_size("64KiB"), Ok(65_536));
    assert_eq!(parse_size("64 kib"), Ok(65_536));
    assert_eq!(parse_size("10MB"), Ok(10_000_000));
    assert_eq!(parse_size("0B"), Ok(0));
    let error = |text: &str| parse_size(text).unwrap_err().to_string();
    assert_eq!(error(""), "a size is missing; write for example `64KiB`");
    for text in ["x", "KiB", "-1", "1.5MB", "99999999999TiB"] {
        let message = format!("`{text}` is not a whole number of bytes that fits");
        assert_eq!(error(text), message);
    }
    for (text, message) in [
        ("64K", "`K` is not a unit of size; did you mean `KiB`?"),
        ("1KiBs", "`KiBs` is not a unit of size; did you mean `KiB`?"),
        (
            "1bits",
            "`bits` is not a unit of size; there are `B KiB MiB GiB KB MB GB`",
        ),
    ] {
        assert_eq!(error(text), message);
    }
}

proptest! {
    #[test]
    fn nothing_panics(text in "\\PC{0,20}") {
        let _ = parse_duration(&text);
        let _ = parse_size(&text);
    }
}

#[test]
fn minutes_have_two_spellings() {
    let seconds = |text| parse_minutes(text).map(|time| time.as_secs()).ok();
    assert_eq!(seconds("10m"), Some(600));
    assert_eq!(seconds("10 min"), Some(600));
    assert_eq!(
        (seconds("90s"), seconds("m"), seconds("1mm")),
        (Some(90), None, None)
    );
}
