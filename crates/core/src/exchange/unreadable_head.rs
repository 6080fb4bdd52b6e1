//! The response to a head that cannot be read, and its line in the access log.

use std::io::Write as _;
use std::net::IpAddr;

use bytes::Bytes;
use http::{Method, Request, StatusCode, Uri};

use super::access_record::AccessRecord;
use super::headers::{RequestFault, put_line};
use super::local_reply::{closing, http_date};
use super::request_id::{self, RequestId};
use crate::clock;
use crate::telemetry::access::{Buffer, Outcome};

/// A head of HTTP/1.1 that cannot be read, or names an unknown transfer coding.
pub struct UnreadableHead {
    status: StatusCode,
    detail: &'static str,
    id: RequestId,
}

impl UnreadableHead {
    pub fn new(status: StatusCode) -> UnreadableHead {
        UnreadableHead {
            status,
            detail: "the head of the request cannot be read",
            id: request_id::made(),
        }
    }

    pub fn with_unknown_coding() -> UnreadableHead {
        let (status, detail) = RequestFault::UnknownCoding.message();
        UnreadableHead {
            detail,
            ..UnreadableHead::new(status)
        }
    }

    /// The bytes of the response. The connection ends after it.
    pub fn response(&self) -> Bytes {
        let response = closing(self.status, self.detail, &self.id);
        let title = self.status.canonical_reason().unwrap_or("Bad Request");
        let mut out = format!("HTTP/1.1 {} {title}\r\n", self.status.as_u16()).into_bytes();
        for (name, value) in response.headers() {
            put_line(&mut out, name, value.as_bytes());
        }
        let date = http_date(clock::wall());
        let length = response.body().len();
        // Writing into a Vec cannot fail.
        let _ = write!(out, "content-length: {length}\r\ndate: {date}\r\n\r\n");
        out.extend_from_slice(response.body());
        out.into()
    }

    /// Writes the line in the access log: its method is `-`, and its path `*`.
    pub fn write_line(self, log: &Buffer, client: IpAddr) {
        let mut request = Request::new(());
        *request.method_mut() = Method::from_bytes(b"-").unwrap_or_default();
        *request.uri_mut() = Uri::from_static("*");
        let mut record = AccessRecord::begin(&request, client, log, false);
        record.outcome = Outcome::Rejected;
        record.status = self.status.as_u16();
        record.reason = Some(self.detail);
        record.request_id = Some(self.id);
        record.choose_line();
        record.write();
    }
}
