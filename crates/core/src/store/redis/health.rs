//! One server as one worker knows it: its breaker, its trouble, its clock; and how a reply of it is
//! handed out to the askers.

use std::time::Instant;

use super::RedisShared;
use super::slot_lease::SlotLease;
use crate::config::RedisAddress;
use crate::limit::{Charge, Decision};
use crate::store::batch::{GroupEnd, GroupOutcome, Operation, Reply};
use crate::store::deny_cache::CallSpan;
use crate::store::gather::{Batch, Bundle};
use crate::store::guard::Breaker;
use crate::store::lease::{LeaseGrant, WorkerCache};
use crate::store::{ServerTrouble, StoreError};
use crate::telemetry::decisions::{DecisionLog, Source};

/// A server's clock has stepped if it moved by more than this: more than a network's delay,
/// microseconds.
const STEP_US: u64 = 100_000;

pub(super) struct ServerHealth {
    /// The node; `None` for the server of a store without nodes.
    node: Option<RedisAddress>,
    pub(super) breaker: Breaker,
    trouble: Option<StoreError>,
    clock: Option<ClockOffset>,
}

impl ServerHealth {
    pub(super) fn new(node: Option<RedisAddress>, seed: u64) -> ServerHealth {
        ServerHealth {
            node,
            breaker: Breaker::new(seed),
            trouble: None,
            clock: None,
        }
    }

    pub(super) fn trouble(&self) -> Option<StoreError> {
        self.trouble
    }

    /// Reports trouble, once.
    pub(super) fn begin_trouble(&mut self, kind: StoreError, shared: &RedisShared, now: Instant) {
        if self.trouble.replace(kind).is_none() {
            shared.trouble_begins(self.node.as_ref(), kind, now);
        }
    }

    /// The server is well, or no longer used.
    pub(super) fn end_trouble(&mut self, shared: &RedisShared, now: Instant) {
        if self.trouble.take().is_some() {
            shared.trouble_ends(self.node.as_ref(), now);
        }
    }

    /// The server answered a call. Only a call that `wrote` ends a trouble with writes.
    pub(super) fn call_succeeded(&mut self, wrote: bool, shared: &RedisShared, now: Instant) {
        self.breaker.call_succeeded();
        if wrote || !self.trouble.is_some_and(StoreError::refuses_writes) {
            self.end_trouble(shared, now);
        }
    }

    /// A new connection may lead to another server.
    pub(super) fn forget_clock(&mut self) {
        self.clock = None;
    }

    /// Takes in what a reply reports of the server. An error means that its connection must go.
    pub(super) fn note_reply(
        &mut self,
        report: &ReplyReport,
        shared: &RedisShared,
        cache: &WorkerCache,
        now: Instant,
    ) -> Result<(), StoreError> {
        if report.begun_anew > 0 {
            shared.count_begun_anew(report.begun_anew);
        }
        if let Some(clock) = report.clock {
            shared.recovery.store_clock.note_ahead(clock.least);
            self.note_clock(clock, cache);
        }
        match report.trouble {
            None => self.call_succeeded(report.wrote, shared, now),
            // The server still answers denials, so it is still worth asking. The denials must not
            // hide this trouble.
            Some(kind) if kind.refuses_writes() => {
                let is_new = !self.trouble.is_some_and(StoreError::refuses_writes);
                self.begin_trouble(kind, shared, now);
                // After a failover a new connection may lead to the master.
                if is_new && kind == StoreError::Server(ServerTrouble::ReadOnly) {
                    return Err(kind);
                }
            }
            Some(kind) => return Err(kind),
        }
        Ok(())
    }

    /// If the server's clock jumps, cached denials and leases no longer hold.
    fn note_clock(&mut self, clock: ClockOffset, cache: &WorkerCache) {
        let before = self.clock.replace(clock);
        if let Some(seconds) = before.and_then(|before| clock.stepped_since(before)) {
            cache.clear();
            tracing::warn!(
                seconds = format_args!("{seconds:.3}"),
                node = self.node.as_ref().map(tracing::field::display),
                "redis: the clock of Redis jumped"
            );
        }
    }
}

#[derive(Debug, Default)]
pub(super) struct ReplyReport {
    wrote: bool,
    /// Why the server refused to write, or that its reply cannot be read.
    trouble: Option<StoreError>,
    /// Keys that held foreign data and were begun anew.
    begun_anew: u16,
    clock: Option<ClockOffset>,
    /// Bundles to be asked again, with the boundaries of the clock that this reply tells.
    pub(super) again: Vec<Bundle>,
}

/// How far a server's clock is ahead of ours, microseconds. The server read it between the call and
/// its answer, so there is a least and a most.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct ClockOffset {
    least: i64,
    most: i64,
}

impl ClockOffset {
    fn new(at_us: u64, span: CallSpan) -> ClockOffset {
        let ahead_of = |us: u64| {
            let at_us = i64::try_from(at_us).unwrap_or(i64::MAX);
            at_us.saturating_sub_unsigned(us)
        };
        ClockOffset {
            least: ahead_of(span.came_us),
            most: ahead_of(span.sent_us),
        }
    }

