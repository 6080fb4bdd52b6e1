//! Overrides of the embedded store: kept in this process and gone with it.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};

use super::{
    ChangeKind, ChangeOutcome, ClockPair, MAX_CHANGES, MAX_RECORDS, OverrideChange, OverrideList,
    OverrideSnapshot, OverrideTable, Overrides, Record, Subject,
};

#[derive(Debug, Default)]
pub struct MemoryOverrides {
    table: OverrideTable,
    records: Mutex<Vec<Record>>,
    /// The last changes, newest last.
    changes: Mutex<VecDeque<Record>>,
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

    /// The last changes, newest first.
    pub fn changes(&self) -> Vec<Record> {
        let changes = self.changes.lock().unwrap_or_else(PoisonError::into_inner);
        changes.iter().rev().cloned().collect()
    }

    /// Makes a change, which holds from the next request on. A reset is only noted.
    pub fn change(&self, change: OverrideChange) -> ChangeOutcome {
        let now_us = self.table.clock.now_us();
        let mut terms = change.terms;
        terms.at_us = now_us;
        terms.until_us = match change.lasts_us {
            0 => 0,
            lasts => now_us.saturating_add(lasts),
        };
        let record = Record {
            subject: change.subject,
            terms,
        };
        let outcome = match record.subject {
            Subject::Reset(..) => ChangeOutcome::Made(0),
            _ => self.apply(&record, now_us),
        };
        if let ChangeOutcome::Made(_) = outcome {
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
        let was_there = records.len() < before;
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limit::KeyHash;
    use crate::store::overrides::RecordTerms;

    fn change(subject: Subject, kind: ChangeKind, lasts_us: u64) -> OverrideChange {
        OverrideChange {
            subject,
            lasts_us,
            terms: RecordTerms {
                kind,
                ..RecordTerms::default()
            },
        }
    }

    #[test]
    fn what_is_said_holds_until_it_is_taken_back() {
        let overrides = MemoryOverrides::default();
        let (one, other) = (KeyHash([1; 16]), KeyHash([2; 16]));
        assert!(overrides.snapshot().is_none());
        let block = || Subject::Block(one);
        assert_eq!(
            overrides.change(change(block(), ChangeKind::Remove, 0)),
            ChangeOutcome::Nothing
        );
        assert_eq!(
            overrides.change(change(block(), ChangeKind::Set, 0)),
            ChangeOutcome::Made(0)
        );
        let subject = Subject::Override("login".to_owned(), other);
        let hour = 3_600_000_000;
        let ChangeOutcome::Made(until_us) =
            overrides.change(change(subject, ChangeKind::Set, hour))
        else {
            panic!("it is made");
        };
        let now = overrides.snapshot().unwrap();
        assert!(until_us > now.now_us && now.block_of(one).is_some());
        assert_eq!(now.windows("login", other).unwrap().len(), 0);
        assert!(now.table.windows("login", other, until_us).is_none());
        assert_eq!(overrides.list().records.len(), 2);
        assert_eq!(
            overrides.change(change(block(), ChangeKind::Remove, 0)),
            ChangeOutcome::Made(0)
        );
        let now = overrides.snapshot().unwrap();
        assert!(now.block_of(one).is_none());
    }

    #[test]
    fn what_was_changed_is_kept_up_to_a_number() {
        let overrides = MemoryOverrides::default();
        let tag = KeyHash([1; 16]);
        assert_eq!(
            overrides.change(change(Subject::Block(tag), ChangeKind::Set, 0)),
            ChangeOutcome::Made(0)
        );
        assert_eq!(
            overrides.change(change(Subject::Block(tag), ChangeKind::Remove, 0)),
            ChangeOutcome::Made(0)
        );
        // Nothing was changed by this one.
        assert_eq!(
            overrides.change(change(Subject::Block(tag), ChangeKind::Remove, 0)),
            ChangeOutcome::Nothing
        );
        let whats: Vec<&str> = overrides.changes().iter().map(Record::what).collect();
        assert_eq!(whats, ["block removed", "block"]);
        for _ in 0..MAX_CHANGES {
            overrides.change(change(
                Subject::Reset("login".to_owned(), tag),
                ChangeKind::Set,
                0,
            ));
        }
        let changes = overrides.changes();
        assert_eq!(
            (changes.len(), changes[MAX_CHANGES - 1].what()),
            (MAX_CHANGES, "reset")
        );
        assert!(overrides.list().records.is_empty());
    }
}
