//! A trie of path segments that holds the routes of one host pattern, by their index.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

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
}

#[derive(Debug, Default)]
pub(super) struct Node {
    /// Where a segment leads that is exactly this.
    pub(super) literals: Texts<usize>,
    /// Where any segment leads.
    pub(super) param: Option<usize>,
    /// Routes whose pattern ends here, those with more specific headers first.
    pub(super) here: Vec<usize>,
    /// Routes whose pattern ends here in `/*`, in the same order.
    pub(super) rest: Vec<usize>,
}

impl Default for Trie {
    fn default() -> Self {
        Self {
            nodes: vec![Node::default()],
        }
    }
}

impl Trie {
    /// Where routes of a pattern are listed. Names of parameters make no difference.
    pub(super) fn slot(&mut self, pattern: &PathPattern) -> &mut Vec<usize> {
        let mut at = 0;
        for segment in pattern.segments() {
            let next = self.nodes.len();
            let node = &mut self.nodes[at];
            at = match segment {
                Segment::Literal(text) => *node.literals.entry(text.clone()).or_insert(next),
                Segment::Param(_) => *node.param.get_or_insert(next),
            };
            if at == next {
                self.nodes.push(Node::default());
            }
        }
        let node = &mut self.nodes[at];
        if pattern.takes_rest() {
            &mut node.rest
        } else {
            &mut node.here
        }
    }

    /// Orders every slot.
    pub(super) fn sort_by_key<K: Ord>(&mut self, key: impl Fn(usize) -> K) {
        for node in &mut self.nodes {
            for slot in [&mut node.here, &mut node.rest] {
                slot.sort_by_cached_key(|index| key(*index));
            }
        }
    }

    /// A node; the root is number 0.
    pub(super) fn node(&self, number: usize) -> &Node {
        &self.nodes[number]
    }
}
