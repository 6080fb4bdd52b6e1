//! Figures for people.

/// `1 line`, `12,345 lines`
pub fn counted(count: u64, what: &str) -> String {
    let s = if count == 1 { "" } else { "s" };
    format!("{} {what}{s}", grouped(count))
}

/// `1,234,567`
pub fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// `12.3 %`; small shares have more digits.
pub fn percent(part: u64, whole: u64) -> String {
    if part == 0 || whole == 0 {
        return "0 %".to_owned();
    }
    let share = part as f64 / whole as f64 * 100.0;
    match share {
        share if part == whole => format!("{share:.0} %"),
        share if share < 0.01 => "<0.01 %".to_owned(),
        share if share < 1.0 => format!("{share:.2} %"),
        share => format!("{:.1} %", share.min(99.9)),
    }
}
