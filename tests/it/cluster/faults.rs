//! Under load: a slot that moves, a master that dies, one that freezes, a cluster that is down.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use tidegate::config::StoreSettings;
use tidegate::limit::{Charge, Limit, LimitCheck};
use tidegate::store::{Backing, ServerTrouble, StoreError};

use super::nodes::{self, RedisCluster, eventually, info};
use super::{MINUTE, SECOND, ask, open, slot_of, spread, use_up_on};
use crate::house::PATIENCE;
use crate::pace::Pace;
use crate::support::{item, limit, log_rule, on_a_worker};

/// The most rounds that a slot is moved in, until all has happened that can happen.
const MOST_ROUNDS: usize = 20;

/// Asks all the time whether each of `charges` passes, until told to stop; the answers with when
/// they were asked for and how long they took.
fn load(settings: &StoreSettings, charges: &[Charge], stop: &AtomicBool) -> Vec<Sample> {
    on_a_worker(async {
        let store = Backing::new(settings, None).unwrap().open();
        store.ready().await;
        let clients = charges.chunks(charges.len().div_ceil(8)).enumerate();
        let clients = clients.map(async |(chunk, charges)| {
            let (mut samples, first) = (Vec::new(), chunk * charges.len());
            while !stop.load(Ordering::Relaxed) {
                for (index, charge) in charges.iter().enumerate() {
                    let asked = Instant::now();
                    let answer = ask(&store, charge).await;
                    samples.push(Sample {
                        which: first + index,
                        asked,
                        took: asked.elapsed(),
                        answer: answer.map(|decision| decision.allowed),
                    });
                    tokio::time::sleep(Duration::from_millis(2)).await;
                }
            }
            samples
        });
        futures_util::future::join_all(clients).await.concat()
    })
}

#[derive(Clone, Debug)]
struct Sample {
    which: usize,
    asked: Instant,
    took: Duration,
    answer: Result<bool, StoreError>,
}

#[test]
fn a_slot_that_moves_under_load_is_neither_wrong_nor_late() {
    let cluster = RedisCluster::start(false, &[]);
    // Two rates of one limit, for many clients, all in one slot.
    let rules = [log_rule(20, MINUTE), log_rule(20, 2 * MINUTE)];
    let moving = Arc::new(Limit {
        slot: Some("on-the-move".into()),
        ..Limit::new("moving", &rules, limit("any", rules[0]).key.clone())
    });
    let both = |who: u64| -> Charge {
        let one = item(&moving, who, 1);
        let windows = moving.windows.iter();
        windows
            .map(|window| LimitCheck {
                window: Arc::clone(window),
                ..one.clone()
            })
            .collect()
    };
    let charges: Vec<Charge> = (0..48).map(both).collect();
    let slot = slot_of(&charges[0][0]);
    let stop = AtomicBool::new(false);
    // None fails, so that what is late is the machine.
    let settings = cluster.settings(10 * SECOND);
    let provoked = || ["MOVED", "ASK", "TRYAGAIN"].map(|kind| cluster.errors(kind));
    let samples: Vec<Sample> = std::thread::scope(|scope| {
        let loads: Vec<_> = (0..2)
            .map(|_| scope.spawn(|| load(&settings, &charges, &stop)))
            .collect();
        std::thread::sleep(Duration::from_millis(200));
        for round in 0..MOST_ROUNDS {
            move_slot(&cluster, slot, (cluster.master_of(slot) + round) % 3);
            if round > 0 && provoked().iter().all(|count| *count > 0) {
                break;
            }
        }
        std::thread::sleep(Duration::from_millis(300));
        stop.store(true, Ordering::Relaxed);
        loads
            .into_iter()
            .flat_map(|load| load.join().unwrap())
            .collect()
    });
    let errors: Vec<_> = samples
        .iter()
        .filter(|sample| sample.answer.is_err())
        .collect();
    assert!(
        errors.is_empty(),
        "{} of {}: {:?}",
        errors.len(),
        samples.len(),
        errors[0]
    );
    for who in 0..charges.len() {
        let passed = samples
            .iter()
            .filter(|one| one.which == who && one.answer == Ok(true));
        assert_eq!(passed.count(), 20, "{who}");
    }
    let longest = samples.iter().map(|sample| sample.took).max().unwrap();
    let provoked = provoked();
    println!(
        "{} requests, longest {longest:?}; MOVED, ASK, TRYAGAIN: {provoked:?}",
        samples.len()
    );
    assert!(provoked.iter().all(|count| *count > 0), "{provoked:?}");
}

