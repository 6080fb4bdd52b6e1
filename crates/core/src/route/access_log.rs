//! The lines of `[access_log.NAME]`.

use super::template::LineTemplate;

/// A log that requests of a route have a line in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RouteLog {
    /// Its place among the named logs of the file.
    pub place: usize,
    pub line: LineTemplate,
}
