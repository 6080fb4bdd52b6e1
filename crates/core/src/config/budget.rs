//! Limits made of what their sections say.

use std::sync::Arc;

use super::diagnostic::{Code, Diagnostic, Span};
use super::limits::{Concurrent, RawLimit};
use super::reader::{At, Reader};
use crate::limit::key::{Alternatives, Part};
use crate::limit::{Algorithm, Key, Limit, Missing, OnError, Rate, Rule, Tier, Window};

/// A limit and where it came from.
pub(super) struct Budget {
    pub(super) name: At<String>,
    /// Nothing where it is unlimited for everybody.
    pub(super) limit: Option<Arc<Limit>>,
    /// What it says by itself: `rate`, or `concurrent`.
    pub(super) rate_span: Span,
    /// Every rule that is enforced for someone: first those of the limit's own windows.
    pub(super) rules: Vec<At<Rule>>,
    pub(super) key: Key,
    pub(super) key_span: Span,
    pub(super) missing: Missing,
    pub(super) on_error: Option<At<OnError>>,
    pub(super) used: bool,
}

/// Checks a limit by itself and makes it.
pub(super) fn budget(reader: &Reader<'_>, raw: RawLimit, on_error: OnError) -> Budget {
    let maker = Maker { reader, raw: &raw };
    let rates = raw.rates.value.iter().map(|rate| maker.rule(rate));
    let slots = raw.concurrent.iter().map(slots);
    let own: Vec<At<Rule>> = rates.chain(slots).collect();
    let mut rules = own.clone();
    let mut tiers = Vec::new();
    for tier in &raw.tiers {
        let of_tier: Vec<At<Rule>> = tier.rates.iter().map(|rate| maker.rule(rate)).collect();
        tiers.push(Tier {
            name: tier.name.value.as_str().into(),
            windows: Window::all(&raw.name.value, &values(&of_tier)),
        });
        rules.extend(of_tier);
    }
    let candidate = raw.candidate.as_ref().map(|rate| maker.rule(rate));
    maker.check_cost(&rules);
    let said = raw.on_error.as_ref().map(|word| word.value);
    let key_span = match &raw.key {
        Some(key) => key.span.clone(),
        None => raw.name.span.clone(),
    };
    let key = raw.key.map_or_else(by_address, |key| key.value);
    let limit = Limit {
        tiers,
        candidate: (candidate.iter())
            .map(|rule| Arc::new(Window::candidate(&raw.name.value, rule.value)))
            .collect(),
        shadow: raw.shadow,
        missing: raw.missing,
        on_error: said.unwrap_or(on_error),
        cost: raw.cost,
        each: raw.each,
        exempt: raw.exempt,
        lease_us: raw.lease.map_or(0, |lease| lease.value),
        slot: raw.slot.map(Arc::from),
        ..Limit::new(&raw.name.value, &values(&own), key.clone())
    };
    let asks = !rules.is_empty() || !limit.candidate.is_empty();
    Budget {
        rate_span: match &raw.concurrent {
            Some(concurrent) => concurrent.span.clone(),
            None => raw.rates.span,
        },
        name: raw.name,
        limit: asks.then(|| Arc::new(limit)),
        rules,
        key,
        key_span,
        missing: raw.missing,
        on_error: raw.on_error,
        used: false,
    }
}

/// Limits' and routes' default key.
fn by_address() -> Key {
    Key {
        parts: vec![Alternatives(vec![Part::Ip])],
    }
}

fn values(rules: &[At<Rule>]) -> Vec<Rule> {
    rules.iter().map(|rule| rule.value).collect()
}

fn slots(concurrent: &At<Concurrent>) -> At<Rule> {
    At {
        value: Rule {
            algorithm: Algorithm::Slots,
            units: concurrent.value.units,
            window_us: concurrent.value.hold_us,
            precision_us: 1,
        },
        span: concurrent.span.clone(),
    }
}

struct Maker<'r> {
    reader: &'r Reader<'r>,
    raw: &'r RawLimit,
}

impl Maker<'_> {
    /// What the store enforces for a rate. Who names neither algorithm nor precision gets them by
    /// the rate's size; who names the log gets it exact.
    fn rule(&self, rate: &At<Rate>) -> At<Rule> {
        let algorithm = self.raw.algorithm.as_ref().map(|word| word.value);
        let precision = self.raw.precision.as_ref().map(|length| length.value);
        let value = match (algorithm, precision) {
            (None, None) => Rule::by_size(rate.value),
            (Some(Algorithm::Counter), _) => Rule {
                algorithm: Algorithm::Counter,
                ..Rule::log(rate.value, 1)
            },
            (_, precision) => Rule::log(rate.value, precision.unwrap_or(1)),
        };
        let rule = At {
            value,
            span: rate.span.clone(),
        };
        self.check_rule(&rule);
        rule
    }

    /// The counter compares products in doubles: they must stay exact (`docs/limits.md`).
    fn check_rule(&self, rule: &At<Rule>) {
        const EXACT: u64 = 1 << 53;
        let Rule {
            units, window_us, ..
        } = rule.value;
        let product = units.checked_mul(window_us);
        let product = product.and_then(|half| half.checked_mul(2));
        let counts = rule.value.algorithm == Algorithm::Counter;
        if !counts || product.is_some_and(|product| product < EXACT) {
            return;
        }
        let message = "too many units over too long a window for `algorithm = \"counter\"`";
        let most = (EXACT - 1) / 2 / window_us;
        let mut diagnostic = Diagnostic::new(Code::LimitTooLarge, message)
            .at(&rule.span, format!("at most {most} in this window"))
            .help("use a shorter window, or `algorithm = \"log\"`");
        if let Some(word) = &self.raw.algorithm {
            diagnostic = diagnostic.at(&word.span, "");
        }
        self.reader.report(diagnostic);
    }

    fn check_cost(&self, rules: &[At<Rule>]) {
        let cost = self.raw.cost;
        for rule in rules.iter().filter(|rule| cost > rule.value.units) {
            let message = format!("`limit.{}` can never allow a request", self.raw.name.value);
            let label = format!("each request costs {cost} here");
            let diagnostic = Diagnostic::new(Code::CostAboveLimit, message)
                .help("lower the `cost`, or raise the `rate`");
            self.reader.report(diagnostic.at(&rule.span, label));
        }
    }
}
