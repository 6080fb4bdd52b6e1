//! What each algorithm promises, held against random traffic. Tests only; `docs/limits.md` says the
//! same in words.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::decide::Count;
use super::{Algorithm, Rate, Retry, Rule, Verdict};

const WINDOW_US: u64 = 60_000;

/// One request: how long after the one before it, microseconds, and its cost.
type Step = (u64, u64);

fn steps() -> impl Strategy<Value = Vec<Step>> {
    // Short and long gaps, and some just at the edges of windows and of their pieces.
    let gap = prop_oneof![
        3 => 0_u64..200,
        3 => 0_u64..20_000,
        1 => Just(WINDOW_US),
        1 => Just(WINDOW_US - 1),
        1 => (0_u64..70).prop_map(|pieces| pieces * 1_000),
    ];
    prop::collection::vec((gap, 1_u64..4), 1..120)
}

/// Logs of every precision that divides the window: from a microsecond to the whole window.
fn logs() -> impl Strategy<Value = Rule> {
    let divisors: Vec<u64> = (1..=WINDOW_US)
        .filter(|piece| WINDOW_US.is_multiple_of(*piece))
        .collect();
    let rate = |units| Rate::sliding(units, WINDOW_US);
    (1_u64..12, prop::sample::select(divisors))
        .prop_map(move |(units, precision_us)| Rule::log(rate(units), precision_us))
}

fn counters() -> impl Strategy<Value = Rule> {
    (1_u64..12).prop_map(|units| Rule {
        algorithm: Algorithm::Counter,
        units,
        window_us: WINDOW_US,
        precision_us: 1,
    })
}

/// Asks for a request and charges it if it passes.
fn ask(count: &mut Count, rule: &Rule, cost: u64, now_us: u64) -> Retry {
    let first = count.first_pass(rule, cost, now_us);
    let allowed = first.retry == Retry::Now;
    count.settle(rule, cost, &first, allowed);
    first.retry
}

/// What was admitted when, of traffic that began at `now_us`.
fn admitted(rule: &Rule, steps: &[Step], mut now_us: u64) -> Vec<(u64, u64)> {
    let mut count = Count::new(rule.algorithm);
    let mut admitted = Vec::new();
    for (gap_us, cost) in steps {
        now_us += gap_us;
        if ask(&mut count, rule, *cost, now_us) == Retry::Now {
            admitted.push((now_us, *cost));
        }
    }
    admitted
}

/// The fullest interval of a window's length: one of them begins at an admission.
fn fullest(admitted: &[(u64, u64)]) -> u64 {
    let from = |start: usize| {
        let (first_us, _) = admitted[start];
        let within = admitted[start..].iter();
        let within = within.take_while(|(at_us, _)| at_us - first_us < WINDOW_US);
        within.map(|(_, cost)| cost).sum::<u64>()
    };
    (0..admitted.len()).map(from).max().unwrap_or(0)
}

/// After any traffic, a request that is denied with a wait is denied at every instant before its
/// end, and allowed at it.
fn retry_is_tight(rule: &Rule, steps: &[Step], start_us: u64) -> Result<(), TestCaseError> {
    let mut count = Count::new(rule.algorithm);
    let mut now_us = start_us;
    for (gap_us, cost) in steps {
        now_us += gap_us;
        match ask(&mut count, rule, *cost, now_us) {
            Retry::Now => {}
            Retry::Never => prop_assert!(*cost > rule.units),
            Retry::After(wait_us) => {
                let at = |us: u64| count.first_pass(rule, *cost, now_us + us).retry;
                prop_assert!(wait_us > 0);
                prop_assert_eq!(at(wait_us), Retry::Now);
                prop_assert_eq!(at(wait_us - 1), Retry::After(1));
                for part in 0..16 {
                    let early_us = wait_us * part / 16;
                    prop_assert_eq!(at(early_us), Retry::After(wait_us - early_us));
                }
            }
            other => prop_assert!(false, "{:?}", other),
        }
    }
    Ok(())
}

