//! Counts across reloads: a number that is changed neither resets nor refills anything.

use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::{Gate, assert_said};
use crate::house::{Answer, Tidegate, Upstream};
use crate::support::RedisServer;

const TEN: &str = "upstream = \"$UPSTREAM\"\n[limit.default]\nrate = \"10/h\"\n";

fn remaining(answer: &Answer) -> Option<u64> {
    answer.header("x-ratelimit-remaining")?.parse().ok()
}

#[test]
fn a_changed_rate_keeps_what_is_counted() {
    let gate = Gate::start(TEN);
    for left in (4..10).rev() {
        assert_eq!(remaining(&gate.proxy.get("/")), Some(left));
    }
    let said = gate.reload(&TEN.replace("10/h", "8/h"));
    assert_said(&said, "limit default: 10/h -> 8/h");
    assert_eq!(remaining(&gate.proxy.get("/")), Some(1));
    gate.reload(&TEN.replace("10/h", "3/h"));
    let denied = gate.proxy.get("/");
    assert_eq!((denied.status, remaining(&denied)), (429, Some(0)));
    gate.reload(&TEN.replace("10/h", "20/h"));
    assert_eq!(remaining(&gate.proxy.get("/")), Some(12));
}

#[test]
fn a_window_of_another_length_is_told_to_begin_anew() {
    let gate = Gate::start(TEN);
    gate.proxy.get("/");
    let said = gate.reload(&TEN.replace("10/h", "10/min"));
    assert_said(&said, "limit default: counts start at zero");
    assert_eq!(remaining(&gate.proxy.get("/")), Some(9));
    gate.reload(TEN);
    assert_eq!(
        remaining(&gate.proxy.get("/")),
        Some(8),
        "the hour was not forgotten"
    );
}

/// A limit of which each request takes 100 units.
fn hundreds(store: &str, rate: &str) -> String {
    format!(
        "upstream = \"$UPSTREAM\"\n{store}[limit.default]\nrate = \"{rate}\"\nkey = \"global\"\n\
         cost = 100\n"
    )
}

/// How many requests pass until one is denied.
fn passing(proxy: &Tidegate) -> usize {
    (0..100)
        .take_while(|_| proxy.get("/").status == 200)
        .count()
}

fn redis_url(redis: &RedisServer) -> String {
    format!(
        "[store]\nurl = \"redis://127.0.0.1:{}\"\ntimeout = \"5s\"\n",
        redis.port()
    )
}

#[test]
fn a_limit_raised_over_a_thousand_units_keeps_what_is_counted_in_both_directions() {
    let redis = RedisServer::start();
    for store in [String::new(), redis_url(&redis)] {
        let gate = Gate::start(&hundreds(&store, "600/h"));
        crate::probe::eventually("the store is up", || gate.proxy.get("/").status == 200);
        assert_eq!(passing(&gate.proxy), 5, "{store}");
        for (rate, more) in [
            ("1200/h", 6),
            ("900/h", 0),
            ("1500/h", 3),
            ("600/h", 0),
            ("1000/h", 0),
            ("2000/h\"\nprecision = \"1min", 5),
            ("2500/h\"\nalgorithm = \"log", 5),
            ("2600/h", 1),
        ] {
            let said = gate.reload(&hundreds(&store, rate));
            let anew = said.iter().find(|line| line.contains("start at zero"));
            assert_eq!(anew, None, "{store}{rate}");
            assert_eq!(passing(&gate.proxy), more, "{store}{rate}");
        }
    }
}

#[test]
fn proxies_with_the_old_and_the_new_limit_on_one_redis_count_together() {
    let (redis, upstream) = (RedisServer::start(), Upstream::ok());
    let start = |rate: &str| {
        let config = hundreds(&redis_url(&redis), rate).replace("$UPSTREAM", &upstream.url());
        let proxy = Tidegate::start(&config);
        crate::probe::eventually("the store is up", || proxy.get("/none").status != 503);
        proxy
    };
    // Each has used one request to see that the store is up.
    let (old, new) = (start("600/h"), start("1200/h"));
    let passes = |proxy: &Tidegate| proxy.get("/").status == 200;
    assert!(passes(&old) && passes(&new) && passes(&old) && passes(&new));
    assert!(!passes(&old), "600 of 600");
    assert_eq!(passing(&new), 6);
    assert!(!passes(&old) && !passes(&new));
}

/// Ten requests a day, counted in `redis`. A frozen server shows an outage after the timeout.
fn ten_a_day(redis: &RedisServer, settings: &str) -> String {
    format!(
        "upstream = \"$UPSTREAM\"\n[server]\nworkers = 1\n\
         [store]\nurl = \"redis://127.0.0.1:{}\"\nfleet = 1\n{settings}\n\
         [limit.default]\nrate = \"10/day\"\nkey = \"global\"\n",
        redis.port()
    )
}

/// A proxy that has admitted four of them.
fn four_of_ten(redis: &RedisServer) -> Gate {
    let gate = Gate::start(&ten_a_day(redis, "timeout = \"1s\""));
    for _ in 0..4 {
        assert_eq!(gate.proxy.get("/").status, 200);
    }
    gate
}

