//! Tunnels: what a connection becomes after `101 Switching Protocols`.
//!
//! Bytes pass both ways and are not understood. What either side sent ahead of the switch was read
//! already and comes first. There is a tunnel only if the upstream agreed to one: after
//! any other answer [`super::headers::close_after`] ends the client's connection, so that bytes
//! sent ahead are never read as a request.

use std::io;
use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::future::{Either, select};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, copy, split};
use tokio::time::timeout;

use crate::upstream::body::UpstreamBody;
use crate::upstream::{ServerPermit, TolerantStream};
use tidegate_core::exchange::slots::HeldSlots;

/// How long one direction stays open after the other has ended.
const HALF_CLOSED: Duration = Duration::from_secs(60);

/// The server's end of a tunnel, before the client's joins it.
#[derive(Clone, Debug)]
pub struct Tunnel {
    /// With its place among the upstream's `max_connections`.
    upstream: Arc<Mutex<Option<(TolerantStream, ServerPermit)>>>,
    /// What its request holds of limits, until it has ended.
    slots: Vec<Arc<HeldSlots>>,
}

impl Tunnel {
    /// A tunnel to where the response (101) came from that has this `body`.
    pub fn new(mut body: UpstreamBody) -> Tunnel {
        Tunnel {
            upstream: Arc::new(Mutex::new(body.take_tunnel())),
            slots: Vec::new(),
        }
    }

    /// Holds `slots` until it has ended.
    pub(super) fn hold(&mut self, slots: Option<Box<HeldSlots>>) {
        self.slots.extend(slots.map(Arc::from));
    }

    /// Passes bytes between it and `client` until both sides have ended, or one is broken.
    pub async fn run(self, client: impl AsyncRead + AsyncWrite) {
        let _held = self.slots;
        let upstream = self.upstream.lock().map(|mut upstream| upstream.take());
        let Some((upstream, _seat)) = upstream.unwrap_or_default() else {
            return;
        };
        let (client_reads, client_writes) = split(client);
        let (upstream_reads, upstream_writes) = split(upstream);
        let mut up = pin!(pass(client_reads, upstream_writes));
        let mut down = pin!(pass(upstream_reads, client_writes));
        // An end of stream passes on as such; an error ends both directions.
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
