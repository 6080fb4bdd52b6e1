//! The end of a response on a stream whose content ended before its end.
//!
//! A reset throws away the frames of its stream that the library has not written, head included.
//! So an empty piece of content is handed over first: the library drops its bytes as soon as they
//! and everything before them are on their way. The stream is reset a moment later: curl 7.88
//! throws away a head that it reads together with the reset (1 to 3 of 20 answers).

use std::error::Error;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use futures_util::task::AtomicWaker;
use h2::Reason;
use hyper::body::Bytes;

use crate::clock::{Alarm, Sweep};
use crate::upstream::UpstreamError;

/// Between the last bytes of the answer and the reset.
const PAUSE: Duration = Duration::from_millis(20);

/// Waits until the mark is written, and for the pause.
#[derive(Debug)]
pub(super) struct PendingReset {
    written: Arc<MarkState>,
    pause: Arc<Alarm>,
    is_pausing: bool,
    error: Option<TruncatedBody>,
}

#[derive(Debug, Default)]
struct MarkState {
    is_written: AtomicBool,
    waker: AtomicWaker,
}

/// Owns the bytes of the mark, of which there are none.
struct WriteMark(Arc<MarkState>);

impl PendingReset {
    /// Returns the mark to hand over, too.
    pub(super) fn begin(error: TruncatedBody, sweep: &Sweep) -> (PendingReset, Bytes) {
        let written = Arc::new(MarkState::default());
        let mark = Bytes::from_owner(WriteMark(Arc::clone(&written)));
        let error = Some(error);
        let reset = PendingReset {
            written,
            pause: sweep.alarm(),
            is_pausing: false,
            error,
        };
        (reset, mark)
    }

    /// Ready a moment after the library has written the mark, or thrown it away with its stream.
    pub(super) fn poll_written(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Option<TruncatedBody>> {
        self.written.waker.register(context.waker());
        if !self.written.is_written.load(Ordering::Acquire) {
            return Poll::Pending;
        }
        if !std::mem::replace(&mut self.is_pausing, true) {
            self.pause.arm(PAUSE);
        }
        ready!(self.pause.poll(context));
        Poll::Ready(self.error.take())
    }
}

impl AsRef<[u8]> for WriteMark {
    fn as_ref(&self) -> &[u8] {
        &[]
    }
}

impl Drop for WriteMark {
    fn drop(&mut self) {
        self.0.is_written.store(true, Ordering::Release);
        self.0.waker.wake();
    }
}

/// The upstream's answer has ended before its end. Its source is the reason that the server gave,
/// with which the library resets the client's stream, unless that says that all is well.
#[derive(Debug)]
pub(super) struct TruncatedBody(Option<h2::Error>);

impl TruncatedBody {
    pub(super) fn of(error: &UpstreamError) -> TruncatedBody {
        let mut cause = error.source();
        while let Some(inner) = cause {
            if let Some(error) = inner.downcast_ref::<h2::Error>() {
                let reason = error.reason().filter(|&reason| reason != Reason::NO_ERROR);
                return TruncatedBody(reason.map(h2::Error::from));
            }
            cause = inner.source();
        }
        TruncatedBody(None)
    }
}

impl fmt::Display for TruncatedBody {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the upstream's answer ended before its end")
    }
}

impl Error for TruncatedBody {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.0.as_ref().map(|error| error as _)
    }
}
