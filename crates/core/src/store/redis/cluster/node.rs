//! A node as one worker knows it, and one call to it.

use std::sync::Arc;
use std::time::Instant;

use redis::aio::MultiplexedConnection;
use redis::{Cmd, RedisError};
use tokio::sync::oneshot;
use tokio::time::timeout_at;

use super::topology::{NodeConnection, Redirection};
use crate::clock;
use crate::config::RedisAddress;
use crate::store::deny_cache::CallSpan;
use crate::store::gather::{Batch, Bundle};
use crate::store::redis::RedisShared;
use crate::store::redis::health::ServerHealth;
use crate::store::redis::link::ScriptRun;
use crate::store::redis::slot_lease::SlotLease;
use crate::store::{ServerTrouble, StoreError};

/// A node's connection, its health, and the calls that wait for both.
pub(super) struct ClusterNode {
    pub(super) address: RedisAddress,
    pub(super) health: ServerHealth,
    link: Option<LiveLink>,
    /// The number of its connection.
    pub(super) epoch: u32,
    /// A connection is being made.
    pub(super) opening: bool,
    /// Calls that wait for the connection.
    pub(super) parked: Vec<ClusterCall>,
    /// Calls under way.
    pub(super) calls: usize,
    /// Keeps a node that has no slots yet, while slots move to it.
    pub(super) used_at: Instant,
}

struct LiveLink {
    connection: MultiplexedConnection,
    /// The connection ends when this is dropped.
    _keep: oneshot::Sender<()>,
}

impl ClusterNode {
    pub(super) fn new(address: RedisAddress, seed: u64, now: Instant) -> ClusterNode {
        ClusterNode {
            health: ServerHealth::new(Some(address.clone()), seed),
            address,
            link: None,
            epoch: 0,
            opening: false,
            parked: Vec::new(),
            calls: 0,
            used_at: now,
        }
    }

    pub(super) fn is_connected(&self) -> bool {
        self.link.is_some()
    }

    pub(super) fn connection(&self) -> Option<NodeConnection> {
        let link = self.link.as_ref()?;
        Some(NodeConnection {
            connection: link.connection.clone(),
            address: self.address.clone(),
        })
    }

    pub(super) fn wants_connection(&self, now: Instant) -> bool {
        let is_due = self.health.breaker.probe_at().is_none_or(|at| at <= now);
        self.link.is_none() && !self.opening && is_due
    }

    /// Takes a new connection. It should end when the returned receiver resolves.
    pub(super) fn connected(&mut self, connection: MultiplexedConnection) -> oneshot::Receiver<()> {
        let (keep, dropped) = oneshot::channel();
        self.health.breaker.connected();
        self.epoch += 1;
        self.link = Some(LiveLink {
            connection,
            _keep: keep,
        });
        dropped
    }

    pub(super) fn disconnect(&mut self) {
        self.epoch += 1;
        self.link = None;
    }

    /// The node answers a probe. That ends only a trouble with reaching it.
    pub(super) fn probed(&mut self, shared: &RedisShared, now: Instant) {
        let is_away = matches!(
            self.health.trouble(),
            Some(
                StoreError::Refused
                    | StoreError::Lost
                    | StoreError::Timeout
                    | StoreError::Server(ServerTrouble::Cluster | ServerTrouble::Loading)
            )
        );
        if is_away {
            self.health.end_trouble(shared, now);
        }
    }
}

/// Bundles of one slot, to be decided by one script.
#[derive(Debug)]
pub(super) struct ClusterCall {
    pub(super) slot: u16,
    pub(super) batch: Batch,
    /// When its requests have waited long enough.
    pub(super) deadline: Instant,
    /// How often it was sent to another node.
    pub(super) hops: u8,
    /// The node is to answer although the slot is not yet its own.
    pub(super) asking: bool,
    /// The overrides' epoch when the call was made.
    pub(super) epoch: u64,
}

/// Why a call has no reply.
#[derive(Debug)]
pub(super) enum CallError {
    /// Another node must be asked; nothing has run.
    Redirected(Redirection),
    /// No node serves the slot; nothing has run, and the node may be well.
    SlotDown,
    /// Any other trouble of the node.
    Failed(StoreError),
}

#[derive(Debug)]
pub(super) struct CallReply {
    pub(super) bytes: Vec<u8>,
    pub(super) span: CallSpan,
}

impl ClusterCall {
    /// Whether it has several keys, which may lie on both sides of a migration.
    pub(super) fn has_several_keys(&self) -> bool {
        let mut bundles = self.batch.bundles.iter();
        bundles.len() > 1 || bundles.any(|bundle| bundle.charge().len() > 1)
    }

    /// Sends the call once, and waits for its reply until the deadline.
    pub(super) async fn send(
        &self,
        shared: &Arc<RedisShared>,
        mut node: NodeConnection,
        holder: u64,
    ) -> Result<CallReply, CallError> {
        let sent = clock::now();
        let run = ScriptRun {
            shared,
            holder,
            asking: self.asking,
        };
        let mut command = Cmd::new();
        let groups = self.batch.bundles.iter().map(Bundle::group);
        let sending = run.send(&mut node.connection, &mut command, groups);
        let result = timeout_at(self.deadline.into(), sending).await;
        let result = result.map_err(|_| CallError::Failed(StoreError::Timeout))?;
        let bytes = result.map_err(|error| CallError::new(&error, &node.address))?;
        let span = CallSpan {
            sent_us: shared.clock.at_us(sent),
            came_us: shared.clock.now_us(),
        };
        Ok(CallReply { bytes, span })
    }
}

impl CallError {
    fn new(error: &RedisError, asked: &RedisAddress) -> CallError {
        let code = error.code().unwrap_or_default();
        let text = error.detail().unwrap_or_default();
        if let Some(redirection) = Redirection::parse(code, text, asked) {
            return CallError::Redirected(redirection);
        }
        if code == "CLUSTERDOWN" && text.contains("slot") {
            return CallError::SlotDown;
        }
        CallError::Failed(StoreError::from(error))
    }
}

/// Fails the requests of a call without a reply.
pub(super) fn fail(batch: Batch, kind: StoreError, slots: &SlotLease) {
    if kind.maybe_charged() {
        slots.fail(batch.bundles, kind);
    } else {
        // Held slots are reported again, but not at once: the node may be away.
        slots.refuse(batch.bundles, kind);
    }
}
