//! The decision log, audited: an independent and naive model of the limits replays what running
//! proxies decided and must agree on every field.
//!
//! The model keeps every admission and finds every wait by trying; it shares nothing with the
//! product but the words of the log.

use std::collections::BTreeMap;
use std::path::Path;

use crate::house::{Answer, Tidegate, Upstream};
use crate::support::{Chance, RedisServer};

/// One line of the log.
#[derive(Debug)]
pub struct Line {
    pub t: i64,
    pub local: bool,
    pub items: Vec<(String, String, i64)>,
    pub allowed: bool,
    /// used, remaining, retry_after_us, reset_us
    pub limits: BTreeMap<String, [i64; 4]>,
}

impl Line {
    fn parse(text: &str) -> Line {
        let mut words = text
            .split(['{', '}', '[', ']', ',', ':', '"'])
            .filter(|word| !word.is_empty());
        let mut next = || words.next().unwrap_or_else(|| panic!("too short: {text}"));
        let number = |word: &str| {
            word.parse::<i64>()
                .unwrap_or_else(|_| panic!("{word} in {text}"))
        };
        assert_eq!(next(), "t");
        let t = number(next());
        let mut word = next();
        let local = word == "source";
        if local {
            assert_eq!(next(), "local");
            word = next();
        }
        assert_eq!(word, "items");
        let mut items = Vec::new();
        word = next();
        while word != "allowed" {
            items.push((word.to_owned(), next().to_owned(), number(next())));
            word = next();
        }
        let allowed = next() == "true";
        assert_eq!(next(), "limits");
        let mut limits = BTreeMap::new();
        for _ in &items {
            let name = next().to_owned();
            let fields = ["used", "remaining", "retry_after_us", "reset_us"].map(|field| {
                assert_eq!(next(), field, "{text}");
                number(next())
            });
            limits.insert(name, fields);
        }
        Line {
            t,
            local,
            items,
            allowed,
            limits,
        }
    }
}

/// The decisions of proxies that have ended, by the store's time.
pub fn decisions<'a>(logs: impl IntoIterator<Item = &'a Path>) -> Vec<Line> {
    let read = |log| std::fs::read_to_string(log).unwrap();
    let texts: Vec<String> = logs.into_iter().map(read).collect();
    let mut lines: Vec<Line> = texts
        .iter()
        .flat_map(|text| text.lines())
        .map(Line::parse)
        .collect();
    lines.sort_by_key(|line| line.t);
    lines
}

#[derive(Clone, Copy)]
pub enum Counting {
    Log,
    Counter,
}

/// A limit as the model knows it.
#[derive(Clone, Copy)]
pub struct Rule {
    pub counting: Counting,
    pub units: i64,
    pub window_us: i64,
}

/// Everything that one key was ever admitted.
type Admitted = Vec<(i64, i64)>;

impl Rule {
    /// In 1/window units, so that nothing is rounded.
    fn exactly_used(&self, admitted: &Admitted, t: i64) -> i128 {
        let (window, t) = (i128::from(self.window_us), i128::from(t));
        let sum = |from: i128, to: i128| -> i128 {
            let within = |s: i64| from <= i128::from(s) && i128::from(s) < to;
            admitted
                .iter()
                .filter(|(s, _)| within(*s))
                .map(|(_, cost)| i128::from(*cost))
                .sum()
        };
        match self.counting {
            Counting::Log => sum(t - window + 1, t + 1) * window,
            Counting::Counter => {
                let begin = t - t % window;
                sum(begin - window, begin) * (window - t % window) + sum(begin, t + 1) * window
            }
        }
    }

    fn used(&self, admitted: &Admitted, t: i64) -> i64 {
        let window = i128::from(self.window_us);
        i64::try_from((self.exactly_used(admitted, t) + window - 1) / window).unwrap()
    }

    fn allows(&self, admitted: &Admitted, cost: i64, t: i64) -> bool {
        let (window, more) = (i128::from(self.window_us), i128::from(cost));
        self.exactly_used(admitted, t) + more * window <= i128::from(self.units) * window
    }

    /// The smallest wait after which `is_so`, which once so stays so.
    fn wait(&self, is_so: impl Fn(i64) -> bool) -> i64 {
        let (mut never, mut then) = (-1, 2 * self.window_us);
        while then - never > 1 {
            let middle = (never + then) / 2;
            if is_so(middle) {
                then = middle;
            } else {
                never = middle;
            }
        }
        then
    }
}

