//! One connection of HTTP/1.1 to a server, driven by whoever has a request on it: there is no task
//! of its own, and nothing is passed between tasks.
//!
//! ```text
//! upload     a request's content, piece by piece
//! outbox     the request as bytes, and what of them was written      pure
//! head       the response's head: what it says, and what follows     pure
//! room       memory that long content is read into           lent between connections
//! crossing   an answer that came before all of its request was sent
//! ```
//!
//! It must never be used again if anything came that nobody asked for, or anything of its last
//! exchange is missing.

mod crossing;
mod head;
#[cfg(test)]
mod likeness;
mod outbox;
mod room;
mod tunnel;
mod upload;

use std::future::{Future as _, poll_fn};
use std::io::{self, IoSlice};
use std::pin::{Pin, pin};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::{Request, Response, StatusCode};
use http_body::{Frame, SizeHint};
use tokio::io::{AsyncReadExt as _, AsyncWrite as _};

use super::deadline::Deadline;
use super::error::{
    Failure, HeadFault, Http1Fault, ProtocolError, UpstreamError, ended_early, of_io,
};
use super::prerendered_headers::PrerenderedHeaders;
use crate::body::{BodyError, RequestBody};
use crate::http1::content::{Content, ContentRead};
use crate::wire::MAX_PIECES;
use crate::wire::Stream;
pub(super) use crossing::{Crossing, GiveBack};
use head::{Asked, MAX_HEAD_BYTES, Read};
use outbox::{Framing, Outbox};
pub use tunnel::Upgraded;
use upload::{Upload, framing_of};

/// Bytes that are read at once at first.
const READ_BYTES: usize = 8 << 10;
/// Bytes of large content that are read at once.
const MAX_READ_BYTES: usize = 64 << 10;
/// Where less room than this is left, new room is made.
const MIN_READ_BYTES: usize = 4 << 10;

/// See the file's head. Dropping it closes the socket.
#[derive(Debug)]
pub(super) struct Http1 {
    stream: Stream,
    /// What was read and belongs to nobody yet.
    read: BytesMut,
    /// Of that, what is known not to be a whole head.
    seen: usize,
    /// Whether the room for it is larger than an idle connection keeps for long.
    has_large_room: bool,
    /// Whether it is one of those that are lent.
    is_lent: bool,
    /// Whether the content of the last response is long, and its length was said.
    is_long: bool,
    outbox: Outbox,
    /// Whether anything of the request is still to be sent.
    is_sending: bool,
    /// What is still to be sent of its content.
    upload: Option<Upload>,
    /// Bytes that are read at once where it is not known how many there are.
    appetite: usize,
    /// What is still to come of the response's.
    content: Content,
    asked: Asked,
    /// Whether another exchange may follow, as far as is known.
    may_follow: bool,
    /// The server reads no more. It may have answered before, so what we still write is thrown
    /// away, and the answer is looked for.
    is_deaf: bool,
    pub(super) deadline: Deadline,
}

/// Why a request cannot be sent.
enum Unsendable {
    /// Nothing of it was: the connection had gone.
    Gone(io::Error),
    /// The client's fault.
    Body(BodyError),
    Broken(io::Error),
}

impl Http1 {
    pub(super) fn new(stream: Stream, deadline: Deadline) -> Box<Http1> {
        Box::new(Http1 {
            stream,
            read: BytesMut::new(),
            seen: 0,
            has_large_room: false,
            is_lent: false,
            is_long: false,
            outbox: Outbox::default(),
            is_sending: false,
            upload: None,
            appetite: READ_BYTES,
            content: Content::Nothing,
            asked: Asked::default(),
            may_follow: true,
            is_deaf: false,
            deadline,
        })
    }

    /// Whether another exchange may begin on it. It is looked at without a system call, unless
    /// there is news.
    pub(super) fn is_usable(&mut self) -> bool {
        !self.deadline.has_rung() && self.stream.is_quiet()
    }

