//! The socket of an HTTP/1 client. It applies the deadline of the connection's current phase to
//! every wait, and it never changes a byte.
//!
//! One alarm per connection serves all of its timeouts; see [`Phase`].
//!
//! A client that has closed its writing side may still wait for its response. It is served for
//! [`HALF_CLOSE_GRACE`]. Without progress until then it counts as gone, and its request is
//! cancelled. A client that resets the connection has the same time, so that the response can
//! settle the cost of the request.
//!
//! The socket of a client that may still be sending is read for a while after the last response.
//! Otherwise the kernel resets the connection, and the client may lose that response.

use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::clock::Alarm;
use crate::config::ServerSettings;
use crate::proxy::local_reply;
use crate::wire::{PrefixedStream, Stream};

/// How long a client that has closed its writing side may make no progress. Until the proxy writes,
/// such a client looks the same as one that left.
pub(crate) const HALF_CLOSE_GRACE: Duration = Duration::from_secs(1);

/// How long a connection keeps its buffers after a response. A busy connection must never be
/// parked, because it would allocate for each request.
const SHORT_WAIT: Duration = Duration::from_millis(500);
/// How long, and how many bytes, the socket reads after the last response.
const LINGER: Duration = Duration::from_secs(2);
const LINGER_BYTES: usize = 16 << 20;
/// As soon as so many bytes of next requests were read during the current one, no more are read.
const AHEAD_BYTES: usize = 4096;

#[derive(Debug)]
pub(crate) struct Http1Socket {
    pub(crate) stream: Stream,
    /// Bytes that were read early: to detect the protocol, or during the current request.
    ahead: Bytes,
    phase: Arc<Phase>,
    /// The client has closed its writing side, or has reset the connection.
    ended: bool,
    stalled: bool,
    /// The socket was read since the last flush. The read notices the client's end as well.
    watched: bool,
    /// The client was told that its head cannot be parsed.
    pub(crate) refused: bool,
    /// The client was told that its head came too slowly.
    pub(crate) is_late: bool,
    /// Bytes that are still read and discarded after the last response.
    linger_left: Option<usize>,
}

impl Http1Socket {
    pub(crate) fn new(opened: PrefixedStream, phase: Arc<Phase>) -> Http1Socket {
        Http1Socket {
            stream: opened.stream,
            ahead: opened.prefix,
            phase,
            ended: false,
            stalled: false,
            watched: false,
            refused: false,
            is_late: false,
            linger_left: None,
        }
    }

    fn watch_for_end(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
        if !self.ended
            && let Poll::Ready(ended) = self.poll_end(cx)
        {
            match ended {
                Ok(false) => {}
                Err(error) if self.phase.has_content() => return Err(error),
                // After a reset too, the response settles the cost of the request.
                Ok(true) | Err(_) => self.begin_half_close(),
            }
        }
        if self.ended && self.phase.alarm.poll(cx).is_ready() {
            return Err(io::ErrorKind::ConnectionAborted.into());
        }
        // The client has no deadline while it waits for the response, except that of a stalled
        // write.
        if !self.ended && !self.phase.has_content() {
            if !self.stalled {
                self.phase.alarm.disarm();
            }
            // Registers the task, so that a drain wakes it.
            let _ = self.phase.alarm.poll(cx);
        }
        Ok(())
    }

    fn begin_half_close(&mut self) {
        self.ended = true;
        self.phase.alarm.arm(HALF_CLOSE_GRACE);
    }

