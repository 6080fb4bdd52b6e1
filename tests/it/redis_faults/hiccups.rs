//! What Redis gets over by itself, and so do we: connections, scripts and counts that go, and keys
//! of ours that hold something else.

use std::time::Duration;

use crate::support::RedisServer;
use crate::weather::Weather;

/// Again and again for about a second.
fn repeat(weather: &mut Weather, pause_ms: u64, deed: impl Fn(&mut Weather)) {
    for _ in 0..1_000 / pause_ms {
        deed(weather);
        std::thread::sleep(Duration::from_millis(pause_ms));
    }
}

#[test]
fn lost_connections_are_made_anew() {
    let mut weather = Weather::patient(RedisServer::start());
    weather.stirs("CLIENT KILL", |weather| {
        repeat(weather, 100, |weather| {
            weather.order("CLIENT KILL TYPE normal SKIPME yes");
        });
    });
    weather.ends();
}

#[test]
fn a_lost_script_costs_nothing() {
    let mut weather = Weather::patient(RedisServer::start());
    let alone = weather.stirs("SCRIPT FLUSH all the time", |weather| {
        repeat(weather, 2, |weather| {
            weather.order("SCRIPT FLUSH");
        });
    });
    assert_eq!(alone, 0);
    weather.ends();
}

#[test]
fn lost_counts_cost_nothing_but_themselves() {
    let mut weather = Weather::patient(RedisServer::start());
    let alone = weather.stirs("FLUSHALL", |weather| {
        repeat(weather, 100, |weather| {
            weather.order("FLUSHALL");
        });
    });
    assert_eq!(alone, 0);
    weather.ends_forgetful();
}

/// Puts something else at every key that begins so.
fn replace(weather: &mut Weather, pattern: &str, verb: &str, value: &[u8]) {
    let text = "local keys = redis.call('KEYS', ARGV[1])
        for _, key in ipairs(keys) do
          redis.call('DEL', key)
          redis.call(ARGV[2], key, ARGV[3])
        end
        return #keys";
    let mut replace = redis::cmd("EVAL");
    replace.arg(text).arg("0").arg(pattern).arg(verb).arg(value);
    let replaced: usize = replace.query(&mut weather.redis.connect()).unwrap();
    assert!(replaced > 0, "{pattern}: there is none");
}

/// What is not ours is told, begun anew, and is no outage.
fn begins_anew(name: &str, cause: fn(&mut Weather)) {
    let mut weather = Weather::patient(RedisServer::start());
    for one in &weather.all {
        // Keys of both algorithms beside those of the load.
        assert_eq!(one.ask_for("/tight", "load").status, 200);
        assert_eq!(one.ask_for("/count", "load").status, 200);
    }
    assert_eq!(weather.stirs(name, cause), 0, "{name} is an outage");
    for one in &weather.all {
        assert_eq!(one.ask_for("/tight", "load").status, 200, "{name}");
        assert_eq!(one.ask_for("/count", "load").status, 200, "{name}");
        let said = one.proxy.said();
        let told = said.iter().filter(|line| line.contains("start at zero"));
        assert!(told.count() > 0, "{name}: {said:?}");
    }
    weather.ends_forgetful();
}

#[test]
fn a_key_of_ours_that_is_of_another_type_is_begun_anew() {
    begins_anew("a list and a set", |weather| {
        replace(weather, "*:{*", "RPUSH", b"x");
        std::thread::sleep(Duration::from_millis(100));
        replace(weather, "*:{*", "SADD", b"x");
        // Also the hash key, which everyone knows.
        replace(weather, "*:hash-key", "RPUSH", b"x");
        std::thread::sleep(Duration::from_millis(1_100));
    });
}

#[test]
fn a_key_of_ours_that_holds_foreign_bytes_is_begun_anew() {
    begins_anew("foreign bytes", |weather| {
        for value in [&b""[..], b"x", &[0xff; 17], &[0; 50], &[b'x'; 5_000]] {
            replace(weather, "*:{*", "SET", value);
            std::thread::sleep(Duration::from_millis(100));
        }
        replace(weather, "*:hash-key", "SET", b"short");
        std::thread::sleep(Duration::from_millis(1_100));
    });
}

/// A log of ours that has lost its end: a head that speaks of four entries, of which the first has
/// expired, and none is there.
fn cut_log() -> Vec<u8> {
    let mut value = b"TL".to_vec();
    for number in [4_u32, 0, 4, 0, 10, 1] {
        value.extend_from_slice(&number.to_le_bytes());
    }
    let now = tidegate::clock::unix_us();
    value.extend_from_slice(&0_u64.to_le_bytes()[..6]);
    value.extend_from_slice(&now.to_le_bytes()[..7]);
    value.extend_from_slice(&[0; 7]);
    value.extend_from_slice(&u32::MAX.to_le_bytes());
    value
}

#[test]
fn a_log_of_ours_that_was_cut_is_begun_anew() {
    begins_anew("a log cut short", |weather| {
        replace(weather, "*:{*}wide*", "SET", &cut_log());
        std::thread::sleep(Duration::from_millis(300));
    });
}
