//! The cluster's map: the slot of each budget, the node of each slot, and the commands that ask
//! nodes for it.

use std::sync::Arc;

use futures_util::future::select_ok;
use redis::Value;
use redis::aio::MultiplexedConnection;

use crate::config::RedisAddress;
use crate::limit::LimitCheck;
use crate::store::redis::RedisShared;
use crate::store::redis::access::Access;
use crate::store::redis::link::{PROBE_TIMEOUT, RedisLink, within};
use crate::store::{ServerTrouble, StoreError};

const SLOTS: usize = 16_384;

/// A node, for as long as this process knows it.
pub(super) type NodeId = u16;
pub(super) const NO_NODE: NodeId = NodeId::MAX;

/// The slot of an item's key (`store::batch::store_key`): that of the part between its braces. No
/// prefix has braces.
pub(crate) fn slot_of(item: &LimitCheck) -> u16 {
    match &item.limit.slot {
        Some(slot) => slot_of_tag(slot.as_bytes()),
        None => slot_of_tag(&item.tag.text()),
    }
}

/// The slot of a key that is `tag`, or has it between braces.
pub(crate) fn slot_of_tag(tag: &[u8]) -> u16 {
    let crc = tag.iter().fold(0u16, |crc, byte| {
        (crc << 8) ^ CRC16[usize::from((crc >> 8) as u8 ^ byte)]
    });
    crc % SLOTS as u16
}

/// CRC-16/XMODEM, as in the cluster's specification.
const CRC16: [u16; 256] = {
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        let mut crc = (byte as u16) << 8;
        let mut bit = 0;
        while bit < 8 {
            crc = (crc << 1) ^ if crc & 0x8000 == 0 { 0 } else { 0x1021 };
            bit += 1;
        }
        table[byte] = crc;
        byte += 1;
    }
    table
};

#[derive(Debug)]
pub(super) struct SlotMap {
    owners: Box<[NodeId]>,
}

impl Default for SlotMap {
    fn default() -> SlotMap {
        SlotMap {
            owners: vec![NO_NODE; SLOTS].into_boxed_slice(),
        }
    }
}

impl SlotMap {
    pub(super) fn owner(&self, slot: u16) -> Option<NodeId> {
        let owner = self.owners[usize::from(slot) % SLOTS];
        (owner != NO_NODE).then_some(owner)
    }

    pub(super) fn assign(&mut self, slot: u16, node: NodeId) {
        self.owners[usize::from(slot) % SLOTS] = node;
    }

    pub(super) fn clear(&mut self) {
        self.owners.fill(NO_NODE);
    }

    pub(super) fn owns_any(&self, node: NodeId) -> bool {
        self.owners.contains(&node)
    }
}

/// Slots from the first to the last, both included, and the master that holds them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SlotRange {
    pub(crate) first: u16,
    pub(crate) last: u16,
    pub(crate) master: RedisAddress,
}

/// Reads the answer to CLUSTER SLOTS. A node that does not know its own address has the address
/// that was `asked`. Returns `None` if the answer cannot be read.
fn parse_ranges(answer: &Value, asked: &RedisAddress) -> Option<Vec<SlotRange>> {
    let Value::Array(entries) = answer else {
        return None;
    };
    let ranges = entries.iter().map(|entry| parse_range(entry, asked));
    ranges.collect()
}

fn parse_range(entry: &Value, asked: &RedisAddress) -> Option<SlotRange> {
    let Value::Array(fields) = entry else {
        return None;
    };
    let [
        Value::Int(first),
        Value::Int(last),
        Value::Array(master),
        ..,
    ] = &fields[..]
    else {
        return None;
    };
    let [host, Value::Int(port), ..] = &master[..] else {
        return None;
    };
    let host = match host {
        Value::BulkString(host) => std::str::from_utf8(host).ok()?,
        Value::SimpleString(host) => host,
        Value::Nil => "",
        _ => return None,
    };
    let range = SlotRange {
        first: u16::try_from(*first).ok()?,
        last: u16::try_from(*last).ok()?,
        master: address(host, u16::try_from(*port).ok()?, asked),
    };
    (usize::from(range.last) < SLOTS).then_some(range)
}

/// Why a node does not answer a call. None of these has run anything.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Redirection {
    Moved(RedisAddress),
    /// The slot is moving there, and this key already has.
    Ask(RedisAddress),
    /// The slot is moving, and the keys of one call lie on both sides.
    TryAgain,
}

impl Redirection {
    pub(super) fn parse(code: &str, text: &str, asked: &RedisAddress) -> Option<Redirection> {
        if code == "TRYAGAIN" {
            return Some(Redirection::TryAgain);
        }
        let (_, endpoint) = text.trim().split_once(' ')?;
        let (host, port) = endpoint.rsplit_once(':')?;
        let target = address(host, port.parse().ok()?, asked);
        match code {
            "MOVED" => Some(Redirection::Moved(target)),
            "ASK" => Some(Redirection::Ask(target)),
            _ => None,
        }
    }
}

fn address(host: &str, port: u16, asked: &RedisAddress) -> RedisAddress {
    match (host, asked) {
        ("" | "?", RedisAddress::Tcp(host, _)) => RedisAddress::Tcp(host.clone(), port),
        _ => RedisAddress::Tcp(host.to_owned(), port),
    }
}

/// A connection to a node, and its address.
#[derive(Clone)]
pub(crate) struct NodeConnection {
    pub(crate) connection: MultiplexedConnection,
    pub(crate) address: RedisAddress,
}

