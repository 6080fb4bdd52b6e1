//! What one worker holds of slots, and what Redis has yet to be told of it.
//!
//! Redis keeps for each key what each holder last said and until when: a lease. Every statement is
//! absolute, so it may be lost, late or said twice; what counts is the next one. From that follow
//! the rules:
//!
//! - what was granted was said by the call that granted it;
//! - what was let go of, or granted while Redis was away, is unsaid: due at once;
//! - what a call without an answer was about is unsaid as well: it may have been granted;
//! - what is held is said again each third of its lease, and what is not held any more is said
//!   once, then forgotten;
//! - of what was not said for a whole lease Redis knows nothing: if it is not held, there is
//!   nothing to say.
//!
//! Pure: time is an argument. Bounded by what is held, and by what was said within a lease.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::time::{Duration, Instant};

use crate::limit::{Algorithm, Charge, LimitCheck};

/// A holder says what it has this many times in a lease.
const BEATS: u32 = 3;
/// After Redis refused to write, this long passes before it is asked again.
const REFUSED_REST: Duration = Duration::from_secs(1);

/// See the file's head.
#[derive(Debug, Default)]
pub(super) struct SlotLedger {
    keys: HashMap<u128, Key>,
    /// Keys that are due at once, oldest first; others may be among them.
    unsaid: VecDeque<u128>,
    /// When each key is to be said again; one entry for each of `keys`.
    beats: BTreeSet<(Instant, u128)>,
}

#[derive(Debug)]
struct Key {
    /// Whose; its cost is 0, which makes of a charge a statement.
    item: LimitCheck,
    units: u64,
    state: State,
    /// It waits in `unsaid`.
    queued: bool,
    beat: Instant,
    /// When a call last left that may have said anything of it.
    told: Option<Instant>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Redis knows less or more than is held.
    Unsaid,
    /// A call that says it is under way.
    Saying,
    /// Redis knows it.
    Said,
}

impl SlotLedger {
    /// Units held now: what a call says of this item beside asking for more.
    pub(super) fn extra_for(&self, item: &LimitCheck) -> u64 {
        self.keys.get(&item.id()).map_or(0, |key| key.units)
    }

    /// When there is something to say: `None` while nothing is held.
    pub(super) fn next_due(&self, now: Instant) -> Option<Instant> {
        if !self.unsaid.is_empty() {
            return Some(now);
        }
        self.beats.first().map(|(at, _)| *at)
    }

    /// Whether nothing is due that Redis does not know.
    pub(super) fn is_all_said(&self) -> bool {
        self.keys.values().all(|key| key.state == State::Said)
    }

    /// Redis granted `charge` so many times, in a call that is over.
    pub(super) fn granted(&mut self, charge: &Charge, times: u16, now: Instant) {
        if times == 0 {
            return;
        }
        for item in slots(charge) {
            let key = self.key(item, now);
            key.units += item.cost * u64::from(times);
            key.told = Some(now);
        }
    }

    /// `charge` was admitted without Redis, which is to know of it when it is back.
    pub(super) fn hold(&mut self, charge: &Charge, now: Instant) {
        for item in slots(charge) {
            self.key(item, now).units += item.cost;
            self.make_unsaid(item.id());
        }
    }

    /// What `charge` held is let go of.
    pub(super) fn let_go(&mut self, charge: &Charge) {
        for item in slots(charge) {
            let id = item.id();
            let Some(key) = self.keys.get_mut(&id) else {
                continue;
            };
            key.units = key.units.saturating_sub(item.cost);
            if key.units == 0 && key.told.is_none() {
                self.forget(id);
            } else {
                self.make_unsaid(id);
            }
        }
    }

    /// What is due, at most `most` items, one to each charge: for the next call.
    pub(super) fn due(&mut self, now: Instant, most: usize) -> Vec<Charge> {
        let mut due = Vec::new();
        while due.len() < most
            && let Some(id) = self.next_unsaid().or_else(|| self.next_beat(now))
        {
            let Some(key) = self.keys.get_mut(&id) else {
                continue;
            };
            let lease = lease(&key.item);
            if key.units == 0 && key.told.is_none_or(|told| now >= told + lease) {
                self.forget(id);
                continue;
            }
            key.state = State::Saying;
            key.told = Some(now);
            due.push([key.item.clone()].into_iter().collect());
            self.beat_at(id, now + lease / BEATS);
        }
        due
    }

