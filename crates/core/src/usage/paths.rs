//! Paths of members in a JSON text, as one tree. A scanner walks down the tree beside the text, so
//! it compares a name only with the few names that may stand there.

use std::fmt;

/// Bytes of a member's name in a path, at most.
pub const MAX_NAME: usize = 40;
/// Members of one path, at most.
pub const MAX_MEMBERS: usize = 8;
/// Members of one object that paths name, at most: each has one bit while a name is read.
const MAX_CHILDREN: usize = 32;

/// The place of a node in its tree.
pub(super) type PathNodeId = u8;
/// A value that no path leads to.
pub(super) const NOWHERE: PathNodeId = PathNodeId::MAX;
/// The top of the text.
pub(super) const TOP: PathNodeId = 0;

/// A member, by its name and those of the objects around it: `stats.tokens_in`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct MemberPath(Box<str>);

/// The rule of paths that a text breaks: a sentence for its author.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemberPathError(&'static str);

impl MemberPath {
    /// Reads names that dots separate. A name itself has no dot.
    pub fn parse(text: &str) -> Result<MemberPath, MemberPathError> {
        let names = || text.split('.');
        if names().any(str::is_empty) {
            return Err(MemberPathError(
                "a name is missing; write for example `stats.tokens_in`",
            ));
        }
        if names().any(|name| name.len() > MAX_NAME) {
            return Err(MemberPathError("a name has more than 40 bytes"));
        }
        if names().count() > MAX_MEMBERS {
            return Err(MemberPathError("a path has at most 8 names"));
        }
        Ok(MemberPath(text.into()))
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The name of the member itself.
    pub(super) fn last(&self) -> &str {
        self.0.rsplit('.').next().unwrap_or_default()
    }

    pub(super) fn steps(&self) -> Vec<PathStep> {
        let member = |name: &str| PathStep::Member(name.into());
        self.0.split('.').map(member).collect()
    }
}

impl fmt::Display for MemberPathError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

impl std::error::Error for MemberPathError {}

/// One step down from a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum PathStep {
    Member(Box<str>),
    /// Every element of an array.
    Elements,
}

/// Reads a path of our own tables, where `[]` behind a name leads to the elements of an array.
pub(super) fn steps(path: &str) -> Vec<PathStep> {
    let mut steps = Vec::new();
    for part in path.split('.') {
        let name = part.trim_end_matches("[]");
        if !name.is_empty() {
            steps.push(PathStep::Member(name.into()));
        }
        let arrays = (part.len() - name.len()) / 2;
        steps.extend((0..arrays).map(|_| PathStep::Elements));
    }
    steps
}

/// A value's path, and its role.
#[derive(Clone, Debug)]
pub(super) struct PathRow<R> {
    pub(super) steps: Vec<PathStep>,
    pub(super) role: R,
}

/// How letters of names are compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NameCase {
    Exact,
    /// ASCII letters match in either case, as some servers read names. `ſ` is `s` and the Kelvin
    /// sign is `k`, as in Go's `encoding/json`.
    Folded,
}

/// The values at the tops of a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Tops {
    One,
    /// If the text is an array, each of its elements is a top too.
    Elements,
}

#[derive(Clone, Debug)]
pub(super) struct PathTable<R> {
    nodes: Vec<PathNode<R>>,
    case: NameCase,
    tops: Tops,
}

#[derive(Clone, Debug)]
struct PathNode<R> {
    name: Box<[u8]>,
    parent: PathNodeId,
    /// The members below it stand together.
    first: PathNodeId,
    members: u8,
    elements: PathNodeId,
    /// One bit for each length of a name below it.
    lengths: u64,
    role: Option<R>,
}

impl<R> PathNode<R> {
    fn new(name: &str, parent: PathNodeId) -> PathNode<R> {
        PathNode {
            name: name.as_bytes().into(),
            parent,
            first: NOWHERE,
            members: 0,
            elements: NOWHERE,
            lengths: 0,
            role: None,
        }
    }
}

