//! A client's socket, as hyper or [`lean`](super::lean) reads and writes it: it knows which phase
//! the connection is in, and holds every wait in that phase to its limit.
//!
//! hyper parses and frames; this file adds only what hyper cannot know or say:
//! - one alarm per connection stands for all of its timeouts, moved by a store per [`Phase`];
//! - heads are looked at as they pass, for what hyper forgives and we do not (a bare LF as a line's
//!   end, Content-Length beside Transfer-Encoding, a head over its bound): see [`Lint`];
//! - bytes behind a request are kept back until its answer has ended, so that each head is looked
//!   at from its first byte;
//! - a client that has shut its writing side is served on for [`HALF_CLOSE_GRACE`], since it may
//!   be waiting for its answer; if nothing moves until then, it is gone and the work is cancelled.
//!   A client that resets the connection has as long, so that the answer settles what both cost;
//! - hyper's own bare error answers become problem details;
//! - once a client has asked for nothing for a short while, hyper is not needed: see `parked`.
//!
//! It must never change a byte of a request, or of a response that the proxy made.

use std::future::poll_fn;
use std::io;
use std::mem::MaybeUninit;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Buf as _, Bytes};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::chunks::ContentCheck;
use super::lint::Lint;
use super::phase::{Phase, Stage};
use crate::config::ServerSettings;
use crate::proxy::reject;
use crate::wire::{PrefixedStream, Stream};

/// How long a client that has sent its end of stream may go without progress before it counts as
/// gone. A half-closed client is indistinguishable from one that left until we write to it.
pub(crate) const HALF_CLOSE_GRACE: Duration = Duration::from_secs(1);

/// How long, and for how many bytes, a client is listened to after our last word.
const LINGER: Duration = Duration::from_secs(2);
const LINGER_BYTES: usize = 16 << 20;
/// Bytes that are thrown away at once, and how often in a row while other connections wait.
const LINGER_READ_BYTES: usize = 64 << 10;
const LINGER_READS: usize = 8;

/// Bytes of a next request that are read while one is served, at most.
const AHEAD_BYTES: usize = 4096;

/// See the file's head.
#[derive(Debug)]
pub(crate) struct Socket {
    stream: Stream,
    /// What was read before it was known what is spoken, or while a request was served.
    ahead: Bytes,
    phase: Arc<Phase>,
    lint: Lint,
    content: ContentCheck,
    /// Whether heads are looked at by whoever reads them.
    is_unlinted: bool,
    /// The client has sent its end of stream, and hyper has not been told yet.
    ended: bool,
    /// A write has found no room, and none has gone through since.
    stalled: bool,
    /// hyper has looked for the client's end itself since it last flushed.
    watched: bool,
    /// hyper could not read a head, and the client was told.
    refused: bool,
    /// Bytes that are still read after our side of the connection has ended.
    linger_left: Option<usize>,
}

impl Socket {
    pub(crate) fn new(
        opened: PrefixedStream,
        phase: Arc<Phase>,
        settings: &ServerSettings,
    ) -> Socket {
        Socket {
            stream: opened.stream,
            ahead: opened.prefix,
            phase,
            lint: Lint::new(settings.max_header_bytes),
            content: ContentCheck::Other,
            is_unlinted: false,
            ended: false,
            stalled: false,
            watched: false,
            refused: false,
            linger_left: None,
        }
    }

    /// The same for whoever looks at heads more closely than hyper does.
    pub(crate) fn unlinted(self) -> Socket {
        Socket {
            is_unlinted: true,
            ..self
        }
    }

    /// While a request is served nobody else looks for the client's end: hyper would take a new
    /// buffer for that, and find it only where no bytes of a next request are in its way.
    fn watch(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
        if !self.ended
            && let Poll::Ready(ended) = self.poll_end(cx)
        {
            match ended {
                Ok(false) => {}
                Err(error) if !self.phase.body.has_ended() => return Err(error),
                // A reset is an end like any other: both have the answer settle what they cost.
                Ok(true) | Err(_) => {
                    self.ended = true;
                    self.phase.alarm.arm(HALF_CLOSE_GRACE);
                }
            }
        }
        if self.ended && self.phase.alarm.poll(cx).is_ready() {
            return Err(io::ErrorKind::ConnectionAborted.into());
        }
        if !self.ended && self.phase.body.has_ended() {
            self.wait_without_deadline(cx);
        }
        Ok(())
    }

