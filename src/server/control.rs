//! The control socket, over which commands talk to the running proxy.
//!
//! It is a unix socket for this user and root. Each side sends one line of JSON, then the end:
//!
//! ```text
//! {"version":1,"command":"reload"}
//! {"version":1,"ok":true,"changes":["limit a: 9/s -> 5/s"],"restarts":[],"problems":[],
//! "warnings":""}
//! {"version":1,"ok":false,"code":78,"error":"error[T101]: unknown key .."}
//! ```
//!
//! Both sides derive the path of the socket from that of the configuration, or `control` names it
//! (`socket_file`). After an upgrade the new process has the socket. A process that runs beside
//! another one waits until that one drains ([`Claim`]). A removed file is created again.

use std::fmt;
use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{Semaphore, mpsc, oneshot};
use tokio::time::timeout;

use super::claim::Claim;
use super::socket_file::{SocketFileId, SocketState, is_socket, make_private, socket_state};
use super::worker_set::Heartbeats;
use crate::config::diagnostic::{Code, Diagnostics};
use crate::config::render;
use tidegate_core::failpoint;

pub const VERSION: u64 = 1;
const MAX_LINE: u64 = 4096;
const MAX_AT_ONCE: usize = 8;
/// How long a command's line, and the write of an answer, may take.
const PATIENCE: Duration = Duration::from_secs(5);
const CHECK_EVERY: Duration = Duration::from_secs(5);
/// Files in the directory that are checked for stale sockets, and the age of a stale socket.
const MAX_SWEPT: usize = 256;
const STALE_AFTER: Duration = Duration::from_secs(60);
/// How often a process tries to take the claim of another one.
const CLAIM_EVERY: Duration = Duration::from_secs(1);
const SERVES_EVERY: Duration = Duration::from_millis(20);

/// Exit codes of refused commands.
const BAD_CONFIGURATION: u64 = 78;
const DID_NOT_WORK: u64 = 1;
const WRONG_USE: u64 = 2;

/// Requests for a reload that may wait. Others get [`ReloadError::Busy`].
const MAX_WAITING: usize = 64;

#[derive(Debug)]
pub struct Reloaded {
    /// One line each.
    pub changes: Vec<String>,
    pub restarts: Vec<String>,
    /// Parts of the new configuration that do not work now, one line each.
    pub problems: Vec<String>,
    pub warnings: Diagnostics,
}

#[derive(Debug)]
pub enum ReloadError {
    /// The proxy was started by flags.
    NoFile,
    /// The file has mistakes, or cannot be read.
    Mistakes(Diagnostics),
    /// Something in the configuration cannot be used, for example an address.
    Unusable(io::Error),
    /// Too many requests wait.
    Busy,
    /// The process is ending.
    Stopping,
}

impl fmt::Display for ReloadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ReloadError::NoFile => f.write_str("there is no file to read: started by flags"),
            ReloadError::Mistakes(found) => write!(f, "{}", render::human(found, false)),
            ReloadError::Unusable(error) => error.fmt(f),
            ReloadError::Busy => f.write_str("too many reloads wait already"),
            ReloadError::Stopping => f.write_str("the proxy is stopping"),
        }
    }
}

impl std::error::Error for ReloadError {}

/// The result of a reload, shared by all that requested it.
pub type ReloadOutcome = Arc<Result<Reloaded, ReloadError>>;

#[derive(Clone, Debug)]
pub struct Reload(mpsc::Sender<oneshot::Sender<ReloadOutcome>>);

#[derive(Debug)]
pub struct Requests(pub(super) mpsc::Receiver<oneshot::Sender<ReloadOutcome>>);

pub(super) fn reload_channel() -> (Reload, Requests) {
    let (sender, receiver) = mpsc::channel(MAX_WAITING);
    (Reload(sender), Requests(receiver))
}

impl Reload {
    pub async fn request(&self) -> ReloadOutcome {
        let (answer, outcome) = oneshot::channel();
        let refused = |error| Arc::new(Err(error));
        match self.0.try_send(answer) {
            Err(TrySendError::Full(_)) => refused(ReloadError::Busy),
            Err(TrySendError::Closed(_)) => refused(ReloadError::Stopping),
            Ok(()) => (outcome.await).unwrap_or_else(|_| refused(ReloadError::Stopping)),
        }
    }

    /// Requests a reload. The log tells its result.
    pub fn request_and_leave(&self) {
        let (answer, _) = oneshot::channel();
        // If the channel is full, the file will be read after this moment in any case.
        let _ = self.0.try_send(answer);
    }
}

/// The bound socket. Its drop removes the file, if the file is still its own.
struct ControlSocket {
    listener: UnixListener,
    path: PathBuf,
    file: SocketFileId,
}

impl ControlSocket {
    fn bind_any(places: &[PathBuf], own_directory: bool) -> io::Result<ControlSocket> {
        let mut failed = io::Error::other("there is no place for it");
        for path in places {
            match ControlSocket::bind(path, own_directory) {
                Ok(bound) => return Ok(bound),
                Err(error) => {
                    let text = format!("{}: {error}", path.display());
                    failed = io::Error::new(error.kind(), text);
                }
            }
        }
        Err(failed)
    }

