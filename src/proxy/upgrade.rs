//! Tunnels after `101 Switching Protocols`: bytes pass both ways unread, also those that a side
//! sent ahead of the switch.
//!
//! After any other answer [`super::headers::close_after`] ends the client's connection, so that
//! bytes that were sent ahead are never read as a request.

use std::io;
use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::future::{Either, select};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, copy, split};
use tokio::time::timeout;

use crate::upstream::body::UpstreamBody;
use crate::upstream::{ServerPermit, TolerantStream};
use tidegate_core::exchange::limiter::HeldSlots;

/// How long one direction stays open after the other has ended.
const HALF_CLOSED: Duration = Duration::from_secs(60);

/// The server's end of a tunnel, before the client's joins it.
#[derive(Clone, Debug)]
pub struct Tunnel {
    upstream: Arc<Mutex<Option<(TolerantStream, ServerPermit)>>>,
    slots: Vec<Arc<HeldSlots>>,
}

impl Tunnel {
    /// Makes a tunnel of the body of a response with 101.
    pub fn new(mut body: UpstreamBody) -> Tunnel {
        Tunnel {
            upstream: Arc::new(Mutex::new(body.take_tunnel())),
            slots: Vec::new(),
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
        let (client_reads, client_writes) = split(client);
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
