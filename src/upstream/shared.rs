//! Connections to a server that speaks HTTP/2, or may: several requests share one.
//!
//! While there is none with room, one request connects and the others wait for what becomes of
//! that, so that a burst opens one connection and not one for each; and when it fails, it has
//! failed for all of them.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::error::{ConnectError, tls_of_io};
use super::http2;
use super::terms::UpstreamTerms;
use crate::config::ServerAddress;

/// What one worker has of one such server.
#[derive(Debug)]
pub(super) struct Shared {
    /// The name in its certificate; nothing where it speaks without TLS.
    pub(super) secure: Option<String>,
    /// Whether it chose HTTP/1.1 last time.
    pub(super) chose_http1: AtomicBool,
    open: Mutex<Vec<Arc<http2::Connection>>>,
    /// Requests at once that its connections took last; 0 before any said so.
    known_streams: AtomicUsize,
    /// Held by whoever connects.
    pub(super) connecting: tokio::sync::Mutex<()>,
    /// Attempts to connect that have ended, well or badly.
    pub(super) attempts: AtomicU32,
    /// Why the last of them failed.
    failed: Mutex<Option<ConnectError>>,
}

impl Shared {
    /// Nothing for servers that speak HTTP/1.1 without TLS.
    pub(super) fn of(address: &ServerAddress, terms: &UpstreamTerms) -> Option<Shared> {
        let secure = match address {
            ServerAddress::Http(..) | ServerAddress::Unix(_) => return None,
            ServerAddress::H2c(..) => None,
            ServerAddress::Https(host, _) => Some(host.clone()),
        };
        Some(Shared {
            chose_http1: AtomicBool::new(secure.is_some() && !terms.settings.http2),
            secure,
            open: Mutex::default(),
            known_streams: AtomicUsize::new(0),
            connecting: tokio::sync::Mutex::default(),
            attempts: AtomicU32::new(0),
            failed: Mutex::default(),
        })
    }

    pub(super) fn open(&self) -> MutexGuard<'_, Vec<Arc<http2::Connection>>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The first with room: the others get old and can go.
    pub(super) fn with_room(&self) -> Option<Arc<http2::Connection>> {
        let mut open = self.open();
        open.retain(|connection| !connection.is_retired());
        let found = open.iter().find(|connection| connection.has_room());
        found.cloned()
    }

    /// One whose server's settings have not come.
    pub(super) fn young(&self) -> Option<Arc<http2::Connection>> {
        let open = self.open();
        let mut young = open
            .iter()
            .filter(|connection| !connection.is_greeted() && !connection.is_retired());
        young.next().cloned()
    }

    /// Requests that a new connection takes before its server has said how many: as many as the
    /// others do, else one, which cannot be too many.
    pub(super) fn streams_at_first(&self) -> usize {
        let open = self.open();
        let known = open.iter().filter(|connection| connection.is_greeted());
        if let Some(most) = known.map(|connection| connection.most_streams()).min() {
            self.known_streams.store(most, Ordering::Relaxed);
        }
        self.known_streams.load(Ordering::Relaxed).max(1)
    }

    /// Has the connections of `old`, which lives on only for who is under way there.
    pub(super) fn take_over(&self, old: &Shared) {
        self.open().extend(std::mem::take(&mut *old.open()));
        let chose_http1 = old.chose_http1.load(Ordering::Relaxed);
        self.chose_http1.store(chose_http1, Ordering::Relaxed);
    }

    /// Lets go of what is over; whether any is left.
    pub(super) fn close_old(&self) -> bool {
        let mut open = self.open();
        open.retain(|connection| !connection.is_over());
        !open.is_empty()
    }

    /// Whether a request needs a connection of its own. One that asks for a tunnel does, and gets
    /// it where the server can be asked for HTTP/1.1.
    pub(super) fn is_alone(&self, asks_upgrade: bool) -> bool {
        self.secure.is_some() && (asks_upgrade || self.chose_http1.load(Ordering::Relaxed))
    }

    pub(super) fn failed(&self) -> MutexGuard<'_, Option<ConnectError>> {
        self.failed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What became of an attempt.
    pub(super) fn note(&self, failed: Option<ConnectError>) {
        *self.failed() = failed;
        self.attempts.fetch_add(1, Ordering::Relaxed);
    }
}

/// Why there is no HTTP/2: under TLS 1.3 a server refuses our certificate only now.
pub(super) fn unopened(error: h2::Error) -> ConnectError {
    if let Some(trouble) = error.get_io().and_then(tls_of_io) {
        return ConnectError::Tls(trouble);
    }
    match error.get_io() {
        Some(io) => ConnectError::Failed(io::Error::new(io.kind(), io.to_string())),
        None => ConnectError::NoHttp2(error),
    }
}
