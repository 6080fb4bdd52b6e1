//! A request as bytes of HTTP/1.1 that wait to be written. The framing follows the real content,
//! not the client's head. No IO.

use std::io::Write as _;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::header::{CONNECTION, CONTENT_LENGTH, HeaderMap, HeaderName, TRANSFER_ENCODING};
use http::{Method, Request, Uri};
use http_body::Body as _;

use crate::body::{BodyError, RequestBody};
use crate::http1::head::has_option;
use crate::http1::write::{announced_trailers, put_chunk_size, put_trailers};
use crate::upstream::deadline::Deadline;
use crate::wire::Outflow;
use tidegate_core::exchange::headers::{PrerenderedHeaders, put_line};

/// The framing of a request's content, and how much of it is still to come.
#[derive(Debug)]
pub(super) enum UploadFraming {
    Nothing,
    Length(u64),
    /// With the names of the trailers that were announced.
    Chunks(Vec<HeaderName>),
}

impl UploadFraming {
    /// The framing that the body needs, whatever the head says.
    pub(super) fn new(request: &Request<RequestBody>) -> UploadFraming {
        let body = request.body();
        if body.is_end_stream() {
            return UploadFraming::Nothing;
        }
        match body.size_hint().exact() {
            Some(length) if !request.headers().contains_key(TRANSFER_ENCODING) => {
                UploadFraming::Length(length)
            }
            _ => {
                let headers = request.headers();
                let mut trailers = announced_trailers(headers);
                // A server that merges them would take the client's value for ours.
                trailers.retain(|name| !headers.contains_key(name));
                UploadFraming::Chunks(trailers)
            }
        }
    }
}

#[derive(Debug, Default)]
pub(super) struct Outbox {
    pub(super) flow: Outflow,
    pub(super) is_touched: bool,
}

impl Outbox {
    /// Begins with the head of a request. False if the head asks to close the connection after it.
    pub(super) fn begin<B>(
        &mut self,
        request: &Request<B>,
        prerendered: Option<&PrerenderedHeaders>,
        framing: &UploadFraming,
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
                // The line keeps its place, and gets the real framing as its value.
                let is_length = name == CONTENT_LENGTH;
                if !framed && is_length == !matches!(framing, UploadFraming::Chunks(_)) {
                    framed = true;
                    put_framing(out, framing);
                }
                continue;
            }
            if name == CONNECTION {
                close |= has_option(value.as_bytes(), b"close");
            }
            put_line(out, name, value.as_bytes());
        }
        let is_announced = !matches!(framing, UploadFraming::Nothing);
        if !framed && (is_announced || has_content_usually(request.method())) {
            put_framing(out, framing);
        }
        if let Some(prerendered) = prerendered {
            out.extend_from_slice(prerendered.as_bytes());
        }
        out.extend_from_slice(b"\r\n");
        !close
    }

    /// Adds a piece of content. Fails if the content has another length than the framing says.
    fn put(
        &mut self,
        data: Bytes,
        is_last: bool,
        framing: &mut UploadFraming,
    ) -> Result<(), BodyError> {
        let length = data.len();
        match framing {
            UploadFraming::Nothing if length > 0 => return Err(BodyError::Broken),
            UploadFraming::Nothing => {}
            UploadFraming::Length(left) => {
                *left = left.checked_sub(length as u64).ok_or(BodyError::Broken)?;
                self.flow.push(data);
                if is_last && *left > 0 {
                    return Err(BodyError::Broken);
                }
            }
            UploadFraming::Chunks(_) => {
                if length > 0 {
                    put_chunk_size(&mut self.flow.flat, length);
                    self.flow.push(data);
                    self.flow.flat.extend_from_slice(b"\r\n");
                }
                if is_last {
                    self.flow.flat.extend_from_slice(b"0\r\n\r\n");
                }
            }
        }
        Ok(())
    }

    /// Ends the content with those trailers that were announced.
    fn put_trailers(
        &mut self,
        trailers: &HeaderMap,
        framing: &UploadFraming,
    ) -> Result<(), BodyError> {
        match framing {
            UploadFraming::Chunks(announced) => {
                put_trailers(&mut self.flow.flat, trailers, announced);
            }
            UploadFraming::Nothing | UploadFraming::Length(0) => {}
            UploadFraming::Length(_) => return Err(BodyError::Broken),
        }
        Ok(())
    }
}

#[derive(Debug)]
pub(super) struct Http1Upload {
    pub(super) body: RequestBody,
    pub(super) framing: UploadFraming,
    pub(super) is_read: bool,
    /// Whether trailers were read. They cannot be put back.
    pub(super) has_trailers: bool,
}

