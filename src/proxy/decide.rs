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

use std::net::IpAddr;

use http::header::{
    CONNECTION, CONTENT_LENGTH, COOKIE, EXPECT, HOST, HeaderName, HeaderValue, TE, TRAILER,
    TRANSFER_ENCODING, UPGRADE,
};
use http::uri::{Parts, PathAndQuery};
use http::{HeaderMap, Method, Request, Response, StatusCode, Uri};

use super::body::Body;
use super::{Arrival, Downstream, Exchange, Proxy};
use crate::body::RequestBody;
use crate::request_head::{HeadError, Scheme};
use crate::telemetry::metrics::{DecideCode, Door};
use tidegate_core::exchange::downstream::Secured;
use tidegate_core::exchange::rejection::Rejection;

const FORWARDED_METHOD: HeaderName = HeaderName::from_static("x-forwarded-method");
const FORWARDED_URI: HeaderName = HeaderName::from_static("x-forwarded-uri");
const FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");
const FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");
const DECISION: HeaderName = HeaderName::from_static("x-decision");
const ENVOY: &str = "/auth/envoy";

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
struct Question {
    request: Request<RequestBody>,
    arrival: Arrival,
}

/// Why a question cannot be read.
#[derive(Debug, PartialEq, Eq)]
struct Unreadable(&'static str);

const BAD_PATH: Unreadable = Unreadable("the path of the request cannot be read");

impl Proxy {
    /// Answers a proxy that asks for a decision. `is_draining` says that the server ends.
    pub async fn decide(
        &self,
        asked: &mut Request<RequestBody>,
        response: &mut Response<Body>,
        peer: &Downstream,
        head_error: Option<HeadError>,
        is_draining: bool,
    ) {
        let ip = peer.arrival.ip;
        let settings = self.decide.as_ref();
        if !settings.is_some_and(|decide| decide.may_ask(ip)) {
            let text = "this address may not ask for decisions\n";
            return refuse(response, StatusCode::FORBIDDEN, text);
        }
        if head_error.is_some() {
            let text = "the head of the question cannot be read\n";
            return refuse(response, StatusCode::BAD_REQUEST, text);
        }
        let path = asked.uri().path();
        if path == "/healthcheck" {
            return match is_draining {
                true => refuse(response, StatusCode::INTERNAL_SERVER_ERROR, "draining\n"),
                false => refuse(response, StatusCode::OK, "OK\n"),
            };
        }
        let Some(door) = door_at(path) else {
            let text = "ask at /auth, /auth/nginx or /auth/envoy\n";
            return refuse(response, StatusCode::NOT_FOUND, text);
        };
        match Question::read(door, asked) {
            Ok(question) => self.answer_question(door, question, response).await,
            Err(Unreadable(why)) => {
                let status = refusal(door, StatusCode::BAD_REQUEST);
                refuse(response, status, &format!("{why}\n"));
                mark(response, "deny");
                self.meter().count_question(door, DecideCode::Error);
            }
        }
    }

    async fn answer_question(
        &self,
        door: Door,
        mut question: Question,
        response: &mut Response<Body>,
    ) {
        let client = self.stages.described(question.arrival);
        let mut exchange = self.stages.begin(&mut question.request, response, &client);
        let x = &mut exchange;
        let decided = self.decide_question(x).await;
        let (word, code) = match &decided {
            Ok(()) => ("allow", DecideCode::Ok),
            Err(Rejection::Limited(_) | Rejection::Blocked(_)) => ("deny", DecideCode::OverLimit),
            Err(_) => ("deny", DecideCode::Error),
        };
        if let Err(rejection) = &decided {
            self.stages.reject(x, rejection);
            let status = x.response.status();
            *x.response.status_mut() = refusal(door, status);
        }
        mark(x.response, word);
        self.meter().count_question(door, code);
        self.finish(exchange);
    }

    async fn decide_question<'c>(
        &'c self,
        x: &mut Exchange<'c, RequestBody, Body>,
    ) -> Result<(), Rejection> {
        self.stages.check(x, None)?;
        self.stages.identify(x)?;
        self.stages.admit(x).await?;
        // The proxy that asks does not say when the request ends, so it holds no slots.
        x.admission.slots = None;
        self.stages.replies.mark(&x.admission, x.response);
        Ok(())
    }
}

fn door_at(path: &str) -> Option<Door> {
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
        Door::Auth => status,
        // nginx takes every other status for an error of this server.
        Door::Nginx => StatusCode::FORBIDDEN,
        // Envoy takes a 5xx for a failure, and may then let the request pass.
        Door::Envoy if status.is_server_error() => StatusCode::TOO_MANY_REQUESTS,
        Door::Envoy => status,
    }
}

fn mark(response: &mut Response<Body>, decision: &'static str) {
    let value = HeaderValue::from_static(decision);
    response.headers_mut().insert(DECISION, value);
}

