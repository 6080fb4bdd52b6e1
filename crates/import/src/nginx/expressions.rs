//! Regular expressions of nginx (PCRE) as ours (RE2).

use crate::route::Regex;

/// What an expression must be escaped of to stand for itself.
pub(super) fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        if "\\.+*?()|[]{}^$#&-~".contains(c) && c != '-' && c != '~' && c != '&' && c != '#' {
            out.push('\\');
        }
        out.push(c);
    }
    out
}

/// The same expression, if there is one.
pub(super) fn read(text: &str, any_case: bool) -> Result<Regex, String> {
    let text = cased(text, any_case);
    let text = unfolded(&text).unwrap_or(text);
    Regex::parse(&text).map_err(|why| format!("`{text}`: {why}"))
}

/// One that finds the same, or more: what looks ahead or behind is left out.
pub(super) fn widened(text: &str, any_case: bool) -> Result<String, String> {
    if let Ok(same) = read(text, any_case) {
        return Ok(same.as_str().to_owned());
    }
    let text = without_looks(&cased(text, any_case));
    Regex::parse(&text)
        .map(|regex| regex.as_str().to_owned())
        .map_err(|why| format!("`{text}`: {why}"))
}

fn cased(text: &str, any_case: bool) -> String {
    match any_case {
        true => format!("(?i){text}"),
        false => text.to_owned(),
    }
}

/// `a(?!bc)` at an expression's end as what may follow instead of `bc`.
fn unfolded(text: &str) -> Option<String> {
    let (before, rest) = text.split_once("(?!")?;
    let (word, after) = rest.split_once(')')?;
    let is_end = matches!(after, "" | ".*" | ".*$");
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_/".contains(c);
    if !is_end || word.is_empty() || !word.chars().all(is_plain) || before.contains("(?!") {
        return None;
    }
    let mut out = String::new();
    for c in word.chars().rev() {
        let c = if c == '-' {
            "\\-".to_owned()
        } else {
            c.to_string()
        };
        out = match out.is_empty() {
            true => format!("(?:$|[^{c}])"),
            false => format!("(?:$|[^{c}]|{c}{out})"),
        };
    }
    Some(format!("{before}{out}"))
}

/// Without `(?!..)`, `(?=..)`, `(?<!..)`, `(?<=..)`.
fn without_looks(text: &str) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some(c) = rest.chars().next() {
        let looks = ["(?!", "(?=", "(?<!", "(?<="]
            .iter()
            .any(|one| rest.starts_with(one));
        if looks {
            rest = &rest[end(rest)..];
            continue;
        }
        let length = match c {
            '\\' => 1 + rest[1..].chars().next().map_or(0, char::len_utf8),
            c => c.len_utf8(),
        };
        out.push_str(&rest[..length]);
        rest = &rest[length..];
    }
    out
}

/// Where the group ends that a text begins with.
fn end(text: &str) -> usize {
    let (mut depth, mut escaped, mut set) = (0_usize, false, false);
    for (at, c) in text.char_indices() {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            ']' => set = false,
            '[' => set = true,
            '(' if !set => depth += 1,
            ')' if !set => {
                depth -= 1;
                if depth == 0 {
                    return at + 1;
                }
            }
            _ => {}
        }
    }
    text.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn looking_ahead_at_the_end_is_unfolded() {
        let regex = read(r"/\.(?!well-known).*", false).unwrap();
        for (path, found) in [
            ("/.git/config", true),
            ("/.well-known/acme", false),
            ("/.well", true),
            ("/.wellknown", true),
            ("/a/.", true),
            ("/a.b", false),
        ] {
            assert_eq!(regex.is_in(path.as_bytes()), found, "{path}");
        }
    }

    #[test]
    fn what_looks_around_otherwise_finds_more() {
        assert_eq!(widened(r"^/(?!api|x)a(?=b)", false).unwrap(), "^/a");
        assert_eq!(widened(r"\.php$", true).unwrap(), r"(?i)\.php$");
        assert!(widened("(", false).is_err());
        assert_eq!(escape("/a.b(c)-d"), r"/a\.b\(c\)-d");
    }
}
