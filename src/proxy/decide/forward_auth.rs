//! Forward-auth: another proxy describes a client's request and asks whether it may pass. The
//! request is decided as if it had come here, and is not forwarded.
//!
//! | path | the request is in | allowed | denied |
//! |---|---|---|---|
//! | `/auth` | `X-Forwarded-Method`, `-Uri`, `-Host`, `-For`, `-Proto` | 200 | as to a client |
//! | `/auth/nginx` | the same | 200 | 403, the same headers |
//! | `/auth/envoy/*` | method, host, path behind `/auth/envoy` | 200 | 429 in place of a 5xx |
//!
//! `X-Decision: allow` or `deny` marks an answer of the limiter. Recipes act on it, so that an
//! error of this server is never taken for a denial.

use std::net::{IpAddr, Ipv4Addr};
use std::str;
use std::time::Duration;

use http::header::{
    CONNECTION, CONTENT_LENGTH, COOKIE, EXPECT, HOST, HeaderName, HeaderValue, TE, TRAILER,
    TRANSFER_ENCODING, UPGRADE,
};
use http::uri::{Parts, PathAndQuery};
use http::{HeaderMap, Method, Request, Response, StatusCode, Uri};

use super::messages::{AddressMessage, CheckRequest};
use super::{Caller, refuse};
use crate::body::RequestBody;
use crate::proxy::body::Body;
use crate::proxy::{Arrival, Exchange, Proxy};
use crate::request_head::Scheme;
use crate::route::{Respond, Target};
use crate::telemetry::metrics::{DecideCode, Door};
use tidegate_core::exchange::changes::own_response;
use tidegate_core::exchange::downstream::Secured;
use tidegate_core::exchange::headers::named_scheme;
use tidegate_core::exchange::rejection::Rejection;

const FORWARDED_METHOD: HeaderName = HeaderName::from_static("x-forwarded-method");
const FORWARDED_URI: HeaderName = HeaderName::from_static("x-forwarded-uri");
const FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");
const FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");
const DECISION: HeaderName = HeaderName::from_static("x-decision");
const ENVOY: &str = "/auth/envoy";

/// How long a question waits for the keys of tokens. The proxies that ask wait half a second or a
/// second for their answer, and take a later one for a failure.
const KEY_WAIT: Duration = Duration::from_millis(400);

/// Headers of the question that are no headers of the client's request.
const OF_THE_QUESTION: [HeaderName; 12] = [
    FORWARDED_METHOD,
    FORWARDED_URI,
    FORWARDED_HOST,
    FORWARDED_PROTO,
    HOST,
    CONNECTION,
    CONTENT_LENGTH,
    EXPECT,
    TE,
    TRAILER,
    TRANSFER_ENCODING,
    UPGRADE,
];

/// A client's request as another proxy describes it.
#[derive(Debug)]
pub(super) struct AuthQuestion {
    pub(super) request: Request<RequestBody>,
    arrival: Arrival,
}

/// Why a question cannot be read. Its request is denied.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct UnreadableQuestion {
    pub(super) status: StatusCode,
    pub(super) why: &'static str,
}

const BAD_PATH: UnreadableQuestion = unreadable("the path of the request cannot be read");
const NO_HEADER: UnreadableQuestion = unreadable("a header that describes the request is missing");

const fn unreadable(why: &'static str) -> UnreadableQuestion {
    UnreadableQuestion {
        status: StatusCode::BAD_REQUEST,
        why,
    }
}

/// Whether a request may pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AuthDecision {
    Allow,
    Deny,
}

impl Proxy {
    pub(super) async fn answer_forward_auth(
        &self,
        door: Door,
        asked: &mut Request<RequestBody>,
        response: &mut Response<Body>,
        caller: &Caller<'_>,
    ) {
        let question = match AuthQuestion::read(door, asked) {
            Ok(question) => question,
            Err(unreadable) => return self.deny_unreadable(door, &unreadable, response, caller),
        };
        let decision = self.decide_question(door, question, response, caller).await;
        note_decision(response, decision);
    }

