//! Values of response headers that tell something of the response: filled in two steps.

use std::time::Duration;

use http::header::SET_COOKIE;
use http::{HeaderMap, HeaderName};

use super::escape::Escape;
use super::{Template, TemplateFacts, TemplatePiece, TooLong, Variable, push, push_header};
use crate::stamp;

/// A variable that has a value only when the response is there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::route) enum LateVariable {
    Attempts(AttemptVariable),
    /// What the limits decided, as in nginx.
    LimitStatus,
    /// Seconds since the head of the request, such as `0.012`.
    RequestTime,
    /// Seconds since the Unix epoch, such as `1795843695.012`.
    UnixTime,
    /// Seconds since the connection was opened, such as `0.012`.
    ConnectionAge,
    /// All lines of a header of the response, joined.
    Header(HeaderName),
    /// The value of a cookie that the response sets.
    Cookie(Box<str>),
    Line(LineVariable),
}

/// A variable that has a value only when the response has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::route) enum LineVariable {
    Status,
    BytesSent,
    BodyBytesSent,
    /// Such as `2026-11-20T22:37:06.123Z`.
    Time,
    /// Such as `20/Nov/2026:22:37:06 +0000`.
    CommonTime,
}

/// What is told of the attempts to send the request. Several are separated by `, `, as in nginx.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttemptVariable {
    /// The server's address.
    Address,
    Status,
    /// Seconds until the head of the response, such as `0.012`.
    Time,
    BytesSent,
    BytesReceived,
    BodyBytes,
}

/// What the limits decided, in nginx's words. Of several decisions the last one here is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum LimitResult {
    Passed,
    /// A limit in shadow mode would have denied the request.
    RejectedDryRun,
    Delayed,
    Rejected,
}

impl LimitResult {
    fn as_str(self) -> &'static str {
        match self {
            LimitResult::Passed => "PASSED",
            LimitResult::RejectedDryRun => "REJECTED_DRY_RUN",
            LimitResult::Delayed => "DELAYED",
            LimitResult::Rejected => "REJECTED",
        }
    }
}

/// What the line of a log tells of a response. Headers of the response tell only what the limits
/// decided.
#[derive(Clone, Copy, Debug, Default)]
pub struct SentResponse {
    pub status: u16,
    /// With the head.
    pub bytes: u64,
    pub body_bytes: u64,
    /// `None` if no limit was asked.
    pub limit_status: Option<LimitResult>,
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
    /// That of the client's connection at the head of the request.
    connection_age: Option<Duration>,
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
    pub(super) const BYTES_SENT: Variable =
        Variable::Late(LateVariable::Attempts(AttemptVariable::BytesSent));
    pub(super) const BYTES_RECEIVED: Variable =
        Variable::Late(LateVariable::Attempts(AttemptVariable::BytesReceived));
    pub(super) const BODY_BYTES: Variable =
        Variable::Late(LateVariable::Attempts(AttemptVariable::BodyBytes));
}

impl LineVariable {
    pub(super) const STATUS: Variable = LineVariable::Status.variable();
    pub(super) const BYTES_SENT: Variable = LineVariable::BytesSent.variable();
    pub(super) const BODY_BYTES_SENT: Variable = LineVariable::BodyBytesSent.variable();
    pub(super) const TIME: Variable = LineVariable::Time.variable();
    pub(super) const COMMON_TIME: Variable = LineVariable::CommonTime.variable();

    const fn variable(self) -> Variable {
        Variable::Late(LateVariable::Line(self))
    }

    fn write(self, out: &mut Vec<u8>, sent: SentResponse, time: ResponseTime) {
        let unix_us = || u64::try_from(time.unix.as_micros()).unwrap_or(u64::MAX);
        match self {
            Self::Status => push(out, &sent.status.to_string()),
            Self::BytesSent => push(out, &sent.bytes.to_string()),
            Self::BodyBytesSent => push(out, &sent.body_bytes.to_string()),
            Self::Time => out.extend_from_slice(&stamp::rfc3339_bytes(unix_us())),
            Self::CommonTime => out.extend_from_slice(&stamp::common(unix_us())),
        }
    }
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
            .bounded(facts.max_value)
    }

    pub(super) fn fill_escaped(&self, facts: &TemplateFacts<'_>, escape: Escape) -> LateText {
        let pieces = self.pieces.iter().map(|piece| match piece {
            TemplatePiece::Text(own) => LatePiece::Bytes(own.as_bytes().into()),
            TemplatePiece::Variable(Variable::Late(variable)) => LatePiece::Late(variable.clone()),
            TemplatePiece::Variable(variable) => {
                let mut bytes = Vec::new();
                variable.write(&mut bytes, facts);
                escape.apply(&mut bytes, 0);
                LatePiece::Bytes(bytes)
            }
        });
        LateText {
            pieces: pieces.collect(),
            escape,
            connection_age: facts.connection.map(|connection| connection.age),
        }
    }
}

impl LateText {
    /// The same text if it has at most `most` bytes until now.
    pub(super) fn bounded(self, most: usize) -> Result<LateText, TooLong> {
        let lengths = self.pieces.iter().map(|piece| match piece {
            LatePiece::Bytes(bytes) => bytes.len(),
            LatePiece::Late(_) => 0,
        });
        match lengths.sum::<usize>() <= most {
            true => Ok(self),
            false => Err(TooLong),
        }
    }

    pub fn tells_headers(&self) -> bool {
        let tells = |piece: &LatePiece| {
            let LatePiece::Late(variable) = piece else {
                return false;
            };
            matches!(variable, LateVariable::Header(_) | LateVariable::Cookie(_))
        };
        self.pieces.iter().any(tells)
    }

    pub fn tells_attempts(&self) -> bool {
        let tells = |piece: &LatePiece| matches!(piece, LatePiece::Late(LateVariable::Attempts(_)));
        self.pieces.iter().any(tells)
    }

    /// Fills in the variables of the response with these headers. `attempts` tells the attempts.
    pub fn fill(
        &self,
        headers: &HeaderMap,
        sent: SentResponse,
        time: impl Fn() -> ResponseTime,
        attempts: impl Fn(AttemptVariable) -> String,
    ) -> Vec<u8> {
        let mut text = Vec::new();
        for piece in &self.pieces {
            let variable = match piece {
                LatePiece::Bytes(bytes) => {
                    text.extend_from_slice(bytes);
                    continue;
                }
                LatePiece::Late(variable) => variable,
            };
            let start = text.len();
            match variable {
                LateVariable::Attempts(variable) => push(&mut text, &attempts(*variable)),
                LateVariable::LimitStatus => {
                    push(&mut text, sent.limit_status.map_or("", LimitResult::as_str));
                }
                LateVariable::RequestTime => push_seconds(&mut text, time().took),
                LateVariable::UnixTime => push_seconds(&mut text, time().unix),
                LateVariable::ConnectionAge => {
                    if let Some(age) = self.connection_age {
                        push_seconds(&mut text, age + time().took);
                    }
                }
                LateVariable::Header(name) => push_header(&mut text, headers, name),
                LateVariable::Cookie(name) => text.extend_from_slice(set_cookie(headers, name)),
                LateVariable::Line(variable) => variable.write(&mut text, sent, time()),
            }
            self.escape.apply(&mut text, start);
        }
        text
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