impl Http1Upload {
    /// Moves content into `outbox` until that is full or the body has ended. Pending while the
    /// client sends nothing.
    pub(super) fn fill(
        &mut self,
        outbox: &mut Outbox,
        deadline: &Deadline,
        context: &mut Context<'_>,
    ) -> Poll<Result<(), BodyError>> {
        while !self.is_read && outbox.flow.has_room() {
            let polled = Pin::new(&mut self.body).poll_frame(context);
            deadline.note_upload(polled.is_ready());
            let Some(frame) = ready!(polled).transpose()? else {
                self.is_read = true;
                return Poll::Ready(outbox.put(Bytes::new(), true, &mut self.framing));
            };
            match frame.into_data() {
                Ok(data) => {
                    self.is_read = self.body.is_end_stream();
                    outbox.put(data, self.is_read, &mut self.framing)?;
                }
                Err(frame) => {
                    (self.is_read, self.has_trailers) = (true, true);
                    let trailers = frame.into_trailers().unwrap_or_default();
                    outbox.put_trailers(&trailers, &self.framing)?;
                }
            }
        }
        Poll::Ready(Ok(()))
    }
}

/// Whether servers expect content with this method. A request without any then has the length 0
/// (RFC 9110 section 8.6). HTTP/2 need not say so, and a route may have dropped the content.
fn has_content_usually(method: &Method) -> bool {
    !matches!(
        *method,
        Method::GET
            | Method::HEAD
            | Method::OPTIONS
            | Method::TRACE
            | Method::DELETE
            | Method::CONNECT
    )
}

fn put_framing(out: &mut Vec<u8>, framing: &UploadFraming) {
    match framing {
        UploadFraming::Nothing => out.extend_from_slice(b"content-length: 0\r\n"),
        UploadFraming::Length(length) => {
            let mut digits = itoa::Buffer::new();
            put_line(out, &CONTENT_LENGTH, digits.format(*length).as_bytes());
        }
        UploadFraming::Chunks(_) => out.extend_from_slice(b"transfer-encoding: chunked\r\n"),
    }
}

/// Rebuilds a request without a body from its head as it was written to HTTP/1.1.
///
/// A copy that costs almost nothing: the connection keeps the bytes until its next request, and
/// only a retry parses them.
pub(super) fn parse_request(head: &[u8]) -> Option<Request<RequestBody>> {
    let lines = head.iter().filter(|&&byte| byte == b'\n').count();
    let mut fields = vec![httparse::EMPTY_HEADER; lines];
    let mut parsed = httparse::Request::new(&mut fields);
    if parsed.parse(head).ok()? != httparse::Status::Complete(head.len()) {
        return None;
    }
    let mut request = Request::builder().method(parsed.method?).uri(parsed.path?);
    for field in parsed.headers.iter() {
        request = request.header(field.name, field.value);
    }
    request.body(RequestBody::empty()).ok()
}

/// Writes the target in origin form, or unchanged if it has another form.
fn put_target(out: &mut Vec<u8>, uri: &Uri) {
    match uri.path_and_query() {
        Some(path) if uri.authority().is_none() && path.as_str().starts_with(['/', '*']) => {
            out.extend_from_slice(path.as_str().as_bytes());
        }
        // A write into a vector cannot fail.
        _ => drop(write!(out, "{uri}")),
    }
}

#[cfg(test)]
mod tests {
    use std::io::IoSlice;
    use std::task::Waker;
    use std::time::Duration;

    use http_body::Frame;

