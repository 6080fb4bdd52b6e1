//! The clock of the store steps, both ways, while clients ask. Time in Redis is the wall clock plus
//! what a file says: `clock.c`, since Debian's libfaketime and the allocator of its Redis wait for
//! each other.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use tidegate::config::StoreSettings;
use tidegate::limit::{Algorithm, Rule};
use tidegate::store::{Backing, Store};

use crate::house::Answer;
use crate::probe::eventually;
use crate::support::{RedisServer, limit, log_rule, on_a_worker, one};
use crate::weather::{Watched, Weather};

const HOUR: i64 = 3_600;
const DAY: i64 = 24 * HOUR;

/// A Redis whose clock is set by [`set`].
pub fn redis() -> RedisServer {
    let mut redis = RedisServer::down();
    let [library, offset] = files(redis.directory());
    redis.will_have(&[], &[("LD_PRELOAD", &library), ("CLOCK_OFFSET", &offset)]);
    redis.restart();
    redis
}

/// Builds the library in a directory, and the file that sets its clock. Returns their paths.
pub fn files(directory: &Path) -> [String; 2] {
    let library = directory.join("clock.so");
    let built = Command::new("cc")
        .args(["-shared", "-fPIC", "-O1", "-o"])
        .arg(&library)
        .arg(concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/tests/it/redis_faults/clock.c"
        ))
        .status();
    assert!(built.expect("a C compiler").success());
    set_in(directory, 0);
    [library, directory.join("offset")].map(|path| path.to_str().unwrap().to_owned())
}

/// Sets its clock so many seconds off; it is when it is next asked.
pub fn set(redis: &RedisServer, offset: i64) {
    set_in(redis.directory(), offset);
}

pub fn set_in(directory: &Path, offset: i64) {
    std::fs::write(directory.join("next"), format!("{offset:+}")).unwrap();
    std::fs::rename(directory.join("next"), directory.join("offset")).unwrap();
}

/// Sets the clock so many seconds off, and waits until it is.
fn step(weather: &mut Weather, offset: i64) {
    set(&weather.redis, offset);
    let now = || tidegate::clock::unix_us() as i64 / 1_000_000;
    eventually("the clock is set", || {
        let time = weather.order("TIME");
        let (seconds, _): (i64, i64) = redis::from_redis_value(time).unwrap();
        (seconds - now() - offset).abs() <= 2
    });
    // Every worker is told by the next answer it gets, and forgets denials it knew by heart.
    for one in &weather.all {
        for fresh in 0..20 {
            let answer = one.ask(&format!("told of {offset} {fresh}"));
            assert_eq!(answer.status, 200, "{answer:?}");
        }
    }
}

#[test]
fn slots_of_a_killed_proxy_are_free_after_their_lease_by_a_clock_that_stepped_back() {
    let (server, lease) = (redis(), Duration::from_secs(2));
    let rule = Rule {
        algorithm: Algorithm::Slots,
        ..log_rule(1, lease)
    };
    let charge = one(&limit("left", rule), 1, 1);
    on_a_worker(async {
        let open = async || {
            let settings = StoreSettings {
                timeout: Duration::from_secs(10),
                ..server.settings()
            };
            let store = Backing::new(&settings, None).unwrap().open();
            store.ready().await;
            store
        };
        let is_allowed = async |store: &Store| {
            let generation = store.hash_key().generation;
            let decision = store.charge(&charge, generation, tidegate::clock::now());
            decision.await.unwrap().allowed
        };
        // It holds the slot, and never says so again.
        assert!(is_allowed(&open().await).await);
        set(&server, -HOUR);
        let (other, begun) = (open().await, std::time::Instant::now());
        while !is_allowed(&other).await {
            assert!(begun.elapsed() < 5 * lease, "it is held on");
            tokio::time::sleep(lease / 20).await;
        }
    });
}

/// Passes of so many requests; a denial's wait must be one that the limit can cause.
fn pass(one: &Watched, path: &str, count: usize) -> usize {
    let answers: Vec<Answer> = (0..count).map(|_| one.ask_for(path, "walker")).collect();
    for answer in answers.iter().filter(|answer| answer.status != 200) {
        assert_eq!(answer.status, 429, "{answer:?}");
        let wait = answer.header("retry-after").unwrap();
        let wait: i64 = wait.parse().unwrap();
        assert!((1..=2 * DAY).contains(&wait), "{answer:?}");
    }
    let passed = answers.iter().filter(|answer| answer.status == 200);
    passed.count()
}

#[test]
fn a_clock_that_steps_forgives_nothing_that_has_not_aged() {
    let mut weather = Weather::patient(redis());
    let alone = weather.stirs("clock steps", |weather| {
        for path in ["/tight", "/count"] {
            for one in &weather.all {
                let passed = pass(one, path, 60);
                // Two windows of the counter meet at midnight.
                assert!(passed == 40 || path == "/count" && passed == 41, "{passed}");
            }
        }
        for offset in [
            60,
            0,
            -HOUR,
            -HOUR + 60,
            -DAY - HOUR,
            -40 * DAY,
            -40 * DAY + 60,
        ] {
            step(weather, offset);
            for path in ["/tight", "/count"] {
                for one in &weather.all {
                    assert_eq!(pass(one, path, 10), 0, "{} {path} {offset}", one.policy);
                }
            }
        }
        // By the time that has passed since then, all have aged.
        step(weather, 0);
        for path in ["/tight", "/count"] {
            for one in &weather.all {
                let passed = pass(one, path, 60);
                assert!(passed == 40 || path == "/count" && passed == 41, "{passed}");
            }
        }
    });
    assert_eq!(alone, 0, "a step is no outage");
    weather.ends_forgetful();
}
