//! The store: one suite for both kinds, traces against the model, faults on a real server.

mod bytes;
mod calendar;
mod embedded;
mod faults;
mod floods;
mod held;
mod model;
mod replayed;
mod slots;
mod traces;

use std::sync::Arc;
use std::time::Duration;

use tidegate::clock::now;
use tidegate::config::StoreSettings;
use tidegate::limit::{Algorithm, Charge, Decision, Retry, Rule};
use tidegate::store::{Backing, Store};

use crate::support::{RedisServer, item, limit, log_rule, memory_settings, on_a_worker, one};

const MINUTE: Duration = Duration::from_secs(60);

/// A store that the suite runs against.
struct Fixture {
    store: Store,
    /// Lives as long as the store that uses it.
    _server: Option<RedisServer>,
}

impl Fixture {
    async fn embedded() -> Fixture {
        Fixture {
            store: open(&memory_settings()).await,
            _server: None,
        }
    }

    async fn redis() -> Fixture {
        let server = RedisServer::start();
        let settings = patient(server.settings());
        Fixture {
            store: open(&settings).await,
            _server: Some(server),
        }
    }

    async fn charge(&self, charge: &Charge) -> Decision {
        let generation = self.store.hash_key().generation;
        self.store
            .charge(charge, generation, now())
            .await
            .expect("a decision")
    }
}

/// With time to spare: these tests are about counts, and the machine may be busy.
fn patient(settings: StoreSettings) -> StoreSettings {
    StoreSettings {
        timeout: Duration::from_secs(10),
        ..settings
    }
}

async fn open(settings: &StoreSettings) -> Store {
    let store = Backing::new(settings, None).expect("a store").open();
    store.ready().await;
    store
}

/// Runs the body against each store.
fn with_each_store(body: impl AsyncFn(Fixture)) {
    on_a_worker(async {
        body(Fixture::embedded().await).await;
        body(Fixture::redis().await).await;
    });
}

#[test]
fn a_limit_admits_exactly_its_units() {
    with_each_store(async |fixture| {
        let limit = limit("ten", log_rule(10, MINUTE));
        for used in 0..10 {
            let decision = fixture.charge(&one(&limit, 1, 1)).await;
            assert!(decision.allowed);
            assert_eq!(
                (decision.verdicts[0].used, decision.verdicts[0].remaining),
                (used, 9 - used)
            );
        }
        let denied = fixture.charge(&one(&limit, 1, 1)).await;
        assert!(!denied.allowed);
        assert!(matches!(denied.verdicts[0].retry, Retry::After(us) if us <= 60_000_000));
        assert!(fixture.charge(&one(&limit, 2, 1)).await.allowed);
    });
}

#[test]
fn several_limits_are_charged_together_or_not_at_all() {
    with_each_store(async |fixture| {
        let (wide, narrow) = (
            limit("wide", log_rule(100, MINUTE)),
            limit("narrow", log_rule(2, MINUTE)),
        );
        let charge: Charge = [item(&wide, 1, 1), item(&narrow, 1, 1)]
            .into_iter()
            .collect();
        assert!(fixture.charge(&charge).await.allowed);
        assert!(fixture.charge(&charge).await.allowed);
        for _ in 0..3 {
            let denied = fixture.charge(&charge).await;
            assert!(!denied.allowed);
            assert_eq!(
                (denied.verdicts[0].used, denied.verdicts[0].remaining),
                (2, 98)
            );
            assert_eq!(denied.verdicts[0].retry, Retry::Now);
            assert!(matches!(denied.verdicts[1].retry, Retry::After(_)));
        }
    });
}

#[test]
fn a_cost_above_the_limit_never_passes_and_a_cost_of_zero_only_looks() {
    with_each_store(async |fixture| {
        let limit = limit("cost", log_rule(5, MINUTE));
        assert_eq!(
            fixture.charge(&one(&limit, 1, 6)).await.verdicts[0].retry,
            Retry::Never
        );
        assert!(fixture.charge(&one(&limit, 1, 3)).await.allowed);
        for _ in 0..3 {
            let look = fixture.charge(&one(&limit, 1, 0)).await;
            assert!(look.allowed);
            assert_eq!((look.verdicts[0].used, look.verdicts[0].remaining), (3, 2));
        }
        assert!(!fixture.charge(&one(&limit, 1, 3)).await.allowed);
        assert!(fixture.charge(&one(&limit, 1, 2)).await.allowed);
    });
}

#[test]
fn a_request_may_have_hundreds_of_limits() {
    with_each_store(async |fixture| {
        let limits: Vec<_> = (0..300)
            .map(|number| limit(&format!("of-many-{number}"), log_rule(2, MINUTE)))
            .collect();
        let all: Charge = limits.iter().flat_map(|limit| one(limit, 1, 1)).collect();
        for allowed in [true, true, false] {
            let decision = fixture.charge(&all).await;
            assert_eq!((decision.allowed, decision.verdicts.len()), (allowed, 300));
        }
        let last = fixture.charge(&one(&limits[299], 1, 0)).await;
        assert_eq!(last.verdicts[0].used, 2);
    });
}

