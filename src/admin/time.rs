//! The times of the API: seconds since the Unix epoch.

use crate::clock;

pub(super) fn seconds(us: u64) -> f64 {
    us as f64 / 1e6
}

pub(super) fn now() -> f64 {
    seconds(clock::unix_us())
}

/// The same in whole seconds.
pub(super) fn now_s() -> u64 {
    clock::unix_us() / 1_000_000
}
