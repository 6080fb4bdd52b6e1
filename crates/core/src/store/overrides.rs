//! Overrides: what operators set for single keys. Another rate than the limit's, no limit, or a
//! block, each until a certain time.
//!
//! [`Overrides`] is the table that requests are checked against. [`Record`] is one override as it
//! is stored. The embedded store keeps its records in `memory`; Redis keeps them in a hash, which
//! `store/redis/overrides.rs` reads and `lua/overrides.lua` alone writes.

pub(super) mod memory;
mod rates;
mod record;
mod table;

use std::sync::Arc;

use arc_swap::Guard;

pub use rates::{RulesError, rules};
pub use record::{
    ChangeKind, MAX_CHANGES, MAX_RECORDS, Record, RecordTerms, SCRIPT, Subject, clean, rate_text,
};
pub(super) use table::ClockPair;
pub use table::{Overrides, Until};

use crate::limit::{KeyHash, Window};

/// The table in force at a time; not to be kept across an await.
#[derive(Debug)]
pub struct OverrideSnapshot {
    pub(super) table: Guard<Arc<Overrides>>,
    /// The time of the clock that the table's ends are given in, microseconds.
    pub(super) now_us: u64,
}

impl Clone for OverrideSnapshot {
    fn clone(&self) -> OverrideSnapshot {
        OverrideSnapshot {
            table: Guard::from_inner(Arc::clone(&self.table)),
            now_us: self.now_us,
        }
    }
}

impl OverrideSnapshot {
    /// Whether any key is blocked.
    pub fn has_blocks(&self) -> bool {
        self.table.has_blocks()
    }

    pub fn block_of(&self, tag: KeyHash) -> Option<Block> {
        let until = self.table.blocked(tag, self.now_us)?;
        Some(Block {
            left_us: until.left_us(self.now_us),
        })
    }

    /// The windows that a key has instead of the limit's own.
    pub fn windows(&self, limit: &str, tag: KeyHash) -> Option<&[Arc<Window>]> {
        self.table.windows(limit, tag, self.now_us)
    }
}

/// A block of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Block {
    /// How long it still holds, microseconds; `None` until it is removed.
    pub left_us: Option<u64>,
}

/// Every override and block in force.
#[derive(Clone, Debug, Default)]
pub struct OverrideList {
    /// The store's time, microseconds since the Unix epoch; 0 where nothing was ever changed.
    pub now_us: u64,
    /// By subject.
    pub records: Vec<Record>,
}

impl OverrideList {
    /// The same as requests are checked against it; `None` if it is empty.
    pub fn snapshot(&self) -> Option<OverrideSnapshot> {
        let now_us = self.now_us;
        let table = Overrides::from_records(
            &self.records,
            ClockPair {
                store_us: now_us,
                local_us: now_us,
            },
        );
        (!table.is_empty()).then(|| OverrideSnapshot {
            table: Guard::from_inner(Arc::new(table)),
            now_us,
        })
    }
}

/// A change to make.
#[derive(Debug)]
pub struct OverrideChange {
    pub subject: Subject,
    /// How long it holds, microseconds; 0 until it is removed.
    pub lasts_us: u64,
    pub terms: RecordTerms,
}

/// What became of a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChangeOutcome {
    /// It is made; it ends then, by the store's clock (0: when it is removed).
    Made(u64),
    /// There was nothing to remove.
    Nothing,
    /// There are as many overrides and blocks as there may be.
    Full,
}
