//! Amazon's event stream: messages of a length, headers, a payload and checksums.
//!
//! Only the lengths are read, and whether a header names an exception. The checksums are left to
//! the client, which gets every byte.

use super::{Cut, FramePiece};

/// Lengths of the message and of its headers, and their checksum.
const PRELUDE: u32 = 12;
/// The checksum of the message.
const TRAILER: u32 = 4;
/// The header of a message that ends the answer.
const EXCEPTION: &[u8] = b":exception-type";

#[derive(Clone, Copy, Debug, Default)]
pub(in crate::usage) struct EventStream {
    /// The bytes of the message that have been read.
    at: u32,
    length: u32,
    headers: u32,
    /// How many bytes of the name of an exception have been read.
    matched: u8,
    is_failure: bool,
    /// The lengths contradict each other: nothing is read any more.
    is_broken: bool,
}

impl EventStream {
    pub(super) fn next<'b>(&mut self, bytes: &'b [u8]) -> Cut<'b> {
        let nothing = |rest| Cut {
            piece: FramePiece::Nothing,
            rest,
        };
        if self.is_broken {
            return nothing(&[]);
        }
        if self.at < PRELUDE {
            return nothing(self.prelude(bytes));
        }
        let payload = PRELUDE + self.headers;
        let trailer = self.length - TRAILER;
        if self.at < payload {
            let part = self.take(payload, bytes);
            self.find_exception(part);
            return nothing(&bytes[part.len()..]);
        }
        if self.at < trailer {
            let part = self.take(trailer, bytes);
            return Cut {
                piece: FramePiece::Data(part),
                rest: &bytes[part.len()..],
            };
        }
        let part = self.take(self.length, bytes);
        let rest = &bytes[part.len()..];
        if self.at < self.length {
            return nothing(rest);
        }
        let piece = match self.is_failure {
            true => FramePiece::Failure,
            false => FramePiece::End,
        };
        *self = EventStream::default();
        Cut { piece, rest }
    }

    fn prelude<'b>(&mut self, bytes: &'b [u8]) -> &'b [u8] {
        let mut rest = bytes;
        while self.at < PRELUDE
            && let Some((byte, behind)) = rest.split_first()
        {
            match self.at {
                0..4 => self.length = (self.length << 8) | u32::from(*byte),
                4..8 => self.headers = (self.headers << 8) | u32::from(*byte),
                _ => {}
            }
            self.at += 1;
            rest = behind;
        }
        let least = u64::from(PRELUDE) + u64::from(self.headers) + u64::from(TRAILER);
        self.is_broken = self.at == PRELUDE && u64::from(self.length) < least;
        rest
    }

    /// The bytes up to a place in the message.
    fn take<'b>(&mut self, end: u32, bytes: &'b [u8]) -> &'b [u8] {
        let wanted = end - self.at;
        let length = u32::try_from(bytes.len()).map_or(wanted, |length| length.min(wanted));
        self.at += length;
        &bytes[..length as usize]
    }

    /// The name begins with a byte that it has once, so a mismatch begins anew.
    fn find_exception(&mut self, headers: &[u8]) {
        for byte in headers {
            let matched = usize::from(self.matched);
            if EXCEPTION.get(matched) == Some(byte) {
                self.matched += 1;
            } else {
                self.matched = u8::from(*byte == EXCEPTION[0]);
            }
            if usize::from(self.matched) == EXCEPTION.len() {
                self.is_failure = true;
                self.matched = 0;
            }
        }
    }
}
