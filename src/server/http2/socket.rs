//! A client's socket under HTTP/2: it counts the frames that pass, and holds waits that concern
//! the whole connection to their limits. Those of single streams are theirs.
//!
//! It changes two things: it writes a malformed head anew (`frames`), and tells a client that
//! exceeds its allowance so, in a last frame.

use std::io;
use std::mem::MaybeUninit;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Buf, Bytes};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::Flow;
use super::frames::Frames;
use crate::clock::Alarm;
use crate::wire::{PrefixedStream, Stream};

/// GOAWAY with ENHANCE_YOUR_CALM; that nothing below the highest stream was refused is not claimed.
const CALM: &[u8] = &[
    0, 0, 8, 7, 0, 0, 0, 0, 0, 0x7f, 0xff, 0xff, 0xff, 0, 0, 0, 11,
];

/// GOAWAY with PROTOCOL_ERROR, before any stream.
const FOREIGN: &[u8] = &[0, 0, 8, 7, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1];
/// How long, and for how many bytes, a client is listened to that was told that.
const LINGER: Duration = Duration::from_secs(2);
const LINGER_BYTES: usize = 1 << 20;
const LINGER_READ_BYTES: usize = 4 << 10;

/// How long a client is waited for, and how much of a head is held.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bounds {
    pub(super) header_timeout: Duration,
    pub(super) body_timeout: Duration,
    pub(super) max_head_bytes: usize,
}

/// See the file's head.
#[derive(Debug)]
pub(super) struct Socket {
    stream: Stream,
    flow: Arc<Flow>,
    /// What was read before it was known what is spoken.
    ahead: Bytes,
    frames: Frames,
    /// For what has begun and not ended: a frame, a write.
    alarm: Arc<Alarm>,
    header_timeout: Duration,
    body_timeout: Duration,
    /// A write has found no room, and none has gone through since.
    stalled: bool,
    /// The last write ended where a frame may not: within one.
    cut: bool,
    /// Bytes that are still read, and thrown away, of what is no HTTP/2.
    linger_left: Option<usize>,
}

impl Socket {
    pub(super) fn new(
        opened: PrefixedStream,
        flow: Arc<Flow>,
        alarm: Arc<Alarm>,
        bounds: Bounds,
    ) -> Socket {
        let Bounds {
            header_timeout,
            body_timeout,
            max_head_bytes,
        } = bounds;
        alarm.arm(header_timeout);
        Socket {
            stream: opened.stream,
            flow,
            ahead: opened.prefix,
            frames: Frames::new(max_head_bytes),
            alarm,
            header_timeout,
            body_timeout,
            stalled: false,
            cut: false,
            linger_left: None,
        }
    }

    /// Tells a client that does not begin as HTTP/2 does, and listens to it until it has read that:
    /// a connection that is closed with unread bytes is reset, and the reset can overtake.
    fn poll_farewell(&mut self, cx: &mut Context<'_>) -> Poll<io::Error> {
        if self.linger_left.is_none() {
            tracing::debug!("a client of HTTP/2 does not begin with the preface and SETTINGS");
            self.linger_left = Some(LINGER_BYTES);
            self.alarm.arm(LINGER);
            let _ = Pin::new(&mut self.stream).poll_write(cx, FOREIGN);
            let _ = Pin::new(&mut self.stream).poll_shutdown(cx);
        }
        let mut scratch = [MaybeUninit::uninit(); LINGER_READ_BYTES];
        while let Some(left) = self.linger_left.filter(|&left| left > 0) {
            let mut buf = ReadBuf::uninit(&mut scratch);
            match Pin::new(&mut self.stream).poll_read(cx, &mut buf) {
                Poll::Ready(Ok(())) if !buf.filled().is_empty() => {
                    self.linger_left = Some(left.saturating_sub(buf.filled().len()));
                }
                Poll::Ready(_) => break,
                Poll::Pending => {
                    ready!(self.alarm.poll(cx));
                    break;
                }
            }
        }
        self.linger_left = Some(0);
        Poll::Ready(io::ErrorKind::InvalidData.into())
    }

