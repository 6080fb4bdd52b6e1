//! The socket under a connection, which two read and write in turn: the redis crate, which shakes
//! hands, logs in and does all that is seldom, and whoever asks for decisions, by [`Line::ask`]. A
//! command that is asked here is written and its reply read in the task that wants it; by the
//! crate it passes two queues and another task, which costs more than all else that we do for it.
//!
//! The line is the crate's until it is taken, and again from when it is given back. Taken, nothing
//! may be asked through the crate, and nothing may be under way there: whose an answer is depends
//! on the order of the questions alone. `Link` sees to that.

use std::future::poll_fn;
use std::io;
use std::ops::Range;
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker, ready};

use memchr::memchr;
use redis::{ErrorKind, RedisError, parse_redis_value};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, ReadBuf};

use crate::wire::Stream;

/// What a reply of a usual call has room in.
const ROOM: usize = 4 << 10;
/// Room that is not kept for the next reply.
const MOST_KEPT: usize = 64 << 10;
/// More than any call of ours is answered with.
const MOST: usize = 64 << 20;
/// More than any line of an error.
const MOST_LINE: usize = 64 << 10;
/// What ends a string.
const END: &[u8] = b"\r\n";

/// One of the two ends that the socket is held by.
#[derive(Clone, Debug)]
struct Shared(Arc<Mutex<Held>>);

#[derive(Debug)]
struct Held {
    stream: Stream,
    /// The crate waits until the line is given back.
    is_taken: bool,
    /// Its reader, if it has come meanwhile.
    waits: Option<Waker>,
    /// What came while the line was taken and was not asked for: the crate reads it first.
    unread: Vec<u8>,
}

/// Ours.
#[derive(Debug)]
pub(super) struct Line {
    shared: Shared,
    is_taken: bool,
    read: Vec<u8>,
}

/// The crate's.
#[derive(Debug)]
pub(super) struct Lent(Shared);

/// Both ends of a socket.
pub(super) fn shared(stream: Stream) -> (Line, Lent) {
    let held = Held {
        stream,
        is_taken: false,
        waits: None,
        unread: Vec::new(),
    };
    let shared = Shared(Arc::new(Mutex::new(held)));
    let line = Line {
        shared: shared.clone(),
        is_taken: false,
        read: Vec::new(),
    };
    (line, Lent(shared))
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Held> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Line {
    /// Sends a packed command, and waits for its reply, which is to be a string. Dropped before it
    /// has the reply, the connection is of no more use.
    pub(super) async fn ask(&mut self, command: &[u8]) -> Result<&[u8], RedisError> {
        self.take();
        self.read.clear();
        self.read.shrink_to(MOST_KEPT);
        let (mut rest, shared, read) = (command, &self.shared, &mut self.read);
        let place = poll_fn(|cx| {
            let mut held = shared.lock();
            while !rest.is_empty() {
                let written = ready!(Pin::new(&mut held.stream).poll_write(cx, rest))?;
                if written == 0 {
                    return Poll::Ready(Err(io::Error::from(io::ErrorKind::WriteZero).into()));
                }
                rest = &rest[written..];
            }
            ready!(Pin::new(&mut held.stream).poll_flush(cx))?;
            loop {
                ready!(held.poll_more(cx, read))?;
                if let Some(place) = reply_in(read)? {
                    held.unread
                        .extend_from_slice(&read[place.end + END.len()..]);
                    return Poll::Ready(Ok::<_, RedisError>(place));
                }
            }
        });
        let place = place.await?;
        Ok(&self.read[place])
    }

    /// Keeps a reply that came another way.
    pub(super) fn keep(&mut self, reply: Vec<u8>) -> &[u8] {
        self.read = reply;
        &self.read
    }

    fn take(&mut self) {
        if !self.is_taken {
            self.is_taken = true;
            self.shared.lock().is_taken = true;
        }
    }

    /// From here on the crate reads, and may be asked.
    pub(super) fn give_back(&mut self) {
        if !self.is_taken {
            return;
        }
        self.is_taken = false;
        let mut held = self.shared.lock();
        held.is_taken = false;
        let waits = held.waits.take();
        drop(held);
        if let Some(waits) = waits {
            waits.wake();
        }
    }

    /// Resolves when the connection has ended while it was ours; else the crate tells. What comes
    /// unasked is the crate's.
    pub(super) async fn end(&mut self) {
        if self.is_taken {
            self.read.clear();
            let (shared, read) = (&self.shared, &mut self.read);
            let came = poll_fn(|cx| shared.lock().poll_more(cx, read)).await;
            if came.is_err() {
                return;
            }
            self.shared.lock().unread.extend_from_slice(&self.read);
            self.give_back();
        }
        std::future::pending().await
    }
}

impl Held {
    /// Reads what has come behind what was read before.
    fn poll_more(&mut self, cx: &mut Context<'_>, read: &mut Vec<u8>) -> Poll<io::Result<()>> {
        read.reserve(ROOM);
        match ready!(pin!(self.stream.read_buf(read)).poll(cx))? {
            0 => Poll::Ready(Err(io::ErrorKind::UnexpectedEof.into())),
            _ => Poll::Ready(Ok(())),
        }
    }
}

/// Where the string is that a reply begins with, once it is whole; an error if it is another one.
fn reply_in(read: &[u8]) -> Result<Option<Range<usize>>, RedisError> {
    let Some(head) = memchr(b'\n', read) else {
        let is_line = read.len() < MOST_LINE;
        return is_line.then_some(None).ok_or_else(garbled);
    };
    let Some(digits) = read[..head].strip_prefix(b"$") else {
        // An error is a line.
        parse_redis_value(&read[..=head])?.extract_error()?;
        return Err(garbled());
    };
    let length = digits
        .strip_suffix(b"\r")
        .and_then(|digits| str::from_utf8(digits).ok());
    let length = length.and_then(|digits| digits.parse::<usize>().ok());
    let length = length
        .filter(|&length| length <= MOST)
        .ok_or_else(garbled)?;
    let place = head + 1..head + 1 + length;
    Ok((read.len() >= place.end + END.len()).then_some(place))
}

fn garbled() -> RedisError {
    (ErrorKind::Parse, "not the reply of a script of ours").into()
}

impl AsyncRead for Lent {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let mut held = self.0.lock();
        let mut read = Poll::Pending;
        if !held.is_taken && !held.unread.is_empty() {
            let many = held.unread.len().min(into.remaining());
            into.put_slice(&held.unread[..many]);
            held.unread.drain(..many);
            return Poll::Ready(Ok(()));
        }
        if !held.is_taken {
            read = Pin::new(&mut held.stream).poll_read(cx, into);
        }
        if read.is_pending() {
            // Also where the socket wakes it: the line may be taken, and given back, before that.
            held.waits = Some(cx.waker().clone());
        }
        read
    }
}

