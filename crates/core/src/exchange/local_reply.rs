//! Answers that the proxy makes itself: the only place where an error becomes HTTP.
//!
//! Each room names what went wrong; here it gets a status, a title and a sentence for the client,
//! which never holds anything of the inside.

mod denial;

use bytes::Bytes;
use http::header::{
    CACHE_CONTROL, CONNECTION, CONTENT_TYPE, HeaderValue, LOCATION, RETRY_AFTER, WWW_AUTHENTICATE,
};
use http::{HeaderMap, Request, Response, StatusCode};

use super::access_record::AccessRecord;
use super::admission::Admission;
use super::grpc;
use super::headers::RequestFault;
use super::problem::{self, BLANK, Detail, Problem, REDUCED_CAPACITY};
use super::rejection::message::RejectionMessage;
use super::rejection::{BLOCK_POLICY, Rejection};
use super::request_id;
use crate::clock;
use crate::config::{BodyKind, DenySettings};
use crate::limit::headers::{self, HeaderSettings, RateLimitStatus};
use denial::DenialForm;

/// How the proxy words its own answers, and what it adds to others: rate-limit headers.
#[derive(Debug)]
pub struct LocalReplies {
    headers: HeaderSettings,
    pub(super) deny: DenySettings,
    docs_link: Option<HeaderValue>,
    /// How a client whose key is not known may show who it is.
    challenge: &'static str,
}

impl LocalReplies {
    pub(super) fn new(
        headers: HeaderSettings,
        deny: DenySettings,
        challenge: &'static str,
    ) -> LocalReplies {
        let link = deny.docs_url.as_ref();
        LocalReplies {
            docs_link: link
                .and_then(|url| HeaderValue::try_from(format!("<{url}>; rel=\"help\"")).ok()),
            headers,
            deny,
            challenge,
        }
    }

    /// Whether answers to scripts of other origins name the rate-limit headers.
    pub(super) fn exposes_to_scripts(&self) -> bool {
        self.headers.cors_expose
    }

    /// Writes the rate-limit headers of the decision that let the request pass.
    pub fn mark<B>(&self, admission: &Admission, response: &mut Response<B>) {
        let Some(granted) = admission.granted() else {
            return;
        };
        let map = response.headers_mut();
        let (reset, unix_us) = (self.headers.reset, admission.decided_us());
        let status = RateLimitStatus::new(granted.decided, reset, unix_us);
        headers::write(map, self.headers, granted.decided.charge, &status);
        if admission.cors {
            headers::expose_to_scripts(map);
        }
    }

    /// The answer to a request that is refused. A denial's headers reuse the memory of the
    /// request's, so the request's are gone.
    pub(super) fn answer<B>(
        &self,
        rejection: &Rejection,
        request: &mut Request<B>,
        record: &mut AccessRecord,
    ) -> Response<Bytes> {
        record.outcome = rejection.outcome();
        record.reason = rejection.reason();
        let made = record.request_id.take().unwrap_or_else(request_id::made);
        let id = made.as_str();
        let response = match rejection {
            Rejection::Limited(denial) => {
                record.note_denial(denial.decided());
                let form = DenialForm::of(request.method(), request.headers());
                self.denial(denial, &form, id, emptied(request))
            }
            Rejection::Blocked(blocked) => {
                record.note_denier(&BLOCK_POLICY.into(), blocked.tag, blocked.plain.as_ref());
                let form = DenialForm::of(request.method(), request.headers());
                self.keep_out(blocked, &form, id, emptied(request))
            }
            Rejection::StoreAway { limits, .. } => {
                let violated: Vec<&str> = limits.iter().map(AsRef::as_ref).collect();
                let mut response = plain(&rejection.message(), REDUCED_CAPACITY, &violated, id);
                response
                    .headers_mut()
                    .insert(RETRY_AFTER, HeaderValue::from_static("1"));
                response
            }
            Rejection::TlsOnly(place) => {
                let mut response = plain(&rejection.message(), BLANK, &[], id);
                response.headers_mut().insert(LOCATION, place.clone());
                response
            }
            Rejection::MissingKey(limit) | Rejection::AmbiguousKey(limit) => {
                plain(&rejection.message(), BLANK, &[limit], id)
            }
            Rejection::UnknownKey(limit) => {
                let mut response = plain(&rejection.message(), BLANK, &[limit], id);
                insert_static(&mut response, WWW_AUTHENTICATE, self.challenge);
                response
            }
            Rejection::Upstream(error) => {
                let mut response = plain(&rejection.message(), BLANK, &[], id);
                if let Some(seconds) = error.retry_after {
                    let headers = response.headers_mut();
                    headers.insert(RETRY_AFTER, HeaderValue::from(seconds));
                }
                response
            }
            other => plain(&other.message(), BLANK, &[], id),
        };
        // Denials have chosen their form themselves.
        let response = match rejection {
            Rejection::Limited(_) | Rejection::Blocked(_) => response,
            _ if record.grpc => grpc::translate(response, rejection.message().detail),
            _ => response,
        };
        record.request_id = Some(made);
        response
    }
}

