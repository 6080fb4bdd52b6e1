//! Making a connection: where the server is, how to log in, and what it must answer. And the call
//! of the script over a connection.

use std::error::Error;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures_util::future::select_ok;
use redis::aio::MultiplexedConnection;
use redis::{
    AsyncConnectionConfig, Cmd, ErrorKind, ProtocolVersion, PushInfo, PushKind,
    RedisConnectionInfo, RedisError, Value,
};
use socket2::{SockRef, TcpKeepalive};
use tokio::net::{TcpStream, UnixStream, lookup_host};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_rustls::TlsStream;

use super::RedisShared;
use crate::config::{RedisAddress, RedisSettings, Secret};
use crate::store::batch::{self, Group, ScriptCall, ScriptName};
use crate::store::{ServerTrouble, StoreError};
use crate::tls::{TlsClient, TlsTrouble};
use crate::wire::Stream;

/// How long a connection and its probe may take while no request waits for them.
pub(super) const PROBE_TIMEOUT: Duration = Duration::from_millis(400);

/// Login and TLS of connections. All workers share it, so TLS sessions are resumed.
pub(super) struct ServerAccess {
    pub(super) login: RedisConnectionInfo,
    pub(super) tls: Option<TlsClient>,
}

impl ServerAccess {
    /// Checks the settings; connects to nothing.
    pub(super) fn new(settings: &RedisSettings) -> Result<ServerAccess, StoreError> {
        let tls = settings.tls.as_deref();
        let tls = tls.map(|settings| TlsClient::new(settings, &[]).map_err(StoreError::Tls));
        Ok(ServerAccess {
            login: login(&settings.username, &settings.password, settings.database),
            tls: tls.transpose()?,
        })
    }

    /// Connects, shakes hands and logs in.
    pub(super) async fn open(&self, address: &RedisAddress) -> Result<RedisLink, StoreError> {
        let stream = match (address, &self.tls) {
            (RedisAddress::Unix(path), _) => {
                let stream = UnixStream::connect(path).await;
                Stream::Unix(stream.map_err(|error| connect_error(&error))?)
            }
            (RedisAddress::Tcp(host, port), None) => Stream::Tcp(connect_tcp(host, *port).await?),
            (RedisAddress::Tcp(host, port), Some(tls)) => {
                let stream = Stream::Tcp(connect_tcp(host, *port).await?);
                let stream = tls.over(stream, host).await.map_err(|error| {
                    tracing::debug!(%error, host, "redis: the TLS handshake failed");
                    TlsTrouble::within(&error).map_or(StoreError::Lost, StoreError::Tls)
                })?;
                Stream::Tls(Box::new(TlsStream::Client(stream)))
            }
        };
        let (sender, pushes) = mpsc::unbounded_channel();
        let config = AsyncConnectionConfig::new()
            .set_response_timeout(None)
            .set_push_sender(sender);
        let opened = MultiplexedConnection::new_with_config(&self.login, stream, config).await;
        let (connection, driver) = opened?;
        Ok(RedisLink {
            connection,
            pushes,
            master: None,
            _driver: AbortOnDrop::spawn(driver),
        })
    }
}

/// Watches whether another server has taken the place of a link's master. All workers of a process
/// move together, or two masters would count for it.
pub(super) struct MasterWatch {
    pub(super) latest: watch::Receiver<u64>,
    pub(super) epoch: u64,
    pub(super) _watching: AbortOnDrop,
}

impl MasterWatch {
    pub(super) fn has_moved(&self) -> bool {
        *self.latest.borrow() > self.epoch
    }

