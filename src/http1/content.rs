//! The content of a message: where it ends, and which of the bytes that were read belong to it.
//!
//! It must never let content that was cut look complete, nor give out a byte behind its end.

use std::fmt;

use bytes::{Buf, Bytes};
use http::HeaderMap;
use http::header::{HeaderName, HeaderValue};
use http_body::SizeHint;
use httparse::Status;

/// Bytes in the trailers of a response; the same as in its head.
pub(crate) const MAX_TRAILER_BYTES: usize = 64 << 10;
/// Bytes in the trailers of a request.
const MAX_REQUEST_TRAILER_BYTES: usize = 16 << 10;
/// Lines in trailers.
pub(crate) const MAX_TRAILER_LINES: usize = 100;
/// Bytes of extensions in all chunks of one message together. A request's sizes count too.
const MAX_EXTENSION_BYTES: u32 = 16 << 10;
/// What mostly follows the last chunk's content.
const USUAL_END: &[u8] = b"\r\n0\r\n\r\n";

/// Why content cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ContentFault {
    /// The connection has ended before the content.
    Ended,
    /// No chunk where one should be.
    Chunk,
    /// Trailers that cannot be read, or are larger than we read.
    Trailers,
}

impl fmt::Display for ContentFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            ContentFault::Ended => "connection closed before the content ended",
            ContentFault::Chunk => "a broken chunk",
            ContentFault::Trailers => "broken or too many trailers",
        })
    }
}

/// What is still to come of the content of a message.
#[derive(Debug)]
pub(crate) enum Content {
    Nothing,
    Length(u64),
    Chunks(Chunks),
    /// Whatever comes until the connection ends.
    UntilEnd,
}

/// Where chunked content stands.
#[derive(Debug)]
pub(crate) struct Chunks {
    next: ContentStep,
    /// Of the chunk that was begun: its size as far as it is known, then its bytes to come.
    left: u64,
    extension_bytes: u32,
    /// Requests are read more strictly than servers' responses.
    is_request: bool,
}

/// What comes next of chunked content.
#[derive(Clone, Copy, Debug)]
enum ContentStep {
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
pub(crate) enum Piece {
    Data(Bytes),
    /// These are its end.
    Trailers(HeaderMap),
}

/// What could be taken of what was read.
#[derive(Debug)]
pub(crate) enum Taken {
    Piece(Piece),
    /// More has to be read first.
    NeedsMore,
    Ended,
}

impl Content {
    /// Chunks of a response.
    pub(crate) fn chunks() -> Content {
        Content::Chunks(Chunks {
            next: ContentStep::Size,
            left: 0,
            extension_bytes: 0,
            is_request: false,
        })
    }

    /// Chunks of a request.
    pub(crate) fn request_chunks() -> Content {
        Content::Chunks(Chunks {
            next: ContentStep::Size,
            left: 0,
            extension_bytes: 0,
            is_request: true,
        })
    }

    /// Whether all of it was taken.
    pub(crate) fn has_ended(&self) -> bool {
        matches!(self, Content::Nothing)
    }

    pub(crate) fn size_hint(&self) -> SizeHint {
        match self {
            Content::Nothing => SizeHint::with_exact(0),
            Content::Length(left) => SizeHint::with_exact(*left),
            Content::Chunks(_) | Content::UntilEnd => SizeHint::default(),
        }
    }

    /// Bytes that are certain to come still; nothing where that is unknown.
    pub(crate) fn known_left(&self) -> Option<u64> {
        match self {
            Content::Length(left) => Some(*left),
            Content::Chunks(chunks) if matches!(chunks.next, ContentStep::Data) => {
                Some(chunks.left)
            }
            _ => None,
        }
    }

