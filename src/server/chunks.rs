//! A look at the raw bytes of a request's chunked content, for what hyper forgives and we do not.
//!
//! Pure and incremental. hyper takes a line feed alone in trailers for part of a line, and then the
//! next request for part of the trailers. It must never find an end where hyper finds none.

/// Bytes of extensions and of trailers in one request's content, each.
const MAX_BYTES: u32 = 16 << 10;

/// Where the look at one request's content stands.
#[derive(Clone, Copy, Debug)]
pub(super) struct ChunkCheck {
    next: ChunkState,
    /// Of the chunk that was begun: its size as far as it is known, then its bytes to come.
    left: u64,
    size_bytes: u32,
    trailer_bytes: u32,
}

/// What comes next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ChunkState {
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
enum ChunkVerdict {
    /// Content, all of them.
    Content,
    /// So many of them are content, and its end.
    Ended(usize),
    /// So many of them are in order, and the next one is not.
    Broken(usize),
}

impl ChunkCheck {
    pub(super) fn new() -> ChunkCheck {
        ChunkCheck {
            next: ChunkState::Size,
            left: 0,
            size_bytes: 0,
            trailer_bytes: 0,
        }
    }

    /// Looks at the next bytes of the connection.
    fn look(&mut self, bytes: &[u8]) -> ChunkVerdict {
        let mut at = 0;
        while let Some(&byte) = bytes.get(at) {
            if self.next == ChunkState::Data {
                let rest = (bytes.len() - at) as u64;
                let skipped = self.left.min(rest);
                self.left -= skipped;
                if self.left == 0 {
                    self.next = ChunkState::DataCr;
                }
                at += usize::try_from(skipped).unwrap_or(bytes.len());
                continue;
            }
            let Some(next) = self.step(byte) else {
                return ChunkVerdict::Broken(at);
            };
            self.next = next;
            at += 1;
            if next == ChunkState::Nothing {
                return ChunkVerdict::Ended(at);
            }
        }
        ChunkVerdict::Content
    }

