//! The answer of [`Limiter::check`](crate::Limiter::check).

use std::sync::Arc;
use std::time::Duration;

use tidegate_core::exchange::admit::Admission;
use tidegate_core::exchange::limiter::HeldSlots;
use tidegate_core::exchange::rejection::Rejection;
use tidegate_core::exchange::shadow::ShadowChecks;
use tidegate_core::limit::{Decided, Retry};

/// Whether a call may pass, and what is left. Permits of [`Limits::concurrent`] are held until the
/// decision is dropped.
///
/// [`Limits::concurrent`]: crate::Limits::concurrent
#[derive(Debug)]
pub struct Decision {
    is_allowed: bool,
    retry_after: Option<Duration>,
    statuses: Vec<LimitStatus>,
    /// Held, and never read.
    _permits: Option<Box<HeldSlots>>,
    _shadow: Option<Box<ShadowChecks>>,
}

/// One rate of a limit, after a decision.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LimitStatus {
    /// The limit's name.
    pub limit: Arc<str>,
    /// Units that the window may hold.
    pub units: u64,
    /// The window's length.
    pub window: Duration,
    /// Units left now.
    pub remaining: u64,
    /// Until all units are free again if nothing else is admitted.
    pub reset: Duration,
    /// Whether it denies the call.
    pub denies: bool,
}

impl Decision {
    /// Whether the call may pass. It is charged to all limits then, and to none otherwise.
    pub fn is_allowed(&self) -> bool {
        self.is_allowed
    }

    /// The wait after which the same call passes, unless others use the budget meanwhile. `None`
    /// for an allowed call, for one that costs more than a limit holds, and where a permit is
    /// awaited.
    pub fn retry_after(&self) -> Option<Duration> {
        self.retry_after
    }

    /// The limits that decided, each rate by itself. Empty if Redis did not answer and
    /// [`OnError`](crate::OnError) decided.
    pub fn statuses(&self) -> &[LimitStatus] {
        &self.statuses
    }

    pub(crate) fn new(
        mut admission: Admission,
        admitted: Result<(), Rejection>,
        shadow: Option<Box<ShadowChecks>>,
    ) -> Decision {
        let mut decision = Decision {
            is_allowed: admitted.is_ok(),
            retry_after: None,
            statuses: Vec::new(),
            _permits: admission.slots.take(),
            _shadow: shadow,
        };
        match &admitted {
            Ok(()) => {
                if let Some(granted) = admission.granted() {
                    decision.statuses = statuses(granted);
                }
            }
            Err(Rejection::Limited(denial)) => {
                decision.statuses = statuses(denial.decided());
                decision.retry_after = longest_wait(denial.decided());
            }
            // The store is away, and `on_error` denies.
            Err(_) => decision.retry_after = Some(Duration::from_secs(1)),
        }
        decision
    }
}

fn statuses(decided: Decided<'_>) -> Vec<LimitStatus> {
    let status = |result: tidegate_core::limit::CheckResult<'_>| LimitStatus {
        limit: Arc::clone(&result.check.limit.name),
        units: result.check.window.rule.units,
        window: Duration::from_micros(result.check.window.rule.window_us),
        remaining: result.verdict.remaining,
        reset: Duration::from_micros(result.verdict.reset_us),
        denies: result.verdict.retry.denies(),
    };
    decided.results().map(status).collect()
}

/// The longest wait of the limits that deny, if each of them has one.
fn longest_wait(decided: Decided<'_>) -> Option<Duration> {
    let denying = decided.results().map(|result| result.verdict.retry);
    let waits = denying.filter(|retry| retry.denies());
    let waits = waits.map(|retry| match retry {
        Retry::After(us) => Some(Duration::from_micros(us)),
        _ => None,
    });
    waits.collect::<Option<Vec<_>>>()?.into_iter().max()
}