    /// The call that said `charge`, one of those that were due, has its answer.
    pub(super) fn said(&mut self, charge: &Charge) {
        for id in charge.iter().map(LimitCheck::id) {
            let Some(key) = self.keys.get_mut(&id) else {
                continue;
            };
            if key.state == State::Saying {
                key.state = State::Said;
                if key.units == 0 {
                    self.forget(id);
                }
            }
        }
    }

    /// Redis would not write what `charge` said: again, but not at once.
    pub(super) fn refused(&mut self, charge: &Charge, now: Instant) {
        for id in charge.iter().map(LimitCheck::id) {
            if let Some(key) = self.keys.get_mut(&id) {
                let rest = (lease(&key.item) / BEATS).min(REFUSED_REST);
                key.state = State::Said;
                self.beat_at(id, now + rest);
            }
        }
    }

    /// The connection is a new one: its server may know nothing of what is held.
    pub(super) fn reconnected(&mut self) {
        let ids: Vec<u128> = self.keys.keys().copied().collect();
        ids.into_iter().for_each(|id| self.make_unsaid(id));
    }

    /// A call with `charge` in it left at `sent` and got no answer: it may have been granted.
    pub(super) fn unsure(&mut self, charge: &Charge, sent: Instant) {
        for item in slots(charge) {
            self.key(item, sent).told = Some(sent);
            self.make_unsaid(item.id());
        }
    }

    /// The item's key, made with nothing held if there is none.
    fn key(&mut self, item: &LimitCheck, now: Instant) -> &mut Key {
        let (id, beat) = (item.id(), now + lease(item) / BEATS);
        let beats = &mut self.beats;
        self.keys.entry(id).or_insert_with(|| {
            beats.insert((beat, id));
            let item = LimitCheck {
                cost: 0,
                ..item.clone()
            };
            Key {
                item,
                units: 0,
                state: State::Said,
                queued: false,
                beat,
                told: None,
            }
        })
    }

    fn make_unsaid(&mut self, id: u128) {
        if let Some(key) = self.keys.get_mut(&id) {
            key.state = State::Unsaid;
            if !key.queued {
                key.queued = true;
                self.unsaid.push_back(id);
            }
        }
    }

    fn next_unsaid(&mut self) -> Option<u128> {
        while let Some(id) = self.unsaid.pop_front() {
            if let Some(key) = self.keys.get_mut(&id) {
                key.queued = false;
                if key.state == State::Unsaid {
                    return Some(id);
                }
            }
        }
        None
    }

    fn next_beat(&self, now: Instant) -> Option<u128> {
        let (at, id) = self.beats.first()?;
        (*at <= now).then_some(*id)
    }

    fn beat_at(&mut self, id: u128, at: Instant) {
        if let Some(key) = self.keys.get_mut(&id) {
            self.beats.remove(&(key.beat, id));
            self.beats.insert((at, id));
            key.beat = at;
        }
    }

    fn forget(&mut self, id: u128) {
        if let Some(key) = self.keys.remove(&id) {
            self.beats.remove(&(key.beat, id));
        }
    }
}

/// The items of `charge` that are held rather than spent.
fn slots(charge: &Charge) -> impl Iterator<Item = &LimitCheck> {
    let held = |item: &&LimitCheck| item.window.rule.algorithm == Algorithm::Slots;
    charge.iter().filter(held)
}

