//! Values of `proxy.toml`: entries of tables, strings, and the sizes, times and rates that other
//! programs write in another way.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use crate::limit::Rate;
use crate::limit::rate::{MAX_UNITS, MAX_WINDOW_US, MIN_WINDOW_US};

/// A key and its value, both as TOML.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct TomlEntry {
    pub(super) key: String,
    pub(super) value: String,
}

impl TomlEntry {
    pub(super) fn new(key: &str, value: impl Into<String>) -> TomlEntry {
        let (key, value) = (key.to_owned(), value.into());
        TomlEntry { key, value }
    }

    pub(super) fn line(&self) -> String {
        format!("{} = {}", self.key, self.value)
    }

    /// The line without values of headers, which may be secrets.
    pub(super) fn line_for_note(&self) -> String {
        if !self.key.starts_with("headers_") {
            return self.line();
        }
        let mut shown = String::new();
        let line = self.line();
        let mut rest = line.as_str();
        while let Some((before, value)) = rest.split_once("= \"") {
            shown.push_str(before);
            shown.push_str("= \"..\"");
            let mut is_escaped = false;
            let end = value.find(|c| {
                let ends = c == '"' && !is_escaped;
                is_escaped = c == '\\' && !is_escaped;
                ends
            });
            rest = end.map_or("", |end| &value[end + 1..]);
        }
        shown.push_str(rest);
        shown
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct TomlEntries {
    pub(super) list: Vec<TomlEntry>,
}

impl TomlEntries {
    pub(super) fn has(&self, key: &str) -> bool {
        self.list.iter().any(|entry| entry.key == key)
    }

    pub(super) fn add(&mut self, key: &str, value: impl Into<String>) {
        self.list.push(TomlEntry::new(key, value));
    }

    pub(super) fn add_new(&mut self, key: &str, value: impl Into<String>) {
        if !self.has(key) {
            self.add(key, value);
        }
    }

    /// Adds an entry in place of an earlier one of the same key.
    pub(super) fn replace(&mut self, key: &str, value: impl Into<String>) {
        self.list.retain(|entry| entry.key != key);
        self.add(key, value);
    }

    pub(super) fn add_table(&mut self, key: &str, fields: &[String]) {
        if !fields.is_empty() {
            self.add(key, inline_table(fields));
        }
    }
}

pub(super) fn has_word(words: &str, word: &str) -> bool {
    words.split_whitespace().any(|known| known == word)
}

/// The key of a limit before it is text.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct KeyDraft {
    pub(super) parts: Vec<String>,
    /// `skip` or `shared`.
    pub(super) missing: Option<&'static str>,
    /// Networks that the limit does not count.
    pub(super) exempt: Vec<String>,
    /// Parts whose other values count as one.
    pub(super) listed: Vec<ListedDraft>,
}

/// A part of a key, and the values that count by themselves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ListedDraft {
    pub(super) part: String,
    pub(super) values: Vec<String>,
}

impl KeyDraft {
    pub(super) fn of_part(part: &str) -> KeyDraft {
        KeyDraft {
            parts: vec![part.to_owned()],
            ..KeyDraft::default()
        }
    }

    pub(super) fn add_to(&self, entries: &mut TomlEntries) {
        entries.add("key", quote_one_or_list(&self.parts));
        if let Some(word) = self.missing {
            entries.add("missing", quote(word));
        }
        if !self.exempt.is_empty() {
            entries.add("exempt", quote_list(&self.exempt));
        }
        let listed = self.listed.iter();
        let fields =
            listed.map(|one| format!("{} = {}", quote(&one.part), quote_list(&one.values)));
        entries.add_table("values", &fields.collect::<Vec<_>>());
    }
}

/// A rate of a bucket: `units` in each `per_us`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Refill {
    pub(super) units: u64,
    pub(super) per_us: u64,
}

impl Refill {
    /// Returns the window that allows the same burst and the same rate in the long run. `None` if
    /// no window is that short or long.
    ///
    /// A bucket of capacity C with N new units in each T allows C at once and N in each T. So does
    /// a window of C units and length C * T / N. One thing differs: a bucket gets its units back
    /// one by one, and a window gets them back together. A window never allows more than the
    /// bucket.
    ///
    /// The length is rounded up to whole milliseconds, like the clock of nginx.
    pub(super) fn window(self, capacity: u64) -> Option<Rate> {
        if self.units == 0 || capacity == 0 || capacity > MAX_UNITS {
            return None;
        }
        let product = u128::from(capacity) * u128::from(self.per_us);
        let exact_us = product.div_ceil(u128::from(self.units));
        let window_us = u64::try_from(exact_us.div_ceil(1000) * 1000).ok()?;
        let fits = (MIN_WINDOW_US..=MAX_WINDOW_US).contains(&window_us);
        fits.then_some(Rate::sliding(capacity, window_us))
    }
}

