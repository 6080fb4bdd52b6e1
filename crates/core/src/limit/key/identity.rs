//! How identities become tags.

use super::{HashSecret, KeyHash, Part};

/// Bytes of an identity that need nothing of the heap: most are much shorter.
const USUAL: usize = 192;
/// Bytes before a part's name and value.
const HEAD: usize = 17;

/// The parts of an identity on their way into its hash: for each part its kind, and the lengths
/// and bytes of its name and value, so that parts cannot run into each other.
///
/// They are gathered first and hashed at once: a hasher that takes them one by one has a state of
/// two thousand bytes to set up.
pub(super) struct Identity<'h> {
    hash_key: &'h HashSecret,
    length: usize,
    usual: [u8; USUAL],
    /// All of it, once it is longer than usual.
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

    pub(super) fn add(&mut self, part: &Part, value: &[u8]) {
        self.add_kind(part.kind(), part.name().as_bytes(), value);
    }

    /// What `Key::each_part` tells.
    pub(super) fn add_part(&mut self, part: Option<&Part>, value: &[u8]) {
        match part {
            Some(part) => self.add(part, value),
            None => self.add_missing(),
        }
    }

    /// A value of a part that has no name.
    pub(super) fn add_text(&mut self, kind: u8, value: &[u8]) {
        self.add_kind(kind, b"", value);
    }

    pub(super) fn add_missing(&mut self) {
        self.add_kind(0, b"", b"");
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
        let room = match end > USUAL {
            true => &mut self.long[at..],
            false => &mut self.usual[at..end],
        };
        let (head, rest) = room.split_at_mut(HEAD);
        head[0] = kind;
        head[1..9].copy_from_slice(&(name.len() as u64).to_le_bytes());
        head[9..].copy_from_slice(&(value.len() as u64).to_le_bytes());
        let (names, values) = rest.split_at_mut(name.len());
        names.copy_from_slice(name);
        values.copy_from_slice(value);
    }

    pub(super) fn tag(&self) -> KeyHash {
        let parts = match self.length > USUAL {
            true => &self.long[..],
            false => &self.usual[..self.length],
        };
        let hash = blake3::keyed_hash(&self.hash_key.0, parts);
        let (tag, _) = hash.as_bytes().split_at(16);
        KeyHash(tag.try_into().unwrap_or_default())
    }
}