    pub(super) async fn moved(&mut self) {
        let own = self.epoch;
        if self.latest.wait_for(|epoch| *epoch > own).await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

pub(super) fn login(
    username: &Option<String>,
    password: &Option<Secret<String>>,
    database: i64,
) -> RedisConnectionInfo {
    // RESP3, since only there the crate reports when an idle connection has died.
    let mut login = RedisConnectionInfo::default()
        .set_db(database)
        .set_protocol(ProtocolVersion::RESP3)
        .set_lib_name("tidegate", env!("CARGO_PKG_VERSION"));
    if let Some(username) = username {
        login = login.set_username(username);
    }
    if let Some(password) = password {
        login = login.set_password(&**password);
    }
    login
}

/// A connection, and the news of its end.
pub(super) struct RedisLink {
    connection: MultiplexedConnection,
    pushes: mpsc::UnboundedReceiver<PushInfo>,
    /// Where the master may change.
    pub(super) master: Option<MasterWatch>,
    _driver: AbortOnDrop,
}

impl RedisLink {
    pub(super) fn connection(&mut self) -> &mut MultiplexedConnection {
        &mut self.connection
    }

    /// Resolves when the connection has ended, or should.
    pub(super) async fn ended(&mut self) {
        let pushes = &mut self.pushes;
        let disconnected = async {
            while let Some(push) = pushes.recv().await {
                if push.kind == PushKind::Disconnection {
                    return;
                }
            }
        };
        let has_moved = async {
            match &mut self.master {
                Some(master) => master.moved().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = disconnected => {}
            () = has_moved => {}
        }
    }

    pub(super) fn has_moved(&self) -> bool {
        self.master.as_ref().is_some_and(MasterWatch::has_moved)
    }
}

/// A task that ends when this is dropped.
pub(super) struct AbortOnDrop(JoinHandle<()>);

impl AbortOnDrop {
    pub(super) fn spawn(task: impl Future<Output = ()> + Send + 'static) -> AbortOnDrop {
        AbortOnDrop(tokio::spawn(task))
    }
}

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// A socket connected to the host, at the address that answers first.
async fn connect_tcp(host: &str, port: u16) -> Result<TcpStream, StoreError> {
    let addresses = lookup_host((host, port)).await;
    let addresses = addresses.map_err(|_| StoreError::Refused)?;
    let attempts: Vec<_> = addresses
        .map(|address| Box::pin(TcpStream::connect(address)))
        .collect();
    if attempts.is_empty() {
        return Err(StoreError::Refused);
    }
    let connected = async {
        let (stream, _) = select_ok(attempts).await?;
        let keepalive = TcpKeepalive::new()
            .with_time(Duration::from_secs(5))
            .with_interval(Duration::from_secs(1))
            .with_retries(3);
        let socket = SockRef::from(&stream);
        socket.set_tcp_nodelay(true)?;
        socket.set_tcp_keepalive(&keepalive)?;
        socket.set_tcp_user_timeout(Some(Duration::from_secs(5)))?;
        Ok(stream)
    };
    connected.await.map_err(|error| connect_error(&error))
}

fn connect_error(error: &io::Error) -> StoreError {
    match error.kind() {
        io::ErrorKind::TimedOut => StoreError::Timeout,
        _ => StoreError::Refused,
    }
}

impl From<RedisError> for StoreError {
    fn from(error: RedisError) -> StoreError {
        StoreError::from(&error)
    }
}

impl From<&RedisError> for StoreError {
    fn from(error: &RedisError) -> StoreError {
        if let Some(trouble) = tls_trouble(error) {
            return StoreError::Tls(trouble);
        }
        if let Some(code) = error.code() {
            let text = format!("{code} {}", error.detail().unwrap_or_default());
            return StoreError::Server(ServerTrouble::parse(&text));
        }
        match error.kind() {
            ErrorKind::AuthenticationFailed => StoreError::Server(ServerTrouble::Auth),
            _ if error.is_connection_refusal() => StoreError::Refused,
            _ if error.is_timeout() => StoreError::Timeout,
            ErrorKind::Io => StoreError::Lost,
            _ => StoreError::Garbled,
        }
    }
}

/// The version of what all proxies of the store share; 0 if nothing is at `key`.
pub(super) async fn read_version(
    connection: &mut MultiplexedConnection,
    key: String,
) -> Result<u64, RedisError> {
    let mut command = redis::cmd("GET");
    let version: Option<Vec<u8>> = command.arg(key).query_async(connection).await?;
    let Some(version) = version else {
        return Ok(0);
    };
    let number = std::str::from_utf8(&version).ok();
    let no_number = (ErrorKind::UnexpectedReturnType, "the version is no number");
    let number = number.and_then(|text| text.parse().ok());
    number.ok_or_else(|| no_number.into())
}

/// Whether the server answers, but not with a version: decisions go on.
pub(super) fn is_refusal(error: &RedisError) -> bool {
    match error.code() {
        Some(code) => code != "LOADING",
        None => error.kind() == ErrorKind::UnexpectedReturnType,
    }
}

/// The TLS trouble behind an error, where a server refuses us after the handshake.
fn tls_trouble(error: &RedisError) -> Option<TlsTrouble> {
    let source = error.source()?;
    let inner = source.downcast_ref::<Arc<dyn Error + Send + Sync>>()?;
    TlsTrouble::within(inner.downcast_ref::<io::Error>()?)
}

/// Waits for `attempt` at most so long.
pub(super) async fn within<T, E: From<StoreError>>(
    limit: Duration,
    attempt: impl Future<Output = Result<T, E>>,
) -> Result<T, E> {
    let result = timeout(limit, attempt).await;
    result.unwrap_or_else(|_| Err(StoreError::Timeout.into()))
}

pub(super) struct ScriptRun<'r> {
    pub(super) shared: &'r RedisShared,
    /// A worker's name as a holder of slots; 0 for none.
    pub(super) holder: u64,
    /// Whether the node of a cluster is to answer although the slot is not yet its own.
    pub(super) asking: bool,
}

impl ScriptRun<'_> {
    /// Sends `groups` once, and returns the reply. The script is named by its hash. Only if the
    /// server does not know it, and so has run nothing, the same groups are sent with its text.
    /// `command` is a buffer.
    pub(super) async fn send<'g>(
        &self,
        connection: &mut MultiplexedConnection,
        command: &mut Cmd,
        groups: impl Iterator<Item = Group<'g>> + Clone,
    ) -> Result<Vec<u8>, RedisError> {
        let mut items = groups.clone().flat_map(|group| group.charge);
        let needs_clock = items.any(|item| item.window.calendar.is_some());
        let mut call = ScriptCall {
            script: ScriptName::Hash(&self.shared.script_hash),
            prefix: &self.shared.prefix,
            holder: self.holder,
            now_us: None,
            store_us: match needs_clock {
                true => self.shared.instant().store_us,
                false => 0,
            },
        };
        loop {
            batch::write(command, call, groups.clone());
            let reply = match self.asking {
                false => connection.send_packed_command(command).await?,
                true => send_asking(connection, command).await?,
            };
            match reply.extract_error() {
                Ok(Value::BulkString(bytes)) => return Ok(bytes),
                Ok(_) => return Err((ErrorKind::UnexpectedReturnType, "no string").into()),
                Err(error)
                    if error.code() == Some("NOSCRIPT")
                        && matches!(call.script, ScriptName::Hash(_)) =>
                {
                    call.script = ScriptName::Text;
                }
                Err(error) => return Err(error),
            }
        }
    }
}

