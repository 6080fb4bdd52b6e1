//! Responses that the proxy makes itself, and the rate-limit headers of other responses. Only this
//! file makes HTTP of a rejection. No response tells of the inside.

use std::hash::{BuildHasher as _, RandomState};
use std::time::SystemTime;

use bytes::Bytes;
use http::header::{
    ACCESS_CONTROL_ALLOW_CREDENTIALS, ACCESS_CONTROL_ALLOW_ORIGIN, ALLOW, CACHE_CONTROL,
    CONNECTION, CONTENT_TYPE, HeaderMap, HeaderValue, LINK, LOCATION, ORIGIN, RETRY_AFTER, VARY,
    WWW_AUTHENTICATE,
};
use http::{Method, Request, Response, StatusCode};
use jiff::Timestamp;
use jiff::fmt::rfc2822::DateTimePrinter;
use smallvec::SmallVec;

use super::Exchange;
use super::admit::Admission;
use super::grpc::{self, GrpcDenial};
use super::problem::{
    self, ABNORMAL_USAGE, BLANK, Detail, Problem, QUOTA_EXCEEDED, REDUCED_CAPACITY,
};
use super::rejection::{Blocked, Denial, Rejection, RejectionMessage};
use super::request_id::{self, RequestId};
use crate::clock;
use crate::config::{BodyKind, DenySettings};
use crate::limit::headers::{
    self, HeaderSettings, RateLimitStatus, expose_to_scripts, seconds_up, seconds_value,
    write_appending,
};
use crate::limit::key::LackingToken;
use crate::limit::{Decision, LimitCheck, Retry};
use crate::route::template::LimitResult;
use crate::telemetry::access::Outcome;

const NO_STORE: HeaderValue = HeaderValue::from_static("no-store");

/// The settings of the proxy's own responses, and of rate-limit headers.
#[derive(Debug)]
pub struct LocalReplies {
    pub(super) headers: HeaderSettings,
    pub(super) deny: DenySettings,
    docs_link: Option<HeaderValue>,
    /// The value of `WWW-Authenticate`.
    challenge: &'static str,
}

/// The form in which a client wants a denial.
struct DenialForm {
    kind: BodyKind,
    is_head: bool,
    /// The content type of a gRPC client.
    grpc: Option<HeaderValue>,
    origin: Option<HeaderValue>,
    /// Empty; it has the memory of the request's headers.
    map: HeaderMap,
}

impl DenialForm {
    fn take<B>(request: &mut Request<B>, is_grpc: bool) -> DenialForm {
        let is_head = request.method() == Method::HEAD;
        let headers = request.headers_mut();
        let content_type = headers.get(CONTENT_TYPE);
        let mut form = DenialForm {
            kind: problem::preferred(headers),
            is_head,
            grpc: content_type.filter(|_| is_grpc).cloned(),
            origin: headers.get(ORIGIN).cloned(),
            map: HeaderMap::new(),
        };
        form.map = std::mem::take(headers);
        form.map.clear();
        form
    }
}

impl LocalReplies {
    pub(super) fn new(
        headers: HeaderSettings,
        deny: DenySettings,
        challenge: &'static str,
    ) -> LocalReplies {
        let link = deny.docs_url.as_ref();
        let link = link.map(|url| HeaderValue::try_from(format!("<{url}>; rel=\"help\"")));
        LocalReplies {
            docs_link: link.and_then(Result::ok),
            headers,
            deny,
            challenge,
        }
    }

    /// Writes the rate-limit headers of the decision that admitted the request.
    pub fn mark<B>(&self, admission: &Admission, response: &mut Response<B>) {
        let Some(decided) = admission.granted() else {
            return;
        };
        let settings = self.headers.for_status(response.status());
        let map = response.headers_mut();
        let status = RateLimitStatus::new(decided, self.headers.reset, admission.unix_us);
        headers::write(map, settings, decided.charge, &status);
        if admission.cors {
            expose_to_scripts(map, settings);
        }
    }

