//! The beginning of a tag's text, as logs and lists show it.

use std::fmt;

use super::KeyHash;

/// Characters that lists and logs show of a tag.
pub const SHOWN: usize = 8;
/// Characters that are told apart by `tag=`, at least.
pub const SHORTEST: usize = 4;

/// The first characters of a tag's text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyHashPrefix {
    text: String,
    /// The bits that the characters stand for, from the highest one on, and which bits these are.
    bits: u128,
    mask: u128,
}

impl KeyHashPrefix {
    /// Reads 4 to 22 characters of base64url.
    pub fn parse(text: &str) -> Option<KeyHashPrefix> {
        if !(SHORTEST..=KeyHash::TEXT_LEN).contains(&text.len()) {
            return None;
        }
        if text.len() == KeyHash::TEXT_LEN {
            let whole = KeyHash::parse(text)?;
            return Some(KeyHashPrefix {
                text: text.to_owned(),
                bits: u128::from_be_bytes(whole.0),
                mask: u128::MAX,
            });
        }
        let mut bits = 0;
        for byte in text.bytes() {
            let six = match byte {
                b'A'..=b'Z' => byte - b'A',
                b'a'..=b'z' => byte - b'a' + 26,
                b'0'..=b'9' => byte - b'0' + 52,
                b'-' => 62,
                b'_' => 63,
                _ => return None,
            };
            bits = bits << 6 | u128::from(six);
        }
        let left = 128 - 6 * text.len() as u32;
        Some(KeyHashPrefix {
            text: text.to_owned(),
            bits: bits << left,
            mask: u128::MAX << left,
        })
    }

    /// Its characters.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Whether a tag's text begins with it.
    pub fn matches(&self, tag: KeyHash) -> bool {
        u128::from_be_bytes(tag.0) & self.mask == self.bits
    }
}

impl fmt::Display for KeyHashPrefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
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
