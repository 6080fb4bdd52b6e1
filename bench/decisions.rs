//! The limiters of five articles and the one everybody writes first, beside ours: how exact they
//! are, what a decision costs Redis in CPU and memory, and whether the waits they name are true.
//!
//! `make bench-decisions` measures for two minutes and puts the figures into docs/decisions.md.
//! `cargo run --release --example bench -- decisions` prints them only; with `--quick` it takes
//! seconds, and its figures are worth little.

#[path = "decisions/bench.rs"]
pub mod bench;

use std::time::Duration;

use crate::page;
use crate::support::RedisServer;

/// Nothing here takes as long unless something hangs.
const AT_MOST: Duration = Duration::from_secs(240);

/// Measures, prints, and with `--write` puts it into the page.
pub fn run(words: &[String]) {
    let has = |flag: &str| words.iter().any(|word| word == flag);
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
    let when = page::when();
    format!("{cores} cores, Redis {version}, persistence off, everything on one machine, {when}")
}
