//! The known API keys in Redis, read by one worker for the whole process.
//!
//! Every worker asks for the version together with the hash key. The worker that first sees a new
//! version reads the changes since the known one, or all keys if the changes do not reach back so
//! far. Then it swaps the table that all workers use. While Redis is away, the last table holds.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use redis::RedisError;
use redis::aio::MultiplexedConnection;
use tokio::sync::watch;

use super::cluster::slot_of_tag;
use super::override_client::{OverrideClient, OverrideClientError};
use super::{RedisShared, link};
use crate::limit::key::KeyDigest;
use crate::store::StoreError;
use crate::store::known_keys::{
    KEYS_SCRIPT, KeyChange, KeyRecord, MAX_KEY_CHANGES, MAX_KNOWN_KEYS, RegisteredKeys,
};

/// The version before anything was read.
const UNREAD: u64 = u64::MAX;
/// Fields read in one step.
const STEP: usize = 500;
/// How often reading starts again because something changed meanwhile.
const ATTEMPTS: usize = 5;
/// How long reading may take.
const READ_WITHIN: Duration = Duration::from_secs(10);
/// How long a new connection waits for the first table before it takes requests without it.
const FIRST_WITHIN: Duration = Duration::from_millis(150);
/// Changes that are read first if there are new ones.
const FEW_CHANGES: usize = 10;

/// The known keys of this process; shared by all workers.
pub(super) struct SharedKeys {
    /// `None` if the configuration does not keep keys in Redis.
    pub(super) table: Option<Arc<RegisteredKeys>>,
    version: AtomicU64,
    reading: AtomicBool,
    /// The server refuses to show them, and the log says so.
    refused: AtomicBool,
    /// The store has no keys any more, and the log says so.
    lost: AtomicBool,
    has_read: watch::Sender<bool>,
}

impl SharedKeys {
    pub(super) fn new(are_wanted: bool) -> SharedKeys {
        SharedKeys {
            table: are_wanted.then(Arc::default),
            version: AtomicU64::new(UNREAD),
            reading: AtomicBool::new(false),
            refused: AtomicBool::new(false),
            lost: AtomicBool::new(false),
            has_read: watch::channel(false).0,
        }
    }

    /// The same table, if the setting is the same.
    pub(super) fn renewed(self: &Arc<Self>, are_wanted: bool) -> Arc<SharedKeys> {
        match self.table.is_some() == are_wanted {
            true => Arc::clone(self),
            false => Arc::new(SharedKeys::new(are_wanted)),
        }
    }
}

impl RedisShared {
    /// The API keys that Redis has, if the configuration keeps them there.
    pub fn known_keys(&self) -> Option<&Arc<RegisteredKeys>> {
        self.known_keys.table.as_ref()
    }
}

/// The right to swap the table. One worker of the process has it at a time, until it is dropped.
struct KeysClaim(Arc<RedisShared>);

impl KeysClaim {
    fn try_new(shared: &Arc<RedisShared>) -> Option<KeysClaim> {
        let taken = shared.known_keys.reading.swap(true, Ordering::AcqRel);
        (!taken).then(|| KeysClaim(Arc::clone(shared)))
    }
}

impl Drop for KeysClaim {
    fn drop(&mut self) {
        self.0.known_keys.reading.store(false, Ordering::Release);
    }
}

/// The names of the keys in Redis. All lie in one slot of a cluster: that of `<prefix>keys`.
struct KeyNames {
    records: String,
    version: String,
    changes: String,
}

impl KeyNames {
    fn new(prefix: &str) -> KeyNames {
        KeyNames {
            records: format!("{prefix}keys"),
            version: format!("{prefix}keys.version{{{prefix}keys}}"),
            changes: format!("{prefix}keys.changes{{{prefix}keys}}"),
        }
    }
}

/// Starts a task that reads what has changed.
pub(super) async fn refresh(
    connection: &MultiplexedConnection,
    shared: &Arc<RedisShared>,
) -> Result<(), StoreError> {
    let keys = &shared.known_keys;
    let Some(table) = &keys.table else {
        return Ok(());
    };
    let mut connection = connection.clone();
    let version = match read_version(&mut connection, shared).await {
        Ok(version) => version,
        Err(error) if link::is_refusal(&error) => {
            warn_refused(shared, &error);
            return Ok(());
        }
        Err(error) => return Err(error.into()),
    };
    let known = keys.version.load(Ordering::Acquire);
    if version == known {
        return Ok(());
    }
    if version == 0 && known != UNREAD {
        warn_lost(keys, table);
        return Ok(());
    }
    let Some(claim) = KeysClaim::try_new(shared) else {
        return Ok(());
    };
    let table = Arc::clone(table);
    tokio::spawn(async move {
        let shared = &claim.0;
        let reading = read_and_swap(&mut connection, shared, table);
        if let Ok(Err(error)) = tokio::time::timeout(READ_WITHIN, reading).await {
            warn_refused(shared, &error);
        }
        shared.known_keys.has_read.send_replace(true);
    });
    Ok(())
}

