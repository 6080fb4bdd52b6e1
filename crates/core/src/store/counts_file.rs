//! The file of counts: it keeps the calendar windows of the embedded store over restarts.
//!
//! No decision waits for the disk. Shards collect changes; a thread writes them four times a
//! second, and syncs the file about once a second. So a process that is killed loses a quarter of a
//! second, and a machine that crashes loses a second. A process that ends in order loses nothing.
//!
//! In an upgrade the old process drains while the new one serves, and both use the file. They write
//! and read it ten times a second then. So each knows the units that the other has admitted, at
//! most a tenth of a second late.

mod counts_log;
mod disk;
mod read_windows;
mod record;
mod use_lock;

use std::io;
use std::panic::{self, AssertUnwindSafe};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::Backing;
use super::hash_key::{KeyRing, random};
use super::memory::Memory;
use crate::clock::{self, Micros};
use crate::config::{SettingError, StoreKind, StoreSettings};
use crate::telemetry::decisions::DecisionLog;
use crate::telemetry::panics::lock;
use counts_log::{CountsLog, ReadReport};
use use_lock::UseLock;

/// How often changes are written.
const WRITE_EVERY: Duration = Duration::from_millis(250);
/// The same while another process uses the file.
const EXCHANGE_EVERY: Duration = Duration::from_millis(100);
/// How often the file is synced.
const SYNC_EVERY: Duration = Duration::from_millis(750);
/// How long the file counts as shared after another process has written it, or could have.
const SHARED_FOR: Duration = Duration::from_secs(60);

/// A file that is open and locked, and not read yet.
#[derive(Debug)]
pub(super) struct OpenedCounts {
    log: CountsLog,
    lock: UseLock,
}

/// The file of a running store, and its thread. The drop writes the last changes.
#[derive(Debug)]
pub struct CountsFile {
    memory: Arc<Memory>,
    shared: Arc<FileState>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

#[derive(Debug)]
struct FileState {
    path: PathBuf,
    stage: Mutex<FileStage>,
    changed: Condvar,
    trouble: Mutex<Option<FileTrouble>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FileStage {
    Serves,
    Drains,
    Ends,
}

/// Why changes are not on the disk.
#[derive(Clone, Debug)]
pub struct FileTrouble {
    pub since: Instant,
    pub reason: String,
}

impl OpenedCounts {
    /// Opens the file at `path`, or makes it. `predecessor` is the process that this one replaces.
    ///
    /// # Errors
    /// It cannot be written, another process serves with it, or it is another kind of file.
    pub(super) fn open(path: &Path, predecessor: Option<u32>) -> io::Result<OpenedCounts> {
        let new_key = random().map_err(io::Error::other)?;
        let opened = disk::refuse_device(path)
            .and_then(|()| UseLock::take(path, predecessor))
            .and_then(|lock| CountsLog::open(path, new_key).map(|log| OpenedCounts { log, lock }));
        opened.map_err(|error| SettingError::file("store.file", "use", path, &error))
    }

    /// Reads the counts into `memory`, and keeps its changes from then on.
    pub(super) fn load_into(self, memory: &Arc<Memory>, path: &Path) -> io::Result<CountsFile> {
        let OpenedCounts { mut log, lock } = self;
        let name_file = |error| SettingError::file("store.file", "read", path, &error);
        let report = log.load(memory).map_err(name_file)?;
        warn_of_damage(path, &report);
        memory.collect_unwritten();
        let shared = Arc::new(FileState {
            path: path.to_owned(),
            stage: Mutex::new(FileStage::Serves),
            changed: Condvar::new(),
            trouble: Mutex::new(None),
        });
        let mut writer = Writer {
            memory: Arc::clone(memory),
            shared: Arc::clone(&shared),
            shared_until: lock.is_shared.then(|| clock::now() + SHARED_FOR),
            synced_at: clock::now(),
            log,
            lock,
        };
        let thread = std::thread::Builder::new().name("counts".to_owned());
        let thread = thread.spawn(move || writer.run())?;
        Ok(CountsFile {
            memory: Arc::clone(memory),
            shared,
            thread: Mutex::new(Some(thread)),
        })
    }
}

fn warn_of_damage(path: &Path, report: &ReadReport) {
    let file = path.display();
    if report.cut_bytes > 0 {
        let bytes = report.cut_bytes;
        tracing::warn!(%file, bytes, "the end of the file of counts is damaged, and was cut off");
    }
    if report.damaged > 0 {
        let records = report.damaged;
        tracing::warn!(%file, records, "parts of the file of counts are damaged, and were skipped");
    }
    if report.unfit > 0 {
        let records = report.unfit;
        tracing::warn!(%file, records, "the embedded store is too small for its file of counts: \
             raise `[store] max_keys` or `max_memory`");
    }
}

impl CountsFile {
    /// Opens the embedded store with what its file keeps. `predecessor` is the process that this
    /// one replaces. `None` if the settings have no file.
    ///
    /// # Errors
    /// The file cannot be used.
    pub fn open(
        settings: &StoreSettings,
        log: Option<Arc<DecisionLog>>,
        predecessor: Option<u32>,
    ) -> io::Result<Option<CountsFile>> {
        let path = settings.file.as_deref();
        let path = path.filter(|_| settings.kind == StoreKind::Memory);
        let Some(path) = path else {
            return Ok(None);
        };
        let opened = OpenedCounts::open(path, predecessor)?;
        let keys = KeyRing::kept(settings, opened.log.hash_key());
        let memory = Memory::new(settings, keys, Micros::monotonic(), log);
        opened.load_into(&Arc::new(memory), path).map(Some)
    }

