//! A request's content on its way into the outbox, framed as its body says.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::Request;
use http::header::TRANSFER_ENCODING;
use http_body::Body as _;

use super::outbox::{Framing, Outbox, WrongLength};
use crate::body::{BodyError, RequestBody};
use crate::http1::write::announced_trailers;
use crate::upstream::deadline::Deadline;

/// A request's content on its way.
#[derive(Debug)]
pub(super) struct Upload {
    pub(super) body: RequestBody,
    pub(super) framing: Framing,
    /// Whether its body has been read to its end.
    pub(super) is_read: bool,
}

impl Upload {
    /// Puts more of the body into `outbox`, until that is full or the body has ended. Pending if
    /// the client has no more at present.
    pub(super) fn fill(
        &mut self,
        outbox: &mut Outbox,
        deadline: &Deadline,
        context: &mut Context<'_>,
    ) -> Poll<Result<(), BodyError>> {
        while !self.is_read && outbox.has_room() {
            let polled = Pin::new(&mut self.body).poll_frame(context);
            deadline.upload(polled.is_ready());
            let Some(frame) = ready!(polled).transpose()? else {
                self.is_read = true;
                return Poll::Ready(put(outbox, Bytes::new(), true, &mut self.framing));
            };
            match frame.into_data() {
                Ok(data) => {
                    self.is_read = self.body.is_end_stream();
                    put(outbox, data, self.is_read, &mut self.framing)?;
                }
                Err(frame) => {
                    self.is_read = true;
                    let trailers = frame.into_trailers().unwrap_or_default();
                    outbox
                        .put_trailers(&trailers, &self.framing)
                        .map_err(|WrongLength| BodyError::Broken)?;
                }
            }
        }
        Poll::Ready(Ok(()))
    }
}

fn put(
    outbox: &mut Outbox,
    data: Bytes,
    last: bool,
    framing: &mut Framing,
) -> Result<(), BodyError> {
    let put = outbox.put(data, last, framing);
    put.map_err(|WrongLength| BodyError::Broken)
}

/// How the request's content is framed: what its body says goes, whatever its head does.
pub(super) fn framing_of(request: &Request<RequestBody>) -> Framing {
    let body = request.body();
    if body.is_end_stream() {
        return Framing::Nothing;
    }
    match body.size_hint().exact() {
        Some(length) if !request.headers().contains_key(TRANSFER_ENCODING) => {
            Framing::Length(length)
        }
        _ => Framing::Chunks(announced_trailers(request.headers())),
    }
}
