//! The answer that denied a head the last time. While the same numbers are told within the same
//! second it is the same but for its id, and is said again instead of being worded.
//!
//! Kept when it is needed for the second time, and if it has at most `TEXT_BYTES`.

use smallvec::SmallVec;

use crate::limit::headers::Told;

/// Bytes of an answer that is kept, at most.
const TEXT_BYTES: usize = 2048;

/// See the file's head.
#[derive(Debug, Default)]
pub(super) struct Said {
    told: Told,
    /// Of its date.
    second: u64,
    /// Head and body; empty if it is not kept.
    text: Vec<u8>,
    /// Where in `text` its id stands.
    ids: SmallVec<[usize; 2]>,
    /// Bytes of its body.
    body: usize,
}

impl Said {
    /// Writes the answer that tells this at that second and has this id behind `out`, as it was the
    /// last time or else as `word` writes it, which returns the bytes of its body; so does this.
    pub(super) fn put(
        &mut self,
        (told, second, id): (Told, u64, &[u8]),
        out: &mut Vec<u8>,
        word: impl FnOnce(&Told, &mut Vec<u8>) -> usize,
    ) -> usize {
        let start = out.len();
        let same = self.second == second && self.told == told;
        if same && !self.text.is_empty() {
            out.extend_from_slice(&self.text);
            for at in &self.ids {
                out[start + at..start + at + id.len()].copy_from_slice(id);
            }
            return self.body;
        }
        self.text.clear();
        self.body = word(&told, out);
        let text = &out[start..];
        if !same {
            (self.told, self.second) = (told, second);
        } else if text.len() <= TEXT_BYTES {
            self.text.extend_from_slice(text);
            self.ids = memchr::memmem::find_iter(text, id).collect();
        }
        self.body
    }
}

#[cfg(test)]
#[allow(
    clippy::field_reassign_with_default,
    reason = "the other numbers are its own"
)]
mod tests {
    use super::*;

    /// What is said of `wait` at `second`, and whether it had to be worded.
    fn said(said: &mut Said, (wait, second): (u64, u64), id: &str) -> (String, bool) {
        let mut told = Told::default();
        told.wait = Some(wait);
        let (mut out, mut worded) = (b"before ".to_vec(), false);
        let bytes = said.put((told, second, id.as_bytes()), &mut out, |told, out| {
            worded = true;
            out.extend_from_slice(format!("{id}: {:?}, {second} ({id})", told.wait).as_bytes());
            4
        });
        assert_eq!(bytes, 4);
        (String::from_utf8(out).unwrap(), worded)
    }

    #[test]
    fn what_is_said_again_differs_in_its_id_alone() {
        let mut last = Said::default();
        for (told, id, worded) in [
            ((7, 100), "aaaa", true),
            ((7, 100), "bbbb", true),
            ((7, 100), "cccc", false),
            ((7, 100), "dddd", false),
            ((7, 101), "eeee", true),
            ((6, 101), "ffff", true),
            ((6, 101), "gggg", true),
            ((6, 101), "hhhh", false),
            ((7, 100), "iiii", true),
        ] {
            let text = format!("before {id}: Some({}), {} ({id})", told.0, told.1);
            assert_eq!(said(&mut last, told, id), (text, worded));
        }
    }

    #[test]
    fn what_is_long_is_not_kept() {
        let mut last = Said::default();
        for _ in 0..3 {
            let told = (Told::default(), 1, &b"id"[..]);
            let mut out = Vec::new();
            last.put(told, &mut out, |_, out| {
                out.resize(TEXT_BYTES + 1, b'x');
                0
            });
            assert_eq!(out.len(), TEXT_BYTES + 1);
            assert_eq!(last.text.capacity(), 0);
        }
    }
}
