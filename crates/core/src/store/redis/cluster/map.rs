//! Which node of a cluster holds which slot, and in which slot a budget is counted.
//!
//! Pure: what a node says of the cluster comes in as values.

use redis::Value;

use crate::config::RedisAddress;
use crate::limit::LimitCheck;

/// Slots of every cluster.
pub(super) const SLOTS: usize = 16_384;

/// A node, for as long as this process knows it.
pub(super) type NodeId = u16;
const NOBODY: NodeId = NodeId::MAX;

/// The slot that an item's key is in: only what stands between the braces counts, and no prefix
/// has braces (`store::batch::store_key`).
pub(crate) fn slot_of(item: &LimitCheck) -> u16 {
    match &item.limit.slot {
        Some(slot) => slot_of_tag(slot.as_bytes()),
        None => slot_of_tag(&item.tag.text()),
    }
}

/// The slot of a key that consists of this, or has it between braces.
pub(crate) fn slot_of_tag(tag: &[u8]) -> u16 {
    let crc = tag.iter().fold(0u16, |crc, byte| {
        (crc << 8) ^ CRC16[usize::from((crc >> 8) as u8 ^ byte)]
    });
    crc % SLOTS as u16
}

/// CRC-16/XMODEM, as the cluster's specification has it.
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

/// Who holds each slot.
#[derive(Debug)]
pub(super) struct SlotMap {
    owners: Box<[NodeId]>,
}

impl Default for SlotMap {
    fn default() -> SlotMap {
        SlotMap {
            owners: vec![NOBODY; SLOTS].into_boxed_slice(),
        }
    }
}

impl SlotMap {
    pub(super) fn owner(&self, slot: u16) -> Option<NodeId> {
        let owner = self.owners[usize::from(slot) % SLOTS];
        (owner != NOBODY).then_some(owner)
    }

    pub(super) fn assign(&mut self, slot: u16, node: NodeId) {
        self.owners[usize::from(slot) % SLOTS] = node;
    }

    /// Forgets all; what follows assigns anew.
    pub(super) fn clear(&mut self) {
        self.owners.fill(NOBODY);
    }

    pub(super) fn owns_any(&self, node: NodeId) -> bool {
        self.owners.contains(&node)
    }
}

/// Slots from the first to the last, both included, and the master that holds them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Range {
    pub(super) first: u16,
    pub(super) last: u16,
    pub(super) master: RedisAddress,
}

/// Reads the answer to CLUSTER SLOTS. A node that does not know its own address is where it was
/// `asked`. `None` if it cannot be read.
pub(super) fn ranges(answer: &Value, asked: &RedisAddress) -> Option<Vec<Range>> {
    let Value::Array(entries) = answer else {
        return None;
    };
    entries
        .iter()
        .map(|entry| {
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
            let (host, port) = (master.first()?, master.get(1)?);
            let Value::Int(port) = port else {
                return None;
            };
            let host = match host {
                Value::BulkString(host) => String::from_utf8(host.clone()).ok()?,
                Value::SimpleString(host) => host.clone(),
                Value::Nil => String::new(),
                _ => return None,
            };
            Some(Range {
                first: u16::try_from(*first).ok()?,
                last: u16::try_from(*last)
                    .ok()
                    .filter(|last| usize::from(*last) < SLOTS)?,
                master: address(&host, u16::try_from(*port).ok()?, asked),
            })
        })
        .collect()
}

/// What a node says when it is not the one to ask.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Elsewhere {
    /// The slot belongs to another node.
    Moved(RedisAddress),
    /// It is moving there, and this key already has.
    Ask(RedisAddress),
    /// It is moving, and the keys of one call lie on both sides.
    TryAgain,
}

/// Reads an error's code and text. None of these has run anything.
pub(super) fn elsewhere(code: &str, text: &str, asked: &RedisAddress) -> Option<Elsewhere> {
    if code == "TRYAGAIN" {
        return Some(Elsewhere::TryAgain);
    }
    let (_, endpoint) = text.trim().split_once(' ')?;
    let (host, port) = endpoint.rsplit_once(':')?;
    let there = address(host, port.parse().ok()?, asked);
    match code {
        "MOVED" => Some(Elsewhere::Moved(there)),
        "ASK" => Some(Elsewhere::Ask(there)),
        _ => None,
    }
}

fn address(host: &str, port: u16, asked: &RedisAddress) -> RedisAddress {
    match (host, asked) {
        ("" | "?", RedisAddress::Tcp(host, _)) => RedisAddress::Tcp(host.clone(), port),
        _ => RedisAddress::Tcp(host.to_owned(), port),
    }
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
        let read = ranges(&answer, &at("redis", 7005)).unwrap();
        assert_eq!(read[0].master, at("::1", 7000));
        assert_eq!((read[1].first, read[1].last), (8192, 16_383));
        assert_eq!(read[1].master, at("redis", 7001));
        let beyond = Value::Array(vec![entry(0, 16_384, node(text("a"), 1))]);
        assert_eq!(ranges(&beyond, &at("redis", 7005)), None);
    }

    #[test]
    fn redirections_name_a_node() {
        let asked = at("redis", 7005);
        let moved = |text| elsewhere("MOVED", text, &asked);
        let to = |host, port| Some(Elsewhere::Moved(at(host, port)));
        assert_eq!(moved("3999 127.0.0.1:6381"), to("127.0.0.1", 6381));
        assert_eq!(moved("3999 ::1:6381"), to("::1", 6381));
        assert_eq!(moved("3999 :6381"), to("redis", 6381));
        assert_eq!(moved("3999"), None);
        assert_eq!(
            elsewhere("ASK", "3999 host.example:1", &asked),
            Some(Elsewhere::Ask(at("host.example", 1)))
        );
        assert_eq!(
            elsewhere("CLUSTERDOWN", "Hash slot not served", &asked),
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
