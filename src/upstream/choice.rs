//! The servers of an upstream, and how one of them is chosen: what `balance` says, asked of what
//! is known of each.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use super::balance::{self, Load, Work};
use super::server::Server;
use crate::config::{Balance, UpstreamSettings};

/// One answer of so many is measured: reading the clock has its price.
const MEASURED: u64 = 4;
/// The same where no choice depends on it, and only the views show it.
const MEASURED_FOR_VIEWS: u64 = 16;
/// One choice of so many is made as if all servers were equally fast: else one that was slow once
/// would not be asked again for a while, and nobody would learn that it is not any more.
const CURIOUS: u64 = 8;

/// See the file's head.
#[derive(Debug)]
pub(super) struct Choice {
    pub(super) servers: Vec<Arc<Server>>,
    policy: Policy,
    /// Whether all servers have the same weight, always.
    is_even: bool,
    /// Whether the choice depends on how long answers take.
    measures: bool,
    /// What is drawn from.
    random: AtomicU64,
}

/// How a server is chosen, and what that needs to remember.
#[derive(Debug)]
enum Policy {
    P2c,
    /// What each server has gained since its last turn.
    RoundRobin(Mutex<Vec<i64>>),
    Hash,
}

/// A server that was chosen.
pub(super) struct Chosen<'c> {
    pub(super) server: &'c Arc<Server>,
    /// Whether to find out how long its answer takes.
    pub(super) measure: bool,
}

impl Choice {
    /// Among `servers`; `seed` is any number.
    pub(super) fn new(servers: Vec<Arc<Server>>, settings: &UpstreamSettings, seed: u64) -> Choice {
        let policy = match settings.balance {
            Balance::P2c => Policy::P2c,
            Balance::RoundRobin => Policy::RoundRobin(Mutex::new(vec![0; servers.len()])),
            Balance::Hash(_) => Policy::Hash,
        };
        let mut pairs = servers.windows(2);
        Choice {
            is_even: settings.slow_start.is_none()
                && pairs.all(|pair| pair[0].weight == pair[1].weight),
            measures: servers.len() > 1 && !matches!(policy, Policy::RoundRobin(_)),
            policy,
            servers,
            random: AtomicU64::new(seed),
        }
    }

    /// The server for a request with this affinity, by what `load` says of each; `None` if there
    /// is none to ask.
    pub(super) fn pick(
        &self,
        affinity: Option<u64>,
        load: impl Fn(&Arc<Server>) -> Load,
    ) -> Option<Chosen<'_>> {
        let random = self.random();
        let servers = &self.servers;
        let is_curious = self.measures && (random >> 32).is_multiple_of(CURIOUS);
        let load = |server: usize| match load(&servers[server]) {
            Load::Ready(work) if is_curious => Load::Ready(Work {
                latency_us: 0,
                ..work
            }),
            load => load,
        };
        let picked = match (&self.policy, affinity) {
            (Policy::Hash, Some(affinity)) => {
                let drawing = servers.iter().map(|server| (server.number, server.weight));
                balance::pick_by_hash(affinity, drawing, load)
            }
            (Policy::RoundRobin(gained), _) => {
                let mut gained = gained.lock().unwrap_or_else(PoisonError::into_inner);
                balance::pick_in_turn(&mut gained, load)
            }
            (Policy::P2c | Policy::Hash, _) if self.is_even => {
                balance::pick(servers.len(), random, load)
            }
            (Policy::P2c | Policy::Hash, _) => balance::pick_weighted(servers.len(), random, load),
        };
        let server = &servers[picked?];
        let one_in = match self.measures {
            true => MEASURED,
            false => MEASURED_FOR_VIEWS,
        };
        Some(Chosen {
            measure: (random >> 32).is_multiple_of(one_in) || server.is_unmeasured(),
            server,
        })
    }

    /// Any number, for a choice that takes the place of this one.
    pub(super) fn seed(&self) -> u64 {
        self.random.load(Ordering::Relaxed)
    }

    /// A Weyl sequence, mixed: as random as choosing needs, at the price of an addition.
    fn random(&self) -> u64 {
        let step = self
            .random
            .fetch_add(0x9e37_79b9_7f4a_7c15, Ordering::Relaxed);
        let random = (step ^ (step >> 31)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        random ^ (random >> 29)
    }
}