proptest! {
    #[test]
    fn no_window_of_a_log_holds_more_than_its_rate(
        rule in logs(), steps in steps(), start_us in 0..3 * WINDOW_US,
    ) {
        let admitted = admitted(&rule, &steps, start_us);
        prop_assert!(fullest(&admitted) <= rule.units, "{:?}", admitted);
    }

    #[test]
    fn an_exact_log_denies_only_what_would_be_too_much(
        units in 1_u64..12, steps in steps(), start_us in 0..3 * WINDOW_US,
    ) {
        let rule = Rule::log(Rate::sliding(units, WINDOW_US), 1);
        let mut count = Count::new(rule.algorithm);
        let (mut now_us, mut admitted) = (start_us, Vec::new());
        for (gap_us, cost) in steps {
            now_us += gap_us;
            let live = admitted.iter().filter(|(at_us, _)| at_us + WINDOW_US > now_us);
            let used: u64 = live.map(|(_, cost)| cost).sum();
            let passes = ask(&mut count, &rule, cost, now_us) == Retry::Now;
            prop_assert_eq!(passes, used + cost <= units);
            if passes {
                admitted.push((now_us, cost));
            }
        }
    }

    #[test]
    fn a_coarse_log_counts_no_unit_for_longer_than_a_piece_too_long(
        rule in logs(), start_us in 0..3 * WINDOW_US,
    ) {
        let mut count = Count::new(rule.algorithm);
        prop_assert_eq!(ask(&mut count, &rule, rule.units, start_us), Retry::Now);
        let Retry::After(wait_us) = count.first_pass(&rule, 1, start_us).retry else {
            panic!("a full log lets nothing pass");
        };
        prop_assert!((WINDOW_US..WINDOW_US + rule.precision_us).contains(&wait_us));
    }

    #[test]
    fn a_counter_never_admits_twice_its_rate(
        rule in counters(), steps in steps(), start_us in 0..3 * WINDOW_US,
    ) {
        let admitted = admitted(&rule, &steps, start_us);
        prop_assert!(fullest(&admitted) < 2 * rule.units.max(1), "{:?}", admitted);
    }

    #[test]
    fn the_wait_of_a_log_is_tight(
        rule in logs(), steps in steps(), start_us in 0..3 * WINDOW_US,
    ) {
        retry_is_tight(&rule, &steps, start_us)?;
    }

    #[test]
    fn the_wait_of_a_counter_is_exact_for_its_estimate(
        rule in counters(), steps in steps(), start_us in 0..3 * WINDOW_US,
    ) {
        retry_is_tight(&rule, &steps, start_us)?;
    }
}

/// What happens next, and how long after what came before, microseconds.
#[derive(Clone, Copy, Debug)]
enum Event {
    /// A request of this cost asks.
    Ask(u64, u64),
    /// Up to so many units are given back, of the request that the last number picks.
    Refund(u64, u64, usize),
}

fn events() -> impl Strategy<Value = Vec<Event>> {
    let gap = || {
        prop_oneof![
            0_u64..200,
            0_u64..20_000,
            Just(WINDOW_US),
            Just(WINDOW_US - 1)
        ]
    };
    let event = prop_oneof![
        3 => (gap(), 1_u64..4).prop_map(|(gap_us, cost)| Event::Ask(gap_us, cost)),
        1 => (gap(), 0_u64..5, 0_usize..20)
            .prop_map(|(gap_us, cost, which)| Event::Refund(gap_us, cost, which)),
    ];
    prop::collection::vec(event, 1..120)
}

/// A count whose oldest units are given back, and beside it one that gives back the units that are
/// meant. Both admit the same requests.
struct Returns {
    rule: Rule,
    now_us: u64,
    oldest: Count,
    meant: Count,
    /// When each request was admitted, its units that were not given back, and its stamp.
    admitted: Vec<(u64, u64, u64)>,
}

impl Returns {
    fn new(rule: Rule, now_us: u64) -> Returns {
        Returns {
            rule,
            now_us,
            oldest: Count::new(rule.algorithm),
            meant: Count::new(rule.algorithm),
            admitted: Vec::new(),
        }
    }

    fn happen(&mut self, event: Event) {
        let rule = self.rule;
        match event {
            Event::Ask(gap_us, cost) => {
                self.now_us += gap_us;
                if ask(&mut self.oldest, &rule, cost, self.now_us) == Retry::Now {
                    let first = self.meant.first_pass(&rule, cost, self.now_us);
                    let stamp = self.meant.settle(&rule, cost, &first, true).stamp;
                    self.admitted.push((self.now_us, cost, stamp));
                }
            }
            Event::Refund(gap_us, cost, which) => {
                self.now_us += gap_us;
                let now_us = self.now_us;
                let live = self.admitted.iter_mut();
                let mut live: Vec<_> = live
                    .filter(|(at_us, ..)| at_us + WINDOW_US > now_us)
                    .collect();
                let which = which % live.len().max(1);
                let Some((_, units, stamp)) = live.get_mut(which) else {
                    return;
                };
                let cost = cost.min(*units);
                self.oldest.refund_oldest(&rule, cost, now_us);
                self.meant.refund(&rule, cost, *stamp, now_us);
                *units -= cost;
            }
        }
    }

    fn kept(&self) -> Vec<(u64, u64)> {
        let admitted = self.admitted.iter();
        admitted.map(|(at_us, units, _)| (*at_us, *units)).collect()
    }
}

/// Whether a unit with this stamp counts.
fn is_live(rule: &Rule, stamp_us: u64, now_us: u64) -> bool {
    let floor_us = now_us / rule.precision_us * rule.precision_us;
    stamp_us + WINDOW_US > floor_us
}

/// The wait of each cost is that of a list of units, oldest first.
fn retry_of_units_is_told(
    count: &Count,
    rule: &Rule,
    units: &[u64],
    now_us: u64,
) -> Result<(), TestCaseError> {
    let live = units.iter().filter(|at| is_live(rule, **at, now_us));
    let live: Vec<u64> = live.copied().collect();
    for cost in 1..=rule.units {
        let expected = match (live.len() as u64 + cost).checked_sub(rule.units) {
            None | Some(0) => Retry::Now,
            Some(excess) => Retry::After(live[excess as usize - 1] + WINDOW_US - now_us),
        };
        prop_assert_eq!(count.first_pass(rule, cost, now_us).retry, expected);
    }
    Ok(())
}

