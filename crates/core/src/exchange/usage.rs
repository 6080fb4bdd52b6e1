//! Token budgets: units are reserved at admission, and settled when the answer has ended.
//!
//! The reserve is the charge. So a process that dies leaves the estimate: no unit is lost, and no
//! hold stays for ever. One admission is settled once.

use super::access_record::AccessRecord;
use super::admit::Admission;
use super::limiter::Limiter;
use super::reserve::{Adjustment, FinalCost, UsageReserve};
use crate::limit::Charge;
use crate::telemetry::access::LoggedUsage;
use crate::telemetry::metrics::usage::UsageOutcome;
use crate::usage::estimate::{actual, observed};
use crate::usage::settings::{AbortedUsage, MissingUsage};
use crate::usage::tokens::{ChargedTokens, ReportedTokens, TokenCounts};

impl Limiter {
    /// Settles an admitted request by the end of its answer.
    pub fn settle_usage(
        &self,
        admission: &Admission,
        end: UsageEnd<'_>,
        mut record: Option<&mut AccessRecord>,
    ) {
        let charged = end.tokens();
        let model = end.model.unwrap_or(&end.reserve.model);
        if let Some(charged) = charged {
            let cost = FinalCost::Usage {
                reserve: end.reserve,
                charged,
                model,
            };
            self.settle(admission, cost, record.as_deref_mut());
        }
        let reserved = end.reserve.tokens_in(&admission.charge);
        let final_tokens = end.reserve.logged_tokens(charged, reserved);
        self.bill_settled(admission, end.reserve, final_tokens, model);
        if let Some(cells) = self.meter.usage(end.route) {
            cells.count_outcome(end.outcome);
            if let Some(charged) = charged.filter(|_| end.reported.is_some()) {
                let estimate = end.reserve.known_estimate();
                cells.count_tokens(charged.tokens, estimate.tokens);
            }
        }
        if let Some(record) = record {
            record.usage = Some(Box::new(LoggedUsage {
                model: model.into(),
                requested_model: (*end.reserve.model != *model).then(|| end.reserve.model.clone()),
                charged: final_tokens,
                outcome: Some(end.outcome),
                ..end.reserve.logged(&admission.charge)
            }));
        }
    }

    /// Counts and records a request to a model server whose answer is not read: its units were
    /// given back, or its client left before.
    pub fn note_unread_usage(
        &self,
        reserve: &UsageReserve,
        admission: &Admission,
        outcome: UsageOutcome,
        record: &mut AccessRecord,
    ) {
        if let Some(cells) = self.meter.usage(record.route_number) {
            cells.count_outcome(outcome);
        }
        if outcome != UsageOutcome::Refunded && reserve.uploaded.is_some() {
            let cost = FinalCost::Usage {
                reserve,
                charged: ReportedTokens::default().or(reserve.known_estimate().tokens),
                model: &reserve.model,
            };
            self.settle(admission, cost, Some(record));
        }
        let logged = reserve.logged(&admission.charge);
        let charged = match outcome {
            UsageOutcome::Refunded => TokenCounts::default(),
            _ => reserve.logged_tokens(None, logged.reserved),
        };
        self.bill_settled(admission, reserve, charged, &reserve.model);
        record.usage = Some(Box::new(LoggedUsage {
            charged,
            outcome: Some(outcome),
            ..logged
        }));
    }

    /// Settles an admitted request once. `record` has its shadow checks.
    pub fn settle(
        &self,
        admission: &Admission,
        cost: FinalCost<'_>,
        record: Option<&mut AccessRecord>,
    ) {
        self.adjust_all(admission, Adjustment::Settle(cost), record);
    }
}

impl AccessRecord {
    /// Notes what a denied request would have reserved, so that a replay of the log knows it.
    /// `charge` has its checks.
    pub fn note_denied_usage(&mut self, reserve: &UsageReserve, charge: &Charge) {
        if self.head.is_some() {
            self.usage = Some(Box::new(reserve.logged(charge)));
        }
    }
}

impl UsageReserve {
    /// The tokens of a request that was not admitted. `charge` has its checks.
    fn logged(&self, charge: &Charge) -> LoggedUsage {
        LoggedUsage {
            model: self.model.clone(),
            requested_model: None,
            estimate: self.estimate,
            reserved: self.tokens_in(charge),
            charged: TokenCounts::default(),
            outcome: None,
        }
    }
}

/// The end of an answer of a model server.
#[derive(Clone, Copy, Debug)]
pub struct UsageEnd<'e> {
    pub reserve: &'e UsageReserve,
    pub outcome: UsageOutcome,
    /// What the answer reported.
    pub reported: Option<ReportedTokens>,
    /// What it reported so far, if that is not final.
    pub reported_so_far: Option<ReportedTokens>,
    /// Bytes of text in the answer, if they are counted. `None` if the answer could not be read.
    pub text_bytes: Option<u64>,
    /// The model that the answer names.
    pub model: Option<&'e str>,
    pub route: usize,
}

