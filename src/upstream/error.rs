//! What goes wrong between the proxy and an upstream: whose fault it is, and whether the upstream
//! may have seen the request.

use std::error::Error;
use std::time::Duration;
use std::{fmt, io};

use http::StatusCode;
use rustix::io::Errno;

use tidegate_core::exchange::rejection::NoAnswer;

use crate::body::BodyError;
use crate::http1::content::ContentFault;
use crate::tls::TlsTrouble;

/// Why a request has no answer, or its answer no end. `Display` and [`UpstreamError::label`] hold
/// nothing of the inside; [`Error::source`] has it for logs.
#[derive(Debug)]
pub enum UpstreamError {
    /// No server is configured under this index.
    NoServer,
    /// The checks of every server fail; so soon one of them may be back.
    NoneLeft(Duration),
    /// As many connections are in use as `max_connections` allows.
    TooManyConnections,
    /// No server had room for it within `queue_timeout`.
    QueuedTooLong,
    /// No server could be connected to.
    Unreachable(io::Error),
    /// This machine has no port, descriptor or memory for another connection. No server's fault.
    OutOfSockets(io::Error),
    /// No connection stood within `connect_timeout`.
    ConnectTimedOut,
    /// No head came within `timeout` of the request's last byte, or no more of a body within
    /// `body_timeout`.
    TimedOut,
    /// There is no TLS with the server; nothing was sent.
    Tls(TlsTrouble),
    /// The server ended TLS after the handshake, as it does when it wants another certificate.
    TlsEnded(TlsTrouble),
    /// The connection, or the request's stream on it, ended before the answer did.
    Closed(ProtocolError),
    /// What came is not HTTP, or has a head larger than we read.
    Garbage(ProtocolError),
    /// The server does not speak HTTP/2; nothing was sent.
    NoHttp2(h2::Error),
    /// The head could be read, but not trusted.
    Head(HeadFault),
    /// The client's fault: its body was not what it said, or did not come.
    Request(BodyError),
}

/// What is wrong on a connection, as the library of its protocol says it.
#[derive(Debug)]
pub enum ProtocolError {
    /// HTTP/1.1.
    Http1(Http1Fault),
    /// HTTP/2.
    Http2(h2::Error),
}

/// What goes wrong on a connection of HTTP/1.1.
#[derive(Debug)]
pub enum Http1Fault {
    /// It ended before the answer did.
    Ended,
    /// The network, or TLS.
    Io(io::Error),
    /// What came is no head of a response.
    Head(httparse::Error),
    /// A status below 100.
    Status,
    /// A head with more bytes than we read.
    HeadTooLarge,
    /// Content-Length lines that contradict each other, or one that is no number.
    Length,
    /// Transfer-Encoding in an answer of HTTP/1.0.
    CodingInHttp10,
    /// No chunk where one should be.
    Chunk,
    /// Trailers that cannot be read, or are larger than we read.
    Trailers,
}

impl fmt::Display for Http1Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Http1Fault::Ended => f.write_str("connection closed before the answer ended"),
            Http1Fault::Io(error) => write!(f, "connection error: {error}"),
            Http1Fault::Head(error) => write!(f, "no head of an answer: {error}"),
            Http1Fault::Status => f.write_str("a status that is none"),
            Http1Fault::HeadTooLarge => f.write_str("a head that is too large"),
            Http1Fault::Length => f.write_str("a Content-Length that contradicts or is no number"),
            Http1Fault::CodingInHttp10 => f.write_str("Transfer-Encoding in HTTP/1.0"),
            Http1Fault::Chunk => f.write_str("a broken chunk"),
            Http1Fault::Trailers => f.write_str("broken or too many trailers"),
        }
    }
}

impl Error for Http1Fault {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Http1Fault::Io(error) => Some(error),
            Http1Fault::Head(error) => Some(error),
            _ => None,
        }
    }
}

