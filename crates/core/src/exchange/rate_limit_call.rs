//! One call of the rate limit service: descriptors in, one decision out. No protocol is here.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::HeaderMap;
use serde_json::{Map, Value};
use smallvec::SmallVec;

use crate::limit::headers::{RateLimitStatus, ResetForm};
pub use crate::limit::key::DescriptorEntry;
use crate::limit::{CalendarUnit, Charge, Decided, Decision, Rate};

/// What a proxy asks about one request of its client.
#[derive(Clone, Debug, Default)]
pub struct RateLimitCall<'m> {
    pub domain: &'m str,
    pub descriptors: SmallVec<[CallDescriptor<'m>; 4]>,
    /// How long the caller waits; `None` if it does not say.
    pub timeout: Option<Duration>,
}

#[derive(Clone, Debug)]
pub struct CallDescriptor<'m> {
    pub entries: SmallVec<[DescriptorEntry<'m>; 4]>,
    pub hits: Hits,
    /// Whether the caller says the units of this descriptor.
    pub has_own_hits: bool,
    /// The limit that the caller brings. It counts only with `[decide] overrides`.
    pub limit: Option<Rate>,
}

/// The units that a descriptor charges or gives back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hits {
    /// 0 charges nothing, and passes while no more than the limit is used.
    Charge(u64),
    Refund(u64),
}

impl Hits {
    /// The units that are charged.
    pub fn charged(self) -> u64 {
        match self {
            Hits::Charge(units) => units,
            Hits::Refund(_) => 0,
        }
    }
}

/// The answer to a call.
#[derive(Clone, Debug, Default)]
pub struct CallAnswer {
    pub is_over: bool,
    /// One for each descriptor, in the order of the call.
    pub statuses: Vec<DescriptorStatus>,
    /// For the response to the client.
    pub headers: HeaderMap,
    /// The body of a denial; empty if the call is allowed.
    pub body: Bytes,
    /// The tables of the rules that passed, merged; `None` if there are none.
    pub metadata: Option<Map<String, Value>>,
}

/// The state of one descriptor after a call.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DescriptorStatus {
    pub is_over: bool,
    /// The tightest limit; `None` if no rule takes the descriptor, or the rule has no limit.
    pub limit: Option<StatusLimit>,
    /// `u32::MAX` if the rule is unlimited, 0 if no rule takes the descriptor.
    pub remaining: u32,
    /// Whole seconds until the descriptor passes, or until more units are free; `None` if no wait
    /// helps, or if no units are counted.
    pub reset_s: Option<u64>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StatusLimit {
    pub name: Arc<str>,
    pub units: u32,
    pub window_us: u64,
    /// Set if the window is one of a calendar. Then `window_us` is the longest that it may be.
    pub calendar: Option<CalendarUnit>,
}

impl DescriptorStatus {
    pub(super) fn unlimited() -> DescriptorStatus {
        DescriptorStatus {
            remaining: u32::MAX,
            ..DescriptorStatus::default()
        }
    }

    /// The status by the checks of one descriptor alone. There is at least one.
    pub(super) fn new(charge: &Charge, mut decision: Decision) -> DescriptorStatus {
        let denies = |decided: Decided<'_>| decided.denying().next().is_some();
        let is_over = denies(Decided {
            charge,
            decision: &decision,
        });
        decision.allowed = !is_over;
        let decided = Decided {
            charge,
            decision: &decision,
        };
        let status = RateLimitStatus::new(decided, ResetForm::Delta, 0);
        let Some((check, state)) = status.tightest(charge) else {
            return DescriptorStatus::unlimited();
        };
        let rule = check.window.rule;
        let next = (state.next > 0).then_some(state.next);
        DescriptorStatus {
            is_over,
            limit: Some(StatusLimit {
                name: Arc::clone(&check.limit.name),
                units: u32::try_from(rule.units).unwrap_or(u32::MAX),
                window_us: rule.window_us,
                calendar: rule.calendar_unit(),
            }),
            remaining: u32::try_from(state.remaining).unwrap_or(u32::MAX),
            reset_s: if is_over { status.wait } else { next },
        }
    }
}
