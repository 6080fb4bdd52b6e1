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
use crate::store::{ServerTrouble, StoreError};

/// A node's connection, its health, and the calls that wait for both.
pub(super) struct ClusterNode {
    pub(super) address: RedisAddress,
    pub(super) health: ServerHealth,
    pub(super) connection: Option<NodeConnection>,
    /// The connection ends when this is dropped.
    keep: Option<oneshot::Sender<()>>,
    /// The number of its connection.
    pub(super) epoch: u32,
    pub(super) opening: bool,
    /// Calls that wait for the connection.
    pub(super) parked: Vec<ClusterCall>,
    pub(super) calls: usize,
    /// Keeps a node that has no slots yet, while slots move to it.
    pub(super) used_at: Instant,
}

impl ClusterNode {
    pub(super) fn new(address: RedisAddress, seed: u64, now: Instant) -> ClusterNode {
        ClusterNode {
            health: ServerHealth::new(Some(address.clone()), seed),
            address,
            connection: None,
            keep: None,
            epoch: 0,
            opening: false,
            parked: Vec::new(),
            calls: 0,
            used_at: now,
        }
    }

    pub(super) fn wants_connection(&self, now: Instant) -> bool {
        let is_due = self.health.breaker.probe_at().is_none_or(|at| at <= now);
        self.connection.is_none() && !self.opening && is_due
    }

    /// Takes a new connection. It should end when the returned receiver resolves.
    pub(super) fn connected(&mut self, connection: MultiplexedConnection) -> oneshot::Receiver<()> {
        let (keep, dropped) = oneshot::channel();
        self.health.breaker.connected();
        self.epoch += 1;
        self.connection = Some(NodeConnection {
            connection,
            address: self.address.clone(),
        });
        self.keep = Some(keep);
        dropped
    }

    pub(super) fn disconnect(&mut self) {
        self.epoch += 1;
        (self.connection, self.keep) = (None, None);
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
    pub(super) deadline: Instant,
    /// How often it was sent to another node.
    pub(super) hops: u8,
    /// The node is to answer although the slot is not yet its own.
    pub(super) asking: bool,
    /// Whether it is sent again with other boundaries of calendar windows.
    pub(super) is_repeated: bool,
    pub(super) epoch: u64,
}

/// Why a call has no reply.
#[derive(Debug)]
pub(super) enum CallError {
    /// Another node must be asked; nothing has run.
    Redirected(Redirection),
    /// No node serves the slot; nothing has run, and the node may be well.
    SlotDown,
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
        let span = shared.span_since(sent);
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
