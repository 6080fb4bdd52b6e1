//! The file of counts: a log of changes, read once and then appended to.
//!
//! Several processes may use the file while one of them drains. Each writes its own changes under a
//! lock on the file, after it has read those of the others. If one has written the file anew, the
//! others read it as a whole.

use std::collections::{HashMap, HashSet};
use std::fs::{self, File, Permissions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};

use super::disk::{MODE, NewFile, TRIES, create, is_at, open_locked, read_up_to, with_ending};
use super::read_windows::ReadWindows;
use super::record::{self, FileRecord, HEAD_BYTES, HashKeyBytes, Head, RECORD_BYTES};
use crate::limit::calendar::{CalendarCount, UnitsChange};
use crate::store::memory::{
    CALENDAR_KEPT_US, CalendarCopy, Memory, UnwrittenBudgets, WindowNumber,
};

/// The file is written anew when it is longer than this, and twice as long as it was then.
pub(super) const REWRITE_BYTES: u64 = 64 << 20;
/// How much a file grows until the next attempt, if it could not be written anew.
const RETRY_BYTES: u64 = 16 << 20;
/// Budgets that wait for the disk, at most. With more of them the file is written anew.
const MAX_UNWRITTEN: usize = 1 << 20;
/// Bytes of a file that are read at once.
const READ_BYTES: usize = 1024 * RECORD_BYTES;
/// Bytes that are looked at to tell what a file is.
const HEAD_READ_BYTES: usize = 64 * 1024;

#[derive(Debug)]
pub(super) struct CountsLog {
    path: PathBuf,
    file: File,
    hash_key: HashKeyBytes,
    /// This process knows the records before this byte.
    known_bytes: u64,
    rewrite_bytes: u64,
    /// The file lacks changes that are nowhere else than in memory.
    must_rewrite: bool,
    unwritten: UnwrittenBudgets,
    /// Windows that the file describes.
    described: HashSet<WindowNumber>,
    windows: ReadWindows,
    is_unsynced: bool,
}

/// What was found in a file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct ReadReport {
    pub(super) records: u64,
    /// Records that could not be read, with others behind them.
    pub(super) damaged: u64,
    /// Bytes at the end that could not be read.
    pub(super) cut_bytes: u64,
    /// Changes that were left out because the store is full.
    pub(super) unfit: u64,
}

impl CountsLog {
    /// Opens the file, or makes a new one.
    ///
    /// # Errors
    /// The file cannot be written, or it is of another version or no file of counts at all.
    pub(super) fn open(path: &Path, new_key: HashKeyBytes) -> io::Result<CountsLog> {
        for _ in 0..TRIES {
            let file = match open_locked(path, false) {
                Err(error) if error.kind() == ErrorKind::NotFound => {
                    create(path, &record::head(&new_key))?;
                    continue;
                }
                file => file?,
            };
            let mut bytes = vec![0; HEAD_READ_BYTES];
            let length = read_up_to(&file, &mut bytes, 0)?;
            let (hash_key, is_damaged) = match record::read_head(&bytes[..length]) {
                Head::Whole {
                    hash_key,
                    is_damaged,
                } => (hash_key, is_damaged),
                Head::OtherVersion(version) => return Err(other_version(version)),
                Head::Foreign => return Err(foreign()),
                Head::Damaged => {
                    set_aside(path, length)?;
                    create(path, &record::head(&new_key))?;
                    continue;
                }
            };
            file.set_permissions(Permissions::from_mode(MODE))?;
            file.unlock()?;
            return Ok(CountsLog {
                path: path.to_owned(),
                file,
                hash_key,
                known_bytes: HEAD_BYTES as u64,
                rewrite_bytes: REWRITE_BYTES,
                must_rewrite: is_damaged,
                unwritten: UnwrittenBudgets::new(),
                described: HashSet::new(),
                windows: ReadWindows::default(),
                is_unsynced: false,
            });
        }
        Err(io::Error::other("it is replaced all the time"))
    }

