//! Random traces through three that must agree on every field: the script on a real server with
//! the time given to it, its twin in Rust, and a model that knows nothing of either.

use std::sync::Arc;

use tidegate::limit::calendar::MAX_COUNT;
use tidegate::limit::{
    Algorithm, AnchorDay, CalendarUnit, Charge, Decision, Limit, Retry, Rule, Verdict,
};
use tidegate::store::batch::{
    Group, GroupEnd, Operation, Reply, SCRIPT, ScriptCall, ScriptName, write,
};

use super::model::{Models, Told, named};
use crate::support::{Chance, RedisServer, calendar_limit, item, limit};

pub(super) const START_US: u64 = 1_700_000_000_000_000;

/// The script on a real server.
pub(super) struct Script {
    connection: redis::Connection,
    known: String,
}

impl Script {
    pub(super) fn on(server: &RedisServer) -> Script {
        let mut connection = server.connect();
        let load = redis::cmd("SCRIPT")
            .arg("LOAD")
            .arg(SCRIPT)
            .query(&mut connection);
        Script {
            connection,
            known: load.expect("the script compiles"),
        }
    }

    /// Requests, each by itself.
    fn decide(&mut self, charges: &[Charge], now_us: u64) -> Vec<Decision> {
        let groups: Vec<Group<'_>> = charges.iter().map(Group::one).collect();
        self.run(&groups, now_us).concat()
    }

