//! The keys of a shard in a row that grows without moving any of them: in pieces of one size, which
//! leave no holes of other sizes behind in memory.

use std::ops::{Index, IndexMut};

use super::shard::Entry;

/// Keys in a piece; half of one is unused in each shard, on average.
pub(super) const PIECE: usize = 32;

/// All pieces but the last one are full, and that one is not empty.
#[derive(Debug, Default)]
pub(super) struct Rows {
    pieces: Vec<Vec<Entry>>,
}

impl Rows {
    pub(super) fn len(&self) -> usize {
        let last = self.pieces.last().map_or(PIECE, Vec::len);
        (self.pieces.len() * PIECE + last).saturating_sub(PIECE)
    }

    /// Adds one; where it is.
    pub(super) fn push(&mut self, entry: Entry) -> usize {
        let place = self.len();
        match self.pieces.last_mut() {
            Some(last) if last.len() < PIECE => last.push(entry),
            _ => {
                // The first one grows by and by: a store of few keys has a few in each shard.
                let mut piece = match self.pieces.len() {
                    0 => Vec::new(),
                    _ => Vec::with_capacity(PIECE),
                };
                piece.push(entry);
                self.pieces.push(piece);
            }
        }
        place
    }

    /// Takes one out; the last one takes its place. There must be one there.
    pub(super) fn swap_remove(&mut self, place: usize) -> Entry {
        let last = self.pieces.len() - 1;
        let tail = &mut self.pieces[last];
        if place / PIECE == last {
            let entry = tail.swap_remove(place % PIECE);
            self.give_back();
            return entry;
        }
        let moved = tail.pop().expect("the last piece is not empty");
        self.give_back();
        std::mem::replace(&mut self[place], moved)
    }

    fn give_back(&mut self) {
        if self.pieces.last().is_some_and(Vec::is_empty) {
            self.pieces.pop();
        }
        if self.pieces.is_empty() {
            self.pieces = Vec::new();
        }
    }

    /// Keys that there is memory for.
    #[cfg(test)]
    pub(super) fn capacity(&self) -> usize {
        self.pieces.iter().map(Vec::capacity).sum()
    }
}

impl Index<usize> for Rows {
    type Output = Entry;

    fn index(&self, place: usize) -> &Entry {
        &self.pieces[place / PIECE][place % PIECE]
    }
}

impl IndexMut<usize> for Rows {
    fn index_mut(&mut self, place: usize) -> &mut Entry {
        &mut self.pieces[place / PIECE][place % PIECE]
    }
}