/// Sends ASKING and the command in one piece: nothing of another call may come between them.
async fn send_asking(
    connection: &mut MultiplexedConnection,
    command: &Cmd,
) -> Result<Value, RedisError> {
    let mut both = redis::Pipeline::with_capacity(2);
    both.cmd("ASKING").ignore();
    both.add_command(command.clone());
    let mut values = connection.send_packed_commands(&both, 1, 1).await?;
    Ok(values.pop().unwrap_or(Value::Nil))
}

/// A connection whose server answers, with the hash key learned.
pub(super) async fn connect(shared: &RedisShared) -> Result<RedisLink, StoreError> {
    let mut link = shared.access().open().await?;
    learn_key(link.connection(), shared).await?;
    Ok(link)
}

/// Reads the hash key in Redis, which all proxies use. If there is none, offers the one in force.
/// Returns whether the key was there; if not, the store has been emptied.
pub(super) async fn learn_key(
    connection: &mut MultiplexedConnection,
    shared: &RedisShared,
) -> Result<bool, StoreError> {
    if shared.keys.is_configured() {
        redis::cmd("PING").query_async::<()>(connection).await?;
        return Ok(true);
    }
    let mut was_there = true;
    let name = format!("{}hash-key", shared.prefix);
    for _ in 0..3 {
        // A plain read first: servers that refuse writes answer it too.
        let mut read = redis::cmd("GET");
        let read = read.arg(&name).query_async::<Option<Vec<u8>>>(connection);
        match read.await {
            Ok(None) => {
                was_there = false;
                let own = *shared.keys.current().key.as_bytes();
                let mut offer = redis::cmd("SET");
                offer.arg(&name).arg(&own[..]).arg("NX");
                offer.query_async::<Value>(connection).await?;
                continue;
            }
            Ok(Some(bytes)) => {
                if let Ok(bytes) = <[u8; 32]>::try_from(bytes) {
                    if shared.keys.learn(bytes) {
                        shared.journal.clear();
                        shared.recovery.last_answers.clear();
                        tracing::debug!("redis: the hash key is read");
                    }
                    return Ok(was_there);
                }
            }
            Err(error) if error.code() == Some("WRONGTYPE") => {}
            Err(error) => return Err(error.into()),
        }
        // The name is ours, and its value is no hash key.
        let mut delete = redis::cmd("DEL");
        delete.arg(&name).query_async::<()>(connection).await?;
    }
    Err(StoreError::Garbled)
}

/// Compares the hash secret with that of the proxy that started last, once in a process, and warns
/// if they differ. Redis keeps a digest of the secret, in the slot of the hash key.
pub(super) async fn compare_secrets(
    connection: &mut MultiplexedConnection,
    shared: &RedisShared,
) -> Result<(), StoreError> {
    if shared.keys.is_compared.swap(true, Ordering::Relaxed) {
        return Ok(());
    }
    let prefix = &shared.prefix;
    let name = format!("{prefix}fingerprint{{{prefix}hash-key}}");
    let own = shared.keys.fingerprint();
    let compared = async {
        let mut read = redis::cmd("GET");
        let known: Option<Vec<u8>> = read.arg(&name).query_async(connection).await?;
        if known.as_deref() == Some(own.as_bytes()) {
            return Ok(());
        }
        if known.is_some() {
            tracing::warn!(
                "redis: the proxy that started last hashes keys with another secret, so the two \
                 count apart; give all proxies of a store the same `hash_key_file`"
            );
        }
        let mut write = redis::cmd("SET");
        write.arg(&name).arg(&own).query_async(connection).await
    };
    match compared.await {
        // Nothing else depends on it, so a server may refuse it.
        Err(error) if error.code().is_none() => {
            shared.keys.is_compared.store(false, Ordering::Relaxed);
            Err(error.into())
        }
        _ => Ok(()),
    }
}
