//! What every connection of one worker shares.

use std::net::IpAddr;
use std::sync::Arc;

use arc_swap::ArcSwap;
use tokio::sync::Semaphore;

use super::active_config::ActiveConfig;
use super::connections_per_ip::ConnectionsPerIp;
use super::drain::{Drain, Open};
use super::worker_set::Position;
use crate::clock::Sweep;

pub(super) struct Worker {
    pub(super) serving: Arc<ArcSwap<ActiveConfig>>,
    pub(super) sweep: Sweep,
    pub(super) drain: Arc<Drain>,
    pub(super) connections: Arc<Semaphore>,
    pub(super) per_ip: Arc<ConnectionsPerIp>,
    pub(super) position: Position,
}

impl Worker {
    /// Counts a connection among those of its address. False if that address has as many as it may
    /// have; a trusted proxy may have any number.
    pub(super) fn permit(&self, open: &mut Open, ip: IpAddr) -> bool {
        let serving = self.serving.load();
        let Some(most) = serving.settings.max_connections_per_ip else {
            return true;
        };
        if serving.proxy.trusts(ip) {
            return true;
        }
        let permit = self.per_ip.take(ip, most);
        let has_one = permit.is_some();
        if !has_one {
            tracing::debug!(%ip, "as many connections as one address may have");
        }
        open.hold_permit(permit);
        has_one
    }
}
