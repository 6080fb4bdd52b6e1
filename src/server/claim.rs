//! The locks of the process that serves: one beside the control socket, for each configuration
//! file, and one on the pid file.
//!
//! A lock (`flock`) ends with its process, even if that is killed. A process that drains has
//! released its locks, so that the next one can start at once. The file of the first lock contains
//! the process id and the addresses, for the message of a second process that refuses to start.

use std::fmt;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use super::socket_file::{SocketFileId, SocketState, control_paths, make_private, socket_state};
use crate::config::{Control, SettingError};
use crate::telemetry::panics::lock;

/// Bytes that are read of a lock's file, at most.
const MAX_TEXT: u64 = 4096;
/// Attempts to lock a file that other processes remove between the open and the lock.
const TRIES: usize = 16;

/// The right to run a configuration file, once it is [taken](Claim::take).
#[derive(Debug)]
pub struct Claim {
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
        let mut own = lock(&self.lock);
        if own.is_some() || self.is_released() {
            return Ok(());
        }
        for socket in &self.sockets {
            let path = socket.with_extension("lock");
            match lock_file(&path, self.own_directory) {
                Ok(Err(holder)) => {
                    *own = None;
                    return Err(holder);
                }
                Ok(Ok(one)) if own.is_none() => *own = Some(one),
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
                if let Some(one) = own.take() {
                    one.remove();
                }
                let addresses = String::new();
                return Err(Holder { pid, addresses });
            }
        }
        Ok(())
    }

    pub fn is_held(&self) -> bool {
        self.take().is_ok()
    }

    pub(crate) fn may_control(&self) -> bool {
        let takes = self.take().is_ok() || self.replaces;
        takes && !self.is_released()
    }

    /// Writes the addresses of this process, for processes that are refused.
    pub fn write_addresses(&self, addresses: &[String]) {
        if let Some(one) = &*lock(&self.lock) {
            // On failure the message of the other process has no addresses.
            let _ = one.write(&addresses.join(", "));
        }
    }

    pub fn release(&self) {
        let mut own = lock(&self.lock);
        self.released.store(true, Ordering::Relaxed);
        if let Some(one) = own.take() {
            one.remove();
        }
    }

    fn is_released(&self) -> bool {
        self.released.load(Ordering::Relaxed)
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
            Err(Errno::WOULDBLOCK) => return Ok(Err(Holder::read(file))),
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
    fn read(file: File) -> Holder {
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

/// The pid file: it names the process that serves, so that an operator can send it a signal.
///
/// The file is replaced as a whole, so that no reader finds half a number. The serving process
/// holds its lock until it drains, and removes the file at its end. Another process replaces the
/// file only after that, or if the first process hands over.
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
        let mut state = lock(&self.state);
        if !matches!(*state, PidFileState::Unwritten) {
            return Ok(());
        }
        let name_file =
            |error: io::Error| SettingError::file("server.pid_file", "write", &self.path, &error);
        if let (false, Some(holder)) = (replaces, find_holder(&self.path)) {
            let text = format!("it names {holder}, which serves");
            return Err(name_file(io::Error::new(io::ErrorKind::AddrInUse, text)));
        }
        *state = PidFileState::Written(write_locked(&self.path).map_err(name_file)?);
        Ok(())
    }

    /// Lets another process write the file.
    pub fn release(&self) {
        let state = std::mem::replace(&mut *lock(&self.state), PidFileState::Released);
        if let PidFileState::Written(file) = state {
            // The drop of the file is not enough, because a child process may have a copy.
            let _ = flock(&file, FlockOperation::Unlock);
        }
    }

    /// Removes the file if it still names this process. It cannot be written after that.
    pub fn remove(&self) {
        let mut state = lock(&self.state);
        let text = fs::read_to_string(&self.path).unwrap_or_default();
        let names_us = text.trim().parse() == Ok(std::process::id());
        if names_us && !matches!(*state, PidFileState::Unwritten) {
            // It may be gone already.
            let _ = fs::remove_file(&self.path);
        }
        *state = PidFileState::Released;
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
    (locked == Err(Errno::WOULDBLOCK)).then(|| Holder::read(file))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Barrier;

    fn at(path: &Path) -> PidFile {
        PidFile::new(path.to_owned())
    }

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
