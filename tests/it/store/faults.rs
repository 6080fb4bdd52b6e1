//! Faults done to a real server. Owed in each: every charge is answered within its timeout, nobody
//! waits while the breaker is open, and decisions come again about a second after the server does.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tidegate::clock::now;
use tidegate::config::{Secret, StoreSettings};
use tidegate::limit::{Algorithm, Charge, Decision, Limit, Rule};
use tidegate::store::{Backing, ServerTrouble, Store, StoreError};

use crate::log_lines::LogLines;
use crate::pace::Pace;
use crate::support::{RedisServer, limit, log_rule, memory_settings, on_a_worker, one};

/// A second, and what a busy machine may add.
const RECOVERY: Duration = Duration::from_secs(10);

/// A store with the usual timeout and a limit that is never reached.
struct Trial {
    store: Store,
    backing: Backing,
    timeout: Duration,
    limit: Arc<Limit>,
}

impl Trial {
    async fn of(server: &RedisServer) -> Trial {
        Trial::with(server.settings()).await
    }

    /// One with time to spare: only what is done to the server is an outage.
    async fn patient(server: &RedisServer) -> Trial {
        let timeout = Duration::from_secs(2);
        let settings = server.settings();
        Trial::with(StoreSettings {
            timeout,
            ..settings
        })
        .await
    }

    async fn with(settings: StoreSettings) -> Trial {
        let backing = Backing::new(&settings, None).unwrap();
        let store = backing.open();
        store.ready().await;
        let limit = limit("ample", log_rule(1_000_000, Duration::from_secs(60)));
        Trial {
            store,
            backing,
            timeout: settings.timeout,
            limit,
        }
    }

    async fn charge(&self, charge: &Charge) -> Result<Decision, StoreError> {
        let generation = self.store.hash_key().generation;
        let (begun, pace) = (Instant::now(), Pace::begin());
        let result = self.store.charge(charge, generation, now()).await;
        let took = begun.elapsed();
        let most = self.timeout + pace.grants();
        assert!(
            took < most,
            "{result:?} took {took:?}, and {most:?} were granted"
        );
        result
    }

    async fn ask(&self) -> Result<Decision, StoreError> {
        self.charge(&one(&self.limit, 1, 1)).await
    }

