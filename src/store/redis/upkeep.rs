//! What a connection does beside decisions, when it is made and about twice a second: it learns the
//! hash key, the size of the fleet and whether operators said anything new, and charges what was
//! admitted while the store was away.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use redis::Value;
use redis::aio::MultiplexedConnection;

use super::link::{Failure, Link, kind_of, learn_key};
use super::{Shared, people};
use crate::store::batch::{self, Call, Deed, Group, Reply};
use crate::store::journal::Owed;
use crate::store::{ServerTrouble, StoreError};

/// Keys charged in one call for what was admitted meanwhile.
const OWED_KEYS: usize = 64;
/// Such calls between requests, which wait for it.
const OWED_CALLS: usize = 2;
/// How often a process says that it is there, microseconds.
const BEAT_EVERY_US: u64 = 1_000_000;
/// How long one that says nothing is counted, microseconds.
const BEAT_LASTS_US: u64 = 5_000_000;

/// What a new connection must do before requests are let at the store: whoever may read may yet be
/// unable to decide, and no client should be the one to find out.
pub(super) async fn begin(link: &mut Link, shared: &Arc<Shared>) -> Result<(), StoreError> {
    learn_key(link.connection(), shared).await?;
    try_script(link, shared).await?;
    let beside = link.beside();
    people::learn(link.connection(), shared, beside).await?;
    beat(link.connection(), shared).await
}

/// What the upkeep found.
#[derive(Clone, Copy, Debug)]
pub(super) struct Kept {
    /// The store still held what it did; where not, somebody has emptied it.
    pub(super) was_there: bool,
    /// More is owed, and the store takes it.
    pub(super) owes: bool,
}

/// Asks for what all proxies of the store share, and charges what is owed. It asks for everything
/// at once: requests wait meanwhile, and one way to the server and back is as short as it gets.
pub(super) async fn keep_up(link: &mut Link, shared: &Arc<Shared>) -> Result<Kept, StoreError> {
    let beside = link.beside();
    let connection = link.connection();
    let (mut other, mut third) = (connection.clone(), connection.clone());
    let (was_there, (), ()) = tokio::try_join!(
        learn_key(&mut other, shared),
        people::refresh(connection, shared, beside),
        beat(&mut third, shared),
    )?;
    let owes = pay_back(link, shared, OWED_CALLS).await?;
    Ok(Kept { was_there, owes })
}

/// Runs the script over nothing: that a server answers a read says little of its scripts.
pub(super) async fn try_script(link: &mut Link, shared: &Shared) -> Result<(), StoreError> {
    run(link, shared, std::iter::empty()).await.map(|_| ())
}

/// Says that this process is there, once a second whatever the number of its workers, and learns
/// how many others are.
pub(super) async fn beat(
    connection: &mut MultiplexedConnection,
    shared: &Shared,
) -> Result<(), StoreError> {
    if !shared.fleet.is_counted() {
        return Ok(());
    }
    let now_us = shared.clock.now_us();
    let due_us = shared.beat_at_us.load(Ordering::Relaxed);
    let next_us = now_us + BEAT_EVERY_US;
    let order = Ordering::Relaxed;
    let takes = || (shared.beat_at_us).compare_exchange(due_us, next_us, order, order);
    if now_us < due_us || takes().is_err() {
        return Ok(());
    }
    let mut command = redis::cmd("EVAL");
    command
        .arg(include_str!("../../../lua/fleet.lua"))
        .arg(1)
        .arg(format!("{}fleet", shared.prefix))
        .arg(&shared.name[..])
        .arg(BEAT_LASTS_US);
    let counted = command.query_async::<(u32, u32)>(connection);
    match counted.await {
        Ok((size, place)) => shared.fleet.learn(size, place),
        // A server that refuses writes still answers denials: the last count holds.
        Err(error) if error.code().is_some() => {
            tracing::debug!(%error, "redis: the fleet cannot be counted");
        }
        Err(error) => return Err(kind_of(&error)),
    }
    Ok(())
}

/// Charges what was admitted here while the store was away, as much of it as fits. Returns whether
/// it should go on with it soon.
pub(super) async fn pay_back(
    link: &mut Link,
    shared: &Shared,
    calls: usize,
) -> Result<bool, StoreError> {
    for _ in 0..calls {
        let now_us = shared.clock.now_us();
        let debts = shared.journal.take(OWED_KEYS, now_us, |_| true);
        let owed = &debts.owed;
        if owed.is_empty() {
            return Ok(false);
        }
        let groups = owed.iter().map(|owed| Group {
            deed: Deed::Charge(owed.count),
            ..Group::one(&owed.charge)
        });
        let bytes = run(link, shared, groups).await?;
        match refusal(&bytes, owed)? {
            None => {}
            Some(ServerTrouble::OutOfMemory) => return Ok(false),
            Some(trouble) => return Err(StoreError::Server(trouble)),
        }
        let keys = owed.len();
        tracing::debug!(keys, "redis: charged what was admitted meanwhile");
        debts.paid();
    }
    Ok(true)
}

/// Why the server refused to write, if it did.
fn refusal(bytes: &[u8], owed: &[Owed]) -> Result<Option<ServerTrouble>, StoreError> {
    let mut reply = Reply::read(bytes)?;
    for owed in owed {
        reply.outcome(&owed.charge, owed.count)?;
    }
    Ok(reply.refusal())
}

/// One call of the script, beside those of the requests.
async fn run<'c>(
    link: &mut Link,
    shared: &Shared,
    groups: impl Iterator<Item = Group<'c>> + Clone,
) -> Result<Vec<u8>, StoreError> {
    let prefix = (shared.prefix.as_str(), 0);
    let known = Call::Known(&shared.script_hash);
    let mut result = send(link, &batch::encode(known, prefix, groups.clone(), None)).await;
    if result.as_ref().is_err_and(Failure::is_no_script) {
        result = send(link, &batch::encode(Call::Whole, prefix, groups, None)).await;
    }
    match result {
        Ok(Value::BulkString(bytes)) => Ok(bytes),
        Ok(_) => Err(StoreError::Garbled),
        Err(failure) => Err(failure.0),
    }
}

async fn send(link: &mut Link, command: &redis::Cmd) -> Result<Value, Failure> {
    let result = link.connection().send_packed_command(command).await;
    result
        .and_then(Value::extract_error)
        .map_err(|error| Failure::of(&error))
}
