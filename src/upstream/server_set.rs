//! The servers of an upstream, and the choice of one of them by the policy of `balance`.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use super::balance::{self, Load, Work};
use super::server::Server;
use crate::config::{Balance, UpstreamSettings};

/// One response in this number is measured, because reading the clock costs time.
const MEASURED: u64 = 4;
/// The same if no choice depends on it and only reports show it.
const MEASURED_FOR_REPORTS: u64 = 16;
/// One choice in this number ignores latency. Otherwise a server that was slow once would get no
/// request, and its recovery would stay unknown.
const EXPLORING: u64 = 8;

/// The servers that an upstream has now.
#[derive(Debug)]
pub(super) struct ServerSet {
    pub(super) servers: Vec<Arc<Server>>,
    policy: BalancePolicy,
    /// Whether all servers always have the same weight.
    is_even: bool,
    /// Whether the choice depends on latency.
    uses_latency: bool,
    /// The state of the random numbers.
    random: AtomicU64,
}

/// A policy and its state.
#[derive(Debug)]
enum BalancePolicy {
    P2c,
    /// The credit of each server.
    RoundRobin(Mutex<Vec<i64>>),
    Hash,
}

/// The result of a choice.
pub(super) struct ChosenServer<'c> {
    pub(super) server: &'c Arc<Server>,
    /// Whether to measure the latency of the response.
    pub(super) measures: bool,
}

impl ServerSet {
    /// `seed` may be any number.
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
        ServerSet {
            is_even: settings.slow_start.is_none()
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
        let load = |server: usize| match load(&servers[server]) {
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
                let mut credits = credits.lock().unwrap_or_else(PoisonError::into_inner);
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
            measures: (random >> 32).is_multiple_of(one_in) || server.latency.is_unknown(),
            server,
        })
    }

    /// A seed for a set that replaces this one.
    pub(super) fn seed(&self) -> u64 {
        self.random.load(Ordering::Relaxed)
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
