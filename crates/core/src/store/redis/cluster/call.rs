//! One call to one node: what is sent, and what the node says.

use std::sync::Arc;
use std::time::Instant;

use redis::aio::MultiplexedConnection;
use redis::{RedisError, Value};
use tokio::time::timeout_at;

use super::map::{Elsewhere, elsewhere};
use crate::clock;
use crate::config::RedisAddress;
use crate::store::StoreError;
use crate::store::batch;
use crate::store::deny_cache::Span;
use crate::store::gather::{Batch, Bundle};
use crate::store::redis::Shared;
use crate::store::redis::link;
use crate::store::redis::slot_lease::SlotLease;

/// Bundles of one slot, to be decided by one script.
#[derive(Debug)]
pub(super) struct Call {
    pub(super) slot: u16,
    pub(super) batch: Batch,
    /// When those who wait for it will have waited long enough.
    pub(super) deadline: Instant,
    /// How often it was sent elsewhere.
    pub(super) hops: u8,
    /// The node is to answer although the slot is not yet its own.
    pub(super) asking: bool,
    /// What operators had said when it was made.
    pub(super) epoch: u64,
}

impl Call {
    /// Whether its keys are several: they may lie on both sides of a migration.
    pub(super) fn has_several_keys(&self) -> bool {
        let mut bundles = self.batch.bundles.iter();
        bundles.len() > 1 || bundles.any(|bundle| bundle.charge().len() > 1)
    }
}

/// Why there is no reply.
#[derive(Debug)]
pub(super) enum Failure {
    /// Another node is to be asked; nothing has run.
    Elsewhere(Elsewhere),
    /// No node serves the slot; nothing has run, and the node may be well.
    SlotDown,
    /// Anything else: the node's trouble.
    Failed(StoreError),
}

/// A reply, and when.
pub(super) type Replied = Result<(Vec<u8>, Span), Failure>;

/// Sends a call once and waits for its reply until the deadline. Only after NOSCRIPT, when nothing
/// has run, it is sent again, with the script's text.
pub(super) async fn send(
    shared: &Arc<Shared>,
    (mut connection, address): (MultiplexedConnection, RedisAddress),
    (call, holder): (&Call, u64),
) -> Replied {
    let clock = shared.clock;
    let sent = clock::now();
    let known = batch::Call::Known(&shared.script_hash);
    let exchange = async {
        let mut result = exchange(shared, &mut connection, known, (call, holder)).await;
        if result
            .as_ref()
            .is_err_and(|error| error.code() == Some("NOSCRIPT"))
        {
            result = exchange(shared, &mut connection, batch::Call::Whole, (call, holder)).await;
        }
        result
    };
    match timeout_at(call.deadline.into(), exchange).await {
        Err(_) => Err(Failure::Failed(StoreError::Timeout)),
        Ok(Err(error)) => Err(failure(&error, &address)),
        Ok(Ok(Value::BulkString(bytes))) => {
            let span = Span {
                sent_us: clock.at_us(sent),
                came_us: clock.now_us(),
            };
            Ok((bytes, span))
        }
        Ok(Ok(_)) => Err(Failure::Failed(StoreError::Garbled)),
    }
}

async fn exchange(
    shared: &Shared,
    connection: &mut MultiplexedConnection,
    script: batch::Call<'_>,
    (call, holder): (&Call, u64),
) -> Result<Value, RedisError> {
    let groups = call.batch.bundles.iter().map(Bundle::group);
    let command = batch::encode(script, (&shared.prefix, holder), groups, None);
    if !call.asking {
        return connection
            .send_packed_command(&command)
            .await?
            .extract_error();
    }
    // Both in one piece: nothing of another call may come between them.
    let mut both = redis::Pipeline::with_capacity(2);
    both.cmd("ASKING").ignore();
    both.add_command(command);
    let mut values = connection.send_packed_commands(&both, 1, 1).await?;
    values.pop().unwrap_or(Value::Nil).extract_error()
}

fn failure(error: &RedisError, asked: &RedisAddress) -> Failure {
    let (code, text) = (
        error.code().unwrap_or_default(),
        error.detail().unwrap_or_default(),
    );
    if let Some(elsewhere) = elsewhere(code, text, asked) {
        return Failure::Elsewhere(elsewhere);
    }
    if code == "CLUSTERDOWN" && text.contains("slot") {
        return Failure::SlotDown;
    }
    Failure::Failed(link::kind_of(error))
}

/// There is no reply.
pub(super) fn fail(batch: Batch, kind: StoreError, holder: &SlotLease) {
    if kind.maybe_charged() {
        holder.fail(batch.bundles, kind);
    } else {
        // What slots are held is said again, but not at once: the node may be away.
        holder.refuse(batch.bundles, kind);
    }
}