    /// The response to a refused request. A denial takes the memory of the request's headers.
    pub(super) fn respond<B, R>(
        &self,
        rejection: &Rejection,
        x: &mut Exchange<'_, B, R>,
    ) -> Response<Bytes> {
        let record = &mut x.record;
        // A proxy that describes its client's request reads the status of HTTP, so a denial for it
        // is never that of gRPC, which has status 200.
        let is_grpc = record.grpc && !x.downstream.is_described;
        record.outcome = rejection.outcome();
        if record.outcome == Outcome::Denied {
            record.limit_status = Some(LimitResult::Rejected);
        }
        record.reason = rejection.reason();
        if let Rejection::Upstream(error) = rejection {
            record.failure.clone_from(&error.failure);
        }
        let id = record.request_id.take().unwrap_or_else(request_id::made);
        let response = match rejection {
            Rejection::Limited(denial) => {
                record.note_denial(denial.decided());
                self.denial(denial, DenialForm::take(x.request, is_grpc), id.as_str())
            }
            Rejection::Blocked(blocked) => {
                let policy = blocked.policy().into();
                record.note_denier(&policy, blocked.tag, blocked.plain.as_ref());
                self.blocked(blocked, DenialForm::take(x.request, is_grpc), id.as_str())
            }
            other if is_grpc => {
                grpc::translate(self.refusal(other, id.as_str()), &other.sentence())
            }
            other => self.refusal(other, id.as_str()),
        };
        record.request_id = Some(id);
        response
    }

    /// The response to a request that neither a limit nor a block denies.
    fn refusal(&self, rejection: &Rejection, id: &str) -> Response<Bytes> {
        let mut kind = BLANK;
        let mut violated: SmallVec<[&str; 4]> = SmallVec::new();
        let mut header = None;
        match rejection {
            Rejection::StoreAway { limits, .. } => {
                kind = REDUCED_CAPACITY;
                violated.extend(limits.iter().map(|limit| &**limit));
                header = Some((RETRY_AFTER, HeaderValue::from_static("1")));
            }
            Rejection::TlsOnly(url) => header = Some((LOCATION, url.clone())),
            Rejection::MissingKey(fault) | Rejection::AmbiguousKey(fault) => {
                violated.push(&fault.limit);
                let challenge = fault.token.map(|token| match token {
                    LackingToken::Absent => "Bearer",
                    LackingToken::Invalid => "Bearer error=\"invalid_token\"",
                });
                let challenge = challenge.map(HeaderValue::from_static);
                header = challenge.map(|challenge| (WWW_AUTHENTICATE, challenge));
            }
            Rejection::Unpriced(limit) => violated.push(limit),
            Rejection::BodyMemory | Rejection::StatusBusy | Rejection::Draining => {
                header = Some((RETRY_AFTER, HeaderValue::from_static("1")))
            }
            Rejection::UnknownKey(limit) => {
                violated.push(limit);
                let challenge = HeaderValue::from_static(self.challenge);
                header = Some((WWW_AUTHENTICATE, challenge));
            }
            Rejection::Upstream(error) => {
                let seconds = error.retry_after.map(HeaderValue::from);
                header = seconds.map(|seconds| (RETRY_AFTER, seconds));
            }
            _ => {}
        }
        let mut response = problem_response(&rejection.message(), kind, &violated, id);
        response.headers_mut().extend(header);
        response
    }

