//! The counts of a replay: totals, the statistics of each window, and the slots that requests hold.

use std::collections::{BTreeMap, HashMap};

use serde::Serialize;
use smallvec::SmallVec;

use super::bans::ReplayBans;
use super::calls::{CallCost, CallFacts};
use super::meter::{
    Adjusted, MeterCharge, MeterFirstPass, RateOutcomes, Rates, SCALES, Scale, Stamps, WindowMeter,
};
use super::plan::{ReplayPlan, WindowRow};
use super::timeline::{BusiestMinutes, LogClock, Timeline};
use crate::limit::delay::wait_us;
use crate::limit::{Algorithm, Delay};

/// The timeline's series of all requests.
pub const REQUESTS: usize = 0;
/// The timeline's series of denied requests.
pub const DENIED: usize = 1;
/// The timeline's series of the denials of row 0; those of the other rows follow.
pub const FIRST_ROW: usize = 2;

/// No answer takes longer, microseconds.
const MAX_DURATION_US: u64 = 7 * 86_400_000_000;

/// A request that no limit was asked about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Outside {
    /// A bypass rule forwards it without a charge.
    Bypassed,
    /// Its route has no limits, or it is a CORS preflight.
    Unlimited,
    NoRoute,
    /// Its path, host or method is refused.
    Refused,
    /// A limit refuses it: it has no key, or several.
    NoKey,
    /// A limit counts money, and the model has no price.
    Unpriced,
}

impl Outside {
    /// The name in JSON.
    pub const fn name(self) -> &'static str {
        match self {
            Outside::Bypassed => "bypassed",
            Outside::Unlimited => "unlimited",
            Outside::NoRoute => "no_route",
            Outside::Refused => "refused",
            Outside::NoKey => "no_key",
            Outside::Unpriced => "unpriced",
        }
    }

    /// The words in the report on a terminal.
    pub const fn words(self) -> &'static str {
        match self {
            Outside::Bypassed => "bypassed",
            Outside::Unlimited => "on routes without limits",
            Outside::NoRoute => "without a route",
            Outside::Refused => "refused for their address, path, host or method",
            Outside::NoKey => "refused for want of a key",
            Outside::Unpriced => "refused because their model has no price",
        }
    }
}

#[derive(Clone, Debug, Default)]
pub struct Totals {
    pub requests: u64,
    pub denied: Rates<u64>,
    pub outside: HashMap<Outside, u64>,
    /// The first and the last time, microseconds since the epoch.
    pub times: Option<(u64, u64)>,
    /// Requests without a duration, which a limit of concurrent requests could not count.
    pub untimed: u64,
    /// Requests without a port, if routes ask for one of several.
    pub portless: u64,
    /// Requests with an unknown API key, on routes that count by it.
    pub unknown_keys: u64,
    pub calls: CallTotals,
}

/// Requests on routes with `usage`, whose limits count what an answer used.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct CallTotals {
    pub requests: u64,
    /// The log says nothing of their size.
    #[serde(rename = "no_tokens")]
    pub tokenless: u64,
    /// A number of theirs is no whole number.
    pub broken: u64,
    /// The log has no reserve of theirs.
    pub estimated: u64,
    /// The log has not what their answers used.
    pub unsettled: u64,
    /// The log has not how long they took.
    #[serde(rename = "no_duration")]
    pub untimed: u64,
}

impl CallTotals {
    pub fn note(&mut self, facts: CallFacts) {
        self.estimated += u64::from(!facts.has_reserve);
        self.unsettled += u64::from(facts.is_unsettled);
    }
}

/// Requests that wait instead of being denied.
#[derive(Clone, Copy, Debug, Default)]
pub struct HeldStats {
    pub requests: u64,
    /// All waits together, microseconds.
    pub total_us: u64,
    pub longest_us: u64,
}

