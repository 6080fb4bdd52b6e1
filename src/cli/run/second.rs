//! A second process: it refuses to run a file that another process runs, and to listen where
//! another process listens, unless `--alongside` says so.
//!
//! With SO_REUSEPORT the kernel would let it in, and give each process a part of the connections.
//! With the embedded store each limit would then admit twice as much.

use std::io::{Error, ErrorKind, Result};
use std::path::Path;
use std::sync::Arc;
use std::thread::sleep;
use std::time::Duration;

use crate::clock;
use crate::config::{Config, Listen, StoreKind};
use crate::server::claim::{Claim, Holder};
use crate::server::listen::{PortSharer, bind_first, neighbour_at};
use crate::server::listener::OpenedSocket;
use crate::server::pid_file::PidFile;

/// How long a process that was told to end has until it has let go of its sockets.
const PATIENCE: Duration = Duration::from_millis(500);
const TRY_EVERY: Duration = Duration::from_millis(20);
/// How often a pid file that names another process is tried again.
const PID_FILE_EVERY: Duration = Duration::from_secs(1);

/// What this process is to others that run the same file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ProcessRole {
    /// There is to be no other.
    Alone,
    /// `--alongside`.
    Alongside,
    /// It takes the place of this process, which hands over its sockets.
    Successor(u32),
}

/// Takes the claim to the file that is run. A file whose addresses come from the environment may
/// be run several times with one Redis: nothing is counted twice, and the control socket and the
/// pid file stay those of the first process.
pub(super) fn claim(file: &Path, config: &Config, role: ProcessRole) -> Result<Arc<Claim>> {
    let replaces = matches!(role, ProcessRole::Successor(_));
    let claim = Claim::new(file, &config.server.control, replaces);
    let taken = within_patience(|| claim.take().map_err(Some));
    if let (Err(Some(holder)), ProcessRole::Alone) = (taken, role) {
        let found = ran(file, &holder);
        if matches!(config.store.kind, StoreKind::Memory) {
            return Err(refusal(&found, config, &instead(holder.pid)));
        }
        tracing::warn!("{found}: `tidegate reload` reaches that process until it ends");
    }
    Ok(Arc::new(claim))
}

/// What to do about a process of ours.
fn instead(pid: Option<u32>) -> String {
    match pid {
        Some(pid) => format!(
            "`tidegate reload` has it read the file again, `kill -USR2 {pid}` replaces it without \
             a lost connection, `kill {pid}` ends it"
        ),
        None => "End it".to_owned(),
    }
}

fn ran(file: &Path, holder: &Holder) -> String {
    let place = match holder.addresses.as_str() {
        "" => String::new(),
        addresses => format!(", on {addresses}"),
    };
    format!("{holder} runs {} already{place}", file.display())
}

/// Opens each line of `listen` of which there is no socket yet, where no other process listens.
pub(super) fn bind<'l>(
    lines: impl Iterator<Item = &'l Listen>,
    config: &Config,
    role: ProcessRole,
    sockets: &mut Vec<OpenedSocket>,
) -> Result<()> {
    if role == ProcessRole::Alongside {
        return Ok(());
    }
    for line in lines {
        if sockets.iter().any(|one| one.is_for(line)) {
            continue;
        }
        let bound = within_patience(|| {
            bind_first(line).map_err(|error| match error.kind() {
                ErrorKind::AddrInUse => None,
                _ => Some(error),
            })
        });
        match bound {
            Ok(first) => sockets.extend(first),
            Err(Some(error)) => return Err(error),
            // Another line may be the reason, or the process whose place this one takes.
            Err(None) => match neighbour_at(line, sockets) {
                Some(PortSharer { pid, .. }) if is_ours(pid, role) => {}
                Some(other) => {
                    let end = match other.pid {
                        pid @ Some(one) if is_like_this(one) => instead(pid),
                        Some(pid) => format!("End it (`kill {pid}`)"),
                        None => "End it".to_owned(),
                    };
                    return Err(refusal(&other.to_string(), config, &end));
                }
                None => {}
            },
        }
    }
    Ok(())
}

fn is_ours(pid: Option<u32>, role: ProcessRole) -> bool {
    match role {
        ProcessRole::Successor(predecessor) => {
            pid == Some(predecessor) || pid == Some(std::process::id())
        }
        ProcessRole::Alone | ProcessRole::Alongside => pid == Some(std::process::id()),
    }
}

/// Whether a process runs the same program.
fn is_like_this(pid: u32) -> bool {
    let program = |pid: &str| std::fs::read_to_string(format!("/proc/{pid}/comm")).ok();
    program("self").is_some_and(|own| program(&pid.to_string()) == Some(own))
}

/// Tries again for a while: a process that was just told to end may still have it.
fn within_patience<T, E>(
    mut attempt: impl FnMut() -> std::result::Result<T, Option<E>>,
) -> std::result::Result<T, Option<E>> {
    let until = clock::now() + PATIENCE;
    loop {
        match attempt() {
            Err(_) if clock::now() < until => sleep(TRY_EVERY),
            done => return done,
        }
    }
}

/// Why this process does not start, and what to do.
fn refusal(found: &str, config: &Config, end: &str) -> Error {
    let why = match config.store.kind {
        StoreKind::Memory => "a second process would admit each limit once more",
        StoreKind::Redis(_) => "each process would get a part of the requests",
    };
    let text = format!(
        "{found}: {why}. {end}, or give this one a file and a `listen` of its own; \
         `--alongside` starts it beside the other one"
    );
    Error::new(ErrorKind::AddrInUse, text)
}

/// Writes the pid file; beside another process that runs the same file once that drains.
pub(super) fn write(file: &Arc<PidFile>, role: ProcessRole, claim: Option<&Claim>) -> Result<()> {
    let waits = role == ProcessRole::Alongside || claim.is_some_and(|one| !one.is_held());
    match (file.write(false), waits) {
        (Err(error), true) if error.kind() == ErrorKind::AddrInUse => {
            tracing::warn!(%error, "the pid file is written once the other process drains");
            let file = Arc::clone(file);
            let named = std::thread::Builder::new().name("pid-file".to_owned());
            named.spawn(move || {
                while file.write(false).is_err() {
                    sleep(PID_FILE_EVERY);
                }
            })?;
            Ok(())
        }
        (written, _) => written,
    }
}
