//! How a request with a permit gets a connection: an idle one, a stream on a shared one, or a new
//! one.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::uri::Scheme;
use tokio::time::timeout;

use super::connect::TolerantStream;
use super::connection::UpstreamConnection;
use super::deadline::Deadline;
use super::error::{ConnectError, UpstreamError};
use super::http1::Http1;
use super::http2::{Http2Connection, Http2Pool, Http2Stream, Http2Terms};
use super::permit::ServerPermit;
use crate::wire::Stream;

/// A new connection, in the protocol that the server chose.
enum NewConnection {
    Http1(Stream),
    Http2(Arc<Http2Connection>),
}

impl ServerPermit {
    /// A connection that is open already: the idle one used last, or a stream on a shared one.
    pub(super) fn pooled(&self, asks_upgrade: bool) -> Option<UpstreamConnection> {
        if let Some(connection) = self.server().take_idle() {
            return Some(UpstreamConnection::Http1(connection));
        }
        let pool = self.server().http2.as_ref()?;
        self.open_stream(pool, asks_upgrade)
    }

    /// A new connection, or a stream on one that opened meanwhile.
    pub(super) async fn connect(
        &self,
        asks_upgrade: bool,
    ) -> Result<UpstreamConnection, UpstreamError> {
        let (server, settings) = (self.server(), self.settings());
        // A client that resets its stream at once is noticed here, before it costs a connection.
        tokio::task::yield_now().await;
        match &server.http2 {
            Some(pool) => self.connect_http2(pool, asks_upgrade).await,
            None => {
                let connected = server.address.connect(settings.connect_timeout).await;
                Ok(self.use_http1(connected?))
            }
        }
    }

    fn open_stream(&self, pool: &Http2Pool, asks_upgrade: bool) -> Option<UpstreamConnection> {
        if pool.needs_http1(asks_upgrade) {
            return None;
        }
        pool.with_room().map(|found| self.use_http2(pool, found))
    }

    /// While one request connects, the others wait for its result: a burst opens one connection,
    /// and a failure fails all of them.
    async fn connect_http2(
        &self,
        pool: &Http2Pool,
        asks_upgrade: bool,
    ) -> Result<UpstreamConnection, UpstreamError> {
        if pool.needs_http1(asks_upgrade) {
            let opened = self.open(pool, asks_upgrade).await?;
            return Ok(self.use_new(pool, opened));
        }
        let before = pool.attempts();
        let turn = pool.connecting.lock().await;
        if let Some(stream) = self.open_stream(pool, asks_upgrade) {
            return Ok(stream);
        }
        if let Some(young) = pool.without_settings() {
            // Neither its number of streams is known, nor whether its server speaks HTTP/2.
            let has_settings = young.wait_for_settings().await;
            if let Some(stream) = self.open_stream(pool, asks_upgrade) {
                return Ok(stream);
            }
            if !has_settings && young.is_silent() {
                pool.note_attempt(Some(ConnectError::TimedOut));
                return Err(ConnectError::TimedOut.into());
            }
        }
        if pool.attempts() != before
            && let Some(failure) = pool.last_failure()
        {
            return Err(failure.into());
        }
        if pool.needs_http1(asks_upgrade) {
            drop(turn);
            let opened = self.open(pool, asks_upgrade).await?;
            return Ok(self.use_new(pool, opened));
        }
        let opened = self.open(pool, asks_upgrade).await;
        pool.note_attempt(opened.as_ref().err().map(ConnectError::duplicate));
        if let Ok(NewConnection::Http2(connection)) = &opened {
            pool.add(Arc::clone(connection));
            self.server().close_when_old();
        }
        Ok(self.use_new(pool, opened?))
    }

    async fn open(
        &self,
        pool: &Http2Pool,
        only_http1: bool,
    ) -> Result<NewConnection, ConnectError> {
        let most = self.settings().connect_timeout;
        let opened = timeout(most, self.open_untimed(pool, only_http1)).await;
        opened.unwrap_or(Err(ConnectError::TimedOut))
    }

    async fn open_untimed(
        &self,
        pool: &Http2Pool,
        only_http1: bool,
    ) -> Result<NewConnection, ConnectError> {
        let (server, settings) = (self.server(), self.settings());
        let stream = server.address.connect(settings.connect_timeout).await?;
        let (stream, is_http2) = match (&pool.tls_name, &server.terms.tls) {
            (Some(_), Some(Err(trouble))) => return Err(ConnectError::Tls(*trouble)),
            (Some(host), Some(Ok(tls))) => tls.handshake(stream, host, only_http1).await?,
            _ => (stream, true),
        };
        if !only_http1 {
            pool.set_chose_http1(!is_http2);
        }
        if !is_http2 {
            return Ok(NewConnection::Http1(stream));
        }
        let idle_timeout = match settings.max_idle {
            0 => Duration::ZERO,
            _ => settings.idle_timeout,
        };
        let terms = Http2Terms {
            alarm: server.terms.sweep.alarm(),
            settings_timeout: settings.connect_timeout,
            idle_timeout,
            first_streams: pool.first_streams(),
        };
        let stream = TolerantStream::new(stream, Bytes::new());
        let opened = Http2Connection::open(stream, terms).await;
        Ok(NewConnection::Http2(opened?))
    }

    fn use_new(&self, pool: &Http2Pool, opened: NewConnection) -> UpstreamConnection {
        match opened {
            NewConnection::Http2(connection) => self.use_http2(pool, connection),
            NewConnection::Http1(stream) => self.use_http1(stream),
        }
    }

    fn use_http1(&self, stream: Stream) -> UpstreamConnection {
        UpstreamConnection::Http1(Http1::new(stream, self.deadline()))
    }

    fn use_http2(&self, pool: &Http2Pool, connection: Arc<Http2Connection>) -> UpstreamConnection {
        let scheme = match pool.tls_name {
            Some(_) => Scheme::HTTPS,
            None => Scheme::HTTP,
        };
        let (deadline, host) = (Arc::new(self.deadline()), self.server().host.clone());
        let stream = Http2Stream::new(connection, deadline, scheme, host);
        UpstreamConnection::Http2(Box::new(stream))
    }

    fn deadline(&self) -> Deadline {
        let (settings, sweep) = (self.settings(), &self.server().terms.sweep);
        Deadline::new(sweep.alarm(), settings.timeout, settings.body_timeout)
    }
}
