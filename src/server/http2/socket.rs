//! The socket of an HTTP/2 client. It inspects the frames that come, and applies the deadlines of
//! the whole connection. Streams have deadlines of their own.
//!
//! It changes two things: it rewrites malformed heads (`frames`), and it sends a last frame to a
//! client that exceeds its allowance.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Buf, Bytes};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::ConnectionFlow;
use super::frames::FrameInspector;
use crate::clock::Alarm;
use crate::wire::{PrefixedStream, Stream};

/// GOAWAY with ENHANCE_YOUR_CALM. The highest stream id does not claim that any stream was refused.
const CALM: &[u8] = &[
    0, 0, 8, 7, 0, 0, 0, 0, 0, 0x7f, 0xff, 0xff, 0xff, 0, 0, 0, 11,
];

/// GOAWAY with PROTOCOL_ERROR, before any stream.
const FOREIGN: &[u8] = &[0, 0, 8, 7, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1];
/// How long, and how many bytes, the socket reads after [`FOREIGN`].
const LINGER: Duration = Duration::from_secs(2);
const LINGER_BYTES: usize = 1 << 20;

#[derive(Clone, Copy, Debug)]
pub(super) struct SocketLimits {
    pub(super) header_timeout: Duration,
    pub(super) body_timeout: Duration,
    pub(super) max_head_bytes: usize,
}

#[derive(Debug)]
pub(super) struct Http2Socket {
    stream: Stream,
    flow: Arc<ConnectionFlow>,
    /// Bytes that were read to detect the protocol.
    ahead: Bytes,
    frames: FrameInspector,
    /// The deadline of a frame or a write that has begun.
    alarm: Arc<Alarm>,
    limits: SocketLimits,
    cut: bool,
    /// Bytes that are still read and discarded from a client that does not speak HTTP/2.
    linger_left: Option<usize>,
}

impl Http2Socket {
    pub(super) fn new(
        opened: PrefixedStream,
        flow: Arc<ConnectionFlow>,
        alarm: Arc<Alarm>,
        limits: SocketLimits,
    ) -> Http2Socket {
        alarm.arm(limits.header_timeout);
        Http2Socket {
            stream: opened.stream,
            flow,
            ahead: opened.prefix,
            frames: FrameInspector::new(limits.max_head_bytes),
            alarm,
            limits,
            cut: false,
            linger_left: None,
        }
    }

    /// Sends [`FOREIGN`] to a client that does not begin as HTTP/2 does, and reads for a while. A
    /// close with unread bytes resets the connection, and the reset can overtake the frame.
    fn poll_refuse(&mut self, cx: &mut Context<'_>) -> Poll<io::Error> {
        if self.linger_left.is_none() {
            tracing::debug!("an HTTP/2 client did not send the preface and SETTINGS first");
            self.linger_left = Some(LINGER_BYTES);
            self.alarm.arm(LINGER);
            let _ = Pin::new(&mut self.stream).poll_write(cx, FOREIGN);
            let _ = Pin::new(&mut self.stream).poll_shutdown(cx);
        }
        let mut left = self.linger_left.unwrap_or(0);
        if left > 0 && self.stream.poll_discard(cx, &mut left).is_pending() {
            self.linger_left = Some(left);
            ready!(self.alarm.poll(cx));
        }
        self.linger_left = Some(0);
        Poll::Ready(io::ErrorKind::InvalidData.into())
    }

    /// Inspects bytes that were read. Returns how many of them pass unchanged.
    fn inspect(&mut self, cx: &mut Context<'_>, bytes: &[u8]) -> io::Result<usize> {
        let was_unfinished = self.frames.is_unfinished();
        let passed = self.frames.inspect(bytes);
        let is_stalled = self.flow.is_stalled.load(Ordering::Relaxed);
        if !is_stalled && was_unfinished != self.frames.is_unfinished() {
            self.restart_head_deadline();
        }
        if self.flow.spend(passed.cost) {
            return Ok(passed.unchanged);
        }
        tracing::debug!("an HTTP/2 client sends too many frames without content");
        if !self.cut {
            // One attempt is enough.
            let _ = Pin::new(&mut self.stream).poll_write(cx, CALM);
        }
        Err(io::ErrorKind::ConnectionAborted.into())
    }

    fn restart_head_deadline(&self) {
        match self.frames.is_unfinished() {
            true => self.alarm.arm(self.limits.header_timeout),
            false => self.alarm.disarm(),
        }
    }

    fn poll_bytes(&mut self, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if !self.ahead.is_empty() {
            move_bytes(&mut self.ahead, buf);
            return Poll::Ready(Ok(()));
        }
        let read = Pin::new(&mut self.stream).poll_read(cx, buf);
        if read.is_pending() {
            ready!(self.alarm.poll(cx));
            return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
        }
        read
    }

    fn end_stall(&self) {
        if self.flow.is_stalled.swap(false, Ordering::Relaxed) {
            self.restart_head_deadline();
        }
    }

    /// Applies the deadline of a write: as long as a body may make no progress.
    fn poll_write_alarm(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        if !self.flow.is_stalled.swap(true, Ordering::Relaxed) {
            self.alarm.arm(self.limits.body_timeout);
        }
        ready!(self.alarm.poll(cx));
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }
}

/// Moves bytes from the front of `from` to `buf`, as far as there is room.
fn move_bytes(from: &mut impl Buf, buf: &mut ReadBuf<'_>) {
    let count = from.remaining().min(buf.remaining());
    buf.put_slice(&from.chunk()[..count]);
    from.advance(count);
}

impl AsyncRead for Http2Socket {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if this.frames.is_foreign() {
            return this.poll_refuse(cx).map(Err);
        }
        let before = buf.filled().len();
        // If all bytes are held, it reads again, because an empty read would mean the end.
        loop {
            move_bytes(&mut this.frames.ready, buf);
            if buf.filled().len() > before {
                return Poll::Ready(Ok(()));
            }
            ready!(this.poll_bytes(cx, buf))?;
            if buf.filled().len() == before {
                return Poll::Ready(Ok(()));
            }
            let passed = this.inspect(cx, &buf.filled()[before..]);
            if this.frames.is_foreign() {
                buf.set_filled(before);
                return this.poll_refuse(cx).map(Err);
            }
            buf.set_filled(before + passed?);
        }
    }
}

impl AsyncWrite for Http2Socket {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.poll_write_vectored(cx, &[IoSlice::new(bytes)])
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let length = slices.iter().map(|slice| slice.len()).sum();
        if this.linger_left.is_some() {
            return Poll::Ready(Ok(length));
        }
        match Pin::new(&mut this.stream).poll_write_vectored(cx, slices) {
            Poll::Pending => this.poll_write_alarm(cx),
            Poll::Ready(written) => {
                let written = written?;
                this.cut = written < length;
                this.end_stall();
                Poll::Ready(Ok(written))
            }
        }
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        // TLS records may wait for room in the socket.
        if Pin::new(&mut this.stream).poll_flush(cx)?.is_pending() {
            return this.poll_write_alarm(cx).map_ok(drop);
        }
        this.end_stall();
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_shutdown(cx)
    }
}
