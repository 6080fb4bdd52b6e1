//! A decision that no request waits for.

use super::redis::GuardedAnswer;
use crate::limit::Decision;

/// A decision that a request does not wait for. If it is dropped unseen, the slots that it grants
/// are freed.
#[derive(Debug)]
pub enum Observed {
    /// Decided at once, already taken, or never asked.
    Decided(Option<Decision>),
    Pending(GuardedAnswer),
}

impl Observed {
    /// The decision, once, if it has come; never waits. The caller owns the slots that it grants.
    pub fn take(&mut self) -> Option<Decision> {
        match self {
            Observed::Decided(decision) => decision.take(),
            Observed::Pending(answer) => {
                let answer = answer.try_take()?;
                *self = Observed::Decided(None);
                answer.ok()
            }
        }
    }

    pub fn is_pending(&self) -> bool {
        matches!(self, Observed::Pending(_))
    }

    /// Waits for the decision, for as long as the store's timeout. `None` if there is none. The
    /// caller owns the slots that it grants.
    pub async fn wait(self) -> Option<Decision> {
        match self {
            Observed::Decided(decision) => decision,
            Observed::Pending(answer) => answer.take().await.ok(),
        }
    }
}
