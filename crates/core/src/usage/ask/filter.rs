//! Takes one event out of a stream of server-sent events: the one without choices that has a usage.
//! All other bytes pass as they came.

use std::sync::LazyLock;

use bytes::{Bytes, BytesMut};

use super::super::framing::{FramePiece, Frames, Framing};
use super::super::paths::{NameCase, PathRow, PathTable, Tops, steps};
use super::super::scan::{JsonScan, Piece, Sink};

/// The longest event that is held and taken out, bytes. Longer ones pass.
pub const MAX_EVENT: usize = 64 << 10;

/// Holds an event as long as it may be the one that is taken out, and no other byte.
#[derive(Clone, Debug)]
pub struct UsageEventFilter {
    frames: Frames,
    scan: JsonScan,
    marks: CandidateMarks,
    stage: FilterStage,
    line: LineProgress,
    /// The bytes of the event that came in earlier chunks.
    held: Vec<u8>,
    /// The bytes of the event so far.
    length: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FilterStage {
    /// Before an event, or within comments in front of it.
    Between,
    /// The event may be the one.
    Holding,
    /// The event is another one.
    Passing,
    /// The event has been taken out. An LF that follows its last CR is a part of it.
    Done { drops_lf: bool },
}

/// What is known of the event that is read.
#[derive(Clone, Copy, Debug, Default)]
struct CandidateMarks {
    has_no_choices: bool,
    has_usage: bool,
    is_other: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum EventRole {
    Top,
    Choices,
    Choice,
    Usage,
}

static EVENT: LazyLock<PathTable<EventRole>> = LazyLock::new(|| {
    let row = |path, role| PathRow {
        steps: steps(path),
        role,
    };
    let rows = [
        row("", EventRole::Top),
        row("choices", EventRole::Choices),
        row("choices[]", EventRole::Choice),
        row("usage", EventRole::Usage),
    ];
    let table = PathTable::new(&rows, NameCase::Exact, Tops::One);
    table.unwrap_or_else(|| PathTable::empty(NameCase::Exact))
});

impl Sink for CandidateMarks {
    type Role = EventRole;

    fn take(&mut self, role: EventRole, piece: Piece<'_>) {
        match (role, piece) {
            (EventRole::Top, Piece::Object) | (EventRole::Choices, Piece::Array) => {}
            (EventRole::Choices, Piece::EmptyArray) => self.has_no_choices = true,
            (EventRole::Usage, Piece::Object) => self.has_usage = true,
            _ => self.is_other = true,
        }
    }
}

/// How far a line has come.
#[derive(Clone, Copy, Debug, Default)]
struct LineProgress {
    has_bytes: bool,
    is_comment: bool,
    after_cr: bool,
}

/// What bytes of a line are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LinePart {
    Comment,
    Field,
    /// The end of a line that has nothing before it.
    Blank,
    /// An LF that belongs to the CR before it.
    LineFeed,
}

impl LineProgress {
    /// Reads on. The bytes are of one line, and its end is their last byte, if they have it.
    fn read(&mut self, bytes: &[u8]) -> LinePart {
        let is_start = !self.has_bytes;
        if is_start && std::mem::take(&mut self.after_cr) && bytes == b"\n" {
            return LinePart::LineFeed;
        }
        let last = bytes.last().copied().unwrap_or_default();
        let is_end = matches!(last, b'\n' | b'\r');
        self.is_comment |= is_start && bytes.first() == Some(&b':');
        let part = match self.is_comment {
            _ if is_start && is_end && bytes.len() == 1 => LinePart::Blank,
            true => LinePart::Comment,
            false => LinePart::Field,
        };
        *self = LineProgress {
            has_bytes: !is_end,
            is_comment: self.is_comment && !is_end,
            after_cr: last == b'\r',
        };
        part
    }
}

impl Default for UsageEventFilter {
    fn default() -> UsageEventFilter {
        UsageEventFilter {
            frames: Frames::new(Framing::Sse),
            scan: JsonScan::default(),
            marks: CandidateMarks::default(),
            stage: FilterStage::Between,
            line: LineProgress::default(),
            held: Vec::new(),
            length: 0,
        }
    }
}

impl UsageEventFilter {
    /// Whether bytes wait for the end of their event.
    pub fn is_holding(&self) -> bool {
        self.stage == FilterStage::Holding
    }

