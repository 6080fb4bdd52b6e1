//! The last decisions of one worker, for whoever wants to know of which clients they are.
//!
//! A ring that one thread writes and another reads, at the price of five stores and without a lock:
//! the writer never waits and never looks where the reader is. Who reads too late has missed some,
//! and knows how many.

use std::sync::atomic::{AtomicU64, Ordering, fence};

/// Decisions that it holds; a power of two.
const ROOM: u64 = 8192;

const DENIED: u64 = 1 << 32;
const AGAIN: u64 = 1 << 33;

/// What one limit said of one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seen {
    /// The hash of the client's key.
    pub tag: [u8; 16],
    /// The limit's number.
    pub limit: u32,
    /// Whether it denied it.
    pub denied: bool,
    /// Whether it is another rate of the same limit: the request itself was told before.
    pub again: bool,
    /// Units that are left to the client, of so many.
    pub left: (u32, u32),
}

/// See the file's head.
pub struct Trail {
    slots: Box<[[AtomicU64; 4]]>,
    /// How many were written.
    head: AtomicU64,
    /// How many of them were read or missed; the reader's own.
    tail: AtomicU64,
}

impl Default for Trail {
    fn default() -> Trail {
        Trail {
            slots: (0..ROOM).map(|_| Default::default()).collect(),
            head: AtomicU64::new(0),
            tail: AtomicU64::new(0),
        }
    }
}

impl Trail {
    /// Writes one. By one thread alone.
    pub fn push(&self, seen: &Seen) {
        let head = self.head.load(Ordering::Relaxed);
        let tag = u128::from_le_bytes(seen.tag);
        let mut word = u64::from(seen.limit);
        word |= if seen.denied { DENIED } else { 0 };
        word |= if seen.again { AGAIN } else { 0 };
        let left = u64::from(seen.left.0) << 32 | u64::from(seen.left.1);
        let slot = &self.slots[(head % ROOM) as usize];
        // Before it: whoever sees any of these knows that this one is being written.
        fence(Ordering::Release);
        for (place, value) in slot
            .iter()
            .zip([tag as u64, (tag >> 64) as u64, word, left])
        {
            place.store(value, Ordering::Relaxed);
        }
        self.head.store(head + 1, Ordering::Release);
    }

    /// Reads what has come since the last time, oldest first. By one thread at a time. Returns how
    /// many were missed.
    pub fn drain(&self, mut read: impl FnMut(Seen)) -> u64 {
        let (head, tail) = (
            self.head.load(Ordering::Acquire),
            self.tail.load(Ordering::Relaxed),
        );
        // The oldest slot may be the one that is written next.
        let first = tail.max(head.saturating_sub(ROOM - 1));
        let mut missed = first - tail;
        for number in first..head {
            let slot = &self.slots[(number % ROOM) as usize];
            let [low, high, word, left] =
                [0, 1, 2, 3].map(|place: usize| slot[place].load(Ordering::Relaxed));
            fence(Ordering::Acquire);
            if self.head.load(Ordering::Relaxed) >= number + ROOM {
                // Written over as it was read.
                missed += 1;
                continue;
            }
            read(Seen {
                tag: (u128::from(high) << 64 | u128::from(low)).to_le_bytes(),
                limit: word as u32,
                denied: word & DENIED != 0,
                again: word & AGAIN != 0,
                left: ((left >> 32) as u32, left as u32),
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

    fn seen(number: u64) -> Seen {
        let tag = u128::from(number) << 64 | u128::from(!number);
        Seen {
            tag: tag.to_le_bytes(),
            limit: number as u32,
            denied: number.is_multiple_of(2),
            again: number.is_multiple_of(3),
            left: (number as u32, !(number as u32)),
        }
    }

    #[test]
    fn what_was_written_is_read_once_in_its_order() {
        let trail = Trail::default();
        let mut found = Vec::new();
        for round in 0..3 {
            (round * 10..round * 10 + 10).for_each(|number| trail.push(&seen(number)));
            assert_eq!(trail.drain(|one| found.push(one)), 0);
        }
        assert_eq!(found, (0..30).map(seen).collect::<Vec<_>>());
    }

    #[test]
    fn who_reads_too_late_knows_how_many_were_missed() {
        let trail = Trail::default();
        (0..ROOM + 100).for_each(|number| trail.push(&seen(number)));
        let mut found = Vec::new();
        assert_eq!(trail.drain(|one| found.push(one)), 101);
        assert_eq!(found.first(), Some(&seen(101)));
        assert_eq!(found.len() as u64, ROOM - 1);
    }

    #[test]
    fn nothing_is_read_by_halves_while_it_is_written() {
        let trail = Trail::default();
        let many = 200_000;
        std::thread::scope(|scope| {
            scope.spawn(|| (0..many).for_each(|number| trail.push(&seen(number))));
            let (mut count, mut next) = (0, 0);
            while count < many {
                let mut whole = 0;
                let missed = trail.drain(|one| {
                    let number = (u128::from_le_bytes(one.tag) >> 64) as u64;
                    assert_eq!(one, seen(number));
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