impl<R: Copy> PathTable<R> {
    /// A table without paths.
    pub(super) fn empty(case: NameCase) -> PathTable<R> {
        PathTable {
            nodes: vec![PathNode::new("", TOP)],
            case,
            tops: Tops::One,
        }
    }

    /// Makes the tree of these rows. `None` where the paths are too many.
    pub(super) fn new(rows: &[PathRow<R>], case: NameCase, tops: Tops) -> Option<PathTable<R>> {
        let mut nodes = vec![PathNode::new("", TOP)];
        // The rows of each node, and how far down it is.
        let mut waiting = vec![Branch {
            depth: 0,
            rows: rows.iter().collect(),
        }];
        let mut next = 0;
        while let Some(branch) = waiting.get(next).cloned() {
            let parent = PathNodeId::try_from(next)
                .ok()
                .filter(|id| *id != NOWHERE)?;
            let first = PathNodeId::try_from(nodes.len()).ok()?;
            let mut names: Vec<&str> = Vec::new();
            let mut has_elements = false;
            for row in &branch.rows {
                match row.steps.get(branch.depth) {
                    None => nodes[next].role = Some(row.role),
                    Some(PathStep::Elements) => has_elements = true,
                    Some(PathStep::Member(name)) if names.contains(&&**name) => {}
                    Some(PathStep::Member(name)) => names.push(name),
                }
            }
            for name in &names {
                nodes.push(PathNode::new(name, parent));
                waiting.push(branch.below(|step| step.is_member(name)));
                nodes[next].lengths |= length_bit(name.len());
            }
            nodes[next].first = first;
            nodes[next].members = u8::try_from(names.len()).ok()?;
            if names.len() > MAX_CHILDREN {
                return None;
            }
            if has_elements {
                nodes[next].elements = PathNodeId::try_from(nodes.len()).ok()?;
                nodes.push(PathNode::new("", parent));
                waiting.push(branch.below(|step| *step == PathStep::Elements));
            }
            next += 1;
        }
        Some(PathTable { nodes, case, tops })
    }

    pub(super) fn role(&self, node: PathNodeId) -> Option<R> {
        self.nodes.get(usize::from(node))?.role
    }

    pub(super) fn parent(&self, node: PathNodeId) -> PathNodeId {
        self.nodes
            .get(usize::from(node))
            .map_or(TOP, |node| node.parent)
    }

    /// The elements of the array at `node`, which is the `depth`th container of its text.
    pub(super) fn elements(&self, node: PathNodeId, depth: u16) -> PathNodeId {
        let is_top = node == TOP && depth == 1;
        if is_top && self.tops == Tops::Elements {
            return TOP;
        }
        self.nodes
            .get(usize::from(node))
            .map_or(NOWHERE, |node| node.elements)
    }

    /// The member of this name in the object at `node`.
    pub(super) fn member(&self, node: PathNodeId, name: &[u8]) -> PathNodeId {
        let Some(parent) = self.nodes.get(usize::from(node)) else {
            return NOWHERE;
        };
        if parent.lengths & length_bit(name.len()) == 0 {
            return NOWHERE;
        }
        let is_it = |known: &PathNode<R>| match self.case {
            NameCase::Exact => *known.name == *name,
            NameCase::Folded => known.name.eq_ignore_ascii_case(name),
        };
        let found = self.members(parent).iter().position(is_it);
        found.map_or(NOWHERE, |index| nth(parent.first, index))
    }

    /// All members of the object at `node`, to be told apart byte by byte.
    pub(super) fn begin(&self, node: PathNodeId) -> NameProgress {
        let parent = self.nodes.get(usize::from(node));
        let members = parent.map_or(0, |parent| u32::from(parent.members));
        let candidates = u32::MAX.checked_shr(32 - members).unwrap_or(0);
        NameProgress {
            candidates,
            ..NameProgress::default()
        }
    }

    /// Whether `name` may fit a member only when it is read byte by byte.
    #[inline]
    pub(super) fn is_foreign(&self, name: &[u8]) -> bool {
        self.case == NameCase::Folded && !name.is_ascii()
    }

