//! Making a connection: where the server is, how it is logged in to, and what it must answer.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::select_ok;
use redis::aio::MultiplexedConnection;
use redis::{
    AsyncConnectionConfig, ProtocolVersion, PushInfo, PushKind, RedisConnectionInfo, RedisError,
    Value,
};
use socket2::{SockRef, TcpKeepalive};
use tokio::net::{TcpStream, UnixStream, lookup_host};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use super::Shared;
use super::sentinel::{Moves, Sentinels};
use super::tls;
use crate::config::{RedisAddress, RedisSettings, RedisTopology};
use crate::store::{ServerTrouble, StoreError};
use crate::tls::TlsClient;
use crate::wire::Stream;

/// How long a connection and its probe may take while nobody waits for it.
pub(super) const PROBE_TIMEOUT: Duration = Duration::from_millis(400);

/// What every connection is made with; one for all workers.
pub(super) struct Access {
    topology: Topology,
    login: RedisConnectionInfo,
    tls: Option<TlsClient>,
}

/// Where the servers are.
enum Topology {
    Single(RedisAddress),
    Sentinel(Sentinels),
    /// The seeds.
    Cluster(Vec<RedisAddress>),
}

impl Access {
    /// Checks the settings; connects to nothing.
    pub(super) fn new(settings: &RedisSettings) -> Result<Access, StoreError> {
        let topology = match &settings.topology {
            RedisTopology::Single(address) => Topology::Single(address.clone()),
            RedisTopology::Sentinel(sentinels) => Topology::Sentinel(Sentinels::new(
                sentinels.addresses.clone(),
                sentinels.master.clone(),
                login(
                    sentinels.username.as_deref(),
                    sentinels.password.as_deref(),
                    0,
                ),
            )),
            RedisTopology::Cluster { seeds } => Topology::Cluster(seeds.clone()),
        };
        let (username, password) = (settings.username.as_deref(), settings.password.as_deref());
        Ok(Access {
            topology,
            login: login(username, password, settings.database),
            tls: settings.tls.as_deref().map(tls::new).transpose()?,
        })
    }

    /// A connection to the server that counts are kept in, wherever that is now.
    pub(super) async fn open(self: &Arc<Self>) -> Result<Link, StoreError> {
        match &self.topology {
            // Any of them: which node is asked for what is not this file's.
            Topology::Cluster(seeds) => {
                let links = seeds.iter().map(|seed| Box::pin(self.open_server(seed)));
                Ok(select_ok(links).await?.0)
            }
            Topology::Single(address) => self.open_server(address).await,
            Topology::Sentinel(sentinels) => sentinels.open(self).await,
        }
    }

    /// A connection to one server.
    pub(super) async fn open_server(&self, address: &RedisAddress) -> Result<Link, StoreError> {
        Link::open(address, &self.login, self.tls()).await
    }

    pub(super) fn tls(&self) -> Option<&TlsClient> {
        self.tls.as_ref()
    }

    pub(super) fn is_cluster(&self) -> bool {
        matches!(self.topology, Topology::Cluster(_))
    }

    /// Nodes of a cluster; none where it is no cluster.
    pub(super) fn seeds(&self) -> &[RedisAddress] {
        match &self.topology {
            Topology::Cluster(seeds) => seeds,
            Topology::Single(_) | Topology::Sentinel(_) => &[],
        }
    }

    pub(super) fn sentinels(&self) -> Option<&Sentinels> {
        match &self.topology {
            Topology::Single(_) | Topology::Cluster(_) => None,
            Topology::Sentinel(sentinels) => Some(sentinels),
        }
    }
}

fn login(username: Option<&str>, password: Option<&str>, database: i64) -> RedisConnectionInfo {
    // RESP3, since only there the crate tells when an idle connection has died.
    let mut login = RedisConnectionInfo::default()
        .set_db(database)
        .set_protocol(ProtocolVersion::RESP3)
        .set_lib_name("tidegate", env!("CARGO_PKG_VERSION"));
    if let Some(username) = username {
        login = login.set_username(username);
    }
    if let Some(password) = password {
        login = login.set_password(password);
    }
    login
}

