//! The ledger while Redis, or the way to it, is away.

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::{ask, start, url, wait_for};
use crate::house::Upstream;
use crate::probe::eventually;
use crate::support::RedisServer;

/// Passes bytes on. While `cuts` is above 0, a call about the ledger is passed on, and its
/// connection ends before the answer.
fn relay(to: u16, cuts: &Arc<AtomicUsize>) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let cuts = Arc::clone(cuts);
    std::thread::spawn(move || {
        for proxy in listener.incoming().map_while(Result::ok) {
            let Ok(redis) = TcpStream::connect(("127.0.0.1", to)) else {
                continue;
            };
            let (calls, replies) = (proxy.try_clone().unwrap(), redis.try_clone().unwrap());
            let cuts = Arc::clone(&cuts);
            let is_cut = Arc::new(AtomicUsize::new(0));
            let marked = Arc::clone(&is_cut);
            std::thread::spawn(move || pass_calls(calls, redis, &cuts, &marked));
            std::thread::spawn(move || pass_replies(replies, proxy, &is_cut));
        }
    });
    port
}

fn pass_calls(mut from: TcpStream, mut to: TcpStream, cuts: &AtomicUsize, marked: &AtomicUsize) {
    let mut buffer = [0; 64 << 10];
    while let Ok(length @ 1..) = from.read(&mut buffer) {
        let bytes = &buffer[..length];
        let has = |word: &[u8]| bytes.windows(word.len()).any(|part| part == word);
        let is_counted = has(b"{ledger:") && has(b"EVAL");
        let take = |left: usize| left.checked_sub(1);
        if is_counted
            && cuts
                .fetch_update(Ordering::SeqCst, Ordering::SeqCst, take)
                .is_ok()
        {
            marked.store(1, Ordering::SeqCst);
        }
        if to.write_all(bytes).is_err() {
            break;
        }
    }
    let _ = (from.shutdown(Shutdown::Both), to.shutdown(Shutdown::Both));
}

fn pass_replies(mut from: TcpStream, mut to: TcpStream, is_cut: &AtomicUsize) {
    let mut buffer = [0; 64 << 10];
    while let Ok(length @ 1..) = from.read(&mut buffer) {
        if is_cut.load(Ordering::SeqCst) > 0 || to.write_all(&buffer[..length]).is_err() {
            break;
        }
    }
    let _ = (from.shutdown(Shutdown::Both), to.shutdown(Shutdown::Both));
}

#[test]
fn a_batch_whose_answer_was_lost_counts_once() {
    let (upstream, redis) = (Upstream::ok(), RedisServer::start());
    let cuts = Arc::new(AtomicUsize::new(0));
    let port = relay(redis.port(), &cuts);
    let looked = start(&upstream, &format!("redis://127.0.0.1:{port}"), "");
    for key in ["k-acme", "k-globex"] {
        assert_eq!(ask(&looked, "/", key).status, 200);
    }
    wait_for(&looked, &[("acme", 1), ("globex", 1)]);
    cuts.store(3, Ordering::SeqCst);
    for _ in 0..4 {
        assert_eq!(ask(&looked, "/", "k-acme").status, 200);
    }
    looked.tidegate.wait_for_line("the store takes no usage");
    assert_eq!(ask(&looked, "/", "k-acme").status, 200);
    looked.tidegate.wait_for_line("the store takes usage again");
    assert_eq!(cuts.load(Ordering::SeqCst), 0);
    wait_for(&looked, &[("acme", 6), ("globex", 1)]);
}

#[test]
fn a_batch_whose_answer_was_lost_counts_once_over_a_reload() {
    let (upstream, redis) = (Upstream::ok(), RedisServer::start());
    let cuts = Arc::new(AtomicUsize::new(0));
    let port = relay(redis.port(), &cuts);
    let looked = start(&upstream, &format!("redis://127.0.0.1:{port}"), "");
    assert_eq!(ask(&looked, "/", "k-acme").status, 200);
    wait_for(&looked, &[("acme", 1)]);
    cuts.store(usize::MAX, Ordering::SeqCst);
    assert_eq!(ask(&looked, "/", "k-acme").status, 200);
    looked.tidegate.wait_for_line("the store takes no usage");
    let file = looked.tidegate.directory.path().join("proxy.toml");
    let config = std::fs::read_to_string(&file).unwrap();
    for (from, to) in [
        ("1000/h", "1001/h"),
        ("[store]\n", "[store]\ntimeout = \"99ms\"\n"),
    ] {
        assert!(config.contains(from), "{config}");
        std::fs::write(&file, config.replace(from, to)).unwrap();
        looked.tidegate.signal("HUP");
        looked.tidegate.wait_for_line("reload: done");
    }
    cuts.store(0, Ordering::SeqCst);
    looked.tidegate.wait_for_line("the store takes usage again");
    wait_for(&looked, &[("acme", 2)]);
}

