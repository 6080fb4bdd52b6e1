//! Connections to a server that speaks HTTP/2, or may: several requests share one.
//!
//! While there is none with room, one request connects and the others wait for what becomes of
//! that, so that a burst opens one connection and not one for each; and when it fails, it has
//! failed for all of them.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use http::uri::Scheme;
use tokio::time::timeout;

use super::connect::{ConnectError, Patient};
use super::connection::Connection;
use super::error::{UpstreamError, tls_of_io};
use super::http2;
use super::pool::Terms;
use super::server::Seat;
use crate::config::ServerAddress;
use crate::wire::Stream;

/// What one worker has of one such server.
#[derive(Debug)]
pub(super) struct Shared {
    /// The name in its certificate; nothing where it speaks without TLS.
    secure: Option<String>,
    /// Whether it chose HTTP/1.1 last time.
    chose_http1: AtomicBool,
    open: Mutex<Vec<Arc<http2::Connection>>>,
    /// Requests at once that its connections took last; 0 before any said so.
    known_streams: AtomicUsize,
    /// Held by whoever connects.
    connecting: tokio::sync::Mutex<()>,
    /// Attempts to connect that have ended, well or badly.
    attempts: AtomicU32,
    /// Why the last of them failed.
    failed: Mutex<Option<ConnectError>>,
}

impl Shared {
    /// Nothing for servers that speak HTTP/1.1 without TLS.
    pub(super) fn of(address: &ServerAddress, terms: &Terms) -> Option<Shared> {
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

    fn open(&self) -> MutexGuard<'_, Vec<Arc<http2::Connection>>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The first with room: the others get old and can go.
    fn with_room(&self) -> Option<Arc<http2::Connection>> {
        let mut open = self.open();
        open.retain(|connection| !connection.is_retired());
        let found = open.iter().find(|connection| connection.has_room());
        found.cloned()
    }

    /// One whose server's settings have not come.
    fn young(&self) -> Option<Arc<http2::Connection>> {
        let open = self.open();
        let mut young = open
            .iter()
            .filter(|connection| !connection.is_greeted() && !connection.is_retired());
        young.next().cloned()
    }

    /// Requests that a new connection takes before its server has said how many: as many as the
    /// others do, else one, which cannot be too many.
    fn streams_at_first(&self) -> usize {
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
    fn is_alone(&self, asks_upgrade: bool) -> bool {
        self.secure.is_some() && (asks_upgrade || self.chose_http1.load(Ordering::Relaxed))
    }

    fn failed(&self) -> MutexGuard<'_, Option<ConnectError>> {
        self.failed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What became of an attempt.
    fn note(&self, failed: Option<ConnectError>) {
        *self.failed() = failed;
        self.attempts.fetch_add(1, Ordering::Relaxed);
    }
}

/// Why there is no HTTP/2: under TLS 1.3 a server refuses our certificate only now.
fn unopened(error: h2::Error) -> ConnectError {
    if let Some(trouble) = error.get_io().and_then(tls_of_io) {
        return ConnectError::Tls(trouble);
    }
    match error.get_io() {
        Some(io) => ConnectError::Failed(io::Error::new(io.kind(), io.to_string())),
        None => ConnectError::NoHttp2(error),
    }
}

/// What a server turned out to speak.
enum Dialled {
    Http1(Stream),
    Http2(Arc<http2::Connection>),
}

impl Seat {
    /// A place on a connection that stands, if one has room.
    pub(super) fn place(&self, shared: &Shared, asks_upgrade: bool) -> Option<Connection> {
        if shared.is_alone(asks_upgrade) {
            return None;
        }
        shared.with_room().map(|found| self.ride(shared, found))
    }

    /// A connection of its own, or a place on one that is shared.
    pub(super) async fn join(
        &self,
        shared: &Shared,
        asks_upgrade: bool,
    ) -> Result<Connection, UpstreamError> {
        if shared.is_alone(asks_upgrade) {
            let dialled = self.dial(shared, asks_upgrade).await?;
            return Ok(self.board(shared, dialled));
        }
        let before = shared.attempts.load(Ordering::Relaxed);
        let turn = shared.connecting.lock().await;
        if let Some(found) = self.place(shared, asks_upgrade) {
            return Ok(found);
        }
        if let Some(young) = shared.young() {
            // How many requests the server takes at once is not known, nor whether it is there.
            let is_there = young.wait_for_greeting().await;
            if let Some(found) = self.place(shared, asks_upgrade) {
                return Ok(found);
            }
            if !is_there && young.is_silent() {
                shared.note(Some(ConnectError::TimedOut));
                return Err(ConnectError::TimedOut.into());
            }
        }
        let waited = shared.attempts.load(Ordering::Relaxed) != before;
        if let Some(failed) = shared.failed().as_ref().filter(|_| waited) {
            return Err(failed.again().into());
        }
        let dialled = if shared.is_alone(asks_upgrade) {
            drop(turn);
            self.dial(shared, asks_upgrade).await
        } else {
            let dialled = self.dial(shared, asks_upgrade).await;
            shared.note(dialled.as_ref().err().map(ConnectError::again));
            if let Ok(Dialled::Http2(connection)) = &dialled {
                shared.open().push(Arc::clone(connection));
                self.server().look_after();
            }
            dialled
        };
        Ok(self.board(shared, dialled?))
    }

    async fn dial(&self, shared: &Shared, only_http1: bool) -> Result<Dialled, ConnectError> {
        let most = self.settings().connect_timeout;
        let dialled = timeout(most, self.reach(shared, only_http1)).await;
        dialled.unwrap_or(Err(ConnectError::TimedOut))
    }

    /// Connects, and shakes hands until it is known what the server speaks.
    async fn reach(&self, shared: &Shared, only_http1: bool) -> Result<Dialled, ConnectError> {
        let (server, settings) = (self.server(), self.settings());
        let stream = server.address.connect(settings.connect_timeout).await?;
        let (stream, speaks_http2) = match (&shared.secure, &server.terms.tls) {
            (Some(host), Some(tls)) => tls.over(stream, host, only_http1).await?,
            _ => (stream, true),
        };
        if !only_http1 {
            shared.chose_http1.store(!speaks_http2, Ordering::Relaxed);
        }
        if !speaks_http2 {
            return Ok(Dialled::Http1(stream));
        }
        let idle = match settings.max_idle {
            0 => std::time::Duration::ZERO,
            _ => settings.idle_timeout,
        };
        let opening = http2::ConnectionTerms {
            alarm: server.terms.sweep.alarm(),
            patience: settings.connect_timeout,
            idle,
            at_first: shared.streams_at_first(),
        };
        let opened = http2::open(Patient(stream), opening).await;
        opened.map(Dialled::Http2).map_err(unopened)
    }

    fn board(&self, shared: &Shared, on: Dialled) -> Connection {
        match on {
            Dialled::Http2(connection) => self.ride(shared, connection),
            Dialled::Http1(stream) => self.alone(stream),
        }
    }

    /// A place on a connection that others use as well.
    fn ride(&self, shared: &Shared, connection: Arc<http2::Connection>) -> Connection {
        let server = self.server();
        let scheme = match shared.secure {
            Some(_) => Scheme::HTTPS,
            None => Scheme::HTTP,
        };
        let deadline = Arc::new(self.deadline());
        let named = (scheme, server.host.clone());
        let stream = http2::Stream::new(connection, deadline, named);
        Connection::Http2(Box::new(stream))
    }
}
