//! The proxy's behaviour, tested on real sockets and a real Redis.

#![allow(
    unreachable_pub,
    clippy::unwrap_used,
    clippy::disallowed_methods,
    clippy::too_many_lines,
    reason = "a test ends where something is wrong, may look at the clock, and reads as a table"
)]

mod access;
mod adjust;
mod admin;
mod asked;
mod audit;
mod backend;
mod balance;
mod bans;
mod billing;
mod bounds;
mod bypass;
mod calendar;
mod cluster;
mod cluster_sim;
mod commands;
mod corrections;
mod counts_file;
mod decide;
mod decisions;
mod denials;
mod diagnostics;
mod enforce;
mod example;
mod explain;
mod faults;
mod files;
mod flow;
mod framing;
mod framing_upstream;
mod grpc;
mod headers;
mod health;
mod held;
mod house;
mod howto;
mod http2;
mod ietf;
mod import;
mod jwks;
mod key_registry;
mod keys;
mod known_keys;
mod layer;
mod lean;
mod log_lines;
mod logs;
mod look;
mod matrix;
mod names;
mod outage_sim;
mod overrides;
mod pace;
mod panics;
mod parked;
mod pipelining;
mod ports;
mod private;
mod probe;
mod proxy_protocol;
mod queue;
mod quotas;
mod readme;
mod recovery;
mod redis_faults;
mod refusals;
mod reload;
mod renewed;
mod replay;
mod returns;
mod rewriting;
mod scripted;
mod second;
mod service;
mod sessions;
mod shares;
mod shown;
mod slots;
mod smuggling;
mod spellings;
mod spread;
mod status;
mod store;
mod streaming;
mod support;
mod tiers;
mod tls;
mod topologies;
mod traces;
mod trials;
mod truncated;
mod upgrade;
mod upload;
mod upstream;
mod upstream_http1;
mod upstream_http2;
mod upstream_tls;
mod usage;
mod weather;
