//! Prints findings: for people in the form of rustc, for scripts as JSON, and for GitHub's checks
//! as workflow commands. Pure.
//!
//! Lines of the file appear in the output with their secrets as stars.

use std::fmt::{self, Write};
use std::ops::Range;

use annotate_snippets::{AnnotationKind, Group, Level, Renderer, Snippet};
use serde_json::json;

use super::diagnostic::{Diagnostic, Diagnostics, Severity, SourceText};
use super::secrets::{may_have_parameters, secret_parameters};

/// The errors and warnings for people: file, line, column, the source line, the message, the help.
/// `colour` adds terminal colours.
pub fn human(found: &Diagnostics, colour: bool) -> String {
    render_all(found, &found.list, colour)
}

/// The notes, in the same form.
pub fn notes(found: &Diagnostics, colour: bool) -> String {
    render_all(found, &found.notes, colour)
}

fn render_all(found: &Diagnostics, list: &[Diagnostic], colour: bool) -> String {
    let renderer = match colour {
        true => Renderer::styled(),
        false => Renderer::plain(),
    };
    let mut out = String::new();
    // The output shows lines of the file, and may end up in a journal.
    let source = SourceText {
        name: found.source.name.clone(),
        text: masked(&found.source.text),
    };
    for diagnostic in list {
        if !out.is_empty() {
            out.push('\n');
        }
        render_one(&mut out, &renderer, &source, diagnostic);
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
fn render_one(out: &mut String, renderer: &Renderer, source: &SourceText, diagnostic: &Diagnostic) {
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
            let kind = match i {
                0 => AnnotationKind::Primary,
                _ => AnnotationKind::Context,
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
fn clipped(text: &str, span: &Range<usize>) -> Range<usize> {
    let start = text.floor_char_boundary(span.start);
    start..text.floor_char_boundary(span.end).max(start)
}

/// One JSON object per finding and line: `code`, `severity`, `message`, `file`, `labels` (each with
/// `line`, `column` and their ends, counted from 1 in characters, and `text`), `help`, `note`.
pub fn json(found: &Diagnostics) -> String {
    let mut out = String::new();
    for diagnostic in found.all() {
        let labels = diagnostic.labels.iter().map(|label| {
            let (line, column) = position(&found.source.text, label.span.start);
            let (end_line, end_column) = position(&found.source.text, label.span.end);
            let text = json!(label.text);
            format!(
                "{{\"line\":{line},\"column\":{column},\"end_line\":{end_line},\
                 \"end_column\":{end_column},\"text\":{text}}}"
            )
        });
        let labels: Vec<String> = labels.collect();
        let _ = write!(
            out,
            r#"{{"code":"{}","severity":"{}","message":{},"file":{},"labels":[{}]"#,
            diagnostic.code.as_str(),
            severity_word(diagnostic.severity()),
            json!(diagnostic.message),
            json!(found.source.name),
            labels.join(","),
        );
        for (name, text) in [("help", &diagnostic.help), ("note", &diagnostic.note)] {
            if let Some(text) = text {
                let _ = write!(out, r#","{name}":{}"#, json!(text));
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
            escape_command(&found.source.name)
                .replace(':', "%3A")
                .replace(',', "%2C"),
            diagnostic.code.as_str(),
            escape_command(&text),
        );
    }
    out
}

fn escape_command(text: &str) -> String {
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
    let before = &text[..text.floor_char_boundary(at)];
    let line_start = before.rfind('\n').map_or(0, |newline| newline + 1);
    (
        before.matches('\n').count() + 1,
        before[line_start..].chars().count() + 1,
    )
}

/// Words in the names of keys whose values are secrets.
const SECRET: [&str; 6] = [
    "password",
    "passwd",
    "secret",
    "token",
    "credential",
    "authorization",
];

/// Replaces secrets by stars. The text keeps its length in bytes: spans stay valid.
fn masked(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut section = "";
    // Whether the line is inside a list of secrets.
    let mut in_list = false;
    for line in text.split_inclusive('\n') {
        let trimmed = line.trim();
        if trimmed.starts_with('[') && !in_list {
            section = trimmed;
        }
        let hidden = match line.split_once('=') {
            _ if in_list => hidden_strings(line, 0),
            Some((key, value)) if is_secret(key, section) => {
                in_list = value.trim_start().starts_with('[');
                hidden_strings(line, line.len() - value.len())
            }
            Some(_) => [url_secrets(line), inline_secrets(line, section)].concat(),
            None => url_secrets(line),
        };
        in_list &= !trimmed.trim_end_matches(',').ends_with(']');
        push_masked(line, &hidden, &mut out);
    }
    out
}

/// Whether the value of a key is a secret. The name of a file or header with a secret is none.
fn is_secret(key: &str, section: &str) -> bool {
    let key = key.trim().trim_matches(['"', '\'']).to_ascii_lowercase();
    let called = SECRET.iter().any(|word| key.contains(word)) && !key.ends_with("_file");
    // API keys that are left out of limits, or let pass.
    let listed = key == "exempt" || section.contains("bypass") && matches!(&*key, "key" | "value");
    called || listed
}

/// The texts between quotes after a byte; without quotes, the whole rest.
fn hidden_strings(line: &str, from: usize) -> Vec<Range<usize>> {
    let mut found = Vec::new();
    let mut open: Option<(char, usize)> = None;
    for (at, c) in line[from..].char_indices() {
        let at = from + at;
        match (open, c) {
            (None, '"' | '\'') => open = Some((c, at + 1)),
            (None, '#') => break,
            (Some((quote, begin)), c) if c == quote && !line[..at].ends_with('\\') => {
                found.push(begin..at);
                open = None;
            }
            _ => {}
        }
    }
    // A quote that does not end, or a value without any.
    match open {
        Some((_, begin)) => found.push(begin..line.trim_end().len().max(begin)),
        None if found.is_empty() && from > 0 && !line[from..].contains('[') => {
            found.push(from..line.trim_end().len().max(from));
        }
        None => {}
    }
    found
}

/// Secrets in a table within a line: `{ header = "x", value = "y" }`.
fn inline_secrets(line: &str, section: &str) -> Vec<Range<usize>> {
    let mut found = Vec::new();
    let mut from = 0;
    for part in line.split_inclusive([',', '{']) {
        let begin = from;
        from += part.len();
        if let Some((key, value)) = part.split_once('=') {
            // The last word of the key is its own name.
            let key = key.rsplit([' ', '{', '.']).find(|word| !word.is_empty());
            if key.is_some_and(|key| is_secret(key, section)) {
                let shift = begin + part.len() - value.len();
                let inner = hidden_strings(value, 0);
                found.extend(inner.iter().map(|one| one.start + shift..one.end + shift));
            }
        }
    }
    found
}

/// The secrets in URLs and paths: `redis://user:PASSWORD@host`, `https://host/?token=TOKEN`.
fn url_secrets(line: &str) -> Vec<Range<usize>> {
    let mut found = Vec::new();
    for (at, _) in line.match_indices("://") {
        let begin = at + "://".len();
        let rest = &line[begin..];
        let end = rest.find(['"', '\'', ' ', '\n']).unwrap_or(rest.len());
        let parameters = secret_parameters(&rest[..end]).into_iter();
        found.extend(parameters.map(|one| begin + one.start..begin + one.end));
        // Passwords may hold slashes and more that they should not.
        let Some(sign) = rest[..end].rfind('@') else {
            continue;
        };
        let user = rest[..sign].find(':').map_or(0, |colon| colon + 1);
        found.push(begin + user..begin + sign);
    }
    // Paths with a query.
    for (at, quote) in line.match_indices(['"', '\'']) {
        let begin = at + 1;
        let text = line[begin..].split(quote).next().unwrap_or_default();
        if text.starts_with('/') && may_have_parameters(text) {
            let parameters = secret_parameters(text).into_iter();
            found.extend(parameters.map(|one| begin + one.start..begin + one.end));
        }
    }
    found
}

fn push_masked(line: &str, hidden: &[Range<usize>], out: &mut String) {
    for (at, c) in line.char_indices() {
        match hidden.iter().any(|range| range.contains(&at)) && !c.is_control() {
            true => out.extend(std::iter::repeat_n('*', c.len_utf8())),
            false => out.push(c),
        }
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
            source: SourceText {
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

    #[test]
    fn secrets_are_stars_and_places_stay() {
        for (text, expected) in [
            ("url = \"redis://:hush@h\"", "url = \"redis://:****@h\""),
            ("url = \"redis://u:a/b@h\"", "url = \"redis://u:***@h\""),
            ("url = \"http://h/\" # a@b", "url = \"http://h/\" # a@b"),
            (
                "url = \"http://h/?a=b&key=c\"",
                "url = \"http://h/?a=b&key=*\"",
            ),
            ("health = \"/h?token=c\" # x", "health = \"/h?token=*\" # x"),
            ("path = \"/a;token=c\"", "path = \"/a;token=c\""),
            ("password = \"hüsh\" # x", "password = \"*****\" # x"),
            ("password = hush", "password =*****"),
            ("password = \"hush", "password = \"****"),
            ("password_file = \"/run/x\"", "password_file = \"/run/x\""),
            ("admin_token = 'a'", "admin_token = '*'"),
            ("[[bypass]]\nkey = \"m\"", "[[bypass]]\nkey = \"*\""),
            ("[limit.a]\nkey = \"ip\"", "[limit.a]\nkey = \"ip\""),
            (
                "exempt = [\n \"a\",\n]\nx = \"b\"",
                "exempt = [\n \"*\",\n]\nx = \"b\"",
            ),
            (
                "exempt = [\"a\", 7]\nx = \"b\"",
                "exempt = [\"*\", 7]\nx = \"b\"",
            ),
            (
                "a = { password = \"h\", b = \"c\" }",
                "a = { password = \"*\", b = \"c\" }",
            ),
            (
                "headers = { x-token = \"h\" }",
                "headers = { x-token = \"*\" }",
            ),
            ("", ""),
        ] {
            assert_eq!(masked(text), expected, "{text}");
            assert_eq!(masked(text).len(), text.len(), "{text}");
        }
    }
}
