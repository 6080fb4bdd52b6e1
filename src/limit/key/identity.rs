//! How identities become tags.

use smallvec::SmallVec;

use super::{HashKey, Part, Tag};

/// The parts of an identity on their way into its hash: for each part its kind, and the lengths
/// and bytes of its name and value, so that parts cannot run into each other.
///
/// They are gathered first and hashed at once: a hasher that takes them one by one has a state of
/// two thousand bytes to set up.
pub(super) struct Identity<'h> {
    hash_key: &'h HashKey,
    parts: SmallVec<[u8; 192]>,
}

impl<'h> Identity<'h> {
    pub(super) fn new(hash_key: &'h HashKey) -> Self {
        let parts = SmallVec::new();
        Self { hash_key, parts }
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

    pub(super) fn add_missing(&mut self) {
        self.add_kind(0, b"", b"");
    }

    fn add_kind(&mut self, kind: u8, name: &[u8], value: &[u8]) {
        let mut head = [kind; 17];
        head[1..9].copy_from_slice(&(name.len() as u64).to_le_bytes());
        head[9..].copy_from_slice(&(value.len() as u64).to_le_bytes());
        self.parts.extend_from_slice(&head);
        self.parts.extend_from_slice(name);
        self.parts.extend_from_slice(value);
    }

    pub(super) fn tag(&self) -> Tag {
        let hash = blake3::keyed_hash(&self.hash_key.0, &self.parts);
        let (tag, _) = hash.as_bytes().split_at(16);
        Tag(tag.try_into().unwrap_or_default())
    }
}
