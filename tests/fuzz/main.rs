//! Fuzz targets, on a stable compiler: each runs over its corpus (`__fuzz__/NAME/corpus`), then over
//! random inputs for a second, or for as long as `make fuzz SECONDS=..` says; in `make test` over a
//! thousand that are the same each time.
//!
//! An input is tried as it is, and as a recipe: most of its bytes stand for a word of the target's,
//! so that inputs made by chance get beyond the first line of a parser.

#![allow(
    unreachable_pub,
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "a test ends where something is wrong, and may look at the clock"
)]

mod admin;
mod certificate;
mod config;
mod headers;
mod import;
mod keys;
mod logs;
mod path;
mod proxy_header;
mod rates;
mod tokens;
mod usage;

#[allow(
    dead_code,
    reason = "the other tests' language, of which this uses little"
)]
#[path = "../it/house.rs"]
mod house;
#[allow(
    dead_code,
    reason = "the other tests' language, of which this uses little"
)]
#[path = "../it/support.rs"]
mod support;

/// Bytes from this one on stand for the byte behind them.
const AS_IT_IS: u8 = 0xf0;

/// What a recipe makes of a target's words.
fn spelled(recipe: &[u8], words: &[&str]) -> Vec<u8> {
    let (mut out, mut recipe) = (Vec::new(), recipe.iter());
    while let Some(byte) = recipe.next() {
        if *byte >= AS_IT_IS {
            out.extend(recipe.next());
        } else {
            out.extend_from_slice(words[usize::from(*byte) % words.len()].as_bytes());
        }
    }
    out
}

/// Checks an input both ways.
fn both(input: &[u8], words: &[&str], mut check: impl FnMut(&[u8])) {
    check(input);
    check(&spelled(input, words));
}

/// The same for what takes text only.
fn both_texts(input: &[u8], words: &[&str], mut check: impl FnMut(&str)) {
    both(input, words, |bytes| {
        if let Ok(text) = std::str::from_utf8(bytes) {
            check(text);
        }
    });
}
