//! How well a route takes a request that came to it by host and path: by method and headers.

use std::cmp::Reverse;
use std::fmt;

use http::{HeaderMap, Method};

use super::{HeaderMatch, Route, ValueMatch};
use crate::path::Case;

/// Why a text is not a method that a route can have. The configuration's author is at fault.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MethodError {
    /// It is empty or has characters that no method has.
    Token,
    /// It is not in upper case; this is.
    Case(String),
}

/// Reads a method as a route names it: a token in upper case.
pub fn method_of(text: &str) -> Result<Method, MethodError> {
    let method = Method::from_bytes(text.as_bytes()).map_err(|_| MethodError::Token)?;
    let upper = text.to_ascii_uppercase();
    if upper == text {
        Ok(method)
    } else {
        Err(MethodError::Case(upper))
    }
}

impl fmt::Display for MethodError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Token => f.write_str("a method is one word, such as `GET`"),
            Self::Case(upper) => write!(f, "methods are written in upper case: `{upper}`"),
        }
    }
}

impl std::error::Error for MethodError {}

impl Route {
    /// How well it takes a method: 0 by name, 1 `HEAD` by `GET`'s name, 2 because it names none.
    ///
    /// Names are compared without case, since there are upstreams that do; `get` must not escape
    /// what limits `GET`.
    pub(super) fn method_rank(&self, method: &Method) -> Option<u8> {
        let named = |name: &str| {
            self.methods
                .iter()
                .any(|method| method.as_str().eq_ignore_ascii_case(name))
        };
        match method.as_str() {
            _ if self.methods.is_empty() => Some(2),
            name if named(name) => Some(0),
            name if name.eq_ignore_ascii_case("HEAD") && named("GET") => Some(1),
            _ => None,
        }
    }

    /// Smaller for more specific headers: more of them, then more exact ones (a value before an
    /// expression before any value). What is equally
    /// specific and yet different is ordered by its text, so that the file's order never matters.
    pub(super) fn header_rank(&self) -> impl Ord + use<> {
        let set = header_set(&self.headers);
        let exact: usize = set.iter().map(|(_, kind, _)| usize::from(*kind)).sum();
        let text: Vec<_> = set
            .iter()
            .map(|(name, kind, value)| ((*name).to_owned(), *kind, (*value).to_owned()))
            .collect();
        (Reverse((set.len(), exact)), text)
    }

    /// Whether a request has every header that it asks for.
    pub(super) fn takes_headers(&self, headers: &HeaderMap) -> bool {
        self.headers.iter().all(|wanted| wanted.is_in(headers))
    }

    /// Whether a route stands in the way of this one that has the same host, and the same path but
    /// for letter case.
    pub(super) fn rivals(&self, other: &Route) -> bool {
        let methods_meet = match (self.methods.is_empty(), other.methods.is_empty()) {
            (true, true) => true,
            (false, false) => {
                let same = |method: &Method| other.methods.contains(method);
                self.methods.iter().any(same)
            }
            _ => false,
        };
        let case_meets = [self, other]
            .iter()
            .any(|one| one.case == Case::Insensitive);
        let paths_meet = case_meets || self.path.has_literals_of(&other.path);
        methods_meet && paths_meet && header_set(&self.headers) == header_set(&other.headers)
    }
}

impl HeaderMatch {
    /// Whether a request has it: any value, or one copy with exactly this value.
    pub(super) fn is_in(&self, headers: &HeaderMap) -> bool {
        let mut values = headers.get_all(&self.name).iter();
        match &self.value {
            ValueMatch::Any => values.next().is_some(),
            ValueMatch::Regex(regex) => {
                values.any(|value| regex.is_in(value.as_bytes().trim_ascii()))
            }
            ValueMatch::Exactly(wanted) => {
                values.any(|value| value.as_bytes().trim_ascii() == wanted.as_bytes())
            }
        }
    }
}

/// Header matches without order and repetition: the name, how exact the value is, the value.
fn header_set(headers: &[HeaderMatch]) -> Vec<(&str, u8, &str)> {
    let mut set: Vec<_> = headers
        .iter()
        .map(|wanted| {
            let (kind, value) = match &wanted.value {
                ValueMatch::Any => (0, ""),
                ValueMatch::Regex(regex) => (1, regex.as_str()),
                ValueMatch::Exactly(value) => (2, value.as_str()),
            };
            (wanted.name.as_str(), kind, value)
        })
        .collect();
    set.sort_unstable();
    set.dedup();
    set
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn methods_are_upper_case_tokens() {
        assert_eq!(method_of("POST"), Ok(Method::POST));
        assert_eq!(method_of("PURGE").unwrap().as_str(), "PURGE");
        assert_eq!(method_of("post"), Err(MethodError::Case("POST".to_owned())));
        assert_eq!(method_of(""), Err(MethodError::Token));
        assert_eq!(method_of("GET,POST"), Err(MethodError::Token));
    }
}
