//! Bytes that wait to be written: those that were put together here, and pieces of content between
//! them that are not copied. Pure words.

use std::collections::VecDeque;
use std::io::IoSlice;

use bytes::{Buf, Bytes};

/// Bytes and pieces of content that wait to be written, at most; one more piece may come on top.
const MAX_WAITING_BYTES: usize = 64 << 10;
const MAX_WAITING: usize = 16;
/// Bytes of heads and of what is between chunks, until all of it is written.
const MAX_FLAT_BYTES: usize = 128 << 10;
/// Room that is kept for heads while there is nothing to write.
const KEPT_BYTES: usize = 8 << 10;
/// Pieces that are written at once at most, with what is between them.
pub const MAX_PIECES: usize = 2 * MAX_WAITING + 3;

/// See the file's head.
#[derive(Debug, Default)]
pub struct Outflow {
    /// What is not content, in order.
    pub flat: Vec<u8>,
    /// Of `flat`, what was written.
    written: usize,
    /// Pieces, each with where in `flat` it belongs.
    pieces: VecDeque<(usize, Bytes)>,
    waiting: usize,
}

impl Outflow {
    /// Forgets everything.
    pub fn clear(&mut self) {
        self.flat.clear();
        self.pieces.clear();
        (self.written, self.waiting) = (0, 0);
    }

    /// Nothing will be written for a while: what is kept is bounded.
    pub fn rest(&mut self) {
        self.flat.truncate(KEPT_BYTES);
        self.flat.shrink_to(KEPT_BYTES);
        self.pieces = VecDeque::new();
    }

    pub fn is_empty(&self) -> bool {
        self.written == self.flat.len() && self.pieces.is_empty()
    }

    /// Whether more content may be put in.
    pub fn has_room(&self) -> bool {
        self.waiting < MAX_WAITING_BYTES
            && self.pieces.len() < MAX_WAITING
            && self.flat.len() < MAX_FLAT_BYTES
    }

    /// Adds a piece of content.
    pub fn push(&mut self, data: Bytes) {
        if !data.is_empty() {
            self.waiting += data.len();
            self.pieces.push_back((self.flat.len(), data));
        }
    }

    /// What is to be written next, in order.
    pub fn slices<'a>(&'a self, slices: &mut [IoSlice<'a>; MAX_PIECES]) -> usize {
        let mut count = 0;
        let mut add = |part: &'a [u8]| {
            if !part.is_empty() && count < MAX_PIECES {
                slices[count] = IoSlice::new(part);
                count += 1;
            }
        };
        let mut from = self.written;
        for (at, piece) in &self.pieces {
            add(&self.flat[from..*at]);
            add(piece);
            from = *at;
        }
        add(&self.flat[from..]);
        count
    }

    /// The same where it is one piece.
    pub fn one(&self) -> Option<&[u8]> {
        self.pieces.is_empty().then(|| &self.flat[self.written..])
    }

    /// So many bytes were written.
    pub fn advance(&mut self, mut count: usize) {
        while let Some((at, piece)) = self.pieces.front_mut() {
            let before = *at - self.written;
            if count < before {
                break;
            }
            count -= before;
            self.written = *at;
            let of_piece = count.min(piece.len());
            piece.advance(of_piece);
            self.waiting -= of_piece;
            count -= of_piece;
            if !piece.is_empty() {
                return;
            }
            self.pieces.pop_front();
        }
        self.written += count;
    }

    /// The pieces of content that wait, which is all of it that was put in if nothing was written.
    pub fn take_back(&mut self) -> Vec<Bytes> {
        let pieces = self.pieces.drain(..).map(|(_, piece)| piece);
        let pieces = pieces.collect();
        self.clear();
        pieces
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Everything that waits.
    fn all(outflow: &mut Outflow) -> usize {
        let mut slices = [IoSlice::new(&[]); MAX_PIECES];
        let count = outflow.slices(&mut slices);
        let length = slices[..count].iter().map(|slice| slice.len()).sum();
        outflow.advance(length);
        length
    }

    #[test]
    fn what_waits_and_what_is_kept_is_bounded() {
        let mut outflow = Outflow::default();
        let put = |outflow: &mut Outflow| {
            outflow.flat.extend_from_slice(b"1\r\n");
            outflow.push("x".into());
            outflow.flat.extend_from_slice(b"\r\n");
        };
        let mut count = 0;
        while outflow.has_room() {
            put(&mut outflow);
            count += 1;
        }
        assert_eq!(count, MAX_WAITING);
        assert_eq!(all(&mut outflow), MAX_WAITING * 6);
        assert!(outflow.is_empty() && outflow.has_room());
        // Pieces that leave one at a time do not let what is between them grow for ever.
        for _ in 0..1_000_000 {
            if !outflow.has_room() {
                break;
            }
            put(&mut outflow);
            outflow.advance(5);
        }
        assert!(!outflow.has_room() && outflow.flat.len() <= MAX_FLAT_BYTES + 9);
        outflow.rest();
        assert!(outflow.flat.capacity() <= KEPT_BYTES);
        outflow.clear();
        assert!(outflow.has_room() && outflow.is_empty());
        outflow.push(Bytes::from(vec![b'x'; MAX_WAITING_BYTES]));
        assert!(!outflow.has_room());
    }
}
