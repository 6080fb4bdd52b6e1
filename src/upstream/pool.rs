//! One upstream of one worker: it gives each request a permit for one of its servers.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use super::balance::Load;
use super::connect::UpstreamTls;
use super::error::UpstreamError;
use super::health::{SendReason, Standing};
use super::permit::ServerPermit;
use super::retry::RetryBudget;
use super::server::{Server, UpstreamTerms};
use super::server_health::{UpstreamHealth, Vitals};
use super::server_set::ResolvedServers;
use crate::clock::{self, Sweep};
use crate::config::UpstreamSettings;
use crate::telemetry::metrics::UpstreamCells;
use crate::telemetry::panics::lock;

#[derive(Debug)]
pub(super) struct Upstream {
    pub(super) terms: Arc<UpstreamTerms>,
    pub(super) servers: Arc<ResolvedServers>,
    health: Arc<UpstreamHealth>,
    /// Counters that go on under the next configuration.
    pub(super) cells: Arc<UpstreamCells>,
    requests: AtomicU64,
    budget: Mutex<RetryBudget>,
}

impl Upstream {
    /// An upstream that replaces `old`, if there is one. It takes over the counters, the servers
    /// that have not changed, and their connections.
    pub(super) fn new(
        old: Option<&Arc<Upstream>>,
        settings: &UpstreamSettings,
        sweep: Sweep,
        vitals: &Vitals,
    ) -> Arc<Upstream> {
        if let Some(same) = old.filter(|old| old.terms.settings == *settings) {
            return Arc::clone(same);
        }
        let health = vitals.upstream(&settings.name);
        let mut servers = settings.servers.iter();
        let is_capped = servers.any(|server| server.max_connections.is_some());
        let queue = match is_capped {
            true => health.queue(&settings.servers),
            false => Arc::default(),
        };
        let terms = Arc::new(UpstreamTerms {
            is_capped,
            queue: (settings.queue > 0).then_some(queue),
            settings: settings.clone(),
            tls: UpstreamTls::load(settings),
            sweep,
            in_use: old.map_or_else(Arc::default, |old| Arc::clone(&old.terms.in_use)),
        });
        let old_servers = old.map_or_else(Vec::new, |old| old.current_servers());
        let servers = ResolvedServers::new(&terms, &health, vitals, &old_servers);
        if terms.settings.eject.is_none() {
            let servers = &servers.set.load().servers;
            servers.iter().for_each(|one| one.health.forget_ejection());
        }
        Arc::new(Upstream {
            servers,
            terms,
            health,
            cells: old.map_or_else(Arc::default, |old| Arc::clone(&old.cells)),
            requests: AtomicU64::new(0),
            budget: Mutex::new(RetryBudget::new(clock::now())),
        })
    }

    pub(super) fn current_servers(&self) -> Vec<Arc<Server>> {
        self.servers.set.load().servers.clone()
    }

    pub(super) fn settings(&self) -> &UpstreamSettings {
        &self.terms.settings
    }

    /// A permit for the server that `affinity` or the balancing chooses. Fails with
    /// `TooManyConnections` while no server has room, or earlier requests wait.
    pub(super) fn permit(&self, affinity: Option<u64>) -> Result<ServerPermit, UpstreamError> {
        let queue = self.terms.queue.as_ref();
        if queue.is_some_and(|queue| queue.has_waiting()) {
            return Err(UpstreamError::TooManyConnections);
        }
        self.free_permit(affinity)
    }

    #[cold]
    pub(super) async fn wait_for_permit(
        &self,
        affinity: Option<u64>,
    ) -> Result<ServerPermit, UpstreamError> {
        let Some(queue) = &self.terms.queue else {
            return self.free_permit(affinity);
        };
        let settings = self.settings();
        let take = || self.free_permit(affinity);
        queue
            .wait(settings.queue, settings.queue_timeout, take)
            .await
    }

