//! Replay: what a configuration's limits would have done to the requests of an access log.
//!
//! The engine is the proxy's, with the log's clock: routes, keys and counts are the proxy's own
//! code, and time is an argument. Only [`logs`] does IO.

use tidegate_core::{client, config, limit, route, telemetry};

pub mod date;

pub mod entry;

pub mod text;

pub mod json;

pub mod logs;

pub mod meter;

pub mod timeline;

pub mod key_spaces;

pub mod plan;

pub mod counts;

pub mod report;

pub mod engine;

pub mod patch;

pub mod export;

pub mod print;
