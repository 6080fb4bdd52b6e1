//! One connection to a server: an exchange on it, how long that may take, and whether another may
//! follow.
//!
//! Dropping a connection closes its socket. It comes back to its server only if everything about
//! its last exchange was in order: the request sent whole, the response read to its end, and the
//! server still there.

use std::task::{Context, Poll};

use bytes::Bytes;
use http::{Request, Response};
use http_body::{Frame, SizeHint};

use super::error::{Failure, UpstreamError};
use super::http1::{Crossing, Http1};
use super::http2::Stream;
use super::retry_copy;
use crate::body::RequestBody;
use tidegate_core::exchange::headers::PrerenderedHeaders;

/// What one request at a time is sent on: a connection of HTTP/1.1, or a place on one of HTTP/2.
#[derive(Debug)]
pub(super) enum Connection {
    /// Boxed once, so that responses, which carry it, are cheap to move.
    Http1(Box<Http1>),
    /// The same while its request is still being sent and the response has begun.
    Crossing(Box<Crossing>),
    Http2(Box<Stream>),
}

impl Connection {
    /// Sends the request, with the lines `beside` it, and waits for the head of its response,
    /// which is put into `answer`. A request that has no body can be kept, so that it could be
    /// sent again. `upgrade` says whether it asks for a tunnel.
    pub(super) async fn exchange<B>(
        &mut self,
        request: &mut Request<RequestBody>,
        answer: &mut Response<B>,
        (beside, keep, upgrade): (Option<&PrerenderedHeaders>, bool, bool),
    ) -> Result<(), Failure> {
        match self {
            Connection::Http1(connection) => {
                let with = (beside, upgrade);
                connection.exchange(request, answer, with).await
            }
            // Boxed, so that what waits for HTTP/1.1 is no larger for it.
            Connection::Http2(stream) => {
                if let Some(beside) = beside {
                    beside.join(request.headers_mut());
                }
                stream.retry_copy = keep.then(|| retry_copy::copy(request));
                let (head, ()) = Box::pin(stream.exchange(request)).await?.into_parts();
                *answer.status_mut() = head.status;
                *answer.version_mut() = head.version;
                *answer.headers_mut() = head.headers;
                *answer.extensions_mut() = head.extensions;
                Ok(())
            }
            // Never: it has a request.
            Connection::Crossing(_) => Err(Failure::Unsent(UpstreamError::NoServer)),
        }
    }

    /// The request that was sent last, which was to be kept.
    pub(super) fn take_retry_copy(&mut self) -> Option<Request<RequestBody>> {
        match self {
            Connection::Http1(connection) => retry_copy::parsed(connection.sent()),
            Connection::Http2(stream) => stream.retry_copy.take(),
            Connection::Crossing(_) => None,
        }
    }

    /// The next piece of the response's content.
    pub(super) fn poll_frame(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, UpstreamError>>> {
        match self {
            Connection::Http1(connection) => connection.poll_frame(context),
            Connection::Crossing(crossing) => crossing.poll_frame(context),
            Connection::Http2(stream) => stream.poll_frame(context),
        }
    }

    pub(super) fn is_end_stream(&self) -> bool {
        match self {
            Connection::Http1(connection) => connection.is_end_stream(),
            Connection::Crossing(crossing) => crossing.is_end_stream(),
            Connection::Http2(stream) => stream.is_end_stream(),
        }
    }

    /// Whether all of the response's content has been read from the network.
    pub(super) fn has_all(&self) -> bool {
        match self {
            Connection::Http1(connection) => connection.has_all(),
            Connection::Crossing(crossing) => crossing.is_end_stream(),
            Connection::Http2(stream) => stream.is_end_stream(),
        }
    }

    pub(super) fn size_hint(&self) -> SizeHint {
        match self {
            Connection::Http1(connection) => connection.size_hint(),
            Connection::Crossing(crossing) => crossing.size_hint(),
            Connection::Http2(stream) => stream.size_hint(),
        }
    }
}
