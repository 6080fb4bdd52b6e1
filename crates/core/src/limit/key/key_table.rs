//! Tables of known keys. A key is found by a keyed hash of its SHA-256, whose secret belongs to
//! this process: so the time of a comparison tells nothing about the keys.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use aws_lc_rs::digest::{SHA256, digest};
use hashbrown::HashTable;

use super::HashSecret;
use crate::limit::AnchorDay;

/// The prefix of a key's SHA-256.
pub const HASHED: &str = "sha256:";
/// Characters of a client's name, and of a tier's.
const MAX_WORD: usize = 64;

/// SHA-256 of an API key, as files write it: `sha256:HEX`.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct KeyDigest([u8; 32]);

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KnownKey<'k> {
    /// The client's name for people.
    pub name: Option<&'k str>,
    pub tier: Option<&'k str>,
    /// The day on which the client's months begin.
    pub anchor: Option<AnchorDay>,
}

/// The client of a key that became known while the proxy runs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KeyClient {
    pub name: Option<Arc<str>>,
    pub tier: Option<Arc<str>>,
    pub anchor: Option<AnchorDay>,
}

/// Values by key.
#[derive(Clone)]
pub struct KeyTable<T> {
    secret: HashSecret,
    table: HashTable<KeyEntry<T>>,
}

#[derive(Clone)]
struct KeyEntry<T> {
    /// The keyed hash of the key's SHA-256.
    hash: blake3::Hash,
    value: T,
}

/// The keys of files.
pub struct KnownKeys {
    table: KeyTable<KeyNote>,
    /// Names and tiers, each once.
    words: Vec<Arc<str>>,
}

/// The client of a known key, as indexes into `KnownKeys::words`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KeyNote {
    name: Option<u32>,
    tier: Option<u32>,
    anchor: Option<AnchorDay>,
}

/// Whether `given` is `secret`, in a time that depends on their lengths only.
pub fn same_secret(given: &[u8], secret: &[u8]) -> bool {
    // blake3::Hash compares in constant time; hashing hides where the two begin to differ.
    blake3::hash(given) == blake3::hash(secret)
}

/// Whether a word can be the name of a client.
pub fn is_client_name(word: &str) -> bool {
    let fits = |c: char| c.is_alphanumeric() || "_-.:@".contains(c);
    (1..=MAX_WORD).contains(&word.chars().count()) && word.chars().all(fits)
}

/// Whether a word can be the name of a tier, and of all else that a file names.
pub fn is_tier_name(word: &str) -> bool {
    let fits =
        |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"_-".contains(&byte);
    (1..=MAX_WORD).contains(&word.len()) && word.bytes().all(fits)
}

impl KeyClient {
    /// # Errors
    /// A word has another form: says which.
    pub fn new(
        name: Option<&str>,
        tier: Option<&str>,
        anchor: Option<&str>,
    ) -> Result<KeyClient, &'static str> {
        if name.is_some_and(|name| !is_client_name(name)) {
            return Err("not a name: 1 to 64 letters, digits, `_`, `-`, `.`, `:` and `@`");
        }
        if tier.is_some_and(|tier| !is_tier_name(tier)) {
            return Err("not a tier: 1 to 64 of `a-z`, `0-9`, `_` and `-`");
        }
        let day = anchor.map(AnchorDay::parse);
        let wrong = "not an anchor: a day of the month, 1 to 31, or a date";
        Ok(KeyClient {
            name: name.map(Arc::from),
            tier: tier.map(Arc::from),
            anchor: day.map(|day| day.ok_or(wrong)).transpose()?,
        })
    }

    pub fn as_known(&self) -> KnownKey<'_> {
        KnownKey {
            name: self.name.as_deref(),
            tier: self.tier.as_deref(),
            anchor: self.anchor,
        }
    }
}

impl KeyDigest {
    pub fn new(key: &[u8]) -> KeyDigest {
        let mut bytes = [0; 32];
        bytes.copy_from_slice(digest(&SHA256, key).as_ref());
        KeyDigest(bytes)
    }

    /// `sha256:` and the first 12 digits.
    pub(super) fn short(&self) -> String {
        let digits = self.0[..6].iter().map(|byte| format!("{byte:02x}"));
        std::iter::once(HASHED.to_owned()).chain(digits).collect()
    }

