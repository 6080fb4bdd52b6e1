//! What a process knows of its upstreams' servers: shared by its workers, read on the path of a
//! request, written by whoever finds something out.
//!
//! On the path only atomics are read. It outlives a configuration: a server is known again by the
//! names of its upstream and itself.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use super::watch::{Ward, Watch};
use crate::config::ServerAddress;

/// A server is said to fail when so many requests in a row failed there.
const FAILING: u32 = 3;

/// Every server's `Vital`, while somebody uses it.
#[derive(Clone, Debug, Default)]
pub struct Vitals(Arc<Mutex<Known>>);

#[derive(Debug, Default)]
struct Known {
    servers: HashMap<(Arc<str>, ServerAddress), Weak<Vital>>,
    wards: HashMap<Arc<str>, Weak<Ward>>,
}

/// What is known of one server.
#[derive(Debug)]
pub(super) struct Vital {
    /// Whether it is well.
    pub(super) watch: Watch,
    /// Requests under way there, of all workers. Counted only where it is bounded.
    under_way: AtomicUsize,
    /// Requests in a row that failed there, of all workers. Only the views show it.
    failed_in_a_row: AtomicU32,
    /// Answers in a row that ended before their end, of all workers. Their heads were successes.
    truncated_in_a_row: AtomicU32,
}

impl Vital {
    /// Whether so many requests are under way.
    pub(super) fn is_full(&self, most: usize) -> bool {
        self.under_way.load(Ordering::Relaxed) >= most
    }

    /// Counts one more request, unless so many are under way.
    pub(super) fn enter(&self, most: usize) -> bool {
        let more = |under_way: usize| (under_way < most).then_some(under_way + 1);
        self.under_way
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, more)
            .is_ok()
    }

    /// A request failed there.
    #[cold]
    pub(super) fn note_failure(&self) {
        self.failed_in_a_row.fetch_add(1, Ordering::Relaxed);
    }

    /// An answer ended before its end.
    #[cold]
    pub(super) fn note_truncated(&self) {
        self.truncated_in_a_row.fetch_add(1, Ordering::Relaxed);
    }

    /// An answer came to its end.
    pub(super) fn note_completed(&self) {
        if self.truncated_in_a_row.load(Ordering::Relaxed) != 0 {
            self.truncated_in_a_row.store(0, Ordering::Relaxed);
        }
    }

    /// A request was answered as it should be.
    pub(super) fn note_success(&self) {
        // Nothing is written that other workers read, unless it changes.
        if self.failed_in_a_row.load(Ordering::Relaxed) != 0 {
            self.failed_in_a_row.store(0, Ordering::Relaxed);
        }
    }

    /// Whether the last requests there failed.
    pub(super) fn is_failing(&self) -> bool {
        let failed = self.failed_in_a_row.load(Ordering::Relaxed);
        let truncated = self.truncated_in_a_row.load(Ordering::Relaxed);
        failed.max(truncated) >= FAILING
    }

    /// One that entered has ended.
    pub(super) fn leave(&self) {
        self.under_way.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Vitals {
    /// The one of `server` in an upstream.
    pub(super) fn of(&self, ward: &Arc<Ward>, server: &ServerAddress) -> Arc<Vital> {
        let mut known = self.known();
        let key = (Arc::clone(ward.upstream()), server.clone());
        if let Some(vital) = known.servers.get(&key).and_then(Weak::upgrade) {
            return vital;
        }
        known.servers.retain(|_, vital| vital.strong_count() > 0);
        let vital = Arc::new(Vital {
            watch: Watch::new(ward, server),
            under_way: AtomicUsize::new(0),
            failed_in_a_row: AtomicU32::new(0),
            truncated_in_a_row: AtomicU32::new(0),
        });
        known.servers.insert(key, Arc::downgrade(&vital));
        vital
    }

    /// What the servers of the upstream of this name have in common.
    pub(super) fn ward(&self, upstream: &str) -> Arc<Ward> {
        let mut known = self.known();
        if let Some(ward) = known.wards.get(upstream).and_then(Weak::upgrade) {
            return ward;
        }
        known.wards.retain(|_, ward| ward.strong_count() > 0);
        let ward = Arc::new(Ward::new(upstream));
        let name = Arc::clone(ward.upstream());
        known.wards.insert(name, Arc::downgrade(&ward));
        ward
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
