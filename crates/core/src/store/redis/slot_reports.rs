//! The slots that one worker holds, and what Redis does not know of them yet.
//!
//! For each key Redis keeps what each holder last reported, and until when: a lease. Every report
//! is absolute, so it may be lost, late or sent twice; the next one counts. From that follow the
//! rules:
//!
//! - A grant needs no report: the call that granted it was one.
//! - A slot that was freed, or granted while Redis was away, is reported at once.
//! - If a call has no answer, its slots are reported at once: they may have been granted.
//! - Held slots are reported again each third of their lease. A key with no slots left is reported
//!   once, then forgotten.
//! - If a key was not reported for a whole lease, Redis knows nothing of it: if no slots are held,
//!   there is nothing to report.
//!
//! Pure: time is an argument. Bounded by what is held, and by what was reported within a lease.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::time::{Duration, Instant};

use crate::limit::{Charge, LimitCheck};
use crate::store::is_slots;

/// Reports of a key in a lease.
const REPORTS_PER_LEASE: u32 = 3;
/// The pause after Redis refused to write a report.
const REFUSED_PAUSE: Duration = Duration::from_secs(1);

#[derive(Debug, Default)]
pub(super) struct SlotReports {
    keys: HashMap<u128, HeldKey>,
    /// Keys to report at once, oldest first; others may be among them.
    due_now: VecDeque<u128>,
    /// When each key is to be reported again; one entry for each of `keys`.
    schedule: BTreeSet<(Instant, u128)>,
}

#[derive(Debug)]
struct HeldKey {
    /// Its cost is 0, which makes of a charge a report.
    item: LimitCheck,
    units: u64,
    state: ReportState,
    /// It waits in `due_now`.
    queued: bool,
    next_report: Instant,
    /// When a call last left that may have reported this key.
    sent: Option<Instant>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ReportState {
    /// Redis knows less or more than is held.
    Due,
    Sent,
    Known,
}

impl SlotReports {
    /// Units held now: what a call reports of this item beside asking for more.
    pub(super) fn held_units(&self, item: &LimitCheck) -> u64 {
        self.keys.get(&item.id()).map_or(0, |key| key.units)
    }

    pub(super) fn next_due(&self, now: Instant) -> Option<Instant> {
        if !self.due_now.is_empty() {
            return Some(now);
        }
        self.schedule.first().map(|(at, _)| *at)
    }

    /// Whether Redis knows all that is held.
    pub(super) fn is_all_reported(&self) -> bool {
        self.keys
            .values()
            .all(|key| key.state == ReportState::Known)
    }

    /// Redis granted `charge` so many times, in a call that is over.
    pub(super) fn granted(&mut self, charge: &Charge, times: u16, now: Instant) {
        if times == 0 {
            return;
        }
        for item in slots_of(charge) {
            let key = self.key(item, now);
            key.units += item.cost * u64::from(times);
            key.sent = Some(now);
        }
    }

    /// `charge` was admitted without Redis; Redis learns of it when it is back.
    pub(super) fn hold(&mut self, charge: &Charge, now: Instant) {
        for item in slots_of(charge) {
            self.key(item, now).units += item.cost;
            self.make_due(item.id());
        }
    }

    pub(super) fn release(&mut self, charge: &Charge) {
        for item in slots_of(charge) {
            let id = item.id();
            let Some(key) = self.keys.get_mut(&id) else {
                continue;
            };
            key.units = key.units.saturating_sub(item.cost);
            if key.units == 0 && key.sent.is_none() {
                self.forget(id);
            } else {
                self.make_due(id);
            }
        }
    }

    /// The reports that are due, at most `max`, each a charge of one item: for the next call.
    pub(super) fn due(&mut self, now: Instant, max: usize) -> Vec<Charge> {
        let mut due = Vec::new();
        while due.len() < max
            && let Some(id) = self.next_due_now().or_else(|| self.next_scheduled(now))
        {
            let Some(key) = self.keys.get_mut(&id) else {
                continue;
            };
            let lease = lease(&key.item);
            if key.units == 0 && key.sent.is_none_or(|sent| now >= sent + lease) {
                self.forget(id);
                continue;
            }
            key.state = ReportState::Sent;
            key.sent = Some(now);
            due.push([key.item.clone()].into_iter().collect());
            self.schedule(id, now + lease / REPORTS_PER_LEASE);
        }
        due
    }