/// Replays decisions; panics at the first that differs from the model.
pub fn replay(lines: &[Line], rules: &BTreeMap<&str, Rule>) {
    let mut kept: BTreeMap<(String, String), Admitted> = BTreeMap::new();
    for (number, line) in lines.iter().enumerate() {
        let allowed = line.items.iter().all(|(limit, key, cost)| {
            let admitted = kept.entry((limit.clone(), key.clone())).or_default();
            rules[limit.as_str()].allows(admitted, *cost, line.t)
        });
        for (limit, key, cost) in &line.items {
            let (rule, t) = (rules[limit.as_str()], line.t);
            let admitted = kept.entry((limit.clone(), key.clone())).or_default();
            let used = rule.used(admitted, t);
            let retry = if *cost > rule.units {
                -1
            } else {
                rule.wait(|wait| rule.allows(admitted, *cost, t + wait))
            };
            if allowed && *cost > 0 {
                admitted.push((t, *cost));
            }
            let left = (rule.units - rule.used(admitted, t)).max(0);
            let reset = rule.wait(|wait| rule.used(admitted, t + wait) == 0);
            let told = line.limits[limit];
            assert_eq!(
                told,
                [used, left, retry, reset],
                "line {number}, {limit}: {line:#?}"
            );
        }
        assert_eq!(line.allowed, allowed, "line {number}: {line:#?}");
    }
}

/// The most units that any interval of the window's length holds.
fn fullest_window(lines: &[Line], limit: &str, window_us: i64) -> i64 {
    let units = |line: &Line| -> i64 {
        let of = line.items.iter().filter(|(name, ..)| name == limit);
        if line.allowed {
            of.map(|(_, _, cost)| cost).sum()
        } else {
            0
        }
    };
    let (mut from, mut held, mut most) = (0, 0, 0);
    for line in lines {
        held += units(line);
        while lines[from].t <= line.t - window_us {
            held -= units(&lines[from]);
            from += 1;
        }
        most = most.max(held);
    }
    most
}

/// Ends proxies, so that their logs are whole, and reads these.
fn end_and_read(mut proxies: Vec<Tidegate>) -> Vec<Line> {
    proxies.iter().for_each(|proxy| proxy.signal("TERM"));
    proxies.iter_mut().for_each(|proxy| {
        proxy.wait();
    });
    let logs: Vec<_> = proxies
        .iter()
        .map(|proxy| proxy.directory.path().join("decisions.jsonl"))
        .collect();
    decisions(logs.iter().map(AsRef::as_ref))
}

const RANDOM: &str = "[log]\ndecisions = \"decisions.jsonl\"\naccess = \"off\"\n\
    [limit.narrow]\nrate = \"12/400ms\"\nkey = \"header:x-a\"\n\
    [limit.wide]\nrate = \"40/3s\"\nkey = [\"header:x-a\", \"header:x-b\"]\ncost = 2\n\
    [limit.counted]\nrate = \"30/700ms\"\nkey = \"header:x-b\"\nalgorithm = \"counter\"\n\
    [[route]]\npath = \"/*\"\nlimits = [\"narrow\", \"wide\", \"counted\"]\n\
    cost = \"header:x-cost\"\n[[route]]\npath = \"/narrow\"\nlimits = [\"narrow\"]\n\
    cost = \"header:x-cost\"\n";

fn random_rules() -> BTreeMap<&'static str, Rule> {
    let rule = |counting, units, window_us| Rule {
        counting,
        units,
        window_us,
    };
    BTreeMap::from([
        ("narrow", rule(Counting::Log, 12, 400_000)),
        ("wide", rule(Counting::Log, 40, 3_000_000)),
        ("counted", rule(Counting::Counter, 30, 700_000)),
    ])
}

/// Random requests to all proxies at once; how many were answered 200, and 429.
fn random_load(proxies: &[Tidegate], each: usize) -> (usize, usize) {
    let addresses: Vec<_> = proxies.iter().map(|proxy| proxy.address).collect();
    let work = |seed: u64| {
        let mut chance = Chance(seed);
        let mut client = crate::house::Client::to(chance.pick(&addresses));
        let mut counts = (0, 0);
        for _ in 0..each {
            let target = chance.pick(&["/", "/narrow", "/x"]);
            let (a, b) = (chance.below(3), chance.below(2));
            let cost = chance.pick(&[0, 1, 1, 1, 2, 3, 5, 7, 13, 21]);
            let answer: Answer = client.ask(format!(
                "GET {target} HTTP/1.1\r\nHost: test\r\nX-A: {a}\r\nX-B: {b}\r\nX-Cost: {cost}\r\n\r\n"
            ));
            match answer.status {
                200 => counts.0 += 1,
                429 => counts.1 += 1,
                other => panic!("{other}: {answer:?}"),
            }
            std::thread::sleep(std::time::Duration::from_micros(chance.below(30_000)));
        }
        counts
    };
    let work = &work;
    std::thread::scope(|scope| {
        let threads: Vec<_> = (1..=6)
            .map(|seed| scope.spawn(move || work(seed)))
            .collect();
        let counts = threads.into_iter().map(|thread| thread.join().unwrap());
        counts.fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1))
    })
}

