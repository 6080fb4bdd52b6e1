//! Limits: what a budget is, what a request asks of it, and what the store answered.
//!
//! Pure data and pure decisions. Time comes in as integer microseconds of one clock; nothing here
//! reads a clock, allocates per decision beyond its small vectors, or does IO.

pub mod counter;
pub mod decide;
pub mod headers;
pub mod key;
pub mod log;
pub mod rate;

use std::sync::Arc;

use smallvec::SmallVec;

pub use key::{Key, Tag};
pub use rate::Rate;

/// How admitted units are remembered. See `docs/limits.md` for the bound of each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Algorithm {
    /// The exact sliding-window log: no interval of the window's length holds more than the limit.
    Log,
    /// Two counters per window: constant memory, approximate.
    Counter,
}

/// What the store enforces for one key: plain numbers, copied into every decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Rule {
    /// How admitted units are remembered.
    pub algorithm: Algorithm,
    /// Units per window; at least 1, below 2^32.
    pub units: u64,
    /// The window's length, microseconds; at least 1 ms, at most 366 days.
    pub window_us: u64,
    /// The log's resolution, microseconds; divides the window. 1 for the counter.
    pub precision_us: u64,
}

impl Rule {
    /// This rule scaled to one proxy's part of a shared budget: `floor(units / fleet)`, at least 1.
    pub fn share(self, fleet: u32) -> Rule {
        Rule {
            units: (self.units / u64::from(fleet.max(1))).max(1),
            ..self
        }
    }
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
#[derive(Debug)]
pub struct Limit {
    /// The name clients, operators and metrics know it by; `[a-z0-9_-]{1,64}`.
    pub name: Arc<str>,
    /// What the store enforces.
    pub rule: Rule,
    /// What requests are counted by.
    pub key: Key,
    /// What a request without that key means.
    pub missing: Missing,
    /// What an outage of the store means; `None` is the store's own setting.
    pub on_error: OnError,
    /// The weight of every request in this limit, units.
    pub cost: u64,
    /// `NAME.FP`: what follows the tag in the store's key. FP is four characters over the layout
    /// version, algorithm, window and precision, so that changing those starts anew while
    /// changing the rate keeps history.
    pub store_suffix: String,
    /// 16 bytes over `store_suffix`: mixed with a tag, the identity of one budget in memory.
    pub identity: u128,
}

/// What one request asks of one limit.
#[derive(Clone, Debug)]
pub struct Item {
    /// The budget.
    pub limit: Arc<Limit>,
    /// Whose budget: the hashed key.
    pub tag: Tag,
    /// Units asked for; 0 peeks.
    pub cost: u64,
}

/// All that one request asks, at most one item for each limit: granted together or not at all.
pub type Charge = SmallVec<[Item; 2]>;

/// When the same request could be allowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Retry {
    /// It passes now.
    Now,
    /// The smallest wait, microseconds, at whose end it passes if nothing else is admitted.
    After(u64),
    /// Never: its cost is above the limit.
    Never,
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
}

/// The store's answer to one `Charge`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decision {
    /// Every limit allowed it, and all are charged; else none is.
    pub allowed: bool,
    /// The store's clock at the decision, microseconds.
    pub at_us: u64,
    /// One verdict for each item, in the charge's order.
    pub verdicts: SmallVec<[Verdict; 2]>,
}