fn lease(item: &LimitCheck) -> Duration {
    Duration::from_micros(item.window.rule.window_us)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::clock;
    use crate::limit::{Key as LimitKey, KeyHash, Limit, Rule};

    const LEASE: Duration = Duration::from_secs(30);

    fn request(who: u8) -> Charge {
        let rule = Rule {
            algorithm: Algorithm::Slots,
            units: 50,
            window_us: 30_000_000,
            precision_us: 1,
        };
        let limit = Limit::new("jobs", &[rule], LimitKey::parse(["ip"]).unwrap());
        let item = LimitCheck {
            window: Arc::clone(&limit.windows[0]),
            limit: Arc::new(limit),
            tag: KeyHash([who; 16]),
            cost: 1,
            asker: None,
        };
        [item].into_iter().collect()
    }

    /// What the next call says: whose, and how many are held.
    fn says(held: &mut SlotLedger, now: Instant) -> Vec<(u8, u64)> {
        let due = held.due(now, 100);
        let said = due
            .iter()
            .map(|charge| (charge[0].tag.0[0], held.extra_for(&charge[0])))
            .collect();
        due.iter().for_each(|charge| held.said(charge));
        said
    }

    #[test]
    fn what_was_granted_is_said_each_third_of_a_lease_and_what_was_let_go_at_once() {
        let (mut held, start) = (SlotLedger::default(), clock::now());
        assert_eq!(held.next_due(start), None);
        held.granted(&request(1), 2, start);
        assert_eq!(held.extra_for(&request(1)[0]), 2);
        assert_eq!(held.next_due(start), Some(start + LEASE / 3));
        assert_eq!(says(&mut held, start), []);
        assert_eq!(says(&mut held, start + LEASE / 3), [(1, 2)]);
        assert_eq!(says(&mut held, start + LEASE / 3), []);
        assert_eq!(says(&mut held, start + LEASE * 2 / 3), [(1, 2)]);
        held.let_go(&request(1));
        assert_eq!(held.next_due(start + LEASE), Some(start + LEASE));
        assert_eq!(says(&mut held, start + LEASE), [(1, 1)]);
        held.let_go(&request(1));
        assert_eq!(says(&mut held, start + LEASE), [(1, 0)]);
        assert_eq!(held.next_due(start + LEASE), None);
        assert!(held.keys.is_empty() && held.beats.is_empty());
    }

    #[test]
    fn what_changes_while_a_call_is_under_way_is_said_by_the_next() {
        let (mut held, now) = (SlotLedger::default(), clock::now());
        held.granted(&request(1), 2, now);
        held.let_go(&request(1));
        let due = held.due(now, 100);
        held.let_go(&request(1));
        held.said(&due[0]);
        assert_eq!(says(&mut held, now), [(1, 0)]);
        assert!(held.keys.is_empty());
    }

    #[test]
    fn a_grant_in_the_call_that_says_nothing_is_held_stays_held() {
        let (mut held, now) = (SlotLedger::default(), clock::now());
        held.granted(&request(1), 1, now);
        held.let_go(&request(1));
        let due = held.due(now, 100);
        held.said(&due[0]);
        held.granted(&request(1), 1, now);
        assert_eq!(held.extra_for(&request(1)[0]), 1);
        assert_eq!(says(&mut held, now + LEASE), [(1, 1)]);
    }

    #[test]
    fn an_answer_that_was_lost_heals_with_the_next_call() {
        let (mut held, now) = (SlotLedger::default(), clock::now());
        held.unsure(&request(1), now);
        assert_eq!(says(&mut held, now), [(1, 0)]);
        assert!(held.keys.is_empty());
        held.granted(&request(2), 1, now);
        held.let_go(&request(2));
        let due = held.due(now, 100);
        held.unsure(&due[0], now);
        assert_eq!(says(&mut held, now), [(2, 0)]);
    }

    #[test]
    fn what_no_lease_can_remember_any_more_is_not_said() {
        let (mut held, now) = (SlotLedger::default(), clock::now());
        held.granted(&request(1), 1, now);
        held.let_go(&request(1));
        assert_eq!(says(&mut held, now + LEASE), []);
        held.hold(&request(2), now);
        held.let_go(&request(2));
        assert!(held.keys.is_empty(), "it was never told");
    }

    #[test]
    fn after_an_outage_the_first_calls_say_what_is_held() {
        let (mut held, now) = (SlotLedger::default(), clock::now());
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
        let (mut held, now) = (SlotLedger::default(), clock::now());
        held.hold(&request(1), now);
        let due = held.due(now, 100);
        held.refused(&due[0], now);
        assert_eq!(held.next_due(now), Some(now + REFUSED_REST));
        assert_eq!(says(&mut held, now + REFUSED_REST), [(1, 1)]);
    }
}
