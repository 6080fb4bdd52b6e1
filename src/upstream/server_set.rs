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
use super::server_health::{UpstreamHealth, Vitals};
use crate::config::{Balance, ServerAddress, UpstreamServer, UpstreamSettings};
use crate::telemetry::panics::lock;

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
        let build = |at: &ServerPlace<'_>| {
            let siblings = places.iter().filter(|other| other.origin == at.origin);
            let has_siblings = siblings.count() > 1;
            let place = match at.addresses.first() {
                Some(address) if has_siblings => at.origin.address.at(*address),
                _ => at.origin.address.clone(),
            };
            let health = self.vitals.server(&self.health, &place);
            let before = old.iter().find(|old| Arc::ptr_eq(&old.health, &health));
            let same = before.filter(|before| before.found == at.addresses);
            if let Some(same) = same.filter(|same| Arc::ptr_eq(&same.terms, &self.terms)) {
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
    let places: Vec<_> = same.map(|one| place(one.found.clone())).collect();
    match places.is_empty() {
        true => vec![place(Addresses::new())],
        false => places,
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
                let places = pair_families(addresses.take(MAX_ADDRESSES));
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
mod tests {
    use super::*;
    use crate::clock::Sweep;
    use crate::config::UpstreamSettings;
    use crate::upstream::pool::Upstream;

    fn ip(text: &str) -> SocketAddr {
        format!("{text}:80").parse().unwrap()
    }

    fn at(texts: &[&str]) -> Vec<Vec<SocketAddr>> {
        let places = pair_families(texts.iter().map(|text| ip(text)));
        places.into_iter().map(|place| place.to_vec()).collect()
    }

    #[test]
    fn addresses_of_two_families_are_one_server() {
        assert_eq!(at(&[]), Vec::<Vec<SocketAddr>>::new());
        assert_eq!(
            at(&["[::1]", "127.0.0.1"]),
            [[ip("[::1]"), ip("127.0.0.1")]]
        );
        assert_eq!(
            at(&["127.0.0.1", "[::1]"]),
            [[ip("127.0.0.1"), ip("[::1]")]]
        );
        let three = [
            vec![ip("10.0.0.1")],
            vec![ip("10.0.0.2")],
            vec![ip("10.0.0.3")],
        ];
        assert_eq!(at(&["10.0.0.3", "10.0.0.1", "10.0.0.2", "10.0.0.1"]), three);
        let uneven = [vec![ip("10.0.0.1"), ip("[::1]")], vec![ip("10.0.0.2")]];
        assert_eq!(at(&["10.0.0.2", "[::1]", "10.0.0.1"]), uneven);
    }

    /// An upstream with a server `app.test` and one without a name.
    struct Upstreams(Arc<Upstream>);

    impl Upstreams {
        fn new(slow_start: bool) -> Upstreams {
            let name = ServerAddress::Http("app.test".into(), 80);
            let fixed = ServerAddress::Http("10.9.9.9".into(), 80);
            let mut settings = UpstreamSettings::new("app", vec![name.into(), fixed.into()]);
            settings.slow_start = slow_start.then_some(Duration::from_secs(3600));
            let upstream = Upstream::new(None, &settings, Sweep::new(), &Vitals::default());
            Upstreams(upstream)
        }

        fn note(&self, texts: &[&str]) -> Vec<Arc<Server>> {
            let name = ServerAddress::Http("app.test".into(), 80);
            let places = pair_families(texts.iter().map(|text| ip(text)));
            self.0.servers.update(&HashMap::from([(name, places)]));
            self.servers()
        }

        fn servers(&self) -> Vec<Arc<Server>> {
            self.0.servers.set.load().servers.clone()
        }

        fn places(&self) -> Vec<String> {
            let place = |server: &Arc<Server>| server.place.to_string();
            self.servers().iter().map(place).collect()
        }
    }

    #[test]
    fn each_address_is_a_server_and_those_that_stay_are_the_same() {
        let upstreams = Upstreams::new(false);
        assert_eq!(
            upstreams.places(),
            ["http://app.test:80", "http://10.9.9.9:80"]
        );
        let two = upstreams.note(&["10.0.0.1", "10.0.0.2"]);
        let want = [
            "http://10.0.0.1:80",
            "http://10.0.0.2:80",
            "http://10.9.9.9:80",
        ];
        assert_eq!(upstreams.places(), want);
        // In another order: nothing has changed.
        let again = upstreams.note(&["10.0.0.2", "10.0.0.1"]);
        assert!(
            two.iter()
                .zip(&again)
                .all(|(one, other)| Arc::ptr_eq(one, other))
        );
        let other = upstreams.note(&["10.0.0.3", "10.0.0.2"]);
        assert!(Arc::ptr_eq(&two[1], &other[0]) && Arc::ptr_eq(&two[2], &other[2]));
        assert_eq!(upstreams.places()[1], "http://10.0.0.3:80");
        // Every one is asked for the name.
        assert!(other[..2].iter().all(|server| server.host == "app.test"));
    }

    #[test]
    fn the_last_good_answer_is_kept() {
        let upstreams = Upstreams::new(false);
        let before = upstreams.note(&["10.0.0.1", "10.0.0.2"]);
        upstreams.0.servers.update(&HashMap::new());
        let after = upstreams.servers();
        assert!(
            before
                .iter()
                .zip(&after)
                .all(|(one, other)| Arc::ptr_eq(one, other))
        );
    }

    #[test]
    fn one_that_moves_keeps_what_is_known_of_it_but_not_its_place() {
        let upstreams = Upstreams::new(false);
        let first = upstreams.servers();
        let second = upstreams.note(&["10.0.0.1"]);
        let third = upstreams.note(&["10.0.0.2"]);
        assert!(Arc::ptr_eq(&first[0].health, &third[0].health));
        assert!(!Arc::ptr_eq(&second[0], &third[0]));
        assert!(third[0].found[..] == [ip("10.0.0.2")]);
    }

    #[test]
    fn only_addresses_that_come_later_start_slowly() {
        let upstreams = Upstreams::new(true);
        let warmth = |server: &Arc<Server>| server.health.warmth(Duration::from_secs(3600));
        let servers = upstreams.note(&["10.0.0.1", "10.0.0.2"]);
        assert!(servers.iter().all(|server| warmth(server) == 100));
        let servers = upstreams.note(&["10.0.0.1", "10.0.0.2", "10.0.0.3"]);
        assert_eq!(
            servers.iter().map(warmth).collect::<Vec<_>>(),
            [100, 100, 10, 100]
        );
    }
}
