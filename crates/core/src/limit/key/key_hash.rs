//! Key hashes, also called tags: how the parts of a key become one hash, and its text.

use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;

use super::{HashSecret, Part};

/// The keyed hash of a key's parts: equal for equal parts, and unreadable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct KeyHash(pub [u8; 16]);

impl KeyHash {
    pub const TEXT_LEN: usize = 22;

    /// Writes 22 characters of base64url without padding (RFC 4648, section 5).
    /// Each decision by Redis needs this text. This code takes a third of a general encoder's time.
    pub fn text(&self) -> [u8; Self::TEXT_LEN] {
        const ALPHABET: &[u8; 64] =
            b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
        let character = |bits: u32| ALPHABET[(bits & 63) as usize];
        let [first @ .., last] = self.0;
        let mut text = [0; Self::TEXT_LEN];
        for (three, four) in first.as_chunks().0.iter().zip(text.as_chunks_mut().0) {
            let [high, middle, low]: [u8; 3] = *three;
            let bits = u32::from_be_bytes([0, high, middle, low]);
            *four = [bits >> 18, bits >> 12, bits >> 6, bits].map(character);
        }
        let bits = u32::from(last) << 4;
        text[Self::TEXT_LEN - 2..].copy_from_slice(&[bits >> 6, bits].map(character));
        text
    }

    pub fn parse(text: &str) -> Option<KeyHash> {
        let bytes = URL_SAFE_NO_PAD.decode(text).ok()?;
        Some(KeyHash(bytes.try_into().ok()?))
    }
}

impl fmt::Display for KeyHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.text()
            .iter()
            .try_for_each(|byte| fmt::Write::write_char(f, char::from(*byte)))
    }
}

/// Identities up to this many bytes need no heap. Most are much shorter.
const USUAL: usize = 192;
const HEAD: usize = 17;

/// Collects the parts of a key for its hash: for each part its kind, and the lengths and bytes of
/// its name and value, so that parts cannot run into each other.
///
/// One call hashes all parts. A hasher for single parts would first set up 2,000 bytes of state.
pub(super) struct Identity<'h> {
    hash_key: &'h HashSecret,
    length: usize,
    usual: [u8; USUAL],
    /// The whole identity, once it is longer than `usual`.
    long: Vec<u8>,
}

impl<'h> Identity<'h> {
    pub(super) fn new(hash_key: &'h HashSecret) -> Self {
        Self {
            hash_key,
            length: 0,
            usual: [0; USUAL],
            long: Vec::new(),
        }
    }

    /// Adds a part of a key, as [`super::Key::each_part`] reports it. `None` is a missing part.
    pub(super) fn add(&mut self, part: Option<&Part>, value: &[u8]) {
        match part {
            Some(part) => self.add_kind(part.kind(), part.name().as_bytes(), value),
            None => self.add_kind(0, b"", b""),
        }
    }

    /// Adds a value of a part that has no name.
    pub(super) fn add_text(&mut self, kind: u8, value: &[u8]) {
        self.add_kind(kind, b"", value);
    }

    fn add_kind(&mut self, kind: u8, name: &[u8], value: &[u8]) {
        let needed = HEAD + name.len() + value.len();
        let (at, end) = (self.length, self.length + needed);
        self.length = end;
        if end > USUAL {
            if self.long.is_empty() {
                self.long.extend_from_slice(&self.usual[..at]);
            }
            self.long.resize(end, 0);
        }
        let buffer = match end > USUAL {
            true => &mut self.long[at..],
            false => &mut self.usual[at..end],
        };
        let (head, rest) = buffer.split_at_mut(HEAD);
        head[0] = kind;
        head[1..9].copy_from_slice(&(name.len() as u64).to_le_bytes());
        head[9..].copy_from_slice(&(value.len() as u64).to_le_bytes());
        let (names, values) = rest.split_at_mut(name.len());
        names.copy_from_slice(name);
        values.copy_from_slice(value);
    }

    pub(super) fn hash(&self) -> KeyHash {
        let parts = match self.length > USUAL {
            true => &self.long[..],
            false => &self.usual[..self.length],
        };
        let hash = blake3::keyed_hash(&self.hash_key.0, parts);
        let (tag, _) = hash.as_bytes().split_at(16);
        KeyHash(tag.try_into().unwrap_or_default())
    }
}

/// Characters that lists and logs show of a tag.
pub const SHOWN: usize = 8;
/// Characters that are told apart by `tag=`, at least.
pub const SHORTEST: usize = 4;

/// The first characters of a tag's text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyHashPrefix(String);

impl KeyHashPrefix {
    /// Reads 4 to 22 characters of base64url.
    pub fn parse(text: &str) -> Option<KeyHashPrefix> {
        let is_base64url = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
        let fits = match text.len() {
            SHORTEST..KeyHash::TEXT_LEN => text.bytes().all(is_base64url),
            KeyHash::TEXT_LEN => KeyHash::parse(text).is_some(),
            _ => false,
        };
        fits.then(|| KeyHashPrefix(text.to_owned()))
    }

    pub fn text(&self) -> &str {
        &self.0
    }

    pub fn matches(&self, tag: KeyHash) -> bool {
        tag.text().starts_with(self.0.as_bytes())
    }
}

impl fmt::Display for KeyHashPrefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn the_text_of_a_tag_is_base64url(tag in any::<[u8; 16]>()) {
            prop_assert_eq!(KeyHash(tag).to_string(), URL_SAFE_NO_PAD.encode(tag));
        }

        #[test]
        fn a_prefix_matches_what_begins_with_it(
            tag in any::<[u8; 16]>(),
            other in any::<[u8; 16]>(),
            length in SHORTEST..=KeyHash::TEXT_LEN,
        ) {
            let (tag, other) = (KeyHash(tag), KeyHash(other));
            let text = tag.to_string();
            let prefix = KeyHashPrefix::parse(&text[..length]).unwrap();
            prop_assert!(prefix.matches(tag));
            let begins = other.to_string().starts_with(prefix.text());
            prop_assert_eq!(prefix.matches(other), begins);
        }
    }

    #[test]
    fn what_is_no_hash_is_no_prefix() {
        for text in ["", "abc", "192.0.2.7", "abcd=efg", "AAAAAAAAAAAAAAAAAAAAAB"] {
            assert_eq!(KeyHashPrefix::parse(text), None, "{text}");
        }
        assert!(KeyHashPrefix::parse("abcd").is_some());
    }
}