impl HeldStats {
    fn note(&mut self, wait_us: u64) {
        self.requests += 1;
        self.total_us = self.total_us.saturating_add(wait_us);
        self.longest_us = self.longest_us.max(wait_us);
    }
}

#[derive(Clone, Debug, Default)]
pub struct RowStats {
    pub asked: u64,
    /// What all its requests cost, denied ones too, units. Counted for calls of model servers only.
    pub spent: u64,
    pub denied: Rates<u64>,
    /// Requests that it holds at the limit's own rate.
    pub held: HeldStats,
    pub minutes: BusiestMinutes,
    /// Forgotten clients, by the limit that each needed.
    pub forgotten: HashMap<u32, u64>,
    /// Forgotten clients that each rate denied something.
    pub forgotten_hit: Rates<u64>,
}

/// One request's charge in one window.
#[derive(Clone, Copy, Debug)]
pub struct WindowCharge {
    row: usize,
    meter: usize,
    charge: MeterCharge,
    /// The units that a call of a model server costs in the end.
    settled: Option<u64>,
    /// How its limit holds requests.
    delay: Option<Delay>,
}

/// The place of a charge: a key in a window of a row.
#[derive(Clone, Copy, Debug)]
pub struct ChargedWindow<'p> {
    pub row: usize,
    pub window: &'p WindowRow,
    pub key: &'p [u8],
    pub delay: Option<Delay>,
}

/// What a request costs in a limit.
#[derive(Clone, Copy, Debug)]
pub enum RequestCost {
    Units(u64),
    Call {
        cost: CallCost,
        /// What the limit holds at each rate.
        smallest: Rates<u64>,
    },
}

/// Charges that are allowed or denied together.
pub type WindowCharges = SmallVec<[WindowCharge; 4]>;

/// What the log says of a request after its decision.
#[derive(Clone, Copy, Debug)]
pub struct LoggedOutcome {
    /// The response's status refunds the charge.
    pub is_refunded: bool,
    /// How long the request held its slots, microseconds.
    pub duration_us: u64,
    /// The time from its decision to its settlement, microseconds.
    pub settles_after_us: u64,
    /// A ban denies the request, so the configured rates are not charged.
    pub is_banned: bool,
}

/// The rows that deny a request at the configured rates.
pub type DenyingRows = SmallVec<[usize; 2]>;

/// A charge that the end of its request changes.
#[derive(Debug)]
struct PendingCharge {
    row: usize,
    meter: usize,
    charge: MeterCharge,
    stamps: Stamps,
    allowed: Rates<bool>,
    /// The units that it costs in the end; `None` for slots, which are released.
    settled: Option<u64>,
}

#[derive(Debug)]
pub struct ReplayCounts {
    pub totals: Totals,
    pub meters: Vec<WindowMeter>,
    pub rows: Vec<RowStats>,
    /// See [`REQUESTS`], [`DENIED`] and [`FIRST_ROW`].
    pub timeline: Timeline,
    pub clock: LogClock,
    pub bans: ReplayBans,
    /// Charges by the time of their change, and a number that makes the key unique.
    pending: BTreeMap<(u64, u64), PendingCharge>,
    max_keys: usize,
    now_us: u64,
}

impl ReplayCounts {
    /// Keeps at most `max_keys` keys of each window, and at least 16.
    pub fn new(plan: &ReplayPlan, max_keys: usize) -> ReplayCounts {
        ReplayCounts {
            totals: Totals::default(),
            meters: plan.meter_windows.iter().map(WindowMeter::new).collect(),
            rows: vec![RowStats::default(); plan.rows.len()],
            timeline: Timeline::new(FIRST_ROW + plan.rows.len()),
            clock: LogClock::default(),
            bans: ReplayBans::new(max_keys.max(16)),
            pending: BTreeMap::new(),
            max_keys: max_keys.max(16),
            now_us: 0,
        }
    }

