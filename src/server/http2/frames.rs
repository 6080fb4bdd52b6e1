//! A look at the frames that a client sends, for what the library does not count: frames that cost
//! us work and move nothing.
//!
//! Pure and incremental: bytes in, what they cost out. Each connection has an allowance of such
//! frames that is spent by them and earned back by time and by work done: a request answered, a
//! piece of a response taken. Whoever does what connections are for never runs out.

use std::sync::atomic::{AtomicI64, AtomicU32, Ordering};

use super::super::opening::PREFACE;

/// Bytes before a frame's payload.
const HEAD_BYTES: usize = 9;

/// Units that a connection has at its start, and at most.
const ALLOWANCE: i64 = 1000;
/// Units earned back in each tick of the coarse clock (50 ms).
const EARNED_BY_TICK: i64 = 4;

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const CONTINUATION: u8 = 9;
const END_STREAM: u8 = 1;
const ACK: u8 = 1;
const END_HEADERS: u8 = 4;
const PADDED: u8 = 8;

/// Where the look at one connection stands.
#[derive(Debug, Default)]
pub(super) struct Frames {
    /// Bytes of the preface that have come.
    preface: usize,
    /// Whether a frame has begun.
    has_begun: bool,
    /// What came is not how HTTP/2 begins.
    is_foreign: bool,
    head: [u8; HEAD_BYTES],
    head_bytes: usize,
    /// Bytes of the current frame's payload that have not come.
    payload: usize,
    in_data: bool,
    /// A head of a request has begun and not ended.
    in_block: bool,
}

impl Frames {
    /// Looks at the next bytes of the connection, and tells what the frames that begin in them
    /// cost.
    pub(super) fn look(&mut self, mut bytes: &[u8]) -> i64 {
        let mut cost = 0;
        let preface = bytes.len().min(PREFACE.len() - self.preface);
        self.is_foreign |= bytes[..preface] != PREFACE[self.preface..][..preface];
        self.preface += preface;
        bytes = &bytes[preface..];
        while !bytes.is_empty() {
            if self.payload > 0 {
                let taken = self.payload.min(bytes.len());
                self.payload -= taken;
                bytes = &bytes[taken..];
                continue;
            }
            let taken = (HEAD_BYTES - self.head_bytes).min(bytes.len());
            self.head[self.head_bytes..][..taken].copy_from_slice(&bytes[..taken]);
            self.head_bytes += taken;
            bytes = &bytes[taken..];
            if self.head_bytes == HEAD_BYTES {
                self.head_bytes = 0;
                cost += self.begin_frame();
            }
        }
        cost
    }

    /// Whether more has to come before anything can be done with what has: half a preface, a head
    /// without its end, part of a frame that is not content.
    pub(super) fn is_unfinished(&self) -> bool {
        self.preface < PREFACE.len()
            || self.in_block
            || self.head_bytes > 0
            || (self.payload > 0 && !self.in_data)
    }

    /// Whether the connection does not begin with the preface and SETTINGS (RFC 9113 section 3.4).
    pub(super) fn is_foreign(&self) -> bool {
        self.is_foreign
    }

    fn begin_frame(&mut self) -> i64 {
        let [high, middle, low, kind, flags, ..] = self.head;
        if !std::mem::replace(&mut self.has_begun, true) {
            self.is_foreign |= kind != SETTINGS || flags & ACK != 0;
        }
        let length = usize::from(high) << 16 | usize::from(middle) << 8 | usize::from(low);
        self.payload = length;
        self.in_data = kind == DATA;
        if matches!(kind, HEADERS | CONTINUATION) {
            self.in_block = flags & END_HEADERS == 0;
        }
        let per = |bytes: usize| i64::try_from(length / bytes).unwrap_or(ALLOWANCE);
        match kind {
            DATA if length == 0 && flags & END_STREAM == 0 => 1,
            // Nearly all of it may be padding.
            DATA if flags & PADDED != 0 && length <= 256 => 1,
            DATA => 0,
            RST_STREAM => 2,
            SETTINGS => 1 + per(6),
            CONTINUATION if length < 1024 => 2,
            _ => 1 + per(4096),
        }
    }
}

/// What a connection may still spend on frames that move nothing.
#[derive(Debug)]
pub(super) struct Allowance {
    left: AtomicI64,
    /// When time was last counted, ticks.
    counted: AtomicU32,
}

impl Allowance {
    pub(super) fn new(ticks: u32) -> Allowance {
        Allowance {
            left: AtomicI64::new(ALLOWANCE),
            counted: AtomicU32::new(ticks),
        }
    }

