//! The configuration as people meet it: whole files in, configurations or findings out.

mod accepted;
mod access_log;
mod balance;
mod changes;
mod client_tls;
mod descriptors;
mod effective;
mod error_page;
mod explained;
mod flags;
mod inventable;
mod limits;
pub mod pages;
mod passing;
mod people;
mod recovery;
mod reference;
mod reference_page;
mod refused;
mod schema;
mod standalone;
mod stores;
mod tls;
mod usage;
mod warned;

use super::diagnostic::Diagnostics;
use super::{Config, parse, render};

/// The environment of these tests.
fn env(name: &str) -> Option<String> {
    match name {
        "STORE" => Some("redis://:secret@redis.local".to_owned()),
        "RATE" => Some("7/min".to_owned()),
        _ => None,
    }
}

/// A file that must be right, and its warnings.
#[track_caller]
fn accept(text: &str) -> (Config, Diagnostics) {
    match parse("proxy.toml", text, &env) {
        Ok(found) => found,
        Err(found) => panic!("refused:\n{found}"),
    }
}

/// A file that must be right beyond doubt.
#[track_caller]
fn fine(text: &str) -> Config {
    let (config, warnings) = accept(text);
    assert!(warnings.is_empty(), "warned:\n{warnings}");
    config
}

/// A file that must be wrong, and what is said of it.
#[track_caller]
fn refuse(text: &str) -> Diagnostics {
    match parse("proxy.toml", text, &env) {
        Ok(_) => panic!("accepted:\n{text}"),
        Err(found) => found,
    }
}

/// What is said of a file, whole.
#[track_caller]
fn check(text: &str, expected: &str) {
    let found = match parse("proxy.toml", text, &env) {
        Ok((_, warnings)) => warnings,
        Err(found) => found,
    };
    let said = render::human(&found, false);
    assert!(said == expected, "said:\n{said}\nexpected:\n{expected}");
}

/// The codes that are found, in the file's order.
#[track_caller]
fn codes(text: &str) -> Vec<&'static str> {
    let found = match parse("proxy.toml", text, &env) {
        Ok((_, warnings)) => warnings,
        Err(found) => found,
    };
    found.list.iter().map(|one| one.code.as_str()).collect()
}
