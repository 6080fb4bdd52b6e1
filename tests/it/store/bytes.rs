//! What a key costs the server: the figures of `docs/limits.md`.

use tidegate::limit::{Algorithm, Rate, Rule};
use tidegate::store::batch::{Group, SCRIPT, ScriptCall, ScriptName, write};

use crate::support::{RedisServer, limit, one};

const WINDOW_US: u64 = 600_000_000;
const START_US: u64 = 1_700_000_000_000_000;

/// Bytes of one key whose window is full, its requests evenly spread.
fn bytes(server: &RedisServer, rule: Rule) -> u64 {
    let limit = limit("bytes", rule);
    let charge = one(&limit, rule.units ^ rule.precision_us << 32, 1);
    let mut connection = server.connect();
    let known = redis::cmd("SCRIPT")
        .arg("LOAD")
        .arg(SCRIPT)
        .query::<String>(&mut connection)
        .unwrap();
    let mut calls = redis::pipe();
    for place in 0..rule.units {
        let now_us = START_US + place * rule.window_us / rule.units;
        let groups = [Group::one(&charge)].into_iter();
        let call = ScriptCall {
            script: ScriptName::Hash(&known),
            prefix: "b:",
            holder: 7,
            now_us: Some(now_us),
            store_us: now_us,
        };
        let mut command = redis::Cmd::new();
        write(&mut command, call, groups);
        calls.add_command(command);
    }
    calls.exec(&mut connection).unwrap();
    let keys: Vec<String> = redis::cmd("KEYS")
        .arg("b:*")
        .query(&mut connection)
        .unwrap();
    assert_eq!(keys.len(), 1);
    let mut size = redis::cmd("MEMORY");
    let bytes = size
        .arg("USAGE")
        .arg(&keys[0])
        .query(&mut connection)
        .unwrap();
    redis::cmd("DEL")
        .arg(&keys[0])
        .exec(&mut connection)
        .unwrap();
    bytes
}

#[test]
fn a_key_takes_no_more_than_is_promised() {
    let server = RedisServer::start();
    for (units, exact_bytes, default_bytes) in [
        (10, 250, 250),
        (100, 1_000, 1_000),
        (1_000, 8_400, 8_400),
        (10_000, 82_500, 8_400),
    ] {
        let rate = Rate::sliding(units, WINDOW_US);
        let counter = Rule {
            algorithm: Algorithm::Counter,
            ..Rule::log(rate, 1)
        };
        let taken = [Rule::log(rate, 1), Rule::by_size(rate), counter];
        let taken = taken.map(|rule| bytes(&server, rule));
        let promised = [exact_bytes, default_bytes, 130];
        let kept = taken
            .iter()
            .zip(promised)
            .all(|(taken, most)| *taken <= most);
        assert!(kept, "{units}: {taken:?}");
    }
}
