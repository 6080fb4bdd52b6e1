//! The keys of a shard, in a row.

use std::ops::{Index, IndexMut};

use super::shard::CountEntry;

/// Entries in a piece of a row; half a piece is unused in each shard, on average.
pub(super) const PIECE: usize = 32;

/// The keys of a shard, in pieces of one size. Growing moves no key, and leaves no holes of other
/// sizes in memory. All pieces but the last one are full, and the last is not empty.
#[derive(Debug, Default)]
pub(super) struct EntryRow {
    pieces: Vec<Vec<CountEntry>>,
}

impl EntryRow {
    pub(super) fn len(&self) -> usize {
        let last = self.pieces.last().map_or(PIECE, Vec::len);
        (self.pieces.len() * PIECE + last).saturating_sub(PIECE)
    }

    pub(super) fn push(&mut self, entry: CountEntry) -> usize {
        let place = self.len();
        if place.is_multiple_of(PIECE) {
            // The first piece grows slowly: a store of few keys has a few in each shard.
            let capacity = if place == 0 { 0 } else { PIECE };
            self.pieces.push(Vec::with_capacity(capacity));
        }
        if let Some(last) = self.pieces.last_mut() {
            last.push(entry);
        }
        place
    }

    /// Takes an entry out; the last one moves to its place. There must be one at `place`.
    pub(super) fn swap_remove(&mut self, place: usize) -> CountEntry {
        let tail = self.pieces.last_mut().and_then(Vec::pop);
        let tail = tail.expect("a row with an entry has a last one");
        if self.pieces.last().is_some_and(Vec::is_empty) {
            self.pieces.pop();
        }
        if self.pieces.is_empty() {
            self.pieces = Vec::new();
        }
        if place == self.len() {
            return tail;
        }
        std::mem::replace(&mut self[place], tail)
    }

    /// Keys that there is memory for.
    #[cfg(test)]
    pub(super) fn capacity(&self) -> usize {
        self.pieces.iter().map(Vec::capacity).sum()
    }
}

impl Index<usize> for EntryRow {
    type Output = CountEntry;

    fn index(&self, place: usize) -> &CountEntry {
        &self.pieces[place / PIECE][place % PIECE]
    }
}

impl IndexMut<usize> for EntryRow {
    fn index_mut(&mut self, place: usize) -> &mut CountEntry {
        &mut self.pieces[place / PIECE][place % PIECE]
    }
}
