//! One server of an upstream, as one worker sees it: its idle connections, the requests it has
//! under way, and its rest after it could not be reached.
//!
//! It belongs to one worker: its locks are never contended, and never held across an await. What
//! all workers know of the server together is its [`Vital`].

use std::future::poll_fn;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::task::Poll;
use std::time::{Duration, Instant};

use http::{HeaderValue, StatusCode};
use tokio::runtime::Handle;

use super::balance::{Load, Work};
use super::connect::Address;
use super::connection::{Connection, Deadline};
use super::error::UpstreamError;
use super::health::{Sent, Standing, Trouble};
use super::http1::Http1;
use super::latency::{Latency, Measured};
use super::named::Addresses;
use super::pool::Terms;
use super::shared::Shared;
use super::vitals::Vital;
use crate::clock::{self, Alarm};
use crate::config::{Ejection, HostHeader, ServerAddress, UpstreamServer, UpstreamSettings};
use crate::telemetry::metrics::ServerCells;
use crate::wire::Stream;

/// How often idle connections are looked through, unless they last less than that.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Connections in the boxes that they stay in: they are lent and come back with each request.
type Idle = Vec<Box<Http1>>;

/// See the file's head.
#[derive(Debug)]
pub(super) struct Server {
    pub(super) address: Address,
    /// What stands in `Host`, for every request or for those that came without one.
    pub(super) host: HeaderValue,
    /// Its own number among those of all servers, always the same for the same address.
    pub(super) number: u64,
    pub(super) weight: u32,
    /// Requests under way, of all workers, at most.
    cap: Option<usize>,
    /// As the file names it.
    pub(super) origin: ServerAddress,
    /// As the log names it: the same, or one of its addresses.
    pub(super) place: ServerAddress,
    /// Where its name was found; nothing before that, and for one without a name.
    addresses: Addresses,
    /// What it has in common with the other servers of its upstream.
    pub(super) terms: Arc<Terms>,
    /// What all workers know of it.
    pub(super) vital: Arc<Vital>,
    /// The one used last is on top, so that the others get old and can go.
    idle: Mutex<Idle>,
    /// For one that speaks HTTP/2, or may: what several requests share.
    shared: Option<Box<Shared>>,
    pub(super) in_flight: AtomicUsize,
    /// What is counted of it.
    pub(super) cells: ServerCells,
    latency: Latency,
    looking: AtomicBool,
    /// The same server under newer settings, which gets the connections that come back here.
    heir: OnceLock<Arc<Server>>,
}

impl Server {
    pub(super) fn new(
        server: &UpstreamServer,
        (place, addresses): (ServerAddress, &Addresses),
        terms: &Arc<Terms>,
        vital: Arc<Vital>,
    ) -> Server {
        let address = &server.address;
        let host = match &terms.settings.host {
            HostHeader::Fixed(host) => HeaderValue::from_str(host).ok(),
            HostHeader::Pass | HostHeader::Rewrite => address.authority().try_into().ok(),
        };
        Server {
            host: host.unwrap_or(HeaderValue::from_static("")),
            shared: Shared::of(address, terms).map(Box::new),
            number: number(&place.to_string()),
            origin: address.clone(),
            place,
            addresses: addresses.clone(),
            weight: server.weight,
            cap: server.max_connections,
            latency: Latency::default(),
            address: Address::found(address, addresses),
            vital,
            idle: Mutex::default(),
            in_flight: AtomicUsize::new(0),
            cells: ServerCells::default(),
            terms: Arc::clone(terms),
            looking: AtomicBool::new(false),
            heir: OnceLock::new(),
        }
    }

    /// Whether these are its addresses.
    pub(super) fn is_at(&self, addresses: &[SocketAddr]) -> bool {
        *self.addresses == *addresses
    }

    pub(super) fn addresses(&self) -> Addresses {
        self.addresses.clone()
    }

    /// Whether its name has been looked up.
    pub(super) fn is_looked_up(&self) -> bool {
        !self.addresses.is_empty()
    }

    /// Another takes its place: the same server under newer settings. That gets what is known here
    /// and, if the settings allow, the connections, also those that are in use.
    pub(super) fn give_way(&self, heir: &Arc<Server>, with_connections: bool) {
        heir.latency.learn(&self.latency);
        heir.cells.go_on(&self.cells);
        if !with_connections {
            return;
        }
        let idle = std::mem::take(&mut *self.idle());
        for connection in idle {
            heir.keep(connection);
        }
        if let (Some(own), Some(shared)) = (&self.shared, &heir.shared) {
            shared.take_over(own);
        }
        // The first one stays: whoever comes later takes over from that.
        let _ = self.heir.set(Arc::clone(heir));
    }

    pub(super) fn idle(&self) -> MutexGuard<'_, Idle> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether anything is known against it.
    pub(super) fn is_in_order(&self) -> bool {
        self.vital.watch.standing() == Standing::InOrder
    }

