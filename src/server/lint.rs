//! A look at the raw bytes of a request's head, for what hyper forgives and we do not.
//!
//! Pure and incremental: bytes in, faults out, at most one pass with `memchr`. It tells where a
//! head ends and how its content is framed, so that the socket knows where the next head begins. A
//! look that began within a head would take its rest for another request.

use memchr::memchr_iter;

use super::chunks::{ChunkCheck, ContentCheck};
use crate::proxy::flaw::Flaw;
use crate::proxy::headers::{RequestFault, check_coding};

/// Bytes that are kept of a line which comes in parts, without blanks: `transfer-encoding:` and
/// its value.
const NAME_BYTES: usize = 48;

const CONTENT_LENGTH: &[u8] = b"content-length:";
const TRANSFER_ENCODING: &[u8] = b"transfer-encoding:";

/// Where the look at one head stands.
#[derive(Debug)]
pub(crate) struct Lint {
    max_bytes: usize,
    seen: usize,
    line: [u8; NAME_BYTES],
    line_bytes: usize,
    /// Bytes in `line`.
    kept_bytes: u8,
    last: u8,
    length: SaidLength,
    /// What its lines say of the transfer coding.
    coding: Option<Result<(), RequestFault>>,
    started: bool,
    done: bool,
    /// Where in the last bytes the head ended, if it did.
    ended_at: Option<usize>,
}

/// What the lines of a head say of its content's length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SaidLength {
    Unsaid,
    Bytes(u64),
    /// They contradict each other, or are no number: hyper refuses them.
    Unclear,
}

impl Lint {
    pub(crate) fn new(max_bytes: usize) -> Lint {
        Lint {
            max_bytes,
            seen: 0,
            line: [0; NAME_BYTES],
            line_bytes: 0,
            kept_bytes: 0,
            last: b'\r',
            length: SaidLength::Unsaid,
            coding: None,
            started: false,
            done: false,
            ended_at: None,
        }
    }

    /// Where in the bytes that were looked at last the head ended, if it did.
    pub(super) fn ended_at(&self) -> Option<usize> {
        self.ended_at
    }

    /// How the content behind this head is framed. The head has no flaw.
    pub(super) fn content(&self) -> ContentCheck {
        match (self.coding, self.length) {
            (Some(Ok(())), SaidLength::Unsaid) => ContentCheck::Chunks(ChunkCheck::new()),
            (None, SaidLength::Unsaid | SaidLength::Bytes(0)) => ContentCheck::Ended,
            (None, SaidLength::Bytes(left)) => ContentCheck::Length(left),
            // It is refused, and its connection ends.
            _ => ContentCheck::Other,
        }
    }

    /// Whether the head names a transfer coding that is none of ours, and nothing worse.
    pub(crate) fn has_unknown_coding(&self) -> bool {
        !self.has_length() && self.coding == Some(Err(RequestFault::UnknownCoding))
    }

    fn has_length(&self) -> bool {
        self.length != SaidLength::Unsaid
    }

    /// A new head begins.
    pub(crate) fn restart(&mut self) {
        *self = Lint::new(self.max_bytes);
    }

    /// Looks at the next bytes of the connection, up to the head's end.
    pub(crate) fn look(&mut self, bytes: &[u8]) -> Option<Flaw> {
        self.ended_at = None;
        if self.done {
            return None;
        }
        let mut start = 0;
        for end in memchr_iter(b'\n', bytes) {
            let before = if end == 0 { self.last } else { bytes[end - 1] };
            if before != b'\r' {
                self.done = true;
                return Some(Flaw::BareLf);
            }
            let line = &bytes[start..end];
            start = end + 1;
            self.seen += line.len() + 1;
            let blank = self.line_bytes + line.len() == 1;
            if blank && self.started {
                self.done = true;
                self.ended_at = Some(start);
                break;
            }
            // Blank lines before a request line are skipped (RFC 9112 section 2.2).
            self.started |= !blank;
            if self.line_bytes == 0 {
                // All of it is here, as nearly always: nothing of it has to be kept.
                self.read_name(line);
            } else {
                self.keep(line);
                let kept = self.line;
                self.read_name(&kept[..usize::from(self.kept_bytes)]);
                (self.line_bytes, self.kept_bytes) = (0, 0);
            }
        }
        if !self.done {
            self.seen += bytes.len() - start;
            self.keep(&bytes[start..]);
        }
        self.last = bytes.last().copied().unwrap_or(self.last);
        if self.seen > self.max_bytes {
            Some(Flaw::HeadTooLarge)
        } else if self.has_length() && self.coding.is_some() {
            Some(Flaw::TwoLengths)
        } else {
            None
        }
    }

