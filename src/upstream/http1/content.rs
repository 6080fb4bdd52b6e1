//! The content of a response over HTTP/1.1: where it ends, and what of what was read belongs to
//! it. Pure words.
//!
//! It must never let content that was cut look complete, nor give out a byte that is behind its
//! end.

use bytes::{Buf, Bytes, BytesMut};
use http::HeaderMap;
use http::header::{HeaderName, HeaderValue};
use http_body::SizeHint;
use httparse::Status;

use super::fault::Http1Fault;
use super::head::{MAX_HEAD_BYTES, MAX_LINES};

/// Bytes of extensions in all chunks of one response together.
const MAX_EXTENSION_BYTES: u32 = 16 << 10;
/// What mostly follows the last chunk's content.
const USUAL_END: &[u8] = b"\r\n0\r\n\r\n";

/// What is still to come of a response's content.
#[derive(Debug)]
pub(super) enum Content {
    Nothing,
    Length(u64),
    Chunks(Chunks),
    /// Whatever comes until the connection ends.
    UntilEnd,
}

/// Where chunked content stands.
#[derive(Debug)]
pub(super) struct Chunks {
    next: Next,
    /// Of the chunk that was begun: its size as far as it is known, then its bytes to come.
    left: u64,
    extension_bytes: u32,
}

/// What comes next of chunked content.
#[derive(Clone, Copy, Debug)]
enum Next {
    /// The first digit of a size.
    Size,
    MoreSize,
    /// Blanks behind a size.
    Blank,
    Extension,
    SizeLf,
    Data,
    DataCr,
    DataLf,
    /// The line behind the last chunk, of which so many bytes were searched for the end.
    Trailers(usize),
}

/// A piece of content.
#[derive(Debug)]
pub(super) enum Piece {
    Data(Bytes),
    /// These are its end.
    Trailers(HeaderMap),
}

/// What could be taken of what was read.
#[derive(Debug)]
pub(super) enum Taken {
    Piece(Piece),
    /// More has to be read first.
    NeedsMore,
    Ended,
}

impl Content {
    pub(super) fn chunks() -> Content {
        Content::Chunks(Chunks {
            next: Next::Size,
            left: 0,
            extension_bytes: 0,
        })
    }

    /// Whether all of it was taken.
    pub(super) fn has_ended(&self) -> bool {
        matches!(self, Content::Nothing)
    }

    pub(super) fn size_hint(&self) -> SizeHint {
        match self {
            Content::Nothing => SizeHint::with_exact(0),
            Content::Length(left) => SizeHint::with_exact(*left),
            Content::Chunks(_) | Content::UntilEnd => SizeHint::default(),
        }
    }

    /// Bytes that are certain to come still; nothing where that is unknown.
    pub(super) fn known_left(&self) -> Option<u64> {
        match self {
            Content::Length(left) => Some(*left),
            Content::Chunks(chunks) if matches!(chunks.next, Next::Data) => Some(chunks.left),
            _ => None,
        }
    }

    /// Takes the next piece from the front of `read`.
    pub(super) fn take(&mut self, read: &mut BytesMut) -> Result<Taken, Http1Fault> {
        let taken = match self {
            Content::Nothing => return Ok(Taken::Ended),
            _ if read.is_empty() => return Ok(Taken::NeedsMore),
            Content::Length(left) => {
                let data = up_to(read, left);
                if *left == 0 {
                    *self = Content::Nothing;
                }
                Taken::Piece(Piece::Data(data))
            }
            Content::UntilEnd => Taken::Piece(Piece::Data(read.split().freeze())),
            Content::Chunks(chunks) => {
                let taken = chunks.take(read)?;
                match &taken {
                    Taken::Ended | Taken::Piece(Piece::Trailers(_)) => *self = Content::Nothing,
                    // So that whoever gets the last piece knows it.
                    Taken::Piece(_) if chunks.ends_with(read) => *self = Content::Nothing,
                    _ => {}
                }
                taken
            }
        };
        Ok(taken)
    }

    /// The connection has ended, and nothing that was read is left. That may be the end.
    pub(super) fn end(&mut self) -> Result<(), Http1Fault> {
        match self {
            Content::Nothing => Ok(()),
            Content::UntilEnd => {
                *self = Content::Nothing;
                Ok(())
            }
            Content::Length(_) | Content::Chunks(_) => Err(Http1Fault::Ended),
        }
    }
}

