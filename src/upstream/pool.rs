//! The connections to one upstream: in use, counted and bounded; idle, kept for the next request.
//!
//! One pool belongs to one worker. Its locks are therefore never contended, and never held across
//! an await. A connection comes back only if everything about its last exchange was in order: the
//! request sent whole, the response read to its end, and the server still there. All others are
//! closed, so that nothing left on a connection can ever be read as the answer to another request.

use std::future::poll_fn;
use std::hash::{BuildHasher, RandomState};
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll};
use std::time::Duration;

use http::{HeaderValue, Request, Response};
use http_body::Body as _;
use hyper::body::Incoming;
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use tokio::runtime::Handle;
use tokio::task::AbortHandle;

use super::balance::{self, Load};
use super::body::RequestBody;
use super::connect::Address;
use super::error::UpstreamError;
use crate::clock::{Alarm, Sweep};
use crate::config::UpstreamSettings;

/// Bytes in the head of a response, or in its trailers.
const MAX_HEAD_BYTES: usize = 64 << 10;
/// Bytes read ahead of a response's reader, and written ahead of the network, per connection.
const MAX_BUFFER_BYTES: usize = 128 << 10;
/// Servers that are tried for one request.
const MAX_TRIES: usize = 3;
/// How often idle connections are looked through, unless they last less than that.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// One upstream of one worker.
#[derive(Debug)]
pub(super) struct Upstream {
    settings: UpstreamSettings,
    servers: Vec<Server>,
    in_use: AtomicUsize,
    http: http1::Builder,
    sweep: Sweep,
    /// What [`balance::pick`] draws from.
    random: AtomicU64,
    looking: AtomicBool,
}

#[derive(Debug)]
struct Server {
    address: Address,
    host: HeaderValue,
    /// The one used last is on top, so that the others get old and can go.
    idle: Mutex<Vec<Connection>>,
    in_flight: AtomicUsize,
    /// Failures to connect since the last success.
    failures: AtomicU32,
    /// Rings when a rest is over.
    rest: Arc<Alarm>,
}

impl Upstream {
    pub(super) fn new(settings: &UpstreamSettings, sweep: Sweep) -> Upstream {
        let mut http = http1::Builder::new();
        http.max_buf_size(MAX_BUFFER_BYTES)
            .max_header_size(MAX_HEAD_BYTES);
        Upstream {
            servers: settings
                .servers
                .iter()
                .map(Address::of)
                .map(|address| Server {
                    host: address.host(),
                    address,
                    idle: Mutex::default(),
                    in_flight: AtomicUsize::new(0),
                    failures: AtomicU32::new(0),
                    rest: sweep.alarm(),
                })
                .collect(),
            settings: settings.clone(),
            in_use: AtomicUsize::new(0),
            http,
            sweep,
            random: AtomicU64::new(RandomState::new().hash_one(&settings.name)),
            looking: AtomicBool::new(false),
        }
    }

