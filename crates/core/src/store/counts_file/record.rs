//! The bytes of the file of counts: a head, and records of one size.
//!
//! The head is written twice, so that one damaged copy loses nothing. Each record has a checksum. A
//! record that is damaged is skipped, since the next one begins 64 bytes later.
//!
//! | bytes | head | change, reset | window | name |
//! |---|---|---|---|---|
//! | 0..1 | `tidegate counts` and a line feed (16 bytes) | kind | kind | kind |
//! | 1..2 | | how the units change | | bytes of the name |
//! | 8..16 | | window | window | window |
//! | 16..20 | version | budget (16..32) | identity (16..32) | the name (16..56) |
//! | 24..56 | the key of the hashes | end, units (32..48) | units, length (32..48) | |
//! | 56..64 | checksum | checksum | checksum | checksum |
//!
//! Numbers are little-endian. The window of a change is the lower half of its identity.

use crate::limit::calendar::{UnitsChange, UnitsChangeKind};

pub(super) const RECORD_BYTES: usize = 64;
pub(super) const HEAD_BYTES: usize = 2 * RECORD_BYTES;

const MAGIC: &[u8; 16] = b"tidegate counts\n";
const VERSION: u32 = 1;
const BODY_BYTES: usize = 56;
const NAME_BYTES: usize = 40;

pub(super) type RecordBytes = [u8; RECORD_BYTES];

/// The key with which keys of clients are hashed.
pub(super) type HashKeyBytes = [u8; 32];

/// What the head of a file says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Head {
    Whole {
        hash_key: HashKeyBytes,
        /// One of both copies is damaged.
        is_damaged: bool,
    },
    /// A version that this program does not know.
    OtherVersion(u32),
    /// The remains of a file of counts.
    Damaged,
    /// Something else.
    Foreign,
}

/// One record, read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum FileRecord {
    Change {
        window: u64,
        budget: u128,
        change: UnitsChange,
    },
    Reset {
        budget: u128,
    },
    /// A window, whose name follows in parts.
    Window {
        identity: u128,
        units: u64,
        window_us: u64,
    },
    /// A part of the name of a window's limit.
    Name {
        window: u64,
        part: Vec<u8>,
    },
}

pub(super) fn head(hash_key: &HashKeyBytes) -> [u8; HEAD_BYTES] {
    let mut copy = [0; RECORD_BYTES];
    copy[..16].copy_from_slice(MAGIC);
    copy[16..20].copy_from_slice(&VERSION.to_le_bytes());
    copy[24..BODY_BYTES].copy_from_slice(hash_key);
    seal(&mut copy);
    let mut both = [0; HEAD_BYTES];
    both[..RECORD_BYTES].copy_from_slice(&copy);
    both[RECORD_BYTES..].copy_from_slice(&copy);
    both
}

/// Reads the first bytes of a file.
pub(super) fn read_head(bytes: &[u8]) -> Head {
    let copies = bytes.as_chunks::<RECORD_BYTES>().0.iter().take(2);
    let whole: Vec<&RecordBytes> = copies.filter(|copy| is_head(copy)).collect();
    if let Some(copy) = whole.first() {
        let version = u32_at(copy, 16);
        let mut hash_key = [0; 32];
        hash_key.copy_from_slice(&copy[24..BODY_BYTES]);
        return match version {
            VERSION => Head::Whole {
                hash_key,
                is_damaged: whole.len() < 2,
            },
            other => Head::OtherVersion(other),
        };
    }
    let is_zero = bytes.iter().all(|byte| *byte == 0);
    let begin = |at: usize| bytes.get(at..).unwrap_or_default();
    let is_ours = is_like_magic(bytes) || is_like_magic(begin(RECORD_BYTES));
    let rest = begin(HEAD_BYTES).as_chunks::<RECORD_BYTES>().0;
    match is_zero || is_ours || rest.iter().any(is_sealed) {
        true => Head::Damaged,
        false => Head::Foreign,
    }
}

