//! An upgrade: a new process replaces this one without a refused or lost connection.
//!
//! The binary at the same path is started with the same arguments, and inherits the listening
//! sockets. When all workers of the new process serve, this process stops accepting and drains. If
//! the new process fails, this one goes on as before.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::handover::{AT_ONCE, Channel, VARIABLE, VERSION};
use super::listen::Listeners;
use crate::clock;
use crate::telemetry::panics::lock;

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

#[derive(Clone, Debug)]
pub struct ProgramCommand {
    path: PathBuf,
    arguments: Vec<OsString>,
}

#[derive(Debug)]
pub struct Successor {
    channel: Channel,
    child: Child,
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

fn find_in_path(name: &OsStr) -> Option<PathBuf> {
    let directories = std::env::var_os("PATH")?;
    let mut paths = std::env::split_paths(&directories).map(|directory| directory.join(name));
    let path = paths.find(|path| path.is_file())?;
    std::path::absolute(path).ok()
}

/// Starts the new process and returns when it serves. Blocks, and gives up when `abandon` is set.
///
/// # Errors
/// The new process has ended then, and this process serves as before.
pub fn start(
    program: &ProgramCommand,
    listeners: &Listeners,
    abandon: &AtomicBool,
) -> io::Result<Successor> {
    if std::process::id() == 1 {
        let text = "this is process 1, whose end would end the container";
        return Err(io::Error::other(text));
    }
    let (channel, theirs) = Channel::pair().map_err(|error| broken(&error))?;
    // The command has a copy of `theirs`, so it must be dropped here.
    let child = {
        let mut command = Command::new(&program.path);
        command.args(&program.arguments).stdin(theirs);
        command.env(VARIABLE, VERSION);
        for name in NOT_INHERITED {
            command.env_remove(name);
        }
        let path = program.path.display();
        command.spawn().map_err(|error| {
            let text = format!("cannot start {path}: {error}");
            io::Error::new(error.kind(), text)
        })?
    };
    tracing::info!(pid = child.id(), program = %program.path.display(), "upgrade: started");
    let sent = send_sockets(&channel, listeners);
    match sent.and_then(|()| wait_until_ready(&channel, abandon)) {
        Ok(()) => Ok(Successor { channel, child }),
        Err(error) => Err(end_failed(child, error)),
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
    if let Some(admin) = &*lock(&listeners.admin) {
        let words = format!("sockets own {}", admin.name);
        channel.send(&words, &[admin.socket.as_fd()])?;
    }
    channel.send("end", &[])
}

/// Fails with [`io::ErrorKind::ConnectionReset`] if the new process closes its end of the channel.
fn wait_until_ready(channel: &Channel, abandon: &AtomicBool) -> io::Result<()> {
    channel.set_timeout(CHECK_EVERY)?;
    let until = clock::now() + PATIENCE;
    while clock::now() < until {
        if abandon.load(Ordering::Relaxed) {
            return Err(abandoned());
        }
        match channel.receive() {
            Ok(Some(message)) if message.words == "ready" => return Ok(()),
            Ok(Some(_)) => {}
            Ok(None) => return Err(io::ErrorKind::ConnectionReset.into()),
            Err(error) => match error.kind() {
                io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted => {}
                _ => return Err(error),
            },
        }
    }
    Err(io::ErrorKind::TimedOut.into())
}

/// The error of an upgrade that this process gives up.
pub fn abandoned() -> io::Error {
    let text = "this process was told to stop meanwhile";
    io::Error::new(io::ErrorKind::Interrupted, text)
}

fn broken(error: &io::Error) -> io::Error {
    io::Error::other(format!("cannot hand the sockets over: {error}"))
}

/// Waits for the end of a process that has closed its end of the channel.
fn wait_for_exit(child: &mut Child) -> Option<ExitStatus> {
    let until = clock::now() + EXIT_TIMEOUT;
    loop {
        match child.try_wait() {
            Ok(None) if clock::now() < until => std::thread::sleep(Duration::from_millis(5)),
            ended => return ended.ok().flatten(),
        }
    }
}

/// Kills the new process. If it ended by itself and broke the channel, its exit status is the
/// better error.
fn end_failed(mut child: Child, error: io::Error) -> io::Error {
    let ended = match error.kind() {
        io::ErrorKind::Interrupted | io::ErrorKind::TimedOut => None,
        _ => wait_for_exit(&mut child),
    };
    kill(child);
    match (ended, error.kind()) {
        (Some(status), _) => io::Error::other(format!("the new process ended: {status}")),
        (None, io::ErrorKind::TimedOut | io::ErrorKind::ConnectionReset) => {
            let seconds = PATIENCE.as_secs();
            io::Error::other(format!("the new process did not serve within {seconds} s"))
        }
        (None, io::ErrorKind::Interrupted) => error,
        (None, _) => broken(&error),
    }
}

fn kill(mut child: Child) {
    let _ = child.kill();
    let _ = child.wait();
}

impl Successor {
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub fn end(self) {
        kill(self.child);
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
