//! Overrides: what operators set for single keys. An override is another rate than the limit's, no
//! limit, or a block, each until a certain time.
//!
//! [`Overrides`] is the table that requests are checked against. [`Record`] is one override as it
//! is stored. The embedded store keeps its records in [`MemoryOverrides`]. Redis keeps them in a
//! hash that `store/redis/overrides.rs` reads, and only `lua/overrides.lua` writes it.

mod override_windows;
mod record;
#[cfg(test)]
mod tests;

use std::borrow::Cow;
use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use arc_swap::{ArcSwap, Guard};
use smallvec::SmallVec;

pub use record::{
    ChangeKind, MAX_CHANGES, MAX_RECORDS, MAX_WITH_BANS, Record, RecordTerms, RulesError, SCRIPT,
    Subject, clean, rate_text, rules,
};

use super::bans::BanRecords;
use crate::clock::MonotonicClock;
use crate::limit::{KeyHash, Limit, Rule, Window};
use override_windows::OverrideWindows;

/// The end of what holds until an operator removes it.
const NEVER: u64 = u64::MAX;

#[derive(Clone, Debug)]
struct Override {
    limit: Arc<str>,
    windows: Arc<OverrideWindows>,
    /// Exclusive, microseconds.
    until_us: u64,
}

#[derive(Clone, Debug)]
struct Block {
    /// Exclusive, microseconds.
    until_us: u64,
    /// The limit whose ban it is. `None` if an operator made it.
    ban: Option<Arc<str>>,
}

/// A ban that has begun.
#[derive(Clone, Debug)]
pub(super) struct BegunBan {
    pub(super) limit: Arc<str>,
    pub(super) tag: KeyHash,
    /// By the clock of the table, exclusive, microseconds.
    pub(super) until_us: u64,
}

/// Every override and every block in force. It is pure: all times are of one clock. An override
/// that has ended does not apply, even if it is still in the table. Each change makes a new table.
#[derive(Clone, Debug, Default)]
pub struct Overrides {
    overrides: HashMap<KeyHash, SmallVec<[Override; 1]>>,
    blocks: HashMap<KeyHash, Block>,
    next_end_us: Option<u64>,
}

/// One moment on the store's clock and on this process's own, which does not step; microseconds.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ClockPair {
    pub(super) store_us: u64,
    pub(super) local_us: u64,
}

impl ClockPair {
    /// For records whose times are of this process's clock.
    pub(super) fn same(now_us: u64) -> ClockPair {
        ClockPair {
            store_us: now_us,
            local_us: now_us,
        }
    }
}

/// The parts of an override that many keys share.
struct SharedWindows {
    limit: Arc<str>,
    windows: Arc<OverrideWindows>,
}

impl Overrides {
    /// The table of the records in force, with ends by this process's clock.
    pub(super) fn from_records(records: &[Record], now: ClockPair) -> Overrides {
        let mut table = Overrides::default();
        // There are many overrides and few rates: overrides with the same rates share windows.
        let mut known: HashMap<(&str, &[Rule]), SharedWindows> = HashMap::new();
        let mut names: HashMap<&str, Arc<str>> = HashMap::new();
        let in_force = records.iter().filter(|one| !one.is_over(now.store_us));
        for record in in_force.take(MAX_RECORDS) {
            let until_us = match record.terms.until_us {
                0 => NEVER,
                end_us => (now.local_us).saturating_add(end_us.saturating_sub(now.store_us)),
            };
            match &record.subject {
                Subject::Override(limit, tag) => {
                    let rules = &record.terms.rules;
                    let shared = known.entry((limit, rules));
                    let shared = shared.or_insert_with(|| SharedWindows {
                        limit: limit.as_str().into(),
                        windows: Arc::new(OverrideWindows::new(limit, rules)),
                    });
                    table.set_override(&shared.limit, *tag, &shared.windows, until_us);
                }
                Subject::Block(tag) => {
                    let name =
                        |limit| Arc::clone(names.entry(limit).or_insert_with(|| limit.into()));
                    let ban = record.ban().map(name);
                    table.block(*tag, Block { until_us, ban });
                }
                Subject::Reset(..) => {}
            }
        }
        table
    }