    /// Reads 64 hexadecimal digits.
    pub fn parse_hex(text: &str) -> Option<KeyDigest> {
        let mut bytes = [0; 32];
        if text.len() != 64 || !text.is_ascii() {
            return None;
        }
        for (byte, pair) in bytes.iter_mut().zip(text.as_bytes().chunks_exact(2)) {
            let digit = |one: u8| char::from(one).to_digit(16);
            *byte = u8::try_from(digit(pair[0])? * 16 + digit(pair[1])?).ok()?;
        }
        Some(KeyDigest(bytes))
    }

    /// 64 hexadecimal digits in lower case.
    pub fn to_hex(self) -> String {
        self.0.iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

impl<T> KeyTable<T> {
    /// An empty table. `secret` is this process's own.
    pub fn new(secret: HashSecret) -> KeyTable<T> {
        KeyTable {
            secret,
            table: HashTable::new(),
        }
    }

    /// Adds a key that the table does not have.
    fn add_new(&mut self, key: &KeyDigest, value: T) {
        let hash = self.hash(key);
        let entry = KeyEntry { hash, value };
        self.table
            .insert_unique(bucket(&hash), entry, |entry| bucket(&entry.hash));
    }

    /// Adds a key, or changes its value.
    pub fn set(&mut self, key: &KeyDigest, value: T) {
        self.remove(key);
        self.add_new(key, value);
    }

    pub fn remove(&mut self, key: &KeyDigest) {
        let hash = self.hash(key);
        let found = self
            .table
            .find_entry(bucket(&hash), |entry| entry.hash == hash);
        if let Ok(found) = found {
            found.remove();
        }
    }

    pub fn find(&self, key: &[u8]) -> Option<&T> {
        if self.table.is_empty() {
            return None;
        }
        let hash = self.hash(&KeyDigest::new(key));
        // `blake3::Hash` compares in constant time.
        let entry = self.table.find(bucket(&hash), |entry| entry.hash == hash)?;
        Some(&entry.value)
    }

    fn hash(&self, key: &KeyDigest) -> blake3::Hash {
        blake3::keyed_hash(&self.secret.0, &key.0)
    }

    pub fn len(&self) -> usize {
        self.table.len()
    }

    pub fn is_empty(&self) -> bool {
        self.table.is_empty()
    }
}

impl KnownKeys {
    /// No key may come twice. `secret` is this process's own.
    pub fn new<'k>(
        keys: impl IntoIterator<Item = (KeyDigest, KnownKey<'k>)>,
        secret: HashSecret,
    ) -> KnownKeys {
        let mut table = KeyTable::new(secret);
        let mut words: Vec<Arc<str>> = Vec::new();
        let mut places: HashMap<&str, u32> = HashMap::new();
        for (key, client) in keys {
            let mut place = |word: &'k str| {
                *places.entry(word).or_insert_with(|| {
                    words.push(word.into());
                    u32::try_from(words.len() - 1).unwrap_or(u32::MAX)
                })
            };
            let note = KeyNote {
                name: client.name.map(&mut place),
                tier: client.tier.map(&mut place),
                anchor: client.anchor,
            };
            table.add_new(&key, note);
        }
        table.table.shrink_to_fit(|entry| bucket(&entry.hash));
        KnownKeys { table, words }
    }

    pub(super) fn find(&self, key: &[u8]) -> Option<KeyNote> {
        self.table.find(key).copied()
    }

    pub(super) fn client(&self, note: KeyNote) -> KnownKey<'_> {
        let word = |place: Option<u32>| self.words.get(place? as usize).map(|word| &**word);
        KnownKey {
            name: word(note.name),
            tier: word(note.tier),
            anchor: note.anchor,
        }
    }

    pub fn len(&self) -> usize {
        self.table.len()
    }

    pub fn is_empty(&self) -> bool {
        self.table.is_empty()
    }
}

/// The keyed hash is random already: its first bytes choose the bucket.
fn bucket(hash: &blake3::Hash) -> u64 {
    let (first, _) = hash.as_bytes().split_at(8);
    first.try_into().map_or(0, u64::from_le_bytes)
}

impl fmt::Debug for KeyDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("KeyDigest(..)")
    }
}

impl<T> fmt::Debug for KeyTable<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "KeyTable({} keys)", self.len())
    }
}

impl fmt::Debug for KnownKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "KnownKeys({} keys)", self.len())
    }
}
