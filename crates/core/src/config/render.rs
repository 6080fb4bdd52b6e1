//! How findings look: for people as rustc prints them, for scripts as JSON, for GitHub's checks as
//! workflow commands. Pure text; nothing here decides what is wrong.

use std::fmt::{self, Write};

use annotate_snippets::{AnnotationKind, Group, Level, Renderer, Snippet};

use super::diagnostic::{Diagnostic, Diagnostics, Severity, Source};
use super::mask::masked;

/// For people: file, line, column, the source line, what is wrong, what to write. `colour` adds
/// terminal colours.
pub fn human(found: &Diagnostics, colour: bool) -> String {
    each(found, &found.list, colour)
}

/// The notes, in the same form.
pub fn notes(found: &Diagnostics, colour: bool) -> String {
    each(found, &found.notes, colour)
}

fn each(found: &Diagnostics, list: &[Diagnostic], colour: bool) -> String {
    let renderer = if colour {
        Renderer::styled()
    } else {
        Renderer::plain()
    };
    let mut out = String::new();
    // Lines of the file are shown, and this may be read in a journal.
    let source = Source {
        name: found.source.name.clone(),
        text: masked(&found.source.text),
    };
    for diagnostic in list {
        if !out.is_empty() {
            out.push('\n');
        }
        one(&mut out, &renderer, &source, diagnostic);
    }
    out
}

impl fmt::Display for Diagnostics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&human(self, false))
    }
}

impl std::error::Error for Diagnostics {}

/// Help and note stand on lines of their own, so each is rendered as a report of its own.
fn one(out: &mut String, renderer: &Renderer, source: &Source, diagnostic: &Diagnostic) {
    let level = match diagnostic.severity() {
        Severity::Error => Level::ERROR,
        Severity::Warning => Level::WARNING,
        Severity::Note => Level::NOTE,
    };
    let title = level
        .primary_title(&diagnostic.message)
        .id(diagnostic.code.as_str());
    let mut group = Group::with_title(title);
    if !diagnostic.labels.is_empty() {
        let mut snippet = Snippet::source(&source.text).path(&source.name);
        for (i, label) in diagnostic.labels.iter().enumerate() {
            let kind = if i == 0 {
                AnnotationKind::Primary
            } else {
                AnnotationKind::Context
            };
            let text = (!label.text.is_empty()).then_some(label.text.as_str());
            let span = clipped(&source.text, &label.span);
            snippet = snippet.annotation(kind.span(span).label(text));
        }
        group = group.element(snippet);
    }
    out.push_str(&renderer.render(&[group]));
    out.push('\n');
    let extras = [
        (Level::HELP, &diagnostic.help),
        (Level::NOTE, &diagnostic.note),
    ];
    for (level, text) in extras {
        if let Some(text) = text {
            let group = Group::with_title(level.secondary_title(text));
            out.push_str(&renderer.render(&[group]));
            out.push('\n');
        }
    }
}

/// A span within the text, on character boundaries.
fn clipped(text: &str, span: &std::ops::Range<usize>) -> std::ops::Range<usize> {
    let start = floor(text, span.start);
    start..floor(text, span.end).max(start)
}

fn floor(text: &str, at: usize) -> usize {
    let mut at = at.min(text.len());
    while !text.is_char_boundary(at) {
        at -= 1;
    }
    at
}

