//! Failovers under load. Owed: every request is answered in time, the new master decides about a
//! second after the sentinels have agreed on it, and nothing is admitted twice but what the old
//! master had not passed on.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::certificates::Certificates;
use super::sentinels::{Constellation, NAME, Sentinel};
use super::{assert_decides, keys, strict};
use crate::house::{Answer, Client, Tidegate, Upstream};
use crate::probe::eventually;
use crate::support::{RedisServer, free_port};

/// The decision's deadline, with room for a busy machine.
const TIMEOUT: Duration = Duration::from_millis(250);
/// What a busy machine may add to any answer.
const MARGIN: Duration = Duration::from_secs(4);
/// A second, and what a busy machine may add.
const SOON: Duration = Duration::from_secs(5);
/// Units of the limit that the glutton eats from.
const LIMIT: usize = 200;

/// One answer under load.
#[derive(Clone)]
struct Sample {
    asked: Instant,
    took: Duration,
    answer: Answer,
}

impl Sample {
    fn passed(&self) -> bool {
        self.answer.status == 200
    }
}

/// A proxy with its policy and a client that asks it all the time.
struct Loaded {
    policy: &'static str,
    proxy: Tidegate,
    samples: Arc<Mutex<Vec<Sample>>>,
    stop: Arc<AtomicBool>,
    load: Option<JoinHandle<()>>,
}

impl Loaded {
    fn start(policy: &'static str, constellation: &Constellation, upstream: &Upstream) -> Loaded {
        let proxy = Tidegate::start(&format!(
            "upstream = \"{}\"\n[store]\nurl = \"{}\"\nprefix = \"{policy}:\"\nfleet = 2\n\
             timeout = \"{}ms\"\non_error = \"{policy}\"\n[log]\naccess = \"off\"\n\
             [limit.default]\nrate = \"{LIMIT}/day\"\nkey = \"header:x-key\"\n",
            upstream.url(),
            constellation.url(),
            TIMEOUT.as_millis()
        ));
        let samples: Arc<Mutex<Vec<Sample>>> = Arc::default();
        let stop = Arc::new(AtomicBool::new(false));
        let (taken, stopped, address) = (Arc::clone(&samples), stop.clone(), proxy.address);
        let load = std::thread::spawn(move || {
            let mut client = Client::to(address);
            while !stopped.load(Ordering::Relaxed) {
                let asked = Instant::now();
                let answer = client.ask("GET / HTTP/1.1\r\nHost: test\r\nX-Key: load\r\n\r\n");
                let sample = Sample {
                    asked,
                    took: asked.elapsed(),
                    answer,
                };
                taken.lock().unwrap().push(sample);
                std::thread::sleep(Duration::from_millis(8));
            }
        });
        Loaded {
            policy,
            proxy,
            samples,
            stop,
            load: Some(load),
        }
    }

    /// Whether a fresh key is charged on that server.
    fn decides_on(&self, server: &RedisServer, key: &str) -> bool {
        let pattern = format!("{}:{{*", self.policy);
        let before = keys(server, &pattern).len();
        let answer = self.proxy.get_with("/", &format!("X-Key: {key}\r\n"));
        answer.status == 200 && keys(server, &pattern).len() > before
    }

    /// How many of so many requests pass; one that is answered 503 is asked again.
    fn passed(&self, key: &str, count: usize) -> usize {
        let ask = |_: &usize| {
            let mut status = 503;
            eventually("the store decides", || {
                status = self
                    .proxy
                    .get_with("/", &format!("X-Key: {key}\r\n"))
                    .status;
                status != 503
            });
            status == 200
        };
        (0..count).filter(ask).count()
    }

    /// What the load was answered within that time.
    fn during(&self, (from, to): (Instant, Instant)) -> impl Iterator<Item = Sample> {
        let samples = self.samples().into_iter();
        samples.filter(move |sample| (from..=to).contains(&sample.asked))
    }

    fn samples(&self) -> Vec<Sample> {
        self.samples.lock().unwrap().clone()
    }

    fn end(mut self) {
        self.stop.store(true, Ordering::Relaxed);
        let load = self.load.take().unwrap();
        load.join().expect("every request is answered");
        for Sample { took, answer, .. } in self.samples() {
            assert!(took < TIMEOUT + MARGIN, "{}: {took:?}", self.policy);
            match self.policy {
                "deny" => assert!(matches!(answer.status, 200 | 429 | 503), "{answer:?}"),
                _ => assert!(matches!(answer.status, 200 | 429), "{answer:?}"),
            }
        }
    }
}