    use super::*;
    use crate::body::pipe;
    use crate::clock::Sweep;
    use crate::wire::MAX_PIECES;

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
        while !outbox.flow.is_empty() {
            let mut slices = [IoSlice::new(&[]); MAX_PIECES];
            let count = outbox.flow.slices(&mut slices);
            let next: Vec<u8> = slices[..count]
                .iter()
                .flat_map(|slice| slice.to_vec())
                .collect();
            let length = at_once.min(next.len());
            if let Some(flat) = outbox.flow.single_slice() {
                assert_eq!(flat, next);
            }
            all.extend_from_slice(&next[..length]);
            outbox.flow.advance(length);
        }
        String::from_utf8(all).unwrap()
    }

    #[test]
    fn a_head_says_what_is_sent_and_nothing_else() {
        let length = ("content-length", "7");
        let chunked = ("transfer-encoding", "chunked");
        let chunks = || UploadFraming::Chunks(Vec::new());
        for (lines, framing, want) in [
            (&[][..], UploadFraming::Nothing, ""),
            (&[length], UploadFraming::Nothing, "content-length: 0\r\n"),
            (&[chunked], UploadFraming::Nothing, ""),
            (&[], UploadFraming::Length(7), "content-length: 7\r\n"),
            (
                &[length, length],
                UploadFraming::Length(7),
                "content-length: 7\r\n",
            ),
            (
                &[("content-length", "8")],
                UploadFraming::Length(7),
                "content-length: 7\r\n",
            ),
            (
                &[length, chunked],
                UploadFraming::Length(7),
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
    fn methods_with_content_have_a_length_of_0_without_any() {
        for (method, has_length) in [
            ("POST", true),
            ("PUT", true),
            ("REPORT", true),
            ("GET", false),
            ("DELETE", false),
            ("OPTIONS", false),
        ] {
            let mut request = request(&[]);
            *request.method_mut() = method.parse().unwrap();
            let mut outbox = Outbox::default();
            outbox.begin(&request, None, &UploadFraming::Nothing);
            let head = written(&mut outbox, 999);
            assert_eq!(head.contains("content-length: 0\r\n"), has_length, "{head}");
        }
    }

    #[test]
    fn a_request_that_says_close_is_the_last() {
        for (value, may_follow) in [("close", false), ("te, Close", false), ("te", true)] {
            let request = request(&[("connection", value)]);
            let begun = Outbox::default().begin(&request, None, &UploadFraming::Nothing);
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
            let mut framing = UploadFraming::Chunks(announced_trailers(request.headers()));
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
            let (mut outbox, mut framing) = (Outbox::default(), UploadFraming::Length(10));
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
            let (mut outbox, mut framing) = (Outbox::default(), UploadFraming::Length(5));
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
        let nothing = Outbox::default().put("x".into(), true, &mut UploadFraming::Nothing);
        assert!(nothing.is_err());
    }

    #[test]
    fn a_head_without_content_stays_and_content_comes_back() {
        let mut outbox = Outbox::default();
        outbox.begin(&request(&[]), None, &UploadFraming::Nothing);
        let head = written(&mut outbox, 9);
        assert_eq!(outbox.flow.flat, head.as_bytes());
        let mut framing = UploadFraming::Length(5);
        outbox.begin(&request(&[]), None, &framing);
        outbox.put("hel".into(), false, &mut framing).unwrap();
        assert_eq!(outbox.flow.take_back(), ["hel"]);
        assert!(outbox.flow.is_empty());
    }

    #[test]
    fn a_body_that_was_read_to_its_end_comes_back_whole() {
        let (writer, reader) = pipe(Some(5));
        writer.put("hello".into(), true);
        let mut request = request(&[]).map(|()| RequestBody::piped(reader));
        let (seconds, sweep) = (Duration::from_secs(9), Sweep::new());
        let deadline = Deadline::new(sweep.alarm(), seconds, seconds);
        let mut context = Context::from_waker(Waker::noop());
        for _ in 0..2 {
            let framing = UploadFraming::new(&request);
            assert!(matches!(framing, UploadFraming::Length(5)));
            let mut outbox = Outbox::default();
            let mut upload = Http1Upload {
                body: std::mem::take(request.body_mut()),
                framing,
                is_read: false,
                has_trailers: false,
            };
            let filled = upload.fill(&mut outbox, &deadline, &mut context);
            assert_eq!(filled, Poll::Ready(Ok(())));
            assert!(upload.is_read);
            let taken = outbox.flow.take_back();
            upload.body.put_back(taken.into_iter().map(Frame::data));
            *request.body_mut() = upload.body;
        }
    }

    const HEAD: &[u8] = b"PUT /a?b=%20c HTTP/1.1\r\nhost: x\r\na: 1\r\na: \xff\r\nempty:\r\n\r\n";

    #[test]
    fn what_was_written_is_the_request_again() {
        let request = parse_request(HEAD).unwrap();
        assert_eq!(request.method(), "PUT");
        assert_eq!(request.uri(), "/a?b=%20c");
        let values: Vec<_> = request.headers().get_all("a").iter().collect();
        assert_eq!(values, ["1".as_bytes(), b"\xff"]);
        assert_eq!(request.headers()["empty"], "");
        assert_eq!(request.headers().len(), 4);
    }

    #[test]
    fn part_of_a_head_or_more_than_one_is_no_request() {
        for bytes in [&HEAD[..20], &[HEAD, HEAD].concat(), b""] {
            assert!(parse_request(bytes).is_none());
        }
    }
}
