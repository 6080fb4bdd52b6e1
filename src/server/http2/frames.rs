//! A look at the frames that a client sends, before the library gets them.
//!
//! It counts what the library does not: frames that cost work and move nothing. Each connection has
//! an allowance of such frames. They spend it; time and work done earn it back: a request answered,
//! a piece of a response taken. A client that uses its connection for requests never runs out.
//!
//! It passes the head of a request on when the head is whole, and writes a malformed one anew
//! (`field_block`). Pure and incremental: bytes in, bytes and their cost out.

use std::borrow::Cow;
use std::sync::atomic::{AtomicI64, AtomicU32, Ordering};

use bytes::{Buf, BytesMut};

use super::super::opening::PREFACE;
use super::field_block;

/// Bytes before a frame's payload.
const HEAD_BYTES: usize = 9;
/// Bytes of a payload that a client may send, as we set no other SETTINGS_MAX_FRAME_SIZE.
const MAX_FRAME_BYTES: usize = 16 << 10;
const PRIORITY_BYTES: usize = 5;

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
const PRIORITY: u8 = 0x20;

/// A frame's head (RFC 9113 section 4.1).
struct FrameHead {
    length: usize,
    kind: u8,
    flags: u8,
    stream: u32,
}

impl FrameHead {
    fn of(bytes: &[u8]) -> Option<FrameHead> {
        let &[high, middle, low, kind, flags, a, b, c, d, ..] = bytes else {
            return None;
        };
        Some(FrameHead {
            length: usize::from(high) << 16 | usize::from(middle) << 8 | usize::from(low),
            kind,
            flags,
            stream: u32::from_be_bytes([a & 0x7f, b, c, d]),
        })
    }

    fn cost(&self) -> i64 {
        let per = |bytes: usize| i64::try_from(self.length / bytes).unwrap_or(ALLOWANCE);
        match self.kind {
            DATA if self.length == 0 && self.flags & END_STREAM == 0 => 1,
            // Nearly all of it may be padding.
            DATA if self.flags & PADDED != 0 && self.length <= 256 => 1,
            DATA => 0,
            RST_STREAM => 2,
            SETTINGS => 1 + per(6),
            CONTINUATION if self.length < 1024 => 2,
            _ => 1 + per(4096),
        }
    }
}

/// What the library gets of the bytes that came.
#[derive(Debug)]
pub(super) struct PassedBytes {
    /// What the frames among them cost.
    pub(super) cost: i64,
    /// Bytes at their beginning that pass as they are. What passes of the others is in `ready`.
    pub(super) as_they_are: usize,
}

/// Where the look at one connection stands.
///
/// A head of a request is passed on when it is whole, because a malformed one is written anew.
#[derive(Debug)]
pub(super) struct Frames {
    /// Bytes of the preface that have come.
    preface: usize,
    /// Whether a frame has begun.
    has_begun: bool,
    /// What came is not how HTTP/2 begins.
    is_foreign: bool,
    /// Bytes of the current frame's payload that have not come, and pass as they come.
    payload: usize,
    in_data: bool,
    /// A head too large to be held passes as it comes, and has not ended.
    in_block: bool,
    /// Bytes that do not pass yet: a part of a frame's head, or a request's head without its end.
    held: BytesMut,
    /// Bytes of `held` whose frames are whole.
    walked: usize,
    max_held_bytes: usize,
    /// The highest stream that has had a head. A second head is that of trailers.
    highest_stream: u32,
    /// Bytes to pass before any that come.
    pub(super) ready: BytesMut,
}

enum FrameStep {
    Pass(usize),
    /// Frames to pass in the place of so many bytes.
    Replace(usize, Vec<u8>),
    Hold,
}

impl Frames {
    /// `max_head_bytes` is what the library takes of a head, decoded.
    pub(super) fn new(max_head_bytes: usize) -> Frames {
        Frames {
            preface: 0,
            has_begun: false,
            is_foreign: false,
            payload: 0,
            in_data: false,
            in_block: false,
            held: BytesMut::new(),
            walked: 0,
            max_held_bytes: max_head_bytes + MAX_FRAME_BYTES,
            highest_stream: 0,
            ready: BytesMut::new(),
        }
    }