    fn denial(&self, denial: &Denial, form: DenialForm, id: &str) -> Response<Bytes> {
        let (decided, charge) = (denial.decided(), &denial.charge);
        let status = RateLimitStatus::new(decided, self.headers.reset, clock::unix_us());
        let violated: SmallVec<[&str; 4]> = status
            .states(charge)
            .filter(|(_, state)| state.denies)
            .map(|(check, _)| check.window.policy.as_ref())
            .collect();
        let longest = status.longest(charge);
        let resets_at = status.resets_at(charge);
        let never = match (status.wait, longest) {
            (None, Some(check)) => never_allowed(check),
            _ => String::new(),
        };
        let problem = Problem {
            kind: QUOTA_EXCEEDED,
            title: match status.wait {
                Some(_) => "Quota Exceeded",
                None => "Cost Above Limit",
            },
            status: longest
                .and_then(|check| check.limit.status)
                .unwrap_or(self.deny.status)
                .as_u16(),
            detail: match (status.wait, longest) {
                (Some(seconds), Some(check)) => Detail::Wait {
                    allows: &check.window.texts.allows,
                    allows_json: &check.window.texts.allows_json,
                    seconds,
                },
                _ => Detail::Text(&never),
            },
            violated: &violated,
            retry_after: status.wait,
            resets_at: resets_at.as_deref(),
            docs_url: self.deny.docs_url.as_deref(),
            request_id: id,
        };
        let retry_us = status.wait.map(|_| longest_retry_us(&denial.decision));
        let origin = form.origin.clone();
        let (mut response, body) = self.deny(&problem, form, retry_us);
        let headers = response.headers_mut();
        // One buffer has the body and the values of the headers.
        let length = body.len();
        let written = write_appending(headers, self.headers, charge, &status, body);
        self.add_jitter(headers, retry_us);
        self.allow_origin(headers, origin);
        *response.body_mut() = written.slice(..length);
        response
    }

    /// The response to a blocked or banned client. A block without an end has no `Retry-After`.
    fn blocked(&self, blocked: &Blocked, form: DenialForm, id: &str) -> Response<Bytes> {
        let wait = blocked.left_us.map(|us| seconds_up(us).max(1));
        let (kind, title, word) = match blocked.ban {
            Some(_) => (ABNORMAL_USAGE, "Abnormal Usage Detected", "banned"),
            None => (QUOTA_EXCEEDED, "Blocked", "blocked"),
        };
        let detail = match wait {
            Some(seconds) => format!("this client is {word}; retry in {seconds} s"),
            None => format!("this client is {word}"),
        };
        let problem = Problem {
            kind,
            title,
            status: self.deny.status.as_u16(),
            detail: Detail::Text(&detail),
            violated: &[blocked.policy()],
            retry_after: wait,
            resets_at: None,
            docs_url: self.deny.docs_url.as_deref(),
            request_id: id,
        };
        let origin = form.origin.clone();
        let (mut response, body) = self.deny(&problem, form, blocked.left_us);
        *response.body_mut() = body.into();
        let headers = response.headers_mut();
        headers.extend(wait.map(|seconds| (RETRY_AFTER, seconds_value(seconds))));
        self.add_jitter(headers, blocked.left_us);
        self.allow_origin(headers, origin);
        response
    }

    /// A denial in the client's form, without `Retry-After`, and its body. `retry_us` is the exact
    /// wait.
    fn deny(
        &self,
        problem: &Problem<'_>,
        form: DenialForm,
        retry_us: Option<u64>,
    ) -> (Response<Bytes>, Vec<u8>) {
        let mut response = Response::new(Bytes::new());
        let mut body = Vec::new();
        *response.headers_mut() = form.map;
        if let Some(content_type) = form.grpc {
            let headers = response.headers_mut();
            headers.insert(CONTENT_TYPE, content_type);
            let denial = GrpcDenial {
                message: &problem.detail.text(),
                retry_us,
                violated: problem.violated,
            };
            grpc::write_denial(headers, &denial);
        } else {
            *response.status_mut() =
                StatusCode::from_u16(problem.status).unwrap_or(self.deny.status);
            if !form.is_head {
                let mut templates = self.deny.body.iter();
                let template = templates.find(|(kind, _)| *kind == form.kind);
                let template = template.map(|(_, text)| text.as_str());
                body = problem::render(problem, form.kind, template);
            }
            let media_type = problem::media_type(form.kind);
            response.headers_mut().insert(CONTENT_TYPE, media_type);
        }
        response.headers_mut().insert(CACHE_CONTROL, NO_STORE);
        if let Some(link) = &self.docs_link {
            response.headers_mut().insert(LINK, link.clone());
        }
        (response, body)
    }

    /// Delays `Retry-After`. The other values stay exact.
    fn add_jitter(&self, headers: &mut HeaderMap, retry_us: Option<u64>) {
        if let (Some(jitter), Some(retry_us)) = (self.deny.jitter, retry_us) {
            let seconds = seconds_up(jitter.add_to(retry_us, random())).max(1);
            headers.insert(RETRY_AFTER, seconds_value(seconds));
        }
    }

