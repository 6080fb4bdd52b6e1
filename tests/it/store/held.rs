//! Requests that are held: random traces through the script, its twin and a model, and what holds
//! of all of them.

use std::sync::Arc;

use tidegate::limit::{Algorithm, Charge, Decision, Delay, Limit, Rule};
use tidegate::store::batch::{Group, Operation};

use super::model::Models;
use super::traces::{START_US, Script};
use crate::support::{Chance, RedisServer, item, limit};

/// Longer than any wait.
const FOREVER_US: u64 = 60_000_000;

fn rule(units: u64, window_us: u64, precision_us: u64) -> Rule {
    Rule {
        algorithm: Algorithm::Log,
        units,
        window_us,
        precision_us,
    }
}

fn holding(name: &str, rule: Rule, longest_us: u64, queue: u32) -> Arc<Limit> {
    let mut limit = limit(name, rule);
    Arc::make_mut(&mut limit).delay = Some(Delay { longest_us, queue });
    limit
}

fn book(charge: &Charge, longest_us: u64) -> Group<'_> {
    Group {
        operation: Operation::Book(longest_us),
        ..Group::one(charge)
    }
}

fn one(limit: &Arc<Limit>, who: u64, cost: u64) -> Charge {
    [item(limit, who, cost)].into_iter().collect()
}

/// A request that was charged.
#[derive(Clone, Debug)]
struct Charged {
    charge: Charge,
    stamps: Vec<u64>,
    /// When it came, and when it is forwarded.
    came_us: u64,
    forwarded_us: u64,
}

impl Charged {
    fn of(charge: &Charge, decision: &Decision) -> Charged {
        Charged {
            charge: charge.clone(),
            stamps: decision.verdicts.iter().map(|one| one.stamp).collect(),
            came_us: decision.at_us,
            forwarded_us: decision.at_us + decision.wait_us(),
        }
    }
}

fn random_limits(chance: &mut Chance, seed: u64) -> Vec<Arc<Limit>> {
    let precision_us = chance.pick(&[1, 1, 1, 1_000, 10_000]);
    let random = |number: u64| {
        let name = format!("held{seed}-{number}");
        let window_us = chance.pick(&[100_000, 500_000, 1_000_000]);
        let rule = rule(chance.pick(&[1, 2, 3, 10, 40]), window_us, precision_us);
        match chance.below(4) {
            0 => limit(&name, rule),
            1 => limit(
                &name,
                Rule {
                    algorithm: Algorithm::Counter,
                    precision_us: 1,
                    ..rule
                },
            ),
            _ => {
                let longest_us = chance.pick(&[50_000, 400_000, 3_000_000]);
                holding(
                    &name,
                    rule,
                    longest_us,
                    chance.pick(&[1, 3, 20, 100]) as u32,
                )
            }
        }
    };
    (0..3).map(random).collect()
}

/// Holds script, twin and model against each other. Returns how many were held.
fn agree(seed: u64, script: &mut Script, steps: usize) -> usize {
    let mut chance = Chance(seed);
    let limits = random_limits(&mut chance, seed);
    let mut models = Models::default();
    let (mut now_us, mut held) = (START_US, 0);
    let mut charged: Vec<Charged> = Vec::new();
    for step in 0..steps {
        now_us += chance.pick(&[0, 0, 0, 1, 500, 5_000, 50_000, 300_000]);
        if chance.below(60) == 0 {
            now_us -= chance.pick(&[1, 2_000, 700_000]);
        }
        if chance.below(8) == 0 && !charged.is_empty() {
            let gone = charged.swap_remove(chance.below(charged.len() as u64) as usize);
            let group = Group {
                operation: Operation::Refund,
                charge: &gone.charge,
                extra: &gone.stamps,
            };
            script.run(&[group], now_us);
            models.adjust((Operation::Refund, &gone.charge), &gone.stamps, now_us);
        }
        let many = 1 + chance.below(limits.len() as u64) as usize;
        let from = chance.below(limits.len() as u64) as usize;
        let who = chance.below(2);
        let charge: Charge = (from..from + many)
            .map(|at| {
                let limit = &limits[at % limits.len()];
                let most = limit.windows[0].rule.units.min(4);
                item(limit, who, chance.pick(&[0, 1, 1, 1, 1, 1, 1 + most / 2]))
            })
            .collect();
        let longest_us = chance.pick(&[FOREVER_US, FOREVER_US, 200_000]);
        let by_script = script
            .run(&[book(&charge, longest_us)], now_us)
            .remove(0)
            .remove(0);
        let by_model = models
            .by_model_or_held(&charge, now_us, longest_us)
            .unwrap();
        let by_twin = models.by_twin_or_held(&charge, now_us, longest_us).unwrap();
        let what = format!("seed {seed}, step {step}: {charge:?} at {now_us}");
        assert_eq!(by_twin, by_model, "twin, {what}");
        assert_eq!(by_script, by_model, "script, {what}");
        held += usize::from(by_script.wait_us() > 0);
        if by_script.allowed && chance.below(3) == 0 {
            charged.push(Charged::of(&charge, &by_script));
        }
    }
    held
}

#[test]
fn script_twin_and_model_agree_on_requests_that_are_held() {
    let server = RedisServer::start();
    let mut script = Script::on(&server);
    let held: usize = (0..60).map(|seed| agree(seed, &mut script, 250)).sum();
    assert!(held > 1_000, "{held}");
}