    /// Denies a question that cannot be read.
    pub(super) fn deny_unreadable(
        &self,
        door: Door,
        unreadable: &UnreadableQuestion,
        response: &mut Response<Body>,
        caller: &Caller<'_>,
    ) {
        if *unreadable == NO_HEADER {
            self.meter().decide().without_headers.add(1);
        }
        unreadable.refuse(response);
        *response.status_mut() = refusal(door, unreadable.status);
        note_decision(response, AuthDecision::Deny);
        self.count_question(door, DecideCode::Error, caller);
    }

    /// Decides a described request, and writes the response to its client.
    pub(super) async fn decide_question(
        &self,
        door: Door,
        mut question: AuthQuestion,
        response: &mut Response<Body>,
        caller: &Caller<'_>,
    ) -> AuthDecision {
        let client = self.stages.described(question.arrival);
        let mut exchange = self.stages.begin(&mut question.request, response, &client);
        let x = &mut exchange;
        x.record.door = Some(door);
        // In a question over HTTP this header would be the client's.
        if let Some(timeout) = caller.timeout.filter(|_| door == Door::Check) {
            x.admission.set_timeout(timeout, caller.since);
        }
        let decided = self.admit_question(x).await;
        let is_answered = decided.is_ok() && answer_by_route(x);
        if is_answered {
            let status = x.response.status();
            *x.response.status_mut() = refusal(door, status);
        }
        let code = match &decided {
            Ok(()) if is_answered => DecideCode::Error,
            Ok(()) => DecideCode::Ok,
            Err(Rejection::Limited(_) | Rejection::Blocked(_)) => DecideCode::OverLimit,
            Err(_) => DecideCode::Error,
        };
        if let Err(rejection) = &decided {
            self.stages.reject(x, rejection);
            let status = x.response.status();
            *x.response.status_mut() = refusal(door, status);
        }
        self.count_question(door, code, caller);
        self.finish(exchange);
        match decided {
            Ok(()) if !is_answered => AuthDecision::Allow,
            _ => AuthDecision::Deny,
        }
    }

    async fn admit_question<'c>(
        &'c self,
        x: &mut Exchange<'c, RequestBody, Body>,
    ) -> Result<(), Rejection> {
        self.stages.check(x, None)?;
        if let Some(wait) = self.stages.key_wait(x) {
            // After that its token is not believed.
            let _ = tokio::time::timeout(KEY_WAIT, Box::pin(wait)).await;
        }
        if let Some(questions) = self.stages.key_questions(x) {
            questions.ask_all().await;
        }
        self.stages.identify(x)?;
        if x.route
            .is_some_and(|route| !matches!(route.target, Target::Upstream(_)))
        {
            self.stages.rewrite(x)?;
        }
        self.stages.admit(x).await?;
        // The proxy that asks does not say when the request ends, so it holds no slots.
        x.admission.slots = None;
        self.stages.replies.mark(&x.admission, x.response);
        Ok(())
    }
}

fn note_decision(response: &mut Response<Body>, decision: AuthDecision) {
    let word = match decision {
        AuthDecision::Allow => HeaderValue::from_static("allow"),
        AuthDecision::Deny => HeaderValue::from_static("deny"),
    };
    response.headers_mut().insert(DECISION, word);
}

/// Writes the response of a route that forwards no request: a redirect, or a status from 300 on.
/// Returns whether it has.
fn answer_by_route(x: &mut Exchange<'_, RequestBody, Body>) -> bool {
    let own = x
        .route
        .and_then(|route| own_response(&route.target, x.changes.as_deref()));
    let Some(mut own) = own.filter(|own| own.status().as_u16() >= 300) else {
        return false;
    };
    // The connection that a status of 444 closes is not here.
    own.extensions_mut().clear();
    let rate_limits = std::mem::take(x.response.headers_mut());
    *x.response = own.map(Body::made);
    x.response.headers_mut().extend(rate_limits);
    true
}

pub(super) fn door_at(path: &str) -> Option<Door> {
    match path {
        "/auth" => Some(Door::Auth),
        "/auth/nginx" => Some(Door::Nginx),
        path => path
            .strip_prefix(ENVOY)
            .filter(|rest| rest.is_empty() || rest.starts_with('/'))
            .map(|_| Door::Envoy),
    }
}

