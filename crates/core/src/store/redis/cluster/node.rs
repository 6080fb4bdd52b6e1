//! A node as one worker knows it: its connection, its breaker, and the calls that wait for both.

use std::sync::Arc;
use std::time::Instant;

use redis::aio::MultiplexedConnection;
use tokio::sync::oneshot;

use super::super::reply::Lead;
use super::call::Call;
use crate::config::RedisAddress;
use crate::store::guard::Guard;
use crate::store::known::Known;
use crate::store::redis::Shared;
use crate::store::{ServerTrouble, StoreError};

pub(super) struct Node {
    pub(super) address: RedisAddress,
    pub(super) guard: Guard,
    line: Option<Line>,
    /// Which of its connections this is.
    pub(super) epoch: u32,
    /// A connection is being made.
    pub(super) opening: bool,
    /// Calls that wait for the connection.
    pub(super) parked: Vec<Call>,
    /// Calls under way.
    pub(super) calls: usize,
    /// Slots that are moving to it are not yet its own.
    pub(super) used_at: Instant,
    trouble: Option<StoreError>,
    /// How far its clock was ahead of ours at the last reply, microseconds.
    lead: Option<Lead>,
}

struct Line {
    connection: MultiplexedConnection,
    /// The connection ends with this.
    _keep: oneshot::Sender<()>,
}

impl Node {
    pub(super) fn new(address: RedisAddress, seed: u64, now: Instant) -> Node {
        Node {
            address,
            guard: Guard::new(seed),
            line: None,
            epoch: 0,
            opening: false,
            parked: Vec::new(),
            calls: 0,
            used_at: now,
            trouble: None,
            lead: None,
        }
    }

    pub(super) fn connection(&self) -> Option<&MultiplexedConnection> {
        self.line.as_ref().map(|line| &line.connection)
    }

    /// Whether a connection should be made now.
    pub(super) fn wants_connection(&self, now: Instant) -> bool {
        let due = self.guard.probe_at().is_none_or(|at| at <= now);
        self.line.is_none() && !self.opening && due
    }

    /// A connection stands; it ends when what is returned says so.
    pub(super) fn connected(
        &mut self,
        connection: MultiplexedConnection,
    ) -> (u32, oneshot::Receiver<()>) {
        let (keep, let_go) = oneshot::channel();
        self.guard.connected();
        self.epoch += 1;
        self.line = Some(Line {
            connection,
            _keep: keep,
        });
        (self.epoch, let_go)
    }

    pub(super) fn disconnect(&mut self) {
        self.epoch += 1;
        self.line = None;
    }

    /// Tells of trouble, once.
    pub(super) fn begin_trouble(&mut self, kind: StoreError, shared: &Arc<Shared>, now: Instant) {
        if self.trouble.replace(kind).is_none() {
            shared.trouble_begins(Some(&self.address), kind, now);
        }
    }

    /// It is well, or no node of the cluster any more.
    pub(super) fn end_trouble(&mut self, shared: &Shared, now: Instant) {
        if self.trouble.take().is_some() {
            shared.trouble_ends(Some(&self.address), now);
        }
    }

    /// It answers a probe: that says nothing of what it may refuse.
    pub(super) fn probed(&mut self, shared: &Shared, now: Instant) {
        let away = matches!(
            self.trouble,
            Some(
                StoreError::Refused
                    | StoreError::Lost
                    | StoreError::Timeout
                    | StoreError::Server(ServerTrouble::Cluster | ServerTrouble::Loading)
            )
        );
        if away {
            self.end_trouble(shared, now);
        }
    }

    /// It answered a call.
    pub(super) fn succeeded(&mut self, wrote: bool, shared: &Shared, now: Instant) {
        self.guard.call_succeeded();
        if wrote || !self.trouble.is_some_and(StoreError::refuses_writes) {
            self.end_trouble(shared, now);
        }
    }

    /// When its clock jumps, what is known of its future is void.
    pub(super) fn note_clock(&mut self, lead: Lead, known: &Known) {
        let before = self.lead.replace(lead);
        if let Some(seconds) = before.and_then(|before| lead.stepped_since(before)) {
            known.clear();
            tracing::warn!(
                seconds = format_args!("{seconds:.3}"),
                node = %self.address,
                "redis: its clock has stepped"
            );
        }
    }
}
