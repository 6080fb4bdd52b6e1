//! Errors between the proxy and an upstream: who caused them, and whether the upstream may have
//! seen the request.

use std::error::Error;
use std::time::Duration;
use std::{fmt, io};

use http::StatusCode;
use rustix::io::Errno;

use tidegate_core::exchange::rejection::NoAnswer;

use crate::body::BodyError;
use crate::http1::content::ContentFault;
use crate::tls::TlsTrouble;

/// Why a request has no response, or only part of one. `Display` and [`UpstreamError::label`] show
/// clients nothing internal; [`Error::source`] has the details for logs.
#[derive(Debug)]
pub enum UpstreamError {
    /// No server is configured under this index.
    NoServer,
    /// The health checks of every server fail. The time is the earliest recovery.
    NoneLeft(Duration),
    /// `max_connections` are in use.
    TooManyConnections,
    /// No server had room for the request within `queue_timeout`.
    QueuedTooLong,
    /// No connection could be opened to the server.
    Unreachable(io::Error),
    /// This machine has no port, descriptor or memory for another connection.
    OutOfSockets(io::Error),
    /// No connection stood within `connect_timeout`.
    ConnectTimedOut,
    /// No head came within `timeout` after the request's last byte, or no piece of the body within
    /// `body_timeout`.
    TimedOut,
    /// The TLS handshake failed; nothing was sent.
    Tls(TlsTrouble),
    /// The server ended TLS after the handshake, for example because it wants another certificate.
    TlsEnded(TlsTrouble),
    /// The connection, or the request's stream on it, ended before the response did.
    Closed(ProtocolError),
    /// The response is not HTTP, or its head is too large.
    Garbage(ProtocolError),
    /// The server does not speak HTTP/2; nothing was sent.
    NoHttp2(h2::Error),
    /// The head of the response is ambiguous.
    Head(HeadFault),
    /// The client's fault: its body was malformed, too large or late.
    Request(BodyError),
}

/// An error of a connection in the words of its protocol.
#[derive(Debug)]
pub enum ProtocolError {
    /// HTTP/1.1.
    Http1(Http1Fault),
    /// HTTP/2.
    Http2(h2::Error),
}

/// An error on a connection of HTTP/1.1.
#[derive(Debug)]
pub enum Http1Fault {
    /// The connection ended before the response did.
    Ended,
    /// The network or TLS failed.
    Io(io::Error),
    /// The bytes are not the head of a response.
    Head(httparse::Error),
    /// The status is below 100.
    Status,
    /// The head is longer than the limit.
    HeadTooLarge,
    /// Content-Length lines contradict each other, or one is not a number.
    Length,
    /// A response of HTTP/1.0 has Transfer-Encoding.
    CodingInHttp10,
    /// The chunked coding is malformed.
    Chunk,
    /// The trailers are malformed or too large.
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

/// Why no connection could be opened.
#[derive(Debug)]
pub(super) enum ConnectError {
    TimedOut,
    /// The machine or the network refused, or the name is unknown.
    Failed(io::Error),
    /// The TLS handshake failed.
    Tls(TlsTrouble),
    /// The server does not speak HTTP/2.
    NoHttp2(h2::Error),
}

impl ConnectError {
    /// An equal error, for another request that waited for the same connection.
    pub(super) fn duplicate(&self) -> ConnectError {
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

impl From<h2::Error> for ConnectError {
    /// Under TLS 1.3 a server rejects our certificate only after the handshake.
    fn from(error: h2::Error) -> ConnectError {
        match error.get_io() {
            Some(io) => match find_tls_trouble(io) {
                Some(trouble) => ConnectError::Tls(trouble),
                None => ConnectError::Failed(io::Error::new(io.kind(), io.to_string())),
            },
            None => ConnectError::NoHttp2(error),
        }
    }
}

/// Why an exchange on a connection brought no response.
pub(super) enum ExchangeError {
    /// The connection was closed before, or the server said that it ignored the request. The
    /// request is complete again.
    Unsent(UpstreamError),
    /// The server may have seen the request, or part of it.
    Sent(UpstreamError),
}

impl From<ExchangeError> for UpstreamError {
    fn from(error: ExchangeError) -> UpstreamError {
        let (ExchangeError::Unsent(error) | ExchangeError::Sent(error)) = error;
        error
    }
}

/// Why the head of a well-formed response is ambiguous. The proxy closes such connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeadFault {
    /// Content-Length beside Transfer-Encoding.
    TwoFramings,
    /// Several Content-Length lines, or one that is not a number.
    ContentLength,
    /// A Transfer-Encoding other than `chunked`.
    TransferEncoding,
    /// 101 to a request without `Upgrade`.
    UnaskedUpgrade,
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
    /// The status of the response that reports this error to the client.
    pub fn status(&self) -> StatusCode {
        match self {
            Self::NoServer
            | Self::NoneLeft(_)
            | Self::TooManyConnections
            | Self::QueuedTooLong
            | Self::OutOfSockets(_) => StatusCode::SERVICE_UNAVAILABLE,
            Self::ConnectTimedOut | Self::TimedOut => StatusCode::GATEWAY_TIMEOUT,
            Self::Request(BodyError::TooLarge) => StatusCode::PAYLOAD_TOO_LARGE,
            Self::Request(BodyError::TimedOut) => StatusCode::REQUEST_TIMEOUT,
            Self::Request(BodyError::Broken) => StatusCode::BAD_REQUEST,
            _ => StatusCode::BAD_GATEWAY,
        }
    }

    /// The value of the error in logs and metrics.
    pub fn label(&self) -> &'static str {
        match self {
            Self::NoServer => "upstream_none",
            Self::NoneLeft(_) => "upstream_down",
            Self::TooManyConnections => "upstream_busy",
            Self::QueuedTooLong => "upstream_queue_timeout",
            Self::Unreachable(_) => "upstream_unreachable",
            Self::OutOfSockets(_) => "out_of_sockets",
            Self::ConnectTimedOut => "upstream_connect_timeout",
            Self::TimedOut => "upstream_timeout",
            Self::Tls(trouble) | Self::TlsEnded(trouble) => tls_label(*trouble),
            Self::NoHttp2(_) => "upstream_no_http2",
            Self::Closed(_) => "upstream_closed",
            Self::Garbage(_) | Self::Head(_) => "upstream_garbage",
            Self::Request(BodyError::TooLarge) => "request_too_large",
            Self::Request(BodyError::TimedOut) => "request_timeout",
            Self::Request(BodyError::Broken) => "request_broken",
        }
    }

