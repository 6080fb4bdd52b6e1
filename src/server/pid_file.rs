//! The file that says which process serves, for those who send signals.
//!
//! It is replaced whole, so that no reader finds half a number. The process that serves holds a
//! lock (`flock`) on it until it drains, and removes it at its end unless another one has written
//! it. A process replaces the file of another one only where that drains, is gone, or hands over.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::fs::{FlockOperation, flock};

/// Bytes of a pid file that are read, at most.
const MOST_TEXT: u64 = 64;

/// The pid file of this process.
#[derive(Debug)]
pub struct PidFile {
    path: PathBuf,
    state: Mutex<State>,
}

#[derive(Debug)]
enum State {
    /// Not written yet.
    Absent,
    /// Written, and locked until this process drains.
    ActiveConfig(File),
    Draining,
}

impl PidFile {
    /// The file at `path`, not written yet.
    pub fn new(path: PathBuf) -> PidFile {
        PidFile {
            path,
            state: Mutex::new(State::Absent),
        }
    }

    /// Says that this process serves. Only a process that `replaces` another one takes its file.
    ///
    /// # Errors
    /// The file cannot be written; [`io::ErrorKind::AddrInUse`] where it is that of a process that
    /// serves.
    pub fn write(&self, replaces: bool) -> io::Result<()> {
        let mut state = self.state();
        if !matches!(*state, State::Absent) {
            return Ok(());
        }
        let named = |error: io::Error| {
            let text = format!(
                "server.pid_file: cannot write {}: {error}",
                self.path.display()
            );
            io::Error::new(error.kind(), text)
        };
        if let (false, Some(holder)) = (replaces, holder(&self.path)) {
            let text = format!("it names {holder}, which serves");
            return Err(named(io::Error::new(io::ErrorKind::AddrInUse, text)));
        }
        *state = State::ActiveConfig(place(&self.path).map_err(named)?);
        Ok(())
    }

    /// Lets another process write it.
    pub fn release(&self) {
        if let State::ActiveConfig(file) = std::mem::replace(&mut *self.state(), State::Draining) {
            // Closing the file would do the same, but for a copy that a child has.
            let _ = flock(&file, FlockOperation::Unlock);
        }
    }

    /// Removes it, if it still names this process. It is not written any more.
    pub fn remove(&self) {
        let mut state = self.state();
        let text = fs::read_to_string(&self.path).unwrap_or_default();
        let names_us = text.trim().parse() == Ok(std::process::id());
        if names_us && !matches!(*state, State::Absent) {
            // It may be gone already.
            let _ = fs::remove_file(&self.path);
        }
        *state = State::Draining;
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Writes it beside its place and moves it there, locked.
fn place(path: &Path) -> io::Result<File> {
    let pid = std::process::id();
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(format!(".{pid}"));
    let fresh = path.with_file_name(name);
    let write = || {
        let mut file = File::create(&fresh)?;
        file.write_all(format!("{pid}\n").as_bytes())?;
        // On a disk without locks the file is good enough without.
        let _ = flock(&file, FlockOperation::NonBlockingLockExclusive);
        fs::rename(&fresh, path)?;
        Ok(file)
    };
    write().inspect_err(|_| {
        let _ = fs::remove_file(&fresh);
    })
}

/// The process that serves and has the file, if there is one.
fn holder(path: &Path) -> Option<String> {
    let file = File::open(path).ok()?;
    let locked = flock(&file, FlockOperation::NonBlockingLockExclusive);
    if locked != Err(rustix::io::Errno::WOULDBLOCK) {
        return None;
    }
    let mut text = String::new();
    // Without the number it is another process all the same.
    let _ = file.take(MOST_TEXT).read_to_string(&mut text);
    Some(match text.trim().parse::<u32>() {
        Ok(pid) => format!("process {pid}"),
        Err(_) => "another process".to_owned(),
    })
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
