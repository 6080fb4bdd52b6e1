//! Paths, hosts, headers and regular expressions of other programs in routes.

mod confined;
mod hosts;

use http::HeaderName;

pub(super) use confined::{confine_regex, matched_texts};
pub(super) use hosts::{NO_HOST, gateway_hosts, is_open_host, parse_hosts, regex_host};

use crate::route::{Direction, HeaderChange, PathPattern, PatternError, Regex};

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ImportedPath {
    pub(super) pattern: String,
    /// How it matches other requests than the source.
    pub(super) differs: Option<String>,
    /// It matches more than the source, so its route must be closed.
    pub(super) is_wider: bool,
    /// Whether the path ends with a slash; `None` takes it with and without.
    pub(super) trailing_slash: Option<bool>,
}

impl ImportedPath {
    /// A path that matches the same requests as the source.
    pub(super) fn same(pattern: &str) -> ImportedPath {
        ImportedPath {
            pattern: pattern.to_owned(),
            differs: None,
            is_wider: false,
            trailing_slash: None,
        }
    }

    pub(super) fn parse(pattern: String) -> Result<ImportedPath, String> {
        match PathPattern::parse(&pattern) {
            Ok(_) => Ok(ImportedPath::same(&pattern)),
            Err(_) => Err(format!("`{pattern}` cannot be a route's path")),
        }
    }

    pub(super) fn differing(self, differs: Option<String>) -> ImportedPath {
        ImportedPath { differs, ..self }
    }
}

/// Translates `location = /path`.
pub(super) fn exact_path(path: &str) -> Result<ImportedPath, String> {
    refuse_braces(path)?;
    ImportedPath::parse(path.to_owned())
}

/// Translates `location /path`. A route's prefix ends where a segment ends.
pub(super) fn prefix_path(path: &str) -> Result<ImportedPath, String> {
    refuse_braces(path)?;
    if !path.starts_with('/') {
        return Err("it does not begin with `/`".to_owned());
    }
    let body = path.trim_end_matches('/');
    let differs = if path.ends_with('/') {
        None
    } else if body.ends_with(|c: char| c.is_alphanumeric()) {
        Some(whole_segments(body))
    } else {
        return Err("routes take whole segments of a path, not parts of one".to_owned());
    };
    Ok(ImportedPath::parse(format!("{body}/*"))?.differing(differs))
}

/// How the route of a prefix differs from a source whose prefixes may end within a segment.
pub(super) fn whole_segments(prefix: &str) -> String {
    format!(
        "routes take whole segments: `{prefix}` and what is below it, and no longer `{prefix}-more`"
    )
}

/// Translates a path with parameters (`:id`) and stars (`*`) that stand for any text.
pub(super) fn wildcard_path(path: &str) -> Result<ImportedPath, String> {
    let segment = |text: &str| match text.strip_prefix(':') {
        Some(name) if !name.is_empty() => "[^/]+".to_owned(),
        _ => {
            let texts = text.split('*').map(escape_regex);
            texts.collect::<Vec<_>>().join(".*")
        }
    };
    let segments: Vec<String> = path.split('/').map(segment).collect();
    let end = if path.ends_with('*') { "" } else { "$" };
    ImportedPath::parse(format!("regex:^{}{end}", segments.join("/")))
}

/// Translates an expression at the beginning of a path. An expression that no route can have
/// becomes a wider one, whose route must be closed.
pub(super) fn regex_path(regex: &str) -> Result<ImportedPath, String> {
    let regex = format!("^{}", regex.trim_start_matches('^'));
    let wider = || {
        let wider = widen_regex(&regex, false).or_else(|_| {
            let beginning = regex_beginning(&regex);
            match beginning.is_empty() {
                true => Err("a regular expression that no route's path can say".to_owned()),
                false => Ok(format!("^{}", escape_regex(&beginning))),
            }
        });
        Ok(ImportedPath {
            is_wider: true,
            ..ImportedPath::parse(format!("regex:{}", wider?))?
        })
    };
    plain_regex_path(&regex)
        .or_else(|_| ImportedPath::parse(format!("regex:{regex}")))
        .or_else(|_: String| wider())
}

/// Translates a prefix that may end within a segment.
pub(super) fn text_prefix_path(path: &str) -> Result<ImportedPath, String> {
    ImportedPath::parse(format!("regex:^{}", escape_regex(path)))
}

fn refuse_braces(path: &str) -> Result<(), String> {
    match path.contains(['{', '}', '*']) {
        true => Err("braces and stars mean something else in a route's path".to_owned()),
        false => Ok(()),
    }
}

