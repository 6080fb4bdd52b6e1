//! What the words of a request's path cost, in instructions, as the tests are built: a guard that
//! needs no build of its own. `make instructions` counts them as they are shipped.
//!
//! `cargo test --test instructions -- --accept` writes new counts to `bench/words/tests.txt`, for a
//! commit that means them.

#![allow(
    clippy::unwrap_used,
    reason = "a measurement ends where something is wrong"
)]

#[path = "../bench/words/counts.rs"]
mod counts;
#[path = "../bench/words/words.rs"]
mod words;

use std::process::ExitCode;

/// How often a word is said while it is counted.
const TIMES: usize = 20;

fn main() -> ExitCode {
    if std::env::args().any(|argument| argument == "--say") {
        // Under valgrind.
        words::say_all(TIMES);
        return ExitCode::SUCCESS;
    }
    // As other tests: those that are asked for by another name do not run this one.
    let mut asked = std::env::args()
        .skip(1)
        .filter(|word| !word.starts_with('-'));
    if asked.any(|name| !"instructions".contains(&name)) {
        return ExitCode::SUCCESS;
    }
    let names: Vec<&str> = words::all(0).iter().map(|word| word.name).collect();
    let accepting = "cargo test --test instructions -- --accept";
    counts::hold(&names, TIMES, ("bench/words/tests.txt", accepting))
}
