//! Limits: what a budget is, what a request asks of it, and what the store answered.
//!
//! Pure data and pure decisions. Time is an argument, in integer microseconds of one clock. A
//! decision allocates nothing beyond its small vectors.

pub mod ban;
#[cfg(test)]
mod bounds;
pub mod calendar;
pub mod counter;
pub mod decide;
pub mod delay;
pub mod enforce;
pub mod headers;
pub mod jitter;
pub mod key;
pub mod log;
pub mod rate;
pub mod tier;
mod window;

use std::fmt;
use std::sync::Arc;

use http::StatusCode;
use smallvec::SmallVec;

use crate::path::Case;
use crate::trace::TraceId;
use crate::usage::settings::Quantity;

pub use ban::Ban;
use calendar::Boundaries;
pub use calendar::{AnchorDay, Calendar, CalendarSettings, CalendarSpan, CalendarUnit};
pub use delay::Delay;
pub use enforce::EnforcedShare;
pub use key::{Key, KeyHash};
pub use rate::{DayWord, Rate};
pub use tier::Exempt;
pub use window::{Tier, Window, WindowTexts};

/// How admitted units are counted. `docs/limits.md` states the bound of each algorithm.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Algorithm {
    /// The exact sliding-window log: no interval of the window's length holds more than the limit.
    Log,
    /// Two counters per window: constant memory, approximate.
    Counter,
    /// Concurrent requests: a unit is held until its request ends or its holder's lease expires.
    Slots,
    /// All that was admitted since the window's start, which is an instant of a calendar.
    Calendar,
}

impl Algorithm {
    /// The most units that a count holds.
    pub const fn max_count(self) -> u64 {
        match self {
            Algorithm::Calendar => calendar::MAX_COUNT,
            _ => u32::MAX as u64,
        }
    }
}

/// The rule that the store enforces for one key: plain numbers, copied into every decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Rule {
    pub algorithm: Algorithm,
    /// Units per window; at least 1, below 2^32, for a calendar window below 2^48.
    pub units: u64,
    /// The window's length, microseconds; at least 1 ms, at most 366 days. For slots, the time
    /// after which a silent holder loses its slots. For a calendar window, the longest length of
    /// its unit.
    pub window_us: u64,
    /// The log's resolution, microseconds; divides the window. 1 for all others.
    pub precision_us: u64,
}

/// How a limit decides while the store fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnError {
    /// Limit in this process, by this proxy's share of the budget.
    Local,
    Allow,
    Deny,
}

impl OnError {
    /// The word in the configuration.
    pub const fn word(self) -> &'static str {
        match self {
            OnError::Local => "local",
            OnError::Allow => "allow",
            OnError::Deny => "deny",
        }
    }
}

/// What to do with a request that lacks the limit's key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Missing {
    Ip,
    /// Answer 400.
    Deny,
    Skip,
    /// Count all such requests against one shared key.
    Shared,
}

/// The policy that a block violates, for clients and logs. No limit has this name.
pub const BLOCK_POLICY: &str = "block";

