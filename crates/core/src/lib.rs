//! What decides about a request: limits, keys, routes, the configuration, the stores, and the
//! stages that every request passes.
//!
//! The crate is internal to tidegate and promises no semver: depend on `tidegate-limiter`.
//!
//! The modules are declared in reading order, which is also dependency order: a module uses only
//! those above it. `tests/tidy.rs` of the root package checks that. (A blank line between two keeps
//! rustfmt from sorting them.)

#![cfg_attr(
    not(feature = "redis"),
    allow(
        dead_code,
        unused_imports,
        reason = "parts that only the Redis store uses"
    )
)]

// -- for tests: a release has none

#[macro_use]
pub mod failpoint;

// -- pure: no IO, no clock, no async, no panic

pub mod json;

pub mod stamp;

pub mod client;

pub mod certificate;

pub mod path;

pub mod request_head;

pub mod trace;

pub mod usage;

pub mod limit;

pub mod ledger;

pub mod descriptor;

pub mod route;

// -- the configuration

pub mod config;

pub mod connection_use;

// -- with IO: one kind each

pub mod clock;

pub mod telemetry;

#[cfg(feature = "redis")]
pub mod tls;

#[cfg(feature = "redis")]
pub mod wire;

pub mod store;

// -- one request and its stages

pub mod exchange;

// -- the simulation, in virtual time

#[cfg(test)]
#[cfg(feature = "redis")]
mod sim;