    /// Spends `cost` at `ticks`; whether there was so much.
    pub(super) fn spend(&self, cost: i64, ticks: u32) -> bool {
        if cost == 0 {
            return true;
        }
        let counted = self.counted.swap(ticks, Ordering::Relaxed);
        let passed = i64::from(ticks.saturating_sub(counted));
        self.earn(passed.saturating_mul(EARNED_BY_TICK));
        self.left.fetch_sub(cost, Ordering::Relaxed) >= cost
    }

    /// Work was done that the connection is for.
    pub(super) fn earn(&self, units: i64) {
        let left = self.left.load(Ordering::Relaxed);
        let more = left.saturating_add(units).min(ALLOWANCE);
        self.left.store(more, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(kind: u8, flags: u8, length: usize) -> Vec<u8> {
        let size = u32::try_from(length).unwrap().to_be_bytes();
        let mut frame = vec![size[1], size[2], size[3], kind, flags, 0, 0, 0, 1];
        frame.resize(HEAD_BYTES + length, 0xff);
        frame
    }

    /// What the frames cost behind the first one however the bytes are cut in two, and whether they
    /// leave one undone.
    fn check(frames: &[Vec<u8>], cost: i64, unfinished: bool) {
        let bytes = [PREFACE, &frame(SETTINGS, 0, 0), &frames.concat()].concat();
        let cost = cost + 1;
        for cut in 0..=bytes.len() {
            let mut look = Frames::default();
            let found = look.look(&bytes[..cut]) + look.look(&bytes[cut..]);
            assert_eq!(found, cost, "cut at {cut}");
            assert_eq!(look.is_unfinished(), unfinished, "cut at {cut}");
            assert!(!look.is_foreign(), "cut at {cut}");
        }
    }

    #[test]
    fn a_connection_begins_with_the_preface_and_settings() {
        let foreign = |bytes: &[u8]| {
            let mut look = Frames::default();
            bytes.chunks(1).for_each(|byte| _ = look.look(byte));
            look.is_foreign()
        };
        assert!(foreign(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r!"));
        assert!(foreign(b"GET"));
        for first in [
            frame(6, 0, 8),
            frame(SETTINGS, ACK, 0),
            frame(HEADERS, 5, 3),
        ] {
            assert!(foreign(&[PREFACE, &first].concat()), "{first:?}");
        }
        assert!(!foreign(&[PREFACE, &frame(SETTINGS, 0, 0)].concat()));
    }

    #[test]
    fn content_costs_nothing_and_what_moves_nothing_does() {
        check(&[], 0, false);
        check(&[frame(DATA, 0, 100), frame(DATA, END_STREAM, 0)], 0, false);
        check(&[frame(DATA, 0, 0), frame(DATA, 0, 0)], 2, false);
        check(&[frame(DATA, PADDED, 100)], 1, false);
        check(&[frame(RST_STREAM, 0, 4)], 2, false);
        check(&[frame(SETTINGS, 0, 60), frame(SETTINGS, 1, 0)], 12, false);
        check(&[frame(6, 0, 8), frame(8, 0, 4), frame(2, 0, 5)], 3, false);
    }

    #[test]
    fn a_head_without_its_end_is_unfinished() {
        check(&[frame(HEADERS, END_HEADERS, 30)], 1, false);
        check(&[frame(HEADERS, 0, 30)], 1, true);
        check(&[frame(HEADERS, 0, 3), frame(CONTINUATION, 0, 0)], 3, true);
        check(
            &[frame(HEADERS, 0, 3), frame(CONTINUATION, END_HEADERS, 5)],
            3,
            false,
        );
        let mut look = Frames::default();
        look.look(&PREFACE[..20]);
        assert!(look.is_unfinished());
        look.look(&PREFACE[20..]);
        look.look(&frame(DATA, 0, 100)[..50]);
        assert!(!look.is_unfinished(), "content has its own deadline");
        look.look(&[0; 59]);
        look.look(&[0; 5]);
        assert!(look.is_unfinished());
    }

    #[test]
    fn an_allowance_is_spent_and_earned_back() {
        let allowance = Allowance::new(5);
        assert!(allowance.spend(ALLOWANCE, 5));
        assert!(!allowance.spend(1, 5));
        allowance.earn(2);
        assert!(allowance.spend(1, 5));
        assert!(!allowance.spend(10, 6));
        assert!(allowance.spend(ALLOWANCE, 100_000), "never above its start");
        assert!(!allowance.spend(1, 100_000));
    }
}
