//! Values, styled lines and tables for a terminal.
//!
//! Pure. Replaces control characters: a path or a key that a client chose cannot move the cursor,
//! change colours or overwrite other text.

use unicode_width::UnicodeWidthChar;

use crate::limit::key::SHOWN;
pub(super) use crate::replay::figures::grouped as count;
use crate::telemetry::stamp;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Tone {
    #[default]
    Plain,
    Strong,
    Faint,
    Good,
    Warn,
    Bad,
}

impl Tone {
    /// The escape sequence that begins it (ECMA-48, SGR).
    fn code(self) -> &'static str {
        match self {
            Tone::Plain => "",
            Tone::Strong => "\x1b[1m",
            Tone::Faint => "\x1b[2m",
            Tone::Good => "\x1b[32m",
            Tone::Warn => "\x1b[33m",
            Tone::Bad => "\x1b[31m",
        }
    }
}

/// A text with one tone: a part of a line, or a cell of a table.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct StyledSpan {
    tone: Tone,
    text: String,
}

impl StyledSpan {
    pub(super) fn new(tone: Tone, text: impl AsRef<str>) -> StyledSpan {
        let text = replace_controls(text.as_ref());
        StyledSpan { tone, text }
    }

    pub(super) fn plain(text: impl AsRef<str>) -> StyledSpan {
        StyledSpan::new(Tone::Plain, text)
    }

    /// Columns.
    fn width(&self) -> usize {
        let widths = self.text.chars().filter_map(UnicodeWidthChar::width);
        widths.sum()
    }
}

pub(super) fn replace_controls(text: &str) -> String {
    let harmless = |c: char| match c {
        // They change the direction of text.
        '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' => '\u{fffd}',
        c if c.is_control() => '\u{fffd}',
        c => c,
    };
    text.chars().map(harmless).collect()
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct StyledLine {
    spans: Vec<StyledSpan>,
    /// Shown in reverse video.
    pub(super) selected: bool,
}

impl StyledLine {
    pub(super) fn new(tone: Tone, text: impl AsRef<str>) -> StyledLine {
        StyledLine::default().with(tone, text)
    }

    pub(super) fn with(mut self, tone: Tone, text: impl AsRef<str>) -> StyledLine {
        self.spans.push(StyledSpan::new(tone, text));
        self
    }

    pub(super) fn plain(self, text: impl AsRef<str>) -> StyledLine {
        self.with(Tone::Plain, text)
    }

    pub(super) fn width(&self) -> usize {
        self.spans.iter().map(StyledSpan::width).sum()
    }

    /// Appends spaces up to `column`.
    pub(super) fn pad_to(self, column: usize) -> StyledLine {
        let missing = column.saturating_sub(self.width());
        self.plain(" ".repeat(missing))
    }

    /// Cuts the line to `columns`; a cut line ends with `…`.
    pub(super) fn truncate_to(self, columns: usize) -> StyledLine {
        if self.width() <= columns {
            return self;
        }
        let Some(mut left) = columns.checked_sub(1) else {
            return StyledLine::default();
        };
        let mut cut = StyledLine {
            selected: self.selected,
            ..StyledLine::default()
        };
        for StyledSpan { tone, text } in self.spans {
            let mut kept = String::new();
            for c in text.chars() {
                let columns = c.width().unwrap_or(0);
                if columns > left {
                    kept.push('…');
                    cut.spans.push(StyledSpan { tone, text: kept });
                    return cut;
                }
                left -= columns;
                kept.push(c);
            }
            cut.spans.push(StyledSpan { tone, text: kept });
        }
        cut
    }

    /// The text for a terminal. Without colour, also without spaces at its end.
    pub(super) fn render(&self, colour: bool) -> String {
        if !colour {
            let text: String = self.spans.iter().map(|span| &*span.text).collect();
            return text.trim_end().to_owned();
        }
        let whole = if self.selected { "\x1b[7m" } else { "" };
        let mut out = String::new();
        for StyledSpan { tone, text } in self.spans.iter().filter(|span| !span.text.is_empty()) {
            match tone.code() {
                "" if whole.is_empty() => out.push_str(text),
                code => out.push_str(&format!("{whole}{code}{text}\x1b[0m")),
            }
        }
        out
    }
}

/// Lays out rows under a head. A column whose name begins with `>` is aligned to the right.
pub(super) fn table(head: &[&str], rows: Vec<Vec<StyledSpan>>) -> Vec<StyledLine> {
    let names = head.iter().map(|name| name.trim_start_matches('>'));
    let names = names.map(|name| StyledSpan::new(Tone::Faint, name));
    let all: Vec<Vec<StyledSpan>> = std::iter::once(names.collect()).chain(rows).collect();
    let widest = |column: usize| {
        let cells = all.iter().filter_map(|row| row.get(column));
        cells.map(StyledSpan::width).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..head.len()).map(widest).collect();
    let line = |row: Vec<StyledSpan>| {
        let mut line = StyledLine::default();
        for (index, (cell, width)) in row.into_iter().zip(&widths).enumerate() {
            let space = width.saturating_sub(cell.width());
            let (before, after) = match head[index].starts_with('>') {
                true => (space, 0),
                false => (0, space),
            };
            line = line.plain(" ".repeat(before));
            line.spans.push(cell);
            line = line.plain(" ".repeat(after + 2));
        }
        line
    };
    all.into_iter().map(line).collect()
}

pub(super) fn render_lines(lines: &[StyledLine], colour: bool) -> String {
    let lines = lines.iter().map(|line| line.render(colour) + "\n");
    lines.collect()
}

/// `CFc46O0K`: the first characters of a key's hash, as logs show it.
pub(super) fn short_hash(hash: &str) -> String {
    hash.chars().take(SHOWN).collect()
}

/// A word as a shell reads it.
pub(super) fn quoted(word: &str) -> String {
    let is_safe = |c: char| c.is_alphanumeric() || "_.,:/=@%+-".contains(c);
    match !word.is_empty() && word.chars().all(is_safe) {
        true => word.to_owned(),
        false => format!("'{}'", word.replace('\'', r"'\''")),
    }
}

/// `12 %`
pub(super) fn share(part: f64) -> String {
    format!("{:.0} %", part.clamp(0.0, 1.0) * 100.0)
}

/// Units of a limit, without their name. Money, which the API has in millionths, is a decimal.
pub(super) fn units(number: u64, counts: &str) -> String {
    const MILLION: u64 = 1_000_000;
    if counts != "money" {
        return count(number);
    }
    let decimal = format!("{}.{:06}", count(number / MILLION), number % MILLION);
    // Two digits at least; small amounts have up to six.
    let kept = if number >= MILLION { 4 } else { 0 };
    let end = decimal.len() - 4;
    let zeros = decimal[end..].len() - decimal[end..].trim_end_matches('0').len();
    decimal[..decimal.len() - zeros.max(kept)].to_owned()
}

/// The name of the units of a limit; empty for requests and costs.
fn unit_name(counts: &str) -> &'static str {
    match counts {
        "tokens" => " tokens",
        "input" => " tokens of input",
        "output" => " tokens of output",
        "money" => " money",
        _ => "",
    }
}

