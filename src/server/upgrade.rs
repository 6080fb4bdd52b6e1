//! One process takes the place of another: the binary at the same path is started with the same
//! arguments, is given the very sockets that this process listens on, and once all of its workers
//! serve, this one accepts no more and drains. So no connection is refused, and none that waits in
//! a queue is lost. If the new process fails, nothing has changed.

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
/// How often it is looked whether the upgrade is still wanted.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// How long a process that closed its end may take to end.
const LAST_WORDS: Duration = Duration::from_secs(2);

/// What a service manager told this process alone.
const NOT_INHERITED: [&str; 5] = [
    "LISTEN_FDS",
    "LISTEN_PID",
    "LISTEN_FDNAMES",
    "LISTEN_PIDFDID",
    "WATCHDOG_PID",
];

/// What to start: the same file, whatever is in it by then, with the same arguments.
#[derive(Clone, Debug)]
pub struct Program {
    path: PathBuf,
    arguments: Vec<OsString>,
}

/// A process that serves on our sockets and waits for our word.
#[derive(Debug)]
pub struct Successor {
    channel: Channel,
    child: Child,
}

/// Why this process goes on as it was.
#[derive(Debug)]
pub enum UpgradeError {
    /// Its end would end its container.
    FirstProcess,
    /// The new process could not be started.
    Start(PathBuf, io::Error),
    /// The sockets could not be given to it.
    Give(io::Error),
    /// It ended before it served.
    Ended(ExitStatus),
    /// It does not serve, and was ended.
    Late,
    /// This process was told to stop meanwhile.
    Abandoned,
}

impl Program {
    /// As this process was started. A symbolic link is kept, since it may lead elsewhere next time.
    ///
    /// # Errors
    /// The path of this process is not known.
    pub fn of_this_process() -> io::Result<Program> {
        let mut arguments = std::env::args_os();
        let path = match arguments.next() {
            Some(name) if Path::new(&name).components().count() > 1 => std::path::absolute(&name)?,
            Some(name) => found(&name).map_or_else(std::env::current_exe, Ok)?,
            None => std::env::current_exe()?,
        };
        Ok(Program {
            path,
            arguments: arguments.collect(),
        })
    }
}

/// Where a shell found a program.
fn found(name: &OsStr) -> Option<PathBuf> {
    let directories = std::env::var_os("PATH")?;
    let mut paths = std::env::split_paths(&directories).map(|directory| directory.join(name));
    let path = paths.find(|path| path.is_file())?;
    std::path::absolute(path).ok()
}

/// Starts the new process and returns once it serves. Blocks; gives up when told so by `abandon`.
///
/// # Errors
/// See [`UpgradeError`]; the new process is gone then.
pub fn start(
    program: &Program,
    listeners: &Listeners,
    abandon: &AtomicBool,
) -> Result<Successor, UpgradeError> {
    if std::process::id() == 1 {
        return Err(UpgradeError::FirstProcess);
    }
    let (channel, theirs) = Channel::pair().map_err(UpgradeError::Give)?;
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
    let given = give(&channel, listeners).map_err(UpgradeError::Give);
    match given.and_then(|()| wait(&channel, &mut child, abandon)) {
        Ok(()) => Ok(Successor { channel, child }),
        Err(error) => Err(end(child, error)),
    }
}

fn give(channel: &Channel, listeners: &Listeners) -> io::Result<()> {
    channel.send(&format!("process {}", std::process::id()), &[])?;
    listeners.each(|bound, sockets| {
        let whose = if bound.lent { "lent" } else { "own" };
        let words = format!("sockets {whose} {}", bound.wanted);
        sockets.chunks(AT_ONCE).try_for_each(|sockets| {
            let descriptors: Vec<_> = sockets.iter().map(AsFd::as_fd).collect();
            channel.send(&words, &descriptors)
        })
    })?;
    channel.send("end", &[])
}

/// Until it says that it serves.
fn wait(channel: &Channel, child: &mut Child, abandon: &AtomicBool) -> Result<(), UpgradeError> {
    channel
        .wait_at_most(LOOK_EVERY)
        .map_err(UpgradeError::Give)?;
    let until = clock::now() + PATIENCE;
    while clock::now() < until {
        if abandon.load(Ordering::Relaxed) {
            return Err(UpgradeError::Abandoned);
        }
        match channel.receive() {
            Ok(Some(message)) if message.words == "ready" => return Ok(()),
            Ok(Some(_)) => {}
            Ok(None) => return Err(ended(child)),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if error.kind() == io::ErrorKind::ConnectionReset => {
                return Err(ended(child));
            }
            Err(error) => return Err(UpgradeError::Give(error)),
        }
    }
    Err(UpgradeError::Late)
}

/// It has closed its end, which it does by ending.
fn ended(child: &mut Child) -> UpgradeError {
    let until = clock::now() + LAST_WORDS;
    loop {
        match child.try_wait() {
            Ok(Some(status)) => return UpgradeError::Ended(status),
            Ok(None) if clock::now() < until => std::thread::sleep(Duration::from_millis(5)),
            _ => return UpgradeError::Late,
        }
    }
}

/// Makes sure that it is gone. One that broke off the talk usually is, and says more by its status.
fn end(mut child: Child, error: UpgradeError) -> UpgradeError {
    let error = match error {
        UpgradeError::Give(_) => match ended(&mut child) {
            UpgradeError::Ended(status) => UpgradeError::Ended(status),
            _ => error,
        },
        error => error,
    };
    // What has ended cannot be killed, and needs not be.
    let _ = child.kill();
    let _ = child.wait();
    error
}

impl Successor {
    /// Its process.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Ends it: it is not needed after all.
    pub fn end(self) {
        end(self.child, UpgradeError::Abandoned);
    }

    /// Lets it take our place, and waits until it has.
    ///
    /// # Errors
    /// It is gone.
    pub fn go(self) -> io::Result<()> {
        self.channel.send("go", &[])?;
        self.channel.wait_at_most(LAST_WORDS)?;
        // It serves in any case: one that takes its time is not waited for.
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
            UpgradeError::Late => write!(
                f,
                "the new process did not serve within {} s",
                PATIENCE.as_secs()
            ),
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
