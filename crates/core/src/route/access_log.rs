//! The lines of `[access_log.NAME]`.

use http::StatusCode;

use super::StatusSet;
use super::template::LineTemplate;

/// A log that requests of a route have a line in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RouteLog {
    /// Its place among the named logs of the file.
    pub place: usize,
    pub line: LineTemplate,
    /// Only responses with one of these statuses have a line; empty for all.
    pub statuses: StatusSet,
    /// Only requests for which this is neither empty nor `0` have a line.
    pub condition: Option<LineTemplate>,
}

impl RouteLog {
    pub fn takes_status(&self, status: u16) -> bool {
        let is_listed = |status| self.statuses.contains(status);
        self.statuses.is_empty() || StatusCode::from_u16(status).is_ok_and(is_listed)
    }
}
