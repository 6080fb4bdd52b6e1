//! The language of faults done to a store: a real Redis, a proxy for each policy, clients that ask
//! all the time, and what is owed to them before, while and after the store is away.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::house::{Answer, Client, PATIENCE, Tidegate, Upstream};
use crate::pace::Pace;
use crate::probe::eventually;
use crate::support::RedisServer;

/// Of a limit of 40 and a fleet of two.
pub const SHARE: usize = 20;
/// The decision's deadline where outages are looked at, and where only a store that is away, not a
/// busy machine, may keep a decision from being made.
const TIMEOUT: Duration = Duration::from_millis(250);
const LONG_TIMEOUT: Duration = Duration::from_secs(10);
/// Within which a store that is back must be used.
const SOON: Duration = Duration::from_secs(1);
/// How long something must have been so to be called steady.
const STEADY: Duration = Duration::from_millis(300);
/// Units of the limit that the load counts against; alone, a proxy has half of it.
const WIDE: u64 = 1_000_000;
/// Connections that ask all the time, for each proxy.
const CLIENTS: usize = 3;
/// How the end of an outage is told.
const BACK: &str = "redis: back";
const LOAD: &str = "GET / HTTP/1.1\r\nHost: test\r\nX-Key: load\r\n\r\n";

/// One answer under load.
#[derive(Clone, Debug)]
struct Sample {
    asked: Instant,
    took: Duration,
    answer: Answer,
    /// The store decided it, and not the proxy alone.
    shared: bool,
}

/// One proxy with its policy and some who ask it all the time.
pub struct Watched {
    pub policy: &'static str,
    pub proxy: Tidegate,
    timeout: Duration,
    pace: Pace,
    samples: Arc<Mutex<Vec<Sample>>>,
    stop: Arc<AtomicBool>,
    load: Vec<JoinHandle<()>>,
}

impl Watched {
    fn start(policy: &'static str, redis: u16, upstream: &Upstream, timeout: Duration) -> Watched {
        let proxy = Tidegate::start(&format!(
            "upstream = \"{}\"\n\
             [store]\nurl = \"redis://127.0.0.1:{}\"\nprefix = \"{policy}:\"\nfleet = 2\n\
             timeout = \"{}ms\"\non_error = \"{policy}\"\n\
             [log]\ndecisions = \"decisions.jsonl\"\naccess = \"access.jsonl\"\nformat = \"json\"\n\
             [limit.wide]\nrate = \"{WIDE}/day\"\nkey = \"header:x-key\"\n\
             [limit.tight]\nrate = \"40/day\"\nkey = \"header:x-key\"\n\
             [limit.count]\nrate = \"40/day\"\nkey = \"header:x-key\"\n\
             algorithm = \"counter\"\n\
             [[route]]\npath = \"/*\"\nlimits = [\"wide\"]\n\
             [[route]]\npath = \"/tight\"\nlimits = [\"tight\"]\n\
             [[route]]\npath = \"/count\"\nlimits = [\"count\"]\n",
            upstream.url(),
            redis,
            timeout.as_millis()
        ));
        let (samples, stop) = (Arc::default(), Arc::new(AtomicBool::new(false)));
        let load = (0..CLIENTS).map(|_| {
            let (address, samples, stop) = (proxy.address, Arc::clone(&samples), Arc::clone(&stop));
            std::thread::spawn(move || ask_on(address, policy, &samples, &stop))
        });
        let load = load.collect();
        Watched {
            policy,
            proxy,
            timeout,
            pace: Pace::begin(),
            samples,
            stop,
            load,
        }
    }

    /// One request against the limit of 40.
    pub fn ask(&self, key: &str) -> Answer {
        self.ask_for("/tight", key)
    }

    pub fn ask_for(&self, path: &str, key: &str) -> Answer {
        // Without the connection's making: among thousands of connections that have just ended, the
        // kernel takes some first packets for old ones, and a second passes before the next.
        let mut client = self.proxy.connect();
        let began = Instant::now();
        let answer = client.ask(format!(
            "GET {path} HTTP/1.1\r\nHost: test\r\nX-Key: {key}\r\n\r\n"
        ));
        self.assert_in_time(self.policy, began.elapsed());
        answer
    }

    /// How many of so many requests pass.
    pub fn pass(&self, key: &str, count: usize) -> usize {
        (0..count).filter(|_| self.ask(key).status == 200).count()
    }

    fn since(&self, from: Instant) -> Vec<Sample> {
        let samples = self.samples.lock().unwrap();
        let asked = samples.iter().filter(|sample| sample.asked >= from);
        asked.cloned().collect()
    }