    /// Gives one key of `limit` these windows instead of the limit's; none means no limit.
    fn set_override(
        &mut self,
        limit: &Arc<str>,
        tag: KeyHash,
        windows: &Arc<OverrideWindows>,
        until_us: u64,
    ) {
        self.note_end(until_us);
        let of_tag = self.overrides.entry(tag).or_default();
        of_tag.retain(|one| one.limit != *limit);
        of_tag.push(Override {
            limit: Arc::clone(limit),
            windows: Arc::clone(windows),
            until_us,
        });
    }

    fn block(&mut self, tag: KeyHash, block: Block) {
        self.note_end(block.until_us);
        self.blocks.insert(tag, block);
    }

    /// Adds bans of keys that are not blocked.
    pub(super) fn ban<'b>(&mut self, bans: impl IntoIterator<Item = &'b BegunBan>, now_us: u64) {
        for ban in bans {
            if ban.until_us > now_us && self.block_of(ban.tag, now_us).is_none() {
                let block = Block {
                    until_us: ban.until_us,
                    ban: Some(Arc::clone(&ban.limit)),
                };
                self.block(ban.tag, block);
            }
        }
    }

    /// How many keys are banned.
    fn count_banned(&self, now_us: u64) -> usize {
        let blocks = self.blocks.values();
        let bans = blocks.filter(|block| block.ban.is_some() && block.until_us > now_us);
        bans.count()
    }

    fn note_end(&mut self, end_us: u64) {
        self.next_end_us = Some(self.next_end_us.map_or(end_us, |next| next.min(end_us)));
    }

    pub fn is_empty(&self) -> bool {
        self.overrides.is_empty() && self.blocks.is_empty()
    }

    pub fn has_blocks(&self) -> bool {
        !self.blocks.is_empty()
    }

    /// The windows that one key of `limit` has instead of the limit's own.
    pub fn windows(
        &self,
        limit: &Limit,
        tag: KeyHash,
        now_us: u64,
    ) -> Option<Cow<'_, [Arc<Window>]>> {
        let mut of_tag = self.overrides.get(&tag)?.iter();
        let found = of_tag.find(|one| one.limit == limit.name && one.until_us > now_us)?;
        Some(found.windows.windows_of(limit))
    }

    /// The block of a key; `None` if it is not blocked.
    fn block_of(&self, tag: KeyHash, now_us: u64) -> Option<KeyBlock> {
        let Block { until_us, ban } = self.blocks.get(&tag)?;
        (*until_us > now_us).then(|| KeyBlock {
            left_us: (*until_us != NEVER).then(|| until_us - now_us),
            ban: ban.clone(),
        })
    }

    /// Whether the table still has something that has ended by `now_us`.
    pub fn has_ended(&self, now_us: u64) -> bool {
        self.next_end_us.is_some_and(|end| end <= now_us)
    }

    /// The keys of ended overrides and blocks; an override has its limit.
    pub fn ended(&self, now_us: u64) -> impl Iterator<Item = (Option<&str>, KeyHash)> {
        let overrides = self.overrides.iter().flat_map(move |(tag, of_tag)| {
            let ended = of_tag.iter().filter(move |one| one.until_us <= now_us);
            ended.map(|one| (Some(&*one.limit), *tag))
        });
        let blocks = self.blocks.iter();
        let blocks = blocks.filter(move |(_, block)| block.until_us <= now_us);
        overrides.chain(blocks.map(|(tag, _)| (None, *tag)))
    }

    /// The same table without what has ended by `now_us`.
    pub fn without_ended(&self, now_us: u64) -> Overrides {
        let mut left = Overrides::default();
        for (tag, of_tag) in &self.overrides {
            for one in of_tag.iter().filter(|one| one.until_us > now_us) {
                left.set_override(&one.limit, *tag, &one.windows, one.until_us);
            }
        }
        let blocks = self.blocks.iter();
        for (tag, block) in blocks.filter(|(_, block)| block.until_us > now_us) {
            left.block(*tag, block.clone());
        }
        left
    }
}

