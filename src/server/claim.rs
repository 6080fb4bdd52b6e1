//! One process for each configuration file: a lock beside the control socket.
//!
//! The lock (`flock`) ends with its process, even if that is killed. A process that drains has
//! released it, so that the next one can start at once. The lock's file contains the process id and
//! the addresses, for the message of a second process that refuses to start.

use std::fmt;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::fs::{FlockOperation, flock};

use super::socket_file::{SocketFileId, SocketState, control_paths, make_private, socket_state};
use crate::config::Control;

/// Bytes that are read of a lock's file, at most.
const MAX_TEXT: u64 = 4096;
/// Attempts to lock a file that other processes remove between the open and the lock.
const TRIES: usize = 16;

/// The right to run a configuration file, once it is [taken](Claim::take).
#[derive(Debug)]
pub struct Claim {
    /// The possible control sockets of the file.
    sockets: Vec<PathBuf>,
    /// Whether tidegate creates their directories.
    own_directory: bool,
    lock: Mutex<Option<ClaimLock>>,
    /// This process drains and takes the claim no more.
    released: AtomicBool,
    /// Another process has the claim until it releases it.
    replaces: bool,
}

#[derive(Debug)]
struct ClaimLock {
    file: File,
    path: PathBuf,
}

/// The process that has a lock.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Holder {
    pub pid: Option<u32>,
    /// Its listening addresses; empty if they are not known.
    pub addresses: String,
}

impl Claim {
    /// A claim to `file` that is not taken yet. A process that `replaces` another one may run
    /// beside it until the other releases the claim.
    pub fn new(file: &Path, control: &Control, replaces: bool) -> Claim {
        let control = match control {
            // Two processes without a control socket would count twice as well.
            Control::Off => &Control::Derived,
            control => control,
        };
        Claim {
            sockets: control_paths(file, control),
            own_directory: *control == Control::Derived,
            lock: Mutex::default(),
            released: AtomicBool::new(false),
            replaces,
        }
    }

    /// Takes the claim. If no lock can be created, as on a read-only disk, it is taken without one.
    ///
    /// # Errors
    /// Another process has it.
    pub fn take(&self) -> Result<(), Holder> {
        let mut lock = self.lock();
        if lock.is_some() || self.is_released() {
            return Ok(());
        }
        for socket in &self.sockets {
            let path = socket.with_extension("lock");
            match lock_file(&path, self.own_directory) {
                Ok(Err(holder)) => {
                    *lock = None;
                    return Err(holder);
                }
                Ok(Ok(one)) if lock.is_none() => *lock = Some(one),
                Ok(Ok(surplus)) => surplus.remove(),
                Err(error) => {
                    let error = format!("{}: {error}", path.display());
                    tracing::debug!(%error, "no lock there");
                }
            }
            // A process of an older version has a socket and no lock. If this user may not enter
            // the directory of the socket, its state is unknown.
            if let (false, SocketState::Served(pid)) = (self.replaces, socket_state(socket))
                && socket.symlink_metadata().is_ok()
            {
                if let Some(one) = lock.take() {
                    one.remove();
                }
                let addresses = String::new();
                return Err(Holder { pid, addresses });
            }
        }
        Ok(())
    }

    /// Whether no other process has the claim.
    pub fn is_held(&self) -> bool {
        self.take().is_ok()
    }

    /// Whether this process may bind the control socket.
    pub(crate) fn may_control(&self) -> bool {
        let takes = self.take().is_ok() || self.replaces;
        takes && !self.is_released()
    }

    /// Writes the addresses of this process, for processes that are refused.
    pub fn write_addresses(&self, addresses: &[String]) {
        if let Some(one) = &*self.lock() {
            // On failure the message of the other process has no addresses.
            let _ = one.write(&addresses.join(", "));
        }
    }

    /// Lets another process take the claim.
    pub fn release(&self) {
        let mut lock = self.lock();
        self.released.store(true, Ordering::Relaxed);
        if let Some(one) = lock.take() {
            one.remove();
        }
    }

    fn is_released(&self) -> bool {
        self.released.load(Ordering::Relaxed)
    }

    fn lock(&self) -> MutexGuard<'_, Option<ClaimLock>> {
        self.lock.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        self.release();
    }
}

impl ClaimLock {
    fn write(&self, addresses: &str) -> io::Result<()> {
        let mut file = &self.file;
        file.set_len(0)?;
        file.rewind()?;
        file.write_all(format!("{}\n{addresses}\n", std::process::id()).as_bytes())
    }

    /// Removes the file. Only the process that has the lock may do this.
    fn remove(self) {
        let there = SocketFileId::of_path(&self.path);
        if there.is_ok_and(|there| SocketFileId::of_file(&self.file).is_ok_and(|own| own == there))
        {
            // It may be gone already.
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Locks a file, or returns the process that has the lock.
fn lock_file(path: &Path, own_directory: bool) -> io::Result<Result<ClaimLock, Holder>> {
    if own_directory {
        make_private(path.parent().unwrap_or(Path::new("/")))?;
    }
    for _ in 0..TRIES {
        let mut options = OpenOptions::new();
        let options = options.read(true).write(true).create(true).truncate(false);
        let file = options.mode(0o600).open(path)?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(rustix::io::Errno::WOULDBLOCK) => return Ok(Err(Holder::read(file))),
            Err(error) => return Err(error.into()),
        }
        // A symbolic link is another file than its target, so a link is never written to.
        if SocketFileId::of_path(path).ok() == Some(SocketFileId::of_file(&file)?) {
            let path = path.to_owned();
            let lock = ClaimLock { file, path };
            lock.write("")?;
            return Ok(Ok(lock));
        }
    }
    Err(io::Error::other("the lock's file is replaced all the time"))
}

impl Holder {
    /// Reads a locked file. A file that cannot be read gives an unknown process.
    pub(super) fn read(file: File) -> Holder {
        let mut text = String::new();
        let _ = file.take(MAX_TEXT).read_to_string(&mut text);
        let mut lines = text.lines();
        Holder {
            pid: lines.next().and_then(|pid| pid.trim().parse().ok()),
            addresses: lines.next().unwrap_or_default().to_owned(),
        }
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
    use super::*;
    use std::sync::Barrier;
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
        first.write_addresses(&["http://127.0.0.1:1".to_owned()]);
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
