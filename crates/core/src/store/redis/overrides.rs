//! Overrides in Redis, read by one worker for the whole process.
//!
//! Every worker asks for the version together with the hash key. The worker that first sees a new
//! version reads all records in the background, a few hundred at a time: so no decision waits
//! behind them. Then it swaps the table that all workers use. While Redis is away, the last table
//! holds.

#[cfg(test)]
pub(super) mod stepped;

mod bans;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{ErrorKind, RedisError};
use tokio::sync::watch;

use super::{RedisShared, link};
use crate::clock::MonotonicClock;
use crate::limit::{KeyHash, Window};
use crate::store::StoreError;
use crate::store::bans::abbreviate;
use crate::store::overrides::{
    ChangeKind, ClockPair, MAX_CHANGES, MAX_RECORDS, OverrideSnapshot, OverrideTable, Overrides,
    Record, Subject,
};
use bans::SharedBans;

/// The version before anything was read.
const UNREAD: u64 = u64::MAX;
/// Fields read in one step: about 0.1 ms of the server's time.
const STEP: usize = 500;
/// How often reading starts again because something changed meanwhile.
const ATTEMPTS: usize = 5;
/// How long reading may take.
const READ_WITHIN: Duration = Duration::from_secs(10);
/// How long a new connection waits for the first table before it takes requests without it.
const FIRST_WITHIN: Duration = Duration::from_millis(150);
/// Changes that are read first if there are new ones.
const FEW_CHANGES: usize = 10;
/// Changes that are logged one by one; of older ones only the number.
const MAX_LOGGED: usize = 100;

/// The overrides that this process knows; shared by all workers.
pub(super) struct SharedOverrides {
    pub(super) table: OverrideTable,
    version: AtomicU64,
    /// Grows with each change of who may pass.
    epoch: AtomicU64,
    reading: AtomicBool,
    /// The server refuses to show them, and the log says so.
    refused: AtomicBool,
    has_read: watch::Sender<bool>,
    bans: SharedBans,
}

impl SharedOverrides {
    pub(super) fn new(clock: MonotonicClock) -> SharedOverrides {
        SharedOverrides {
            table: OverrideTable::new(clock),
            version: AtomicU64::new(UNREAD),
            epoch: AtomicU64::new(0),
            reading: AtomicBool::new(false),
            refused: AtomicBool::new(false),
            has_read: watch::channel(false).0,
            bans: SharedBans::default(),
        }
    }

    /// Grows when rates or counts of some key are not what they were. Then denials and leases that
    /// were cached before no longer hold.
    pub(super) fn epoch(&self) -> u64 {
        self.epoch.load(Ordering::Acquire)
    }

    fn count_epoch(&self) {
        self.epoch.fetch_add(1, Ordering::Release);
    }

    fn has_ended(&self) -> bool {
        self.table.load().has_ended(self.table.clock.now_us())
    }

    fn sweep(&self) {
        if !self.has_ended() {
            return;
        }
        let now_us = self.table.clock.now_us();
        let table = self.table.load();
        for (limit, tag) in table.ended(now_us).take(MAX_LOGGED) {
            let key = abbreviate(tag);
            match limit {
                Some(limit) => tracing::info!(limit, key, "overrides: an override ended"),
                None => tracing::info!(key, "overrides: a block ended"),
            }
        }
        self.put_without_ended();
        if table.ended(now_us).any(|(limit, _)| limit.is_some()) {
            self.count_epoch();
        }
    }
}

impl RedisShared {
    /// `None`, at the cost of one load, if there are no overrides.
    pub fn overrides(&self) -> Option<OverrideSnapshot> {
        self.overrides.table.snapshot()
    }
}

/// The right to swap the table. One worker of the process has it at a time, until it is dropped.
struct ReadClaim(Arc<RedisShared>);

impl ReadClaim {
    fn try_new(shared: &Arc<RedisShared>) -> Option<ReadClaim> {
        let taken = shared.overrides.reading.swap(true, Ordering::AcqRel);
        (!taken).then(|| ReadClaim(Arc::clone(shared)))
    }
}

impl Drop for ReadClaim {
    fn drop(&mut self) {
        self.0.overrides.reading.store(false, Ordering::Release);
    }
}

/// Starts a task that reads what has changed, or removes what has ended.
pub(super) async fn refresh(
    connection: &MultiplexedConnection,
    shared: &Arc<RedisShared>,
) -> Result<(), StoreError> {
    let overrides = &shared.overrides;
    overrides.bans.set_link(connection);
    let version = match read_version(&mut connection.clone(), shared).await {
        Ok(version) => version,
        Err(error) if link::is_refusal(&error) => {
            warn_refused(shared, &error);
            return Ok(());
        }
        Err(error) => return Err(error.into()),
    };
    let order = Ordering::AcqRel;
    if version == 0
        && overrides
            .version
            .compare_exchange(UNREAD, 0, order, Ordering::Acquire)
            .is_ok()
    {
        // No operator has ever changed anything: there is nothing to read.
        overrides.has_read.send_replace(true);
        return Ok(());
    }
    let is_new = version != overrides.version.load(Ordering::Acquire);
    if !is_new && !overrides.has_ended() {
        return Ok(());
    }
    let Some(claim) = ReadClaim::try_new(shared) else {
        return Ok(());
    };
    if !is_new {
        tokio::task::spawn_blocking(move || claim.0.overrides.sweep());
        return Ok(());
    }
    let mut connection = connection.clone();
    tokio::spawn(async move {
        let shared = &claim.0;
        let reading = read_and_swap(&mut connection, shared);
        if let Ok(Err(error)) = tokio::time::timeout(READ_WITHIN, reading).await {
            warn_refused(shared, &error);
        }
        shared.overrides.has_read.send_replace(true);
    });
    Ok(())
}

