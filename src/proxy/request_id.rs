//! The id by which one request is known in the log, to its upstream, to its client, and in the
//! answers that the proxy makes itself.
//!
//! A client's own id is never taken: it could be another request's, or a text for whoever reads
//! logs. A trusted proxy's is.

use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};

use http::header::{HeaderMap, HeaderName, HeaderValue};

/// Characters of an id that is taken from a proxy before us, at most.
const MAX_ID: usize = 128;

/// A new one: 16 hexadecimal digits, different for every request of every process.
pub(super) fn made() -> String {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    thread_local! {
        static SECRET: RandomState = RandomState::new();
    }
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    format!("{:016x}", SECRET.with(|secret| secret.hash_one(number)))
}

/// The id that a request has already, or a new one.
pub(super) fn of(headers: &HeaderMap, name: &HeaderName, trusted: bool) -> String {
    let mut lines = headers.get_all(name).iter().filter(|_| trusted);
    match (lines.next().map(HeaderValue::to_str), lines.next()) {
        (Some(Ok(id)), None) if is_id(id) => id.to_owned(),
        _ => made(),
    }
}

fn is_id(text: &str) -> bool {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.:+/=@~".contains(&byte);
    (1..=MAX_ID).contains(&text.len()) && text.bytes().all(fits)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAME: HeaderName = HeaderName::from_static("x-request-id");

    fn taken(values: &[&[u8]], trusted: bool) -> Option<String> {
        let mut headers = HeaderMap::new();
        for value in values {
            headers.append(NAME, HeaderValue::from_bytes(value).unwrap());
        }
        let id = of(&headers, &NAME, trusted);
        values.contains(&id.as_bytes()).then_some(id)
    }

    #[test]
    fn only_a_trusted_proxy_is_taken_at_its_word() {
        assert_eq!(taken(&[b"a-1"], true).as_deref(), Some("a-1"));
        assert_eq!(taken(&[b"a-1"], false), None);
    }

    #[test]
    fn what_is_no_id_is_replaced() {
        let long = [b'a'; MAX_ID + 1];
        let odd: [&[&[u8]]; 6] = [&[], &[b""], &[b"a b"], &[b"a\"b"], &[&long], &[b"\xff"]];
        for values in odd {
            assert_eq!(taken(values, true), None, "{values:?}");
        }
        assert_eq!(taken(&[b"a", b"b"], true), None);
        assert_eq!(taken(&[b"a", b"a"], true), None);
    }

    #[test]
    fn no_two_are_alike() {
        let ids: std::collections::HashSet<String> = (0..1000).map(|_| made()).collect();
        assert_eq!(ids.len(), 1000);
        assert!(ids.iter().all(|id| id.len() == 16 && is_id(id)));
    }
}
