//! The servers of an upstream over time, and the choice of one of them by the policy of `balance`.
//! Names are looked up at an interval, and each address of a name is a server of its own.
//!
//! A failed or empty lookup changes nothing. Until the first one succeeds, each new connection
//! looks the name up itself, so that the start of the process does not wait for it.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use arc_swap::ArcSwap;
use smallvec::SmallVec;
use tokio::net::lookup_host;
use tokio::runtime::Handle;
use tokio::time::{sleep, timeout};

use super::balance::{self, Load, Work};
use super::connect::Addresses;
use super::server::{Server, UpstreamTerms};
use super::server_health::{ServerHealth, UpstreamHealth, Vitals};
use crate::config::{Balance, ServerAddress, UpstreamServer, UpstreamSettings};
use crate::telemetry::panics::lock;

/// The most servers of one name.
const MAX_ADDRESSES: usize = 64;
const LOOKUP_TIMEOUT: Duration = Duration::from_secs(10);

/// One response in this number is measured, because reading the clock costs time.
const MEASURED: u64 = 4;
/// The same if no choice depends on it and only reports show it.
const MEASURED_FOR_REPORTS: u64 = 16;
/// One choice in this number ignores latency. Otherwise a server that was slow once would get no
/// request, and its recovery would stay unknown.
const EXPLORING: u64 = 8;

/// One server: its line in the configuration, and its addresses. Those are empty without a name, or
/// before the first lookup.
struct ServerPlace<'s> {
    origin: &'s UpstreamServer,
    addresses: Addresses,
}

/// The servers of one upstream, with current addresses.
#[derive(Debug)]
pub(super) struct ResolvedServers {
    pub(super) set: ArcSwap<ServerSet>,
    terms: Arc<UpstreamTerms>,
    health: Arc<UpstreamHealth>,
    vitals: Vitals,
}

impl ResolvedServers {
    /// Builds the servers at these places. A server of `old` that has not changed stays; one with
    /// new settings hands its state over.
    fn build(&self, places: &[ServerPlace<'_>], old: &[Arc<Server>]) -> Vec<Arc<Server>> {
        // The configuration may list a server twice, and then each has one of `old`.
        let mut left: Vec<_> = old.iter().collect();
        let build = |at: &ServerPlace<'_>| {
            let is_sibling = |other: &&ServerPlace<'_>| std::ptr::eq(other.origin, at.origin);
            let has_siblings = places.iter().filter(is_sibling).count() > 1;
            let place = match at.addresses.first() {
                Some(address) if has_siblings => at.origin.address.at(*address),
                _ => at.origin.address.clone(),
            };
            let health = self.health_at(at, &place, old);
            let own = left
                .iter()
                .position(|old| Arc::ptr_eq(&old.health, &health));
            let before = own.map(|own| left.remove(own));
            let same = before.filter(|before| before.found == at.addresses);
            let unchanged =
                same.filter(|same| Arc::ptr_eq(&same.terms, &self.terms) && same.place == place);
            if let Some(same) = unchanged {
                return Arc::clone(same);
            }
            // Before its first lookup, a name got requests at all of its addresses.
            let had_requests = |old: &Arc<Server>| {
                old.origin == at.origin.address && old.found.is_empty() && has_siblings
            };
            if before.is_none() && !old.is_empty() && !old.iter().any(had_requests) {
                health.begin_slow_start();
            }
            let server = Server::new(at.origin, place, &at.addresses, &self.terms, health, before);
            let server = Arc::new(server);
            if let Some(same) = same {
                same.hand_over(&server);
            }
            server
        };
        places.iter().map(build).collect()
    }

    /// The health of the server at `place`. A name with one address is a place by its name, and one
    /// with several by each address. An address keeps its health when the other way begins.
    fn health_at(
        &self,
        at: &ServerPlace<'_>,
        place: &ServerAddress,
        old: &[Arc<Server>],
    ) -> Arc<ServerHealth> {
        let address = at.addresses.first();
        let was_there = |old: &&Arc<Server>| {
            address.is_some() && old.found.first() == address && old.origin == at.origin.address
        };
        let known = old.iter().find(was_there);
        let Some(known) = known.filter(|known| known.place != *place) else {
            return self.vitals.server(&self.health, place);
        };
        let mut others = old
            .iter()
            .filter(|one| !Arc::ptr_eq(&one.health, &known.health));
        let is_others =
            |there: &Arc<ServerHealth>| others.any(|one| Arc::ptr_eq(&one.health, there));
        self.vitals.moved(&known.health, place, is_others)
    }