    fn free_permit(&self, affinity: Option<u64>) -> Result<ServerPermit, UpstreamError> {
        if self.has_reached_limit() {
            return Err(UpstreamError::TooManyConnections);
        }
        // Before the others are asked for room: the server on trial has room of its own.
        if self.health.has_any_out()
            && let Some(permit) = self.trial_permit(&[])
        {
            return Ok(permit);
        }
        if self.are_healthy_full() {
            return Err(UpstreamError::TooManyConnections);
        }
        let picked = self.pick(affinity, |server| server.load());
        picked.ok_or_else(|| match &self.settings().health {
            // Other workers reached the caps after `are_healthy_full` was asked.
            _ if self.terms.is_capped && self.has_healthy() => UpstreamError::TooManyConnections,
            Some(check) if !self.servers.set.load().servers.is_empty() => {
                UpstreamError::NoneLeft(check.every * check.healthy)
            }
            _ => UpstreamError::NoServer,
        })
    }

    /// A permit for another attempt, preferably at a healthy server that is not in `tried`. The
    /// last tried server follows if it `may_be_same`, and then servers that are ejected.
    pub(super) fn retry_permit(
        &self,
        tried: &[Arc<Server>],
        affinity: Option<u64>,
        may_be_same: bool,
    ) -> Option<ServerPermit> {
        if self.has_reached_limit() {
            return None;
        }
        if self.are_healthy_full() {
            return self.trial_permit(tried);
        }
        let untried = |server: &Arc<Server>| match contains(tried, server) {
            true => Load::Down,
            false => server.load(),
        };
        let healthy = |server: &Arc<Server>| match untried(server) {
            Load::Ready(work) => Load::Ready(work),
            _ => Load::Down,
        };
        if let Some(permit) = self.pick(affinity, healthy) {
            return Some(permit);
        }
        if let Some(same) = tried.last().filter(|_| may_be_same)
            && matches!(same.load(), Load::Ready(_))
        {
            return ServerPermit::take(same, SendReason::Healthy);
        }
        let trial = self.trial_permit(tried);
        trial.or_else(|| self.pick(affinity, untried))
    }

    fn pick(
        &self,
        affinity: Option<u64>,
        load: impl Fn(&Arc<Server>) -> Load,
    ) -> Option<ServerPermit> {
        let set = self.servers.set.load();
        // Another worker may reach a server's cap after the choice: then it is made again.
        for _ in 0..=set.servers.len() {
            let chosen = set.choose(affinity, &load)?;
            let reason = match self.health.has_any_out()
                && chosen.server.health.standing() != Standing::Healthy
            {
                true => SendReason::LastResort,
                false => SendReason::Healthy,
            };
            if let Some(mut permit) = ServerPermit::take(chosen.server, reason) {
                if chosen.measures {
                    permit.started = Some(clock::now());
                }
                return Some(permit);
            }
        }
        None
    }

    /// A permit for the trial of a server whose ejection is over.
    #[cold]
    fn trial_permit(&self, tried: &[Arc<Server>]) -> Option<ServerPermit> {
        let set = self.servers.set.load();
        let spares_backups = set.spares_backups(|server| server.load());
        let is_left_out = |one: &Arc<Server>| spares_backups && one.is_backup;
        // A trial that finds no room would keep others out for a while.
        let is_full = |one: &Arc<Server>| one.cap.is_some_and(|most| one.health.is_full(most));
        let may_try =
            |one: &&Arc<Server>| !contains(tried, one) && !is_left_out(one) && !is_full(one);
        let mut others = set.servers.iter().filter(may_try);
        let server = others.find(|server| server.health.claim_trial())?;
        ServerPermit::take(server, SendReason::Trial)
    }

    fn has_reached_limit(&self) -> bool {
        self.terms.in_use.load(Ordering::Relaxed) >= self.terms.settings.max_connections
    }

    /// Whether all healthy servers have reached their caps. Then waiting is better than a server
    /// that is not healthy.
    fn are_healthy_full(&self) -> bool {
        if !self.terms.is_capped {
            return false;
        }
        let mut any_full = false;
        let any_ready = self.servers.set.load().servers.iter().any(|server| {
            let load = server.load();
            any_full |= load == Load::Full;
            matches!(load, Load::Ready(_))
        });
        any_full && !any_ready
    }

    fn has_healthy(&self) -> bool {
        let set = self.servers.set.load();
        let mut loads = set.servers.iter().map(|server| server.load());
        loads.any(|load| matches!(load, Load::Full | Load::Ready(_)))
    }

    /// Counts a request, which adds to the retry budget.
    pub(super) fn count_request(&self) {
        // Only one worker writes, so two operations suffice.
        let count = self.requests.load(Ordering::Relaxed);
        self.requests.store(count + 1, Ordering::Relaxed);
    }

