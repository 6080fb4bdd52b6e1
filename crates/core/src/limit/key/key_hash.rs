//! Tags: what a key becomes, and how that is written.

use std::fmt;

/// The hashed identity of a key: equal for equal identities, and unreadable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct KeyHash(pub [u8; 16]);

impl KeyHash {
    /// Characters in its text.
    pub const TEXT_LEN: usize = 22;

    /// Its text: 22 characters of base64url without padding (RFC 4648, section 5), which is ASCII.
    /// By hand: each decision by Redis writes one, in a third of what a general encoder takes.
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
}

impl fmt::Display for KeyHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.text()
            .iter()
            .try_for_each(|byte| fmt::Write::write_char(f, char::from(*byte)))
    }
}

#[cfg(test)]
mod tests {
    use base64::Engine as _;
    use base64::engine::general_purpose::URL_SAFE_NO_PAD;
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn the_text_of_a_tag_is_base64url(tag in any::<[u8; 16]>()) {
            prop_assert_eq!(KeyHash(tag).to_string(), URL_SAFE_NO_PAD.encode(tag));
        }
    }
}
