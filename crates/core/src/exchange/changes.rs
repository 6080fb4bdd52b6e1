//! The header changes of a route, and its own responses.
//!
//! All values are made from the request as the client sent it, before anything is sent. The changes
//! are applied last, so that neither `Connection` nor the proxy's own headers can undo them.

mod filled;

use std::sync::Arc;

use bytes::Bytes;
use http::header::{
    ACCESS_CONTROL_ALLOW_CREDENTIALS, ACCESS_CONTROL_ALLOW_ORIGIN, CONTENT_LENGTH, CONTENT_TYPE,
    HeaderMap, HeaderName, HeaderValue, LOCATION, TRAILER,
};
use http::{Method, Request, Response, StatusCode, Version};
use smallvec::SmallVec;

use super::access_record::AccessRecord;
use super::downstream::Downstream;
use super::headers;
use super::headers::{RequestFault, check_framing};
use super::named_lines::NamedLines;
use super::rejection::Rejection;
use super::request_id::{self, RequestId};
use crate::clock;
use crate::path::CanonicalPath;
use crate::request_head::{HeadError, RequestHead};
use crate::route::template::{BodyTemplate, LateText, TemplateFacts, TooLong};
use crate::route::{
    Action, ErrorPage, Expires, Redirect, RedirectFailure, RespondBody, Route, Target, is_success,
    rewrite_lines,
};
use crate::telemetry::spans::AttemptLog;

pub use filled::ResponseTrailers;
use filled::{Filled, FilledChange, FilledTrailer, FilledValue, LateFacts, apply, fill};

/// An error page with variables, and its text for one request.
#[derive(Debug)]
struct FilledPage<'t> {
    page: &'t ErrorPage,
    text: LateText,
}

/// Texts that few routes have.
#[derive(Debug, Default)]
struct OwnTexts<'t> {
    location: Option<HeaderValue>,
    /// What stands before a path in `Location`.
    location_base: Option<String>,
    /// The body of the route's own response, if it has variables.
    body: Option<LateText>,
    /// Those of the route's error pages that have variables.
    pages: Vec<FilledPage<'t>>,
}

impl<'t> OwnTexts<'t> {
    /// `None` without any.
    fn new(
        route: &'t Route,
        facts: &TemplateFacts<'_>,
    ) -> Result<Option<Box<OwnTexts<'t>>>, Rejection> {
        if !OwnTexts::are_in(route) {
            return Ok(None);
        }
        let mut texts = OwnTexts {
            location_base: location_base(route, facts)?,
            pages: filled_pages(route, facts),
            ..OwnTexts::default()
        };
        match &route.target {
            Target::Redirect(redirect) => texts.location = Some(location(redirect, facts)?),
            Target::Respond(respond) => {
                if let RespondBody::Made(body) = &respond.body {
                    texts.body = Some(made_body(body, facts)?);
                }
            }
            Target::Upstream(_) => {}
        }
        Ok(Some(Box::new(texts)))
    }

    fn are_in(route: &Route) -> bool {
        let of_target = match &route.target {
            Target::Redirect(_) => true,
            Target::Respond(respond) => matches!(respond.body, RespondBody::Made(_)),
            Target::Upstream(_) => false,
        };
        let mut pages = route.error_pages.iter();
        of_target || route.location_base.is_some() || pages.any(|page| page.made_text().is_some())
    }
}

/// The header changes of one request and of its response.
#[derive(Debug, Default)]
pub struct Changes<'t> {
    up: Filled<'t>,
    down: Filled<'t>,
    trailers: Vec<FilledChange<'t>>,
    expires: Option<&'t Expires>,
    /// The method for the upstream.
    method: Option<Method>,
    texts: Option<Box<OwnTexts<'t>>>,
    /// The request's id, and its header.
    id: Option<(&'t HeaderName, HeaderValue)>,
    late: LateFacts,
}

