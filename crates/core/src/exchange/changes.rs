//! The header changes of a route, and its own responses.
//!
//! All values are made from the request as the client sent it, before anything is sent. The changes
//! are applied last, so that neither `Connection` nor the proxy's own headers can undo them.

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue, LOCATION};
use http::{Request, Response, Version};
use smallvec::SmallVec;

use super::access_record::AccessRecord;
use super::downstream::Downstream;
use super::headers;
use super::headers::{RequestFault, check_framing};
use super::rejection::Rejection;
use super::request_id;
use crate::path::CanonicalPath;
use crate::request_head::HeadError;
use crate::route::template::{AttemptVariable, LateText, TemplateFacts, TooLong};
use crate::route::{Action, HeaderChange, HeaderText, Redirect, RedirectFailure, Route, Target};
use crate::telemetry::spans::{AttemptLog, RecordedAttempt};

/// Changes with their values for this request.
type Filled<'t> = SmallVec<[FilledChange<'t>; 4]>;

#[derive(Debug)]
struct FilledChange<'t> {
    change: &'t HeaderChange,
    /// `None` removes the header.
    value: Option<FilledValue>,
}

#[derive(Debug)]
enum FilledValue {
    Ready(HeaderValue),
    /// It tells the attempts to send the request.
    Late(LateText),
}

impl FilledChange<'_> {
    /// `None` for an empty value. Without attempts, a value that tells them is empty.
    fn value(&self, attempts: Option<&AttemptLog>) -> Option<HeaderValue> {
        match self.value.as_ref()? {
            FilledValue::Ready(value) => Some(value.clone()),
            FilledValue::Late(text) => {
                let text = attempts?.look(|attempts| text.fill(|one| told(one, attempts)));
                Some(HeaderValue::try_from(text).ok()?).filter(|value| !value.is_empty())
            }
        }
    }
}

/// The header changes of one request and of its response.
#[derive(Debug, Default)]
pub struct Changes<'t> {
    up: Filled<'t>,
    down: Filled<'t>,
    location: Option<HeaderValue>,
    /// The request's id, and its header.
    id: Option<(&'t HeaderName, HeaderValue)>,
}

impl<'t> Changes<'t> {
    /// `None` if the route changes nothing and requests have no ids. `id` is the header with ids.
    pub(super) fn of<B>(
        route: &'t Route,
        id: Option<&'t HeaderName>,
        request: &Request<B>,
        downstream: &Downstream,
        record: &mut AccessRecord,
    ) -> Result<Option<Box<Changes<'t>>>, Rejection> {
        let redirect = match &route.target {
            Target::Redirect(redirect) => Some(redirect),
            Target::Upstream(_) | Target::Respond(_) => None,
        };
        let has_changes =
            redirect.is_some() || !route.headers_up.is_empty() || !route.headers_down.is_empty();
        if !has_changes && id.is_none() {
            return Ok(None);
        }
        let request_id = record.request_id.get_or_insert_with(request_id::made);
        let request_id = request_id.as_str();
        let id = id.and_then(|name| Some((name, HeaderValue::from_str(request_id).ok()?)));
        if !has_changes {
            let changes = Changes {
                id,
                ..Changes::default()
            };
            return Ok(Some(Box::new(changes)));
        }
        let path = CanonicalPath::parse(request.uri().path()).map_err(Rejection::Path)?;
        let facts = TemplateFacts {
            client: record.client,
            peer: downstream.arrival.ip,
            host: &check_framing(request)?,
            path: &path,
            target: request.uri(),
            method: request.method(),
            headers: request.headers(),
            route,
            request_id,
            scheme: headers::scheme(request.headers(), downstream.peer()),
            protocol: version_text(request.version()),
            ports: downstream.arrival.ports,
            tls: downstream.arrival.tls_facts(),
        };
        Ok(Some(Box::new(Changes {
            up: fill(&route.headers_up, &facts)?,
            down: fill(&route.headers_down, &facts)?,
            location: redirect.map(|to| location(to, &facts)).transpose()?,
            id,
        })))
    }

    /// Changes a request that is otherwise ready for its upstream.
    pub fn apply_to_request(&self, headers: &mut HeaderMap) {
        if let Some((name, id)) = &self.id {
            remove_twins(headers, |odd| headers::are_twins(name, odd));
            headers.insert(*name, id.clone());
        }
        if !self.up.is_empty() {
            let sets = |one: &&FilledChange<'_>| !matches!(one.change.action, Action::Add(_));
            remove_twins(headers, |odd| {
                let mut set = self.up.iter().filter(sets);
                set.any(|one| headers::are_twins(&one.change.name, odd))
            });
            apply(&self.up, headers, None);
        }
    }

    /// Whether a header of the response tells the attempts to send the request.
    pub fn tell_attempts(&self) -> bool {
        let is_late = |one: &FilledChange<'_>| matches!(one.value, Some(FilledValue::Late(_)));
        self.down.iter().any(is_late)
    }

    pub fn apply_to_response(&self, headers: &mut HeaderMap, attempts: Option<&AttemptLog>) {
        apply(&self.down, headers, attempts);
    }

    /// Adds headers to a refusal that it does not have.
    pub fn add_missing(&self, headers: &mut HeaderMap) {
        for one in &self.down {
            let name = &one.change.name;
            if let (Some(value), false) = (one.value(None), headers.contains_key(name)) {
                headers.insert(name, value);
            }
        }
    }
}

