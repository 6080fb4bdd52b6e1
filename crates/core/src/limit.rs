//! Limits: what a budget is, what a request asks of it, and what the store answered.
//!
//! Pure data and pure decisions. Time comes in as integer microseconds of one clock; nothing here
//! reads a clock, allocates per decision beyond its small vectors, or does IO.

mod asker;
#[cfg(test)]
mod bounds;
pub mod counter;
pub mod decide;
mod exempt;
pub mod headers;
pub mod key;
pub mod log;
pub mod precision;
pub mod rate;
pub mod slots;
pub mod tier;
mod window;

use std::sync::Arc;

use smallvec::SmallVec;

use crate::path::Case;

pub use asker::{Asker, Shown};
pub use exempt::Exempt;
pub use key::{Key, KeyHash};
pub use rate::Rate;
pub use window::{Tier, Window, Wording};

/// How admitted units are remembered. See `docs/limits.md` for the bound of each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Algorithm {
    /// The exact sliding-window log: no interval of the window's length holds more than the limit.
    Log,
    /// Two counters per window: constant memory, approximate.
    Counter,
    /// Requests under way: a unit is held until its request has ended, or its holder's lease has.
    Slots,
}

/// What the store enforces for one key: plain numbers, copied into every decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Rule {
    /// How admitted units are remembered.
    pub algorithm: Algorithm,
    /// Units per window; at least 1, below 2^32.
    pub units: u64,
    /// The window's length, microseconds; at least 1 ms, at most 366 days. For slots, how long a
    /// holder that says nothing keeps them.
    pub window_us: u64,
    /// The log's resolution, microseconds; divides the window. 1 for all others.
    pub precision_us: u64,
}

/// What an outage of the store means for a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnError {
    /// Keep limiting in this process, at this proxy's share of the budget.
    Local,
    /// Let the request pass.
    Allow,
    /// Answer 503.
    Deny,
}

impl OnError {
    /// What it is called in the file.
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
    /// Count it against the client's address.
    Ip,
    /// Answer 400: the request names no key.
    Deny,
    /// Do not apply this limit.
    Skip,
    /// Count all such requests against one shared key.
    Shared,
}

/// One named budget, the same wherever it is used.
#[derive(Clone, Debug)]
pub struct Limit {
    /// Its place among the limits of its configuration.
    pub number: usize,
    /// The name clients, operators and metrics know it by; `[a-z0-9_-]{1,64}`.
    pub name: Arc<str>,
    /// What is enforced: one window for each of its rates, or the one of `concurrent`.
    pub windows: Vec<Arc<Window>>,
    /// What is enforced instead for clients of these tiers.
    pub tiers: Vec<Tier>,
    /// What is counted beside it and never enforced.
    pub candidate: Vec<Arc<Window>>,
    /// Counted and reported, and never part of a verdict.
    pub shadow: bool,
    /// What requests are counted by.
    pub key: Key,
    /// What a request without that key means.
    pub missing: Missing,
    /// What an outage of the store means; `None` is the store's own setting.
    pub on_error: OnError,
    /// The weight of every request in this limit, units.
    pub cost: u64,
    /// Whether every request counts as one, whatever its route or its response says of it.
    pub each: bool,
    /// Who is never counted.
    pub exempt: Exempt,
    /// How long units taken ahead may be spent without asking the store, microseconds; 0 for never.
    pub lease_us: u64,
    /// The slot of a Redis Cluster that its keys share with those of other limits.
    pub slot: Option<Arc<str>>,
    /// Some route may give its units back: what the store denied may pass sooner than it said.
    pub gives_back: bool,
    /// How keys by path are spelled: folded if all routes of the limit ignore letter case.
    pub case: Case,
}

impl Limit {
    /// A limit by one or several rules, all else as it is unless a file says otherwise.
    pub fn new(name: &str, rules: &[Rule], key: Key) -> Limit {
        Limit {
            number: 0,
            name: name.into(),
            windows: Window::all(name, rules),
            tiers: Vec::new(),
            candidate: Vec::new(),
            shadow: false,
            key,
            missing: Missing::Ip,
            on_error: OnError::Local,
            cost: 1,
            each: false,
            exempt: Exempt::default(),
            lease_us: 0,
            slot: None,
            gives_back: false,
            case: Case::Sensitive,
        }
    }
}

