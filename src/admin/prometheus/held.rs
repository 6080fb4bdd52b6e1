//! The metrics of limits with `delay`.

use super::{family, labelled};
use crate::server::introspection::Snapshot;
use crate::telemetry::metrics::text::MetricsText;
use crate::telemetry::metrics::{HELD_BOUNDS, HeldSum, Sum};

/// The requests that limits with `delay` hold and held.
pub(super) fn write(text: &mut MetricsText, snapshot: &Snapshot<'_>, sum: &Sum) {
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
