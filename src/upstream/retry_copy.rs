//! What is kept of a request without a body that may have to be sent again.
//!
//! Almost none is, so keeping it must cost next to nothing. Over HTTP/1.1 that is its head as it
//! was written, which its connection has until the next one; only when it is needed is it made a
//! request again.

use http::Request;

use crate::body::RequestBody;

/// The request that was written as this.
pub(super) fn parsed(head: &[u8]) -> Option<Request<RequestBody>> {
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
        let request = parsed(HEAD).unwrap();
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
            assert!(parsed(bytes).is_none());
        }
    }
}