/// The room of a request's headers, which are not needed any more.
fn emptied<B>(request: &mut Request<B>) -> HeaderMap {
    let mut room = std::mem::take(request.headers_mut());
    room.clear();
    room
}

/// An answer as problem details.
fn plain(
    message: &RejectionMessage,
    kind: &'static str,
    violated: &[&str],
    id: &str,
) -> Response<Bytes> {
    let problem = Problem {
        kind,
        title: message.title,
        status: message.status.as_u16(),
        detail: Detail::Text(message.detail),
        violated,
        retry_after: None,
        docs_url: None,
        request_id: id,
    };
    let mut response = Response::new(problem::render(&problem, BodyKind::Json, None).into());
    *response.status_mut() = message.status;
    insert_static(
        &mut response,
        CONTENT_TYPE,
        problem::media_type(BodyKind::Json),
    );
    insert_static(&mut response, CACHE_CONTROL, "no-store");
    if message.status == StatusCode::METHOD_NOT_ALLOWED {
        insert_static(
            &mut response,
            http::header::ALLOW,
            "GET, HEAD, POST, PUT, PATCH, DELETE",
        );
    }
    if message.close {
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
pub fn panicked() -> Response<Bytes> {
    let message = RejectionMessage {
        status: StatusCode::INTERNAL_SERVER_ERROR,
        title: "Internal Server Error",
        detail: "the request could not be handled",
        close: true,
    };
    plain(&message, BLANK, &[], request_id::made().as_str())
}

/// A whole response of this status, head included, to a head that cannot be read; or to one with a
/// transfer coding that is none of ours.
pub fn unreadable_head(status: u16, has_unknown_coding: bool) -> Bytes {
    let (status, detail) = match has_unknown_coding {
        true => (
            RequestFault::UnknownCoding.status().as_u16(),
            RequestFault::UnknownCoding.detail(),
        ),
        false => (status, "the head of the request cannot be read"),
    };
    let status = StatusCode::from_u16(status).unwrap_or(StatusCode::BAD_REQUEST);
    let title = status.canonical_reason().unwrap_or("Bad Request");
    let id = request_id::made();
    let problem = Problem {
        kind: BLANK,
        title,
        status: status.as_u16(),
        detail: Detail::Text(detail),
        violated: &[],
        retry_after: None,
        docs_url: None,
        request_id: id.as_str(),
    };
    let body = problem::render(&problem, BodyKind::Json, None);
    let mut answer = format!(
        "HTTP/1.1 {} {title}\r\ncontent-type: {}\r\ncache-control: no-store\r\n\
         connection: close\r\ncontent-length: {}\r\ndate: {}\r\n\r\n",
        status.as_u16(),
        problem::media_type(BodyKind::Json),
        body.len(),
        httpdate::fmt_http_date(clock::wall()),
    )
    .into_bytes();
    answer.extend_from_slice(&body);
    answer.into()
}

/// The answer to a head that does not come to its end in time.
pub fn head_timeout() -> String {
    let date = httpdate::fmt_http_date(clock::wall());
    format!(
        "HTTP/1.1 408 Request Timeout\r\nconnection: close\r\ncontent-length: 0\r\n\
         date: {date}\r\n\r\n"
    )
}