/// One named budget, the same wherever it is used.
#[derive(Clone, Debug)]
pub struct Limit {
    /// Its index among the limits of its configuration.
    pub number: usize,
    /// The name for clients, operators and metrics; `[a-z0-9_-]{1,64}`.
    pub name: Arc<str>,
    /// One window for each rate, or the one of `concurrent`.
    pub windows: Vec<Arc<Window>>,
    /// When its calendar windows begin.
    pub calendar: Arc<CalendarSettings>,
    /// What `day` means in its rates and in its overrides.
    pub day: DayWord,
    /// Other windows for the clients of these tiers.
    pub tiers: Vec<Tier>,
    /// Windows that are counted and never enforced.
    pub candidate: Vec<Arc<Window>>,
    /// The limit is counted and reported, and never enforced.
    pub shadow: bool,
    /// The clients that it denies. For all others it is in shadow mode.
    pub enforce: EnforcedShare,
    pub key: Key,
    pub missing: Missing,
    pub on_error: OnError,
    /// The weight of every request in this limit, units.
    pub cost: u64,
    /// What it counts of a request, times `cost`.
    pub counts: Quantity,
    /// Whether every request weighs `cost`, whatever its route or its response says.
    pub each: bool,
    pub exempt: Exempt,
    /// The status of its denials. `None` for that of `[deny]`.
    pub status: Option<StatusCode>,
    /// When a key that it denies often is banned. `None` for never.
    pub ban: Option<Ban>,
    /// How long leased units may be spent without asking the store, microseconds; 0 for never.
    pub lease_us: u64,
    /// `None` if it denies at once.
    pub delay: Option<Delay>,
    /// The slot of a Redis Cluster that its keys share with those of other limits.
    pub slot: Option<Arc<str>>,
    /// Some route may refund units, or clients may leave while they wait. So a denied key may pass
    /// sooner than the store said.
    pub refunds: bool,
    /// The spelling of keys by path: folded if all routes of the limit ignore letter case.
    pub case: Case,
}

impl Limit {
    /// A limit with the configuration's defaults.
    pub fn new(name: &str, rules: &[Rule], key: Key) -> Limit {
        Limit {
            number: 0,
            name: name.into(),
            windows: Window::all(name, rules, &Arc::default()),
            calendar: Arc::default(),
            day: DayWord::for_rules(rules),
            tiers: Vec::new(),
            candidate: Vec::new(),
            shadow: false,
            enforce: EnforcedShare::ALL,
            key,
            missing: Missing::Ip,
            on_error: OnError::Local,
            cost: 1,
            counts: Quantity::Costs,
            each: false,
            exempt: Exempt::default(),
            status: None,
            ban: None,
            lease_us: 0,
            delay: None,
            slot: None,
            refunds: false,
            case: Case::Sensitive,
        }
    }

    /// Whether it counts requests under way.
    pub fn is_concurrent(&self) -> bool {
        let mut rules = self.windows.iter().map(|window| window.rule);
        rules.any(|rule| rule.algorithm == Algorithm::Slots)
    }

    /// Whether usage changes what it counts on a route with `usage`.
    pub fn counts_usage(&self) -> bool {
        self.counts != Quantity::Requests && !self.is_concurrent()
    }

    /// The units that a request costs. `weight` comes from its route or its response.
    pub fn units(&self, weight: u64) -> u64 {
        match self.each {
            true => self.cost,
            false => weight.saturating_mul(self.cost),
        }
    }
}

/// What one request asks of one window of one limit.
#[derive(Clone, Debug)]
pub struct LimitCheck {
    pub limit: Arc<Limit>,
    /// One of the limit's rates, or that of a tier or an override.
    pub window: Arc<Window>,
    /// The hash of the key that is charged.
    pub tag: KeyHash,
    /// The day on which the client's months and years begin. `None` for that of the limit.
    pub anchor: Option<AnchorDay>,
    /// Units asked for; 0 peeks.
    pub cost: u64,
    /// What logs may say of the client beyond the tag.
    pub asker: Option<Arc<Asker>>,
}

/// What logs may say of a client beyond the hash of its key, where the operator wants that. It
/// never changes a count.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Asker {
    /// The key before it was hashed, as [`Key::spell`] writes it.
    pub key: Option<Arc<str>>,
    pub trace: Option<TraceId>,
    /// `None` if the request is not to a model server.
    pub tokens: Option<Arc<AskedTokens>>,
}

/// What a request to a model server reserves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AskedTokens {
    /// Empty if the request names none.
    pub model: Box<str>,
    /// Tokens of input and output together.
    pub reserved: u64,
}

impl fmt::Debug for Asker {
    /// Leaves the key out, since it is in the clear.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("Asker");
        shown.field("trace", &self.trace).finish_non_exhaustive()
    }
}

/// How a log shows the key that a limit denied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DeniedKey {
    Hash(KeyHash),
    Plain(Arc<str>),
}