    /// Binds at another path and renames the file, so that a client always finds a socket that is
    /// served.
    fn bind(path: &Path, own_directory: bool) -> io::Result<ControlSocket> {
        if own_directory {
            let directory = path.parent().unwrap_or(Path::new("/"));
            make_private(directory)?;
            remove_stale(directory);
        }
        if fs::symlink_metadata(path).is_ok_and(|file| !is_socket(&file)) {
            return Err(io::Error::other("something is there that is no socket"));
        }
        let beside = path.with_extension(std::process::id().to_string());
        let _ = fs::remove_file(&beside);
        let listener = UnixListener::bind(&beside)?;
        fs::set_permissions(&beside, Permissions::from_mode(0o600))?;
        let file = SocketFileId::of_path(&beside)?;
        fs::rename(&beside, path).inspect_err(|_| {
            let _ = fs::remove_file(&beside);
        })?;
        Ok(ControlSocket {
            listener,
            path: path.to_owned(),
            file,
        })
    }
}

impl Drop for ControlSocket {
    fn drop(&mut self) {
        if SocketFileId::of_path(&self.path).is_ok_and(|file| file == self.file) {
            let _ = fs::remove_file(&self.path);
        }
    }
}

fn remove_stale(directory: &Path) {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    for path in entries.take(MAX_SWEPT).map(|entry| entry.path()) {
        let old = fs::symlink_metadata(&path).is_ok_and(|file| {
            let age = file.modified().ok().and_then(|time| time.elapsed().ok());
            is_socket(&file) && age.is_some_and(|age| age > STALE_AFTER)
        });
        if old && socket_state(&path) == SocketState::Stale {
            let _ = fs::remove_file(&path);
        }
    }
}

#[derive(Clone)]
pub(super) struct ControlSettings {
    pub(super) places: Vec<PathBuf>,
    pub(super) own_directory: bool,
    pub(super) claim: Arc<Claim>,
    pub(super) reload: Reload,
    pub(super) heartbeats: Arc<Heartbeats>,
}

/// Serves commands until it is dropped. It begins when all workers serve and no other process has
/// the claim.
pub(super) async fn serve(settings: ControlSettings) {
    while !settings.heartbeats.serves() {
        tokio::time::sleep(SERVES_EVERY).await;
    }
    if settings.places.is_empty() {
        return;
    }
    let permits = Arc::new(Semaphore::new(MAX_AT_ONCE));
    let mut is_logged = false;
    loop {
        if !settings.claim.may_control() {
            tokio::time::sleep(CLAIM_EVERY).await;
            continue;
        }
        let bound = match ControlSocket::bind_any(&settings.places, settings.own_directory) {
            Ok(bound) => bound,
            Err(error) => {
                if !std::mem::replace(&mut is_logged, true) {
                    tracing::warn!(
                        %error,
                        "server.control: no control socket: `tidegate reload` cannot reach this \
                         process; name a path that the user of the proxy may write"
                    );
                }
                tokio::time::sleep(CHECK_EVERY).await;
                continue;
            }
        };
        is_logged = false;
        tracing::debug!(path = %bound.path.display(), "control socket");
        failpoint!("server.control");
        while fs::symlink_metadata(&bound.path).is_ok() {
            // After an upgrade the old process releases the lock when it drains.
            let _ = settings.claim.take();
            let accepted = timeout(CHECK_EVERY, bound.listener.accept()).await;
            let Ok(Ok((stream, _))) = accepted else {
                continue;
            };
            let Ok(permit) = Arc::clone(&permits).try_acquire_owned() else {
                continue;
            };
            let reload = settings.reload.clone();
            tokio::spawn(async move {
                // The command may end at any time.
                let _ = answer(stream, &reload).await;
                drop(permit);
            });
        }
    }
}

async fn answer(stream: UnixStream, reload: &Reload) -> io::Result<()> {
    let user = stream.peer_cred()?.uid();
    if user != 0 && user != rustix::process::geteuid().as_raw() {
        return Ok(());
    }
    let mut lines = BufReader::new(stream.take(MAX_LINE));
    let mut line = String::new();
    timeout(PATIENCE, lines.read_line(&mut line)).await??;
    let mut answer = run_command(&line, reload).await.to_string();
    answer.push('\n');
    let mut stream = lines.into_inner().into_inner();
    timeout(PATIENCE, stream.write_all(answer.as_bytes())).await??;
    stream.shutdown().await
}

async fn run_command(line: &str, reload: &Reload) -> Value {
    let Ok(command) = serde_json::from_str::<Value>(line) else {
        return refusal(WRONG_USE, "not a line of JSON");
    };
    if command.get("version").and_then(Value::as_u64) != Some(VERSION) {
        return refusal(WRONG_USE, &format!("this proxy speaks version {VERSION}"));
    }
    match command.get("command").and_then(Value::as_str) {
        Some("reload") => describe(&reload.request().await),
        _ => refusal(WRONG_USE, "this proxy has no such command"),
    }
}

fn describe(outcome: &ReloadOutcome) -> Value {
    match &**outcome {
        Ok(reloaded) => json!({
            "version": VERSION,
            "ok": true,
            "changes": reloaded.changes,
            "restarts": reloaded.restarts,
            "problems": reloaded.problems,
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
        let first = ControlSocket::bind(&path, true).unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().mode() & 0o777;
        assert_eq!(mode(&path), 0o600);
        assert_eq!(mode(path.parent().unwrap()), 0o700);
        let second = ControlSocket::bind(&path, true).unwrap();
        drop(first);
        assert!(path.exists(), "the second one's");
        assert!(fs::symlink_metadata(&second.path).is_ok());
        drop(second);
        assert!(!path.exists());
        fs::write(&path, "a file").unwrap();
        assert!(ControlSocket::bind(&path, true).is_err());
        fs::set_permissions(path.parent().unwrap(), Permissions::from_mode(0o777)).unwrap();
        assert!(
            ControlSocket::bind(&path, true).is_err(),
            "others could replace it"
        );
    }
}
