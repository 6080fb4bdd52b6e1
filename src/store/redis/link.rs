//! Making a connection: where the server is, how it is logged in to, and what it must answer.

use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{
    AsyncConnectionConfig, Client, ConnectionAddr, IntoConnectionInfo, ProtocolVersion, PushInfo,
    PushKind, RedisConnectionInfo, RedisError, Value,
};
use tokio::sync::mpsc;

use super::Shared;
use crate::clock;
use crate::config::{RedisAddress, RedisSettings};
use crate::store::{ServerTrouble, StoreError};

/// How long a connection and its probe may take while nobody waits for it.
pub(super) const PROBE_TIMEOUT: Duration = Duration::from_millis(400);

/// A connection that passed its probe, and the news of its end.
pub(super) struct Link {
    pub(super) connection: MultiplexedConnection,
    ended: mpsc::UnboundedReceiver<PushInfo>,
}

impl Link {
    /// Resolves when the connection has ended.
    pub(super) async fn end(&mut self) {
        while let Some(news) = self.ended.recv().await {
            if news.kind == PushKind::Disconnection {
                return;
            }
        }
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

fn kind_of(error: &RedisError) -> StoreError {
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
    let (news, ended) = mpsc::unbounded_channel();
    let config = AsyncConnectionConfig::new()
        .set_connection_timeout(Some(PROBE_TIMEOUT))
        .set_response_timeout(None)
        .set_push_sender(news);
    let connection = shared
        .client
        .get_multiplexed_async_connection_with_config(&config)
        .await;
    let mut connection = connection.map_err(|error| kind_of(&error))?;
    learn_key(&mut connection, shared).await?;
    Ok(Link { connection, ended })
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

/// How long the server takes to answer, asked once over a connection of its own. It blocks: for
/// the lines at start and for `check`, never on the path of a request.
pub fn look(server: &RedisSettings, within: Duration) -> Result<Duration, StoreError> {
    let client = client(server)?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|_| StoreError::Refused)?;
    let asking = async {
        let mut connection = client.get_multiplexed_async_connection().await?;
        let start = clock::now();
        redis::cmd("PING")
            .query_async::<()>(&mut connection)
            .await?;
        Ok(clock::now() - start)
    };
    runtime.block_on(async {
        match tokio::time::timeout(within, asking).await {
            Ok(asked) => asked.map_err(|error: redis::RedisError| kind_of(&error)),
            Err(_) => Err(StoreError::Timeout),
        }
    })
}

pub(super) fn client(server: &RedisSettings) -> Result<Client, StoreError> {
    let address = match &server.address {
        RedisAddress::Tcp(host, port) => ConnectionAddr::Tcp(host.clone(), *port),
        RedisAddress::Unix(path) => ConnectionAddr::Unix(path.clone()),
    };
    // RESP3, since only there the crate tells when an idle connection has died.
    let mut login = RedisConnectionInfo::default()
        .set_db(server.database)
        .set_protocol(ProtocolVersion::RESP3)
        .set_lib_name("tidegate", env!("CARGO_PKG_VERSION"));
    if let Some(username) = &server.username {
        login = login.set_username(username);
    }
    if let Some(password) = &server.password {
        login = login.set_password(password);
    }
    let keepalive = redis::io::tcp::socket2::TcpKeepalive::new()
        .with_time(Duration::from_secs(5))
        .with_interval(Duration::from_secs(1))
        .with_retries(3);
    let tcp = redis::io::tcp::TcpSettings::default()
        .set_nodelay(true)
        .set_keepalive(keepalive)
        .set_user_timeout(Duration::from_secs(5));
    let info = address
        .into_connection_info()
        .map_err(|_| StoreError::BadAddress)?;
    Client::open(info.set_redis_settings(login).set_tcp_settings(tcp))
        .map_err(|_| StoreError::BadAddress)
}
