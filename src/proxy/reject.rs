//! Answers that the proxy makes itself: the only place where an error becomes HTTP.
//!
//! Each room names what went wrong; here it gets a status, a title and a sentence for the client,
//! which never holds anything of the inside.

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use http::header::{
    ACCESS_CONTROL_ALLOW_CREDENTIALS, ACCESS_CONTROL_ALLOW_ORIGIN, CACHE_CONTROL, CONNECTION,
    CONTENT_TYPE, HeaderMap, HeaderValue, LINK, ORIGIN, RETRY_AFTER, VARY,
};
use http::{Method, Response, StatusCode};

use super::flaw::Flaw;
use super::grpc;
use super::headers::RequestFault;
use super::limiter::Limiter;
use super::line::Line;
use super::people::{Blocked, POLICY};
use super::problem::{self, BLANK, Problem, QUOTA_EXCEEDED, REDUCED_CAPACITY};
use crate::clock;
use crate::config::BodyKind;
use crate::limit::headers::{expose_to_scripts, retry_after, write};
use crate::limit::{Algorithm, Charge, Decision, Rate, Retry};
use crate::path::PathError;
use crate::telemetry::access::Outcome;
use crate::upstream::UpstreamError;

/// Why a request is not answered by an upstream.
#[derive(Debug)]
pub(crate) enum Rejection {
    /// The bytes of its head.
    Flaw(Flaw),
    /// Its head's meaning.
    Request(RequestFault),
    /// Its path has no single meaning.
    Path(PathError),
    /// Its path means one route to some upstreams and another to others.
    AmbiguousPath,
    /// A body longer than the configuration allows.
    BodyTooLarge,
    /// No route is its.
    NoRoute,
    /// It lacks the key that this limit needs.
    MissingKey(Arc<str>),
    /// It carries several different values for the key of this limit.
    AmbiguousKey(Arc<str>),
    /// A limit denies it.
    Limited(Box<Denial>),
    /// An operator keeps its client out.
    Blocked(Box<Blocked>),
    /// The store is away, and these limits say that means no.
    StoreAway {
        /// Their names.
        limits: Vec<Arc<str>>,
        /// What is wrong with the store, for the log.
        reason: &'static str,
    },
    /// The upstream did not answer.
    Upstream(UpstreamError),
}

impl From<RequestFault> for Rejection {
    fn from(fault: RequestFault) -> Self {
        Rejection::Request(fault)
    }
}

impl From<PathError> for Rejection {
    fn from(error: PathError) -> Self {
        Rejection::Path(error)
    }
}

impl From<UpstreamError> for Rejection {
    fn from(error: UpstreamError) -> Self {
        Rejection::Upstream(error)
    }
}

/// A denial, with what its answer tells.
#[derive(Debug)]
pub(crate) struct Denial {
    /// What was asked.
    pub(crate) charge: Charge,
    /// What the store said.
    pub(crate) decision: Decision,
    /// How the client wants to read it.
    pub(crate) form: Form,
}

/// How a client wants to read a denial; taken from its request only when it is denied.
#[derive(Debug)]
pub(crate) struct Form {
    kind: BodyKind,
    head: bool,
    grpc: Option<HeaderValue>,
    origin: Option<HeaderValue>,
}

impl Form {
    /// What the request's head says.
    pub(crate) fn of(method: &Method, headers: &HeaderMap) -> Form {
        Form {
            kind: problem::preferred(headers),
            head: method == Method::HEAD,
            grpc: headers
                .get(CONTENT_TYPE)
                .filter(|_| grpc::is_grpc(headers))
                .cloned(),
            origin: headers.get(ORIGIN).cloned(),
        }
    }
}

/// Status, title and sentence of an answer, and whether the connection may serve another request.
struct Said {
    status: StatusCode,
    title: &'static str,
    detail: &'static str,
    close: bool,
}

