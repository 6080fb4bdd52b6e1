//! What operators say of single keys, read from Redis by one worker for the whole process.
//!
//! Every worker asks for the version together with the hash key; whoever sees a new one first reads
//! all records in the background, a few hundred at a time so that no decision waits behind them,
//! and swaps the table that all workers look at. While Redis is away the last table holds.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use arc_swap::ArcSwap;
use redis::aio::ConnectionLike;
use redis::{Cmd, ErrorKind, RedisError};
use tokio::sync::watch;

use super::Shared;
use super::link::kind_of;
use crate::clock::MonotonicClock;
use crate::limit::{KeyHash, Window};
use crate::store::StoreError;
use crate::store::memory::Memory;
use crate::store::overrides::{
    ClockPair, MAX_CHANGES, MAX_RECORDS, OverrideSnapshot, Overrides, Record, Subject,
};

/// The version before anything was read.
const UNREAD: u64 = u64::MAX;
/// Fields in one step of reading: about 0.1 ms of the server's time.
const STEP: usize = 500;
/// How often reading begins anew because something changed meanwhile.
const ATTEMPTS: usize = 5;
/// How long reading may take.
const READ_WITHIN: Duration = Duration::from_secs(10);
/// How long a connection waits for the first table before it takes requests without.
const FIRST_WITHIN: Duration = Duration::from_millis(150);
/// Changes that are read first where there are new ones.
const FEW_CHANGES: usize = 10;
/// Changes that are told one by one; of more only the number.
const MAX_TOLD: usize = 100;

/// What this process knows; shared by all workers.
pub(super) struct SharedOverrides {
    table: ArcSwap<Overrides>,
    /// Whether there is anything in it: all that the path of a request looks at if not.
    has_any: AtomicBool,
    version: AtomicU64,
    /// One more whenever someone may pass who did not before, or the other way round.
    epoch: AtomicU64,
    reading: AtomicBool,
    refused: AtomicBool,
    has_read: watch::Sender<bool>,
    local: OnceLock<Arc<Memory>>,
    clock: MonotonicClock,
}

impl Default for SharedOverrides {
    fn default() -> SharedOverrides {
        SharedOverrides {
            table: ArcSwap::default(),
            has_any: AtomicBool::new(false),
            version: AtomicU64::new(UNREAD),
            epoch: AtomicU64::new(0),
            reading: AtomicBool::new(false),
            refused: AtomicBool::new(false),
            has_read: watch::channel(false).0,
            local: OnceLock::new(),
            clock: MonotonicClock::start(),
        }
    }
}

impl SharedOverrides {
    /// The table and the time on its clock; `None`, at the cost of one load, if it is empty.
    pub(super) fn snapshot(&self) -> Option<OverrideSnapshot> {
        if !self.has_any.load(Ordering::Relaxed) {
            return None;
        }
        Some(OverrideSnapshot {
            table: self.table.load(),
            now_us: self.clock.now_us(),
        })
    }

    /// Grows when a key's rates or its counts are not what they were: what was concluded from
    /// them (a denial that holds for a while, units taken ahead) no longer follows.
    pub(super) fn epoch(&self) -> u64 {
        self.epoch.load(Ordering::Acquire)
    }

    /// Where counts must be forgotten too when a key is reset.
    pub(super) fn forgets_in(&self, local: &Arc<Memory>) {
        // A second house around the same store would be a mistake of ours; the first stays.
        let _ = self.local.set(Arc::clone(local));
    }

    fn swap(&self, table: Overrides) {
        let has_any = !table.is_empty();
        self.table.store(Arc::new(table));
        self.has_any.store(has_any, Ordering::Relaxed);
        self.epoch.fetch_add(1, Ordering::Release);
    }

    fn has_ended(&self) -> bool {
        self.table.load().has_ended(self.clock.now_us())
    }

    /// Takes out what has ended.
    fn sweep(&self) {
        if !self.has_ended() {
            return;
        }
        let now_us = self.clock.now_us();
        let table = self.table.load();
        for (limit, tag) in table.ended(now_us).take(MAX_TOLD) {
            let key = short(tag);
            match limit {
                Some(limit) => tracing::info!(limit, key, "people: override ended"),
                None => tracing::info!(key, "people: block ended"),
            }
        }
        self.swap(table.without_ended(now_us));
    }
}

/// The right to swap the table, which one of the process has at a time; given back when dropped.
struct Reader(Arc<Shared>);

impl Reader {
    fn claim(shared: &Arc<Shared>) -> Option<Reader> {
        let taken = shared.overrides.reading.swap(true, Ordering::AcqRel);
        (!taken).then(|| Reader(Arc::clone(shared)))
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        self.0.overrides.reading.store(false, Ordering::Release);
    }
}

