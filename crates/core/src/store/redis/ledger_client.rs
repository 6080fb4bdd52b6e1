//! The ledger in Redis: sends batches, and reads the lines of a day.
//!
//! It has connections of its own (`links`), so no decision waits for it. In a cluster each hash of
//! a day may lie on another node, and what one node does not answer concerns its own hashes alone.

mod links;

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use jiff::civil::Date;
use redis::Cmd;
use tokio::runtime::Runtime;

use self::links::LedgerLinks;
use super::RedisShared;
use crate::clock;
use crate::config::{RedisAddress, RedisSettings, StoreSettings};
use crate::ledger::{
    BatchLine, BatchReceipt, DayLines, LedgerAmounts, LedgerBatch, LedgerClient, LedgerCount,
    LedgerSettings, LedgerShard, SHARDS,
};
use crate::store::StoreError;
use crate::store::hash_key::KeyRing;

const SCRIPT: &str = include_str!("../../../lua/ledger.lua");
/// Fields of a hash that are read in one call, about.
const SCAN_COUNT: u32 = 1000;
/// How long the clients in the hashes of a cluster count as known.
const KNOWN_FOR: Duration = Duration::from_secs(10);
/// Values that are no integers of which a reader is told, at most.
const MAX_UNREADABLE: usize = 20;

/// The answer of HSCAN: the next cursor, then names and values.
type ScannedFields = (u64, Vec<(Vec<u8>, Vec<u8>)>);

pub struct LedgerStore {
    links: LedgerLinks,
    /// The name of this process in the hashes. It lasts as long as the numbers of its batches.
    sender: String,
    known: Option<KnownClients>,
    /// Values that were read, up to [`MAX_UNREADABLE`].
    unreadable: Vec<UnreadableValue>,
    missing: Vec<MissingHash>,
}

/// A value of the ledger that is no integer. The proxies never write one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnreadableValue {
    pub hash: String,
    pub field: String,
}

/// A hash of a cluster that could not be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MissingHash {
    pub hash: String,
    /// The master that has it, if one has.
    pub node: Option<RedisAddress>,
    pub error: StoreError,
}

/// Clients in each hash of a day. In a cluster no script sees all of them.
#[derive(Debug)]
struct KnownClients {
    date: Date,
    read_at: Option<Instant>,
    clients: [u64; SHARDS as usize],
}

/// The name of a field that has an amount.
struct AmountField {
    client: LedgerClient,
    count: LedgerCount,
}

impl fmt::Debug for LedgerStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LedgerStore")
            .field("shared", &self.links.shared)
            .finish_non_exhaustive()
    }
}

impl LedgerStore {
    /// Checks the settings; connects to nothing.
    pub fn new(settings: &StoreSettings, server: &RedisSettings) -> Result<Self, StoreError> {
        let shared = shared(settings, server)?;
        let digits = shared.name.iter().map(|byte| format!("{byte:02x}"));
        Ok(LedgerStore {
            sender: digits.collect(),
            links: LedgerLinks::new(shared),
            known: None,
            unreadable: Vec::new(),
            missing: Vec::new(),
        })
    }

    /// Uses these settings from now on, under the same name: a batch whose answer was lost counts
    /// once. Connects to nothing.
    pub fn follow(
        &mut self,
        settings: &StoreSettings,
        server: &RedisSettings,
    ) -> Result<(), StoreError> {
        self.links = LedgerLinks::new(shared(settings, server)?);
        self.known = None;
        Ok(())
    }

