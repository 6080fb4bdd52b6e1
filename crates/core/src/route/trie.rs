//! A trie of path segments that holds the routes of one host pattern, by their index.
//!
//! A table of many routes is seldom in the caches, so what a walk costs is the lines of them that
//! it touches: a node is one line with the text that leads to it, and the nodes of a route stand
//! beside each other.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::num::NonZeroU32;

use hashbrown::HashTable;

use super::PathPattern;
use super::pattern::Segment;

/// What a text of the configuration leads to. Clients can put nothing into it, so its hash need not
/// be a secret one.
pub(super) type Texts<T> = HashMap<Box<str>, T, BuildHasherDefault<Fnv>>;

/// FNV-1a, for texts that are short.
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

/// The routes of one host pattern, as a trie of path segments.
#[derive(Debug)]
pub(super) struct Trie {
    /// The first is the root.
    nodes: Vec<Node>,
    /// Nodes by their labels, where several are below one.
    tables: Vec<HashTable<NonZeroU32>>,
    /// Routes, where several have one slot.
    lists: Vec<Vec<u32>>,
    /// Routes whose path is a regular expression, in the order of the file.
    expressions: Vec<u32>,
}

/// One segment of patterns, and what may follow.
#[derive(Debug, Default)]
#[repr(align(64))]
pub(super) struct Node {
    /// The segment that leads here, if only one does.
    label: Label,
    /// Where a segment leads that is exactly some label.
    literals: Below,
    /// Where any segment leads.
    pub(super) param: Option<NonZeroU32>,
    /// Routes whose pattern ends here, those with more specific headers first.
    here: Slot,
    /// Routes whose pattern ends here in `/*`, in the same order.
    rest: Slot,
}

const _: () = assert!(size_of::<Node>() == 64);

/// Bytes of a label that is kept in its node.
const SHORT: usize = 30;

#[derive(Debug)]
enum Label {
    Short(u8, [u8; SHORT]),
    Long(Box<str>),
}

/// Nodes below a node; the root is below none.
#[derive(Clone, Copy, Debug, Default)]
enum Below {
    #[default]
    Nothing,
    One(NonZeroU32),
    /// In this table.
    Table(u32),
}

/// Routes of one pattern.
#[derive(Clone, Copy, Debug, Default)]
enum Slot {
    #[default]
    Nothing,
    One(u32),
    /// In this list.
    List(u32),
}

impl Default for Label {
    fn default() -> Self {
        Label::Short(0, [0; SHORT])
    }
}

impl Label {
    fn new(text: &str) -> Label {
        let mut bytes = [0; SHORT];
        match bytes.get_mut(..text.len()) {
            Some(place) => {
                place.copy_from_slice(text.as_bytes());
                Label::Short(text.len() as u8, bytes)
            }
            None => Label::Long(text.into()),
        }
    }

    fn bytes(&self) -> &[u8] {
        match self {
            Label::Short(length, bytes) => &bytes[..usize::from(*length)],
            Label::Long(text) => text.as_bytes(),
        }
    }

    fn hash(&self) -> u64 {
        hash(self.bytes())
    }
}

impl Default for Trie {
    fn default() -> Self {
        Self {
            nodes: vec![Node::default()],
            tables: Vec::new(),
            lists: Vec::new(),
            expressions: Vec::new(),
        }
    }
}

impl Trie {
    /// Adds a route, and returns those of the same pattern that were there. Names of parameters
    /// make no difference. Of an expression it returns all expressions that were there.
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
        let next = self.push(Label::new(text));
        let node = &mut self.nodes[at];
        match node.literals {
            Below::Nothing => node.literals = Below::One(next),
            Below::One(first) => {
                node.literals = Below::Table(small(self.tables.len()));
                let mut table = HashTable::new();
                let label = |node: &NonZeroU32| self.nodes[place(*node)].label.hash();
                for child in [first, next] {
                    table.insert_unique(label(&child), child, label);
                }
                self.tables.push(table);
            }
            Below::Table(table) => {
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
        let next = self.push(Label::default());
        self.nodes[at].param = Some(next);
        place(next)
    }

    fn push(&mut self, label: Label) -> NonZeroU32 {
        let number = NonZeroU32::new(small(self.nodes.len()));
        self.nodes.push(Node {
            label,
            ..Node::default()
        });
        number.expect("the root is there already")
    }

    /// Orders every slot.
    pub(super) fn sort_by_key<K: Ord>(&mut self, key: impl Fn(usize) -> K) {
        for list in &mut self.lists {
            list.sort_by_cached_key(|index| key(*index as usize));
        }
    }

    /// Routes whose path is a regular expression.
    pub(super) fn expressions(&self) -> &[u32] {
        &self.expressions
    }

    /// The node that a walk begins at.
    pub(super) fn root(&self) -> &Node {
        &self.nodes[0]
    }

    /// A node below another.
    pub(super) fn node(&self, number: NonZeroU32) -> &Node {
        &self.nodes[place(number)]
    }

    /// Where exactly this segment leads.
    #[inline]
    pub(super) fn literal(&self, node: &Node, segment: &str) -> Option<NonZeroU32> {
        let segment = segment.as_bytes();
        let is_it = |child: &NonZeroU32| self.nodes[place(*child)].label.bytes() == segment;
        match node.literals {
            Below::Nothing => None,
            Below::One(child) => is_it(&child).then_some(child),
            Below::Table(table) => {
                let table = &self.tables[table as usize];
                table.find(hash(segment), is_it).copied()
            }
        }
    }

    /// Routes whose pattern ends at a node.
    pub(super) fn here<'t>(&'t self, node: &'t Node) -> &'t [u32] {
        self.routes(&node.here)
    }

    /// Routes whose pattern ends at a node in `/*`.
    pub(super) fn rest<'t>(&'t self, node: &'t Node) -> &'t [u32] {
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
    // The table goes by the upper bits as well, and FNV mixes them least in short texts.
    hasher.0 ^ hasher.0.rotate_left(32)
}

fn place(node: NonZeroU32) -> usize {
    node.get() as usize
}

/// A file of four thousand million routes is not read to its end.
fn small(number: usize) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}
