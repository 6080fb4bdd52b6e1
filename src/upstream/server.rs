//! One server of an upstream, as one worker sees it: its idle connections, the requests it has
//! under way, and its rest after it could not be reached.
//!
//! It belongs to one worker: its locks are never contended, and never held across an await. What
//! all workers know of the server together is its [`Vital`].

use std::future::poll_fn;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::Duration;

use http::HeaderValue;
use tokio::runtime::Handle;

use super::balance::{Load, Work};
use super::connect::{Address, Addresses};
use super::health::Standing;
use super::http1::Http1;
use super::latency::{Latency, Measured};
use super::shared::Shared;
use super::terms::UpstreamTerms;
use super::vitals::Vital;
use crate::clock::Alarm;
use crate::config::{HostHeader, ServerAddress, UpstreamServer};
use crate::telemetry::metrics::ServerCells;

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
    pub(super) cap: Option<usize>,
    /// As the file names it.
    pub(super) origin: ServerAddress,
    /// As the log names it: the same, or one of its addresses.
    pub(super) place: ServerAddress,
    /// Where its name was found; nothing before that, and for one without a name.
    addresses: Addresses,
    /// What it has in common with the other servers of its upstream.
    pub(super) terms: Arc<UpstreamTerms>,
    /// What all workers know of it.
    pub(super) vital: Arc<Vital>,
    /// The one used last is on top, so that the others get old and can go.
    pub(super) idle: Mutex<Idle>,
    /// For one that speaks HTTP/2, or may: what several requests share.
    pub(super) shared: Option<Box<Shared>>,
    pub(super) in_flight: AtomicUsize,
    /// What is counted of it.
    pub(super) cells: ServerCells,
    pub(super) latency: Latency,
    looking: AtomicBool,
    /// The same server under newer settings, which gets the connections that come back here.
    heir: OnceLock<Arc<Server>>,
}

impl Server {
    pub(super) fn new(
        server: &UpstreamServer,
        (place, addresses): (ServerAddress, &Addresses),
        terms: &Arc<UpstreamTerms>,
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

    pub(super) fn keep(self: &Arc<Self>, connection: Box<Http1>) {
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