    /// Reads the next bytes of the stream, wherever they were cut. Returns those that pass now,
    /// with earlier ones in front that were held.
    pub fn read(&mut self, chunk: &Bytes) -> Bytes {
        if let FilterStage::Done { .. } = self.stage {
            return self.read_rest(chunk.clone());
        }
        let mut at = 0;
        // Where the event begins that is held.
        let mut hold_from = 0;
        let mut released = Vec::new();
        while at < chunk.len() {
            let was_holding = self.is_holding();
            let bytes = chunk.get(at..).unwrap_or_default();
            at += self.step(bytes);
            if let FilterStage::Done { .. } = self.stage {
                self.held.clear();
                let rest = self.read_rest(chunk.slice(at..));
                return join(&[&released, &chunk[..hold_from], &rest]);
            }
            if !was_holding && self.is_holding() {
                hold_from = chunk.len() - bytes.len();
            } else if was_holding && !self.is_holding() {
                released.append(&mut self.held);
            }
        }
        let passed = match self.is_holding() {
            true => chunk.slice(..hold_from),
            false => chunk.clone(),
        };
        if self.is_holding() {
            self.held.extend_from_slice(&chunk[hold_from..]);
        }
        match released.is_empty() {
            true => passed,
            false => join(&[&released, &passed]),
        }
    }

    /// The stream has come to its regular end. Returns the bytes that were held, unless they are
    /// the event.
    pub fn finish(&mut self) -> Bytes {
        let is_it = self.is_holding() && self.is_it();
        let held = self.give_up();
        match is_it {
            true => Bytes::new(),
            false => held,
        }
    }

    /// Returns the bytes that were held: the stream has broken off.
    pub fn give_up(&mut self) -> Bytes {
        self.stage = FilterStage::Passing;
        Bytes::from(std::mem::take(&mut self.held))
    }

    /// Reads a part of a line, and returns its length.
    fn step(&mut self, bytes: &[u8]) -> usize {
        let is_marked = self.frames.has_read_mark();
        let cut = self.frames.next(bytes);
        let length = bytes.len() - cut.rest.len();
        if length == 0 {
            return 0;
        }
        if !is_marked {
            // A whole byte order mark does not begin a line.
            self.line.has_bytes = !self.frames.has_read_mark();
            return length;
        }
        let part = self.line.read(&bytes[..length]);
        if self.stage == FilterStage::Between && part == LinePart::Field {
            self.stage = FilterStage::Holding;
        }
        match self.stage {
            FilterStage::Holding => {
                self.length += length;
                if let FramePiece::Data(text) = cut.piece {
                    self.feed(text);
                }
                let may_be_it = self.may_be_it();
                if may_be_it && part == LinePart::Blank && self.is_it() {
                    let drops_lf = bytes[..length].last() == Some(&b'\r');
                    self.stage = FilterStage::Done { drops_lf };
                } else if part == LinePart::Blank {
                    self.end_event();
                } else if !may_be_it {
                    self.stage = FilterStage::Passing;
                }
            }
            FilterStage::Passing if part == LinePart::Blank => self.end_event(),
            _ => {}
        }
        length
    }

    fn end_event(&mut self) {
        self.stage = FilterStage::Between;
        self.scan = JsonScan::default();
        self.marks = CandidateMarks::default();
        self.length = 0;
    }

    fn feed(&mut self, text: &[u8]) {
        let read = self.scan.feed(&EVENT, text, &mut self.marks);
        if let Some(rest) = text.get(read..).filter(|rest| !rest.is_empty()) {
            self.scan.feed(&EVENT, rest, &mut self.marks);
        }
    }

    fn may_be_it(&self) -> bool {
        let is_other = self.marks.is_other || self.scan.is_broken() || self.scan.is_too_deep();
        !is_other && self.length <= MAX_EVENT
    }

    fn is_it(&self) -> bool {
        let CandidateMarks {
            has_no_choices,
            has_usage,
            ..
        } = self.marks;
        has_no_choices && has_usage && self.scan.is_closed() && self.may_be_it()
    }

    /// Passes the bytes behind the event.
    fn read_rest(&mut self, mut rest: Bytes) -> Bytes {
        if let FilterStage::Done { drops_lf: true } = self.stage
            && let Some(first) = rest.first().copied()
        {
            self.stage = FilterStage::Done { drops_lf: false };
            if first == b'\n' {
                rest = rest.slice(1..);
            }
        }
        rest
    }
}

fn join(parts: &[&[u8]]) -> Bytes {
    let mut joined = BytesMut::with_capacity(parts.iter().map(|part| part.len()).sum());
    parts.iter().for_each(|part| joined.extend_from_slice(part));
    joined.freeze()
}
