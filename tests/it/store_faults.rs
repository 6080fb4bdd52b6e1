//! Redis fails in every way we know of, under a small steady load, with each policy: every request
//! is answered in time, nobody is let through beyond what `on_error` says, and the store is used
//! again soon after it is back.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::house::{Answer, Tidegate, Upstream};
use crate::probe::eventually;
use crate::support::RedisServer;

/// Of a limit of 40 and a fleet of two.
const SHARE: usize = 20;
/// The decision's deadline in these tests.
const TIMEOUT: Duration = Duration::from_millis(250);
/// What a loaded machine may add to it.
const MARGIN: Duration = Duration::from_secs(4);
/// A second, said on a loaded machine.
const SOON: Duration = Duration::from_secs(5);

/// One answer under load.
#[derive(Clone, Debug)]
struct Sample {
    asked: Instant,
    took: Duration,
    answer: Answer,
}

/// One proxy with its policy and somebody who asks it all the time.
struct Watched {
    policy: &'static str,
    proxy: Tidegate,
    samples: Arc<Mutex<Vec<Sample>>>,
    stop: Arc<AtomicBool>,
    load: Option<JoinHandle<()>>,
}

impl Watched {
    fn start(policy: &'static str, redis: &RedisServer, upstream: &Upstream) -> Watched {
        // For `local` the limit is tight and by key; for the others nothing but an outage denies.
        let rate = if policy == "local" {
            "40/day"
        } else {
            "1_000_000/day"
        };
        let proxy = Tidegate::start(&format!(
            "upstream = \"{}\"\n\
             [store]\nurl = \"redis://127.0.0.1:{}\"\nprefix = \"{policy}:\"\nfleet = 2\n\
             timeout = \"{}ms\"\non_error = \"{policy}\"\n\
             [log]\ndecisions = \"decisions.jsonl\"\naccess = \"off\"\n\
             [limit.default]\nrate = \"{rate}\"\nkey = \"header:x-key\"\n",
            upstream.url(),
            redis.port(),
            TIMEOUT.as_millis()
        ));
        let (samples, stop) = (
            Arc::new(Mutex::new(Vec::new())),
            Arc::new(AtomicBool::new(false)),
        );
        let (taken, stopped, address) = (samples.clone(), stop.clone(), proxy.address);
        let load = std::thread::spawn(move || {
            let mut client = crate::house::Client::to(address);
            while !stopped.load(Ordering::Relaxed) {
                let asked = Instant::now();
                let answer = client.ask("GET / HTTP/1.1\r\nHost: test\r\nX-Key: load\r\n\r\n");
                taken.lock().unwrap().push(Sample {
                    asked,
                    took: asked.elapsed(),
                    answer,
                });
                std::thread::sleep(Duration::from_millis(10));
            }
        });
        Watched {
            policy,
            proxy,
            samples,
            stop,
            load: Some(load),
        }
    }

    fn ask(&self, key: &str) -> Answer {
        let began = Instant::now();
        let answer = self.proxy.get_with("/", &format!("X-Key: {key}\r\n"));
        self.assert_in_time(began.elapsed());
        answer
    }

    fn assert_in_time(&self, took: Duration) {
        assert!(
            took < TIMEOUT + MARGIN,
            "{}: an answer took {took:?}",
            self.policy
        );
    }

    /// What was asked after an instant.
    fn since(&self, from: Instant) -> Vec<Sample> {
        let samples = self.samples.lock().unwrap();
        samples
            .iter()
            .filter(|sample| sample.asked >= from)
            .cloned()
            .collect()
    }

    /// Whether the store decides again: a fresh key is charged in Redis.
    fn is_back(&self, redis: &RedisServer, key: &str) -> bool {
        let pattern = format!("{}:*", self.policy);
        let before = names(redis, &pattern).len();
        let answer = self.ask(key);
        answer.status == 200
            && answer.header("ratelimit").is_some()
            && names(redis, &pattern).len() > before
    }

    /// The store is away, and has been for a while.
    fn assert_away(&self, fault: &str, from: Instant) {
        let name = format!("{}, {fault}", self.policy);
        let samples = self.since(from);
        assert!(
            samples.len() >= 3,
            "{name}: only {} were answered",
            samples.len()
        );
        let mut took: Vec<Duration> = samples.iter().map(|sample| sample.took).collect();
        took.sort();
        assert!(
            took[took.len() / 2] < TIMEOUT,
            "{name}: requests wait for the store: {took:?}"
        );
        for Sample { answer, .. } in &samples {
            match self.policy {
                "deny" => assert_reduced(&name, answer),
                "allow" => assert_eq!(answer.status, 200, "{name}: {answer:?}"),
                _ => assert!(matches!(answer.status, 200 | 429), "{name}: {answer:?}"),
            }
        }
        let burst: Vec<Answer> = (0..2 * SHARE).map(|_| self.ask(fault)).collect();
        let passed = burst.iter().filter(|answer| answer.status == 200).count();
        match self.policy {
            "deny" => assert_eq!(passed, 0, "{name}: let through"),
            "allow" => assert_eq!(passed, burst.len(), "{name}: kept out"),
            _ => assert_eq!(passed, SHARE, "{name}: the share"),
        }
    }