    /// What comes behind this byte; nothing if it does not belong here.
    fn step(&mut self, byte: u8) -> Option<ChunkState> {
        Some(match (self.next, byte) {
            (ChunkState::Size | ChunkState::MoreSize, byte) if byte.is_ascii_hexdigit() => {
                let digit = char::from(byte).to_digit(16)?;
                self.left = self.left.checked_mul(16)?.checked_add(u64::from(digit))?;
                self.count_size()?;
                ChunkState::MoreSize
            }
            (ChunkState::MoreSize | ChunkState::Extension, b'\r') => ChunkState::SizeLf,
            (ChunkState::MoreSize | ChunkState::Blank, b' ' | b'\t') => {
                self.count_size()?;
                ChunkState::Blank
            }
            (ChunkState::MoreSize | ChunkState::Blank, b';') => ChunkState::Extension,
            (ChunkState::Extension, byte) if is_text(byte) => {
                self.count_size()?;
                ChunkState::Extension
            }
            (ChunkState::SizeLf, b'\n') if self.left == 0 => ChunkState::Line,
            (ChunkState::SizeLf, b'\n') => ChunkState::Data,
            (ChunkState::DataCr, b'\r') => ChunkState::DataLf,
            (ChunkState::DataLf, b'\n') => ChunkState::Size,
            (ChunkState::Line, b'\r') => ChunkState::EndLf,
            (ChunkState::Line | ChunkState::Trailer, byte) if is_text(byte) => {
                self.trailer_bytes += 1;
                (self.trailer_bytes < MAX_BYTES).then_some(ChunkState::Trailer)?
            }
            (ChunkState::Trailer, b'\r') => ChunkState::TrailerLf,
            (ChunkState::TrailerLf, b'\n') => ChunkState::Line,
            (ChunkState::EndLf, b'\n') => ChunkState::Nothing,
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

/// The raw bytes of a request's content.
#[derive(Clone, Copy, Debug)]
pub(super) enum ContentCheck {
    /// Of a head that has not ended, of one that is refused, or of bytes that are not looked at.
    Other,
    Chunks(ChunkCheck),
    /// So many of them are to come.
    Length(u64),
    /// All of them have come, if there are any. What comes next belongs to the next request.
    Ended,
    /// They are no chunks. Nothing behind that is read.
    Broken,
}

impl ContentCheck {
    /// Whether bytes of it are to come.
    pub(super) fn is_under_way(&self) -> bool {
        matches!(self, ContentCheck::Chunks(_) | ContentCheck::Length(_))
    }

    /// Looks at the next bytes of the connection. Returns how many of them belong to the content
    /// and are in order.
    pub(super) fn look(&mut self, bytes: &[u8]) -> usize {
        match self {
            ContentCheck::Other => bytes.len(),
            ContentCheck::Ended | ContentCheck::Broken => 0,
            ContentCheck::Length(left) => {
                let count =
                    usize::try_from(*left).map_or(bytes.len(), |left| left.min(bytes.len()));
                *left -= count as u64;
                if *left == 0 {
                    *self = ContentCheck::Ended;
                }
                count
            }
            ContentCheck::Chunks(chunks) => match chunks.look(bytes) {
                ChunkVerdict::Content => bytes.len(),
                ChunkVerdict::Ended(at) => {
                    *self = ContentCheck::Ended;
                    at
                }
                ChunkVerdict::Broken(at) => {
                    *self = ContentCheck::Broken;
                    at
                }
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is made of the bytes, however they are cut in two.
    fn check(bytes: &str, expected: ChunkVerdict) {
        let bytes = bytes.as_bytes();
        for cut in 0..=bytes.len() {
            let mut chunks = ChunkCheck::new();
            let found = match chunks.look(&bytes[..cut]) {
                ChunkVerdict::Content => match chunks.look(&bytes[cut..]) {
                    ChunkVerdict::Content => ChunkVerdict::Content,
                    ChunkVerdict::Ended(at) => ChunkVerdict::Ended(cut + at),
                    ChunkVerdict::Broken(at) => ChunkVerdict::Broken(cut + at),
                },
                found => found,
            };
            assert_eq!(found, expected, "cut at {cut} of {bytes:?}");
        }
    }

    #[test]
    fn content_ends_where_it_ends() {
        check("4\r\na\nb\r\r\n0\r\n\r\nGET", ChunkVerdict::Ended(14));
        check(
            "04;a=b\r\nabcd\r\n0\r\nX: y\r\n\r\n0",
            ChunkVerdict::Ended(25),
        );
        check("4 ;a\r\nabcd\r\n", ChunkVerdict::Content);
    }

    #[test]
    fn every_line_ends_in_both_bytes() {
        check("4\nabcd", ChunkVerdict::Broken(1));
        check("4\rabcd", ChunkVerdict::Broken(2));
        check("4;a\nb\r\n", ChunkVerdict::Broken(3));
        check("4\r\nabcd\n0", ChunkVerdict::Broken(7));
        check("0\r\n\n", ChunkVerdict::Broken(3));
        check("0\r\nX-T: v\n\n", ChunkVerdict::Broken(9));
        check("0\r\nX-T: v\rX", ChunkVerdict::Broken(10));
        check("0\r\n\r\r", ChunkVerdict::Broken(4));
    }

    #[test]
    fn sizes_are_exact_and_bounded() {
        for bytes in ["+4\r\n", "-4\r\n", " 4\r\n", "\r\n", "g\r\n", ";a\r\n"] {
            check(bytes, ChunkVerdict::Broken(0));
        }
        check("0x4\r\n", ChunkVerdict::Broken(1));
        check("4 4\r\n", ChunkVerdict::Broken(2));
        check("4 \r\n", ChunkVerdict::Broken(2));
        check("10000000000000000\r\n", ChunkVerdict::Broken(16));
        let endless = format!("4;{}", "x".repeat(20_000));
        assert_eq!(
            ChunkCheck::new().look(endless.as_bytes()),
            ChunkVerdict::Broken(MAX_BYTES as usize)
        );
    }
}
