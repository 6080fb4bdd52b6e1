//! HTTP/2 to one server: connections that many requests share.
//!
//! A request opens a stream on a connection with room; the server's settings limit the streams. A
//! retired connection gets no new requests and ends with its last one. A connection is retired
//! after GOAWAY, or if its server was silent until a request timed out or was given up. A request
//! that the server may have seen must never count as unsent.

mod stream;
mod upload;

use std::future::{Future as _, poll_fn};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;
use h2::client::{Builder, SendRequest};
use tokio::sync::watch;

use super::connect::TolerantStream;
use super::error::UpstreamError;
use crate::clock::{Alarm, Sweep, TICK};
use crate::config::{ServerAddress, UpstreamSettings};
use crate::connection_use::ConnectionUse;
use crate::telemetry::panics::lock;
pub(super) use stream::Http2Stream;

/// The most streams on one connection, even if its server allows more.
const MAX_STREAMS: usize = 128;
const STREAM_WINDOW_BYTES: u32 = 256 << 10;
/// Unread bytes on a connection: enough for all streams, so that slow readers do not block others.
const CONNECTION_WINDOW_BYTES: u32 = STREAM_WINDOW_BYTES * MAX_STREAMS as u32;
const SEND_BUFFER_BYTES: usize = 128 << 10;
/// Bytes in the head or the trailers of a response.
const MAX_HEAD_BYTES: u32 = 64 << 10;
/// The stream limit before the server's settings have come. No server can send this number.
const NO_SETTINGS: usize = usize::MAX - 1;
/// A connection on which nothing came for this time, although a request waited, may be dead. TCP
/// repairs one or two lost packets within it. To be wrong costs only a new connection: the requests
/// in flight on a slow server go on.
const SILENCE: Duration = Duration::from_secs(1);
/// The value of `waits_since` while no request has waited since something came.
const NOT_WAITING: u32 = u32::MAX;

#[derive(Debug)]
pub(super) struct Http2Connection {
    sender: SendRequest<Bytes>,
    streams: AtomicUsize,
    retired: AtomicBool,
    /// Whether the server's settings did not come in time.
    silent: AtomicBool,
    settings: watch::Sender<SettingsStatus>,
    /// The stream limit before the settings have come.
    first_streams: usize,
    received: AtomicU32,
    sweep: Sweep,
    /// The tick of the first request that was sent after anything came. A request that is given up
    /// does not reset it, so that many short ones on a dead connection count together.
    waits_since: AtomicU32,
    /// Rings if the settings are late, and later if the connection is unused for `idle_timeout`.
    alarm: Arc<Alarm>,
    usage: ConnectionUse,
    idle_timeout_ms: AtomicU64,
}

/// The terms of a new connection.
pub(super) struct ConnectionTerms<'s> {
    pub(super) settings: &'s UpstreamSettings,
    pub(super) sweep: &'s Sweep,
    pub(super) usage: ConnectionUse,
    /// The stream limit before the server's settings have come.
    pub(super) first_streams: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SettingsStatus {
    Awaited,
    Came,
    Ended,
}

impl Http2Connection {
    /// Opens a connection. Requests may follow at once, before the server's settings have come
    /// (RFC 9113 section 3.4).
    pub(super) async fn open(
        stream: TolerantStream,
        terms: ConnectionTerms<'_>,
    ) -> Result<Arc<Http2Connection>, h2::Error> {
        let ConnectionTerms {
            settings,
            sweep,
            usage,
            first_streams,
        } = terms;
        let (sender, mut driver) = Builder::new()
            .initial_window_size(STREAM_WINDOW_BYTES)
            .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
            .initial_max_send_streams(NO_SETTINGS)
            .max_send_buffer_size(SEND_BUFFER_BYTES)
            .max_header_list_size(MAX_HEAD_BYTES)
            .enable_push(false)
            .handshake::<_, Bytes>(stream)
            .await?;
        let alarm = sweep.alarm();
        alarm.arm(settings.connect_timeout);
        let connection = Arc::new(Http2Connection {
            sender,
            streams: AtomicUsize::new(0),
            retired: AtomicBool::new(false),
            silent: AtomicBool::new(false),
            settings: watch::Sender::new(SettingsStatus::Awaited),
            first_streams,
            received: AtomicU32::new(0),
            sweep: sweep.clone(),
            waits_since: AtomicU32::new(NOT_WAITING),
            alarm,
            usage,
            idle_timeout_ms: AtomicU64::new(idle_timeout_ms(settings)),
        });
        let weak = Arc::downgrade(&connection);
        tokio::spawn(async move {
            let mut has_settings = false;
            let ended = poll_fn(|context| {
                let polled = Pin::new(&mut driver).poll(context);
                if !has_settings && let Some(connection) = weak.upgrade() {
                    has_settings = connection.check_settings();
                    if !has_settings && connection.alarm.poll(context).is_ready() {
                        connection.silent.store(true, Ordering::Relaxed);
                        return Poll::Ready(Ok(()));
                    }
                }
                polled
            });
            // A request under way reports the error as well. Between requests it does not matter.
            if let Err(error) = ended.await {
                tracing::debug!(%error, "upstream connection");
            }
            if let Some(connection) = weak.upgrade() {
                connection.retire();
                connection.settings.send_replace(SettingsStatus::Ended);
            }
        });
        Ok(connection)
    }

