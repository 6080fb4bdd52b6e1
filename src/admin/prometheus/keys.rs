//! Metrics of the known API keys, of the service that is asked about them, and of keys of tokens.

use tidegate_core::exchange::key_callback::{OUTCOMES, REFUSALS};

use super::{MetricsText, family, labelled, single};
use crate::admin::known_keys;
use crate::clock;
use crate::server::introspection::Snapshot;
use crate::telemetry::metrics::cells::{Durations, REQUEST_BOUNDS};

pub(super) fn known_keys(text: &mut MetricsText, snapshot: &Snapshot<'_>) {
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

pub(super) fn token_keys(text: &mut MetricsText, snapshot: &Snapshot<'_>) {
    let Some(jwks) = &snapshot.config.jwks else {
        return;
    };
    let status = jwks.keys.status(clock::unix_us() / 1_000_000);
    single(text, "tidegate_jwks_age_seconds", status.age_s);
    let fetches = [("ok", status.fetched), ("failed", status.failed)];
    labelled(text, "tidegate_jwks_fetches", "outcome", fetches);
}