impl From<ContentFault> for Http1Fault {
    fn from(fault: ContentFault) -> Http1Fault {
        match fault {
            ContentFault::Ended => Http1Fault::Ended,
            ContentFault::Chunk => Http1Fault::Chunk,
            ContentFault::Trailers => Http1Fault::Trailers,
        }
    }
}

/// Why there is no connection.
#[derive(Debug)]
pub(super) enum ConnectError {
    /// It took too long.
    TimedOut,
    /// The machine or its network refused, or the name is unknown.
    Failed(io::Error),
    /// There is no TLS.
    Tls(TlsTrouble),
    /// It does not speak HTTP/2.
    NoHttp2(h2::Error),
}

impl ConnectError {
    /// The same for another request that waited for the same connection.
    pub(super) fn again(&self) -> ConnectError {
        match self {
            ConnectError::TimedOut => ConnectError::TimedOut,
            ConnectError::Failed(error) => ConnectError::Failed(match error.raw_os_error() {
                Some(code) => io::Error::from_raw_os_error(code),
                None => io::Error::new(error.kind(), error.to_string()),
            }),
            ConnectError::Tls(trouble) => ConnectError::Tls(*trouble),
            ConnectError::NoHttp2(error) => {
                ConnectError::NoHttp2(error.reason().unwrap_or(h2::Reason::PROTOCOL_ERROR).into())
            }
        }
    }
}

/// Why there is no response on a connection.
pub(super) enum Failure {
    /// The connection had gone before anything was sent, or the server has said that it will not
    /// look at it: the request is what it was.
    Unsent(UpstreamError),
    /// The request, or part of it, may have been seen. Nothing of it is left.
    Sent(UpstreamError),
}

/// What makes a response's head ambiguous although it can be read. Connections that such a head
/// came from are closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeadFault {
    /// Content-Length beside Transfer-Encoding.
    TwoFramings,
    /// Several Content-Length lines, or one that is no number.
    ContentLength,
    /// A Transfer-Encoding other than `chunked`.
    TransferEncoding,
    /// 101 to a request that asked for no upgrade.
    UnaskedUpgrade,
}

/// The connection ended before the answer did.
pub(super) fn ended_early() -> UpstreamError {
    UpstreamError::Closed(ProtocolError::Http1(Http1Fault::Ended))
}

/// What an error of the connection means.
pub(super) fn of_io(error: io::Error) -> UpstreamError {
    match TlsTrouble::within(&error) {
        Some(trouble) => UpstreamError::TlsEnded(trouble),
        None => UpstreamError::Closed(ProtocolError::Http1(Http1Fault::Io(error))),
    }
}

impl From<UpstreamError> for NoAnswer {
    fn from(error: UpstreamError) -> NoAnswer {
        NoAnswer {
            status: error.status(),
            label: error.label(),
            retry_after: error.retry_after(),
            is_cut_upload: matches!(error, UpstreamError::Request(BodyError::Broken)),
        }
    }
}

impl UpstreamError {
    /// The status that tells a client of it.
    pub fn status(&self) -> StatusCode {
        match self {
            UpstreamError::NoServer
            | UpstreamError::NoneLeft(_)
            | UpstreamError::TooManyConnections
            | UpstreamError::QueuedTooLong
            | UpstreamError::OutOfSockets(_) => StatusCode::SERVICE_UNAVAILABLE,
            UpstreamError::ConnectTimedOut | UpstreamError::TimedOut => StatusCode::GATEWAY_TIMEOUT,
            UpstreamError::Unreachable(_)
            | UpstreamError::Tls(_)
            | UpstreamError::TlsEnded(_)
            | UpstreamError::NoHttp2(_)
            | UpstreamError::Closed(_)
            | UpstreamError::Garbage(_)
            | UpstreamError::Head(_) => StatusCode::BAD_GATEWAY,
            UpstreamError::Request(BodyError::TooLarge) => StatusCode::PAYLOAD_TOO_LARGE,
            UpstreamError::Request(BodyError::TimedOut) => StatusCode::REQUEST_TIMEOUT,
            UpstreamError::Request(BodyError::Broken) => StatusCode::BAD_REQUEST,
        }
    }