    /// Whether the client has ended its side. What it has sent of a next request is taken out of
    /// the way once.
    fn poll_end(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<bool>> {
        let is_whole = self.phase.body.has_ended() && !self.content.is_under_way();
        if self.ahead.is_empty() && is_whole {
            let mut scratch = [MaybeUninit::uninit(); AHEAD_BYTES];
            let mut buf = ReadBuf::uninit(&mut scratch);
            ready!(Pin::new(&mut self.stream).poll_read(cx, &mut buf))?;
            if buf.filled().is_empty() {
                return Poll::Ready(Ok(true));
            }
            self.ahead = Bytes::copy_from_slice(buf.filled());
        }
        self.stream.poll_ended(cx)
    }

    /// What a passed deadline means to the reading side: an end of stream between requests, an
    /// error within one.
    fn expire(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
        match self.phase.stage() {
            Stage::Idle | Stage::Still | Stage::Parked | Stage::Discard | Stage::Tunnel => Ok(()),
            Stage::Head => {
                // One attempt: a client that does not read this has no use for it.
                let _ =
                    Pin::new(&mut self.stream).poll_write(cx, reject::head_timeout().as_bytes());
                Ok(())
            }
            Stage::Request if self.ended => Ok(()),
            Stage::Request => Err(io::ErrorKind::TimedOut.into()),
        }
    }

    /// Notes what was read. Returns how many of the bytes hyper may have now.
    fn note_read(&mut self, bytes: &[u8]) -> usize {
        let stage = self.phase.stage();
        let is_content = match stage {
            Stage::Tunnel => return bytes.len(),
            Stage::Request => true,
            // Content whose end only hyper knows.
            Stage::Discard if matches!(self.content, ContentCheck::Other) => {
                !self.phase.body.has_ended()
            }
            _ => self.content.is_under_way(),
        };
        if is_content {
            if !self.phase.body.has_ended() {
                self.phase.expect_body();
            }
            return self.content.look(bytes);
        }
        if stage != Stage::Head {
            self.phase.begin_head();
            self.lint.restart();
            self.content = ContentCheck::Other;
        }
        if self.is_unlinted {
            return bytes.len();
        }
        if let Some(flaw) = self.lint.look(bytes) {
            self.phase.found(flaw);
        } else if let Some(end) = self.lint.ended_at() {
            self.content = self.lint.content();
            return end + self.content.look(&bytes[end..]);
        }
        bytes.len()
    }

    /// Notes the bytes in `buf` from `before` on, leaves there what hyper may have of them, and
    /// takes the others back: they are read again.
    fn hand_over(&mut self, buf: &mut ReadBuf<'_>, before: usize) -> io::Result<()> {
        let read = &buf.filled()[before..];
        let count = self.note_read(read);
        if count < read.len() {
            self.ahead = Bytes::copy_from_slice(&read[count..]);
            buf.set_filled(before + count);
        }
        self.check_given(count)
    }

    /// The same for bytes that were read before.
    fn hand_over_ahead(&mut self, buf: &mut ReadBuf<'_>) -> io::Result<()> {
        let mut ahead = std::mem::take(&mut self.ahead);
        let offered = &ahead[..ahead.len().min(buf.remaining())];
        let count = self.note_read(offered);
        buf.put_slice(&offered[..count]);
        if count < ahead.len() {
            ahead.advance(count);
            self.ahead = ahead;
        }
        self.check_given(count)
    }

    /// Nothing behind broken content is read. Without a byte hyper would see an end of stream.
    fn check_given(&mut self, count: usize) -> io::Result<()> {
        if matches!(self.content, ContentCheck::Broken) {
            self.ahead = Bytes::new();
        }
        if count == 0 {
            return Err(io::ErrorKind::InvalidData.into());
        }
        Ok(())
    }

    /// Whether hyper has all of the request, and not yet its answer.
    fn holds_next(&self) -> bool {
        matches!(self.content, ContentCheck::Ended) && self.phase.stage() == Stage::Request
    }

    fn note_write(&mut self) {
        let stalled = std::mem::take(&mut self.stalled);
        if self.ended {
            self.phase.alarm.arm(HALF_CLOSE_GRACE);
        } else if stalled {
            self.phase.restart_wait();
        }
    }

    /// The whole request has come and its answer has not: nothing is expected of the client, so no
    /// deadline of its body holds any more. One of a write is looked at where it is written.
    fn wait_without_deadline(&self, cx: &mut Context<'_>) {
        if !self.stalled {
            self.phase.alarm.disarm();
        }
        // Registers, so that an end of the house wakes this connection.
        let _ = self.phase.alarm.poll(cx);
    }

    /// hyper answers an unreadable head on its own, without the service: its bare answer is
    /// replaced by one that says what is wrong. Small enough for an empty socket buffer.
    fn replace_bare_error(&mut self, cx: &mut Context<'_>, bare: &[u8]) -> Option<Poll<usize>> {
        let ours = self.phase.is_answer_pending()
            || matches!(
                self.phase.stage(),
                Stage::Request | Stage::Discard | Stage::Tunnel
            );
        let status = bare.strip_prefix(b"HTTP/1.1 ")?.get(..3)?;
        if ours || !matches!(status[0], b'4' | b'5') {
            return None;
        }
        let status = std::str::from_utf8(status).ok()?.parse().ok()?;
        let answer = reject::unreadable_head(status, self.lint.has_unknown_coding());
        match Pin::new(&mut self.stream).poll_write(cx, &answer) {
            Poll::Ready(Ok(_)) => {
                self.refused = true;
                Some(Poll::Ready(bare.len()))
            }
            _ => None,
        }
    }
}

impl AsyncRead for Socket {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if matches!(this.content, ContentCheck::Broken) {
            return Poll::Ready(Err(io::ErrorKind::InvalidData.into()));
        }
        if this.holds_next() {
            this.watched = false;
            this.wait_without_deadline(cx);
            // hyper asks again only if it is woken: it takes the stream for the cause of this.
            this.phase.hold_next();
            return Poll::Pending;
        }
        let before = buf.filled().len();
        if !this.ahead.is_empty() {
            return Poll::Ready(this.hand_over_ahead(buf));
        }
        // A body that is on its way upstream. If it ends too early, it does so by the grace.
        let serving = this.phase.stage() == Stage::Request;
        this.watched = serving;
        if this.ended && !serving {
            return Poll::Ready(Ok(()));
        }
        if !this.ended {
            match Pin::new(&mut this.stream).poll_read(cx, buf) {
                Poll::Ready(Ok(())) if buf.filled().len() > before => {
                    return Poll::Ready(this.hand_over(buf, before));
                }
                Poll::Ready(Ok(())) => {
                    this.ended = true;
                    if !serving {
                        return Poll::Ready(Ok(()));
                    }
                    this.phase.alarm.arm(HALF_CLOSE_GRACE);
                }
                Poll::Ready(Err(_)) if serving && this.phase.body.has_ended() => {
                    this.ended = true;
                    this.phase.alarm.arm(HALF_CLOSE_GRACE);
                }
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                Poll::Pending => {}
            }
        }
        if serving && !this.ended && this.phase.body.has_ended() {
            this.wait_without_deadline(cx);
            return Poll::Pending;
        }
        ready!(this.phase.alarm.poll(cx));
        if this.phase.stage() == Stage::Idle {
            // Whoever polls hyper sees that it is not needed for now.
            this.phase
                .end_short_wait(!this.stalled && this.linger_left.is_none());
            ready!(this.phase.alarm.poll(cx));
        }
        Poll::Ready(this.expire(cx))
    }
}

