//! The content of requests and responses, independent of the version of HTTP. It is streamed and
//! never collected.
//!
//! Lengths and trailers pass through. Content that ends early is an error: it must never look
//! complete.

mod pipe;
mod request;

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};

pub use pipe::{BodyError, Demand, PipeReader, PipeWriter, Rest, pipe};
pub use request::{BodyProgress, DISCARD_BYTES, RequestBody};

/// The content of a response. `S` is a body that a server sends.
#[derive(Debug, Default)]
pub enum ResponseBody<S> {
    #[default]
    Empty,
    /// Bytes that the proxy wrote itself.
    Full(Bytes),
    Streaming(S),
}

impl<S> Body for ResponseBody<S>
where
    S: Body<Data = Bytes> + Unpin,
{
    type Data = Bytes;
    type Error = S::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, S::Error>>> {
        match self.get_mut() {
            ResponseBody::Streaming(stream) => Pin::new(stream).poll_frame(context),
            ResponseBody::Full(bytes) if !bytes.is_empty() => {
                let frame = Frame::data(std::mem::take(bytes));
                Poll::Ready(Some(Ok(frame)))
            }
            ResponseBody::Full(_) | ResponseBody::Empty => Poll::Ready(None),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            ResponseBody::Streaming(stream) => stream.is_end_stream(),
            ResponseBody::Full(bytes) => bytes.is_empty(),
            ResponseBody::Empty => true,
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            ResponseBody::Streaming(stream) => stream.size_hint(),
            ResponseBody::Full(bytes) => SizeHint::with_exact(bytes.len() as u64),
            ResponseBody::Empty => SizeHint::with_exact(0),
        }
    }
}
