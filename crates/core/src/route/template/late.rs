//! Values of response headers that tell something of the response: filled in two steps.

use std::time::Duration;

use http::header::SET_COOKIE;
use http::{HeaderMap, HeaderName};

use super::{
    MAX_VALUE, Template, TemplateFacts, TemplatePiece, TooLong, Variable, push, push_header,
};

/// A variable that has a value only when the response is there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::route) enum LateVariable {
    Attempts(AttemptVariable),
    /// Seconds since the head of the request, such as `0.012`.
    RequestTime,
    /// Seconds since the Unix epoch, such as `1795843695.012`.
    UnixTime,
    /// All lines of a header of the response, joined.
    Header(HeaderName),
    /// The value of a cookie that the response sets.
    Cookie(Box<str>),
}

/// What is told of the attempts to send the request. Several are separated by `, `, as in nginx.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttemptVariable {
    /// The server's address.
    Address,
    Status,
    /// Seconds until the head of the response, such as `0.012`.
    Time,
}

/// The time at which a value is filled in.
#[derive(Clone, Copy, Debug)]
pub struct ResponseTime {
    /// The time since the head of the request.
    pub took: Duration,
    /// Since the Unix epoch.
    pub unix: Duration,
}

/// A value with all variables of the request filled in.
#[derive(Clone, Debug)]
pub struct LateText {
    pieces: Vec<LatePiece>,
    escape: Escape,
}

/// How values are written, so that no client can put a script into the page of another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Escape {
    None,
    Html,
}

#[derive(Clone, Debug)]
enum LatePiece {
    Bytes(Vec<u8>),
    Late(LateVariable),
}

impl LateVariable {
    pub(super) const ADDRESS: Variable =
        Variable::Late(LateVariable::Attempts(AttemptVariable::Address));
    pub(super) const STATUS: Variable =
        Variable::Late(LateVariable::Attempts(AttemptVariable::Status));
    pub(super) const TIME: Variable = Variable::Late(LateVariable::Attempts(AttemptVariable::Time));
}

impl Template {
    /// Whether a variable has a value only when the response is there.
    pub fn is_late(&self) -> bool {
        self.variables()
            .any(|variable| matches!(variable, Variable::Late(_)))
    }

    /// Fills in the variables of the request.
    pub fn fill_late(&self, facts: &TemplateFacts<'_>) -> Result<LateText, TooLong> {
        self.fill_escaped(facts, Escape::None)
    }

    pub(super) fn fill_escaped(
        &self,
        facts: &TemplateFacts<'_>,
        escape: Escape,
    ) -> Result<LateText, TooLong> {
        let mut pieces = Vec::with_capacity(self.pieces.len());
        let mut length = 0;
        let mut value = Vec::new();
        for piece in &self.pieces {
            let mut bytes = Vec::new();
            match piece {
                TemplatePiece::Text(text) => bytes.extend_from_slice(text.as_bytes()),
                TemplatePiece::Variable(Variable::Late(variable)) => {
                    pieces.push(LatePiece::Late(variable.clone()));
                    continue;
                }
                TemplatePiece::Variable(variable) => {
                    value.clear();
                    variable.write(&mut value, facts);
                    escape.push(&mut bytes, &value);
                }
            }
            length += bytes.len();
            if length > MAX_VALUE {
                return Err(TooLong);
            }
            pieces.push(LatePiece::Bytes(bytes));
        }
        Ok(LateText { pieces, escape })
    }
}

impl LateText {
    pub fn tells_attempts(&self) -> bool {
        let tells = |piece: &LatePiece| matches!(piece, LatePiece::Late(LateVariable::Attempts(_)));
        self.pieces.iter().any(tells)
    }

    /// Fills in the variables of the response with these headers. `attempts` tells the attempts.
    pub fn fill(
        &self,
        headers: &HeaderMap,
        time: impl Fn() -> ResponseTime,
        attempts: impl Fn(AttemptVariable) -> String,
    ) -> Vec<u8> {
        let mut text = Vec::new();
        let mut value = Vec::new();
        for piece in &self.pieces {
            let variable = match piece {
                LatePiece::Bytes(bytes) => {
                    text.extend_from_slice(bytes);
                    continue;
                }
                LatePiece::Late(variable) => variable,
            };
            value.clear();
            match variable {
                LateVariable::Attempts(variable) => push(&mut value, &attempts(*variable)),
                LateVariable::RequestTime => push_seconds(&mut value, time().took),
                LateVariable::UnixTime => push_seconds(&mut value, time().unix),
                LateVariable::Header(name) => push_header(&mut value, headers, name),
                LateVariable::Cookie(name) => value.extend_from_slice(set_cookie(headers, name)),
            }
            self.escape.push(&mut text, &value);
        }
        text
    }
}

impl Escape {
    pub(super) fn push(self, out: &mut Vec<u8>, value: &[u8]) {
        for byte in value {
            match (self, byte) {
                (Escape::Html, b'<') => out.extend_from_slice(b"&lt;"),
                (Escape::Html, b'>') => out.extend_from_slice(b"&gt;"),
                (Escape::Html, b'&') => out.extend_from_slice(b"&amp;"),
                (Escape::Html, b'"') => out.extend_from_slice(b"&quot;"),
                (Escape::Html, b'\'') => out.extend_from_slice(b"&#39;"),
                _ => out.push(*byte),
            }
        }
    }
}

fn push_seconds(out: &mut Vec<u8>, time: Duration) {
    push(
        out,
        &format!("{}.{:03}", time.as_secs(), time.subsec_millis()),
    );
}

/// The value of the first cookie of this name that a response sets.
fn set_cookie<'r>(headers: &'r HeaderMap, name: &str) -> &'r [u8] {
    let mut lines = headers.get_all(SET_COOKIE).iter();
    let value = lines.find_map(|line| {
        let pair = line.as_bytes().split(|byte| *byte == b';').next()?;
        let at = pair.iter().position(|byte| *byte == b'=')?;
        let (found, value) = pair.split_at(at);
        (without_spaces(found) == name.as_bytes()).then(|| without_spaces(&value[1..]))
    });
    value.unwrap_or_default()
}

fn without_spaces(text: &[u8]) -> &[u8] {
    let begin = text.iter().take_while(|byte| **byte == b' ').count();
    let text = &text[begin..];
    let end = text.iter().rev().take_while(|byte| **byte == b' ').count();
    &text[..text.len() - end]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_response_says_cookies() {
        let mut headers = HeaderMap::new();
        for line in ["b=1; Path=/a=2", " a = x y ;HttpOnly", "a=z"] {
            headers.append(SET_COOKIE, line.parse().unwrap());
        }
        assert_eq!(set_cookie(&headers, "a"), b"x y");
        assert_eq!(set_cookie(&headers, "b"), b"1");
        assert_eq!(set_cookie(&headers, "Path"), b"");
    }
}
