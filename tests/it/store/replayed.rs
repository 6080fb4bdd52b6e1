//! The decision log, field by field: tens of thousands of decisions over several limits, made at
//! once by many tasks of two proxies, replayed through a model that knows only the log's lines.
//!
//! The model is the definition: a unit admitted at `s` counts at `t` where `t - W < s <= t`.
//! Refunds are not logged, so refunded keys belong to one task each, which tells when it gave back.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;
use std::sync::Mutex;
use std::time::Duration;

use tidegate::clock::now;
use tidegate::config::StoreSettings;
use tidegate::limit::{Charge, Decision, KeyHash, Limit};
use tidegate::store::{Backing, Store};
use tidegate::telemetry::decisions::DecisionLog;

use super::patient;
use crate::audit::{Line, decisions};
use crate::support::{Chance, RedisServer, item, limit, log_rule, memory_settings, on_a_worker};

/// Tasks of each proxy.
const TASKS: u64 = 12;

/// What is refunded: after so many decisions on a key, the units of the last one.
type Refunds = HashMap<(String, String), BTreeMap<usize, u64>>;

struct Limits {
    narrow: Arc<Limit>,
    wide: Arc<Limit>,
    slow: Arc<Limit>,
    /// Busy, and leased where that is allowed.
    leased: Arc<Limit>,
    refunded: Arc<Limit>,
}

impl Limits {
    fn new() -> Limits {
        let of = |name: &str, units, ms| limit(name, log_rule(units, Duration::from_millis(ms)));
        let with = |made: Arc<Limit>, change: fn(&mut Limit)| {
            let mut made = Arc::unwrap_or_clone(made);
            change(&mut made);
            Arc::new(made)
        };
        Limits {
            narrow: of("narrow", 12, 90),
            wide: of("wide", 40, 700),
            slow: of("slow", 25, 300),
            leased: with(of("leased", 200, 200), |limit| limit.lease_us = 10_000),
            refunded: with(of("refunded", 6, 500), |limit| limit.refunds = true),
        }
    }

    fn rules(&self) -> BTreeMap<&str, (i64, i64)> {
        let all = [
            &self.narrow,
            &self.wide,
            &self.slow,
            &self.leased,
            &self.refunded,
        ];
        let rule = |limit: &Arc<Limit>| {
            let rule = limit.windows[0].rule;
            (rule.units as i64, rule.window_us as i64)
        };
        all.into_iter().map(|one| (&*one.name, rule(one))).collect()
    }

    fn random(&self, chance: &mut Chance, task: u64) -> Charge {
        let (a, b) = (chance.below(3), 10 + chance.below(2));
        let cost = chance.pick(&[1, 1, 1, 1, 2, 3]);
        match chance.below(6) {
            0 => [item(&self.leased, 1, 1)].into_iter().collect(),
            1 => [item(&self.narrow, a, cost)].into_iter().collect(),
            2 => [item(&self.narrow, a, cost), item(&self.slow, b, cost)]
                .into_iter()
                .collect(),
            3 => [
                item(&self.refunded, 100 + task, cost),
                item(&self.wide, a, cost),
            ]
            .into_iter()
            .collect(),
            _ => [
                item(&self.narrow, a, cost),
                item(&self.wide, a, cost),
                item(&self.slow, b, cost),
            ]
            .into_iter()
            .collect(),
        }
    }
}

async fn decide(store: &Store, charge: &Charge) -> Decision {
    let generation = store.hash_key().generation;
    let asked = store.charge(charge, generation, now());
    asked.await.expect("a decision")
}

/// One task's requests, one after the other.
async fn ask(store: &Store, limits: &Limits, task: u64, requests: usize, refunds: &Mutex<Refunds>) {
    let mut chance = Chance(task + 1);
    let (mut asked, mut refunded) = (0, BTreeMap::new());
    let hot: Charge = [item(&limits.leased, 1, 1)].into_iter().collect();
    for _ in 0..requests {
        if chance.below(4) == 0 {
            decide(store, &hot).await;
            continue;
        }
        let charge = limits.random(&mut chance, task);
        let decision = decide(store, &charge).await;
        if &*charge[0].limit.name == "refunded" {
            asked += 1;
            if decision.allowed && chance.below(2) == 0 {
                let own: Charge = charge.iter().take(1).cloned().collect();
                let of = Decision {
                    verdicts: decision.verdicts.iter().take(1).copied().collect(),
                    ..decision.clone()
                };
                refunded.insert(asked, own[0].cost);
                store.refund(&own, &of, store.hash_key().generation);
            }
        }
        if chance.below(3) == 0 {
            let pause = Duration::from_micros(chance.below(3_000));
            tokio::time::sleep(pause).await;
        }
    }
    let tag: KeyHash = item(&limits.refunded, 100 + task, 1).tag;
    let key = ("refunded".to_owned(), tag.to_string());
    refunds.lock().unwrap().insert(key, refunded);
}