/// As much of `left` as was read.
fn up_to(read: &mut BytesMut, left: &mut u64) -> Bytes {
    let length = usize::try_from(*left).map_or(read.len(), |left| left.min(read.len()));
    *left -= length as u64;
    read.split_to(length).freeze()
}

impl Chunks {
    fn take(&mut self, read: &mut BytesMut) -> Result<Taken, Http1Fault> {
        loop {
            match self.next {
                Next::Data if read.is_empty() => return Ok(Taken::NeedsMore),
                Next::Data => {
                    let data = up_to(read, &mut self.left);
                    if self.left == 0 {
                        self.next = Next::DataCr;
                    }
                    return Ok(Taken::Piece(Piece::Data(data)));
                }
                Next::Trailers(searched) => return self.trailers(read, searched),
                _ => {
                    let mut used = 0;
                    while used < read.len() && self.is_in_a_line() {
                        self.step(read[used])?;
                        used += 1;
                    }
                    read.advance(used);
                    if self.is_in_a_line() {
                        return Ok(Taken::NeedsMore);
                    }
                }
            }
        }
    }

    fn is_in_a_line(&self) -> bool {
        !matches!(self.next, Next::Data | Next::Trailers(_))
    }

    /// Reads one byte of what is between the chunks' data.
    fn step(&mut self, byte: u8) -> Result<(), Http1Fault> {
        self.next = match (self.next, byte) {
            (Next::Size | Next::MoreSize, byte) if byte.is_ascii_hexdigit() => {
                self.digit(byte)?;
                Next::MoreSize
            }
            (Next::MoreSize | Next::Blank, b' ' | b'\t') => Next::Blank,
            (Next::MoreSize | Next::Blank, b';') => Next::Extension,
            (Next::MoreSize | Next::Blank | Next::Extension, b'\r') => Next::SizeLf,
            // Some take a line feed alone for the end of the line: then so may nobody here.
            (Next::Extension, byte) if byte != b'\n' => {
                self.extension_bytes += 1;
                if self.extension_bytes >= MAX_EXTENSION_BYTES {
                    return Err(Http1Fault::Chunk);
                }
                Next::Extension
            }
            (Next::SizeLf, b'\n') if self.left == 0 => Next::Trailers(0),
            (Next::SizeLf, b'\n') => Next::Data,
            (Next::DataCr, b'\r') => Next::DataLf,
            (Next::DataLf, b'\n') => Next::Size,
            _ => return Err(Http1Fault::Chunk),
        };
        Ok(())
    }

    fn digit(&mut self, digit: u8) -> Result<(), Http1Fault> {
        let value = char::from(digit).to_digit(16).unwrap_or_default();
        let left = self.left.checked_mul(16);
        self.left = left
            .and_then(|left| left.checked_add(u64::from(value)))
            .ok_or(Http1Fault::Chunk)?;
        Ok(())
    }

    /// Takes the usual end, if it is what comes next.
    fn ends_with(&self, read: &mut BytesMut) -> bool {
        let ends = matches!(self.next, Next::DataCr) && read.starts_with(USUAL_END);
        if ends {
            read.advance(USUAL_END.len());
        }
        ends
    }

    /// Takes what is behind the last chunk, as soon as all of it was read.
    fn trailers(&mut self, read: &mut BytesMut, searched: usize) -> Result<Taken, Http1Fault> {
        if read.starts_with(b"\r\n") {
            read.advance(2);
            return Ok(Taken::Ended);
        }
        let from = searched.saturating_sub(3);
        let Some(at) = memchr::memmem::find(&read[from..], b"\r\n\r\n") else {
            if read.len() >= MAX_HEAD_BYTES {
                return Err(Http1Fault::Trailers);
            }
            self.next = Next::Trailers(read.len());
            return Ok(Taken::NeedsMore);
        };
        let lines = read.split_to(from + at + 4);
        if lines.len() > MAX_HEAD_BYTES {
            return Err(Http1Fault::Trailers);
        }
        let trailers = parsed(&lines).ok_or(Http1Fault::Trailers)?;
        Ok(Taken::Piece(Piece::Trailers(trailers)))
    }
}