fn is_head(copy: &RecordBytes) -> bool {
    copy.starts_with(MAGIC) && is_sealed(copy)
}

/// Whether at least half of the bytes are those of a head.
fn is_like_magic(bytes: &[u8]) -> bool {
    let same = bytes.iter().zip(MAGIC).filter(|(one, other)| one == other);
    let same = same.count();
    same > 0 && 2 * same >= bytes.len().min(MAGIC.len())
}

impl FileRecord {
    /// Adds the record's bytes.
    pub(super) fn write(&self, to: &mut Vec<u8>) {
        let mut bytes = [0; RECORD_BYTES];
        match self {
            FileRecord::Change {
                window,
                budget,
                change,
            } => {
                (bytes[0], bytes[1]) = (1, kind_number(change.kind));
                put(&mut bytes, 8, &window.to_le_bytes());
                put(&mut bytes, 16, &budget.to_le_bytes());
                put(&mut bytes, 32, &change.end_us.to_le_bytes());
                put(&mut bytes, 40, &change.units.to_le_bytes());
            }
            FileRecord::Reset { budget } => {
                bytes[0] = 2;
                put(&mut bytes, 16, &budget.to_le_bytes());
            }
            FileRecord::Window {
                identity,
                units,
                window_us,
            } => {
                bytes[0] = 3;
                put(&mut bytes, 8, &(*identity as u64).to_le_bytes());
                put(&mut bytes, 16, &identity.to_le_bytes());
                put(&mut bytes, 32, &units.to_le_bytes());
                put(&mut bytes, 40, &window_us.to_le_bytes());
            }
            FileRecord::Name { window, part } => {
                let part = &part[..part.len().min(NAME_BYTES)];
                (bytes[0], bytes[1]) = (4, part.len() as u8);
                put(&mut bytes, 8, &window.to_le_bytes());
                put(&mut bytes, 16, part);
            }
        }
        seal(&mut bytes);
        to.extend_from_slice(&bytes);
    }

    /// `None` for a damaged record, and for one of a kind that is not known.
    pub(super) fn read(bytes: &RecordBytes) -> Option<FileRecord> {
        if !is_sealed(bytes) {
            return None;
        }
        let window = u64_at(bytes, 8);
        let budget = u128_at(bytes, 16);
        Some(match bytes[0] {
            1 => FileRecord::Change {
                window,
                budget,
                change: UnitsChange {
                    kind: kind_of(bytes[1])?,
                    end_us: u64_at(bytes, 32),
                    units: u64_at(bytes, 40).cast_signed(),
                },
            },
            2 => FileRecord::Reset { budget },
            3 => FileRecord::Window {
                identity: budget,
                units: u64_at(bytes, 32),
                window_us: u64_at(bytes, 40),
            },
            4 => FileRecord::Name {
                window,
                part: bytes[16..].get(..usize::from(bytes[1]))?.to_vec(),
            },
            _ => return None,
        })
    }

    /// The records that describe a window of the limit `name`.
    pub(super) fn of_window(window: &FileRecord, name: &str) -> Vec<FileRecord> {
        let FileRecord::Window { identity, .. } = window else {
            return Vec::new();
        };
        let parts = name
            .as_bytes()
            .chunks(NAME_BYTES)
            .map(|part| FileRecord::Name {
                window: *identity as u64,
                part: part.to_vec(),
            });
        std::iter::once(window.clone()).chain(parts).collect()
    }
}

fn kind_number(kind: UnitsChangeKind) -> u8 {
    match kind {
        UnitsChangeKind::Adds => 0,
        UnitsChangeKind::Opens => 1,
        UnitsChangeKind::Replaces => 2,
    }
}

fn kind_of(number: u8) -> Option<UnitsChangeKind> {
    let kinds = [
        UnitsChangeKind::Adds,
        UnitsChangeKind::Opens,
        UnitsChangeKind::Replaces,
    ];
    kinds.get(usize::from(number)).copied()
}