    /// Keeps part of a line: its length, and its first bytes. Blanks are left out, so that padding
    /// hides nothing. hyper refuses a line in which they change the meaning.
    fn keep(&mut self, part: &[u8]) {
        for &byte in part.iter().filter(|byte| !matches!(byte, b' ' | b'\t')) {
            let Some(place) = self.line.get_mut(usize::from(self.kept_bytes)) else {
                break;
            };
            *place = byte;
            self.kept_bytes += 1;
        }
        self.line_bytes += part.len();
    }

    /// Looks at the beginning of a line, at its name at least.
    fn read_name(&mut self, line: &[u8]) {
        let is = |name: &[u8]| {
            line.get(..name.len())
                .is_some_and(|start| start.eq_ignore_ascii_case(name))
        };
        match line.first().map(|byte| byte | 0x20) {
            Some(b'c') if is(CONTENT_LENGTH) => self.read_length(&line[CONTENT_LENGTH.len()..]),
            Some(b't') if is(TRANSFER_ENCODING) => {
                let coding = check_coding(&line[TRANSFER_ENCODING.len()..], self.coding);
                self.coding = Some(coding);
            }
            _ => {}
        }
    }

    /// Lines that say the same are one, as for hyper.
    fn read_length(&mut self, value: &[u8]) {
        let value = value.trim_ascii();
        let is_number = !value.is_empty() && value.iter().all(u8::is_ascii_digit);
        let number = std::str::from_utf8(value).ok().filter(|_| is_number);
        // Of a longer line in parts the end is not known.
        let number = number.filter(|_| usize::from(self.kept_bytes) < NAME_BYTES);
        self.length = match (self.length, number.and_then(|text| text.parse().ok())) {
            (SaidLength::Unsaid, Some(bytes)) => SaidLength::Bytes(bytes),
            (SaidLength::Bytes(before), Some(bytes)) if before == bytes => self.length,
            _ => SaidLength::Unclear,
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The fault found however the bytes are cut in two.
    fn check(head: &str, expected: Option<Flaw>) {
        for cut in 0..=head.len() {
            let mut lint = Lint::new(200);
            let first = lint.look(&head.as_bytes()[..cut]);
            let second = lint.look(&head.as_bytes()[cut..]);
            let found = second.or(first);
            assert_eq!(found, expected, "cut at {cut} of {head:?}");
        }
    }

    #[test]
    fn a_plain_head_is_fine() {
        check(
            "GET / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\na\nb",
            None,
        );
        check("\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n", None);
    }

    #[test]
    fn a_bare_line_feed_is_found() {
        check("GET / HTTP/1.1\nHost: a\r\n\r\n", Some(Flaw::BareLf));
        check("GET / HTTP/1.1\r\nHost: a\n\r\n", Some(Flaw::BareLf));
        check("GET / HTTP/1.1\r\nHost: a\r\n\n", Some(Flaw::BareLf));
    }

    #[test]
    fn two_ways_to_say_the_length_are_found() {
        check(
            "POST / HTTP/1.1\r\ncontent-LENGTH: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
            Some(Flaw::TwoLengths),
        );
        check(
            "POST / HTTP/1.1\r\nTransfer-encoding:chunked\r\nContent-Length:0\r\n\r\n0\r\n\r\n",
            Some(Flaw::TwoLengths),
        );
    }

    /// How the content is framed however the head's bytes are cut in two.
    fn check_content(line: &str, expected: ContentCheck) {
        let head = format!("POST / HTTP/1.1\r\n{line}\r\n\r\n");
        for cut in 0..head.len() {
            let mut lint = Lint::new(1000);
            lint.look(&head.as_bytes()[..cut]);
            lint.look(&head.as_bytes()[cut..]);
            let (found, expected) = (format!("{:?}", lint.content()), format!("{expected:?}"));
            assert_eq!(found, expected, "cut at {cut} of {head:?}");
        }
    }

    #[test]
    fn padding_hides_no_framing() {
        let pad = " ".repeat(100);
        let chunks = ContentCheck::Chunks(ChunkCheck::new());
        check_content(&format!("Transfer-Encoding:{pad}chunked{pad}"), chunks);
        let length = ContentCheck::Length(5);
        check_content(&format!("Content-Length:\t{pad}5{pad}"), length);
    }

    #[test]
    fn a_length_whose_end_is_not_known_is_unclear() {
        let head = format!(
            "POST / HTTP/1.1\r\nContent-Length: {}5\r\n\r\n",
            "0".repeat(60)
        );
        let mut lint = Lint::new(1000);
        lint.look(&head.as_bytes()[..40]);
        lint.look(&head.as_bytes()[40..]);
        assert!(matches!(lint.content(), ContentCheck::Other));
    }

    #[test]
    fn a_head_over_its_bound_is_found() {
        check(
            &format!("GET / HTTP/1.1\r\nx: {}\r\n\r\n", "y".repeat(300)),
            Some(Flaw::HeadTooLarge),
        );
    }
}
