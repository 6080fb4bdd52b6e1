//! The response to a head that cannot be read, and its line in the access log.

use std::io::Write as _;
use std::net::IpAddr;

use bytes::Bytes;
use http::{Method, Request, Response, StatusCode, Uri};

use super::access_record::AccessRecord;
use super::headers::{RequestFault, put_line};
use super::local_reply::{closing, http_date};
use super::rejection::head_message;
use super::request_id::{self, RequestId};
use crate::clock;
use crate::request_head::HeadError;
use crate::telemetry::access::{Buffer, Outcome};

/// A head of HTTP/1.1 that cannot be read, or names an unknown transfer coding.
pub struct UnreadableHead {
    response: Response<Bytes>,
    detail: &'static str,
    id: Option<RequestId>,
}

impl UnreadableHead {
    fn new(status: StatusCode, detail: &'static str) -> UnreadableHead {
        let id = request_id::made();
        UnreadableHead {
            response: closing(status, detail, &id),
            detail,
            id: Some(id),
        }
    }

    pub fn malformed() -> UnreadableHead {
        let detail = "the head of the request cannot be read";
        UnreadableHead::new(StatusCode::BAD_REQUEST, detail)
    }

    pub fn with_error(error: HeadError) -> UnreadableHead {
        let (status, detail) = head_message(error);
        UnreadableHead::new(status, detail)
    }

    pub fn with_unknown_coding() -> UnreadableHead {
        let (status, detail) = RequestFault::UnknownCoding.message();
        UnreadableHead::new(status, detail)
    }

    /// A head that came too late. Its response, of `local_reply::head_timeout`, has no body.
    pub fn late() -> UnreadableHead {
        let mut response = Response::new(Bytes::new());
        *response.status_mut() = StatusCode::REQUEST_TIMEOUT;
        UnreadableHead {
            response,
            detail: "the head of the request did not arrive in time",
            id: None,
        }
    }

    /// The bytes of the response. The connection ends after it.
    pub fn response(&self) -> Bytes {
        let (status, body) = (self.response.status(), self.response.body());
        let title = status.canonical_reason().unwrap_or("Bad Request");
        let mut out = format!("HTTP/1.1 {} {title}\r\n", status.as_u16()).into_bytes();
        for (name, value) in self.response.headers() {
            put_line(&mut out, name, value.as_bytes());
        }
        let date = http_date(clock::wall());
        let length = body.len();
        // Writing into a Vec cannot fail.
        let _ = write!(out, "content-length: {length}\r\ndate: {date}\r\n\r\n");
        out.extend_from_slice(body);
        out.into()
    }

    /// Writes the line in the access log: its method is `-`, and its path `*`.
    pub fn write_line(self, log: &Buffer, client: IpAddr) {
        let mut request = Request::new(());
        *request.method_mut() = Method::from_bytes(b"-").unwrap_or_default();
        *request.uri_mut() = Uri::from_static("*");
        let mut record = AccessRecord::begin(&request, client, log, false);
        record.outcome = Outcome::Rejected;
        record.status = self.response.status().as_u16();
        record.bytes = self.response.body().len() as u64;
        record.reason = Some(self.detail);
        record.request_id = self.id;
        record.choose_line();
        record.write();
    }
}
