//! The work of a connection beside decisions, when it is made and about twice a second. It learns
//! the hash key, the size of the fleet and new overrides, and charges debts of an outage.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use redis::Cmd;
use redis::aio::MultiplexedConnection;

use super::link::{RedisLink, ScriptRun, compare_secrets, learn_key};
use super::{RedisShared, known_keys, overrides};
use crate::limit::Charge;
use crate::store::batch::{Group, GroupEnd, Operation, Reply};
use crate::store::recovery::{Greeting, Heartbeat, ProcessName};
use crate::store::{ServerTrouble, StoreError};

/// Keys charged in one call for what is owed.
pub(super) const OWED_KEYS: usize = 64;
/// Such calls in a row; requests wait meanwhile.
pub(super) const OWED_CALLS: usize = 2;
/// How long a process without a heartbeat is counted, microseconds.
const BEAT_LASTS_US: u64 = 5_000_000;
/// How long the key of [`takes_writes`] lasts, milliseconds.
const WRITABLE_MS: u64 = 1000;

/// Prepares a new connection before requests use it. A server that answers reads may yet be unable
/// to decide, and no client should find that out.
pub(super) async fn begin(
    link: &mut RedisLink,
    shared: &Arc<RedisShared>,
) -> Result<(), StoreError> {
    learn_key(link.connection(), shared).await?;
    compare_secrets(link.connection(), shared).await?;
    try_script(link, shared).await?;
    overrides::learn(link.connection(), shared).await?;
    known_keys::learn(link.connection(), shared).await?;
    beat(link.connection(), shared).await
}

#[derive(Clone, Copy, Debug)]
pub(super) struct MaintenanceReport {
    /// The store still held its data; if not, it has been emptied.
    pub(super) was_there: bool,
    /// More is owed, and the store takes it.
    pub(super) owes: bool,
}

/// Asks for what all proxies of the store share, and charges what is owed. It asks for everything
/// at once, since requests wait meanwhile: that takes one round trip.
pub(super) async fn run(
    link: &mut RedisLink,
    shared: &Arc<RedisShared>,
) -> Result<MaintenanceReport, StoreError> {
    let connection = link.connection();
    let (mut second, mut third) = (connection.clone(), connection.clone());
    let (was_there, (), (), ()) = tokio::try_join!(
        learn_key(&mut second, shared),
        overrides::refresh(connection, shared),
        known_keys::refresh(connection, shared),
        beat(&mut third, shared),
    )?;
    shared.journal.ripen(shared.instant());
    let owes = pay_back(link, shared, OWED_CALLS).await?;
    Ok(MaintenanceReport { was_there, owes })
}

/// Runs the script over nothing: a server that answers a read may still refuse scripts.
pub(super) async fn try_script(
    link: &mut RedisLink,
    shared: &RedisShared,
) -> Result<(), StoreError> {
    call(link, shared, std::iter::empty()).await.map(|_| ())
}

