//! The pid file: it names the process that serves, so that an operator can send it a signal.
//!
//! The file is replaced as a whole, so that no reader finds half a number. The serving process
//! holds a lock (`flock`) on it until it drains, and removes the file at its end. Another process
//! replaces the file only after that, or if the first process hands over.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::fs::{FlockOperation, flock};

use super::claim::Holder;

/// The pid file of this process.
#[derive(Debug)]
pub struct PidFile {
    path: PathBuf,
    state: Mutex<PidFileState>,
}

#[derive(Debug)]
enum PidFileState {
    Unwritten,
    /// Locked until this process drains.
    Written(File),
    Released,
}

impl PidFile {
    /// Does not write the file yet.
    pub fn new(path: PathBuf) -> PidFile {
        PidFile {
            path,
            state: Mutex::new(PidFileState::Unwritten),
        }
    }

    /// Writes the file. Only a process that `replaces` another one may take its file.
    ///
    /// # Errors
    /// The file cannot be written; [`io::ErrorKind::AddrInUse`] if it names another process that
    /// serves.
    pub fn write(&self, replaces: bool) -> io::Result<()> {
        let mut state = self.state();
        if !matches!(*state, PidFileState::Unwritten) {
            return Ok(());
        }
        let name_file = |error: io::Error| {
            let path = self.path.display();
            let text = format!("server.pid_file: cannot write {path}: {error}");
            io::Error::new(error.kind(), text)
        };
        if let (false, Some(holder)) = (replaces, find_holder(&self.path)) {
            let text = format!("it names {holder}, which serves");
            return Err(name_file(io::Error::new(io::ErrorKind::AddrInUse, text)));
        }
        *state = PidFileState::Written(write_locked(&self.path).map_err(name_file)?);
        Ok(())
    }

    /// Lets another process write the file.
    pub fn release(&self) {
        let state = std::mem::replace(&mut *self.state(), PidFileState::Released);
        if let PidFileState::Written(file) = state {
            // The drop of the file is not enough, because a child process may have a copy.
            let _ = flock(&file, FlockOperation::Unlock);
        }
    }

    /// Removes the file if it still names this process. It cannot be written after that.
    pub fn remove(&self) {
        let mut state = self.state();
        let text = fs::read_to_string(&self.path).unwrap_or_default();
        let names_us = text.trim().parse() == Ok(std::process::id());
        if names_us && !matches!(*state, PidFileState::Unwritten) {
            // It may be gone already.
            let _ = fs::remove_file(&self.path);
        }
        *state = PidFileState::Released;
    }

    fn state(&self) -> MutexGuard<'_, PidFileState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Writes a new file, locks it, and renames it to `path`.
fn write_locked(path: &Path) -> io::Result<File> {
    let pid = std::process::id();
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(format!(".{pid}"));
    let fresh = path.with_file_name(name);
    let write = || {
        let mut file = File::create(&fresh)?;
        file.write_all(format!("{pid}\n").as_bytes())?;
        // Not every disk has locks. The file is useful without one too.
        let _ = flock(&file, FlockOperation::NonBlockingLockExclusive);
        fs::rename(&fresh, path)?;
        Ok(file)
    };
    write().inspect_err(|_| {
        let _ = fs::remove_file(&fresh);
    })
}

/// The process that holds the lock on the file, if there is one.
fn find_holder(path: &Path) -> Option<Holder> {
    let file = File::open(path).ok()?;
    let locked = flock(&file, FlockOperation::NonBlockingLockExclusive);
    (locked == Err(rustix::io::Errno::WOULDBLOCK)).then(|| Holder::read(file))
}

#[cfg(test)]
mod tests {
    use super::*;
    fn at(path: &Path) -> PidFile {
        PidFile::new(path.to_owned())
    }
    #[test]
    fn it_is_there_until_the_end_unless_another_has_written_it() {
        let directory = tempfile::tempdir().unwrap();

        let path = directory.path().join("pid");
        let own = at(&path);
        own.write(false).unwrap();
        let text = fs::read_to_string(&path).unwrap();
        assert_eq!(text, format!("{}\n", std::process::id()));
        own.remove();
        assert!(!path.exists());
        fs::write(&path, "1\n").unwrap();
        own.remove();
        assert_eq!(fs::read_to_string(&path).unwrap(), "1\n");
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1);
        let error = at(&directory.path().join("none/pid")).write(false);
        let error = error.unwrap_err().to_string();
        assert!(error.contains("none/pid"), "{error}");
    }

    #[test]
    fn that_of_a_process_that_serves_is_left_alone() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("pid");
        // One of a process that was killed.
        fs::write(&path, "1\n").unwrap();
        let (first, second, heir) = (at(&path), at(&path), at(&path));
        first.write(false).unwrap();
        let error = second.write(false).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::AddrInUse);
        let expected = format!("it names process {}, which serves", std::process::id());
        assert!(error.to_string().ends_with(&expected), "{error}");
        second.remove();
        assert!(path.exists());
        heir.write(true).unwrap();
        heir.release();
        second.write(false).unwrap();
        second.remove();
        assert!(!path.exists());
    }
}
