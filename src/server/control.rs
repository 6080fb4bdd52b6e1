//! The control socket: how commands talk to the running proxy.
//!
//! A unix socket for this user and root alone. One JSON object in a line each way, then the end:
//!
//! ```text
//! {"version":1,"command":"reload"}
//! {"version":1,"ok":true,"changes":["limit a: 9/s -> 5/s"],"restarts":[],"warnings":""}
//! {"version":1,"ok":false,"code":78,"error":"error[T101]: unknown key .."}
//! ```
//!
//! Both ends derive its path from that of the configuration (`control_path`), or `control` names
//! one. After an upgrade the new process has the socket. A process beside another one waits until
//! that one drains ([`Claim`]). The file is made again if something removes it.

use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::Semaphore;
use tokio::time::timeout;

use super::claim::Claim;
use super::control_path::make_private;
use super::heartbeat::Heartbeats;
use super::left_behind::{SocketFileId, SocketState, is_socket, socket_state};
use super::reload_request::{Outcome, Reload, ReloadError};
use crate::config::diagnostic::{Code, Diagnostics};
use crate::config::render;
use tidegate_core::failpoint;

/// Of the lines.
pub const VERSION: u64 = 1;
/// Bytes in a command's line.
const MOST_LINE: u64 = 4096;
/// Commands at once.
const MOST_AT_ONCE: usize = 8;
/// For a command's line to come, and for each answer to be taken.
const PATIENCE: Duration = Duration::from_secs(5);
/// How often the socket's file is looked for.
const LOOK_EVERY: Duration = Duration::from_secs(5);
/// Sockets that are looked at, whether they were left behind, and how old such ones are.
const MOST_SWEPT: usize = 256;
const LEFT_AFTER: Duration = Duration::from_secs(60);
/// How often a process that runs beside another asks for its place.
const CLAIM_EVERY: Duration = Duration::from_secs(1);
/// How often it is looked whether all workers serve.
const SERVES_EVERY: Duration = Duration::from_millis(20);

/// What refused commands exit with, as the command line has it.
const BAD_CONFIGURATION: u64 = 78;
const DID_NOT_WORK: u64 = 1;
const WRONG_USE: u64 = 2;

/// The socket, and which file it is.
struct Bound {
    listener: UnixListener,
    path: PathBuf,
    file: SocketFileId,
}

impl Bound {
    /// At the first of `places` that can be had.
    fn at_any(places: &[PathBuf], own_directory: bool) -> io::Result<Bound> {
        let mut failed = io::Error::other("there is no place for it");
        for path in places {
            match Bound::at(path, own_directory) {
                Ok(bound) => return Ok(bound),
                Err(error) => {
                    let text = format!("{}: {error}", path.display());
                    failed = io::Error::new(error.kind(), text);
                }
            }
        }
        Err(failed)
    }

    /// Beside its place and then into it, so that whoever comes meanwhile meets either the old one
    /// or this one.
    fn at(path: &Path, own_directory: bool) -> io::Result<Bound> {
        if own_directory {
            let directory = path.parent().unwrap_or(Path::new("/"));
            make_private(directory)?;
            sweep(directory);
        }
        if fs::symlink_metadata(path).is_ok_and(|file| !is_socket(&file)) {
            return Err(io::Error::other("something is there that is no socket"));
        }
        let beside = path.with_extension(std::process::id().to_string());
        let _ = fs::remove_file(&beside);
        let listener = UnixListener::bind(&beside)?;
        fs::set_permissions(&beside, Permissions::from_mode(0o600))?;
        let file = SocketFileId::of(&beside)?;
        fs::rename(&beside, path).inspect_err(|_| {
            let _ = fs::remove_file(&beside);
        })?;
        Ok(Bound {
            listener,
            path: path.to_owned(),
            file,
        })
    }

    fn is_gone(&self) -> bool {
        fs::symlink_metadata(&self.path).is_err()
    }
}