    pub(super) fn hash_key(&self) -> HashKeyBytes {
        self.hash_key
    }

    /// Reads the whole file into `memory`. What cannot be read is cut off or skipped.
    pub(super) fn load(&mut self, memory: &Memory) -> io::Result<ReadReport> {
        self.file = open_locked(&self.path, false)?;
        let report = self.read_new(memory)?;
        self.must_rewrite |= report.damaged > 0;
        self.file.unlock()?;
        Ok(report)
    }

    /// Reads what other processes have written, and writes what this one has changed. Returns
    /// whether others have written.
    pub(super) fn exchange(&mut self, memory: &Memory) -> io::Result<bool> {
        self.must_rewrite |= !memory.take_unwritten(&mut self.unwritten);
        if self.unwritten.len() > MAX_UNWRITTEN {
            self.must_rewrite = true;
        }
        if self.must_rewrite {
            // Memory has all of them.
            self.unwritten.clear();
        }
        let is_known =
            is_at(&self.path, &self.file) && self.file.metadata()?.len() == self.known_bytes;
        if is_known && self.unwritten.is_empty() && !self.must_rewrite {
            return Ok(false);
        }
        let is_foreign = self.lock_and_read(memory)?;
        let written = self.write(memory);
        // The lock of a file that was replaced is nobody's.
        let _ = self.file.unlock();
        written.map(|()| is_foreign)
    }

    fn write(&mut self, memory: &Memory) -> io::Result<()> {
        if self.must_rewrite {
            return self.rewrite(memory);
        }
        if self.known_bytes > self.rewrite_bytes
            && let Err(error) = self.rewrite(memory)
        {
            self.rewrite_bytes = self.known_bytes + RETRY_BYTES;
            tracing::warn!(%error, "the file of counts cannot be written anew, and grows on");
        }
        self.append(memory)
    }

    /// Makes the last changes safe from a crash of the machine.
    pub(super) fn sync(&mut self) -> io::Result<()> {
        if std::mem::take(&mut self.is_unsynced) {
            // After an error the system may have dropped what was written.
            self.file
                .sync_data()
                .inspect_err(|_| self.must_rewrite = true)?;
        }
        Ok(())
    }

    /// Locks the file at the path, and reads what is new in it.
    fn lock_and_read(&mut self, memory: &Memory) -> io::Result<bool> {
        self.file.lock()?;
        if is_at(&self.path, &self.file) {
            let before = self.known_bytes;
            self.read_new(memory)?;
            return Ok(self.known_bytes > before);
        }
        self.file = match open_locked(&self.path, false) {
            Err(error) if error.kind() == ErrorKind::NotFound => {
                // Somebody has removed the file.
                self.must_rewrite = true;
                return Ok(false);
            }
            file => file?,
        };
        self.read_replaced(memory)?;
        Ok(true)
    }

    /// Reads from the last known byte on. The file is locked, so no process writes it now.
    fn read_new(&mut self, memory: &Memory) -> io::Result<ReadReport> {
        let mut unfit = 0;
        let (windows, now_us) = (&mut self.windows, memory.unix_us());
        let read = read_records(&self.file, self.known_bytes, |record| match record {
            FileRecord::Change {
                window,
                budget,
                change,
            } => {
                let is_old = change.end_us.saturating_add(CALENDAR_KEPT_US) < now_us;
                let window = windows.number(memory, window);
                unfit += u64::from(!is_old && !memory.apply_calendar(budget, window, &change));
            }
            FileRecord::Reset { budget } => memory.forget_calendar(budget),
            described => windows.read(described),
        })?;
        self.known_bytes = read.good_bytes;
        self.must_rewrite |= read.is_short;
        Ok(ReadReport {
            unfit,
            ..read.report
        })
    }