    #[track_caller]
    fn assert_in_time(&self, name: &str, took: Duration) {
        let grant = self.pace.grants();
        assert!(
            took < self.timeout + grant,
            "{name}: an answer took {took:?}, {grant:?} were granted"
        );
    }

    /// Whether for a while now all of the load was decided by the store, or none of it.
    fn is_steady(&self, shared: bool) -> bool {
        let samples = self.since(Instant::now() - STEADY);
        samples.len() >= CLIENTS && samples.iter().all(|sample| sample.shared == shared)
    }

    /// The store is away, and has been for a while.
    fn assert_away(&self, fault: &str, from: Instant) {
        let name = format!("{}, {fault}", self.policy);
        let samples = self.since(from);
        let waited = samples.iter().filter(|sample| sample.took >= TIMEOUT);
        assert!(
            4 * waited.count() < samples.len(),
            "{name}: requests wait for the store"
        );
        let passed = self.pass(fault, 2 * SHARE);
        match self.policy {
            "deny" => assert_eq!(passed, 0, "{name}: let through"),
            "allow" => assert_eq!(passed, 2 * SHARE, "{name}: kept out"),
            _ => assert_eq!(passed, SHARE, "{name}: the share"),
        }
    }

    /// Every request was answered in time, and as the policy says.
    fn assert_answered(&self, fault: &str, samples: &[Sample]) {
        let name = format!("{}, {fault}", self.policy);
        for sample in samples {
            self.assert_in_time(&name, sample.took);
            let answer = &sample.answer;
            if self.policy == "deny" && !sample.shared {
                assert_reduced(&name, answer);
            } else {
                assert_eq!(answer.status, 200, "{name}: {answer:?}");
            }
        }
    }

    /// An outage is told when it begins and when it ends, and not in between.
    fn assert_told_once(&self, fault: &Fault, pace: Pace) {
        let (mut told, mut fresh) = (Vec::new(), 0);
        eventually("its end is told", || {
            // Each worker notices by a decision of its own.
            fresh += 1;
            self.ask(&format!("told-{}-{fresh}", fault.name));
            let said = self.proxy.said().into_iter();
            let of_outages = |line: &String| ["on_error", BACK].iter().any(|it| line.contains(it));
            told.extend(said.filter(of_outages));
            told.last().is_some_and(|line| line.contains(BACK))
        });
        let begun = told.iter().filter(|line| line.contains("on_error")).count();
        let name = format!("{}, {}", self.policy, fault.name);
        // What is said before a proxy listens is read by nobody, and a machine that keeps everyone
        // waiting is an outage too.
        let unread = usize::from(fault.kinds.is_empty() && told[0].contains(BACK));
        let is_once = begun + unread == 1 || !pace.is_steady(TIMEOUT);
        let is_paired = told.len() == 2 * begun + unread && begun + unread > 0;
        assert!(is_once && is_paired, "{name}: {told:#?}");
        let named = |kind: &&str| told[0].contains(&format!("\"kind\":\"{kind}\""));
        let is_named = fault.kinds.is_empty() || fault.kinds.iter().any(named);
        assert!(is_named, "{name}: {told:#?}");
    }

    /// Ends the load and the proxy. What the store counted is what it decided and, at most, what
    /// it may have decided when no answer came: nothing was sent twice.
    fn end(mut self, remembers: bool) {
        self.stop.store(true, Ordering::Relaxed);
        for load in self.load.drain(..) {
            load.join().expect("every request of the load is answered");
        }
        let (mut used, mut tried) = (0, 0);
        eventually("the store says what it counted", || {
            let meter = self.proxy.connect().ask(LOAD);
            let is_told = is_shared(self.policy, &meter);
            if is_told {
                used = WIDE - remaining(&meter).unwrap() - 1;
            } else {
                tried += 1;
            }
            is_told
        });
        let samples = std::mem::take(&mut *self.samples.lock().unwrap());
        self.assert_answered("all the time", &samples);
        let decided = samples.iter().filter(|sample| sample.shared).count() as u64;
        self.proxy.signal("TERM");
        assert!(
            self.proxy.wait().success(),
            "{} does not end well",
            self.policy
        );
        let unsure = 2 * tried
            + match self.policy {
                "deny" => self.unsure(),
                // The others let such requests pass and write nothing of it.
                "allow" => samples.len() as u64 - decided,
                // What was admitted alone is charged afterwards, also where no answer had come.
                _ => 2 * (samples.len() as u64 - decided),
            };
        let name = self.policy;
        // When a proxy notices a loss, it charges every unit again. The store still has those units that
        // it decided between the loss and the notice. So a unit counts twice at most.
        let again = if remembers { 0 } else { decided };
        assert!(
            used <= decided + unsure + again,
            "{name}: {used} > {decided} + {unsure}"
        );
        assert!(used >= decided || !remembers, "{name}: {used} < {decided}");
        println!("{name:<6} used {used} decided {decided} unsure {unsure}");
    }

