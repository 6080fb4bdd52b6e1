//! The metrics of settings that few configurations have: limits with `delay`, and `[ledger]`.

use super::{family, labelled, single};
use crate::ledger::{LedgerAmounts, LedgerCount};
use crate::server::introspection::Snapshot;
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

/// What the ledger lacks.
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
