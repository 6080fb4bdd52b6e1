//! The connections of the ledger: one to a server, or one to each master of a cluster.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use redis::{Cmd, FromRedisValue};
use tokio::time::sleep;

use crate::clock;
use crate::config::RedisAddress;
use crate::ledger::LedgerShard;
use crate::store::redis::RedisShared;
use crate::store::redis::cluster::{NodeConnection, SlotRange, read_map, slot_of_tag};
use crate::store::redis::link::{RedisLink, within};
use crate::store::{ServerTrouble, StoreError};

/// How long a call may take.
const PATIENCE: Duration = Duration::from_secs(2);
/// How long a node that did not answer is not asked. It is shorter than the end of a process.
const SPARED_FOR: Duration = Duration::from_secs(3);
/// The pause before a hash that has moved is asked for again.
const MOVE_PAUSE: Duration = Duration::from_millis(100);

pub(super) struct LedgerLinks {
    pub(super) shared: Arc<RedisShared>,
    /// The connection to a server that is no cluster.
    single: Option<RedisLink>,
    nodes: HashMap<RedisAddress, NodeLink>,
    ranges: Vec<SlotRange>,
    /// The master whose error says that the map may have changed.
    doubted_by: Option<RedisAddress>,
}

enum NodeLink {
    Open(RedisLink),
    /// It did not answer.
    Away(Instant, StoreError),
}

impl LedgerLinks {
    /// Connects to nothing.
    pub(super) fn new(shared: Arc<RedisShared>) -> LedgerLinks {
        LedgerLinks {
            shared,
            single: None,
            nodes: HashMap::new(),
            ranges: Vec::new(),
            doubted_by: None,
        }
    }

    /// Sends a command to the server that has a hash; twice if the hash may have moved to another
    /// master.
    pub(super) async fn query<T: FromRedisValue>(
        &mut self,
        shard: LedgerShard,
        command: &Cmd,
    ) -> Result<T, StoreError> {
        match self.query_once(shard, command).await {
            Err(StoreError::Server(ServerTrouble::Cluster)) if self.shared.is_cluster() => {
                sleep(MOVE_PAUSE).await;
                self.query_once(shard, command).await
            }
            answer => answer,
        }
    }

    /// Sends a command to the server that has a hash.
    pub(super) async fn query_once<T: FromRedisValue>(
        &mut self,
        shard: LedgerShard,
        command: &Cmd,
    ) -> Result<T, StoreError> {
        if !self.shared.is_cluster() {
            let answer = within(PATIENCE, self.query_single(command)).await;
            if answer.is_err() {
                self.single = None;
            }
            return answer;
        }
        self.learn_map().await?;
        let no_master = StoreError::Server(ServerTrouble::Cluster);
        let master = self.master(shard).ok_or(no_master)?.clone();
        if let Some(NodeLink::Away(since, error)) = self.nodes.get(&master)
            && clock::now().saturating_duration_since(*since) < SPARED_FOR
        {
            return Err(*error);
        }
        let answer = within(PATIENCE, self.query_node(&master, command)).await;
        if let Err(error) = answer {
            self.note_error(master, error);
        }
        answer
    }

    async fn query_single<T: FromRedisValue>(&mut self, command: &Cmd) -> Result<T, StoreError> {
        let link = match self.single.take().filter(|link| !link.has_moved()) {
            Some(link) => link,
            None => self.shared.access().open().await?,
        };
        let link = self.single.insert(link);
        Ok(command.query_async(link.connection()).await?)
    }

    async fn query_node<T: FromRedisValue>(
        &mut self,
        master: &RedisAddress,
        command: &Cmd,
    ) -> Result<T, StoreError> {
        let mut link = match self.nodes.remove(master) {
            Some(NodeLink::Open(link)) => link,
            _ => self.shared.access().open_server(master).await?,
        };
        let answer = command.query_async(link.connection()).await;
        self.nodes.insert(master.clone(), NodeLink::Open(link));
        Ok(answer?)
    }

    /// The other masters keep their connections.
    fn note_error(&mut self, master: RedisAddress, error: StoreError) {
        match error {
            StoreError::Server(ServerTrouble::Cluster) => {}
            StoreError::Server(_) | StoreError::Garbled => return,
            _ => {
                let away = NodeLink::Away(clock::now(), error);
                self.nodes.insert(master.clone(), away);
            }
        }
        self.doubted_by = Some(master);
    }

    /// Reads which master has which slots, if that is not known or may have changed. Fails if it is
    /// not known.
    pub(super) async fn learn_map(&mut self) -> Result<(), StoreError> {
        let doubted_by = self.doubted_by.take();
        if !self.shared.is_cluster() || (doubted_by.is_none() && !self.ranges.is_empty()) {
            return Ok(());
        }
        // The node that does not have a slot any more knows of the move before others.
        let node = doubted_by.and_then(|address| match self.nodes.get_mut(&address) {
            Some(NodeLink::Open(link)) => Some(NodeConnection {
                connection: link.connection().clone(),
                address,
            }),
            _ => None,
        });
        match read_map(Arc::clone(&self.shared), node).await {
            Ok(ranges) => self.ranges = ranges,
            Err(error) if self.ranges.is_empty() => return Err(error),
            Err(_) => {}
        }
        Ok(())
    }

    /// The master that has a hash, as far as is known.
    pub(super) fn master(&self, shard: LedgerShard) -> Option<&RedisAddress> {
        let slot = slot_of_tag(shard.to_string().as_bytes());
        let mut ranges = self.ranges.iter();
        let range = ranges.find(|range| (range.first..=range.last).contains(&slot));
        range.map(|range| &range.master)
    }
}
