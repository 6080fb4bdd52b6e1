//! The samples about keys of tokens that are fetched.

use super::{labelled, single};
use crate::clock;
use crate::server::introspection::Snapshot;
use crate::telemetry::metrics::text::MetricsText;

pub(super) fn write(text: &mut MetricsText, snapshot: &Snapshot<'_>) {
    let Some(jwks) = &snapshot.config.jwks else {
        return;
    };
    let status = jwks.keys.status(clock::unix_us() / 1_000_000);
    single(text, "tidegate_jwks_age_seconds", status.age_s);
    let fetches = [("ok", status.fetched), ("failed", status.failed)];
    labelled(text, "tidegate_jwks_fetches", "outcome", fetches);
}