    /// Lets a script of another origin read the answer to a request with these headers, unless the
    /// browser has sent cookies or a certificate: then the answer tells of its user.
    pub(super) fn allow_script(&self, headers: &mut HeaderMap, asked: &HeaderMap) {
        self.allow_origin(headers, asked.get(ORIGIN).cloned());
        headers.remove(ACCESS_CONTROL_ALLOW_CREDENTIALS);
    }

    /// Lets a script of another origin read a denial. Without these headers, which an upstream
    /// would have sent, a browser hides even the status.
    fn allow_origin(&self, headers: &mut HeaderMap, origin: Option<HeaderValue>) {
        if let Some(origin) = origin.filter(|_| self.headers.cors_expose) {
            headers.insert(ACCESS_CONTROL_ALLOW_ORIGIN, origin);
            let yes = HeaderValue::from_static("true");
            headers.insert(ACCESS_CONTROL_ALLOW_CREDENTIALS, yes);
            headers.append(VARY, HeaderValue::from_static("origin"));
            expose_to_scripts(headers, self.headers);
        }
    }
}

/// The sentence for a request that no wait helps.
fn never_allowed(check: &LimitCheck) -> String {
    let (rate, policy) = (check.window.rate(), &check.window.policy);
    format!(
        "this request costs {}, more than \"{policy}\" ever allows at once ({rate})",
        check.cost
    )
}

/// A number that clients cannot predict.
fn random() -> u64 {
    RandomState::new().hash_one(clock::unix_us())
}

fn longest_retry_us(decision: &Decision) -> u64 {
    let waits = decision.verdicts.iter().map(|verdict| match verdict.retry {
        Retry::After(us) => us,
        _ => 0,
    });
    waits.max().unwrap_or(0)
}

/// A response with problem details.
fn problem_response(
    message: &RejectionMessage,
    kind: &'static str,
    violated: &[&str],
    id: &str,
) -> Response<Bytes> {
    let problem = Problem {
        kind,
        title: message.title,
        status: message.status.as_u16(),
        detail: Detail::Text(&message.detail),
        violated,
        retry_after: None,
        resets_at: None,
        docs_url: None,
        request_id: id,
    };
    let body = problem::render(&problem, BodyKind::Json, None);
    let mut response = Response::new(body.into());
    *response.status_mut() = message.status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, problem::media_type(BodyKind::Json));
    headers.insert(CACHE_CONTROL, NO_STORE);
    if message.status == StatusCode::METHOD_NOT_ALLOWED {
        let methods = HeaderValue::from_static("GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS");
        headers.insert(ALLOW, methods);
    }
    if message.close {
        headers.insert(CONNECTION, HeaderValue::from_static("close"));
    }
    response
}

/// A response that closes the connection.
pub(super) fn closing(status: StatusCode, detail: &'static str, id: &RequestId) -> Response<Bytes> {
    let message = RejectionMessage {
        close: true,
        ..RejectionMessage::new(status, detail)
    };
    problem_response(&message, BLANK, &[], id.as_str())
}

/// The response to a request whose handler panicked.
pub fn panicked() -> Response<Bytes> {
    let detail = "the request could not be handled";
    closing(
        StatusCode::INTERNAL_SERVER_ERROR,
        detail,
        &request_id::made(),
    )
}

/// `Thu, 26 Nov 2026 04:12:00 GMT` (RFC 9110 section 5.6.7).
pub(super) fn http_date(at: SystemTime) -> String {
    let at = Timestamp::try_from(at).unwrap_or(Timestamp::UNIX_EPOCH);
    let date = DateTimePrinter::new().timestamp_to_rfc9110_string(&at);
    date.unwrap_or_default()
}

/// The bytes of a response to a head that did not arrive in time.
pub fn head_timeout() -> String {
    let date = http_date(clock::wall());
    format!(
        "HTTP/1.1 408 Request Timeout\r\nconnection: close\r\ncontent-length: 0\r\n\
         date: {date}\r\n\r\n"
    )
}
