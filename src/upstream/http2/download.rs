//! A response's content as HTTP/2 brings it.
//!
//! The server may send a window full; more only as somebody reads. What it sends must add up: a
//! stream that is reset before its end is an error, whatever the reason says.

use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use h2::RecvStream;
use http::HeaderMap;
use http::header::CONTENT_LENGTH;
use http_body::{Frame, SizeHint};

use super::Connection;

/// See the file's head.
#[derive(Debug)]
pub(in crate::upstream) struct Download {
    stream: RecvStream,
    connection: Arc<Connection>,
    /// Bytes still to come, if the head told.
    left: Option<u64>,
    /// Whether only trailers may follow.
    data_ended: bool,
}

impl Download {
    pub(super) fn new(
        stream: RecvStream,
        connection: Arc<Connection>,
        head: &HeaderMap,
    ) -> Download {
        let length = head.get(CONTENT_LENGTH);
        Download {
            stream,
            connection,
            left: length.and_then(|length| length.to_str().ok()?.parse().ok()),
            data_ended: false,
        }
    }

    pub(in crate::upstream) fn poll_frame(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, h2::Error>>> {
        if !self.data_ended {
            match ready!(self.stream.poll_data(context)) {
                Some(Ok(data)) => {
                    self.connection.hear();
                    // Refused only when the stream is over, and then nobody misses it.
                    let _ = self.stream.flow_control().release_capacity(data.len());
                    self.left = self.left.map(|left| left.saturating_sub(data.len() as u64));
                    return Poll::Ready(Some(Ok(Frame::data(data))));
                }
                Some(Err(error)) => return Poll::Ready(Some(Err(error))),
                None => self.data_ended = true,
            }
        }
        Poll::Ready(match ready!(self.stream.poll_trailers(context)) {
            Ok(trailers) => trailers.map(|trailers| Ok(Frame::trailers(trailers))),
            Err(error) => Some(Err(error)),
        })
    }

    pub(in crate::upstream) fn is_end_stream(&self) -> bool {
        self.stream.is_end_stream()
    }

    pub(in crate::upstream) fn size_hint(&self) -> SizeHint {
        match self.left {
            _ if self.is_end_stream() => SizeHint::with_exact(0),
            Some(left) => SizeHint::with_exact(left),
            None => SizeHint::default(),
        }
    }
}