    /// Whole seconds after which another try is worth it, where that is known.
    pub fn retry_after(&self) -> Option<u64> {
        match self {
            UpstreamError::NoneLeft(time) => Some(time.as_millis().div_ceil(1000).max(1) as u64),
            UpstreamError::TooManyConnections
            | UpstreamError::QueuedTooLong
            | UpstreamError::OutOfSockets(_) => Some(1),
            _ => None,
        }
    }

    /// A word for logs and metrics.
    pub fn label(&self) -> &'static str {
        match self {
            UpstreamError::NoServer => "upstream_none",
            UpstreamError::NoneLeft(_) => "upstream_down",
            UpstreamError::TooManyConnections => "upstream_busy",
            UpstreamError::QueuedTooLong => "upstream_queue_timeout",
            UpstreamError::Unreachable(_) => "upstream_unreachable",
            UpstreamError::OutOfSockets(_) => "out_of_sockets",
            UpstreamError::ConnectTimedOut => "upstream_connect_timeout",
            UpstreamError::TimedOut => "upstream_timeout",
            UpstreamError::Tls(trouble) | UpstreamError::TlsEnded(trouble) => tls_label(*trouble),
            UpstreamError::NoHttp2(_) => "upstream_no_http2",
            UpstreamError::Closed(_) => "upstream_closed",
            UpstreamError::Garbage(_) | UpstreamError::Head(_) => "upstream_garbage",
            UpstreamError::Request(BodyError::TooLarge) => "request_too_large",
            UpstreamError::Request(BodyError::TimedOut) => "request_timeout",
            UpstreamError::Request(BodyError::Broken) => "request_broken",
        }
    }

    /// Whether a server may have seen the request, so that sending it again could do its work
    /// twice.
    pub fn may_have_been_sent(&self) -> bool {
        !matches!(
            self,
            UpstreamError::NoServer
                | UpstreamError::NoneLeft(_)
                | UpstreamError::TooManyConnections
                | UpstreamError::QueuedTooLong
                | UpstreamError::Unreachable(_)
                | UpstreamError::OutOfSockets(_)
                | UpstreamError::ConnectTimedOut
                | UpstreamError::Tls(_)
                | UpstreamError::NoHttp2(_)
        )
    }

    /// What an error of HTTP/2 means: what the library itself objects to is garbage.
    pub(super) fn of_http2(error: h2::Error) -> UpstreamError {
        if let Some(trouble) = error.get_io().and_then(tls_of_io) {
            return UpstreamError::TlsEnded(trouble);
        }
        if error.is_library() {
            UpstreamError::Garbage(ProtocolError::Http2(error))
        } else {
            UpstreamError::Closed(ProtocolError::Http2(error))
        }
    }
}

/// What is wrong with TLS under HTTP/2, whose library keeps an error's kind and words only. No
/// socket has data that is invalid: that is what TLS says of an alert, and of what it cannot read.
pub(super) fn tls_of_io(error: &io::Error) -> Option<TlsTrouble> {
    let is_tls = error.kind() == io::ErrorKind::InvalidData;
    is_tls.then(|| match error.to_string().contains("alert") {
        true => TlsTrouble::Refused,
        false => TlsTrouble::Other,
    })
}

fn tls_label(trouble: TlsTrouble) -> &'static str {
    match trouble {
        TlsTrouble::Expired => "upstream_tls_expired",
        TlsTrouble::NotYetValid => "upstream_tls_not_yet_valid",
        TlsTrouble::UnknownAuthority => "upstream_tls_unknown_ca",
        TlsTrouble::OtherName => "upstream_tls_other_name",
        TlsTrouble::Refused => "upstream_tls_refused",
        TlsTrouble::Plain => "upstream_tls_plain",
        TlsTrouble::Settings => "upstream_tls_settings",
        TlsTrouble::Other => "upstream_tls",
    }
}

