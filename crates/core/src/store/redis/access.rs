//! The way to the server that counts are kept in now, and the master that sentinels name.
//!
//! All sentinels are asked at once, so that a dead one costs no time. A server is used only if it
//! reports itself as a master. Each failover raises the configuration's epoch. The answer of a
//! sentinel that has not heard of the last failover does not count.

use std::collections::HashMap;
use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::future::select_ok;
use futures_util::stream::FuturesUnordered;
use tokio::sync::watch;
use tokio::time::sleep;

use super::RedisShared;
use super::link::{AbortOnDrop, MasterWatch, RedisLink, ServerAccess, login, within};
use crate::config::{RedisAddress, RedisSettings, RedisTopology, SentinelSettings};
use crate::store::StoreError;

/// How long one sentinel may take to answer.
const ASK_TIMEOUT: Duration = Duration::from_millis(200);
/// How often one of the sentinels is asked whether the master is still the same.
const WATCH_EVERY: Duration = Duration::from_millis(300);

pub(super) struct Access {
    topology: RedisTopology,
    sentinels: Option<Arc<SentinelClient>>,
    servers: Arc<ServerAccess>,
}

impl Access {
    /// Checks the settings; connects to nothing.
    pub(super) fn new(settings: &RedisSettings) -> Result<Access, StoreError> {
        let servers = Arc::new(ServerAccess::new(settings)?);
        let sentinels = match &settings.topology {
            RedisTopology::Sentinel(sentinels) => Some(Arc::new(SentinelClient::new(
                sentinels,
                Arc::clone(&servers),
            ))),
            RedisTopology::Single(_) | RedisTopology::Cluster { .. } => None,
        };
        Ok(Access {
            topology: settings.topology.clone(),
            sentinels,
            servers,
        })
    }

    /// A connection to the server that counts are kept in now. In a cluster it is any of the seeds.
    pub(super) async fn open(&self) -> Result<RedisLink, StoreError> {
        match (&self.topology, &self.sentinels) {
            (RedisTopology::Single(address), _) => self.open_server(address).await,
            (_, Some(sentinels)) => sentinels.open().await,
            (_, None) => {
                let seeds = self.seeds().iter();
                let links = seeds.map(|seed| Box::pin(self.open_server(seed)));
                Ok(select_ok(links).await?.0)
            }
        }
    }

    pub(super) async fn open_server(
        &self,
        address: &RedisAddress,
    ) -> Result<RedisLink, StoreError> {
        self.servers.open(address).await
    }

    pub(super) fn is_cluster(&self) -> bool {
        matches!(self.topology, RedisTopology::Cluster { .. })
    }

    /// Some nodes of a cluster; none if it is no cluster.
    pub(super) fn seeds(&self) -> &[RedisAddress] {
        match &self.topology {
            RedisTopology::Cluster { seeds } => seeds,
            RedisTopology::Single(_) | RedisTopology::Sentinel(_) => &[],
        }
    }
}

impl RedisShared {
    pub(super) fn access(&self) -> Arc<Access> {
        self.access.load_full()
    }
}

/// The sentinels, and the last failover that this process knows of.
struct SentinelClient {
    addresses: Vec<RedisAddress>,
    name: String,
    /// The way to the sentinels themselves.
    access: ServerAccess,
    /// The way to the servers that they name.
    servers: Arc<ServerAccess>,
    /// The latest epoch under which a master was found; every link watches it.
    epoch: watch::Sender<u64>,
    /// The master that the log last named.
    logged: Mutex<Option<RedisAddress>>,
}

/// The state of the master, and its address.
type SentinelAnswer = (HashMap<String, String>, Option<(String, u16)>);

#[derive(Clone, Debug)]
struct NamedMaster {
    address: RedisAddress,
    epoch: u64,
}

impl SentinelClient {
    fn new(settings: &SentinelSettings, servers: Arc<ServerAccess>) -> SentinelClient {
        SentinelClient {
            addresses: settings.addresses.clone(),
            name: settings.master.clone(),
            access: ServerAccess {
                login: login(&settings.username, &settings.password, 0),
                tls: servers.tls.clone(),
            },
            servers,
            epoch: watch::Sender::new(0),
            logged: Mutex::default(),
        }
    }

    /// A connection to the master, and a watch on which server that is.
    async fn open(self: &Arc<Self>) -> Result<RedisLink, StoreError> {
        let (mut link, named) = self.find().await?;
        self.learn_epoch(named.epoch);
        self.log_master(&named.address);
        let sentinels = Arc::clone(self);
        let watching = async move { sentinels.watch(named.epoch).await };
        link.master = Some(MasterWatch {
            latest: self.epoch.subscribe(),
            epoch: named.epoch,
            _watching: AbortOnDrop::spawn(watching),
        });
        Ok(link)
    }

