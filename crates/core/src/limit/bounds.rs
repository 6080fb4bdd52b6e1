//! What each algorithm promises, held against random traffic. Tests only; `docs/limits.md` says the
//! same in words.

use proptest::prelude::*;

use super::decide::Count;
use super::{Algorithm, Rate, Retry, Rule};

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
    let rate = |units| Rate {
        units,
        window_us: WINDOW_US,
    };
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
    let look = count.look(rule, cost, now_us);
    let allowed = look.retry == Retry::Now;
    count.settle(rule, cost, &look, allowed);
    look.retry
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
                let at = |us: u64| count.look(rule, *cost, now_us + us).retry;
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
        let rule = Rule::log(Rate { units, window_us: WINDOW_US }, 1);
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
        let Retry::After(wait_us) = count.look(&rule, 1, start_us).retry else {
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