    /// Whole seconds until another try is useful, if that is known.
    pub fn retry_after(&self) -> Option<u64> {
        match self {
            Self::NoneLeft(time) => Some(time.as_millis().div_ceil(1000).max(1) as u64),
            Self::TooManyConnections | Self::QueuedTooLong | Self::OutOfSockets(_) => Some(1),
            _ => None,
        }
    }

    /// Whether a server may have seen the request, so that a retry could do its work twice.
    pub fn may_have_been_sent(&self) -> bool {
        matches!(
            self,
            Self::TimedOut
                | Self::TlsEnded(_)
                | Self::Closed(_)
                | Self::Garbage(_)
                | Self::Head(_)
                | Self::Request(_)
        )
    }

    pub(super) fn ended_early() -> UpstreamError {
        UpstreamError::Closed(ProtocolError::Http1(Http1Fault::Ended))
    }

    /// Classifies an error of a connection of HTTP/1.1.
    pub(super) fn from_io(error: io::Error) -> UpstreamError {
        match TlsTrouble::within(&error) {
            Some(trouble) => UpstreamError::TlsEnded(trouble),
            None => UpstreamError::Closed(ProtocolError::Http1(Http1Fault::Io(error))),
        }
    }

    /// Classifies an error of HTTP/2. An error that the library itself raises is garbage.
    pub(super) fn from_http2(error: h2::Error) -> UpstreamError {
        if let Some(trouble) = error.get_io().and_then(find_tls_trouble) {
            return UpstreamError::TlsEnded(trouble);
        }
        match error.is_library() {
            true => UpstreamError::Garbage(ProtocolError::Http2(error)),
            false => UpstreamError::Closed(ProtocolError::Http2(error)),
        }
    }

    /// The error and its source, for the log.
    pub(super) fn in_full(&self) -> String {
        match self.source() {
            Some(source) => format!("{self}: {source}"),
            None => self.to_string(),
        }
    }
}

/// Finds a TLS error under HTTP/2, whose library keeps only the kind and the text of an error. Only
/// TLS reports invalid data, for an alert or for bytes that it cannot read; a socket never does.
fn find_tls_trouble(error: &io::Error) -> Option<TlsTrouble> {
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

/// Whether this machine lacks a resource, so that any server would be out of reach.
fn is_out_of_sockets(error: &io::Error) -> bool {
    use Errno as E;
    let errors = [E::ADDRNOTAVAIL, E::MFILE, E::NFILE, E::NOBUFS, E::NOMEM];
    Errno::from_io_error(error).is_some_and(|errno| errors.contains(&errno))
}

impl fmt::Display for UpstreamError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NoServer => "the upstream has no server",
            Self::NoneLeft(_) => "no server of the upstream is well",
            Self::TooManyConnections => "the upstream has too many requests under way",
            Self::QueuedTooLong => "no server of the upstream had room in time",
            Self::Unreachable(_) => "the upstream cannot be reached",
            Self::OutOfSockets(_) => "this machine has nothing left to reach the upstream with",
            Self::ConnectTimedOut => "connecting to the upstream took too long",
            Self::TimedOut => "the upstream took too long to answer",
            Self::Tls(_) => "there is no TLS with the upstream",
            Self::TlsEnded(_) => "the upstream ended TLS",
            Self::NoHttp2(_) => "the upstream does not speak HTTP/2",
            Self::Closed(_) => "the upstream closed the connection",
            Self::Garbage(_) => "the upstream's answer cannot be read",
            Self::Head(_) => "the upstream's answer is ambiguous",
            Self::Request(_) => "the request's body did not arrive whole",
        })
    }
}

impl Error for UpstreamError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::Unreachable(error) | Self::OutOfSockets(error) => Some(error),
            Self::Tls(trouble) | Self::TlsEnded(trouble) => Some(trouble),
            Self::NoHttp2(error) => Some(error),
            Self::Closed(error) | Self::Garbage(error) => Some(error),
            Self::Head(fault) => Some(fault),
            Self::Request(error) => Some(error),
            _ => None,
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
    // The error itself, because the client's side searches the chain for the reset reason.
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
