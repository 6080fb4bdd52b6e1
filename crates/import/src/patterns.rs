//! Paths and names of other programs as patterns of routes.

use crate::route::{HostPattern, PathPattern};

/// Patterns for what a location takes, and what is different about them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Paths {
    pub(super) pattern: String,
    pub(super) differs: Option<String>,
}

impl Paths {
    /// A pattern as it is.
    pub(super) fn plain(pattern: &str) -> Paths {
        Paths {
            pattern: pattern.to_owned(),
            differs: None,
        }
    }
}

pub(super) fn checked(pattern: String, differs: Option<String>) -> Result<Paths, String> {
    match PathPattern::parse(&pattern) {
        Ok(_) => Ok(Paths { pattern, differs }),
        Err(_) => Err(format!("`{pattern}` cannot be a route's path")),
    }
}

/// `location = /path`
pub(super) fn exact(path: &str) -> Result<Paths, String> {
    no_braces(path)?;
    checked(path.to_owned(), None)
}

/// `location /path`: routes take whole segments only.
pub(super) fn prefix(path: &str) -> Result<Paths, String> {
    no_braces(path)?;
    if !path.starts_with('/') {
        return Err("it does not begin with `/`".to_owned());
    }
    let body = path.trim_end_matches('/');
    let is_word = |c: char| c.is_alphanumeric();
    let differs = if path.ends_with('/') {
        None
    } else if body.ends_with(is_word) {
        Some(format!(
            "routes take whole segments: `{body}` and what is below it, and no longer `{body}-more`"
        ))
    } else {
        return Err("routes take whole segments of a path, not parts of one".to_owned());
    };
    checked(format!("{body}/*"), differs)
}

/// Every path that begins so, within a segment too.
pub(super) fn beginning(path: &str) -> Result<Paths, String> {
    let mut text = String::new();
    for c in path.chars() {
        if ".+*?()|[]{}^$\\".contains(c) {
            text.push('\\');
        }
        text.push(c);
    }
    checked(format!("regex:^{text}"), None)
}

fn no_braces(path: &str) -> Result<(), String> {
    match path.contains(['{', '}', '*']) {
        true => Err("braces and stars mean something else in a route's path".to_owned()),
        false => Ok(()),
    }
}

/// `location ~ ^/api/v1/(.*)$`: the regular expressions that a path of a route can say.
pub(super) fn regex(text: &str, any_case: bool) -> Result<Paths, String> {
    let too_much = || "a regular expression that no route's path can say".to_owned();
    let body = text.strip_prefix("^/").ok_or_else(too_much)?;
    let (body, ends) = match body.strip_suffix('$') {
        Some(body) => (body, true),
        None => (body, false),
    };
    let rests = ["(/|$)", "(?:/|$)", "/(.*)", "/.*", "(/.*)?", "(.*)", ".*"];
    let rest = rests.iter().find_map(|rest| body.strip_suffix(rest));
    let (body, takes_rest) = match rest {
        Some(body) => (body, true),
        None => (body.strip_suffix("/?").unwrap_or(body), !ends),
    };
    let mut pattern = String::new();
    let mut narrower = false;
    for (number, segment) in body.trim_end_matches('/').split('/').enumerate() {
        pattern.push('/');
        let inner = segment
            .strip_prefix('(')
            .and_then(|one| one.strip_suffix(')'));
        match inner.unwrap_or(segment) {
            "[^/]+" | ".+" => pattern.push_str(&format!("{{p{}}}", number + 1)),
            r"\d+" | "[0-9]+" | "[a-z]+" | r"\w+" | "[a-zA-Z0-9]+" => {
                narrower = true;
                pattern.push_str(&format!("{{p{}}}", number + 1));
            }
            _ => pattern.push_str(&literal(segment).ok_or_else(too_much)?),
        }
    }
    if takes_rest {
        pattern.truncate(pattern.trim_end_matches('/').len());
        pattern.push_str("/*");
    }
    let is_open = !ends && rest.is_none() && !body.ends_with('/');
    let differs = match (any_case, narrower, is_open) {
        (true, ..) => Some("letters are taken as they are spelled"),
        (_, true, _) => Some("any segment is taken where it took some characters only"),
        (.., true) => Some("routes take whole segments of a path"),
        _ => None,
    };
    let differs = differs.map(str::to_owned);
    checked(pattern, differs)
}

/// A part of a regular expression that stands for itself.
fn literal(text: &str) -> Option<String> {
    let mut out = String::new();
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        match c {
            '\\' => {
                let escaped = chars.next()?;
                (!escaped.is_alphanumeric()).then_some(())?;
                out.push(escaped);
            }
            '.' | '*' | '+' | '?' | '(' | ')' | '[' | ']' | '{' | '}' | '|' | '^' | '$' => {
                return None;
            }
            c => out.push(c),
        }
    }
    Some(out)
}

/// The hosts of one `server_name`; none for every host.
pub(super) fn hosts(name: &str) -> Result<Vec<Option<String>>, String> {
    let host = |text: &str| match HostPattern::parse(text) {
        Ok(_) => Ok(Some(text.to_ascii_lowercase())),
        Err(_) => Err(format!("`{text}` cannot be a route's host")),
    };
    if name.starts_with('~') {
        return Err("a regular expression is no host".to_owned());
    }
    match name {
        "_" | "" | "*" => Ok(vec![None]),
        dotted if dotted.starts_with('.') => {
            Ok(vec![host(&dotted[1..])?, host(&format!("*{dotted}"))?])
        }
        name => Ok(vec![host(name)?]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_keep_what_they_take() {
        let pattern = |paths: Result<Paths, String>| paths.map(|paths| paths.pattern).ok();
        for (text, expected) in [
            ("/", Some("/*")),
            ("/api/", Some("/api/*")),
            ("/api", Some("/api/*")),
            ("/img/thumb_", None),
            ("/a{1}/", None),
            ("@named", None),
        ] {
            assert_eq!(pattern(prefix(text)).as_deref(), expected, "{text}");
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
            assert_eq!(pattern(regex(text, false)).as_deref(), expected, "{text}");
        }
        assert!(prefix("/api").unwrap().differs.is_some());
        assert_eq!(exact("/x").unwrap().differs, None);
    }

    #[test]
    fn names_become_hosts() {
        assert_eq!(hosts("_"), Ok(vec![None]));
        let both = vec![Some("a.de".to_owned()), Some("*.a.de".to_owned())];
        assert_eq!(hosts(".a.de"), Ok(both));
        assert!(hosts("~^www").is_err() && hosts("www.*").is_err());
    }
}