    /// Counts a request that its log line dates `at_us`. Returns the time of the log's clock.
    pub fn begin_request(&mut self, at_us: u64) -> u64 {
        let now_us = self.clock.advance(at_us);
        let (first_us, last_us) = self.totals.times.unwrap_or((now_us, now_us));
        self.totals.times = Some((first_us.min(now_us), last_us.max(now_us)));
        self.totals.requests += 1;
        self.timeline.advance(now_us);
        self.timeline.note(REQUESTS);
        self.now_us = now_us;
        while let Some(first) = self.pending.first_entry()
            && first.key().0 <= now_us
        {
            // Released slots have no time, and settlements have that of their end.
            let at_us = first.key().0;
            let ended = first.remove();
            self.end_charge(&ended, at_us);
        }
        now_us
    }

    /// The time of the request that was begun last.
    pub fn now_us(&self) -> u64 {
        self.now_us
    }

    /// Ends all requests that are under way at the end of the log.
    pub fn finish(&mut self) {
        while let Some(((at_us, _), ended)) = self.pending.pop_first() {
            self.end_charge(&ended, at_us);
        }
    }

    fn end_charge(&mut self, ended: &PendingCharge, at_us: u64) {
        let meter = &mut self.meters[ended.meter];
        let Some(settled) = ended.settled else {
            return meter.refund(&ended.charge, &ended.stamps, &ended.allowed, at_us);
        };
        let adjusted = Adjusted {
            charge: &ended.charge,
            stamps: &ended.stamps,
            allowed: &ended.allowed,
            settled,
        };
        meter.adjust(&adjusted, at_us);
        let spent = &mut self.rows[ended.row].spent;
        *spent = spent.saturating_add(settled);
    }

    /// Makes the charge of a key in a window. Forgets other keys if there are too many.
    pub fn charge(&mut self, at: ChargedWindow<'_>, cost: &RequestCost) -> WindowCharge {
        let window = at.window;
        if self.meters[window.meter].keys.len() >= self.max_keys {
            self.forget_keys(window.meter);
        }
        let place = self.meters[window.meter].place(at.key);
        WindowCharge {
            row: at.row,
            meter: window.meter,
            charge: match cost {
                RequestCost::Units(units) => MeterCharge::new(place, *units, window.units),
                RequestCost::Call { cost, smallest } => cost.charge(place, window.units, smallest),
            },
            settled: match cost {
                RequestCost::Units(_) => None,
                RequestCost::Call { cost, .. } => Some(cost.settled),
            },
            delay: at.delay,
        }
    }

    fn forget_keys(&mut self, meter: usize) {
        let rows = &mut self.rows;
        let places = self.meters[meter].forget(self.now_us, |key| {
            let row = &mut rows[usize::from(key.row)];
            *row.forgotten.entry(key.need).or_default() += 1;
            for scale in SCALES {
                row.forgotten_hit[scale] += u64::from(key.hit[scale]);
            }
        });
        self.pending.retain(|_, pending| {
            if pending.meter != meter {
                return true;
            }
            let place = places.get(pending.charge.place as usize);
            let place = place.copied().flatten();
            pending.charge.place = place.unwrap_or_default();
            place.is_some()
        });
    }

    /// Decides about a request: the enforced charges together, then each trial by itself. Returns
    /// the rows that deny it, unless a ban does.
    pub fn decide(
        &mut self,
        enforced: &WindowCharges,
        trials: &[WindowCharges],
        outcome: LoggedOutcome,
    ) -> DenyingRows {
        let mut denying = DenyingRows::new();
        let allowed = self.settle_all(enforced, outcome, &mut denying);
        for scale in SCALES {
            self.totals.denied[scale] += u64::from(!allowed[scale]);
        }
        if !allowed.own {
            self.timeline.note(DENIED);
        }
        for trial in trials {
            self.settle_all(trial, outcome, &mut DenyingRows::new());
        }
        denying
    }

