//! A request's body on its way into a stream, as fast as the server takes it.
//!
//! What was read of it is remembered while that is little and no answer has come: a server that
//! refuses the stream has not looked at it, and the whole request can go elsewhere.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use bytes::Bytes;
use h2::{Reason, SendStream};
use http::HeaderMap;
use http::header::{CONNECTION, TE, TRANSFER_ENCODING, UPGRADE};
use http_body::{Body as _, Frame};

use crate::body::{BodyError, RequestBody};
use crate::upstream::deadline::Deadline;

/// Bytes of a body that are remembered at most.
const MAX_KEPT_BYTES: usize = 64 << 10;
/// Bytes that one stream asks to send at once, so that it leaves room for the others.
const MAX_PIECE_BYTES: usize = 64 << 10;

/// A body that two look at: whoever sends it, and whoever waits for the answer.
#[derive(Debug)]
pub(super) struct Upload(Mutex<State>);

#[derive(Debug)]
struct State {
    body: Option<RequestBody>,
    /// What has been read, if that is all of it.
    kept: Option<Vec<Bytes>>,
    flaw: Option<BodyError>,
    /// Moves as the body moves, until the response's head has come.
    deadline: Arc<Deadline>,
}

impl Upload {
    pub(super) fn new(body: RequestBody, deadline: Arc<Deadline>) -> Arc<Upload> {
        Arc::new(Upload(Mutex::new(State {
            body: Some(body),
            kept: Some(Vec::new()),
            flaw: None,
            deadline,
        })))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Why the body did not reach its end, if that is the client's fault.
    pub(super) fn flaw(&self) -> Option<BodyError> {
        self.state().flaw
    }

    /// It will not be asked for again.
    pub(super) fn forget(&self) {
        self.state().kept = None;
    }

    /// The body as it was, if that can still be had.
    pub(super) fn take_back(&self) -> Option<RequestBody> {
        let mut state = self.state();
        let kept = state.kept.take()?;
        let mut body = state.body.take()?;
        body.put_back(kept);
        Some(body)
    }

    fn poll_frame(
        &self,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let mut state = self.state();
        let Some(body) = &mut state.body else {
            return Poll::Ready(None);
        };
        let polled = Pin::new(body).poll_frame(context);
        state.deadline.upload(polled.is_ready());
        match &polled {
            Poll::Ready(Some(Ok(frame))) => state.keep(frame),
            Poll::Ready(Some(Err(flaw))) => state.flaw = Some(*flaw),
            Poll::Ready(None) | Poll::Pending => {}
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        let state = self.state();
        state.body.as_ref().is_none_or(|body| body.is_end_stream())
    }
}

impl State {
    fn keep(&mut self, frame: &Frame<Bytes>) {
        let Some(kept) = &mut self.kept else {
            return;
        };
        let before: usize = kept.iter().map(Bytes::len).sum();
        match frame.data_ref() {
            Some(data) if before + data.len() <= MAX_KEPT_BYTES => kept.push(data.clone()),
            // Trailers are rare in a request, and not worth a second kind of memory.
            _ => self.kept = None,
        }
    }
}

/// Sends `upload` into `stream` until its end, or until the server wants no more of it.
pub(super) async fn pump(mut stream: SendStream<Bytes>, upload: Arc<Upload>) {
    loop {
        let next = poll_fn(|context| match stream.poll_reset(context) {
            Poll::Ready(_) => Poll::Ready(Err(())),
            Poll::Pending => upload.poll_frame(context).map(Ok),
        });
        let Ok(next) = next.await else {
            return;
        };
        let sent = match next {
            None => stream.send_data(Bytes::new(), true),
            Some(Err(_)) => {
                stream.send_reset(Reason::CANCEL);
                return;
            }
            Some(Ok(frame)) => {
                let ends = upload.is_end_stream();
                match frame.into_data() {
                    Ok(data) => {
                        if !send(&mut stream, data, ends).await || ends {
                            return;
                        }
                        continue;
                    }
                    Err(frame) => match frame.into_trailers() {
                        Ok(trailers) => stream.send_trailers(sendable(trailers)),
                        Err(_) => continue,
                    },
                }
            }
        };
        // Refused only when the stream is over, which its answer tells.
        let _ = sent;
        return;
    }
}

/// Sends one piece as the server makes room for it; false if it will not.
async fn send(stream: &mut SendStream<Bytes>, mut data: Bytes, ends: bool) -> bool {
    if data.is_empty() {
        // A client's last frame is often empty, and says that it has ended.
        return !ends || stream.send_data(data, true).is_ok();
    }
    while !data.is_empty() {
        stream.reserve_capacity(data.len().min(MAX_PIECE_BYTES));
        let room = poll_fn(|context| {
            loop {
                match stream.capacity() {
                    0 => {}
                    room => return Poll::Ready(Some(room)),
                }
                match stream.poll_capacity(context) {
                    Poll::Ready(Some(Ok(_))) => {}
                    Poll::Ready(_) => return Poll::Ready(None),
                    Poll::Pending => return Poll::Pending,
                }
            }
        });
        let Some(room) = room.await else {
            return false;
        };
        let piece = data.split_to(room.min(data.len()));
        if stream.send_data(piece, ends && data.is_empty()).is_err() {
            return false;
        }
    }
    true
}

/// Trailers without what HTTP/2 has no place for.
fn sendable(mut trailers: HeaderMap) -> HeaderMap {
    for name in [CONNECTION, TE, TRANSFER_ENCODING, UPGRADE] {
        trailers.remove(name);
    }
    trailers.remove("keep-alive");
    trailers.remove("proxy-connection");
    trailers
}