    /// The call that reported `charge` has its answer.
    pub(super) fn reported(&mut self, charge: &Charge) {
        for id in charge.iter().map(LimitCheck::id) {
            let Some(key) = self.keys.get_mut(&id) else {
                continue;
            };
            if key.state == ReportState::Sent {
                key.state = ReportState::Known;
                if key.units == 0 {
                    self.forget(id);
                }
            }
        }
    }

    /// Redis would not write the report `charge`: it is sent again, but not at once.
    pub(super) fn refused(&mut self, charge: &Charge, now: Instant) {
        for id in charge.iter().map(LimitCheck::id) {
            if let Some(key) = self.keys.get_mut(&id) {
                let pause = (lease(&key.item) / REPORTS_PER_LEASE).min(REFUSED_PAUSE);
                key.state = ReportState::Known;
                self.schedule(id, now + pause);
            }
        }
    }

    /// The connection is new: its server may know nothing of what is held.
    pub(super) fn reconnected(&mut self) {
        let ids: Vec<u128> = self.keys.keys().copied().collect();
        ids.into_iter().for_each(|id| self.make_due(id));
    }

    /// A call with `charge` left at `sent` and got no answer: it may have been granted.
    pub(super) fn unsure(&mut self, charge: &Charge, sent: Instant) {
        for item in slots_of(charge) {
            self.key(item, sent).sent = Some(sent);
            self.make_due(item.id());
        }
    }

    /// The item's key, made with nothing held if there is none.
    fn key(&mut self, item: &LimitCheck, now: Instant) -> &mut HeldKey {
        let (id, next_report) = (item.id(), now + lease(item) / REPORTS_PER_LEASE);
        let schedule = &mut self.schedule;
        self.keys.entry(id).or_insert_with(|| {
            schedule.insert((next_report, id));
            let item = LimitCheck {
                cost: 0,
                ..item.clone()
            };
            HeldKey {
                item,
                units: 0,
                state: ReportState::Known,
                queued: false,
                next_report,
                sent: None,
            }
        })
    }

    fn make_due(&mut self, id: u128) {
        if let Some(key) = self.keys.get_mut(&id) {
            key.state = ReportState::Due;
            if !key.queued {
                key.queued = true;
                self.due_now.push_back(id);
            }
        }
    }

    fn next_due_now(&mut self) -> Option<u128> {
        while let Some(id) = self.due_now.pop_front() {
            if let Some(key) = self.keys.get_mut(&id) {
                key.queued = false;
                if key.state == ReportState::Due {
                    return Some(id);
                }
            }
        }
        None
    }

    fn next_scheduled(&self, now: Instant) -> Option<u128> {
        let (at, id) = self.schedule.first()?;
        (*at <= now).then_some(*id)
    }

    fn schedule(&mut self, id: u128, at: Instant) {
        if let Some(key) = self.keys.get_mut(&id) {
            self.schedule.remove(&(key.next_report, id));
            self.schedule.insert((at, id));
            key.next_report = at;
        }
    }