proptest! {
    #[test]
    fn no_window_of_a_log_holds_more_whichever_request_is_given_back(
        rule in logs(), events in events(), start_us in 0..3 * WINDOW_US,
    ) {
        let mut returns = Returns::new(rule, start_us);
        events.into_iter().for_each(|event| returns.happen(event));
        let kept = returns.kept();
        prop_assert!(fullest(&kept) <= rule.units, "{:?}", kept);
    }

    #[test]
    fn the_oldest_that_are_given_back_free_no_more_than_those_that_are_meant(
        rule in prop_oneof![logs(), counters()],
        events in events(),
        start_us in 0..3 * WINDOW_US,
        later_us in prop::collection::vec(0_u64..2 * WINDOW_US, 1..10),
    ) {
        let mut returns = Returns::new(rule, start_us);
        for event in events {
            returns.happen(event);
            for us in &later_us {
                let used = |count: &Count| count.used(&rule, returns.now_us + us);
                prop_assert!(used(&returns.oldest) >= used(&returns.meant));
            }
        }
    }

    /// The model is a list of units with their stamps.
    #[test]
    fn a_log_gives_back_what_a_list_of_units_does(
        rule in logs(), events in events(), start_us in 0..3 * WINDOW_US,
    ) {
        let (mut count, mut units) = (Count::new(rule.algorithm), Vec::new());
        let precision_us = rule.precision_us;
        let mut now_us = start_us;
        for event in events {
            match event {
                Event::Ask(gap_us, cost) => {
                    now_us += gap_us;
                    if ask(&mut count, &rule, cost, now_us) == Retry::Now {
                        let stamp_us = now_us.div_ceil(precision_us) * precision_us;
                        units.extend((0..cost).map(|_| stamp_us));
                    }
                }
                Event::Refund(gap_us, cost, _) => {
                    now_us += gap_us;
                    count.refund_oldest(&rule, cost, now_us);
                    units.retain(|stamp_us| is_live(&rule, *stamp_us, now_us));
                    units.drain(..units.len().min(cost as usize));
                }
            }
            for later_us in [0, 1, WINDOW_US / 3, WINDOW_US - 1, WINDOW_US] {
                let at_us = now_us + later_us;
                let live = units.iter().filter(|at| is_live(&rule, **at, at_us));
                prop_assert_eq!(count.used(&rule, at_us), live.count() as u64);
            }
            retry_of_units_is_told(&count, &rule, &units, now_us)?;
        }
    }

    /// The model is the units of two windows.
    #[test]
    fn a_counter_gives_back_the_window_before_first(
        rule in counters(), events in events(), start_us in 0..3 * WINDOW_US,
    ) {
        let mut count = Count::new(rule.algorithm);
        let mut windows = BTreeMap::<u64, u64>::new();
        let mut now_us = start_us;
        for event in events {
            let (gap_us, cost) = match event {
                Event::Ask(gap_us, cost) | Event::Refund(gap_us, cost, _) => (gap_us, cost),
            };
            now_us += gap_us;
            let window = now_us / WINDOW_US;
            if let Event::Ask(..) = event {
                if ask(&mut count, &rule, cost, now_us) == Retry::Now {
                    *windows.entry(window).or_default() += cost;
                }
            } else {
                count.refund_oldest(&rule, cost, now_us);
                let mut left = cost;
                for (_, units) in windows.range_mut(window.saturating_sub(1)..) {
                    let taken = left.min(*units);
                    (left, *units) = (left - taken, *units - taken);
                }
            }
            let units = |window: u64| windows.get(&window).copied().unwrap_or(0);
            let previous = window.checked_sub(1).map_or(0, units);
            let share = previous * (WINDOW_US - now_us % WINDOW_US);
            let expected = units(window) + share.div_ceil(WINDOW_US);
            prop_assert_eq!(count.used(&rule, now_us), expected);
        }
    }

    #[test]
    fn a_count_that_is_emptied_decides_like_a_new_one(
        rule in prop_oneof![logs(), counters()],
        before in steps(),
        after in steps(),
        start_us in 0..3 * WINDOW_US,
    ) {
        let (mut emptied, mut new) = (Count::new(rule.algorithm), Count::new(rule.algorithm));
        let mut now_us = start_us;
        for (gap_us, cost) in before {
            now_us += gap_us;
            ask(&mut emptied, &rule, cost, now_us);
        }
        emptied.refund_oldest(&rule, u64::MAX, now_us);
        prop_assert_eq!(emptied.heap_bytes(), 0);
        for (gap_us, cost) in after {
            now_us += gap_us;
            let verdict = |count: &mut Count| {
                let first = count.first_pass(&rule, cost, now_us);
                let allowed = first.retry == Retry::Now;
                let verdict = count.settle(&rule, cost, &first, allowed);
                Verdict { stamp: if allowed { verdict.stamp } else { 0 }, ..verdict }
            };
            prop_assert_eq!(verdict(&mut emptied), verdict(&mut new));
        }
    }
}
