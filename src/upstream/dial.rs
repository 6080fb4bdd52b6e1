//! How a request gets a connection to a server that speaks HTTP/2, or may.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use http::uri::Scheme;
use tokio::time::timeout;

use super::connect::Patient;
use super::connection::Connection;
use super::error::{ConnectError, UpstreamError};
use super::http2;
use super::permit::ServerPermit;
use super::shared::{Shared, unopened};
use crate::wire::Stream;

/// What a server turned out to speak.
enum Dialled {
    Http1(Stream),
    Http2(Arc<http2::Connection>),
}

impl ServerPermit {
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