#[test]
fn giving_back_the_oldest_frees_exactly_so_many_units() {
    with_each_store(async |fixture| {
        for algorithm in [Algorithm::Log, Algorithm::Counter] {
            // A day, so that hardly ever a window of the counter ends while the test runs.
            let rule = Rule {
                algorithm,
                ..log_rule(10, 24 * 60 * MINUTE)
            };
            let name = format!("{algorithm:?}").to_lowercase();
            let mut limit = Arc::unwrap_or_clone(limit(&name, rule));
            limit.refunds = true;
            let limit = Arc::new(limit);
            let other = fixture.charge(&one(&limit, 2, 1)).await;
            assert!(other.allowed);
            for _ in 0..10 {
                assert!(fixture.charge(&one(&limit, 1, 1)).await.allowed);
            }
            let generation = fixture.store.hash_key().generation;
            for (refunded, free) in [(3, 3), (0, 0), (1, 1), (7, 7), (4_000, 10)] {
                // The worker knows the denial, and forgets it when units are given back.
                assert!(!fixture.charge(&one(&limit, 1, 1)).await.allowed);
                let units = one(&limit, 1, refunded);
                fixture.store.refund_oldest(&units, generation);
                let look = fixture.charge(&one(&limit, 1, 0)).await;
                assert_eq!(look.verdicts[0].used, 10 - free, "{name}, {refunded}");
                for _ in 0..free {
                    assert!(fixture.charge(&one(&limit, 1, 1)).await.allowed);
                }
            }
            assert!(!fixture.charge(&one(&limit, 1, 1)).await.allowed);
            let other = fixture.charge(&one(&limit, 2, 0)).await;
            assert_eq!(other.verdicts[0].used, 1, "another key stays as it is");
        }
        if let Some(server) = &fixture._server {
            let mut connection = server.connect();
            let keys: Vec<String> = redis::cmd("KEYS")
                .arg("t:{*")
                .query(&mut connection)
                .unwrap();
            assert_eq!(keys.len(), 4, "{keys:?}");
            for key in keys {
                let lives: i64 = redis::cmd("TTL").arg(&key).query(&mut connection).unwrap();
                assert!(lives > 0, "{key} expires after {lives} s");
            }
        }
    });
}

#[test]
fn a_denied_request_passes_after_its_retry() {
    with_each_store(async |fixture| {
        let limit = limit("soon", log_rule(1, Duration::from_secs(1)));
        let first = fixture.charge(&one(&limit, 1, 1)).await;
        let denied = fixture.charge(&one(&limit, 1, 1)).await;
        let Retry::After(us) = denied.verdicts[0].retry else {
            panic!("{denied:?}")
        };
        assert_eq!(denied.at_us + us, first.at_us + 1_000_000);
        tokio::time::sleep(Duration::from_micros(us) + Duration::from_millis(5)).await;
        assert!(fixture.charge(&one(&limit, 1, 1)).await.allowed);
    });
}

#[test]
fn a_counter_admits_its_units_within_a_window() {
    with_each_store(async |fixture| {
        let rule = Rule {
            algorithm: Algorithm::Counter,
            units: 10,
            window_us: 60_000_000,
            precision_us: 1,
        };
        let limit = limit("counter", rule);
        let mut allowed = 0;
        for _ in 0..15 {
            allowed += u32::from(fixture.charge(&one(&limit, 1, 1)).await.allowed);
        }
        // Twice the units only if the window's boundary fell between two of these lines.
        assert!((10..=11).contains(&allowed), "{allowed}");
    });
}

#[test]
fn requests_at_once_hold_one_limit() {
    with_each_store(async |fixture| {
        let limit = limit("burst", log_rule(100, MINUTE));
        let charge = one(&limit, 1, 1);
        let all = (0..500).map(|_| fixture.charge(&charge));
        let decisions = futures_util::future::join_all(all).await;
        assert_eq!(
            decisions.iter().filter(|decision| decision.allowed).count(),
            100
        );
    });
}

#[test]
fn proxies_sharing_one_redis_hold_one_limit() {
    let server = RedisServer::start();
    let limit = limit("shared", log_rule(1_000, MINUTE));
    let proxy = || {
        let (settings, limit) = (patient(server.settings()), Arc::clone(&limit));
        on_a_worker(async move {
            // Two workers in each of the proxies.
            let backing = Backing::new(&settings, None).unwrap();
            let stores = [backing.open(), backing.open()];
            for store in &stores {
                store.ready().await;
            }
            let charge = one(&limit, 1, 1);
            let generation = stores[0].hash_key().generation;
            let all = (0..600).map(|i| {
                let (store, charge) = (&stores[i % 2], charge.clone());
                async move { store.charge(&charge, generation, now()).await }
            });
            let decisions = futures_util::future::join_all(all).await;
            decisions
                .into_iter()
                .filter(|decision| decision.as_ref().unwrap().allowed)
                .count()
        })
    };
    let admitted: usize = std::thread::scope(|scope| {
        let proxies: Vec<_> = (0..3).map(|_| scope.spawn(proxy)).collect();
        proxies.into_iter().map(|proxy| proxy.join().unwrap()).sum()
    });
    assert_eq!(admitted, 1_000);
}
