//! Random traces through three that must agree on every field: the script on a real server with
//! the time given to it, its twin in Rust, and a model that knows nothing of either.

use std::collections::HashMap;
use std::sync::Arc;

use tidegate::limit::decide::Count;
use tidegate::limit::{Algorithm, Charge, Decision, Item, Limit, Retry, Rule, Verdict};
use tidegate::store::batch::{Call, Reply, SCRIPT, encode};

use crate::support::{Chance, RedisServer, item, limit};

const START_US: u64 = 1_700_000_000_000_000;

/// The definitions, executed: every admission is kept, and time is searched.
#[derive(Clone, Debug, Default)]
struct Model {
    admitted: Vec<(u64, u64)>,
    shift_us: u64,
    last_us: u64,
    start_us: Option<u64>,
    previous: u64,
    current: u64,
}

impl Model {
    /// Moves to `now`; whether the clock had stepped back. Own time comes with it.
    fn age(&mut self, rule: &Rule, now_us: u64) -> (bool, u64) {
        match rule.algorithm {
            Algorithm::Log => {
                let own_us = now_us + self.shift_us;
                if own_us >= self.last_us {
                    return (false, own_us);
                }
                self.shift_us = self.last_us - now_us;
                (true, self.last_us)
            }
            Algorithm::Counter => {
                let start_us = now_us / rule.window_us * rule.window_us;
                let mut stepped = false;
                match self.start_us {
                    Some(old) if start_us < old => {
                        (self.previous, self.current) = (0, self.previous + self.current);
                        stepped = true;
                    }
                    Some(old) if start_us == old + rule.window_us => {
                        (self.previous, self.current) = (self.current, 0);
                    }
                    Some(old) if start_us == old => {}
                    _ => (self.previous, self.current) = (0, 0),
                }
                // Numbers that Lua holds exactly: all of them, but after a merge of two full counts.
                let most = ((1 << 53) - 1) / rule.window_us;
                (self.previous, self.current) = (self.previous.min(most), self.current.min(most));
                self.start_us = Some(start_us);
                (stepped, now_us)
            }
        }
    }

    fn used(&self, rule: &Rule, own_us: u64) -> u64 {
        if rule.algorithm == Algorithm::Log {
            let floor_us = own_us / rule.precision_us * rule.precision_us;
            let live = |(stamp_us, _): &&(u64, u64)| stamp_us + rule.window_us > floor_us;
            return self
                .admitted
                .iter()
                .filter(live)
                .map(|(_, cost)| cost)
                .sum();
        }
        let start_us = self.start_us.unwrap_or_default();
        let windows = (own_us - start_us) / rule.window_us;
        let (previous, current) = match windows {
            0 => (self.previous, self.current),
            1 => (self.current, 0),
            _ => (0, 0),
        };
        let left_us = u128::from(rule.window_us - own_us % rule.window_us);
        let share = (u128::from(previous) * left_us).div_ceil(u128::from(rule.window_us));
        current + u64::try_from(share).unwrap()
    }

    /// The smallest wait after which no more than `room` units count, by bisection.
    fn wait(&self, rule: &Rule, own_us: u64, room: u64) -> u64 {
        let (mut low, mut high) = (0, 2 * rule.window_us + rule.precision_us);
        if self.used(rule, own_us) <= room {
            return 0;
        }
        assert!(self.used(rule, own_us + high) <= room);
        while high - low > 1 {
            let middle = low + (high - low) / 2;
            if self.used(rule, own_us + middle) <= room {
                high = middle;
            } else {
                low = middle;
            }
        }
        high
    }

    fn admit(&mut self, rule: &Rule, own_us: u64, cost: u64) {
        match rule.algorithm {
            Algorithm::Log => {
                let stamp_us = own_us.div_ceil(rule.precision_us) * rule.precision_us;
                self.admitted.push((stamp_us, cost));
                self.last_us = own_us;
                // What is older than two windows counts nowhere.
                self.admitted
                    .retain(|(stamp, _)| stamp + 2 * rule.window_us > own_us);
            }
            Algorithm::Counter => self.current += cost,
        }
    }
}

#[derive(Default)]
struct Models(HashMap<(String, [u8; 16]), (Model, Option<Count>)>);

fn key(item: &Item) -> (String, [u8; 16]) {
    (item.limit.store_suffix.clone(), item.tag.0)
}

impl Models {
    fn by_model(&mut self, charge: &Charge, now_us: u64) -> Decision {
        let mut aged = Vec::new();
        for item in charge {
            let rule = &item.limit.rule;
            let mut model = self.0.entry(key(item)).or_default().0.clone();
            let (stepped, own_us) = model.age(rule, now_us);
            let used = model.used(rule, own_us);
            let retry = if item.cost > rule.units {
                Retry::Never
            } else if used + item.cost <= rule.units {
                Retry::Now
            } else {
                Retry::After(model.wait(rule, own_us, rule.units - item.cost))
            };
            aged.push((model, stepped, own_us, used, retry));
        }
        let allowed = aged.iter().all(|(.., retry)| *retry == Retry::Now);
        let mut verdicts = smallvec::SmallVec::new();
        for (item, (mut model, stepped, own_us, used, retry)) in charge.iter().zip(aged) {
            let rule = &item.limit.rule;
            if allowed && item.cost > 0 {
                model.admit(rule, own_us, item.cost);
            }
            let after = model.used(rule, own_us);
            verdicts.push(Verdict {
                used,
                remaining: rule.units.saturating_sub(after),
                retry,
                reset_us: model.wait(rule, own_us, 0),
                next_us: if after == 0 {
                    0
                } else {
                    model.wait(rule, own_us, after - 1)
                },
            });
            if item.cost > 0 && (allowed || stepped) {
                self.0.entry(key(item)).or_default().0 = model;
            }
        }
        Decision {
            allowed,
            at_us: now_us,
            verdicts,
        }
    }

