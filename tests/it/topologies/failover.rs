//! Failovers under load. Owed: every request is answered in time, the new master decides about a
//! second after the sentinels have agreed on it, and nothing is admitted twice but what the old
//! master had not passed on, nor forgotten but what a late master may have counted.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::certificates::Certificates;
use super::sentinels::{Constellation, NAME, Sentinel};
use super::{assert_decides, keys, strict};
use crate::admin::Looked;
use crate::house::{Answer, Client, Upstream};
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
/// What is left for it: before, it has eaten more than a proxy of two gives by itself.
const LEFT: usize = 50;

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
    looked: Looked,
    samples: Arc<Mutex<Vec<Sample>>>,
    stop: Arc<AtomicBool>,
    load: Option<JoinHandle<()>>,
}

impl Loaded {
    fn start(policy: &'static str, store: &str, upstream: &Upstream) -> Loaded {
        let looked = Looked::start(&format!(
            "upstream = \"{}\"\n[store]\nurl = \"{store}\"\nprefix = \"{policy}:\"\nfleet = 2\n\
             timeout = \"{}ms\"\non_error = \"{policy}\"\n[log]\naccess = \"off\"\n\
             [limit.default]\nrate = \"{LIMIT}/day\"\nkey = \"header:x-key\"\n\
             [limit.meal]\nrate = \"{LIMIT}/day\"\nkey = \"header:x-key\"\n\
             [[route]]\npath = \"/*\"\nlimits = [\"default\"]\n\
             [[route]]\npath = \"/meal\"\nlimits = [\"meal\"]\n",
            upstream.url(),
            TIMEOUT.as_millis()
        ));
        let samples: Arc<Mutex<Vec<Sample>>> = Arc::default();
        let stop = Arc::new(AtomicBool::new(false));
        let (taken, stopped, address) =
            (Arc::clone(&samples), stop.clone(), looked.tidegate.address);
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
            looked,
            samples,
            stop,
            load: Some(load),
        }
    }

    /// Whether a fresh key is charged on that server.
    fn decides_on(&self, server: &RedisServer, key: &str) -> bool {
        let pattern = format!("{}:{{*", self.policy);
        let before = keys(server, &pattern).len();
        let answer = self.get("/", key);
        answer.status == 200 && keys(server, &pattern).len() > before
    }

    fn get(&self, path: &str, key: &str) -> Answer {
        let line = format!("X-Key: {key}\r\n");
        self.looked.tidegate.get_with(path, &line)
    }

    /// How many of so many meals pass; one that is answered 503 is asked for again.
    fn passed(&self, key: &str, count: usize) -> usize {
        let ask = |_: &usize| {
            let mut status = 503;
            eventually("the store decides", || {
                status = self.get("/meal", key).status;
                status != 503
            });
            status == 200
        };
        (0..count).filter(ask).count()
    }

    /// A glutton who has eaten all but the rest, as the store has counted: none of it was decided
    /// here, and so nothing of it is owed or may have been counted twice.
    fn glutton(&self) -> String {
        let (mut name, mut attempt) = (String::new(), 0);
        eventually("the store decides on a whole meal", || {
            attempt += 1;
            name = format!("glutton-{attempt}");
            let before = self.without();
            let passed = self.passed(&name, LIMIT - LEFT);
            let is_known = self.without().meals == before.meals;
            assert!(passed == LIMIT - LEFT || !is_known, "{passed}");
            is_known
        });
        name
    }

    /// What the proxy itself has counted until now.
    fn without(&self) -> Without {
        let metrics = self.looked.get("/metrics").text();
        let sum = |is: &dyn Fn(&str) -> bool| {
            let samples = metrics.lines().filter_map(|line| line.rsplit_once(' '));
            let ours = samples.filter(|(name, _)| is(name));
            ours.map(|(_, count)| count.parse::<usize>().unwrap()).sum()
        };
        Without {
            meals: sum(&|name| {
                name.starts_with("tidegate_decisions_total{limit=\"meal\"")
                    && name.ends_with("source=\"local\"}")
            }),
            unsure: sum(&|name| {
                name.starts_with("tidegate_store_errors_total{") && !name.contains("\"away\"")
            }),
        }
    }

    /// The glutton asks for more than is left until the store has decided on all that it asked
    /// for: it gets the rest, but for what the store may have counted without being heard, `since`.
    fn assert_gets_the_rest(&self, glutton: &str, since: &Without) {
        let (mut passed, mut last) = (0, self.without());
        eventually("the store decides on all", || {
            passed += self.passed(glutton, LIMIT);
            let before = std::mem::replace(&mut last, self.without());
            last.meals == before.meals
        });
        let meals = last.meals - since.meals;
        let unsure = meals.min(last.unsure - since.unsure);
        let told = format!(
            "{}: {passed} passed, {meals} decided without the store, {unsure} unsure",
            self.policy
        );
        eprintln!("{told}");
        let is_exact = (LEFT.saturating_sub(unsure)..=LEFT).contains(&passed);
        assert!(is_exact, "{told}: {:#?}", self.looked.tidegate.said());
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

/// What a proxy had to decide without the store.
struct Without {
    meals: usize,
    /// Requests of all kinds that the store may have been asked for, and was not heard.
    unsure: usize,
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

/// A constellation, proxies on it under load with their gluttons, and its first master.
fn start(upstream: &Upstream) -> (Constellation, [Loaded; 2], [String; 2], u16) {
    let constellation = Constellation::start();
    let url = constellation.url();
    let both = ["local", "deny"].map(|policy| Loaded::start(policy, &url, upstream));
    let first = constellation.master().expect("a master");
    back(&both, constellation.server(first), Instant::now(), "start");
    // Eaten before the failover and passed on: it still counts after it.
    let gluttons = [&both[0], &both[1]].map(Loaded::glutton);
    constellation.replicated(first);
    (constellation, both, gluttons, first)
}

/// What the old master admitted at the end and nobody copied is forgotten, and nothing else.
fn end(both: [Loaded; 2], gluttons: &[String; 2], lost: (Instant, Instant), shares: [usize; 2]) {
    for ((one, glutton), share) in both.into_iter().zip(gluttons).zip(shares) {
        one.assert_gets_the_rest(glutton, &one.without());
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
    let (mut constellation, both, gluttons, first) = start(&upstream);
    let killed = Instant::now();
    constellation.kill(first);
    // The load's own key may be used up by then, and its denials need no store.
    eventually("somebody notices", || {
        both[1].get("/", "anybody").status == 503
    });
    let (agreed, second) = constellation.agreed(first);
    let took = back(&both, constellation.server(second), agreed, "killed");
    eprintln!(
        "killed: sentinels agreed after {:?}, decisions {took:?} later",
        agreed - killed
    );
    assert!(took < SOON, "only {took:?} after the sentinels had agreed");
    // `local` has nothing to give the glutton of its own: 150 are more than its share of 100.
    end(
        both,
        &gluttons,
        (killed - Duration::from_secs(1), killed),
        [LIMIT / 2, 0],
    );
}

#[test]
fn a_frozen_master_that_wakes_up_again_is_left_alone() {
    let upstream = Upstream::ok();
    let (constellation, both, gluttons, first) = start(&upstream);
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
        &gluttons,
        (frozen - Duration::from_secs(1), frozen),
        [LIMIT / 2, 0],
    );
}

#[test]
fn when_the_master_is_asked_to_go_nobody_is_refused() {
    let upstream = Upstream::ok();
    let (constellation, both, gluttons, first) = start(&upstream);
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
    end(both, &gluttons, (planned, moved), [LIMIT / 2, 0]);
}

/// What a busy machine may do to any master, done on purpose: as long as it is late, `local` has
/// nothing to give to who has eaten more than its share, and nothing is forgotten nor owed.
#[test]
fn a_master_that_is_late_in_the_middle_of_a_meal_has_not_forgotten_it() {
    let (redis, upstream) = (RedisServer::start(), Upstream::ok());
    let url = format!("redis://127.0.0.1:{}", redis.port());
    for policy in ["local", "deny"] {
        let one = Loaded::start(policy, &url, &upstream);
        back(std::slice::from_ref(&one), &redis, Instant::now(), "start");
        let glutton = one.glutton();
        let before = one.without();
        redis.run("CLIENT PAUSE 60000 WRITE");
        for _ in 0..LIMIT {
            let status = one.get("/meal", &glutton).status;
            assert!(matches!(status, 429 | 503), "{policy}: {status}");
        }
        redis.run("CLIENT UNPAUSE");
        one.assert_gets_the_rest(&glutton, &before);
        one.end();
    }
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
    assert!(
        line.contains("no sentinel names a server that is a master"),
        "{line}"
    );
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
    assert!(
        line.contains("no sentinel names a server that is a master"),
        "{line}"
    );
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
