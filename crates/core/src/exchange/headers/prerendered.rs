//! Header lines that are rendered once and sent with many requests.

use bytes::Bytes;
use http::header::{HeaderMap, HeaderName, HeaderValue};

/// Header lines that are equal in every request of one client, rendered once as HTTP/1.1. The map
/// of a request that has them contains none of their names.
#[derive(Clone, Debug)]
pub struct PrerenderedHeaders(Bytes);

impl PrerenderedHeaders {
    /// Renders `headers`.
    pub fn new(headers: &HeaderMap) -> PrerenderedHeaders {
        let mut lines = Vec::new();
        for (name, value) in headers {
            put_line(&mut lines, name, value.as_bytes());
        }
        PrerenderedHeaders(lines.into_boxed_slice().into())
    }

    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// Inserts the lines into a map.
    pub fn insert_into(&self, headers: &mut HeaderMap) {
        for line in self.0.split(|&byte| byte == b'\n') {
            let line = line.strip_suffix(b"\r").unwrap_or(line);
            let Some(colon) = line.iter().position(|&byte| byte == b':') else {
                continue;
            };
            let name = HeaderName::from_bytes(&line[..colon]);
            let value = HeaderValue::from_bytes(line[colon + 1..].trim_ascii());
            if let (Ok(name), Ok(value)) = (name, value) {
                headers.insert(name, value);
            }
        }
    }
}

/// Writes one line of a head or of trailers.
#[inline]
pub fn put_line(out: &mut Vec<u8>, name: &HeaderName, value: &[u8]) {
    out.extend_from_slice(name.as_str().as_bytes());
    out.extend_from_slice(b": ");
    out.extend_from_slice(value);
    out.extend_from_slice(b"\r\n");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_worded_is_in_the_map_again_however_often_it_joins() {
        let lines = [("x-real-ip", "2001:db8::1"), ("via", "1.1 a: b")];
        let mut headers = HeaderMap::new();
        for (name, value) in lines {
            headers.insert(name, HeaderValue::from_static(value));
        }
        let prerendered = PrerenderedHeaders::new(&headers);
        let worded: &[u8] = b"x-real-ip: 2001:db8::1\r\nvia: 1.1 a: b\r\n";
        assert_eq!(prerendered.as_bytes(), worded);
        let mut joined = HeaderMap::new();
        joined.insert("host", HeaderValue::from_static("a"));
        prerendered.insert_into(&mut joined);
        prerendered.insert_into(&mut joined);
        headers.insert("host", HeaderValue::from_static("a"));
        assert_eq!(joined, headers);
    }
}
