//! An upgrade: a new process replaces this one without a refused or lost connection.
//!
//! The binary at the same path is started with the same arguments, and inherits the listening
//! sockets. When all workers of the new process serve, this process stops accepting and drains. If
//! the new process fails, this one goes on as before.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::io;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::handover::{AT_ONCE, Channel, VARIABLE, VERSION};
use super::listen::Listeners;
use crate::clock;

/// How long the new process may take until it serves.
const PATIENCE: Duration = Duration::from_secs(60);
/// How often the wait checks whether the upgrade is abandoned.
const CHECK_EVERY: Duration = Duration::from_millis(100);
/// How long a process may take to end after it has closed its end of the channel.
const EXIT_TIMEOUT: Duration = Duration::from_secs(2);

/// Variables of a service manager that are meant for this process only.
const NOT_INHERITED: [&str; 5] = [
    "LISTEN_FDS",
    "LISTEN_PID",
    "LISTEN_FDNAMES",
    "LISTEN_PIDFDID",
    "WATCHDOG_PID",
];

/// The path and the arguments with which this process was started.
#[derive(Clone, Debug)]
pub struct ProgramCommand {
    path: PathBuf,
    arguments: Vec<OsString>,
}

/// A new process that serves and waits for permission to replace this one.
#[derive(Debug)]
pub struct Successor {
    channel: Channel,
    child: Child,
}

/// Why an upgrade failed. This process then serves as before.
#[derive(Debug)]
pub enum UpgradeError {
    /// This is process 1, whose end would end its container.
    FirstProcess,
    Start(PathBuf, io::Error),
    /// The sockets could not be sent.
    Give(io::Error),
    /// The new process ended before it served.
    Ended(ExitStatus),
    /// The new process did not serve in time and was killed.
    Late,
    Abandoned,
}

impl ProgramCommand {
    /// The command of this process. A symbolic link is not resolved, because it may lead to a new
    /// version.
    ///
    /// # Errors
    /// The path of this process is not known.
    pub fn of_this_process() -> io::Result<ProgramCommand> {
        let mut arguments = std::env::args_os();
        let path = match arguments.next() {
            Some(name) if Path::new(&name).components().count() > 1 => std::path::absolute(&name)?,
            Some(name) => find_in_path(&name).map_or_else(std::env::current_exe, Ok)?,
            None => std::env::current_exe()?,
        };
        Ok(ProgramCommand {
            path,
            arguments: arguments.collect(),
        })
    }
}

/// Finds a program as a shell does.
fn find_in_path(name: &OsStr) -> Option<PathBuf> {
    let directories = std::env::var_os("PATH")?;
    let mut paths = std::env::split_paths(&directories).map(|directory| directory.join(name));
    let path = paths.find(|path| path.is_file())?;
    std::path::absolute(path).ok()
}

/// Starts the new process and returns when it serves. Blocks, and gives up when `abandon` is set.
///
/// # Errors
/// See [`UpgradeError`]. The new process has ended then.
pub fn start(
    program: &ProgramCommand,
    listeners: &Listeners,
    abandon: &AtomicBool,
) -> Result<Successor, UpgradeError> {
    if std::process::id() == 1 {
        return Err(UpgradeError::FirstProcess);
    }
    let (channel, theirs) = Channel::pair().map_err(UpgradeError::Give)?;
    // The command has a copy of `theirs`, so it must be dropped here.
    let mut child = {
        let mut command = Command::new(&program.path);
        command
            .args(&program.arguments)
            .stdin(theirs)
            .env(VARIABLE, VERSION);
        for name in NOT_INHERITED {
            command.env_remove(name);
        }
        let spawned = command.spawn();
        spawned.map_err(|error| UpgradeError::Start(program.path.clone(), error))?
    };
    tracing::info!(pid = child.id(), program = %program.path.display(), "upgrade: started");
    let sent = send_sockets(&channel, listeners).map_err(UpgradeError::Give);
    match sent.and_then(|()| wait_until_ready(&channel, &mut child, abandon)) {
        Ok(()) => Ok(Successor { channel, child }),
        Err(error) => Err(kill(child, error)),
    }
}