/// The same on a new connection. It waits a little for the first table, so that a proxy does not
/// refuse known keys at its start.
pub(super) async fn learn(
    connection: &MultiplexedConnection,
    shared: &Arc<RedisShared>,
) -> Result<(), StoreError> {
    if shared.known_keys.table.is_none() {
        return Ok(());
    }
    refresh(connection, shared).await?;
    let mut has_read = shared.known_keys.has_read.subscribe();
    if !shared.known_keys.refused.load(Ordering::Relaxed) {
        let _ = tokio::time::timeout(FIRST_WITHIN, has_read.wait_for(|read| *read)).await;
    }
    Ok(())
}

/// Warns once; the keys that are known stay.
fn warn_refused(shared: &RedisShared, error: &RedisError) {
    if let Some(table) = shared.known_keys() {
        table.note_failure();
    }
    if !shared.known_keys.refused.swap(true, Ordering::Relaxed) {
        let kind = StoreError::from(error).label();
        tracing::warn!(kind, "redis: the known API keys cannot be read: {error}");
    }
}

/// Warns once; the keys that are known stay. A removed key leaves a version behind.
fn warn_lost(keys: &SharedKeys, table: &RegisteredKeys) {
    if !keys.lost.swap(true, Ordering::Relaxed) {
        tracing::warn!(
            keys = table.len(),
            "redis: the store was emptied and has no API keys any more; the known ones hold until \
             one is written or this process ends"
        );
    }
}

async fn read_version(
    connection: &mut MultiplexedConnection,
    shared: &RedisShared,
) -> Result<u64, RedisError> {
    link::read_version(connection, KeyNames::new(&shared.prefix).version).await
}

/// The keys of one version.
struct StoredKeys {
    version: u64,
    records: Vec<(KeyDigest, KeyRecord)>,
    /// Fields that are no records, and those above the most.
    unread: usize,
}

async fn read_all(
    connection: &mut MultiplexedConnection,
    shared: &RedisShared,
) -> Result<StoredKeys, RedisError> {
    let mut attempt = 0;
    loop {
        let before = read_version(connection, shared).await?;
        let mut stored = read_records(connection, shared).await?;
        attempt += 1;
        if attempt < ATTEMPTS && read_version(connection, shared).await? != before {
            continue;
        }
        stored.version = before;
        return Ok(stored);
    }
}

/// A field of the hash: its name and its text.
type RecordField = (Vec<u8>, Vec<u8>);

async fn read_records(
    connection: &mut MultiplexedConnection,
    shared: &RedisShared,
) -> Result<StoredKeys, RedisError> {
    let name = KeyNames::new(&shared.prefix).records;
    let mut all = HashMap::new();
    let (mut fields, mut cursor) = (0, 0_u64);
    loop {
        let mut step = redis::cmd("HSCAN");
        step.arg(&name).arg(cursor).arg("COUNT").arg(STEP);
        let (next, some): (u64, Vec<RecordField>) = step.query_async(connection).await?;
        fields += some.len();
        for (field, value) in some {
            if let Some(key) = KeyDigest::parse_hex(&String::from_utf8_lossy(&field)) {
                all.insert(key, KeyRecord::parse(&String::from_utf8_lossy(&value)));
            }
        }
        cursor = next;
        if cursor == 0 || fields > 2 * MAX_KNOWN_KEYS {
            break;
        }
    }
    let unread = fields.saturating_sub(all.len().min(MAX_KNOWN_KEYS));
    let records = all.into_iter().take(MAX_KNOWN_KEYS).collect();
    Ok(StoredKeys {
        version: 0,
        records,
        unread,
    })
}

