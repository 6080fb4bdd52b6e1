//! What a decision costs Redis: CPU and bytes, on a redis-server of its own.
//!
//! `cargo run --release --example redis_cost`

#![allow(
    dead_code,
    unreachable_pub,
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "a measurement ends where something is wrong"
)]

#[path = "../tests/it/support.rs"]
mod support;

use tidegate::limit::{Algorithm, Charge, Rule};
use tidegate::store::batch::{Call, Group, Reply, SCRIPT, encode};

use support::{Chance, RedisServer, item, limit};

const DECISIONS: usize = 50_000;

fn main() {
    cpu_of_a_decision();
    bytes_of_a_key();
}

/// Script time and process time of one decision, microseconds.
fn cost(server: &RedisServer, charges: &[Charge], pipelined: usize) -> (f64, f64) {
    let mut connection = server.connect();
    let known: String = redis::cmd("SCRIPT")
        .arg("LOAD")
        .arg(SCRIPT)
        .query(&mut connection)
        .unwrap();
    let calls = DECISIONS / charges.len();
    let mut chance = Chance(charges.len() as u64);
    let mut order: Vec<usize> = (0..charges.len()).collect();
    redis::cmd("CONFIG")
        .arg("RESETSTAT")
        .exec(&mut connection)
        .unwrap();
    let before_us = cpu_us(server);
    for _ in 0..calls / pipelined {
        let mut pipe = redis::pipe();
        for _ in 0..pipelined {
            order.rotate_left(chance.below(charges.len() as u64) as usize);
            let batch = order.iter().map(|place| Group::one(&charges[*place]));
            pipe.add_command(encode(Call::Known(&known), ("t:", 0), batch, None));
        }
        let replies: Vec<Vec<u8>> = pipe.query(&mut connection).unwrap();
        let mut reply = Reply::read(&replies[0]).unwrap();
        assert!(reply.outcome(&charges[0], 1).unwrap().is_some());
    }
    let decisions = (calls / pipelined * pipelined * charges.len()) as f64;
    let process_us = (cpu_us(server) - before_us) as f64 / decisions;
    let stats: String = redis::cmd("INFO")
        .arg("commandstats")
        .query(&mut connection)
        .unwrap();
    let line = stats
        .lines()
        .find(|line| line.starts_with("cmdstat_evalsha:"))
        .unwrap();
    let usec = line
        .split("usec=")
        .nth(1)
        .unwrap()
        .split(',')
        .next()
        .unwrap();
    (usec.parse::<f64>().unwrap() / decisions, process_us)
}

/// Microseconds of CPU that the server has used.
fn cpu_us(server: &RedisServer) -> u64 {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", server.pid())).unwrap();
    let fields: Vec<&str> = stat
        .rsplit(')')
        .next()
        .unwrap()
        .split_whitespace()
        .collect();
    let ticks = |field: usize| fields[field].parse::<u64>().unwrap();
    (ticks(11) + ticks(12)) * 10_000
}

fn used_memory(server: &RedisServer) -> f64 {
    let text: String = redis::cmd("INFO")
        .arg("memory")
        .query(&mut server.connect())
        .unwrap();
    let line = text
        .lines()
        .find(|line| line.starts_with("used_memory:"))
        .unwrap();
    line["used_memory:".len()..].parse().unwrap()
}

fn rule(algorithm: Algorithm, units: u64, window_us: u64) -> Rule {
    Rule {
        algorithm,
        units,
        window_us,
        precision_us: 1,
    }
}

fn cpu_of_a_decision() {
    let server = RedisServer::start();
    let cases = [
        (
            "log 1000/s, allowed and expiring",
            rule(Algorithm::Log, 1_000_000, 10_000),
        ),
        (
            "log 1e6/min, allowed",
            rule(Algorithm::Log, 1_000_000, 60_000_000),
        ),
        (
            "log 1e6/day (10-byte entries), allowed",
            rule(Algorithm::Log, 1_000_000, 86_400_000_000),
        ),
        ("log 1/h, denied", rule(Algorithm::Log, 1, 3_600_000_000)),
        (
            "counter 1e6/min, allowed",
            rule(Algorithm::Counter, 1_000_000, 60_000_000),
        ),
        (
            "counter 1/h, denied",
            rule(Algorithm::Counter, 1, 3_600_000_000),
        ),
    ];
    for (name, rule) in cases {
        for (batch, pipelined) in [(1, 1), (1, 16), (16, 1), (64, 1)] {
            server.run("FLUSHALL");
            let limit = limit("measured", rule);
            let charges: Vec<Charge> = (0..batch)
                .map(|who| [item(&limit, who, 1)].into_iter().collect())
                .collect();
            let (script, process) = cost(&server, &charges, pipelined);
            println!(
                "{name:40} batch {batch:2} x {pipelined:2} in flight: script {script:5.2} us, process {process:5.2} us"
            );
        }
    }
}

fn bytes_of_a_key() {
    let server = RedisServer::start();
    let mut connection = server.connect();
    let known: String = redis::cmd("SCRIPT")
        .arg("LOAD")
        .arg(SCRIPT)
        .query(&mut connection)
        .unwrap();
    let day_us = 86_400_000_000;
    for (name, algorithm, window_us) in [
        ("log, 8-byte entries", Algorithm::Log, 600_000_000),
        ("log, 10-byte entries", Algorithm::Log, day_us),
        ("counter", Algorithm::Counter, day_us),
    ] {
        for units in [10, 100, 1_000, 10_000] {
            server.run("FLUSHALL");
            let limit = limit("measured", rule(algorithm, units, window_us));
            let before = used_memory(&server);
            let keys = (1_000_000 / units).min(2_000);
            for who in 0..keys {
                let mut pipe = redis::pipe();
                for _ in 0..units {
                    let charge: Charge = [item(&limit, who, 1)].into_iter().collect();
                    let call = Call::Known(&known);
                    pipe.add_command(encode(
                        call,
                        ("t:", 0),
                        [Group::one(&charge)].into_iter(),
                        None,
                    ))
                    .ignore();
                }
                pipe.exec(&mut connection).unwrap();
            }
            let bytes = (used_memory(&server) - before) / keys as f64;
            println!(
                "{name:22} {units:6} units: {bytes:8.0} bytes a key, {:5.1} a unit",
                bytes / units as f64
            );
        }
    }
}