/// The response of a route that answers itself; `None` for a route to an upstream.
pub fn own_response(target: &Target, changes: Option<&Changes<'_>>) -> Option<Response<Bytes>> {
    let mut response = Response::new(Bytes::new());
    let headers = match target {
        Target::Upstream(_) => return None,
        Target::Respond(answer) => {
            *response.body_mut() = answer.body.clone();
            *response.status_mut() = answer.status;
            answer
                .content_type
                .clone()
                .map(|value| (CONTENT_TYPE, value))
        }
        Target::Redirect(answer) => {
            *response.status_mut() = answer.status;
            let location = changes.and_then(|changes| changes.location.clone());
            location.map(|value| (LOCATION, value))
        }
    };
    response.headers_mut().extend(headers);
    if let Some(changes) = changes {
        changes.apply_to_response(response.headers_mut(), None);
    }
    Some(response)
}

fn fill<'t>(
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
        HeaderText::Made(template) if template.tells_attempts() => {
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

/// Writes what a variable says of each attempt.
fn told(variable: AttemptVariable, attempts: &[RecordedAttempt]) -> String {
    let one = |attempt: &RecordedAttempt| match variable {
        AttemptVariable::Address => match attempt.port {
            Some(port) if attempt.address.contains(':') => format!("[{}]:{port}", attempt.address),
            Some(port) => format!("{}:{port}", attempt.address),
            None => format!("unix:{}", attempt.address),
        },
        AttemptVariable::Status => attempt
            .status
            .map_or("502".to_owned(), |one| one.to_string()),
        AttemptVariable::Time => {
            let ended = attempt.ended.unwrap_or(attempt.began);
            let seconds = ended.saturating_duration_since(attempt.began).as_secs_f64();
            format!("{seconds:.3}")
        }
    };
    attempts.iter().map(one).collect::<Vec<_>>().join(", ")
}

fn version_text(version: Version) -> &'static str {
    match version {
        Version::HTTP_10 => "HTTP/1.0",
        Version::HTTP_2 => "HTTP/2.0",
        _ => "HTTP/1.1",
    }
}

fn location(redirect: &Redirect, facts: &TemplateFacts<'_>) -> Result<HeaderValue, Rejection> {
    redirect.location(facts).map_err(|error| match error {
        RedirectFailure::TooLong => Rejection::HeadError(HeadError::TooLarge),
        RedirectFailure::NoHost => Rejection::Request(RequestFault::Host),
    })
}

fn apply(changes: &Filled<'_>, headers: &mut HeaderMap, attempts: Option<&AttemptLog>) {
    for one in changes {
        let change = one.change;
        match (&change.action, one.value(attempts)) {
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

/// Removes headers of the client whose names have `_` where ours have `-`. Many servers take both
/// for one header, and could choose the client's value.
fn remove_twins(headers: &mut HeaderMap, is_twin: impl Fn(&HeaderName) -> bool) {
    let is_odd = |name: &&HeaderName| name.as_str().contains('_') && is_twin(name);
    let odd: SmallVec<[HeaderName; 4]> = headers.keys().filter(is_odd).cloned().collect();
    for name in odd {
        headers.remove(name);
    }
}
