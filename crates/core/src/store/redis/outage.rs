//! What a process does about an outage of its store: it tells of it once, remembers what it
//! admitted meanwhile, and knows what to charge again where the store has lost its memory.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use super::Shared;
use super::outage_log::OutageReporter;
use crate::config::RedisAddress;
use crate::limit::Charge;
use crate::store::StoreError;
use crate::store::recovery::{Greeting, Heartbeat};

/// The outages of a store's servers, as the log tells of them.
#[derive(Debug, Default)]
pub(super) struct Outages {
    /// By node; `None` is the server of a store that has no nodes. Servers that have been well for
    /// long are left out.
    reporters: Mutex<HashMap<Option<RedisAddress>, Arc<OutageReporter>>>,
    /// Decisions that were asked for and not made since the last line that told of them.
    unmade: Arc<AtomicU64>,
}

impl Outages {
    /// One worker more is without a server.
    pub(super) fn begin(&self, node: Option<&RedisAddress>, kind: StoreError, now: Instant) {
        let mut reporters = self.reporters();
        reporters.retain(|_, one| !one.is_over(now));
        let reporter = reporters.entry(node.cloned()).or_insert_with(|| {
            let unmade = Arc::clone(&self.unmade);
            Arc::new(OutageReporter::new(node.map(ToString::to_string), unmade))
        });
        reporter.begin(kind, now);
    }

    /// One worker fewer is without a server.
    pub(super) fn end(&self, node: Option<&RedisAddress>, now: Instant) {
        if let Some(reporter) = self.reporters().get(&node.cloned()) {
            reporter.end(now);
        }
    }

    /// Since when some worker is without some server.
    pub(super) fn away_since(&self) -> Option<Instant> {
        let reporters = self.reporters();
        reporters.values().filter_map(|one| one.away_since()).min()
    }

    pub(super) fn count_unmade(&self) {
        self.unmade.fetch_add(1, Ordering::Relaxed);
    }

    fn reporters(&self) -> MutexGuard<'_, HashMap<Option<RedisAddress>, Arc<OutageReporter>>> {
        self.reporters
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

impl Shared {
    /// See `Store::may_decide_alone`.
    pub fn may_decide_alone(&self) -> bool {
        self.recovery.may_decide(self.clock.now_us())
    }

    /// See `Store::suspect`.
    pub fn suspect(&self, lost: Charge) {
        let now_us = self.clock.now_us();
        self.recovery.away(now_us);
        // The next heartbeat says whether everything is lost.
        self.beat_at_us.store(0, Ordering::Relaxed);
        for item in lost {
            self.journal.suspect(item, now_us);
        }
    }

    /// The store has lost its memory: all that was admitted here is owed to the new one.
    fn owe_all(&self) {
        let now_us = self.clock.now_us();
        let admitted = self.local.get().map(|local| local.admitted());
        let admitted = admitted.unwrap_or_default();
        if !admitted.is_empty() {
            tracing::warn!(
                keys = admitted.len(),
                "redis: it has lost its memory; what was admitted here is charged again"
            );
        }
        for item in admitted {
            self.journal.put(item, now_us);
        }
    }

    /// Takes the store's answer to a heartbeat.
    pub(super) fn hear(&self, greeting: Greeting, beat: Heartbeat) {
        let recovery = &self.recovery;
        if recovery.heard(greeting, beat, self.clock.now_us()) {
            self.owe_all();
        }
        let fleet = recovery.fleet();
        if fleet.is_larger_than_said() && !self.told_of_more.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                proxies = fleet.size(),
                "redis: more proxies share the store than `fleet` says; their number counts"
            );
        }
    }

    /// Whether this process owes the store nothing. Units that the store seems to have lost are
    /// charged later, so they count as owed: else all proxies trust the store before it knows them.
    pub(super) fn is_clear(&self) -> bool {
        self.troubled.load(Ordering::Acquire) == 0 && self.journal.is_empty()
    }

    /// Remembers what was admitted without the store.
    pub(super) fn owe(&self, charge: &Charge, generation: u64) {
        let now_us = self.clock.now_us();
        self.recovery.away(now_us);
        // Tags that only this process knows name nothing in the store.
        if self.is_current(generation) {
            self.journal.add(charge, now_us);
        }
    }

    /// One worker more is without the server, or without a node of the cluster.
    pub(super) fn trouble_begins(
        &self,
        node: Option<&RedisAddress>,
        kind: StoreError,
        now: Instant,
    ) {
        self.troubled.fetch_add(1, Ordering::AcqRel);
        self.recovery.away(self.clock.now_us());
        self.outages.begin(node, kind, now);
    }

    /// One worker fewer is without it.
    pub(super) fn trouble_ends(&self, node: Option<&RedisAddress>, now: Instant) {
        if self.troubled.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.recovery.back(self.clock.now_us());
        }
        self.recovery.ledger.forget_clock();
        self.outages.end(node, now);
    }
}
