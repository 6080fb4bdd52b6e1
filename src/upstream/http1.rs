//! One connection of HTTP/1.1 to a server. It has no task: the task of the request drives it.
//!
//! ```text
//! outbox         the request as bytes, and its content piece by piece
//! head           the head of the response                                no IO
//! read_buffers   memory for long content                                 shared by connections
//! ```
//!
//! A connection must never be used again after unsolicited bytes, or if a part of its last exchange
//! is missing.

#[cfg(test)]
mod differential_tests;
mod head;
mod outbox;
mod read_buffers;

use std::future::{Future as _, poll_fn};
use std::io::{self, IoSlice};
use std::pin::{Pin, pin};
use std::task::{Context, Poll, ready};

use bytes::{Bytes, BytesMut};
use http::{Request, Response, StatusCode};
use http_body::{Frame, SizeHint};
use tokio::io::{AsyncReadExt as _, AsyncWrite as _};

use super::PrerenderedHeaders;
use super::connect::{TolerantStream, is_closed};
use super::deadline::Deadline;
use super::error::{ExchangeError, HeadFault, UpstreamError};
use crate::body::RequestBody;
use crate::connection_use::ConnectionUse;
use crate::http1::content::{Content, ContentRead};
use crate::telemetry::spans::AttemptBytes;
use crate::wire::{MAX_PIECES, Stream};
use head::{MAX_HEAD_BYTES, ParsedHead, ResponseContext};
use outbox::{Http1Upload, Outbox, UploadFraming};

const READ_BYTES: usize = 8 << 10;
const MAX_READ_BYTES: usize = 64 << 10;
/// The buffer grows if less than this is free.
const MIN_READ_BYTES: usize = 4 << 10;

/// A connection. Dropping it closes the socket.
#[derive(Debug)]
pub(super) struct Http1 {
    stream: Stream,
    /// Bytes that were read and not taken.
    read: BytesMut,
    /// The first bytes of `read`, which contain no complete head.
    seen: usize,
    /// Whether `read` is larger than an idle connection may keep for long.
    has_large_buffer: bool,
    is_lent: bool,
    /// Whether the response has a long content of known length.
    is_long: bool,
    outbox: Outbox,
    /// Whether a part of the request is still to be sent.
    pub(super) is_sending: bool,
    upload: Option<Http1Upload>,
    /// The size of the next read if the length of the content is unknown.
    read_bytes: usize,
    /// The content of the response that is still to come.
    content: Content,
    context: ResponseContext,
    /// Whether another exchange may follow, as far as the heads say.
    may_follow: bool,
    /// Whether the server has stopped reading. It may have answered before, so writes are discarded
    /// and the response is still read.
    pub(super) is_deaf: bool,
    pub(super) deadline: Deadline,
    pub(super) usage: ConnectionUse,
    /// Bytes of the current exchange.
    sent: u64,
    received: u64,
}

impl Http1 {
    pub(super) fn new(stream: Stream, deadline: Deadline, usage: ConnectionUse) -> Box<Http1> {
        Box::new(Http1 {
            stream,
            read: BytesMut::new(),
            seen: 0,
            has_large_buffer: false,
            is_lent: false,
            is_long: false,
            outbox: Outbox::default(),
            is_sending: false,
            upload: None,
            read_bytes: READ_BYTES,
            content: Content::Nothing,
            context: ResponseContext::default(),
            may_follow: true,
            is_deaf: false,
            deadline,
            usage,
            sent: 0,
            received: 0,
        })
    }

    /// Whether another exchange may begin. Costs no system call unless the socket has an event.
    pub(super) fn is_usable(&mut self) -> bool {
        !self.deadline.alarm.has_rung() && self.stream.is_quiet()
    }

    /// Ends an exchange whose response was read to its end. `None` if the connection cannot be used
    /// again.
    pub(super) fn end(mut self: Box<Self>) -> Option<Box<Http1>> {
        let is_usable = self.may_follow
            && self.content.has_ended()
            && self.read.is_empty()
            && !self.is_sending
            && !self.is_deaf;
        if !is_usable {
            return None;
        }
        self.outbox.flow.shrink();
        self.return_buffer();
        Some(self)
    }

