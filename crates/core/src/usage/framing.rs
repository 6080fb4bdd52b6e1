//! How JSON texts follow each other in an answer: events of SSE, lines, one document, or messages
//! of an Amazon event stream.
//!
//! A framing keeps a few bytes of state and no content. It cuts the bytes of an answer into pieces
//! of texts, wherever a chunk ends. For SSE it reads what WHATWG's standard says, except that the
//! end of the answer ends the last event too.

mod event_stream;

use memchr::{memchr, memchr2, memrchr, memrchr2};

use event_stream::EventStream;

const MARK: &[u8] = "\u{feff}".as_bytes();
const DATA: &[u8] = b"data";

/// How an answer carries its JSON texts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Framing {
    /// The whole answer is one text.
    Document,
    /// Each line is one text.
    Lines,
    /// Server-sent events: the data of each event is one text.
    Sse,
    /// Amazon's binary messages: the payload of each message is one text.
    EventStream,
}

impl Framing {
    /// The framing of an answer with this `Content-Type`. Other types carry no JSON.
    pub fn of_content_type(value: &str) -> Option<Framing> {
        let essence = value.split(';').next().unwrap_or_default().trim();
        let is = |name: &&str| essence.eq_ignore_ascii_case(name);
        let lines = [
            "application/x-ndjson",
            "application/ndjson",
            "application/jsonl",
            "application/x-jsonlines",
        ];
        if is(&"text/event-stream") {
            Some(Framing::Sse)
        } else if is(&"application/vnd.amazon.eventstream") {
            Some(Framing::EventStream)
        } else if lines.iter().any(is) {
            Some(Framing::Lines)
        } else if is(&"application/json") || essence.to_ascii_lowercase().ends_with("+json") {
            Some(Framing::Document)
        } else {
            None
        }
    }
}

/// The next piece of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FramePiece<'b> {
    /// A part of a text.
    Data(&'b [u8]),
    /// The text ends.
    End,
    /// The server ends the answer with an error of its own.
    Failure,
    /// Bytes between texts.
    Nothing,
}

/// One piece, and the bytes behind it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cut<'b> {
    pub(super) piece: FramePiece<'b>,
    pub(super) rest: &'b [u8],
}

/// Where an answer stands between two chunks.
#[derive(Clone, Debug)]
pub(in crate::usage) enum Frames {
    Document(Mark),
    Lines(Mark),
    Sse(SseFrames),
    EventStream(EventStream),
}

/// How much of a byte order mark has been read at the beginning.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Mark(u8);

/// Bytes behind a mark.
struct Marked<'b> {
    rest: &'b [u8],
    /// The bytes before began like a mark, and were none.
    is_false: bool,
}

impl Mark {
    fn skip<'b>(&mut self, bytes: &'b [u8]) -> Marked<'b> {
        let mut rest = bytes;
        while let (Some(wanted), Some((byte, behind))) =
            (MARK.get(usize::from(self.0)), rest.split_first())
        {
            if byte != wanted {
                let is_false = self.0 > 0;
                self.0 = MARK.len() as u8;
                return Marked { rest, is_false };
            }
            self.0 += 1;
            rest = behind;
        }
        let is_false = false;
        Marked { rest, is_false }
    }

    fn is_over(self) -> bool {
        usize::from(self.0) == MARK.len()
    }
}

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct SseFrames {
    mark: Mark,
    line: SseLine,
    /// The last byte was a CR, so an LF behind it belongs to it.
    after_cr: bool,
    /// The event has a line of data.
    has_data: bool,
}

/// Where a line of SSE stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SseLine {
    /// The line is so many bytes of `data` so far.
    Name(u8),
    /// Behind `data:`.
    Colon,
    Data,
    /// A comment or another field.
    Other,
}

impl Default for SseLine {
    fn default() -> SseLine {
        SseLine::Name(0)
    }
}

impl Frames {
    pub(super) fn new(framing: Framing) -> Frames {
        match framing {
            Framing::Document => Frames::Document(Mark::default()),
            Framing::Lines => Frames::Lines(Mark::default()),
            Framing::Sse => Frames::Sse(SseFrames::default()),
            Framing::EventStream => Frames::EventStream(EventStream::default()),
        }
    }

    /// Cuts off the next piece of bytes that are not empty. A piece may have none of them, if the
    /// one behind it has.
    pub(super) fn next<'b>(&mut self, bytes: &'b [u8]) -> Cut<'b> {
        match self {
            Frames::Document(mark) | Frames::Lines(mark) if !mark.is_over() => {
                let Marked { rest, is_false } = mark.skip(bytes);
                let piece = match is_false {
                    true => FramePiece::Data(MARK),
                    false => FramePiece::Nothing,
                };
                Cut { piece, rest }
            }
            Frames::Document(_) => Cut {
                piece: FramePiece::Data(bytes),
                rest: &[],
            },
            Frames::Lines(_) => next_line(bytes),
            Frames::Sse(frames) => frames.next(bytes),
            Frames::EventStream(frames) => frames.next(bytes),
        }
    }

    /// Whether a text may be left out if all of its bytes are: nothing of it has been read.
    pub(super) fn is_between(&self) -> bool {
        match self {
            Frames::Document(_) | Frames::EventStream(_) => false,
            Frames::Lines(mark) => mark.is_over(),
            Frames::Sse(frames) => frames.is_between(),
        }
    }

    /// Whether the byte order mark, or the place where one may be, has been read.
    pub(super) fn has_read_mark(&self) -> bool {
        match self {
            Frames::Document(mark) | Frames::Lines(mark) => mark.is_over(),
            Frames::Sse(frames) => frames.mark.is_over(),
            Frames::EventStream(_) => true,
        }
    }

    /// Whether a text ends where these bytes end. The first one begins a text.
    pub(super) fn ends_text(&self, bytes: &[u8]) -> bool {
        match self {
            Frames::Document(_) | Frames::EventStream(_) => false,
            Frames::Lines(_) => bytes.ends_with(b"\n"),
            Frames::Sse(_) => bytes.ends_with(b"\n\n") || bytes.ends_with(b"\r\n\r\n"),
        }
    }

    /// How many of these bytes belong to whole texts. The first one begins a text. Whole texts may
    /// be left out: an LF behind them that belongs to a CR of theirs is a blank line at most.
    pub(super) fn whole_length(&self, bytes: &[u8]) -> usize {
        match self {
            Frames::Document(_) | Frames::EventStream(_) => 0,
            Frames::Lines(_) => memrchr(b'\n', bytes).map_or(0, |at| at + 1),
            Frames::Sse(_) => last_blank_line(bytes),
        }
    }
}