    /// Sends a batch. After an error it may have been counted: the same batch may be sent again.
    pub async fn send(
        &mut self,
        batch: &LedgerBatch,
        settings: &LedgerSettings,
    ) -> Result<BatchReceipt, StoreError> {
        let shard = batch.shard;
        self.links.learn_map().await?;
        let elsewhere = match self.links.shared.is_cluster() {
            true => self.clients_elsewhere(shard).await,
            false => 0,
        };
        let mut command = self.command(batch);
        // By its text: a server may forget scripts, and this is one call a second.
        command.arg(&self.sender).arg(batch.number);
        command.arg(settings.forget_at_ms(shard.date));
        command.arg(settings.max_clients).arg(elsewhere);
        for BatchLine { client, amounts } in &batch.lines {
            match client {
                LedgerClient::Named(name) => command.arg(format!(":{name}")),
                LedgerClient::Unknown => command.arg("?"),
                LedgerClient::Other => command.arg("+"),
            };
            command.arg(amounts.requests).arg(amounts.tokens);
            command.arg(amounts.money);
        }
        let counted: [i64; 5] = self.links.query(shard, &command).await?;
        let [clients, requests, tokens, money, left_out] = counted;
        let clients = u64::try_from(clients).unwrap_or(0);
        if let Some(known) = self.known.as_mut().filter(|known| known.date == shard.date) {
            known.clients[usize::from(shard.number)] = clients;
        }
        Ok(BatchReceipt {
            clients: clients + elsewhere,
            other: LedgerAmounts {
                requests,
                tokens,
                money,
            },
            left_out: u64::try_from(left_out).unwrap_or(0),
        })
    }

    /// The script and its keys: the hash, and all others of the day that one server has.
    fn command(&self, batch: &LedgerBatch) -> Cmd {
        let LedgerShard { date, number } = batch.shard;
        let others = match self.links.shared.is_cluster() {
            true => 0..0,
            false => 0..SHARDS,
        };
        let others = others.filter(|other| *other != number);
        let others: Vec<u8> = others.collect();
        let mut command = redis::cmd("EVAL");
        command.arg(SCRIPT).arg(1 + others.len());
        command.arg(self.key(batch.shard));
        for number in others {
            command.arg(self.key(LedgerShard { date, number }));
        }
        command
    }

    /// Clients in the other hashes of the day. They are read seldom, and one that cannot be read
    /// keeps its last number. So a day in a cluster may have a few clients more than its bound.
    async fn clients_elsewhere(&mut self, shard: LedgerShard) -> u64 {
        let (date, now) = (shard.date, clock::now());
        let known = self.known.take().filter(|known| known.date == date);
        let mut known = known.unwrap_or(KnownClients {
            date,
            read_at: None,
            clients: [0; SHARDS as usize],
        });
        let is_fresh = |read_at| now.saturating_duration_since(read_at) < KNOWN_FOR;
        if !known.read_at.is_some_and(is_fresh) {
            for number in 0..SHARDS {
                let other = LedgerShard { date, number };
                let mut command = redis::cmd("HGET");
                command.arg(self.key(other)).arg("=clients");
                let read: Result<Option<u64>, _> = self.links.query_once(other, &command).await;
                if let Ok(clients) = read {
                    known.clients[usize::from(number)] = clients.unwrap_or(0);
                }
            }
            known.read_at = Some(now);
        }
        let own = known.clients[usize::from(shard.number)];
        let elsewhere = known.clients.iter().sum::<u64>() - own;
        self.known = Some(known);
        elsewhere
    }

    /// Reads all lines of a day. In a cluster those of a hash that cannot be read are missing.
    async fn read(&mut self, date: Date) -> Result<DayLines, StoreError> {
        self.links.learn_map().await?;
        let mut lines = DayLines::new();
        for number in 0..SHARDS {
            let shard = LedgerShard { date, number };
            // The line of other clients is in each hash.
            let of_shard = match self.read_shard(shard).await {
                Err(error) if self.links.shared.is_cluster() => {
                    self.missing.push(MissingHash {
                        hash: self.key(shard),
                        node: self.links.master(shard).cloned(),
                        error,
                    });
                    continue;
                }
                of_shard => of_shard?,
            };
            for (client, amounts) in of_shard {
                lines.entry(client).or_default().add(amounts);
            }
        }
        Ok(lines)
    }

