//! A request's body on its way into a stream, as fast as the server takes it.
//!
//! A small body is also copied until a response comes: if the server refuses the stream, the
//! request can go to another one.

use std::future::{Future as _, poll_fn};
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};

use bytes::Bytes;
use h2::{Reason, SendStream};
use http_body::{Body as _, Frame};

use crate::body::{BodyError, RequestBody};
use crate::http1::write::filter_trailers;
use crate::telemetry::panics::lock;
use crate::upstream::deadline::{AbortOnDrop, Deadline};

/// The most bytes of a body that are copied.
const MAX_COPY_BYTES: usize = 64 << 10;
/// The same in pieces, because a client may send a byte at a time.
const MAX_COPY_PIECES: usize = 64;
/// The most bytes that one stream reserves at once, so that it leaves room for the others.
const MAX_PIECE_BYTES: usize = 64 << 10;

/// A body that two tasks share: one sends it, the other waits for the response.
#[derive(Debug)]
pub(super) struct Http2Upload(Mutex<Http2UploadState>);

#[derive(Debug)]
struct Http2UploadState {
    body: Option<RequestBody>,
    /// All pieces that were read; `None` if some are missing.
    copy: Option<Vec<Bytes>>,
    error: Option<BodyError>,
    deadline: Arc<Deadline>,
}

impl Http2Upload {
    pub(super) fn new(body: RequestBody, deadline: Arc<Deadline>) -> Arc<Http2Upload> {
        Arc::new(Http2Upload(Mutex::new(Http2UploadState {
            body: Some(body),
            copy: Some(Vec::new()),
            error: None,
            deadline,
        })))
    }

    pub(super) fn error(&self) -> Option<BodyError> {
        lock(&self.0).error
    }

    pub(super) fn drop_copy(&self) {
        lock(&self.0).copy = None;
    }

    /// The complete body, if the copy is complete.
    pub(super) fn take_back(&self) -> Option<RequestBody> {
        let mut state = lock(&self.0);
        let copy = state.copy.take()?;
        let mut body = state.body.take()?;
        body.put_back(copy.into_iter().map(Frame::data));
        Some(body)
    }

    fn poll_frame(
        &self,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let mut state = lock(&self.0);
        let Some(body) = &mut state.body else {
            return Poll::Ready(None);
        };
        let polled = Pin::new(body).poll_frame(context);
        state.deadline.note_upload(polled.is_ready());
        match &polled {
            Poll::Ready(Some(Ok(frame))) => state.copy(frame),
            Poll::Ready(Some(Err(error))) => state.error = Some(*error),
            Poll::Ready(None) | Poll::Pending => {}
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        let state = lock(&self.0);
        state.body.as_ref().is_none_or(|body| body.is_end_stream())
    }
}

impl Http2UploadState {
    fn copy(&mut self, frame: &Frame<Bytes>) {
        let Some(copy) = &mut self.copy else {
            return;
        };
        let before: usize = copy.iter().map(Bytes::len).sum();
        let has_room = copy.len() < MAX_COPY_PIECES;
        match frame.data_ref() {
            Some(data) if has_room && before + data.len() <= MAX_COPY_BYTES => {
                copy.push(data.clone());
            }
            // Requests rarely have trailers, so they are not copied.
            _ => self.copy = None,
        }
    }
}

/// Sends what has come of `upload`. A task of its own sends the rest, and ends with the returned
/// value. Usually the whole body of a call has come, and then it leaves in one write with the head.
pub(super) async fn begin_upload(
    stream: SendStream<Bytes>,
    upload: Arc<Http2Upload>,
) -> AbortOnDrop {
    let mut sending = Box::pin(send_body(stream, upload));
    let is_sent = poll_fn(|context| Poll::Ready(sending.as_mut().poll(context).is_ready()));
    match is_sent.await {
        true => AbortOnDrop::default(),
        false => AbortOnDrop::new(&tokio::spawn(sending)),
    }
}

/// Sends `upload` into `stream` until its end, or until the server resets the stream.
async fn send_body(mut stream: SendStream<Bytes>, upload: Arc<Http2Upload>) {
    loop {
        let next = poll_fn(|context| match stream.poll_reset(context) {
            Poll::Ready(_) => Poll::Ready(Err(())),
            Poll::Pending => upload.poll_frame(context).map(Ok),
        });
        let frame = match next.await {
            Ok(Some(Ok(frame))) => frame,
            Ok(Some(Err(_))) => return stream.send_reset(Reason::CANCEL),
            // A send fails only on a stream that is over, and the response reports that.
            Ok(None) => return drop(stream.send_data(Bytes::new(), true)),
            Err(()) => return,
        };
        let ends = upload.is_end_stream();
        match frame.into_data() {
            Ok(data) => {
                if !send_piece(&mut stream, data, ends).await || ends {
                    return;
                }
            }
            Err(frame) => {
                if let Ok(trailers) = frame.into_trailers() {
                    return drop(stream.send_trailers(filter_trailers(trailers)));
                }
            }
        }
    }
}

/// Sends one piece as the server makes room for it; false if the stream is over.
async fn send_piece(stream: &mut SendStream<Bytes>, mut data: Bytes, ends: bool) -> bool {
    if data.is_empty() {
        // The last frame of a client is often empty and only marks the end.
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
