//! A look at the raw bytes of a request's head, for what hyper forgives and we do not.
//!
//! Pure and incremental: bytes in, faults out, at most one pass with `memchr`. It tells where
//! chunks begin. A head behind other content, or behind a request without content, in one read with
//! it, is not seen. hyper's reading
//! of such a head is framed anew for the upstream: only the refusal is lost, not the safety.

use memchr::memchr_iter;

use crate::proxy::flaw::Flaw;
use crate::proxy::headers::{RequestFault, check_coding};

/// Bytes that are kept of a line which comes in parts: `transfer-encoding:` and what it says.
const NAME_BYTES: usize = 64;

const CONTENT_LENGTH: &[u8] = b"content-length:";
const TRANSFER_ENCODING: &[u8] = b"transfer-encoding:";

/// Where the look at one head stands.
#[derive(Debug)]
pub(crate) struct Lint {
    max_bytes: usize,
    seen: usize,
    line: [u8; NAME_BYTES],
    line_bytes: usize,
    last: u8,
    length: bool,
    /// What its lines say of the transfer coding.
    coding: Option<Result<(), RequestFault>>,
    started: bool,
    done: bool,
    /// Where in the last bytes the head ended, if it did.
    ended_at: Option<usize>,
}

impl Lint {
    pub(crate) fn new(max_bytes: usize) -> Lint {
        Lint {
            max_bytes,
            seen: 0,
            line: [0; NAME_BYTES],
            line_bytes: 0,
            last: b'\r',
            length: false,
            coding: None,
            started: false,
            done: false,
            ended_at: None,
        }
    }

    /// Where chunked content began in the bytes that were looked at last.
    pub(crate) fn chunks_begin(&self) -> Option<usize> {
        self.ended_at.filter(|_| self.coding == Some(Ok(())))
    }

    /// Whether the head names a transfer coding that is none of ours, and nothing worse.
    pub(crate) fn has_unknown_coding(&self) -> bool {
        !self.length && self.coding == Some(Err(RequestFault::UnknownCoding))
    }

    /// Looks at the heads behind a request without content that came with it in `bytes`. Their
    /// faults are not told, only an unknown coding is: hyper alone refuses such a head.
    pub(crate) fn look_behind(&mut self, bytes: &[u8]) {
        let mut rest = bytes;
        while let Some(end) = self.ended_at
            && !self.length
            && self.coding.is_none()
            && end < rest.len()
        {
            rest = &rest[end..];
            self.restart();
            self.look(rest);
        }
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
                self.read_name(&kept[..self.line_bytes.min(NAME_BYTES)]);
                self.line_bytes = 0;
            }
        }
        if !self.done {
            self.seen += bytes.len() - start;
            self.keep(&bytes[start..]);
        }
        self.last = bytes.last().copied().unwrap_or(self.last);
        if self.seen > self.max_bytes {
            Some(Flaw::HeadTooLarge)
        } else if self.length && self.coding.is_some() {
            Some(Flaw::TwoLengths)
        } else {
            None
        }
    }

    /// Keeps part of a line: its length, and its first bytes for the name.
    fn keep(&mut self, part: &[u8]) {
        if let Some(room) = NAME_BYTES.checked_sub(self.line_bytes) {
            let taken = room.min(part.len());
            self.line[self.line_bytes..][..taken].copy_from_slice(&part[..taken]);
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
            Some(b'c') if is(CONTENT_LENGTH) => self.length = true,
            Some(b't') if is(TRANSFER_ENCODING) => {
                let coding = check_coding(&line[TRANSFER_ENCODING.len()..], self.coding);
                self.coding = Some(coding);
            }
            _ => {}
        }
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

    #[test]
    fn a_head_over_its_bound_is_found() {
        check(
            &format!("GET / HTTP/1.1\r\nx: {}\r\n\r\n", "y".repeat(300)),
            Some(Flaw::HeadTooLarge),
        );
    }
}