/// Moves a slot from a master to the next one, key by key.
pub fn move_slot(cluster: &RedisCluster, slot: usize, from: usize) {
    let to = (from + 1) % 3;
    let (source, target) = (&cluster.nodes[from], &cluster.nodes[to]);
    target.run(&format!(
        "CLUSTER SETSLOT {slot} IMPORTING {}",
        cluster.id(from)
    ));
    source.run(&format!(
        "CLUSTER SETSLOT {slot} MIGRATING {}",
        cluster.id(to)
    ));
    std::thread::sleep(Duration::from_millis(50));
    loop {
        let keys = nodes::words(&source.run(&format!("CLUSTER GETKEYSINSLOT {slot} 1")));
        let Some(key) = keys.first() else { break };
        source.run(&format!("MIGRATE 127.0.0.1 {} {key} 0 1000", target.port()));
        std::thread::sleep(Duration::from_millis(3));
    }
    for node in [target, source, &cluster.nodes[(from + 2) % 3]] {
        node.run(&format!("CLUSTER SETSLOT {slot} NODE {}", cluster.id(to)));
    }
}

/// How long after `since` one was decided again of those that `holds` picks, once some were not.
fn decided_again(samples: &[Sample], since: Instant, holds: impl Fn(&Sample) -> bool) -> Duration {
    let after = |one: &&Sample| one.asked >= since && holds(one);
    let failed = samples.iter().filter(after).find(|one| one.answer.is_err());
    let failed = failed.map_or(since, |one| one.asked);
    let decided = |one: &&Sample| after(one) && one.asked >= failed && one.answer.is_ok();
    let first = samples.iter().filter(decided).map(|one| one.asked).min();
    first.expect("decided again") - since
}

#[test]
fn a_master_that_dies_is_replaced_and_the_others_go_on() {
    let mut cluster = RedisCluster::start(true, &["--cluster-require-full-coverage", "no"]);
    let (charges, masters) = spread(&cluster, "spread", (1_000_000, 48));
    let timeout = Duration::from_millis(50);
    let (scarce, _) = spread(&cluster, "scarce", (3, 24));
    use_up(&cluster, &scarce);
    let (settings, stop) = (cluster.settings(timeout), AtomicBool::new(false));
    let pace = Pace::begin();
    let (samples, died) = std::thread::scope(|scope| {
        let loading = scope.spawn(|| load(&settings, &charges, &stop));
        std::thread::sleep(Duration::from_millis(700));
        let died = Instant::now();
        cluster.nodes[1].kill();
        eventually("a replica takes over", || {
            nodes::words(&cluster.nodes[4].run("ROLE"))[0] == "master"
        });
        println!("the cluster took {:?} to replace it", died.elapsed());
        std::thread::sleep(SECOND);
        stop.store(true, Ordering::Relaxed);
        (loading.join().unwrap(), died)
    });
    let on = |sample: &Sample| masters[sample.which];
    let longest = samples.iter().map(|sample| sample.took).max().unwrap();
    let recovered = decided_again(&samples, died, |one| on(one) == 1);
    let elsewhere: Vec<_> = samples.iter().filter(|one| on(one) != 1).collect();
    let failed = elsewhere.iter().filter(|one| one.answer.is_err()).count();
    println!(
        "longest {longest:?}; decisions again after {recovered:?}; elsewhere {failed} of {} failed",
        elsewhere.len()
    );
    // A loaded machine misses a deadline of 50 ms now and then.
    assert!(longest < timeout + pace.grants(), "{longest:?}");
    assert!(
        failed * 4 <= elsewhere.len() || !pace.is_steady(SECOND),
        "{failed} of {}",
        elsewhere.len()
    );
    let last = samples.iter().filter(|one| one.asked > died + recovered);
    assert!(
        last.filter(|one| on(one) == 1).count() > 10,
        "it is asked again"
    );
    // What had been counted was replicated: nobody has a second helping.
    on_a_worker(async {
        let store = open(&cluster, SECOND).await;
        for charge in &scarce {
            assert!(!ask(&store, charge).await.unwrap().allowed);
        }
    });
}

