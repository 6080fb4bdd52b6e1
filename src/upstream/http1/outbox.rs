//! A request on its way out over HTTP/1.1: its head and its content as bytes, framed by what is
//! really sent, and how much of them has been written. Pure words.

use std::io::{IoSlice, Write as _};

use bytes::Bytes;
use http::header::{CONNECTION, CONTENT_LENGTH, HeaderMap, HeaderName, TRANSFER_ENCODING};
use http::{Request, Uri};

use super::head::says_close;
use crate::http1::write::{put_chunk_size, put_line, put_trailers};
use crate::upstream::prerendered_headers::PrerenderedHeaders;
use crate::wire::{MAX_PIECES, Outflow};

/// How a request's content is framed, and what of it is still to come.
#[derive(Debug)]
pub(super) enum Framing {
    Nothing,
    Length(u64),
    /// With these trailers, if they come.
    Chunks(Vec<HeaderName>),
}

/// The content is not as long as was said.
#[derive(Debug)]
pub(super) struct WrongLength;

/// See the file's head.
#[derive(Debug, Default)]
pub(super) struct Outbox {
    flow: Outflow,
    /// Whether anything of the request was written, also if it is not here any more.
    is_touched: bool,
}

impl Outbox {
    /// Begins with a request's head. Whether the connection can be used again, for all that the
    /// request says.
    pub(super) fn begin<B>(
        &mut self,
        request: &Request<B>,
        beside: Option<&PrerenderedHeaders>,
        framing: &Framing,
    ) -> bool {
        self.flow.clear();
        self.is_touched = false;
        let out = &mut self.flow.flat;
        out.extend_from_slice(request.method().as_str().as_bytes());
        out.push(b' ');
        put_target(out, request.uri());
        out.extend_from_slice(b" HTTP/1.1\r\n");
        let mut framed = false;
        let mut close = false;
        for (name, value) in request.headers() {
            if name == CONTENT_LENGTH || name == TRANSFER_ENCODING {
                // Whatever it says, it must say what is sent.
                let is_length = name == CONTENT_LENGTH;
                if !framed && is_length == !matches!(framing, Framing::Chunks(_)) {
                    framed = true;
                    put_framing(out, framing);
                }
                continue;
            }
            if name == CONNECTION {
                close |= says_close(value.as_bytes());
            }
            put_line(out, name, value.as_bytes());
        }
        if !framed && !matches!(framing, Framing::Nothing) {
            put_framing(out, framing);
        }
        if let Some(beside) = beside {
            out.extend_from_slice(beside.as_bytes());
        }
        out.extend_from_slice(b"\r\n");
        !close
    }

    /// The connection becomes idle: what it keeps is bounded.
    pub(super) fn rest(&mut self) {
        self.flow.shrink();
    }

    /// The head of the last request, if it had no content.
    pub(super) fn head(&self) -> &[u8] {
        &self.flow.flat
    }

    /// Whether nothing of the request was written.
    pub(super) fn is_untouched(&self) -> bool {
        !self.is_touched
    }

    pub(super) fn is_empty(&self) -> bool {
        self.flow.is_empty()
    }

    /// Whether more content may be put in.
    pub(super) fn has_room(&self) -> bool {
        self.flow.has_room()
    }

    /// Adds a piece of content; whether that is `last`, and what is `left` of it, the framing says.
    pub(super) fn put(
        &mut self,
        data: Bytes,
        last: bool,
        framing: &mut Framing,
    ) -> Result<(), WrongLength> {
        let length = data.len();
        match framing {
            Framing::Nothing if length > 0 => return Err(WrongLength),
            Framing::Nothing => {}
            Framing::Length(left) => {
                *left = left.checked_sub(length as u64).ok_or(WrongLength)?;
                self.flow.push(data);
                if last && *left > 0 {
                    return Err(WrongLength);
                }
            }
            Framing::Chunks(_) => {
                if length > 0 {
                    put_chunk_size(&mut self.flow.flat, length);
                    self.flow.push(data);
                    self.flow.flat.extend_from_slice(b"\r\n");
                }
                if last {
                    self.flow.flat.extend_from_slice(b"0\r\n\r\n");
                }
            }
        }
        Ok(())
    }

