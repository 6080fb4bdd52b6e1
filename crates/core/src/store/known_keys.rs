//! The API keys that operators keep in Redis, as records and as the table that requests look into.
//!
//! A record is words in lines, as those of overrides: operators can read them with `redis-cli`, and
//! later versions can add lines. `lua/known_keys.lua` is the only writer. Redis has SHA-256 of each
//! key, never the key.
//!
//! The hash is not keyed. A secret could only lie in the same Redis, where it would keep nobody
//! from guessing. If it were lost or changed, all keys would be lost with it. Nobody can guess a
//! key of 128 random bits, with or without a secret. And files have the same form: lists can move.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;

use crate::clock;
use crate::config::process_secret;
use crate::limit::key::{KeyClient, KeyDigest, KeyTable};

/// The script that makes a change.
pub const KEYS_SCRIPT: &str = include_str!("../../../../lua/known_keys.lua");
/// Keys at once, at most.
pub const MAX_KNOWN_KEYS: usize = 100_000;
/// The last changes that the store keeps.
pub const MAX_KEY_CHANGES: usize = 1000;
/// How long the first reading may take before it is reported.
const FIRST_WITHIN: Duration = Duration::from_secs(5);
/// Characters of `by`.
const MAX_OPERATOR: usize = 200;

/// One known key, without the key.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KeyRecord {
    pub name: Option<String>,
    pub tier: Option<String>,
    /// A day or a date, as the operator wrote it.
    pub anchor: Option<String>,
    /// When it was added or changed, by the store's clock, microseconds since the Unix epoch.
    pub at_us: u64,
    /// The user and host of the operator.
    pub by: String,
}

impl KeyRecord {
    /// Reads the words of a record. Unknown lines are of a later version.
    pub fn parse(text: &str) -> KeyRecord {
        let mut record = KeyRecord::default();
        for (word, value) in text.lines().filter_map(|line| line.split_once(' ')) {
            let text = || Some(value.to_owned());
            match word {
                "name" => record.name = text(),
                "tier" => record.tier = text(),
                "anchor" => record.anchor = text(),
                "at" => record.at_us = value.parse().unwrap_or(0),
                "by" => value.clone_into(&mut record.by),
                _ => {}
            }
        }
        record
    }

    /// The words, without the time: the store's clock gives it.
    pub fn lines(&self) -> String {
        let by: String = self.by.chars().filter(|c| !c.is_control()).collect();
        let by = by.chars().take(MAX_OPERATOR).collect();
        let words = [
            ("name", self.name.as_ref()),
            ("tier", self.tier.as_ref()),
            ("anchor", self.anchor.as_ref()),
            ("by", Some(&by)),
        ];
        let lines = words.into_iter();
        let lines = lines.filter_map(|(word, value)| Some(format!("{word} {}\n", value?)));
        lines.collect()
    }

    /// # Errors
    /// A word has another form than files have: says which.
    pub fn client(&self) -> Result<KeyClient, &'static str> {
        KeyClient::new(
            self.name.as_deref(),
            self.tier.as_deref(),
            self.anchor.as_deref(),
        )
    }
}

/// One change, as the store's list has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyChange {
    pub version: u64,
    /// The version that it changed.
    pub before: u64,
    pub key: KeyDigest,
    /// `None` if the key was removed.
    pub record: Option<KeyRecord>,
}

impl KeyChange {
    pub fn parse(text: &str) -> Option<KeyChange> {
        let (version, rest) = text.split_once('\n')?;
        let (before, rest) = rest.split_once('\n')?;
        let (field, words) = rest.split_once('\n')?;
        Some(KeyChange {
            version: version.parse().ok()?,
            before: before.parse().ok()?,
            key: KeyDigest::parse_hex(field)?,
            record: (!words.is_empty()).then(|| KeyRecord::parse(words)),
        })
    }
}

/// The table in force, which all workers look into.
#[derive(Debug)]
pub struct RegisteredKeys {
    table: ArcSwap<KeyTable<Arc<KeyClient>>>,
    made_at: Instant,
    /// Whether the keys were read since the start.
    is_read: AtomicBool,
    has_failed: AtomicBool,
    /// Records that the table lacks: there are too many, or they cannot be read.
    left_out: AtomicU64,
}

impl Default for RegisteredKeys {
    fn default() -> RegisteredKeys {
        RegisteredKeys {
            table: ArcSwap::from_pointee(KeyTable::new(process_secret())),
            made_at: clock::now(),
            is_read: AtomicBool::new(false),
            has_failed: AtomicBool::new(false),
            left_out: AtomicU64::new(0),
        }
    }
}

impl RegisteredKeys {
    /// The table of these records.
    pub fn from_records(records: &[(KeyDigest, KeyRecord)]) -> RegisteredKeys {
        let keys = RegisteredKeys::default();
        keys.replace(records);
        keys
    }

    /// The table of these clients.
    pub fn of_clients(clients: impl IntoIterator<Item = (KeyDigest, KeyClient)>) -> RegisteredKeys {
        let mut table = KeyTable::new(process_secret());
        for (key, client) in clients {
            table.set(&key, Arc::new(client));
        }
        let keys = RegisteredKeys::default();
        keys.swap(table);
        keys
    }