/// The most units that any window of forwarded requests holds.
fn fullest(forwarded: &[Charged], window_us: u64) -> u64 {
    let within = |end_us: u64| {
        let counts =
            |one: &&Charged| one.forwarded_us <= end_us && one.forwarded_us + window_us > end_us;
        let counted = forwarded.iter().filter(counts);
        counted.map(|one| one.charge[0].cost).sum()
    };
    let ends = forwarded.iter().map(|one| within(one.forwarded_us));
    ends.max().unwrap_or(0)
}

#[test]
fn no_window_of_forwarded_requests_holds_more_than_the_limit_and_all_keep_their_order() {
    let server = RedisServer::start();
    let mut script = Script::on(&server);
    let (mut all_held, mut all_denied) = (0, 0);
    for (seed, units, precision_us) in [(1, 1, 1), (2, 5, 1), (3, 20, 10_000), (4, 3, 250_000)] {
        let mut chance = Chance(seed);
        let rule = rule(units, 1_000_000, precision_us);
        let limit = holding(&format!("order{seed}"), rule, 5_000_000, 50);
        let (mut now_us, mut forwarded, mut denied) = (START_US, Vec::new(), 0);
        for _ in 0..2_000 {
            now_us += chance.pick(&[0, 0, 1, 50, 20_000, 100_000, 1_000_000]);
            let charge = one(&limit, 0, 1 + chance.below(units.min(3)));
            let decision = script
                .run(&[book(&charge, FOREVER_US)], now_us)
                .remove(0)
                .remove(0);
            match decision.allowed {
                true => forwarded.push(Charged::of(&charge, &decision)),
                false => denied += 1,
            }
        }
        let held = forwarded
            .iter()
            .filter(|one| one.forwarded_us > one.came_us);
        (all_held, all_denied) = (all_held + held.count(), all_denied + denied);
        let is_ordered = forwarded.is_sorted_by_key(|one| one.forwarded_us);
        assert!(is_ordered, "seed {seed}");
        let most = fullest(&forwarded, rule.window_us);
        assert!(
            most <= units,
            "{most} of {units} at precision {precision_us}"
        );
    }
    assert!(
        all_held > 1_000 && all_denied > 500,
        "{all_held}, {all_denied}"
    );
}

#[test]
fn those_behind_a_request_that_is_given_up_keep_their_times() {
    let server = RedisServer::start();
    let mut script = Script::on(&server);
    for (seed, units) in [(1, 1), (2, 4)] {
        let mut chance = Chance(seed);
        let rule = rule(units, 100_000, 1);
        let limit = holding(&format!("leaves{seed}"), rule, 5_000_000, 40);
        let (mut now_us, mut forwarded) = (START_US, Vec::<Charged>::new());
        for _ in 0..2_000 {
            now_us += chance.pick(&[0, 0, 1, 1_000, 30_000, 200_000]);
            let waiting = forwarded.iter().rposition(|one| one.forwarded_us > now_us);
            if let Some(place) = waiting.filter(|_| chance.below(3) == 0) {
                let gone = forwarded.remove(place);
                let group = Group {
                    operation: Operation::Refund,
                    charge: &gone.charge,
                    extra: &gone.stamps,
                };
                script.run(&[group], now_us);
            }
            let charge = one(&limit, 0, 1);
            let decision = script
                .run(&[book(&charge, FOREVER_US)], now_us)
                .remove(0)
                .remove(0);
            if decision.allowed {
                forwarded.push(Charged::of(&charge, &decision));
            }
        }
        let most = fullest(&forwarded, rule.window_us);
        assert!(most <= units, "{most} of {units}");
    }
}

#[test]
fn a_queue_and_a_longest_wait_are_exact() {
    let server = RedisServer::start();
    let mut script = Script::on(&server);
    let mut decide = |limit: &Arc<Limit>, now_us: u64, longest_us: u64| {
        let charge = one(limit, 0, 1);
        let decided = script.run(&[book(&charge, longest_us)], now_us);
        decided[0][0].clone()
    };
    let rule = rule(1, 100_000, 1);
    let queue = holding("queue", rule, 2_000_000, 3);
    let waits: Vec<u64> = (0..4)
        .map(|_| decide(&queue, START_US, FOREVER_US).wait_us())
        .collect();
    assert_eq!(waits, [0, 100_000, 200_000, 300_000]);
    let denied = decide(&queue, START_US, FOREVER_US);
    assert!(!denied.allowed);
    let retry = denied.verdicts[0].retry;
    assert_eq!(
        retry,
        tidegate::limit::Retry::After(400_000),
        "the true wait"
    );
    // As soon as the first one goes, there is space for another.
    assert!(!decide(&queue, START_US + 99_999, FOREVER_US).allowed);
    assert_eq!(
        decide(&queue, START_US + 100_000, FOREVER_US).wait_us(),
        300_000
    );

    let short = holding("short", rule, 200_000, 100);
    let waits: Vec<u64> = (0..3)
        .map(|_| decide(&short, START_US, FOREVER_US).wait_us())
        .collect();
    assert_eq!(waits, [0, 100_000, 200_000]);
    assert!(!decide(&short, START_US, FOREVER_US).allowed);
    assert!(
        !decide(&short, START_US + 50_000, 249_999 - 50_000).allowed,
        "its own bound"
    );
    assert!(decide(&short, START_US + 100_000, FOREVER_US).allowed);
}
