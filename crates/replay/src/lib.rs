//! Replay: what a configuration's limits would have done to the requests of an access log.
//!
//! The engine is the proxy's, with the log's clock: routes, keys and counts are the proxy's own
//! code, and time is an argument. Only [`log_file`] and [`logs`] do IO.

use tidegate_core::{client, config, limit, path, route, telemetry};

pub mod counts;

pub mod date;

pub mod entry;

pub mod formats;

pub mod key_spaces;

pub mod meter;

pub mod plan;

pub mod report;

pub mod route_cache;

pub mod engine;

pub mod export;

pub mod json;

pub mod json_entry;

pub mod log_file;

pub mod logs;

pub mod print;

pub mod text;

pub mod timeline;