/// The part of a check in its request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Role {
    Enforced,
    /// Its limit is only counted and reported.
    Shadow,
    /// Its window is only counted and reported, beside those that its limit enforces.
    Candidate,
}

impl Role {
    /// The word in logs.
    pub const fn word(self) -> &'static str {
        match self {
            Role::Enforced => "enforced",
            Role::Shadow => "shadow",
            Role::Candidate => "candidate",
        }
    }
}

impl LimitCheck {
    pub fn role(&self) -> Role {
        let is_own = |window: &Arc<Window>| Arc::ptr_eq(window, &self.window);
        if self.limit.candidate.iter().any(is_own) {
            Role::Candidate
        } else if !self.limit.enforces(self.tag) {
            Role::Shadow
        } else {
            Role::Enforced
        }
    }

    /// A check of the same slot that every store denies, whatever is counted.
    pub fn never(like: &LimitCheck) -> LimitCheck {
        let rule = Rule {
            algorithm: Algorithm::Log,
            units: 1,
            window_us: 1_000_000,
            precision_us: 1,
        };
        let name = format!("{}~never", like.limit.name);
        LimitCheck {
            window: Arc::new(Window::new(&name, rule)),
            cost: 2,
            ..like.clone()
        }
    }

    /// How it holds a request that may wait for `longest_us`; `None` if it denies at once.
    pub fn delay_within(&self, longest_us: u64) -> Option<Delay> {
        let slides = self.window.rule.algorithm == Algorithm::Log;
        let delay = self.limit.delay.filter(|_| slides && longest_us > 0)?;
        Some(delay.within(longest_us))
    }

    /// The boundaries of its calendar window when the store's clock is at `at_us`; `None` for other
    /// windows.
    pub fn boundaries(&self, at_us: u64) -> Option<Boundaries> {
        let calendar = self.window.calendar.as_ref()?;
        let span = calendar.span(self.anchor, at_us);
        Some(Boundaries {
            end_us: span.end_us,
            next_end_us: span.next_end_us,
        })
    }

    /// The budget's identity in this process: 128 bits over window and tag.
    pub fn id(&self) -> u128 {
        u128::from_le_bytes(self.tag.0) ^ self.window.identity
    }
}

/// All checks of one request, at most one for each window. The store grants all of them or none.
pub type Charge = SmallVec<[LimitCheck; 2]>;

/// When the same request could be allowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Retry {
    /// It passes now.
    Now,
    /// It passes after this wait, microseconds, if nothing else is admitted; not before.
    After(u64),
    /// Never: its cost is above the limit.
    Never,
    /// When another request releases a slot. The time of that is unknown.
    Released,
    /// It passes after this wait, microseconds. It is charged, and counts from then on.
    Booked(u64),
    /// Unknown: another limit of the request was known to deny, so this one was not asked. Or no
    /// calendar window fits the clock ([`decide::FirstPass::asks_again`]).
    Unasked,
}

impl Retry {
    pub const fn denies(self) -> bool {
        !matches!(self, Retry::Now | Retry::Booked(_) | Retry::Unasked)
    }
}

/// One limit's part of a decision, from the same atomic step as the decision itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// Units counted before this request.
    pub used: u64,
    /// Units left after it if the whole request was allowed, left now if not.
    pub remaining: u64,
    pub retry: Retry,
    /// Time until nothing is counted any more if nothing else is admitted, microseconds. For a
    /// calendar window the time until its end, also where nothing is counted.
    pub reset_us: u64,
    /// Time until more units are free than after this decision, microseconds; 0 if none are
    /// counted. Units above the limit free nothing when they expire.
    pub next_us: u64,
    /// Names the charge, so that it can be refunded. Of a calendar window it is the end, modulo
    /// 2^48 microseconds, also of a denial. For other denials it has no meaning. 0 if there is
    /// none.
    pub stamp: u64,
}