    pub fn find(&self, key: &[u8]) -> Option<Arc<KeyClient>> {
        self.table.load().find(key).cloned()
    }

    pub fn len(&self) -> usize {
        self.table.load().len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub fn is_read(&self) -> bool {
        self.is_read.load(Ordering::Relaxed)
    }

    /// Whether the keys should have been read by now, and were not.
    pub fn is_overdue(&self) -> bool {
        let is_late = || clock::now().saturating_duration_since(self.made_at) > FIRST_WITHIN;
        !self.is_read() && (self.has_failed.load(Ordering::Relaxed) || is_late())
    }

    pub(super) fn note_failure(&self) {
        self.has_failed.store(true, Ordering::Relaxed);
    }

    pub fn left_out(&self) -> u64 {
        self.left_out.load(Ordering::Relaxed)
    }

    /// Takes all records. That takes some time if there are many: not for a thread that answers
    /// requests.
    pub fn replace(&self, records: &[(KeyDigest, KeyRecord)]) {
        let mut table = KeyTable::new(process_secret());
        for (key, record) in records.iter().take(MAX_KNOWN_KEYS) {
            if let Ok(client) = record.client() {
                table.set(key, Arc::new(client));
            }
        }
        self.note_left_out(records.len() - table.len());
        self.swap(table);
    }

    /// Makes these changes, oldest first. Copies the table: not for a thread that answers requests.
    pub fn change(&self, changes: &[KeyChange]) {
        let mut table = KeyTable::clone(&self.table.load());
        for change in changes {
            let client = change.record.as_ref().map(KeyRecord::client);
            match client {
                Some(Ok(client)) => table.set(&change.key, Arc::new(client)),
                Some(Err(_)) | None => table.remove(&change.key),
            }
        }
        self.swap(table);
    }

    pub fn note_left_out(&self, records: usize) {
        self.left_out.store(records as u64, Ordering::Relaxed);
    }

    fn swap(&self, table: KeyTable<Arc<KeyClient>>) {
        self.table.store(Arc::new(table));
        self.is_read.store(true, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(name: &str) -> KeyRecord {
        KeyRecord {
            name: Some(name.to_owned()),
            tier: Some("pro".to_owned()),
            anchor: Some("15".to_owned()),
            at_us: 0,
            by: "ann@desk".to_owned(),
        }
    }

    #[test]
    fn a_record_is_read_as_it_was_written() {
        let acme = record("acme");
        assert_eq!(KeyRecord::parse(&acme.lines()), acme);
        let later = KeyRecord::parse("at 7\nname acme\ncolour blue\n");
        assert_eq!((later.at_us, later.name.as_deref()), (7, Some("acme")));
        assert!(acme.client().is_ok());
        for wrong in ["a b", ""] {
            assert!(record(wrong).client().is_err(), "{wrong}");
        }
        let odd = KeyRecord {
            by: "a\nname evil".to_owned(),
            ..record("acme")
        };
        assert_eq!(KeyRecord::parse(&odd.lines()).name.as_deref(), Some("acme"));
    }

    #[test]
    fn a_change_adds_changes_or_removes_one_key() {
        let key = KeyDigest::new(b"k1");
        let text = |words: &str| format!("9\n8\n{}\n{words}", key.to_hex());
        let set = KeyChange::parse(&text("at 5\nname acme\n")).unwrap();
        assert_eq!((set.version, set.before), (9, 8));
        let keys = RegisteredKeys::default();
        assert!(!keys.is_read() && keys.find(b"k1").is_none());
        keys.change(&[set]);
        let found = keys.find(b"k1").unwrap();
        assert_eq!(found.name.as_deref(), Some("acme"));
        keys.change(&[KeyChange::parse(&text("at 6\nname bolt\n")).unwrap()]);
        let found = keys.find(b"k1").unwrap();
        assert_eq!((keys.len(), found.name.as_deref()), (1, Some("bolt")));
        let removed = KeyChange::parse(&text("")).unwrap();
        assert_eq!(removed.record, None);
        keys.change(&[removed]);
        assert!(keys.find(b"k1").is_none() && keys.is_read());
        assert_eq!(KeyChange::parse("9\n8\nnothing\n"), None);
    }

    #[test]
    fn keys_are_overdue_once_a_reading_has_failed() {
        let keys = RegisteredKeys::default();
        assert!(!keys.is_overdue());
        keys.note_failure();
        assert!(keys.is_overdue());
        keys.change(&[]);
        assert!(!keys.is_overdue());
    }

    #[test]
    fn no_more_keys_are_taken_than_there_may_be() {
        let digest = |number: usize| KeyDigest::new(number.to_string().as_bytes());
        let all = (0..MAX_KNOWN_KEYS + 3).map(|number| (digest(number), record("acme")));
        let keys = RegisteredKeys::from_records(&all.collect::<Vec<_>>());
        assert_eq!((keys.len(), keys.left_out()), (MAX_KNOWN_KEYS, 3));
    }
}
