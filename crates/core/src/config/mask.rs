//! What of a file is not shown where its lines are: passwords in URLs, and values of keys that are
//! called like secrets. Diagnostics end up in journals and in logs of builds.

use std::ops::Range;

/// Words in the names of keys whose values are secrets.
const SECRET: [&str; 6] = [
    "password",
    "passwd",
    "secret",
    "token",
    "credential",
    "authorization",
];

/// The text with its secrets as stars, byte for byte as long, so that places in it stay right.
pub(super) fn masked(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut section = "";
    // Until the list ends whose values are hidden.
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
            Some(_) => [passwords(line), within(line, section)].concat(),
            None => passwords(line),
        };
        in_list &= !trimmed.trim_end_matches(',').ends_with(']');
        stars(line, &hidden, &mut out);
    }
    out
}

/// Whether what a key says is a secret. Files and headers that hold one are none.
fn is_secret(key: &str, section: &str) -> bool {
    let key = key.trim().trim_matches(['"', '\'']).to_ascii_lowercase();
    let called = SECRET.iter().any(|word| key.contains(word)) && !key.ends_with("_file");
    // API keys that are left out of limits, or let pass.
    let listed = key == "exempt" || section.contains("bypass") && matches!(&*key, "key" | "value");
    called || listed
}

/// What stands between quotes from a byte on; without quotes, all of it.
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
fn within(line: &str, section: &str) -> Vec<Range<usize>> {
    let mut found = Vec::new();
    let mut from = 0;
    for part in line.split_inclusive([',', '{']) {
        let begin = from;
        from += part.len();
        if let Some((key, value)) = part.split_once('=') {
            // What is a list of such tables is told by its own name.
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

/// What stands before the `@` of a URL: `redis://user:PASSWORD@host`.
fn passwords(line: &str) -> Vec<Range<usize>> {
    let mut found = Vec::new();
    for (at, _) in line.match_indices("://") {
        let begin = at + "://".len();
        let rest = &line[begin..];
        let end = rest.find(['"', '\'', ' ', '\n']).unwrap_or(rest.len());
        // Passwords may hold slashes and more that they should not.
        let Some(sign) = rest[..end].rfind('@') else {
            continue;
        };
        let user = rest[..sign].find(':').map_or(0, |colon| colon + 1);
        found.push(begin + user..begin + sign);
    }
    found
}

fn stars(line: &str, hidden: &[Range<usize>], out: &mut String) {
    for (at, c) in line.char_indices() {
        match hidden.iter().any(|range| range.contains(&at)) && !c.is_control() {
            true => out.extend(std::iter::repeat_n('*', c.len_utf8())),
            false => out.push(c),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::masked;

    #[test]
    fn secrets_are_stars_and_places_stay() {
        for (text, expected) in [
            ("url = \"redis://:hush@h\"", "url = \"redis://:****@h\""),
            ("url = \"redis://u:a/b@h\"", "url = \"redis://u:***@h\""),
            ("url = \"http://h/\" # a@b", "url = \"http://h/\" # a@b"),
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
