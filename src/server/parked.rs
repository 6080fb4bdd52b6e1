//! A connection of HTTP/1 on which nothing has been asked for a while: its buffers are let go, and
//! the stream alone is kept until the client sends something. A client sees nothing of it.

use std::future::poll_fn;
use std::mem::MaybeUninit;
use std::pin::Pin;
use std::task::Poll;

use bytes::Bytes;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::drain::Drain;
use super::phase::Phase;
use crate::wire::Stream;

/// Bytes that are read at once: most heads whole.
const READ_BYTES: usize = 4096;

/// Waits for the next request, and returns the first bytes of it. Nothing if the connection has
/// ended instead: by its client, since nothing has come for too long, or because the house closes.
pub(super) async fn wait(stream: &mut Stream, phase: &Phase, drain: &Drain) -> Option<Bytes> {
    let read = poll_fn(|context| {
        // What TLS says on its own has its way.
        let _ = Pin::new(&mut *stream).poll_flush(context);
        let mut scratch = [MaybeUninit::uninit(); READ_BYTES];
        let mut buf = ReadBuf::uninit(&mut scratch);
        match Pin::new(&mut *stream).poll_read(context, &mut buf) {
            Poll::Ready(Ok(())) if !buf.filled().is_empty() => {
                Poll::Ready(Some(Bytes::copy_from_slice(buf.filled())))
            }
            Poll::Ready(_) => Poll::Ready(None),
            Poll::Pending if drain.is_closing() => Poll::Ready(None),
            Poll::Pending => phase.alarm.poll(context).map(|()| None),
        }
    })
    .await;
    if read.is_some() {
        phase.begin_head();
    } else {
        phase.expect_room();
        poll_fn(|context| {
            match Pin::new(&mut *stream).poll_shutdown(context) {
                Poll::Ready(_) => Poll::Ready(()),
                // The last word of TLS has no room.
                Poll::Pending => phase.alarm.poll(context),
            }
        })
        .await;
    }
    read
}