/// Reads a rate of nginx: `10r/s`, `30r/m`.
pub(super) fn parse_nginx_rate(text: &str) -> Option<Refill> {
    let (count, per) = text.split_once("r/")?;
    let units = count.parse().ok().filter(|count| *count > 0)?;
    let per_us = match per {
        "s" => 1_000_000,
        "m" => 60_000_000,
        _ => return None,
    };
    Some(Refill { units, per_us })
}

/// Reads a size of nginx in bytes: `10m`.
pub(super) fn parse_nginx_size(text: &str) -> Option<u64> {
    let end = text.find(|c: char| !c.is_ascii_digit());
    let (digits, unit) = text.split_at(end.unwrap_or(text.len()));
    let unit = match unit {
        "" => 1,
        "k" | "K" => 1 << 10,
        "m" | "M" => 1 << 20,
        "g" | "G" => 1 << 30,
        _ => return None,
    };
    digits.parse::<u64>().ok()?.checked_mul(unit)
}

/// Reads a time of nginx in milliseconds: `1h30m`, `500ms`, `60` (seconds).
pub(super) fn parse_nginx_ms(text: &str) -> Option<u64> {
    const UNITS_MS: [(&str, f64); 9] = [
        ("ms", 1.0),
        ("", 1e3),
        ("s", 1e3),
        ("m", 6e4),
        ("h", 3.6e6),
        ("d", 8.64e7),
        ("w", 7.0 * 8.64e7),
        ("M", 30.0 * 8.64e7),
        ("y", 365.0 * 8.64e7),
    ];
    let is_whole = !text.contains('.');
    parse_duration(&text.replace(' ', ""), &UNITS_MS).filter(|_| is_whole)
}

/// Reads a duration of Go in microseconds: `1m30s`, `500ms`, `30` (seconds).
pub(super) fn parse_go_us(text: &str) -> Option<u64> {
    const UNITS_US: [(&str, f64); 6] = [
        ("h", 3.6e9),
        ("m", 6e7),
        ("s", 1e6),
        ("ms", 1e3),
        ("us", 1.0),
        ("µs", 1.0),
    ];
    match text.parse::<u64>() {
        Ok(seconds) => seconds.checked_mul(1_000_000),
        Err(_) => parse_duration(text, &UNITS_US),
    }
}

fn parse_duration(text: &str, units: &[(&str, f64)]) -> Option<u64> {
    let mut rest = text;
    let mut total = 0_f64;
    while !rest.is_empty() {
        let end = rest.find(|c: char| !(c.is_ascii_digit() || c == '.'));
        let (number, behind) = rest.split_at(end.unwrap_or(rest.len()));
        let next = behind.find(|c: char| c.is_ascii_digit());
        let (name, after) = behind.split_at(next.unwrap_or(behind.len()));
        let (_, unit) = units.iter().find(|(known, _)| *known == name)?;
        total += number.parse::<f64>().ok()? * unit;
        rest = after;
    }
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "the range is checked"
    )]
    (!text.is_empty() && total < 1e18).then_some(total.round() as u64)
}

/// Writes a size as a quoted value of `proxy.toml`.
pub(super) fn size_text(bytes: u64) -> String {
    let units = [("GiB", 1_u64 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)];
    in_largest_unit(bytes, &units, "B")
}

/// Writes milliseconds as a quoted value of `proxy.toml`.
pub(super) fn time_text(ms: u64) -> String {
    in_largest_unit(ms, &[("h", 3_600_000), ("min", 60_000), ("s", 1000)], "ms")
}

/// Writes an amount in the first unit that divides it.
fn in_largest_unit(amount: u64, units: &[(&str, u64)], smallest: &str) -> String {
    let unit = units.iter().find(|(_, unit)| amount.is_multiple_of(*unit));
    let (name, unit) = unit.copied().unwrap_or((smallest, 1));
    format!("\"{}{name}\"", amount / unit)
}

pub(super) fn inline_table(fields: &[String]) -> String {
    format!("{{ {} }}", fields.join(", "))
}

