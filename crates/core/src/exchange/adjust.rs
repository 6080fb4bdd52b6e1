//! What a request cost in the end: settled by what its response says, or given back by its status.
//!
//! At most once, when the response's head has come, and never waited for: should the process die
//! in between, what was charged at first stays charged. A refund comes before a settlement, and
//! gives back everything. Slots are held for as long as the request takes, whatever it cost.
//! Limits on trial are adjusted likewise, if their decisions have come by then.

use http::{HeaderMap, HeaderName, Response};

use super::access_record::AccessRecord;
use super::admission::{Admission, Decider, Granted};
use super::limiter::Limiter;
use crate::limit::{Algorithm, Charge, CheckResult, Decided, Decision, LimitCheck};
use crate::route::Route;

/// What becomes of what was charged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Adjustment {
    /// All of it is given back.
    Refund,
    /// So many units it was, before a limit's own weight.
    Settle(u64),
}

impl Limiter {
    /// Refunds or settles what `admission` charged, as the route has it for this response. The
    /// header that settles is between the upstream and us: no client sees it.
    pub fn adjust<B>(
        &self,
        route: &Route,
        admission: &Admission,
        response: &mut Response<B>,
        record: &mut AccessRecord,
    ) {
        let cost = route.settle.as_ref();
        let cost = cost.and_then(|name| take_cost(response.headers_mut(), name));
        let adjustment = match cost {
            _ if route.refund.contains(response.status()) => Adjustment::Refund,
            Some(units) => Adjustment::Settle(units),
            None => return,
        };
        self.adjust_admitted(admission, adjustment);
        for check in record.shadow.iter_mut().flat_map(|shadow| &mut shadow.list) {
            let charge = check.charge.clone();
            if let Some(decision) = check.decision().filter(|decision| decision.allowed) {
                let charge = &charge;
                let decided = Decided { charge, decision };
                self.adjust_shared(decided, adjustment, admission.generation);
            }
        }
    }

    fn adjust_admitted(&self, admission: &Admission, adjustment: Adjustment) {
        let Some(Granted { decided, by }) = admission.granted() else {
            return;
        };
        let Decided { charge, decision } = decided;
        let warm = match by {
            Decider::Store { warm } => {
                self.adjust_shared(decided, adjustment, admission.generation);
                warm.as_deref()
            }
            Decider::Local => Some(decision),
        };
        if let Some(decision) = warm.filter(|decision| decision.allowed) {
            let changed = Difference::of(Decided { charge, decision }, adjustment);
            if matches!(by, Decider::Local) {
                // What is given back stays in the journal: it names no stamps, and to owe the store
                // too much never admits too much.
                self.store.owe(&changed.more, admission.generation);
            }
            self.local.charge_more(&changed.more);
            self.local.give_back(&changed.less, &changed.less_of);
        }
    }

    fn adjust_shared(&self, decided: Decided<'_>, adjustment: Adjustment, generation: u64) {
        let changed = Difference::of(decided, adjustment);
        if !changed.more.is_empty() {
            self.store.settle(&changed.more, generation);
        }
        if !changed.less.is_empty() {
            let Difference { less, less_of, .. } = &changed;
            self.store.give_back(less, less_of, generation);
        }
    }
}

/// What a request cost in the end, beside what was charged for it at first.
struct Difference {
    /// To be charged on top.
    more: Charge,
    /// To be given back.
    less: Charge,
    /// The first decision, as far as it is about `less`.
    less_of: Decision,
}

impl Difference {
    fn of(decided: Decided<'_>, adjustment: Adjustment) -> Difference {
        let mut difference = Difference {
            more: Charge::new(),
            less: Charge::new(),
            less_of: Decision {
                verdicts: [].into_iter().collect(),
                ..*decided.decision
            },
        };
        for CheckResult { check, verdict } in decided.results() {
            if check.window.rule.algorithm == Algorithm::Slots {
                continue;
            }
            let cost = match adjustment {
                Adjustment::Refund => 0,
                Adjustment::Settle(units) => check.limit.units(units),
            };
            let costs = |cost: u64| LimitCheck {
                cost: cost.min(u64::from(u32::MAX)),
                ..check.clone()
            };
            if cost > check.cost {
                difference.more.push(costs(cost - check.cost));
            } else if cost < check.cost {
                difference.less.push(costs(check.cost - cost));
                difference.less_of.verdicts.push(*verdict);
            }
        }
        difference
    }
}

/// The units that a response names, and not the header itself any more: `None` where there is
/// none, or nonsense.
fn take_cost(headers: &mut HeaderMap, name: &HeaderName) -> Option<u64> {
    let mut all = headers.get_all(name).iter();
    let text = all.next().filter(|_| all.next().is_none());
    let units = text.and_then(|value| value.to_str().ok()?.trim().parse::<u64>().ok());
    headers.remove(name);
    units.map(|units| units.min(u64::from(u32::MAX)))
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    const COST: HeaderName = HeaderName::from_static("x-cost");

    #[test]
    fn a_cost_is_one_integer_or_nothing() {
        let read = |values: &[&'static str]| {
            let mut headers = HeaderMap::new();
            for value in values {
                headers.append(COST, HeaderValue::from_static(value));
            }
            let cost = take_cost(&mut headers, &COST);
            assert!(headers.is_empty(), "no client sees it");
            cost
        };
        assert_eq!(read(&["17"]), Some(17));
        assert_eq!(read(&["0"]), Some(0));
        assert_eq!(read(&["99999999999"]), Some(u64::from(u32::MAX)));
        for nonsense in [&["-1"][..], &["1.5"], &["many"], &[""], &["1", "2"], &[]] {
            assert_eq!(read(nonsense), None, "{nonsense:?}");
        }
    }
}
