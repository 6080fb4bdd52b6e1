//! Inspects the frames of a client before the library gets them.
//!
//! It counts frames that cost work and do none. They use up the allowance of their connection.
//! Time, answered requests and read responses refill it, so a client that uses its connection for
//! requests never runs out.
//!
//! It passes the head of a request on when the head is whole, and rewrites a malformed one
//! (`field_block`). It is incremental and does no IO: bytes in, bytes and their cost out.

use std::borrow::Cow;
use std::sync::atomic::{AtomicI64, AtomicU32, Ordering};

use bytes::{Buf, BytesMut};

use super::PREFACE;
use super::field_block;

const HEAD_BYTES: usize = 9;
/// Bytes of a payload, at most. We set no other SETTINGS_MAX_FRAME_SIZE.
const MAX_FRAME_BYTES: usize = 16 << 10;
const PRIORITY_BYTES: usize = 5;

/// Units of a connection at its start, and at most.
const ALLOWANCE: i64 = 1000;
/// Units that each tick of the coarse clock (50 ms) adds.
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

struct FrameHead {
    length: usize,
    kind: u8,
    flags: u8,
    stream: u32,
}

impl FrameHead {
    fn parse(bytes: &[u8]) -> Option<FrameHead> {
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
            // Nearly all of the payload may be padding.
            DATA if self.flags & PADDED != 0 && self.length <= 256 => 1,
            DATA => 0,
            RST_STREAM => 2,
            SETTINGS => 1 + per(6),
            CONTINUATION if self.length < 1024 => 2,
            _ => 1 + per(4096),
        }
    }
}

#[derive(Debug)]
pub(super) struct PassedBytes {
    pub(super) cost: i64,
    /// Bytes at the beginning that pass unchanged. The rest that passes is in `ready`.
    pub(super) unchanged: usize,
}

/// The inspection of one connection. Heads of requests pass when they are whole, because malformed
/// ones are rewritten.
#[derive(Debug, Default)]
pub(super) struct FrameInspector {
    preface: usize,
    has_begun: bool,
    /// The connection does not begin as HTTP/2 does.
    is_foreign: bool,
    /// Bytes of the current frame's payload that have not come. They pass as they come.
    payload: usize,
    in_data: bool,
    /// In a head that is too large to be held, and passes as it comes.
    in_block: bool,
    /// Bytes that do not pass yet: a part of a frame's head, or an incomplete head of a request.
    held: BytesMut,
    /// Bytes of `held` in whole frames.
    walked: usize,
    max_held_bytes: usize,
    /// The highest stream that has had a head. Its second head is trailers.
    highest_stream: u32,
    /// Bytes that pass before any new ones.
    pub(super) ready: BytesMut,
}

enum FrameStep {
    Pass(usize),
    /// Passes these frames instead of so many bytes.
    Replace(usize, Vec<u8>),
    Hold,
}

impl FrameInspector {
    /// `max_head_bytes` is the library's limit for a decoded head.
    pub(super) fn new(max_head_bytes: usize) -> FrameInspector {
        FrameInspector {
            max_held_bytes: max_head_bytes + MAX_FRAME_BYTES,
            ..FrameInspector::default()
        }
    }