/// The status of an answer that does not let the request pass.
fn refusal(door: Door, status: StatusCode) -> StatusCode {
    match door {
        // nginx takes every other status for an error of this server.
        Door::Nginx => StatusCode::FORBIDDEN,
        _ if status.as_u16() == Respond::CLOSED => StatusCode::FORBIDDEN,
        // Envoy takes a 5xx for a failure, and may then let the request pass.
        Door::Envoy if status.is_server_error() => StatusCode::TOO_MANY_REQUESTS,
        _ => status,
    }
}

impl UnreadableQuestion {
    pub(super) fn refuse(&self, response: &mut Response<Body>) {
        refuse(response, self.status, &format!("{}\n", self.why));
    }
}

impl AuthQuestion {
    fn read(door: Door, asked: &Request<RequestBody>) -> Result<AuthQuestion, UnreadableQuestion> {
        let mut request = Request::new(RequestBody::empty());
        *request.headers_mut() = headers_of_client(door, asked.headers());
        let host = match door {
            Door::Envoy => describe_by_envoy(asked, &mut request)?,
            _ => describe(asked.headers(), &mut request)?,
        };
        request.headers_mut().insert(HOST, host);
        let arrival = arrival(asked.headers(), request.headers_mut())?;
        Ok(AuthQuestion { request, arrival })
    }

    /// Reads a question in the form of a message. The client is the peer of Envoy. The addresses in
    /// `X-Forwarded-For` count if that peer is a trusted proxy.
    pub(super) fn of_message(message: &CheckRequest) -> Result<AuthQuestion, UnreadableQuestion> {
        let attributes = message.attributes.as_ref();
        let http = attributes.and_then(|all| all.request.as_ref()?.http.as_ref());
        let http = http.ok_or(unreadable("the message describes no HTTP request"))?;
        let source = attributes.and_then(|all| all.source.as_ref()?.address.as_ref());
        let source = source.ok_or(unreadable("the message has no source address"))?;
        let mut request = Request::new(RequestBody::empty());
        let method = Method::from_bytes(&http.method);
        *request.method_mut() = method.map_err(|_| unreadable("the method is none"))?;
        *request.uri_mut() = target(&http.path)?;
        let raw = http.header_map.iter().flat_map(|map| &map.headers);
        for line in http.headers.iter().chain(raw) {
            // Envoy lists `:path` and its kind too.
            let Ok(name) = HeaderName::from_bytes(&line.key) else {
                continue;
            };
            if !OF_THE_QUESTION.contains(&name) {
                append_parts(request.headers_mut(), &name, line.bytes());
            }
        }
        let host = HeaderValue::from_bytes(&http.host).map_err(|_| BAD_PATH)?;
        request.headers_mut().insert(HOST, host);
        let arrival = Arrival {
            tls: (&*http.scheme == b"https").then(Secured::default),
            ..Arrival::plain(source.ip()?)
        };
        Ok(AuthQuestion { request, arrival })
    }
}

impl AddressMessage {
    /// A unix socket has the address of this machine.
    fn ip(&self) -> Result<IpAddr, UnreadableQuestion> {
        let Some(socket) = &self.socket_address else {
            return Ok(IpAddr::V4(Ipv4Addr::LOCALHOST));
        };
        let text = str::from_utf8(&socket.address).ok();
        let ip = text.and_then(|text| text.parse::<IpAddr>().ok());
        let ip = ip.ok_or(unreadable("the source address is none"))?;
        Ok(ip.to_canonical())
    }
}

/// Takes method and path from headers. Returns the host.
fn describe(
    asked: &HeaderMap,
    request: &mut Request<RequestBody>,
) -> Result<HeaderValue, UnreadableQuestion> {
    let method = Method::from_bytes(required(asked, &FORWARDED_METHOD)?.as_bytes());
    let method = method.map_err(|_| unreadable("X-Forwarded-Method is no method"))?;
    *request.method_mut() = method;
    *request.uri_mut() = target(required(asked, &FORWARDED_URI)?.as_bytes())?;
    required(asked, &FORWARDED_HOST)
}