impl<'t> Changes<'t> {
    /// `None` if the route changes nothing and requests have no ids. `id` is the header with ids.
    pub(super) fn new<B>(
        route: &'t Route,
        id: Option<&'t HeaderName>,
        request: &Request<B>,
        downstream: &Downstream,
        record: &mut AccessRecord,
    ) -> Result<Option<Box<Changes<'t>>>, Rejection> {
        let has_changes = OwnTexts::are_in(route)
            || route.method_up.is_some()
            || !route.headers_up.is_empty()
            || !route.headers_down.is_empty()
            || !route.trailers_down.is_empty()
            || route.expires.is_some();
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
        let host = check_framing(request)?;
        let facts = facts_of(request, downstream, route, record, &host, &path);
        Ok(Some(Box::new(Changes {
            up: fill(&route.headers_up, &facts)?,
            down: fill(&route.headers_down, &facts)?,
            trailers: match takes_trailers(request) {
                true => fill(&route.trailers_down, &facts)?.into_vec(),
                false => Vec::new(),
            },
            expires: route.expires.as_ref(),
            method: method(route, &facts)?,
            texts: OwnTexts::new(route, &facts)?,
            id,
            late: LateFacts {
                began: Some(record.began),
                attempts: None,
                limit_status: None,
            },
        })))
    }

    /// Changes a request that is otherwise ready for its upstream.
    pub fn apply_to_request<B>(&self, request: &mut Request<B>) {
        // The response to HEAD has no body.
        if let Some(method) = &self.method
            && request.method() != Method::HEAD
        {
            request.method_mut().clone_from(method);
        }
        let headers = request.headers_mut();
        if let Some((name, id)) = &self.id {
            headers::remove_odd_names(headers, |odd| headers::are_twins(name, odd));
            headers.insert(*name, id.clone());
        }
        if !self.up.is_empty() {
            let sets = |one: &&FilledChange<'_>| !matches!(one.change.action, Action::Add(_));
            headers::remove_odd_names(headers, |odd| {
                let mut set = self.up.iter().filter(sets);
                set.any(|one| headers::are_twins(&one.change.name, odd))
            });
            apply(&self.up, headers, &self.late, None);
        }
    }

    /// Takes what the limits decided for headers that tell it.
    pub fn note_decision(&mut self, record: &mut AccessRecord) {
        self.late.limit_status = record.limit_status();
    }

    /// Chooses the log of the attempts to send the request: that of its trace, or a new one if a
    /// header of the response tells them.
    pub fn keep_attempts(&mut self, of_trace: Option<Arc<AttemptLog>>) -> Option<Arc<AttemptLog>> {
        let tells = |one: &FilledChange<'_>| match &one.value {
            Some(FilledValue::Late(text)) => text.tells_attempts(),
            _ => false,
        };
        let mut pages = self.texts.iter().flat_map(|texts| &texts.pages);
        let of_pages = pages.any(|one| one.text.tells_attempts());
        if !of_pages && !self.down.iter().chain(&self.trailers).any(tells) {
            return of_trace;
        }
        let attempts = of_trace.unwrap_or_else(|| AttemptLog::new(None));
        self.late.attempts = Some(Arc::clone(&attempts));
        Some(attempts)
    }

    /// Takes the trailers for a response with a body, and announces them. `None` without any.
    pub fn take_trailers<R>(
        &mut self,
        response: &mut Response<R>,
    ) -> Option<Box<ResponseTrailers>> {
        let status = response.status();
        let has_body =
            (200..400).contains(&status.as_u16()) && ![204, 205, 304].contains(&status.as_u16());
        if self.trailers.is_empty() || !has_body {
            return None;
        }
        let headers = response.headers_mut();
        headers.remove(CONTENT_LENGTH);
        let taken = std::mem::take(&mut self.trailers).into_iter();
        let list: Vec<FilledTrailer> = taken
            .filter_map(|one| {
                Some(FilledTrailer {
                    name: one.change.name.clone(),
                    adds: matches!(one.change.action, Action::Add(_)),
                    value: one.value?,
                })
            })
            .collect();
        for one in &list {
            headers.append(TRAILER, HeaderValue::from(one.name.clone()));
        }
        let headers = headers.clone();
        let late = self.late.clone();
        Some(Box::new(ResponseTrailers {
            list,
            headers,
            late,
        }))
    }

    /// The text of an error page with variables. `headers` are those of the error.
    pub fn page_text(&self, page: &ErrorPage, headers: &HeaderMap) -> Option<Vec<u8>> {
        let filled = self.filled_page(page)?;
        Some(self.late.fill(&filled.text, headers))
    }

    pub fn has_page(&self, page: &ErrorPage) -> bool {
        self.filled_page(page).is_some()
    }

    fn filled_page(&self, page: &ErrorPage) -> Option<&FilledPage<'t>> {
        let mut pages = self.texts.as_ref()?.pages.iter();
        pages.find(|one| std::ptr::eq(one.page, page))
    }

    /// Puts scheme and host before a place that the proxy has made or rewritten.
    pub fn complete_location(&self, headers: &mut HeaderMap) {
        let texts = self.texts.as_ref();
        let Some(base) = texts.and_then(|texts| texts.location_base.as_ref()) else {
            return;
        };
        rewrite_lines(headers, &LOCATION, |place| {
            let is_path = place.starts_with(b"/") && !place.starts_with(b"//");
            is_path.then(|| [base.as_bytes(), place].concat())
        });
    }

    pub fn apply_to_response<R>(&self, response: &mut Response<R>) {
        let status = response.status();
        let headers = response.headers_mut();
        if let Some(expires) = self.expires.filter(|_| is_success(status)) {
            let now_s = clock::unix_us() / 1_000_000;
            expires.apply(headers, i64::try_from(now_s).unwrap_or(i64::MAX));
        }
        apply(&self.down, headers, &self.late, Some(status));
    }

    /// Removes the headers from a page that responses of this status do not have.
    pub fn remove_from(&self, status: StatusCode, headers: &mut HeaderMap) {
        let changes = self.down.iter().map(|one| one.change);
        for change in changes.filter(|change| change.changes_status(status)) {
            if change.action == Action::Remove {
                headers.remove(&change.name);
            }
        }
    }

    /// Adds headers to a refusal of this status that it does not have. The route's own permissions
    /// for scripts of other origins replace those of the refusal.
    pub fn add_missing(&self, status: StatusCode, headers: &mut HeaderMap) {
        let mut own: SmallVec<[&HeaderName; 4]> = SmallVec::new();
        let changes = self.down.iter();
        for one in changes.filter(|one| one.change.changes_status(status)) {
            let name = &one.change.name;
            let Some(value) = one.value(headers, &self.late) else {
                continue;
            };
            if own.contains(&name) {
                headers.append(name, value);
            } else if is_permission(name) || !headers.contains_key(name) {
                headers.insert(name, value);
                own.push(name);
            }
        }
    }
}

