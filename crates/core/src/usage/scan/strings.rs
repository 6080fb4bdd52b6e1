//! Strings: their ends, and their escapes.

use super::super::paths::NOWHERE;
use super::{JsonScan, LEVELS, Piece, Scanning, Sink, State};

/// Stands for a half of a surrogate pair that has no other half.
const REPLACEMENT: &[u8] = "\u{fffd}".as_bytes();

impl<S: Sink> Scanning<'_, S> {
    pub(super) fn string(&mut self, scan: &mut JsonScan, from: usize) -> usize {
        let rest = self.bytes.get(from..).unwrap_or_default();
        let length = plain_length(rest);
        let end = rest.get(length).copied();
        if scan.escaped.high != 0 && !rest.is_empty() && !(length == 0 && end == Some(b'\\')) {
            self.leave_half(scan);
        }
        if length > 0 {
            self.text(scan, &rest[..length]);
        }
        match end {
            None => {}
            Some(b'"') => self.end_string(scan),
            Some(_) => scan.state = State::Escape,
        }
        from + length + usize::from(end.is_some())
    }

    fn text(&mut self, scan: &mut JsonScan, text: &[u8]) {
        if !scan.in_name {
            self.show(scan.place.value, Piece::Text(text));
            return;
        }
        for byte in text {
            if scan.name.candidates == 0 {
                return;
            }
            self.table
                .advance(scan.place.container, &mut scan.name, *byte);
        }
    }

    fn end_string(&mut self, scan: &mut JsonScan) {
        if scan.place.depth > LEVELS {
            scan.state = State::Deep;
        } else if scan.in_name {
            scan.place.value = match scan.name.candidates {
                0 => NOWHERE,
                _ => self.table.found(scan.place.container, scan.name),
            };
            scan.state = State::Colon;
        } else {
            self.show(scan.place.value, Piece::TextEnd);
            scan.state = State::After;
        }
    }

    pub(super) fn escape(&mut self, scan: &mut JsonScan, at: usize) -> usize {
        let byte = self.bytes[at];
        if scan.is_ignored() {
            // The text does not matter, so only a quote does.
            scan.state = State::String;
            return at + 1;
        }
        if byte == b'u' {
            scan.escaped.code = 0;
            scan.read = 0;
            scan.state = State::Hex;
            return at + 1;
        }
        let character = match byte {
            b'"' | b'\\' | b'/' => byte,
            b'b' => 0x08,
            b'f' => 0x0c,
            b'n' => b'\n',
            b'r' => b'\r',
            b't' => b'\t',
            _ => {
                scan.state = State::Broken;
                return at;
            }
        };
        self.leave_half(scan);
        self.text(scan, &[character]);
        scan.state = State::String;
        at + 1
    }

    pub(super) fn hex(&mut self, scan: &mut JsonScan, at: usize) -> usize {
        let Some(digit) = char::from(self.bytes[at]).to_digit(16) else {
            scan.state = State::Broken;
            return at;
        };
        scan.escaped.code = (scan.escaped.code << 4) | digit as u16;
        scan.read += 1;
        if scan.read == 4 {
            self.unit(scan);
            scan.state = State::String;
        }
        at + 1
    }

    /// Takes one unit of UTF-16.
    fn unit(&mut self, scan: &mut JsonScan) {
        let code = scan.escaped.code;
        let high = std::mem::take(&mut scan.escaped.high);
        if high != 0 {
            let pair = char::decode_utf16([high, code]).next();
            if let Some(Ok(character)) = pair {
                self.text(scan, character.encode_utf8(&mut [0; 4]).as_bytes());
                return;
            }
            self.text(scan, REPLACEMENT);
        }
        if (0xd800..0xdc00).contains(&code) {
            scan.escaped.high = code;
            return;
        }
        let character = char::from_u32(u32::from(code)).unwrap_or('\u{fffd}');
        self.text(scan, character.encode_utf8(&mut [0; 4]).as_bytes());
    }

    /// The first half of a pair stays alone.
    fn leave_half(&mut self, scan: &mut JsonScan) {
        if std::mem::take(&mut scan.escaped.high) != 0 {
            self.text(scan, REPLACEMENT);
        }
    }
}

const ONES: u64 = 0x0101_0101_0101_0101;
const TOPS: u64 = 0x8080_8080_8080_8080;
const QUOTES: u64 = ONES * b'"' as u64;
const BACKSLASHES: u64 = ONES * b'\\' as u64;

/// The top bit of each byte that is 0. Those above the lowest one may be wrong.
const fn zeros(word: u64) -> u64 {
    word.wrapping_sub(ONES) & !word & TOPS
}

/// How many bytes stand before the next quote or backslash. Names and short values end within a few
/// bytes, where a call of memchr costs more than it saves.
#[inline]
pub(super) fn plain_length(bytes: &[u8]) -> usize {
    let mut at = 0;
    let mut rest = bytes;
    while let Some((word, behind)) = rest.split_first_chunk::<8>() {
        let word = u64::from_le_bytes(*word);
        let found = zeros(word ^ QUOTES) | zeros(word ^ BACKSLASHES);
        if found != 0 {
            return at + found.trailing_zeros() as usize / 8;
        }
        at += 8;
        rest = behind;
    }
    let ends = |byte: &u8| matches!(byte, b'"' | b'\\');
    at + rest.iter().position(ends).unwrap_or(rest.len())
}

/// The place of the quote that ends a string whose text does not matter.
#[inline]
pub(super) fn string_end(bytes: &[u8]) -> Option<usize> {
    let mut at = 0;
    let mut rest = bytes;
    while let Some((word, behind)) = rest.split_first_chunk::<8>() {
        let found = zeros(u64::from_le_bytes(*word) ^ QUOTES);
        if found != 0 {
            at += found.trailing_zeros() as usize / 8;
            return unescaped(bytes, at);
        }
        at += 8;
        rest = behind;
    }
    let place = rest.iter().position(|byte| *byte == b'"')?;
    unescaped(bytes, at + place)
}

/// The quote at this place, or the one that ends the string if a backslash stands before.
#[inline]
fn unescaped(bytes: &[u8], quote: usize) -> Option<usize> {
    match quote.checked_sub(1).and_then(|before| bytes.get(before)) {
        Some(b'\\') => escaped_end(bytes),
        _ => Some(quote),
    }
}

#[cold]
fn escaped_end(bytes: &[u8]) -> Option<usize> {
    let mut at = 0;
    loop {
        at += plain_length(bytes.get(at..)?);
        match bytes.get(at)? {
            b'"' => return Some(at),
            _ => at += 2,
        }
    }
}
