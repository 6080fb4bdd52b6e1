//! Questions about the cluster itself: who holds what, and whether a node is in order.

use std::sync::Arc;

use futures_util::future::select_ok;
use redis::aio::MultiplexedConnection;
use redis::{RedisError, Value};
use tokio::time::timeout;

use super::map::{Range, ranges};
use crate::config::RedisAddress;
use crate::store::redis::Shared;
use crate::store::redis::link::{Access, Link, PROBE_TIMEOUT, kind_of};
use crate::store::{ServerTrouble, StoreError};

/// A node that may be asked, with its connection.
pub(super) type Asked = (MultiplexedConnection, RedisAddress);

/// Who holds which slots, as the node says that is asked; without one, as the seed says that
/// answers first.
pub(super) async fn look(
    shared: Arc<Shared>,
    asked: Option<Asked>,
) -> Result<Vec<Range>, StoreError> {
    let looking = async {
        let Some((connection, address)) = asked else {
            return ask_seeds(&shared.access, shared.access.seeds()).await;
        };
        slots(connection, &address).await
    };
    timeout(PROBE_TIMEOUT, looking)
        .await
        .unwrap_or(Err(StoreError::Timeout))
}

async fn ask_seeds(access: &Access, seeds: &[RedisAddress]) -> Result<Vec<Range>, StoreError> {
    let looks = seeds.iter().map(|seed| Box::pin(ask_seed(access, seed)));
    select_ok(looks).await.map(|(found, _)| found)
}

async fn ask_seed(access: &Access, seed: &RedisAddress) -> Result<Vec<Range>, StoreError> {
    let mut link = access.open_server(seed).await?;
    slots(link.connection().clone(), seed).await
}

async fn slots(
    mut connection: MultiplexedConnection,
    asked: &RedisAddress,
) -> Result<Vec<Range>, StoreError> {
    let mut command = redis::cmd("CLUSTER");
    command.arg("SLOTS");
    let answer: Value = command.query_async(&mut connection).await.map_err(wrong)?;
    let ranges = ranges(&answer, asked).ok_or(StoreError::Garbled)?;
    if ranges.is_empty() {
        return Err(StoreError::Server(ServerTrouble::Cluster));
    }
    Ok(ranges)
}

/// A connection to a node that says the cluster is in order.
pub(super) async fn open(shared: Arc<Shared>, address: RedisAddress) -> Result<Link, StoreError> {
    let opening = async {
        let mut link = shared.access.open_server(&address).await?;
        let mut command = redis::cmd("CLUSTER");
        command.arg("INFO");
        let info: String = command
            .query_async(link.connection())
            .await
            .map_err(wrong)?;
        if info.contains("cluster_state:ok") {
            Ok(link)
        } else {
            Err(StoreError::Server(ServerTrouble::Cluster))
        }
    };
    timeout(PROBE_TIMEOUT, opening)
        .await
        .unwrap_or(Err(StoreError::Timeout))
}

/// A connection to the node that holds a slot; `None` where the store is no cluster.
pub(crate) async fn reach(
    redis: &Shared,
    slot: u16,
) -> Result<Option<Link>, StoreError> {
    let seeds = redis.access.seeds();
    if seeds.is_empty() {
        return Ok(None);
    }
    let ranges = ask_seeds(&redis.access, seeds).await?;
    let holds = |range: &&Range| (range.first..=range.last).contains(&slot);
    let range = ranges.iter().find(holds);
    let range = range.ok_or(StoreError::Server(ServerTrouble::Cluster))?;
    redis.access.open_server(&range.master).await.map(Some)
}

fn wrong(error: RedisError) -> StoreError {
    kind_of(&error)
}