    /// An outage is told when it begins and when it ends, and not in between.
    fn assert_told_once(&self, fault: &str) {
        let (mut told, mut fresh) = (Vec::new(), 0);
        eventually("its end is told", || {
            // Each worker notices by a decision of its own.
            fresh += 1;
            self.ask(&format!("told-{fault}-{fresh}"));
            told.extend(
                self.proxy
                    .said()
                    .into_iter()
                    .filter(|line| line.contains("redis: ")),
            );
            told.last().is_some_and(|line| line.contains("redis: back"))
        });
        let begun = told.iter().filter(|line| line.contains("on_error")).count();
        assert_eq!(
            (told.len(), begun),
            (2, 1),
            "{}, {fault}: {told:#?}",
            self.policy
        );
    }

    fn end(mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.load
            .take()
            .unwrap()
            .join()
            .expect("every request of the load is answered");
        for sample in self.samples.lock().unwrap().iter() {
            self.assert_in_time(sample.took);
        }
    }
}

fn assert_reduced(name: &str, answer: &Answer) {
    assert_eq!(answer.status, 503, "{name}: {answer:?}");
    answer.assert_problem(503);
    let text = answer.text();
    assert!(
        text.contains("problem-types#temporary-reduced-capacity"),
        "{name}: {text}"
    );
    let wait = answer.header("retry-after").expect("when to come back");
    assert!(
        wait.parse::<u64>().is_ok_and(|seconds| seconds >= 1),
        "{name}: {wait}"
    );
}

fn start_all(redis: &RedisServer, upstream: &Upstream) -> Vec<Watched> {
    ["local", "allow", "deny"]
        .map(|policy| Watched::start(policy, redis, upstream))
        .into()
}

fn recovered(all: &[Watched], redis: &RedisServer, fault: &str) {
    let began = Instant::now();
    for one in all {
        let mut attempt = 0;
        eventually(&format!("{} is back after {fault}", one.policy), || {
            attempt += 1;
            one.is_back(redis, &format!("back-{fault}-{attempt}"))
        });
    }
    assert!(
        began.elapsed() < SOON,
        "back after {fault} only in {:?}",
        began.elapsed()
    );
}

type Change = fn(&mut RedisServer);

/// Faults during which the store cannot decide, and how they end.
const AWAY: [(&str, Change, Change); 6] = [
    ("killed", RedisServer::kill, RedisServer::restart),
    ("frozen", |redis| redis.freeze(), |redis| redis.thaw()),
    (
        "out of memory",
        |redis| {
            redis.run("CONFIG SET maxmemory-policy noeviction");
            redis.run("CONFIG SET maxmemory 1");
        },
        |redis| {
            redis.run("CONFIG SET maxmemory 0");
        },
    ),
    (
        "read-only",
        |redis| {
            redis.run("REPLICAOF 127.0.0.1 1");
        },
        |redis| {
            redis.run("REPLICAOF NO ONE");
        },
    ),
    (
        "paused",
        |redis| {
            redis.run("CLIENT PAUSE 60000 WRITE");
        },
        |redis| {
            redis.run("CLIENT UNPAUSE");
        },
    ),
    (
        "not to be entered",
        |redis| {
            redis.run("ACL SETUSER default nocommands +acl|setuser");
            redis.run("CLIENT KILL TYPE normal");
        },
        |redis| {
            redis.run("ACL SETUSER default allcommands");
        },
    ),
];

#[test]
fn while_redis_is_away_each_policy_holds() {
    let mut redis = RedisServer::start();
    let upstream = Upstream::ok();
    let all = start_all(&redis, &upstream);
    recovered(&all, &redis, "the start");
    all.iter().for_each(|one| drop(one.proxy.said()));
    for (fault, begin, end) in AWAY {
        begin(&mut redis);
        std::thread::sleep(Duration::from_millis(1500));
        let steady = Instant::now();
        std::thread::sleep(Duration::from_millis(300));
        for one in &all {
            one.assert_away(fault, steady);
        }
        end(&mut redis);
        recovered(&all, &redis, fault);
        all.iter().for_each(|one| one.assert_told_once(fault));
    }
    all.into_iter().for_each(Watched::end);
}