/// Whether the server takes writes, tried with a key that has this tag.
pub(super) async fn takes_writes(
    connection: &mut MultiplexedConnection,
    shared: &RedisShared,
    tag: &str,
) -> Result<bool, StoreError> {
    let mut command = redis::cmd("SET");
    let key = format!("{}writable{{{tag}}}", shared.prefix);
    command.arg(key).arg(1).arg("PX").arg(WRITABLE_MS);
    match command.query_async::<()>(connection).await {
        Ok(()) => Ok(true),
        Err(error) if error.code().is_some() => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Sends this process's heartbeat if it is due, and learns of the other processes and of the
/// store's memory. A process sends two a second, whatever the number of its workers.
pub(super) async fn beat(
    connection: &mut MultiplexedConnection,
    shared: &RedisShared,
) -> Result<(), StoreError> {
    let now_us = shared.clock.now_us();
    let due_us = shared.beat_at_us.load(Ordering::Relaxed);
    let next_us = now_us + shared.recovery.beat_every_us();
    let order = Ordering::Relaxed;
    let takes = || (shared.beat_at_us).compare_exchange(due_us, next_us, order, order);
    if now_us < due_us || takes().is_err() {
        return Ok(());
    }
    let greeting = shared
        .recovery
        .greeting(shared.is_troubled(), shared.owes());
    let command = greet(shared, greeting);
    match command.query_async::<GreetingReply>(connection).await {
        Ok(reply) => {
            if let Some(beat) = heartbeat(&reply) {
                shared.note_greeting(greeting, beat);
            }
        }
        // A server that refuses writes still answers denials: the last count holds.
        Err(error) if error.code().is_some() => {
            tracing::debug!(%error, "redis: cannot count the proxies that share the store");
        }
        Err(error) => return Err(error.into()),
    }
    Ok(())
}

/// The answer of `lua/fleet.lua`: the fields of [`Heartbeat`] in their order, names joined.
type GreetingReply = (u32, u32, u64, u64, Vec<u8>, Vec<u8>);

/// All three keys lie in one slot: that of `<prefix>fleet`.
fn greet(shared: &RedisShared, greeting: Greeting) -> Cmd {
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

fn heartbeat(reply: &GreetingReply) -> Option<Heartbeat> {
    let (size, place, now_us, began_us, names, clear) = reply;
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

/// Charges what was admitted here while the store was away, even above the limit. Units that are
/// charged twice only delay requests; units that are not charged would be admitted twice. Makes
/// `calls` calls at most, and returns whether more is owed that the store takes.
pub(super) async fn pay_back(
    link: &mut RedisLink,
    shared: &RedisShared,
    calls: usize,
) -> Result<bool, StoreError> {
    for _ in 0..calls {
        let debts = shared.journal.take(OWED_KEYS, shared.instant(), |_| true);
        let owed = &debts.owed;
        if owed.is_empty() {
            return Ok(false);
        }
        let groups = owed.iter().map(|charge| Group {
            operation: Operation::Settle,
            ..Group::one(charge)
        });
        let bytes = call(link, shared, groups).await?;
        let report = read_payment(&bytes, owed, shared)?;
        match report.refusal {
            None => {}
            Some(ServerTrouble::OutOfMemory) => return Ok(false),
            Some(trouble) => return Err(StoreError::Server(trouble)),
        }
        let keys = owed.len();
        tracing::debug!(
            keys,
            "redis: charged the units that were admitted during the outage"
        );
        // A debt that must be asked for again is due at the next call.
        debts.paid(|place| report.is_paid[place]);
    }
    Ok(true)
}

pub(super) struct PaymentReport {
    /// For each debt.
    pub(super) is_paid: Vec<bool>,
    /// Why the server refused to write; `None` if it did not.
    pub(super) refusal: Option<ServerTrouble>,
}

pub(super) fn read_payment(
    bytes: &[u8],
    owed: &[Charge],
    shared: &RedisShared,
) -> Result<PaymentReport, StoreError> {
    let mut reply = Reply::read(bytes)?;
    shared.note_store_clock(reply.at_us);
    let ends: Result<Vec<_>, _> = owed.iter().map(|_| reply.end()).collect();
    Ok(PaymentReport {
        is_paid: ends?
            .into_iter()
            .map(|end| end == GroupEnd::Done(()))
            .collect(),
        refusal: reply.refusal(),
    })
}

/// One call of the script, beside those of the requests.
async fn call<'c>(
    link: &mut RedisLink,
    shared: &RedisShared,
    groups: impl Iterator<Item = Group<'c>> + Clone,
) -> Result<Vec<u8>, StoreError> {
    let run = ScriptRun {
        shared,
        holder: 0,
        asking: false,
    };
    let mut command = Cmd::new();
    let sent = run.send(link.connection(), &mut command, groups);
    Ok(sent.await?)
}