/// The same on a new connection. It waits a little for the first table, so that a proxy does not
/// admit blocked clients at its start.
pub(super) async fn learn(
    connection: &MultiplexedConnection,
    shared: &Arc<RedisShared>,
) -> Result<(), StoreError> {
    refresh(connection, shared).await?;
    let mut has_read = shared.overrides.has_read.subscribe();
    if !shared.overrides.refused.load(Ordering::Relaxed) {
        let _ = tokio::time::timeout(FIRST_WITHIN, has_read.wait_for(|read| *read)).await;
    }
    Ok(())
}

/// Warns once; decisions go on without overrides.
fn warn_refused(shared: &RedisShared, error: &RedisError) {
    if !shared.overrides.refused.swap(true, Ordering::Relaxed) {
        let kind = StoreError::from(error).label();
        tracing::warn!(kind, "redis: overrides and blocks cannot be read: {error}");
    }
}

/// The names of the keys that hold the overrides. All lie in one slot of a cluster.
pub(super) struct OverrideKeys {
    pub(super) records: String,
    pub(super) version: String,
    pub(super) changes: String,
    pub(super) ends: String,
    /// Of a key: what stands before its hash.
    bans: String,
}

impl OverrideKeys {
    pub(super) fn new(prefix: &str) -> OverrideKeys {
        OverrideKeys {
            records: format!("{prefix}{{overrides}}"),
            version: format!("{prefix}{{overrides}}version"),
            changes: format!("{prefix}{{overrides}}changes"),
            ends: format!("{prefix}{{overrides}}ends"),
            bans: format!("{prefix}{{overrides}}bans:"),
        }
    }

    /// The denials and bans of a key.
    pub(super) fn bans(&self, tag: KeyHash) -> String {
        format!("{}{tag}", self.bans)
    }
}

async fn read_version(
    connection: &mut MultiplexedConnection,
    shared: &RedisShared,
) -> Result<u64, RedisError> {
    let key = OverrideKeys::new(&shared.prefix).version;
    link::read_version(connection, key).await
}

/// A field of the hash: its name and its text.
type Field = (Vec<u8>, Vec<u8>);

/// The records of one version, as they came.
#[derive(Debug, Default)]
pub(super) struct StoredOverrides {
    version: u64,
    pub(super) clocks: ClockPair,
    fields: HashMap<Vec<u8>, Vec<u8>>,
}

impl StoredOverrides {
    /// Leaves out fields that are no records. Takes some time if there are many: not for a thread
    /// that answers requests.
    pub(super) fn parse(&self) -> Vec<Record> {
        let record = |(field, value): (&Vec<u8>, &Vec<u8>)| {
            let (field, value) = (
                String::from_utf8_lossy(field),
                String::from_utf8_lossy(value),
            );
            Record::of_field(&field, &value)
        };
        self.fields.iter().filter_map(record).collect()
    }
}

pub(super) async fn read_all(
    connection: &mut MultiplexedConnection,
    shared: &RedisShared,
) -> Result<StoredOverrides, RedisError> {
    let keys = OverrideKeys::new(&shared.prefix);
    let mut attempt = 0;
    loop {
        let before = read_version(connection, shared).await?;
        if before == 0 {
            // Nothing was ever changed. Reading no more, this needs no further permissions.
            return Ok(StoredOverrides::default());
        }
        // In a cluster a bare TIME would be another node's.
        let mut clock = redis::cmd("EVAL");
        clock
            .arg("return redis.call('TIME')")
            .arg(1)
            .arg(&keys.records);
        let (seconds, micros): (u64, u64) = clock.query_async(connection).await?;
        let clocks = ClockPair {
            store_us: seconds * 1_000_000 + micros,
            local_us: shared.overrides.table.clock.now_us(),
        };
        let fields = read_fields(connection, &keys.records).await?;
        attempt += 1;
        if attempt < ATTEMPTS && read_version(connection, shared).await? != before {
            continue;
        }
        return Ok(StoredOverrides {
            version: before,
            clocks,
            fields,
        });
    }
}

async fn read_fields(
    connection: &mut MultiplexedConnection,
    name: &str,
) -> Result<HashMap<Vec<u8>, Vec<u8>>, RedisError> {
    let mut all = HashMap::new();
    let mut read = 0;
    let mut cursor = 0_u64;
    loop {
        let mut step = redis::cmd("HSCAN");
        step.arg(name).arg(cursor).arg("COUNT").arg(STEP);
        let (next, some): (u64, Vec<Field>) = step.query_async(connection).await?;
        read += some.len();
        all.extend(some);
        if next == 0 {
            return Ok(all);
        }
        if read > 2 * MAX_RECORDS {
            return Err(RedisError::from((ErrorKind::Client, "too many overrides")));
        }
        cursor = next;
    }
}