    /// Looks at the next bytes of the connection.
    pub(super) fn look(&mut self, bytes: &[u8]) -> PassedBytes {
        let mut passed = PassedBytes {
            cost: 0,
            as_they_are: 0,
        };
        if !self.held.is_empty() {
            let mut held = std::mem::take(&mut self.held);
            held.extend_from_slice(bytes);
            self.sift(held, &mut passed.cost);
            return passed;
        }
        let preface = bytes.len().min(PREFACE.len() - self.preface);
        self.is_foreign |= bytes[..preface] != PREFACE[self.preface..][..preface];
        self.preface += preface;
        passed.as_they_are = preface;
        while passed.as_they_are < bytes.len() {
            let rest = &bytes[passed.as_they_are..];
            match self.step(rest, &mut passed.cost) {
                FrameStep::Pass(length) => passed.as_they_are += length,
                FrameStep::Replace(length, frames) => {
                    self.ready.extend_from_slice(&frames);
                    self.sift(rest[length..].into(), &mut passed.cost);
                    break;
                }
                FrameStep::Hold => {
                    self.held.extend_from_slice(rest);
                    break;
                }
            }
        }
        passed
    }

    /// Moves from `bytes` to `ready` what passes, and holds the rest.
    fn sift(&mut self, mut bytes: BytesMut, cost: &mut i64) {
        while !bytes.is_empty() {
            match self.step(&bytes, cost) {
                FrameStep::Pass(length) => self.ready.extend_from_slice(&bytes.split_to(length)),
                FrameStep::Replace(length, frames) => {
                    bytes.advance(length);
                    self.ready.extend_from_slice(&frames);
                }
                FrameStep::Hold => break,
            }
        }
        self.held = bytes;
    }

    /// What becomes of the first of `bytes`, which are not empty.
    fn step(&mut self, bytes: &[u8], cost: &mut i64) -> FrameStep {
        if self.payload > 0 {
            let passes = self.payload.min(bytes.len());
            self.payload -= passes;
            return FrameStep::Pass(passes);
        }
        while let Some(head) = FrameHead::of(&bytes[self.walked..]) {
            let is_first = self.walked == 0;
            if !is_first && head.kind != CONTINUATION {
                // The library ends the connection for it.
                return FrameStep::Pass(std::mem::take(&mut self.walked));
            }
            if !std::mem::replace(&mut self.has_begun, true) {
                self.is_foreign |= head.kind != SETTINGS || head.flags & ACK != 0;
            }
            let is_held = !is_first || head.kind == HEADERS;
            if !is_held || head.length > MAX_FRAME_BYTES {
                return self.pass_frame(&head, cost);
            }
            let end = self.walked + HEAD_BYTES + head.length;
            if bytes.len() < end {
                break;
            }
            *cost += head.cost();
            self.walked = end;
            if head.flags & END_HEADERS != 0 {
                self.walked = 0;
                return self.judge(&bytes[..end]);
            }
        }
        if bytes.len() > self.max_held_bytes && self.walked > 0 {
            self.in_block = true;
            return FrameStep::Pass(std::mem::take(&mut self.walked));
        }
        FrameStep::Hold
    }

    /// Passes the frame that begins behind what was walked, as it comes.
    fn pass_frame(&mut self, head: &FrameHead, cost: &mut i64) -> FrameStep {
        *cost += head.cost();
        self.payload = head.length;
        self.in_data = head.kind == DATA;
        if matches!(head.kind, HEADERS | CONTINUATION) {
            self.in_block = head.flags & END_HEADERS == 0;
        }
        FrameStep::Pass(std::mem::take(&mut self.walked) + HEAD_BYTES)
    }

