//! Read buffers for long content, which the connections of a worker share.
//!
//! The buffer that became free last is used first, because it is still in the processor's cache.
//! With a buffer for each connection, busy connections would evict each other's. A buffer is never
//! lent while a piece of its content is in use: it cannot be reclaimed before.

use std::cell::RefCell;

use bytes::BytesMut;

/// The size of one: a head and 64 KiB of content are read at once.
pub(super) const BUFFER_BYTES: usize = 72 << 10;
const MAX_BUFFERS: usize = 8;

thread_local! {
    static BUFFERS: RefCell<Vec<BytesMut>> = const { RefCell::new(Vec::new()) };
}

/// The free buffer that was returned last, or a new one.
pub(super) fn take() -> BytesMut {
    let kept = BUFFERS.try_with(|buffers| {
        let mut buffers = buffers.borrow_mut();
        let free = buffers.iter_mut().rposition(is_free)?;
        Some(buffers.remove(free))
    });
    kept.ok()
        .flatten()
        .unwrap_or_else(|| BytesMut::with_capacity(BUFFER_BYTES))
}

/// Returns a buffer; pieces of it may still be in use.
pub(super) fn put_back(buffer: BytesMut) {
    // Fails on a thread that ends, which needs no buffers.
    let _ = BUFFERS.try_with(|buffers| {
        let mut buffers = buffers.borrow_mut();
        if buffers.len() == MAX_BUFFERS {
            buffers.remove(0);
        }
        buffers.push(buffer);
    });
}

pub(super) fn is_free(buffer: &mut BytesMut) -> bool {
    buffer.is_empty() && buffer.try_reclaim(BUFFER_BYTES)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filled(mut buffer: BytesMut) -> (BytesMut, bytes::Bytes) {
        buffer.resize(BUFFER_BYTES / 2, 1);
        let piece = buffer.split().freeze();
        (buffer, piece)
    }

    #[test]
    fn what_was_free_last_is_lent_first_and_nothing_that_is_in_use() {
        let (first, first_piece) = filled(take());
        let (second, second_piece) = filled(take());
        let place = second_piece.as_ptr();
        put_back(first);
        put_back(second);
        let fresh = take();
        assert!(![first_piece.as_ptr(), place].contains(&fresh.as_ptr()));
        assert_eq!(first_piece[0], 1);
        drop(second_piece);
        let again = take();
        assert_eq!(again.as_ptr(), place);
        assert!(again.is_empty() && again.capacity() >= BUFFER_BYTES);
    }

    #[test]
    fn a_worker_keeps_few() {
        let buffers: Vec<_> = (0..2 * MAX_BUFFERS).map(|_| take()).collect();
        buffers.into_iter().for_each(put_back);
        BUFFERS.with_borrow(|buffers| assert_eq!(buffers.len(), MAX_BUFFERS));
    }
}
