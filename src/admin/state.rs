//! The state of the admin: handles of the running server, and a record of the last minutes.
//!
//! The record is read from the counters of the workers, has a fixed size, and ends with the
//! process. The `every` calls in `admin.rs` keep it up to date.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use tokio::sync::Semaphore;

use super::client_history::ClientHistories;
use super::crowd::Crowd;
use super::denials::DenialLog;
use super::findings::Findings;
use super::gate::AccessPolicy;
use super::history::History;
use super::response::{ApiError, now_s};
use super::route_history::RouteHistory;
use crate::clock;
use crate::config::{AdminSettings, RedisTopology, StoreKind};
use crate::limit::Limit;
use crate::proxy::Proxy;
use crate::server::ServerHandles;
use crate::server::introspection::Snapshot;
use crate::store::redis::{OUTAGE_AFTER, server_info};
use crate::telemetry::metrics::Sum;
use tidegate_core::failpoint;

/// Connections to the store that requests of operators may open at once.
const STORE_CONNECTIONS: usize = 4;
/// How long the store may take to describe itself.
const STORE_TIMEOUT: Duration = Duration::from_secs(2);
/// A worker without a heartbeat for this long is stuck. Workers beat five times a second.
const STUCK_AFTER: Duration = Duration::from_secs(5);

#[derive(Debug)]
pub(super) struct AdminState {
    pub(super) server: ServerHandles,
    pub(super) policy: ArcSwap<AccessPolicy>,
    /// The token that the process made itself, for configurations that name no token file.
    own_token: Option<Vec<u8>>,
    pub(super) denials: DenialLog,
    record: Mutex<ServerRecord>,
    store_connections: Semaphore,
}

#[derive(Debug)]
pub(super) struct ServerRecord {
    pub(super) history: History,
    pub(super) routes: RouteHistory,
    pub(super) crowd: Crowd,
    pub(super) clients: ClientHistories,
    pub(super) findings: Findings,
    /// The heartbeats of the workers, and when all workers had last beaten.
    beats: Vec<u64>,
    all_beat_at: Option<Instant>,
}

impl AdminState {
    pub(super) fn new(
        settings: &AdminSettings,
        own_token: Option<Vec<u8>>,
        server: ServerHandles,
    ) -> AdminState {
        AdminState {
            policy: ArcSwap::from_pointee(AccessPolicy::new(settings, own_token.as_deref())),
            own_token,
            denials: DenialLog::default(),
            record: Mutex::new(ServerRecord {
                history: History::new(server.introspection.started_us),
                routes: RouteHistory::default(),
                crowd: Crowd::default(),
                clients: ClientHistories::default(),
                findings: Findings::default(),
                beats: Vec::new(),
                all_beat_at: None,
            }),
            store_connections: Semaphore::new(STORE_CONNECTIONS),
            server,
        }
    }

    pub(super) fn record(&self) -> MutexGuard<'_, ServerRecord> {
        self.record.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The access policy of other settings.
    pub(super) fn policy_of(&self, settings: &AdminSettings) -> AccessPolicy {
        AccessPolicy::new(settings, self.own_token.as_deref())
    }

    /// Reads the running server. An error before it serves, and after its end.
    pub(super) fn inspect<T>(&self, read: impl FnOnce(&Snapshot<'_>) -> T) -> Result<T, ApiError> {
        let read = self.server.introspection.inspect(read);
        read.ok_or_else(|| ApiError::unavailable("the proxy is starting or ending"))
    }

    /// Runs `work` on a thread where it may connect to the store and wait. `failure` is the answer
    /// if it panics.
    pub(super) async fn run_blocking<T: Send + 'static>(
        &self,
        failure: &'static str,
        work: impl FnOnce() -> Result<T, ApiError> + Send + 'static,
    ) -> Result<T, ApiError> {
        let ending = |_| ApiError::unavailable("the admin is ending");
        let _permit = self.store_connections.acquire().await.map_err(ending)?;
        let done = tokio::task::spawn_blocking(work).await;
        done.map_err(|_| ApiError::internal(failure))?
    }

    pub(super) fn is_stuck(&self) -> bool {
        let long_ago = |at| clock::now().saturating_duration_since(at) > STUCK_AFTER;
        self.server.heartbeats.serves() && self.record().all_beat_at.is_some_and(long_ago)
    }

    /// Reads the counters of the workers. Called once a second.
    pub(super) fn tick(&self) {
        {
            let mut record = self.record();
            let all_beat = self.server.heartbeats.all_beat_since(&mut record.beats);
            if all_beat || record.all_beat_at.is_none() {
                record.all_beat_at = Some(clock::now());
            }
        }
        failpoint!("admin.look");
        let now_us = clock::unix_us();
        let now = now_us / 1_000_000;
        self.server.introspection.inspect(|snapshot| {
            let record = &mut *self.record();
            record.findings.check(snapshot, &record.crowd, now);
            record.routes.record(snapshot, now);
            let away_since = snapshot.counts.backing.away_since();
            let degraded = away_since.is_some_and(|since| since.elapsed() >= OUTAGE_AFTER);
            let sum = Sum::without_routes(snapshot.proxies().map(Proxy::meter));
            if let Some(last) = snapshot.reload {
                record.history.record_reload(snapshot.reloads, last);
            }
            record.history.record_store(now_us, degraded);
            record.history.record(now, &sum, degraded);
        });
    }

    /// Takes the decisions and denials that the workers have noted for operators since the last
    /// call.
    pub(super) fn collect(&self) {
        failpoint!("admin.look");
        let now = now_s();
        self.server.introspection.inspect(|snapshot| {
            let numbered = |limit: &Arc<Limit>| (limit.number as u32, Arc::clone(limit));
            let limits: HashMap<u32, Arc<Limit>> =
                snapshot.config.limits.iter().map(numbered).collect();
            let ServerRecord { crowd, clients, .. } = &mut *self.record();
            let exists = |name: &str| limits.values().any(|limit| *limit.name == *name);
            if crowd.retain(exists) {
                clients.retain(exists);
            }
            for meter in snapshot.proxies().map(Proxy::meter) {
                if let Some(trail) = meter.decision_trail() {
                    trail.drain(|entry| {
                        if let Some(limit) = limits.get(&entry.limit) {
                            crowd.record(limit, &entry, now);
                            clients.record(&limit.name, &entry, now);
                        }
                    });
                }
                if let Some(denials) = meter.denials() {
                    self.denials.record(denials.take());
                }
            }
        });
    }
}

/// Asks the store about itself in a task, if it is Redis.
pub(super) fn check_store(state: &Arc<AdminState>) {
    let asked = state.server.introspection.inspect(|snapshot| {
        let config = snapshot.config;
        (config.store.kind.clone(), config.log.silence.clone())
    });
    let Some((StoreKind::Redis(redis), silent)) = asked else {
        return;
    };
    let state = Arc::clone(state);
    tokio::spawn(async move {
        // In a cluster any node may answer, also a replica.
        let may_be_replica = matches!(redis.topology, RedisTopology::Cluster { .. });
        let info = server_info(&redis, STORE_TIMEOUT).await.ok();
        let findings = &mut state.record().findings;
        findings.check_store(info.as_ref(), may_be_replica, &silent);
    });
}