/// `81 of 100 tokens`
pub(super) fn used_of(used: u64, all: u64, counts: &str) -> String {
    let (used, all) = (units(used, counts), units(all, counts));
    format!("{used} of {all}{}", unit_name(counts))
}

/// A rate of the API with the name of its units: `100,000 tokens/min`.
pub(super) fn rate(text: &str, counts: &str) -> String {
    let name = unit_name(counts);
    let parts = text.split_once('/').filter(|_| !name.is_empty());
    let number = parts.and_then(|(number, window)| Some((number.parse().ok()?, window)));
    match number {
        Some((number, window)) => format!("{}{name}/{window}", units(number, counts)),
        None => text.to_owned(),
    }
}

/// Several rates as one text.
pub(super) fn rates(texts: &[String], counts: &str) -> String {
    let texts: Vec<String> = texts.iter().map(|text| rate(text, counts)).collect();
    texts.join(", ")
}

/// `1.2 ms`
pub(super) fn latency(seconds: f64) -> String {
    match seconds {
        s if s < 0.000_999_5 => format!("{:.0} us", s * 1e6),
        s if s < 0.099_95 => format!("{:.1} ms", s * 1e3),
        s if s < 0.999_5 => format!("{:.0} ms", s * 1e3),
        s => format!("{s:.1} s"),
    }
}

/// `3 h 12 min`
pub(super) fn span(seconds: f64) -> String {
    let whole = seconds.max(0.0) as u64;
    let (days, hours, minutes) = (whole / 86_400, whole / 3600 % 24, whole / 60 % 60);
    match (days, hours, minutes) {
        (0, 0, 0) => format!("{whole} s"),
        (0, 0, _) if minutes < 10 && !whole.is_multiple_of(60) => {
            format!("{minutes} min {} s", whole % 60)
        }
        (0, 0, _) => format!("{minutes} min"),
        (0, _, 0) => format!("{hours} h"),
        (0, ..) => format!("{hours} h {minutes} min"),
        (1, 0, _) => "1 day".to_owned(),
        (_, 0, _) => format!("{days} days"),
        (1, ..) => format!("1 day {hours} h"),
        _ => format!("{days} days {hours} h"),
    }
}

/// `2026-11-20 22:37:06Z`
pub(super) fn date(seconds: f64) -> String {
    let text = stamp::rfc3339((seconds.max(0.0) * 1e6) as u64);
    let day = text.get(..10).unwrap_or_default();
    format!("{day} {}Z", time(seconds))
}

/// `22:37:06`, in UTC.
pub(super) fn time(seconds: f64) -> String {
    let text = stamp::rfc3339((seconds.max(0.0) * 1e6) as u64);
    text.get(11..19).unwrap_or_default().to_owned()
}