    /// Whether the client has ended its side. Bytes of a next request would hide the end, so some
    /// of them are read into `ahead`.
    fn poll_end(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<bool>> {
        while self.ahead.len() < AHEAD_BYTES && !self.phase.has_content() {
            let mut scratch = [MaybeUninit::uninit(); AHEAD_BYTES];
            let mut buf = ReadBuf::uninit(&mut scratch);
            ready!(Pin::new(&mut self.stream).poll_read(cx, &mut buf))?;
            if buf.filled().is_empty() {
                return Poll::Ready(Ok(true));
            }
            self.ahead = [&*self.ahead, buf.filled()].concat().into();
        }
        self.stream.poll_ended(cx)
    }

    /// Ends a read whose deadline has passed: with the end of the stream between requests, with an
    /// error within a request.
    fn expire(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
        match self.phase.stage() {
            Stage::Idle | Stage::Still | Stage::Parked | Stage::Discard | Stage::Tunnel => Ok(()),
            Stage::Head => {
                // One attempt is enough.
                let response = local_reply::head_timeout();
                let _ = Pin::new(&mut self.stream).poll_write(cx, response.as_bytes());
                self.is_late = true;
                Ok(())
            }
            Stage::Request if self.ended => Ok(()),
            Stage::Request => Err(io::ErrorKind::TimedOut.into()),
        }
    }

    /// Starts the deadline for content. A client that has ended its side has another deadline.
    pub(crate) fn expect_content(&self) {
        if !self.ended {
            self.phase.expect_body();
        }
    }

    /// Moves the deadline after bytes were read.
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
}

impl AsyncRead for Http1Socket {
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
        // In a request, content that ends early gets the grace of a half-closed connection.
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
                Poll::Ready(Ok(())) if !serving => {
                    this.ended = true;
                    return Poll::Ready(Ok(()));
                }
                Poll::Ready(Ok(())) => this.begin_half_close(),
                Poll::Ready(Err(_)) if serving && !this.phase.has_content() => {
                    this.begin_half_close();
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

impl AsyncWrite for Http1Socket {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.poll_write_vectored(cx, &[IoSlice::new(buf)])
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        match Pin::new(&mut this.stream).poll_write_vectored(cx, slices) {
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
        // TLS records may wait for room in the socket.
        match Pin::new(&mut this.stream).poll_flush(cx) {
            Poll::Ready(Ok(())) if this.stalled => this.note_write(),
            Poll::Ready(flushed) => flushed?,
            Poll::Pending => return this.poll_write_alarm(cx).map_ok(drop),
        }
        // The task flushes after it has written all it has, so outside a request the response is
        // sent.
        if this.phase.stage() != Stage::Request {
            this.phase.note_response_sent();
        } else if !std::mem::take(&mut this.watched) {
            return Poll::Ready(this.watch_for_end(cx));
        }
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if this.linger_left.is_none() {
            match Pin::new(&mut this.stream).poll_shutdown(cx) {
                Poll::Ready(ended) => ended?,
                // The alert that closes TLS has no room.
                Poll::Pending => return this.poll_write_alarm(cx).map_ok(drop),
            }
            // The client may still send bytes that the proxy will not use.
            let expects_more = matches!(this.phase.stage(), Stage::Request | Stage::Discard);
            if this.ended || !this.refused && !expects_more {
                return Poll::Ready(Ok(()));
            }
            this.linger_left = Some(LINGER_BYTES);
            this.phase.alarm.arm(LINGER);
        }
        this.poll_linger(cx).map(Ok)
    }
}

impl Http1Socket {
    pub(crate) fn unread(&mut self, bytes: Bytes) {
        self.ahead = if self.ahead.is_empty() {
            bytes
        } else {
            [bytes, std::mem::take(&mut self.ahead)].concat().into()
        };
    }

    /// Reads and discards what the client sends after the last response. A close with unread bytes
    /// resets the connection, and the reset can overtake the response (RFC 9112 section 9.6).
    fn poll_linger(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let mut left = self.linger_left.unwrap_or(0);
        let discarded = self.stream.poll_discard(cx, &mut left);
        self.linger_left = Some(left);
        match discarded {
            Poll::Ready(()) => discarded,
            Poll::Pending => self.phase.alarm.poll(cx),
        }
    }

    /// Applies the deadline of a write: as long as a body may make no progress.
    fn poll_write_alarm(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        if !self.stalled && !self.ended {
            self.phase.expect_room();
        }
        self.stalled = true;
        self.phase.leave_short_wait();
        if self.phase.stage() == Stage::Request && !std::mem::take(&mut self.watched) {
            self.watch_for_end(cx)?;
        }
        ready!(self.phase.alarm.poll(cx));
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    Idle,
    /// The long wait for the next request, in which the connection cannot be parked.
    Still,
    /// The long wait for the next request. The connection keeps only its stream.
    Parked,
    Head,
    Request,
    /// The response is sent, and the rest of the request's content is discarded.
    Discard,
    Tunnel,
}

#[derive(Debug)]
pub(crate) struct Phase {
    stage: AtomicU8,
    response_pending: AtomicBool,
    /// Whether some of the request's content has not come.
    has_content: AtomicBool,
    pub(crate) alarm: Arc<Alarm>,
    header_timeout: Duration,
    idle_timeout: Duration,
    body_timeout: Duration,
}

impl Phase {
    /// The phase of a new connection: parked.
    pub(crate) fn new(alarm: Arc<Alarm>, settings: &ServerSettings) -> Arc<Phase> {
        alarm.arm(settings.idle_timeout);
        Arc::new(Phase {
            stage: AtomicU8::new(Stage::Parked as u8),
            response_pending: AtomicBool::new(false),
            has_content: AtomicBool::new(false),
            alarm,
            header_timeout: settings.header_timeout,
            idle_timeout: settings.idle_timeout,
            body_timeout: settings.body_timeout,
        })
    }

    pub(crate) fn begin_head(&self) {
        self.set(Stage::Head);
        self.alarm.arm(self.header_timeout);
    }

    pub(crate) fn begin_request(&self, has_content: bool) {
        self.set(Stage::Request);
        self.has_content.store(has_content, Ordering::Relaxed);
        self.response_pending.store(true, Ordering::Relaxed);
        self.restart_wait();
    }

    pub(crate) fn has_content(&self) -> bool {
        self.has_content.load(Ordering::Relaxed)
    }

    pub(crate) fn end_content(&self) {
        self.has_content.store(false, Ordering::Relaxed);
        if self.stage() == Stage::Discard {
            self.begin_short_wait();
        }
    }

    /// Ends the request: the whole response is ready to be written.
    pub(crate) fn end_response(&self) {
        if self.stage() != Stage::Request {
            return;
        }
        if self.has_content() {
            self.set(Stage::Discard);
            self.expect_body();
        } else {
            self.begin_short_wait();
        }
    }

    /// Begins a tunnel, which has no deadline here.
    pub(crate) fn begin_tunnel(&self) {
        self.set(Stage::Tunnel);
        self.alarm.disarm();
    }

    pub(crate) fn note_response_sent(&self) {
        self.response_pending.store(false, Ordering::Relaxed);
    }

    pub(crate) fn expect_body(&self) {
        self.alarm.arm(self.body_timeout);
    }

    /// Starts the deadline of a write that found no room.
    pub(crate) fn expect_room(&self) {
        if self.stage() == Stage::Idle {
            self.set(Stage::Still);
        }
        self.alarm.arm(self.body_timeout);
    }

    /// Replaces the short wait by the long one, because the response finds no room.
    pub(crate) fn leave_short_wait(&self) {
        if self.stage() == Stage::Idle {
            self.set(Stage::Still);
            self.alarm.arm(self.idle_timeout);
        }
    }

    pub(crate) fn restart_wait(&self) {
        match self.stage() {
            Stage::Request if !self.has_content() => self.alarm.disarm(),
            Stage::Request | Stage::Discard => self.expect_body(),
            Stage::Idle | Stage::Still => self.begin_short_wait(),
            Stage::Parked => self.alarm.arm(self.idle_timeout),
            Stage::Head => self.alarm.arm(self.header_timeout),
            Stage::Tunnel => self.alarm.disarm(),
        }
    }

    fn begin_short_wait(&self) {
        if self.idle_timeout > SHORT_WAIT {
            self.set(Stage::Idle);
            self.alarm.arm(SHORT_WAIT);
        } else {
            self.set(Stage::Still);
            self.alarm.arm(self.idle_timeout);
        }
    }

    /// Goes on with the long wait after the short one. The connection is parked if it is `ready`
    /// for that and its response is sent.
    pub(crate) fn end_short_wait(&self, ready: bool) {
        let parks = ready && !self.response_pending.load(Ordering::Relaxed);
        self.set(if parks { Stage::Parked } else { Stage::Still });
        self.alarm
            .go_on(self.idle_timeout.saturating_sub(SHORT_WAIT));
    }

    pub(crate) fn stage(&self) -> Stage {
        match self.stage.load(Ordering::Relaxed) {
            0 => Stage::Idle,
            1 => Stage::Still,
            2 => Stage::Parked,
            3 => Stage::Head,
            4 => Stage::Request,
            5 => Stage::Discard,
            _ => Stage::Tunnel,
        }
    }

    fn set(&self, stage: Stage) {
        self.stage.store(stage as u8, Ordering::Relaxed);
    }
}