    /// Starts with the addresses of `old` servers, and looks names up as long as it is in use.
    pub(super) fn new(
        terms: &Arc<UpstreamTerms>,
        health: &Arc<UpstreamHealth>,
        vitals: &Vitals,
        old: &[Arc<Server>],
    ) -> Arc<ResolvedServers> {
        let settings = &terms.settings;
        let seed = RandomState::new().hash_one(&settings.name);
        let resolved = Arc::new(ResolvedServers {
            set: ArcSwap::from_pointee(ServerSet::new(Vec::new(), settings, seed)),
            terms: Arc::clone(terms),
            health: Arc::clone(health),
            vitals: vitals.clone(),
        });
        let servers = settings.servers.iter();
        let places: Vec<_> = servers.flat_map(|one| known_places(old, one)).collect();
        resolved.use_servers(resolved.build(&places, old), seed);
        let mut servers = settings.servers.iter();
        if let Ok(runtime) = Handle::try_current()
            && servers.any(|server| server.address.name().is_some())
        {
            runtime.spawn(look_up_repeatedly(Arc::downgrade(&resolved)));
        }
        resolved
    }

    fn use_servers(&self, servers: Vec<Arc<Server>>, seed: u64) {
        self.health.servers.store(servers.len(), Ordering::Relaxed);
        let set = ServerSet::new(servers, &self.terms.settings, seed);
        self.set.store(Arc::new(set));
    }

    /// Replaces the set after a lookup. Names without a result keep their addresses.
    fn update(&self, found: &HashMap<ServerAddress, Vec<Addresses>>) {
        let settings = &self.terms.settings;
        let old = self.set.load_full();
        let mut places = Vec::new();
        for origin in &settings.servers {
            match found.get(&origin.address) {
                Some(found) => places.extend(found.iter().map(|addresses| ServerPlace {
                    origin,
                    addresses: addresses.clone(),
                })),
                None => places.extend(known_places(&old.servers, origin)),
            }
        }
        let servers = self.build(&places, &old.servers);
        let mut pairs = servers.iter().zip(&old.servers);
        if servers.len() == old.servers.len() && pairs.all(|(new, old)| Arc::ptr_eq(new, old)) {
            return;
        }
        for server in servers.iter().filter(|server| !server.found.is_empty()) {
            if !old.servers.iter().any(|old| Arc::ptr_eq(old, server)) {
                let (upstream, origin) = (&settings.name, &server.origin);
                tracing::debug!("upstream {upstream}: {origin} is at {}", server.place);
            }
        }
        self.use_servers(servers, old.random.load(Ordering::Relaxed));
    }
}

/// The places of one server of the configuration, from the servers that are known so far.
fn known_places<'s>(known: &[Arc<Server>], origin: &'s UpstreamServer) -> Vec<ServerPlace<'s>> {
    let same = known.iter().filter(|one| one.origin == origin.address);
    let place = |addresses| ServerPlace { origin, addresses };
    let mut found: Vec<_> = same.map(|one| one.found.clone()).collect();
    // The same server twice has the addresses of both.
    found.sort_unstable();
    found.dedup();
    match found.is_empty() {
        true => vec![place(Addresses::new())],
        false => found.into_iter().map(place).collect(),
    }
}

async fn look_up_repeatedly(servers: Weak<ResolvedServers>) {
    loop {
        let Some(current) = servers.upgrade() else {
            return;
        };
        let settings = current.terms.settings.clone();
        drop(current);
        let mut found = HashMap::new();
        for server in &settings.servers {
            let Some((name, port)) = server.address.name() else {
                continue;
            };
            if let Ok(Ok(addresses)) = timeout(LOOKUP_TIMEOUT, lookup_host((name, port))).await {
                let mut places = pair_families(addresses);
                if places.len() > MAX_ADDRESSES
                    && let Some(current) = servers.upgrade()
                {
                    let (name, count) = (server.address.to_string(), places.len());
                    current.health.warn_of_servers(&name, count, MAX_ADDRESSES);
                    places.truncate(MAX_ADDRESSES);
                }
                if !places.is_empty() {
                    found.insert(server.address.clone(), places);
                }
            }
        }
        let Some(current) = servers.upgrade() else {
            return;
        };
        current.update(&found);
        drop(current);
        sleep(settings.dns_every).await;
    }
}

