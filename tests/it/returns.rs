//! Four proxies, one limit, and a Redis that goes away and comes back, in each of the ways in which
//! it can: the fullest window by the admissions' own times.
//!
//! `cargo test --test it -- returns --nocapture` prints the windows.

mod topologies;

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::house::{Client, Tidegate, Upstream};
use crate::probe::eventually;
use crate::support::RedisServer;

const PROXIES: usize = 4;
const LIMIT: usize = 400;
const WINDOW: Duration = Duration::from_secs(4);
/// How long the world is as usual.
const BEFORE: Duration = Duration::from_millis(1_500);

/// How the store goes away, and how it comes back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outage {
    KilledAndKeeps,
    Frozen,
    KilledAndEmpty,
    Flushed,
}

/// What happens to the last of the proxies while the store is away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mishap {
    None,
    Killed,
    /// It goes on a second after the store is back.
    Stopped,
}

/// What clients do meanwhile.
#[derive(Clone, Copy, Debug)]
struct Load {
    /// Milliseconds between two requests, for each proxy.
    paces: [u64; PROXIES],
    /// How long the store is away.
    away: Duration,
}

/// The limit is used up when the store goes away, hardly half of it is, one proxy has most of the
/// clients, and the store is away for longer than a window.
const LOADS: [Load; 4] = [
    load([8, 8, 8, 8], 1_500),
    load([28, 28, 28, 28], 1_500),
    load([4, 60, 60, 60], 1_500),
    load([12, 12, 12, 12], 5_000),
];

const fn load(paces: [u64; PROXIES], away_ms: u64) -> Load {
    Load {
        paces,
        away: Duration::from_millis(away_ms),
    }
}

/// Four proxies on the store of that URL; `counted` says how many the store has counted.
fn fleet(url: &str, upstream: &Upstream, counted: impl Fn() -> usize) -> Vec<Tidegate> {
    let config = format!(
        "upstream = \"{}\"\n[server]\nworkers = 2\n[log]\naccess = \"off\"\n\
         [store]\nurl = \"{url}\"\n\
         [limit.default]\nrate = \"{LIMIT}/{}s\"\nkey = \"global\"\n",
        upstream.url(),
        WINDOW.as_secs()
    );
    let proxies: Vec<Tidegate> = (0..PROXIES).map(|_| Tidegate::start(&config)).collect();
    eventually("all are counted", || counted() == PROXIES);
    // Each hears of the others with its next word.
    std::thread::sleep(Duration::from_millis(1_200));
    proxies
}

/// How many proxies a server has counted; none where it does not hold their names.
fn counted(redis: &RedisServer) -> usize {
    match redis.run("ZCARD tidegate:fleet") {
        redis::Value::Int(count) => usize::try_from(count).unwrap(),
        _ => 0,
    }
}

/// A request that was let through, in time since the beginning.
struct Passed {
    sent: Duration,
    answered: Duration,
}

/// Asks one proxy all the time, and returns when it was let through.
fn ask_on(address: SocketAddr, every_ms: u64, began: Instant, over: &AtomicBool) -> Vec<Passed> {
    let (mut client, mut passed) = (Client::to(address), Vec::new());
    while !over.load(Ordering::Relaxed) {
        let sent = began.elapsed();
        client.send("GET / HTTP/1.1\r\nHost: test\r\n\r\n");
        let Some(answer) = client.try_answer(false) else {
            break;
        };
        if answer.status == 200 {
            let answered = began.elapsed();
            passed.push(Passed { sent, answered });
        }
        std::thread::sleep(Duration::from_millis(every_ms));
    }
    passed
}

/// The most requests that were certainly decided within a window's length: each after the first of
/// them was sent, and answered before the window's end. A busy machine delays both stamps, so a
/// stamp alone would say too much.
fn fullest(passed: &[Passed]) -> usize {
    let within = |first: &Passed| {
        let end = first.sent + WINDOW;
        let certain = passed
            .iter()
            .filter(|one| one.sent >= first.sent && one.answered <= end);
        certain.count()
    };
    passed.iter().map(within).max().unwrap_or(0)
}

fn go_away(redis: &mut RedisServer, outage: Outage, away: Duration, half: impl FnOnce()) {
    match outage {
        Outage::KilledAndKeeps | Outage::KilledAndEmpty => redis.kill(),
        Outage::Frozen => redis.freeze(),
        Outage::Flushed => {}
    }
    if outage != Outage::Flushed {
        std::thread::sleep(away / 2);
        half();
        std::thread::sleep(away / 2);
    }
    match outage {
        Outage::KilledAndKeeps | Outage::KilledAndEmpty => redis.restart(),
        Outage::Frozen => redis.thaw(),
        Outage::Flushed => drop(redis.run("FLUSHALL")),
    }
}

