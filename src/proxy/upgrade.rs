//! Tunnels after `101 Switching Protocols`: bytes pass both ways unread, also those that a side
//! sent ahead of the switch.
//!
//! After any other answer [`super::headers::close_after`] ends the client's connection, so that
//! bytes that were sent ahead are never read as a request.

use std::io;
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use futures_util::future::{Either, select};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, copy, split};
use tokio::time::timeout;

use crate::telemetry::panics::lock;
use crate::upstream::body::UpstreamBody;
use crate::upstream::{ServerPermit, TolerantStream};
use tidegate_core::exchange::access_record::AccessRecord;
use tidegate_core::exchange::limiter::HeldSlots;

/// How long one direction stays open after the other has ended.
const HALF_CLOSED: Duration = Duration::from_secs(60);

/// The server's end of a tunnel, before the client's joins it.
#[derive(Clone, Debug)]
pub struct Tunnel {
    upstream: Arc<Mutex<Option<(TolerantStream, ServerPermit)>>>,
    slots: Vec<Arc<HeldSlots>>,
    /// `None` if nothing is recorded of the request.
    record: Option<Arc<TunnelRecord>>,
}

/// The record of the request that the tunnel began with. It is written when the tunnel ends.
#[derive(Debug)]
struct TunnelRecord(Mutex<Box<AccessRecord>>);

impl Drop for TunnelRecord {
    fn drop(&mut self) {
        lock(&self.0).write();
    }
}

impl TunnelRecord {
    fn note_passed(&self, bytes: usize) {
        let mut record = lock(&self.0);
        record.add_bytes(bytes);
        record.add_sent(bytes);
    }
}

/// The client's end of a tunnel, whose bytes are counted for a log.
struct CountedWrites<W> {
    to: W,
    record: Option<Arc<TunnelRecord>>,
}

impl<W: AsyncWrite + Unpin> AsyncWrite for CountedWrites<W> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = ready!(Pin::new(&mut self.to).poll_write(context, bytes))?;
        if let Some(record) = &self.record {
            record.note_passed(written);
        }
        Poll::Ready(Ok(written))
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.to).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.to).poll_shutdown(context)
    }
}

impl Tunnel {
    /// Makes a tunnel of the body of a response with 101.
    pub fn new(mut body: UpstreamBody) -> Tunnel {
        Tunnel {
            upstream: Arc::new(Mutex::new(body.take_tunnel())),
            slots: Vec::new(),
            record: None,
        }
    }

    /// Writes `record` when the tunnel ends.
    pub(super) fn log(&mut self, record: Box<AccessRecord>) {
        self.record = Some(Arc::new(TunnelRecord(Mutex::new(record))));
    }

    /// Notes the bytes of the head that the client was sent.
    pub(crate) fn note_sent(&self, bytes: usize) {
        if let Some(record) = &self.record {
            lock(&record.0).add_sent(bytes);
        }
    }

    pub(super) fn hold(&mut self, slots: Option<Box<HeldSlots>>) {
        self.slots.extend(slots.map(Arc::from));
    }

    /// Passes bytes until both sides have ended, or one fails.
    pub async fn run(self, client: impl AsyncRead + AsyncWrite) {
        let _held = self.slots;
        let upstream = self.upstream.lock().map(|mut upstream| upstream.take());
        let Some((upstream, _permit)) = upstream.unwrap_or_default() else {
            return;
        };
        let (client_reads, to) = split(client);
        let record = self.record;
        let client_writes = CountedWrites { to, record };
        let (upstream_reads, upstream_writes) = split(upstream);
        let mut up = pin!(pass(client_reads, upstream_writes));
        let mut down = pin!(pass(upstream_reads, client_writes));
        // The end of a stream is passed on; an error ends both directions.
        let (ended, other) = match select(&mut up, &mut down).await {
            Either::Left((ended, _)) => (ended, Either::Left(down)),
            Either::Right((ended, _)) => (ended, Either::Right(up)),
        };
        if ended.is_ok() {
            let _ = timeout(HALF_CLOSED, other).await;
        }
    }
}

async fn pass<R: AsyncRead + Unpin, W: AsyncWrite + Unpin>(
    mut from: R,
    mut to: W,
) -> io::Result<()> {
    copy(&mut from, &mut to).await?;
    to.shutdown().await
}