    /// Bytes at the beginning of `bytes` that pass as they are.
    fn note_read(&mut self, cx: &mut Context<'_>, bytes: &[u8]) -> io::Result<usize> {
        let was_unfinished = self.frames.is_unfinished();
        let passed = self.frames.look(bytes);
        if !self.stalled {
            match (was_unfinished, self.frames.is_unfinished()) {
                (false, true) => self.alarm.arm(self.header_timeout),
                (true, false) => self.alarm.disarm(),
                _ => {}
            }
        }
        if self.flow.spend(passed.cost) {
            return Ok(passed.as_they_are);
        }
        tracing::debug!("a client of HTTP/2 sends too many frames that move nothing");
        if !self.cut {
            // One attempt: a client that does not read this has no use for it.
            let _ = Pin::new(&mut self.stream).poll_write(cx, CALM);
        }
        Err(io::ErrorKind::ConnectionAborted.into())
    }

    /// Bytes from the client, as they come.
    fn poll_bytes(&mut self, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if !self.ahead.is_empty() {
            let taken = self.ahead.len().min(buf.remaining());
            buf.put_slice(&self.ahead[..taken]);
            self.ahead.advance(taken);
            return Poll::Ready(Ok(()));
        }
        let read = Pin::new(&mut self.stream).poll_read(cx, buf);
        if read.is_pending() {
            ready!(self.alarm.poll(cx));
            return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
        }
        read
    }

    fn give_ready(&mut self, buf: &mut ReadBuf<'_>) {
        let ready = &mut self.frames.ready;
        let taken = ready.len().min(buf.remaining());
        buf.put_slice(&ready[..taken]);
        ready.advance(taken);
    }

    fn note_write(&mut self, whole: usize, written: &Poll<io::Result<usize>>) {
        let &Poll::Ready(Ok(written)) = written else {
            return;
        };
        self.cut = written < whole;
        if std::mem::take(&mut self.stalled) {
            if self.frames.is_unfinished() {
                self.alarm.arm(self.header_timeout);
            } else {
                self.alarm.disarm();
            }
        }
    }

    /// A reader that takes nothing is waited for as long as a body may stand still.
    fn poll_write_alarm(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        if !self.stalled {
            self.stalled = true;
            self.alarm.arm(self.body_timeout);
        }
        ready!(self.alarm.poll(cx));
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }
}

impl AsyncRead for Socket {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if this.frames.is_foreign() {
            return this.poll_farewell(cx).map(Err);
        }
        let before = buf.filled().len();
        // A read whose bytes are all held is followed by another: none would be the end.
        loop {
            this.give_ready(buf);
            if buf.filled().len() > before {
                return Poll::Ready(Ok(()));
            }
            ready!(this.poll_bytes(cx, buf))?;
            if buf.filled().len() == before {
                return Poll::Ready(Ok(()));
            }
            let passed = this.note_read(cx, &buf.filled()[before..]);
            if this.frames.is_foreign() {
                buf.set_filled(before);
                return this.poll_farewell(cx).map(Err);
            }
            buf.set_filled(before + passed?);
        }
    }
}

impl AsyncWrite for Socket {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        if this.linger_left.is_some() {
            return Poll::Ready(Ok(bytes.len()));
        }
        let written = Pin::new(&mut this.stream).poll_write(cx, bytes);
        if written.is_pending() {
            return this.poll_write_alarm(cx);
        }
        this.note_write(bytes.len(), &written);
        written
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        pieces: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        if this.linger_left.is_some() {
            return Poll::Ready(Ok(pieces.iter().map(|piece| piece.len()).sum()));
        }
        let written = Pin::new(&mut this.stream).poll_write_vectored(cx, pieces);
        if written.is_pending() {
            return this.poll_write_alarm(cx);
        }
        this.note_write(pieces.iter().map(|piece| piece.len()).sum(), &written);
        written
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_shutdown(cx)
    }
}