    /// Counts the denial of a request by a ban that no limit was asked about.
    pub fn deny_banned(&mut self) {
        self.totals.denied.own += 1;
        self.timeline.note(DENIED);
    }

    /// Charges all windows or none, at each rate by itself. Returns the rates that allow.
    fn settle_all(
        &mut self,
        charges: &WindowCharges,
        outcome: LoggedOutcome,
        denying: &mut DenyingRows,
    ) -> Rates<bool> {
        let mut allowed = Rates::default().map(|_: &bool| true);
        allowed.own = !outcome.is_banned;
        let mut firsts: SmallVec<[MeterFirstPass; 4]> = SmallVec::new();
        for one in charges {
            let first = self.meters[one.meter].first_pass(&one.charge, self.now_us);
            for scale in SCALES {
                allowed[scale] &= !first.denies[scale];
            }
            if first.denies.own && !outcome.is_banned {
                denying.push(one.row);
            }
            firsts.push(first);
        }
        let mut outcomes = RateOutcomes {
            allowed,
            waits_us: Rates::default(),
        };
        if charges.iter().any(|one| one.delay.is_some()) {
            self.hold(charges, &mut firsts, &mut outcomes);
        }
        for (one, first) in charges.iter().zip(&firsts) {
            self.settle(one, first, &outcomes, outcome);
        }
        outcomes.allowed
    }

    /// Lets a request wait at each rate that denies it, if all windows that deny it hold requests.
    fn hold(
        &self,
        charges: &WindowCharges,
        firsts: &mut [MeterFirstPass],
        outcomes: &mut RateOutcomes,
    ) {
        for scale in SCALES {
            if outcomes.allowed[scale] {
                continue;
            }
            let check = |(one, first): (&WindowCharge, &MeterFirstPass)| {
                self.meters[one.meter].scale_check(&one.charge, first, scale, self.now_us)
            };
            let checks: SmallVec<[_; 4]> = charges.iter().zip(&*firsts).map(check).collect();
            let bookings = checks.iter().zip(charges);
            let Some(wait_us) = wait_us(bookings.map(|(check, one)| check.booking(one.delay)))
            else {
                continue;
            };
            outcomes.allowed[scale] = true;
            outcomes.waits_us[scale] = wait_us;
            for first in &mut *firsts {
                first.holds |= scale == Scale::Own && first.denies.own;
                first.denies[scale] = false;
            }
        }
    }

    fn settle(
        &mut self,
        one: &WindowCharge,
        first: &MeterFirstPass,
        outcomes: &RateOutcomes,
        outcome: LoggedOutcome,
    ) {
        let WindowCharge {
            row,
            meter,
            charge,
            settled,
            ..
        } = *one;
        let allowed = &outcomes.allowed;
        let counts = &mut self.meters[meter];
        let stamps = counts.settle(&charge, first, outcomes, row);
        let is_slot = counts.algorithm() == Algorithm::Slots;
        if is_slot || settled.is_some() {
            let pending = PendingCharge {
                row,
                meter,
                charge,
                stamps,
                allowed: *allowed,
                settled: settled.filter(|_| !is_slot),
            };
            let number = self.totals.requests << 16 | row as u64;
            let after_us = match is_slot {
                true => outcome.duration_us,
                false => outcome.settles_after_us,
            };
            let at_us = self.now_us.saturating_add(after_us.min(MAX_DURATION_US));
            self.pending.insert((at_us, number), pending);
        } else if outcome.is_refunded && charge.cost > 0 {
            counts.refund(&charge, &stamps, allowed, self.now_us);
        }
        let stats = &mut self.rows[row];
        stats.asked += 1;
        if first.holds {
            stats.held.note(outcomes.waits_us.own);
        }
        for scale in SCALES {
            stats.denied[scale] += u64::from(first.denies[scale]);
        }
        if first.denies.own {
            stats.minutes.note(self.now_us);
            self.timeline.note(FIRST_ROW + row);
        }
    }
}
