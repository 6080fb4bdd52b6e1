//! How much a connection was used, and whether it may get another request.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use crate::config::ConnectionBounds;

/// Times are those of the worker's sweep.
#[derive(Debug)]
pub struct ConnectionUse {
    /// Requests that the connection has brought. Many streams of HTTP/2 can come at once.
    requests: AtomicU32,
    /// Those of them whose handling has begun.
    begun: AtomicU32,
    most: u32,
    ends: Duration,
}

impl Default for ConnectionUse {
    fn default() -> ConnectionUse {
        ConnectionUse::new(ConnectionBounds::default(), Duration::ZERO)
    }
}

impl ConnectionUse {
    pub fn new(bounds: ConnectionBounds, now: Duration) -> ConnectionUse {
        let age = bounds.age.unwrap_or(Duration::MAX);
        ConnectionUse {
            requests: AtomicU32::new(0),
            begun: AtomicU32::new(0),
            most: bounds.requests.unwrap_or(u32::MAX),
            ends: now.saturating_add(age),
        }
    }

    /// The same use, of which later requests are not a part.
    pub fn snapshot(&self) -> ConnectionUse {
        ConnectionUse {
            requests: AtomicU32::new(self.requests.load(Ordering::Relaxed)),
            begun: AtomicU32::new(self.begun()),
            ..*self
        }
    }

    pub fn count_request(&self) {
        add_one(&self.requests);
    }

    pub fn begin_request(&self) {
        add_one(&self.begun);
    }

    /// The number of the request that began last.
    pub fn begun(&self) -> u32 {
        self.begun.load(Ordering::Relaxed)
    }

    /// Whether a bound is reached: no request may follow those that were counted.
    pub fn is_over(&self, now: Duration) -> bool {
        self.requests.load(Ordering::Relaxed) >= self.most || now >= self.ends
    }
}

/// Only the tasks of one worker write.
fn add_one(counted: &AtomicU32) {
    let next = counted.load(Ordering::Relaxed).saturating_add(1);
    counted.store(next, Ordering::Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_ends_after_its_requests_or_its_time() {
        let at = Duration::from_secs;
        let bounds = |requests, age: Option<u64>| ConnectionBounds {
            requests,
            age: age.map(at),
        };
        let by_requests = ConnectionUse::new(bounds(Some(2), None), at(5));
        by_requests.count_request();
        assert!(!by_requests.is_over(at(1 << 40)));
        by_requests.count_request();
        assert!(by_requests.is_over(at(5)));
        let by_age = ConnectionUse::new(bounds(None, Some(10)), at(5));
        by_age.count_request();
        assert!(!by_age.is_over(at(14)));
        assert!(by_age.is_over(at(15)));
    }
}
