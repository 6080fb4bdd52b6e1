//! Changes of headers with the values that they have for one request.

use std::sync::Arc;
use std::time::{Duration, Instant};

use http::StatusCode;
use http::header::{CONNECTION, HeaderMap, HeaderName, HeaderValue, UPGRADE};
use smallvec::SmallVec;

use crate::clock;
use crate::exchange::rejection::Rejection;
use crate::request_head::HeadError;
use crate::route::template::{
    LateText, LimitResult, ResponseTime, SentResponse, TemplateFacts, TooLong,
};
use crate::route::{Action, HeaderChange, HeaderText};
use crate::telemetry::spans::AttemptLog;

/// Changes with their values for this request.
pub(super) type Filled<'t> = SmallVec<[FilledChange<'t>; 4]>;

#[derive(Debug)]
pub(super) struct FilledChange<'t> {
    pub(super) change: &'t HeaderChange,
    /// `None` removes the header.
    pub(super) value: Option<FilledValue>,
}

#[derive(Debug)]
pub(super) enum FilledValue {
    Ready(HeaderValue),
    /// It tells something of the response.
    Late(LateText),
}

impl FilledChange<'_> {
    /// `None` for an empty value. `headers` are those of the message.
    pub(super) fn value(&self, headers: &HeaderMap, facts: &LateFacts) -> Option<HeaderValue> {
        self.value.as_ref()?.text(headers, facts)
    }
}

impl FilledValue {
    fn text(&self, headers: &HeaderMap, facts: &LateFacts) -> Option<HeaderValue> {
        match self {
            FilledValue::Ready(value) => Some(value.clone()),
            FilledValue::Late(text) => {
                let text = facts.fill(text, headers);
                Some(HeaderValue::try_from(text).ok()?).filter(|value| !value.is_empty())
            }
        }
    }
}

/// A trailer with its value for one request.
#[derive(Debug)]
pub(super) struct FilledTrailer {
    pub(super) name: HeaderName,
    /// Whether trailers of this name stay.
    pub(super) adds: bool,
    pub(super) value: FilledValue,
}

/// The trailers that a route adds to one response.
#[derive(Debug)]
pub struct ResponseTrailers {
    pub(super) list: Vec<FilledTrailer>,
    /// The headers of the response.
    pub(super) headers: HeaderMap,
    pub(super) late: LateFacts,
}

impl ResponseTrailers {
    /// Adds the trailers to those of the upstream. The body has ended.
    pub fn add_to(&self, trailers: &mut HeaderMap) {
        for one in &self.list {
            match one.value.text(&self.headers, &self.late) {
                Some(value) if one.adds => drop(trailers.append(&one.name, value)),
                Some(value) => drop(trailers.insert(&one.name, value)),
                None => {}
            }
        }
    }
}

/// What variables of a response tell, beside its headers.
#[derive(Clone, Debug, Default)]
pub(super) struct LateFacts {
    /// When the head of the request was complete; `None` for changes without variables.
    pub(super) began: Option<Instant>,
    /// The attempts to send the request, if a header of the response tells them.
    pub(super) attempts: Option<Arc<AttemptLog>>,
    /// That of the request's record.
    pub(super) limit_status: Option<LimitResult>,
}

impl LateFacts {
    pub(super) fn fill(&self, text: &LateText, headers: &HeaderMap) -> Vec<u8> {
        let tell = |variable| {
            let attempts = self.attempts.as_ref();
            attempts
                .map(|log| log.variable_text(variable))
                .unwrap_or_default()
        };
        let sent = SentResponse {
            limit_status: self.limit_status,
            ..SentResponse::default()
        };
        text.fill(headers, sent, || self.time(), tell)
    }

    fn time(&self) -> ResponseTime {
        let now = clock::now();
        let began = self.began.unwrap_or(now);
        ResponseTime {
            took: now.saturating_duration_since(began),
            unix: Duration::from_micros(clock::unix_us()),
        }
    }
}

pub(super) fn fill<'t>(
    changes: &'t [HeaderChange],
    facts: &TemplateFacts<'_>,
) -> Result<Filled<'t>, Rejection> {
    let filled = changes.iter().map(|change| {
        let value = match &change.action {
            Action::Set(text) | Action::Add(text) => value(text, facts)?,
            Action::Remove => None,
        };
        Ok(FilledChange { change, value })
    });
    filled.collect()
}

/// `None` for an empty value.
fn value(text: &HeaderText, facts: &TemplateFacts<'_>) -> Result<Option<FilledValue>, Rejection> {
    let too_large = Rejection::HeadError(HeadError::TooLarge);
    let value = match text {
        HeaderText::Fixed(value) => value.clone(),
        HeaderText::Made(template) if template.is_late() => {
            let late = template.fill_late(facts).map_err(|TooLong| too_large)?;
            return Ok(Some(FilledValue::Late(late)));
        }
        HeaderText::Made(template) => match template.fill(facts).map(HeaderValue::try_from) {
            Ok(Ok(value)) => value,
            Ok(Err(_)) | Err(TooLong) => return Err(too_large),
        },
    };
    Ok(Some(value)
        .filter(|value| !value.is_empty())
        .map(FilledValue::Ready))
}

/// Applies changes of a request, or of a response of this status.
pub(super) fn apply(
    changes: &Filled<'_>,
    headers: &mut HeaderMap,
    facts: &LateFacts,
    status: Option<StatusCode>,
) {
    let fits =
        |one: &&FilledChange<'_>| status.is_none_or(|status| one.change.changes_status(status));
    for one in changes.iter().filter(fits) {
        let change = one.change;
        match (&change.action, one.value(headers, facts)) {
            (_, value) if change.name == CONNECTION => {
                // A tunnel ends with its connection.
                let closes = value.is_some_and(|one| one.as_bytes().eq_ignore_ascii_case(b"close"));
                if closes && !headers.contains_key(UPGRADE) {
                    headers.append(CONNECTION, HeaderValue::from_static("close"));
                }
            }
            (Action::Add(_), None) => {}
            (Action::Add(_), Some(value)) => {
                headers.append(&change.name, value);
            }
            (Action::Set(_) | Action::Remove, None) => {
                headers.remove(&change.name);
            }
            (Action::Set(_) | Action::Remove, Some(value)) => {
                headers.insert(&change.name, value);
            }
        }
    }
}
