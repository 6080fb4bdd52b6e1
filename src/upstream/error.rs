//! Errors between the proxy and an upstream: who caused them, and whether the upstream may have
//! seen the request.

use std::error::Error;
use std::time::Duration;
use std::{fmt, io};

use http::StatusCode;
use rustix::io::Errno;

use tidegate_core::exchange::rejection::NoAnswer;
use tidegate_core::telemetry::access::UpstreamFailure;

use crate::body::BodyError;
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
    Closed(Cause),
    Garbage(Cause),
    /// The server does not speak HTTP/2; nothing was sent.
    NoHttp2(h2::Error),
    Head(HeadFault),
    /// The client's fault: its body was malformed, too large or late.
    Request(BodyError),
}

/// The words of a protocol or of the network about an error.
pub type Cause = Box<dyn Error + Send + Sync>;

pub(super) enum ExchangeError {
    /// The connection was closed before, or the server said that it ignored the request. The
    /// request is complete again.
    Unsent(UpstreamError),
    /// The server ignored the request, and its connection goes on. The request is complete again.
    Refused(UpstreamError),
    /// The server may have seen the request, or part of it.
    Sent(UpstreamError),
}

impl From<ExchangeError> for UpstreamError {
    fn from(error: ExchangeError) -> UpstreamError {
        match error {
            ExchangeError::Unsent(error)
            | ExchangeError::Refused(error)
            | ExchangeError::Sent(error) => error,
        }
    }
}

/// Why the head of a well-formed response is ambiguous. The proxy closes such connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeadFault {
    TwoFramings,
    ContentLength,
    TransferEncoding,
    UnaskedUpgrade,
}

/// An error, and the server that it is about, if one was chosen.
#[derive(Debug)]
pub struct SendFailure {
    pub error: UpstreamError,
    pub server: Option<String>,
}

impl From<UpstreamError> for SendFailure {
    fn from(error: UpstreamError) -> SendFailure {
        SendFailure {
            error,
            server: None,
        }
    }
}

impl From<SendFailure> for NoAnswer {
    fn from(failed: SendFailure) -> NoAnswer {
        let error = failed.error.in_full();
        let failure = failed
            .server
            .map(|server| UpstreamFailure { server, error });
        NoAnswer {
            failure: failure.map(Box::new),
            ..NoAnswer::from(failed.error)
        }
    }
}

impl From<UpstreamError> for NoAnswer {
    fn from(error: UpstreamError) -> NoAnswer {
        NoAnswer {
            status: error.status(),
            label: error.label(),
            retry_after: error.retry_after(),
            is_cut_upload: matches!(error, UpstreamError::Request(BodyError::Broken)),
            failure: None,
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

    pub(super) fn ended_early() -> UpstreamError {
        UpstreamError::Closed("connection closed before the answer ended".into())
    }

    pub(super) fn from_io(error: io::Error) -> UpstreamError {
        match TlsTrouble::within(&error) {
            Some(trouble) => UpstreamError::TlsEnded(trouble),
            None => UpstreamError::Closed(format!("connection error: {error}").into()),
        }
    }

    /// Classifies an error of HTTP/2. An error that the library itself raises is garbage.
    pub(super) fn from_http2(error: h2::Error) -> UpstreamError {
        if let Some(trouble) = error.get_io().and_then(find_tls_trouble) {
            return UpstreamError::TlsEnded(trouble);
        }
        // The source must be the error itself: the client's side searches it for the reset reason.
        match error.is_library() {
            true => UpstreamError::Garbage(error.into()),
            false => UpstreamError::Closed(error.into()),
        }
    }

    /// Classifies an error of connecting. Without a port or descriptor of this machine any server
    /// would be out of reach.
    pub(super) fn unreachable(error: io::Error) -> UpstreamError {
        use Errno as E;
        let ours = [E::ADDRNOTAVAIL, E::MFILE, E::NFILE, E::NOBUFS, E::NOMEM];
        match Errno::from_io_error(&error) {
            Some(errno) if ours.contains(&errno) => UpstreamError::OutOfSockets(error),
            _ => UpstreamError::Unreachable(error),
        }
    }

    /// Classifies an error of opening HTTP/2. Under TLS 1.3 a server rejects our certificate only
    /// after the handshake.
    pub(super) fn opening_http2(error: h2::Error) -> UpstreamError {
        match error.get_io() {
            Some(io) => match find_tls_trouble(io) {
                Some(trouble) => UpstreamError::Tls(trouble),
                None => UpstreamError::unreachable(io::Error::new(io.kind(), io.to_string())),
            },
            None => UpstreamError::NoHttp2(error),
        }
    }

    /// An equal error of connecting, for another request that waited for the same connection.
    pub(super) fn duplicate(&self) -> UpstreamError {
        match self {
            Self::Unreachable(error) | Self::OutOfSockets(error) => {
                Self::unreachable(match error.raw_os_error() {
                    Some(code) => io::Error::from_raw_os_error(code),
                    None => io::Error::new(error.kind(), error.to_string()),
                })
            }
            Self::Tls(trouble) => Self::Tls(*trouble),
            Self::NoHttp2(error) => {
                Self::NoHttp2(error.reason().unwrap_or(h2::Reason::PROTOCOL_ERROR).into())
            }
            _ => Self::ConnectTimedOut,
        }
    }

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

impl fmt::Display for UpstreamError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NoServer => "the upstream has no server",
            Self::NoneLeft(_) => "no server of the upstream is up",
            Self::TooManyConnections => "the upstream has too many requests under way",
            Self::QueuedTooLong => "no server of the upstream had room in time",
            Self::Unreachable(_) => "the upstream cannot be reached",
            Self::OutOfSockets(_) => {
                "this machine has no free port or file descriptor for the \
             upstream"
            }
            Self::ConnectTimedOut => "connecting to the upstream took too long",
            Self::TimedOut => "the upstream took too long to answer",
            Self::Tls(_) => "the TLS handshake with the upstream failed",
            Self::TlsEnded(_) => "the upstream ended TLS",
            Self::NoHttp2(_) => "the upstream does not speak HTTP/2",
            Self::Closed(_) => "the upstream closed the connection",
            Self::Garbage(_) => "the upstream's answer cannot be read",
            Self::Head(_) => "the upstream's answer is ambiguous",
            Self::Request(_) => "the body of the request was incomplete",
        })
    }
}

impl Error for UpstreamError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::Unreachable(error) | Self::OutOfSockets(error) => Some(error),
            Self::Tls(trouble) | Self::TlsEnded(trouble) => Some(trouble),
            Self::NoHttp2(error) => Some(error),
            Self::Closed(error) | Self::Garbage(error) => Some(&**error),
            Self::Head(fault) => Some(fault),
            Self::Request(error) => Some(error),
            _ => None,
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