impl Rejection {
    fn said(&self) -> Said {
        match self {
            Rejection::Flaw(Flaw::BareLf) => malformed("a line of the head ends without CR"),
            Rejection::Flaw(Flaw::TwoLengths) => {
                malformed("Content-Length and Transfer-Encoding contradict each other")
            }
            Rejection::Flaw(Flaw::HeadTooLarge) => Said {
                status: StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE,
                title: "Request Header Fields Too Large",
                detail: "the head of the request is larger than this server reads",
                close: true,
            },
            Rejection::Request(fault) => Said {
                status: fault.status(),
                title: fault.status().canonical_reason().unwrap_or("Bad Request"),
                detail: fault.detail(),
                close: fault.status() == StatusCode::BAD_REQUEST,
            },
            Rejection::Path(error) => refused(error.detail()),
            Rejection::AmbiguousPath => refused("the path of the request has no single meaning"),
            Rejection::BodyTooLarge => Said {
                status: StatusCode::PAYLOAD_TOO_LARGE,
                title: "Content Too Large",
                detail: "the body of the request is larger than this server takes",
                close: true,
            },
            Rejection::NoRoute => Said {
                status: StatusCode::NOT_FOUND,
                title: "Not Found",
                detail: "nothing is served at this host, path and method",
                close: false,
            },
            Rejection::MissingKey(_) => refused("the request lacks the key that its limit needs"),
            Rejection::AmbiguousKey(_) => {
                refused("the request carries several different keys where one must be")
            }
            Rejection::Limited(_) | Rejection::Blocked(_) => Said {
                status: StatusCode::TOO_MANY_REQUESTS,
                title: "Quota Exceeded",
                detail: "",
                close: false,
            },
            Rejection::StoreAway { .. } => Said {
                status: StatusCode::SERVICE_UNAVAILABLE,
                title: "Temporarily Reduced Capacity",
                detail: "limits cannot be checked at the moment",
                close: false,
            },
            Rejection::Upstream(error) => upstream(error),
        }
    }

    fn outcome(&self) -> Outcome {
        match self {
            Rejection::Limited(_) | Rejection::Blocked(_) => Outcome::Denied,
            _ => Outcome::Rejected,
        }
    }

    fn reason(&self) -> Option<&'static str> {
        match self {
            Rejection::Limited(_) => None,
            Rejection::Blocked(_) => Some("blocked"),
            Rejection::StoreAway { reason, .. } => Some(reason),
            Rejection::Upstream(error) => Some(error.label()),
            other => Some(other.said().detail),
        }
    }
}

fn malformed(detail: &'static str) -> Said {
    Said {
        close: true,
        ..refused(detail)
    }
}

fn refused(detail: &'static str) -> Said {
    Said {
        status: StatusCode::BAD_REQUEST,
        title: "Bad Request",
        detail,
        close: false,
    }
}

fn upstream(error: &UpstreamError) -> Said {
    let status = error.status();
    let (title, detail) = match status {
        StatusCode::GATEWAY_TIMEOUT => (
            "Gateway Timeout",
            "the upstream server did not answer in time",
        ),
        StatusCode::SERVICE_UNAVAILABLE => (
            "Service Unavailable",
            "no upstream server can take the request now",
        ),
        StatusCode::PAYLOAD_TOO_LARGE => return Rejection::BodyTooLarge.said(),
        StatusCode::REQUEST_TIMEOUT => (
            "Request Timeout",
            "the body of the request did not arrive in time",
        ),
        StatusCode::BAD_REQUEST => (
            "Bad Request",
            "the body of the request is malformed or ended too early",
        ),
        _ => ("Bad Gateway", "the upstream server gave no usable answer"),
    };
    Said {
        status,
        title,
        detail,
        close: status.is_client_error(),
    }
}

