//! tidegate: a reverse proxy with rate limiting built in.
//!
//! What decides about a request is in `crates/core`; this crate forwards it, serves it, and has the
//! commands. The modules are declared in reading order, which is also dependency order: a module
//! uses only those above it. `tests/tidy.rs` holds that; ARCHITECTURE.md walks through it. (A blank
//! line between two keeps rustfmt from sorting them.)

pub use tidegate_core::{
    certificate, client, clock, config, ledger, limit, path, request_head, route, store, telemetry,
    tls, trace, usage,
};
use tidegate_core::{connection_use, wire};
pub use {tidegate_import as import, tidegate_replay as replay};

// -- machines: each owns one kind of IO

pub mod diagnostics;

pub mod body;

mod http1;

pub mod otlp;

mod outgoing;

pub mod billing;
mod jwks;
mod key_callback;

pub mod upstream;

// -- the path

pub mod proxy;

// -- what is told of requests that nobody sends

pub mod explain;

pub mod key_selector;

// -- the house

pub mod server;

pub mod admin;

// -- the door

pub mod cli;