/// Takes method and path from the question itself. Returns the host.
fn describe_by_envoy(
    asked: &Request<RequestBody>,
    request: &mut Request<RequestBody>,
) -> Result<HeaderValue, UnreadableQuestion> {
    let path = asked.uri().path_and_query();
    let path = path.and_then(|path| path.as_str().strip_prefix(ENVOY));
    let path = path.unwrap_or_default();
    *request.method_mut() = asked.method().clone();
    *request.uri_mut() = match path.starts_with('/') {
        true => target(path.as_bytes())?,
        false => target(format!("/{path}").as_bytes())?,
    };
    match asked.uri().authority() {
        Some(host) => HeaderValue::from_str(host.as_str()).map_err(|_| BAD_PATH),
        None => required(asked.headers(), &HOST),
    }
}

/// Reads a path with its query. A `#` is refused: the parser ends there, and the proxy that asks
/// may send the rest to its upstream.
fn target(text: &[u8]) -> Result<Uri, UnreadableQuestion> {
    if text.contains(&b'#') {
        return Err(BAD_PATH);
    }
    let path = PathAndQuery::try_from(text).map_err(|_| BAD_PATH)?;
    if !path.as_str().starts_with('/') {
        return Err(BAD_PATH);
    }
    let mut parts = Parts::default();
    parts.path_and_query = Some(path);
    Uri::from_parts(parts).map_err(|_| BAD_PATH)
}

/// The headers of the client's request.
fn headers_of_client(door: Door, asked: &HeaderMap) -> HeaderMap {
    let mut headers = HeaderMap::with_capacity(asked.len());
    for (name, value) in asked {
        if OF_THE_QUESTION.contains(name) {
            continue;
        }
        match door {
            Door::Envoy => append_parts(&mut headers, name, value.as_bytes()),
            _ => _ = headers.append(name, value.clone()),
        }
    }
    headers
}

/// Adds a header of Envoy, which joins the lines of one header with commas. Each part counts as a
/// line of its own here: a key that came twice must not pass as one.
fn append_parts(headers: &mut HeaderMap, name: &HeaderName, value: &[u8]) {
    let is_list = *name != COOKIE && *name != FORWARDED_FOR;
    for line in value.split(|byte| is_list && *byte == b',') {
        if let Ok(line) = HeaderValue::from_bytes(line.trim_ascii()) {
            headers.append(name, line);
        }
    }
}

/// The client's connection. The last address is that of the peer of the proxy that asks. The
/// addresses before it stay in the header, and count if that peer is a trusted proxy.
fn arrival(asked: &HeaderMap, headers: &mut HeaderMap) -> Result<Arrival, UnreadableQuestion> {
    let list = required(asked, &FORWARDED_FOR)?;
    let not_a_list = |_| unreadable("X-Forwarded-For is no list of addresses");
    let list = list.to_str().map_err(not_a_list)?;
    let (before, last) = match list.rsplit_once(',') {
        Some((before, last)) => (Some(before), last),
        None => (None, list),
    };
    let last: Result<IpAddr, _> = last.trim().parse();
    let ip = last.map_err(|_| unreadable("the last of X-Forwarded-For is no address"))?;
    headers.remove(&FORWARDED_FOR);
    if let Some(Ok(before)) = before.map(|before| HeaderValue::from_str(before.trim())) {
        headers.insert(FORWARDED_FOR, before);
    }
    let unknown = unreadable("X-Forwarded-Proto is neither http nor https");
    let scheme = match single(asked, &FORWARDED_PROTO)? {
        None => Scheme::Http,
        Some(proto) => named_scheme(proto.as_bytes()).ok_or(unknown)?,
    };
    Ok(Arrival {
        tls: (scheme == Scheme::Https).then(Secured::default),
        ..Arrival::plain(ip.to_canonical())
    })
}

/// The only line of a header.
fn single<'h>(
    headers: &'h HeaderMap,
    name: &HeaderName,
) -> Result<Option<&'h HeaderValue>, UnreadableQuestion> {
    let mut lines = headers.get_all(name).iter();
    match (lines.next(), lines.next()) {
        (_, Some(_)) => Err(unreadable(
            "a header that describes the request is there twice",
        )),
        (line, None) => Ok(line),
    }
}

fn required(headers: &HeaderMap, name: &HeaderName) -> Result<HeaderValue, UnreadableQuestion> {
    single(headers, name)?.cloned().ok_or(NO_HEADER)
}
