//! Corrections of counts by a caller that brings no decision: the oldest units are given back, and
//! units are charged although the decision denied them. By the limiter of a worker, with the local
//! counts beside Redis.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tidegate::clock::now;
use tidegate::config::parse;
use tidegate::limit::{Charge, Limit};
use tidegate::proxy::limiter::{Limiter, StoreHandle};
use tidegate::store::{Store, StoreError};
use tidegate_core::exchange::admit::Admission;

use crate::house::PATIENCE;
use crate::support::{RedisServer, on_a_worker, one};

/// A worker's limiter, and a view of its counts.
struct Worker {
    limiter: Arc<Limiter>,
    store: Store,
    counts: StoreHandle,
    limits: Vec<Arc<Limit>>,
}

impl Worker {
    async fn start(url: &str) -> Worker {
        // Time to spare, so that only a frozen server is an outage.
        let text = format!(
            "upstream = \"http://127.0.0.1:9\"\n[store]\nurl = \"{url}\"\nfleet = 1\n\
             {timeout}[limit.counted]\nrate = \"100/day\"\nkey = \"global\"\n\
             [limit.open]\nrate = \"100/day\"\nkey = \"global\"\non_error = \"allow\"\n\
             [[route]]\npath = \"/*\"\nlimits = [\"counted\", \"open\"]\n",
            timeout = match url {
                "memory:" => "",
                _ => "timeout = \"500ms\"\n",
            },
        );
        let (config, _) = parse("proxy.toml", &text, &|_| None).unwrap();
        let counts = StoreHandle::new(&config).unwrap();
        let opened = counts.open();
        let store = opened.store.clone();
        store.ready().await;
        Worker {
            limiter: Limiter::new(&config, opened, None),
            store,
            counts,
            limits: config.limits.clone(),
        }
    }

    /// A charge of the limit with this name.
    fn of(&self, name: &str, cost: u64) -> Charge {
        let limit = self.limits.iter().find(|limit| &*limit.name == name);
        one(limit.unwrap(), 1, cost)
    }

    fn generation(&self) -> u64 {
        self.store.hash_key().generation
    }

    async fn admits(&self, charge: Charge) -> bool {
        let mut admission = Admission::default();
        admission.charge = charge;
        admission.generation = self.generation();
        self.limiter.admit(&mut admission, now()).await.is_ok()
    }

    /// What the store counts, and what this process counts beside it.
    async fn used(&self, name: &str) -> (u64, u64) {
        let look = self.of(name, 0);
        let store = self.store.charge(&look, self.generation(), now()).await;
        (store.unwrap().verdicts[0].used, self.used_here(name))
    }

    fn used_here(&self, name: &str) -> u64 {
        let look = self.of(name, 0);
        self.counts.in_process().charge(&look).verdicts[0].used
    }

    async fn waits_until_store_is(&self, away: bool) {
        let until = Instant::now() + PATIENCE;
        let look = self.of("counted", 0);
        loop {
            // A call that gets no answer opens the breaker.
            let answer = self.store.charge(&look, self.generation(), now()).await;
            let is_away = answer.is_err_and(|error| error == StoreError::Away);
            if is_away == away {
                return;
            }
            assert!(Instant::now() < until, "away is never {away}");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}

#[test]
fn units_are_given_back_and_charged_on_top_in_the_store_and_beside_it() {
    let server = RedisServer::start();
    let redis = format!("redis://127.0.0.1:{}", server.port());
    for url in ["memory:", &redis] {
        on_a_worker(async {
            let worker = Worker::start(url).await;
            assert!(worker.admits(worker.of("counted", 90)).await);
            assert!(!worker.admits(worker.of("counted", 11)).await);
            let generation = worker.generation();
            worker
                .limiter
                .charge_anyway(&worker.of("counted", 11), generation);
            assert_eq!(worker.used("counted").await, (101, 101), "{url}");
            worker
                .limiter
                .refund_oldest(&worker.of("counted", 5), generation);
            assert_eq!(worker.used("counted").await, (96, 96), "{url}");
            assert!(worker.admits(worker.of("counted", 4)).await);
            assert!(!worker.admits(worker.of("counted", 1)).await);
            worker
                .limiter
                .refund_oldest(&worker.of("counted", 1_000), generation);
            assert_eq!(worker.used("counted").await, (0, 0), "{url}");
            // Nothing is asked of the store for nothing.
            worker.limiter.refund_oldest(&Charge::new(), generation);
            worker.limiter.charge_anyway(&Charge::new(), generation);
        });
    }
}

#[test]
fn while_the_store_is_away_local_counts_change_and_what_was_charged_is_owed() {
    let server = RedisServer::start();
    on_a_worker(async {
        let url = format!("redis://127.0.0.1:{}", server.port());
        let worker = Worker::start(&url).await;
        assert!(worker.admits(worker.of("counted", 90)).await);
        let generation = worker.generation();
        server.freeze();
        worker.waits_until_store_is(true).await;
        worker
            .limiter
            .charge_anyway(&worker.of("counted", 20), generation);
        worker
            .limiter
            .charge_anyway(&worker.of("open", 3), generation);
        assert_eq!(worker.used_here("counted"), 110);
        worker
            .limiter
            .refund_oldest(&worker.of("counted", 60), generation);
        assert_eq!(worker.used_here("counted"), 50);
        server.thaw();
        worker.waits_until_store_is(false).await;
        // The store has not heard of what was given back, and learns what was charged.
        let until = Instant::now() + PATIENCE;
        while worker.used("counted").await != (110, 50) {
            assert!(Instant::now() < until, "{:?}", worker.used("counted").await);
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        // A limit that is not counted without the store is not owed to it.
        assert_eq!(worker.used("open").await.0, 0);
    });
}
