//! The numbers that a client is told of a decision: everything that the words of an answer depend
//! on, beside what was asked. Whole seconds, every wait rounded up.

use smallvec::SmallVec;

use super::{Charge, CheckResult, Decided, Decision, LimitCheck, ResetForm, Retry, Verdict};

const SECOND_US: u64 = 1_000_000;

/// See the file's head.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RateLimitStatus {
    /// `Retry-After`, seconds; `None` where the request is allowed, or no wait would help.
    pub wait: Option<u64>,
    /// `X-RateLimit-Reset`, in the form that was asked for.
    pub reset: u64,
    /// Which item the `X-RateLimit-*` headers tell of.
    tightest: usize,
    /// Which item keeps the client waiting longest.
    longest: usize,
    states: SmallVec<[LimitStatus; 2]>,
}

/// How one limit stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LimitStatus {
    /// Units left.
    pub remaining: u64,
    /// Seconds until there are more; 0 where none are counted.
    pub next: u64,
    /// Whether it denies the request.
    pub denies: bool,
    /// Whether anything is known of it.
    pub known: bool,
}

impl RateLimitStatus {
    /// What is told of `decision` at wall-clock time `unix_us`.
    pub fn of(decided: Decided<'_>, reset: ResetForm, unix_us: u64) -> RateLimitStatus {
        let decision = decided.decision;
        let results = || decided.results().enumerate();
        let Some((tightest, first)) = results().reduce(|best, next| {
            if is_tighter(next.1, best.1) {
                next
            } else {
                best
            }
        }) else {
            return RateLimitStatus::default();
        };
        let longest = results().max_by_key(|(_, result)| match result.verdict.retry {
            Retry::Now | Retry::Unasked => 0,
            Retry::Released => 1,
            Retry::After(us) => us.max(1),
            Retry::Never => u64::MAX,
        });
        let state = |verdict: &Verdict| LimitStatus {
            remaining: verdict.remaining,
            next: seconds_up(verdict.next_us),
            denies: verdict.retry.denies(),
            known: verdict.retry != Retry::Unasked,
        };
        RateLimitStatus {
            wait: (!decision.allowed).then(|| retry_after(decision)).flatten(),
            reset: match reset {
                ResetForm::Epoch => seconds_up(unix_us.saturating_add(first.verdict.reset_us)),
                ResetForm::Delta => seconds_up(first.verdict.reset_us),
            },
            tightest,
            longest: longest.map_or(0, |(place, _)| place),
            states: decision.verdicts.iter().map(state).collect(),
        }
    }

    /// The limit a client should look at first: one that denies, else the smallest remaining share;
    /// among equals the longest wait.
    pub fn tightest<'c>(&self, charge: &'c Charge) -> Option<(&'c LimitCheck, LimitStatus)> {
        Some((charge.get(self.tightest)?, *self.states.get(self.tightest)?))
    }

    /// The limit that keeps the client waiting longest.
    pub fn longest<'c>(&self, charge: &'c Charge) -> Option<&'c LimitCheck> {
        charge.get(self.longest)
    }

    /// How each item stands.
    pub fn states<'c>(
        &self,
        charge: &'c Charge,
    ) -> impl Iterator<Item = (&'c LimitCheck, LimitStatus)> {
        charge.iter().zip(self.states.iter().copied())
    }
}

/// Whole seconds that last at least as long as `us` microseconds.
pub fn seconds_up(us: u64) -> u64 {
    us.div_ceil(SECOND_US)
}

/// `Retry-After` of a denial, seconds, at least 1: the longest wait over the limits that deny.
/// `None` where the request's cost is above a limit, since no wait would help.
fn retry_after(decision: &Decision) -> Option<u64> {
    let mut longest = 0;
    for verdict in &decision.verdicts {
        match verdict.retry {
            Retry::Now | Retry::Released | Retry::Unasked => {}
            Retry::After(us) => longest = longest.max(us),
            Retry::Never => return None,
        }
    }
    Some(seconds_up(longest).max(1))
}

fn is_tighter(left: CheckResult<'_>, right: CheckResult<'_>) -> bool {
    let denies = |result: CheckResult<'_>| result.verdict.retry.denies();
    if denies(left) != denies(right) {
        return denies(left);
    }
    // remaining / units, compared crosswise; both stay below 2^32.
    let share = |one: CheckResult<'_>, other: CheckResult<'_>| {
        u128::from(one.verdict.remaining) * u128::from(other.check.window.rule.units)
    };
    let (left_share, right_share) = (share(left, right), share(right, left));
    if left_share != right_share {
        return left_share < right_share;
    }
    wait(left.verdict) > wait(right.verdict)
}

fn wait(verdict: &Verdict) -> u64 {
    match verdict.retry {
        Retry::Now | Retry::Released | Retry::Unasked => verdict.reset_us,
        Retry::After(us) => us,
        Retry::Never => u64::MAX,
    }
}

#[cfg(test)]
mod tests {
    use smallvec::smallvec;

    use super::super::tests::{denied, item, verdict};
    use super::*;

    fn status(charge: &Charge, decision: &Decision) -> RateLimitStatus {
        RateLimitStatus::of(Decided { charge, decision }, ResetForm::Delta, 0)
    }

    #[test]
    fn a_denial_tells_the_longest_wait_rounded_up() {
        let (charge, decision) = denied();
        let status = status(&charge, &decision);
        assert_eq!(status.wait, Some(11));
        assert_eq!(status.longest(&charge).map(|item| item.cost), Some(1));
    }

    #[test]
    fn a_cost_above_the_limit_has_no_retry_after() {
        let (charge, _) = denied();
        let verdicts = smallvec![verdict(3, Retry::Never, 0), verdict(0, Retry::After(5), 5)];
        let decision = Decision {
            allowed: false,
            at_us: 0,
            verdicts,
        };
        assert_eq!(status(&charge, &decision).wait, None);
    }

    #[test]
    fn who_is_allowed_is_not_told_to_wait() {
        let charge: Charge = smallvec![item("wide", 1000, 1)];
        let decision = Decision {
            allowed: true,
            at_us: 0,
            verdicts: smallvec![verdict(200, Retry::Now, 1)],
        };
        assert_eq!(status(&charge, &decision).wait, None);
    }
}