/// Waits until both decide on that server, and says how long that was after an instant.
fn back(both: &[Loaded], server: &RedisServer, since: Instant, name: &str) -> Duration {
    for one in both {
        let mut attempt = 0;
        eventually(&format!("{} decides on the new master", one.policy), || {
            attempt += 1;
            one.decides_on(server, &format!("{name}-{attempt}"))
        });
    }
    since.elapsed()
}

/// A constellation, proxies on it under load, and its first master.
fn start(upstream: &Upstream) -> (Constellation, [Loaded; 2], u16) {
    let constellation = Constellation::start();
    let both = ["local", "deny"].map(|policy| Loaded::start(policy, &constellation, upstream));
    let first = constellation.master().expect("a master");
    back(&both, constellation.server(first), Instant::now(), "start");
    // Eaten before the failover and passed on: it still counts after it.
    for one in &both {
        assert_eq!(one.passed("glutton", LIMIT - 50), LIMIT - 50);
    }
    constellation.replicated(first);
    (constellation, both, first)
}

/// What the old master admitted at the end and nobody copied is forgotten, and nothing else.
fn end(both: [Loaded; 2], lost: (Instant, Instant), shares: [usize; 2]) {
    for (one, share) in both.into_iter().zip(shares) {
        let passed = one.passed("glutton", LIMIT);
        match one.policy {
            // It has nothing to give by itself, should a busy machine make the store late.
            "local" => assert!((1..=50).contains(&passed), "{passed}"),
            _ => assert_eq!(passed, 50, "{}", one.policy),
        }
        let lost = one.during(lost).filter(|one| one.passed()).count();
        let all = one.samples().iter().filter(|one| one.passed()).count();
        eprintln!(
            "{}: {all} of {LIMIT} admitted, {lost} maybe lost",
            one.policy
        );
        assert!(all <= LIMIT + share + lost, "{}", one.policy);
        one.end();
    }
}

#[test]
fn when_the_master_is_killed_the_next_one_decides_soon() {
    let upstream = Upstream::ok();
    let (mut constellation, both, first) = start(&upstream);
    let killed = Instant::now();
    constellation.kill(first);
    let (agreed, second) = constellation.agreed(first);
    let refused = |sample: &Sample| sample.answer.status == 503;
    let outage = both[1].during((killed, agreed)).any(|one| refused(&one));
    assert!(outage, "nobody noticed");
    let took = back(&both, constellation.server(second), agreed, "killed");
    eprintln!(
        "killed: sentinels agreed after {:?}, decisions {took:?} later",
        agreed - killed
    );
    assert!(took < SOON, "only {took:?} after the sentinels had agreed");
    // `local` has nothing to give the glutton of its own: 150 are more than its share of 100.
    end(
        both,
        (killed - Duration::from_secs(1), killed),
        [LIMIT / 2, 0],
    );
}

#[test]
fn a_frozen_master_that_wakes_up_again_is_left_alone() {
    let upstream = Upstream::ok();
    let (constellation, both, first) = start(&upstream);
    let frozen = Instant::now();
    constellation.server(first).freeze();
    let (agreed, second) = constellation.agreed(first);
    let took = back(&both, constellation.server(second), agreed, "frozen");
    eprintln!(
        "frozen: sentinels agreed after {:?}, decisions {took:?} later",
        agreed - frozen
    );
    assert!(took < SOON, "only {took:?} after the sentinels had agreed");
    // For some seconds it says that it is a master, and takes writes.
    constellation.server(first).thaw();
    end(
        both,
        (frozen - Duration::from_secs(1), frozen),
        [LIMIT / 2, 0],
    );
}

#[test]
fn when_the_master_is_asked_to_go_nobody_is_refused() {
    let upstream = Upstream::ok();
    let (constellation, both, first) = start(&upstream);
    let planned = Instant::now();
    let (agreed, second) = constellation.fail_over(first);
    let took = back(&both, constellation.server(second), agreed, "planned");
    let moved = Instant::now();
    eprintln!(
        "planned: sentinels agreed after {:?}, decisions {took:?} later",
        agreed - planned
    );
    assert!(took < SOON, "only {took:?} after the sentinels had agreed");
    let during: Vec<Sample> = both[1].during((planned, moved)).collect();
    let refused = during.iter().filter(|one| one.answer.status == 503).count();
    eprintln!("planned: {refused} of {} answered 503", during.len());
    end(both, (planned, moved), [LIMIT / 2, 0]);
}