/// How many of the limit the fullest window held.
fn window_of(outage: Outage, load: Load, mishap: Mishap) -> usize {
    let keeps: &[&str] = match outage {
        Outage::KilledAndKeeps => &["--appendonly", "yes", "--appendfsync", "always"],
        _ => &[],
    };
    let (mut redis, upstream) = (RedisServer::start_with(keeps), Upstream::ok());
    let url = format!("redis://127.0.0.1:{}", redis.port());
    let proxies = fleet(&url, &upstream, || counted(&redis));
    let victim = &proxies[PROXIES - 1];
    let name = format!("{outage:?} {load:?} {mishap:?}");
    fullest_window(&name, &proxies, load.paces, || {
        let away = Instant::now();
        go_away(&mut redis, outage, load.away, || match mishap {
            Mishap::None => {}
            Mishap::Killed => victim.signal("KILL"),
            Mishap::Stopped => victim.signal("STOP"),
        });
        let back = Instant::now();
        std::thread::sleep(Duration::from_secs(1));
        if mishap == Mishap::Stopped {
            victim.signal("CONT");
        }
        (away, back)
    })
}

/// The requests that all proxies let through.
struct Admissions {
    began: Instant,
    passed: Vec<Passed>,
}

impl Admissions {
    /// Those that were answered from one time to another.
    fn within(&self, from: Instant, to: Instant) -> usize {
        let within = |one: &&Passed| (from..to).contains(&(self.began + one.answered));
        self.passed.iter().filter(within).count()
    }
}

/// Returns the most that a window held.
fn fullest_window(
    name: &str,
    proxies: &[Tidegate],
    paces: [u64; PROXIES],
    outage: impl FnOnce() -> (Instant, Instant),
) -> usize {
    fullest(&admissions(name, proxies, paces, outage).passed)
}

/// Has clients ask all proxies while `outage` happens, and for two windows more. `outage` returns
/// when the store was away and when it was back.
fn admissions(
    name: &str,
    proxies: &[Tidegate],
    paces: [u64; PROXIES],
    outage: impl FnOnce() -> (Instant, Instant),
) -> Admissions {
    let (began, over) = (Instant::now(), AtomicBool::new(false));
    let (passed, away, back) = std::thread::scope(|scope| {
        let over = &over;
        let addresses = proxies.iter().map(|proxy| proxy.address);
        let clients: Vec<_> = (addresses.zip(paces))
            .map(|(at, every_ms)| scope.spawn(move || ask_on(at, every_ms, began, over)))
            .collect();
        std::thread::sleep(BEFORE);
        let (away, back) = outage();
        std::thread::sleep(WINDOW * 2);
        over.store(true, Ordering::Relaxed);
        let passed = clients.into_iter().map(|client| client.join().unwrap());
        (passed.collect::<Vec<_>>(), away, back)
    });
    let each: Vec<usize> = passed.iter().map(Vec::len).collect();
    let passed: Vec<Passed> = passed.into_iter().flatten().collect();
    let (most, end) = (fullest(&passed), Instant::now());
    let all = Admissions { began, passed };
    let second_after = back + Duration::from_secs(1);
    println!(
        "{name}: fullest window {most} of {LIMIT}; {} before, {} in the {:.1?} without, {} in 1 s \
         after, {} later; by proxy {each:?}",
        all.within(began, away),
        all.within(away, back),
        back - away,
        all.within(back, second_after),
        all.within(second_after, end),
    );
    assert!(all.within(back + WINDOW, end) > 0, "it works again");
    all
}

#[track_caller]
fn assert_no_window_is_overfull(outage: Outage, loads: &[Load]) {
    for load in loads {
        let most = window_of(outage, *load, Mishap::None);
        assert!(most <= LIMIT, "{outage:?} {load:?}: {most}");
    }
}

#[test]
fn no_window_is_overfull_when_redis_is_killed_and_returns_with_its_data() {
    assert_no_window_is_overfull(Outage::KilledAndKeeps, &LOADS);
}

#[test]
fn no_window_is_overfull_when_redis_is_frozen_and_thaws() {
    assert_no_window_is_overfull(Outage::Frozen, &LOADS);
}

#[test]
fn no_window_is_overfull_when_redis_is_killed_and_returns_empty() {
    assert_no_window_is_overfull(Outage::KilledAndEmpty, &LOADS);
}

#[test]
fn no_window_is_overfull_when_redis_is_flushed() {
    assert_no_window_is_overfull(Outage::Flushed, &LOADS[..3]);
}

#[test]
fn no_window_is_overfull_when_a_proxy_is_killed_or_stopped_meanwhile() {
    for mishap in [Mishap::Killed, Mishap::Stopped] {
        for outage in [Outage::KilledAndKeeps, Outage::Frozen] {
            let most = window_of(outage, LOADS[1], mishap);
            assert!(most <= LIMIT, "{outage:?} {mishap:?}: {most}");
        }
    }
}
