//! The lock of the file of counts: one process serves with it.
//!
//! All processes that use the file hold a shared lock on a file beside it. One that starts needs an
//! exclusive lock for a moment. It does without one in two cases: it replaces the process that the
//! lock's file names, or that file names no process. A process that drains removes its name, so
//! that the next one can start while it drains. Locks end with their processes.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::Duration;

use crate::clock;

/// How long to wait for a process that ends or begins to drain.
const PATIENCE: Duration = Duration::from_secs(3);
const RETRY_EVERY: Duration = Duration::from_millis(20);
/// Bytes of a process's name. It is replaced by one write, so that no reader finds half a name.
const NAME_BYTES: usize = 21;

/// The right to use a file of counts.
#[derive(Debug)]
pub(super) struct UseLock {
    file: File,
    /// Another process uses the file too, until it has drained.
    pub(super) is_shared: bool,
}

impl UseLock {
    /// Waits for [`PATIENCE`] at most. `predecessor` is the process that this one replaces.
    ///
    /// # Errors
    /// Another process serves with the file, or the lock cannot be written.
    pub(super) fn take(counts: &Path, predecessor: Option<u32>) -> io::Result<UseLock> {
        let path = lock_path(counts);
        let mut options = OpenOptions::new();
        let options = options.read(true).write(true).create(true).truncate(false);
        let file = options.mode(0o600).open(path)?;
        let until = clock::now() + PATIENCE;
        loop {
            if let Some(is_shared) = try_once(&file, predecessor)? {
                return Ok(UseLock { file, is_shared });
            }
            if clock::now() >= until {
                return Err(busy(&file));
            }
            sleep(RETRY_EVERY);
        }
    }

    /// Lets another process start while this one drains.
    pub(super) fn remove_name(&self) {
        if read_name(&self.file) == Some(std::process::id()) {
            // Without it the next process waits for the end of this one.
            let _ = write_name(&self.file, None);
        }
    }

    /// Names this process if the one that is named drains or is gone.
    pub(super) fn take_name(&self) {
        let is_free = match read_name(&self.file) {
            Some(pid) => pid != std::process::id() && is_gone(pid),
            None => true,
        };
        if is_free {
            // It is tried again.
            let _ = write_name(&self.file, Some(std::process::id()));
        }
    }
}

/// Returns whether another process uses the file too. `None` if this one may not.
fn try_once(file: &File, predecessor: Option<u32>) -> io::Result<Option<bool>> {
    if is_locked(file.try_lock())? {
        write_name(file, Some(std::process::id()))?;
        // Between both locks another process may have been faster.
        let is_kept = is_locked(file.try_lock_shared())?;
        let is_ours = read_name(file) == Some(std::process::id());
        if !(is_kept && is_ours) {
            file.unlock()?;
            return Ok(None);
        }
        return Ok(Some(false));
    }
    let name = read_name(file);
    if name.is_some() && name != predecessor || !is_locked(file.try_lock_shared())? {
        return Ok(None);
    }
    if name.is_none() {
        write_name(file, Some(std::process::id()))?;
    }
    Ok(Some(true))
}

fn is_locked(tried: Result<(), TryLockError>) -> io::Result<bool> {
    match tried {
        Ok(()) => Ok(true),
        Err(TryLockError::WouldBlock) => Ok(false),
        Err(TryLockError::Error(error)) => Err(error),
    }
}

fn busy(file: &File) -> io::Error {
    let holder = match read_name(file) {
        Some(pid) => format!("process {pid}"),
        None => "another process".to_owned(),
    };
    let text = format!("{holder} writes it. Each process needs a file of its own, or Redis");
    io::Error::new(ErrorKind::ResourceBusy, text)
}

fn lock_path(counts: &Path) -> PathBuf {
    let mut name = counts.as_os_str().to_owned();
    name.push(".lock");
    PathBuf::from(name)
}

fn read_name(file: &File) -> Option<u32> {
    let mut bytes = [0; NAME_BYTES];
    let length = file.read_at(&mut bytes, 0).ok()?;
    std::str::from_utf8(&bytes[..length])
        .ok()?
        .trim()
        .parse()
        .ok()
}

fn write_name(file: &File, pid: Option<u32>) -> io::Result<()> {
    let name = pid.map(|pid| pid.to_string()).unwrap_or_default();
    file.write_all_at(format!("{name:<20}\n").as_bytes(), 0)
}

/// Whether a process has ended, also if its parent does not know yet. Where this cannot be known,
/// it has not.
fn is_gone(pid: u32) -> bool {
    let Ok(stat) = fs::read_to_string(format!("/proc/{pid}/stat")) else {
        return Path::new("/proc/self").exists() && !Path::new(&format!("/proc/{pid}")).exists();
    };
    // The state follows the name, which is in parentheses and may have some itself (proc(5)).
    let state = stat
        .rsplit(") ")
        .next()
        .and_then(|rest| rest.chars().next());
    matches!(state, Some('Z' | 'X'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_shared_only_with_a_process_that_drains_or_is_replaced() {
        let directory = tempfile::tempdir().unwrap();
        let counts = directory.path().join("counts");
        let own = std::process::id();
        let first = UseLock::take(&counts, None).unwrap();
        assert!(!first.is_shared);
        let error = UseLock::take(&counts, Some(own + 1))
            .unwrap_err()
            .to_string();
        assert!(
            error.contains(&format!("process {own} writes it")),
            "{error}"
        );
        let successor = UseLock::take(&counts, Some(own)).unwrap();
        assert!(successor.is_shared);
        drop(successor);
        first.remove_name();
        let next = UseLock::take(&counts, None).unwrap();
        assert!(next.is_shared);
        drop(first);
        assert!(UseLock::take(&counts, None).is_err());
        drop(next);
        assert!(!UseLock::take(&counts, None).unwrap().is_shared);
    }

    #[test]
    fn the_name_of_a_process_that_is_gone_is_replaced() {
        let directory = tempfile::tempdir().unwrap();
        let lock = UseLock::take(&directory.path().join("counts"), None).unwrap();
        write_name(&lock.file, Some(u32::MAX)).unwrap();
        lock.take_name();
        assert_eq!(read_name(&lock.file), Some(std::process::id()));
        lock.remove_name();
        assert_eq!(read_name(&lock.file), None);
    }

    #[test]
    fn a_process_that_its_parent_has_not_waited_for_is_gone() {
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let until = clock::now() + PATIENCE;
        while !is_gone(child.id()) {
            assert!(clock::now() < until, "it has ended long ago");
            sleep(RETRY_EVERY);
        }
        child.wait().unwrap();
        assert!(is_gone(child.id()));
        assert!(!is_gone(std::process::id()));
    }
}
