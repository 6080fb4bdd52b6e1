//! A look at the raw bytes of a request's chunked content, for what hyper forgives and we do not.
//!
//! Pure and incremental. hyper takes a line feed alone in trailers for part of a line, and then the
//! next request for part of the trailers. It must never find an end where hyper finds none.

/// Bytes of extensions and of trailers in one request's content, each.
const MAX_BYTES: u32 = 16 << 10;

/// Where the look at one request's content stands.
#[derive(Clone, Copy, Debug)]
pub(super) struct Chunks {
    next: Next,
    /// Of the chunk that was begun: its size as far as it is known, then its bytes to come.
    left: u64,
    size_bytes: u32,
    trailer_bytes: u32,
}

/// What comes next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Next {
    /// The first digit of a size.
    Size,
    MoreSize,
    /// Blanks between a size and its extension.
    Blank,
    Extension,
    SizeLf,
    Data,
    DataCr,
    DataLf,
    /// The first byte of a trailer line, or the blank line at the end.
    Line,
    Trailer,
    TrailerLf,
    EndLf,
    Nothing,
}

/// What some bytes of the connection are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Looked {
    /// Content, all of them.
    Content,
    /// So many of them are content, and its end.
    Ended(usize),
    /// So many of them are in order, and the next one is not.
    Broken(usize),
}

impl Chunks {
    pub(super) fn new() -> Chunks {
        Chunks {
            next: Next::Size,
            left: 0,
            size_bytes: 0,
            trailer_bytes: 0,
        }
    }

    /// Looks at the next bytes of the connection.
    pub(super) fn look(&mut self, bytes: &[u8]) -> Looked {
        let mut at = 0;
        while let Some(&byte) = bytes.get(at) {
            if self.next == Next::Data {
                let rest = (bytes.len() - at) as u64;
                let skipped = self.left.min(rest);
                self.left -= skipped;
                if self.left == 0 {
                    self.next = Next::DataCr;
                }
                at += usize::try_from(skipped).unwrap_or(bytes.len());
                continue;
            }
            let Some(next) = self.step(byte) else {
                return Looked::Broken(at);
            };
            self.next = next;
            at += 1;
            if next == Next::Nothing {
                return Looked::Ended(at);
            }
        }
        Looked::Content
    }

    /// What comes behind this byte; nothing if it does not belong here.
    fn step(&mut self, byte: u8) -> Option<Next> {
        Some(match (self.next, byte) {
            (Next::Size | Next::MoreSize, byte) if byte.is_ascii_hexdigit() => {
                let digit = char::from(byte).to_digit(16)?;
                self.left = self.left.checked_mul(16)?.checked_add(u64::from(digit))?;
                self.count_size()?;
                Next::MoreSize
            }
            (Next::MoreSize | Next::Extension, b'\r') => Next::SizeLf,
            (Next::MoreSize | Next::Blank, b' ' | b'\t') => {
                self.count_size()?;
                Next::Blank
            }
            (Next::MoreSize | Next::Blank, b';') => Next::Extension,
            (Next::Extension, byte) if is_text(byte) => {
                self.count_size()?;
                Next::Extension
            }
            (Next::SizeLf, b'\n') if self.left == 0 => Next::Line,
            (Next::SizeLf, b'\n') => Next::Data,
            (Next::DataCr, b'\r') => Next::DataLf,
            (Next::DataLf, b'\n') => Next::Size,
            (Next::Line, b'\r') => Next::EndLf,
            (Next::Line | Next::Trailer, byte) if is_text(byte) => {
                self.trailer_bytes += 1;
                (self.trailer_bytes < MAX_BYTES).then_some(Next::Trailer)?
            }
            (Next::Trailer, b'\r') => Next::TrailerLf,
            (Next::TrailerLf, b'\n') => Next::Line,
            (Next::EndLf, b'\n') => Next::Nothing,
            _ => return None,
        })
    }

    fn count_size(&mut self) -> Option<()> {
        self.size_bytes += 1;
        (self.size_bytes < MAX_BYTES).then_some(())
    }
}

/// Whether a byte may stand within a line.
fn is_text(byte: u8) -> bool {
    byte == b'\t' || (byte >= b' ' && byte != 0x7f)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is made of the bytes, however they are cut in two.
    fn check(bytes: &str, expected: Looked) {
        let bytes = bytes.as_bytes();
        for cut in 0..=bytes.len() {
            let mut chunks = Chunks::new();
            let found = match chunks.look(&bytes[..cut]) {
                Looked::Content => match chunks.look(&bytes[cut..]) {
                    Looked::Content => Looked::Content,
                    Looked::Ended(at) => Looked::Ended(cut + at),
                    Looked::Broken(at) => Looked::Broken(cut + at),
                },
                found => found,
            };
            assert_eq!(found, expected, "cut at {cut} of {bytes:?}");
        }
    }

    #[test]
    fn content_ends_where_it_ends() {
        check("4\r\na\nb\r\r\n0\r\n\r\nGET", Looked::Ended(14));
        check("04;a=b\r\nabcd\r\n0\r\nX: y\r\n\r\n0", Looked::Ended(25));
        check("4 ;a\r\nabcd\r\n", Looked::Content);
    }

    #[test]
    fn every_line_ends_in_both_bytes() {
        check("4\nabcd", Looked::Broken(1));
        check("4\rabcd", Looked::Broken(2));
        check("4;a\nb\r\n", Looked::Broken(3));
        check("4\r\nabcd\n0", Looked::Broken(7));
        check("0\r\n\n", Looked::Broken(3));
        check("0\r\nX-T: v\n\n", Looked::Broken(9));
        check("0\r\nX-T: v\rX", Looked::Broken(10));
        check("0\r\n\r\r", Looked::Broken(4));
    }

    #[test]
    fn sizes_are_exact_and_bounded() {
        for bytes in ["+4\r\n", "-4\r\n", " 4\r\n", "\r\n", "g\r\n", ";a\r\n"] {
            check(bytes, Looked::Broken(0));
        }
        check("0x4\r\n", Looked::Broken(1));
        check("4 4\r\n", Looked::Broken(2));
        check("4 \r\n", Looked::Broken(2));
        check("10000000000000000\r\n", Looked::Broken(16));
        let endless = format!("4;{}", "x".repeat(20_000));
        assert_eq!(
            Chunks::new().look(endless.as_bytes()),
            Looked::Broken(MAX_BYTES as usize)
        );
    }
}
