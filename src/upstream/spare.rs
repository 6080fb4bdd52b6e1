//! What is kept of a request without a body that may have to be sent again.
//!
//! Almost none is, so keeping it must cost next to nothing. Over HTTP/1.1 that is its head as it
//! was written: one copy of some bytes, into room that the connection keeps for it; only when it
//! is needed are they made a request again. It must never be another request's.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use http::Request;

use super::body::RequestBody;

/// Room that a connection keeps; for a longer head it is made and given back each time.
const KEPT_BYTES: usize = 8 << 10;

/// The head of the request that a connection of HTTP/1.1 has last sent, if that was to be kept.
#[derive(Debug, Default)]
pub(super) struct Written {
    /// Whether the next write begins with such a head. hyper writes one with a single call, or
    /// offers all of it again.
    expected: AtomicBool,
    head: Mutex<Vec<u8>>,
}

impl Written {
    /// Whether the next write is the head of a request to keep, and nothing else.
    pub(super) fn expect(&self, keep: bool) {
        self.expected.store(keep, Ordering::Relaxed);
    }

    /// These pieces are about to be written.
    #[inline]
    pub(super) fn note<'a>(&self, pieces: impl IntoIterator<Item = &'a [u8]>) {
        if self.expected.load(Ordering::Relaxed) {
            self.expected.store(false, Ordering::Relaxed);
            let mut head = self.head();
            head.clear();
            head.shrink_to(KEPT_BYTES);
            for piece in pieces {
                head.extend_from_slice(piece);
            }
        }
    }

    /// The request that was expected last; nothing if it was not written.
    #[cold]
    pub(super) fn request(&self) -> Option<Request<RequestBody>> {
        let is_written = !self.expected.load(Ordering::Relaxed);
        is_written.then(|| parsed(&self.head())).flatten()
    }

    fn head(&self) -> MutexGuard<'_, Vec<u8>> {
        self.head.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The request that was written as this.
fn parsed(head: &[u8]) -> Option<Request<RequestBody>> {
    let lines = head.iter().filter(|&&byte| byte == b'\n').count();
    let mut fields = vec![httparse::EMPTY_HEADER; lines];
    let mut read = httparse::Request::new(&mut fields);
    if read.parse(head).ok()? != httparse::Status::Complete(head.len()) {
        return None;
    }
    let mut request = Request::builder().method(read.method?).uri(read.path?);
    for field in read.headers.iter() {
        request = request.header(field.name, field.value);
    }
    request.body(RequestBody::empty()).ok()
}

/// The same request once more.
pub(super) fn copy(request: &Request<RequestBody>) -> Request<RequestBody> {
    let mut copy = Request::new(RequestBody::empty());
    *copy.method_mut() = request.method().clone();
    *copy.uri_mut() = request.uri().clone();
    *copy.headers_mut() = request.headers().clone();
    copy
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: &[u8] = b"PUT /a?b=%20c HTTP/1.1\r\nhost: x\r\na: 1\r\na: \xff\r\nempty:\r\n\r\n";

    #[test]
    fn what_was_written_is_the_request_again() {
        let written = Written::default();
        written.expect(true);
        written.note([&HEAD[..9], &HEAD[9..]]);
        written.note([&b"something else"[..]]);
        let request = written.request().unwrap();
        assert_eq!(request.method(), "PUT");
        assert_eq!(request.uri(), "/a?b=%20c");
        let values: Vec<_> = request.headers().get_all("a").iter().collect();
        assert_eq!(values, ["1".as_bytes(), b"\xff"]);
        assert_eq!(request.headers()["empty"], "");
        assert_eq!(request.headers().len(), 4);
    }

    #[test]
    fn another_request_is_never_taken_for_it() {
        let written = Written::default();
        assert!(written.request().is_none());
        written.expect(true);
        written.note([HEAD]);
        written.expect(true);
        assert!(written.request().is_none());
        written.note([&HEAD[..20]]);
        assert!(written.request().is_none());
        written.expect(true);
        written.note([HEAD, HEAD]);
        assert!(written.request().is_none());
    }

    #[test]
    fn long_heads_are_kept_but_not_their_room() {
        let written = Written::default();
        let long = format!("GET / HTTP/1.1\r\nlong: {}\r\n\r\n", "x".repeat(KEPT_BYTES));
        written.expect(true);
        written.note([long.as_bytes()]);
        assert_eq!(
            written.request().unwrap().headers()["long"].len(),
            KEPT_BYTES
        );
        written.expect(true);
        written.note([HEAD]);
        assert!(written.head().capacity() <= KEPT_BYTES);
    }
}
