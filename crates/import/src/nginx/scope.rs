//! What holds somewhere: a block's own directives, and those it inherits.

use super::syntax::Directive;

/// A block, the blocks around it behind it.
#[derive(Clone, Debug)]
pub(super) struct Scope<'d> {
    levels: Vec<&'d [Directive]>,
}

impl<'d> Scope<'d> {
    pub(super) fn new(top: &'d [Directive]) -> Scope<'d> {
        Scope { levels: vec![top] }
    }

    /// The scope of a block in this one.
    pub(super) fn within(&self, block: &'d Directive) -> Scope<'d> {
        let mut levels = vec![block.inner()];
        levels.extend(&self.levels);
        Scope { levels }
    }

    /// The scope of the location with this name (`@app`), of this block or one around it.
    pub(super) fn named(&self, name: &str) -> Option<Scope<'d>> {
        self.levels.iter().enumerate().find_map(|(at, level)| {
            let is_it = |one: &&Directive| one.name == "location" && one.arg(0) == name;
            let block = level.iter().find(is_it)?;
            let mut levels = vec![block.inner()];
            levels.extend(&self.levels[at..]);
            Some(Scope { levels })
        })
    }

    /// What stands in the block itself.
    pub(super) fn own(&self) -> &'d [Directive] {
        self.levels.first().copied().unwrap_or_default()
    }

    /// The directive of this name in the block itself.
    pub(super) fn here(&self, name: &str) -> Option<&'d Directive> {
        self.own().iter().find(|one| one.name == name)
    }

    /// All of this name, at the innermost level that has any: as nginx inherits them.
    pub(super) fn all(&self, name: &str) -> Vec<&'d Directive> {
        let at = |level: &&'d [Directive]| -> Vec<&'d Directive> {
            level.iter().filter(|one| one.name == name).collect()
        };
        let mut levels = self.levels.iter().map(at);
        levels.find(|found| !found.is_empty()).unwrap_or_default()
    }

    /// All of these names that have one list in common, as nginx inherits it.
    pub(super) fn all_of(&self, names: &[&str]) -> Vec<&'d Directive> {
        let at = |level: &&'d [Directive]| -> Vec<&'d Directive> {
            let named = |one: &&Directive| names.contains(&one.name.as_str());
            level.iter().filter(named).collect()
        };
        let mut levels = self.levels.iter().map(at);
        levels.find(|found| !found.is_empty()).unwrap_or_default()
    }

    /// Every directive of the block and of those around it.
    pub(super) fn every(&self) -> impl Iterator<Item = &'d Directive> {
        self.levels.iter().flat_map(|level| level.iter())
    }

    /// The one of this name that holds.
    pub(super) fn last(&self, name: &str) -> Option<&'d Directive> {
        self.all(name).last().copied()
    }

    /// Whether a switch is on.
    pub(super) fn is_on(&self, name: &str) -> bool {
        self.last(name).is_some_and(|one| one.arg(0) == "on")
    }
}