/// The changes after a version, oldest first; `None` if the store no longer has all of them.
async fn changes_since(
    connection: &mut MultiplexedConnection,
    shared: &RedisShared,
    known: u64,
) -> Result<Option<Vec<KeyChange>>, RedisError> {
    let name = KeyNames::new(&shared.prefix).changes;
    for most in [FEW_CHANGES, MAX_KEY_CHANGES] {
        let mut command = redis::cmd("LRANGE");
        command.arg(&name).arg(0).arg(most - 1);
        let texts: Vec<Vec<u8>> = command.query_async(connection).await?;
        let changes = texts.iter();
        let changes = changes.map(|text| KeyChange::parse(&String::from_utf8_lossy(text)));
        let mut found = Vec::new();
        for change in changes {
            let Some(change) = change else {
                return Ok(None);
            };
            let is_first = change.before == known;
            found.push(change);
            if is_first {
                found.reverse();
                return Ok(Some(found));
            }
        }
    }
    Ok(None)
}

async fn read_and_swap(
    connection: &mut MultiplexedConnection,
    shared: &Arc<RedisShared>,
    table: Arc<RegisteredKeys>,
) -> Result<(), RedisError> {
    let known = shared.known_keys.version.load(Ordering::Acquire);
    let changes = match known {
        UNREAD => None,
        known => changes_since(connection, shared, known).await?,
    };
    let stored = match &changes {
        Some(_) => None,
        None => Some(read_all(connection, shared).await?),
    };
    let shared = Arc::clone(shared);
    // On another thread: many keys would delay this thread's requests.
    let swap = move || {
        let keys = &shared.known_keys;
        let version = match (&changes, &stored) {
            (Some(changes), _) => {
                table.change(changes);
                changes.last().map_or(known, |last| last.version)
            }
            (None, Some(stored)) => {
                table.replace(&stored.records);
                table.note_left_out(stored.unread + stored.records.len() - table.len());
                stored.version
            }
            (None, None) => known,
        };
        keys.version.store(version, Ordering::Release);
        keys.refused.store(false, Ordering::Relaxed);
        keys.lost.store(false, Ordering::Relaxed);
        log_read(known, version, &table, changes.map_or(0, |all| all.len()));
    };
    // A panic there is reported by its thread, and the next version is read anew.
    let _ = tokio::task::spawn_blocking(swap).await;
    Ok(())
}

fn log_read(known: u64, version: u64, table: &RegisteredKeys, changes: usize) {
    let keys = table.len();
    if known == UNREAD {
        tracing::info!(keys, "redis: the known API keys are read");
    } else if version < known {
        tracing::warn!(
            keys,
            "redis: the known API keys are lost: the store was emptied or replaced"
        );
    } else {
        tracing::info!(keys, changes, "redis: the known API keys have changed");
    }
}

/// The result of a change of one key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyChangeOutcome {
    Made,
    Nothing,
    /// There are as many keys as there may be.
    Full,
}

impl OverrideClient {
    /// All known keys, by name.
    pub fn known_keys(&mut self) -> Result<Vec<(KeyDigest, KeyRecord)>, OverrideClientError> {
        self.connect_to_keys()?;
        let mut records = self.read(read_all_keys)?;
        records.sort_by(|(key, one), (other_key, other)| {
            let order = |record: &KeyRecord| (record.name.clone(), record.at_us);
            let hex = || key.to_hex().cmp(&other_key.to_hex());
            order(one).cmp(&order(other)).then_with(hex)
        });
        Ok(records)
    }

    /// Sets the record of a key, or removes the key. Every proxy knows it within a second.
    pub fn change_key(
        &mut self,
        key: &KeyDigest,
        record: Option<&KeyRecord>,
    ) -> Result<KeyChangeOutcome, OverrideClientError> {
        self.connect_to_keys()?;
        let names = KeyNames::new(self.prefix());
        let mut command = redis::cmd("EVAL");
        command.arg(KEYS_SCRIPT).arg(3);
        command.arg(names.records).arg(names.version);
        command.arg(names.changes);
        command.arg(record.map_or("remove", |_| "set"));
        command.arg(key.to_hex());
        command.arg(record.map(KeyRecord::lines).unwrap_or_default());
        command.arg(MAX_KNOWN_KEYS).arg(MAX_KEY_CHANGES);
        let (done, _): (i64, u64) = self.query(&command)?;
        Ok(match done {
            1 => KeyChangeOutcome::Made,
            0 => KeyChangeOutcome::Nothing,
            _ => KeyChangeOutcome::Full,
        })
    }

    fn connect_to_keys(&mut self) -> Result<(), OverrideClientError> {
        let slot = slot_of_tag(format!("{}keys", self.prefix()).as_bytes());
        self.connect_to(slot)
    }
}

async fn read_all_keys(
    mut connection: MultiplexedConnection,
    shared: Arc<RedisShared>,
) -> Result<Vec<(KeyDigest, KeyRecord)>, RedisError> {
    Ok(read_all(&mut connection, &shared).await?.records)
}
