//! The metrics of settings that few configurations have: limits with `delay`, `[ledger]`, known API
//! keys, and keys of tokens.

use tidegate_core::exchange::key_callback::{OUTCOMES, REFUSALS};

use super::{family, labelled, single};
use crate::admin::known_keys;
use crate::clock;
use crate::ledger::{LedgerAmounts, LedgerCount};
use crate::server::introspection::Snapshot;
use crate::telemetry::metrics::cells::{Durations, REQUEST_BOUNDS};
use crate::telemetry::metrics::text::MetricsText;
use crate::telemetry::metrics::{HELD_BOUNDS, HeldSum, Sum};

/// The requests that limits with `delay` hold and held.
pub(super) fn write_held(text: &mut MetricsText, snapshot: &Snapshot<'_>, sum: &Sum) {
    let none = HeldSum::default();
    let limits = snapshot.config.limits.iter();
    let limits = limits.filter(|limit| limit.delay.is_some());
    let held: Vec<(&str, &HeldSum)> = limits
        .map(|limit| (&*limit.name, sum.held.get(&limit.name).unwrap_or(&none)))
        .collect();
    let waiting = held.iter().map(|(limit, held)| (*limit, held.waiting));
    labelled(text, "tidegate_waiting", "limit", waiting);
    family(text, "tidegate_delayed_seconds");
    for (limit, held) in &held {
        text.durations(&[("limit", *limit)], &HELD_BOUNDS, &held.delayed);
    }
}

/// The usage that Redis does not have yet, has in other lines, or never gets.
pub(super) fn write_ledger(text: &mut MetricsText, snapshot: &Snapshot<'_>) {
    let Some(settings) = &snapshot.config.ledger else {
        return;
    };
    let billing = snapshot.billing;
    single(text, "tidegate_ledger_lag_seconds", billing.lag_seconds());
    let families: [(&str, LedgerAmounts); 2] = [
        ("tidegate_ledger_other_units", billing.other()),
        ("tidegate_ledger_lost_units", billing.lost()),
    ];
    for (name, amounts) in families {
        let sample = |count: &LedgerCount| (count.word(), amounts.amount(*count));
        let samples = settings.counts.iter().map(sample);
        labelled(text, name, "counts", samples);
    }
}

/// The known API keys, and the service that is asked about them.
pub(super) fn write_known_keys(text: &mut MetricsText, snapshot: &Snapshot<'_>) {
    if let Some(known) = known_keys::report(snapshot) {
        single(text, "tidegate_known_keys", known.keys);
    }
    let Some(callback) = snapshot.key_callback else {
        return;
    };
    let outcomes = OUTCOMES.into_iter().zip(callback.outcomes());
    labelled(text, "tidegate_key_callback_questions", "outcome", outcomes);
    let refusals = REFUSALS.into_iter().zip(callback.refusals());
    labelled(text, "tidegate_key_callback_refused", "reason", refusals);
    family(text, "tidegate_key_callback_duration_seconds");
    let mut durations = Durations::default();
    callback.durations().add_to(&mut durations);
    text.durations(&[], &REQUEST_BOUNDS, &durations);
}

/// The keys of tokens.
pub(super) fn write_token_keys(text: &mut MetricsText, snapshot: &Snapshot<'_>) {
    let Some(jwks) = &snapshot.config.jwks else {
        return;
    };
    let status = jwks.keys.status(clock::unix_us() / 1_000_000);
    single(text, "tidegate_jwks_age_seconds", status.age_s);
    let fetches = [("ok", status.fetched), ("failed", status.failed)];
    labelled(text, "tidegate_jwks_fetches", "outcome", fetches);
}
