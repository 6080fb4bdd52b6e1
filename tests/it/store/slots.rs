//! Slots: requests under way at once, counted over all who hold some.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use tidegate::clock::now;
use tidegate::config::StoreSettings;
use tidegate::limit::{Algorithm, Charge, Decision, Limit, Retry, Rule};
use tidegate::store::{Backing, Store};

use super::{Fixture, open, patient, with_each_store};
use crate::support::{RedisServer, item, limit, log_rule, on_a_worker, one};

const LEASE: Duration = Duration::from_secs(30);

fn slots(name: &str, units: u64, lease: Duration) -> Arc<Limit> {
    let rule = Rule {
        algorithm: Algorithm::Slots,
        units,
        window_us: u64::try_from(lease.as_micros()).unwrap(),
        precision_us: 1,
    };
    limit(name, rule)
}

async fn ask(store: &Store, charge: &Charge) -> Decision {
    let generation = store.hash_key().generation;
    store
        .charge(charge, generation, now())
        .await
        .expect("a decision")
}

/// Asks until it is granted.
async fn is_granted(store: &Store, charge: &Charge) {
    let begun = std::time::Instant::now();
    while !ask(store, charge).await.allowed {
        assert!(begun.elapsed() < Duration::from_secs(10), "never granted");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

/// How many are held by the store's word.
async fn used(store: &Store, limit: &Arc<Limit>) -> u64 {
    ask(store, &one(limit, 1, 0)).await.verdicts[0].used
}

#[test]
fn a_slot_is_held_until_it_is_let_go_of() {
    with_each_store(async |fixture: Fixture| {
        let limit = slots("three", 3, LEASE);
        let charge = one(&limit, 1, 1);
        for held in 0..3 {
            let decision = fixture.charge(&charge).await;
            assert!(decision.allowed);
            let verdict = decision.verdicts[0];
            assert_eq!((verdict.used, verdict.remaining), (held, 2 - held));
        }
        let denied = fixture.charge(&charge).await;
        assert_eq!(
            (denied.allowed, denied.verdicts[0].retry),
            (false, Retry::Released)
        );
        assert!(fixture.charge(&one(&limit, 2, 3)).await.allowed, "another");
        fixture.store.release(&charge);
        is_granted(&fixture.store, &charge).await;
        assert!(!fixture.charge(&charge).await.allowed);
        let never = fixture.charge(&one(&limit, 1, 4)).await;
        assert_eq!(never.verdicts[0].retry, Retry::Never);
    });
}

#[test]
fn the_last_handle_of_a_store_leaves_no_slot_behind() {
    let server = RedisServer::start();
    let limit = slots("left", 1, LEASE);
    let charge = one(&limit, 1, 1);
    on_a_worker(async {
        // Which of two events the connection sees first is chance.
        for round in 0..20 {
            let store = open(&patient(server.settings())).await;
            is_granted(&store, &charge).await;
            store.release(&charge);
            drop(store);
            let begun = std::time::Instant::now();
            while server.run("KEYS *left*") != redis::Value::Array(Vec::new()) {
                assert!(begun.elapsed() < LEASE / 3, "round {round}: still held");
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        }
    });
}

#[test]
fn a_denial_by_another_limit_holds_no_slot() {
    with_each_store(async |fixture: Fixture| {
        let (held, spent) = (slots("held", 5, LEASE), limit("spent", log_rule(2, LEASE)));
        let charge: Charge = [item(&held, 1, 1), item(&spent, 1, 1)]
            .into_iter()
            .collect();
        for _ in 0..6 {
            fixture.charge(&charge).await;
        }
        assert_eq!(used(&fixture.store, &held).await, 2);
        // What is let go of is the slots, not what was spent.
        fixture.store.release(&charge);
        assert!(!fixture.charge(&charge).await.allowed);
    });
}

#[test]
fn requests_at_once_hold_exactly_what_is_granted() {
    with_each_store(async |fixture: Fixture| {
        let limit = slots("burst", 50, LEASE);
        let charge = one(&limit, 1, 1);
        for _ in 0..3 {
            let all = (0..300).map(|_| fixture.charge(&charge));
            let decisions = futures_util::future::join_all(all).await;
            let granted = decisions.iter().filter(|one| one.allowed).count();
            assert_eq!(granted, 50);
            (0..granted).for_each(|_| fixture.store.release(&charge));
            let begun = std::time::Instant::now();
            while used(&fixture.store, &limit).await > 0 {
                assert!(begun.elapsed() < Duration::from_secs(10));
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        }
    });
}

/// Two proxies' stores on one server.
async fn pair(settings: &StoreSettings) -> (Store, Store) {
    (open(settings).await, open(settings).await)
}

#[test]
fn two_proxies_share_their_slots_and_the_dead_one_s_come_back_after_its_lease() {
    let server = RedisServer::start();
    let limit = slots("shared", 4, Duration::from_millis(1500));
    let charge = one(&limit, 1, 1);
    let dead = {
        let (settings, charge) = (patient(server.settings()), charge.clone());
        // The runtime ends with everything in it: nobody says goodbye.
        on_a_worker(async move {
            let store = open(&settings).await;
            for _ in 0..3 {
                assert!(ask(&store, &charge).await.allowed);
            }
            store
        })
    };
    on_a_worker(async {
        let store = open(&patient(server.settings())).await;
        let begun = std::time::Instant::now();
        assert!(ask(&store, &charge).await.allowed);
        assert!(!ask(&store, &charge).await.allowed);
        for _ in 0..3 {
            is_granted(&store, &charge).await;
        }
        assert!(begun.elapsed() > Duration::from_millis(300));
        // The living one's are renewed for as long as they are held.
        tokio::time::sleep(Duration::from_millis(2500)).await;
        let (_, other) = pair(&patient(server.settings())).await;
        assert!(!ask(&other, &charge).await.allowed);
        assert_eq!(used(&other, &limit).await, 4);
    });
    drop(dead);
}

#[test]
fn a_request_that_was_given_up_while_it_asked_holds_nothing() {
    let server = RedisServer::start();
    on_a_worker(async {
        let store = open(&patient(server.settings())).await;
        let limit = slots("given_up", 100, LEASE);
        let charge = one(&limit, 1, 1);
        let mut answered = 0;
        for round in 0..60 {
            let mut asking = pin!(ask(&store, &charge));
            // Somewhere between the question and the taking of its answer.
            for _ in 0..round * 5 {
                if futures_util::FutureExt::now_or_never(&mut asking).is_some() {
                    answered += 1;
                    store.release(&charge);
                    break;
                }
                tokio::task::yield_now().await;
            }
        }
        assert!((1..60).contains(&answered), "{answered}");
        let begun = std::time::Instant::now();
        while used(&store, &limit).await > 0 {
            assert!(begun.elapsed() < Duration::from_secs(10));
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    });
    assert_eq!(server.run("KEYS t:*given_up*"), redis::Value::Array(vec![]));
}

#[test]
fn after_an_outage_the_store_learns_what_is_held() {
    let mut server = RedisServer::start();
    on_a_worker(async {
        let settings = patient(server.settings());
        let (mine, other) = pair(&settings).await;
        let limit = slots("outage", 10, LEASE);
        let charge = one(&limit, 1, 1);
        for _ in 0..4 {
            assert!(ask(&mine, &charge).await.allowed);
        }
        let generation = mine.hash_key().generation;
        server.kill();
        // Two more are admitted without the store, and one is let go of.
        mine.hold(&charge, generation);
        mine.hold(&charge, generation);
        mine.release(&charge);
        server.restart();
        let begun = std::time::Instant::now();
        loop {
            let look = one(&limit, 1, 0);
            let generation = other.hash_key().generation;
            let looked = other.charge(&look, generation, now()).await;
            if looked.is_ok_and(|decision| decision.verdicts[0].used == 5) {
                break;
            }
            assert!(begun.elapsed() < Duration::from_secs(10));
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    });
}

#[test]
fn what_is_held_above_the_limit_still_counts() {
    let server = RedisServer::start();
    on_a_worker(async {
        let lease = Duration::from_millis(1500);
        let (mine, other) = pair(&patient(server.settings())).await;
        // Admitted under a higher limit, and some alone while the store was away.
        let (high, low) = (slots("above", 5, lease), slots("above", 2, lease));
        for _ in 0..4 {
            assert!(ask(&mine, &one(&high, 1, 1)).await.allowed);
        }
        for _ in 0..4 {
            mine.hold(&one(&low, 1, 1), mine.hash_key().generation);
        }
        mine.release(&one(&low, 1, 1));
        tokio::time::sleep(lease * 2).await;
        assert_eq!(used(&other, &low).await, 7);
        assert!(!ask(&other, &one(&high, 1, 1)).await.allowed);
    });
}

#[test]
fn a_worker_that_ends_in_order_leaves_nothing_behind() {
    let server = RedisServer::start();
    on_a_worker(async {
        let backing = Backing::new(&patient(server.settings()), None).unwrap();
        let store = backing.open();
        store.ready().await;
        let limit = slots("orderly", 10, LEASE);
        for _ in 0..5 {
            assert!(ask(&store, &one(&limit, 1, 1)).await.allowed);
        }
        (0..5).for_each(|_| store.release(&one(&limit, 1, 1)));
        store.flush().await;
    });
    assert_eq!(server.run("KEYS t:*orderly*"), redis::Value::Array(vec![]));
}