impl UsageEnd<'_> {
    /// What is charged; `None` keeps the reserve.
    fn tokens(&self) -> Option<ChargedTokens> {
        let settings = &self.reserve.settings;
        let estimate = self.reserve.known_estimate();
        if self.reported.is_some() {
            let text_bytes = self.text_bytes.unwrap_or(u64::MAX);
            return Some(actual(settings, self.reported, estimate, text_bytes));
        }
        // A text that nobody could read is not empty.
        let observed = || Some(observed(settings, estimate, self.text_bytes?));
        let charged = if self.outcome == UsageOutcome::Aborted {
            match settings.abort {
                AbortedUsage::Observed => observed(),
                AbortedUsage::Estimate | AbortedUsage::Drain(_) => None,
            }
        } else {
            match settings.missing {
                MissingUsage::Estimate => None,
                MissingUsage::Prompt => Some(actual(settings, None, estimate, 0)),
                MissingUsage::Observed => observed(),
            }
        };
        let kept = ReportedTokens::default().or(estimate.tokens);
        let Some(so_far) = self.reported_so_far else {
            // The reserve was of the longest body.
            return charged.or(self.reserve.uploaded.is_some().then_some(kept));
        };
        let known = so_far.or(TokenCounts::default()).tokens;
        Some(charged.unwrap_or(kept).at_least(known))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::super::uploaded::UploadedBytes;
    use super::*;
    use crate::limit::{Algorithm, Key, Limit, Rule};
    use crate::usage::estimate::Estimate;
    use crate::usage::format::{AnswerFormat, AnswerTable, TextCount};
    use crate::usage::settings::{PriceTable, Quantity, TokenWeights, UsageSettings};

    fn reserve(missing: MissingUsage, abort: AbortedUsage) -> UsageReserve {
        let format = AnswerFormat::Anthropic;
        let settings = UsageSettings {
            name: "chat".into(),
            format: Some(format),
            table: Arc::new(AnswerTable::new(format, TextCount::Counted)),
            bytes_per_token: 3,
            default_output: 1024,
            weights: TokenWeights {
                cached: 0,
                ..TokenWeights::default()
            },
            asks: false,
            missing,
            abort,
            prices: Arc::new(PriceTable::default()),
        };
        UsageReserve {
            settings: Arc::new(settings),
            estimate: Estimate {
                tokens: TokenCounts {
                    input: 10,
                    output: 90,
                    ..TokenCounts::default()
                },
                names_maximum: true,
            },
            uploaded: None,
            model: "claude".into(),
        }
    }

    #[test]
    fn a_body_whose_length_was_not_known_costs_what_has_come_of_it() {
        for missing in [MissingUsage::Estimate, MissingUsage::Observed] {
            let mut reserve = reserve(missing, AbortedUsage::Estimate);
            reserve.estimate.tokens.input = 35_000_000;
            let uploaded = UploadedBytes::default();
            reserve.uploaded = Some(uploaded.clone());
            uploaded.add(90);
            let admitted = reserve.logged_tokens(None, 35_000_090);
            assert_eq!((admitted.input, admitted.output), (30, 90));
            uploaded.add(210);
            for outcome in [UsageOutcome::Aborted, UsageOutcome::Missing] {
                let end = UsageEnd {
                    reserve: &reserve,
                    outcome,
                    reported: None,
                    reported_so_far: None,
                    text_bytes: Some(270),
                    model: None,
                    route: 0,
                };
                let charged = end.tokens().unwrap();
                let logged = reserve.logged_tokens(Some(charged), 35_000_090);
                assert_eq!((logged.input, logged.output), (100, 90), "{outcome:?}");
            }
        }
    }

    /// What a call costs in a limit of weighted tokens whose answer broke off.
    fn broken_off(reserve: &UsageReserve, outcome: UsageOutcome, so_far: (u64, u64)) -> u64 {
        let end = UsageEnd {
            reserve,
            outcome,
            reported: None,
            reported_so_far: Some(ReportedTokens {
                input: Some(so_far.0),
                cached: 5,
                output: Some(so_far.1),
                ..ReportedTokens::default()
            }),
            text_bytes: Some(60),
            model: None,
            route: 0,
        };
        let rule = Rule {
            algorithm: Algorithm::Log,
            units: 9000,
            window_us: 1_000_000,
            precision_us: 1,
        };
        let limit = Limit {
            counts: Quantity::Costs,
            ..Limit::new("costs", &[rule], Key::parse(["global"]).unwrap())
        };
        let Some(charged) = end.tokens() else {
            return 100;
        };
        let cost = FinalCost::Usage {
            reserve,
            charged,
            model: "claude",
        };
        cost.units(&limit, 100).unwrap()
    }

    #[test]
    fn an_answer_that_breaks_off_costs_no_less_than_it_had_reported() {
        let kept = reserve(MissingUsage::Estimate, AbortedUsage::Estimate);
        let observed = reserve(MissingUsage::Observed, AbortedUsage::Observed);
        for outcome in [UsageOutcome::Aborted, UsageOutcome::Missing] {
            assert_eq!(broken_off(&kept, outcome, (12, 3)), 100);
            assert_eq!(broken_off(&kept, outcome, (405, 3)), 403);
            assert_eq!(broken_off(&observed, outcome, (12, 3)), 32);
            assert_eq!(broken_off(&observed, outcome, (15, 400)), 410);
        }
        let prompt = reserve(MissingUsage::Prompt, AbortedUsage::Estimate);
        assert_eq!(broken_off(&prompt, UsageOutcome::Missing, (405, 3)), 403);
    }
}
