//! Replay: what a configuration's limits would have done to the requests of an access log.
//!
//! The same engine as the proxy's, with the log's clock: routes, keys and counts are its own code,
//! and time is an argument. Lines are read by pure [`formats`]; only `file` and [`logs`] do IO.

use tidegate_core::{client, config, limit, path, route, telemetry};

pub mod course;
pub mod date;
pub mod engine;
pub mod entry;
pub mod file;
pub mod formats;
pub mod held;
pub mod html;
pub mod json;
pub mod json_report;
pub mod logs;
pub mod meter;
pub mod notes;
pub mod outside;
pub mod plain;
pub mod plan;
pub mod print;
pub mod rates;
pub mod report;
pub mod series;
pub mod spaces;
pub mod structured;
pub mod target;
pub mod text;
pub mod ways;