    #[cold]
    pub(super) fn take_retry(&self) -> bool {
        let mut budget = lock(&self.budget);
        let requests = self.requests.load(Ordering::Relaxed);
        budget.take(&self.settings().retries, requests, clock::now())
    }
}

fn contains(servers: &[Arc<Server>], server: &Arc<Server>) -> bool {
    servers.iter().any(|one| Arc::ptr_eq(one, server))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    use super::super::health::FailureKind;
    use crate::config::{Ejection, ServerAddress, UpstreamServer};

    /// Settings of two servers, the second of which may have one request.
    fn two_servers() -> UpstreamSettings {
        let server = |port| ServerAddress::Http("10.9.9.9".into(), port);
        let mut settings =
            UpstreamSettings::new("app", [81, 82].map(|port| server(port).into()).into());
        settings.servers[1].max_connections = Some(1);
        settings.eject = Some(Ejection {
            rest: Duration::from_millis(1),
            ..Ejection::default()
        });
        settings
    }

    fn eject_first(upstream: &Upstream) {
        let rules = upstream.settings().eject.as_ref().unwrap();
        let health = &upstream.current_servers()[0].health;
        assert!(health.fail(FailureKind::Unreachable, SendReason::Healthy, rules));
    }

    #[test]
    fn a_server_gets_its_trial_while_the_others_are_full() {
        let vitals = Vitals::default();
        let upstream = Upstream::new(None, &two_servers(), Sweep::new(), &vitals);
        let servers = upstream.current_servers();
        let _full = ServerPermit::take(&servers[1], SendReason::Healthy).unwrap();
        let until = clock::now() + Duration::from_secs(10);
        let trial = |permit: &dyn Fn() -> Option<ServerPermit>| {
            eject_first(&upstream);
            while clock::now() < until {
                if let Some(trial) = permit() {
                    servers[0].health.succeed(SendReason::Trial);
                    return Arc::ptr_eq(&trial.server, &servers[0]);
                }
            }
            false
        };
        assert!(trial(&|| upstream.permit(None).ok()));
        assert!(trial(&|| upstream.retry_permit(&servers[1..], None, false)));
    }

    #[test]
    fn nothing_stays_ejected_after_ejection_was_switched_off() {
        let vitals = Vitals::default();
        let mut settings = two_servers();
        let old = Upstream::new(None, &settings, Sweep::new(), &vitals);
        eject_first(&old);
        settings.eject = None;
        let new = Upstream::new(Some(&old), &settings, Sweep::new(), &vitals);
        let standing = new.current_servers()[0].health.standing();
        assert_eq!(standing, Standing::Healthy);
        assert!(!new.health.has_any_out());
    }

    #[test]
    fn a_request_counts_at_its_server_over_a_change_of_settings() {
        let vitals = Vitals::default();
        let server = UpstreamServer::from(ServerAddress::Http("10.9.9.9".into(), 80));
        let mut settings = UpstreamSettings::new("app", vec![server]);
        let old = Upstream::new(None, &settings, Sweep::new(), &vitals);
        let permit = old.permit(None).unwrap();
        settings.max_idle += 1;
        let new = Upstream::new(Some(&old), &settings, Sweep::new(), &vitals);
        let in_flight = || new.current_servers()[0].in_flight.load(Ordering::Relaxed);
        assert_eq!(in_flight(), 1);
        drop(permit);
        assert_eq!(in_flight(), 0);
    }

    /// Four workers share a server that has room for one request.
    #[test]
    fn the_loser_of_a_race_for_the_last_place_is_told_to_wait() {
        let vitals = Vitals::default();
        let mut server = UpstreamServer::from(ServerAddress::Http("10.9.9.9".into(), 80));
        server.max_connections = Some(1);
        let settings = UpstreamSettings::new("app", vec![server]);
        std::thread::scope(|threads| {
            for _ in 0..4 {
                threads.spawn(|| {
                    let upstream = Upstream::new(None, &settings, Sweep::new(), &vitals);
                    for _ in 0..50_000 {
                        let refused = upstream.permit(None).err();
                        assert!(
                            matches!(refused, None | Some(UpstreamError::TooManyConnections)),
                            "{refused:?}"
                        );
                    }
                });
            }
        });
    }
}
