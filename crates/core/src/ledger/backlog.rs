//! What is to be sent to the store, in batches that may be sent again.
//!
//! The lines of a day lie in [`SHARDS`] hashes, by client. Each batch is for one of them and has a
//! number, which rises. The hash remembers the last number of each process, so a batch that is sent
//! again counts once. The next batch of a hash waits until the store has acknowledged this one.
//!
//! While the store is away, what waits is merged: a line for each client and day. Of these there
//! are [`MAX_WAITING`]; the usage of further clients goes into the day's line of other clients. So
//! no usage is lost, but its client is.

use std::collections::{BTreeMap, HashMap};
use std::fmt;

use jiff::civil::Date;

use super::{LedgerAmounts, LedgerClient, MAX_WAITING, PendingDay};

/// The hashes of a day.
pub const SHARDS: u8 = 16;
/// Lines of a batch: a call of the script takes about a millisecond.
const BATCH_LINES: usize = 500;

/// A hash of one day.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct LedgerShard {
    pub date: Date,
    pub number: u8,
}

impl LedgerShard {
    /// The hash of a client. All processes compute the same one.
    pub fn new(date: Date, client: &LedgerClient) -> LedgerShard {
        let number = match client {
            LedgerClient::Named(name) => blake3::hash(name.as_bytes()).as_bytes()[0] % SHARDS,
            LedgerClient::Unknown | LedgerClient::Other => 0,
        };
        LedgerShard { date, number }
    }
}

/// The name in Redis, without the prefix and the braces of its hash tag.
impl fmt::Display for LedgerShard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ledger:{}:{}", self.date, self.number)
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LedgerBatch {
    pub shard: LedgerShard,
    pub number: u64,
    pub lines: Vec<BatchLine>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BatchLine {
    pub client: LedgerClient,
    pub amounts: LedgerAmounts,
}

/// The store's answer to a batch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BatchReceipt {
    /// Clients with a line in the hash.
    pub clients: u64,
    /// What went into the line of other clients, because the day has no place for more clients.
    pub other: LedgerAmounts,
    /// Amounts that are not counted, because the value that they belong to is no integer.
    pub left_out: u64,
}

#[derive(Debug, Default)]
pub struct LedgerBacklog {
    shards: BTreeMap<LedgerShard, ShardBacklog>,
    /// Lines of all shards that wait.
    waiting: usize,
    last_number: u64,
    lost: LedgerAmounts,
}

#[derive(Debug, Default)]
struct ShardBacklog {
    waiting: HashMap<LedgerClient, LedgerAmounts>,
    /// When the oldest line began to wait, microseconds.
    since_us: u64,
    /// Sent, and not acknowledged.
    sent: Option<SentBatch>,
}

#[derive(Debug)]
struct SentBatch {
    batch: LedgerBatch,
    since_us: u64,
}

impl LedgerBacklog {
    /// Adds what the workers have added up until `now_us`.
    pub fn add(&mut self, days: Vec<PendingDay>, now_us: u64) {
        for day in days {
            for (client, amounts) in day.clients {
                self.add_line(day.date, client, amounts, now_us);
            }
        }
    }

    fn add_line(&mut self, date: Date, client: LedgerClient, amounts: LedgerAmounts, now_us: u64) {
        let shard = LedgerShard::new(date, &client);
        let known = self.shards.get(&shard);
        let is_known = known.is_some_and(|known| known.waiting.contains_key(&client));
        let is_full = self.waiting >= MAX_WAITING;
        if !is_known && is_full && client != LedgerClient::Other {
            self.lost.add(amounts.raised());
            return self.add_line(date, LedgerClient::Other, amounts, now_us);
        }
        let backlog = self.shards.entry(shard).or_default();
        if backlog.waiting.is_empty() {
            backlog.since_us = now_us;
        }
        self.waiting += usize::from(!is_known);
        backlog.waiting.entry(client).or_default().add(amounts);
    }

    /// The hashes that something is to be sent to.
    pub fn shards(&self) -> Vec<LedgerShard> {
        self.shards.keys().copied().collect()
    }

    /// The batch to send to a hash: the one without an acknowledgement, or the next one.
    pub fn batch(&mut self, shard: LedgerShard) -> Option<&LedgerBatch> {
        let backlog = self.shards.get_mut(&shard)?;
        if backlog.sent.is_none() {
            let clients = backlog.waiting.keys().take(BATCH_LINES).cloned();
            let clients: Vec<LedgerClient> = clients.collect();
            let lines = clients.into_iter().filter_map(|client| {
                let amounts = backlog.waiting.remove(&client)?;
                Some(BatchLine { client, amounts })
            });
            let lines: Vec<BatchLine> = lines.collect();
            self.waiting -= lines.len();
            self.last_number += 1;
            backlog.sent = Some(SentBatch {
                batch: LedgerBatch {
                    shard,
                    number: self.last_number,
                    lines,
                },
                since_us: backlog.since_us,
            });
        }
        backlog.sent.as_ref().map(|sent| &sent.batch)
    }