    /// A place for one request at one of the servers.
    pub(super) fn seat(self: &Arc<Self>) -> Result<Seat, UpstreamError> {
        // A Weyl sequence, mixed: as random as choosing needs, at the price of an addition.
        let step = self
            .random
            .fetch_add(0x9e37_79b9_7f4a_7c15, Ordering::Relaxed);
        let random = (step ^ (step >> 31)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let picked = balance::pick(self.servers.len(), random ^ (random >> 29), |server| {
            self.servers[server].load()
        });
        let server = picked.ok_or(UpstreamError::NoServer)?;
        if self.in_use.load(Ordering::Relaxed) >= self.settings.max_connections {
            return Err(UpstreamError::TooManyConnections);
        }
        self.in_use.fetch_add(1, Ordering::Relaxed);
        self.servers[server]
            .in_flight
            .fetch_add(1, Ordering::Relaxed);
        Ok(Seat {
            upstream: Arc::clone(self),
            server,
        })
    }

    /// A new connection for the request that has `seat`. A server that cannot be reached gives way
    /// to another: some of them, never all, and a second wait for one that is silent is the last.
    pub(super) async fn connect(
        self: &Arc<Self>,
        mut seat: Seat,
    ) -> Result<(Connection, Seat), UpstreamError> {
        let mut tries = self.servers.len().min(MAX_TRIES);
        let mut waited = false;
        loop {
            let error = match seat.connect().await {
                Ok(connection) => return Ok((connection, seat)),
                Err(error) => error,
            };
            tries -= 1;
            let waits = matches!(error, UpstreamError::ConnectTimedOut);
            if tries == 0 || (waits && waited) {
                return Err(error);
            }
            waited |= waits;
            drop(seat);
            seat = self.seat()?;
        }
    }

    fn keep(self: &Arc<Self>, server: usize, connection: Connection) {
        connection.deadline.alarm.arm(self.settings.idle_timeout);
        let mut idle = self.servers[server].idle();
        if idle.len() < self.settings.max_idle {
            idle.push(connection);
            drop(idle);
            self.look_after();
        }
    }

    /// Sees to it that idle connections are closed in time while there are any.
    fn look_after(self: &Arc<Self>) {
        if self.looking.load(Ordering::Relaxed) {
            return;
        }
        if let Ok(runtime) = Handle::try_current() {
            self.looking.store(true, Ordering::Relaxed);
            let every = self.settings.idle_timeout.min(LOOK_EVERY);
            runtime.spawn(close_old(Arc::downgrade(self), self.sweep.alarm(), every));
        }
    }

    /// Closes what is idle for too long; whether anything is left.
    fn close_old(&self) -> bool {
        let mut left = false;
        for server in &self.servers {
            let mut idle = server.idle();
            idle.retain(Connection::is_usable);
            left |= !idle.is_empty();
        }
        left
    }
}

async fn close_old(upstream: Weak<Upstream>, alarm: Arc<Alarm>, every: Duration) {
    loop {
        alarm.arm(every);
        poll_fn(|context| alarm.poll(context)).await;
        let Some(upstream) = upstream.upgrade() else {
            return;
        };
        if !upstream.close_old() {
            upstream.looking.store(false, Ordering::Relaxed);
            return;
        }
    }
}

impl Server {
    fn idle(&self) -> MutexGuard<'_, Vec<Connection>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn load(&self) -> Load {
        if self.failures.load(Ordering::Relaxed) > 0 && !self.rest.has_rung() {
            return Load::Resting;
        }
        Load::InFlight(self.in_flight.load(Ordering::Relaxed))
    }

    fn note(&self, reached: bool) {
        if reached {
            self.failures.store(0, Ordering::Relaxed);
        } else {
            let failures = self
                .failures
                .fetch_add(1, Ordering::Relaxed)
                .saturating_add(1);
            self.rest.arm(balance::rest(failures));
        }
    }
}

/// One request's place at a server, counted until it is dropped.
#[derive(Debug)]
pub struct Seat {
    upstream: Arc<Upstream>,
    server: usize,
}

impl Seat {
    fn server(&self) -> &Server {
        &self.upstream.servers[self.server]
    }

    /// What stands in `Host` for a request that came without one.
    pub(super) fn host(&self) -> &HeaderValue {
        &self.server().host
    }

    /// The idle connection that was used last, if one is left.
    pub(super) fn pooled(&self) -> Option<Connection> {
        let mut idle = self.server().idle();
        loop {
            let connection = idle.pop()?;
            if connection.is_usable() {
                return Some(connection);
            }
        }
    }