    fn by_twin(&mut self, charge: &Charge, now_us: u64) -> Decision {
        let mut looks = Vec::new();
        for item in charge {
            let count = &mut self.0.entry(key(item)).or_default().1;
            let count = count.get_or_insert_with(|| Count::new(item.limit.rule.algorithm));
            looks.push(count.look(&item.limit.rule, item.cost, now_us));
        }
        let allowed = looks.iter().all(|look| look.retry == Retry::Now);
        let settle = |(item, look): (&Item, &_)| {
            let count = self.0.get_mut(&key(item)).unwrap().1.as_mut().unwrap();
            count.settle(&item.limit.rule, item.cost, look, allowed)
        };
        let verdicts = charge.iter().zip(&looks).map(settle).collect();
        Decision {
            allowed,
            at_us: now_us,
            verdicts,
        }
    }
}

/// The script on a real server.
struct Script {
    connection: redis::Connection,
    known: String,
}

impl Script {
    fn on(server: &RedisServer) -> Script {
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

    fn decide(&mut self, charges: &[Charge], now_us: u64) -> Vec<Decision> {
        let command = encode(Call::Known(&self.known), "t:", charges.iter(), Some(now_us));
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
        let decisions = charges
            .iter()
            .map(|charge| {
                reply
                    .decision(charge.len())
                    .expect("a decision")
                    .expect("not refused")
            })
            .collect();
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
    let precisions = [
        1,
        1,
        1,
        window_us / 10,
        window_us / 100,
        window_us / 1000,
        window_us,
    ];
    let fits = |precision: &&u64| **precision > 0 && window_us.is_multiple_of(**precision);
    let fitting: Vec<u64> = precisions.iter().filter(fits).copied().collect();
    let precision_us = chance.pick(&fitting);
    let units = chance.pick(&[1, 2, 3, 5, 10, 33, 100, 400, 4_000_000_000]);
    Rule {
        algorithm: Algorithm::Log,
        units,
        window_us,
        precision_us,
    }
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

/// The same limit with other units: its identity, and so its history, stays.
fn with_units(old: &Limit, units: u64) -> Arc<Limit> {
    limit(&old.name, Rule { units, ..old.rule })
}

fn random_charge(chance: &mut Chance, limits: &[Arc<Limit>]) -> Charge {
    let items = chance.pick(&[1, 1, 1, 2, 3]).min(limits.len() as u64);
    let from = chance.below(limits.len() as u64) as usize;
    (0..items as usize)
        .map(|i| {
            let limit = &limits[(from + i) % limits.len()];
            let who = chance.below(2);
            item(limit, who, random_cost(chance, &limit.rule))
        })
        .collect()
}

fn agree(seed: u64, script: &mut Script, steps: usize) -> usize {
    let mut chance = Chance(seed);
    let mut models = Models::default();
    let name = |i: usize| format!("seed{seed}-{i}");
    let mut limits: Vec<_> = (0..4)
        .map(|i| limit(&name(i), random_rule(&mut chance)))
        .collect();
    let pace_us = limits[chance.below(4) as usize].rule.window_us;
    let mut now_us = START_US + chance.below(1 << 40);
    let (mut decided, mut retried): (usize, Option<(Charge, u64)>) = (0, None);
    for _ in 0..steps {
        if chance.below(60) == 0 {
            let which = chance.below(4) as usize;
            let units = 1 + chance.below(2 * limits[which].rule.units.min(1000));
            if limits[which].rule.algorithm == Algorithm::Log {
                limits[which] = with_units(&limits[which], units);
            }
            retried = None;
        }
        let mut charges = Vec::new();
        let mut must_pass = false;
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
        let by_script = script.decide(&charges, now_us);
        for (charge, by_script) in charges.iter().zip(&by_script) {
            let by_model = models.by_model(charge, now_us);
            let by_twin = models.by_twin(charge, now_us);
            assert_eq!(
                by_twin, by_model,
                "twin, seed {seed}, {decided}: {charge:?}"
            );
            assert_eq!(
                *by_script, by_model,
                "script, seed {seed}, {decided}: {charge:?}"
            );
            decided += 1;
        }
        let last = &by_script[by_script.len() - 1];
        assert!(
            last.allowed || !must_pass,
            "retry too short, seed {seed}, {decided}"
        );
        assert!(
            !last.allowed || retried.is_none(),
            "retry too long, seed {seed}, {decided}"
        );
        if charges.len() == 1 && !last.allowed && retried.is_none() && chance.below(3) == 0 {
            // A look keeps no ages after a step back, so its wait may begin anew.
            let charges_all = charges[0].iter().all(|item| item.cost > 0);
            retried = longest_retry(last)
                .filter(|_| charges_all)
                .map(|us| (charges[0].clone(), now_us + us));
        }
    }
    decided
}

fn longest_retry(decision: &Decision) -> Option<u64> {
    let wait = |verdict: &Verdict| match verdict.retry {
        Retry::Now => Some(0),
        Retry::After(us) => Some(us),
        Retry::Never => None,
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
    let decided: usize = (0..60).map(|seed| agree(seed, &mut script, 250)).sum();
    assert!(decided > 20_000, "{decided}");
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
            assert_eq!(models.by_twin(&charge, now_us), decision);
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
