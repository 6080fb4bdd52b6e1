//! tidegate: a reverse proxy with rate limiting built in.
//!
//! The modules are declared in reading order, which is also dependency order: a module uses only
//! those above it. `tests/tidy.rs` holds that; ARCHITECTURE.md walks through it. (A blank line
//! between two keeps rustfmt from sorting them.)

// -- tests arm these; a release has none

#[macro_use]
mod failpoint;

// -- words: pure. No IO, no clock, no async, no panic.

pub mod client;

pub mod certificate;

pub mod path;

pub mod request_head;

pub mod trace;

pub mod limit;

pub mod route;

// -- blueprint

pub mod config;

// -- machines: each owns one kind of IO

pub mod clock;

pub mod body;

pub mod telemetry;

pub mod tls;

mod wire;

mod http1;

pub mod otlp;

pub mod store;

pub mod upstream;

// -- the path

pub mod proxy;

pub use proxy::layer;

// -- what is told of requests that nobody sends

pub mod explain;

pub mod replay;

pub mod key_selector;

pub mod import;

// -- the house

pub mod server;

pub mod admin;

// -- the door

pub mod cli;
