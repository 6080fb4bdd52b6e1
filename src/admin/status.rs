//! `/api/v1/status`: what this process is, and how it stands.

use serde_json::{Value, json};

use super::AdminState;
use super::answer::{Refusal, seen};
use crate::clock;
use crate::config::{RedisTopology, StoreKind};
use crate::server::introspection::{LastReload, Snapshot};

/// The whole of it.
pub(super) fn status(state: &AdminState) -> Result<Value, Refusal> {
    seen(state.server.introspection.inspect(|snapshot| {
        let file = state
            .server
            .file
            .as_ref()
            .map(|file| file.display().to_string());
        json!({
            "version": env!("CARGO_PKG_VERSION"),
            "pid": std::process::id(),
            "started_at": seconds(state.server.introspection.started_us()),
            "now": now(),
            "workers": snapshot.config.server.workers,
            "listen": state.server.listeners.places(),
            "config": {
                "file": file,
                "loaded_at": seconds(snapshot.loaded_us),
                "last_reload": snapshot.reload.map(last_reload),
            },
            "store": store(state, snapshot),
            "connections": snapshot.connections,
            "findings": state.findings().told(&snapshot.config.log.silence),
        })
    }))
}

/// Microseconds since the Unix epoch as the seconds that the API speaks.
pub(super) fn seconds(us: u64) -> f64 {
    us as f64 / 1e6
}

/// The time, in those.
pub(super) fn now() -> f64 {
    seconds(clock::unix_us())
}

fn last_reload(last: &LastReload) -> Value {
    let at = seconds(last.at_us);
    match &*last.outcome {
        Ok(reloaded) => json!({
            "at": at,
            "ok": true,
            "changes": reloaded.changes,
            "restarts": reloaded.restarts,
        }),
        Err(error) => json!({ "at": at, "ok": false, "errors": [error.to_string()] }),
    }
}

/// What kind of store it is.
pub(super) fn store_kind(snapshot: &Snapshot<'_>) -> &'static str {
    match &snapshot.config.store.kind {
        StoreKind::Memory => "memory",
        StoreKind::Redis(redis) => match redis.topology {
            RedisTopology::Single(_) => "redis",
            RedisTopology::Sentinel(_) => "sentinel",
            RedisTopology::Cluster { .. } => "cluster",
        },
    }
}

fn store(state: &AdminState, snapshot: &Snapshot<'_>) -> Value {
    let since = snapshot.counts.backing().away_since();
    let since = since.map(|since| {
        let ago = clock::now().saturating_duration_since(since);
        now() - ago.as_secs_f64()
    });
    let round_trip = match &snapshot.config.store.kind {
        StoreKind::Memory => None,
        StoreKind::Redis(_) => state.findings().round_trip,
    };
    json!({
        "kind": store_kind(snapshot),
        "up": since.is_none(),
        "degraded": since.is_some(),
        "since": since,
        "round_trip_seconds": round_trip.map(|took| took.as_secs_f64()),
        "on_error": snapshot.config.store.on_error.word(),
    })
}
