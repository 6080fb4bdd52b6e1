//! What goes wrong on a connection of HTTP/1.1.

use std::error::Error;
use std::{fmt, io};

use crate::http1::content::ContentFault;
use crate::tls::TlsTrouble;
use crate::upstream::error::{ProtocolError, UpstreamError};

/// See the file's head.
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

/// The connection ended before the answer did.
pub(super) fn ended() -> UpstreamError {
    UpstreamError::Closed(ProtocolError::Http1(Http1Fault::Ended))
}

/// What an error of the connection means.
pub(super) fn of_io(error: io::Error) -> UpstreamError {
    match TlsTrouble::within(&error) {
        Some(trouble) => UpstreamError::TlsEnded(trouble),
        None => UpstreamError::Closed(ProtocolError::Http1(Http1Fault::Io(error))),
    }
}
