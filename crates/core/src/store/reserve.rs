//! One request whose limits lie in several places, which cannot be asked together: reserve and
//! refund.
//!
//! Each place is asked for its items, all or nothing, and charges at once. If all grant, the
//! request passes. If one denies or does not answer, those that charged give the units back, once,
//! by the stamp they returned. A place that does not answer is not asked again, and gives nothing
//! back: what it may have charged expires.
//!
//! So no window is ever overfull. Each request that passes has an entry in every place, made before
//! it passed. Nothing takes that entry away: only refused requests give back, only their own units,
//! and once. The cost: units of a request that is about to be refused are missing to others for a
//! round trip, or for a window if the refund is lost.
//!
//! Pure: requests and replies are values, so `tests/it/cluster_sim.rs` simulates this code.

use std::cmp::Ordering;

use smallvec::SmallVec;

use super::StoreError;
use super::deny_cache::UNASKED;
use crate::limit::{Charge, Decision, LimitCheck};

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Ask the place of this part for the part's items.
    Ask(usize),
    /// Tell the place of this part to take back what it charged; one stamp for each item.
    Refund(usize, SmallVec<[u64; 2]>),
    /// The request's end, once.
    Answer(Result<Decision, StoreError>),
}

pub type Steps = SmallVec<[Step; 3]>;

#[derive(Clone, Debug)]
pub struct ReservePart {
    pub place: u16,
    /// Which items of the charge, ascending.
    pub items: SmallVec<[usize; 2]>,
    state: PartState,
}

#[derive(Clone, Debug)]
enum PartState {
    Unasked,
    Asked,
    Replied(Decision),
    Failed(StoreError),
}

#[derive(Clone, Debug)]
pub struct Reserve {
    parts: SmallVec<[ReservePart; 1]>,
    one_by_one: bool,
    refused: bool,
    answered: bool,
}

impl Reserve {
    /// A request whose items lie where `place` says. `apart` asks for each item by itself, even if
    /// several lie in one place. `one_by_one` asks one place after the other, the one with the
    /// narrowest limit first.
    pub fn new(
        charge: &Charge,
        place: impl Fn(&LimitCheck) -> u16,
        apart: bool,
        one_by_one: bool,
    ) -> Reserve {
        let mut parts: SmallVec<[ReservePart; 1]> = SmallVec::new();
        for (index, item) in charge.iter().enumerate() {
            let place = place(item);
            match parts.iter_mut().find(|part| part.place == place && !apart) {
                Some(part) => part.items.push(index),
                None => parts.push(ReservePart {
                    place,
                    items: SmallVec::from_iter([index]),
                    state: PartState::Unasked,
                }),
            }
        }
        if one_by_one {
            let narrowest = |part: &ReservePart| {
                let items = part.items.iter().map(|index| &charge[*index]);
                items.min_by(|one, other| narrower(one, other))
            };
            parts.sort_by(|one, other| match (narrowest(one), narrowest(other)) {
                (Some(one), Some(other)) => narrower(one, other),
                _ => Ordering::Equal,
            });
        }
        Reserve {
            parts,
            one_by_one,
            refused: false,
            answered: false,
        }
    }

    pub fn parts(&self) -> &[ReservePart] {
        &self.parts
    }

    pub fn charge_of(&self, part: usize, charge: &Charge) -> Charge {
        let items = self.parts[part].items.iter();
        items.map(|index| charge[*index].clone()).collect()
    }

    pub fn is_over(&self) -> bool {
        self.answered
    }

    pub fn begin(&mut self) -> Steps {
        let first = if self.one_by_one { 1 } else { self.parts.len() };
        (0..first).map(|part| self.ask_part(part)).collect()
    }

    fn ask_part(&mut self, part: usize) -> Step {
        self.parts[part].state = PartState::Asked;
        Step::Ask(part)
    }

