//! The date of answers, written once a second.

use std::cell::RefCell;
use std::time::{Duration, UNIX_EPOCH};

use crate::clock;

/// A date, and when it was looked up.
struct Written {
    at: Duration,
    second: u64,
    text: String,
}

thread_local! {
    static LAST: RefCell<Written> = const {
        RefCell::new(Written { at: Duration::MAX, second: u64::MAX, text: String::new() })
    };
}

/// Writes what time it is, at `now` by this thread's coarse clock: the date is late by a tick of
/// that at most.
pub(super) fn put(out: &mut Vec<u8>, now: Duration) {
    LAST.with_borrow_mut(|last| {
        if last.at != now {
            last.renew(now);
        }
        out.extend_from_slice(last.text.as_bytes());
    });
}

impl Written {
    fn renew(&mut self, now: Duration) {
        self.at = now;
        let second = clock::unix_us() / 1_000_000;
        if self.second != second {
            self.second = second;
            self.text = httpdate::fmt_http_date(UNIX_EPOCH + Duration::from_secs(second));
        }
    }
}
