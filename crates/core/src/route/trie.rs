//! A trie of path segments that holds the routes of one host pattern, by their index.
//!
//! A large table is seldom in the CPU caches, so a walk costs the cache lines that it touches. A
//! node is one cache line with the text that leads to it. The nodes of a route are neighbours.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::num::NonZeroU32;

use hashbrown::HashTable;

use super::PathPattern;
use super::pattern::Segment;

/// A map by texts of the configuration. Clients cannot add keys, so its hash needs no secret.
pub(super) type Texts<T> = HashMap<Box<str>, T, BuildHasherDefault<Fnv>>;

/// FNV-1a, which is fast for short texts.
#[derive(Clone, Copy, Debug)]
pub(super) struct Fnv(u64);

impl Default for Fnv {
    fn default() -> Self {
        Fnv(0xcbf2_9ce4_8422_2325)
    }
}

impl Hasher for Fnv {
    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = (self.0 ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

#[derive(Clone, Debug)]
pub(super) struct Trie {
    /// The first is the root.
    nodes: Vec<TrieNode>,
    /// Nodes by their labels, where several are below one.
    tables: Vec<HashTable<NonZeroU32>>,
    /// Routes, where several have one slot.
    lists: Vec<Vec<u32>>,
    /// Routes whose path is a regular expression, in the order of the file.
    expressions: Vec<u32>,
}

#[derive(Clone, Debug, Default)]
#[repr(align(64))]
pub(super) struct TrieNode {
    /// The literal segment that leads here; empty for the root and for parameters.
    label: SegmentLabel,
    literals: Children,
    pub(super) param: Option<NonZeroU32>,
    /// Routes whose pattern ends here, those with more specific headers first.
    here: Slot,
    /// Routes whose pattern ends here in `/*`, in the same order.
    rest: Slot,
}

const _: () = assert!(size_of::<TrieNode>() == 64);

/// Labels up to this many bytes are stored in their node.
const SHORT: usize = 30;

#[derive(Clone, Debug)]
enum SegmentLabel {
    Short(u8, [u8; SHORT]),
    Long(Box<str>),
}

/// Child nodes. No node has the root as a child.
#[derive(Clone, Copy, Debug, Default)]
enum Children {
    #[default]
    Nothing,
    One(NonZeroU32),
    Table(u32),
}

/// Routes of one pattern.
#[derive(Clone, Copy, Debug, Default)]
enum Slot {
    #[default]
    Nothing,
    One(u32),
    List(u32),
}

impl Default for SegmentLabel {
    fn default() -> Self {
        SegmentLabel::Short(0, [0; SHORT])
    }
}

impl SegmentLabel {
    fn new(text: &str) -> SegmentLabel {
        let mut bytes = [0; SHORT];
        match bytes.get_mut(..text.len()) {
            Some(place) => {
                place.copy_from_slice(text.as_bytes());
                SegmentLabel::Short(text.len() as u8, bytes)
            }
            None => SegmentLabel::Long(text.into()),
        }
    }

    fn bytes(&self) -> &[u8] {
        match self {
            SegmentLabel::Short(length, bytes) => &bytes[..usize::from(*length)],
            SegmentLabel::Long(text) => text.as_bytes(),
        }
    }

    fn hash(&self) -> u64 {
        hash(self.bytes())
    }
}

impl Default for Trie {
    fn default() -> Self {
        Self {
            nodes: vec![TrieNode::default()],
            tables: Vec::new(),
            lists: Vec::new(),
            expressions: Vec::new(),
        }
    }
}

impl Trie {
    /// Adds a route, and returns the earlier routes of the same pattern. Names of parameters do not
    /// matter. For an expression it returns all earlier expressions.
    pub(super) fn add(&mut self, pattern: &PathPattern, route: u32) -> &[u32] {
        if pattern.is_regex() {
            self.expressions.push(route);
            return &self.expressions[..self.expressions.len() - 1];
        }
        let mut at = 0;
        for segment in pattern.segments() {
            at = match segment {
                Segment::Literal(text) => self.literal_below(at, text),
                Segment::Param(_) => self.param_below(at),
            };
        }
        let node = &mut self.nodes[at];
        let slot = match pattern.takes_rest() {
            true => &mut node.rest,
            false => &mut node.here,
        };
        let list = match *slot {
            Slot::Nothing => {
                *slot = Slot::One(route);
                return &[];
            }
            Slot::One(first) => {
                *slot = Slot::List(small(self.lists.len()));
                self.lists.push(vec![first]);
                self.lists.len() - 1
            }
            Slot::List(list) => list as usize,
        };
        let list = &mut self.lists[list];
        list.push(route);
        &list[..list.len() - 1]
    }

    fn literal_below(&mut self, at: usize, text: &str) -> usize {
        if let Some(child) = self.literal(&self.nodes[at], text) {
            return place(child);
        }
        let next = self.push(SegmentLabel::new(text));
        let node = &mut self.nodes[at];
        match node.literals {
            Children::Nothing => node.literals = Children::One(next),
            Children::One(first) => {
                node.literals = Children::Table(small(self.tables.len()));
                let mut table = HashTable::new();
                let label = |node: &NonZeroU32| self.nodes[place(*node)].label.hash();
                for child in [first, next] {
                    table.insert_unique(label(&child), child, label);
                }
                self.tables.push(table);
            }
            Children::Table(table) => {
                let label = |node: &NonZeroU32| self.nodes[place(*node)].label.hash();
                self.tables[table as usize].insert_unique(label(&next), next, label);
            }
        }
        place(next)
    }

    fn param_below(&mut self, at: usize) -> usize {
        if let Some(child) = self.nodes[at].param {
            return place(child);
        }
        let next = self.push(SegmentLabel::default());
        self.nodes[at].param = Some(next);
        place(next)
    }

    fn push(&mut self, label: SegmentLabel) -> NonZeroU32 {
        let number = NonZeroU32::new(small(self.nodes.len()));
        self.nodes.push(TrieNode {
            label,
            ..TrieNode::default()
        });
        number.expect("the root is there already")
    }

    pub(super) fn sort_by_key<K: Ord>(&mut self, key: impl Fn(usize) -> K) {
        for list in &mut self.lists {
            list.sort_by_cached_key(|index| key(*index as usize));
        }
    }

    pub(super) fn expressions(&self) -> &[u32] {
        &self.expressions
    }

    pub(super) fn root(&self) -> &TrieNode {
        &self.nodes[0]
    }

    pub(super) fn node(&self, number: NonZeroU32) -> &TrieNode {
        &self.nodes[place(number)]
    }

    #[inline]
    pub(super) fn literal(&self, node: &TrieNode, segment: &str) -> Option<NonZeroU32> {
        let segment = segment.as_bytes();
        let is_it = |child: &NonZeroU32| self.nodes[place(*child)].label.bytes() == segment;
        match node.literals {
            Children::Nothing => None,
            Children::One(child) => is_it(&child).then_some(child),
            Children::Table(table) => {
                let table = &self.tables[table as usize];
                table.find(hash(segment), is_it).copied()
            }
        }
    }

    pub(super) fn here<'t>(&'t self, node: &'t TrieNode) -> &'t [u32] {
        self.routes(&node.here)
    }

    pub(super) fn rest<'t>(&'t self, node: &'t TrieNode) -> &'t [u32] {
        self.routes(&node.rest)
    }

    fn routes<'t>(&'t self, slot: &'t Slot) -> &'t [u32] {
        match slot {
            Slot::Nothing => &[],
            Slot::One(route) => std::slice::from_ref(route),
            Slot::List(list) => &self.lists[*list as usize],
        }
    }
}

fn hash(bytes: &[u8]) -> u64 {
    let mut hasher = Fnv::default();
    hasher.write(bytes);
    // The table also uses the upper bits, which FNV mixes least in short texts.
    hasher.0 ^ hasher.0.rotate_left(32)
}

fn place(node: NonZeroU32) -> usize {
    node.get() as usize
}

/// No configuration has 2^32 routes.
fn small(number: usize) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}
