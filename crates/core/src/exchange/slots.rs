//! HeldSlots of a request that is under way: let go of when it has ended, however it ends.
//!
//! The guard lives where the request does: while it waits for the upstream in the admission, then
//! in the response's body until its end or until the client has gone, or in the tunnel that it
//! became. Whether it fails, panics or is given up, its slots come back; should the process die,
//! the store forgets them with its lease.

use std::fmt;
use std::sync::Arc;

use crate::limit::{Algorithm, Charge, LimitCheck};
use crate::store::Store;
use crate::store::memory::Memory;
use crate::telemetry::metrics::Meter;

/// Where slots are counted.
#[derive(Debug)]
pub struct Stores {
    pub(super) store: Store,
    pub(super) local: Arc<Memory>,
    pub(super) meter: Arc<Meter>,
}

/// See the file's head. There is none for a request that holds nothing.
pub struct HeldSlots {
    stores: Arc<Stores>,
    charge: Charge,
}

impl fmt::Debug for HeldSlots {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("HeldSlots").field(&self.charge).finish()
    }
}

impl Drop for HeldSlots {
    fn drop(&mut self) {
        self.stores.store.release(&self.charge);
        if self.stores.is_shared() {
            self.stores.local.release(&self.charge);
        }
    }
}

impl HeldSlots {
    pub(super) fn new(stores: &Arc<Stores>, charge: Charge) -> Box<HeldSlots> {
        Box::new(HeldSlots {
            stores: Arc::clone(stores),
            charge,
        })
    }
}

impl Stores {
    /// Whether other processes count there as well, so that this one counts beside it.
    pub(super) fn is_shared(&self) -> bool {
        !matches!(self.store, Store::Memory(_))
    }
}

/// The items of `charge` that are held rather than spent, if there are any.
pub(super) fn slots_of(charge: &Charge) -> Option<Charge> {
    let is_held =
        |item: &LimitCheck| item.window.rule.algorithm == Algorithm::Slots && item.cost > 0;
    if !charge.iter().any(is_held) {
        return None;
    }
    Some(
        charge
            .iter()
            .filter(|item| is_held(item))
            .cloned()
            .collect(),
    )
}
