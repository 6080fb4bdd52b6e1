//! The transport of a connection to a client or to an upstream: TCP, a unix socket, or TLS over one
//! of them. [`Outflow`] has the bytes that wait to be written.

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::net::IpAddr;
use std::pin::Pin;
use std::task::{Context, Poll, Waker, ready};

use bytes::{Buf, Bytes};
use smallvec::SmallVec;
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};
use tokio::net::{TcpStream, UnixStream};
use tokio_rustls::TlsStream;

use crate::route::template::Ports;

/// A vectored write of at most this many bytes is copied into one buffer. The copy costs less than
/// a system call with several buffers.
const JOIN_BYTES: usize = 4096;

/// Bytes of one discarding read, and how many such reads may follow each other.
const DISCARD_READ_BYTES: usize = 64 << 10;
const DISCARD_READS: usize = 8;

/// Limits of [`Outflow`]: bytes of content, and pieces of content. One more piece may exceed them.
const MAX_WAITING_BYTES: usize = 64 << 10;
const MAX_WAITING: usize = 16;
/// Bytes of heads and chunk framing in an [`Outflow`], until all of them are written.
const MAX_FLAT_BYTES: usize = 128 << 10;
/// Capacity that an idle [`Outflow`] keeps.
const KEPT_BYTES: usize = 8 << 10;
/// The largest number of slices in one write.
pub const MAX_PIECES: usize = 2 * MAX_WAITING + 3;

#[derive(Debug)]
pub enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
    Tls(Box<TlsStream<Stream>>),
}

/// A stream, and bytes that were read from it and are not used yet.
#[derive(Debug)]
pub struct PrefixedStream {
    pub stream: Stream,
    pub prefix: Bytes,
}

/// An accepted connection of a client. Nothing has been read from it.
#[derive(Debug)]
pub struct Accepted {
    pub stream: Stream,
    pub ip: IpAddr,
}

impl Stream {
    /// Reads the next bytes and leaves them in the socket. Fails on a TLS stream.
    pub async fn peek(&self, buf: &mut [u8]) -> io::Result<usize> {
        match self {
            Stream::Tcp(stream) => stream.peek(buf).await,
            Stream::Unix(stream) => {
                let peek = || {
                    let flags = rustix::net::RecvFlags::PEEK;
                    let (length, _) = rustix::net::recv(stream, &mut *buf, flags)?;
                    Ok(length)
                };
                stream.async_io(Interest::READABLE, peek).await
            }
            Stream::Tls(_) => Err(io::ErrorKind::Unsupported.into()),
        }
    }

    /// The ports of a TCP connection.
    pub fn ports(&self) -> Ports {
        match self {
            Stream::Tcp(stream) => Ports {
                peer: stream.peer_addr().map_or(0, |address| address.port()),
                local: stream.local_addr().map_or(0, |address| address.port()),
            },
            Stream::Unix(_) | Stream::Tls(_) => Ports::default(),
        }
    }

    /// Has the end of the stream be an error for the peer: TCP resets the connection. With TLS, the
    /// missing `close_notify` says it.
    pub fn end_as_cut(&self) {
        if let Stream::Tcp(stream) = self {
            let _ = stream.set_zero_linger();
        }
    }

    /// Whether ALPN chose HTTP/2; `None` without TLS.
    pub fn agreed_http2(&self) -> Option<bool> {
        let Stream::Tls(stream) = self else {
            return None;
        };
        Some(stream.get_ref().1.alpn_protocol() == Some(b"h2"))
    }