impl From<ConnectError> for UpstreamError {
    fn from(error: ConnectError) -> UpstreamError {
        match error {
            ConnectError::TimedOut => UpstreamError::ConnectTimedOut,
            ConnectError::Failed(error) if is_out_of_sockets(&error) => {
                UpstreamError::OutOfSockets(error)
            }
            ConnectError::Failed(error) => UpstreamError::Unreachable(error),
            ConnectError::Tls(trouble) => UpstreamError::Tls(trouble),
            ConnectError::NoHttp2(error) => UpstreamError::NoHttp2(error),
        }
    }
}

/// Whether it is this machine that lacks something, whoever was to be connected to.
fn is_out_of_sockets(error: &io::Error) -> bool {
    let lacks = [
        Errno::ADDRNOTAVAIL,
        Errno::MFILE,
        Errno::NFILE,
        Errno::NOBUFS,
        Errno::NOMEM,
    ];
    Errno::from_io_error(error).is_some_and(|errno| lacks.contains(&errno))
}

impl fmt::Display for UpstreamError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            UpstreamError::NoServer => "the upstream has no server",
            UpstreamError::NoneLeft(_) => "no server of the upstream is well",
            UpstreamError::TooManyConnections => "the upstream has too many requests under way",
            UpstreamError::QueuedTooLong => "no server of the upstream had room in time",
            UpstreamError::Unreachable(_) => "the upstream cannot be reached",
            UpstreamError::OutOfSockets(_) => {
                "this machine has nothing left to reach the upstream with"
            }
            UpstreamError::ConnectTimedOut => "connecting to the upstream took too long",
            UpstreamError::TimedOut => "the upstream took too long to answer",
            UpstreamError::Tls(_) => "there is no TLS with the upstream",
            UpstreamError::TlsEnded(_) => "the upstream ended TLS",
            UpstreamError::NoHttp2(_) => "the upstream does not speak HTTP/2",
            UpstreamError::Closed(_) => "the upstream closed the connection",
            UpstreamError::Garbage(_) => "the upstream's answer cannot be read",
            UpstreamError::Head(_) => "the upstream's answer is ambiguous",
            UpstreamError::Request(_) => "the request's body did not arrive whole",
        })
    }
}

impl UpstreamError {
    /// With what is behind it, for the log.
    pub(super) fn in_full(&self) -> String {
        match self.source() {
            Some(source) => format!("{self}: {source}"),
            None => self.to_string(),
        }
    }
}

impl Error for UpstreamError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            UpstreamError::Unreachable(error) | UpstreamError::OutOfSockets(error) => Some(error),
            UpstreamError::Tls(trouble) | UpstreamError::TlsEnded(trouble) => Some(trouble),
            UpstreamError::NoHttp2(error) => Some(error),
            UpstreamError::Closed(error) | UpstreamError::Garbage(error) => Some(error),
            UpstreamError::Head(fault) => Some(fault),
            UpstreamError::Request(error) => Some(error),
            UpstreamError::NoServer
            | UpstreamError::NoneLeft(_)
            | UpstreamError::TooManyConnections
            | UpstreamError::QueuedTooLong
            | UpstreamError::ConnectTimedOut
            | UpstreamError::TimedOut => None,
        }
    }
}

impl fmt::Display for ProtocolError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ProtocolError::Http1(error) => error.fmt(f),
            ProtocolError::Http2(error) => error.fmt(f),
        }
    }
}

impl Error for ProtocolError {
    // Itself, since who resets a client's stream looks for the reason that a server gave.
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            ProtocolError::Http1(error) => Some(error),
            ProtocolError::Http2(error) => Some(error),
        }
    }
}

impl fmt::Display for HeadFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            HeadFault::TwoFramings => "Content-Length and Transfer-Encoding in one response",
            HeadFault::ContentLength => "a Content-Length that is repeated or no number",
            HeadFault::TransferEncoding => "a Transfer-Encoding other than chunked",
            HeadFault::UnaskedUpgrade => "101 Switching Protocols without having been asked",
        })
    }
}

impl Error for HeadFault {}