/// A CR before the LF is white space of the text.
fn next_line(bytes: &[u8]) -> Cut<'_> {
    match memchr(b'\n', bytes) {
        Some(0) => Cut {
            piece: FramePiece::End,
            rest: &bytes[1..],
        },
        Some(at) => Cut {
            piece: FramePiece::Data(&bytes[..at]),
            rest: &bytes[at..],
        },
        None => Cut {
            piece: FramePiece::Data(bytes),
            rest: &[],
        },
    }
}

/// Where the last blank line of these bytes ends, or 0. The first byte begins a line.
fn last_blank_line(bytes: &[u8]) -> usize {
    let mut before = bytes;
    while let Some(at) = memrchr2(b'\n', b'\r', before) {
        let is_pair = before[at] == b'\n' && before[..at].last() == Some(&b'\r');
        let line = &before[..at - usize::from(is_pair)];
        if matches!(line.last(), None | Some(b'\n' | b'\r')) {
            return at + 1;
        }
        before = line;
    }
    0
}

impl SseFrames {
    fn is_between(&self) -> bool {
        self.mark.is_over() && self.line == SseLine::Name(0) && !self.has_data
    }

    fn next<'b>(&mut self, bytes: &'b [u8]) -> Cut<'b> {
        if !self.mark.is_over() {
            let Marked { rest, is_false } = self.mark.skip(bytes);
            if is_false {
                self.line = SseLine::Other;
            }
            return Cut {
                piece: FramePiece::Nothing,
                rest,
            };
        }
        let first = bytes.first().copied().unwrap_or_default();
        if std::mem::take(&mut self.after_cr) && first == b'\n' {
            return Cut {
                piece: FramePiece::Nothing,
                rest: &bytes[1..],
            };
        }
        match self.line {
            SseLine::Data => self.data(bytes),
            SseLine::Colon => {
                self.line = SseLine::Data;
                self.data(bytes.strip_prefix(b" ").unwrap_or(bytes))
            }
            SseLine::Name(read) => self.name(read, bytes),
            SseLine::Other => {
                let length = line_length(bytes);
                self.end_line(FramePiece::Nothing, &bytes[length..])
            }
        }
    }

    fn data<'b>(&mut self, bytes: &'b [u8]) -> Cut<'b> {
        let length = line_length(bytes);
        self.end_line(FramePiece::Data(&bytes[..length]), &bytes[length..])
    }

    /// Takes the end of a line off, if it is there.
    fn end_line<'b>(&mut self, piece: FramePiece<'b>, bytes: &'b [u8]) -> Cut<'b> {
        let Some((end, rest)) = bytes.split_first() else {
            return Cut { piece, rest: bytes };
        };
        self.after_cr = *end == b'\r';
        self.line = SseLine::default();
        Cut { piece, rest }
    }

    /// Reads on in the name of a field.
    fn name<'b>(&mut self, read: u8, bytes: &'b [u8]) -> Cut<'b> {
        let mut read = usize::from(read);
        let mut rest = bytes;
        while let (Some(wanted), Some((byte, behind))) = (DATA.get(read), rest.split_first()) {
            if byte != wanted {
                break;
            }
            read += 1;
            rest = behind;
        }
        self.line = SseLine::Name(read as u8);
        let Some((byte, behind)) = rest.split_first() else {
            return Cut {
                piece: FramePiece::Nothing,
                rest,
            };
        };
        let is_data = read == DATA.len();
        match byte {
            b'\n' | b'\r' if read == 0 => {
                let had_data = std::mem::take(&mut self.has_data);
                let piece = match had_data {
                    true => FramePiece::End,
                    false => FramePiece::Nothing,
                };
                self.end_line(piece, rest)
            }
            b'\n' | b'\r' if is_data => {
                let piece = self.begin_data();
                self.end_line(piece, rest)
            }
            b':' if is_data => {
                self.line = SseLine::Colon;
                Cut {
                    piece: self.begin_data(),
                    rest: behind,
                }
            }
            _ => {
                self.line = SseLine::Other;
                Cut {
                    piece: FramePiece::Nothing,
                    rest,
                }
            }
        }
    }

    /// The lines of one event are joined with LF.
    fn begin_data(&mut self) -> FramePiece<'static> {
        match std::mem::replace(&mut self.has_data, true) {
            true => FramePiece::Data(b"\n"),
            false => FramePiece::Nothing,
        }
    }
}

fn line_length(bytes: &[u8]) -> usize {
    memchr2(b'\n', b'\r', bytes).unwrap_or(bytes.len())
}