fn parsed(lines: &[u8]) -> Option<HeaderMap> {
    // Some take a line feed alone for the end of a line, others do not.
    if memchr::memchr_iter(b'\n', lines).any(|at| at == 0 || lines[at - 1] != b'\r') {
        return None;
    }
    let mut fields = vec![httparse::EMPTY_HEADER; MAX_LINES];
    let Ok(Status::Complete((length, fields))) = httparse::parse_headers(lines, &mut fields) else {
        return None;
    };
    if length != lines.len() {
        return None;
    }
    let mut trailers = HeaderMap::with_capacity(fields.len());
    for field in fields {
        let name = HeaderName::from_bytes(field.name.as_bytes()).ok()?;
        trailers.append(name, HeaderValue::from_bytes(field.value).ok()?);
    }
    Some(trailers)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What content `content` is of `bytes`, which come `at_once` at a time: its data, its trailers
    /// and what is left behind it.
    fn taken(
        mut content: Content,
        bytes: &[u8],
        at_once: usize,
    ) -> Result<(Vec<u8>, HeaderMap, Vec<u8>), Http1Fault> {
        let (mut read, mut data, mut trailers) = (BytesMut::new(), Vec::new(), HeaderMap::new());
        let mut pieces = bytes.chunks(at_once);
        loop {
            match content.take(&mut read)? {
                Taken::Piece(Piece::Data(piece)) => data.extend_from_slice(&piece),
                Taken::Piece(Piece::Trailers(fields)) => trailers = fields,
                Taken::Ended => break,
                Taken::NeedsMore => match pieces.next() {
                    Some(piece) => read.extend_from_slice(piece),
                    None => content.end()?,
                },
            }
        }
        read.extend(pieces.flatten());
        Ok((data, trailers, read.to_vec()))
    }

    /// The same, however it comes.
    fn chunks(bytes: &[u8]) -> Option<(String, HeaderMap, String)> {
        let mut all = (1..=bytes.len()).map(|at_once| {
            let (data, trailers, left) = taken(Content::chunks(), bytes, at_once).ok()?;
            let text = |bytes| String::from_utf8(bytes).unwrap();
            Some((text(data), trailers, text(left)))
        });
        let first = all.next().unwrap();
        assert!(all.all(|another| another == first), "{bytes:?}");
        first
    }

    #[test]
    fn a_length_ends_where_it_says() {
        for at_once in 1..9 {
            let (data, _, left) = taken(Content::Length(5), b"hello, you", at_once).unwrap();
            assert_eq!((&data[..], &left[..]), (&b"hello"[..], &b", you"[..]));
        }
        assert!(taken(Content::Length(5), b"hell", 4).is_err());
    }

    #[test]
    fn what_has_no_length_ends_with_the_connection() {
        let (data, _, left) = taken(Content::UntilEnd, b"all of it", 4).unwrap();
        assert_eq!((&data[..], left.len()), (&b"all of it"[..], 0));
    }

    #[test]
    fn chunks_end_with_the_last_one() {
        for (bytes, want, behind) in [
            ("2\r\nok\r\n0\r\n\r\n", "ok", ""),
            ("0\r\n\r\n", "", ""),
            ("2\r\nok\r\n0\r\n\r\nHTTP/1.1", "ok", "HTTP/1.1"),
            ("00002\r\nok\r\n000\r\n\r\n", "ok", ""),
            (
                "A\r\n0123456789\r\na;x=y;z\r\n0123456789\r\n0;q\r\n\r\n",
                "01234567890123456789",
                "",
            ),
            ("2 \t\r\nok\r\n0 ;\r\n\r\n", "ok", ""),
            ("2;\"a\tb\"\r\nok\r\n0\r\n\r\n", "ok", ""),
        ] {
            let (data, trailers, left) = chunks(bytes.as_bytes()).unwrap();
            assert_eq!((&*data, &*left), (want, behind), "{bytes:?}");
            assert!(trailers.is_empty());
        }
    }

    #[test]
    fn chunks_that_could_be_read_otherwise_are_refused() {
        for bytes in [
            "2\nok\r\n0\r\n\r\n",
            "2\r\nok\n0\r\n\r\n",
            "2\r\nokk\r\n0\r\n\r\n",
            "2\r\no\r\n0\r\n\r\n",
            " 2\r\nok\r\n0\r\n\r\n",
            "+2\r\nok\r\n0\r\n\r\n",
            "-2\r\nok\r\n0\r\n\r\n",
            "0x2\r\nok\r\n0\r\n\r\n",
            "2 2\r\nok\r\n0\r\n\r\n",
            "\r\nok\r\n0\r\n\r\n",
            ";a\r\nok\r\n0\r\n\r\n",
            "2;a\nb\r\nok\r\n0\r\n\r\n",
            "2;a\rb\r\nok\r\n0\r\n\r\n",
            "2\r\r\nok\r\n0\r\n\r\n",
            "2\0\r\nok\r\n0\r\n\r\n",
            "10000000000000002\r\nok\r\n0\r\n\r\n",
            "fffffffffffffffff\r\nok\r\n0\r\n\r\n",
            "2\r\nok\r\n0\r\nA\r\n\r\n",
            "2\r\nok\r\n0\r\nA : b\r\n\r\n",
            "2\r\nok\r\n0\r\n a: b\r\n\r\n",
            "2\r\nok\r\n0\r\na: b\r\n c\r\n\r\n",
            "2\r\nok\r\n0\r\na: b\n\n\r\n\r\n",
            "2\r\nok\r\n0\r\na: b\nc: d\r\n\r\n",
            "2\r\nok\r\n0\r\na: b\n\r\n\r\n",
            "2\r\nok\r\n0\r\na: b\0\r\n\r\n",
            "2\r\nok\r\n0\r\n\n\r\n\r\n",
        ] {
            assert!(chunks(bytes.as_bytes()).is_none(), "{bytes:?}");
        }
    }

    #[test]
    fn chunks_that_are_cut_are_never_whole() {
        let whole = b"2;x\r\nok\r\n3\r\nyes\r\n0\r\na: b\r\n\r\n";
        assert!(chunks(whole).is_some());
        for length in 1..whole.len() {
            assert!(chunks(&whole[..length]).is_none(), "{length}");
        }
    }

    #[test]
    fn trailers_are_the_end_of_chunks() {
        let (data, trailers, left) =
            chunks(b"2\r\nok\r\n0\r\nA: b\r\na: \xc3\xa9\r\nempty:\r\n\r\nHTTP").unwrap();
        assert_eq!((&*data, &*left), ("ok", "HTTP"));
        let values: Vec<_> = trailers.get_all("a").iter().collect();
        assert_eq!(values, ["b".as_bytes(), b"\xc3\xa9"]);
        assert_eq!((trailers.len(), trailers["empty"].is_empty()), (3, true));
    }

    #[test]
    fn extensions_and_trailers_are_bounded() {
        let extended = |length: usize| format!("1;{}\r\na\r\n0\r\n\r\n", "x".repeat(length));
        let most = MAX_EXTENSION_BYTES as usize;
        let is_taken = |bytes: &str| taken(Content::chunks(), bytes.as_bytes(), 999).is_ok();
        assert!(is_taken(&extended(most - 1)) && !is_taken(&extended(most)));
        // For all chunks together.
        let half = format!("1;{}\r\na\r\n", "x".repeat(most / 2));
        assert!(!is_taken(&format!("{half}{half}0\r\n\r\n")));

        let lines = |count: usize| format!("0\r\n{}\r\n", "a: b\r\n".repeat(count));
        assert!(is_taken(&lines(MAX_LINES)) && !is_taken(&lines(MAX_LINES + 1)));
        let long = |length: usize| format!("0\r\na: {}\r\n\r\n", "x".repeat(length));
        assert!(is_taken(&long(MAX_HEAD_BYTES - 7)) && !is_taken(&long(MAX_HEAD_BYTES - 6)));
        // Also if their end never comes.
        let endless = "x".repeat(2 * MAX_HEAD_BYTES);
        assert!(matches!(
            taken(
                Content::chunks(),
                format!("0\r\na: {endless}").as_bytes(),
                999
            ),
            Err(Http1Fault::Trailers)
        ));
    }
}
