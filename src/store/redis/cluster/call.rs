//! One call to one node: what is sent, what the node says, and who gets which part of it.

use std::sync::Arc;
use std::time::Instant;

use redis::aio::MultiplexedConnection;
use redis::{RedisError, Value};
use tokio::time::timeout_at;

use super::Shared;
use super::map::{Elsewhere, elsewhere};
use crate::clock;
use crate::config::RedisAddress;
use crate::store::batch::{self, Deed, Outcome, Reply};
use crate::store::deny_cache::Span;
use crate::store::gather::{Batch, Bundle};
use crate::store::known::Known;
use crate::store::redis::holder::Holder;
use crate::store::redis::link;
use crate::store::{ServerTrouble, StoreError};

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
        bundles.len() > 1 || bundles.any(|bundle| bundle.charge.len() > 1)
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
    let clock = shared.redis.clock;
    let sent = clock::now();
    let known = batch::Call::Known(&shared.redis.script_hash);
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
    let command = batch::encode(script, (&shared.redis.prefix, holder), groups, None);
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

/// What a reply says of its node.
#[derive(Debug, Default)]
pub(super) struct Told {
    /// Something was written.
    pub(super) wrote: bool,
    /// Why the node refused to write, or that its reply cannot be read.
    pub(super) trouble: Option<StoreError>,
    /// Keys that held something not ours and were begun anew.
    pub(super) begun_anew: u16,
    /// How far the node's clock is ahead of ours, at least and at most, microseconds: it was read
    /// at some time between the call and its answer.
    pub(super) lead_us: Option<(i64, i64)>,
}

/// What comes of a group that asks for nothing.
const NOTHING: Outcome = Outcome {
    granted: 0,
    allowed: None,
    denied: None,
};

/// Hands out a reply's decisions, in the order of the batch.
pub(super) fn hand_out(
    batch: Batch,
    (bytes, span): (&[u8], Span),
    known: Option<&Known>,
    holder: &Holder,
) -> Told {
    let mut told = Told::default();
    let mut reply = match Reply::read(bytes) {
        Ok(reply) => reply,
        Err(kind) => {
            fail(batch, kind, holder);
            told.trouble = Some(kind);
            return told;
        }
    };
    told.begun_anew = reply.begun_anew;
    let us = |us: u64| i64::try_from(us).unwrap_or_default();
    told.lead_us = Some((
        us(reply.at_us) - us(span.came_us),
        us(reply.at_us) - us(span.sent_us),
    ));
    let mut refused = Vec::new();
    let mut rest = batch.bundles.into_iter();
    while let Some(bundle) = rest.next() {
        let done = match bundle.deed {
            Deed::Charge(count) => reply.outcome(&bundle.charge, count),
            Deed::Say => reply.outcome(&bundle.charge, 1),
            Deed::GiveBack | Deed::Settle => reply.done().map(|_| Some(NOTHING)),
        };
        match done {
            Ok(Some(outcome)) => {
                let costs = bundle.charge.iter().any(|item| item.cost > 0);
                told.wrote |= outcome.granted > 0 && costs;
                if let Some(known) = known {
                    keep_what_is_ahead(&bundle, &outcome, span, known);
                }
                if bundle.count() > 0 {
                    holder.answer(bundle, &outcome, |_, _| {});
                } else {
                    holder.said(&bundle);
                }
            }
            Ok(None) => refused.push(bundle),
            Err(kind) => {
                holder.fail(std::iter::once(bundle).chain(rest), kind);
                told.trouble = Some(kind);
                return told;
            }
        }
    }
    told.trouble = reply.refusal().map(StoreError::Server);
    let kind = told
        .trouble
        .unwrap_or(StoreError::Server(ServerTrouble::Other));
    holder.refuse(refused, kind);
    told
}

/// There is no reply.
pub(super) fn fail(batch: Batch, kind: StoreError, holder: &Holder) {
    if kind.maybe_charged() {
        holder.fail(batch.bundles, kind);
    } else {
        // What slots are held is said again, but not at once: the node may be away.
        holder.refuse(batch.bundles, kind);
    }
}

/// Units that were taken ahead are this worker's to spend.
fn keep_what_is_ahead(bundle: &Bundle, outcome: &Outcome, span: Span, known: &Known) {
    if bundle.count() > 0 && bundle.charge.iter().any(|item| item.limit.lease_us > 0) {
        let (asked, count) = (bundle.asked(), bundle.count());
        let times = (span.sent_us, span.came_us);
        let mut known = known.lock();
        (known.leases).note(&bundle.charge, asked, (outcome, count), times);
    }
}