    async fn read_shard(&mut self, shard: LedgerShard) -> Result<DayLines, StoreError> {
        let mut lines = DayLines::new();
        let mut cursor = 0_u64;
        loop {
            let mut command = redis::cmd("HSCAN");
            command.arg(self.key(shard)).arg(cursor);
            command.arg("COUNT").arg(SCAN_COUNT);
            let (next, fields): ScannedFields = self.links.query(shard, &command).await?;
            for (name, value) in fields {
                let Some(field) = AmountField::read(&name) else {
                    continue;
                };
                let amount = std::str::from_utf8(&value).ok();
                let amount = amount.and_then(|text| text.parse().ok());
                if amount.is_none() {
                    self.note_unreadable(shard, &name);
                }
                // A field may come twice while its hash grows.
                let client = lines.entry(field.client).or_default();
                *client.amount_mut(field.count) = amount.unwrap_or(0);
            }
            cursor = next;
            if cursor == 0 {
                return Ok(lines);
            }
        }
    }

    fn note_unreadable(&mut self, shard: LedgerShard, name: &[u8]) {
        let value = UnreadableValue {
            hash: self.key(shard),
            field: String::from_utf8_lossy(name).into_owned(),
        };
        if self.unreadable.len() < MAX_UNREADABLE && !self.unreadable.contains(&value) {
            self.unreadable.push(value);
        }
    }

    fn key(&self, shard: LedgerShard) -> String {
        format!("{}{{{shard}}}", self.links.shared.prefix)
    }
}

fn shared(
    settings: &StoreSettings,
    server: &RedisSettings,
) -> Result<Arc<RedisShared>, StoreError> {
    let keys = KeyRing::new(settings)?;
    Ok(Arc::new(RedisShared::new(settings, server, keys, None)?))
}

impl AmountField {
    fn read(name: &[u8]) -> Option<AmountField> {
        let (letter, client) = name.split_first()?;
        let client = match client {
            b"?" => LedgerClient::Unknown,
            b"+" => LedgerClient::Other,
            [b':', name @ ..] => {
                LedgerClient::Named(String::from_utf8_lossy(name).into_owned().into())
            }
            _ => return None,
        };
        let count = match letter {
            b'r' => LedgerCount::Requests,
            b't' => LedgerCount::Tokens,
            b'm' => LedgerCount::Money,
            _ => return None,
        };
        Some(AmountField { client, count })
    }
}

/// The ledger in Redis for requests of operators. It blocks.
#[derive(Debug)]
pub struct LedgerReader {
    store: LedgerStore,
    runtime: Runtime,
}

impl LedgerReader {
    /// Checks the settings; connects to nothing.
    pub fn new(settings: &StoreSettings, server: &RedisSettings) -> Result<Self, StoreError> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(|_| StoreError::Refused)?;
        Ok(LedgerReader {
            store: LedgerStore::new(settings, server)?,
            runtime,
        })
    }

    /// Reads all lines of a day that can be read. Fails if there are none.
    pub fn read(&mut self, date: Date) -> Result<DayLines, StoreError> {
        self.runtime.block_on(self.store.read(date))
    }

    /// The hashes of a cluster that could not be read, in the order of their days.
    pub fn missing(&self) -> &[MissingHash] {
        &self.store.missing
    }

    /// The values that were left out, because they are no integers; 20 at most.
    pub fn unreadable(&self) -> &[UnreadableValue] {
        &self.store.unreadable
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_of_a_field_says_its_line_and_its_quantity() {
        let read = |name: &str| {
            let field = AmountField::read(name.as_bytes())?;
            let (client, count) = (&field.client, field.count);
            Some(format!(
                "{} {} {}",
                client.kind(),
                client.text(),
                count.word()
            ))
        };
        assert_eq!(read("r:acme").as_deref(), Some("client acme requests"));
        assert_eq!(read("m::a").as_deref(), Some("client :a money"));
        assert_eq!(read("t?").as_deref(), Some("unknown unknown tokens"));
        assert_eq!(read("r+").as_deref(), Some("other other requests"));
        for name in ["=clients", "=00ff", "x:acme", "r", ""] {
            assert_eq!(read(name), None, "{name}");
        }
    }
}
