//! What waits for the store, gathered into as few groups as possible: equal requests are one.
//!
//! Sans-IO: what is sent where, and when, is up to the connection's task.

use std::time::Instant;

use smallvec::SmallVec;

use super::StoreError;
use super::batch::{Group, Operation, Outcome};
use super::known::Known;
use super::waiting::Waiting;
use crate::limit::{Charge, Decision, LimitCheck};

/// Bundles that a batch has room for before there are any, at most.
const MOST_AT_FIRST: usize = 64;

/// Requests that ask exactly the same, or one operation of another kind.
#[derive(Debug)]
pub struct Bundle {
    pub operation: Operation,
    pub extra: SmallVec<[u64; 2]>,
    /// In order of arrival: that is the order in which grants are given out.
    first: Waiting,
    more: Vec<Waiting>,
    print: u64,
}

/// Bundles to be sent in one call.
#[derive(Debug, Default)]
pub struct Batch {
    pub bundles: Vec<Bundle>,
    items: usize,
    /// When the oldest of them arrived.
    pub oldest: Option<Instant>,
}

impl Batch {
    /// One that so many are likely to be put into.
    pub fn for_about(many: usize) -> Batch {
        Batch {
            bundles: Vec::with_capacity(many.min(MOST_AT_FIRST)),
            ..Batch::default()
        }
    }

    /// Adds one; it is returned where the batch would have more than `most_items` items by it.
    pub fn add(&mut self, waiting: Waiting, most_items: usize) -> Option<Waiting> {
        let print = print(&waiting.charge);
        if let Operation::Charge(count) = waiting.operation {
            let same = self
                .bundles
                .iter_mut()
                .find(|bundle| bundle.print == print && bundle.takes(&waiting, count));
            if let Some(bundle) = same {
                bundle.operation = Operation::Charge(bundle.count() + count);
                bundle.more.push(waiting);
                return None;
            }
        }
        if !self.bundles.is_empty() && self.items + waiting.charge.len() > most_items {
            return Some(waiting);
        }
        self.items += waiting.charge.len();
        self.oldest = self.oldest.or(Some(waiting.arrived));
        self.bundles.push(Bundle {
            operation: waiting.operation,
            extra: waiting.extra.clone(),
            first: waiting,
            more: Vec::new(),
            print,
        });
        None
    }

    /// Each bundle by itself.
    pub fn apart(self) -> Vec<Batch> {
        let alone = |bundle: Bundle| Batch {
            items: bundle.charge().len(),
            oldest: self.oldest,
            bundles: vec![bundle],
        };
        self.bundles.into_iter().map(alone).collect()
    }

    /// Asks for more of what is leased.
    pub fn ask_ahead(&mut self, known: &Known, now_us: u64) {
        for bundle in &mut self.bundles {
            let first = bundle.charge().first();
            let lease_us = first.map_or(0, |item| item.limit.lease_us);
            if lease_us > 0 && bundle.count() > 0 {
                let more = known.lock().leases.ahead(bundle.charge(), now_us);
                if more > 0 {
                    bundle.ask_ahead(more, lease_us);
                }
            }
        }
    }
}

impl Bundle {
    /// What each of them asks.
    pub fn charge(&self) -> &Charge {
        &self.first.charge
    }

    /// What is sent.
    pub fn group(&self) -> Group<'_> {
        Group {
            operation: self.operation,
            charge: self.charge(),
            extra: &self.extra,
        }
    }

    /// How many requests the group stands for, with those that nobody has made yet.
    pub fn count(&self) -> u16 {
        match self.operation {
            Operation::Charge(count) => count,
            Operation::Say | Operation::GiveBack | Operation::Settle => 0,
        }
    }

    /// How many were asked for.
    pub fn asked(&self) -> u16 {
        u16::try_from(1 + self.more.len()).unwrap_or(u16::MAX)
    }

    /// Asks for more than was asked for: what is granted of it is kept for who comes next.
    pub fn ask_ahead(&mut self, more: u16, lease_us: u64) {
        self.operation = Operation::Charge(self.count().saturating_add(more));
        self.extra = [lease_us].into_iter().collect();
    }

    /// Gives everyone who asked their decision; `seen` is shown each one first. How many were
    /// granted what they no longer want.
    pub fn answer(
        self,
        outcome: &mut Outcome,
        mut seen: impl FnMut(&Charge, &Decision),
    ) -> u16 {
        let (mut unwanted, alone) = (0, self.more.is_empty());
        for (index, waiting) in (0..).zip(std::iter::once(self.first).chain(self.more)) {
            let decision = match alone {
                true => outcome.take(),
                false => outcome.decision(index, &waiting.charge),
            };
            let Some(decision) = decision else {
                waiting.fail(StoreError::Garbled);
                continue;
            };
            seen(&waiting.charge, &decision);
            let granted = decision.allowed;
            let taken = waiting.answer(Ok(decision));
            unwanted += u16::from(granted && !taken);
        }
        unwanted
    }

    /// Tells all that wait for it that it was done: it was no question.
    pub fn done(self) {
        for waiting in std::iter::once(self.first).chain(self.more) {
            waiting.answer(Ok(Decision::default()));
        }
    }

    pub fn fail(self, kind: StoreError) {
        std::iter::once(self.first)
            .chain(self.more)
            .for_each(|waiting| waiting.fail(kind));
    }

    /// Whether one more request asks the same.
    fn takes(&self, waiting: &Waiting, count: u16) -> bool {
        let same = |(mine, other): (&LimitCheck, &LimitCheck)| {
            mine.id() == other.id()
                && mine.cost == other.cost
                && mine.window.rule == other.window.rule
        };
        matches!(self.operation, Operation::Charge(_))
            && self.charge().len() == waiting.charge.len()
            && self.charge().iter().zip(&waiting.charge).all(same)
            && self.extra.is_empty()
            && waiting.extra.is_empty()
            && self.count().checked_add(count).is_some()
    }
}

