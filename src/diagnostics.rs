//! Diagnostics: what the program reports on standard error.

use std::io::{self, IsTerminal};

use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::format::FmtSpan;

use crate::telemetry::panics;

/// Sends diagnostics and panics to standard error: text on a terminal, JSON otherwise. `filter` has
/// the form of `RUST_LOG`, for example `info` or `tidegate::store=debug`.
pub fn init(filter: Option<&str>) {
    let filter = filter
        .and_then(|text| EnvFilter::try_new(text).ok())
        .unwrap_or_else(|| EnvFilter::new("info"));
    let terminal = io::stderr().is_terminal();
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(io::stderr)
        .with_span_events(FmtSpan::NONE)
        // A report of a failed write would go to the same standard error. It would panic, and end
        // the thread that logs.
        .log_internal_errors(false)
        .with_target(false);
    // A second call in one process (tests) keeps the first subscriber.
    let _ = if terminal {
        builder.compact().try_init()
    } else {
        builder.json().try_init()
    };
    panics::log_panics();
}