/// Faults that the store gets over by itself.
const HICCUPS: [(&str, Change); 6] = [
    ("restarted empty", RedisServer::restart),
    ("FLUSHALL", |redis| {
        redis.run("FLUSHALL");
    }),
    ("SCRIPT FLUSH all the time", |redis| {
        for _ in 0..100 {
            redis.run("SCRIPT FLUSH");
            std::thread::sleep(Duration::from_millis(5));
        }
    }),
    ("CLIENT KILL", |redis| {
        for _ in 0..5 {
            redis.run("CLIENT KILL TYPE normal");
            std::thread::sleep(Duration::from_millis(100));
        }
    }),
    ("everything gone but of a wrong type", |redis| {
        for policy in ["local", "allow", "deny"] {
            for name in names(redis, &format!("{policy}:*")) {
                redis.run(&format!("DEL {name}"));
                redis.run(&format!("RPUSH {name} x y"));
            }
        }
    }),
    ("a wrong type", |redis| {
        for policy in ["local", "allow", "deny"] {
            let names = ours(redis, policy);
            assert!(!names.is_empty(), "{policy} keeps nothing in Redis");
            for name in names {
                redis.run(&format!("DEL {name}"));
                redis.run(&format!("RPUSH {name} x y"));
            }
        }
    }),
];

/// Names of the keys that hold counts.
fn ours(redis: &RedisServer, policy: &str) -> Vec<String> {
    names(redis, &format!("{policy}:*default*"))
}

fn names(redis: &RedisServer, pattern: &str) -> Vec<String> {
    redis::cmd("KEYS")
        .arg(pattern)
        .query(&mut redis.connect())
        .unwrap_or_default()
}

#[test]
fn redis_gets_over_a_hiccup_and_so_do_we() {
    let mut redis = RedisServer::start();
    let upstream = Upstream::ok();
    let all = start_all(&redis, &upstream);
    recovered(&all, &redis, "the start");
    for (fault, cause) in HICCUPS {
        let began = Instant::now();
        cause(&mut redis);
        recovered(&all, &redis, fault);
        for one in &all {
            for Sample { answer, .. } in one.since(began) {
                match answer.status {
                    503 => {
                        assert_eq!(one.policy, "deny", "{fault}: {answer:?}");
                        assert_reduced(fault, &answer);
                        assert!(
                            !fault.starts_with("SCRIPT"),
                            "a flushed script is loaded again"
                        );
                    }
                    status => assert!(matches!(status, 200 | 429), "{fault}: {answer:?}"),
                }
            }
        }
    }
    all.into_iter().for_each(Watched::end);
}

#[test]
fn redis_may_be_away_at_the_start() {
    let mut redis = RedisServer::down();
    let upstream = Upstream::ok();
    let all = start_all(&redis, &upstream);
    std::thread::sleep(Duration::from_millis(300));
    let steady = Instant::now();
    std::thread::sleep(Duration::from_millis(300));
    for one in &all {
        one.assert_away("away at the start", steady);
    }
    redis.restart();
    recovered(&all, &redis, "its first start");
    all.into_iter().for_each(Watched::end);
}

#[test]
fn an_outage_is_no_second_helping() {
    // The proxy's own admissions are known to its local store, and what was admitted before an
    // outage that Redis survives still counts after it.
    let redis = RedisServer::start();
    let upstream = Upstream::ok();
    let all = start_all(&redis, &upstream);
    recovered(&all, &redis, "the start");
    let one = &all[0];
    let pass = |count: usize| {
        (0..count)
            .filter(|_| one.ask("glutton").status == 200)
            .count()
    };
    assert_eq!(pass(15), 15);
    redis.freeze();
    std::thread::sleep(Duration::from_millis(1500));
    let meanwhile = pass(60);
    assert!(
        meanwhile <= SHARE.saturating_sub(15),
        "{meanwhile} during the outage, 15 before it"
    );
    redis.thaw();
    recovered(&all, &redis, "the freeze");
    let after = pass(60);
    assert!(after <= 40 - 15, "{after} after it, 15 before");
    all.into_iter().for_each(Watched::end);
}

#[test]
fn a_wrong_password_is_an_outage_and_no_secret() {
    let redis = RedisServer::start_with(&["--requirepass", "right"]);
    let upstream = Upstream::ok();
    let proxy = Tidegate::start(&format!(
        "upstream = \"{}\"\n[store]\nurl = \"redis://:wrong-secret@127.0.0.1:{}\"\n\
         on_error = \"deny\"\n[limit.default]\nrate = \"5/day\"\n",
        upstream.url(),
        redis.port()
    ));
    let warning = proxy.wait_for_line("redis: the store");
    assert!(!warning.contains("wrong-secret"), "{warning}");
    assert_reduced("a wrong password", &proxy.get("/"));
    assert!(upstream.seen().is_empty());
}
