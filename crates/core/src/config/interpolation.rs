//! References to environment variables in the texts of a file: `${NAME}` and `${NAME:-default}`.

#[cfg(test)]
mod tests;

use std::borrow::Cow;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Unfilled {
    /// Its text in the file: `${REDIS_URL}`.
    pub(super) written: String,
    pub(super) error: &'static str,
}

const UNSET: &str = "not set, and no default is given";
const UNCLOSED: &str = "the closing `}` is missing";
const BAD_NAME: &str = "a name has letters, digits and `_` only";

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
                    error: UNCLOSED,
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

/// The name in the first reference of a text.
pub(super) fn first_variable(text: &str) -> Option<&str> {
    let mut rest = text;
    loop {
        rest = &rest[rest.find('$')? + 1..];
        if let Some(after) = rest.strip_prefix('{') {
            return after.split([':', '}']).next();
        }
        rest = rest.strip_prefix('$').unwrap_or(rest);
    }
}

/// Escapes a text that is filled in, so that filling it in again changes nothing.
pub(super) fn without_variables(text: &str) -> Cow<'_, str> {
    if !text.contains("$$") && !text.contains("${") {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len() + 1);
    let mut chars = text.chars().peekable();
    while let Some(c) = chars.next() {
        out.push(c);
        if c == '$' && matches!(chars.peek(), Some('$' | '{')) {
            out.push('$');
        }
    }
    Cow::Owned(out)
}

fn fill(inside: &str, env: &dyn Fn(&str) -> Option<String>) -> Result<String, &'static str> {
    let (name, default) = match inside.split_once(":-") {
        Some((name, default)) => (name, Some(default)),
        None => (inside, None),
    };
    let first_fits = name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_');
    if !first_fits || !name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_') {
        return Err(BAD_NAME);
    }
    match (env(name), default) {
        (Some(value), None) => Ok(value),
        (Some(value), Some(_)) if !value.is_empty() => Ok(value),
        (_, Some(default)) => Ok(default.to_owned()),
        (None, None) => Err(UNSET),
    }
}