    /// Whether no unread byte has come and the peer has not closed. The call may consume a byte.
    /// Without TLS it makes a system call only if the socket is marked readable.
    pub fn is_quiet(&mut self) -> bool {
        let read = match self {
            Stream::Tcp(stream) => stream.try_read(&mut [0]),
            Stream::Unix(stream) => stream.try_read(&mut [0]),
            Stream::Tls(stream) => {
                let mut context = Context::from_waker(Waker::noop());
                let mut byte = [0];
                let mut byte = ReadBuf::new(&mut byte);
                return Pin::new(stream)
                    .poll_read(&mut context, &mut byte)
                    .is_pending();
            }
        };
        read.is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock)
    }

    /// `Ready(Ok(true))` once the peer has closed its side and all that it sent was read. Always
    /// pending for a unix socket, where tokio has no peek, and for TLS, where bytes may be an
    /// alert.
    pub fn poll_ended(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<bool>> {
        let Stream::Tcp(stream) = self else {
            return Poll::Pending;
        };
        let mut byte = [0];
        stream
            .poll_peek(cx, &mut ReadBuf::new(&mut byte))
            .map_ok(|length| length == 0)
    }

    /// Reads and discards at most `left` bytes. Ready at this limit and at the end of the stream.
    pub fn poll_discard(&mut self, cx: &mut Context<'_>, left: &mut usize) -> Poll<()> {
        let mut scratch = [MaybeUninit::uninit(); DISCARD_READ_BYTES];
        for _ in 0..DISCARD_READS {
            let mut buf = ReadBuf::uninit(&mut scratch);
            let read = ready!(Pin::new(&mut *self).poll_read(cx, &mut buf));
            let length = buf.filled().len();
            if read.is_err() || length == 0 || length > *left {
                return Poll::Ready(());
            }
            *left -= length;
        }
        // Lets other tasks run first.
        cx.waker().wake_by_ref();
        Poll::Pending
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
            Stream::Tls(stream) => {
                let read = Pin::new(&mut *stream).poll_read(cx, buf);
                // The alert that refuses a renegotiation does not wait for the next response.
                if read.is_pending() && stream.get_ref().1.wants_write() {
                    let _ = Pin::new(stream).poll_flush(cx);
                }
                read
            }
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
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        if let [slice] = slices {
            return self.poll_write(cx, slice);
        }
        let length: usize = slices.iter().map(|slice| slice.len()).sum();
        if length <= JOIN_BYTES {
            let mut joined = SmallVec::<[u8; JOIN_BYTES]>::new();
            for slice in slices {
                joined.extend_from_slice(slice);
            }
            return self.poll_write(cx, &joined);
        }
        match self.get_mut() {
            Stream::Tcp(stream) => Pin::new(stream).poll_write_vectored(cx, slices),
            Stream::Unix(stream) => Pin::new(stream).poll_write_vectored(cx, slices),
            Stream::Tls(stream) => Pin::new(stream).poll_write_vectored(cx, slices),
        }
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            // The kernel flushes a socket.
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

/// Bytes that wait to be written. Heads are collected in one buffer; content is not copied.
#[derive(Debug, Default)]
pub struct Outflow {
    /// Heads and chunk framing, in order.
    pub flat: Vec<u8>,
    written: usize,
    /// Pieces of content, each with its position in `flat`.
    pieces: VecDeque<(usize, Bytes)>,
    waiting: usize,
}

impl Outflow {
    pub fn clear(&mut self) {
        self.flat.clear();
        self.pieces.clear();
        (self.written, self.waiting) = (0, 0);
    }

    /// Releases memory beyond `KEPT_BYTES`, because the connection is idle.
    pub fn shrink(&mut self) {
        self.flat.truncate(KEPT_BYTES);
        self.flat.shrink_to(KEPT_BYTES);
        self.pieces = VecDeque::new();
    }

    pub fn is_empty(&self) -> bool {
        self.written == self.flat.len() && self.pieces.is_empty()
    }

    /// Bytes that were put in since it was cleared, but for content that is written.
    pub fn put_bytes(&self) -> usize {
        self.flat.len() + self.waiting
    }

    pub fn has_room(&self) -> bool {
        self.waiting < MAX_WAITING_BYTES
            && self.pieces.len() < MAX_WAITING
            && self.flat.len() < MAX_FLAT_BYTES
    }

    pub fn push(&mut self, data: Bytes) {
        if !data.is_empty() {
            self.waiting += data.len();
            self.pieces.push_back((self.flat.len(), data));
        }
    }

    /// Fills `slices` with the bytes to write next. Returns how many slices it filled.
    pub fn slices<'a>(&'a self, slices: &mut [IoSlice<'a>; MAX_PIECES]) -> usize {
        let mut count = 0;
        let mut add = |part: &'a [u8]| {
            if !part.is_empty() && count < MAX_PIECES {
                slices[count] = IoSlice::new(part);
                count += 1;
            }
        };
        let mut from = self.written;
        for (at, piece) in &self.pieces {
            add(&self.flat[from..*at]);
            add(piece);
            from = *at;
        }
        add(&self.flat[from..]);
        count
    }

    /// The bytes to write next, if no content is among them.
    pub fn single_slice(&self) -> Option<&[u8]> {
        self.pieces.is_empty().then(|| &self.flat[self.written..])
    }

    pub fn advance(&mut self, mut count: usize) {
        while let Some((at, piece)) = self.pieces.front_mut() {
            let before = *at - self.written;
            if count < before {
                break;
            }
            count -= before;
            self.written = *at;
            let of_piece = count.min(piece.len());
            piece.advance(of_piece);
            self.waiting -= of_piece;
            count -= of_piece;
            if !piece.is_empty() {
                return;
            }
            self.pieces.pop_front();
        }
        self.written += count;
    }

    /// Removes and returns the pieces of content that are not written.
    pub fn take_back(&mut self) -> Vec<Bytes> {
        let pieces = self.pieces.drain(..).map(|(_, piece)| piece);
        let pieces = pieces.collect();
        self.clear();
        pieces
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    /// Everything that waits.
    fn all(outflow: &mut Outflow) -> usize {
        let mut slices = [IoSlice::new(&[]); MAX_PIECES];

        let count = outflow.slices(&mut slices);
        let length = slices[..count].iter().map(|slice| slice.len()).sum();
        outflow.advance(length);
        length
    }

    #[test]
    fn what_waits_and_what_is_kept_is_bounded() {
        let mut outflow = Outflow::default();
        let put = |outflow: &mut Outflow| {
            outflow.flat.extend_from_slice(b"1\r\n");
            outflow.push("x".into());
            outflow.flat.extend_from_slice(b"\r\n");
        };
        let mut count = 0;
        while outflow.has_room() {
            put(&mut outflow);
            count += 1;
        }
        assert_eq!(count, MAX_WAITING);
        assert_eq!(all(&mut outflow), MAX_WAITING * 6);
        assert!(outflow.is_empty() && outflow.has_room());
        // Pieces that leave one at a time do not let what is between them grow for ever.
        for _ in 0..1_000_000 {
            if !outflow.has_room() {
                break;
            }
            put(&mut outflow);
            outflow.advance(5);
        }
        assert!(!outflow.has_room() && outflow.flat.len() <= MAX_FLAT_BYTES + 9);
        outflow.shrink();
        assert!(outflow.flat.capacity() <= KEPT_BYTES);
        outflow.clear();
        assert!(outflow.has_room() && outflow.is_empty());
        outflow.push(Bytes::from(vec![b'x'; MAX_WAITING_BYTES]));
        assert!(!outflow.has_room());
    }
}
