//! `tidegate schema`: what a `proxy.toml` may say, for editors.

use std::io::Write;

use crate::config::schema;

/// Returns the exit code.
pub(super) fn print() -> u8 {
    // Nobody to tell where standard output is closed.
    let _ = std::io::stdout().write_all(text().as_bytes());
    0
}

/// As a file.
pub(super) fn text() -> String {
    format!("{:#}\n", schema::schema())
}