    fn forget(&mut self, id: u128) {
        if let Some(key) = self.keys.remove(&id) {
            self.schedule.remove(&(key.next_report, id));
        }
    }
}

fn slots_of(charge: &Charge) -> impl Iterator<Item = &LimitCheck> {
    charge.iter().filter(|item| is_slots(item))
}

fn lease(item: &LimitCheck) -> Duration {
    Duration::from_micros(item.window.rule.window_us)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::clock;
    use crate::limit::{Algorithm, Key, KeyHash, Limit, Rule};

    const LEASE: Duration = Duration::from_secs(30);

    fn request(who: u8) -> Charge {
        let rule = Rule {
            algorithm: Algorithm::Slots,
            units: 50,
            window_us: 30_000_000,
            precision_us: 1,
        };
        let limit = Limit::new("jobs", &[rule], Key::parse(["ip"]).unwrap());
        let item = LimitCheck {
            window: Arc::clone(&limit.windows[0]),
            limit: Arc::new(limit),
            tag: KeyHash([who; 16]),
            anchor: None,
            cost: 1,
            asker: None,
        };
        [item].into_iter().collect()
    }

    /// What the next call says: whose, and how many are held.
    fn says(held: &mut SlotReports, now: Instant) -> Vec<(u8, u64)> {
        let due = held.due(now, 100);
        let said = due
            .iter()
            .map(|charge| (charge[0].tag.0[0], held.held_units(&charge[0])))
            .collect();
        due.iter().for_each(|charge| held.reported(charge));
        said
    }

    #[test]
    fn what_was_granted_is_said_each_third_of_a_lease_and_what_was_let_go_at_once() {
        let (mut held, start) = (SlotReports::default(), clock::now());
        assert_eq!(held.next_due(start), None);
        held.granted(&request(1), 2, start);
        assert_eq!(held.held_units(&request(1)[0]), 2);
        assert_eq!(held.next_due(start), Some(start + LEASE / 3));
        assert_eq!(says(&mut held, start), []);
        assert_eq!(says(&mut held, start + LEASE / 3), [(1, 2)]);
        assert_eq!(says(&mut held, start + LEASE / 3), []);
        assert_eq!(says(&mut held, start + LEASE * 2 / 3), [(1, 2)]);
        held.release(&request(1));
        assert_eq!(held.next_due(start + LEASE), Some(start + LEASE));
        assert_eq!(says(&mut held, start + LEASE), [(1, 1)]);
        held.release(&request(1));
        assert_eq!(says(&mut held, start + LEASE), [(1, 0)]);
        assert_eq!(held.next_due(start + LEASE), None);
        assert!(held.keys.is_empty() && held.schedule.is_empty());
    }

    #[test]
    fn what_changes_while_a_call_is_under_way_is_said_by_the_next() {
        let (mut held, now) = (SlotReports::default(), clock::now());
        held.granted(&request(1), 2, now);
        held.release(&request(1));
        let due = held.due(now, 100);
        held.release(&request(1));
        held.reported(&due[0]);
        assert_eq!(says(&mut held, now), [(1, 0)]);
        assert!(held.keys.is_empty());
    }

    #[test]
    fn a_grant_in_the_call_that_says_nothing_is_held_stays_held() {
        let (mut held, now) = (SlotReports::default(), clock::now());
        held.granted(&request(1), 1, now);
        held.release(&request(1));
        let due = held.due(now, 100);
        held.reported(&due[0]);
        held.granted(&request(1), 1, now);
        assert_eq!(held.held_units(&request(1)[0]), 1);
        assert_eq!(says(&mut held, now + LEASE), [(1, 1)]);
    }

    #[test]
    fn an_answer_that_was_lost_heals_with_the_next_call() {
        let (mut held, now) = (SlotReports::default(), clock::now());
        held.unsure(&request(1), now);
        assert_eq!(says(&mut held, now), [(1, 0)]);
        assert!(held.keys.is_empty());
        held.granted(&request(2), 1, now);
        held.release(&request(2));
        let due = held.due(now, 100);
        held.unsure(&due[0], now);
        assert_eq!(says(&mut held, now), [(2, 0)]);
    }

    #[test]
    fn what_no_lease_can_remember_any_more_is_not_said() {
        let (mut held, now) = (SlotReports::default(), clock::now());
        held.granted(&request(1), 1, now);
        held.release(&request(1));
        assert_eq!(says(&mut held, now + LEASE), []);
        held.hold(&request(2), now);
        held.release(&request(2));
        assert!(held.keys.is_empty(), "it was never told");
    }

    #[test]
    fn after_an_outage_the_first_calls_say_what_is_held() {
        let (mut held, now) = (SlotReports::default(), clock::now());
        for who in 0..5 {
            held.granted(&request(who), 1, now);
        }
        held.hold(&request(5), now);
        held.reconnected();
        assert_eq!(held.due(now, 4).len(), 4);
        assert_eq!(held.due(now, 4).len(), 2);
        assert_eq!(held.due(now, 4).len(), 0);
    }

    #[test]
    fn a_server_that_refuses_to_write_is_not_asked_without_pause() {
        let (mut held, now) = (SlotReports::default(), clock::now());
        held.hold(&request(1), now);
        let due = held.due(now, 100);
        held.refused(&due[0], now);
        assert_eq!(held.next_due(now), Some(now + REFUSED_PAUSE));
        assert_eq!(says(&mut held, now + REFUSED_PAUSE), [(1, 1)]);
    }
}