/// Sends requests until none waits for the store. Returns how many of them passed.
fn pass_until_away(proxy: &Tidegate) -> u64 {
    let mut passed = 0;
    crate::probe::eventually("the breaker is open", || {
        let began = Instant::now();
        passed += u64::from(proxy.get("/").status == 200);
        began.elapsed() < Duration::from_millis(250)
    });
    proxy.wait_for_line("limits follow on_error");
    passed
}

#[test]
fn a_reload_that_changes_how_to_reach_the_store_keeps_what_was_admitted_without_it() {
    let redis = RedisServer::start();
    let gate = four_of_ten(&redis);
    redis.freeze();
    let alone = pass_until_away(&gate.proxy);
    let said = gate
        .reload(&ten_a_day(&redis, "timeout = \"900ms\"\nfleet = 2").replace("fleet = 1\n", ""));
    assert!(
        !said.iter().any(|line| line.contains("new store")),
        "{said:#?}"
    );
    // Two proxies share ten units: this one has passed its half, or one more.
    assert!(
        passing(&gate.proxy) < 2,
        "4 and {alone} of 10 are known here"
    );
    gate.reload(&ten_a_day(&redis, "timeout = \"800ms\""));
    let more = passing(&gate.proxy) as u64;
    redis.thaw();
    gate.proxy.wait_for_line("redis: back");
    assert_eq!(passing(&gate.proxy), 0, "4, {alone} and {more} of 10");
}

/// Redis wants the password `new`, and no client is logged in any more.
fn rotate_password(redis: &RedisServer) {
    let mut operator = redis.connect();
    for words in [
        "CONFIG SET requirepass new",
        "CLIENT KILL TYPE normal SKIPME yes",
    ] {
        let mut words = words.split(' ');
        let mut command = redis::cmd(words.next().unwrap());
        for word in words {
            command.arg(word);
        }
        command.query::<redis::Value>(&mut operator).unwrap();
    }
}

#[test]
fn another_password_for_the_store_keeps_the_debts_of_the_outage_before_it() {
    let redis = RedisServer::start();
    let gate = four_of_ten(&redis);
    rotate_password(&redis);
    gate.proxy.wait_for_line("limits follow on_error");
    for _ in 0..3 {
        assert_eq!(gate.proxy.get("/").status, 200, "without the store");
    }
    std::fs::write(gate.file().with_file_name("password"), "new").unwrap();
    gate.reload(&ten_a_day(
        &redis,
        "timeout = \"1s\"\npassword_file = \"password\"",
    ));
    let left = remaining(&gate.proxy.get("/"));
    assert_eq!(left, Some(2), "4, then 3 without the store, then 1");
}

/// Answers `/wait` as soon as the flag is set, and everything else at once.
fn waiting_upstream() -> (Upstream, Arc<AtomicBool>) {
    let open = Arc::new(AtomicBool::new(false));
    let seen = Arc::clone(&open);
    let upstream = Upstream::start(move |request, stream| {
        if request.head.starts_with("GET /wait") {
            crate::probe::eventually("the test goes on", || seen.load(Ordering::Relaxed));
        }
        stream
            .write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
            .is_ok()
    });
    (upstream, open)
}

#[test]
fn a_request_that_outlives_its_store_frees_its_slot() {
    let redis = RedisServer::start();
    let (upstream, open) = waiting_upstream();
    let config = |timeout: &str| {
        format!(
            "upstream = \"$UPSTREAM\"\n[server]\nworkers = 1\n[store]\n\
             url = \"redis://127.0.0.1:{}\"\ntimeout = \"{timeout}\"\n\
             [limit.jobs]\nkey = \"global\"\nconcurrent = 1\nhold = \"1h\"\n\
             [[route]]\npath = \"/*\"\nlimits = [\"jobs\"]\n",
            redis.port()
        )
    };
    let gate = Gate::before(upstream, &config("5s"));
    for timeout in ["4s", "3s", "2s", "1s"] {
        open.store(false, Ordering::Relaxed);
        let mut waiting = gate.proxy.connect();
        waiting.send("GET /wait HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n");
        crate::probe::eventually("the slot is taken", || gate.proxy.get("/").status == 429);
        gate.reload(&config(timeout));
        assert_eq!(gate.proxy.get("/").status, 429, "the slot is still taken");
        open.store(true, Ordering::Relaxed);
        assert_eq!(waiting.answer().status, 200);
        crate::probe::eventually("the slot is free", || gate.proxy.get("/").status == 200);
    }
}

#[test]
fn a_request_of_the_old_password_does_not_hold_up_the_end_of_an_outage() {
    let redis = RedisServer::start();
    let (upstream, open) = waiting_upstream();
    let gate = Gate::before(upstream, &ten_a_day(&redis, "timeout = \"1s\""));
    let mut waiting = gate.proxy.connect();
    waiting.send("GET /wait HTTP/1.1\r\nHost: test\r\n\r\n");
    crate::probe::eventually("the request waits", || gate.upstream.seen().len() == 1);
    rotate_password(&redis);
    gate.proxy.wait_for_line("limits follow on_error");
    std::fs::write(gate.file().with_file_name("password"), "new").unwrap();
    gate.write(&ten_a_day(
        &redis,
        "timeout = \"1s\"\npassword_file = \"password\"",
    ));
    gate.proxy.signal("HUP");
    gate.proxy.wait_for_line("redis: back");
    open.store(true, Ordering::Relaxed);
    assert_eq!(waiting.answer().status, 200);
}
