//! Measures tidegate: `make bench`, `make bench-decisions`, `make bench-streams`. `README.md`
//! beside this file says which part is where, and what new ones can build on.

#![allow(
    dead_code,
    missing_docs,
    unreachable_pub,
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "a measurement ends where something is wrong, and looks at the clock"
)]

mod accuracy;
mod decisions;
mod growth;
mod numbers;
mod pace;
mod page;
mod peers;
mod process;
mod soak;
mod stage;
mod streams;
#[path = "../tests/it/support.rs"]
mod support;
mod upstream;

use tikv_jemalloc_ctl::{Access, AsName, background_thread};

/// As shipped, with `set_decay` of `src/main.rs`: what keys of the embedded store take, and how
/// long their memory keeps a decision waiting, is the allocator's doing too.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

const USAGE: &str = "\
usage: bench PART [OPTIONS]

  peers       beside nginx and HAProxy, plain and with limits   --rounds 1 --only c64 --write ...
  accuracy    how full windows are, over time: docs/algorithms.md   --write
  decisions   the limiters of docs/decisions.md beside ours     --quick --write
  growth      curves: routes limits keys connections idle proxies workers   --quick --write
  soak        memory over a long run                            --seconds N
  streams     calls, messages, large bodies, many connections   --quick grpc websocket bulk crowd
";

fn main() {
    set_decay();
    let words: Vec<String> = std::env::args().skip(1).collect();
    let (part, words) = match words.split_first() {
        Some((part, words)) => (part.as_str(), words),
        None => ("", &[][..]),
    };
    match part {
        "peers" => peers::run(words),
        "accuracy" => accuracy::run(words),
        "decisions" => decisions::run(words),
        "growth" => growth::run(words),
        "soak" => soak::run(words),
        "streams" => streams::run(words),
        // The other side of a measurement, which the parts start themselves.
        "upstream" => upstream::run(words),
        _ => {
            eprint!("{USAGE}");
            std::process::exit(2);
        }
    }
}

fn set_decay() {
    let _ = background_thread::write(true);
    for arenas in ["arenas.dirty_decay_ms\0", "arena.0.dirty_decay_ms\0"] {
        let _ = arenas.name().write(1000_isize);
    }
}
