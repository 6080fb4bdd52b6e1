//! The id of a request, for logs, the upstream and the client.
//!
//! An id of a trusted proxy is kept. An id of a client is not: it could be that of another request.

use std::cell::Cell;
use std::hash::{BuildHasher, RandomState};

use http::header::{HeaderMap, HeaderName, HeaderValue};

/// Characters of an id from a trusted proxy, at most.
const MAX_ID: usize = 128;
/// Characters of our own.
const OWN_ID: usize = 16;

/// An id. One that the proxy makes takes no heap.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum RequestId {
    Made(Digits),
    Taken(Box<str>),
}

/// Aligned, so that the check for UTF-8 reads whole words.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[repr(align(8))]
pub struct Digits([u8; OWN_ID]);

impl RequestId {
    pub fn as_str(&self) -> &str {
        match self {
            RequestId::Made(Digits(digits)) => str::from_utf8(digits).unwrap_or_default(),
            RequestId::Taken(text) => text,
        }
    }
}

/// Makes an id: 16 hexadecimal digits, different for every request of every process.
pub(super) fn made() -> RequestId {
    // Each worker has its own counter and secret.
    thread_local! {
        static NEXT: Cell<u64> = const { Cell::new(0) };
        static SECRET: RandomState = RandomState::new();
    }
    let number = NEXT.replace(NEXT.get().wrapping_add(1));
    RequestId::Made(Digits(digits(
        SECRET.with(|secret| secret.hash_one(number)),
    )))
}

/// Makes eight hexadecimal digits at a time, each in its own byte.
fn digits(number: u64) -> [u8; OWN_ID] {
    const EACH: u64 = 0x0101_0101_0101_0101;
    let eight = |half: u64| {
        let half = (half | half << 16) & 0x0000_ffff_0000_ffff;
        let half = (half | half << 8) & 0x00ff_00ff_00ff_00ff;
        let half = (half | half << 4) & (15 * EACH);
        let is_letter = ((half + 6 * EACH) >> 4) & EACH;
        let to_letters = u64::from(b'a' - b'0' - 10);
        half + u64::from(b'0') * EACH + is_letter * to_letters
    };
    let both = u128::from(eight(number >> 32)) << 64 | u128::from(eight(number & 0xffff_ffff));
    both.to_be_bytes()
}

/// The id that a trusted proxy has sent, or a new one.
pub(super) fn from_headers(headers: &HeaderMap, name: &HeaderName, trusted: bool) -> RequestId {
    let mut lines = headers.get_all(name).iter().filter(|_| trusted);
    match (lines.next().map(HeaderValue::to_str), lines.next()) {
        (Some(Ok(id)), None) if is_id(id) => RequestId::Taken(id.into()),
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
        let id = from_headers(&headers, &NAME, trusted).as_str().to_owned();
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
    fn digits_are_those_of_the_number() {
        for number in [0, 1, 0x0123_4567_89ab_cdef, 0xfedc_ba98_7654_3210, u64::MAX] {
            assert_eq!(digits(number), *format!("{number:016x}").as_bytes());
        }
    }

    #[test]
    fn no_two_are_alike() {
        let make = || (0..1000).map(|_| made()).collect::<Vec<_>>();
        let mut ids: std::collections::HashSet<RequestId> = make().into_iter().collect();
        ids.extend(std::thread::spawn(make).join().unwrap());
        assert_eq!(ids.len(), 2000);
        assert!(
            ids.iter()
                .all(|id| id.as_str().len() == 16 && is_id(id.as_str()))
        );
    }
}
