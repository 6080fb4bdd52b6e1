//! Upstreams: a request goes in, the head of its response comes out, the body streams behind it.
//!
//! [`Upstreams`] belongs to one worker. A request is sent again only where that is safe: nothing
//! of it was written, or it bears repetition. This room must never wait without a deadline, and
//! never use a connection again about which anything was wrong.
//!
//! ```text
//! attempt    all of the rest, once; again where it is safe (retry)      attempt
//! permit       one of the servers (balance, health), if there is room     pure
//! pooled     the idle connection used last, or connect                  server, connect
//! exchange   send, wait for the head                                    connection, http1, http2
//! ```

mod attempt;
mod balance;
pub mod body;
mod choice;
mod connect;
mod connection;
mod deadline;
mod dial;
mod error;
mod grpc;
mod health;
mod http1;
mod http2;
mod latency;
mod lease;
mod named;
mod permit;
mod pool;
mod prober;
mod queue;
mod report;
mod retry;
mod retry_copy;
mod server;
mod shared;
mod terms;
mod tls;
mod vitals;
mod watch;

use std::sync::Arc;
use std::time::Duration;

use http::header::{CONTENT_LENGTH, HOST, TRANSFER_ENCODING, UPGRADE};
use http::{HeaderMap, HeaderValue, Request, Response, StatusCode, Version};
use http_body::Body as _;

use tidegate_core::exchange::headers::PrerenderedHeaders;
use tidegate_core::telemetry::attempt_log::AttemptLog;

use crate::body::RequestBody;
use crate::clock::Sweep;
use crate::config::UpstreamSettings;
use body::UpstreamBody;
pub use connect::look;
use connection::Connection;
pub use error::{HeadFault, Http1Fault, ProtocolError, UpstreamError};
pub use http1::Upgraded;
pub use latency::Measured;
use lease::Lease;
pub use permit::ServerPermit;
use pool::Upstream;
pub use prober::check;
pub use report::{ServerReport, ServerStatus};
pub use vitals::Vitals;

/// Every upstream of one worker, with its connections.
#[derive(Debug)]
pub struct Upstreams(Vec<Upstream>);

/// A request on its way to an upstream.
#[derive(Debug)]
pub struct Outgoing<'r> {
    /// In origin form. What of it is sent, and what is kept to be sent again, is taken out.
    pub request: &'r mut Request<RequestBody>,
    /// Lines of its head that are not in its map.
    pub beside: Option<PrerenderedHeaders>,
    /// Whether it asks for a tunnel.
    pub asks_upgrade: bool,
    /// Whether it has a `Host`; else it gets that of its server.
    pub names_host: bool,
    /// Requests with the same number go to the same server, where the upstream is told to do so.
    pub affinity: Option<u64>,
    /// How long it may take as a whole, where that is bounded.
    pub within: Option<Duration>,
    /// Whether it is a call of gRPC, whose answer has a status of its own.
    pub is_grpc: bool,
    /// What becomes of each attempt, where somebody wants to know.
    pub tries: Option<Arc<AttemptLog>>,
}

impl<'r> From<&'r mut Request<RequestBody>> for Outgoing<'r> {
    fn from(request: &'r mut Request<RequestBody>) -> Outgoing<'r> {
        Outgoing {
            asks_upgrade: request.headers().contains_key(UPGRADE),
            names_host: request.headers().contains_key(HOST),
            request,
            beside: None,
            affinity: None,
            within: None,
            is_grpc: false,
            tries: None,
        }
    }
}

impl Upstreams {
    /// The upstreams of a configuration, in its order. Nothing is connected yet; deadlines go by
    /// the time of `sweep`. What other workers find out about their servers is in `vitals`.
    pub fn new(settings: &[UpstreamSettings], sweep: Sweep, vitals: &Vitals) -> Upstreams {
        let upstream = |settings| Upstream::new(settings, sweep.clone(), vitals);
        Upstreams(settings.iter().map(upstream).collect())
    }

    /// The upstreams of another configuration. Those that have a name that was there before keep
    /// what is known of the servers that are still the same, and the connections to them.
    pub fn renewed(
        &self,
        settings: &[UpstreamSettings],
        sweep: &Sweep,
        vitals: &Vitals,
    ) -> Upstreams {
        let upstream = |settings: &UpstreamSettings| {
            let mut known = self.0.iter();
            let old = known.find(|known| known.settings().name == settings.name);
            Upstream::after(old, settings, sweep.clone(), vitals)
        };
        Upstreams(settings.iter().map(upstream).collect())
    }

    /// Sends a request to one of the servers of the upstream with this index, and waits for the
    /// head of the response, which is put into `answer`: that is not moved any more. After an error
    /// what is there has no meaning. Dropping the future or the body cancels the request.
    // Not `async` itself: that would keep the request a second time.
    pub fn send<'a, B: Send>(
        &'a self,
        upstream: usize,
        outgoing: Outgoing<'a>,
        answer: &'a mut Response<B>,
    ) -> impl Future<Output = Result<UpstreamBody, UpstreamError>> + Send + 'a {
        Upstream::send(self.0.get(upstream), outgoing, answer, None)
    }
}

/// Makes sure that the request says in HTTP/1.1 how it is framed.
fn frame(request: &mut Request<RequestBody>) {
    *request.version_mut() = Version::HTTP_11;
    if !request.body().is_end_stream() && request.body().size_hint().exact().is_none() {
        let headers = request.headers_mut();
        headers.remove(CONTENT_LENGTH);
        headers.insert(TRANSFER_ENCODING, HeaderValue::from_static("chunked"));
    }
}

/// The body of a response whose head is in order.
fn accept(status: StatusCode, (connection, permit): (Connection, ServerPermit)) -> UpstreamBody {
    let lease = Lease::new(connection, permit);
    match status {
        StatusCode::SWITCHING_PROTOCOLS => UpstreamBody::tunnel(lease),
        _ => UpstreamBody::new(lease),
    }
}

/// Refuses what two readers could understand differently, as HTTP/2 brings it.
fn check_framing(headers: &HeaderMap) -> Result<(), HeadFault> {
    let mut codings = headers.get_all(TRANSFER_ENCODING).iter();
    let coding = codings.next();
    if let Some(coding) = coding
        && (codings.next().is_some() || !coding.as_bytes().eq_ignore_ascii_case(b"chunked"))
    {
        return Err(HeadFault::TransferEncoding);
    }
    let mut lengths = headers.get_all(CONTENT_LENGTH).iter();
    let Some(length) = lengths.next() else {
        return Ok(());
    };
    let digits = length.as_bytes();
    if coding.is_some() {
        return Err(HeadFault::TwoFramings);
    }
    if lengths.next().is_some() || digits.is_empty() || !digits.iter().all(u8::is_ascii_digit) {
        return Err(HeadFault::ContentLength);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(lines: &[(&'static str, &'static str)]) -> Result<(), HeadFault> {
        let mut headers = HeaderMap::new();
        for &(name, value) in lines {
            headers.append(name, HeaderValue::from_static(value));
        }
        check_framing(&headers)
    }

    #[test]
    fn one_framing_is_accepted() {
        assert_eq!(check(&[]), Ok(()));
        assert_eq!(check(&[("content-length", "0")]), Ok(()));
        assert_eq!(check(&[("content-length", "10")]), Ok(()));
        assert_eq!(check(&[("transfer-encoding", "Chunked")]), Ok(()));
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
