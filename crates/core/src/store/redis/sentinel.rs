//! Finding the master that sentinels name, and noticing when they name another.
//!
//! All sentinels are asked at once, so that a dead one costs nothing; a server is used only if it
//! says itself that it is a master. Each failover raises the configuration's epoch: what a sentinel
//! says that has not heard of the last one does not count.

use std::collections::HashMap;
use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use redis::RedisConnectionInfo;
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

use super::link::{Access, Driver, Link, kind_of};
use crate::config::RedisAddress;
use crate::store::StoreError;

/// How long one sentinel may take to answer.
const ASK_TIMEOUT: Duration = Duration::from_millis(200);
/// How often one of the sentinels is asked whether the master is still the same.
const WATCH_EVERY: Duration = Duration::from_millis(300);

/// Sentinels, and the last failover that we know of.
pub(super) struct Sentinels {
    addresses: Vec<RedisAddress>,
    /// The master's name.
    name: String,
    login: RedisConnectionInfo,
    /// The latest epoch that a master of this process was found under; every link watches it.
    epoch: watch::Sender<u64>,
    told: Mutex<Option<RedisAddress>>,
}

/// Says when another server has taken a link's place: all workers of a process move together, or
/// two masters would count for it.
pub(super) struct Moves {
    latest: watch::Receiver<u64>,
    mine: u64,
    _watching: Driver,
}

impl Moves {
    pub(super) fn are_due(&self) -> bool {
        *self.latest.borrow() > self.mine
    }

    /// Resolves when they are.
    pub(super) async fn due(&mut self) {
        let mine = self.mine;
        if self.latest.wait_for(|epoch| *epoch > mine).await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

/// A master, as a sentinel names it.
#[derive(Clone, Debug)]
struct Named {
    address: RedisAddress,
    epoch: u64,
}

impl Sentinels {
    pub(super) fn new(
        addresses: Vec<RedisAddress>,
        name: String,
        login: RedisConnectionInfo,
    ) -> Sentinels {
        Sentinels {
            addresses,
            name,
            login,
            epoch: watch::Sender::new(0),
            told: Mutex::default(),
        }
    }

    /// A connection to the master, and a watch on who that is.
    pub(super) async fn open(&self, access: &Arc<Access>) -> Result<Link, StoreError> {
        let (mut link, named) = self.find(access).await?;
        self.know(named.epoch);
        self.tell(&named.address);
        let access = Arc::clone(access);
        let watching = async move {
            if let Some(sentinels) = access.sentinels() {
                sentinels.watch(&access, named.epoch).await;
            }
        };
        link.moves = Some(Moves {
            latest: self.epoch.subscribe(),
            mine: named.epoch,
            _watching: Driver::of(watching),
        });
        Ok(link)
    }

    /// The first server that a sentinel names and that says itself it is a master.
    async fn find(&self, access: &Access) -> Result<(Link, Named), StoreError> {
        let known = *self.epoch.borrow();
        let all = self.addresses.iter();
        let asking = all.map(|sentinel| self.ask(access, sentinel, None));
        let mut asking = pin!(asking.collect::<FuturesUnordered<_>>());
        let mut trying = pin!(FuturesUnordered::new());
        let (mut tried, mut outdated) = (Vec::new(), Vec::new());
        let (mut of_sentinels, mut of_master) = (StoreError::NoMaster, None);
        loop {
            tokio::select! {
                biased;
                Some(result) = trying.next() => match result {
                    Ok(found) => return Ok(found),
                    Err(kind) => of_master = Some(kind),
                },
                Some(answer) = asking.next() => match answer {
                    Ok((_, named)) if named.epoch < known => outdated.push(named),
                    Ok((_, named)) if !tried.contains(&named.address) => {
                        tried.push(named.address.clone());
                        trying.push(access.open_master(named));
                    }
                    Ok(_) => {}
                    Err(kind) => of_sentinels = kind,
                },
                // Nobody knows of the last failover, or that master is gone: sentinels may have
                // been made anew.
                else => match outdated.pop() {
                    Some(named) if !tried.contains(&named.address) => {
                        self.epoch.send_replace(named.epoch);
                        tried.push(named.address.clone());
                        trying.push(access.open_master(named));
                    }
                    Some(_) => {}
                    None => return Err(of_master.unwrap_or(of_sentinels)),
                },
            }
        }
    }

    /// Asks one sentinel, over the connection if there is one already.
    async fn ask(
        &self,
        access: &Access,
        sentinel: &RedisAddress,
        link: Option<Link>,
    ) -> Result<(Link, Named), StoreError> {
        let asking = async {
            let mut link = match link {
                Some(link) => link,
                None => Link::open(sentinel, &self.login, access.tls()).await?,
            };
            // In this order an address is never paired with an epoch that came after it.
            let mut both = redis::pipe();
            both.cmd("SENTINEL").arg("MASTER").arg(&self.name);
            both.cmd("SENTINEL")
                .arg("GET-MASTER-ADDR-BY-NAME")
                .arg(&self.name);
            type Answer = (HashMap<String, String>, Option<(String, u16)>);
            let (state, address): Answer =
                both.query_async(link.connection())
                    .await
                    .map_err(|error| match error.code() {
                        // `ERR No such master with that name`
                        Some("ERR") => StoreError::NoMaster,
                        _ => kind_of(&error),
                    })?;
            let (host, port) = address.ok_or(StoreError::NoMaster)?;
            let epoch = state.get("config-epoch").and_then(|text| text.parse().ok());
            let named = Named {
                address: RedisAddress::Tcp(host, port),
                epoch: epoch.unwrap_or(0),
            };
            Ok((link, named))
        };
        let asked = timeout(ASK_TIMEOUT, asking).await;
        asked.unwrap_or(Err(StoreError::Timeout))
    }

    /// Asks the sentinels in turn until one of them knows of a later failover, whose master serves.
    async fn watch(&self, access: &Access, epoch: u64) {
        let mut kept: Vec<Option<Link>> = self.addresses.iter().map(|_| None).collect();
        for turn in (0..self.addresses.len()).cycle() {
            sleep(WATCH_EVERY).await;
            let sentinel = &self.addresses[turn];
            let Ok((link, named)) = self.ask(access, sentinel, kept[turn].take()).await else {
                continue;
            };
            kept[turn] = Some(link);
            if named.epoch <= epoch {
                continue;
            }
            let later = named.epoch;
            let serves = timeout(ASK_TIMEOUT, access.open_master(named)).await;
            if serves.is_ok_and(|result| result.is_ok()) {
                self.know(later);
                return;
            }
        }
    }

    fn know(&self, epoch: u64) {
        self.epoch.send_if_modified(|known| {
            let news = epoch > *known;
            *known = epoch.max(*known);
            news
        });
    }

    fn tell(&self, address: &RedisAddress) {
        let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        if told.as_ref() != Some(address) {
            if told.is_some() {
                tracing::info!(%address, "redis: another master");
            }
            *told = Some(address.clone());
        }
    }
}

impl Access {
    /// A connection to a server that says it is a master.
    async fn open_master(&self, named: Named) -> Result<(Link, Named), StoreError> {
        let mut link = self.open_server(&named.address).await?;
        let role: Vec<redis::Value> = redis::cmd("ROLE")
            .query_async(link.connection())
            .await
            .map_err(|error| kind_of(&error))?;
        match role.first() {
            Some(redis::Value::BulkString(role)) if role == b"master" => Ok((link, named)),
            _ => Err(StoreError::NoMaster),
        }
    }
}
