//! How identities become tags.

use super::{HashKey, Part, Tag};

/// The parts of an identity on their way into its hash: for each part its kind, and the lengths
/// and bytes of its name and value, so that parts cannot run into each other.
pub(super) struct Identity(blake3::Hasher);

impl Identity {
    pub(super) fn new(hash_key: &HashKey) -> Self {
        Self(blake3::Hasher::new_keyed(&hash_key.0))
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
        self.0.update(&head).update(name).update(value);
    }

    pub(super) fn tag(&self) -> Tag {
        let mut tag = [0; 16];
        self.0.finalize_xof().fill(&mut tag);
        Tag(tag)
    }
}
