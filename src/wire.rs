//! The transport under a connection, to a client or to an upstream: TCP or a unix socket, as one
//! type without a box.
//!
//! It joins small writes: up to [`JOIN_BYTES`] a copy costs less than handing the kernel several
//! pieces. Larger ones go out as they are, so that bodies are not copied.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll};

use smallvec::SmallVec;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, UnixStream};

/// Up to this many bytes, pieces of a write are joined.
const JOIN_BYTES: usize = 4096;

/// See the file's head.
#[derive(Debug)]
pub(crate) enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Stream {
    /// Whether the peer has ended its side, when nothing it sent is waiting: `Ready(Ok(true))`.
    /// Registers for news if there is none. A unix socket has no peek, and never tells.
    pub(crate) fn poll_ended(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<bool>> {
        let Stream::Tcp(stream) = self else {
            return Poll::Pending;
        };
        let mut byte = [0];
        stream
            .poll_peek(cx, &mut ReadBuf::new(&mut byte))
            .map_ok(|waiting| waiting == 0)
    }
}

impl AsyncRead for Stream {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Stream::Tcp(stream) => Pin::new(stream).poll_read(cx, buf),
            Stream::Unix(stream) => Pin::new(stream).poll_read(cx, buf),
        }
    }
}

impl AsyncWrite for Stream {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Stream::Tcp(stream) => Pin::new(stream).poll_write(cx, bytes),
            Stream::Unix(stream) => Pin::new(stream).poll_write(cx, bytes),
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        pieces: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        if let [one] = pieces {
            return self.poll_write(cx, one);
        }
        let length: usize = pieces.iter().map(|piece| piece.len()).sum();
        if length <= JOIN_BYTES {
            let mut joined = SmallVec::<[u8; JOIN_BYTES]>::new();
            for piece in pieces {
                joined.extend_from_slice(piece);
            }
            return self.poll_write(cx, &joined);
        }
        match self.get_mut() {
            Stream::Tcp(stream) => Pin::new(stream).poll_write_vectored(cx, pieces),
            Stream::Unix(stream) => Pin::new(stream).poll_write_vectored(cx, pieces),
        }
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        // A socket has no buffer of its own.
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Stream::Tcp(stream) => Pin::new(stream).poll_shutdown(cx),
            Stream::Unix(stream) => Pin::new(stream).poll_shutdown(cx),
        }
    }
}
