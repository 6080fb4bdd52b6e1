//! Replay: what a configuration's limits would have done to the requests of an access log.
//!
//! The engine is the proxy's, with the log's clock: routes, keys and counts are the proxy's own
//! code, and time is an argument. Only [`logs`] does IO.

use tidegate_core::{client, config, limit, route, telemetry, usage};

pub mod date;

pub mod tokens;

pub mod entry;

pub mod text;

pub mod json;

pub mod logs;

pub mod meter;

pub mod timeline;

pub mod sequence;

pub mod calls;

pub mod key_spaces;

pub mod plan;

pub mod bans;

pub mod counts;

pub mod engine;

pub mod figures;

pub mod notes;

pub mod report;

pub mod patch;

pub mod export;

pub mod print;