/// The table in force, which all workers read, and its clock.
#[derive(Debug)]
pub(super) struct OverrideTable {
    table: ArcSwap<Overrides>,
    /// Whether the table has anything: a request without overrides reads no more than this.
    has_any: AtomicBool,
    pub(super) clock: MonotonicClock,
}

impl Default for OverrideTable {
    fn default() -> OverrideTable {
        OverrideTable::new(MonotonicClock::start())
    }
}

impl OverrideTable {
    pub(super) fn new(clock: MonotonicClock) -> OverrideTable {
        OverrideTable {
            table: ArcSwap::default(),
            has_any: AtomicBool::new(false),
            clock,
        }
    }
    /// The table and the time on its clock; `None`, at the cost of one load, if it is empty.
    pub(super) fn snapshot(&self) -> Option<OverrideSnapshot> {
        if !self.has_any.load(Ordering::Relaxed) {
            return None;
        }
        Some(OverrideSnapshot {
            table: self.table.load(),
            now_us: self.clock.now_us(),
        })
    }

    pub(super) fn load(&self) -> Guard<Arc<Overrides>> {
        self.table.load()
    }

    pub(super) fn store(&self, table: Overrides) {
        let has_any = !table.is_empty();
        self.table.store(Arc::new(table));
        self.has_any.store(has_any, Ordering::Relaxed);
    }

    /// How many keys are banned now.
    pub(super) fn count_banned(&self) -> usize {
        self.table.load().count_banned(self.clock.now_us())
    }
}

/// The table in force at a time; not to be kept across an await.
#[derive(Debug)]
pub struct OverrideSnapshot {
    table: Guard<Arc<Overrides>>,
    /// The time on the clock of the table's ends, microseconds.
    now_us: u64,
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
    pub fn has_blocks(&self) -> bool {
        self.table.has_blocks()
    }

    pub fn block_of(&self, tag: KeyHash) -> Option<KeyBlock> {
        self.table.block_of(tag, self.now_us)
    }

    /// The windows that one key of `limit` has instead of the limit's own.
    pub fn windows(&self, limit: &Limit, tag: KeyHash) -> Option<Cow<'_, [Arc<Window>]>> {
        self.table.windows(limit, tag, self.now_us)
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KeyBlock {
    /// How long the block still holds, microseconds; `None` until it is removed.
    pub left_us: Option<u64>,
    /// The limit whose ban it is. `None` if an operator made it.
    pub ban: Option<Arc<str>>,
}

#[derive(Clone, Debug, Default)]
pub struct OverrideList {
    /// The store's time, microseconds since the Unix epoch; 0 if nothing was ever changed.
    pub now_us: u64,
    pub records: Vec<Record>,
}

impl OverrideList {
    /// The same as a table for requests; `None` if it is empty.
    pub fn snapshot(&self) -> Option<OverrideSnapshot> {
        let table = Overrides::from_records(&self.records, ClockPair::same(self.now_us));
        (!table.is_empty()).then(|| OverrideSnapshot {
            table: Guard::from_inner(Arc::new(table)),
            now_us: self.now_us,
        })
    }
}

#[derive(Debug)]
pub struct OverrideChange {
    pub subject: Subject,
    /// How long it holds, microseconds; 0 until it is removed.
    pub lasts_us: u64,
    pub terms: RecordTerms,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChangeOutcome {
    /// It is made, and ends at this time by the store's clock (0: when it is removed).
    Made(u64),
    Nothing,
    /// There are as many overrides and blocks as there may be.
    Full,
}

/// Overrides of the embedded store: kept in this process and gone with it.
#[derive(Debug, Default)]
pub struct MemoryOverrides {
    table: OverrideTable,
    records: Mutex<Vec<Record>>,
    /// The last changes, newest last.
    changes: Mutex<VecDeque<Record>>,
    /// The denials that may begin a ban.
    bans: BanRecords,
}

impl MemoryOverrides {
    /// The table and the time on its clock; `None`, at the cost of one load, if it is empty.
    pub fn snapshot(&self) -> Option<OverrideSnapshot> {
        self.table.snapshot()
    }

    pub fn list(&self) -> OverrideList {
        let now_us = self.table.clock.now_us();
        let mut records = self.records.lock().unwrap_or_else(PoisonError::into_inner);
        records.retain(|one| !one.is_over(now_us));
        OverrideList {
            now_us,
            records: records.clone(),
        }
    }

