//! What goes wrong between the proxy and an upstream: whose fault it is, and whether the upstream
//! may have seen the request.

use std::error::Error;
use std::{fmt, io};

use http::StatusCode;

use super::body::BodyError;
use super::connect::ConnectError;

/// Why a request has no answer, or its answer no end. `Display` and [`UpstreamError::label`] hold
/// nothing of the inside; [`Error::source`] has it for logs.
#[derive(Debug)]
pub enum UpstreamError {
    /// No server is configured under this index.
    NoServer,
    /// As many connections are in use as `max_connections` allows.
    TooManyConnections,
    /// No server could be connected to.
    Unreachable(io::Error),
    /// No connection stood within `connect_timeout`.
    ConnectTimedOut,
    /// No head came within `timeout` of the request's last byte, or no more of a body within
    /// `body_timeout`.
    TimedOut,
    /// The connection ended before the answer did.
    Closed(hyper::Error),
    /// What came is not HTTP/1.1, or has a head larger than we read.
    Garbage(hyper::Error),
    /// The head could be read, but not trusted.
    Head(HeadFault),
    /// The client's fault: its body was not what it said, or did not come.
    Request(BodyError),
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

impl UpstreamError {
    /// The status that tells a client of it.
    pub fn status(&self) -> StatusCode {
        match self {
            UpstreamError::NoServer | UpstreamError::TooManyConnections => {
                StatusCode::SERVICE_UNAVAILABLE
            }
            UpstreamError::ConnectTimedOut | UpstreamError::TimedOut => StatusCode::GATEWAY_TIMEOUT,
            UpstreamError::Unreachable(_)
            | UpstreamError::Closed(_)
            | UpstreamError::Garbage(_)
            | UpstreamError::Head(_) => StatusCode::BAD_GATEWAY,
            UpstreamError::Request(BodyError::TooLarge) => StatusCode::PAYLOAD_TOO_LARGE,
            UpstreamError::Request(BodyError::TimedOut(_)) => StatusCode::REQUEST_TIMEOUT,
            UpstreamError::Request(BodyError::Broken(_)) => StatusCode::BAD_REQUEST,
        }
    }

    /// A word for logs and metrics.
    pub fn label(&self) -> &'static str {
        match self {
            UpstreamError::NoServer => "upstream_none",
            UpstreamError::TooManyConnections => "upstream_busy",
            UpstreamError::Unreachable(_) => "upstream_unreachable",
            UpstreamError::ConnectTimedOut => "upstream_connect_timeout",
            UpstreamError::TimedOut => "upstream_timeout",
            UpstreamError::Closed(_) => "upstream_closed",
            UpstreamError::Garbage(_) | UpstreamError::Head(_) => "upstream_garbage",
            UpstreamError::Request(BodyError::TooLarge) => "request_too_large",
            UpstreamError::Request(BodyError::TimedOut(_)) => "request_timeout",
            UpstreamError::Request(BodyError::Broken(_)) => "request_broken",
        }
    }

    /// Whether a server may have seen the request, so that sending it again could do its work
    /// twice.
    pub fn may_have_been_sent(&self) -> bool {
        !matches!(
            self,
            UpstreamError::NoServer
                | UpstreamError::TooManyConnections
                | UpstreamError::Unreachable(_)
                | UpstreamError::ConnectTimedOut
        )
    }

    /// What an error of an established connection means.
    pub(super) fn of(error: hyper::Error) -> UpstreamError {
        if let Some(body) = error
            .source()
            .and_then(|source| source.downcast_ref::<BodyError>())
        {
            return UpstreamError::Request(body.clone());
        }
        if error.is_parse() {
            UpstreamError::Garbage(error)
        } else {
            UpstreamError::Closed(error)
        }
    }
}

impl From<ConnectError> for UpstreamError {
    fn from(error: ConnectError) -> UpstreamError {
        match error {
            ConnectError::TimedOut => UpstreamError::ConnectTimedOut,
            ConnectError::Failed(error) => UpstreamError::Unreachable(error),
        }
    }
}

impl fmt::Display for UpstreamError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            UpstreamError::NoServer => "the upstream has no server",
            UpstreamError::TooManyConnections => "the upstream has too many requests under way",
            UpstreamError::Unreachable(_) => "the upstream cannot be reached",
            UpstreamError::ConnectTimedOut => "connecting to the upstream took too long",
            UpstreamError::TimedOut => "the upstream took too long to answer",
            UpstreamError::Closed(_) => "the upstream closed the connection",
            UpstreamError::Garbage(_) => "the upstream's answer cannot be read",
            UpstreamError::Head(_) => "the upstream's answer is ambiguous",
            UpstreamError::Request(_) => "the request's body did not arrive whole",
        })
    }
}

impl Error for UpstreamError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            UpstreamError::Unreachable(error) => Some(error),
            UpstreamError::Closed(error) | UpstreamError::Garbage(error) => Some(error),
            UpstreamError::Head(fault) => Some(fault),
            UpstreamError::Request(error) => Some(error),
            UpstreamError::NoServer
            | UpstreamError::TooManyConnections
            | UpstreamError::ConnectTimedOut
            | UpstreamError::TimedOut => None,
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