    /// A new connection to this server.
    async fn connect(&self) -> Result<Connection, UpstreamError> {
        let (server, settings) = (self.server(), &self.upstream.settings);
        if server.failures.load(Ordering::Relaxed) > 0 {
            // Back from a rest: one request finds out whether it is well, not all of them.
            server.rest.arm(settings.connect_timeout);
        }
        let connected = server.address.connect(settings.connect_timeout).await;
        server.note(connected.is_ok());
        let handshake = self.upstream.http.handshake(TokioIo::new(connected?));
        let (sender, connection) = handshake.await.map_err(UpstreamError::Closed)?;
        let task = tokio::spawn(async move {
            // Whoever waits for an answer is told as well; between requests it is no news.
            if let Err(error) = connection.with_upgrades().await {
                tracing::debug!(%error, "upstream connection");
            }
        });
        let deadline = Arc::new(Deadline {
            alarm: self.upstream.sweep.alarm(),
            head: settings.timeout,
            body: settings.body_timeout,
            awaits_head: AtomicBool::new(false),
        });
        Ok(Connection {
            sender,
            deadline,
            task: Task(Some(task.abort_handle())),
        })
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.upstream.in_use.fetch_sub(1, Ordering::Relaxed);
        self.server().in_flight.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A connection between hyper's task, which owns the socket, and whoever has its requests sent.
/// Dropping it closes the socket.
#[derive(Debug)]
pub(super) struct Connection {
    sender: SendRequest<RequestBody>,
    deadline: Arc<Deadline>,
    task: Task,
}

/// Ends the task when dropped, unless it was let go.
#[derive(Debug)]
struct Task(Option<AbortHandle>);

impl Drop for Task {
    fn drop(&mut self) {
        if let Some(task) = &self.0 {
            task.abort();
        }
    }
}

/// Why there is no response on a connection.
pub(super) enum Failure {
    /// The connection had gone before anything was sent: the request comes back.
    Unsent(Box<Request<RequestBody>>, hyper::Error),
    /// The request, or part of it, may have been seen.
    Sent(UpstreamError),
}

impl Connection {
    fn is_usable(&self) -> bool {
        self.sender.is_ready() && !self.deadline.alarm.has_rung()
    }

    /// Sends the request and waits for the head of its response.
    pub(super) async fn exchange(
        &mut self,
        mut request: Request<RequestBody>,
    ) -> Result<Response<Incoming>, Failure> {
        self.deadline.await_head();
        if !request.body().is_end_stream() {
            request.body_mut().move_deadline(&self.deadline);
        }
        let mut answer = pin!(self.sender.try_send_request(request));
        let answered = poll_fn(|context| {
            if let Poll::Ready(answered) = answer.as_mut().poll(context) {
                return Poll::Ready(Some(answered));
            }
            self.deadline.poll(context).map(|()| None)
        })
        .await;
        self.deadline.end_head();
        match answered {
            Some(Ok(response)) => Ok(response),
            Some(Err(mut refused)) => Err(match refused.take_message() {
                Some(request) => Failure::Unsent(Box::new(request), refused.into_error()),
                None => Failure::Sent(UpstreamError::of(refused.into_error())),
            }),
            None => Err(Failure::Sent(UpstreamError::TimedOut)),
        }
    }
}

/// A connection and its place, for one exchange. Dropping it closes the connection.
#[derive(Debug)]
pub(super) struct Lease {
    connection: Connection,
    seat: Seat,
    /// Whether the server's side of the exchange was such that another may follow.
    reusable: bool,
}

impl Lease {
    pub(super) fn new(connection: Connection, seat: Seat, reusable: bool) -> Lease {
        Lease {
            connection,
            seat,
            reusable,
        }
    }

    pub(super) fn deadline(&self) -> &Deadline {
        &self.connection.deadline
    }

    /// The response has been read to its end.
    pub(super) fn give_back(self) {
        let Lease {
            connection,
            seat,
            reusable,
        } = self;
        if !reusable || connection.sender.is_closed() {
            return;
        }
        if connection.sender.is_ready() {
            seat.upstream.keep(seat.server, connection);
        } else if let Ok(runtime) = Handle::try_current() {
            runtime.spawn(finish_upload(connection, seat));
        }
    }

    /// The connection has become a tunnel: from now on it belongs to whoever uses that.
    pub(super) fn let_go(mut self) -> Seat {
        self.connection.task.0 = None;
        self.seat
    }
}

/// The response was complete before the request was. Its server may still be reading: it gets the
/// rest, as long as that keeps coming.
async fn finish_upload(mut connection: Connection, seat: Seat) {
    let most = seat.upstream.settings.timeout;
    if let Ok(Ok(())) = tokio::time::timeout(most, connection.sender.ready()).await {
        seat.upstream.keep(seat.server, connection);
    }
}

/// What one connection waits for at most, moved by a store: no timer is armed for a request.
#[derive(Debug)]
pub(super) struct Deadline {
    alarm: Arc<Alarm>,
    head: Duration,
    body: Duration,
    /// Whether the head of the response is still to come, so that the upload may move the alarm.
    awaits_head: AtomicBool,
}

impl Deadline {
    fn await_head(&self) {
        self.awaits_head.store(true, Ordering::Relaxed);
        self.alarm.arm(self.head);
    }

    fn end_head(&self) {
        self.awaits_head.store(false, Ordering::Relaxed);
        // An idle connection's alarm says that it is too old; one that rang must not.
        self.alarm.disarm();
    }

    /// A piece of the upload has `come`, and it is the server's turn to take it; or the client has
    /// none, and the server is not to blame for the time that passes.
    pub(super) fn upload(&self, come: bool) {
        if !self.awaits_head.load(Ordering::Relaxed) {
            return;
        }
        if come {
            self.alarm.arm(self.head);
        } else {
            self.alarm.disarm();
        }
    }

    pub(super) fn arm_body(&self) {
        self.alarm.arm(self.body);
    }

    pub(super) fn disarm(&self) {
        self.alarm.disarm();
    }

    pub(super) fn poll(&self, context: &mut Context<'_>) -> Poll<()> {
        self.alarm.poll(context)
    }
}
