//! Upstreams: a request goes in, the head of its response comes out, the body streams behind it.
//!
//! [`Upstreams`] belongs to one worker. A request is sent once; it is sent again only if the
//! connection it was given had already gone and nothing of it was written. This room must never
//! wait without a deadline, and never use a connection again about which anything was wrong.
//!
//! ```text
//! seat       one of the servers (balance), within max_connections       pure
//! pooled     the idle connection used last, or connect                  pool, connect
//! exchange   send, wait for the head                                    pool
//! check      what hyper forgives in a head and we do not                here
//! ```
//!
//! To see 1xx responses, put `hyper::ext::on_informational` on the request; they are never taken
//! for the response itself.

mod balance;
pub mod body;
mod connect;
mod error;
mod pool;

use std::sync::Arc;

use http::header::{CONTENT_LENGTH, HOST, TRANSFER_ENCODING, UPGRADE};
use http::{HeaderMap, HeaderValue, Request, Response, StatusCode, Version};
use http_body::Body as _;
use hyper::body::Incoming;

use crate::clock::Sweep;
use crate::config::UpstreamSettings;
use body::{RequestBody, ResponseBody};
pub use connect::look;
pub use error::{HeadFault, UpstreamError};
pub use pool::Seat;
use pool::{Connection, Failure, Lease, Upstream};

/// Every upstream of one worker, with its connections.
#[derive(Debug)]
pub struct Upstreams(Vec<Arc<Upstream>>);

impl Upstreams {
    /// The upstreams of a configuration, in its order. Nothing is connected yet; deadlines go by
    /// the time of `sweep`.
    pub fn new(settings: &[UpstreamSettings], sweep: Sweep) -> Upstreams {
        let upstream = |settings| Arc::new(Upstream::new(settings, sweep.clone()));
        Upstreams(settings.iter().map(upstream).collect())
    }

    /// Sends `request`, in origin form, to one of the servers of the upstream with this index, and
    /// waits for the head of the response. Dropping the future or the body cancels the request.
    pub async fn send(
        &self,
        upstream: usize,
        mut request: Request<RequestBody>,
    ) -> Result<Response<ResponseBody>, UpstreamError> {
        let upstream = self.0.get(upstream).ok_or(UpstreamError::NoServer)?;
        let asks_upgrade = request.headers().contains_key(UPGRADE);
        frame(&mut request);
        let seat = upstream.seat()?;
        if !request.headers().contains_key(HOST) {
            // HTTP/1.0 clients may leave it out; our HTTP/1.1 may not.
            request.headers_mut().insert(HOST, seat.host().clone());
        }
        if let Some(mut connection) = seat.pooled() {
            match connection.exchange(request).await {
                Ok(response) => return accept(response, connection, seat, asks_upgrade),
                Err(Failure::Sent(error)) => return Err(error),
                Err(Failure::Unsent(unsent, _)) => request = *unsent,
            }
        }
        // Boxed: it is rare, and large beside what every request carries.
        let (mut connection, seat) = Box::pin(upstream.connect(seat)).await?;
        match connection.exchange(request).await {
            Ok(response) => accept(response, connection, seat, asks_upgrade),
            Err(Failure::Sent(error)) => Err(error),
            Err(Failure::Unsent(_, error)) => Err(UpstreamError::Closed(error)),
        }
    }
}

/// Makes sure that the request can be framed: without this, hyper drops a body of unknown length
/// from `GET` and from HTTP/1.0.
fn frame(request: &mut Request<RequestBody>) {
    *request.version_mut() = Version::HTTP_11;
    if !request.body().is_end_stream() && request.body().size_hint().exact().is_none() {
        let headers = request.headers_mut();
        headers.remove(CONTENT_LENGTH);
        headers.insert(TRANSFER_ENCODING, HeaderValue::from_static("chunked"));
    }
}

/// Takes a response for what it says it is, unless that is ambiguous.
fn accept(
    response: Response<Incoming>,
    connection: Connection,
    seat: Seat,
    asks_upgrade: bool,
) -> Result<Response<ResponseBody>, UpstreamError> {
    let has_content = check_head(response.headers()).map_err(UpstreamError::Head)?;
    let status = response.status();
    if status == StatusCode::SWITCHING_PROTOCOLS {
        if !asks_upgrade {
            return Err(UpstreamError::Head(HeadFault::UnaskedUpgrade));
        }
        let seat = Lease::new(connection, seat, false).let_go();
        return Ok(response.map(|incoming| ResponseBody::tunnel(incoming, seat)));
    }
    // After HTTP/1.0 hyper would answer in kind, and cut bodies of unknown length. And content
    // announced where none may be could still arrive, as the next response.
    let reusable = response.version() == Version::HTTP_11
        && !(status == StatusCode::NO_CONTENT && has_content);
    let lease = Lease::new(connection, seat, reusable);
    Ok(response.map(|incoming| ResponseBody::new(incoming, lease)))
}

/// Refuses what hyper lets pass although two readers could understand it differently. Otherwise
/// tells whether the head announces any content.
fn check_head(headers: &HeaderMap) -> Result<bool, HeadFault> {
    let mut codings = headers.get_all(TRANSFER_ENCODING).iter();
    let coding = codings.next();
    if let Some(coding) = coding
        && (codings.next().is_some() || !coding.as_bytes().eq_ignore_ascii_case(b"chunked"))
    {
        return Err(HeadFault::TransferEncoding);
    }
    let mut lengths = headers.get_all(CONTENT_LENGTH).iter();
    let Some(length) = lengths.next() else {
        return Ok(coding.is_some());
    };
    let digits = length.as_bytes();
    if coding.is_some() {
        return Err(HeadFault::TwoFramings);
    }
    if lengths.next().is_some() || digits.is_empty() || !digits.iter().all(u8::is_ascii_digit) {
        return Err(HeadFault::ContentLength);
    }
    Ok(digits.iter().any(|&digit| digit != b'0'))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(lines: &[(&'static str, &'static str)]) -> Result<bool, HeadFault> {
        let mut headers = HeaderMap::new();
        for &(name, value) in lines {
            headers.append(name, HeaderValue::from_static(value));
        }
        check_head(&headers)
    }

    #[test]
    fn one_framing_is_accepted() {
        assert_eq!(check(&[]), Ok(false));
        assert_eq!(check(&[("content-length", "0")]), Ok(false));
        assert_eq!(check(&[("content-length", "10")]), Ok(true));
        assert_eq!(check(&[("transfer-encoding", "Chunked")]), Ok(true));
    }

    #[test]
    fn several_framings_are_refused_even_when_they_agree() {
        for value in ["5, 5", "+5", "", "0x5", "5 "] {
            assert_eq!(
                check(&[("content-length", value)]),
                Err(HeadFault::ContentLength)
            );
        }
        let twice = [("content-length", "5"), ("content-length", "5")];
        assert_eq!(check(&twice), Err(HeadFault::ContentLength));
        let both = [("content-length", "5"), ("transfer-encoding", "chunked")];
        assert_eq!(check(&both), Err(HeadFault::TwoFramings));
    }

    #[test]
    fn codings_other_than_chunked_are_refused() {
        for value in [
            "gzip, chunked",
            "chunked, chunked",
            "identity",
            "",
            "xchunked",
        ] {
            assert_eq!(
                check(&[("transfer-encoding", value)]),
                Err(HeadFault::TransferEncoding)
            );
        }
        let twice = [
            ("transfer-encoding", "chunked"),
            ("transfer-encoding", "chunked"),
        ];
        assert_eq!(check(&twice), Err(HeadFault::TransferEncoding));
    }
}
