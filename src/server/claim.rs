//! One process a file: a lock beside the control socket says which process runs a configuration.
//!
//! The lock (`flock`) ends with its process, also when that is killed. A process that drains has
//! released it, so that the next one can start at once. The lock's file has the process's id and
//! its addresses, for the message with which a second process refuses to start.

use std::fmt;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::fs::{FlockOperation, flock};

use super::control_path;
use super::left_behind::{SocketFileId, SocketState, socket_state};
use crate::config::Control;

/// Bytes of a lock's file that are read, at most.
const MOST_TEXT: u64 = 4096;
/// A lock's file may be removed between opening and locking it: how often that is tried again.
const TRIES: usize = 16;

/// The right to run a file, once it is [taken](Claim::take).
#[derive(Debug)]
pub struct Claim {
    /// Where control sockets of this file may be.
    sockets: Vec<PathBuf>,
    /// Whether their directories are made by tidegate.
    own_directory: bool,
    locked: Mutex<Option<Locked>>,
    /// Whether this process drains: it takes the claim no more.
    released: AtomicBool,
    /// The claim belongs to a predecessor until that releases it.
    replaces: bool,
}

#[derive(Debug)]
struct Locked {
    file: File,
    path: PathBuf,
}

/// Another process that runs the same file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Holder {
    /// Its id, where that can be known.
    pub pid: Option<u32>,
    /// Where it listens; empty where that is not known.
    pub addresses: String,
}

enum Attempt {
    Locked(Locked),
    Held(Holder),
    Impossible(io::Error),
}

impl Claim {
    /// The claim to `file`, not taken yet. A process that `replaces` another one shares the claim
    /// until the other has released it.
    pub fn new(file: &Path, control: &Control, replaces: bool) -> Claim {
        let place = match control {
            // Without a control socket two processes would still count twice.
            Control::Off => &Control::Derived,
            control => control,
        };
        Claim {
            sockets: control_path::places(file, place),
            own_directory: *place == Control::Derived,
            locked: Mutex::default(),
            released: AtomicBool::new(false),
            replaces,
        }
    }

    /// Takes the claim. Where no lock can be made, as on a read-only disk, the claim is taken
    /// without one.
    ///
    /// # Errors
    /// Another process has it.
    pub fn take(&self) -> Result<(), Holder> {
        let mut locked = self.locked();
        if locked.is_some() || self.is_released() {
            return Ok(());
        }
        for socket in &self.sockets {
            match lock(&socket.with_extension("lock"), self.own_directory) {
                Attempt::Held(holder) => {
                    *locked = None;
                    return Err(holder);
                }
                Attempt::Locked(one) if locked.is_none() => *locked = Some(one),
                Attempt::Locked(surplus) => surplus.remove(),
                Attempt::Impossible(error) => tracing::debug!(%error, "no lock there"),
            }
            // A process of an older version has a socket and no lock.
            // A socket in a directory that this user may not enter tells nothing.
            if let (false, SocketState::Served(pid)) = (self.replaces, socket_state(socket))
                && socket.symlink_metadata().is_ok()
            {
                if let Some(one) = locked.take() {
                    one.remove();
                }
                let addresses = String::new();
                return Err(Holder { pid, addresses });
            }
        }
        Ok(())
    }

    /// Whether no other process has it.
    pub fn is_held(&self) -> bool {
        self.take().is_ok()
    }

    /// Whether this process may bind the file's control socket.
    pub(crate) fn may_control(&self) -> bool {
        let takes = self.take().is_ok() || self.replaces;
        takes && !self.is_released()
    }

    /// Writes where this process listens, for those that are refused.
    pub fn tell(&self, addresses: &[String]) {
        if let Some(one) = &*self.locked() {
            // A message without addresses is good enough.
            let _ = one.write(&addresses.join(", "));
        }
    }

    /// Lets another process have it.
    pub fn release(&self) {
        let mut locked = self.locked();
        self.released.store(true, Ordering::Relaxed);
        if let Some(one) = locked.take() {
            one.remove();
        }
    }

    fn is_released(&self) -> bool {
        self.released.load(Ordering::Relaxed)
    }

    fn locked(&self) -> MutexGuard<'_, Option<Locked>> {
        self.locked.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        self.release();
    }
}

impl Locked {
    fn write(&self, addresses: &str) -> io::Result<()> {
        let mut file = &self.file;
        file.set_len(0)?;
        file.rewind()?;
        file.write_all(format!("{}\n{addresses}\n", std::process::id()).as_bytes())
    }

