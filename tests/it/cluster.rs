//! A Redis Cluster as the store: real nodes, real migrations, masters that die.

mod calendar;
pub mod faults;
pub mod nodes;
mod secure;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tidegate::clock::now;
use tidegate::config::StoreKind;
use tidegate::limit::{Algorithm, Charge, Decision, LimitCheck, Retry, Rule};
use tidegate::store::overrides::{ChangeKind, ChangeOutcome, OverrideChange, RecordTerms, Subject};
use tidegate::store::redis::OverrideClient;
use tidegate::store::{Backing, Store, StoreError};

use crate::admin::Looked;
use crate::house::Upstream;
use crate::support::{Chance, item, limit, log_rule, on_a_worker, one};
use nodes::RedisCluster;

const SECOND: Duration = Duration::from_secs(1);
const MINUTE: Duration = Duration::from_secs(60);

async fn open(cluster: &RedisCluster, timeout: Duration) -> Store {
    let store = Backing::new(&cluster.settings(timeout), None)
        .unwrap()
        .open();
    store.ready().await;
    store
}

async fn ask(store: &Store, charge: &Charge) -> Result<Decision, StoreError> {
    let generation = store.hash_key().generation;
    store.charge(charge, generation, now()).await
}

/// CRC-16/XMODEM bit by bit, as the cluster's specification has it.
fn slot_of(item: &LimitCheck) -> usize {
    let tag = item
        .limit
        .slot
        .as_ref()
        .map_or(item.tag.to_string(), |slot| slot.to_string());
    let crc = tag.bytes().fold(0_u16, |crc, byte| {
        let crc = crc ^ (u16::from(byte) << 8);
        (0..8).fold(crc, |crc, _| {
            (crc << 1) ^ if crc & 0x8000 == 0 { 0 } else { 0x1021 }
        })
    });
    usize::from(crc % 16_384)
}

