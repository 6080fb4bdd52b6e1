//! Findings about texts that are not TOML: for each line a correction, and for another language one
//! finding about that.

use toml::de::Error;

use super::diagnostic::{Code, Diagnostic, TextSpan};

/// Every syntax error, one for each line.
pub(super) fn errors(text: &str, errors: &[Error]) -> Vec<Diagnostic> {
    if let Some(finding) = other_language(text).filter(|_| errors.len() > 1) {
        return vec![finding];
    }
    let mut list: Vec<Diagnostic> = Vec::new();
    let mut last_line = None;
    let mut in_open_list = false;
    let is_open = |error: &Error| error.message().starts_with("unclosed array");
    let open = errors.iter().position(is_open);
    for (index, error) in errors.iter().enumerate() {
        let line = error_line(text, error);
        // Errors that follow from another are not reported.
        let follows = last_line == Some(line.start) || in_open_list;
        last_line = Some(line.start);
        if follows {
            in_open_list = in_open_list && open.is_some_and(|open| index < open);
            continue;
        }
        if open.is_some_and(|open| index <= open) && error.message().contains("array") {
            list.push(open_list(text, error));
            in_open_list = true;
            continue;
        }
        list.push(line_finding(text, error, &line));
    }
    list
}

/// The line of a syntax error, its newline included.
fn error_line(text: &str, error: &Error) -> TextSpan {
    let at = error.span().map_or(0, |span| span.start).min(text.len());
    let start = text[..at].rfind('\n').map_or(0, |newline| newline + 1);
    let end = text[at..]
        .find('\n')
        .map_or(text.len(), |newline| at + newline);
    start..end + 1
}

/// The part of the text that a syntax error hides: its line. Behind a broken header it is the whole
/// section.
pub(super) fn broken_part(text: &str, error: &Error) -> TextSpan {
    let line = error_line(text, error);
    if !text
        .get(line.start..)
        .is_some_and(|rest| rest.trim_start().starts_with('['))
    {
        return line;
    }
    let rest = text.get(line.end..).unwrap_or_default();
    let next = rest.find("\n[").map_or(text.len(), |at| line.end + at);
    line.start..next.max(line.end)
}

/// A list that never ends: its last line is the one before the first that does not fit.
fn open_list(text: &str, error: &Error) -> Diagnostic {
    let at = error.span().map_or(0, |span| span.start).min(text.len());
    let end = text[..at].trim_end().len();
    Diagnostic::new(Code::Syntax, "not TOML: a list is not closed")
        .at(&(end..end), "here it should end")
        .help("write `]` behind its last value")
}

fn line_finding(text: &str, error: &Error, line: &TextSpan) -> Diagnostic {
    let span = error.span().unwrap_or(0..0);
    let (what, expected) = match error.message().split_once(", expected ") {
        Some((what, expected)) if expected != "nothing" => (what, format!("expected {expected}")),
        Some((what, _)) => (what, String::new()),
        None => (error.message(), String::new()),
    };
    let written = text.get(span.clone()).unwrap_or_default();
    let whole = text
        .get(line.start..line.end.min(text.len()))
        .unwrap_or_default();
    let plain = |what: &str| Diagnostic::new(Code::Syntax, format!("not TOML: {what}"));
    if what == "string values must be quoted" {
        return unquoted(written, &span);
    }
    let again = what == "duplicate key" || what.starts_with("cannot extend");
    if again && written == "upstream" {
        let help = "a file has either `upstream = \"URL\"` at the top or `[upstream.NAME]` tables";
        return plain(what).at(&span, expected).help(help);
    }
    if again {
        return repeated(text, &TomlFault { what, span, line });
    }
    if what == "invalid boolean" {
        let word = written.to_lowercase();
        return plain("`true` and `false` are lower case")
            .at(&span, "")
            .help(format!("write `{word}`"));
    }
    if what == "invalid basic string" {
        return plain("a text is not closed")
            .at(&span, "")
            .help("write `\"` behind it");
    }
    let diagnostic = plain(what).at(&span, expected);
    let help = line_help(whole.trim(), what);
    diagnostic.maybe_help(help)
}

fn unquoted(written: &str, span: &TextSpan) -> Diagnostic {
    let finding =
        |what: &str| Diagnostic::new(Code::Syntax, format!("not TOML: {what}")).at(span, "");
    let straight = written.trim_matches(['\u{201c}', '\u{201d}', '\u{2018}', '\u{2019}']);
    match written.to_lowercase().as_str() {
        "" => finding("a value is missing").help("write it behind the `=`, or leave the line out"),
        "yes" | "on" => finding("there are `true` and `false`").help("write `true`"),
        "no" | "off" | "none" | "null" => {
            finding("there are `true` and `false`").help("write `false`, or leave the line out")
        }
        _ if straight.len() < written.len() => finding("these are typographic quotes")
            .help(format!("write straight ones: `\"{straight}\"`")),
        _ => finding("string values must be quoted").help(format!("write `\"{written}\"`")),
    }
}

/// The place where the parser stopped.
struct TomlFault<'t> {
    /// The parser's message.
    what: &'t str,
    span: TextSpan,
    line: &'t TextSpan,
}