pub(super) async fn read_changes(
    connection: &mut MultiplexedConnection,
    shared: &RedisShared,
    most: usize,
) -> Result<Vec<Record>, RedisError> {
    let mut command = redis::cmd("LRANGE");
    command.arg(OverrideKeys::new(&shared.prefix).changes);
    command.arg(0).arg(most - 1);
    let texts: Vec<Vec<u8>> = command.query_async(connection).await?;
    let record = |text: &Vec<u8>| Record::of_change(&String::from_utf8_lossy(text));
    Ok(texts.iter().filter_map(record).collect())
}

/// The changes after a version. Mostly there is one, so this asks for few first.
async fn changes_since(
    connection: &mut MultiplexedConnection,
    shared: &RedisShared,
    known: u64,
) -> Result<Vec<Record>, RedisError> {
    let is_new = |change: &Record| change.terms.version > known;
    let mut new = read_changes(connection, shared, FEW_CHANGES).await?;
    if new.len() == FEW_CHANGES && new.iter().all(is_new) {
        new = read_changes(connection, shared, MAX_CHANGES).await?;
    }
    new.retain(is_new);
    Ok(new)
}

async fn read_and_swap(
    connection: &mut MultiplexedConnection,
    shared: &Arc<RedisShared>,
) -> Result<(), RedisError> {
    let known = shared.overrides.version.load(Ordering::Acquire);
    let stored = read_all(connection, shared).await?;
    let new = match known {
        UNREAD => Vec::new(),
        known => changes_since(connection, shared, known).await?,
    };
    let shared = Arc::clone(shared);
    // On another thread: a hundred thousand records would delay this thread's requests.
    let swap = move || put_in_force(&shared, known, &stored, &new);
    // A panic there is reported by its thread, and the next version is read anew.
    let _ = tokio::task::spawn_blocking(swap).await;
    Ok(())
}

/// Swaps the table for what was read. `new` are the changes since the `known` version.
fn put_in_force(shared: &RedisShared, known: u64, stored: &StoredOverrides, new: &[Record]) {
    let (overrides, records) = (&shared.overrides, stored.parse());
    let table = Overrides::from_records(&records, stored.clocks);
    overrides.sweep();
    forget_reset_keys(shared, new);
    forget_ended_bans(shared, new);
    overrides.put_table(table, stored.version);
    if known == UNREAD || stored.version < known || changes_counts(new) {
        overrides.count_epoch();
    }
    overrides.version.store(stored.version, Ordering::Release);
    overrides.refused.store(false, Ordering::Relaxed);
    log_read(known, stored, records.len());
    if known != UNREAD {
        log_changes(new, records.len());
    }
}

/// Deletes this process's own counts of keys that were reset.
fn forget_reset_keys(shared: &RedisShared, changes: &[Record]) {
    for change in changes {
        let Subject::Reset(_, tag) = &change.subject else {
            continue;
        };
        for suffix in &change.terms.suffixes {
            let budget = Window::budget(suffix, *tag);
            shared.journal.forget(budget);
            if let Some(local) = shared.local.get() {
                local.forget(budget);
            }
        }
    }
}

/// Forgets the bans of keys that an operator has unblocked.
fn forget_ended_bans(shared: &RedisShared, changes: &[Record]) {
    for change in changes {
        if let (Subject::Block(tag), ChangeKind::Remove) = (&change.subject, change.terms.kind) {
            shared.overrides.bans.forget(*tag, change.terms.version);
        }
    }
}

/// Whether rates or counts of some key are not what they were. Blocks and bans change neither, and
/// bans are no changes of operators.
fn changes_counts(changes: &[Record]) -> bool {
    let is_block = |change: &Record| matches!(change.subject, Subject::Block(_));
    changes.len() >= MAX_CHANGES || !changes.iter().all(is_block)
}

/// Logs what is in force after the first reading, and what is wrong with it.
fn log_read(known: u64, stored: &StoredOverrides, in_force: usize) {
    let unread = stored.fields.len() - in_force;
    if unread > 0 {
        tracing::warn!(
            unread,
            "overrides and blocks that cannot be read are left out"
        );
    }
    if known == UNREAD && in_force > 0 {
        tracing::info!(in_force, "overrides and blocks are read");
    }
    if known != UNREAD && stored.version < known {
        tracing::warn!(
            in_force,
            "overrides and blocks are lost: the store was emptied or replaced"
        );
    }
}

/// Logs the changes that are new to this process, once, oldest first.
fn log_changes(new: &[Record], in_force: usize) {
    let unlogged = new.len().saturating_sub(MAX_LOGGED);
    if unlogged > 0 {
        tracing::info!(in_force, "{unlogged} older changes of overrides and blocks");
    }
    new.iter()
        .take(MAX_LOGGED)
        .rev()
        .for_each(Record::log_change);
}