/// A connection, and the news of its end.
pub(super) struct Link {
    connection: MultiplexedConnection,
    ended: mpsc::UnboundedReceiver<PushInfo>,
    /// Where the server may change.
    pub(super) moves: Option<Moves>,
    _driver: Driver,
}

impl Link {
    /// Connects, shakes hands and logs in.
    pub(super) async fn open(
        address: &RedisAddress,
        login: &RedisConnectionInfo,
        tls: Option<&TlsClient>,
    ) -> Result<Link, StoreError> {
        match (address, tls) {
            (RedisAddress::Unix(path), _) => {
                let stream = UnixStream::connect(path).await;
                let stream = stream.map_err(|error| unreached(&error))?;
                Link::over(Stream::Unix(stream), login).await
            }
            (RedisAddress::Tcp(host, port), None) => {
                Link::over(reach(host, *port).await?, login).await
            }
            (RedisAddress::Tcp(host, port), Some(tls)) => {
                let stream = reach(host, *port).await?;
                Link::over(tls::over(tls, stream, host).await?, login).await
            }
        }
    }

    async fn over(stream: Stream, login: &RedisConnectionInfo) -> Result<Link, StoreError> {
        let (news, ended) = mpsc::unbounded_channel();
        let config = AsyncConnectionConfig::new()
            .set_response_timeout(None)
            .set_push_sender(news);
        let opened = MultiplexedConnection::new_with_config(login, stream, config).await;
        let (connection, driver) = opened.map_err(|error| kind_of(&error))?;
        Ok(Link {
            connection,
            ended,
            moves: None,
            _driver: Driver::of(driver),
        })
    }

    pub(super) fn connection(&mut self) -> &mut MultiplexedConnection {
        &mut self.connection
    }

    /// Sends one command; its reply is to be a string.
    pub(super) async fn ask(&mut self, command: &redis::Cmd) -> Result<Vec<u8>, Failure> {
        let replied = self.connection.send_packed_command(command).await;
        match replied.and_then(Value::extract_error) {
            Ok(Value::BulkString(bytes)) => Ok(bytes),
            Ok(_) => Err(Failure(StoreError::Garbled, false)),
            Err(error) => Err(Failure::of(&error)),
        }
    }

