//! tidegate: a reverse proxy with rate limiting built in.
//!
//! `crates/core` decides about a request. This crate forwards it, serves it, and has the commands.
//! The modules are declared in reading order, which is also dependency order: a module uses only
//! those above it. `tests/tidy.rs` checks that; ARCHITECTURE.md describes them. (A blank line
//! between two keeps rustfmt from sorting them.)

pub use tidegate_core::{
    certificate, client, clock, config, ledger, limit, path, request_head, route, store, telemetry,
    tls, trace, usage,
};
use tidegate_core::{connection_use, wire};
pub use {tidegate_import as import, tidegate_replay as replay};

// -- with IO: one kind each

pub mod diagnostics;

pub mod body;

mod http1;

pub mod otlp;

mod outgoing;

pub mod billing;
mod jwks;
mod key_callback;

pub mod upstream;

// -- the path of a request

pub mod proxy;

// -- for operators: what would become of a request, and how a client stands

pub mod explain;

pub mod key_selector;

// -- the servers

pub mod server;

pub mod admin;

// -- the commands

pub mod cli;