fn put(bytes: &mut RecordBytes, at: usize, value: &[u8]) {
    bytes[at..at + value.len()].copy_from_slice(value);
}

fn u32_at(bytes: &RecordBytes, at: usize) -> u32 {
    u64_at(bytes, at) as u32
}

fn u64_at(bytes: &RecordBytes, at: usize) -> u64 {
    u128_at(bytes, at) as u64
}

/// The number in the 16 bytes from `at`.
fn u128_at(bytes: &RecordBytes, at: usize) -> u128 {
    let mut number = [0; 16];
    number.copy_from_slice(&bytes[at..at + 16]);
    u128::from_le_bytes(number)
}

fn checksum(bytes: &RecordBytes) -> [u8; 8] {
    let hash = blake3::hash(&bytes[..BODY_BYTES]);
    let mut sum = [0; 8];
    sum.copy_from_slice(&hash.as_bytes()[..8]);
    sum
}

fn seal(bytes: &mut RecordBytes) {
    let sum = checksum(bytes);
    bytes[BODY_BYTES..].copy_from_slice(&sum);
}

fn is_sealed(bytes: &RecordBytes) -> bool {
    bytes[BODY_BYTES..] == checksum(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn records() -> Vec<FileRecord> {
        let window = FileRecord::Window {
            identity: u128::MAX - 7,
            units: 1_000_000,
            window_us: 31 * 86_400_000_000,
        };
        let change = |kind, units| FileRecord::Change {
            window: 9,
            budget: 1 << 100 | 5,
            change: UnitsChange {
                kind,
                end_us: 1_796_079_600_000_000,
                units,
            },
        };
        let mut all = FileRecord::of_window(&window, &"long-name-".repeat(6));
        all.push(change(UnitsChangeKind::Opens, 3));
        all.push(change(UnitsChangeKind::Adds, -2));
        all.push(change(UnitsChangeKind::Replaces, i64::MAX));
        all.push(FileRecord::Reset { budget: 77 });
        all
    }

    #[test]
    fn records_read_back_and_a_change_of_any_byte_is_noticed() {
        for record in records() {
            let mut bytes = Vec::new();
            record.write(&mut bytes);
            let mut bytes: RecordBytes = bytes.try_into().unwrap();
            assert_eq!(FileRecord::read(&bytes), Some(record));
            for at in 0..RECORD_BYTES {
                bytes[at] ^= 1;
                assert_eq!(FileRecord::read(&bytes), None, "byte {at}");
                bytes[at] ^= 1;
            }
        }
    }

    #[test]
    fn a_head_survives_damage_of_one_copy() {
        let hash_key = [7; 32];
        let whole = head(&hash_key);
        for at in 0..HEAD_BYTES {
            let mut bytes = whole;
            bytes[at] ^= 1;
            let is_damaged = true;
            assert_eq!(
                read_head(&bytes),
                Head::Whole {
                    hash_key,
                    is_damaged
                }
            );
        }
        for length in 1..RECORD_BYTES {
            assert_eq!(read_head(&whole[..length]), Head::Damaged, "{length} bytes");
        }
        let mut later = [0; RECORD_BYTES];
        later.copy_from_slice(&whole[..RECORD_BYTES]);
        later[16] = 2;
        seal(&mut later);
        assert_eq!(read_head(&later), Head::OtherVersion(2));
    }

    #[test]
    fn a_file_of_something_else_is_told_from_a_damaged_one() {
        for text in [
            "root:x:0:0:root:/root:/bin/bash\n",
            "listen = \":8080\"\n",
            "x",
        ] {
            assert_eq!(read_head(text.repeat(20).as_bytes()), Head::Foreign);
        }
        assert_eq!(read_head(&[0; 200]), Head::Damaged);
        let mut bytes = vec![b'x'; HEAD_BYTES];
        records()[0].write(&mut bytes);
        assert_eq!(read_head(&bytes), Head::Damaged);
    }
}
