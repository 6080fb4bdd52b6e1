//! The transport under a connection, to a client or to an upstream: TCP or a unix socket, or
//! TLS over one of them, as one type; only TLS is in a box.
//!
//! It joins small writes: up to [`JOIN_BYTES`] a copy costs less than handing the kernel several
//! pieces. Larger ones go out as they are, so that bodies are not copied.

pub mod outflow;
pub mod spelling;

use std::io::{self, IoSlice};
use std::net::IpAddr;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use smallvec::SmallVec;
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};
use tokio::net::{TcpStream, UnixStream};
use tokio_rustls::TlsStream;

/// Up to this many bytes, pieces of a write are joined.
const JOIN_BYTES: usize = 4096;

/// See the file's head.
#[derive(Debug)]
pub enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
    Tls(Box<TlsStream<Stream>>),
}

/// A stream of which the first bytes have been read, and are not used yet.
#[derive(Debug)]
pub struct PrefixedStream {
    pub stream: Stream,
    pub prefix: Bytes,
}

/// A client's connection as it was accepted: nothing has been read of it.
#[derive(Debug)]
pub struct Accepted {
    pub stream: Stream,
    pub ip: IpAddr,
}

impl Stream {
    /// Looks at what comes next and leaves it there. Not possible once TLS is spoken.
    pub async fn peek(&self, look: &mut [u8]) -> io::Result<usize> {
        match self {
            Stream::Tcp(stream) => stream.peek(look).await,
            Stream::Unix(stream) => {
                let peek = || {
                    let flags = rustix::net::RecvFlags::PEEK;
                    let (seen, _) = rustix::net::recv(stream, &mut *look, flags)?;
                    Ok(seen)
                };
                stream.async_io(Interest::READABLE, peek).await
            }
            Stream::Tls(_) => Err(io::ErrorKind::Unsupported.into()),
        }
    }

    /// Whether TLS was asked for HTTP/2; nothing in the clear.
    pub fn agreed_http2(&self) -> Option<bool> {
        let Stream::Tls(stream) = self else {
            return None;
        };
        Some(stream.get_ref().1.alpn_protocol() == Some(b"h2"))
    }

    /// Whether nothing has come that nobody has read, and the peer has not ended. A byte of what
    /// has come may be lost by asking. In the clear it takes a system call only where there is
    /// news.
    pub fn is_quiet(&mut self) -> bool {
        let looked = match self {
            Stream::Tcp(stream) => stream.try_read(&mut [0]),
            Stream::Unix(stream) => stream.try_read(&mut [0]),
            Stream::Tls(stream) => {
                let mut nobody = Context::from_waker(Waker::noop());
                let mut byte = [0];
                let mut byte = ReadBuf::new(&mut byte);
                return Pin::new(stream)
                    .poll_read(&mut nobody, &mut byte)
                    .is_pending();
            }
        };
        looked.is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock)
    }

    /// Whether the peer has ended its side, when nothing it sent is waiting: `Ready(Ok(true))`.
    /// Registers for news if there is none. A unix socket has no peek, and what
    /// comes over TLS may be an alert: they never tell.
    pub fn poll_ended(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<bool>> {
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
            Stream::Tls(stream) => Pin::new(stream).poll_read(cx, buf),
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
            Stream::Tls(stream) => Pin::new(stream).poll_write(cx, bytes),
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
            Stream::Tls(stream) => Pin::new(stream).poll_write_vectored(cx, pieces),
        }
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            // A socket has no buffer of its own.
            Stream::Tcp(_) | Stream::Unix(_) => Poll::Ready(Ok(())),
            Stream::Tls(stream) => Pin::new(stream).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Stream::Tcp(stream) => Pin::new(stream).poll_shutdown(cx),
            Stream::Unix(stream) => Pin::new(stream).poll_shutdown(cx),
            Stream::Tls(stream) => Pin::new(stream).poll_shutdown(cx),
        }
    }
}