impl AsyncWrite for Lent {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0.lock().stream).poll_write(cx, bytes)
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0.lock().stream).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0.lock().stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncWriteExt as _;
    use tokio::net::UnixStream;

    use super::*;

    #[test]
    fn a_reply_is_a_string_once_it_is_whole() {
        let reply = b"$11\r\nall\r\ndenied\r\n";
        for end in 0..reply.len() {
            assert_eq!(reply_in(&reply[..end]).unwrap(), None);
        }
        assert_eq!(reply_in(reply).unwrap(), Some(5..16));
        assert_eq!(reply_in(b"$0\r\n\r\n").unwrap(), Some(4..4));
    }

    #[test]
    fn anything_else_is_an_error() {
        let missing = reply_in(b"-NOSCRIPT No matching script.\r\n").unwrap_err();
        assert_eq!(missing.code(), Some("NOSCRIPT"));
        let odd = [
            &b":1\r\n"[..],
            b"$-1\r\n",
            b"_\r\n",
            b"\r\n",
            b"$7\n",
            b"$99999999999\r\n",
        ];
        for reply in odd {
            let error = reply_in(reply).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Parse, "{reply:?}");
        }
        assert!(reply_in(&[b'-'; MOST_LINE]).is_err());
    }

    #[tokio::test]
    async fn the_crate_waits_while_the_line_is_taken_and_reads_what_nobody_asked_for() {
        let (mut server, ours) = UnixStream::pair().unwrap();
        let (mut line, mut lent) = shared(Stream::Unix(ours));
        server.write_all(b"+first\r\n").await.unwrap();
        let mut bytes = [0; 64];
        assert_eq!(lent.read(&mut bytes).await.unwrap(), 8);
        server.write_all(b"$2\r\nok\r\n>push").await.unwrap();
        let crates = tokio::spawn(async move {
            let mut pushed = [0; 9];
            lent.read_exact(&mut pushed).await.map(|_| pushed)
        });
        assert_eq!(line.ask(b"ask").await.unwrap(), b"ok");
        server.write_all(b"more").await.unwrap();
        // Unasked for: the line is given back by itself, and the crate is woken.
        let ended = tokio::select! {
            pushed = crates => pushed.unwrap().unwrap(),
            () = line.end() => panic!("it has not ended"),
        };
        assert_eq!(&ended, b">pushmore");
    }

    #[tokio::test]
    async fn the_end_is_seen_by_whoever_has_the_line() {
        let (mut server, ours) = UnixStream::pair().unwrap();
        let (mut line, _lent) = shared(Stream::Unix(ours));
        server.write_all(b"$0\r\n\r\n").await.unwrap();
        assert_eq!(line.ask(b"").await.unwrap(), b"");
        drop(server);
        line.end().await;
        assert!(line.ask(b"more").await.is_err());
    }
}