/// One JSON object per finding and line: `code`, `severity`, `message`, `file`, `labels` (each with
/// `line`, `column` and their ends, counted from 1 in characters, and `text`), `help`, `note`.
pub fn json(found: &Diagnostics) -> String {
    let mut out = String::new();
    for diagnostic in found.all() {
        let _ = write!(
            out,
            r#"{{"code":"{}","severity":"{}","message":{},"file":{},"labels":["#,
            diagnostic.code.as_str(),
            severity_word(diagnostic.severity()),
            Quoted(&diagnostic.message),
            Quoted(&found.source.name),
        );
        for (i, label) in diagnostic.labels.iter().enumerate() {
            let comma = if i == 0 { "" } else { "," };
            let (line, column) = position(&found.source.text, label.span.start);
            let (end_line, end_column) = position(&found.source.text, label.span.end);
            let _ = write!(
                out,
                r#"{comma}{{"line":{line},"column":{column},"end_line":{end_line},"#
            );
            let _ = write!(
                out,
                r#""end_column":{end_column},"text":{}}}"#,
                Quoted(&label.text)
            );
        }
        out.push(']');
        for (name, text) in [("help", &diagnostic.help), ("note", &diagnostic.note)] {
            if let Some(text) = text {
                let _ = write!(out, r#","{name}":{}"#, Quoted(text));
            }
        }
        out.push_str("}\n");
    }
    out
}

/// GitHub's workflow commands: each finding becomes an annotation of the line it is about.
pub fn github(found: &Diagnostics) -> String {
    let mut out = String::new();
    for diagnostic in found.all() {
        let (line, column) = position(&found.source.text, diagnostic.start());
        let mut text = diagnostic.message.clone();
        for more in [&diagnostic.help, &diagnostic.note].into_iter().flatten() {
            text.push('\n');
            text.push_str(more);
        }
        let _ = writeln!(
            out,
            "::{} file={},line={line},col={column},title={}::{}",
            match diagnostic.severity() {
                Severity::Note => "notice",
                other => severity_word(other),
            },
            escaped(&found.source.name)
                .replace(':', "%3A")
                .replace(',', "%2C"),
            diagnostic.code.as_str(),
            escaped(&text),
        );
    }
    out
}

fn escaped(text: &str) -> String {
    text.replace('%', "%25")
        .replace('\r', "%0D")
        .replace('\n', "%0A")
}

fn severity_word(severity: Severity) -> &'static str {
    match severity {
        Severity::Error => "error",
        Severity::Warning => "warning",
        Severity::Note => "note",
    }
}

/// Line and column of a byte, both from 1, the column in characters.
fn position(text: &str, at: usize) -> (usize, usize) {
    let before = &text[..floor(text, at)];
    let line_start = before.rfind('\n').map_or(0, |newline| newline + 1);
    (
        before.matches('\n').count() + 1,
        before[line_start..].chars().count() + 1,
    )
}

/// A JSON string.
struct Quoted<'a>(&'a str);

impl fmt::Display for Quoted<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_char('"')?;
        for c in self.0.chars() {
            match c {
                '"' => f.write_str("\\\"")?,
                '\\' => f.write_str("\\\\")?,
                '\n' => f.write_str("\\n")?,
                c if c.is_control() => write!(f, "\\u{:04x}", u32::from(c))?,
                c => f.write_char(c)?,
            }
        }
        f.write_char('"')
    }
}

#[cfg(test)]
mod tests {
    use super::super::diagnostic::Code;
    use super::*;

    fn example() -> Diagnostics {
        let text = "[store]\n\n\n\n[limit.per_ip]\nkye  = [\"ip\"]\nrate = \"5/min\"\n".to_owned();
        let at = text.find("kye").unwrap();
        let finding = Diagnostic::new(Code::UnknownKey, "unknown key `kye` in `limit.per_ip`")
            .at(&(at..at + 3), "not a setting here")
            .help("did you mean `key`?");
        Diagnostics {
            source: Source {
                name: "proxy.toml".into(),
                text,
            },
            list: vec![finding],
            notes: Vec::new(),
        }
    }

    #[test]
    fn people_see_the_line_the_place_and_the_help() {
        let expected = r#"error[T101]: unknown key `kye` in `limit.per_ip`
 --> proxy.toml:6:1
  |
6 | kye  = ["ip"]
  | ^^^ not a setting here
help: did you mean `key`?
"#;
        assert_eq!(human(&example(), false), expected);
    }

    #[test]
    fn colour_comes_only_when_asked_for() {
        assert!(human(&example(), true).contains('\x1b'));
        assert!(!human(&example(), false).contains('\x1b'));
    }

    #[test]
    fn scripts_get_one_object_a_line() {
        let expected = concat!(
            r#"{"code":"T101","severity":"error","message":"unknown key `kye` in `limit.per_ip`","#,
            r#""file":"proxy.toml","labels":[{"line":6,"column":1,"end_line":6,"end_column":4,"#,
            r#""text":"not a setting here"}],"help":"did you mean `key`?"}"#,
            "\n"
        );
        assert_eq!(json(&example()), expected);
    }

    #[test]
    fn github_gets_an_annotation() {
        assert_eq!(
            github(&example()),
            "::error file=proxy.toml,line=6,col=1,title=T101::\
             unknown key `kye` in `limit.per_ip`%0Adid you mean `key`?\n"
        );
    }

    #[test]
    fn a_span_outside_the_text_or_inside_a_character_does_no_harm() {
        let mut found = example();
        found.source.text = "ä".into();
        found.list[0].labels[0].span = 1..99;
        assert!(human(&found, false).contains("T101"));
        assert!(json(&found).contains("\"line\":1"));
    }
}
