//! The limiters of five articles and the one everybody writes first, beside ours: how exact they
//! are, what a decision costs Redis in CPU and memory, and whether the waits they name are true.
//!
//! `make bench-decisions` measures for two minutes and puts the figures into docs/decisions.md.
//! `cargo run --release --example decision_bench` prints them only; with `-- --quick` it takes
//! seconds, and its figures are worth little.

#![allow(
    dead_code,
    unreachable_pub,
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "a measurement ends where something is wrong"
)]

#[path = "bench.rs"]
mod bench;
#[path = "../../tests/it/support.rs"]
mod support;

use std::time::Duration;

use support::RedisServer;

/// Nothing here takes as long unless something hangs.
const AT_MOST: Duration = Duration::from_secs(240);

fn main() {
    let has = |flag: &str| std::env::args().any(|argument| argument == flag);
    let plan = if has("--quick") {
        bench::QUICK
    } else {
        bench::FULL
    };
    let server = RedisServer::start();
    end_at_last(server.pid());

    let found = bench::measure_all(&server, &plan);
    let own = bench::own(&server, &plan);
    let figures = bench::table::tables(&machine(&server), &plan, &found, &own);
    print!("{figures}");
    if has("--write") {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/decisions.md");
        let page = std::fs::read_to_string(path).unwrap();
        std::fs::write(path, bench::table::page_with(&page, &figures)).unwrap();
    }
}

/// Kills the server after a time that is never reached; what waits for it then ends with an error.
fn end_at_last(pid: u32) {
    std::thread::spawn(move || {
        std::thread::sleep(AT_MOST);
        eprintln!("still measuring after {AT_MOST:?}: something hangs");
        let _ = std::process::Command::new("kill")
            .arg(pid.to_string())
            .status();
    });
}

fn machine(server: &RedisServer) -> String {
    let mut connection = server.connect();
    let about = bench::cost::info(&mut connection, "server");
    let version = bench::cost::field(&about, "redis_version:").unwrap();
    let cores = std::thread::available_parallelism().unwrap();
    format!("{cores} cores, Redis {version}, persistence off, everything on one machine")
}