    /// Reads a file that another process has written anew. It has all that this process had written
    /// before, and lacks the rest.
    fn read_replaced(&mut self, memory: &Memory) -> io::Result<()> {
        let mut copies: HashMap<u128, CalendarCopy> = HashMap::new();
        let mut reset = HashSet::new();
        self.windows = ReadWindows::default();
        self.described.clear();
        let windows = &mut self.windows;
        let read = read_records(&self.file, HEAD_BYTES as u64, |record| match record {
            FileRecord::Change {
                window,
                budget,
                change,
            } => {
                let copy = copies.entry(budget).or_insert_with(|| CalendarCopy {
                    budget,
                    window: windows.number(memory, window),
                    count: CalendarCount::default(),
                });
                copy.count.apply(&change);
            }
            FileRecord::Reset { budget } => {
                copies.remove(&budget);
                reset.insert(budget);
            }
            described => windows.read(described),
        })?;
        self.known_bytes = read.good_bytes;
        for budget in reset.into_iter().filter(|one| !copies.contains_key(one)) {
            memory.forget_calendar(budget);
            if let Some(unwritten) = self.unwritten.get(&budget) {
                let (window, count) = (unwritten.window, CalendarCount::default());
                let copy = CalendarCopy {
                    budget,
                    window,
                    count,
                };
                memory.replace_calendar(&copy, Some(unwritten));
            }
        }
        for copy in copies.values() {
            // A key that the full store does not have stays unknown.
            memory.replace_calendar(copy, self.unwritten.get(&copy.budget));
        }
        Ok(())
    }

    /// Adds the changes at the end. The file is locked.
    fn append(&mut self, memory: &Memory) -> io::Result<()> {
        if self.unwritten.is_empty() {
            return Ok(());
        }
        let (mut bytes, mut described) = (Vec::new(), self.described.clone());
        for (budget, unwritten) in &self.unwritten {
            let budget = *budget;
            let window = describe(memory, unwritten.window, &mut described, &mut bytes);
            if unwritten.is_reset {
                FileRecord::Reset { budget }.write(&mut bytes);
            }
            for change in &unwritten.changes {
                change_record(window, budget, *change).write(&mut bytes);
            }
        }
        if let Err(error) = self.file.write_all_at(&bytes, self.known_bytes) {
            // A part that was written is cut off later, if that fails now.
            let _ = self.file.set_len(self.known_bytes);
            return Err(error);
        }
        self.known_bytes += bytes.len() as u64;
        self.described = described;
        self.unwritten.clear();
        self.is_unsynced = true;
        Ok(())
    }

    /// Writes a file with the counts of `memory` alone, in the place of this one.
    fn rewrite(&mut self, memory: &Memory) -> io::Result<()> {
        let mut new = NewFile::create(&self.path, &record::head(&self.hash_key))?;
        let (mut bytes, mut copies) = (Vec::new(), Vec::new());
        let (mut described, mut reset) = (HashSet::new(), HashSet::new());
        for shard in memory.shard_numbers() {
            let is_complete = memory.copy_calendars(shard, &mut self.unwritten, &mut copies);
            self.must_rewrite |= !is_complete;
            // Other processes may still have what was reset.
            for (budget, _) in self.unwritten.iter().filter(|(_, one)| one.is_reset) {
                if reset.insert(*budget) {
                    FileRecord::Reset { budget: *budget }.write(&mut bytes);
                }
            }
            for copy in copies.drain(..) {
                let window = describe(memory, copy.window, &mut described, &mut bytes);
                for change in copy.count.as_changes().into_iter().flatten() {
                    change_record(window, copy.budget, change).write(&mut bytes);
                }
            }
            new.write(&bytes)?;
            bytes.clear();
        }
        let replaced = std::mem::replace(&mut self.file, new.put_in_place()?);
        // Processes that wait for the old file look at the path again.
        drop(replaced);
        self.known_bytes = self.file.metadata()?.len();
        self.rewrite_bytes = REWRITE_BYTES.max(2 * self.known_bytes);
        self.described = described;
        self.windows = ReadWindows::default();
        self.unwritten.clear();
        (self.must_rewrite, self.is_unsynced) = (false, false);
        Ok(())
    }
}