/// Has what changed or ended read, by a task of its own.
pub(super) async fn refresh(
    connection: &(impl ConnectionLike + Clone + Send + 'static),
    shared: &Arc<Shared>,
) -> Result<(), StoreError> {
    let overrides = &shared.overrides;
    let version = match version(&mut connection.clone(), shared).await {
        Ok(version) => version,
        Err(error) if error.code().is_some_and(|code| code != "LOADING") => {
            refused(shared, &error);
            return Ok(());
        }
        Err(error) => return Err(kind_of(&error)),
    };
    let order = Ordering::AcqRel;
    if version == 0
        && overrides
            .version
            .compare_exchange(UNREAD, 0, order, Ordering::Acquire)
            .is_ok()
    {
        // Nobody has ever said anything: there is nothing to read.
        overrides.has_read.send_replace(true);
        return Ok(());
    }
    let is_new = version != overrides.version.load(Ordering::Acquire);
    if !is_new && !overrides.has_ended() {
        return Ok(());
    }
    let Some(reader) = Reader::claim(shared) else {
        return Ok(());
    };
    if !is_new {
        tokio::task::spawn_blocking(move || reader.0.overrides.sweep());
        return Ok(());
    }
    let mut connection = connection.clone();
    tokio::spawn(async move {
        let shared = &reader.0;
        if let Ok(read) = tokio::time::timeout(READ_WITHIN, read(&mut connection, shared)).await {
            let _ = read.map_err(|error| refused(shared, &error));
        }
        shared.overrides.has_read.send_replace(true);
    });
    Ok(())
}

/// The same on a connection just made; waits a little for the first table, so that a proxy does
/// not open its doors to someone who is kept out.
pub(super) async fn learn(
    connection: &(impl ConnectionLike + Clone + Send + 'static),
    shared: &Arc<Shared>,
) -> Result<(), StoreError> {
    refresh(connection, shared).await?;
    let mut has_read = shared.overrides.has_read.subscribe();
    if !shared.overrides.refused.load(Ordering::Relaxed) {
        let _ = tokio::time::timeout(FIRST_WITHIN, has_read.wait_for(|read| *read)).await;
    }
    Ok(())
}

/// Told once: decisions go on without.
fn refused(shared: &Shared, error: &RedisError) {
    if !shared.overrides.refused.swap(true, Ordering::Relaxed) {
        let kind = kind_of(error).label();
        tracing::warn!(kind, "redis: overrides and blocks cannot be read: {error}");
    }
}

/// The names of what is kept, in one slot of a cluster.
pub(super) struct Names {
    pub(super) records: String,
    pub(super) version: String,
    pub(super) changes: String,
    pub(super) ends: String,
}

impl Names {
    pub(super) fn new(prefix: &str) -> Names {
        Names {
            records: format!("{prefix}{{overrides}}"),
            version: format!("{prefix}{{overrides}}version"),
            changes: format!("{prefix}{{overrides}}changes"),
            ends: format!("{prefix}{{overrides}}ends"),
        }
    }
}

async fn version<C: ConnectionLike>(
    connection: &mut C,
    shared: &Shared,
) -> Result<u64, RedisError> {
    let name = Names::new(&shared.prefix).version;
    let mut command = redis::cmd("GET");
    let version: Option<u64> = command.arg(name).query_async(connection).await?;
    Ok(version.unwrap_or(0))
}

/// A field's name and its words.
type Field = (Vec<u8>, Vec<u8>);

/// All fields of one version as they came; some may have come twice.
#[derive(Debug, Default)]
pub(super) struct Fields {
    version: u64,
    clocks: ClockPair,
    fields: Vec<Field>,
}

/// Everything that is said now.
#[derive(Debug)]
pub(super) struct Read {
    pub(super) version: u64,
    pub(super) clocks: ClockPair,
    pub(super) records: Vec<Record>,
    /// Fields that are no records.
    pub(super) unread: usize,
}

impl Fields {
    /// Takes some time where they are many: not for a thread that answers requests.
    pub(super) fn read(self) -> Read {
        let text = |bytes: Vec<u8>| {
            String::from_utf8(bytes)
                .unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned())
        };
        let fields = self.fields.into_iter();
        let fields: HashMap<String, String> = fields
            .map(|(field, value)| (text(field), text(value)))
            .collect();
        let records: Vec<Record> = fields
            .iter()
            .filter_map(|(field, value)| Record::of_field(field, value))
            .collect();
        Read {
            version: self.version,
            clocks: self.clocks,
            unread: fields.len() - records.len(),
            records,
        }
    }
}

/// Reads all fields of one version.
pub(super) async fn read_all<C: ConnectionLike>(
    connection: &mut C,
    shared: &Shared,
) -> Result<Fields, RedisError> {
    let names = Names::new(&shared.prefix);
    let mut attempt = 0;
    loop {
        let before = version(connection, shared).await?;
        if before == 0 {
            // Nobody has ever said anything: nothing more is asked, and no right to ask it needed.
            return Ok(Fields::default());
        }
        // In a cluster a bare TIME would be another node's.
        let mut clock = redis::cmd("EVAL");
        clock
            .arg("return redis.call('TIME')")
            .arg(1)
            .arg(&names.records);
        let (seconds, micros): (u64, u64) = clock.query_async(connection).await?;
        let clocks = ClockPair {
            store_us: seconds * 1_000_000 + micros,
            local_us: shared.overrides.clock.now_us(),
        };
        let fields = fields(connection, &names.records).await?;
        attempt += 1;
        if attempt < ATTEMPTS && version(connection, shared).await? != before {
            continue;
        }
        return Ok(Fields {
            version: before,
            clocks,
            fields,
        });
    }
}

async fn fields<C: ConnectionLike>(
    connection: &mut C,
    name: &str,
) -> Result<Vec<Field>, RedisError> {
    let mut all = Vec::new();
    let mut cursor = 0_u64;
    loop {
        let mut step = redis::cmd("HSCAN");
        step.arg(name).arg(cursor).arg("COUNT").arg(STEP);
        let (next, some): (u64, Vec<Field>) = step.query_async(connection).await?;
        all.extend(some);
        if next == 0 {
            return Ok(all);
        }
        if all.len() > 2 * MAX_RECORDS {
            return Err(RedisError::from((ErrorKind::Client, "too many overrides")));
        }
        cursor = next;
    }
}

/// The last changes, newest first.
pub(super) async fn changes<C: ConnectionLike>(
    connection: &mut C,
    shared: &Shared,
    most: usize,
) -> Result<Vec<Record>, RedisError> {
    if most == 0 {
        return Ok(Vec::new());
    }
    let mut command: Cmd = redis::cmd("LRANGE");
    command
        .arg(Names::new(&shared.prefix).changes)
        .arg(0)
        .arg(most - 1);
    let texts: Vec<Vec<u8>> = command.query_async(connection).await?;
    let record = |text: &Vec<u8>| Record::of_change(&String::from_utf8_lossy(text));
    Ok(texts.iter().filter_map(record).collect())
}

/// Those after a version: mostly it is the last one, so few are asked for first.
async fn changes_since<C: ConnectionLike>(
    connection: &mut C,
    shared: &Shared,
    known: u64,
) -> Result<Vec<Record>, RedisError> {
    let is_new = |change: &Record| change.terms.version > known;
    let mut new = changes(connection, shared, FEW_CHANGES).await?;
    if new.len() == FEW_CHANGES && new.iter().all(is_new) {
        new = changes(connection, shared, MAX_CHANGES).await?;
    }
    new.retain(is_new);
    Ok(new)
}

/// Reads everything and swaps the table.
async fn read<C: ConnectionLike>(
    connection: &mut C,
    shared: &Arc<Shared>,
) -> Result<(), RedisError> {
    let known = shared.overrides.version.load(Ordering::Acquire);
    let fields = read_all(connection, shared).await?;
    let new = match known {
        UNREAD => Vec::new(),
        known => changes_since(connection, shared, known).await?,
    };
    let shared = Arc::clone(shared);
    // Elsewhere: a hundred thousand of them would hold this thread's requests up.
    let swap = move || {
        let read = fields.read();
        let table = Overrides::from_records(&read.records, read.clocks);
        shared.overrides.sweep();
        forget(&shared, &new);
        shared.overrides.swap(table);
        shared
            .overrides
            .version
            .store(read.version, Ordering::Release);
        shared.overrides.refused.store(false, Ordering::Relaxed);
        tell(known, &read, &new);
    };
    // A panic there is told by itself, and the next version is read anew.
    let _ = tokio::task::spawn_blocking(swap).await;
    Ok(())
}

/// What this process counted itself of keys that begin anew.
fn forget(shared: &Shared, changes: &[Record]) {
    for change in changes {
        let Subject::Reset(_, tag) = &change.subject else {
            continue;
        };
        for suffix in &change.terms.suffixes {
            let budget = Window::budget(suffix, *tag);
            shared.journal.forget(budget);
            if let Some(local) = shared.overrides.local.get() {
                local.forget(budget);
            }
        }
    }
}

/// The audit: every change that this process has seen, once, oldest first.
fn tell(known: u64, read: &Read, new: &[Record]) {
    let (in_force, unread) = (read.records.len(), read.unread);
    if unread > 0 {
        tracing::warn!(
            unread,
            "overrides and blocks that cannot be read are left out"
        );
    }
    if known == UNREAD {
        if in_force > 0 {
            tracing::info!(in_force, "overrides and blocks are read");
        }
        return;
    }
    let untold = new.len().saturating_sub(MAX_TOLD);
    if untold > 0 {
        tracing::info!(in_force, "{untold} older changes of overrides and blocks");
    }
    for change in new.iter().take(MAX_TOLD).rev() {
        let words = &change.terms;
        tracing::info!(
            limit = change.subject.limit(),
            key = short(change.subject.tag()),
            rate = words.rates(),
            until = words.until(),
            by = words.by,
            note = (!words.note.is_empty()).then_some(&words.note),
            "people: {}",
            change.what()
        );
    }
    if read.version < known {
        tracing::warn!(
            in_force,
            "overrides and blocks are not what they were: the store was emptied or replaced"
        );
    }
}

/// As many characters of a tag as the access log shows.
fn short(tag: KeyHash) -> String {
    tag.to_string().chars().take(8).collect()
}