/// Draws the last `width` values, scaled to the highest of them. A value above 0 has at least the
/// lowest bar.
pub(super) fn sparkline(values: &[u64], width: usize) -> String {
    const BARS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
    let values = &values[values.len().saturating_sub(width)..];
    let most = values.iter().copied().max().unwrap_or(0).max(1);
    let bar = |value: &u64| match *value {
        0 => ' ',
        value => {
            let eighths = (u128::from(value) * 8).div_ceil(u128::from(most));
            BARS[usize::try_from(eighths).unwrap_or(8).clamp(1, 8) - 1]
        }
    };
    let missing = " ".repeat(width.saturating_sub(values.len()));
    missing + &values.iter().map(bar).collect::<String>()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_that_a_client_chose_reaches_the_terminal_as_more_than_text() {
        let line = StyledLine::new(Tone::Plain, "/a\x1b[2J\r\nb\u{202e}c\u{9b}31m").render(true);
        assert_eq!(line, "/a\u{fffd}[2J\u{fffd}\u{fffd}b\u{fffd}c\u{fffd}31m");
    }

    #[test]
    fn lines_are_cut_by_columns_and_not_by_characters() {
        let line = StyledLine::new(Tone::Plain, "ab").with(Tone::Bad, "日本語");
        assert_eq!(line.width(), 8);
        assert_eq!(line.clone().truncate_to(8), line);
        assert_eq!(line.clone().truncate_to(7).render(false), "ab日本…");
        assert_eq!(line.clone().truncate_to(6).render(false), "ab日…");
        assert_eq!(line.truncate_to(1).render(true), "…");
    }

    #[test]
    fn numbers_stand_on_the_right() {
        let rows = vec![
            vec![StyledSpan::plain("a"), StyledSpan::plain("1000")],
            vec![StyledSpan::plain("long"), StyledSpan::new(Tone::Bad, "1")],
        ];
        let lines = table(&["NAME", ">N"], rows);
        assert_eq!(
            render_lines(&lines, false),
            "NAME     N\na     1000\nlong     1\n"
        );
        assert!(lines[2].render(true).ends_with("\x1b[31m1\x1b[0m  "));
    }

    #[test]
    fn columns_are_as_wide_as_they_need_to_be() {
        let row = |cells: &[&str]| cells.iter().map(StyledSpan::plain).collect();
        let rows = vec![row(&["bcd", "e"]), row(&["", "", "x"])];
        let text = render_lines(&table(&["A", "LONG", ""], rows), false);
        assert_eq!(text, "A    LONG\nbcd  e\n           x\n");
    }

    #[test]
    fn figures_are_short_and_exact_enough() {
        assert_eq!([count(0), count(999), count(1000)], ["0", "999", "1,000"]);
        assert_eq!(count(12_345_678), "12,345,678");
        assert_eq!(
            [share(0.0), share(0.127), share(7.0)],
            ["0 %", "13 %", "100 %"]
        );
        assert_eq!(latency(0.000_4), "400 us");
        assert_eq!(latency(0.001_23), "1.2 ms");
        assert_eq!(latency(0.25), "250 ms");
        assert_eq!(latency(0.9996), "1.0 s");
        assert_eq!(date(1_700_000_000.9), "2023-11-14 22:13:20Z");
        assert_eq!(time(1_700_000_000.9), "22:13:20");
    }

    #[test]
    fn units_have_their_names() {
        for (number, text) in [
            (0, "0.00"),
            (590, "0.00059"),
            (120_000, "0.12"),
            (3_456_789, "3.45"),
            (1_234_500_000, "1,234.50"),
        ] {
            assert_eq!(units(number, "money"), text);
        }
        assert_eq!(
            used_of(81_000, 100_000, "tokens"),
            "81,000 of 100,000 tokens"
        );
        assert_eq!(used_of(3, 5, "costs"), "3 of 5");
        assert_eq!(rate("100000/min", "input"), "100,000 tokens of input/min");
        assert_eq!(rate("20000000/d", "money"), "20.00 money/d");
        assert_eq!(rate("100/min", "requests"), "100/min");
        assert_eq!(rate("20 at once", "tokens"), "20 at once");
        let both = ["5/s".to_owned(), "9000/h".to_owned()];
        assert_eq!(rates(&both, "tokens"), "5 tokens/s, 9,000 tokens/h");
    }

    #[test]
    fn spans_are_told_in_two_words_at_most() {
        for (seconds, text) in [
            (0.9, "0 s"),
            (59.0, "59 s"),
            (60.0, "1 min"),
            (61.0, "1 min 1 s"),
            (3599.0, "59 min"),
            (3600.0, "1 h"),
            (11_520.0, "3 h 12 min"),
            (86_400.0, "1 day"),
            (900_000.0, "10 days 10 h"),
        ] {
            assert_eq!(span(seconds), text);
        }
    }

    #[test]
    fn what_happened_once_is_seen_beside_what_happened_often() {
        assert_eq!(sparkline(&[0, 1, 500, 1000], 6), "   ▁▄█");
        assert_eq!(sparkline(&[9, 8, 0, 0], 2), "  ");
        assert_eq!(sparkline(&[u64::MAX, 1], 2), "█▁");
        assert_eq!(sparkline(&[], 3), "   ");
    }
}