    pub fn changes(&self) -> Vec<Record> {
        let changes = self.changes.lock().unwrap_or_else(PoisonError::into_inner);
        changes.iter().rev().cloned().collect()
    }

    pub fn bans(&self) -> &BanRecords {
        &self.bans
    }

    pub fn count_banned(&self) -> usize {
        self.table.count_banned()
    }

    /// Counts a denial of a key by a limit with `ban`. A ban that it begins holds from the next
    /// request on.
    pub(super) fn count_denial(&self, limit: &Limit, tag: KeyHash) {
        let now_us = self.table.clock.now_us();
        if self.table.load().block_of(tag, now_us).is_some() {
            return;
        }
        let Some(begun) = self.bans.add(limit, tag, 1, now_us) else {
            return;
        };
        let until_us = now_us.saturating_add(begun.length_us);
        let record = Record {
            subject: Subject::Block(tag),
            terms: RecordTerms {
                until_us,
                at_us: now_us,
                note: begun.note(),
                ..RecordTerms::of_ban(limit)
            },
        };
        if self.set_ban(record, now_us) {
            self.bans.note_begun(limit, tag, begun);
        }
    }

    /// Returns whether the ban holds. Another worker may have begun one at the same time.
    fn set_ban(&self, record: Record, now_us: u64) -> bool {
        let mut records = self.records.lock().unwrap_or_else(PoisonError::into_inner);
        records.retain(|one| !one.is_over(now_us));
        let place = records.binary_search_by(|one| one.subject.cmp(&record.subject));
        let Err(place) = place else {
            return false;
        };
        if records.len() >= MAX_WITH_BANS {
            return false;
        }
        let mut table = self.table.load().without_ended(now_us);
        let ban = BegunBan {
            limit: record.ban().unwrap_or_default().into(),
            tag: record.subject.tag(),
            until_us: record.terms.until_us,
        };
        table.ban([&ban], now_us);
        self.table.store(table);
        records.insert(place, record);
        true
    }

    /// Makes a change, which holds from the next request on. A reset is only noted.
    pub fn change(&self, change: OverrideChange) -> ChangeOutcome {
        let now_us = self.table.clock.now_us();
        let mut record = Record {
            subject: change.subject,
            terms: change.terms,
        };
        record.terms.at_us = now_us;
        record.terms.until_us = match change.lasts_us {
            0 => 0,
            lasts => now_us.saturating_add(lasts),
        };
        let outcome = match record.subject {
            Subject::Reset(..) => ChangeOutcome::Made(0),
            _ => self.apply(&record, now_us),
        };
        if let ChangeOutcome::Made(_) = outcome {
            record.log_change();
            let mut changes = self.changes.lock().unwrap_or_else(PoisonError::into_inner);
            if changes.len() == MAX_CHANGES {
                changes.pop_front();
            }
            changes.push_back(record);
        }
        outcome
    }

    /// Sets or removes a record, and makes the new table.
    fn apply(&self, record: &Record, now_us: u64) -> ChangeOutcome {
        let mut records = self.records.lock().unwrap_or_else(PoisonError::into_inner);
        let before = records.len();
        records.retain(|one| one.subject != record.subject);
        let mut was_there = records.len() < before;
        if let (Subject::Block(tag), ChangeKind::Remove) = (&record.subject, record.terms.kind) {
            was_there |= self.bans.forget(*tag);
        }
        records.retain(|one| !one.is_over(now_us));
        let outcome = match record.terms.kind {
            ChangeKind::Remove if was_there => ChangeOutcome::Made(0),
            ChangeKind::Remove => ChangeOutcome::Nothing,
            ChangeKind::Set if records.len() >= MAX_RECORDS => ChangeOutcome::Full,
            ChangeKind::Set => {
                records.push(record.clone());
                records.sort_by(|one, other| one.subject.cmp(&other.subject));
                ChangeOutcome::Made(record.terms.until_us)
            }
        };
        self.table
            .store(Overrides::from_records(&records, ClockPair::same(now_us)));
        outcome
    }
}