impl Limit {
    /// What a request takes of it that its route, or its response, says to weigh so much.
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
    /// The budget.
    pub limit: Arc<Limit>,
    /// Which of its rates, or that of a tier or an override.
    pub window: Arc<Window>,
    /// Whose budget: the hashed key.
    pub tag: KeyHash,
    /// Units asked for; 0 peeks.
    pub cost: u64,
    /// What logs tell of who asks, beyond the tag.
    pub asker: Option<Arc<Asker>>,
}

/// What an item is to its request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Role {
    /// Part of the verdict.
    Enforced,
    /// Counted and reported only.
    Shadow,
    /// Counted beside what its limit enforces, and reported only.
    Candidate,
}

impl Role {
    /// What it is called in logs.
    pub const fn word(self) -> &'static str {
        match self {
            Role::Enforced => "enforced",
            Role::Shadow => "shadow",
            Role::Candidate => "candidate",
        }
    }
}

impl LimitCheck {
    /// What it is to its request.
    pub fn role(&self) -> Role {
        let is_own = |window: &Arc<Window>| Arc::ptr_eq(window, &self.window);
        if self.limit.candidate.iter().any(is_own) {
            Role::Candidate
        } else if self.limit.shadow {
            Role::Shadow
        } else {
            Role::Enforced
        }
    }

    /// An item of the same slot that no store lets pass, whatever is counted.
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

    /// The budget's identity in this process: 128 bits over window and tag.
    pub fn id(&self) -> u128 {
        u128::from_le_bytes(self.tag.0) ^ self.window.identity
    }
}

/// All that one request asks, at most one item for each window: granted together or not at all.
pub type Charge = SmallVec<[LimitCheck; 2]>;

/// When the same request could be allowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Retry {
    /// It passes now.
    Now,
    /// The smallest wait, microseconds, at whose end it passes if nothing else is admitted.
    After(u64),
    /// Never: its cost is above the limit.
    Never,
    /// As soon as someone lets go of a slot; nobody can say when.
    Released,
    /// Not known: another limit of the request was known to deny, so this one was not asked.
    Unasked,
}

impl Retry {
    /// Whether it denies the request.
    pub const fn denies(self) -> bool {
        !matches!(self, Retry::Now | Retry::Unasked)
    }
}

/// One limit's part of a decision, from the same atomic step as the decision itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// Units counted before this request.
    pub used: u64,
    /// Units left after it if the whole request was allowed, left now if not.
    pub remaining: u64,
    /// When this limit would let the same request pass; `Now` for a limit that does.
    pub retry: Retry,
    /// Until no unit is counted any more if nothing else is admitted, microseconds.
    pub reset_us: u64,
    /// Until more units are free than after this decision, microseconds; 0 if none are counted.
    pub next_us: u64,
    /// Names what was charged, so that it can be given back; means nothing for a denial.
    pub stamp: u64,
}

impl Verdict {
    /// Whether it denies, and stays as it is until its wait ends, but for the time that passes,
    /// whatever is asked meanwhile: nothing is left, and nothing becomes free before.
    pub fn lasts(&self) -> bool {
        self.remaining == 0 && self.retry == Retry::After(self.next_us)
    }

    /// The same when `passed` microseconds have passed, if nothing else has changed.
    pub fn later(&self, passed: u64) -> Verdict {
        let left = |us: u64| us.saturating_sub(passed);
        Verdict {
            retry: match self.retry {
                Retry::After(us) => Retry::After(left(us).max(1)),
                other => other,
            },
            reset_us: left(self.reset_us),
            next_us: left(self.next_us),
            ..*self
        }
    }
}

/// The store's answer to one `Charge`. That of nobody allows nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Decision {
    /// Every limit allowed it, and all are charged; else none is.
    pub allowed: bool,
    /// The store's clock at the decision, microseconds.
    pub at_us: u64,
    /// One verdict for each item, in the charge's order.
    pub verdicts: SmallVec<[Verdict; 2]>,
}

/// A charge beside the decision on it.
#[derive(Clone, Copy, Debug)]
pub struct Decided<'d> {
    pub charge: &'d Charge,
    pub decision: &'d Decision,
}

/// One check of a charge beside its verdict.
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

    /// Those of the limits that deny.
    pub fn denying(self) -> impl Iterator<Item = CheckResult<'d>> {
        self.results()
            .filter(|result| result.verdict.retry.denies())
    }
}