    /// What is known of it when a request is about to be sent.
    pub(super) fn load(&self) -> Load {
        match self.vital.watch.standing() {
            Standing::InOrder if self.is_full() => Load::Full,
            Standing::InOrder => Load::Ready(Work {
                in_flight: self.in_flight.load(Ordering::Relaxed) as u64,
                latency_us: self.expected_us(),
                weight: u64::from(self.weight) * self.warmth(),
            }),
            Standing::Ejected(_) => Load::Resting,
            Standing::Down => Load::Down,
        }
    }

    /// How long an answer may take, microseconds; 0 where nobody knows.
    pub(super) fn expected_us(&self) -> u64 {
        self.latency.expected_us(self.terms.sweep.elapsed())
    }

    /// How long answers took when that was measured last, for the views: nothing is forgotten.
    pub(super) fn measured_latency(&self) -> Option<Measured> {
        self.latency.measured(self.terms.sweep.elapsed())
    }

    /// Whether no answer was measured yet.
    pub(super) fn is_unmeasured(&self) -> bool {
        self.latency.is_unknown()
    }

    fn is_full(&self) -> bool {
        self.cap.is_some_and(|most| self.vital.is_full(most))
    }

    /// The part of its weight that it gets, percent.
    fn warmth(&self) -> u64 {
        match self.terms.settings.slow_start {
            Some(slow_start) => self.vital.watch.warmth(slow_start),
            None => 100,
        }
    }

    fn keep(self: &Arc<Self>, connection: Box<Http1>) {
        if let Some(heir) = self.heir.get() {
            return heir.keep(connection);
        }
        let settings = &self.terms.settings;
        connection.grow_old_in(settings.idle_timeout);
        let mut idle = self.idle();
        if idle.len() < settings.max_idle {
            idle.push(connection);
            drop(idle);
            self.look_after();
        }
    }

    /// Sees to it that idle connections are closed in time while there are any.
    pub(super) fn look_after(self: &Arc<Self>) {
        if self.looking.load(Ordering::Relaxed) {
            return;
        }
        if let Ok(runtime) = Handle::try_current() {
            self.looking.store(true, Ordering::Relaxed);
            let every = self.terms.settings.idle_timeout.min(LOOK_EVERY);
            runtime.spawn(close_old(
                Arc::downgrade(self),
                self.terms.sweep.alarm(),
                every,
            ));
        }
    }

    /// Closes what is idle for too long; whether anything is left.
    fn close_old(&self) -> bool {
        let shared = self.shared.as_ref();
        let shares = shared.is_some_and(|shared| shared.close_old());
        let mut idle = self.idle();
        idle.retain_mut(|connection| {
            connection.shed();
            connection.is_usable()
        });
        shares || !idle.is_empty()
    }
}

async fn close_old(server: Weak<Server>, alarm: Arc<Alarm>, every: Duration) {
    loop {
        alarm.arm(every);
        poll_fn(|context| alarm.poll(context)).await;
        let Some(server) = server.upgrade() else {
            return;
        };
        if !server.close_old() {
            server.looking.store(false, Ordering::Relaxed);
            return;
        }
    }
}

/// A server's number, from its address: the same in every proxy of this version and the next.
fn number(address: &str) -> u64 {
    let hash = blake3::hash(address.as_bytes());
    let first: [u8; 8] = hash.as_bytes()[..8].try_into().unwrap_or_default();
    u64::from_le_bytes(first)
}

/// One request's place at a server, counted until it is dropped.
#[derive(Debug)]
pub struct Seat {
    server: Arc<Server>,
    sent: Sent,
    /// Whether it counts among what the server may have under way.
    is_bounded: bool,
    /// When it was taken, if the time until its answer is to be known.
    since: Option<Instant>,
}

impl Seat {
    /// Takes a place for a request that is `sent` there for this reason; `None` if it has as many
    /// as it may.
    pub(super) fn take(server: &Arc<Server>, sent: Sent) -> Option<Seat> {
        if server.cap.is_some_and(|most| !server.vital.enter(most)) {
            return None;
        }
        let mut seat = Seat::beside(server, sent);
        seat.is_bounded = server.cap.is_some();
        Some(seat)
    }

    /// A place for what is no client's request, which the server's bound is not for.
    pub(super) fn beside(server: &Arc<Server>, sent: Sent) -> Seat {
        server.terms.in_use.fetch_add(1, Ordering::Relaxed);
        server.in_flight.fetch_add(1, Ordering::Relaxed);
        Seat {
            server: Arc::clone(server),
            sent,
            is_bounded: false,
            since: None,
        }
    }

    /// Has it measured how long the answer takes.
    pub(super) fn measure(&mut self) {
        self.since = Some(clock::now());
    }

    /// The head of an answer has come, whatever it says.
    pub(super) fn answered(&mut self) {
        if let Some(since) = self.since.take() {
            let (took, now) = (clock::now() - since, self.server.terms.sweep.elapsed());
            self.server.latency.observe(took, now);
        }
    }

    /// Where it is.
    pub(super) fn server(&self) -> &Arc<Server> {
        &self.server
    }

    /// The request that has it was answered as it should be.
    pub(super) fn succeeded(&self) {
        self.server.vital.watch.succeeded(self.sent);
    }

