//! JSON in Base64, as a string within the JSON of an answer: Bedrock's `InvokeModel` streams so.

use super::super::format::AnswerRole;
use super::super::paths::PathTable;
use super::super::scan::{JsonScan, Sink};

/// Bytes that are decoded at a time.
const DECODED: usize = 96;

/// The scanner of the inner text, and the bits that have not made a byte yet.
#[derive(Clone, Debug, Default)]
pub(super) struct NestedScan {
    scan: JsonScan,
    bits: u16,
    /// How many of the bits count.
    length: u8,
    state: NestedState,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum NestedState {
    #[default]
    Waiting,
    /// The scanner is at work, so a text within the inner text is not read.
    Reading,
    /// This is no Base64.
    Broken,
}

impl NestedScan {
    /// Lends the scanner to the one that feeds it. `None` while it is lent.
    pub(super) fn begin(&mut self) -> Option<NestedScan> {
        if self.state == NestedState::Reading {
            return None;
        }
        let lent = self.clone();
        self.state = NestedState::Reading;
        Some(lent)
    }

    pub(super) fn read<S: Sink<Role = AnswerRole>>(
        &mut self,
        paths: &PathTable<AnswerRole>,
        text: &[u8],
        sink: &mut S,
    ) {
        // Four characters make three bytes, and a bit that waits may make one more.
        for part in text.chunks(DECODED) {
            let mut decoded = [0; DECODED];
            let length = self.decode(part, &mut decoded);
            let mut rest = &decoded[..length];
            while !rest.is_empty() {
                let read = self.scan.feed(paths, rest, sink);
                rest = rest.get(read..).unwrap_or_default();
            }
        }
    }

    /// Whether the text was one of JSON.
    pub(super) fn is_whole(&self) -> bool {
        self.state != NestedState::Broken && self.scan.is_whole()
    }

    fn decode(&mut self, text: &[u8], decoded: &mut [u8; DECODED]) -> usize {
        let mut written = 0;
        for byte in text {
            let Some(value) = value_of(*byte) else {
                if *byte != b'=' {
                    self.state = NestedState::Broken;
                }
                continue;
            };
            self.bits = (self.bits << 6) | u16::from(value);
            self.length += 6;
            if self.length >= 8 {
                self.length -= 8;
                decoded[written] = (self.bits >> self.length) as u8;
                written += 1;
            }
        }
        written
    }
}

fn value_of(byte: u8) -> Option<u8> {
    match byte {
        b'A'..=b'Z' => Some(byte - b'A'),
        b'a'..=b'z' => Some(byte - b'a' + 26),
        b'0'..=b'9' => Some(byte - b'0' + 52),
        b'+' => Some(62),
        b'/' => Some(63),
        _ => None,
    }
}
