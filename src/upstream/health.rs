//! How well one server is, by what it was seen to do: a pure state machine, time is an argument.
//!
//! Two observers tell it what they see. Checks, where they are configured, take a server `Down`
//! and bring it back; nobody is sent to one that is down. What requests meet ejects it for a
//! while, twice as long each time; then a single request tries it, and its end decides.

use std::fmt;
use std::time::{Duration, Instant};

use crate::config::{Ejection, HealthCheck};

/// The first rest of a server that could not be reached: trying it again costs no request.
const FIRST_REST: Duration = Duration::from_secs(1);

/// What a request met at a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Trouble {
    /// No connection: it cannot have seen the request, and has no say in it.
    Unreachable,
    /// It was there, and did not do its part.
    Failed,
}

/// Why a request was sent to a server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Sent {
    /// It was in order.
    #[default]
    InOrder,
    /// Its ejection was over: the one request that finds out.
    Trial,
    /// It was ejected, and so were all others.
    LastResort,
}

/// What requests may do with a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Standing {
    /// Ask it.
    InOrder,
    /// Leave it alone until then, as long as there are others; then let one request try.
    Ejected(Instant),
    /// Do not ask it: its checks fail.
    Down,
}

/// Something that an operator wants to know. `Display` completes "server X ...".
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Change {
    /// It is left alone for so long.
    Ejected {
        /// How long.
        rest: Duration,
        /// What did it.
        trouble: Trouble,
        /// Failures in a row.
        failures: u32,
    },
    /// A request found it in order.
    Returned,
    /// So many checks failed.
    WentDown(u32),
    /// So many checks passed.
    CameUp(u32),
}

/// What is known of one server.
#[derive(Clone, Debug, Default)]
pub(super) struct Health {
    /// What the checks say; nothing before the first.
    up: Option<bool>,
    /// Checks in a row that say otherwise.
    against: u32,
    /// Failures in a row.
    failures: u32,
    /// Answers in a row that ended before their end.
    truncated: u32,
    ejected: Option<Instant>,
    /// How long it was ejected last.
    rest: Duration,
    returned: Option<Instant>,
}

impl Health {
    /// What requests may do with it.
    pub(super) fn standing(&self) -> Standing {
        match (self.up, self.ejected) {
            (Some(false), _) => Standing::Down,
            (_, Some(until)) => Standing::Ejected(until),
            (_, None) => Standing::InOrder,
        }
    }

    /// Failures since the last success.
    pub(super) fn failures(&self) -> u32 {
        self.failures
    }

    /// How long it was ejected last: nobody else tries it for so long after a trial began.
    pub(super) fn rest(&self) -> Duration {
        self.rest
    }

    /// A request `sent` here met `trouble`; `has_room` says whether the others can do without it.
    pub(super) fn failed(
        &mut self,
        (trouble, sent): (Trouble, Sent),
        rules: &Ejection,
        has_room: bool,
        now: Instant,
    ) -> Option<Change> {
        self.failures = self.failures.saturating_add(1);
        if self.ejected.is_some() {
            // Those that were under way when it was ejected say nothing new.
            return (sent == Sent::Trial).then(|| self.eject(self.rest * 2, trouble, rules, now));
        }
        let enough = trouble == Trouble::Unreachable || self.failures >= rules.failures;
        if !enough || !has_room || self.up == Some(false) {
            return None;
        }
        // One that falls again as soon as it is back has not recovered.
        let relapsed = self
            .returned
            .is_some_and(|returned| now.saturating_duration_since(returned) < self.rest);
        let rest = match trouble {
            _ if relapsed => self.rest * 2,
            Trouble::Unreachable => FIRST_REST.min(rules.rest),
            Trouble::Failed => rules.rest,
        };
        Some(self.eject(rest, trouble, rules, now))
    }

    /// The answer to a request `sent` here ended before its end. Its head was a success, which
    /// ended the failures in a row: the truncated answers before it count again.
    pub(super) fn truncated(
        &mut self,
        sent: Sent,
        rules: &Ejection,
        has_room: bool,
        now: Instant,
    ) -> Option<Change> {
        self.failures = self.failures.max(self.truncated);
        self.truncated = self.truncated.saturating_add(1);
        self.failed((Trouble::Failed, sent), rules, has_room, now)
    }

    /// Truncated answers since the last whole one.
    pub(super) fn truncated_in_a_row(&self) -> u32 {
        self.truncated
    }

    /// An answer came to its end.
    pub(super) fn completed(&mut self) {
        self.truncated = 0;
    }

    fn eject(
        &mut self,
        rest: Duration,
        trouble: Trouble,
        rules: &Ejection,
        now: Instant,
    ) -> Change {
        self.rest = rest.min(rules.longest_rest);
        self.ejected = Some(now + self.rest);
        Change::Ejected {
            rest: self.rest,
            trouble,
            failures: self.failures,
        }
    }

    /// A request `sent` here was answered as it should be.
    pub(super) fn succeeded(&mut self, sent: Sent, now: Instant) -> Option<Change> {
        self.failures = 0;
        // What was sent before it was ejected may still end well; the trial decides.
        if self.ejected.is_none() || sent == Sent::InOrder {
            return None;
        }
        self.ejected = None;
        self.returned = Some(now);
        Some(Change::Returned)
    }

    /// A check ended. The first one decides by itself; until then it counts as in order.
    pub(super) fn checked(
        &mut self,
        passed: bool,
        rules: &HealthCheck,
        now: Instant,
    ) -> Option<Change> {
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
            return Some(Change::WentDown(against));
        }
        self.ejected = None;
        (self.failures, self.truncated) = (0, 0);
        self.returned = Some(now);
        Some(Change::CameUp(against))
    }

    /// Nobody checks it any more: what checks said is void.
    pub(super) fn unchecked(&mut self) {
        (self.up, self.against) = (None, 0);
    }
}

/// Whether one more of `servers` may be ejected while `out` of them are out: never the last one,
/// and not more than the rules say for those that can at least be reached.
pub(super) fn has_room(servers: usize, out: usize, rules: &Ejection, trouble: Trouble) -> bool {
    let most = match trouble {
        Trouble::Unreachable => servers,
        Trouble::Failed => (servers * rules.max_share as usize / 100).max(1),
    };
    out < most.min(servers.saturating_sub(1))
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Change::Ejected {
                rest,
                trouble: Trouble::Unreachable,
                ..
            } => write!(f, "cannot be reached: left alone for {rest:?}"),
            Change::Ejected {
                rest,
                trouble: Trouble::Failed,
                failures,
            } => write!(
                f,
                "failed {failures} times in a row: left alone for {rest:?}"
            ),
            Change::Returned => f.write_str("is back: a request succeeded"),
            Change::WentDown(checks) => write!(f, "is down: checks failed ({checks} in a row)"),
            Change::CameUp(checks) => write!(f, "is up again: checks passed ({checks} in a row)"),
        }
    }
}

#[cfg(test)]
mod tests;