    /// It met `trouble`: whether the server is left alone for that. `count` says how many servers
    /// there are, and how many not in order.
    pub(super) fn failed(
        &self,
        trouble: Trouble,
        rules: &Ejection,
        count: impl FnOnce() -> (usize, usize),
    ) -> bool {
        let watch = &self.server.vital.watch;
        watch.failed((trouble, self.sent), rules, count)
    }

    /// The answer to the request that has it came to its end.
    pub(super) fn completed(&self) {
        self.server.vital.watch.completed();
        self.server.vital.note_completed();
    }

    /// The answer ended before its end, of which `error` says why. It is the server's fault unless
    /// the client broke off its own request.
    #[cold]
    pub(super) fn truncated(&self, error: &UpstreamError) {
        if matches!(error, UpstreamError::Request(_)) {
            return;
        }
        self.server.cells.truncated.add(1);
        self.server.cells.failures.add(1);
        self.server.vital.note_truncated();
        let watch = &self.server.vital.watch;
        if let Some(rules) = &self.settings().eject
            && watch.truncated(self.sent, rules)
        {
            watch.explain(&error.in_full());
        }
    }

    /// The server answered with this status, or with one of gRPC that means the same. `count` is as
    /// for `failed`.
    pub(super) fn judge(&self, status: StatusCode, count: impl FnOnce() -> (usize, usize)) {
        let server = &self.server;
        let rules = self.settings().eject.as_ref();
        let rules = rules.filter(|eject| eject.status.contains(status));
        if rules.is_some() || status.is_server_error() {
            server.cells.failures.add(1);
            server.vital.note_failure();
        } else {
            server.vital.note_success();
        }
        match rules {
            Some(rules) => _ = self.failed(Trouble::Failed, rules, count),
            None => self.succeeded(),
        }
    }

    /// How many servers of the upstream are not in order.
    pub(super) fn servers_out(&self) -> usize {
        self.server.vital.watch.servers_out()
    }

    /// The head of an answer came whose status is still to come. A server that was asked for a
    /// trial is back by that: the call may take hours.
    pub(super) fn began(&self) {
        if self.sent != Sent::InOrder {
            self.succeeded();
        }
    }

    pub(super) fn settings(&self) -> &UpstreamSettings {
        &self.server.terms.settings
    }

    /// Whether every request is for the server's host, whatever it came with.
    pub(super) fn renames_host(&self) -> bool {
        self.settings().host != HostHeader::Pass
    }

    /// What stands in `Host` then, or for a request that came without one.
    pub(super) fn host(&self) -> &HeaderValue {
        &self.server.host
    }

    /// The idle connection that was used last, if one is left; or a place on one that is shared.
    pub(super) fn pooled(&self, asks_upgrade: bool) -> Option<Connection> {
        let mut idle = self.server.idle();
        while let Some(mut connection) = idle.pop() {
            if connection.is_usable() {
                return Some(Connection::Http1(connection));
            }
        }
        let shared = self.server.shared.as_ref()?;
        drop(idle);
        self.place(shared, asks_upgrade)
    }

    /// A new connection to this server, or a place on one that came to stand meanwhile.
    pub(super) async fn connect(&self, asks_upgrade: bool) -> Result<Connection, UpstreamError> {
        let (server, settings) = (&self.server, self.settings());
        // A stream that was reset as soon as it had begun ends here, before it costs a connection.
        step_aside().await;
        if let Some(shared) = &server.shared {
            return self.join(shared, asks_upgrade).await;
        }
        let connected = server.address.connect(settings.connect_timeout).await;
        Ok(self.alone(connected?))
    }

    /// A connection of HTTP/1.1.
    pub(super) fn alone(&self, stream: Stream) -> Connection {
        Connection::Http1(Http1::new(stream, self.deadline()))
    }

    /// For the head of a response, and for each piece of its body.
    pub(super) fn deadline(&self) -> Deadline {
        let settings = self.settings();
        let waits = (settings.timeout, settings.body_timeout);
        Deadline::new(self.server.terms.sweep.alarm(), waits)
    }

    /// Keeps a connection to this server for the next request.
    pub(super) fn keep(&self, connection: Box<Http1>) {
        self.server.keep(connection);
    }
}

/// Has whoever polls this look around, once, before it goes on.
async fn step_aside() {
    let mut stepped = false;
    poll_fn(|context| {
        if std::mem::replace(&mut stepped, true) {
            return Poll::Ready(());
        }
        context.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

impl Drop for Seat {
    fn drop(&mut self) {
        if let Some(since) = self.since.take() {
            let (waited, now) = (clock::now() - since, self.server.terms.sweep.elapsed());
            self.server.latency.observe_at_least(waited, now);
        }
        self.server.terms.in_use.fetch_sub(1, Ordering::Relaxed);
        self.server.in_flight.fetch_sub(1, Ordering::Relaxed);
        if self.is_bounded {
            self.server.vital.leave();
        }
        if let Some(queue) = &self.server.terms.queue {
            queue.free();
        }
    }
}