fn send_sockets(channel: &Channel, listeners: &Listeners) -> io::Result<()> {
    channel.send(&format!("process {}", std::process::id()), &[])?;
    listeners.for_each_line(|line, sockets| {
        let owner = if line.lent { "lent" } else { "own" };
        let words = format!("sockets {owner} {}", line.wanted);
        sockets.chunks(AT_ONCE).try_for_each(|sockets| {
            let descriptors: Vec<_> = sockets.iter().map(AsFd::as_fd).collect();
            channel.send(&words, &descriptors)
        })
    })?;
    channel.send("end", &[])
}

fn wait_until_ready(
    channel: &Channel,
    child: &mut Child,
    abandon: &AtomicBool,
) -> Result<(), UpgradeError> {
    channel
        .set_timeout(CHECK_EVERY)
        .map_err(UpgradeError::Give)?;
    let until = clock::now() + PATIENCE;
    while clock::now() < until {
        if abandon.load(Ordering::Relaxed) {
            return Err(UpgradeError::Abandoned);
        }
        match channel.receive() {
            Ok(Some(message)) if message.words == "ready" => return Ok(()),
            Ok(Some(_)) => {}
            Ok(None) => return Err(wait_for_exit(child)),
            Err(error) => match error.kind() {
                io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted => {}
                io::ErrorKind::ConnectionReset => return Err(wait_for_exit(child)),
                _ => return Err(UpgradeError::Give(error)),
            },
        }
    }
    Err(UpgradeError::Late)
}

/// Waits for the end of a process that has closed its end of the channel.
fn wait_for_exit(child: &mut Child) -> UpgradeError {
    let until = clock::now() + EXIT_TIMEOUT;
    loop {
        match child.try_wait() {
            Ok(Some(status)) => return UpgradeError::Ended(status),
            Ok(None) if clock::now() < until => std::thread::sleep(Duration::from_millis(5)),
            _ => return UpgradeError::Late,
        }
    }
}

/// Kills the new process. If it ended by itself and broke the channel, its exit status is the
/// better error.
fn kill(mut child: Child, mut error: UpgradeError) -> UpgradeError {
    if let UpgradeError::Give(_) = error
        && let UpgradeError::Ended(status) = wait_for_exit(&mut child)
    {
        error = UpgradeError::Ended(status);
    }
    // Fails if the process has ended.
    let _ = child.kill();
    let _ = child.wait();
    error
}

impl Successor {
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Kills the new process, because it is not needed.
    pub fn end(self) {
        kill(self.child, UpgradeError::Abandoned);
    }

    /// Lets the new process replace this one, and waits until it has.
    ///
    /// # Errors
    /// The new process has ended.
    pub fn replace_this_process(self) -> io::Result<()> {
        self.channel.send("go", &[])?;
        self.channel.set_timeout(EXIT_TIMEOUT)?;
        // After the timeout too, the new process serves.
        let _ = self.channel.receive();
        Ok(())
    }
}

impl fmt::Display for UpgradeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            UpgradeError::FirstProcess => {
                f.write_str("this is process 1, and its end would end its container")
            }
            UpgradeError::Start(path, error) => {
                write!(f, "cannot start {}: {error}", path.display())
            }
            UpgradeError::Give(error) => write!(f, "cannot hand the sockets over: {error}"),
            UpgradeError::Ended(status) => write!(f, "the new process ended: {status}"),
            UpgradeError::Late => {
                let seconds = PATIENCE.as_secs();
                write!(f, "the new process did not serve within {seconds} s")
            }
            UpgradeError::Abandoned => f.write_str("this process was told to stop meanwhile"),
        }
    }
}

impl std::error::Error for UpgradeError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            UpgradeError::Start(_, error) | UpgradeError::Give(error) => Some(error),
            _ => None,
        }
    }
}