/// Groups the addresses of a name by server. One address of IPv4 and one of IPv6 count as the same
/// server, because names such as `localhost` have both. The order of the addresses decides only
/// which family comes first.
fn pair_families(addresses: impl Iterator<Item = SocketAddr>) -> Vec<Addresses> {
    let mut all: SmallVec<[SocketAddr; 8]> = addresses.collect();
    let Some(first) = all.first().copied() else {
        return Vec::new();
    };
    // So the order of the answer does not decide which addresses a bound leaves out.
    all.sort_unstable();
    all.dedup();
    let (mut front, mut back): (Vec<_>, Vec<_>) = all
        .into_iter()
        .partition(|address| address.is_ipv4() == first.is_ipv4());
    let count = front.len().max(back.len());
    front.reverse();
    back.reverse();
    let pair = |_| front.pop().into_iter().chain(back.pop()).collect();
    (0..count).map(pair).collect()
}

#[derive(Debug)]
pub(super) struct ServerSet {
    pub(super) servers: Vec<Arc<Server>>,
    policy: BalancePolicy,
    /// Whether all servers always have the same weight.
    is_even: bool,
    uses_latency: bool,
    has_backups: bool,
    random: AtomicU64,
}

#[derive(Debug)]
enum BalancePolicy {
    P2c,
    /// The credit of each server.
    RoundRobin(Mutex<Vec<i64>>),
    Hash,
}

pub(super) struct ChosenServer<'c> {
    pub(super) server: &'c Arc<Server>,
    pub(super) measures: bool,
}

impl ServerSet {
    pub(super) fn new(
        servers: Vec<Arc<Server>>,
        settings: &UpstreamSettings,
        seed: u64,
    ) -> ServerSet {
        let policy = match settings.balance {
            Balance::P2c => BalancePolicy::P2c,
            Balance::RoundRobin => BalancePolicy::RoundRobin(Mutex::new(vec![0; servers.len()])),
            Balance::Hash(_) => BalancePolicy::Hash,
        };
        let mut pairs = servers.windows(2);
        let has_backups = servers.iter().any(|server| server.is_backup);
        ServerSet {
            has_backups,
            is_even: settings.slow_start.is_none()
                && !has_backups
                && pairs.all(|pair| pair[0].weight == pair[1].weight),
            uses_latency: servers.len() > 1 && !matches!(policy, BalancePolicy::RoundRobin(_)),
            policy,
            servers,
            random: AtomicU64::new(seed),
        }
    }

    /// Chooses a server by the `load` of each; `None` if none may get requests.
    pub(super) fn choose(
        &self,
        affinity: Option<u64>,
        load: impl Fn(&Arc<Server>) -> Load,
    ) -> Option<ChosenServer<'_>> {
        let random = self.random();
        let servers = &self.servers;
        let ignores_latency = self.uses_latency && (random >> 32).is_multiple_of(EXPLORING);
        let spares_backups = self.spares_backups(&load);
        let load = |server: usize| match load(&servers[server]) {
            _ if spares_backups && servers[server].is_backup => Load::Down,
            Load::Ready(work) if ignores_latency => Load::Ready(Work {
                latency_us: 0,
                ..work
            }),
            load => load,
        };
        let picked = match (&self.policy, affinity) {
            (BalancePolicy::Hash, Some(affinity)) => {
                let lots = servers.iter().map(|server| (server.number, server.weight));
                balance::pick_by_hash(affinity, lots, load)
            }
            (BalancePolicy::RoundRobin(credits), _) => {
                let mut credits = lock(credits);
                balance::pick_in_turn(&mut credits, load)
            }
            _ if self.is_even => balance::pick(servers.len(), random, load),
            _ => balance::pick_weighted(servers.len(), random, load),
        };
        let server = &servers[picked?];
        let one_in = match self.uses_latency {
            true => MEASURED,
            false => MEASURED_FOR_REPORTS,
        };
        Some(ChosenServer {
            measures: (random >> 32).is_multiple_of(one_in)
                || server.latency.mean_us.load(Ordering::Relaxed) == 0,
            server,
        })
    }

    /// Whether backups get no requests, since another server may get them.
    pub(super) fn spares_backups(&self, load: impl Fn(&Arc<Server>) -> Load) -> bool {
        let is_ready = |one: &Arc<Server>| !one.is_backup && matches!(load(one), Load::Ready(_));
        self.has_backups && self.servers.iter().any(is_ready)
    }

    /// A mixed Weyl sequence: random enough for balancing, for the price of one addition.
    fn random(&self) -> u64 {
        let step = self
            .random
            .fetch_add(0x9e37_79b9_7f4a_7c15, Ordering::Relaxed);
        let random = (step ^ (step >> 31)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        random ^ (random >> 29)
    }
}

#[cfg(test)]
mod tests;