fn audit(store: &str, proxies: usize) {
    let upstream = Upstream::ok();
    let top = format!(
        "upstream = \"{}\"\ntrusted_proxies = [\"127.0.0.1\"]\n",
        upstream.url()
    );
    let config = format!("{top}{store}{RANDOM}");
    let proxies: Vec<Tidegate> = (0..proxies).map(|_| Tidegate::start(&config)).collect();
    for proxy in &proxies {
        crate::probe::eventually("the store is up", || {
            proxy.get_with("/", "X-Cost: 0\r\n").status == 200
        });
    }
    let (passed, denied) = random_load(&proxies, 150);
    assert_eq!(passed + denied, 900);
    assert!(
        passed > 50 && denied > 50,
        "{passed} passed, {denied} were denied"
    );
    let lines = end_and_read(proxies);
    assert!(
        lines.iter().all(|line| !line.local),
        "decided without the store"
    );
    let told = lines
        .iter()
        .filter(|line| line.allowed && line.items.iter().any(|item| item.2 > 0));
    assert!(told.count() <= passed && lines.len() >= 900);
    replay(&lines, &random_rules());
}

/// Decisions that wait rather than fall back: these tests are about what Redis decides.
fn patient(redis: &RedisServer) -> String {
    let url = format!("redis://127.0.0.1:{}", redis.port());
    format!("[store]\nurl = \"{url}\"\ntimeout = \"5s\"\non_error = \"deny\"\n")
}

#[test]
fn the_embedded_store_decides_as_the_model_does() {
    audit("[store]\nurl = \"memory:\"\n", 1);
}

#[test]
fn redis_decides_as_the_model_does() {
    let redis = RedisServer::start();
    audit(&patient(&redis), 1);
}

#[test]
fn two_proxies_of_one_redis_decide_as_the_model_does() {
    let redis = RedisServer::start();
    audit(&patient(&redis), 2);
}

#[test]
fn two_proxies_of_one_redis_hold_one_limit_exactly() {
    let redis = RedisServer::start();
    let upstream = Upstream::ok();
    let config = format!(
        "upstream = \"{}\"\n{}[log]\ndecisions = \"decisions.jsonl\"\naccess = \"off\"\n\
         [limit.default]\nrate = \"60/1500ms\"\nkey = \"global\"\n",
        upstream.url(),
        patient(&redis)
    );
    let proxies: Vec<Tidegate> = (0..2).map(|_| Tidegate::start(&config)).collect();
    for proxy in &proxies {
        crate::probe::eventually("the store is up", || proxy.get("/").status != 503);
    }
    let served: usize = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..6)
            .map(|number: usize| {
                let mut client = proxies[number % 2].connect();
                scope.spawn(move || {
                    let until = std::time::Instant::now() + std::time::Duration::from_secs(5);
                    let mut served = 0;
                    while std::time::Instant::now() < until {
                        let answer = client.ask("GET / HTTP/1.1\r\nHost: test\r\n\r\n");
                        assert!(matches!(answer.status, 200 | 429), "{answer:?}");
                        served += usize::from(answer.status == 200);
                    }
                    served
                })
            })
            .collect();
        threads
            .into_iter()
            .map(|thread| thread.join().unwrap())
            .sum()
    });
    let lines = end_and_read(proxies);
    assert!(
        lines.iter().all(|line| !line.local),
        "decided without the store"
    );
    assert_eq!(fullest_window(&lines, "default", 1_500_000), 60);
    // Nobody was let through unseen, and the budget was spent again as soon as it came back.
    let admitted = lines.iter().filter(|line| line.allowed).count();
    assert!(
        admitted >= served && admitted == upstream.seen().len(),
        "{admitted}, {served}"
    );
    assert!(
        served >= 120,
        "a limit of 60 per 1.5 s, over 5 s, let only {served} pass"
    );
}