/// Translates `location ~ ^/api/v1/(.*)$` if a path without an expression can match the same.
pub(super) fn plain_regex_path(text: &str) -> Result<ImportedPath, String> {
    let unsupported = || "a regular expression that no route's path can say".to_owned();
    let body = text.strip_prefix("^/").ok_or_else(unsupported)?;
    let (body, has_end) = match body.strip_suffix('$') {
        Some(body) => (body, true),
        None => (body, false),
    };
    let rests = ["(/|$)", "(?:/|$)", "/(.*)", "/.*", "(/.*)?", "(.*)", ".*"];
    let rest = rests.iter().find_map(|rest| body.strip_suffix(rest));
    let (body, takes_rest) = match rest {
        Some(body) => (body, true),
        None => (body.strip_suffix("/?").unwrap_or(body), !has_end),
    };
    let mut pattern = String::new();
    let mut is_wider = false;
    for (number, segment) in body.trim_end_matches('/').split('/').enumerate() {
        pattern.push('/');
        let group = segment
            .strip_prefix('(')
            .and_then(|one| one.strip_suffix(')'));
        let any_text = ["[^/]+", ".+"];
        let some_text = [r"\d+", "[0-9]+", "[a-z]+", r"\w+", "[a-zA-Z0-9]+"];
        let inner = group.unwrap_or(segment);
        is_wider |= some_text.contains(&inner);
        match any_text.contains(&inner) || some_text.contains(&inner) {
            true => pattern.push_str(&format!("{{p{}}}", number + 1)),
            false => pattern.push_str(&unescape_literal(segment).ok_or_else(unsupported)?),
        }
    }
    if takes_rest {
        pattern.truncate(pattern.trim_end_matches('/').len());
        pattern.push_str("/*");
    }
    let ends_in_segment = !has_end && rest.is_none() && !body.ends_with('/');
    let differs = match (is_wider, ends_in_segment) {
        (true, _) => Some("any segment is taken where it took some characters only"),
        (_, true) => Some("routes take whole segments of a path"),
        _ => None,
    };
    Ok(ImportedPath::parse(pattern)?.differing(differs.map(str::to_owned)))
}

/// Parses a path with numbered parameters, so that two paths are equal whatever the names of their
/// parameters are.
pub(super) fn parse_shape(path: &str) -> Result<PathPattern, PatternError> {
    let segments = path.split('/').enumerate().map(|(number, segment)| {
        match segment.starts_with('{') && segment.ends_with('}') {
            true => format!("{{p{number}}}"),
            false => segment.to_owned(),
        }
    });
    PathPattern::parse(&segments.collect::<Vec<_>>().join("/"))
}

/// Returns the text that an expression matches, if it matches one text only.
fn unescape_literal(regex: &str) -> Option<String> {
    let mut out = String::new();
    let mut chars = regex.chars();
    while let Some(c) = chars.next() {
        let c = match c {
            '\\' => chars.next().filter(|escaped| !escaped.is_alphanumeric())?,
            c if SPECIAL.contains(c) => return None,
            c => c,
        };
        out.push(c);
    }
    Some(out)
}

/// Returns the text that each match of an expression begins with.
pub(super) fn regex_beginning(regex: &str) -> String {
    let fixed = regex.strip_prefix('^').filter(|rest| !rest.contains('|'));
    let Some(rest) = fixed else {
        return String::new();
    };
    let mut text = String::new();
    let mut chars = rest.chars();
    while let Some(c) = chars.next() {
        match c {
            '\\' => match chars.next().filter(|escaped| !escaped.is_alphanumeric()) {
                Some(escaped) => text.push(escaped),
                None => break,
            },
            '?' | '*' | '{' => {
                text.pop();
                break;
            }
            c if SPECIAL.contains(c) => break,
            c => text.push(c),
        }
    }
    text
}

const SPECIAL: &str = "\\.+*?()|[]{}^$";

pub(super) fn escape_regex(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        if SPECIAL.contains(c) {
            out.push('\\');
        }
        out.push(c);
    }
    out
}

/// Writes a text as a path, with escapes for what no path has.
pub(super) fn escape_path(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte.is_ascii_alphanumeric() || b"/-._~!$&'()*+,;=:@".contains(&byte) {
            true => out.push(char::from(byte)),
            false => out.push_str(&format!("%{byte:02X}")),
        }
    }
    out
}

/// Reads an expression of nginx (PCRE) as one of routes (RE2) that matches the same.
pub(super) fn translate_regex(text: &str, any_case: bool) -> Result<Regex, String> {
    let text = with_case(text, any_case);
    parse_regex(&expand_last_lookahead(&text).unwrap_or(text))
}

/// Returns an expression that matches the same or more: look-around is left out.
pub(super) fn widen_regex(text: &str, any_case: bool) -> Result<String, String> {
    let regex = translate_regex(text, any_case)
        .or_else(|_| parse_regex(&remove_lookaround(&with_case(text, any_case))))?;
    Ok(regex.as_str().to_owned())
}

fn parse_regex(text: &str) -> Result<Regex, String> {
    Regex::parse(text).map_err(|why| format!("`{text}`: {why}"))
}

fn with_case(text: &str, any_case: bool) -> String {
    match any_case {
        true => format!("(?i){text}"),
        false => text.to_owned(),
    }
}