    /// By how many seconds the clock has stepped since `before`, where that is certain.
    fn stepped_since(self, before: ClockOffset) -> Option<f64> {
        let forth = self.least.saturating_sub(before.most).max(0);
        let back = self.most.saturating_sub(before.least).min(0);
        let stepped_us = forth + back;
        (stepped_us.unsigned_abs() > STEP_US).then_some(stepped_us as f64 / 1e6)
    }
}

pub(super) struct ReplyOutput<'w> {
    pub(super) span: CallSpan,
    pub(super) slots: &'w SlotLease,
    /// `None` if an operator has changed something since the call was sent: the reply may be older.
    pub(super) cache: Option<&'w WorkerCache>,
    /// Whether to cache denials. In a cluster that is done where the parts of a request are joined,
    /// and so is logging.
    pub(super) caches_denials: bool,
    pub(super) log: Option<&'w DecisionLog>,
}

impl ReplyOutput<'_> {
    /// Hands out a reply's decisions, in the order of the batch.
    pub(super) fn hand_out(&self, batch: Batch, bytes: &[u8]) -> ReplyReport {
        let mut report = ReplyReport::default();
        let mut bundles = batch.bundles.into_iter();
        if let Err(kind) = self.read(&mut bundles, bytes, &mut report) {
            self.slots.fail(bundles, kind);
            report.trouble = Some(kind);
        }
        report
    }

    fn read(
        &self,
        bundles: &mut impl Iterator<Item = Bundle>,
        bytes: &[u8],
        report: &mut ReplyReport,
    ) -> Result<(), StoreError> {
        let mut reply = Reply::read(bytes)?;
        report.begun_anew = reply.begun_anew;
        report.clock = Some(ClockOffset::new(reply.at_us, self.span));
        let mut refused = Vec::new();
        for bundle in bundles {
            let outcome = match bundle.operation {
                Operation::Charge(count) => reply.outcome(bundle.charge(), count),
                Operation::Report | Operation::Book(_) => reply.outcome(bundle.charge(), 1),
                Operation::Refund | Operation::Settle | Operation::RefundOldest => {
                    let end = reply.end();
                    end.map(|end| end.map(|()| GroupOutcome::default()))
                }
            };
            match outcome {
                Ok(GroupEnd::Done(outcome)) if bundle.count() > 0 => {
                    let costs = bundle.charge().iter().any(|item| item.cost > 0);
                    report.wrote |= outcome.granted > 0 && costs;
                    self.answer(bundle, outcome);
                }
                Ok(GroupEnd::Done(_)) => {
                    self.slots.reported(&bundle);
                    bundle.done();
                }
                Ok(GroupEnd::Refused) => refused.push(bundle),
                Ok(GroupEnd::AskAgain) => report.again.push(bundle),
                Err(kind) => {
                    self.slots.fail([bundle], kind);
                    return Err(kind);
                }
            }
        }
        report.trouble = reply.refusal().map(StoreError::Server);
        let other = StoreError::Server(ServerTrouble::Other);
        self.slots.refuse(refused, report.trouble.unwrap_or(other));
        Ok(())
    }

    /// Caches what follows from a group's outcome, and answers its requests.
    fn answer(&self, bundle: Bundle, mut outcome: GroupOutcome) {
        let charge = bundle.charge();
        if let Some(cache) = self.cache {
            if let (Some(denied), true) = (&outcome.denied, self.caches_denials) {
                cache.lock().denied.note(charge, denied, self.span);
            }
            if charge.iter().any(|item| item.limit.lease_us > 0) {
                let grant = LeaseGrant {
                    waiting: bundle.waiting(),
                    asked: bundle.count(),
                    outcome: &outcome,
                    span: self.span,
                };
                cache.lock().leases.note(charge, grant);
            }
        }
        let observe = |charge: &Charge, decision: &Decision| {
            if let Some(log) = self.log {
                log.record(Source::Store, charge, decision);
            }
        };
        self.slots.answer(bundle, &mut outcome, observe);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lead(at_us: u64, sent_us: u64, came_us: u64) -> ClockOffset {
        ClockOffset::new(at_us, CallSpan { sent_us, came_us })
    }

    #[test]
    fn a_late_answer_is_no_step_of_the_clock() {
        let before = lead(5_000_000, 1_000_000, 1_000_500);
        assert_eq!(
            lead(6_900_000, 2_000_000, 3_000_000).stepped_since(before),
            None
        );
        assert_eq!(
            lead(6_000_000, 2_000_000, 9_000_000).stepped_since(before),
            None
        );
    }

    #[test]
    fn a_step_is_told_in_its_direction() {
        let before = lead(5_000_000, 1_000_000, 1_000_500);
        let forth = lead(16_000_000, 2_000_000, 2_000_500);
        assert_eq!(forth.stepped_since(before), Some(9.9995));
        assert_eq!(before.stepped_since(forth), Some(-9.9995));
    }
}