#[test]
fn a_master_that_no_sentinel_knows_is_away() {
    let redis = RedisServer::start();
    let sentinel = Sentinel::start(redis.port(), 1, "");
    let upstream = Upstream::ok();
    let url = |name: &str| {
        format!(
            "url = \"redis+sentinel://127.0.0.1:{}/{name}\"\n",
            sentinel.port
        )
    };
    let proxy = strict(&upstream, &url("mian"));
    let line = proxy.wait_for_line("redis: ");
    assert!(line.contains("no sentinel names a master"), "{line}");
    assert_eq!(proxy.get("/").status, 503);
    assert_decides(&strict(&upstream, &url(NAME)), "known");
}

#[test]
fn a_replica_is_no_master_whoever_says_so() {
    let (master, replica) = (RedisServer::start(), RedisServer::start());
    replica.run(&format!("REPLICAOF 127.0.0.1 {}", master.port()));
    let sentinel = Sentinel::start(replica.port(), 1, "");
    let upstream = Upstream::ok();
    let url = format!(
        "url = \"redis+sentinel://127.0.0.1:{}/{NAME}\"\n",
        sentinel.port
    );
    let proxy = strict(&upstream, &url);
    let line = proxy.wait_for_line("redis: ");
    assert!(line.contains("no sentinel names a master"), "{line}");
    assert_eq!(proxy.get("/").status, 503);
    replica.run("REPLICAOF NO ONE");
    eventually("it is one now", || {
        proxy.get_with("/", "X-Key: late\r\n").status == 200
    });
}

#[test]
fn the_sentinel_that_knows_of_the_last_failover_is_believed() {
    let (old, new) = (RedisServer::start(), RedisServer::start());
    let outdated = Sentinel::start(old.port(), 1, "");
    let nobody = free_port();
    let upstream = Upstream::ok();
    let proxy = strict(
        &upstream,
        &format!(
            "url = \"redis+sentinel://127.0.0.1:{},127.0.0.1:{nobody}/{NAME}\"\n",
            outdated.port
        ),
    );
    assert_decides(&proxy, "before");
    assert_eq!(keys(&old, "tidegate:{*").len(), 2);
    // The old master lives on, and a sentinel goes on to name it.
    let later = format!("sentinel config-epoch {NAME} 7");
    let informed = Sentinel::start_on(nobody, new.port(), 1, &later).expect("a free port");
    eventually("the new master decides", || {
        proxy.get_with("/", "X-Key: moved\r\n");
        !keys(&new, "tidegate:{*").is_empty()
    });
    let before = keys(&old, "tidegate:{*").len();
    for client in 0..20 {
        let answer = proxy.get_with("/", &format!("X-Key: {client}\r\n"));
        assert_eq!(answer.status, 200);
    }
    assert_eq!(keys(&old, "tidegate:{*").len(), before, "it went back");
    // Sentinels that have been made anew know of no failover: better than none.
    drop((informed, new));
    eventually("the only master that is left decides", || {
        proxy.get_with("/", "X-Key: again\r\n").status == 200
    });
}

#[test]
fn sentinels_and_master_behind_tls_with_logins_of_their_own() {
    let (certificates, tls_port) = (Certificates::new(), free_port());
    let mut words = certificates.server("good", tls_port);
    words.extend(["--tls-auth-clients", "no", "--requirepass", "MASTER"].map(str::to_owned));
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let _redis = RedisServer::start_with(&words);
    let path = |name: &str| certificates.path(name).display().to_string();
    let lines = format!(
        "tls-port $PORT\ntls-replication yes\ntls-auth-clients no\ntls-cert-file {}\n\
         tls-key-file {}\ntls-ca-cert-file {}\nrequirepass SENTINEL",
        path("good.pem"),
        path("good.key"),
        path("ca.pem")
    );
    let sentinel = Sentinel::start(tls_port, 1, &lines);
    std::fs::write(certificates.path("password"), "SENTINEL").unwrap();
    let settings = |sentinel_login: &str| {
        format!(
            "url = \"rediss+sentinel://:MASTER@localhost:{}/{NAME}\"\n{sentinel_login}\
             [store.tls]\nca = \"{}\"\n",
            sentinel.port,
            path("ca.pem")
        )
    };
    let upstream = Upstream::ok();
    let login = format!("sentinel_password_file = \"{}\"\n", path("password"));
    assert_decides(&strict(&upstream, &settings(&login)), "both");
    let without = strict(&upstream, &settings(""));
    let line = without.wait_for_line("redis: ");
    assert!(line.contains("noauth"), "{line}");
    assert_eq!(without.get("/").status, 503);
}