impl AsyncWrite for Socket {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        if let Some(written) = this.replace_bare_error(cx, buf) {
            return written.map(Ok);
        }
        match Pin::new(&mut this.stream).poll_write(cx, buf) {
            Poll::Pending => this.poll_write_alarm(cx),
            ready => {
                this.note_write();
                ready
            }
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        if let Some(first) = bufs.first()
            && let Some(written) = this.replace_bare_error(cx, first)
        {
            return written.map(|_| Ok(bufs.iter().map(|buf| buf.len()).sum()));
        }
        match Pin::new(&mut this.stream).poll_write_vectored(cx, bufs) {
            Poll::Pending => this.poll_write_alarm(cx),
            ready => {
                this.note_write();
                ready
            }
        }
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        // A socket has no buffer of its own; under TLS records may wait for room in it.
        match Pin::new(&mut this.stream).poll_flush(cx) {
            Poll::Ready(Ok(())) if this.stalled => this.note_write(),
            Poll::Ready(Ok(())) => {}
            Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
            Poll::Pending => return this.poll_write_alarm(cx).map_ok(drop),
        }
        this.phase.written();
        // hyper flushes once its own buffer is written. A whole answer is out.
        if this.phase.stage() != Stage::Request {
            this.phase.answer_is_out();
        } else if !std::mem::take(&mut this.watched) {
            return Poll::Ready(this.watch(cx));
        }
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if this.linger_left.is_none() {
            match Pin::new(&mut this.stream).poll_shutdown(cx) {
                Poll::Ready(ended) => ended?,
                // The last word of TLS has no room.
                Poll::Pending => return this.poll_write_alarm(cx).map_ok(drop),
            }
            if this.ended || !this.expects_more() {
                return Poll::Ready(Ok(()));
            }
            this.linger_left = Some(LINGER_BYTES);
            this.phase.alarm.arm(LINGER);
        }
        this.poll_linger(cx).map(Ok)
    }
}