/// Whether a header says which origins may read a response.
fn is_permission(name: &HeaderName) -> bool {
    matches!(
        *name,
        ACCESS_CONTROL_ALLOW_ORIGIN | ACCESS_CONTROL_ALLOW_CREDENTIALS
    )
}

/// In the extensions of a response that is not sent: the connection is closed, or the stream of
/// HTTP/2 is reset.
#[derive(Clone, Copy, Debug)]
pub struct CloseUnanswered;

/// The response of a route that answers itself; `None` for a route to an upstream.
pub fn own_response(target: &Target, changes: Option<&Changes<'_>>) -> Option<Response<Bytes>> {
    let mut response = Response::new(Bytes::new());
    let headers = match target {
        Target::Upstream(_) => return None,
        Target::Respond(answer) => {
            *response.body_mut() = match &answer.body {
                RespondBody::Fixed(bytes) => bytes.clone(),
                RespondBody::Made(_) => {
                    let body = changes.and_then(|changes| {
                        let text = changes.texts.as_ref()?.body.as_ref()?;
                        Some(changes.late.fill(text, &HeaderMap::new()))
                    });
                    body.unwrap_or_default().into()
                }
            };
            *response.status_mut() = answer.status;
            if answer.closes() {
                response.extensions_mut().insert(CloseUnanswered);
            }
            answer
                .content_type
                .clone()
                .map(|value| (CONTENT_TYPE, value))
        }
        Target::Redirect(answer) => {
            *response.status_mut() = answer.status;
            let location = changes.and_then(|changes| changes.texts.as_ref()?.location.clone());
            location.map(|value| (LOCATION, value))
        }
    };
    response.headers_mut().extend(headers);
    if let Some(changes) = changes {
        changes.complete_location(response.headers_mut());
        changes.apply_to_response(&mut response);
    }
    Some(response)
}