    /// Whether the server's settings have come, which proves that it speaks HTTP/2.
    fn has_settings(&self) -> bool {
        self.sender.current_max_send_streams() != NO_SETTINGS
    }

    /// The same; also tells waiting requests.
    fn check_settings(&self) -> bool {
        if !self.has_settings() {
            return false;
        }
        self.alarm.disarm();
        if self.streams.load(Ordering::Relaxed) == 0 {
            self.alarm.arm(self.idle_timeout());
        }
        self.settings.send_replace(SettingsStatus::Came);
        true
    }

    /// Waits for the server's settings; false if the connection ended before.
    pub(super) async fn wait_for_settings(&self) -> bool {
        let mut settings = self.settings.subscribe();
        let known = settings.wait_for(|status| *status != SettingsStatus::Awaited);
        let known = known.await;
        known.is_ok_and(|status| *status == SettingsStatus::Came)
    }

    pub(super) fn is_silent(&self) -> bool {
        self.silent.load(Ordering::Relaxed)
    }

    fn stream_limit(&self) -> usize {
        match self.sender.current_max_send_streams() {
            NO_SETTINGS => self.first_streams,
            limit => limit.min(MAX_STREAMS),
        }
    }

    fn has_room(&self) -> bool {
        !self.is_retired() && self.streams.load(Ordering::Relaxed) < self.stream_limit()
    }

    fn is_retired(&self) -> bool {
        self.retired.load(Ordering::Relaxed)
    }

    pub(super) fn retire(&self) {
        self.retired.store(true, Ordering::Relaxed);
    }

    fn note_received(&self) {
        self.received.fetch_add(1, Ordering::Relaxed);
        self.waits_since.store(NOT_WAITING, Ordering::Relaxed);
    }

    /// Notes that a request is about to be sent.
    fn note_sent(&self) {
        if self.waits_since.load(Ordering::Relaxed) == NOT_WAITING {
            let now = self.sweep.ticks();
            self.waits_since.store(now, Ordering::Relaxed);
        }
    }

    /// Notes that a request was given up while its server should have answered.
    fn note_given_up(&self) {
        let since = self.waits_since.load(Ordering::Relaxed);
        if TICK * self.sweep.ticks().saturating_sub(since) >= SILENCE {
            self.retire();
        }
    }

    fn idle_timeout(&self) -> Duration {
        Duration::from_millis(self.idle_timeout_ms.load(Ordering::Relaxed))
    }

    /// Goes on under other settings.
    fn renew(&self, settings: &UpstreamSettings) {
        let idle_timeout = idle_timeout_ms(settings);
        let before = self.idle_timeout_ms.swap(idle_timeout, Ordering::Relaxed);
        let is_unused = self.streams.load(Ordering::Relaxed) == 0;
        if before != idle_timeout && is_unused && self.has_settings() {
            self.alarm.arm(self.idle_timeout());
        }
    }

    /// Whether the pool should drop the connection. It then ends with its last request.
    fn is_over(&self) -> bool {
        let is_unused = self.streams.load(Ordering::Relaxed) == 0;
        self.is_retired() || (is_unused && self.alarm.has_rung())
    }

    fn enter(&self) {
        self.usage.count_request();
        self.streams.fetch_add(1, Ordering::Relaxed);
        if self.has_settings() {
            self.alarm.disarm();
        }
    }

    fn leave(&self) {
        if self.streams.fetch_sub(1, Ordering::Relaxed) == 1 && self.has_settings() {
            self.alarm.arm(self.idle_timeout());
        }
    }
}

fn idle_timeout_ms(settings: &UpstreamSettings) -> u64 {
    match settings.max_idle {
        0 => 0,
        _ => u64::try_from(settings.idle_timeout.as_millis()).unwrap_or(u64::MAX),
    }
}

