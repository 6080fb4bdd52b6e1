//! Counts across reloads: a number that is changed neither resets nor refills anything.

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
