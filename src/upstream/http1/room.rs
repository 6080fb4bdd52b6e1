//! Room for long content, which a worker's connections lend to each other: what is read with the
//! room that was free last goes into memory that the processor's cache still has. With room of its
//! own for each connection, as many as are busy go through all of the cache.
//!
//! It must never be lent while a piece of what was read into it is somebody's: that is known by
//! the room itself, which cannot be had whole before.

use std::cell::RefCell;

use bytes::BytesMut;

/// Bytes of one: a head and 64 KiB of content are read at once.
pub(super) const BYTES: usize = 72 << 10;
/// Rooms that a worker keeps.
const MOST: usize = 8;

thread_local! {
    static ROOMS: RefCell<Vec<BytesMut>> = const { RefCell::new(Vec::new()) };
}

/// One that is free, the last that was given back before all others.
pub(super) fn take() -> BytesMut {
    let kept = ROOMS.try_with(|rooms| {
        let mut rooms = rooms.borrow_mut();
        let free = rooms.iter_mut().rposition(is_free)?;
        Some(rooms.remove(free))
    });
    kept.ok()
        .flatten()
        .unwrap_or_else(|| BytesMut::with_capacity(BYTES))
}

/// Gives one back; pieces of it may be in use still.
pub(super) fn give(room: BytesMut) {
    // On a thread that ends there is nobody to give it to.
    let _ = ROOMS.try_with(|rooms| {
        let mut rooms = rooms.borrow_mut();
        if rooms.len() == MOST {
            rooms.remove(0);
        }
        rooms.push(room);
    });
}

/// Whether nobody has a piece of it.
pub(super) fn is_free(room: &mut BytesMut) -> bool {
    room.is_empty() && room.try_reclaim(BYTES)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filled(mut room: BytesMut) -> (BytesMut, bytes::Bytes) {
        room.resize(BYTES / 2, 1);
        let piece = room.split().freeze();
        (room, piece)
    }

    #[test]
    fn what_was_free_last_is_lent_first_and_nothing_that_is_in_use() {
        let (first, first_piece) = filled(take());
        let (second, second_piece) = filled(take());
        let place = second_piece.as_ptr();
        give(first);
        give(second);
        let fresh = take();
        assert!(![first_piece.as_ptr(), place].contains(&fresh.as_ptr()));
        assert_eq!(first_piece[0], 1);
        drop(second_piece);
        let again = take();
        assert_eq!(again.as_ptr(), place);
        assert!(again.is_empty() && again.capacity() >= BYTES);
    }

    #[test]
    fn a_worker_keeps_few() {
        let rooms: Vec<_> = (0..2 * MOST).map(|_| take()).collect();
        rooms.into_iter().for_each(give);
        ROOMS.with_borrow(|rooms| assert_eq!(rooms.len(), MOST));
    }
}
