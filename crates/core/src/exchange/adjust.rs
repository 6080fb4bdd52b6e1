//! Adjusts the cost of a request after its response: a refund by status, or a settlement by header.
//!
//! It happens at most once, when the head of the response has come or its body has ended, and no
//! request waits for it. If the process dies before, the first charge stands. While the store is
//! away, units on top are owed, and units to give back stay charged. A refund has precedence. Slots
//! are not adjusted. Checks in shadow mode are adjusted too, as soon as their decisions have come.
//!
//! A caller of the rate limit service adjusts counts by itself: it gives units back, or charges
//! units that were denied.

use http::{HeaderMap, HeaderName, Response, StatusCode};

use super::access_record::AccessRecord;
use super::admit::{Admission, Decider};
use super::limiter::Limiter;
use super::reserve::{Adjustment, FinalCost};
use crate::limit::calendar::MAX_COUNT;
use crate::limit::{Algorithm, Charge, CheckResult, Decided, Decision, LimitCheck};
use crate::route::Route;
use crate::telemetry::metrics::GrpcStatus;
use crate::usage::number::rounded_up;

impl Limiter {
    /// Refunds or settles the cost of a request, as its route says. It removes the header that
    /// settles, so that no client gets it. Returns whether the cost is final.
    pub fn adjust<B>(
        &self,
        route: &Route,
        admission: &Admission,
        response: &mut Response<B>,
        record: &mut AccessRecord,
    ) -> bool {
        let cost = route.settle_header();
        let cost = cost.and_then(|name| take_cost(response.headers_mut(), name));
        let adjustment = match cost {
            _ if route.refund.contains(final_status(response, record)) => Adjustment::Refund,
            Some(units) => Adjustment::Settle(FinalCost::Units(units)),
            None => return false,
        };
        self.adjust_all(admission, adjustment, Some(record));
        true
    }

    pub(super) fn adjust_all(
        &self,
        admission: &Admission,
        adjustment: Adjustment<'_>,
        record: Option<&mut AccessRecord>,
    ) {
        self.adjust_admitted(admission, adjustment);
        if let Some(shadow) = record.and_then(|record| record.shadow.as_mut()) {
            shadow.adjust(adjustment, admission.generation);
        }
    }

    /// Gives back units of each check, oldest first: its cost, and no more than is charged. While
    /// the store is away, only the local counts change.
    ///
    /// The local counts know the units of this process alone, so during an outage they may give
    /// back younger units than the store would. The journal keeps its debts, since it cannot tell
    /// which of them are meant. A debt that is too high never admits too much.
    pub fn refund_oldest(&self, charge: &Charge, generation: u64) {
        self.store.refund_oldest(charge, generation);
        if self.is_shared() {
            self.local.refund_oldest(charge);
        }
    }

    /// Charges the cost of each check, even above the limit, although the decision denied it. It is
    /// for rules that charge always. While the store is away, the units are owed.
    pub fn charge_anyway(&self, charge: &Charge, generation: u64) {
        self.store.settle(charge, generation);
        if self.is_shared() {
            self.local.charge_more(charge);
        }
    }

    fn adjust_admitted(&self, admission: &Admission, adjustment: Adjustment<'_>) {
        let Some(decided) = admission.granted() else {
            return;
        };
        let costs = adjustment.costs(decided.charge);
        let local = match &admission.decider {
            Some(Decider::Store { local }) => {
                self.adjust_store(decided, &costs, admission.generation);
                local.as_deref()
            }
            _ => Some(decided.decision),
        };
        if let Some(decision) = local.filter(|decision| decision.allowed) {
            let changed = Difference::new(
                Decided {
                    decision,
                    ..decided
                },
                &costs,
            );
            if matches!(admission.decider, Some(Decider::Local)) {
                let less = Decided {
                    charge: &changed.less,
                    decision: &changed.less_of,
                };
                let age_us = self.local.age_us(decision);
                self.store.owe(&changed.more, admission.generation);
                self.store.owe_less(less, age_us, admission.generation);
            }
            self.local.charge_more(&changed.more);
            self.local.refund(&changed.less, &changed.less_of);
        }
    }

    pub(super) fn adjust_store(&self, decided: Decided<'_>, costs: &[u64], generation: u64) {
        let Difference {
            more,
            less,
            less_of,
        } = Difference::new(decided, costs);
        if !more.is_empty() {
            self.store.settle(&more, generation);
        }
        if !less.is_empty() {
            self.store.refund(&less, &less_of, generation);
        }
    }
}

/// The status that may refund. That of a gRPC call is in `grpc-status`; one in trailers comes too
/// late.
fn final_status<B>(response: &Response<B>, record: &AccessRecord) -> StatusCode {
    match (response.status(), record.grpc) {
        (StatusCode::OK, true) => {
            GrpcStatus::in_head(response).map_or(StatusCode::OK, GrpcStatus::as_http)
        }
        (status, _) => status,
    }
}

/// The final cost of a request, compared with its first charge.
struct Difference {
    /// To charge.
    more: Charge,
    /// To refund.
    less: Charge,
    /// The part of the first decision that is about `less`.
    less_of: Decision,
}

impl Difference {
    fn new(decided: Decided<'_>, costs: &[u64]) -> Difference {
        let mut difference = Difference {
            more: Charge::new(),
            less: Charge::new(),
            less_of: Decision {
                verdicts: [].into_iter().collect(),
                ..*decided.decision
            },
        };
        for (CheckResult { check, verdict }, &cost) in decided.results().zip(costs) {
            if check.window.rule.algorithm == Algorithm::Slots {
                continue;
            }
            let check_of = |cost: u64| LimitCheck {
                cost: cost.min(check.window.rule.algorithm.max_count()),
                ..check.clone()
            };
            if cost > check.cost {
                difference.more.push(check_of(cost - check.cost));
            } else if cost < check.cost {
                difference.less.push(check_of(check.cost - cost));
                difference.less_of.verdicts.push(*verdict);
            }
        }
        difference
    }
}

/// Removes the header, and returns its units, rounded up; `None` unless it is one number.
fn take_cost(headers: &mut HeaderMap, name: &HeaderName) -> Option<u64> {
    let mut all = headers.get_all(name).iter();
    let text = all.next().filter(|_| all.next().is_none());
    let units = text.and_then(|value| rounded_up(value.to_str().ok()?.trim()));
    headers.remove(name);
    units.map(|units| units.min(MAX_COUNT))
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    const COST: HeaderName = HeaderName::from_static("x-cost");

    #[test]
    fn a_cost_is_one_number_or_nothing() {
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
        assert_eq!(read(&["99999999999"]), Some(99_999_999_999));
        assert_eq!(read(&["999999999999999"]), Some(MAX_COUNT));
        assert_eq!(read(&["18446744073709551616"]), Some(MAX_COUNT));
        assert_eq!(read(&["1e30"]), Some(MAX_COUNT));
        assert_eq!(read(&["1.5"]), Some(2));
        for nonsense in [
            &["-1"][..],
            &["-1.5"],
            &["inf"],
            &["many"],
            &[""],
            &["1", "2"],
            &[],
        ] {
            assert_eq!(read(nonsense), None, "{nonsense:?}");
        }
    }
}