#[cfg(test)]
impl CountsLog {
    pub(super) fn ask_to_rewrite(&mut self) {
        self.rewrite_bytes = 0;
    }

    /// As on a disk that fails.
    pub(super) fn make_read_only(&mut self) {
        self.file = File::open(&self.path).unwrap();
    }

    pub(super) fn make_writable(&mut self) {
        self.file = open_locked(&self.path, false).unwrap();
        self.file.unlock().unwrap();
    }
}

fn change_record(window: u64, budget: u128, change: UnitsChange) -> FileRecord {
    FileRecord::Change {
        window,
        budget,
        change,
    }
}

/// The number of a window in records. One that is not in `described` yet is described first.
fn describe(
    memory: &Memory,
    number: WindowNumber,
    described: &mut HashSet<WindowNumber>,
    bytes: &mut Vec<u8>,
) -> u64 {
    let Some(window) = memory.describe_window(number) else {
        return 0;
    };
    if described.insert(number) {
        let first = FileRecord::Window {
            identity: window.identity,
            units: window.rule.units,
            window_us: window.rule.window_us,
        };
        let records = FileRecord::of_window(&first, &window.limit);
        records.iter().for_each(|record| record.write(bytes));
    }
    window.identity as u64
}

struct ReadRecords {
    report: ReadReport,
    /// The end of the last good record.
    good_bytes: u64,
    /// Records are gone that were there before.
    is_short: bool,
}

/// Reads the records from a byte on, and cuts off what cannot be read at the end.
fn read_records(
    file: &File,
    from: u64,
    mut each: impl FnMut(FileRecord),
) -> io::Result<ReadRecords> {
    let length = file.metadata()?.len();
    if length < from {
        return Ok(ReadRecords {
            report: ReadReport::default(),
            good_bytes: from,
            is_short: true,
        });
    }
    let mut report = ReadReport::default();
    let (mut at, mut good_bytes, mut bad) = (from, from, 0);
    let mut bytes = vec![0; READ_BYTES.min((length - from) as usize)];
    loop {
        let read = read_up_to(file, &mut bytes, at)?;
        let records = bytes[..read].as_chunks::<RECORD_BYTES>().0;
        if records.is_empty() {
            break;
        }
        for record in records {
            at += RECORD_BYTES as u64;
            let Some(record) = FileRecord::read(record) else {
                bad += 1;
                continue;
            };
            report.records += 1;
            report.damaged += std::mem::take(&mut bad);
            good_bytes = at;
            each(record);
        }
    }
    if length > good_bytes {
        report.cut_bytes = length - good_bytes;
        file.set_len(good_bytes)?;
    }
    Ok(ReadRecords {
        report,
        good_bytes,
        is_short: false,
    })
}

/// Moves a file that cannot be read out of the way. No proxy makes an empty file.
fn set_aside(path: &Path, length: usize) -> io::Result<()> {
    if length == 0 {
        let file = path.display();
        tracing::warn!(%file, "the file of counts is empty: calendar windows count from zero");
        return fs::remove_file(path);
    }
    let aside = with_ending(path, ".damaged");
    tracing::warn!(
        file = %path.display(), kept = %aside.display(),
        "the file of counts is damaged at its beginning: calendar windows count from zero"
    );
    fs::rename(path, aside)
}

fn other_version(version: u32) -> io::Error {
    let text = format!("it is of version {version}, which this program does not know");
    io::Error::new(ErrorKind::InvalidData, text)
}

fn foreign() -> io::Error {
    let text = "it is no file of counts of tidegate";
    io::Error::new(ErrorKind::AlreadyExists, text)
}
