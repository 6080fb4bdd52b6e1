//! What a worker can answer without asking the store: denials that still hold, and units that were
//! taken ahead.

use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::limit::{Charge, Decision};
use crate::telemetry::decisions::Source;

use super::deny_cache::DenyCache;
use super::lease::Leases;

/// One worker's; locked for a moment by whoever asks and by its connection's task, which run on the
/// same thread.
#[derive(Clone, Debug, Default)]
pub struct Known {
    inner: Arc<Mutex<Inner>>,
    /// Who decided the request that was just answered without asking; 0 for nobody.
    early: Arc<AtomicU8>,
}

#[derive(Debug, Default)]
pub struct Inner {
    pub denied: DenyCache,
    pub leases: Leases,
    epoch: u64,
}

impl Inner {
    fn clear(&mut self) {
        self.denied.clear();
        self.leases.clear();
    }
}

impl Known {
    /// The decision on a request, if it is known. With `exact`, only one whose every number is what
    /// the store would say. Of an epoch before `epoch` nothing is known: an operator has changed
    /// something since.
    pub fn find(
        &self,
        charge: &Charge,
        (now_us, epoch): (u64, u64),
        exact: bool,
    ) -> Option<(Source, Decision)> {
        let mut known = self.lock_in(epoch);
        if let Some(decision) = known.denied.find(charge, now_us, exact) {
            return Some((Source::Cache, decision));
        }
        // Leased units count from the lease's end: no log of the single requests shows that.
        let leased = !exact && charge.iter().any(|item| item.limit.lease_us > 0);
        let decision = leased.then(|| known.leases.spend(charge, now_us))??;
        Some((Source::Lease, decision))
    }

    fn lock_in(&self, epoch: u64) -> MutexGuard<'_, Inner> {
        let mut known = self.lock();
        if known.epoch != epoch {
            known.clear();
            known.epoch = epoch;
        }
        known
    }

    /// Notes who decided a request that is answered at once.
    pub fn note(&self, source: Source) {
        self.early.store(source as u8, Ordering::Relaxed);
    }

    /// Whom [`Known::note`] was told, once; else the store. To be asked as soon as the decision is
    /// there: nothing else runs on this worker in between.
    pub fn noted(&self) -> Source {
        let noted = self.early.load(Ordering::Relaxed);
        if noted == 0 {
            return Source::Store;
        }
        self.early.store(0, Ordering::Relaxed);
        match noted == Source::Lease as u8 {
            true => Source::Lease,
            false => Source::Cache,
        }
    }

    /// Forgets what was denied; units that were taken ahead stay.
    pub fn forget_denials(&self) {
        self.lock().denied.clear();
    }

    /// Forgets everything: the store is not the one it was.
    pub fn clear(&self) {
        self.lock().clear();
    }

    pub fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
