//! What a connection does beside decisions, when it is made and about twice a second: it learns the
//! hash key, the size of the fleet and whether operators said anything new, and charges what was
//! admitted while the store was away.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use redis::aio::MultiplexedConnection;

use super::link::{Failure, Link, kind_of, learn_key};
use super::{Shared, overrides};
use crate::limit::Charge;
use crate::store::batch::{self, Call, Group, Operation, Reply};
use crate::store::recovery::{Greeting, Heartbeat, ProcessName};
use crate::store::{ServerTrouble, StoreError};

/// Keys charged in one call for what was admitted meanwhile.
const OWED_KEYS: usize = 64;
/// Such calls between requests, which wait for it.
const OWED_CALLS: usize = 2;
/// How long one that says nothing is counted, microseconds.
const BEAT_LASTS_US: u64 = 5_000_000;

/// What a new connection must do before requests are let at the store: whoever may read may yet be
/// unable to decide, and no client should be the one to find out.
pub(super) async fn begin(link: &mut Link, shared: &Arc<Shared>) -> Result<(), StoreError> {
    learn_key(link.connection(), shared).await?;
    try_script(link, shared).await?;
    overrides::learn(link.connection(), shared).await?;
    beat(link.connection(), shared).await
}

/// What the maintenance found.
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
    let connection = link.connection();
    let (mut other, mut third) = (connection.clone(), connection.clone());
    let (was_there, (), ()) = tokio::try_join!(
        learn_key(&mut other, shared),
        overrides::refresh(connection, shared),
        beat(&mut third, shared),
    )?;
    shared.journal.ripen(shared.clock.now_us());
    let owes = pay_back(link, shared, OWED_CALLS).await?;
    Ok(Kept { was_there, owes })
}

/// Runs the script over nothing: that a server answers a read says little of its scripts.
pub(super) async fn try_script(link: &mut Link, shared: &Shared) -> Result<(), StoreError> {
    run(link, shared, std::iter::empty()).await.map(|_| ())
}

/// Says that this process is there, twice a second whatever the number of its workers, and hears
/// of the others and of the store's memory.
pub(super) async fn beat(
    connection: &mut MultiplexedConnection,
    shared: &Shared,
) -> Result<(), StoreError> {
    let now_us = shared.clock.now_us();
    let due_us = shared.beat_at_us.load(Ordering::Relaxed);
    let next_us = now_us + shared.recovery.beat_every_us();
    let order = Ordering::Relaxed;
    let takes = || (shared.beat_at_us).compare_exchange(due_us, next_us, order, order);
    if now_us < due_us || takes().is_err() {
        return Ok(());
    }
    let greeting = shared.recovery.greeting(shared.is_clear());
    let command = greet(shared, greeting);
    match command.query_async::<Greeted>(connection).await {
        Ok(greeted) => {
            if let Some(beat) = heartbeat(&greeted) {
                shared.hear(greeting, beat);
            }
        }
        // A server that refuses writes still answers denials: the last count holds.
        Err(error) if error.code().is_some() => {
            tracing::debug!(%error, "redis: the fleet cannot be counted");
        }
        Err(error) => return Err(kind_of(&error)),
    }
    Ok(())
}

/// The answer of `lua/fleet.lua`.
type Greeted = (u32, u32, u64, u64, Vec<u8>, Vec<u8>);

/// All three keys lie in one slot: that of `<prefix>fleet`.
fn greet(shared: &Shared, greeting: Greeting) -> redis::Cmd {
    let prefix = &shared.prefix;
    let began_us = greeting.began_us.map(|us| us.to_string());
    let mut command = redis::cmd("EVAL");
    command
        .arg(include_str!("../../../lua/fleet.lua"))
        .arg(3)
        .arg(format!("{prefix}fleet"))
        .arg(format!("{prefix}fleet.clear{{{prefix}fleet}}"))
        .arg(format!("{prefix}fleet.began{{{prefix}fleet}}"))
        .arg(&shared.name[..])
        .arg(BEAT_LASTS_US)
        .arg(began_us.unwrap_or_default())
        .arg(u8::from(greeting.is_clear))
        .arg(greeting.since_us);
    command
}

fn heartbeat(greeted: &Greeted) -> Option<Heartbeat> {
    let (size, place, now_us, began_us, names, clear) = greeted;
    let names_of = |joined: &[u8]| -> Option<Vec<ProcessName>> {
        let (names, rest) = joined.as_chunks::<16>();
        rest.is_empty().then(|| names.to_vec())
    };
    Some(Heartbeat {
        size: *size,
        place: *place,
        now_us: *now_us,
        began_us: *began_us,
        names: names_of(names)?,
        clear: names_of(clear)?,
    })
}

/// Charges what was admitted here while the store was away, all of it: what is counted twice may
/// pass later, and what is not counted would pass twice. Returns whether it should go on with it
/// soon.
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
        let groups = owed.iter().map(|charge| Group {
            operation: Operation::Settle,
            ..Group::one(charge)
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
fn refusal(bytes: &[u8], owed: &[Charge]) -> Result<Option<ServerTrouble>, StoreError> {
    let mut reply = Reply::read(bytes)?;
    for _ in owed {
        reply.done()?;
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
    let mut result = link
        .ask(&batch::encode(known, prefix, groups.clone(), None))
        .await;
    if result.as_ref().is_err_and(Failure::is_no_script) {
        result = link
            .ask(&batch::encode(Call::Whole, prefix, groups, None))
            .await;
    }
    result.map_err(|failure| failure.0)
}