    /// Asks until there is a decision.
    async fn recovers(&self) {
        let begun = Instant::now();
        while let Err(error) = self.ask().await {
            assert!(begun.elapsed() < RECOVERY, "still {error}");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// Asks until one of these is the answer; returns all errors on the way.
    async fn fails_as(&self, expected: &[StoreError]) {
        let begun = Instant::now();
        loop {
            let result = self.ask().await;
            if result.as_ref().is_err_and(|error| expected.contains(error)) {
                return;
            }
            assert!(
                begun.elapsed() < RECOVERY,
                "{result:?} rather than {expected:?}"
            );
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    /// While the breaker is open nobody waits: a hundred are sent away faster than one timeout
    /// each, and none is decided.
    async fn sends_everyone_away(&self) {
        self.fails_as(&[StoreError::Away]).await;
        let (begun, pace) = (Instant::now(), Pace::begin());
        for _ in 0..100 {
            assert!(self.ask().await.is_err());
        }
        let took = begun.elapsed();
        assert!(took < 20 * self.timeout + pace.grants(), "{took:?}");
    }
}

#[test]
fn a_server_that_is_down_at_the_start_is_used_when_it_comes() {
    on_a_worker(async {
        let mut server = RedisServer::down();
        let trial = Trial::of(&server).await;
        assert_eq!(trial.ask().await, Err(StoreError::Away));
        trial.sends_everyone_away().await;
        server.restart();
        trial.recovers().await;
    });
}

#[test]
fn a_killed_server_is_used_again_after_its_restart() {
    on_a_worker(async {
        let mut server = RedisServer::start();
        let trial = Trial::of(&server).await;
        trial.recovers().await;
        let key = trial.store.hash_key().key.clone();
        server.kill();
        trial.sends_everyone_away().await;
        server.restart();
        trial.recovers().await;
        // It came back empty, and the key that everyone uses was put back.
        assert!(trial.store.hash_key().key == key);
    });
}

#[test]
fn an_outage_is_told_once_when_it_begins_and_once_when_it_ends() {
    let lines = LogLines::collect();
    on_a_worker(async {
        let mut server = RedisServer::start();
        let trial = Trial::patient(&server).await;
        let colleague = trial.backing.open();
        colleague.ready().await;
        trial.recovers().await;
        server.kill();
        trial.sends_everyone_away().await;
        tokio::time::sleep(Duration::from_millis(300)).await;
        server.restart();
        trial.recovers().await;
        // The end is told after a while without an outage, and nothing after it.
        let told = || lines.text().lines().count();
        for _ in 0..100 {
            if told() > 1 {
                break;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        tokio::time::sleep(Duration::from_millis(500)).await;
    });
    let text = lines.text();
    let told: Vec<&str> = text.lines().collect();
    assert_eq!(told.len(), 2, "{text}");
    assert!(
        told[0].contains("WARN") && told[0].contains("kind="),
        "{text}"
    );
    assert!(
        told[1].contains("INFO") && told[1].contains("decisions_without="),
        "{text}"
    );
}

#[test]
fn a_frozen_server_makes_nobody_wait_beyond_the_timeout() {
    on_a_worker(async {
        let server = RedisServer::start();
        let trial = Trial::of(&server).await;
        trial.recovers().await;
        server.freeze();
        assert!(trial.ask().await.is_err());
        trial.sends_everyone_away().await;
        tokio::time::sleep(Duration::from_millis(700)).await;
        trial.sends_everyone_away().await;
        server.thaw();
        trial.recovers().await;
    });
}

#[test]
fn many_at_once_are_answered_in_time_by_a_frozen_server() {
    on_a_worker(async {
        let server = RedisServer::start();
        let trial = Trial::of(&server).await;
        trial.recovers().await;
        server.freeze();
        let all = (0..500).map(|_| trial.ask());
        let results = futures_util::future::join_all(all).await;
        assert!(results.iter().all(Result::is_err));
        server.thaw();
        trial.recovers().await;
    });
}

#[test]
fn losing_the_script_all_the_time_loses_no_decision() {
    on_a_worker(async {
        let server = RedisServer::start();
        let settings = super::patient(server.settings());
        let store = super::open(&settings).await;
        let limit = limit("flushed", log_rule(200, Duration::from_secs(600)));
        let mut connection = server.connect();
        let mut allowed = 0;
        for _ in 0..300 {
            redis::cmd("SCRIPT")
                .arg("FLUSH")
                .exec(&mut connection)
                .unwrap();
            let generation = store.hash_key().generation;
            let decision = store
                .charge(&one(&limit, 1, 1), generation, now())
                .await
                .unwrap();
            allowed += u32::from(decision.allowed);
        }
        assert_eq!(allowed, 200);
    });
}

#[test]
fn after_flushall_all_proxies_use_one_hash_key() {
    on_a_worker(async {
        let server = RedisServer::start();
        let (one, two) = (Trial::of(&server).await, Trial::of(&server).await);
        one.recovers().await;
        two.recovers().await;
        let keys = |trial: &Trial| trial.store.hash_key().key.clone();
        assert!(keys(&one) == keys(&two));
        server.run("FLUSHALL");
        one.recovers().await;
        let begun = Instant::now();
        while server.run("EXISTS t:hash-key") != redis::Value::Int(1) {
            assert!(begun.elapsed() < RECOVERY);
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        // Another secret appears, as if a third proxy had been first: Redis's word wins.
        server.run(&format!("SET t:hash-key {}", "k".repeat(32)));
        let begun = Instant::now();
        let wanted = [b'k'; 32];
        while *keys(&one).as_bytes() != wanted || *keys(&two).as_bytes() != wanted {
            assert!(begun.elapsed() < RECOVERY);
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        one.recovers().await;
        two.recovers().await;
    });
}

#[test]
fn tags_of_another_key_than_the_one_in_force_never_reach_redis() {
    on_a_worker(async {
        let server = RedisServer::start();
        let trial = Trial::of(&server).await;
        trial.recovers().await;
        let generation = trial.store.hash_key().generation;
        for other in [0, generation - 1, generation + 1] {
            let charge = one(&trial.limit, 9, 1);
            assert_eq!(
                trial.store.charge(&charge.clone(), other, now()).await,
                Err(StoreError::Away)
            );
        }
        // The one count of the trial's own client, beside what the proxies share.
        let redis::Value::Array(keys) = server.run("KEYS t:{*") else {
            panic!("no keys")
        };
        assert_eq!(keys.len(), 1, "{keys:?}");
    });
}

#[test]
fn a_full_server_still_denies_and_charges_again_when_it_can() {
    on_a_worker(async {
        let server = RedisServer::start();
        let trial = Trial::of(&server).await;
        trial.recovers().await;
        let tight = limit("tight", log_rule(1, Duration::from_secs(600)));
        while !trial
            .charge(&one(&tight, 1, 1))
            .await
            .is_ok_and(|decision| !decision.allowed)
        {}
        server.run("CONFIG SET maxmemory 1");
        trial
            .fails_as(&[StoreError::Server(ServerTrouble::OutOfMemory)])
            .await;
        let begun = Instant::now();
        while trial.charge(&one(&tight, 1, 1)).await.is_err() {
            assert!(begun.elapsed() < RECOVERY);
        }
        assert!(trial.ask().await.is_err());
        server.run("CONFIG SET maxmemory 0");
        trial.recovers().await;
    });
}

#[test]
fn a_full_server_that_does_not_evict_keeps_every_limited_client_limited() {
    on_a_worker(async {
        let server = RedisServer::start_with(&["--maxmemory-policy", "noeviction"]);
        let store = super::open(&super::patient(server.settings())).await;
        let generation = store.hash_key().generation;
        let limit = limit("full", log_rule(2, Duration::from_secs(600)));
        let ask = async |who: u64| {
            let charge = one(&limit, who, 1);
            store.charge(&charge, generation, now()).await
        };
        for who in 0..40 {
            while ask(who).await.unwrap().allowed {}
        }
        // What a worker knows of denials must not answer for the server.
        store.limits_changed();
        server.run("CONFIG SET maxmemory 2mb");
        let refused = StoreError::Server(ServerTrouble::OutOfMemory);
        let mut fresh = 1_000;
        while ask(fresh).await != Err(refused) {
            fresh += 1;
            assert!(fresh < 100_000, "2 MB hold less");
        }
        for who in 0..40 {
            let begun = Instant::now();
            let decision = loop {
                match ask(who).await {
                    Ok(decision) => break decision,
                    Err(_) => assert!(begun.elapsed() < RECOVERY),
                }
            };
            assert!(!decision.allowed, "{who}");
        }
    });
}

#[test]
fn a_request_refused_for_memory_charges_none_of_its_batch_twice_or_half() {
    on_a_worker(async {
        let server = RedisServer::start();
        let store = super::open(&super::patient(server.settings())).await;
        let generation = store.hash_key().generation;
        let (full, fresh) = (
            limit("full", log_rule(1, Duration::from_secs(600))),
            limit("fresh", log_rule(10, Duration::from_secs(600))),
        );
        assert!(
            store
                .charge(&one(&full, 1, 1), generation, now())
                .await
                .unwrap()
                .allowed
        );
        server.run("CONFIG SET maxmemory 1");
        let (denied, allowed) = (one(&full, 1, 1), one(&fresh, 1, 1));
        let both = [&denied, &allowed, &denied].map(|charge| {
            let (store, charge) = (&store, charge.clone());
            async move { store.charge(&charge, generation, now()).await }
        });
        let results = futures_util::future::join_all(both).await;
        let refused = Err(StoreError::Server(ServerTrouble::OutOfMemory));
        assert!(!results[0].as_ref().unwrap().allowed && !results[2].as_ref().unwrap().allowed);
        assert_eq!(results[1], refused);
        server.run("CONFIG SET maxmemory 0");
        let decision = store.charge(&allowed, generation, now()).await.unwrap();
        assert_eq!(decision.verdicts[0].used, 0);
    });
}

#[test]
fn giving_back_to_a_full_server_spoils_no_other_decision() {
    for (algorithm, by_stamp) in [
        (Algorithm::Log, true),
        (Algorithm::Log, false),
        (Algorithm::Counter, true),
        (Algorithm::Counter, false),
    ] {
        on_a_worker(async {
            let server = RedisServer::start();
            let store = super::open(&super::patient(server.settings())).await;
            let generation = store.hash_key().generation;
            // Hardly ever does a day of the counter end meanwhile.
            let rule = Rule {
                algorithm,
                ..log_rule(1, Duration::from_secs(86_400))
            };
            let full = limit("full", rule);
            let ask = async |who: u64| {
                let charge = one(&full, who, 1);
                store.charge(&charge, generation, now()).await
            };
            assert!(ask(1).await.unwrap().allowed);
            let granted = ask(2).await.unwrap();
            assert!(granted.allowed);
            let refund = || match by_stamp {
                true => store.refund(&one(&full, 2, 1), &granted, generation),
                false => store.refund_oldest(&one(&full, 2, 1), generation),
            };
            server.run("CONFIG SET maxmemory 1");
            refund();
            // They are in one call.
            let what = format!("{algorithm:?}, by stamp: {by_stamp}");
            assert!(!ask(1).await.expect(&what).allowed, "{what}");
            server.run("CONFIG SET maxmemory 0");
            assert!(!ask(2).await.unwrap().allowed, "nothing went: {what}");
            refund();
            assert!(ask(2).await.unwrap().allowed, "{what}");
        });
    }
}

#[test]
fn a_server_made_a_replica_is_used_again_as_a_master() {
    on_a_worker(async {
        let server = RedisServer::start();
        let trial = Trial::of(&server).await;
        trial.recovers().await;
        server.run("REPLICAOF 127.0.0.1 1");
        // It still answers denials, so it is asked on and on.
        let read_only = StoreError::Server(ServerTrouble::ReadOnly);
        trial.fails_as(&[read_only]).await;
        server.run("REPLICAOF NO ONE");
        trial.recovers().await;
    });
}

#[test]
fn a_changed_password_is_an_outage_and_no_more() {
    on_a_worker(async {
        let server = RedisServer::start();
        let trial = Trial::of(&server).await;
        trial.recovers().await;
        let mut kept = server.connect();
        redis::cmd("CONFIG")
            .arg(&["SET", "requirepass", "other"])
            .exec(&mut kept)
            .unwrap();
        redis::cmd("CLIENT")
            .arg(&["KILL", "TYPE", "normal", "SKIPME", "yes"])
            .exec(&mut kept)
            .unwrap();
        trial.sends_everyone_away().await;
        redis::cmd("CONFIG")
            .arg(&["SET", "requirepass", ""])
            .exec(&mut kept)
            .unwrap();
        trial.recovers().await;
    });
}

#[test]
fn a_killed_connection_is_made_anew() {
    on_a_worker(async {
        let server = RedisServer::start();
        let trial = Trial::of(&server).await;
        let mut kept = server.connect();
        for _ in 0..10 {
            trial.recovers().await;
            redis::cmd("CLIENT")
                .arg(&["KILL", "TYPE", "normal", "SKIPME", "yes"])
                .exec(&mut kept)
                .unwrap();
            let _ = trial.ask().await;
        }
        trial.recovers().await;
    });
}

#[test]
fn a_connection_that_dies_idle_costs_no_request() {
    on_a_worker(async {
        let server = RedisServer::start();
        let store = super::open(&super::patient(server.settings())).await;
        let limit = limit("idle", log_rule(10, Duration::from_secs(60)));
        let mut kept = server.connect();
        for _ in 0..5 {
            redis::cmd("CLIENT")
                .arg(&["KILL", "TYPE", "normal", "SKIPME", "yes"])
                .exec(&mut kept)
                .unwrap();
            tokio::time::sleep(Duration::from_millis(300)).await;
            let generation = store.hash_key().generation;
            assert!(
                store
                    .charge(&one(&limit, 1, 1), generation, now())
                    .await
                    .is_ok()
            );
        }
    });
}

#[test]
fn a_paused_server_is_away_until_it_goes_on() {
    on_a_worker(async {
        let server = RedisServer::start();
        let trial = Trial::of(&server).await;
        trial.recovers().await;
        server.run("CLIENT PAUSE 600 ALL");
        trial.sends_everyone_away().await;
        trial.recovers().await;
    });
}

#[test]
fn what_is_not_ours_at_our_key_is_replaced_and_counted() {
    on_a_worker(async {
        let server = RedisServer::start();
        let trial = Trial::patient(&server).await;
        trial.recovers().await;
        let redis::Value::Array(keys) = server.run("KEYS t:{*") else {
            panic!("no keys")
        };
        let redis::Value::BulkString(key) = &keys[0] else {
            panic!("no key")
        };
        let key = String::from_utf8(key.clone()).unwrap();
        for (times, words) in [
            (1, "SADD KEY member"),
            (2, "SET KEY garbage"),
            (3, "LPUSH KEY 1"),
        ] {
            server.run(&format!("DEL {key}"));
            server.run(&words.replace("KEY", &key));
            let mut decision = trial.ask().await;
            for _ in 0..20 {
                if decision.is_ok() {
                    break;
                }
                decision = trial.ask().await;
            }
            assert!(decision.unwrap().verdicts[0].used < 20);
            let Backing::Redis(shared) = &trial.backing else {
                panic!("not Redis")
            };
            assert_eq!(shared.begun_anew(), times);
        }
    });
}

#[test]
fn a_socket_file_serves_as_well_as_an_address() {
    on_a_worker(async {
        let server = RedisServer::start();
        let mut settings = server.settings();
        if let tidegate::config::StoreKind::Redis(redis) = &mut settings.kind {
            let socket = tidegate::config::RedisAddress::Unix(server.socket());
            redis.topology = tidegate::config::RedisTopology::Single(socket);
        }
        let store = super::open(&super::patient(settings)).await;
        let limit = limit("socket", log_rule(10, Duration::from_secs(60)));
        let generation = store.hash_key().generation;
        assert!(
            store
                .charge(&one(&limit, 1, 1), generation, now())
                .await
                .unwrap()
                .allowed
        );
    });
}

#[test]
fn an_address_without_a_server_is_known_to_be_away_at_once() {
    on_a_worker(async {
        let server = RedisServer::down();
        let mut settings = server.settings();
        settings.hash_key = Some(Secret([7; 32]));
        let store = super::open(&settings).await;
        let limit = limit("nowhere", log_rule(10, Duration::from_secs(60)));
        let generation = store.hash_key().generation;
        assert_eq!(
            store.charge(&one(&limit, 1, 1), generation, now()).await,
            Err(StoreError::Away)
        );
        let embedded = super::open(&memory_settings()).await;
        let generation = embedded.hash_key().generation;
        assert!(
            embedded
                .charge(&one(&limit, 1, 1), generation, now())
                .await
                .is_ok()
        );
    });
}

#[test]
fn foreign_values_where_versions_are_take_no_decision() {
    let server = RedisServer::start();
    let settings = StoreSettings {
        timeout: Duration::from_secs(2),
        known_keys: true,
        ..server.settings()
    };
    let prefix = &settings.prefix;
    for value in ["words", "-5", "99999999999999999999999"] {
        server.run(&format!("SET {prefix}{{overrides}}version {value}"));
        server.run(&format!("SET {prefix}keys.version{{{prefix}keys}} {value}"));
        on_a_worker(async {
            let trial = Trial::with(settings.clone()).await;
            assert!(trial.ask().await.is_ok(), "{value}");
        });
    }
}