impl NodeConnection {
    async fn read_ranges(mut self) -> Result<Vec<SlotRange>, StoreError> {
        let mut command = redis::cmd("CLUSTER");
        command.arg("SLOTS");
        let answer: Value = command.query_async(&mut self.connection).await?;
        let ranges = parse_ranges(&answer, &self.address).ok_or(StoreError::Garbled)?;
        if ranges.is_empty() {
            return Err(StoreError::Server(ServerTrouble::Cluster));
        }
        Ok(ranges)
    }
}

/// Which master holds which slots, as `node` says, or else the seed that answers first.
pub(crate) async fn read_map(
    shared: Arc<RedisShared>,
    node: Option<NodeConnection>,
) -> Result<Vec<SlotRange>, StoreError> {
    within(PROBE_TIMEOUT, async {
        match node {
            Some(node) => node.read_ranges().await,
            None => ask_seeds(&shared.access()).await,
        }
    })
    .await
}

async fn ask_seeds(access: &Access) -> Result<Vec<SlotRange>, StoreError> {
    let seeds = access.seeds().iter();
    let asking = seeds.map(|seed| Box::pin(ask_seed(access, seed)));
    select_ok(asking).await.map(|(ranges, _)| ranges)
}

async fn ask_seed(access: &Access, seed: &RedisAddress) -> Result<Vec<SlotRange>, StoreError> {
    let mut link = access.open_server(seed).await?;
    let node = NodeConnection {
        connection: link.connection().clone(),
        address: seed.clone(),
    };
    node.read_ranges().await
}

/// A connection to a node that reports the cluster's state as ok.
pub(super) async fn open(
    shared: Arc<RedisShared>,
    address: RedisAddress,
) -> Result<RedisLink, StoreError> {
    within(PROBE_TIMEOUT, async {
        let mut link = shared.access().open_server(&address).await?;
        let mut command = redis::cmd("CLUSTER");
        command.arg("INFO");
        let info: String = command.query_async(link.connection()).await?;
        match info.contains("cluster_state:ok") {
            true => Ok(link),
            false => Err(StoreError::Server(ServerTrouble::Cluster)),
        }
    })
    .await
}

/// A connection to the node that holds a slot; `None` if the store is no cluster.
pub(crate) async fn open_slot(
    shared: &RedisShared,
    slot: u16,
) -> Result<Option<RedisLink>, StoreError> {
    if !shared.access().is_cluster() {
        return Ok(None);
    }
    let ranges = ask_seeds(&shared.access()).await?;
    let holds = |range: &&SlotRange| (range.first..=range.last).contains(&slot);
    let range = ranges.iter().find(holds);
    let range = range.ok_or(StoreError::Server(ServerTrouble::Cluster))?;
    shared.access().open_server(&range.master).await.map(Some)
}

/// A slot of each master of a cluster.
pub(crate) async fn first_slots(shared: &RedisShared) -> Result<Vec<u16>, StoreError> {
    let mut ranges = ask_seeds(&shared.access()).await?;
    let mut masters = std::collections::HashSet::new();
    ranges.retain(|range| masters.insert(range.master.clone()));
    Ok(ranges.iter().map(|range| range.first).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(host: &str, port: u16) -> RedisAddress {
        RedisAddress::Tcp(host.to_owned(), port)
    }

    #[test]
    fn slots_are_those_of_the_specification() {
        // As CLUSTER KEYSLOT says.
        for (tag, slot) in [("123456789", 12_739), ("foo", 12_182), ("", 0)] {
            assert_eq!(slot_of_tag(tag.as_bytes()), slot, "{tag}");
        }
    }

    #[test]
    fn an_answer_becomes_ranges() {
        let text = |text: &str| Value::BulkString(text.as_bytes().to_vec());
        let node = |host: Value, port| Value::Array(vec![host, Value::Int(port), text("id")]);
        let entry = |first, last, master| {
            let fields = vec![Value::Int(first), Value::Int(last), master];
            Value::Array(fields)
        };
        let answer = Value::Array(vec![
            entry(0, 8191, node(text("::1"), 7000)),
            entry(8192, 16_383, node(Value::Nil, 7001)),
        ]);
        let read = parse_ranges(&answer, &at("redis", 7005)).unwrap();
        assert_eq!(read[0].master, at("::1", 7000));
        assert_eq!((read[1].first, read[1].last), (8192, 16_383));
        assert_eq!(read[1].master, at("redis", 7001));
        let beyond = Value::Array(vec![entry(0, 16_384, node(text("a"), 1))]);
        assert_eq!(parse_ranges(&beyond, &at("redis", 7005)), None);
    }

    #[test]
    fn redirections_name_a_node() {
        let asked = at("redis", 7005);
        let moved = |text| Redirection::parse("MOVED", text, &asked);
        let to = |host, port| Some(Redirection::Moved(at(host, port)));
        assert_eq!(moved("3999 127.0.0.1:6381"), to("127.0.0.1", 6381));
        assert_eq!(moved("3999 ::1:6381"), to("::1", 6381));
        assert_eq!(moved("3999 :6381"), to("redis", 6381));
        assert_eq!(moved("3999"), None);
        assert_eq!(
            Redirection::parse("ASK", "3999 host.example:1", &asked),
            Some(Redirection::Ask(at("host.example", 1)))
        );
        assert_eq!(
            Redirection::parse("CLUSTERDOWN", "Hash slot not served", &asked),
            None
        );
    }

    #[test]
    fn a_map_forgets_and_learns() {
        let mut map = SlotMap::default();
        assert_eq!(map.owner(5), None);
        map.assign(5, 3);
        assert_eq!((map.owner(5), map.owns_any(3)), (Some(3), true));
        map.clear();
        assert!(!map.owns_any(3));
    }
}
