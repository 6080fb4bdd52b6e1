//! The samples of the ledger. A configuration without `[ledger]` has none.

use super::{labelled, single};
use crate::ledger::{LedgerAmounts, LedgerCount};
use crate::server::introspection::Snapshot;
use crate::telemetry::metrics::text::MetricsText;

pub(super) fn write(text: &mut MetricsText, snapshot: &Snapshot<'_>) {
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