impl Socket {
    /// Of a connection that is parked: nothing that was read is in it, and nothing to be written.
    pub(crate) fn into_stream(self) -> Stream {
        self.stream
    }

    /// Ends a connection in order whose answer has ended before its end: what the client still
    /// sends must not have what it was sent destroyed.
    pub(crate) async fn close_after_cut(mut self) {
        self.refused = true;
        // A client that does not take even that is gone.
        let _ = poll_fn(|context| Pin::new(&mut self).poll_shutdown(context)).await;
    }

    /// Has `bytes`, which were read of it, read again before all others, by hyper.
    pub(crate) fn unread(&mut self, bytes: Bytes) {
        self.ahead = if self.ahead.is_empty() {
            bytes
        } else {
            [bytes, std::mem::take(&mut self.ahead)].concat().into()
        };
        self.is_unlinted = false;
        self.lint.restart();
        self.content = ContentCheck::Other;
    }

    /// Whether the client may still be sending what nobody will read.
    fn expects_more(&self) -> bool {
        self.refused || matches!(self.phase.stage(), Stage::Request | Stage::Discard)
    }

    /// Reads and throws away what the client still sends after our last word, within bounds: a
    /// connection that is closed with unread bytes is reset, and the reset can overtake the answer
    /// (RFC 9112 section 9.6).
    fn poll_linger(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let mut scratch = [MaybeUninit::uninit(); LINGER_READ_BYTES];
        for _ in 0..LINGER_READS {
            let mut buf = ReadBuf::uninit(&mut scratch);
            match Pin::new(&mut self.stream).poll_read(cx, &mut buf) {
                Poll::Ready(Ok(())) if !buf.filled().is_empty() => {
                    let left = self
                        .linger_left
                        .unwrap_or(0)
                        .checked_sub(buf.filled().len());
                    self.linger_left = Some(left.unwrap_or(0));
                    if left.is_none() {
                        return Poll::Ready(());
                    }
                }
                Poll::Ready(_) => return Poll::Ready(()),
                Poll::Pending => return self.phase.alarm.poll(cx),
            }
        }
        // Others wait.
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    /// A reader that takes nothing is waited for as long as a body may stand still.
    fn poll_write_alarm(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        if !self.stalled && !self.ended {
            self.phase.expect_room();
        }
        self.stalled = true;
        self.phase.wait_at_length();
        if self.phase.stage() == Stage::Request && !std::mem::take(&mut self.watched) {
            self.watch(cx)?;
        }
        ready!(self.phase.alarm.poll(cx));
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }
}

#[cfg(test)]
mod tests;