    /// The store whose counts the file keeps.
    pub fn backing(&self) -> Backing {
        Backing::Memory(Arc::clone(&self.memory))
    }

    /// Another process may use the file from now on, and this one exchanges changes with it.
    pub fn drain(&self) {
        self.shared.go_to(FileStage::Drains);
    }

    /// Writes the last changes, and lets go of the file. Later changes are not kept.
    pub fn finish(&self) {
        self.shared.go_to(FileStage::Ends);
        if let Some(thread) = lock(&self.thread).take()
            && thread.join().is_err()
        {
            tracing::error!("the thread of the file of counts panicked");
        }
        self.memory.end_unwritten();
    }

    /// Why changes are not on the disk; `None` if they are.
    pub fn trouble(&self) -> Option<FileTrouble> {
        lock(&self.shared.trouble).clone()
    }

    pub fn path(&self) -> &Path {
        &self.shared.path
    }
}

impl Drop for CountsFile {
    fn drop(&mut self) {
        self.finish();
    }
}

impl FileState {
    fn go_to(&self, stage: FileStage) {
        let mut own = lock(&self.stage);
        if *own != FileStage::Ends && *own != stage {
            *own = stage;
            self.changed.notify_all();
        }
    }

    /// Waits for the next write. It returns early when the stage changes.
    fn wait(&self, known: FileStage, interval: Duration) -> FileStage {
        let until = clock::now() + interval;
        let mut stage = lock(&self.stage);
        while *stage == known {
            let left = until.saturating_duration_since(clock::now());
            if left.is_zero() {
                break;
            }
            let waited = self.changed.wait_timeout(stage, left);
            stage = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        *stage
    }

    fn note_outcome(&self, outcome: io::Result<()>) {
        let mut trouble = lock(&self.trouble);
        let file = self.path.display();
        match (outcome, &mut *trouble) {
            (Ok(()), None) => {}
            (Ok(()), Some(_)) => {
                *trouble = None;
                tracing::info!(%file, "the file of counts is written again");
            }
            (Err(error), Some(known)) => known.reason = error.to_string(),
            (Err(error), None) => {
                tracing::error!(%file, %error, "the file of counts cannot be written: a restart \
                     would lose what calendar windows count from now on");
                *trouble = Some(FileTrouble {
                    since: clock::now(),
                    reason: error.to_string(),
                });
            }
        }
    }
}

/// The thread that writes the file.
struct Writer {
    memory: Arc<Memory>,
    shared: Arc<FileState>,
    log: CountsLog,
    lock: UseLock,
    /// Until when another process may write too.
    shared_until: Option<Instant>,
    synced_at: Instant,
}

impl Writer {
    fn run(&mut self) {
        let mut stage = FileStage::Serves;
        while stage != FileStage::Ends {
            let interval = match self.is_shared() {
                true => EXCHANGE_EVERY,
                false => WRITE_EVERY,
            };
            let next = self.shared.wait(stage, interval);
            let is_new = next != stage;
            stage = next;
            // A panic is a mistake of ours. Counting goes on without it.
            let written = panic::catch_unwind(AssertUnwindSafe(|| self.write(stage, is_new)));
            let written = written.unwrap_or_else(|_| Err(io::Error::other("internal error")));
            self.shared.note_outcome(written);
        }
    }

    fn is_shared(&self) -> bool {
        self.shared_until.is_some_and(|until| clock::now() < until)
    }

    fn write(&mut self, stage: FileStage, is_new: bool) -> io::Result<()> {
        match stage {
            FileStage::Serves => self.lock.take_name(),
            // A short drain may be over before this thread has seen it.
            FileStage::Drains | FileStage::Ends if is_new => self.lock.remove_name(),
            _ => {}
        }
        if self.log.exchange(&self.memory)? || stage == FileStage::Drains {
            self.shared_until = Some(clock::now() + SHARED_FOR);
        }
        let now = clock::now();
        if stage == FileStage::Ends || now.saturating_duration_since(self.synced_at) >= SYNC_EVERY {
            self.synced_at = now;
            self.log.sync()?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