    /// Bytes that were sent and received in the current exchange.
    pub(super) fn bytes(&self) -> AttemptBytes {
        AttemptBytes {
            sent: Some(self.sent),
            received: Some(self.received),
            body: 0,
        }
    }

    fn return_buffer(&mut self) {
        if std::mem::take(&mut self.is_lent) {
            read_buffers::put_back(std::mem::take(&mut self.read));
        }
    }

    /// Frees the large buffer of a connection that has been idle for a while.
    pub(super) fn free_large_buffer(&mut self) {
        if std::mem::take(&mut self.has_large_buffer) {
            self.read = BytesMut::new();
            self.read_bytes = READ_BYTES;
        }
    }

    /// A copy of the last request, if that had no content.
    pub(super) fn retry_copy(&self) -> Option<Request<RequestBody>> {
        outbox::parse_request(&self.outbox.flow.flat)
    }

    /// Sends the request and waits for the head of the response, which goes into `response`. After
    /// [`ExchangeError::Unsent`] the request is complete again.
    pub(super) async fn exchange<B>(
        &mut self,
        request: &mut Request<RequestBody>,
        response: &mut Response<B>,
        prerendered: Option<&PrerenderedHeaders>,
        asks_upgrade: bool,
    ) -> Result<(), ExchangeError> {
        self.begin(request, prerendered, asks_upgrade);
        self.deadline.begin_head();
        let exchanged = poll_fn(|context| self.poll_exchange(request, response, context)).await;
        self.deadline.end_head();
        exchanged
    }

    fn begin(
        &mut self,
        request: &mut Request<RequestBody>,
        prerendered: Option<&PrerenderedHeaders>,
        asks_upgrade: bool,
    ) {
        let framing = UploadFraming::new(request);
        self.context = ResponseContext::new(request, asks_upgrade);
        self.may_follow = self.outbox.begin(request, prerendered, &framing);
        // The last response is usually gone by now, and its memory is still in the cache.
        let _ = self.read.try_reclaim(READ_BYTES);
        (self.seen, self.is_sending) = (0, true);
        (self.sent, self.received) = (0, 0);
        self.upload = match framing {
            UploadFraming::Nothing => None,
            framing => Some(Http1Upload {
                body: std::mem::take(request.body_mut()),
                framing,
                is_read: false,
                has_trailers: false,
            }),
        };
    }

    fn poll_exchange<B>(
        &mut self,
        request: &mut Request<RequestBody>,
        response: &mut Response<B>,
        context: &mut Context<'_>,
    ) -> Poll<Result<(), ExchangeError>> {
        if self.is_sending {
            if let Poll::Ready(Err(error)) = self.poll_send(context) {
                return Poll::Ready(Err(self.restore_unsent(request, error)));
            }
            if self.outbox.is_touched {
                // The header map is not needed any more: its memory goes to the response.
                request.headers_mut().clear();
                if request.headers().capacity() > response.headers().capacity() {
                    std::mem::swap(request.headers_mut(), response.headers_mut());
                }
            }
        }
        match self.poll_head(response, context) {
            Poll::Ready(head) => Poll::Ready(head.map_err(ExchangeError::Sent)),
            Poll::Pending => {
                let late = self.deadline.alarm.poll(context);
                late.map(|()| Err(ExchangeError::Sent(UpstreamError::TimedOut)))
            }
        }
    }

    /// Completes a request of which nothing was sent, unless its trailers were read.
    fn restore_unsent(
        &mut self,
        request: &mut Request<RequestBody>,
        error: ExchangeError,
    ) -> ExchangeError {
        match (error, self.upload.take()) {
            (ExchangeError::Unsent(error), Some(upload)) if upload.has_trailers => {
                ExchangeError::Sent(error)
            }
            (ExchangeError::Unsent(error), Some(mut upload)) => {
                let taken = self.outbox.flow.take_back();
                upload.body.put_back(taken.into_iter().map(Frame::data));
                *request.body_mut() = upload.body;
                ExchangeError::Unsent(error)
            }
            (error, _) => error,
        }
    }

