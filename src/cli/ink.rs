//! Lines of text with tones, and tables of them: what commands show to people.
//!
//! Pure. What comes from outside is cleaned: a path or a key that a client chose cannot move the
//! cursor, change colours or write over what stands beside it.

use unicode_width::UnicodeWidthChar;

/// How a piece of text stands out.
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
    /// What a terminal is told (ECMA-48, SGR).
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

/// One line.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Line {
    parts: Vec<(Tone, String)>,
    /// Whether it is the one that keys act on.
    pub(super) chosen: bool,
}

/// Without what a terminal would obey.
pub(super) fn clean(text: &str) -> String {
    let harmless = |c: char| match c {
        // They change the order in which text is shown.
        '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' => '\u{fffd}',
        c if c.is_control() => '\u{fffd}',
        c => c,
    };
    text.chars().map(harmless).collect()
}

/// Columns that a text takes.
pub(super) fn width(text: &str) -> usize {
    text.chars().filter_map(UnicodeWidthChar::width).sum()
}

impl Line {
    /// With this text.
    pub(super) fn of(text: impl AsRef<str>) -> Line {
        Line::default().and(Tone::Plain, text)
    }

    /// And this after it.
    pub(super) fn and(mut self, tone: Tone, text: impl AsRef<str>) -> Line {
        self.parts.push((tone, clean(text.as_ref())));
        self
    }

    pub(super) fn width(&self) -> usize {
        self.parts.iter().map(|(_, text)| width(text)).sum()
    }

    /// With spaces up to `column`.
    pub(super) fn to(self, column: usize) -> Line {
        let missing = column.saturating_sub(self.width());
        self.and(Tone::Plain, " ".repeat(missing))
    }

    /// No longer than `columns`; where something is cut off, it says so.
    pub(super) fn fit(self, columns: usize) -> Line {
        if self.width() <= columns {
            return self;
        }
        let Some(mut left) = columns.checked_sub(1) else {
            return Line::default();
        };
        let mut cut = Line {
            chosen: self.chosen,
            ..Line::default()
        };
        for (tone, text) in self.parts {
            let mut kept = String::new();
            for c in text.chars() {
                let columns = c.width().unwrap_or(0);
                if columns > left {
                    cut.parts.push((tone, kept + "…"));
                    return cut;
                }
                left -= columns;
                kept.push(c);
            }
            cut.parts.push((tone, kept));
        }
        cut
    }

    /// As it is written; without colours also without spaces at its end.
    pub(super) fn render(&self, colour: bool) -> String {
        if !colour {
            let text: String = self.parts.iter().map(|(_, text)| text.as_str()).collect();
            return text.trim_end().to_owned();
        }
        let whole = if self.chosen { "\x1b[7m" } else { "" };
        let mut text = String::new();
        for (tone, part) in self.parts.iter().filter(|(_, part)| !part.is_empty()) {
            match tone.code() {
                "" if whole.is_empty() => text.push_str(part),
                code => text.push_str(&format!("{whole}{code}{part}\x1b[0m")),
            }
        }
        text
    }
}

/// A cell of a table.
pub(super) type Cell = (Tone, String);

/// Rows under a head, in columns as wide as they need to be; a column whose name begins with `>`
/// stands on the right.
pub(super) fn table(head: &[&str], rows: &[Vec<Cell>]) -> Vec<Line> {
    let names: Vec<Cell> = head
        .iter()
        .map(|name| (Tone::Faint, name.trim_start_matches('>').to_owned()))
        .collect();
    let all: Vec<&Vec<Cell>> = std::iter::once(&names).chain(rows).collect();
    let widest = |column: usize| {
        let cells = all.iter().filter_map(|row| row.get(column));
        cells
            .map(|(_, text)| width(&clean(text)))
            .max()
            .unwrap_or(0)
    };
    let widths: Vec<usize> = (0..head.len()).map(widest).collect();
    let line = |row: &&Vec<Cell>| {
        let mut line = Line::default();
        for (index, ((tone, text), width)) in row.iter().zip(&widths).enumerate() {
            let space = width.saturating_sub(self::width(&clean(text)));
            let (before, after) = match head[index].starts_with('>') {
                true => (space, 0),
                false => (0, space),
            };
            line = line
                .and(Tone::Plain, " ".repeat(before))
                .and(*tone, text)
                .and(Tone::Plain, " ".repeat(after + 2));
        }
        line
    };
    all.iter().map(line).collect()
}

/// As text, a line on each.
pub(super) fn text(lines: &[Line], colour: bool) -> String {
    let lines = lines.iter().map(|line| line.render(colour) + "\n");
    lines.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_that_a_client_chose_reaches_the_terminal_as_more_than_text() {
        let line = Line::of("/a\x1b[2J\r\nb\u{202e}c\u{9b}31m").render(true);
        assert_eq!(line, "/a\u{fffd}[2J\u{fffd}\u{fffd}b\u{fffd}c\u{fffd}31m");
    }

    #[test]
    fn lines_are_cut_by_columns_and_not_by_characters() {
        let line = Line::of("ab").and(Tone::Bad, "日本語");
        assert_eq!(line.width(), 8);
        assert_eq!(line.clone().fit(8), line);
        assert_eq!(line.clone().fit(7).render(false), "ab日本…");
        assert_eq!(line.clone().fit(6).render(false), "ab日…");
        assert_eq!(line.fit(1).render(true), "…");
    }

    #[test]
    fn numbers_stand_on_the_right() {
        let rows = [
            vec![
                (Tone::Plain, "a".to_owned()),
                (Tone::Plain, "1000".to_owned()),
            ],
            vec![
                (Tone::Plain, "long".to_owned()),
                (Tone::Bad, "1".to_owned()),
            ],
        ];
        let lines = table(&["NAME", ">N"], &rows);
        assert_eq!(text(&lines, false), "NAME     N\na     1000\nlong     1\n");
        assert!(lines[2].render(true).ends_with("\x1b[31m1\x1b[0m  "));
    }
}