    /// Groups of equal requests: every request's decision.
    pub(super) fn run(&mut self, groups: &[Group<'_>], now_us: u64) -> Vec<Vec<Decision>> {
        let ends = self.run_told(groups, now_us.into()).into_iter();
        ends.map(|end| end.done().expect("the clock is known"))
            .collect()
    }

    /// The same for a proxy with its own idea of the server's clock.
    fn run_told(&mut self, groups: &[Group<'_>], told: Told) -> Vec<GroupEnd<Vec<Decision>>> {
        let Told { now_us, idea_us } = told;
        let call = ScriptCall {
            script: ScriptName::Hash(&self.known),
            prefix: "t:",
            holder: 7,
            now_us: Some(now_us),
            store_us: idea_us,
        };
        let mut command = redis::Cmd::new();
        write(&mut command, call, groups.iter().copied());
        // The server's own clock runs on while the trace's may stand: nothing may expire by it.
        let mut at_once = redis::pipe();
        at_once.atomic().add_command(command.clone());
        for argument in command.args_iter().skip(3) {
            if let redis::Arg::Simple(key) = argument
                && key.starts_with(b"t:{")
            {
                at_once.cmd("PERSIST").arg(key).ignore();
            }
        }
        let (bytes,): (Vec<u8>,) = at_once
            .query(&mut self.connection)
            .expect("the script runs");
        let mut reply = Reply::read(&bytes).expect("a head");
        assert_eq!(reply.begun_anew, 0);
        let mut decisions = Vec::new();
        for group in groups {
            let count = match group.operation {
                Operation::Charge(count) => count,
                Operation::Book(_) => 1,
                _ => {
                    assert_eq!(reply.end().expect("an end"), GroupEnd::Done(()));
                    continue;
                }
            };
            let end = reply.outcome(group.charge, count).expect("an outcome");
            assert_ne!(end, GroupEnd::Refused);
            decisions.push(end.map(|outcome| {
                let decision = |index| outcome.decision(index, group.charge).expect("a decision");
                let each = (0..count).map(|index| named(decision(index), group.charge));
                each.collect()
            }));
        }
        assert_eq!(reply.refusal(), None);
        decisions
    }
}

const WINDOWS_US: [u64; 10] = [
    1_000,
    7_000,
    1_000_000,
    60_000_000,
    1_799_999_999,
    1_800_000_000,
    3_600_000_000,
    86_400_000_000,
    2_592_000_000_000,
    31_622_400_000_000,
];

fn random_limit(chance: &mut Chance, name: &str) -> Arc<Limit> {
    if chance.below(3) == 0 {
        let unit = chance.pick(&CalendarUnit::ALL);
        let units = chance.pick(&[1, 2, 3, 5, 33, 400, 5_000_000_000, MAX_COUNT]);
        return calendar_limit(name, unit, units);
    }
    limit(name, random_rule(chance))
}

fn random_rule(chance: &mut Chance) -> Rule {
    let window_us = chance.pick(&WINDOWS_US);
    if chance.below(4) == 0 {
        let most = ((1u64 << 53) - 1) / window_us;
        let units = chance.pick(&[1, 2, 5, 60, 1000, 1_000_000]).min(most);
        return Rule {
            algorithm: Algorithm::Counter,
            units,
            window_us,
            precision_us: 1,
        };
    }
    let precision_us = random_precision(chance, window_us);
    let units = chance.pick(&[1, 2, 3, 5, 10, 33, 100, 400, 4_000_000_000]);
    Rule {
        algorithm: Algorithm::Log,
        units,
        window_us,
        precision_us,
    }
}

fn random_precision(chance: &mut Chance, window_us: u64) -> u64 {
    let precisions = [
        1,
        1,
        1,
        window_us / 15,
        window_us / 10,
        window_us / 100,
        window_us / 1000,
        window_us,
    ];
    let fits = |precision: &&u64| **precision > 0 && window_us.is_multiple_of(**precision);
    let fitting: Vec<u64> = precisions.iter().filter(fits).copied().collect();
    chance.pick(&fitting)
}

fn random_cost(chance: &mut Chance, rule: &Rule) -> u64 {
    match chance.below(12) {
        0 => 0,
        1 => rule.units + 1 + chance.below(3),
        2 => 1 + chance.below(rule.units),
        3 => rule.units,
        4 | 5 => 1 + chance.below(rule.units.min(4)),
        _ => 1,
    }
}

fn step(chance: &mut Chance, now_us: u64, window_us: u64) -> u64 {
    let forth = |chance: &mut Chance, most: u64| now_us + chance.below(most + 1);
    match chance.below(40) {
        0 => now_us - chance.below(2 * window_us.min(now_us / 4)),
        1 => now_us - chance.below(window_us / 4 + 2),
        2 => now_us - 1,
        3 => forth(chance, 4 * window_us),
        4..=6 => forth(chance, window_us),
        7..=12 => forth(chance, window_us / 10),
        13..=24 => forth(chance, window_us / 300),
        25..=32 => now_us + 1,
        _ => now_us,
    }
}

/// The same limit with other units, in another precision: its identity, and so its history, stays.
fn with_units(old: &Limit, units: u64, precision_us: u64) -> Arc<Limit> {
    if let Some(calendar) = &old.windows[0].calendar {
        return calendar_limit(&old.name, calendar.unit(), units);
    }
    limit(
        &old.name,
        Rule {
            units,
            precision_us,
            ..old.windows[0].rule
        },
    )
}

/// What the asking proxy takes the server's clock for: seldom a window off, or several.
fn random_idea(chance: &mut Chance, now_us: u64, window_us: u64) -> u64 {
    match chance.below(12) {
        0 => now_us.saturating_sub(chance.below(4 * window_us)),
        1 => now_us + chance.below(4 * window_us),
        2 => now_us.saturating_sub(chance.below(window_us)),
        3 => now_us + chance.below(window_us),
        _ => now_us.saturating_sub(chance.below(100_000)),
    }
}

/// A request by one of two proxies, which give clients other anchors.
fn random_charge(chance: &mut Chance, limits: &[Arc<Limit>]) -> Charge {
    let anchors = [None, AnchorDay::of_month(15), AnchorDay::of_month(31)];
    let anchor = chance.pick(&anchors);
    let items = chance.pick(&[1, 1, 1, 2, 3]).min(limits.len() as u64);
    let from = chance.below(limits.len() as u64) as usize;
    (0..items as usize)
        .map(|i| {
            let limit = &limits[(from + i) % limits.len()];
            let who = chance.below(2);
            let mut item = item(limit, who, random_cost(chance, &limit.windows[0].rule));
            item.anchor = anchor;
            item
        })
        .collect()
}

/// What random traces came to.
#[derive(Debug, Default)]
struct Totals {
    decided: usize,
    asked_again: usize,
}

fn agree(seed: u64, script: &mut Script, steps: usize) -> Totals {
    let mut chance = Chance(seed);
    let mut models = Models::default();
    let name = |i: usize| format!("seed{seed}-{i}");
    let mut limits: Vec<_> = (0..4)
        .map(|i| random_limit(&mut chance, &name(i)))
        .collect();
    let pace_us = limits[chance.below(4) as usize].windows[0].rule.window_us;
    let mut now_us = START_US + chance.below(1 << 40);
    let (mut totals, mut retried) = (Totals::default(), None::<(Charge, u64)>);
    let mut charged = Vec::new();
    for _ in 0..steps {
        if chance.below(25) == 0 {
            let which = chance.below(4) as usize;
            let units = 1 + chance.below(2 * limits[which].windows[0].rule.units.min(1000));
            if limits[which].windows[0].rule.algorithm != Algorithm::Counter {
                let rule = limits[which].windows[0].rule;
                let precision_us = random_precision(&mut chance, rule.window_us);
                limits[which] = with_units(&limits[which], units, precision_us);
            }
            retried = None;
        }
        if retried.is_none() && chance.below(6) == 0 {
            adjust(&mut chance, &mut charged, (script, &mut models), now_us);
        }
        let mut charges = Vec::new();
        let (mut must_pass, is_retried) = (false, retried.is_some());
        if let Some((charge, at_us)) = retried.take() {
            if at_us > now_us {
                // Denied still one microsecond before, allowed at it.
                now_us = at_us - 1;
                retried = Some((charge.clone(), now_us));
            } else {
                now_us += 1;
                must_pass = true;
            }
            charges.push(charge);
        } else {
            now_us = step(&mut chance, now_us, pace_us);
            let several = chance.pick(&[1, 1, 2, 5]);
            charges.extend((0..several).map(|_| random_charge(&mut chance, &limits)));
        }
        let count = if retried.is_some() || must_pass {
            1
        } else {
            chance.pick(&[1, 1, 1, 2, 7])
        };
        let group = |charge| Group {
            operation: Operation::Charge(count),
            ..Group::one(charge)
        };
        let groups: Vec<Group<'_>> = charges.iter().map(group).collect();
        let mut again = Vec::new();
        let mut told = Told::from(now_us);
        if !is_retried {
            told.idea_us = random_idea(&mut chance, now_us, pace_us);
        }
        let what = format!("seed {seed}, {}: ", totals.decided);
        let ends = script.run_told(&groups, told);
        let mut by_script = Vec::new();
        for (group, end) in groups.iter().zip(ends) {
            match compare(&mut models, group, told, end, &what) {
                Some(decisions) => by_script.push((group.charge, decisions)),
                None => again.push(*group),
            }
        }
        // They fit as soon as the proxy knows the clock.
        totals.asked_again += again.len();
        for group in again.drain(..) {
            let told = Told::from(now_us);
            let end = script.run_told(&[group], told).remove(0);
            let decisions = compare(&mut models, &group, told, end, &what);
            by_script.push((group.charge, decisions.expect("the clock is known")));
        }
        for (charge, by_script) in &by_script {
            for by_script in by_script {
                totals.decided += 1;
                if by_script.allowed && !must_pass && chance.below(8) == 0 {
                    let stamps = by_script.verdicts.iter().map(|verdict| verdict.stamp);
                    charged.push((Charge::clone(charge), stamps.collect::<Vec<u64>>()));
                }
            }
        }
        let last = by_script.last().and_then(|(_, each)| each.last());
        let last = last.expect("something was asked");
        assert!(
            last.allowed || !must_pass,
            "retry too short, seed {seed}, {totals:?}"
        );
        assert!(
            !last.allowed || retried.is_none(),
            "retry too long, seed {seed}, {totals:?}"
        );
        let alone = charges.len() == 1 && count == 1;
        if alone && !last.allowed && retried.is_none() && chance.below(3) == 0 {
            // A look keeps no ages after a step back, so its wait may begin anew.
            let charges_all = charges[0].iter().all(|item| item.cost > 0);
            retried = longest_retry(last)
                .filter(|_| charges_all)
                .map(|us| (charges[0].clone(), now_us + us));
        }
    }
    totals
}

/// Holds what the script decided on a group against the twin and the model. Returns the decisions;
/// nothing if all three say that the proxy must ask again.
fn compare(
    models: &mut Models,
    group: &Group<'_>,
    told: Told,
    end: GroupEnd<Vec<Decision>>,
    what: &str,
) -> Option<Vec<Decision>> {
    let (charge, decisions) = (group.charge, end.done());
    let Operation::Charge(count) = group.operation else {
        return decisions;
    };
    let what = format!("{what}{count} times {charge:?} at {told:?}");
    for index in 0..usize::from(count) {
        let by_script = decisions.as_ref().map(|decisions| &decisions[index]);
        let by_model = models.by_model(charge, told, 0);
        assert_eq!(models.by_twin(charge, told), by_model, "twin, {what}");
        assert_eq!(by_script.is_some(), by_model.is_some(), "script, {what}");
        if let (Some(by_script), Some(by_model)) = (by_script, by_model) {
            assert_same(by_script, &by_model, count, &what);
        }
    }
    decisions
}

/// Equal requests of one group stand at one instant: when more becomes free is told of its end.
fn assert_same(by_script: &Decision, by_model: &Decision, count: u16, what: &str) {
    let mut by_model = by_model.clone();
    if count > 1 && by_script.allowed {
        for (verdict, other) in by_model.verdicts.iter_mut().zip(&by_script.verdicts) {
            verdict.next_us = other.next_us;
        }
    }
    assert_eq!(*by_script, by_model, "script, {what}");
}

/// Gives back what was charged, or less, or twice as much, by its stamp or the oldest units; or
/// charges more.
fn adjust(
    chance: &mut Chance,
    charged: &mut Vec<(Charge, Vec<u64>)>,
    (script, models): (&mut Script, &mut Models),
    now_us: u64,
) {
    if charged.is_empty() {
        return;
    }
    let which = chance.below(charged.len() as u64) as usize;
    let (mut charge, stamps) = charged.swap_remove(which);
    let operation = chance.pick(&[
        Operation::Refund,
        Operation::Refund,
        Operation::RefundOldest,
        Operation::RefundOldest,
        Operation::Settle,
    ]);
    for item in &mut charge {
        item.cost = match chance.below(4) {
            0 => item.cost.div_ceil(2),
            1 if operation != Operation::Settle => 2 * item.cost,
            2 if operation == Operation::RefundOldest => {
                // Several entries, or all that there are.
                chance.pick(&[0, 3 * item.cost, 20 * item.cost, 1 << 40])
            }
            _ => item.cost,
        };
    }
    let group = Group {
        operation,
        charge: &charge,
        extra: match operation {
            Operation::RefundOldest => &[],
            _ => &stamps,
        },
    };
    script.run(&[group], now_us);
    models.adjust((operation, &charge), &stamps, now_us);
}

fn longest_retry(decision: &Decision) -> Option<u64> {
    let wait = |verdict: &Verdict| match verdict.retry {
        Retry::Now => Some(0),
        Retry::After(us) => Some(us),
        _ => None,
    };
    decision
        .verdicts
        .iter()
        .map(wait)
        .try_fold(0, |longest, us| us.map(|us| longest.max(us)))
}

#[test]
fn script_twin_and_model_agree_on_every_field() {
    let server = RedisServer::start();
    let mut script = Script::on(&server);
    let mut all = Totals::default();
    for seed in 0..60 {
        let totals = agree(seed, &mut script, 250);
        all.decided += totals.decided;
        all.asked_again += totals.asked_again;
    }
    assert!(all.decided > 20_000 && all.asked_again > 200, "{all:?}");
}

#[test]
fn no_window_ever_holds_more_than_the_limit() {
    let server = RedisServer::start();
    let mut script = Script::on(&server);
    for (seed, precision_us) in [(1, 1), (2, 10_000), (3, 250_000)] {
        let mut chance = Chance(seed);
        let rule = Rule {
            algorithm: Algorithm::Log,
            units: 20,
            window_us: 1_000_000,
            precision_us,
        };
        let limit = limit(&format!("fullest{seed}"), rule);
        let (mut now_us, mut admitted) = (START_US, Vec::new());
        for _ in 0..3_000 {
            now_us += chance.pick(&[0, 1, 50, 1_000, 20_000, 100_000, 400_000]);
            let cost = 1 + chance.below(3);
            let charges = [[item(&limit, 0, cost)].into_iter().collect()];
            if script.decide(&charges, now_us)[0].allowed {
                admitted.push((now_us, cost));
            }
        }
        let mut fullest = 0;
        for (at_us, _) in &admitted {
            let within = |(s, _): &&(u64, u64)| s <= at_us && s + rule.window_us > *at_us;
            fullest = fullest.max(admitted.iter().filter(within).map(|(_, cost)| cost).sum());
        }
        assert!(
            fullest <= rule.units,
            "{fullest} at precision {precision_us}"
        );
        assert!(fullest > rule.units - 3);
    }
}

/// The script gives back the oldest units. Whichever request is meant, no window holds more than the
/// limit of those that are left.
#[test]
fn no_window_holds_more_than_the_limit_whichever_request_is_given_back() {
    let server = RedisServer::start();
    let mut script = Script::on(&server);
    for (seed, precision_us) in [(1, 1), (2, 10_000), (3, 250_000)] {
        let mut chance = Chance(seed);
        let rule = Rule {
            algorithm: Algorithm::Log,
            units: 20,
            window_us: 1_000_000,
            precision_us,
        };
        let limit = limit(&format!("oldest{seed}"), rule);
        let (mut now_us, mut admitted) = (START_US, Vec::<(u64, u64)>::new());
        let (mut refunded, mut denied) = (0, 0);
        for _ in 0..3_000 {
            now_us += chance.pick(&[0, 1, 50, 1_000, 20_000, 100_000, 400_000]);
            let live = admitted
                .iter_mut()
                .filter(|(at_us, units)| at_us + rule.window_us > now_us && *units > 0);
            let mut live: Vec<_> = live.collect();
            if !live.is_empty() && chance.below(3) == 0 {
                let which = chance.below(live.len() as u64) as usize;
                let units = 1 + chance.below(live[which].1);
                live[which].1 -= units;
                refunded += units;
                let charge: Charge = [item(&limit, 0, units)].into_iter().collect();
                let group = Group {
                    operation: Operation::RefundOldest,
                    ..Group::one(&charge)
                };
                script.run(&[group], now_us);
                continue;
            }
            let cost = 1 + chance.below(3);
            let charges = [[item(&limit, 0, cost)].into_iter().collect()];
            if script.decide(&charges, now_us)[0].allowed {
                admitted.push((now_us, cost));
            } else {
                denied += 1;
            }
        }
        let mut fullest = 0;
        for (at_us, _) in &admitted {
            let within = |(s, _): &&(u64, u64)| s <= at_us && s + rule.window_us > *at_us;
            fullest = fullest.max(admitted.iter().filter(within).map(|(_, cost)| cost).sum());
        }
        assert!(
            fullest <= rule.units,
            "{fullest} at precision {precision_us}"
        );
        assert!(refunded > 1_000 && denied > 200, "{refunded}, {denied}");
    }
}

#[test]
fn a_ring_of_thousands_grows_expires_and_shrinks() {
    let server = RedisServer::start();
    let mut script = Script::on(&server);
    for (name, window_us) in [("narrow", 60_000_000), ("wide", 86_400_000_000)] {
        let rule = Rule {
            algorithm: Algorithm::Log,
            units: 5_000,
            window_us,
            precision_us: 1,
        };
        let limit = limit(name, rule);
        let mut models = Models::default();
        let mut now_us = START_US;
        let mut decide = |now_us: u64, cost: u64| {
            let charge: Charge = [item(&limit, 0, cost)].into_iter().collect();
            let decision = script
                .decide(std::slice::from_ref(&charge), now_us)
                .remove(0);
            assert_eq!(models.by_twin(&charge, now_us).unwrap(), decision);
            decision
        };
        for round in 0..2 {
            for _ in 0..3_000 {
                now_us += 1 + window_us / 10_000;
                decide(now_us, 1);
            }
            // Half expires at once; a large cost waits for an entry far inside the ring.
            now_us += window_us * 17 / 20;
            let half = decide(now_us, 0).verdicts[0].used;
            assert!((1..3_000).contains(&half), "{half}");
            let denied = decide(now_us, 5_000 - half / 2);
            assert!(matches!(denied.verdicts[0].retry, Retry::After(_)));
            now_us += window_us;
            let fresh = decide(now_us, 1).verdicts[0];
            assert_eq!(
                (fresh.used, fresh.reset_us),
                (0, window_us),
                "round {round}"
            );
        }
    }
}

/// Entries far inside a ring become its first ones, and the ring wraps.
#[test]
fn the_oldest_of_thousands_are_given_back_at_once() {
    let server = RedisServer::start();
    let mut script = Script::on(&server);
    for (name, window_us) in [("narrow", 60_000_000), ("wide", 86_400_000_000)] {
        let rule = Rule {
            algorithm: Algorithm::Log,
            units: 20_000,
            window_us,
            precision_us: 1,
        };
        let limit = limit(name, rule);
        let (mut chance, mut models) = (Chance(window_us), Models::default());
        let mut now_us = START_US;
        let charge = |cost: u64| -> Charge { [item(&limit, 0, cost)].into_iter().collect() };
        for round in 0..6 {
            // The ring wraps: a third of it has expired or was given back by the time it is full.
            for _ in 0..1_500 {
                now_us += 1 + window_us / 4_000;
                let asked = charge(1 + chance.below(3));
                let by_script = script.decide(std::slice::from_ref(&asked), now_us);
                assert_eq!(
                    by_script[0],
                    models.by_twin(&asked, now_us).unwrap(),
                    "round {round}"
                );
            }
            for cost in [0, 1, 2, 700 + chance.below(500), 1, 3] {
                let back = charge(cost);
                let group = Group {
                    operation: Operation::RefundOldest,
                    ..Group::one(&back)
                };
                script.run(&[group], now_us);
                models.adjust((Operation::RefundOldest, &back), &[0], now_us);
                // Costs 0, near the limit and above what is free: all fields are compared.
                for cost in [0, 19_000, 20_000] {
                    let asked = charge(cost);
                    let by_script = script.decide(std::slice::from_ref(&asked), now_us);
                    let what = format!("round {round}, cost {cost}");
                    let by_twin = models.by_twin(&asked, now_us).unwrap();
                    assert_eq!(by_script[0], by_twin, "{what}");
                }
            }
        }
        let all = charge(1 << 40);
        let group = Group {
            operation: Operation::RefundOldest,
            ..Group::one(&all)
        };
        script.run(&[group, group], now_us);
        let emptied = script.decide(&[charge(20_000)], now_us).remove(0);
        let verdict = emptied.verdicts[0];
        assert!(emptied.allowed);
        assert_eq!((verdict.used, verdict.reset_us), (0, window_us));
    }
}

#[test]
fn leased_units_count_from_the_leases_end() {
    let server = RedisServer::start();
    let mut script = Script::on(&server);
    for (seed, precision_us) in [(1, 1), (2, 1_000), (3, 100_000)] {
        let mut chance = Chance(seed);
        let rule = Rule {
            algorithm: Algorithm::Log,
            units: 40,
            window_us: 1_000_000,
            precision_us,
        };
        let limit = limit(&format!("leased{seed}"), rule);
        let mut models = Models::default();
        let mut now_us = START_US;
        for step in 0..2_000 {
            now_us += chance.pick(&[0, 1, 50, 1_000, 20_000, 100_000]);
            let charge: Charge = [item(&limit, 0, 1)].into_iter().collect();
            let (count, ahead_us) = chance.pick(&[(1, 0), (1, 0), (5, 10_000), (9, 50_000)]);
            let group = Group {
                operation: Operation::Charge(count),
                charge: &charge,
                extra: &[ahead_us],
            };
            for by_script in &script.run(&[group], now_us)[0] {
                let by_model = models.by_model(&charge, now_us, ahead_us).unwrap();
                let what = format!("seed {seed}, step {step}");
                assert_same(by_script, &by_model, count, &what);
            }
        }
    }
}