    /// Whether it can be kept: the response was read to its end, and all was in order.
    fn is_in_order(&self) -> bool {
        self.may_follow
            && self.content.has_ended()
            && self.read.is_empty()
            && !self.is_sending
            && !self.is_deaf
    }

    /// The response was read to its end: it, if another exchange may follow.
    pub(super) fn end(mut self: Box<Self>) -> Option<Box<Http1>> {
        if !self.is_in_order() {
            return None;
        }
        self.outbox.rest();
        if std::mem::take(&mut self.is_lent) {
            room::give(std::mem::take(&mut self.read));
        }
        Some(self)
    }

    /// It has been idle for a while: room for large content is given back.
    pub(super) fn shed(&mut self) {
        if std::mem::take(&mut self.has_large_room) {
            self.read = BytesMut::new();
            self.appetite = READ_BYTES;
        }
    }

    /// It will be too old in `time` from now.
    pub(super) fn grow_old_in(&self, time: Duration) {
        self.deadline.arm(time);
    }

    /// The head of the request that was sent last, which had no content.
    pub(super) fn sent(&self) -> &[u8] {
        self.outbox.head()
    }

    /// Whether anything of the request is still to be sent.
    pub(super) fn is_sending(&self) -> bool {
        self.is_sending
    }

    /// Sends the request and waits for the head of its response, which is put into `answer`. The
    /// request is whole again if nothing of it was sent.
    pub(super) async fn exchange<B>(
        &mut self,
        request: &mut Request<RequestBody>,
        answer: &mut Response<B>,
        (beside, upgrade): (Option<&PrerenderedHeaders>, bool),
    ) -> Result<(), Failure> {
        self.begin(request, beside, upgrade);
        self.deadline.await_head();
        let answered = poll_fn(|context| self.poll_exchange(request, answer, context)).await;
        self.deadline.end_head();
        answered
    }

    fn begin(
        &mut self,
        request: &mut Request<RequestBody>,
        beside: Option<&PrerenderedHeaders>,
        upgrade: bool,
    ) {
        let framing = framing_of(request);
        self.asked = Asked::of(request, upgrade);
        self.may_follow = self.outbox.begin(request, beside, &framing);
        // As a rule nobody holds the last answer any more: its memory is still in the caches.
        let _ = self.read.try_reclaim(READ_BYTES);
        (self.seen, self.is_sending) = (0, true);
        self.upload = match framing {
            Framing::Nothing => None,
            framing => Some(Upload {
                body: std::mem::take(request.body_mut()),
                framing,
                is_read: false,
            }),
        };
    }

    fn poll_exchange<B>(
        &mut self,
        request: &mut Request<RequestBody>,
        answer: &mut Response<B>,
        context: &mut Context<'_>,
    ) -> Poll<Result<(), Failure>> {
        if self.is_sending {
            match self.poll_send(context) {
                Poll::Ready(Err(Unsendable::Gone(error))) => {
                    return Poll::Ready(Err(self.give_up(request, error)));
                }
                Poll::Ready(Err(error)) => {
                    return Poll::Ready(Err(Failure::Sent(error.into())));
                }
                Poll::Ready(Ok(())) | Poll::Pending => {}
            }
            if !self.outbox.is_untouched() {
                // What its lines are parts of need not be kept until the answer, which can do with
                // their room.
                request.headers_mut().clear();
                if request.headers().capacity() > answer.headers().capacity() {
                    std::mem::swap(request.headers_mut(), answer.headers_mut());
                }
            }
        }
        match self.poll_head(answer, context) {
            Poll::Ready(Ok(())) => Poll::Ready(Ok(())),
            Poll::Ready(Err(error)) => Poll::Ready(Err(Failure::Sent(error))),
            Poll::Pending => self
                .deadline
                .poll(context)
                .map(|()| Err(Failure::Sent(UpstreamError::TimedOut))),
        }
    }

