//! Refuses to start a second process for one file or one address, unless `--alongside` allows it.
//!
//! With SO_REUSEPORT the kernel would give each process a part of the connections. With the
//! embedded store, each process would then admit the whole of each limit.

use std::io::{Error, ErrorKind, Result};
use std::path::Path;
use std::sync::Arc;
use std::thread::sleep;
use std::time::Duration;

use crate::clock;
use crate::config::{Config, StoreKind};
use crate::server::claim::{Claim, PidFile};
use crate::server::listen::{ListenLines, PortSharer, bind_first, neighbour_at};
use crate::server::listener::OpenedSocket;

/// How long to wait for a stopped process to release its sockets.
const RELEASE_TIMEOUT: Duration = Duration::from_millis(500);
const RETRY_INTERVAL: Duration = Duration::from_millis(20);
/// How often to retry a pid file that names another process.
const PID_FILE_INTERVAL: Duration = Duration::from_secs(1);

/// How this process relates to others that run the same file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ProcessRole {
    /// No other process may run.
    Alone,
    /// `--alongside`
    Alongside,
    /// Replaces the process with this id, which hands over its sockets.
    Successor(u32),
}

/// Takes the claim to a file. With Redis, a second process may run the file on other addresses,
/// which then come from the environment. No request is counted twice, and the first process keeps
/// the control socket and the pid file.
pub(super) fn claim(file: &Path, config: &Config, role: ProcessRole) -> Result<Arc<Claim>> {
    let replaces = matches!(role, ProcessRole::Successor(_));
    let claim = Claim::new(file, &config.server.control, replaces);
    let taken = retry_until_released(|| claim.take().map_err(Some));
    if let (Err(Some(holder)), ProcessRole::Alone) = (taken, role) {
        let place = match holder.addresses.as_str() {
            "" => String::new(),
            addresses => format!(", on {addresses}"),
        };
        let found = format!("{holder} runs {} already{place}", file.display());
        if matches!(config.store.kind, StoreKind::Memory) {
            return Err(refusal(&found, config, &own_process_advice(holder.pid)));
        }
        tracing::warn!("{found}: `tidegate reload` reaches that process until it ends");
    }
    Ok(Arc::new(claim))
}

fn own_process_advice(pid: Option<u32>) -> String {
    match pid {
        Some(pid) => format!(
            "`tidegate reload` makes it read the file again, `kill -USR2 {pid}` replaces it \
             without a lost connection, `kill {pid}` ends it"
        ),
        None => "End it".to_owned(),
    }
}

/// Opens each line of `listen` that has no socket yet, if no other process listens there.
pub(super) fn bind(
    lines: ListenLines<'_>,
    config: &Config,
    role: ProcessRole,
    sockets: &mut Vec<OpenedSocket>,
) -> Result<()> {
    if role == ProcessRole::Alongside {
        return Ok(());
    }
    for line in lines.all() {
        if sockets.iter().any(|one| one.is_for(line)) {
            continue;
        }
        let bound = retry_until_released(|| {
            bind_first(line).map_err(|error| match error.kind() {
                ErrorKind::AddrInUse => None,
                _ => Some(error),
            })
        });
        match bound {
            Ok(first) => sockets.extend(first),
            Err(Some(error)) => return Err(lines.name_error(line, &error)),
            // The address may belong to another line, or to the process that this one replaces.
            Err(None) => match neighbour_at(line, sockets) {
                Some(PortSharer { pid, .. }) if is_ours(pid, role) => {}
                // No process of ours, so it counts nothing.
                Some(other) if other.pid.is_some_and(|pid| !runs_this_program(pid)) => {
                    let found = Error::new(ErrorKind::AddrInUse, other.to_string());
                    return Err(lines.name_error(line, &found));
                }
                Some(other) => {
                    let advice = own_process_advice(other.pid);
                    return Err(refusal(&other.to_string(), config, &advice));
                }
                None => {}
            },
        }
    }
    Ok(())
}

/// Whether a process is this one, or the one that it replaces.
fn is_ours(pid: Option<u32>, role: ProcessRole) -> bool {
    let predecessor = match role {
        ProcessRole::Successor(predecessor) => Some(predecessor),
        ProcessRole::Alone | ProcessRole::Alongside => None,
    };
    pid.is_some() && (pid == Some(std::process::id()) || pid == predecessor)
}

fn runs_this_program(pid: u32) -> bool {
    let program = |pid: &str| std::fs::read_to_string(format!("/proc/{pid}/comm")).ok();
    program("self").is_some_and(|own| program(&pid.to_string()) == Some(own))
}

/// Retries for a while: a process that is ending may still hold the address or the claim.
fn retry_until_released<T, E>(
    mut attempt: impl FnMut() -> std::result::Result<T, Option<E>>,
) -> std::result::Result<T, Option<E>> {
    let until = clock::now() + RELEASE_TIMEOUT;
    loop {
        match attempt() {
            Err(_) if clock::now() < until => sleep(RETRY_INTERVAL),
            done => return done,
        }
    }
}

/// Says why this process does not start, and what to do.
fn refusal(found: &str, config: &Config, advice: &str) -> Error {
    let why = match config.store.kind {
        StoreKind::Memory => "a second process would admit every limit a second time",
        StoreKind::Redis(_) => "each process would get a part of the requests",
    };
    let text = format!(
        "{found}: {why}. {advice}. Or give this process its own file and `listen`. `--alongside` \
         starts it beside the other one"
    );
    Error::new(ErrorKind::AddrInUse, text)
}

/// Writes the pid file. If another process still owns it, a thread writes it when that one drains.
pub(super) fn write_pid_file(
    file: &Arc<PidFile>,
    role: ProcessRole,
    claim: Option<&Claim>,
) -> Result<()> {
    let waits = role == ProcessRole::Alongside || claim.is_some_and(|one| !one.is_held());
    match (file.write(false), waits) {
        (Err(error), true) if error.kind() == ErrorKind::AddrInUse => {
            tracing::warn!(
                %error,
                "another process owns the pid file; it is written when that process drains"
            );
            let file = Arc::clone(file);
            let thread = std::thread::Builder::new().name("pid-file".to_owned());
            thread.spawn(move || {
                while file.write(false).is_err() {
                    sleep(PID_FILE_INTERVAL);
                }
            })?;
            Ok(())
        }
        (written, _) => written,
    }
}
