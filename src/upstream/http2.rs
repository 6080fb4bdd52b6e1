//! HTTP/2 to one server: connections that carry many requests at once.
//!
//! A request takes a place on a connection with room: the server says how many streams it takes.
//! A connection that the server asks to leave (GOAWAY), or on which it was silent until a request's
//! time was up, gets no new requests and ends with its last one. It must never take for unsent
//! what its server may have seen.

mod download;
mod exchange;
mod upload;

use std::future::{Future as _, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;
use h2::client::{Builder, SendRequest};
use tokio::io::{AsyncRead, AsyncWrite};

use crate::clock::Alarm;
use download::Download;
pub(super) use exchange::Stream;

/// Requests at once on one connection, whatever more its server would take.
const MAX_STREAMS: usize = 128;
/// Bytes of one response that may come before somebody reads them.
const STREAM_WINDOW_BYTES: u32 = 256 << 10;
/// The same for a connection: enough for all, so that slow readers take nothing from the others.
const CONNECTION_WINDOW_BYTES: u32 = STREAM_WINDOW_BYTES * MAX_STREAMS as u32;
/// Bytes of one request that may wait for the network.
const SEND_BUFFER_BYTES: usize = 128 << 10;
/// Bytes in the head of a response, or in its trailers.
const MAX_HEAD_BYTES: u32 = 64 << 10;
/// Streams until the server has said how many it takes: a number that none can say.
const UNSAID: usize = usize::MAX - 1;

/// A connection that carries many requests.
#[derive(Debug)]
pub(super) struct Connection {
    sender: SendRequest<Bytes>,
    /// Requests on it now.
    streams: AtomicUsize,
    /// Whether it gets no new requests.
    retired: AtomicBool,
    /// Counts what has come on it.
    heard: AtomicU32,
    /// Rings when it has been without a request for `idle`.
    unused: Arc<Alarm>,
    idle: Duration,
}

/// Opens a connection over `io`: it stands when the server's settings have come, so that whoever
/// does not speak HTTP/2 is found out before a request is sent.
pub(super) async fn open<T>(
    io: T,
    (unused, idle): (Arc<Alarm>, Duration),
) -> Result<Arc<Connection>, h2::Error>
where
    T: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let (sender, mut task) = Builder::new()
        .initial_window_size(STREAM_WINDOW_BYTES)
        .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
        .initial_max_send_streams(UNSAID)
        .max_send_buffer_size(SEND_BUFFER_BYTES)
        .max_header_list_size(MAX_HEAD_BYTES)
        .enable_push(false)
        .handshake::<_, Bytes>(io)
        .await?;
    poll_fn(|context| {
        if let Poll::Ready(ended) = Pin::new(&mut task).poll(context) {
            let early = || h2::Error::from(h2::Reason::PROTOCOL_ERROR);
            return Poll::Ready(Err(ended.err().unwrap_or_else(early)));
        }
        if sender.current_max_send_streams() == UNSAID {
            return Poll::Pending;
        }
        Poll::Ready(Ok(()))
    })
    .await?;
    let connection = Arc::new(Connection {
        sender,
        streams: AtomicUsize::new(0),
        retired: AtomicBool::new(false),
        heard: AtomicU32::new(0),
        unused,
        idle,
    });
    let known = Arc::downgrade(&connection);
    tokio::spawn(async move {
        // Whoever waits for an answer is told as well; between requests it is no news.
        if let Err(error) = task.await {
            tracing::debug!(%error, "upstream connection");
        }
        if let Some(connection) = known.upgrade() {
            connection.retire();
        }
    });
    Ok(connection)
}

impl Connection {
    /// Whether another request may begin on it.
    pub(super) fn has_room(&self) -> bool {
        let most = self.sender.current_max_send_streams().min(MAX_STREAMS);
        !self.is_retired() && self.streams.load(Ordering::Relaxed) < most
    }

    pub(super) fn is_retired(&self) -> bool {
        self.retired.load(Ordering::Relaxed)
    }

    /// It gets no new requests; those under way go on.
    fn retire(&self) {
        self.retired.store(true, Ordering::Relaxed);
    }

    fn hear(&self) {
        self.heard.fetch_add(1, Ordering::Relaxed);
    }

    /// Whether it should be let go: dropped, it ends with its last request.
    pub(super) fn is_over(&self) -> bool {
        let unused = self.streams.load(Ordering::Relaxed) == 0;
        self.is_retired() || (unused && self.unused.has_rung())
    }

    fn enter(&self) {
        self.streams.fetch_add(1, Ordering::Relaxed);
        self.unused.disarm();
    }

    fn leave(&self) {
        if self.streams.fetch_sub(1, Ordering::Relaxed) == 1 {
            self.unused.arm(self.idle);
        }
    }
}