    /// Nothing was sent: `request` is what it was, unless its end has been read.
    fn give_up(&mut self, request: &mut Request<RequestBody>, error: io::Error) -> Failure {
        let error = of_io(error);
        let Some(mut upload) = self.upload.take() else {
            return Failure::Unsent(error);
        };
        if upload.is_read {
            return Failure::Sent(error);
        }
        upload.body.put_back(self.outbox.take_back());
        *request.body_mut() = upload.body;
        Failure::Unsent(error)
    }

    /// Sends what is left of the request, as far as it can be had and the server takes it.
    fn poll_send(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Unsendable>> {
        loop {
            let mut waits = false;
            if let Some(upload) = &mut self.upload {
                let filled = upload.fill(&mut self.outbox, &self.deadline, context);
                waits = filled.map_err(Unsendable::Body)?.is_pending();
            }
            if !self.outbox.is_empty() {
                ready!(self.poll_write(context))?;
            } else if waits {
                return Poll::Pending;
            } else if self.upload.as_ref().is_none_or(|upload| upload.is_read) {
                // TLS writes here what it has kept.
                if let Err(error) = ready!(Pin::new(&mut self.stream).poll_flush(context)) {
                    self.cannot_write(error)?;
                }
                (self.upload, self.is_sending) = (None, false);
                return Poll::Ready(Ok(()));
            }
        }
    }

    /// Writes what waits, once.
    fn poll_write(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Unsendable>> {
        if self.is_deaf {
            self.outbox.drop_written();
            return Poll::Ready(Ok(()));
        }
        let stream = Pin::new(&mut self.stream);
        let written = match self.outbox.flat() {
            Some(flat) => stream.poll_write(context, flat),
            None => {
                let mut slices = [IoSlice::new(&[]); MAX_PIECES];
                let count = self.outbox.slices(&mut slices);
                stream.poll_write_vectored(context, &slices[..count])
            }
        };
        match ready!(written) {
            Ok(0) => self.cannot_write(io::ErrorKind::WriteZero.into())?,
            Ok(count) => {
                self.outbox.advance(count);
                if self.upload.is_some() && self.outbox.is_empty() {
                    self.outbox.drop_written();
                }
            }
            Err(error) => self.cannot_write(error)?,
        }
        Poll::Ready(Ok(()))
    }

    fn cannot_write(&mut self, error: io::Error) -> Result<(), Unsendable> {
        let has_left = matches!(
            error.kind(),
            io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset
        );
        if !has_left {
            return Err(Unsendable::Broken(error));
        }
        if self.outbox.is_untouched() {
            return Err(Unsendable::Gone(error));
        }
        self.is_deaf = true;
        Ok(())
    }

    /// The head of the response, put into `answer`.
    fn poll_head<B>(
        &mut self,
        answer: &mut Response<B>,
        context: &mut Context<'_>,
    ) -> Poll<Result<(), UpstreamError>> {
        loop {
            let is_new = self.read.len() > self.seen;
            if is_new && (self.seen == 0 || head::may_be_complete(&self.read, self.seen)) {
                answer.headers_mut().clear();
                answer.extensions_mut().clear();
                match head::take(&mut self.read, answer, self.asked)? {
                    Read::Partial => {}
                    Read::Interim => {
                        self.seen = 0;
                        continue;
                    }
                    Read::Final(..)
                        if answer.status() == StatusCode::SWITCHING_PROTOCOLS
                            && self.is_sending =>
                    {
                        let fault = HeadFault::UnaskedUpgrade;
                        return Poll::Ready(Err(UpstreamError::Head(fault)));
                    }
                    Read::Final(content, may_follow) => {
                        self.is_long = content
                            .known_left()
                            .is_some_and(|left| left > READ_BYTES as u64);
                        self.content = content;
                        self.may_follow &= may_follow;
                        return Poll::Ready(Ok(()));
                    }
                }
            }
            self.seen = self.read.len();
            if self.seen >= MAX_HEAD_BYTES {
                let fault = ProtocolError::Http1(Http1Fault::HeadTooLarge);
                return Poll::Ready(Err(UpstreamError::Garbage(fault)));
            }
            if ready!(self.poll_read((MIN_READ_BYTES, self.appetite), context)).map_err(of_io)? == 0
            {
                return Poll::Ready(Err(ended_early()));
            }
        }
    }

    /// Reads more. Where there is not room for `least` bytes, room for `most` is made.
    fn poll_read(
        &mut self,
        (least, most): (usize, usize),
        context: &mut Context<'_>,
    ) -> Poll<io::Result<usize>> {
        if self.read.capacity() - self.read.len() < least {
            self.make_room(most);
        }
        let room = self.read.capacity() - self.read.len();
        let polled = pin!(self.stream.read_buf(&mut self.read)).poll(context);
        if polled.is_pending() && self.is_lent && room::is_free(&mut self.read) {
            self.is_lent = false;
            room::give(std::mem::take(&mut self.read));
        }
        let count = ready!(polled)?;
        if self.is_lent {
            return Poll::Ready(Ok(count));
        }
        // Long content is read in large pieces, once it shows to be long.
        if count == room {
            self.appetite = (self.appetite * 2).min(MAX_READ_BYTES);
        } else if count < self.appetite / 4 {
            self.appetite = (self.appetite / 2).max(READ_BYTES);
        }
        Poll::Ready(Ok(count))
    }

    fn make_room(&mut self, bytes: usize) {
        if !self.is_long || !self.read.is_empty() {
            self.read.reserve(bytes);
            // Nobody else could do with what it has become.
            self.is_lent = false;
            self.has_large_room |= self.read.capacity() > READ_BYTES;
            return;
        }
        let old = std::mem::take(&mut self.read);
        if std::mem::replace(&mut self.is_lent, true) {
            room::give(old);
        }
        self.read = room::take();
    }

    /// How much is read of the content at once: a little more than belongs to it, so that what
    /// should not be there shows.
    fn most(&self) -> usize {
        let left = self
            .content
            .known_left()
            .map(|left| left.saturating_add(64));
        let left = left.map(|left| usize::try_from(left).unwrap_or(usize::MAX));
        match (&self.content, left) {
            (Content::Length(_), Some(left)) => left.min(MAX_READ_BYTES),
            (_, Some(left)) => left.clamp(self.appetite, MAX_READ_BYTES),
            (_, None) => self.appetite,
        }
    }

    /// The next piece of the response's content.
    pub(super) fn poll_frame(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, UpstreamError>>> {
        loop {
            match self.content.take(&mut self.read) {
                Ok(ContentRead::Data(data)) => {
                    return Poll::Ready(Some(Ok(Frame::data(data))));
                }
                Ok(ContentRead::Trailers(trailers)) => {
                    return Poll::Ready(Some(Ok(Frame::trailers(trailers))));
                }
                Ok(ContentRead::Ended) => return Poll::Ready(None),
                Ok(ContentRead::NeedsMore) => {}
                Err(fault) => {
                    let fault = ProtocolError::Http1(fault.into());
                    return Poll::Ready(Some(Err(UpstreamError::Garbage(fault))));
                }
            }
            let most = self.most();
            match ready!(self.poll_read((most, most), context)) {
                Ok(0) => {
                    if self.content.end().is_err() {
                        return Poll::Ready(Some(Err(ended_early())));
                    }
                }
                Ok(_) => {}
                Err(error) => return Poll::Ready(Some(Err(of_io(error)))),
            }
        }
    }

    pub(super) fn is_end_stream(&self) -> bool {
        self.content.has_ended()
    }

    /// Whether all of the response's content was read.
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

    /// What it has become after 101.
    pub(super) fn upgraded(self) -> Upgraded {
        Upgraded::new(self.stream, self.read.freeze())
    }
}

impl From<Unsendable> for UpstreamError {
    fn from(unsendable: Unsendable) -> UpstreamError {
        match unsendable {
            Unsendable::Gone(error) | Unsendable::Broken(error) => of_io(error),
            Unsendable::Body(flaw) => UpstreamError::Request(flaw),
        }
    }
}