    /// Leaves the members whose names go on with `byte`.
    pub(super) fn advance(&self, node: PathNodeId, progress: &mut NameProgress, byte: u8) {
        if self.case == NameCase::Exact {
            return self.leave(node, progress, byte);
        }
        let held = std::mem::take(&mut progress.held);
        match (held, byte) {
            (Held::Nothing, 0xc5) => progress.held = Held::LongS,
            (Held::Nothing, 0xe2) => progress.held = Held::KelvinOne,
            (Held::KelvinOne, 0x84) => progress.held = Held::KelvinTwo,
            (Held::LongS, 0xbf) => self.leave(node, progress, b's'),
            (Held::KelvinTwo, 0xaa) => self.leave(node, progress, b'k'),
            _ => {
                for held in held.bytes() {
                    self.leave(node, progress, *held);
                }
                self.leave(node, progress, byte);
            }
        }
    }

    fn leave(&self, node: PathNodeId, progress: &mut NameProgress, byte: u8) {
        let Some(parent) = self.nodes.get(usize::from(node)) else {
            return;
        };
        let at = usize::from(progress.read);
        for (index, known) in self.members(parent).iter().enumerate() {
            let goes_on = known.name.get(at).is_some_and(|known| match self.case {
                NameCase::Exact => *known == byte,
                NameCase::Folded => known.eq_ignore_ascii_case(&byte),
            });
            if !goes_on {
                progress.candidates &= !(1 << index);
            }
        }
        progress.read = progress.read.saturating_add(1);
    }

    /// The member whose name has been read to its end.
    pub(super) fn found(&self, node: PathNodeId, progress: NameProgress) -> PathNodeId {
        let Some(parent) = self.nodes.get(usize::from(node)) else {
            return NOWHERE;
        };
        let mut members = self.members(parent).iter().enumerate();
        let found = members.find(|(index, known)| {
            let is_candidate = progress.candidates & (1 << index) != 0;
            is_candidate
                && progress.held == Held::Nothing
                && known.name.len() == usize::from(progress.read)
        });
        found.map_or(NOWHERE, |(index, _)| nth(parent.first, index))
    }

    fn members(&self, parent: &PathNode<R>) -> &[PathNode<R>] {
        let first = usize::from(parent.first);
        let end = first + usize::from(parent.members);
        self.nodes.get(first..end).unwrap_or_default()
    }
}

/// The rows that lead through one node.
#[derive(Clone)]
struct Branch<'r, R> {
    depth: usize,
    rows: Vec<&'r PathRow<R>>,
}

impl<'r, R> Branch<'r, R> {
    fn below(&self, is_it: impl Fn(&PathStep) -> bool) -> Branch<'r, R> {
        let goes_there = |row: &&&PathRow<R>| row.steps.get(self.depth).is_some_and(&is_it);
        Branch {
            depth: self.depth + 1,
            rows: self.rows.iter().filter(goes_there).copied().collect(),
        }
    }
}

impl PathStep {
    fn is_member(&self, name: &str) -> bool {
        matches!(self, PathStep::Member(own) if **own == *name)
    }
}

/// A name that is read byte by byte, because it is escaped or cut.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct NameProgress {
    /// One bit for each member that it may still be.
    pub(super) candidates: u32,
    read: u8,
    held: Held,
}

/// The first bytes of `ſ` or of the Kelvin sign, which are not compared yet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Held {
    #[default]
    Nothing,
    LongS,
    KelvinOne,
    KelvinTwo,
}

impl Held {
    fn bytes(self) -> &'static [u8] {
        match self {
            Held::Nothing => &[],
            Held::LongS => &[0xc5],
            Held::KelvinOne => &[0xe2],
            Held::KelvinTwo => &[0xe2, 0x84],
        }
    }
}

fn length_bit(length: usize) -> u64 {
    1 << (length & 63)
}

fn nth(first: PathNodeId, index: usize) -> PathNodeId {
    let index = PathNodeId::try_from(index).unwrap_or(NOWHERE);
    first.saturating_add(index)
}
