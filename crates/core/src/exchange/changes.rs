//! What a route changes in the heads of one request and of its answer, and what it answers by
//! itself.
//!
//! Values are made before anything is sent, of the request as the client sent it. Nothing that the
//! client names in `Connection`, and none of our own headers, comes after what the operator wants.

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue, LOCATION};
use http::{Request, Response};
use smallvec::SmallVec;

use super::access_record::AccessRecord;
use super::downstream::Downstream;
use super::headers;
use super::headers::{RequestFault, check_framing};
use super::rejection::Rejection;
use super::request_id;
use crate::path::CanonicalPath;
use crate::request_head::HeadError;
use crate::route::template::{TemplateFacts, TooLong};
use crate::route::{
    Action, HeaderChange, HeaderText, Redirect, RedirectFailure, Respond, Route, Target,
};

/// Changes, each with its value for this request; nothing where the header is to go.
type Filled<'t> = SmallVec<[(&'t HeaderChange, Option<HeaderValue>); 4]>;

/// See the file's head.
#[derive(Debug, Default)]
pub struct Changes<'t> {
    up: Filled<'t>,
    down: Filled<'t>,
    location: Option<HeaderValue>,
    /// The header by which upstreams know the request, and its id.
    id: Option<(&'t HeaderName, HeaderValue)>,
}

impl<'t> Changes<'t> {
    /// Of this route, if it has any, or if requests have ids, in the header `id`.
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
        let none = route.headers_up.is_empty() && route.headers_down.is_empty();
        if none && redirect.is_none() && id.is_none() {
            return Ok(None);
        }
        let request_id = record.request_id.get_or_insert_with(request_id::made);
        let request_id = request_id.as_str();
        let id = id.and_then(|name| Some((name, HeaderValue::from_str(request_id).ok()?)));
        if none && redirect.is_none() {
            let changes = Changes {
                id,
                ..Changes::default()
            };
            return Ok(Some(Box::new(changes)));
        }
        let path = CanonicalPath::parse(request.uri().path())?;
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
            tls_subject: downstream
                .arrival
                .certificate()
                .map(|one| one.subject.as_str()),
        };
        Ok(Some(Box::new(Changes {
            up: fill(&route.headers_up, &facts)?,
            down: fill(&route.headers_down, &facts)?,
            location: redirect.map(|to| place(to, &facts)).transpose()?,
            id,
        })))
    }

    /// Changes the head of a request that is otherwise ready for its upstream.
    pub fn upwards(&self, headers: &mut HeaderMap) {
        if let Some((name, id)) = &self.id {
            remove_twins(headers, |odd| headers::are_twins(name, odd));
            headers.insert(*name, id.clone());
        }
        if !self.up.is_empty() {
            let sets = |(change, _): &&(&HeaderChange, Option<HeaderValue>)| {
                !matches!(change.action, Action::Add(_))
            };
            remove_twins(headers, |odd| {
                let mut set = self.up.iter().filter(sets);
                set.any(|(change, _)| headers::are_twins(&change.name, odd))
            });
            apply(&self.up, headers);
        }
    }

    /// Changes the head of a response.
    pub fn downwards(&self, headers: &mut HeaderMap) {
        apply(&self.down, headers);
    }

    /// Adds to the head of a refusal what it does not say itself: what tells of the refusal stays.
    pub(super) fn beside(&self, headers: &mut HeaderMap) {
        for (change, value) in &self.down {
            if let (Some(value), false) = (value, headers.contains_key(&change.name)) {
                headers.insert(&change.name, value.clone());
            }
        }
    }
}

/// The answer that a route always gives.
pub fn respond(answer: &Respond, changes: Option<&Changes<'_>>) -> Response<Bytes> {
    let mut response = Response::new(answer.body.clone());
    *response.status_mut() = answer.status;
    if let Some(content_type) = &answer.content_type {
        response
            .headers_mut()
            .insert(CONTENT_TYPE, content_type.clone());
    }
    if let Some(changes) = changes {
        changes.downwards(response.headers_mut());
    }
    response
}

/// The answer that sends the client elsewhere.
pub fn redirect(answer: &Redirect, changes: Option<&Changes<'_>>) -> Response<Bytes> {
    let mut response = Response::new(Bytes::new());
    *response.status_mut() = answer.status;
    if let Some(changes) = changes {
        if let Some(location) = &changes.location {
            response.headers_mut().insert(LOCATION, location.clone());
        }
        changes.downwards(response.headers_mut());
    }
    response
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
        Ok((change, value))
    });
    filled.collect()
}

/// A header's value; nothing if it is empty.
fn value(text: &HeaderText, facts: &TemplateFacts<'_>) -> Result<Option<HeaderValue>, Rejection> {
    let too_large = Rejection::HeadError(HeadError::TooLarge);
    let value = match text {
        HeaderText::Fixed(value) => value.clone(),
        HeaderText::Made(template) => match template.fill(facts).map(HeaderValue::try_from) {
            Ok(Ok(value)) => value,
            // No part of a head is anything but a header's value: that would be our mistake.
            Ok(Err(_)) | Err(TooLong) => return Err(too_large),
        },
    };
    Ok(Some(value).filter(|value| !value.is_empty()))
}

fn place(redirect: &Redirect, facts: &TemplateFacts<'_>) -> Result<HeaderValue, Rejection> {
    redirect.location(facts).map_err(|error| match error {
        RedirectFailure::TooLong => Rejection::HeadError(HeadError::TooLarge),
        RedirectFailure::NoHost => Rejection::Request(RequestFault::Host),
    })
}

fn apply(changes: &Filled<'_>, headers: &mut HeaderMap) {
    for (change, value) in changes {
        match (&change.action, value) {
            (Action::Add(_), None) => {}
            (Action::Add(_), Some(value)) => {
                headers.append(&change.name, value.clone());
            }
            (Action::Set(_) | Action::Remove, None) => {
                headers.remove(&change.name);
            }
            (Action::Set(_) | Action::Remove, Some(value)) => {
                headers.insert(&change.name, value.clone());
            }
        }
    }
}

/// Removes what a client sent under a name that differs from one of ours in `_` for `-` only: to
/// many servers both are one, and the client's could win.
fn remove_twins(headers: &mut HeaderMap, is_twin: impl Fn(&HeaderName) -> bool) {
    let is_odd = |name: &&HeaderName| name.as_str().contains('_') && is_twin(name);
    let odd: SmallVec<[HeaderName; 4]> = headers.keys().filter(is_odd).cloned().collect();
    for name in odd {
        headers.remove(name);
    }
}