/// Whether the response can have a body with trailers.
fn takes_trailers<B>(request: &Request<B>) -> bool {
    request.method() != Method::HEAD && request.version() != Version::HTTP_10
}

/// The facts for the variables of a route's texts.
pub(super) fn facts_of<'r, B>(
    request: &'r Request<B>,
    downstream: &'r Downstream,
    route: &'r Route,
    record: &'r AccessRecord,
    host: &'r str,
    path: &'r CanonicalPath<'r>,
) -> TemplateFacts<'r> {
    TemplateFacts {
        client: record.client,
        peer: downstream.arrival.ip,
        host,
        path,
        target: request.uri(),
        method: request.method(),
        headers: request.headers(),
        route,
        request_id: record.request_id.as_ref().map_or("", RequestId::as_str),
        scheme: downstream.scheme(request.headers()).as_str(),
        protocol: protocol_text(request.version()),
        ports: downstream.arrival.ports,
        relay: downstream.arrival.relay.as_deref().copied(),
        connection: downstream.connection_facts(record.connection_requests, record.began),
        tls: downstream.arrival.tls_facts(),
        max_value: downstream.max_value,
    }
}

/// Notes the route for the metrics and the logs.
#[inline]
pub(super) fn note_route<B>(
    record: &mut AccessRecord,
    route: &Route,
    head: &RequestHead<'_>,
    request: &Request<B>,
    downstream: &Downstream,
) {
    record.route = Some(Arc::clone(&route.name));
    record.route_number = route.number;
    if !route.access_logs.is_empty() && !downstream.is_described {
        record.request_id.get_or_insert_with(request_id::made);
        let facts = facts_of(request, downstream, route, record, head.host, head.path);
        record.named = Some(NamedLines::new(&route.access_logs, &facts));
    }
}

pub(super) fn protocol_text(version: Version) -> &'static str {
    match version {
        Version::HTTP_10 => "HTTP/1.0",
        Version::HTTP_2 => "HTTP/2.0",
        _ => "HTTP/1.1",
    }
}

/// `None` for a value that is no such method: that of the client stays.
fn method(route: &Route, facts: &TemplateFacts<'_>) -> Result<Option<Method>, Rejection> {
    let Some(template) = &route.method_up else {
        return Ok(None);
    };
    let too_large = Rejection::HeadError(HeadError::TooLarge);
    let value = template.fill(facts).map_err(|TooLong| too_large)?;
    let method = Method::from_bytes(&value).ok();
    Ok(method.filter(|one| ![Method::HEAD, Method::CONNECT, Method::TRACE].contains(one)))
}

fn made_body(body: &BodyTemplate, facts: &TemplateFacts<'_>) -> Result<LateText, Rejection> {
    let too_large = Rejection::HeadError(HeadError::TooLarge);
    body.fill(facts).map_err(|TooLong| too_large)
}

/// Leaves out a page that is too long: most requests need none.
fn filled_pages<'t>(route: &'t Route, facts: &TemplateFacts<'_>) -> Vec<FilledPage<'t>> {
    let filled = route.error_pages.iter().filter_map(|page| {
        let text = page.made_text()?.fill(facts).ok()?;
        Some(FilledPage { page, text })
    });
    filled.collect()
}

fn location(redirect: &Redirect, facts: &TemplateFacts<'_>) -> Result<HeaderValue, Rejection> {
    redirect.location(facts).map_err(|error| match error {
        RedirectFailure::TooLong => Rejection::HeadError(HeadError::TooLarge),
        RedirectFailure::NoHost => Rejection::Request(RequestFault::Host),
    })
}

fn location_base(route: &Route, facts: &TemplateFacts<'_>) -> Result<Option<String>, Rejection> {
    let base = route.location_base.as_ref().map(|base| base.fill(facts));
    let base = base
        .transpose()
        .map_err(|TooLong| Rejection::HeadError(HeadError::TooLarge))?;
    Ok(base.flatten())
}