    /// Takes the reply to a part: a decision on its items, or an error. A reply that is not
    /// expected changes nothing.
    pub fn replied(
        &mut self,
        part: usize,
        reply: Result<Decision, StoreError>,
        charge: &Charge,
    ) -> Steps {
        let mut steps = Steps::new();
        if !matches!(self.parts[part].state, PartState::Asked) {
            return steps;
        }
        let denied = reply.as_ref().map_or(true, |decision| !decision.allowed);
        self.parts[part].state = match reply {
            Ok(decision) => PartState::Replied(decision),
            Err(kind) => PartState::Failed(kind),
        };
        if denied && !self.refused {
            self.refused = true;
            let parts = self.parts.iter().enumerate();
            steps.extend(parts.filter_map(|(number, part)| refund(number, part)));
        } else if self.refused {
            steps.extend(refund(part, &self.parts[part]));
        }
        if self
            .parts
            .iter()
            .any(|part| matches!(part.state, PartState::Asked))
        {
            return steps;
        }
        let next = (self.parts.iter()).position(|part| matches!(part.state, PartState::Unasked));
        match next {
            Some(next) if !self.refused => steps.push(self.ask_part(next)),
            _ => {
                self.answered = true;
                steps.push(Step::Answer(self.outcome(charge)));
            }
        }
        steps
    }

    /// The place cannot decide the part's items together now, and has done nothing. Each item is
    /// asked for by itself.
    pub fn split(&mut self, part: usize) -> Steps {
        let items = std::mem::take(&mut self.parts[part].items);
        let mut steps = Steps::new();
        for (nth, index) in items.into_iter().enumerate() {
            if nth == 0 {
                self.parts[part].items.push(index);
                steps.push(Step::Ask(part));
            } else {
                let place = self.parts[part].place;
                self.parts.push(ReservePart {
                    place,
                    items: SmallVec::from_iter([index]),
                    state: PartState::Asked,
                });
                steps.push(Step::Ask(self.parts.len() - 1));
            }
        }
        steps
    }

    /// Ends the request: parts without a reply count as timed out.
    pub fn give_up(&mut self, charge: &Charge) -> Steps {
        let mut steps = Steps::new();
        for part in 0..self.parts.len() {
            steps.extend(self.replied(part, Err(StoreError::Timeout), charge));
        }
        steps
    }

    /// A denial counts even if another place is silent. Silence alone is an error.
    fn outcome(&self, charge: &Charge) -> Result<Decision, StoreError> {
        let states = || self.parts.iter().map(|part| &part.state);
        let denies = |state: &PartState| matches!(state, PartState::Replied(one) if !one.allowed);
        let failure = states().find_map(|state| match state {
            PartState::Failed(kind) => Some(*kind),
            _ => None,
        });
        if let Some(kind) = failure.filter(|_| !states().any(denies)) {
            return Err(kind);
        }
        let mut whole = Decision {
            allowed: !self.refused,
            at_us: 0,
            spread_us: 0,
            verdicts: SmallVec::from_elem(UNASKED, charge.len()),
        };
        let mut earliest_us = u64::MAX;
        for part in &self.parts {
            let PartState::Replied(decision) = &part.state else {
                continue;
            };
            whole.at_us = whole.at_us.max(decision.at_us);
            earliest_us = earliest_us.min(decision.at_us);
            for (index, verdict) in part.items.iter().zip(&decision.verdicts) {
                whole.verdicts[*index] = *verdict;
                if decision.allowed && self.refused {
                    // Given back: the verdict is that of the limit without the charge.
                    let item = &charge[*index];
                    let left = item.window.rule.units.saturating_sub(verdict.used);
                    whole.verdicts[*index].remaining = left;
                }
            }
        }
        whole.spread_us = whole.at_us.saturating_sub(earliest_us);
        Ok(whole)
    }
}

/// The step that takes back what a part has charged.
fn refund(number: usize, part: &ReservePart) -> Option<Step> {
    match &part.state {
        PartState::Replied(decision) if decision.allowed => {
            let stamps = decision.verdicts.iter().map(|verdict| verdict.stamp);
            Some(Step::Refund(number, stamps.collect()))
        }
        _ => None,
    }
}

