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
use tokio::sync::watch;

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
    /// Whether its server let too much time pass without a word.
    silent: AtomicBool,
    greeted: watch::Sender<SettingsStatus>,
    /// Requests that it takes until its server has said how many.
    at_first: usize,
    /// Counts what has come on it.
    heard: AtomicU32,
    /// Rings when it has been without a request for `idle`, and before its server's settings have
    /// come, when those are late.
    unused: Arc<Alarm>,
    idle: Duration,
}

/// How a connection is opened.
pub(super) struct ConnectionTerms {
    /// Rings when the server's settings have not come in `patience`, then when the connection was
    /// without a request for `idle`.
    pub(super) alarm: Arc<Alarm>,
    pub(super) patience: Duration,
    pub(super) idle: Duration,
    /// Requests that it takes until the settings say how many.
    pub(super) at_first: usize,
}

/// Opens a connection over `io`. Requests may be sent at once, before the server's settings have
/// come (RFC 9113 section 3.4).
pub(super) async fn open<T>(io: T, opening: ConnectionTerms) -> Result<Arc<Connection>, h2::Error>
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
    opening.alarm.arm(opening.patience);
    let connection = Arc::new(Connection {
        sender,
        streams: AtomicUsize::new(0),
        retired: AtomicBool::new(false),
        silent: AtomicBool::new(false),
        greeted: watch::Sender::new(SettingsStatus::Awaited),
        at_first: opening.at_first,
        heard: AtomicU32::new(0),
        unused: opening.alarm,
        idle: opening.idle,
    });
    let known = Arc::downgrade(&connection);
    tokio::spawn(async move {
        let mut is_greeted = false;
        let ended = poll_fn(|context| {
            let polled = Pin::new(&mut task).poll(context);
            if !is_greeted && let Some(connection) = known.upgrade() {
                is_greeted = connection.look_for_greeting();
                if !is_greeted && connection.unused.poll(context).is_ready() {
                    connection.silent.store(true, Ordering::Relaxed);
                    return Poll::Ready(Ok(()));
                }
            }
            polled
        });
        // Whoever waits for an answer is told as well; between requests it is no news.
        if let Err(error) = ended.await {
            tracing::debug!(%error, "upstream connection");
        }
        if let Some(connection) = known.upgrade() {
            connection.retire();
            connection.greeted.send_replace(SettingsStatus::Ended);
        }
    });
    Ok(connection)
}

/// Whether a server's settings have come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SettingsStatus {
    Awaited,
    Came,
    /// The connection has ended.
    Ended,
}

impl Connection {
    /// Whether the server's settings have come: only then it is known to speak HTTP/2.
    pub(super) fn is_greeted(&self) -> bool {
        self.sender.current_max_send_streams() != UNSAID
    }

    /// The same, told to those who wait for it.
    fn look_for_greeting(&self) -> bool {
        if !self.is_greeted() {
            return false;
        }
        self.unused.disarm();
        if self.streams.load(Ordering::Relaxed) == 0 {
            self.unused.arm(self.idle);
        }
        self.greeted.send_replace(SettingsStatus::Came);
        true
    }

    /// Waits until the server's settings have come; whether they have.
    pub(super) async fn wait_for_greeting(&self) -> bool {
        let mut greeted = self.greeted.subscribe();
        let said = greeted
            .wait_for(|said| *said != SettingsStatus::Awaited)
            .await;
        said.is_ok_and(|said| *said == SettingsStatus::Came)
    }

    /// Whether its server let too much time pass without a word.
    pub(super) fn is_silent(&self) -> bool {
        self.silent.load(Ordering::Relaxed)
    }

    /// Requests that it takes at once.
    pub(super) fn most_streams(&self) -> usize {
        match self.sender.current_max_send_streams() {
            UNSAID => self.at_first,
            most => most.min(MAX_STREAMS),
        }
    }

    /// Whether another request may begin on it.
    pub(super) fn has_room(&self) -> bool {
        let most = self.most_streams();
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
        if self.is_greeted() {
            self.unused.disarm();
        }
    }

    fn leave(&self) {
        if self.streams.fetch_sub(1, Ordering::Relaxed) == 1 && self.is_greeted() {
            self.unused.arm(self.idle);
        }
    }
}