    /// The first server that a sentinel names and that reports itself as a master.
    async fn find(&self) -> Result<(RedisLink, NamedMaster), StoreError> {
        let known = *self.epoch.borrow();
        let all = self.addresses.iter();
        let asking = all.map(|sentinel| self.ask_sentinel(sentinel, None));
        let mut asking = pin!(asking.collect::<FuturesUnordered<_>>());
        let mut trying = pin!(FuturesUnordered::new());
        let (mut tried, mut outdated) = (Vec::new(), Vec::new());
        let (mut sentinel_error, mut master_error) = (StoreError::NoMaster, None);
        loop {
            tokio::select! {
                biased;
                Some(result) = trying.next() => match result {
                    Ok(found) => return Ok(found),
                    Err(kind) => master_error = Some(kind),
                },
                Some(answer) = asking.next() => match answer {
                    Ok((_, named)) if named.epoch < known => outdated.push(named),
                    Ok((_, named)) if !tried.contains(&named.address) => {
                        tried.push(named.address.clone());
                        trying.push(self.open_master(named));
                    }
                    Ok(_) => {}
                    Err(kind) => sentinel_error = kind,
                },
                // No sentinel knows of the last failover, or its master is gone: the sentinels may
                // have been set up anew.
                else => match outdated.pop() {
                    Some(named) if !tried.contains(&named.address) => {
                        self.epoch.send_replace(named.epoch);
                        tried.push(named.address.clone());
                        trying.push(self.open_master(named));
                    }
                    Some(_) => {}
                    None => return Err(master_error.unwrap_or(sentinel_error)),
                },
            }
        }
    }

    /// Asks one sentinel, over `link` if there is a connection already.
    async fn ask_sentinel(
        &self,
        sentinel: &RedisAddress,
        link: Option<RedisLink>,
    ) -> Result<(RedisLink, NamedMaster), StoreError> {
        let asking = async {
            let mut link = match link {
                Some(link) => link,
                None => self.access.open(sentinel).await?,
            };
            // In this order an address is never paired with an epoch that came after it.
            let mut both = redis::pipe();
            both.cmd("SENTINEL").arg("MASTER").arg(&self.name);
            both.cmd("SENTINEL")
                .arg("GET-MASTER-ADDR-BY-NAME")
                .arg(&self.name);
            let asked = both.query_async::<SentinelAnswer>(link.connection()).await;
            let (state, address) = asked.map_err(|error| match error.code() {
                // `ERR No such master with that name`
                Some("ERR") => StoreError::NoMaster,
                _ => StoreError::from(error),
            })?;
            let (host, port) = address.ok_or(StoreError::NoMaster)?;
            let epoch = state.get("config-epoch").and_then(|text| text.parse().ok());
            let named = NamedMaster {
                address: RedisAddress::Tcp(host, port),
                epoch: epoch.unwrap_or(0),
            };
            Ok((link, named))
        };
        within(ASK_TIMEOUT, asking).await
    }

    /// Asks the sentinels in turn until one of them names a later master that serves.
    async fn watch(&self, epoch: u64) {
        let mut links: Vec<Option<RedisLink>> = self.addresses.iter().map(|_| None).collect();
        for turn in (0..self.addresses.len()).cycle() {
            sleep(WATCH_EVERY).await;
            let sentinel = &self.addresses[turn];
            let Ok((link, named)) = self.ask_sentinel(sentinel, links[turn].take()).await else {
                continue;
            };
            links[turn] = Some(link);
            if named.epoch <= epoch {
                continue;
            }
            let later = named.epoch;
            let opened = within(ASK_TIMEOUT, self.open_master(named)).await;
            if opened.is_ok() {
                self.learn_epoch(later);
                return;
            }
        }
    }

    fn learn_epoch(&self, epoch: u64) {
        self.epoch.send_if_modified(|known| {
            let is_later = epoch > *known;
            *known = epoch.max(*known);
            is_later
        });
    }

    fn log_master(&self, address: &RedisAddress) {
        let mut logged = self.logged.lock().unwrap_or_else(PoisonError::into_inner);
        if logged.as_ref() != Some(address) {
            if logged.is_some() {
                tracing::info!(%address, "redis: connected to a new master");
            }
            *logged = Some(address.clone());
        }
    }

    /// A connection to a server that reports itself as a master.
    async fn open_master(
        &self,
        named: NamedMaster,
    ) -> Result<(RedisLink, NamedMaster), StoreError> {
        let mut link = self.servers.open(&named.address).await?;
        let role: Vec<redis::Value> = redis::cmd("ROLE").query_async(link.connection()).await?;
        match role.first() {
            Some(redis::Value::BulkString(role)) if role == b"master" => Ok((link, named)),
            _ => Err(StoreError::NoMaster),
        }
    }
}