    /// Requests of the load that may have been charged although no decision came.
    fn unsure(&self) -> u64 {
        let log = std::fs::read_to_string(self.proxy.directory.path().join("access.jsonl"));
        let unsure = |line: &&str| {
            line.contains("\"path\":\"/\"")
                && ["timeout", "lost", "garbled"]
                    .iter()
                    .any(|reason| line.contains(&format!("\"reason\":\"{reason}\"")))
        };
        log.unwrap().lines().filter(unsure).count() as u64
    }
}

fn ask_on(address: SocketAddr, policy: &str, samples: &Mutex<Vec<Sample>>, stop: &AtomicBool) {
    let (mut client, mut is_first) = (Client::to(address), true);
    while !stop.load(Ordering::Relaxed) {
        let asked = Instant::now();
        let answer = client.ask(LOAD);
        // The first waits for a process that is just starting.
        let took = if is_first {
            Duration::ZERO
        } else {
            asked.elapsed()
        };
        is_first = false;
        let sample = Sample {
            asked,
            took,
            shared: is_shared(policy, &answer),
            answer,
        };
        samples.lock().unwrap().push(sample);
        std::thread::sleep(Duration::from_millis(15));
    }
}

fn remaining(answer: &Answer) -> Option<u64> {
    answer.header("x-ratelimit-remaining")?.parse().ok()
}

/// Whether the store decided: `local` has only its share to give, the others give no figures.
fn is_shared(policy: &str, answer: &Answer) -> bool {
    let least = if policy == "local" { WIDE / 2 } else { 0 };
    remaining(answer).is_some_and(|remaining| remaining >= least)
}

/// What `deny` answers.
#[track_caller]
pub fn assert_reduced(name: &str, answer: &Answer) {
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

/// A store that has something done to it.
pub struct Weather {
    pub redis: RedisServer,
    pub all: Vec<Watched>,
    _upstream: Upstream,
    /// A connection that stays when no other can be made.
    kept: Option<redis::Connection>,
    pub wire: Arc<AtomicU8>,
    /// Whatever a fault has to hold on to until it ends.
    pub held: Vec<JoinHandle<()>>,
}

/// What is done, and how it is undone.
pub struct Fault {
    pub name: &'static str,
    /// How it may be called when it is told; nothing if it is told before anyone listens.
    pub kinds: &'static [&'static str],
    pub begin: fn(&mut Weather),
    pub end: fn(&mut Weather),
}

impl Weather {
    /// All proxies use this server, and have reached it.
    pub fn fair(redis: RedisServer) -> Weather {
        let port = redis.port();
        Weather::start(redis, port, TIMEOUT).cleared()
    }

    /// The same with time to spare: what the store does not decide then is the fault's doing.
    pub fn patient(redis: RedisServer) -> Weather {
        let port = redis.port();
        Weather::start(redis, port, LONG_TIMEOUT).cleared()
    }

    /// The proxies reach the server by a relay on this port, which does to replies what `wire` says.
    pub fn through(redis: RedisServer, port: u16, wire: Arc<AtomicU8>) -> Weather {
        let mut weather = Weather::start(redis, port, TIMEOUT).cleared();
        weather.wire = wire;
        weather
    }

    fn cleared(mut self) -> Weather {
        self.clears("the start");
        self
    }

    /// The proxies are started; the server need not be.
    pub fn before(redis: RedisServer) -> Weather {
        let port = redis.port();
        Weather::start(redis, port, TIMEOUT)
    }

    fn start(redis: RedisServer, port: u16, timeout: Duration) -> Weather {
        let upstream = Upstream::ok();
        let all = ["local", "allow", "deny"]
            .map(|policy| Watched::start(policy, port, &upstream, timeout));
        Weather {
            redis,
            all: all.into(),
            _upstream: upstream,
            kept: None,
            wire: Arc::default(),
            held: Vec::new(),
        }
    }

    /// Runs a command, given as words, on the connection that stays.
    pub fn order(&mut self, words: &str) -> redis::Value {
        self.try_order(words)
            .unwrap_or_else(|error| panic!("{words}: {error}"))
    }

    pub fn try_order(&mut self, words: &str) -> redis::RedisResult<redis::Value> {
        let words: Vec<&str> = words.split(' ').collect();
        self.order_words(&words)
    }

