//! What operators say of single keys where counts live in this process: kept here alone, and gone
//! with it. The same words as in Redis, by the same rules.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use arc_swap::ArcSwap;

use super::people::{Deed, MAX_CHANGES, MAX_RECORDS, Record, Subject};
use super::redis::{Change, CurrentPeople, Done, Said};
use crate::clock::MonotonicClock;
use crate::limit::people::People;

/// See the file's head.
#[derive(Debug)]
pub(super) struct Own {
    table: ArcSwap<People>,
    /// Whether there is anything in it: all that the path of a request looks at if not.
    said: AtomicBool,
    records: Mutex<Vec<Record>>,
    /// What was changed, newest last.
    changes: Mutex<VecDeque<Record>>,
    clock: MonotonicClock,
}

impl Default for Own {
    fn default() -> Own {
        Own {
            table: ArcSwap::default(),
            said: AtomicBool::new(false),
            records: Mutex::default(),
            changes: Mutex::default(),
            clock: MonotonicClock::start(),
        }
    }
}

impl Own {
    /// The table and the time on its clock; `None`, at the cost of one load, if it is empty.
    pub(super) fn current(&self) -> Option<(CurrentPeople, u64)> {
        if !self.said.load(Ordering::Relaxed) {
            return None;
        }
        Some((self.table.load(), self.clock.now_us()))
    }

    /// Everything in force.
    pub(super) fn said(&self) -> Said {
        let now_us = self.clock.now_us();
        let mut records = self.records.lock().unwrap_or_else(PoisonError::into_inner);
        records.retain(|one| !one.is_over(now_us));
        Said {
            now_us,
            records: records.clone(),
        }
    }

    /// The last changes, newest first.
    pub(super) fn changes(&self) -> Vec<Record> {
        let changes = self.changes.lock().unwrap_or_else(PoisonError::into_inner);
        changes.iter().rev().cloned().collect()
    }

    /// Makes a change, which holds from the next request on. A reset is only noted.
    pub(super) fn change(&self, change: Change) -> Done {
        let now_us = self.clock.now_us();
        let mut words = change.words;
        words.at_us = now_us;
        words.until_us = match change.lasts_us {
            0 => 0,
            lasts => now_us.saturating_add(lasts),
        };
        let record = Record {
            subject: change.subject,
            words,
        };
        let done = match record.subject {
            Subject::Reset(..) => Done::Made(0),
            _ => self.put(&record, now_us),
        };
        if let Done::Made(_) = done {
            let mut changes = self.changes.lock().unwrap_or_else(PoisonError::into_inner);
            if changes.len() == MAX_CHANGES {
                changes.pop_front();
            }
            changes.push_back(record);
        }
        done
    }

    /// Puts it in force, or takes it out.
    fn put(&self, record: &Record, now_us: u64) -> Done {
        let mut records = self.records.lock().unwrap_or_else(PoisonError::into_inner);
        let before = records.len();
        records.retain(|one| one.subject != record.subject);
        let was_there = records.len() < before;
        records.retain(|one| !one.is_over(now_us));
        let done = match record.words.deed {
            Deed::Remove if was_there => Done::Made(0),
            Deed::Remove => Done::Nothing,
            Deed::Set if records.len() >= MAX_RECORDS => Done::Full,
            Deed::Set => {
                records.push(record.clone());
                records.sort_by(|one, other| one.subject.cmp(&other.subject));
                Done::Made(record.words.until_us)
            }
        };
        let said = Said {
            now_us,
            records: records.clone(),
        };
        let people = said.people();
        let said = !people.is_empty();
        self.table.store(Arc::new(people));
        self.said.store(said, Ordering::Relaxed);
        done
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limit::KeyHash;
    use crate::store::people::{Subject, Words};

    fn change(subject: Subject, deed: Deed, lasts_us: u64) -> Change {
        Change {
            subject,
            lasts_us,
            words: Words {
                deed,
                ..Words::default()
            },
        }
    }

    #[test]
    fn what_is_said_holds_until_it_is_taken_back() {
        let own = Own::default();
        let (one, other) = (KeyHash([1; 16]), KeyHash([2; 16]));
        assert!(own.current().is_none());
        let block = || Subject::Block(one);
        assert_eq!(own.change(change(block(), Deed::Remove, 0)), Done::Nothing);
        assert_eq!(own.change(change(block(), Deed::Set, 0)), Done::Made(0));
        let subject = Subject::Override("login".to_owned(), other);
        let hour = 3_600_000_000;
        let Done::Made(until_us) = own.change(change(subject, Deed::Set, hour)) else {
            panic!("it is made");
        };
        let (people, now_us) = own.current().unwrap();
        assert!(until_us > now_us && people.blocked(one, now_us).is_some());
        assert_eq!(people.windows("login", other, now_us).unwrap().len(), 0);
        assert!(people.windows("login", other, until_us).is_none());
        assert_eq!(own.said().records.len(), 2);
        assert_eq!(own.change(change(block(), Deed::Remove, 0)), Done::Made(0));
        let (people, now_us) = own.current().unwrap();
        assert!(people.blocked(one, now_us).is_none());
    }

    #[test]
    fn what_was_changed_is_kept_up_to_a_number() {
        let own = Own::default();
        let tag = KeyHash([1; 16]);
        assert_eq!(
            own.change(change(Subject::Block(tag), Deed::Set, 0)),
            Done::Made(0)
        );
        assert_eq!(
            own.change(change(Subject::Block(tag), Deed::Remove, 0)),
            Done::Made(0)
        );
        // Nothing was changed by this one.
        assert_eq!(
            own.change(change(Subject::Block(tag), Deed::Remove, 0)),
            Done::Nothing
        );
        let whats: Vec<&str> = own.changes().iter().map(Record::what).collect();
        assert_eq!(whats, ["block removed", "block"]);
        for _ in 0..MAX_CHANGES {
            own.change(change(
                Subject::Reset("login".to_owned(), tag),
                Deed::Set,
                0,
            ));
        }
        let changes = own.changes();
        assert_eq!(
            (changes.len(), changes[MAX_CHANGES - 1].what()),
            (MAX_CHANGES, "reset")
        );
        assert!(own.said().records.is_empty());
    }
}