    /// What becomes of the head of a request, or of trailers, in whole frames.
    fn judge(&mut self, frames: &[u8]) -> FrameStep {
        let Some(first) = FrameHead::of(frames) else {
            return FrameStep::Pass(frames.len());
        };
        let are_trailers = first.stream <= self.highest_stream;
        self.highest_stream = self.highest_stream.max(first.stream);
        let Some(head) = HeaderFrames::of(&first, frames) else {
            return FrameStep::Pass(frames.len());
        };
        let block = if are_trailers {
            Some(field_block::instead_of_trailers(&head.block))
        } else {
            field_block::instead_of(&head.block)
        };
        match block {
            None => FrameStep::Pass(frames.len()),
            Some(block) => FrameStep::Replace(frames.len(), head.written(&first, &block)),
        }
    }

    /// Whether more has to come before anything can be done with what has: half a preface, a head
    /// without its end, part of a frame that is not content.
    pub(super) fn is_unfinished(&self) -> bool {
        self.preface < PREFACE.len()
            || self.in_block
            || !self.held.is_empty()
            || (self.payload > 0 && !self.in_data)
    }

    /// Whether the connection does not begin with the preface and SETTINGS (RFC 9113 section 3.4).
    pub(super) fn is_foreign(&self) -> bool {
        self.is_foreign
    }
}

/// HEADERS with all their CONTINUATION.
struct HeaderFrames<'f> {
    /// The five bytes of a priority, if there are any.
    priority: &'f [u8],
    block: Cow<'f, [u8]>,
}

impl<'f> HeaderFrames<'f> {
    /// Nothing where the padding is longer than the frame, for which the library ends the
    /// connection.
    fn of(first: &FrameHead, frames: &'f [u8]) -> Option<HeaderFrames<'f>> {
        let (mut payload, mut rest) = frames[HEAD_BYTES..].split_at(first.length);
        if first.flags & PADDED != 0 {
            let (&padding, behind) = payload.split_first()?;
            payload = &behind[..behind.len().checked_sub(usize::from(padding))?];
        }
        let priority = if first.flags & PRIORITY != 0 {
            PRIORITY_BYTES
        } else {
            0
        };
        let (priority, block) = payload.split_at_checked(priority)?;
        let mut block = Cow::Borrowed(block);
        while let Some(head) = FrameHead::of(rest) {
            let (payload, behind) = rest[HEAD_BYTES..].split_at(head.length);
            block.to_mut().extend_from_slice(payload);
            rest = behind;
        }
        Some(HeaderFrames { priority, block })
    }

    /// The same frames, without padding, with another block.
    fn written(&self, first: &FrameHead, block: &[u8]) -> Vec<u8> {
        let payload = [self.priority, block].concat();
        let mut out = Vec::with_capacity(payload.len() + 2 * HEAD_BYTES);
        let last = payload.chunks(MAX_FRAME_BYTES).count() - 1;
        for (place, piece) in payload.chunks(MAX_FRAME_BYTES).enumerate() {
            let (kind, kept) = match place {
                0 => (HEADERS, first.flags & (END_STREAM | PRIORITY)),
                _ => (CONTINUATION, 0),
            };
            let ends = if place == last { END_HEADERS } else { 0 };
            let length = (piece.len() as u32).to_be_bytes();
            out.extend_from_slice(&length[1..]);
            out.extend_from_slice(&[kind, kept | ends]);
            out.extend_from_slice(&first.stream.to_be_bytes());
            out.extend_from_slice(piece);
        }
        out
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
            let mut look = Frames::new(MAX_FRAME_BYTES);
            let found = look.look(&bytes[..cut]).cost + look.look(&bytes[cut..]).cost;
            assert_eq!(found, cost, "cut at {cut}");
            assert_eq!(look.is_unfinished(), unfinished, "cut at {cut}");
            assert!(!look.is_foreign(), "cut at {cut}");
        }
    }

    #[test]
    fn a_connection_begins_with_the_preface_and_settings() {
        let foreign = |bytes: &[u8]| {
            let mut look = Frames::new(MAX_FRAME_BYTES);
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
        let mut look = Frames::new(MAX_FRAME_BYTES);
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