    /// Ends chunks with those of `trailers` that were announced.
    pub(super) fn put_trailers(
        &mut self,
        trailers: &HeaderMap,
        framing: &Framing,
    ) -> Result<(), WrongLength> {
        let announced = match framing {
            Framing::Chunks(announced) => announced,
            Framing::Nothing | Framing::Length(0) => return Ok(()),
            Framing::Length(_) => return Err(WrongLength),
        };
        put_trailers(&mut self.flow.flat, trailers, announced);
        Ok(())
    }

    /// What is to be written next, in order.
    pub(super) fn slices<'a>(&'a self, slices: &mut [IoSlice<'a>; MAX_PIECES]) -> usize {
        self.flow.slices(slices)
    }

    /// The same where it is one piece: a request without content.
    pub(super) fn flat(&self) -> Option<&[u8]> {
        self.flow.single_slice()
    }

    /// So many bytes were written.
    pub(super) fn advance(&mut self, count: usize) {
        self.is_touched |= count > 0;
        self.flow.advance(count);
    }

    /// Everything was written, and is not needed again.
    pub(super) fn drop_written(&mut self) {
        self.flow.clear();
    }

    /// The pieces of content that wait, which is all of it that was read if nothing was written.
    pub(super) fn take_back(&mut self) -> Vec<Bytes> {
        self.flow.take_back()
    }
}

fn put_framing(out: &mut Vec<u8>, framing: &Framing) {
    match framing {
        Framing::Nothing => out.extend_from_slice(b"content-length: 0\r\n"),
        Framing::Length(length) => {
            let mut digits = itoa::Buffer::new();
            put_line(out, &CONTENT_LENGTH, digits.format(*length).as_bytes());
        }
        Framing::Chunks(_) => out.extend_from_slice(b"transfer-encoding: chunked\r\n"),
    }
}

