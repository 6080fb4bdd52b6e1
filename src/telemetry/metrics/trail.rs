//! The last decisions of one worker, for operators that watch single clients.
//!
//! A ring buffer without a lock. One thread writes, another one reads. An entry costs five stores,
//! and the writer never waits for the reader. A reader that is late misses entries, and learns how
//! many.

use std::sync::atomic::{AtomicU64, Ordering, fence};

/// Entries in the ring; a power of two.
const CAPACITY: u64 = 8192;

const DENIED: u64 = 1 << 32;
const AGAIN: u64 = 1 << 33;

/// The decision of one limit about one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TrailEntry {
    /// The hash of the client's key.
    pub tag: [u8; 16],
    /// The number of the limit.
    pub limit: u32,
    pub denied: bool,
    /// Whether this is another rate of the limit in the entry before, about the same request.
    pub again: bool,
    /// Units of the rate that the client has left.
    pub remaining: u32,
    /// Units of the rate.
    pub units: u32,
}

/// See the file's head.
pub struct Trail {
    slots: Box<[[AtomicU64; 4]]>,
    /// How many entries were written.
    head: AtomicU64,
    /// How many of them were read or missed. Only the reader changes it.
    tail: AtomicU64,
}

impl Default for Trail {
    fn default() -> Trail {
        Trail {
            slots: (0..CAPACITY).map(|_| Default::default()).collect(),
            head: AtomicU64::new(0),
            tail: AtomicU64::new(0),
        }
    }
}

impl Trail {
    /// Writes an entry. Only one thread may do so.
    pub fn push(&self, entry: &TrailEntry) {
        let head = self.head.load(Ordering::Relaxed);
        let tag = u128::from_le_bytes(entry.tag);
        let mut word = u64::from(entry.limit);
        word |= if entry.denied { DENIED } else { 0 };
        word |= if entry.again { AGAIN } else { 0 };
        let left = u64::from(entry.remaining) << 32 | u64::from(entry.units);
        let slot = &self.slots[(head % CAPACITY) as usize];
        // A reader that sees one of the stores below also sees that the slot is being written.
        fence(Ordering::Release);
        for (place, value) in slot
            .iter()
            .zip([tag as u64, (tag >> 64) as u64, word, left])
        {
            place.store(value, Ordering::Relaxed);
        }
        self.head.store(head + 1, Ordering::Release);
    }

    /// Reads the entries since the last call, oldest first. Returns how many were missed. Only one
    /// thread at a time may do so.
    pub fn drain(&self, mut read: impl FnMut(TrailEntry)) -> u64 {
        let (head, tail) = (
            self.head.load(Ordering::Acquire),
            self.tail.load(Ordering::Relaxed),
        );
        // The oldest slot may be the one that is written next.
        let first = tail.max(head.saturating_sub(CAPACITY - 1));
        let mut missed = first - tail;
        for number in first..head {
            let slot = &self.slots[(number % CAPACITY) as usize];
            let [low, high, word, left] =
                [0, 1, 2, 3].map(|place: usize| slot[place].load(Ordering::Relaxed));
            fence(Ordering::Acquire);
            if self.head.load(Ordering::Relaxed) >= number + CAPACITY {
                // The slot was overwritten while it was read.
                missed += 1;
                continue;
            }
            read(TrailEntry {
                tag: (u128::from(high) << 64 | u128::from(low)).to_le_bytes(),
                limit: word as u32,
                denied: word & DENIED != 0,
                again: word & AGAIN != 0,
                remaining: (left >> 32) as u32,
                units: left as u32,
            });
        }
        self.tail.store(head, Ordering::Relaxed);
        missed
    }
}

impl std::fmt::Debug for Trail {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Trail")
            .field("head", &self.head)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(number: u64) -> TrailEntry {
        let tag = u128::from(number) << 64 | u128::from(!number);
        TrailEntry {
            tag: tag.to_le_bytes(),
            limit: number as u32,
            denied: number.is_multiple_of(2),
            again: number.is_multiple_of(3),
            remaining: number as u32,
            units: !(number as u32),
        }
    }

    #[test]
    fn entries_are_read_once_in_their_order() {
        let trail = Trail::default();
        let mut found = Vec::new();
        for round in 0..3 {
            (round * 10..round * 10 + 10).for_each(|number| trail.push(&entry(number)));
            assert_eq!(trail.drain(|one| found.push(one)), 0);
        }
        assert_eq!(found, (0..30).map(entry).collect::<Vec<_>>());
    }

    #[test]
    fn a_late_reader_learns_how_many_were_missed() {
        let trail = Trail::default();
        (0..CAPACITY + 100).for_each(|number| trail.push(&entry(number)));
        let mut found = Vec::new();
        assert_eq!(trail.drain(|one| found.push(one)), 101);
        assert_eq!(found.first(), Some(&entry(101)));
        assert_eq!(found.len() as u64, CAPACITY - 1);
    }

    #[test]
    fn no_entry_is_torn_while_it_is_written() {
        let trail = Trail::default();
        let many = 200_000;
        std::thread::scope(|scope| {
            scope.spawn(|| (0..many).for_each(|number| trail.push(&entry(number))));
            let (mut count, mut next) = (0, 0);
            while count < many {
                let mut whole = 0;
                let missed = trail.drain(|one| {
                    let number = (u128::from_le_bytes(one.tag) >> 64) as u64;
                    assert_eq!(one, entry(number));
                    assert!(number >= next, "out of order");
                    next = number + 1;
                    whole += 1;
                });
                count += whole + missed;
            }
            assert_eq!(count, many);
        });
    }
}