impl Limiter {
    /// The answer to a request that is refused, and what the log says of it.
    pub(super) fn answer(&self, rejection: &Rejection, line: &mut Line) -> Response<Bytes> {
        line.outcome = rejection.outcome();
        line.reason = rejection.reason();
        let id = request_id();
        let response = match rejection {
            Rejection::Limited(denial) => {
                line.note_denial(&denial.charge, &denial.decision);
                self.denial(denial, &id)
            }
            Rejection::Blocked(blocked) => {
                line.note_denier(POLICY.into(), blocked.tag);
                self.keep_out(blocked, &id)
            }
            Rejection::StoreAway { limits, .. } => {
                let violated: Vec<&str> = limits.iter().map(AsRef::as_ref).collect();
                let mut response = plain(&rejection.said(), REDUCED_CAPACITY, &violated, &id);
                response
                    .headers_mut()
                    .insert(RETRY_AFTER, HeaderValue::from_static("1"));
                response
            }
            Rejection::MissingKey(limit) | Rejection::AmbiguousKey(limit) => {
                plain(&rejection.said(), BLANK, &[limit], &id)
            }
            other => plain(&other.said(), BLANK, &[], &id),
        };
        line.request_id = Some(id);
        response
    }

    /// A denial: 429 in the form the client reads, with everything it needs to come back.
    fn denial(&self, denial: &Denial, id: &str) -> Response<Bytes> {
        let Denial {
            charge,
            decision,
            form,
        } = denial;
        let wait = retry_after(decision);
        let violated: Vec<&str> = charge
            .iter()
            .zip(&decision.verdicts)
            .filter(|(_, verdict)| verdict.retry.denies())
            .map(|(item, _)| item.window.policy.as_ref())
            .collect();
        let detail = denial_detail(charge, decision, wait);
        let problem = Problem {
            kind: QUOTA_EXCEEDED,
            title: if wait.is_some() {
                "Quota Exceeded"
            } else {
                "Cost Above Limit"
            },
            status: self.deny.status.as_u16(),
            detail: &detail,
            violated: &violated,
            retry_after: wait,
            docs_url: self.deny.docs_url.as_deref(),
            request_id: id,
        };
        let retry_us = wait.map(|_| longest_retry_us(decision));
        let mut response = self.refusal(&problem, form, retry_us);
        let headers = response.headers_mut();
        write(headers, self.headers, charge, decision, clock::unix_us());
        self.open_to_scripts(headers, form);
        response
    }

    /// A denial in the form that its client reads; `retry_us` is the exact wait.
    pub(super) fn refusal(
        &self,
        problem: &Problem<'_>,
        form: &Form,
        retry_us: Option<u64>,
    ) -> Response<Bytes> {
        let mut response = Response::new(Bytes::new());
        if let Some(content_type) = &form.grpc {
            response
                .headers_mut()
                .insert(CONTENT_TYPE, content_type.clone());
            grpc::write_denial(response.headers_mut(), problem.detail, retry_us);
        } else {
            *response.status_mut() = self.deny.status;
            let template = self
                .deny
                .body
                .iter()
                .find(|(kind, _)| *kind == form.kind)
                .map(|(_, text)| text);
            if !form.head {
                let body = problem::render(problem, form.kind, template.map(String::as_str));
                *response.body_mut() = body;
            }
            insert_static(&mut response, CONTENT_TYPE, problem::media_type(form.kind));
        }
        let headers = response.headers_mut();
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
        if let Some(seconds) = problem.retry_after {
            headers.insert(RETRY_AFTER, HeaderValue::from(seconds));
        }
        if let Some(link) = &self.docs_link {
            headers.insert(LINK, link.clone());
        }
        response
    }

    /// The upstream's CORS headers are missing on our own answer; without them a browser hides
    /// even its status from the page that asked.
    pub(super) fn open_to_scripts(&self, headers: &mut HeaderMap, form: &Form) {
        if let (true, Some(origin)) = (self.headers.cors_expose, &form.origin) {
            headers.insert(ACCESS_CONTROL_ALLOW_ORIGIN, origin.clone());
            headers.insert(
                ACCESS_CONTROL_ALLOW_CREDENTIALS,
                HeaderValue::from_static("true"),
            );
            headers.append(VARY, HeaderValue::from_static("origin"));
            expose_to_scripts(headers);
        }
    }
}