impl Drop for Bound {
    fn drop(&mut self) {
        if SocketFileId::of(&self.path).is_ok_and(|file| file == self.file) {
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Takes away what processes that were killed have left.
fn sweep(directory: &Path) {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    for path in entries.take(MOST_SWEPT).map(|entry| entry.path()) {
        let old = fs::symlink_metadata(&path).is_ok_and(|file| {
            let age = file.modified().ok().and_then(|time| time.elapsed().ok());
            is_socket(&file) && age.is_some_and(|age| age > LEFT_AFTER)
        });
        if old && socket_state(&path) == SocketState::Stale {
            let _ = fs::remove_file(&path);
        }
    }
}

/// What the control socket needs of its process.
#[derive(Clone)]
pub(super) struct Post {
    /// Where it may be.
    pub(super) places: Vec<PathBuf>,
    pub(super) own_directory: bool,
    pub(super) claim: Arc<Claim>,
    pub(super) reload: Reload,
    pub(super) heartbeats: Arc<Heartbeats>,
}

/// Serves commands, from when all workers serve and no other process has the file, until it is
/// dropped.
pub(super) async fn serve(post: Post) {
    let Post {
        places,
        own_directory: derived,
        claim,
        reload,
        heartbeats,
    } = post;
    while !heartbeats.serves() {
        tokio::time::sleep(SERVES_EVERY).await;
    }
    if places.is_empty() {
        return;
    }
    let permits = Arc::new(Semaphore::new(MOST_AT_ONCE));
    let mut told = false;
    loop {
        if !claim.may_control() {
            tokio::time::sleep(CLAIM_EVERY).await;
            continue;
        }
        let bound = match Bound::at_any(&places, derived) {
            Ok(bound) => bound,
            Err(error) => {
                if !told {
                    tracing::warn!(%error, "no control socket: `tidegate reload` cannot reach us");
                    told = true;
                }
                tokio::time::sleep(LOOK_EVERY).await;
                continue;
            }
        };
        told = false;
        tracing::debug!(path = %bound.path.display(), "control socket");
        failpoint!("server.control");
        while !bound.is_gone() {
            // After an upgrade the lock is free once the predecessor drains.
            let _ = claim.take();
            let accepted = timeout(LOOK_EVERY, bound.listener.accept()).await;
            let Ok(Ok((stream, _))) = accepted else {
                continue;
            };
            let Ok(permit) = Arc::clone(&permits).try_acquire_owned() else {
                continue;
            };
            let reload = reload.clone();
            tokio::spawn(async move {
                // Whoever asked may go at any time.
                let _ = answer(stream, &reload).await;
                drop(permit);
            });
        }
    }
}

async fn answer(stream: UnixStream, reload: &Reload) -> io::Result<()> {
    let asks = stream.peer_cred()?.uid();
    if asks != 0 && asks != rustix::process::geteuid().as_raw() {
        return Ok(());
    }
    let mut lines = BufReader::new(stream.take(MOST_LINE));
    let mut line = String::new();
    timeout(PATIENCE, lines.read_line(&mut line)).await??;
    let mut said = obey(&line, reload).await.to_string();
    said.push('\n');
    let mut stream = lines.into_inner().into_inner();
    timeout(PATIENCE, stream.write_all(said.as_bytes())).await??;
    stream.shutdown().await
}

async fn obey(line: &str, reload: &Reload) -> Value {
    let Ok(asked) = serde_json::from_str::<Value>(line) else {
        return refusal(WRONG_USE, "not a line of JSON");
    };
    if asked.get("version").and_then(Value::as_u64) != Some(VERSION) {
        return refusal(WRONG_USE, &format!("this proxy speaks version {VERSION}"));
    }
    match asked.get("command").and_then(Value::as_str) {
        Some("reload") => told(&reload.ask().await),
        _ => refusal(WRONG_USE, "this proxy has no such command"),
    }
}

fn told(outcome: &Outcome) -> Value {
    match &**outcome {
        Ok(reloaded) => json!({
            "version": VERSION,
            "ok": true,
            "changes": reloaded.changes,
            "restarts": reloaded.restarts,
            "warnings": rendered(&reloaded.warnings),
        }),
        Err(ReloadError::Mistakes(found)) => {
            let unreadable = found.list.iter().any(|one| one.code == Code::Unreadable);
            let code = if unreadable {
                DID_NOT_WORK
            } else {
                BAD_CONFIGURATION
            };
            refusal(code, &rendered(found))
        }
        Err(error) => refusal(DID_NOT_WORK, &error.to_string()),
    }
}

fn rendered(found: &Diagnostics) -> String {
    if found.is_empty() {
        return String::new();
    }
    render::human(found, false)
}

fn refusal(code: u64, error: &str) -> Value {
    json!({ "version": VERSION, "ok": false, "code": code, "error": error })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use super::*;

    #[tokio::test]
    async fn the_socket_is_for_its_user_and_goes_with_its_owner_alone() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("sub/one.sock");
        let first = Bound::at(&path, true).unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().mode() & 0o777;
        assert_eq!(mode(&path), 0o600);
        assert_eq!(mode(path.parent().unwrap()), 0o700);
        let second = Bound::at(&path, true).unwrap();
        drop(first);
        assert!(path.exists(), "the second one's");
        assert!(!second.is_gone());
        drop(second);
        assert!(!path.exists());
        fs::write(&path, "a file").unwrap();
        assert!(Bound::at(&path, true).is_err());
        fs::set_permissions(path.parent().unwrap(), Permissions::from_mode(0o777)).unwrap();
        assert!(Bound::at(&path, true).is_err(), "others could replace it");
    }
}
