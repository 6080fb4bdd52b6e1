//! Durations as Go writes them: `1m30s`, `500ms`, or a number of seconds.

/// In microseconds.
pub(super) fn us(text: &str) -> Option<u64> {
    if let Ok(seconds) = text.parse::<u64>() {
        return seconds.checked_mul(1_000_000);
    }
    let mut rest = text;
    let mut total = 0_f64;
    while !rest.is_empty() {
        let end = rest.find(|c: char| !(c.is_ascii_digit() || c == '.'))?;
        let (number, behind) = rest.split_at(end);
        let next = behind.find(|c: char| c.is_ascii_digit());
        let (unit, behind) = behind.split_at(next.unwrap_or(behind.len()));
        let unit = match unit {
            "h" => 3.6e9,
            "m" => 6e7,
            "s" => 1e6,
            "ms" => 1e3,
            "us" | "µs" => 1.0,
            _ => return None,
        };
        total += number.parse::<f64>().ok()? * unit;
        rest = behind;
    }
    let fits = !text.is_empty() && total.is_finite() && (0.0..1e18).contains(&total);
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "its range has been looked at"
    )]
    fits.then_some(total.round() as u64)
}

/// So many microseconds as `proxy.toml` says them, quoted.
pub(super) fn text(us: u64) -> String {
    let ms = us / 1000;
    let units = [("h", 3_600_000), ("min", 60_000), ("s", 1000)];
    let unit = units.iter().find(|(_, unit)| ms.is_multiple_of(*unit));
    let (name, unit) = unit.copied().unwrap_or(("ms", 1));
    format!("\"{}{name}\"", ms / unit)
}

#[cfg(test)]
mod tests {
    use super::us;

    #[test]
    fn durations_are_those_of_go() {
        for (text, expected) in [
            ("1s", Some(1_000_000)),
            ("1m30s", Some(90_000_000)),
            ("1.5h", Some(5_400_000_000)),
            ("500ms", Some(500_000)),
            ("30", Some(30_000_000)),
            ("", None),
            ("1d", None),
        ] {
            assert_eq!(us(text), expected, "{text}");
        }
    }
}