    /// Sends the rest of the request as fast as the client sends it and the server takes it.
    pub(super) fn poll_send(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Result<(), ExchangeError>> {
        loop {
            let mut waits = false;
            if let Some(upload) = &mut self.upload {
                let filled = upload.fill(&mut self.outbox, &self.deadline, context);
                waits = filled
                    .map_err(|error| ExchangeError::Sent(UpstreamError::Request(error)))?
                    .is_pending();
            }
            if !self.outbox.flow.is_empty() {
                ready!(self.poll_write(context))?;
            } else if waits {
                return Poll::Pending;
            } else if self.upload.as_ref().is_none_or(|upload| upload.is_read) {
                // A TLS stream writes its buffered bytes here.
                if let Err(error) = ready!(Pin::new(&mut self.stream).poll_flush(context)) {
                    self.note_write_error(error)?;
                }
                (self.upload, self.is_sending) = (None, false);
                return Poll::Ready(Ok(()));
            }
        }
    }

    fn poll_write(&mut self, context: &mut Context<'_>) -> Poll<Result<(), ExchangeError>> {
        let flow = &mut self.outbox.flow;
        if self.is_deaf {
            flow.clear();
            return Poll::Ready(Ok(()));
        }
        let stream = Pin::new(&mut self.stream);
        let written = match flow.single_slice() {
            Some(bytes) => stream.poll_write(context, bytes),
            None => {
                let mut slices = [IoSlice::new(&[]); MAX_PIECES];
                let count = flow.slices(&mut slices);
                stream.poll_write_vectored(context, &slices[..count])
            }
        };
        match ready!(written) {
            Ok(0) => self.note_write_error(io::ErrorKind::WriteZero.into())?,
            Ok(count) => {
                self.outbox.is_touched = true;
                self.sent += count as u64;
                flow.advance(count);
                if self.upload.is_some() && flow.is_empty() {
                    flow.clear();
                }
            }
            Err(error) => self.note_write_error(error)?,
        }
        Poll::Ready(Ok(()))
    }

    fn note_write_error(&mut self, error: io::Error) -> Result<(), ExchangeError> {
        if !is_closed(&error) {
            return Err(ExchangeError::Sent(UpstreamError::from_io(error)));
        }
        if !self.outbox.is_touched {
            return Err(ExchangeError::Unsent(UpstreamError::from_io(error)));
        }
        self.is_deaf = true;
        Ok(())
    }

    fn poll_head<B>(
        &mut self,
        response: &mut Response<B>,
        context: &mut Context<'_>,
    ) -> Poll<Result<(), UpstreamError>> {
        loop {
            let is_new = self.read.len() > self.seen;
            if is_new && (self.seen == 0 || head::may_be_complete(&self.read, self.seen)) {
                response.headers_mut().clear();
                response.extensions_mut().clear();
                match head::take_head(&mut self.read, response, self.context)? {
                    ParsedHead::Partial => {}
                    ParsedHead::Interim => {
                        self.seen = 0;
                        continue;
                    }
                    ParsedHead::Final(content, may_follow) => {
                        let upgrades = response.status() == StatusCode::SWITCHING_PROTOCOLS;
                        if upgrades && self.is_sending {
                            let fault = HeadFault::UnaskedUpgrade;
                            return Poll::Ready(Err(UpstreamError::Head(fault)));
                        }
                        let left = content.known_left();
                        self.is_long = left.is_some_and(|left| left > READ_BYTES as u64);
                        self.content = content;
                        self.may_follow &= may_follow;
                        return Poll::Ready(Ok(()));
                    }
                }
            }
            self.seen = self.read.len();
            if self.seen >= MAX_HEAD_BYTES {
                return Poll::Ready(Err(head::too_large()));
            }
            let read = ready!(self.poll_read(MIN_READ_BYTES, self.read_bytes, context));
            if read.map_err(UpstreamError::from_io)? == 0 {
                return Poll::Ready(Err(UpstreamError::ended_early()));
            }
        }
    }

    /// Reads once. A buffer with less than `least` free bytes grows by `most`.
    fn poll_read(
        &mut self,
        least: usize,
        most: usize,
        context: &mut Context<'_>,
    ) -> Poll<io::Result<usize>> {
        if self.read.capacity() - self.read.len() < least {
            self.grow_buffer(most);
        }
        let room = self.read.capacity() - self.read.len();
        let polled = pin!(self.stream.read_buf(&mut self.read)).poll(context);
        if polled.is_pending() && self.is_lent && read_buffers::is_free(&mut self.read) {
            self.return_buffer();
        }
        let count = ready!(polled)?;
        self.received += count as u64;
        if self.is_lent {
            return Poll::Ready(Ok(count));
        }
        // Reads of long content grow after it proves to be long.
        if count == room {
            self.read_bytes = (self.read_bytes * 2).min(MAX_READ_BYTES);
        } else if count < self.read_bytes / 4 {
            self.read_bytes = (self.read_bytes / 2).max(READ_BYTES);
        }
        Poll::Ready(Ok(count))
    }

    fn grow_buffer(&mut self, bytes: usize) {
        if !self.is_long || !self.read.is_empty() {
            self.read.reserve(bytes);
            // After growing it has no size that other connections could use.
            self.is_lent = false;
            self.has_large_buffer |= self.read.capacity() > READ_BYTES;
            return;
        }
        self.return_buffer();
        self.is_lent = true;
        self.read = read_buffers::take();
    }

    /// The size of the next read of content: a little more than the content, so that unsolicited
    /// bytes behind it are found.
    fn content_read_bytes(&self) -> usize {
        let left = self.content.known_left();
        let left = left.map(|left| left.saturating_add(64));
        let left = left.map(|left| usize::try_from(left).unwrap_or(usize::MAX));
        match (&self.content, left) {
            (Content::Length(_), Some(left)) => left.min(MAX_READ_BYTES),
            (_, Some(left)) => left.clamp(self.read_bytes, MAX_READ_BYTES),
            (_, None) => self.read_bytes,
        }
    }

    pub(super) fn poll_frame(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, UpstreamError>>> {
        loop {
            match self.content.take_joined(&mut self.read) {
                Ok(ContentRead::Data(data)) => {
                    return Poll::Ready(Some(Ok(Frame::data(data))));
                }
                Ok(ContentRead::Trailers(trailers)) => {
                    return Poll::Ready(Some(Ok(Frame::trailers(trailers))));
                }
                Ok(ContentRead::Ended) => return Poll::Ready(None),
                Ok(ContentRead::NeedsMore) => {}
                Err(fault) => {
                    return Poll::Ready(Some(Err(UpstreamError::Garbage(fault.into()))));
                }
            }
            let bytes = self.content_read_bytes();
            match ready!(self.poll_read(bytes, bytes, context)) {
                Ok(0) if !self.content.end() => {
                    return Poll::Ready(Some(Err(UpstreamError::ended_early())));
                }
                Ok(_) => {}
                Err(error) => return Poll::Ready(Some(Err(UpstreamError::from_io(error)))),
            }
        }
    }

    pub(super) fn is_end_stream(&self) -> bool {
        self.content.has_ended()
    }

    pub(super) fn has_all(&self) -> bool {
        match &self.content {
            Content::Nothing => true,
            Content::Length(left) => *left <= self.read.len() as u64,
            Content::Chunks(_) | Content::UntilEnd => false,
        }
    }

    pub(super) fn size_hint(&self) -> SizeHint {
        self.content.size_hint()
    }

    pub(super) fn into_tunnel(self) -> TolerantStream {
        TolerantStream::new(self.stream, self.read.freeze())
    }
}