    /// The same with words that may hold spaces.
    pub fn order_words(&mut self, words: &[&str]) -> redis::RedisResult<redis::Value> {
        let kept = self.kept.get_or_insert_with(|| self.redis.connect());
        redis::cmd(words[0]).arg(&words[1..]).query(kept)
    }

    /// The connection that stays is gone with its server.
    pub fn let_go(&mut self) {
        self.kept = None;
    }

    /// One fault from its begin to its end, under load.
    pub fn endures(&mut self, fault: &Fault) {
        let name = fault.name;
        self.all.iter().for_each(|one| drop(one.proxy.said()));
        let (began, pace) = (Instant::now(), Pace::begin());
        (fault.begin)(self);
        self.gathers();
        let steady = Instant::now();
        for one in &self.all {
            let many = || one.since(steady).len() >= 10 * CLIENTS;
            eventually("clients ask while the store is away", many);
        }
        self.all
            .iter()
            .for_each(|one| one.assert_away(name, steady));
        let waited = self.waited(steady);
        (fault.end)(self);
        let recovery = self.clears(name);
        self.all
            .iter()
            .for_each(|one| one.assert_told_once(fault, pace));
        self.report(name, began, (waited, recovery));
    }

    /// Something the store gets over by itself; what it does takes its time under load. How many
    /// requests it did not decide.
    pub fn stirs(&mut self, name: &str, cause: fn(&mut Weather)) -> usize {
        let began = Instant::now();
        cause(self);
        let recovery = self.clears(name);
        self.report(name, began, (String::new(), recovery));
        let samples = self.all.iter().flat_map(|one| one.since(began));
        samples.filter(|sample| !sample.shared).count()
    }

    /// Waits until the store decides nothing.
    pub fn gathers(&self) {
        for one in &self.all {
            let what = format!("{}: the store is away", one.policy);
            eventually(&what, || one.is_steady(false));
        }
    }

    /// Waits until the store decides everything, which must be soon. The time from now until the
    /// last request that it did not decide.
    pub fn clears(&mut self, name: &str) -> Duration {
        let (clear, pace) = (Instant::now(), Pace::begin());
        let mut last = clear;
        for one in &self.all {
            let what = format!("{}: the store is back, {name}", one.policy);
            eventually(&what, || one.is_steady(true));
        }
        for one in &self.all {
            let alone = one.since(clear).into_iter().filter(|sample| !sample.shared);
            last = alone.fold(last, |last, sample| last.max(sample.asked + sample.took));
        }
        let recovery = last - clear;
        let grant = pace.grants();
        assert!(
            recovery < SOON + grant,
            "back after {name} only in {recovery:?}, {grant:?} were granted"
        );
        recovery
    }

    /// How many of the requests since then waited for the store although it was known to be away.
    fn waited(&self, from: Instant) -> String {
        let samples: Vec<Sample> = self.all.iter().flat_map(|one| one.since(from)).collect();
        let waited = samples
            .iter()
            .filter(|sample| sample.took >= TIMEOUT * 4 / 5);
        format!("{}/{}", waited.count(), samples.len())
    }

    /// Figures, for whoever runs the tests with `--nocapture`.
    fn report(&self, name: &str, began: Instant, (waited, recovery): (String, Duration)) {
        for one in &self.all {
            let samples = one.since(began);
            one.assert_answered(name, &samples);
            let alone = samples.iter().filter(|sample| !sample.shared).count();
            let longest = samples.iter().map(|sample| sample.took).max();
            println!(
                "{name:<32} {:<6} answered {:>5} alone {alone:>5} longest {:>6.0?} \
                 waited while away {waited:<8} back in {recovery:.0?}",
                one.policy,
                samples.len(),
                longest.unwrap_or_default(),
            );
        }
    }

    /// Nothing the store was told is forgotten.
    pub fn ends(self) {
        self.end(true);
    }

    /// The store has forgotten what it was told, on the way.
    pub fn ends_forgetful(self) {
        self.end(false);
    }

    fn end(self, remembers: bool) {
        self.all.into_iter().for_each(|one| one.end(remembers));
        self.held.into_iter().for_each(|held| held.join().unwrap());
    }

    /// Waits for what `INFO` says.
    pub fn until_info(&mut self, line: &str) {
        let until = Instant::now() + PATIENCE;
        loop {
            let info = self.try_order("INFO").and_then(|info| {
                redis::from_redis_value::<String>(info).map_err(redis::RedisError::from)
            });
            match info {
                Ok(text) if text.lines().any(|found| found == line) => return,
                Ok(_) => {}
                Err(_) => self.let_go(),
            }
            assert!(Instant::now() < until, "INFO never says {line}");
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}
