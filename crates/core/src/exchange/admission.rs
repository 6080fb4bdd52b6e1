//! What one request asks of the store, and what lets it pass.

use std::sync::Arc;

use super::rejection::{Denial, Rejection};
use super::slots::HeldSlots;
use crate::limit::{Asker, Charge, Decided, Decision, KeyHash, Limit, LimitCheck, Window};

/// See the file's head. The stages fill it in where it lies.
#[derive(Debug, Default)]
pub struct Admission {
    /// What is enforced: all or nothing.
    pub charge: Charge,
    /// What rides along: counted and reported, each by itself, and never part of the verdict.
    shadow: Vec<Charge>,
    /// Of the hash key that the tags were made with.
    pub(super) generation: u64,
    /// What decides which of the upstream's servers gets it.
    pub affinity: Option<u64>,
    /// What lets it pass; without meaning while `by` is nobody.
    pub decision: Decision,
    pub(super) by: Option<Decider>,
    /// The wall clock's time at the decision, microseconds: the reset that clients are told counts
    /// from there, however slow the upstream is.
    pub(super) unix_us: u64,
    /// What it holds while it is under way.
    pub slots: Option<Box<HeldSlots>>,
    /// Whether scripts may ask to read the answer's headers.
    pub(super) cors: bool,
}

/// Who made a decision, and with it who is to be told what the request cost in the end.
#[derive(Debug)]
pub enum Decider {
    /// The store.
    Store {
        /// What the local store counted beside it, kept where it may be given back.
        warm: Option<Box<Decision>>,
    },
    /// This process alone.
    Local,
}

/// A decision that lets a request pass, and its maker.
#[derive(Clone, Copy, Debug)]
pub struct Granted<'a> {
    pub decided: Decided<'a>,
    pub(super) by: &'a Decider,
}

/// What one limit counts of a request.
pub struct CountedLimit<'l> {
    pub(super) limit: &'l Arc<Limit>,
    /// Of the request's tier, or of its client's override.
    pub(super) windows: &'l [Arc<Window>],
    /// The hash of the key.
    pub(super) tag: KeyHash,
    /// Units.
    pub(super) cost: u64,
    pub(super) asker: Option<Arc<Asker>>,
}

impl Admission {
    /// One that asks nothing yet; `generation` is that of the hash key.
    pub fn new(generation: u64) -> Admission {
        Admission {
            generation,
            ..Admission::default()
        }
    }

    /// Adds what one limit asks: these windows, and those of its candidate beside them.
    pub(super) fn add(&mut self, counted: CountedLimit<'_>) {
        let CountedLimit {
            limit,
            windows,
            tag,
            cost,
            asker,
        } = counted;
        let item = |window: &Arc<Window>| LimitCheck {
            limit: Arc::clone(limit),
            window: Arc::clone(window),
            tag,
            cost,
            asker: asker.clone(),
        };
        let enforced = windows.iter().map(item);
        if limit.shadow && !windows.is_empty() {
            self.shadow.push(enforced.collect());
        } else if !limit.shadow {
            self.charge.extend(enforced);
        }
        if !limit.candidate.is_empty() {
            self.shadow.push(limit.candidate.iter().map(item).collect());
        }
    }

    /// Adds what one limit asks of a key that is given as a hash.
    pub fn add_key(&mut self, limit: &Arc<Limit>, tag: KeyHash, cost: u64) {
        self.add(CountedLimit {
            limit,
            windows: &limit.windows,
            tag,
            cost: cost.saturating_mul(limit.cost),
            asker: None,
        });
    }

    pub fn take_shadow(&mut self) -> Vec<Charge> {
        std::mem::take(&mut self.shadow)
    }

    /// The wall clock's time at the decision, microseconds.
    pub(super) fn decided_us(&self) -> u64 {
        self.unix_us
    }

    /// What rides along.
    pub fn shadow(&self) -> &[Charge] {
        &self.shadow
    }

    /// What let it pass, and who said so; `None` where no limit was asked.
    pub fn granted(&self) -> Option<Granted<'_>> {
        let decided = Decided {
            charge: &self.charge,
            decision: &self.decision,
        };
        let by = self.by.as_ref()?;
        Some(Granted { decided, by })
    }

    /// Its decision denies it.
    pub(super) fn denied(&mut self, by: &Decider) -> Rejection {
        Rejection::Limited(Box::new(Denial {
            charge: std::mem::take(&mut self.charge),
            decision: std::mem::take(&mut self.decision),
            alone: matches!(by, Decider::Local),
        }))
    }
}