    /// Only the process that has the lock removes its file.
    fn remove(self) {
        if SocketFileId::of(&self.path)
            .is_ok_and(|there| SocketFileId::of_file(&self.file).is_ok_and(|own| own == there))
        {
            // It may be gone already.
            let _ = fs::remove_file(&self.path);
        }
    }
}

fn lock(path: &Path, own_directory: bool) -> Attempt {
    let attempt = || -> io::Result<Attempt> {
        if own_directory {
            control_path::make_private(path.parent().unwrap_or(Path::new("/")))?;
        }
        for _ in 0..TRIES {
            let mut options = OpenOptions::new();
            let options = options.read(true).write(true).create(true).truncate(false);
            let file = options.mode(0o600).open(path)?;
            match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => {}
                Err(rustix::io::Errno::WOULDBLOCK) => return Ok(Attempt::Held(read(file))),
                Err(error) => return Err(error.into()),
            }
            // Also a symbolic link is another file than the one that it leads to.
            if SocketFileId::of(path).ok() == Some(SocketFileId::of_file(&file)?) {
                let locked = Locked {
                    file,
                    path: path.to_owned(),
                };
                locked.write("")?;
                return Ok(Attempt::Locked(locked));
            }
        }
        Err(io::Error::other("the lock's file is replaced all the time"))
    };
    attempt().unwrap_or_else(|error| {
        let text = format!("{}: {error}", path.display());
        Attempt::Impossible(io::Error::new(error.kind(), text))
    })
}

fn read(file: File) -> Holder {
    let mut text = String::new();
    // A message that names no process is good enough.
    let _ = file.take(MOST_TEXT).read_to_string(&mut text);
    let mut lines = text.lines();
    Holder {
        pid: lines.next().and_then(|pid| pid.parse().ok()),
        addresses: lines.next().unwrap_or_default().to_owned(),
    }
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.pid {
            Some(pid) => write!(f, "process {pid}"),
            None => f.write_str("another process"),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;

    use super::*;

    fn claim(directory: &Path) -> Claim {
        let control = Control::At(directory.join("control.sock"));
        Claim::new(Path::new("proxy.toml"), &control, false)
    }

    #[test]
    fn a_claim_belongs_to_one_until_it_is_released() {
        let directory = tempfile::tempdir().unwrap();
        let (first, second) = (claim(directory.path()), claim(directory.path()));
        first.take().unwrap();
        first.take().unwrap();
        first.tell(&["http://127.0.0.1:1".to_owned()]);
        let holder = second.take().unwrap_err();
        assert_eq!(holder.pid, Some(std::process::id()));
        assert_eq!(holder.addresses, "http://127.0.0.1:1");
        drop(second);
        assert!(directory.path().join("control.lock").exists());
        first.release();
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0);
        claim(directory.path()).take().unwrap();
    }

    #[test]
    fn of_many_that_start_at_once_one_has_the_claim() {
        let directory = tempfile::tempdir().unwrap();
        for _ in 0..50 {
            let all: Vec<Claim> = (0..8).map(|_| claim(directory.path())).collect();
            let barrier = Barrier::new(all.len());
            let taken: usize = std::thread::scope(|scope| {
                let start = |one| {
                    let barrier = &barrier;
                    scope.spawn(move || {
                        barrier.wait();
                        usize::from(Claim::take(one).is_ok())
                    })
                };
                let threads: Vec<_> = all.iter().map(start).collect();
                threads.into_iter().map(|one| one.join().unwrap()).sum()
            });
            assert_eq!(taken, 1);
        }
    }

    #[test]
    fn a_lock_is_no_link_to_something_else() {
        let directory = tempfile::tempdir().unwrap();
        let other = directory.path().join("other");
        fs::write(&other, "text").unwrap();
        std::os::unix::fs::symlink(&other, directory.path().join("control.lock")).unwrap();
        let claim = claim(directory.path());
        claim.take().unwrap();
        drop(claim);
        assert_eq!(fs::read_to_string(&other).unwrap(), "text");
    }

    #[test]
    fn a_control_socket_that_is_served_is_a_claim_too() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("control.sock");
        let socket = std::os::unix::net::UnixListener::bind(&path).unwrap();
        let holder = claim(directory.path()).take().unwrap_err();
        assert_eq!(holder.pid, Some(std::process::id()));
        drop(socket);
        claim(directory.path()).take().unwrap();
    }
}