/// In origin form, or as it is where it is something else.
fn put_target(out: &mut Vec<u8>, uri: &Uri) {
    match uri.path_and_query() {
        Some(path) if uri.authority().is_none() && path.as_str().starts_with(['/', '*']) => {
            out.extend_from_slice(path.as_str().as_bytes());
        }
        // Written to a vector: it cannot fail.
        _ => drop(write!(out, "{uri}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http1::write::announced_trailers;

    const GET: &str = "GET /a?b HTTP/1.1\r\nhost: x\r\n";

    fn request(lines: &[(&'static str, &'static str)]) -> Request<()> {
        let mut request = Request::builder().uri("/a?b").header("host", "x");
        for &(name, value) in lines {
            request = request.header(name, value);
        }
        request.body(()).unwrap()
    }

    /// Everything that waits, written `at_once` bytes at a time.
    fn written(outbox: &mut Outbox, at_once: usize) -> String {
        let mut all = Vec::new();
        while !outbox.is_empty() {
            let mut slices = [IoSlice::new(&[]); MAX_PIECES];
            let count = outbox.slices(&mut slices);
            let next: Vec<u8> = slices[..count]
                .iter()
                .flat_map(|slice| slice.to_vec())
                .collect();
            let length = at_once.min(next.len());
            if let Some(flat) = outbox.flat() {
                assert_eq!(flat, next);
            }
            all.extend_from_slice(&next[..length]);
            outbox.advance(length);
        }
        String::from_utf8(all).unwrap()
    }

    #[test]
    fn a_head_says_what_is_sent_and_nothing_else() {
        let length = ("content-length", "7");
        let chunked = ("transfer-encoding", "chunked");
        let chunks = || Framing::Chunks(Vec::new());
        for (lines, framing, want) in [
            (&[][..], Framing::Nothing, ""),
            (&[length], Framing::Nothing, "content-length: 0\r\n"),
            (&[chunked], Framing::Nothing, ""),
            (&[], Framing::Length(7), "content-length: 7\r\n"),
            (
                &[length, length],
                Framing::Length(7),
                "content-length: 7\r\n",
            ),
            (
                &[("content-length", "8")],
                Framing::Length(7),
                "content-length: 7\r\n",
            ),
            (
                &[length, chunked],
                Framing::Length(7),
                "content-length: 7\r\n",
            ),
            (&[], chunks(), "transfer-encoding: chunked\r\n"),
            (
                &[length, chunked],
                chunks(),
                "transfer-encoding: chunked\r\n",
            ),
            (
                &[("transfer-encoding", "gzip")],
                chunks(),
                "transfer-encoding: chunked\r\n",
            ),
        ] {
            let mut outbox = Outbox::default();
            assert!(outbox.begin(&request(lines), None, &framing));
            assert_eq!(
                written(&mut outbox, 999),
                format!("{GET}{want}\r\n"),
                "{lines:?}"
            );
        }
    }

    #[test]
    fn a_request_that_says_close_is_the_last() {
        for (value, may_follow) in [("close", false), ("te, Close", false), ("te", true)] {
            let request = request(&[("connection", value)]);
            let begun = Outbox::default().begin(&request, None, &Framing::Nothing);
            assert_eq!(begun, may_follow, "{value}");
        }
    }

    #[test]
    fn targets_are_written_as_they_are() {
        for (uri, want) in [
            ("/", "/"),
            ("/a%20b?c=d&e", "/a%20b?c=d&e"),
            ("*", "*"),
            ("http://a.example?b", "http://a.example/?b"),
            ("a.example:443", "a.example:443"),
        ] {
            let mut out = Vec::new();
            put_target(&mut out, &uri.parse().unwrap());
            assert_eq!(String::from_utf8(out).unwrap(), want);
        }
    }

    #[test]
    fn content_is_written_in_order_however_little_is_taken() {
        let head = format!("{GET}trailer: x-sum, host\r\ntransfer-encoding: chunked\r\n\r\n");
        let want = head + "5\r\nhello\r\n10\r\n, you over there\r\n0\r\nx-sum: 7\r\n\r\n";
        for at_once in [1, 2, 3, 7, 50, 999] {
            let request = request(&[("trailer", "x-sum, host")]);
            let mut framing = Framing::Chunks(announced_trailers(request.headers()));
            let mut outbox = Outbox::default();
            outbox.begin(&request, None, &framing);
            for piece in ["hello", "", ", you over there"] {
                outbox.put(piece.into(), false, &mut framing).unwrap();
            }
            let mut trailers = HeaderMap::new();
            for (name, value) in [("x-sum", "7"), ("host", "y"), ("x-other", "z")] {
                trailers.insert(name, value.try_into().unwrap());
            }
            outbox.put_trailers(&trailers, &framing).unwrap();
            assert_eq!(written(&mut outbox, at_once), want);
        }
        for at_once in [1, 8, 999] {
            let (mut outbox, mut framing) = (Outbox::default(), Framing::Length(10));
            outbox.begin(&request(&[]), None, &framing);
            outbox.put("hello".into(), false, &mut framing).unwrap();
            outbox.put("world".into(), true, &mut framing).unwrap();
            let want = format!("{GET}content-length: 10\r\n\r\nhelloworld");
            assert_eq!(written(&mut outbox, at_once), want);
        }
    }

    #[test]
    fn content_of_another_length_than_was_said_never_looks_whole() {
        let put = |pieces: &[&'static str], last: bool| {
            let (mut outbox, mut framing) = (Outbox::default(), Framing::Length(5));
            let mut pieces = pieces.iter().peekable();
            while let Some(piece) = pieces.next() {
                let is_last = last && pieces.peek().is_none();
                outbox.put((*piece).into(), is_last, &mut framing)?;
            }
            outbox.put_trailers(&HeaderMap::new(), &framing)
        };
        assert!(put(&["hel", "lo"], true).is_ok());
        assert!(put(&["hel", "lo", ""], true).is_ok());
        assert!(put(&["hello!"], false).is_err());
        assert!(put(&["hell"], true).is_err());
        assert!(put(&["hell"], false).is_err());
        let nothing = Outbox::default().put("x".into(), true, &mut Framing::Nothing);
        assert!(nothing.is_err());
    }

    #[test]
    fn a_head_without_content_stays_and_content_comes_back() {
        let mut outbox = Outbox::default();
        outbox.begin(&request(&[]), None, &Framing::Nothing);
        let head = written(&mut outbox, 9);
        assert_eq!(outbox.head(), head.as_bytes());
        let mut framing = Framing::Length(5);
        outbox.begin(&request(&[]), None, &framing);
        outbox.put("hel".into(), false, &mut framing).unwrap();
        assert_eq!(outbox.take_back(), ["hel"]);
        assert!(outbox.is_empty());
    }
}
