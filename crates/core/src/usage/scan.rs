//! A scanner of JSON that can stop behind any byte and go on later.
//!
//! It checks the grammar, follows the paths of a table, and shows the values there to a [`Sink`].
//! It keeps no bytes: one bit for each level, the names that the current one may still be, and the
//! digits of a number. It accepts a little more than JSON: control characters and wrong UTF-8
//! within strings, unknown escapes in strings that do not matter, `NaN` and `Infinity`. Beyond
//! [`LEVELS`] it only matches quotes and counts brackets.

mod place;
mod run;
mod strings;

use super::number::Decimal;
use super::paths::{NOWHERE, NameProgress, PathNodeId, PathTable};
use place::Place;

/// Levels of objects and arrays whose grammar is checked.
pub(super) const LEVELS: u16 = 64;

/// The last ones are numbers of Python, JavaScript and others. Many readers of JSON take them.
const WORDS: [&[u8]; 5] = [b"true", b"false", b"null", b"NaN", b"Infinity"];
const INFINITY: u8 = 4;

/// Takes the values at the paths of a table.
pub(super) trait Sink {
    type Role: Copy;

    fn take(&mut self, role: Self::Role, piece: Piece<'_>);
}

/// A value, or a part of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Piece<'b> {
    Null,
    Bool(bool),
    /// A part of a number, as it is written. `Number` follows the last one.
    Digits(&'b [u8]),
    /// `None` if it is not whole or is negative; `u64::MAX` for all that do not fit.
    Number(Option<u64>),
    /// A part of a string, unescaped.
    Text(&'b [u8]),
    TextEnd,
    Object,
    Array,
    /// Follows `Array`.
    EmptyArray,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum State {
    /// Before a value.
    #[default]
    Value,
    /// Before a value or the end of an array.
    FirstValue,
    /// Before a name or the end of an object.
    FirstName,
    Name,
    Colon,
    /// Behind a value.
    After,
    String,
    /// Behind a backslash.
    Escape,
    /// Among the digits of `\u`.
    Hex,
    Minus,
    Zero,
    Digits,
    Point,
    Fraction,
    Exponent,
    ExponentSign,
    ExponentDigits,
    /// Within one of [`WORDS`].
    Word,
    /// Below the last level whose grammar is checked.
    Deep,
    /// This is no JSON.
    Broken,
}

/// A half of an escaped character: digits so far, and the half before it.
#[derive(Clone, Copy, Debug, Default)]
struct HalfEscape {
    code: u16,
    /// The first half of a surrogate pair, or 0.
    high: u16,
}

#[derive(Clone, Debug, Default)]
pub(super) struct JsonScan {
    place: Place,
    number: Decimal,
    name: NameProgress,
    escaped: HalfEscape,
    /// How many bytes of a word, or digits of an escape, have been read.
    read: u8,
    /// The index of the word that is read.
    word: u8,
    state: State,
    /// Whether the string is a name.
    in_name: bool,
}

impl JsonScan {
    /// Whether nothing of the text has been read.
    pub(super) fn is_fresh(&self) -> bool {
        self.state == State::Value && self.place.depth == 0
    }

    /// Whether a whole text has been read. A number at the top ends only with its text.
    pub(super) fn is_whole(&self) -> bool {
        self.place.depth == 0 && (self.state == State::After || self.is_number())
    }

    /// Whether the object or array at the top has been closed.
    pub(super) fn is_closed(&self) -> bool {
        self.place.depth == 0 && self.state == State::After
    }

    pub(super) fn is_broken(&self) -> bool {
        self.state == State::Broken
    }

    /// Whether the text has more than [`LEVELS`] levels.
    pub(super) fn is_too_deep(&self) -> bool {
        self.place.is_too_deep
    }

    fn is_number(&self) -> bool {
        let ends = [
            State::Zero,
            State::Digits,
            State::Fraction,
            State::ExponentDigits,
        ];
        ends.contains(&self.state)
    }

    /// Reads on, to the end of the object or array at the top at most. Returns how many bytes it
    /// has read.
    pub(super) fn feed<S: Sink>(
        &mut self,
        table: &PathTable<S::Role>,
        bytes: &[u8],
        sink: &mut S,
    ) -> usize {
        let mut scan = Scanning { table, sink, bytes };
        let mut at = 0;
        let was_closed = self.is_closed();
        while at < bytes.len() && (was_closed || !self.is_closed()) {
            at = match self.state {
                State::String => scan.string(self, at),
                State::Escape => scan.escape(self, at),
                State::Hex => scan.hex(self, at),
                State::Word => scan.word(self, at),
                State::Deep => scan.deep(self, at),
                State::Broken => return bytes.len(),
                State::Value
                | State::FirstValue
                | State::FirstName
                | State::Name
                | State::Colon
                | State::After => scan.structure(self, at),
                State::Minus
                | State::Zero
                | State::Digits
                | State::Point
                | State::Fraction
                | State::Exponent
                | State::ExponentSign
                | State::ExponentDigits => scan.number(self, at),
            };
        }
        at
    }

    /// Whether the text of this string does not matter. Then its escapes are not checked.
    fn is_ignored(&self) -> bool {
        match self.in_name {
            true => self.name.candidates == 0,
            false => self.place.value == NOWHERE,
        }
    }
}

/// The scanner at work on one piece of text. Its steps begin at an index and return the next one.
struct Scanning<'s, S: Sink> {
    table: &'s PathTable<S::Role>,
    sink: &'s mut S,
    bytes: &'s [u8],
}

impl<S: Sink> Scanning<'_, S> {
    #[inline]
    fn show(&mut self, node: PathNodeId, piece: Piece<'_>) {
        if node != NOWHERE {
            self.show_at(node, piece);
        }
    }

    #[inline(never)]
    fn show_at(&mut self, node: PathNodeId, piece: Piece<'_>) {
        if let Some(role) = self.table.role(node) {
            self.sink.take(role, piece);
        }
    }

    /// Reads what stands between strings, numbers and words.
    fn structure(&mut self, scan: &mut JsonScan, from: usize) -> usize {
        let mut at = from;
        while let Some(byte) = self.bytes.get(at).copied() {
            at += 1;
            let is_read = match scan.state {
                State::Value | State::FirstValue => match byte {
                    b'{' | b'[' => self.open(scan, byte == b'{'),
                    b']' if scan.state == State::FirstValue => self.close_empty(scan),
                    _ => return self.begin(scan, byte, at),
                },
                State::FirstName | State::Name => match byte {
                    b'"' => return self.run(scan, at),
                    b'}' if scan.state == State::FirstName => self.close(scan),
                    _ => is_space(byte),
                },
                State::After => match byte {
                    b',' => self.next(scan),
                    b'}' if scan.place.in_object() => self.close(scan),
                    b']' if !scan.place.in_object() => self.close(scan),
                    _ => is_space(byte),
                },
                _ => match byte {
                    b':' => {
                        scan.state = State::Value;
                        true
                    }
                    _ => is_space(byte),
                },
            };
            if !is_read {
                scan.state = State::Broken;
            }
            if scan.place.depth == 0 || scan.state == State::Deep || !is_read {
                return at;
            }
        }
        at
    }

    /// Behind a comma.
    fn next(&mut self, scan: &mut JsonScan) -> bool {
        if scan.place.in_object() {
            scan.state = State::Name;
        } else {
            scan.place.begin_element(self.table);
            scan.state = State::Value;
        }
        scan.place.depth > 0
    }

    /// Begins a string, a number or a word with its first byte, which is before `at`.
    fn begin(&mut self, scan: &mut JsonScan, byte: u8, at: usize) -> usize {
        match byte {
            b'"' => {
                scan.in_name = false;
                scan.state = State::String;
                return self.string(scan, at);
            }
            b'-' | b'0'..=b'9' => {
                scan.number = Decimal::default();
                scan.state = match byte {
                    b'-' => State::Minus,
                    b'0' => State::Zero,
                    _ => State::Digits,
                };
                match byte {
                    b'-' => scan.number.negate(),
                    _ => scan.number.push(byte),
                }
                self.show(scan.place.value, Piece::Digits(&[byte]));
                return self.number(scan, at);
            }
            b't' => return self.begin_word(scan, 0, at),
            b'f' => return self.begin_word(scan, 1, at),
            b'n' => return self.begin_word(scan, 2, at),
            b'N' => return self.begin_word(scan, 3, at),
            b'I' => return self.begin_word(scan, INFINITY, at),
            _ if is_space(byte) => {}
            _ => scan.state = State::Broken,
        }
        at
    }

    /// Opens an object or an array.
    fn open(&mut self, scan: &mut JsonScan, is_object: bool) -> bool {
        let piece = match is_object {
            true => Piece::Object,
            false => Piece::Array,
        };
        self.show(scan.place.value, piece);
        if scan.place.depth >= LEVELS {
            scan.place.is_too_deep = true;
            scan.place.depth += 1;
            scan.place.value = NOWHERE;
            scan.state = State::Deep;
            return true;
        }
        scan.place.open(self.table, is_object);
        scan.state = match is_object {
            true => State::FirstName,
            false => State::FirstValue,
        };
        true
    }

    fn close_empty(&mut self, scan: &mut JsonScan) -> bool {
        if scan.place.is_known() {
            self.show(scan.place.container, Piece::EmptyArray);
        }
        self.close(scan)
    }

    fn close(&mut self, scan: &mut JsonScan) -> bool {
        let is_open = scan.place.depth > 0;
        scan.place.close(self.table);
        scan.state = State::After;
        is_open
    }

    fn number(&mut self, scan: &mut JsonScan, from: usize) -> usize {
        let at = self.digits(scan, from);
        let digits = self.bytes.get(from..at).unwrap_or_default();
        if !digits.is_empty() {
            self.show(scan.place.value, Piece::Digits(digits));
        }
        if at < self.bytes.len() && scan.is_number() {
            let whole = scan.number.whole();
            self.show(scan.place.value, Piece::Number(whole));
            scan.state = State::After;
        } else if scan.state == State::Minus && self.bytes.get(at) == Some(&b'I') {
            return self.begin_word(scan, INFINITY, at + 1);
        } else if at < self.bytes.len() {
            scan.state = State::Broken;
        }
        at
    }

    /// Reads on to the first byte that the number does not have.
    fn digits(&mut self, scan: &mut JsonScan, from: usize) -> usize {
        let mut at = from;
        while let Some(byte) = self.bytes.get(at).copied() {
            let number = &mut scan.number;
            scan.state = match (scan.state, byte) {
                (State::Minus, b'0') => State::Zero,
                (State::Minus, b'1'..=b'9') | (State::Digits, b'0'..=b'9') => {
                    number.push(byte);
                    State::Digits
                }
                (State::Zero | State::Digits, b'.') => State::Point,
                (State::Point | State::Fraction, b'0'..=b'9') => {
                    number.push_fraction(byte);
                    State::Fraction
                }
                (State::Zero | State::Digits | State::Fraction, b'e' | b'E') => State::Exponent,
                (State::Exponent, b'+') => State::ExponentSign,
                (State::Exponent, b'-') => {
                    number.negate_exponent();
                    State::ExponentSign
                }
                (State::Exponent | State::ExponentSign | State::ExponentDigits, b'0'..=b'9') => {
                    number.push_exponent(byte);
                    State::ExponentDigits
                }
                _ => return at,
            };
            at += 1;
        }
        at
    }

    /// Begins a word with its first byte, which is before `at`.
    fn begin_word(&mut self, scan: &mut JsonScan, word: u8, at: usize) -> usize {
        scan.word = word;
        scan.read = 1;
        scan.state = State::Word;
        self.word(scan, at)
    }

    fn word(&mut self, scan: &mut JsonScan, from: usize) -> usize {
        let word = WORDS[usize::from(scan.word)];
        let missing = &word[usize::from(scan.read)..];
        let rest = self.bytes.get(from..).unwrap_or_default();
        let length = missing.len().min(rest.len());
        if rest[..length] != missing[..length] {
            scan.state = State::Broken;
            return from;
        }
        if length < missing.len() {
            scan.read += length as u8;
            return from + length;
        }
        let piece = match scan.word {
            0 => Piece::Bool(true),
            1 => Piece::Bool(false),
            2 => Piece::Null,
            _ => {
                self.show(scan.place.value, Piece::Digits(word));
                Piece::Number(None)
            }
        };
        self.show(scan.place.value, piece);
        scan.state = State::After;
        from + length
    }

    /// Looks for the way back to the levels whose grammar is checked.
    fn deep(&mut self, scan: &mut JsonScan, from: usize) -> usize {
        let mut at = from;
        while let Some(byte) = self.bytes.get(at).copied() {
            at += 1;
            match byte {
                b'"' => {
                    scan.in_name = false;
                    scan.state = State::String;
                    return at;
                }
                b'{' | b'[' if scan.place.depth == u16::MAX => {
                    scan.state = State::Broken;
                    return at;
                }
                b'{' | b'[' => scan.place.depth += 1,
                b'}' | b']' => {
                    scan.place.depth -= 1;
                    if scan.place.depth == LEVELS {
                        scan.state = State::After;
                        return at;
                    }
                }
                _ => {}
            }
        }
        at
    }
}

pub(super) fn is_space(byte: u8) -> bool {
    matches!(byte, b' ' | b'\n' | b'\r' | b'\t')
}