fn refuse(response: &mut Response<Body>, status: StatusCode, text: &str) {
    *response.status_mut() = status;
    *response.body_mut() = Body::made(text.to_owned().into());
}

impl Question {
    fn read(door: Door, asked: &Request<RequestBody>) -> Result<Question, Unreadable> {
        let mut request = Request::new(RequestBody::empty());
        *request.headers_mut() = headers_of_client(door, asked.headers());
        let host = match door {
            Door::Auth | Door::Nginx => describe(asked.headers(), &mut request)?,
            Door::Envoy => describe_by_envoy(asked, &mut request)?,
        };
        request.headers_mut().insert(HOST, host);
        let arrival = arrival(asked.headers(), request.headers_mut())?;
        Ok(Question { request, arrival })
    }
}

/// Takes method and path from headers. Returns the host.
fn describe(
    asked: &HeaderMap,
    request: &mut Request<RequestBody>,
) -> Result<HeaderValue, Unreadable> {
    let method = Method::from_bytes(required(asked, &FORWARDED_METHOD)?.as_bytes());
    let method = method.map_err(|_| Unreadable("X-Forwarded-Method is no method"))?;
    *request.method_mut() = method;
    *request.uri_mut() = target(required(asked, &FORWARDED_URI)?.as_bytes())?;
    required(asked, &FORWARDED_HOST)
}

/// Takes method and path from the question itself. Returns the host.
fn describe_by_envoy(
    asked: &Request<RequestBody>,
    request: &mut Request<RequestBody>,
) -> Result<HeaderValue, Unreadable> {
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

fn target(text: &[u8]) -> Result<Uri, Unreadable> {
    let path = PathAndQuery::try_from(text).map_err(|_| BAD_PATH)?;
    if !path.as_str().starts_with('/') {
        return Err(BAD_PATH);
    }
    let mut parts = Parts::default();
    parts.path_and_query = Some(path);
    Uri::from_parts(parts).map_err(|_| BAD_PATH)
}

/// The headers of the client's request. Envoy joins the lines of one header with commas, so each
/// part counts as a line of its own there: a key that came twice must not pass as one.
fn headers_of_client(door: Door, asked: &HeaderMap) -> HeaderMap {
    let mut headers = HeaderMap::with_capacity(asked.len());
    for (name, value) in asked {
        if OF_THE_QUESTION.contains(name) {
            continue;
        }
        let is_joined = door == Door::Envoy && *name != COOKIE && *name != FORWARDED_FOR;
        if !is_joined {
            headers.append(name, value.clone());
            continue;
        }
        for line in value.as_bytes().split(|byte| *byte == b',') {
            if let Ok(line) = HeaderValue::from_bytes(line.trim_ascii()) {
                headers.append(name, line);
            }
        }
    }
    headers
}

/// The client's connection. The last address is that of the peer of the proxy that asks. The
/// addresses before it stay in the header, and count if that peer is a trusted proxy.
fn arrival(asked: &HeaderMap, headers: &mut HeaderMap) -> Result<Arrival, Unreadable> {
    let list = required(asked, &FORWARDED_FOR)?;
    let not_a_list = |_| Unreadable("X-Forwarded-For is no list of addresses");
    let list = list.to_str().map_err(not_a_list)?;
    let (before, last) = match list.rsplit_once(',') {
        Some((before, last)) => (Some(before), last),
        None => (None, list),
    };
    let last: Result<IpAddr, _> = last.trim().parse();
    let ip = last.map_err(|_| Unreadable("the last of X-Forwarded-For is no address"))?;
    headers.remove(&FORWARDED_FOR);
    if let Some(Ok(before)) = before.map(|before| HeaderValue::from_str(before.trim())) {
        headers.insert(FORWARDED_FOR, before);
    }
    let scheme = match single(asked, &FORWARDED_PROTO)? {
        None => Scheme::Http,
        Some(proto) if proto.as_bytes().eq_ignore_ascii_case(b"http") => Scheme::Http,
        Some(proto) if proto.as_bytes().eq_ignore_ascii_case(b"https") => Scheme::Https,
        Some(_) => return Err(Unreadable("X-Forwarded-Proto is neither http nor https")),
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
) -> Result<Option<&'h HeaderValue>, Unreadable> {
    let mut lines = headers.get_all(name).iter();
    match (lines.next(), lines.next()) {
        (_, Some(_)) => Err(Unreadable(
            "a header that describes the request is there twice",
        )),
        (line, None) => Ok(line),
    }
}

fn required(headers: &HeaderMap, name: &HeaderName) -> Result<HeaderValue, Unreadable> {
    let missing = Unreadable("a header that describes the request is missing");
    single(headers, name)?.cloned().ok_or(missing)
}