impl Verdict {
    /// The end of a calendar window by the clock of its counts, microseconds since the Unix epoch.
    /// `unix_us` is now by this process's clock, which may be up to 4 years off.
    pub fn calendar_end_us(&self, unix_us: u64) -> u64 {
        let about_us = unix_us.saturating_add(self.reset_us);
        if self.stamp == 0 {
            return about_us;
        }
        match self.stamp.wrapping_sub(about_us) & (log::STAMPS - 1) {
            ahead_us if ahead_us < log::STAMPS / 2 => about_us.saturating_add(ahead_us),
            ahead_us => about_us.saturating_sub(log::STAMPS - ahead_us),
        }
    }

    /// Whether this denial holds until its wait ends, whatever is asked meanwhile: nothing is left,
    /// and nothing becomes free before.
    pub fn lasts(&self) -> bool {
        self.remaining == 0 && self.retry == Retry::After(self.next_us)
    }

    /// The verdict after `passed` microseconds, if nothing else has changed.
    pub fn later(&self, passed: u64) -> Verdict {
        let left = |us: u64| us.saturating_sub(passed);
        Verdict {
            retry: match self.retry {
                Retry::After(us) => Retry::After(left(us).max(1)),
                Retry::Booked(us) => Retry::Booked(left(us)),
                other => other,
            },
            reset_us: left(self.reset_us),
            next_us: left(self.next_us),
            ..*self
        }
    }
}

/// The store's answer to one `Charge`. The default is a denial.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Decision {
    /// Every limit allowed it, and all are charged; otherwise none is charged.
    pub allowed: bool,
    /// The store's clock at the decision, microseconds; of several nodes, the latest.
    pub at_us: u64,
    /// How much earlier another node may have decided, microseconds. 0 for one node.
    pub spread_us: u64,
    /// One verdict for each check, in the charge's order.
    pub verdicts: SmallVec<[Verdict; 2]>,
}

impl Decision {
    /// The decision after `passed` microseconds, if nothing else has changed.
    pub fn later(&self, passed: u64) -> Decision {
        let later = |verdict: &Verdict| verdict.later(passed);
        Decision {
            at_us: self.at_us + passed,
            verdicts: self.verdicts.iter().map(later).collect(),
            ..*self
        }
    }

    /// Makes a request that is allowed wait for as long as this or the other decision on it says.
    pub fn take_longer_wait(&mut self, other: &Decision) {
        for (verdict, other) in self.verdicts.iter_mut().zip(&other.verdicts) {
            match (verdict.retry, other.retry) {
                (Retry::Booked(own), Retry::Booked(us)) => {
                    verdict.retry = Retry::Booked(us.max(own))
                }
                (Retry::Now, Retry::Booked(_)) if self.allowed => verdict.retry = other.retry,
                _ => {}
            }
        }
    }

    /// How long the request must be held before it may pass, microseconds; 0 for most.
    pub fn wait_us(&self) -> u64 {
        let wait_of = |verdict: &Verdict| match verdict.retry {
            Retry::Booked(us) => us,
            _ => 0,
        };
        self.verdicts.iter().map(wait_of).max().unwrap_or(0)
    }

    /// Nothing denies, and nothing was charged.
    pub fn allowed_uncharged(at_us: u64) -> Decision {
        Decision {
            allowed: true,
            at_us,
            ..Decision::default()
        }
    }
}

#[derive(Clone, Copy, Debug)]
pub struct Decided<'d> {
    pub charge: &'d Charge,
    pub decision: &'d Decision,
}

#[derive(Clone, Copy, Debug)]
pub struct CheckResult<'d> {
    pub check: &'d LimitCheck,
    pub verdict: &'d Verdict,
}

impl<'d> Decided<'d> {
    pub fn results(self) -> impl Iterator<Item = CheckResult<'d>> {
        let results = self.charge.iter().zip(&self.decision.verdicts);
        results.map(|(check, verdict)| CheckResult { check, verdict })
    }

    pub fn denying(self) -> impl Iterator<Item = CheckResult<'d>> {
        self.results()
            .filter(|result| result.verdict.retry.denies())
    }
}