/// The shared connections to one server that speaks HTTP/2, or may.
#[derive(Debug)]
pub(super) struct Http2Pool {
    /// The name in the server's certificate; `None` without TLS.
    pub(super) tls_name: Option<String>,
    /// Whether the server chose HTTP/1.1 last time.
    chose_http1: AtomicBool,
    connections: Mutex<Vec<Arc<Http2Connection>>>,
    /// The last known stream limit of the server; 0 before it is known.
    known_limit: AtomicUsize,
    /// Locked by the request that connects.
    pub(super) connecting: tokio::sync::Mutex<()>,
    attempts: AtomicU32,
    last_failure: Mutex<Option<UpstreamError>>,
}

impl Http2Pool {
    /// `None` for servers that speak HTTP/1.1 without TLS. Without `offers_http2` a server with TLS
    /// starts with HTTP/1.1.
    pub(super) fn new(address: &ServerAddress, offers_http2: bool) -> Option<Http2Pool> {
        let tls_name = match address {
            ServerAddress::Http(..) | ServerAddress::Unix(_) => return None,
            ServerAddress::H2c(..) => None,
            ServerAddress::Https(host, _) => Some(host.clone()),
        };
        Some(Http2Pool {
            chose_http1: AtomicBool::new(tls_name.is_some() && !offers_http2),
            tls_name,
            connections: Mutex::default(),
            known_limit: AtomicUsize::new(0),
            connecting: tokio::sync::Mutex::default(),
            attempts: AtomicU32::new(0),
            last_failure: Mutex::default(),
        })
    }

    /// The first connection with room, so that the others age and close. Never the `avoided` one.
    pub(super) fn with_room(
        &self,
        now: Duration,
        avoided: Option<&Arc<Http2Connection>>,
    ) -> Option<Arc<Http2Connection>> {
        let mut connections = lock(&self.connections);
        connections.retain(|connection| !connection.is_retired() && !connection.usage.is_over(now));
        let may_use = |one: &&Arc<Http2Connection>| {
            one.has_room() && avoided.is_none_or(|avoided| !Arc::ptr_eq(one, avoided))
        };
        connections.iter().find(may_use).cloned()
    }

    /// A connection whose server has not sent its settings yet.
    pub(super) fn without_settings(&self) -> Option<Arc<Http2Connection>> {
        let connections = lock(&self.connections);
        let mut young = connections
            .iter()
            .filter(|connection| !connection.has_settings() && !connection.is_retired());
        young.next().cloned()
    }

    /// The stream limit of a new connection before the settings have come: that of the other
    /// connections, or one stream, which every server allows.
    pub(super) fn first_streams(&self) -> usize {
        let connections = lock(&self.connections);
        let known = connections.iter().filter(|one| one.has_settings());
        if let Some(limit) = known.map(|one| one.stream_limit()).min() {
            self.known_limit.store(limit, Ordering::Relaxed);
        }
        self.known_limit.load(Ordering::Relaxed).max(1)
    }

    pub(super) fn add(&self, connection: Arc<Http2Connection>) {
        lock(&self.connections).push(connection);
    }

    /// Takes the connections of `old`, which lives on only for its requests under way.
    pub(super) fn take_over(&self, old: &Http2Pool, settings: &UpstreamSettings) {
        let taken = std::mem::take(&mut *lock(&old.connections));
        taken.iter().for_each(|one| one.renew(settings));
        lock(&self.connections).extend(taken);
        self.set_chose_http1(old.chose_http1.load(Ordering::Relaxed));
    }

    /// Drops old connections; true if others are left.
    pub(super) fn close_old(&self) -> bool {
        let mut connections = lock(&self.connections);
        connections.retain(|connection| !connection.is_over());
        !connections.is_empty()
    }

    pub(super) fn set_chose_http1(&self, chose_http1: bool) {
        self.chose_http1.store(chose_http1, Ordering::Relaxed);
    }

    /// Whether a request needs a connection of HTTP/1.1 for itself, as tunnels do. Only a server
    /// with TLS can be asked for one.
    pub(super) fn needs_http1(&self, asks_upgrade: bool) -> bool {
        self.tls_name.is_some() && (asks_upgrade || self.chose_http1.load(Ordering::Relaxed))
    }

    pub(super) fn attempts(&self) -> u32 {
        self.attempts.load(Ordering::Relaxed)
    }

    pub(super) fn last_failure(&self) -> Option<UpstreamError> {
        let failure = lock(&self.last_failure);
        failure.as_ref().map(UpstreamError::duplicate)
    }

    pub(super) fn note_attempt(&self, failure: Option<UpstreamError>) {
        *lock(&self.last_failure) = failure;
        self.attempts.fetch_add(1, Ordering::Relaxed);
    }
}
