//! How well a route matches a request by method and headers, after host and path have matched.

use std::cmp::Reverse;
use std::fmt;

use http::{HeaderMap, HeaderName, Method};

use super::regex::{MARK, Regex};
use super::{Route, RouteQuery};
use crate::limit::key::any_query_value;
use crate::path::{CanonicalPath, Case, Malformed};
use crate::request_head::lines_of;

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct HeaderMatch {
    pub name: HeaderName,
    pub value: ValueMatch,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct QueryMatch {
    pub name: Box<str>,
    pub value: ValueMatch,
}

/// What a header's trimmed value, or a parameter's decoded value, must be.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum ValueMatch {
    Any,
    /// The expression is found in it.
    Regex(Regex),
    Exactly(String),
}

impl ValueMatch {
    /// Reads a value as the configuration writes it: `regex:..` is an expression.
    pub fn parse(text: String) -> Result<ValueMatch, Malformed> {
        match text.strip_prefix(MARK) {
            Some(expression) => Regex::parse(expression).map(ValueMatch::Regex),
            None => Ok(ValueMatch::Exactly(text)),
        }
    }
}

/// A text that is not a method of a route. The configuration's author is at fault.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MethodError {
    Token,
    /// It is not in upper case. Holds the upper-case form.
    Case(String),
}

pub fn method_of(text: &str) -> Result<Method, MethodError> {
    let method = Method::from_bytes(text.as_bytes()).map_err(|_| MethodError::Token)?;
    let upper = text.to_ascii_uppercase();
    match upper == text {
        true => Ok(method),
        false => Err(MethodError::Case(upper)),
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

/// The property that makes one of two matching routes more specific, in the order of precedence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Precedence {
    Host,
    Path,
    Method,
    Port,
    TrailingSlash,
    /// It asks for more headers and parameters.
    MoreFields,
    /// It asks for as many, and for more exact values.
    ExactFields,
    /// The names and values that it asks for come first in the alphabet.
    Alphabet,
}

impl Route {
    /// How well the route matches a method: 0 by name, 1 `HEAD` by the name of `GET`, 2 since the
    /// route names no methods.
    ///
    /// Names are compared without case, as some upstreams do: `get` must not escape a limit of
    /// `GET`.
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

    /// Smaller for a route with a port, then for one with `trailing_slash`, then for more specific
    /// headers: more of them, then more exact ones (a value before an expression before any value).
    /// Equally specific headers are ordered by their text, so that the file's order never matters.
    pub(super) fn header_rank(&self) -> impl Ord + use<> {
        let set = self.wanted_fields();
        let texts = set.iter().map(|field| format!("{field:?}"));
        (
            Reverse((
                self.port.is_some(),
                self.trailing_slash.is_some(),
                set.len(),
                exactness(&set),
            )),
            texts.collect::<Vec<_>>(),
        )
    }

    /// Why the headers and parameters of this route come before those of another one.
    pub(super) fn fields_precede(&self, other: &Route) -> Precedence {
        let (own, others) = (self.wanted_fields(), other.wanted_fields());
        if own.len() != others.len() {
            Precedence::MoreFields
        } else if exactness(&own) != exactness(&others) {
            Precedence::ExactFields
        } else {
            Precedence::Alphabet
        }
    }

    pub(super) fn takes_port(&self, port: u16) -> bool {
        self.port.is_none_or(|own| own == port)
    }

    pub(super) fn takes_slash(&self, path: &CanonicalPath<'_>) -> bool {
        (self.trailing_slash).is_none_or(|wanted| wanted == path.ends_with_slash())
    }

    pub(super) fn takes_fields(&self, query: &RouteQuery<'_>) -> bool {
        self.headers
            .iter()
            .all(|wanted| wanted.is_in(query.headers))
            && self.query.iter().all(|wanted| wanted.is_in(query.query))
    }

    /// The headers and query parameters without order and repetition.
    fn wanted_fields(&self) -> Vec<WantedField<'_>> {
        let headers = self.headers.iter();
        let headers = headers.map(|one| one.value.of_field(false, one.name.as_str()));
        let query = self.query.iter();
        let query = query.map(|one| one.value.of_field(true, &one.name));
        let mut fields: Vec<_> = headers.chain(query).collect();
        fields.sort_unstable();
        fields.dedup();
        fields
    }

    /// Whether two routes match the same requests equally well. They have the same host, and the
    /// same path but for letter case.
    pub(super) fn rivals(&self, other: &Route) -> bool {
        let methods_meet = match (self.methods.is_empty(), other.methods.is_empty()) {
            (true, true) => true,
            (false, false) => self.methods.iter().any(|one| other.methods.contains(one)),
            _ => false,
        };
        let ignores_case = [self.case, other.case].contains(&Case::Insensitive);
        let paths_meet = ignores_case || self.path.has_literals_of(&other.path);
        let same_arrival = self.port == other.port && self.trailing_slash == other.trailing_slash;
        same_arrival && methods_meet && paths_meet && self.wanted_fields() == other.wanted_fields()
    }
}

impl QueryMatch {
    pub(super) fn is_in(&self, query: Option<&str>) -> bool {
        let passes = |value: &[u8]| match &self.value {
            ValueMatch::Any => true,
            ValueMatch::Regex(regex) => regex.is_in(value),
            // A space is `+` in a decoded value.
            ValueMatch::Exactly(wanted) => {
                let folded = wanted
                    .bytes()
                    .map(|byte| if byte == b' ' { b'+' } else { byte });
                value.iter().copied().eq(folded)
            }
        };
        query.is_some_and(|query| any_query_value(query, &self.name, passes))
    }
}

impl HeaderMatch {
    pub(super) fn is_in(&self, headers: &HeaderMap) -> bool {
        let mut values = lines_of(headers, &self.name);
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

/// A header or a query parameter that a route asks for.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct WantedField<'r> {
    is_query: bool,
    name: &'r str,
    exactness: u8,
    value: &'r str,
}

fn exactness(fields: &[WantedField<'_>]) -> usize {
    let all = fields.iter().map(|field| usize::from(field.exactness));
    all.sum()
}

impl ValueMatch {
    fn of_field<'r>(&'r self, is_query: bool, name: &'r str) -> WantedField<'r> {
        let (exactness, value) = match self {
            ValueMatch::Any => (0, ""),
            ValueMatch::Regex(regex) => (1, regex.as_str()),
            ValueMatch::Exactly(value) => (2, value.as_str()),
        };
        WantedField {
            is_query,
            name,
            exactness,
            value,
        }
    }
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    #[test]
    fn a_header_is_found_under_a_name_with_underscores() {
        let wanted = HeaderMatch {
            name: HeaderName::from_static("x-version"),
            value: ValueMatch::Exactly("2".to_owned()),
        };
        for (name, found) in [
            ("x-version", true),
            ("x_version", true),
            ("x-versions", false),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert(HeaderName::from_static(name), HeaderValue::from_static("2"));
            assert_eq!(wanted.is_in(&headers), found, "{name}");
        }
    }

    #[test]
    fn methods_are_upper_case_tokens() {
        assert_eq!(method_of("POST"), Ok(Method::POST));
        assert_eq!(method_of("PURGE").unwrap().as_str(), "PURGE");
        assert_eq!(method_of("post"), Err(MethodError::Case("POST".to_owned())));
        assert_eq!(method_of(""), Err(MethodError::Token));
        assert_eq!(method_of("GET,POST"), Err(MethodError::Token));
    }
}