    pub(super) fn inspect(&mut self, bytes: &[u8]) -> PassedBytes {
        let mut passed = PassedBytes {
            cost: 0,
            unchanged: 0,
        };
        if !self.held.is_empty() {
            let mut held = std::mem::take(&mut self.held);
            held.extend_from_slice(bytes);
            self.pass_or_hold(held, &mut passed.cost);
            return passed;
        }
        let preface = bytes.len().min(PREFACE.len() - self.preface);
        self.is_foreign |= bytes[..preface] != PREFACE[self.preface..][..preface];
        self.preface += preface;
        passed.unchanged = preface;
        while passed.unchanged < bytes.len() {
            let rest = &bytes[passed.unchanged..];
            match self.step(rest, &mut passed.cost) {
                FrameStep::Pass(length) => passed.unchanged += length,
                FrameStep::Replace(length, frames) => {
                    self.ready.extend_from_slice(&frames);
                    self.pass_or_hold(rest[length..].into(), &mut passed.cost);
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

    /// Moves the bytes that pass to `ready`, and holds the rest.
    fn pass_or_hold(&mut self, mut bytes: BytesMut, cost: &mut i64) {
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

    /// Decides about the first of `bytes`, which are not empty.
    fn step(&mut self, bytes: &[u8], cost: &mut i64) -> FrameStep {
        if self.payload > 0 {
            let passes = self.payload.min(bytes.len());
            self.payload -= passes;
            return FrameStep::Pass(passes);
        }
        while let Some(head) = FrameHead::parse(&bytes[self.walked..]) {
            let is_first = self.walked == 0;
            if !is_first && head.kind != CONTINUATION {
                // The library then ends the connection.
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
                return self.pass_head(&bytes[..end]);
            }
        }
        if bytes.len() > self.max_held_bytes && self.walked > 0 {
            self.in_block = true;
            return FrameStep::Pass(std::mem::take(&mut self.walked));
        }
        FrameStep::Hold
    }

    /// Passes the frame after the walked bytes as it comes.
    fn pass_frame(&mut self, head: &FrameHead, cost: &mut i64) -> FrameStep {
        *cost += head.cost();
        self.payload = head.length;
        self.in_data = head.kind == DATA;
        if matches!(head.kind, HEADERS | CONTINUATION) {
            self.in_block = head.flags & END_HEADERS == 0;
        }
        FrameStep::Pass(std::mem::take(&mut self.walked) + HEAD_BYTES)
    }

    /// Passes or replaces the head of a request, or trailers, in whole frames.
    fn pass_head(&mut self, frames: &[u8]) -> FrameStep {
        let Some(first) = FrameHead::parse(frames) else {
            return FrameStep::Pass(frames.len());
        };
        let are_trailers = first.stream <= self.highest_stream;
        self.highest_stream = self.highest_stream.max(first.stream);
        let Some(head) = HeaderFrames::parse(&first, frames) else {
            return FrameStep::Pass(frames.len());
        };
        let block = if are_trailers {
            Some(field_block::replace_trailers(&head.block))
        } else {
            field_block::replace_malformed(&head.block)
        };
        match block {
            None => FrameStep::Pass(frames.len()),
            Some(block) => FrameStep::Replace(frames.len(), head.write_with(&first, &block)),
        }
    }

    /// Whether the last bytes are incomplete: a part of the preface, of a head, or of a frame that
    /// is not content.
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

struct HeaderFrames<'f> {
    /// The five bytes of a priority, or none.
    priority: &'f [u8],
    block: Cow<'f, [u8]>,
}

impl<'f> HeaderFrames<'f> {
    /// Returns `None` if the padding is longer than the frame. The library then ends the
    /// connection.
    fn parse(first: &FrameHead, frames: &'f [u8]) -> Option<HeaderFrames<'f>> {
        let (mut payload, mut rest) = frames[HEAD_BYTES..].split_at(first.length);
        if first.flags & PADDED != 0 {
            let (&padding, behind) = payload.split_first()?;
            payload = &behind[..behind.len().checked_sub(usize::from(padding))?];
        }
        let priority = match first.flags & PRIORITY {
            0 => 0,
            _ => PRIORITY_BYTES,
        };
        let (priority, block) = payload.split_at_checked(priority)?;
        let mut block = Cow::Borrowed(block);
        while let Some(head) = FrameHead::parse(rest) {
            let (payload, behind) = rest[HEAD_BYTES..].split_at(head.length);
            block.to_mut().extend_from_slice(payload);
            rest = behind;
        }
        Some(HeaderFrames { priority, block })
    }

    /// Writes the frames with another block and without padding.
    fn write_with(&self, first: &FrameHead, block: &[u8]) -> Vec<u8> {
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

/// The units that a connection may still spend on frames that do no work.
#[derive(Debug)]
pub(super) struct Allowance {
    left: AtomicI64,
    /// The tick when time last added units.
    counted: AtomicU32,
}

impl Allowance {
    pub(super) fn new(ticks: u32) -> Allowance {
        Allowance {
            left: AtomicI64::new(ALLOWANCE),
            counted: AtomicU32::new(ticks),
        }
    }

    /// Spends `cost` at `ticks`. Returns false if too few units are left.
    pub(super) fn spend(&self, cost: i64, ticks: u32) -> bool {
        if cost == 0 {
            return true;
        }
        let counted = self.counted.swap(ticks, Ordering::Relaxed);
        let passed = i64::from(ticks.saturating_sub(counted));
        self.earn(passed.saturating_mul(EARNED_BY_TICK));
        self.left.fetch_sub(cost, Ordering::Relaxed) >= cost
    }

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

    /// Checks the cost of frames after the first one, and whether the last one is unfinished. The
    /// bytes come in two parts, cut at each place.
    fn check(frames: &[Vec<u8>], cost: i64, unfinished: bool) {
        let bytes = [PREFACE, &frame(SETTINGS, 0, 0), &frames.concat()].concat();
        let cost = cost + 1;
        for cut in 0..=bytes.len() {
            let mut inspector = FrameInspector::new(MAX_FRAME_BYTES);
            let found =
                inspector.inspect(&bytes[..cut]).cost + inspector.inspect(&bytes[cut..]).cost;
            assert_eq!(found, cost, "cut at {cut}");
            assert_eq!(inspector.is_unfinished(), unfinished, "cut at {cut}");
            assert!(!inspector.is_foreign(), "cut at {cut}");
        }
    }

    #[test]
    fn a_connection_begins_with_the_preface_and_settings() {
        let foreign = |bytes: &[u8]| {
            let mut inspector = FrameInspector::new(MAX_FRAME_BYTES);
            bytes.chunks(1).for_each(|byte| _ = inspector.inspect(byte));
            inspector.is_foreign()
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
        let mut inspector = FrameInspector::new(MAX_FRAME_BYTES);
        inspector.inspect(&PREFACE[..20]);
        assert!(inspector.is_unfinished());
        inspector.inspect(&PREFACE[20..]);
        inspector.inspect(&frame(DATA, 0, 100)[..50]);
        assert!(!inspector.is_unfinished(), "content has its own deadline");
        inspector.inspect(&[0; 59]);
        inspector.inspect(&[0; 5]);
        assert!(inspector.is_unfinished());
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
