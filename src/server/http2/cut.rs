//! The end of a response on a stream whose content ended before its end.
//!
//! A reset throws away the frames of its stream that the library has not written, head included.
//! So an empty piece of content is handed over first: the library drops its bytes as soon as they
//! and everything before them are on their way. Then the stream is reset.

use std::error::Error;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};

use futures_util::task::AtomicWaker;
use hyper::body::Bytes;

/// Waits until the mark is written.
#[derive(Debug)]
pub(super) struct Cut(Arc<Written>);

#[derive(Debug, Default)]
struct Written {
    is_written: AtomicBool,
    waker: AtomicWaker,
}

/// Owns the bytes of the mark, of which there are none.
struct Mark(Arc<Written>);

impl Cut {
    /// Returns the mark to hand over, too.
    pub(super) fn begin() -> (Cut, Bytes) {
        let written = Arc::new(Written::default());
        let mark = Bytes::from_owner(Mark(Arc::clone(&written)));
        (Cut(written), mark)
    }

    /// Ready once the library has written the mark, or has thrown it away with its stream.
    pub(super) fn poll_written(&self, context: &mut Context<'_>) -> Poll<()> {
        self.0.waker.register(context.waker());
        match self.0.is_written.load(Ordering::Acquire) {
            true => Poll::Ready(()),
            false => Poll::Pending,
        }
    }
}

impl AsRef<[u8]> for Mark {
    fn as_ref(&self) -> &[u8] {
        &[]
    }
}

impl Drop for Mark {
    fn drop(&mut self) {
        self.0.is_written.store(true, Ordering::Release);
        self.0.waker.wake();
    }
}

/// The upstream's answer has ended before its end. It has no source: the library would reset the
/// client's stream with the upstream's reason, which may be that all is well.
#[derive(Clone, Copy, Debug)]
pub(super) struct Truncated;

impl fmt::Display for Truncated {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the upstream's answer ended before its end")
    }
}

impl Error for Truncated {}
