//! The last denials of one worker, for people who watch: a few in any moment, the others counted.
//!
//! Whoever watches takes them out many times a second. A flood of denials costs no more than the
//! look that finds the room full.

use std::net::IpAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};

use http::Method;

use crate::limit::Tag;

/// Denials that wait to be taken out; those beyond are counted only.
const ROOM: usize = 32;
/// Bytes of a path that are kept.
const MOST_PATH: usize = 256;

/// One denial.
#[derive(Clone, Debug)]
pub struct Denial {
    /// When it was made, microseconds since the Unix epoch.
    pub at_us: u64,
    /// The limit that denied, the first of them.
    pub limit: String,
    /// The route's name.
    pub route: String,
    /// The request's method.
    pub method: Method,
    /// Its path, without the query.
    pub path: String,
    /// Its client's address.
    pub client: IpAddr,
    /// The hash of its key.
    pub tag: Tag,
    /// What it was told to wait, seconds; nothing where nobody knows.
    pub retry_after: Option<u64>,
    /// The id that it was given.
    pub request_id: String,
    /// Whether the limit is on trial: the request went on.
    pub shadow: bool,
}

/// See the file's head.
#[derive(Debug, Default)]
pub struct Denials(Mutex<Room>);

#[derive(Debug, Default)]
struct Room {
    list: Vec<Denial>,
    dropped: u64,
}

impl Denials {
    /// One more, made only if there is room for it, and if it can be.
    pub fn note(&self, make: impl FnOnce() -> Option<Denial>) {
        let mut room = self.room();
        if room.list.len() < ROOM {
            room.list.extend(make());
        } else {
            room.dropped += 1;
        }
    }

    /// Takes them out; also how many there was no room for.
    pub fn take(&self) -> (Vec<Denial>, u64) {
        let mut room = self.room();
        (
            std::mem::take(&mut room.list),
            std::mem::take(&mut room.dropped),
        )
    }

    fn room(&self) -> MutexGuard<'_, Room> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// As much of a path as is kept.
pub fn short(path: &str) -> String {
    let mut end = path.len().min(MOST_PATH);
    while !path.is_char_boundary(end) {
        end -= 1;
    }
    path[..end].to_owned()
}