/// The narrower of two limits is the one with the lower rate. Of limits on one request, the one
/// that more requests share has the higher rate, or the other would never deny.
fn narrower(one: &LimitCheck, other: &LimitCheck) -> Ordering {
    let (one, other) = (&one.window.rule, &other.window.rule);
    let rate = |units: u64, other_us: u64| u128::from(units) * u128::from(other_us);
    rate(one.units, other.window_us).cmp(&rate(other.units, one.window_us))
}

/// How often requests of one set of limits are refused by some place. If they often are, it is
/// better to ask one place after the other: then a refused request seldom charges anything.
#[derive(Clone, Copy, Debug, Default)]
pub struct Habit {
    refused: f32,
    one_by_one: bool,
}

impl Habit {
    /// The weight of one request: about the last hundred count.
    const WEIGHT: f32 = 1.0 / 64.0;
    /// From this share of refusals on, places are asked one after the other.
    const ENTER: f32 = 0.3;
    /// Below this share, all places are asked at once again.
    const LEAVE: f32 = 0.1;

    pub fn one_by_one(&self) -> bool {
        self.one_by_one
    }

    pub fn learn(&mut self, refused: bool) {
        self.refused += (f32::from(u8::from(refused)) - self.refused) * Self::WEIGHT;
        self.one_by_one = self.refused
            > if self.one_by_one {
                Self::LEAVE
            } else {
                Self::ENTER
            };
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::limit::{Algorithm, Key, KeyHash, Limit, Retry, Rule, Verdict};

    fn item(name: &str, units: u64, cost: u64) -> LimitCheck {
        let rule = Rule {
            algorithm: Algorithm::Log,
            units,
            window_us: 1_000_000,
            precision_us: 1,
        };
        let limit = Arc::new(Limit::new(name, &[rule], Key::all_of([])));
        LimitCheck {
            window: Arc::clone(&limit.windows[0]),
            limit,
            tag: KeyHash([0; 16]),
            anchor: None,
            cost,
            asker: None,
        }
    }

    /// `wide` in place 1, `narrow` and `also` in place 2.
    fn request(one_by_one: bool) -> (Charge, Reserve) {
        let items = [
            item("wide", 300, 2),
            item("narrow", 10, 2),
            item("also", 20, 2),
        ];
        let charge: Charge = items.into_iter().collect();
        let place = |item: &LimitCheck| if &*item.limit.name == "wide" { 1 } else { 2 };
        let reserve = Reserve::new(&charge, place, false, one_by_one);
        (charge, reserve)
    }

    fn reply(retries: &[Retry], stamp: u64) -> Result<Decision, StoreError> {
        let allowed = retries.iter().all(|retry| *retry == Retry::Now);
        let verdict = |retry: &Retry| Verdict {
            used: 4,
            remaining: if allowed { 4 } else { 6 },
            retry: *retry,
            reset_us: 9,
            next_us: 9,
            stamp,
        };
        Ok(Decision {
            allowed,
            at_us: stamp,
            spread_us: 0,
            verdicts: retries.iter().map(verdict).collect(),
        })
    }

    const NOW: Retry = Retry::Now;
    const LATER: Retry = Retry::After(500);

    #[test]
    fn all_places_at_once_and_all_grant() {
        let (charge, mut reserve) = request(false);
        assert_eq!(reserve.begin()[..], [Step::Ask(0), Step::Ask(1)]);
        assert!(
            reserve
                .replied(1, reply(&[NOW, NOW], 7), &charge)
                .is_empty()
        );
        let steps = reserve.replied(0, reply(&[NOW], 8), &charge);
        let [Step::Answer(Ok(decision))] = &steps[..] else {
            panic!("{steps:?}");
        };
        assert!(decision.allowed);
        assert_eq!((decision.at_us, decision.spread_us), (8, 1));
        assert_eq!(
            decision
                .verdicts
                .iter()
                .map(|one| one.stamp)
                .collect::<Vec<_>>(),
            [8, 7, 7]
        );
        assert!(reserve.is_over());
    }

    #[test]
    fn a_denial_gives_back_what_others_charged_whichever_comes_first() {
        for denial_first in [true, false] {
            let (charge, mut reserve) = request(false);
            reserve.begin();
            let (first, second) = if denial_first { (1, 0) } else { (0, 1) };
            let answer = |part| {
                if part == 0 {
                    reply(&[NOW], 8)
                } else {
                    reply(&[LATER, NOW], 7)
                }
            };
            assert!(reserve.replied(first, answer(first), &charge).is_empty());
            let steps = reserve.replied(second, answer(second), &charge);
            let [Step::Refund(0, stamps), Step::Answer(Ok(decision))] = &steps[..] else {
                panic!("{steps:?}");
            };
            assert_eq!(stamps[..], [8]);
            assert!(!decision.allowed);
            let told: Vec<_> = decision
                .verdicts
                .iter()
                .map(|one| (one.retry, one.remaining))
                .collect();
            assert_eq!(told, [(NOW, 296), (LATER, 6), (NOW, 6)]);
        }
    }

    #[test]
    fn silence_is_an_error_and_never_asked_again_nor_given_back() {
        let (charge, mut reserve) = request(false);
        reserve.begin();
        assert!(reserve.replied(0, reply(&[NOW], 8), &charge).is_empty());
        let steps = reserve.give_up(&charge);
        let refunds = Step::Refund(0, SmallVec::from_iter([8]));
        assert_eq!(steps[..], [refunds, Step::Answer(Err(StoreError::Timeout))]);
        assert!(
            reserve
                .replied(1, reply(&[NOW, NOW], 9), &charge)
                .is_empty()
        );
    }

    #[test]
    fn a_denial_counts_although_another_place_is_silent() {
        let (charge, mut reserve) = request(false);
        reserve.begin();
        reserve.replied(1, reply(&[LATER, NOW], 7), &charge);
        let steps = reserve.replied(0, Err(StoreError::Lost), &charge);
        let [Step::Answer(Ok(decision))] = &steps[..] else {
            panic!("{steps:?}");
        };
        assert!(!decision.allowed);
        assert_eq!(decision.verdicts[0].retry, Retry::Unasked);
    }

    #[test]
    fn the_narrowest_first_asks_nobody_else_once_it_is_denied() {
        let (charge, mut reserve) = request(true);
        assert_eq!(reserve.parts()[0].place, 2);
        assert_eq!(reserve.begin()[..], [Step::Ask(0)]);
        let steps = reserve.replied(0, reply(&[LATER, LATER], 7), &charge);
        assert!(matches!(&steps[..], [Step::Answer(Ok(one))] if !one.allowed));

        let (charge, mut reserve) = request(true);
        reserve.begin();
        assert_eq!(
            reserve.replied(0, reply(&[NOW, NOW], 7), &charge)[..],
            [Step::Ask(1)]
        );
        let steps = reserve.replied(1, reply(&[LATER], 8), &charge);
        assert!(matches!(
            &steps[..],
            [Step::Refund(0, _), Step::Answer(Ok(_))]
        ));
    }

    #[test]
    fn a_part_can_be_asked_for_item_by_item() {
        let (charge, mut reserve) = request(false);
        reserve.begin();
        reserve.replied(0, reply(&[NOW], 8), &charge);
        assert_eq!(reserve.split(1)[..], [Step::Ask(1), Step::Ask(2)]);
        assert!(reserve.replied(2, reply(&[NOW], 6), &charge).is_empty());
        let steps = reserve.replied(1, reply(&[LATER], 7), &charge);
        let back = |part, stamp| Step::Refund(part, SmallVec::from_iter([stamp]));
        assert_eq!(steps[..2], [back(0, 8), back(2, 6)]);
    }

    #[test]
    fn limits_that_mostly_refuse_are_asked_one_by_one() {
        let mut habit = Habit::default();
        (0..200).for_each(|n| habit.learn(n % 2 == 0));
        assert!(habit.one_by_one());
        (0..200).for_each(|n| habit.learn(n % 5 == 0));
        assert!(habit.one_by_one(), "it does not waver");
        (0..400).for_each(|_| habit.learn(false));
        assert!(!habit.one_by_one());
    }
}
