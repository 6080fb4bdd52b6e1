//! `${VAR}` and `${VAR:-default}` inside strings; `$$` is a dollar sign.
//!
//! Pure: the environment is an argument. The value of a variable is not filled in again: it cannot
//! name another variable.

use std::borrow::Cow;

/// A reference that could not be filled in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Unfilled {
    /// Its text in the file: `${REDIS_URL}`.
    pub(super) written: String,
    pub(super) error: ReferenceError,
}

/// The reason why a reference cannot be filled in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ReferenceError {
    /// The variable is not set, and there is no default.
    Unset,
    /// No closing brace.
    Unclosed,
    /// Not a variable's name.
    BadName,
}

impl ReferenceError {
    /// The text for the label.
    pub(super) fn text(&self) -> &'static str {
        match self {
            ReferenceError::Unset => "not set, and no default is given",
            ReferenceError::Unclosed => "the closing `}` is missing",
            ReferenceError::BadName => "a name has letters, digits and `_` only",
        }
    }
}

/// Fills in every reference of a text, or returns those that could not be filled in. As in a shell,
/// a default replaces a variable that is unset or empty.
pub(super) fn interpolate<'t>(
    text: &'t str,
    env: &dyn Fn(&str) -> Option<String>,
) -> Result<Cow<'t, str>, Vec<Unfilled>> {
    if !text.contains('$') {
        return Ok(Cow::Borrowed(text));
    }
    let mut out = String::with_capacity(text.len());
    let mut unfilled = Vec::new();
    let mut rest = text;
    while let Some(at) = rest.find('$') {
        out.push_str(&rest[..at]);
        rest = &rest[at..];
        if let Some(after) = rest.strip_prefix("$$") {
            out.push('$');
            rest = after;
        } else if let Some(after) = rest.strip_prefix("${") {
            let Some(end) = after.find('}') else {
                unfilled.push(Unfilled {
                    written: rest.to_owned(),
                    error: ReferenceError::Unclosed,
                });
                rest = "";
                break;
            };
            match fill(&after[..end], env) {
                Ok(value) => out.push_str(&value),
                Err(error) => {
                    let written = rest[..end + 3].to_owned();
                    unfilled.push(Unfilled { written, error });
                }
            }
            rest = &after[end + 1..];
        } else {
            out.push('$');
            rest = &rest[1..];
        }
    }
    out.push_str(rest);
    if unfilled.is_empty() {
        Ok(Cow::Owned(out))
    } else {
        Err(unfilled)
    }
}

/// The value of the text between the braces.
fn fill(inside: &str, env: &dyn Fn(&str) -> Option<String>) -> Result<String, ReferenceError> {
    let (name, default) = match inside.split_once(":-") {
        Some((name, default)) => (name, Some(default)),
        None => (inside, None),
    };
    let first_fits = name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_');
    if !first_fits || !name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_') {
        return Err(ReferenceError::BadName);
    }
    match (env(name), default) {
        (Some(value), None) => Ok(value),
        (Some(value), Some(_)) if !value.is_empty() => Ok(value),
        (_, Some(default)) => Ok(default.to_owned()),
        (None, None) => Err(ReferenceError::Unset),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn env(name: &str) -> Option<String> {
        match name {
            "HOST" => Some("redis.local".into()),
            "EMPTY" => Some(String::new()),
            "NESTED" => Some("${HOST}".into()),
            _ => None,
        }
    }

    #[track_caller]
    fn check(text: &str, expected: &str) {
        assert_eq!(interpolate(text, &env).unwrap(), expected, "{text}");
    }

    #[test]
    fn references_are_filled_in() {
        check("plain", "plain");
        check("redis://${HOST}:6379", "redis://redis.local:6379");
        check("${HOST}${HOST}", "redis.localredis.local");
        check("${NONE:-memory:}", "memory:");
        check("${EMPTY:-memory:}", "memory:");
        check("${EMPTY}", "");
        check("${HOST:-memory:}", "redis.local");
        check("${NONE:-}", "");
    }

    #[test]
    fn dollars_stay_dollars() {
        check("$$", "$");
        check("$${HOST}", "${HOST}");
        check("5$ and $HOME", "5$ and $HOME");
        check("${NESTED}", "${HOST}");
    }

    #[test]
    fn all_that_is_wrong_is_named() {
        let found = interpolate("${NONE} ${HOST} ${A-B} ${open", &env).unwrap_err();
        let written: Vec<_> = found.iter().map(|one| one.written.as_str()).collect();
        assert_eq!(written, ["${NONE}", "${A-B}", "${open"]);
        let why: Vec<_> = found.into_iter().map(|one| one.error).collect();
        assert_eq!(
            why,
            [
                ReferenceError::Unset,
                ReferenceError::BadName,
                ReferenceError::Unclosed
            ]
        );
    }
}