/// Writes a list of strings, or its only string.
pub(super) fn quote_one_or_list(list: &[String]) -> String {
    match list {
        [one] => quote(one),
        _ => quote_list(list),
    }
}

pub(super) fn quote_list(list: &[String]) -> String {
    let quoted: Vec<String> = list.iter().map(|one| quote(one)).collect();
    format!("[{}]", quoted.join(", "))
}

/// Writes a string as TOML. No `$` of it names a variable of the environment.
pub(super) fn quote(value: &str) -> String {
    let mut out = String::with_capacity(value.len());
    let mut chars = value.chars().peekable();
    while let Some(c) = chars.next() {
        out.push(c);
        // The configuration replaces only `${NAME}`, and reads `$$` as one sign.
        if c == '$' && matches!(chars.peek(), Some('$' | '{')) {
            out.push('$');
        }
    }
    quote_literal(&out)
}

/// Writes a string as TOML, for a place where the configuration replaces no variables.
pub(super) fn quote_literal(value: &str) -> String {
    let mut out = String::with_capacity(value.len() + 2);
    out.push('"');
    for c in value.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            c if c.is_control() => {
                let _ = write!(out, "\\u{:04X}", u32::from(c));
            }
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

/// Replaces the characters of a text that names of limits and upstreams cannot have.
pub(super) fn clean_name(text: &str) -> String {
    let clean = |c: char| match c.to_ascii_lowercase() {
        c @ ('a'..='z' | '0'..='9' | '_' | '-') => c,
        _ => '-',
    };
    let name: String = text.chars().map(clean).take(58).collect();
    match name.trim_matches('-') {
        "" => "unnamed".to_owned(),
        name => name.to_owned(),
    }
}

/// Returns `text` as a name that is not taken, with a number if it must.
pub(super) fn free_name<'t>(text: &str, taken: impl Iterator<Item = &'t String>) -> String {
    let taken: BTreeSet<&String> = taken.collect();
    let name = clean_name(text);
    let numbered = (2..).map(|number| format!("{name}-{number}"));
    let mut all = std::iter::once(name.clone()).chain(numbered);
    all.find(|name| !taken.contains(name)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_note_shows_no_value_of_a_header() {
        let line = |key, value| TomlEntry::new(key, value).line_for_note();
        let headers = r#"{ "x-a" = "s = \"3\\", b = "4" }"#;
        let shown = r#"headers_up = { "x-a" = "..", b = ".." }"#;
        assert_eq!(line("headers_up", headers), shown);
        assert_eq!(line("upstream", "\"a\""), "upstream = \"a\"");
    }

    #[test]
    fn a_bucket_becomes_the_window_of_its_burst() {
        let s = 1_000_000;
        for (units, per_us, capacity, expected) in [
            (10, s, 1, "1/100ms"),
            (10, s, 21, "21/2100ms"),
            (5, s, 10, "10/2s"),
            (30, 60 * s, 1, "1/2s"),
            (1, 60 * s, 6, "6/6min"),
            // Between two ticks of nginx's clock.
            (700, s, 1, "1/2ms"),
            (3000, s, 1, "1/ms"),
            (100, s, 100, "100/s"),
            (1, 3600 * s, 24, "24/d"),
        ] {
            let rate = Refill { units, per_us }.window(capacity).unwrap();
            assert_eq!(rate.to_string(), expected, "{units} {per_us} {capacity}");
        }
        let none = |units, capacity| Refill { units, per_us: s }.window(capacity);
        assert_eq!((none(0, 1), none(1, 0)), (None, None));
        assert_eq!(none(1, 40_000_000), None, "longer than a year");
    }

    #[test]
    fn values_are_read_as_nginx_does() {
        assert_eq!(parse_nginx_size("10m"), Some(10 << 20));
        assert_eq!(parse_nginx_size("8"), Some(8));
        assert_eq!(parse_nginx_size("1x"), None);
        assert_eq!(parse_nginx_ms("1h30m"), Some(5_400_000));
        assert_eq!(parse_nginx_ms("500ms"), Some(500));
        assert_eq!(parse_nginx_ms("60"), Some(60_000));
        assert_eq!(parse_nginx_ms(""), None);
        assert_eq!(parse_nginx_rate("10r/s").map(|rate| rate.units), Some(10));
        assert_eq!(parse_nginx_rate("10r/h"), None);
        assert_eq!(size_text(1 << 20), "\"1MiB\"");
        assert_eq!(time_text(90_000), "\"90s\"");
    }

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
            assert_eq!(parse_go_us(text), expected, "{text}");
        }
    }
}
