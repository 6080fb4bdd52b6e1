//! `Accept-Encoding` of requests whose answers are read.

use http::header::{ACCEPT_ENCODING, HeaderMap, HeaderValue};

/// Leaves only the encodings that can be read beside the answer. Without any, the answer must come
/// as it is.
pub(super) fn accept_readable(headers: &mut HeaderMap) {
    let mut kept = String::new();
    let lines = headers.get_all(ACCEPT_ENCODING).iter();
    let items = lines.filter_map(|line| line.to_str().ok());
    for item in items.flat_map(|line| line.split(',')).map(str::trim) {
        let coding = item.split(';').next().unwrap_or_default().trim();
        let mut readable = ["gzip", "deflate", "identity"].into_iter();
        if readable.any(|name| coding.eq_ignore_ascii_case(name)) {
            if !kept.is_empty() {
                kept.push_str(", ");
            }
            kept.push_str(item);
        }
    }
    if kept.is_empty() {
        kept.push_str("identity");
    }
    if let Ok(value) = HeaderValue::try_from(kept) {
        headers.insert(ACCEPT_ENCODING, value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn accepted(lines: &[&'static str]) -> String {
        let mut headers = HeaderMap::new();
        for line in lines {
            headers.append(ACCEPT_ENCODING, HeaderValue::from_static(line));
        }
        accept_readable(&mut headers);
        headers[ACCEPT_ENCODING].to_str().unwrap().to_owned()
    }

    #[test]
    fn only_what_can_be_read_is_accepted() {
        assert_eq!(accepted(&[]), "identity");
        assert_eq!(accepted(&["br, zstd"]), "identity");
        assert_eq!(accepted(&["gzip, deflate, br, zstd"]), "gzip, deflate");
        assert_eq!(accepted(&["GZIP;q=0.5", "br;q=1"]), "GZIP;q=0.5");
        assert_eq!(accepted(&["*"]), "identity");
    }
}