#[test]
fn the_last_handle_of_a_store_sends_what_it_has_left() {
    let cluster = RedisCluster::start(false, &[]);
    let rule = Rule {
        algorithm: Algorithm::Slots,
        window_us: 30_000_000,
        ..log_rule(1, MINUTE)
    };
    let (held, spent) = (limit("held", rule), limit("spent", log_rule(1, MINUTE)));
    let charges = [&held, &spent].map(|limit| one(limit, 1, 1));
    on_a_worker(async {
        for round in 0..5 {
            let store = open(&cluster, 10 * SECOND).await;
            let generation = store.hash_key().generation;
            for (charge, limit) in charges.iter().zip([&held, &spent]) {
                let begun = Instant::now();
                // A look, since a denial would be known for a while.
                while ask(&store, &one(limit, 1, 0)).await.unwrap().verdicts[0].used > 0 {
                    assert!(
                        begun.elapsed() < 5 * SECOND,
                        "round {round}: it was not sent"
                    );
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
                let decision = ask(&store, charge).await.unwrap();
                assert!(decision.allowed);
                store.refund(charge, &decision, generation);
            }
            store.release(&charges[0]);
        }
    });
}

#[test]
fn requests_of_one_slot_hold_their_limits_wherever_they_lie() {
    let cluster = RedisCluster::start(false, &[]);
    on_a_worker(async {
        let store = open(&cluster, 10 * SECOND).await;
        let limit = limit("ten", log_rule(10, MINUTE));
        for who in 0..50 {
            let charge = one(&limit, who, 1);
            let all = (0..15).map(|_| ask(&store, &charge));
            let decisions = futures_util::future::join_all(all).await;
            let allowed = decisions.iter().filter(|one| one.as_ref().unwrap().allowed);
            assert_eq!(allowed.count(), 10, "{who}");
        }
    });
}

/// What was admitted of each key: stamps, microseconds, and costs.
type Admitted = HashMap<(String, u64), Vec<(u64, u64)>>;

/// The most that any interval of a window's length holds.
fn fullest(entries: &mut [(u64, u64)], window_us: u64) -> u64 {
    entries.sort_unstable();
    let (mut from, mut held, mut most) = (0, 0, 0);
    for at in 0..entries.len() {
        held += entries[at].1;
        while entries[from].0 + window_us <= entries[at].0 {
            held -= entries[from].1;
            from += 1;
        }
        most = most.max(held);
    }
    most
}

#[test]
fn limits_in_different_slots_are_never_overfull() {
    const WINDOW: Duration = Duration::from_millis(300);
    let cluster = RedisCluster::start(false, &[]);
    let limits = [
        limit("everyone", log_rule(60, WINDOW)),
        limit("team", log_rule(30, WINDOW)),
        limit("each", log_rule(9, WINDOW)),
    ];
    let proxy = |seed: u64| {
        let (cluster, limits) = (&cluster, &limits);
        on_a_worker(async move {
            let stores = [
                open(cluster, 10 * SECOND).await,
                open(cluster, 10 * SECOND).await,
            ];
            let until = Instant::now() + Duration::from_millis(1500);
            let client = async |number: u64| {
                let (mut chance, mut admitted) = (Chance(seed * 1000 + number), Vec::new());
                while Instant::now() < until {
                    let (who, cost) = (chance.below(12), 1 + chance.below(3));
                    let whose = [0, 100 + who % 3, 200 + who];
                    let keys: Vec<_> = limits
                        .iter()
                        .zip(whose)
                        .skip(chance.below(2) as usize)
                        .collect();
                    let charge: Charge = keys
                        .iter()
                        .map(|(limit, who)| item(limit, *who, cost))
                        .collect();
                    let decision = ask(&stores[number as usize % 2], &charge).await.unwrap();
                    if decision.allowed {
                        for ((limit, who), verdict) in keys.iter().zip(&decision.verdicts) {
                            admitted.push(((limit.name.to_string(), *who), (verdict.stamp, cost)));
                        }
                    }
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
                admitted
            };
            futures_util::future::join_all((0..24).map(client))
                .await
                .concat()
        })
    };
    let proxy = &proxy;
    let mut admitted = Admitted::new();
    std::thread::scope(|scope| {
        let proxies: Vec<_> = (1..=3)
            .map(|seed| scope.spawn(move || proxy(seed)))
            .collect();
        for (key, entry) in proxies.into_iter().flat_map(|proxy| proxy.join().unwrap()) {
            admitted.entry(key).or_default().push(entry);
        }
    });
    let units = |name: &str| {
        limits
            .iter()
            .find(|one| &*one.name == name)
            .unwrap()
            .windows[0]
            .rule
            .units
    };
    for ((name, who), entries) in &mut admitted {
        let most = fullest(entries, 300_000);
        assert!(most <= units(name), "{name} of {who}: {most}");
    }
    let everyone: u64 = admitted[&("everyone".to_owned(), 0)]
        .iter()
        .map(|(_, cost)| cost)
        .sum();
    // Five windows and the one that is being filled. Refusals hold back some of each: there are
    // more units under way here than the limit has.
    println!("admitted {everyone} of 300 to 360 units");
    assert!(everyone > 20, "{everyone}");
}

#[test]
fn the_oldest_units_are_given_back_in_every_slot() {
    let cluster = RedisCluster::start(false, &[]);
    on_a_worker(async {
        let store = open(&cluster, 10 * SECOND).await;
        let refunds = |name: &str, units| {
            let mut limit = Arc::unwrap_or_clone(limit(name, log_rule(units, MINUTE)));
            limit.refunds = true;
            Arc::new(limit)
        };
        let (all, each) = (refunds("all", 100), refunds("each", 10));
        let generation = store.hash_key().generation;
        for who in 1..40 {
            let of = |cost| -> Charge {
                let items = [item(&all, 1_000 + who, cost), item(&each, who, cost)];
                items.into_iter().collect()
            };
            for _ in 0..10 {
                assert!(ask(&store, &of(1)).await.unwrap().allowed);
            }
            assert!(!ask(&store, &of(1)).await.unwrap().allowed);
            store.refund_oldest(&of(4), generation);
            let look = ask(&store, &of(0)).await.unwrap();
            let used: Vec<u64> = look.verdicts.iter().map(|verdict| verdict.used).collect();
            // A refused request gives its unit of the other slot back after its answer.
            assert_eq!(used[1], 6, "{who}");
            assert!((6..=7).contains(&used[0]), "{who}: {used:?}");
            for _ in 0..4 {
                assert!(ask(&store, &of(1)).await.unwrap().allowed);
            }
            assert!(!ask(&store, &of(1)).await.unwrap().allowed);
        }
    });
}

#[test]
fn running_proxies_share_their_counts_and_say_once_that_a_master_is_gone() {
    let mut cluster = RedisCluster::start(true, &[]);
    let upstream = Upstream::ok();
    let proxy = || {
        Looked::start(&format!(
            "upstream = \"{}\"\n[store]\nurl = \"{}\"\ntimeout = \"5s\"\n[log]\naccess = \"off\"\n\
             [limit.all]\nrate = \"90/day\"\nkey = \"global\"\n\
             [limit.each]\nrate = \"20/day\"\nkey = \"header:x-key\"\n\
             [[route]]\npath = \"/both\"\nlimits = [\"all\", \"each\"]\n\
             [[route]]\npath = \"/*\"\nlimits = [\"each\"]\n",
            upstream.url(),
            cluster.url(),
        ))
    };
    let proxies = [proxy(), proxy()];
    let mut allowed = HashMap::new();
    for turn in 0..60 {
        for who in 0..6 {
            let path = if turn % 2 == 0 { "/both" } else { "/one" };
            let header = format!("X-Key: {who}\r\n");
            let answer = proxies[turn % 2].tidegate.get_with(path, &header);
            assert!(matches!(answer.status, 200 | 429), "{answer:?}");
            if answer.status == 429 {
                assert!(answer.header("retry-after").is_some(), "{answer:?}");
            }
            *allowed.entry((who, path)).or_insert(0) += u32::from(answer.status == 200);
        }
    }
    for who in 0..6 {
        assert_eq!(
            allowed[&(who, "/both")] + allowed[&(who, "/one")],
            20,
            "{allowed:?}"
        );
    }
    cluster.nodes[1].kill();
    for proxy in &proxies {
        proxy.wait_until(
            "it says that decisions are made without the store",
            |proxy| proxy.get("/metrics").text().contains("tidegate_degraded 1"),
        );
    }
    for proxy in &proxies {
        let began = proxy
            .tidegate
            .wait_for_line("limits kept there follow on_error");
        assert!(
            began.contains(&cluster.nodes[1].port().to_string()),
            "{began}"
        );
        proxy.tidegate.wait_for_line("back, or replaced");
    }
}

/// One client for each of `count` requests, and which master counts it.
fn spread(
    cluster: &RedisCluster,
    name: &str,
    (units, count): (u64, u64),
) -> (Vec<Charge>, Vec<usize>) {
    let limit = limit(name, log_rule(units, 10 * MINUTE));
    let charges: Vec<Charge> = (0..count).map(|who| one(&limit, who, 1)).collect();
    let masters = charges
        .iter()
        .map(|charge| cluster.master_of(slot_of(&charge[0])));
    let masters = masters.collect();
    (charges, masters)
}

/// Asks until nothing is left of any.
fn use_up_on(cluster: &RedisCluster, charges: &[Charge]) {
    on_a_worker(async {
        let store = open(cluster, SECOND).await;
        for charge in charges {
            while ask(&store, charge).await.unwrap().allowed {}
        }
    });
}

#[test]
fn slots_are_held_and_let_go_of_wherever_they_are_kept() {
    let cluster = RedisCluster::start(false, &[]);
    on_a_worker(async {
        let store = open(&cluster, 10 * SECOND).await;
        let other = open(&cluster, 10 * SECOND).await;
        let jobs = Rule {
            algorithm: Algorithm::Slots,
            ..log_rule(2, 30 * SECOND)
        };
        let (jobs, few) = (limit("jobs", jobs), limit("few", log_rule(3, MINUTE)));
        for who in 0..20 {
            // What is held lies in one slot, what is spent in another.
            let charge: Charge = [item(&jobs, who, 1), item(&few, 100 + who, 1)].into();
            assert!(ask(&store, &charge).await.unwrap().allowed);
            assert!(ask(&other, &charge).await.unwrap().allowed);
            let denied = ask(&store, &charge).await.unwrap();
            assert_eq!(denied.verdicts[0].retry, Retry::Released);
            assert_eq!(denied.verdicts[1].remaining, 1, "it was given back");
            other.release(&charge);
            other.flush().await;
            assert!(ask(&store, &charge).await.unwrap().allowed, "{who}");
            store.release(&charge);
            store.flush().await;
            // Refused by what is spent: what was held for it is let go of.
            assert!(!ask(&store, &charge).await.unwrap().allowed);
            store.flush().await;
            assert!(
                ask(&other, &one(&jobs, who, 1)).await.unwrap().allowed,
                "{who}"
            );
        }
    });
}

#[test]
fn an_operator_reaches_every_key_and_every_proxy() {
    let cluster = RedisCluster::start(false, &[]);
    let settings = cluster.settings(10 * SECOND);
    let StoreKind::Redis(server) = &settings.kind else {
        panic!("{settings:?}");
    };
    let mut client = OverrideClient::open(&settings, server).unwrap();
    let (charges, _) = spread(&cluster, "shown", (1, 12));
    use_up_on(&cluster, &charges);
    for charge in &charges {
        assert_eq!(client.stand(charge).unwrap().verdicts[0].used, 1);
        assert_eq!(client.forget(charge).unwrap(), 1);
    }
    let store = Backing::new(&settings, None).unwrap();
    on_a_worker(async {
        let store = store.open();
        store.ready().await;
        let subject = Subject::Block(charges[0][0].tag);
        let change = OverrideChange {
            subject,
            lasts_us: 60_000_000,
            terms: RecordTerms {
                version: 0,
                kind: ChangeKind::Set,
                until_us: 0,
                at_us: 0,
                by: "test".to_owned(),
                key: "ip".to_owned(),
                rules: Vec::new(),
                unlimited: false,
                suffixes: Vec::new(),
                note: String::new(),
            },
        };
        let changed = tokio::task::spawn_blocking(move || client.change(&change).unwrap());
        assert!(matches!(changed.await.unwrap(), ChangeOutcome::Made(_)));
        let asked = Instant::now();
        while store.overrides().is_none() {
            assert!(asked.elapsed() < 10 * SECOND, "it never reaches the proxy");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    });
}

#[test]
fn what_was_admitted_without_the_cluster_is_charged_to_it_once() {
    let cluster = RedisCluster::start(false, &[]);
    on_a_worker(async {
        let store = open(&cluster, 10 * SECOND).await;
        let limit = limit("owed", log_rule(5, MINUTE));
        let generation = store.hash_key().generation;
        for who in 0..12 {
            store.owe(&one(&limit, who, 2), generation);
            store.owe(&one(&limit, who, 1), generation);
        }
        let used = async |who| ask(&store, &one(&limit, who, 0)).await.unwrap().verdicts[0].used;
        for who in 0..12 {
            let asked = Instant::now();
            while used(who).await == 0 {
                assert!(asked.elapsed() < 10 * SECOND, "never charged");
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        }
        tokio::time::sleep(SECOND).await;
        for who in 0..12 {
            assert_eq!(used(who).await, 3);
        }
    });
}