/// One key as the model knows it.
#[derive(Default)]
struct Admitted {
    live: VecDeque<(i64, i64)>,
    decided: usize,
}

impl Admitted {
    fn used(&self) -> i64 {
        self.live.iter().map(|(_, cost)| cost).sum()
    }

    /// The smallest wait until `room` units or fewer count.
    fn wait(&self, room: i64, t: i64, window: i64) -> i64 {
        let (mut left, mut wait) = (self.used(), 0);
        for (at, cost) in &self.live {
            if left <= room {
                break;
            }
            (left, wait) = (left - cost, at + window - t);
        }
        wait
    }
}

/// Puts two lines of one microsecond in the order in which a fast server decided them: the first one
/// saw fewer units of a key that both have.
fn order_ties(lines: &mut [Line]) {
    for at in 1..lines.len() {
        let (one, next) = (&lines[at - 1], &lines[at]);
        let shared = next.items.iter().find(|(limit, key, _)| {
            let mut items = one.items.iter();
            items.any(|(other, name, _)| (other, name) == (limit, key))
        });
        let is_late = |limit: &String| next.limits[limit][0] < one.limits[limit][0];
        if one.t == next.t && shared.is_some_and(|(limit, ..)| is_late(limit)) {
            lines.swap(at - 1, at);
        }
    }
}

/// Replays the lines; panics at the first field that differs.
fn replay(lines: &[Line], rules: &BTreeMap<&str, (i64, i64)>, refunds: &Refunds) {
    let mut keys: HashMap<(String, String), Admitted> = HashMap::new();
    for (number, line) in lines.iter().enumerate() {
        let mut allowed = true;
        for (limit, key, cost) in &line.items {
            let (units, window) = rules[limit.as_str()];
            let key = keys.entry((limit.clone(), key.clone())).or_default();
            key.live.retain(|(at, _)| at + window > line.t);
            allowed &= key.used() + cost <= units;
        }
        assert_eq!(line.allowed, allowed, "line {number}: {line:#?}");
        for (limit, name, cost) in &line.items {
            let (units, window) = rules[limit.as_str()];
            let id = (limit.clone(), name.clone());
            let key = keys.get_mut(&id).unwrap();
            let used = key.used();
            let retry = key.wait(units - cost, line.t, window);
            if allowed {
                key.live.push_back((line.t, *cost));
            }
            let told = line.limits[limit];
            let left = units - key.used();
            let reset = key.wait(0, line.t, window);
            let expected = [used, left, retry, reset];
            assert_eq!(told, expected, "line {number}, {limit}: {line:#?}");
            key.decided += 1;
            let back = refunds.get(&id).and_then(|back| back.get(&key.decided));
            if let Some(units) = back {
                assert_eq!(key.live.pop_back(), Some((line.t, *units as i64)));
            }
        }
    }
}

/// Two proxies of these settings decide `requests` for each of their tasks.
fn audit(settings: &[StoreSettings], requests: usize) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("decisions.jsonl");
    let log = Arc::new(DecisionLog::open(&path).unwrap());
    let (limits, refunds) = (Limits::new(), Mutex::new(Refunds::new()));
    let backings: Vec<Backing> = settings
        .iter()
        .map(|settings| Backing::new(settings, Some(Arc::clone(&log))).unwrap())
        .collect();
    std::thread::scope(|scope| {
        for worker in 0..2_u64 {
            let backing = &backings[worker as usize % backings.len()];
            let (limits, refunds) = (&limits, &refunds);
            scope.spawn(move || {
                on_a_worker(async {
                    let store = backing.open();
                    store.ready().await;
                    let tasks = (0..TASKS)
                        .map(|task| ask(&store, limits, worker * TASKS + task, requests, refunds));
                    futures_util::future::join_all(tasks).await;
                });
            });
        }
    });
    drop(backings);
    let dropped = log.dropped();
    drop(Arc::into_inner(log).expect("nobody else writes it"));
    assert_eq!(dropped, 0);
    let mut lines = decisions([path.as_path()]);
    order_ties(&mut lines);
    assert_eq!(lines.len(), 2 * TASKS as usize * requests);
    let denied = lines.iter().filter(|line| !line.allowed);
    let by_many = denied.filter(|line| {
        let waits = line.limits.values().filter(|fields| fields[2] > 0);
        waits.count() > 1
    });
    assert!(by_many.count() > requests, "several limits deny at once");
    replay(&lines, &limits.rules(), &refunds.into_inner().unwrap());
}

#[test]
fn every_field_that_the_embedded_store_logs_is_the_models() {
    audit(&[memory_settings()], 1_250);
}

#[test]
fn every_field_that_two_proxies_of_one_redis_log_is_the_models() {
    let server = RedisServer::start();
    let settings = || patient(server.settings());
    audit(&[settings(), settings()], 1_000);
}