    /// The store has counted the batch of a hash. Returns whether more waits for that hash.
    pub fn acknowledge(&mut self, shard: LedgerShard) -> bool {
        let Some(backlog) = self.shards.get_mut(&shard) else {
            return false;
        };
        backlog.sent = None;
        let has_more = !backlog.waiting.is_empty();
        if !has_more {
            self.shards.remove(&shard);
        }
        has_more
    }

    /// When the oldest line began to wait, microseconds.
    pub fn oldest_us(&self) -> Option<u64> {
        let since = |backlog: &ShardBacklog| match &backlog.sent {
            Some(sent) => sent.since_us,
            None => backlog.since_us,
        };
        self.shards.values().map(since).min()
    }

    /// All that the store has not acknowledged.
    pub fn unsent(&self) -> LedgerAmounts {
        let mut sum = LedgerAmounts::default();
        for backlog in self.shards.values() {
            let sent = backlog.sent.iter().flat_map(|sent| &sent.batch.lines);
            sent.for_each(|line| sum.add(line.amounts));
            backlog
                .waiting
                .values()
                .for_each(|amounts| sum.add(*amounts));
        }
        sum
    }

    /// Usage that has lost its client, since too much waited.
    pub fn lost(&self) -> LedgerAmounts {
        self.lost
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const REQUEST: LedgerAmounts = LedgerAmounts {
        requests: 1,
        tokens: 0,
        money: 0,
    };

    fn day(names: impl IntoIterator<Item = String>) -> Vec<PendingDay> {
        let lines = names
            .into_iter()
            .map(|name| (LedgerClient::named(&name), REQUEST));
        vec![PendingDay {
            date: Date::constant(2026, 11, 26),
            clients: lines.collect(),
        }]
    }

    fn one(name: &str) -> Vec<PendingDay> {
        day([name.to_owned()])
    }

    #[test]
    fn a_batch_stays_the_same_until_it_is_acknowledged() {
        let mut backlog = LedgerBacklog::default();
        backlog.add(one("acme"), 10);
        let shard = backlog.shards()[0];
        let first = backlog.batch(shard).unwrap().clone();
        backlog.add(one("acme"), 20);
        backlog.add(one("acme"), 30);
        assert_eq!(backlog.batch(shard), Some(&first));
        assert_eq!(
            (backlog.oldest_us(), backlog.unsent().requests),
            (Some(10), 3)
        );
        assert!(backlog.acknowledge(shard), "more waits");
        let second = backlog.batch(shard).unwrap();
        assert_eq!(second.number, first.number + 1);
        assert_eq!(second.lines[0].amounts.requests, 2, "merged");
        assert!(!backlog.acknowledge(shard));
        assert_eq!(backlog.oldest_us(), None);
        assert_eq!(backlog.batch(shard), None);
    }

    #[test]
    fn large_backlogs_are_sent_in_parts() {
        let mut backlog = LedgerBacklog::default();
        backlog.add(day((0..20_000).map(|number| format!("c{number}"))), 1);
        let (mut lines, mut numbers) = (0, Vec::new());
        assert_eq!(backlog.shards().len(), usize::from(SHARDS));
        for shard in backlog.shards() {
            while let Some(batch) = backlog.batch(shard) {
                assert!(batch.lines.len() <= BATCH_LINES);
                lines += batch.lines.len();
                numbers.push(batch.number);
                backlog.acknowledge(shard);
            }
        }
        assert_eq!(lines, 20_000);
        assert!(numbers.is_sorted_by(|one, next| one < next));
        assert_eq!(backlog.waiting, 0);
    }

    #[test]
    fn usage_beyond_the_bound_loses_its_client_and_still_counts() {
        let mut backlog = LedgerBacklog::default();
        let names = (0..MAX_WAITING + 300).map(|number| format!("c{number}"));
        backlog.add(day(names), 1);
        assert_eq!(backlog.waiting, MAX_WAITING + 1, "and the line of others");
        assert_eq!(backlog.lost().requests, 300);
        let all = i64::try_from(MAX_WAITING).unwrap() + 300;
        assert_eq!(backlog.unsent().requests, all);
    }

    #[test]
    fn the_hash_of_a_client_never_changes() {
        let date = Date::constant(2026, 11, 26);
        let shards = ["acme", "globex", "initech"]
            .map(|name| LedgerShard::new(date, &LedgerClient::named(name)).number);
        assert_eq!(shards, [11, 5, 11]);
    }
}