/// Asks until nothing is left of any, and waits until replicas know.
fn use_up(cluster: &RedisCluster, charges: &[Charge]) {
    use_up_on(cluster, charges);
    for master in &cluster.nodes[..3] {
        let offset = || nodes::words(&master.run("INFO replication")).join("");
        let of = |text: &str, name: &str| {
            let (_, rest) = text.split_once(name).unwrap();
            rest.split(['\r', '\n', ',']).next().unwrap().to_owned()
        };
        eventually("replicated", || {
            let text = offset();
            of(&text, ",offset=") == of(&text, "master_repl_offset:")
        });
    }
}

#[test]
fn a_frozen_master_costs_others_nothing_and_its_own_a_few_deadlines() {
    // Nobody declares it dead: to the cluster it is merely slow.
    let cluster = RedisCluster::start(false, &["--cluster-node-timeout", "60000"]);
    let (charges, masters) = spread(&cluster, "spread", (1_000_000, 48));
    let timeout = Duration::from_millis(50);
    let (settings, stop) = (cluster.settings(timeout), AtomicBool::new(false));
    let pace = Pace::begin();
    let (samples, froze, thawed) = std::thread::scope(|scope| {
        let loading = scope.spawn(|| load(&settings, &charges, &stop));
        std::thread::sleep(Duration::from_millis(300));
        let froze = Instant::now();
        cluster.nodes[2].freeze();
        std::thread::sleep(SECOND);
        cluster.nodes[2].thaw();
        let thawed = Instant::now();
        std::thread::sleep(2 * SECOND);
        stop.store(true, Ordering::Relaxed);
        (loading.join().unwrap(), froze, thawed)
    });
    let frozen = |one: &&Sample| one.asked > froze && one.asked < thawed - timeout;
    let own = samples
        .iter()
        .filter(frozen)
        .filter(|one| masters[one.which] == 2);
    let (waited, sent_away): (Vec<_>, Vec<_>) =
        own.partition(|one| one.answer == Err(StoreError::Timeout));
    let elsewhere: Vec<_> = samples
        .iter()
        .filter(|one| masters[one.which] != 2)
        .collect();
    let failed = elsewhere.iter().filter(|one| one.answer.is_err()).count();
    let recovered = decided_again(&samples, thawed, |one| masters[one.which] == 2);
    println!(
        "{} waited in vain, {} were sent away; elsewhere {failed} of {} failed; \
         decisions again {recovered:?} after it thawed",
        waited.len(),
        sent_away.len(),
        elsewhere.len()
    );
    assert!(sent_away.len() > waited.len());
    assert!(
        failed * 4 <= elsewhere.len() || !pace.is_steady(SECOND),
        "{failed} of {}",
        elsewhere.len()
    );
    assert!(recovered < SECOND + pace.grants(), "{recovered:?}");
}

#[test]
fn a_cluster_that_is_down_says_so_at_once_and_is_used_again_when_it_is_up() {
    let mut cluster = RedisCluster::start(false, &[]);
    let (charges, masters) = spread(&cluster, "spread", (1_000_000, 48));
    on_a_worker(async {
        let store = open(&cluster, Duration::from_millis(250)).await;
        let healthy = masters.iter().position(|master| *master == 0).unwrap();
        assert!(ask(&store, &charges[healthy]).await.unwrap().allowed);
        cluster.nodes[2].kill();
        let left = &cluster.nodes[..2];
        eventually("down", || {
            left.iter()
                .all(|node| info(node, "cluster_state") == "fail")
        });
        let pace = Pace::begin();
        for _ in 0..5 {
            for charge in &charges {
                let asked = Instant::now();
                let refused = ask(&store, charge).await.unwrap_err();
                assert!(asked.elapsed() < Duration::from_millis(250) + pace.grants());
                let known = [
                    StoreError::Server(ServerTrouble::Cluster),
                    StoreError::Away,
                    StoreError::Lost,
                ];
                assert!(known.contains(&refused), "{refused:?}");
            }
        }
        cluster.nodes[2].restart();
        cluster.until("up", |node| info(node, "cluster_state") == "ok");
        let up = Instant::now();
        let mut back = Duration::ZERO;
        while up.elapsed() < SECOND || back > up.elapsed() - SECOND / 2 {
            assert!(up.elapsed() < PATIENCE, "not used again");
            for charge in &charges {
                if ask(&store, charge).await.is_err() {
                    back = up.elapsed();
                }
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        println!("decisions again {back:?} after the cluster was up");
    });
}