    /// Takes the next piece from the front of `read`.
    pub(crate) fn take<B: Buf>(&mut self, read: &mut B) -> Result<Taken, ContentFault> {
        let taken = match self {
            Content::Nothing => return Ok(Taken::Ended),
            _ if !read.has_remaining() => return Ok(Taken::NeedsMore),
            Content::Length(left) => {
                let data = up_to(read, left);
                if *left == 0 {
                    *self = Content::Nothing;
                }
                Taken::Piece(Piece::Data(data))
            }
            Content::UntilEnd => Taken::Piece(Piece::Data(read.copy_to_bytes(read.remaining()))),
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
    pub(crate) fn end(&mut self) -> Result<(), ContentFault> {
        match self {
            Content::Nothing => Ok(()),
            Content::UntilEnd => {
                *self = Content::Nothing;
                Ok(())
            }
            Content::Length(_) | Content::Chunks(_) => Err(ContentFault::Ended),
        }
    }
}

/// As much of `left` as was read.
fn up_to<B: Buf>(read: &mut B, left: &mut u64) -> Bytes {
    let all = read.remaining();
    let length = usize::try_from(*left).map_or(all, |left| left.min(all));
    *left -= length as u64;
    read.copy_to_bytes(length)
}

impl Chunks {
    fn take<B: Buf>(&mut self, read: &mut B) -> Result<Taken, ContentFault> {
        loop {
            match self.next {
                ContentStep::Data if !read.has_remaining() => return Ok(Taken::NeedsMore),
                ContentStep::Data => {
                    let data = up_to(read, &mut self.left);
                    if self.left == 0 {
                        self.next = ContentStep::DataCr;
                    }
                    return Ok(Taken::Piece(Piece::Data(data)));
                }
                ContentStep::Trailers(searched) => return self.trailers(read, searched),
                _ => {
                    let mut used = 0;
                    for &byte in read.chunk() {
                        if !self.is_in_a_line() {
                            break;
                        }
                        self.step(byte)?;
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
        !matches!(self.next, ContentStep::Data | ContentStep::Trailers(_))
    }

    /// Reads one byte of what is between the chunks' data.
    fn step(&mut self, byte: u8) -> Result<(), ContentFault> {
        self.next = match (self.next, byte) {
            (ContentStep::Size | ContentStep::MoreSize, byte) if byte.is_ascii_hexdigit() => {
                self.digit(byte)?;
                if self.is_request {
                    self.count_extension()?;
                }
                ContentStep::MoreSize
            }
            (ContentStep::MoreSize | ContentStep::Blank, b' ' | b'\t') => {
                if self.is_request {
                    self.count_extension()?;
                }
                ContentStep::Blank
            }
            (ContentStep::MoreSize | ContentStep::Blank, b';') => ContentStep::Extension,
            (ContentStep::MoreSize | ContentStep::Extension, b'\r') => ContentStep::SizeLf,
            (ContentStep::Blank, b'\r') if !self.is_request => ContentStep::SizeLf,
            // Some readers end a line at a line feed alone.
            (ContentStep::Extension, byte)
                if byte != b'\n' && (!self.is_request || is_text(byte)) =>
            {
                self.count_extension()?;
                ContentStep::Extension
            }
            (ContentStep::SizeLf, b'\n') if self.left == 0 => ContentStep::Trailers(0),
            (ContentStep::SizeLf, b'\n') => ContentStep::Data,
            (ContentStep::DataCr, b'\r') => ContentStep::DataLf,
            (ContentStep::DataLf, b'\n') => ContentStep::Size,
            _ => return Err(ContentFault::Chunk),
        };
        Ok(())
    }

    fn count_extension(&mut self) -> Result<(), ContentFault> {
        self.extension_bytes += 1;
        match self.extension_bytes < MAX_EXTENSION_BYTES {
            true => Ok(()),
            false => Err(ContentFault::Chunk),
        }
    }

    fn digit(&mut self, digit: u8) -> Result<(), ContentFault> {
        let value = char::from(digit).to_digit(16).unwrap_or_default();
        let left = self.left.checked_mul(16);
        self.left = left
            .and_then(|left| left.checked_add(u64::from(value)))
            .ok_or(ContentFault::Chunk)?;
        Ok(())
    }

    /// Takes the usual end, if it is what comes next.
    fn ends_with<B: Buf>(&self, read: &mut B) -> bool {
        let ends = matches!(self.next, ContentStep::DataCr) && read.chunk().starts_with(USUAL_END);
        if ends {
            read.advance(USUAL_END.len());
        }
        ends
    }

    /// Takes what is behind the last chunk, as soon as all of it was read.
    fn trailers<B: Buf>(&mut self, read: &mut B, searched: usize) -> Result<Taken, ContentFault> {
        let most = match self.is_request {
            true => MAX_REQUEST_TRAILER_BYTES,
            false => MAX_TRAILER_BYTES,
        };
        if read.chunk().starts_with(b"\r\n") {
            read.advance(2);
            return Ok(Taken::Ended);
        }
        let from = searched.saturating_sub(3);
        let Some(at) = memchr::memmem::find(&read.chunk()[from..], b"\r\n\r\n") else {
            if read.remaining() >= most {
                return Err(ContentFault::Trailers);
            }
            self.next = ContentStep::Trailers(read.remaining());
            return Ok(Taken::NeedsMore);
        };
        let lines = read.copy_to_bytes(from + at + 4);
        if lines.len() > most {
            return Err(ContentFault::Trailers);
        }
        let trailers = parsed(&lines).ok_or(ContentFault::Trailers)?;
        Ok(Taken::Piece(Piece::Trailers(trailers)))
    }
}

/// Whether a byte may stand within a line.
fn is_text(byte: u8) -> bool {
    byte == b'\t' || (byte >= b' ' && byte != 0x7f)
}

fn parsed(lines: &[u8]) -> Option<HeaderMap> {
    // Some take a line feed alone for the end of a line, others do not.
    if memchr::memchr_iter(b'\n', lines).any(|at| at == 0 || lines[at - 1] != b'\r') {
        return None;
    }
    let mut fields = vec![httparse::EMPTY_HEADER; MAX_TRAILER_LINES];
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
mod tests;
