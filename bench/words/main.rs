//! What the words cost: the pure parts of a request's path, in instructions, which do not depend on
//! the machine's load.
//!
//! `make instructions` counts them under valgrind and compares them with those of
//! `bench/words/counts.txt`; `make instructions ACCEPT=1` writes the new ones there, for a commit
//! that means them. `make bench-words` prints nanoseconds, which mean little on a busy machine.

#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "a measurement ends where something is wrong, and looks at the clock"
)]

#[path = "counts.rs"]
mod counts;
#[path = "words.rs"]
mod words;

use std::process::ExitCode;
use std::time::{Duration, Instant};

use words::Word;

/// How often a word is said while it is counted.
const TIMES: usize = 100;
/// How often the whole of that is repeated for the clock; the fastest counts.
const ROUNDS: usize = 200;

fn main() -> ExitCode {
    let says = |word: &str| std::env::args().any(|argument| argument == word);
    if says("--say") {
        // Under valgrind.
        words::say_all(TIMES);
        return ExitCode::SUCCESS;
    }
    if says("--time") {
        for mut word in words::all((ROUNDS + 1) * TIMES) {
            words::said(&mut word, TIMES);
            let fastest = (0..ROUNDS).map(|_| time_of(&mut word)).min();
            let each = fastest.unwrap().as_secs_f64() * 1e9 / TIMES as f64;
            println!("{:<36} {each:>8.1} ns", word.name);
        }
        return ExitCode::SUCCESS;
    }
    let names: Vec<&str> = words::all(0).iter().map(|word| word.name).collect();
    let file = ("bench/words/counts.txt", "make instructions ACCEPT=1");
    counts::hold(&names, TIMES, file)
}

fn time_of(word: &mut Word) -> Duration {
    let start = Instant::now();
    words::said(word, TIMES);
    start.elapsed()
}
