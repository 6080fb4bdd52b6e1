//! The place of a scanner in its text, and in the tree of paths.

use super::super::paths::{NOWHERE, PathNodeId, PathTable, TOP};

/// Where in the text the scanner is, and where in the tree of paths.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    /// One bit for each level, the innermost last: 1 for an object.
    pub(super) kinds: u64,
    pub(super) depth: u16,
    /// The node of the innermost container that a path leads to, and its depth.
    pub(super) container: PathNodeId,
    pub(super) container_depth: u8,
    /// The node of the value that is read, or of the one that comes next.
    pub(super) value: PathNodeId,
    /// Whether the text has, or had, more than 64 levels.
    pub(super) is_too_deep: bool,
}

impl Default for Place {
    fn default() -> Place {
        Place {
            kinds: 0,
            depth: 0,
            container: TOP,
            container_depth: 0,
            value: TOP,
            is_too_deep: false,
        }
    }
}

impl Place {
    pub(super) fn in_object(&self) -> bool {
        self.kinds & 1 == 1
    }

    /// The bracket that closes the innermost container.
    pub(super) fn closer(&self) -> u8 {
        match self.in_object() {
            true => b'}',
            false => b']',
        }
    }

    /// Whether a path leads to the innermost container.
    pub(super) fn is_known(&self) -> bool {
        self.depth == u16::from(self.container_depth)
    }

    /// Goes down into an object or an array.
    pub(super) fn open<R: Copy>(&mut self, table: &PathTable<R>, is_object: bool) {
        self.depth += 1;
        self.kinds = (self.kinds << 1) | u64::from(is_object);
        if self.value != NOWHERE {
            self.container = self.value;
            self.container_depth += 1;
        }
        if !is_object {
            self.begin_element(table);
        }
    }

    pub(super) fn begin_element<R: Copy>(&mut self, table: &PathTable<R>) {
        self.value = match self.is_known() {
            true => table.elements(self.container, self.depth),
            false => NOWHERE,
        };
    }

    pub(super) fn close<R: Copy>(&mut self, table: &PathTable<R>) {
        if self.is_known() {
            self.container = table.parent(self.container);
            self.container_depth = self.container_depth.saturating_sub(1);
        }
        self.kinds >>= 1;
        self.depth = self.depth.saturating_sub(1);
    }
}
