//! A client's socket under HTTP/1: it knows which phase the connection is in, and holds every wait
//! in that phase to its limit.
//!
//! - One alarm per connection stands for all of its timeouts, moved by a store per [`Phase`].
//! - A client that has shut its writing side is served on for [`HALF_CLOSE_GRACE`], since it may
//!   be waiting for its answer; if nothing moves until then, it is gone and the work is cancelled.
//!   A client that resets the connection has as long, so that the answer settles what both cost.
//! - A connection that ends while its client may still be sending is read for a while, so that the
//!   client gets the last answer.
//!
//! It must never change a byte.

use std::io;
use std::mem::MaybeUninit;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::proxy::local_reply;
use crate::server::phase::{Phase, Stage};
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
    /// The client has sent its end of stream.
    ended: bool,
    /// A write has found no room, and none has gone through since.
    stalled: bool,
    /// It was read since it was last flushed, which tells of the client's end as well.
    watched: bool,
    /// The client was told that what it sends cannot be read.
    refused: bool,
    /// Bytes that are still read after our side of the connection has ended.
    linger_left: Option<usize>,
}

impl Socket {
    pub(crate) fn new(opened: PrefixedStream, phase: Arc<Phase>) -> Socket {
        Socket {
            stream: opened.stream,
            ahead: opened.prefix,
            phase,
            ended: false,
            stalled: false,
            watched: false,
            refused: false,
            linger_left: None,
        }
    }

    /// Looks for the client's end while its request is served.
    fn watch(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
        if !self.ended
            && let Poll::Ready(ended) = self.poll_end(cx)
        {
            match ended {
                Ok(false) => {}
                Err(error) if self.phase.has_content() => return Err(error),
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
        if !self.ended && !self.phase.has_content() {
            self.wait_without_deadline(cx);
        }
        Ok(())
    }

    /// Whether the client has ended its side. What it has sent of a next request is taken out of
    /// the way once.
    fn poll_end(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<bool>> {
        if self.ahead.is_empty() && !self.phase.has_content() {
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
                let _ = Pin::new(&mut self.stream)
                    .poll_write(cx, local_reply::head_timeout().as_bytes());
                Ok(())
            }
            Stage::Request if self.ended => Ok(()),
            Stage::Request => Err(io::ErrorKind::TimedOut.into()),
        }
    }

    /// Somebody waits for the client's content. A client that has ended has its own deadline.
    pub(crate) fn expect_content(&self) {
        if !self.ended {
            self.phase.expect_body();
        }
    }

    /// Bytes of the client were read.
    fn note_read(&self) {
        match self.phase.stage() {
            Stage::Tunnel | Stage::Head => {}
            Stage::Request | Stage::Discard if self.phase.has_content() => self.phase.expect_body(),
            _ => self.phase.begin_head(),
        }
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
}

impl AsyncRead for Socket {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let before = buf.filled().len();
        if !this.ahead.is_empty() {
            let length = this.ahead.len().min(buf.remaining());
            buf.put_slice(&this.ahead.split_to(length));
            this.note_read();
            return Poll::Ready(Ok(()));
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
                    this.note_read();
                    return Poll::Ready(Ok(()));
                }
                Poll::Ready(Ok(())) => {
                    this.ended = true;
                    if !serving {
                        return Poll::Ready(Ok(()));
                    }
                    this.phase.alarm.arm(HALF_CLOSE_GRACE);
                }
                Poll::Ready(Err(_)) if serving && !this.phase.has_content() => {
                    this.ended = true;
                    this.phase.alarm.arm(HALF_CLOSE_GRACE);
                }
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                Poll::Pending => {}
            }
        }
        ready!(this.phase.alarm.poll(cx));
        if this.phase.stage() == Stage::Idle {
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
        // Its owner flushes once all that it has is written: a whole answer is out.
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

    /// The client was told that what it sends cannot be read.
    pub(crate) fn note_refused(&mut self) {
        self.refused = true;
    }

    /// Has `bytes`, which were read of it, read again before all others.
    pub(crate) fn unread(&mut self, bytes: Bytes) {
        self.ahead = if self.ahead.is_empty() {
            bytes
        } else {
            [bytes, std::mem::take(&mut self.ahead)].concat().into()
        };
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
