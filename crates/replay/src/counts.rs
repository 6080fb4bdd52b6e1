//! The counts of a replay: totals, the statistics of each window, and the slots that requests hold.

use std::collections::{BTreeMap, HashMap};

use smallvec::SmallVec;

use super::meter::{MeterCharge, MeterLook, Rates, SCALES, Stamps, WindowMeter};
use super::plan::{ReplayPlan, WindowRow};
use super::timeline::{BusiestMinutes, LogClock, Timeline};
use crate::limit::Algorithm;

/// The timeline's series of all requests.
pub const REQUESTS: usize = 0;
/// The timeline's series of denied requests.
pub const DENIED: usize = 1;
/// The timeline's series of the denials of row 0; those of the other rows follow.
pub const FIRST_ROW: usize = 2;

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
        }
    }

    /// The words in the report on a terminal.
    pub const fn words(self) -> &'static str {
        match self {
            Outside::Bypassed => "bypassed",
            Outside::Unlimited => "on routes without limits",
            Outside::NoRoute => "without a route",
            Outside::Refused => "refused for their path, host or method",
            Outside::NoKey => "refused for want of a key",
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
    /// Requests with an unknown API key, on routes that count by it.
    pub unknown_keys: u64,
}

#[derive(Clone, Debug, Default)]
pub struct RowStats {
    pub asked: u64,
    pub denied: Rates<u64>,
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
}

#[derive(Debug)]
struct SlotHold {
    meter: usize,
    charge: MeterCharge,
    stamps: Stamps,
    allowed: Rates<bool>,
}

#[derive(Debug)]
pub struct ReplayCounts {
    pub totals: Totals,
    pub meters: Vec<WindowMeter>,
    pub rows: Vec<RowStats>,
    /// See [`REQUESTS`], [`DENIED`] and [`FIRST_ROW`].
    pub timeline: Timeline,
    pub clock: LogClock,
    /// Held slots by the time of their release, and a number that makes the key unique.
    held: BTreeMap<(u64, u64), SlotHold>,
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
            held: BTreeMap::new(),
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
        while let Some(first) = self.held.first_entry()
            && first.key().0 <= now_us
        {
            let held = first.remove();
            let meter = &mut self.meters[held.meter];
            meter.give_back(&held.charge, &held.stamps, &held.allowed, now_us);
        }
        now_us
    }

    /// Makes the charge of a key in a window. Forgets other keys if there are too many.
    pub fn charge(
        &mut self,
        row: usize,
        window: &WindowRow,
        key: &[u8],
        cost: u64,
    ) -> WindowCharge {
        if self.meters[window.meter].keys.len() >= self.max_keys {
            self.forget_keys(window.meter);
        }
        WindowCharge {
            row,
            meter: window.meter,
            charge: MeterCharge {
                place: self.meters[window.meter].place(key),
                cost,
                units: window.units,
            },
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
        self.held.retain(|_, held| {
            if held.meter != meter {
                return true;
            }
            let place = places.get(held.charge.place as usize).copied().flatten();
            held.charge.place = place.unwrap_or_default();
            place.is_some()
        });
    }

    /// Decides about a request: the enforced charges together, then each trial by itself.
    pub fn decide(
        &mut self,
        enforced: &WindowCharges,
        trials: &[WindowCharges],
        outcome: LoggedOutcome,
    ) {
        let allowed = self.settle_all(enforced, outcome);
        for scale in SCALES {
            self.totals.denied[scale] += u64::from(!allowed[scale]);
        }
        if !allowed.own {
            self.timeline.note(DENIED);
        }
        for trial in trials {
            self.settle_all(trial, outcome);
        }
    }

    /// Charges all windows or none, at each rate by itself. Returns the rates that allow.
    fn settle_all(&mut self, charges: &WindowCharges, outcome: LoggedOutcome) -> Rates<bool> {
        let mut allowed = Rates::default().map(|_: &bool| true);
        let mut looks: SmallVec<[MeterLook; 4]> = SmallVec::new();
        for one in charges {
            let look = self.meters[one.meter].look(&one.charge, self.now_us);
            for scale in SCALES {
                allowed[scale] &= !look.denies[scale];
            }
            looks.push(look);
        }
        for (one, look) in charges.iter().zip(&looks) {
            self.settle(one, look, &allowed, outcome);
        }
        allowed
    }

    fn settle(
        &mut self,
        one: &WindowCharge,
        look: &MeterLook,
        allowed: &Rates<bool>,
        outcome: LoggedOutcome,
    ) {
        let WindowCharge { row, meter, charge } = *one;
        let counts = &mut self.meters[meter];
        let stamps = counts.settle(&charge, look, allowed, row);
        if counts.algorithm() == Algorithm::Slots {
            let held = SlotHold {
                meter,
                charge,
                stamps,
                allowed: *allowed,
            };
            let number = self.totals.requests << 16 | row as u64;
            let until_us = self.now_us + outcome.duration_us;
            self.held.insert((until_us, number), held);
        } else if outcome.is_refunded && charge.cost > 0 {
            counts.give_back(&charge, &stamps, allowed, self.now_us);
        }
        let stats = &mut self.rows[row];
        stats.asked += 1;
        for scale in SCALES {
            stats.denied[scale] += u64::from(look.denies[scale]);
        }
        if look.denies.own {
            stats.minutes.note(self.now_us);
            self.timeline.note(FIRST_ROW + row);
        }
    }
}
