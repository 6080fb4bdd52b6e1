//! A rider's decision: asked for beside a request that does not wait for it.

use super::redis::Awaited;
use crate::limit::Decision;

/// What has been decided by the time somebody looks. Dropped unseen, it lets go of the slots it
/// was granted.
#[derive(Debug)]
pub struct Observed(State);

#[derive(Debug)]
enum State {
    /// Decided at once, taken already, or never asked.
    Known(Option<Decision>),
    /// On its way.
    Awaited(Awaited),
}

impl Observed {
    /// No decision will come.
    pub(super) fn nothing() -> Observed {
        Observed(State::Known(None))
    }

    pub(super) fn decided(decision: Decision) -> Observed {
        Observed(State::Known(Some(decision)))
    }

    pub(super) fn awaited(answer: Awaited) -> Observed {
        Observed(State::Awaited(answer))
    }

    /// The decision, once, if it has come; never waits. Slots that it grants are the caller's.
    pub fn take(&mut self) -> Option<Decision> {
        match &mut self.0 {
            State::Known(decision) => decision.take(),
            State::Awaited(answer) => answer.try_take()?.ok(),
        }
    }
}