/// Equal for equal charges, and seldom for others.
fn print(charge: &Charge) -> u64 {
    let folded = charge.iter().fold(0_u128, |print, item| {
        print.rotate_left(17) ^ item.id() ^ u128::from(item.cost)
    });
    folded as u64 ^ (folded >> 64) as u64
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::limit::{Algorithm, Asker, Key, KeyHash, Limit, Retry, Rule, Verdict};
    use crate::store::waiting::{Asked, Question, ask};
    use crate::trace::TraceId;

    fn waiting(who: u8, cost: u64) -> (Waiting, Asked) {
        waiting_for(who, cost, None)
    }

    fn waiting_for(who: u8, cost: u64, asker: Option<Arc<Asker>>) -> (Waiting, Asked) {
        let rule = Rule {
            algorithm: Algorithm::Log,
            units: 10,
            window_us: 1_000_000,
            precision_us: 1,
        };
        let limit = Limit::new("l", &[rule], Key::parse(["global"]).unwrap());
        let item = LimitCheck {
            window: Arc::clone(&limit.windows[0]),
            limit: Arc::new(limit),
            tag: KeyHash([who; 16]),
            cost,
            asker,
        };
        ask(Question {
            charge: [item].into_iter().collect(),
            operation: Operation::Charge(1),
            extra: SmallVec::new(),
            generation: 1,
            arrived: crate::clock::now(),
        })
    }

    fn decision(allowed: bool, used: u64) -> Decision {
        let verdict = Verdict {
            used,
            remaining: 10_u64.saturating_sub(used + u64::from(allowed)),
            retry: if allowed { Retry::Now } else { Retry::After(7) },
            reset_us: 9,
            next_us: 7,
            stamp: 0,
        };
        Decision {
            allowed,
            at_us: 1,
            verdicts: [verdict].into_iter().collect(),
        }
    }

    #[test]
    fn equal_requests_are_one_group_and_grants_follow_arrival() {
        let mut batch = Batch::default();
        let mut answers = Vec::new();
        for (who, cost) in [(1, 1), (2, 1), (1, 1), (1, 2), (1, 1)] {
            let (waiting, answer) = waiting(who, cost);
            assert!(batch.add(waiting, 64).is_none());
            answers.push(answer);
        }
        let counts: Vec<u16> = batch.bundles.iter().map(Bundle::count).collect();
        assert_eq!(counts, [3, 1, 1]);
        let mut outcome = Outcome {
            granted: 2,
            allowed: Some(decision(true, 8)),
            denied: Some(decision(false, 10)),
        };
        let mut seen = 0;
        let bundle = batch.bundles.remove(0);
        bundle.answer(&mut outcome, |_, _| seen += 1);
        let of = |which: usize| answers[which].try_take().unwrap().unwrap();
        let (first, second, third) = (of(0), of(2), of(4));
        assert_eq!((first.allowed, first.verdicts[0].used), (true, 8));
        assert_eq!((second.allowed, second.verdicts[0].used), (true, 9));
        assert_eq!((second.verdicts[0].remaining, third.allowed), (0, false));
        assert_eq!(seen, 3);
    }

    #[test]
    fn each_of_several_that_ask_the_same_is_logged_with_its_own_trace() {
        let mut batch = Batch::default();
        for number in 1..4 {
            let trace = Some(TraceId([number; 16]));
            let (waiting, _) = waiting_for(1, 1, Some(Arc::new(Asker { key: None, trace })));
            assert!(batch.add(waiting, 64).is_none());
        }
        let mut outcome = Outcome {
            granted: 3,
            allowed: Some(decision(true, 1)),
            denied: None,
        };
        let mut seen = Vec::new();
        let bundle = batch.bundles.remove(0);
        bundle.answer(&mut outcome, |charge, _| {
            let asker = charge[0].asker.as_ref().unwrap();
            seen.push(asker.trace.unwrap().0[0]);
        });
        assert_eq!(seen, [1, 2, 3]);
    }

    #[test]
    fn a_batch_is_bounded_by_its_items_and_equal_requests_cost_none() {
        let mut batch = Batch::default();
        for who in 0..4 {
            assert!(batch.add(waiting(who, 1).0, 4).is_none());
        }
        assert!(batch.add(waiting(9, 1).0, 4).is_some());
        assert!(batch.add(waiting(2, 1).0, 4).is_none());
    }
}
