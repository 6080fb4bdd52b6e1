//! The way to the server that counts are kept in now.

use std::sync::Arc;

use futures_util::future::select_ok;

use super::link::{RedisLink, ServerAccess, login};
use super::sentinel::SentinelClient;
use crate::config::{RedisAddress, RedisSettings, RedisTopology};
use crate::store::StoreError;

/// The topology, and how its servers are reached.
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
                login(&sentinels.username, &sentinels.password, 0),
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
