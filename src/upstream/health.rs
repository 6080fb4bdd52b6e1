//! The health of one server as a pure state machine; time is an argument.
//!
//! It has two inputs. Configured health checks take a server `Down` and bring it back; a server
//! that is down gets no requests. Failed requests eject a server for a while, twice as long each
//! time. After that a single trial request decides.

use std::collections::VecDeque;
use std::fmt;
use std::time::{Duration, Instant};

use crate::config::{Ejection, HealthCheck};

/// The first ejection of an unreachable server is short, because a trial costs no request.
const FIRST_REST: Duration = Duration::from_secs(1);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FailureKind {
    /// There was no connection, so the server cannot have seen the request.
    Unreachable,
    /// The connection stood, and no good response came.
    Failed,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum SendReason {
    #[default]
    Healthy,
    /// The server's ejection was over: this request tests it.
    Trial,
    LastResort,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Standing {
    Healthy,
    /// It gets none until then while other servers are left; then a single trial.
    Ejected(Instant),
    /// It gets none: its health checks fail.
    Down,
}

/// A change that goes to the log. `Display` completes "server X ...".
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HealthChange {
    Ejected {
        rest: Duration,
        kind: FailureKind,
        /// Failures in a row, or within the time.
        failures: u32,
        within: Option<Duration>,
    },
    Returned,
    WentDown(u32),
    CameUp(u32),
}

#[derive(Clone, Debug, Default)]
pub(super) struct HealthState {
    /// The result of the health checks; `None` before the first.
    up: Option<bool>,
    /// Checks in a row that contradict `up`.
    against: u32,
    /// Failures in a row.
    pub(super) failures: u32,
    pub(super) truncated: u32,
    /// When requests failed, the oldest first. Only for rules with `within`, and at most as many as
    /// these rules need.
    recent: VecDeque<Instant>,
    ejected: Option<Instant>,
    /// The length of the last ejection; a trial keeps out others for the same time.
    pub(super) rest: Duration,
    returned: Option<Instant>,
}

impl HealthState {
    pub(super) fn standing(&self) -> Standing {
        match (self.up, self.ejected) {
            (Some(false), _) => Standing::Down,
            (_, Some(until)) => Standing::Ejected(until),
            (_, None) => Standing::Healthy,
        }
    }

    /// Notes a failed request. `has_room` says whether the upstream can do without this server.
    pub(super) fn fail(
        &mut self,
        kind: FailureKind,
        reason: SendReason,
        rules: &Ejection,
        has_room: bool,
        now: Instant,
    ) -> Option<HealthChange> {
        self.failures = self.failures.saturating_add(1);
        if self.ejected.is_some() {
            // A request from before the ejection says nothing new; only the trial does.
            let is_trial = reason == SendReason::Trial;
            return is_trial.then(|| self.eject(self.rest * 2, kind, rules, now));
        }
        let failures = self.count_failures(rules, now);
        let enough = kind == FailureKind::Unreachable || failures >= rules.failures;
        if !enough || !has_room || self.up == Some(false) {
            return None;
        }
        // A server that fails again soon after its return has not recovered.
        let relapsed = self
            .returned
            .is_some_and(|returned| now.saturating_duration_since(returned) < self.rest);
        let rest = match kind {
            _ if relapsed => self.rest * 2,
            FailureKind::Unreachable => FIRST_REST.min(rules.rest),
            FailureKind::Failed => rules.rest,
        };
        Some(self.eject(rest, kind, rules, now))
    }

    /// Notes a truncated response. Its head was a success and reset the failures in a row, so the
    /// truncated responses before it count again.
    pub(super) fn truncate(
        &mut self,
        reason: SendReason,
        rules: &Ejection,
        has_room: bool,
        now: Instant,
    ) -> Option<HealthChange> {
        self.failures = self.failures.max(self.truncated);
        self.truncated = self.truncated.saturating_add(1);
        self.fail(FailureKind::Failed, reason, rules, has_room, now)
    }

    /// The failures that count towards an ejection, with one at `now`.
    fn count_failures(&mut self, rules: &Ejection, now: Instant) -> u32 {
        let Some(within) = rules.within else {
            return self.failures;
        };
        let counts = |failed: &Instant| now.saturating_duration_since(*failed) <= within;
        self.recent.retain(counts);
        self.recent.push_back(now);
        // A server that has no room to be ejected goes on failing, and a reload may lower the rule.
        let spare = self.recent.len().saturating_sub(rules.failures as usize);
        self.recent.drain(..spare);
        u32::try_from(self.recent.len()).unwrap_or(u32::MAX)
    }

    fn eject(
        &mut self,
        rest: Duration,
        kind: FailureKind,
        rules: &Ejection,
        now: Instant,
    ) -> HealthChange {
        self.rest = rest.min(rules.longest_rest);
        self.ejected = Some(now + self.rest);
        let recent = std::mem::take(&mut self.recent).len();
        let enough = recent >= rules.failures as usize;
        let within = rules.within.filter(|_| enough);
        HealthChange::Ejected {
            rest: self.rest,
            kind,
            failures: match within {
                Some(_) => rules.failures,
                None => self.failures,
            },
            within,
        }
    }

    pub(super) fn succeed(&mut self, reason: SendReason, now: Instant) -> Option<HealthChange> {
        self.failures = 0;
        // A request from before the ejection may succeed late; the trial decides.
        if self.ejected.is_none() || reason == SendReason::Healthy {
            return None;
        }
        self.ejected = None;
        self.returned = Some(now);
        Some(HealthChange::Returned)
    }

    /// Notes a health check. The first one decides alone; before it the server counts as healthy.
    pub(super) fn note_check(
        &mut self,
        passed: bool,
        rules: &HealthCheck,
        now: Instant,
    ) -> Option<HealthChange> {
        let is_first = self.up.is_none();
        if self.up.unwrap_or(true) == passed {
            self.up = Some(passed);
            self.against = 0;
            return None;
        }
        self.against += 1;
        let enough = match passed {
            true => rules.healthy,
            false if is_first => 1,
            false => rules.unhealthy,
        };
        if self.against < enough {
            return None;
        }
        let against = std::mem::take(&mut self.against);
        self.up = Some(passed);
        if !passed {
            return Some(HealthChange::WentDown(against));
        }
        self.ejected = None;
        (self.failures, self.truncated) = (0, 0);
        self.recent.clear();
        self.returned = Some(now);
        Some(HealthChange::CameUp(against))
    }

    /// Forgets the health checks, after they were removed from the configuration.
    pub(super) fn forget_checks(&mut self) {
        (self.up, self.against) = (None, 0);
    }

    /// Forgets the ejection, after it was switched off in the configuration.
    pub(super) fn forget_ejection(&mut self) {
        (self.ejected, self.returned) = (None, None);
        self.failures = 0;
        self.recent.clear();
    }
}

/// Whether one more of `servers` may be ejected while `out` of them are out. The last one may not,
/// and `max_share` bounds the ejection of servers that can be reached.
pub(super) fn has_room(servers: usize, out: usize, rules: &Ejection, kind: FailureKind) -> bool {
    let most = match kind {
        FailureKind::Unreachable => servers,
        FailureKind::Failed => (servers * rules.max_share as usize / 100).max(1),
    };
    out < most.min(servers.saturating_sub(1))
}

impl fmt::Display for HealthChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            HealthChange::Ejected {
                rest,
                kind,
                failures,
                within,
            } => {
                match (kind, within) {
                    (FailureKind::Unreachable, _) => f.write_str("cannot be reached")?,
                    (FailureKind::Failed, Some(within)) => {
                        write!(f, "failed {failures} times within {within:?}")?;
                    }
                    (FailureKind::Failed, None) => write!(f, "failed {failures} times in a row")?,
                }
                write!(f, ": gets no requests for {rest:?}")
            }
            HealthChange::Returned => f.write_str("is back: a request succeeded"),
            HealthChange::WentDown(checks) => {
                write!(f, "is down: checks failed ({checks} in a row)")
            }
            HealthChange::CameUp(checks) => {
                write!(f, "is up again: checks passed ({checks} in a row)")
            }
        }
    }
}

#[cfg(test)]
mod tests;