#[test]
fn usage_waits_while_redis_is_away() {
    let (upstream, redis) = (Upstream::ok(), RedisServer::start());
    let looked = start(&upstream, &url(&redis), "");
    assert_eq!(ask(&looked, "/", "k-acme").status, 200);
    wait_for(&looked, &[("acme", 1)]);
    redis.freeze();
    for key in ["k-acme", "k-globex", "k-acme"] {
        assert_eq!(ask(&looked, "/", key).status, 200);
    }
    looked.tidegate.wait_for_line("the store takes no usage");
    eventually("the lag is shown", || {
        let metrics = looked.get("/metrics").text();
        let mut lines = metrics.lines();
        let lag = lines.find_map(|line| line.strip_prefix("tidegate_ledger_lag_seconds "));
        lag.unwrap().parse::<f64>().unwrap() > 2.0
    });
    redis.thaw();
    wait_for(&looked, &[("acme", 3), ("globex", 1)]);
}

#[test]
fn a_value_that_is_no_integer_is_left_out_and_no_batch_counts_twice() {
    let (upstream, redis) = (Upstream::ok(), RedisServer::start());
    let looked = start(&upstream, &url(&redis), "");
    for key in ["k-acme", "k-globex"] {
        assert_eq!(ask(&looked, "/", key).status, 200);
    }
    wait_for(&looked, &[("acme", 1), ("globex", 1)]);
    let hashes = redis.run("KEYS tidegate:{ledger:*");
    let hashes: Vec<String> = redis::from_redis_value(hashes).unwrap();
    let has = |hash: &&String, field: &str| {
        redis.run(&format!("HEXISTS {hash} {field}")) == redis::Value::Int(1)
    };
    let of_acme = hashes.iter().find(|hash| has(hash, "r:acme")).unwrap();
    redis.run(&format!("HSET {of_acme} r:acme 174.78 t:acme 5"));
    for key in ["k-acme", "k-globex", "k-initech", "k-acme"] {
        assert_eq!(ask(&looked, "/", key).status, 200);
    }
    let line = looked.tidegate.wait_for_line("is no integer");
    let hash = of_acme
        .trim_start_matches("tidegate:{")
        .trim_end_matches('}');
    assert!(line.contains(hash), "{line}");
    wait_for(&looked, &[("acme", 0), ("globex", 2), ("initech", 1)]);
    let usage = crate::look::command(looked.tidegate.directory.path(), &["usage"]);
    let warning = String::from_utf8(usage.stderr).unwrap();
    assert!(
        warning.contains("`r:acme`") && warning.contains(of_acme),
        "{warning}"
    );
}

#[test]
fn a_hash_that_cannot_be_written_keeps_no_other_one_from_the_store() {
    let (upstream, redis) = (Upstream::ok(), RedisServer::start());
    let looked = start(&upstream, &url(&redis), "");
    assert_eq!(ask(&looked, "/", "k-globex").status, 200);
    wait_for(&looked, &[("globex", 1)]);
    // That of acme comes after it.
    let hashes = redis.run("KEYS tidegate:{ledger:*");
    let hashes: Vec<String> = redis::from_redis_value(hashes).unwrap();
    let hash = &hashes[0];
    redis.run(&format!("SET {hash} text"));
    for key in ["k-globex", "k-acme"] {
        assert_eq!(ask(&looked, "/", key).status, 200);
    }
    let line = looked.tidegate.wait_for_line("the store takes no usage");
    assert!(
        line.contains(
            hash.trim_matches(['{', '}'])
                .trim_start_matches("tidegate:{")
        ),
        "{line}"
    );
    eventually("the usage of acme is in the store", || {
        let hash = hash.replace(":5}", ":11}");
        redis.run(&format!("HEXISTS {hash} r:acme")) == redis::Value::Int(1)
    });
    redis.run(&format!("DEL {hash}"));
    looked.tidegate.wait_for_line("the store takes usage again");
    wait_for(&looked, &[("acme", 1), ("globex", 1)]);
}
