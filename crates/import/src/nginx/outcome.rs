//! What becomes of requests, and of which ones.

use crate::draft::{Goal, Setting};

/// What becomes of a location's requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Outcome {
    pub(super) goal: Goal,
    /// Settings of the route that belong to it.
    pub(super) settings: Vec<Setting>,
}

impl From<Goal> for Outcome {
    fn from(goal: Goal) -> Outcome {
        Outcome {
            goal,
            settings: Vec::new(),
        }
    }
}

/// An answer without a body.
pub(super) fn respond(status: u16) -> Goal {
    Goal::Respond {
        status,
        body: None,
        content_type: None,
    }
}

/// Which requests a scope has.
#[derive(Clone, Copy, Debug)]
pub(super) struct At<'p> {
    /// The path that they have, or begin with; `None` of regular expressions.
    pub(super) path: Option<&'p str>,
    /// They have no other one.
    pub(super) is_exact: bool,
    /// A `rewrite` has taken it off.
    pub(super) is_stripped: bool,
}
