//! Keys before they are hashed, in words that the admin reads back: for logs whose operator asked
//! for them in the clear, and for nobody else.

use std::fmt::Write as _;
use std::net::IpAddr;

use super::{Facts, Key, Part};
use crate::limit::Missing;

/// Bytes of a spelled key; one that is longer stays a hash.
const MOST: usize = 512;

impl Key {
    /// What [`Key::derive`] would hash, a `PART=VALUE` for each part and `&` between them, what
    /// could end a word or a line as percent signs; nothing if there is no tag, or where it is
    /// very long.
    #[cold]
    pub fn spell(&self, facts: &Facts<'_>, missing: Missing) -> Option<String> {
        let mut out = String::new();
        let derived = self.each_part(facts, missing, |part, value| {
            if !out.is_empty() {
                out.push('&');
            }
            match part {
                None => out.push_str("missing"),
                Some(Part::Global) => out.push_str("global"),
                Some(part) => word(&mut out, part, value),
            }
        });
        (derived.is_ok() && out.len() <= MOST).then_some(out)
    }
}

impl Part {
    /// The same for a single part that the request carries.
    #[cold]
    pub fn spell(self, facts: &Facts<'_>) -> Option<String> {
        let key = Key {
            parts: vec![super::Alternatives(vec![self])],
        };
        key.spell(facts, Missing::Skip)
    }
}

fn word(out: &mut String, part: &Part, value: &[u8]) {
    escaped(out, part.to_string().as_bytes());
    out.push('=');
    match (part, address(value)) {
        (Part::Ip, Some(ip)) => _ = write!(out, "{ip}"),
        _ => escaped(out, value),
    }
}

/// The address that these bytes are.
fn address(bytes: &[u8]) -> Option<IpAddr> {
    if let Ok(octets) = <[u8; 4]>::try_from(bytes) {
        return Some(IpAddr::from(octets));
    }
    <[u8; 16]>::try_from(bytes).ok().map(IpAddr::from)
}

fn escaped(out: &mut String, bytes: &[u8]) {
    for &byte in bytes.iter().take(MOST + 1) {
        if byte.is_ascii_alphanumeric() || b"-._~:@!$*,;=+".contains(&byte) {
            out.push(char::from(byte));
        } else {
            // Writing into a String cannot fail.
            let _ = write!(out, "%{byte:02X}");
        }
    }
}