    /// Resolves when the connection has ended, or should.
    pub(super) async fn end(&mut self) {
        let ended = &mut self.ended;
        let told = async {
            while let Some(news) = ended.recv().await {
                if news.kind == PushKind::Disconnection {
                    return;
                }
            }
        };
        let moves = async {
            match &mut self.moves {
                Some(moves) => moves.due().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = told => {}
            () = moves => {}
        }
    }

    /// Whether another server has taken this one's place.
    pub(super) fn has_moved(&self) -> bool {
        self.moves.as_ref().is_some_and(Moves::are_due)
    }
}

/// A task that ends when this is dropped.
pub(super) struct Driver(JoinHandle<()>);

impl Driver {
    pub(super) fn of(task: impl Future<Output = ()> + Send + 'static) -> Driver {
        Driver(tokio::spawn(task))
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// A socket connected to the host, at whichever of its addresses answers first.
async fn reach(host: &str, port: u16) -> Result<Stream, StoreError> {
    let addresses = lookup_host((host, port)).await;
    let addresses = addresses.map_err(|_| StoreError::Refused)?;
    let attempts: Vec<_> = addresses
        .map(|address| Box::pin(TcpStream::connect(address)))
        .collect();
    if attempts.is_empty() {
        return Err(StoreError::Refused);
    }
    let (stream, _) = select_ok(attempts)
        .await
        .map_err(|error| unreached(&error))?;
    let keepalive = TcpKeepalive::new()
        .with_time(Duration::from_secs(5))
        .with_interval(Duration::from_secs(1))
        .with_retries(3);
    let socket = SockRef::from(&stream);
    socket
        .set_tcp_nodelay(true)
        .and_then(|()| socket.set_tcp_keepalive(&keepalive))
        .and_then(|()| socket.set_tcp_user_timeout(Some(Duration::from_secs(5))))
        .map_err(|error| unreached(&error))?;
    Ok(Stream::Tcp(stream))
}

fn unreached(error: &io::Error) -> StoreError {
    match error.kind() {
        io::ErrorKind::TimedOut => StoreError::Timeout,
        _ => StoreError::Refused,
    }
}

/// Why a command failed, and whether it was for want of the script.
pub(super) struct Failure(pub(super) StoreError, pub(super) bool);

impl Failure {
    pub(super) fn of(error: &RedisError) -> Failure {
        Failure(kind_of(error), error.code() == Some("NOSCRIPT"))
    }

    pub(super) fn is_no_script(&self) -> bool {
        self.1
    }
}

pub(super) fn kind_of(error: &RedisError) -> StoreError {
    if let Some(trouble) = tls::trouble(error) {
        return StoreError::Tls(trouble);
    }
    if let Some(code) = error.code() {
        let text = format!("{code} {}", error.detail().unwrap_or_default());
        return StoreError::Server(ServerTrouble::parse(&text));
    }
    match error.kind() {
        redis::ErrorKind::AuthenticationFailed => StoreError::Server(ServerTrouble::Auth),
        _ if error.is_connection_refusal() => StoreError::Refused,
        _ if error.is_timeout() => StoreError::Timeout,
        redis::ErrorKind::Io => StoreError::Lost,
        _ => StoreError::Garbled,
    }
}

/// A connection whose server answers, with the hash key learned.
pub(super) async fn connect(shared: &Shared) -> Result<Link, StoreError> {
    let mut link = shared.access.open().await?;
    learn_key(link.connection(), shared).await?;
    Ok(link)
}

/// Reads the key that Redis holds, whose word wins; offers the one in force if it holds none.
/// Returns whether it was there: where not, somebody has emptied the store.
pub(super) async fn learn_key(
    connection: &mut MultiplexedConnection,
    shared: &Shared,
) -> Result<bool, StoreError> {
    let failed = |error: RedisError| kind_of(&error);
    if shared.keys.is_configured() {
        return redis::cmd("PING")
            .query_async::<()>(connection)
            .await
            .map(|()| true)
            .map_err(failed);
    }
    let mut was_there = true;
    let name = format!("{}hash-key", shared.prefix);
    for _ in 0..3 {
        // First a plain read: it is answered also where writes are refused.
        match redis::cmd("GET")
            .arg(&name)
            .query_async::<Option<Vec<u8>>>(connection)
            .await
        {
            Ok(None) => {
                was_there = false;
                let mine = *shared.keys.current().key.as_bytes();
                let mut offer = redis::cmd("SET");
                offer.arg(&name).arg(&mine[..]).arg("NX");
                offer
                    .query_async::<Value>(connection)
                    .await
                    .map_err(failed)?;
                continue;
            }
            Ok(Some(bytes)) => {
                if let Ok(bytes) = <[u8; 32]>::try_from(bytes) {
                    if shared.keys.learn(bytes) {
                        shared.journal.clear();
                        shared.recovery.ledger.clear();
                        tracing::debug!("redis: the hash key is learned");
                    }
                    return Ok(was_there);
                }
            }
            Err(error) if error.code() == Some("WRONGTYPE") => {}
            Err(error) => return Err(kind_of(&error)),
        }
        // The name is ours, and what stands there is no key.
        redis::cmd("DEL")
            .arg(&name)
            .query_async::<()>(connection)
            .await
            .map_err(failed)?;
    }
    Err(StoreError::Garbled)
}