/// `"login" allows 5/min; retry in 13 s`, for the limit that keeps the client waiting longest.
fn denial_detail(charge: &Charge, decision: &Decision, wait: Option<u64>) -> String {
    let worst = charge
        .iter()
        .zip(&decision.verdicts)
        .max_by_key(|(_, verdict)| match verdict.retry {
            Retry::Now | Retry::Unasked => 0,
            Retry::Released => 1,
            Retry::After(us) => us.max(1),
            Retry::Never => u64::MAX,
        });
    let Some((item, _)) = worst else {
        return String::new();
    };
    let (rule, policy) = (item.window.rule, &item.window.policy);
    let rate = Rate {
        units: rule.units,
        window_us: rule.window_us,
    };
    match wait {
        Some(seconds) if rule.algorithm == Algorithm::Slots => format!(
            "\"{policy}\" allows {} requests at once; retry in {seconds} s",
            rule.units
        ),
        Some(seconds) => format!("\"{policy}\" allows {rate}; retry in {seconds} s"),
        None => format!(
            "this request costs {}, more than \"{policy}\" ever allows at once ({rate})",
            item.cost
        ),
    }
}

fn longest_retry_us(decision: &Decision) -> u64 {
    let waits = decision.verdicts.iter().map(|verdict| match verdict.retry {
        Retry::After(us) => us,
        Retry::Now | Retry::Never | Retry::Released | Retry::Unasked => 0,
    });
    waits.max().unwrap_or(0)
}

/// An answer as problem details.
fn plain(said: &Said, kind: &'static str, violated: &[&str], id: &str) -> Response<Bytes> {
    let problem = Problem {
        kind,
        title: said.title,
        status: said.status.as_u16(),
        detail: said.detail,
        violated,
        retry_after: None,
        docs_url: None,
        request_id: id,
    };
    let mut response = Response::new(problem::render(&problem, BodyKind::Json, None));
    *response.status_mut() = said.status;
    insert_static(
        &mut response,
        CONTENT_TYPE,
        problem::media_type(BodyKind::Json),
    );
    insert_static(&mut response, CACHE_CONTROL, "no-store");
    if said.status == StatusCode::METHOD_NOT_ALLOWED {
        insert_static(
            &mut response,
            http::header::ALLOW,
            "GET, HEAD, POST, PUT, PATCH, DELETE",
        );
    }
    if said.close {
        insert_static(&mut response, CONNECTION, "close");
    }
    response
}

fn insert_static(response: &mut Response<Bytes>, name: http::HeaderName, value: &'static str) {
    response
        .headers_mut()
        .insert(name, HeaderValue::from_static(value));
}

/// The answer to a request whose handling panicked.
pub(crate) fn panicked() -> Response<Bytes> {
    let said = Said {
        status: StatusCode::INTERNAL_SERVER_ERROR,
        title: "Internal Server Error",
        detail: "the request could not be handled",
        close: true,
    };
    plain(&said, BLANK, &[], &request_id())
}

/// A whole response, head included, to a head that hyper could not read, with the status that
/// hyper gave it.
pub(crate) fn unreadable_head(status: u16) -> Bytes {
    let status = StatusCode::from_u16(status).unwrap_or(StatusCode::BAD_REQUEST);
    let title = status.canonical_reason().unwrap_or("Bad Request");
    let problem = Problem {
        kind: BLANK,
        title,
        status: status.as_u16(),
        detail: "the head of the request cannot be read",
        violated: &[],
        retry_after: None,
        docs_url: None,
        request_id: &request_id(),
    };
    let body = problem::render(&problem, BodyKind::Json, None);
    let mut answer = format!(
        "HTTP/1.1 {} {title}\r\ncontent-type: {}\r\ncache-control: no-store\r\n\
         connection: close\r\ncontent-length: {}\r\n\r\n",
        status.as_u16(),
        problem::media_type(BodyKind::Json),
        body.len()
    )
    .into_bytes();
    answer.extend_from_slice(&body);
    answer.into()
}

/// An id to quote: 16 hexadecimal digits, different for every answer of every process.
fn request_id() -> String {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    thread_local! {
        static SECRET: RandomState = RandomState::new();
    }
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    format!("{:016x}", SECRET.with(|secret| secret.hash_one(number)))
}
