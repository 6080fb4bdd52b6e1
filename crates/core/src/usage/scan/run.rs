//! The common case, read in one go: members, elements and brackets that end within a chunk and have
//! neither escapes nor much white space. Everything else goes on step by step.

use super::super::paths::{NOWHERE, NameProgress};
use super::place::Place;
use super::strings::{plain_length, string_end};
use super::{JsonScan, LEVELS, Piece, Scanning, Sink, State};

/// Where the common case ends.
struct Stop {
    state: State,
    at: usize,
}

impl<S: Sink> Scanning<'_, S> {
    /// Reads on from behind the quote that begins a name.
    pub(super) fn run(&mut self, scan: &mut JsonScan, from: usize) -> usize {
        let mut place = scan.place;
        let Stop { state, at } = self.run_on(&mut place, from);
        scan.place = place;
        scan.state = state;
        if state != State::String {
            return at;
        }
        // The name is escaped, or does not end here.
        scan.in_name = true;
        scan.name = match place.is_known() {
            true => self.table.begin(place.container),
            false => NameProgress::default(),
        };
        self.string(scan, at)
    }

    #[inline(never)]
    fn run_on(&mut self, place: &mut Place, from: usize) -> Stop {
        let mut at = from;
        loop {
            let Some(end) = self.name(place, at) else {
                return Stop::new(State::String, at);
            };
            if self.bytes.get(end) != Some(&b':') {
                return Stop::new(State::Colon, end);
            }
            at = self.behind_space(end + 1);
            // Values, one after the other if they are elements.
            loop {
                let byte = self.bytes.get(at).copied().unwrap_or_default();
                if matches!(byte, b'{' | b'[') && place.depth < LEVELS {
                    self.open_at(place, byte == b'{');
                    at += 1;
                    match (byte, self.bytes.get(at)) {
                        (b'{', Some(b'"')) => {
                            at += 1;
                            break;
                        }
                        (b'{', _) => return Stop::new(State::FirstName, at),
                        (_, None | Some(b' ' | b'\n' | b'\r' | b'\t' | b']')) => {
                            return Stop::new(State::FirstValue, at);
                        }
                        _ => continue,
                    }
                }
                let Some(end) = self.scalar(place, byte, at) else {
                    return Stop::new(State::Value, at);
                };
                at = self.close_all(place, end);
                if place.depth == 0 || self.bytes.get(at) != Some(&b',') {
                    return Stop::new(State::After, at);
                }
                let next = self.behind_space(at + 1);
                if !place.in_object() {
                    place.begin_element(self.table);
                    at = next;
                    continue;
                }
                if self.bytes.get(next) != Some(&b'"') {
                    return Stop::new(State::Name, at + 1);
                }
                at = next + 1;
                break;
            }
        }
    }

    /// The place behind a name and its quote.
    #[inline]
    fn name(&self, place: &mut Place, at: usize) -> Option<usize> {
        let rest = self.bytes.get(at..)?;
        if !place.is_known() {
            place.value = NOWHERE;
            return Some(at + string_end(rest)? + 1);
        }
        let length = plain_length(rest);
        if rest.get(length) != Some(&b'"') || self.table.is_foreign(&rest[..length]) {
            return None;
        }
        place.value = self.table.member(place.container, &rest[..length]);
        Some(at + length + 1)
    }

    #[inline]
    fn open_at(&mut self, place: &mut Place, is_object: bool) {
        let piece = match is_object {
            true => Piece::Object,
            false => Piece::Array,
        };
        self.show(place.value, piece);
        place.open(self.table, is_object);
    }

    /// Goes up behind all brackets that close here.
    #[inline]
    fn close_all(&self, place: &mut Place, from: usize) -> usize {
        let mut at = from;
        while place.depth > 0 && self.bytes.get(at) == Some(&place.closer()) {
            place.close(self.table);
            at += 1;
        }
        at
    }

    #[inline]
    fn behind_space(&self, at: usize) -> usize {
        at + usize::from(self.bytes.get(at) == Some(&b' '))
    }

    /// The place behind a string, a number or a word, if it ends here.
    #[inline]
    fn scalar(&mut self, place: &Place, byte: u8, at: usize) -> Option<usize> {
        let rest = self.bytes.get(at..)?;
        let length = match byte {
            b'"' if place.value == NOWHERE => string_end(&rest[1..])? + 2,
            b'"' => self.text_at(place, &rest[1..])? + 2,
            b'n' if rest.starts_with(b"null") => {
                self.show(place.value, Piece::Null);
                4
            }
            _ if place.value == NOWHERE => number_length(rest)?,
            _ => return None,
        };
        Some(at + length)
    }

    /// Shows a string without escapes, and returns its length.
    #[inline(never)]
    fn text_at(&mut self, place: &Place, bytes: &[u8]) -> Option<usize> {
        let length = plain_length(bytes);
        if bytes.get(length) != Some(&b'"') {
            return None;
        }
        if length > 0 {
            self.show(place.value, Piece::Text(&bytes[..length]));
        }
        self.show(place.value, Piece::TextEnd);
        Some(length)
    }
}

impl Stop {
    fn new(state: State, at: usize) -> Stop {
        Stop { state, at }
    }
}

/// The length of a number without an exponent, if it ends here.
#[inline]
fn number_length(bytes: &[u8]) -> Option<usize> {
    let digits = |from: usize| {
        let rest = bytes.get(from..).unwrap_or_default();
        let ends = |byte: &u8| !byte.is_ascii_digit();
        rest.iter().position(ends).map(|length| from + length)
    };
    let sign = usize::from(bytes.first() == Some(&b'-'));
    let whole = match bytes.get(sign)? {
        b'0' => sign + 1,
        b'1'..=b'9' => digits(sign)?,
        _ => return None,
    };
    let end = match bytes.get(whole)? {
        b'.' if bytes.get(whole + 1)?.is_ascii_digit() => digits(whole + 1)?,
        _ => whole,
    };
    matches!(bytes.get(end)?, b',' | b'}' | b']' | b' ').then_some(end)
}