/// Rewrites `a(?!bc)` at the end of an expression as the texts that may follow instead of `bc`.
fn expand_last_lookahead(text: &str) -> Option<String> {
    let (before, rest) = text.split_once("(?!")?;
    let (word, after) = rest.split_once(')')?;
    let is_end = matches!(after, "" | ".*" | ".*$");
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_/".contains(c);
    if !is_end || word.is_empty() || !word.chars().all(is_plain) || before.contains("(?!") {
        return None;
    }
    let mut out = String::new();
    for c in word.chars().rev() {
        let c = match c {
            '-' => "\\-".to_owned(),
            c => c.to_string(),
        };
        out = match out.is_empty() {
            true => format!("(?:$|[^{c}])"),
            false => format!("(?:$|[^{c}]|{c}{out})"),
        };
    }
    Some(format!("{before}{out}"))
}

/// Removes `(?!..)`, `(?=..)`, `(?<!..)` and `(?<=..)`.
fn remove_lookaround(text: &str) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some(c) = rest.chars().next() {
        let looks = ["(?!", "(?=", "(?<!", "(?<="];
        if looks.iter().any(|look| rest.starts_with(look)) {
            rest = &rest[group_length(rest)..];
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

/// Returns the length of the group at the beginning of an expression, in bytes.
fn group_length(text: &str) -> usize {
    let (mut depth, mut escaped, mut in_set) = (0_usize, false, false);
    for (at, c) in text.char_indices() {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            ']' => in_set = false,
            '[' => in_set = true,
            '(' if !in_set => depth += 1,
            ')' if !in_set => {
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

/// Whether an expression has a group of this name or number.
pub(super) fn has_group(regex: &str, group: &str) -> bool {
    match group.parse::<usize>() {
        Ok(number) => {
            let escaped = regex.replace("\\\\", "").replace("\\(", "");
            let groups = escaped.match_indices('(').filter(|(at, _)| {
                let rest = &escaped[at + 1..];
                !rest.starts_with('?') || rest.starts_with("?<") || rest.starts_with("?P<")
            });
            (1..=groups.count()).contains(&number)
        }
        Err(_) => regex.contains(&format!("<{group}>")),
    }
}

/// Returns the name of a header in lower case. Fails with a reason if a route may not change it.
pub(super) fn parse_changed_header(
    name: &str,
    direction: Direction,
) -> Result<String, &'static str> {
    let name = HeaderName::from_bytes(name.as_bytes()).map_err(|_| "not a header's name")?;
    HeaderChange::may_touch(&name, direction)?;
    Ok(name.as_str().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_keep_what_they_take() {
        let pattern = |path: Result<ImportedPath, String>| path.map(|path| path.pattern).ok();
        for (text, expected) in [
            ("/", Some("/*")),
            ("/api/", Some("/api/*")),
            ("/api", Some("/api/*")),
            ("/img/thumb_", None),
            ("/a{1}/", None),
            ("@named", None),
        ] {
            assert_eq!(pattern(prefix_path(text)).as_deref(), expected, "{text}");
        }
        for (text, expected) in [
            ("^/api/(.*)$", Some("/api/*")),
            ("^/api/", Some("/api/*")),
            ("^/api(/|$)", Some("/api/*")),
            ("^/login$", Some("/login")),
            ("^/login/?$", Some("/login")),
            (r"^/users/([0-9]+)/posts$", Some("/users/{p2}/posts")),
            (r"^/robots\.txt$", Some("/robots.txt")),
            (r"\.php$", None),
            (r"^/(a|b)/", None),
            ("^/a.*b", None),
        ] {
            let found = pattern(plain_regex_path(text));
            assert_eq!(found.as_deref(), expected, "{text}");
        }
        assert!(prefix_path("/api").unwrap().differs.is_some());
        assert_eq!(exact_path("/x").unwrap().differs, None);
    }

    #[test]
    fn expressions_have_groups() {
        for (regex, group, has) in [
            (r"^/(?<a>\w)/(b)\(", "a", true),
            (r"^/(?<a>\w)/(b)\(", "2", true),
            (r"^/(?<a>\w)/(b)\(", "3", false),
            (r"^/(?:a)", "1", false),
            (r"^/(?P<a>a)", "b", false),
        ] {
            assert_eq!(has_group(regex, group), has, "{regex} {group}");
        }
    }

    #[test]
    fn looking_ahead_at_the_end_is_expanded() {
        let regex = translate_regex(r"/\.(?!well-known).*", false).unwrap();
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
    fn an_expression_without_its_other_look_around_finds_more() {
        assert_eq!(widen_regex(r"^/(?!api|x)a(?=b)", false).unwrap(), "^/a");
        assert_eq!(widen_regex(r"\.php$", true).unwrap(), r"(?i)\.php$");
        assert!(widen_regex("(", false).is_err());
        assert_eq!(escape_regex("/a.b(c)-d"), r"/a\.b\(c\)-d");
        assert_eq!(escape_path("/a b/{?%"), "/a%20b/%7B%3F%25");
    }
}