/// The finding about a name that stands twice.
fn repeated(text: &str, fault: &TomlFault<'_>) -> Diagnostic {
    let TomlFault { what, span, line } = fault;
    let written = text.get(span.clone()).unwrap_or_default();
    let own = text
        .get(line.start..line.end.min(text.len()))
        .unwrap_or_default();
    let is_table = own.trim_start().starts_with('[');
    let mut at = 0;
    let mut first = None;
    for other in text.split_inclusive('\n') {
        if at >= line.start {
            break;
        }
        let trimmed = other.trim_start();
        let indent = other.len() - trimmed.len();
        if is_table && trimmed.trim_end() == own.trim() {
            let name = trimmed.rfind(written).unwrap_or(0);
            first = Some(at + indent + name..at + indent + name + written.len());
        } else if !is_table && trimmed.starts_with('[') {
            first = None;
        } else if !is_table
            && let Some(rest) = trimmed.strip_prefix(written)
            && rest.trim_start().starts_with('=')
        {
            first = Some(at + indent..at + indent + written.len());
        }
        at += other.len();
    }
    let message = match is_table {
        true => format!("not TOML: the table `{}` is there twice", own.trim()),
        false if *what == "duplicate key" => format!("not TOML: `{written}` is there twice"),
        false => format!("not TOML: {what}"),
    };
    let diagnostic = Diagnostic::new(Code::Syntax, message).at(span, "");
    let diagnostic = match first {
        Some(first) => diagnostic.at(&first, "first here"),
        None => diagnostic,
    };
    diagnostic.help(match is_table {
        true => "write all of it under one of them",
        false => "keep one of them",
    })
}

/// The correction of a line.
fn line_help(line: &str, what: &str) -> Option<String> {
    if line.starts_with("//") || line.starts_with(';') || line.starts_with("--") {
        return Some("comments begin with `#`".to_owned());
    }
    if let Some(table) = line.strip_prefix('[') {
        let table = table.trim_matches(['[', ']', ' ']).replace(' ', "_");
        let why = if line.contains(' ') {
            "; names have no spaces"
        } else {
            ""
        };
        return Some(format!("write `[{table}]`{why}"));
    }
    if what.starts_with("missing escaped value") || what.contains("escape") {
        return Some("backslashes stand for themselves in single quotes: `'C:\\logs'`".to_owned());
    }
    if what == "unexpected leading zero" {
        return Some("write the number without its leading zeros".to_owned());
    }
    if what == "unexpected key or value" && line.ends_with([';', ',']) {
        let end = line.chars().next_back().unwrap_or_default();
        return Some(format!("leave the `{end}` out: each setting has its line"));
    }
    let key_end = line.find([':', '=', ' ', '"']).unwrap_or(line.len());
    let (key, rest) = line.split_at(key_end);
    let rest = rest.trim_start();
    if key.is_empty() || key.contains(['{', '}']) {
        return None;
    }
    if let Some(value) = rest.strip_prefix(':') {
        let value = value.trim().trim_end_matches([',', ';']);
        return Some(format!("write `{key} = {}`", quoted(value)));
    }
    if rest.starts_with('"') {
        return Some(format!("write `{key} = {rest}`"));
    }
    if let Some((words, value)) = line.split_once('=') {
        let words: Vec<&str> = words.split_whitespace().collect();
        return (words.len() > 1)
            .then(|| format!("write `{} = {}`", words.join("_"), value.trim()));
    }
    None
}

/// A value in the form of TOML.
fn quoted(value: &str) -> String {
    let is_number = !value.is_empty() && value.bytes().all(|byte| byte.is_ascii_digit());
    match value {
        "" => "..".to_owned(),
        "true" | "false" => value.to_owned(),
        _ if is_number || value.starts_with(['"', '\'', '[']) => value.to_owned(),
        _ => format!("\"{value}\""),
    }
}

/// The finding about a file in another language.
fn other_language(text: &str) -> Option<Diagnostic> {
    let lines = || {
        text.lines()
            .map(str::trim)
            .filter(|line| !line.is_empty() && !line.starts_with('#'))
    };
    let first = lines().next()?;
    let named = |line: &str, end: char| {
        let name = line.split(end).next().unwrap_or_default();
        line.contains(end) && !name.is_empty() && !name.contains(['"', '=', '[', ' '])
    };
    let assigns = lines().filter(|line| line.contains(" = ")).count();
    let opens = lines().filter(|line| line.ends_with('{')).count();
    let ends = lines().filter(|line| line.ends_with(';')).count();
    let colons = lines().filter(|line| named(line, ':')).count();
    let what = if first.starts_with('{') || first == "[" {
        "JSON"
    } else if ends > 0 && opens > 0 {
        "a configuration of nginx"
    } else if opens > 0 && assigns == 0 {
        "a Caddyfile, or another language with braces"
    } else if colons > 1 && assigns == 0 {
        "YAML"
    } else {
        return None;
    };
    let start = text.find(first).unwrap_or(0);
    let diagnostic = Diagnostic::new(Code::Syntax, format!("not TOML: this looks like {what}"))
        .at(&(start..start + first.len()), "")
        .help(
            "settings are written as `listen = \":8080\"`; `tidegate init` makes a file to begin \
             with",
        );
    Some(diagnostic)
}
