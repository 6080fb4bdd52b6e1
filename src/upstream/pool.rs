//! One upstream of one worker: which of its servers a request goes to, and how many may be under
//! way.

use std::future::poll_fn;
use std::hash::{BuildHasher, RandomState};
use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Poll;
use std::time::Duration;

use http::Response;

use super::Outgoing;
use super::balance::Load;
use super::choice::Choice;
use super::error::UpstreamError;
use super::health::{Sent, Trouble};
use super::named::{Makings, Named, places_in};
use super::permit::ServerPermit;
use super::retry::Budget;
use super::server::Server;
use super::terms::UpstreamTerms;
use super::tls::Tls;
use super::vitals::Vitals;
use super::watch::Ward;
use crate::clock::{self, Sweep};
use crate::config::UpstreamSettings;
use crate::telemetry::metrics::UpstreamCells;
use crate::upstream::body::UpstreamBody;

/// One upstream of one worker.
#[derive(Debug)]
pub(super) struct Upstream {
    terms: Arc<UpstreamTerms>,
    choices: Choices,
    ward: Arc<Ward>,
    /// What is counted of its requests; an upstream of the same name goes on with it.
    cells: Arc<UpstreamCells>,
    /// Requests so far.
    requests: AtomicU64,
    /// What is left of the retries.
    budget: Mutex<Budget>,
}

/// The servers to choose from.
#[derive(Debug)]
enum Choices {
    /// They are where they are.
    Fixed(Arc<Choice>),
    /// Some have names, and may be somewhere else tomorrow.
    Named(Arc<Named>),
}

impl Upstream {
    pub(super) fn new(settings: &UpstreamSettings, sweep: Sweep, vitals: &Vitals) -> Upstream {
        Upstream::after(None, settings, sweep, vitals)
    }

    /// The upstream that takes the place of `old`, of which it has the connections to the servers
    /// that are still the same, and what is known of them.
    pub(super) fn after(
        old: Option<&Upstream>,
        settings: &UpstreamSettings,
        sweep: Sweep,
        vitals: &Vitals,
    ) -> Upstream {
        if let Some(same) = old.and_then(|old| old.again(settings)) {
            return same;
        }
        let in_use = old.map(|old| Arc::clone(&old.terms.in_use));
        let cells = old.map(|old| Arc::clone(&old.cells));
        let ward = vitals.ward(&settings.name);
        let mut servers = settings.servers.iter();
        let is_capped = servers.any(|server| server.max_connections.is_some());
        let queue = match is_capped {
            true => Arc::clone(&ward.queue),
            false => Arc::default(),
        };
        let terms = Arc::new(UpstreamTerms {
            is_capped,
            queue: (settings.queue > 0).then_some(queue),
            settings: settings.clone(),
            tls: Tls::of(settings),
            sweep,
            in_use: in_use.unwrap_or_default(),
        });
        let makings = Makings {
            terms: Arc::clone(&terms),
            ward: Arc::clone(&ward),
            vitals: vitals.clone(),
        };
        let old = old.map_or_else(Vec::new, |old| old.choice().servers.clone());
        let servers = settings.servers.iter();
        let found: Vec<_> = servers.flat_map(|server| places_in(&old, server)).collect();
        let seed = RandomState::new().hash_one(&settings.name);
        let choice = Choice::new(makings.servers(&found, &old), settings, seed);
        ward.count_servers(choice.servers.len());
        let mut servers = settings.servers.iter();
        let choices = match servers.any(|server| server.address.name().is_some()) {
            true => Choices::Named(Named::new(choice, makings)),
            false => Choices::Fixed(Arc::new(choice)),
        };
        Upstream {
            choices,
            terms,
            ward,
            cells: cells.unwrap_or_default(),
            requests: AtomicU64::new(0),
            budget: Mutex::new(Budget::new(clock::now())),
        }
    }

    /// The same upstream for another configuration: with these connections and what is known of
    /// its servers, if nothing about it has changed.
    fn again(&self, settings: &UpstreamSettings) -> Option<Upstream> {
        (self.terms.settings == *settings).then(|| Upstream {
            terms: Arc::clone(&self.terms),
            choices: match &self.choices {
                Choices::Fixed(choice) => Choices::Fixed(Arc::clone(choice)),
                Choices::Named(named) => Choices::Named(Arc::clone(named)),
            },
            ward: Arc::clone(&self.ward),
            cells: Arc::clone(&self.cells),
            requests: AtomicU64::new(0),
            budget: Mutex::new(Budget::new(clock::now())),
        })
    }

    /// Its servers as they are now.
    pub(super) fn choice(&self) -> Arc<Choice> {
        match &self.choices {
            Choices::Fixed(choice) => Arc::clone(choice),
            Choices::Named(named) => named.choice.load_full(),
        }
    }

    #[cfg(test)]
    pub(super) fn named(&self) -> Option<&Arc<Named>> {
        match &self.choices {
            Choices::Fixed(_) => None,
            Choices::Named(named) => Some(named),
        }
    }

    /// What is counted of its requests.
    pub(super) fn cells(&self) -> &Arc<UpstreamCells> {
        &self.cells
    }

    pub(super) fn settings(&self) -> &UpstreamSettings {
        &self.terms.settings
    }

    /// A place for one request at one of the servers: where `affinity` says, if it has any and the
    /// upstream heeds it.
    pub(super) fn permit(&self, affinity: Option<u64>) -> Result<ServerPermit, UpstreamError> {
        if self
            .terms
            .queue
            .as_ref()
            .is_some_and(|queue| queue.is_waited_in())
        {
            // Whoever waits was here before.
            return Err(UpstreamError::TooManyConnections);
        }
        self.free_permit(affinity)
    }

    /// The same for a request for which there was none, as soon as there is one.
    #[cold]
    pub(super) async fn wait_for_permit(
        &self,
        affinity: Option<u64>,
    ) -> Result<ServerPermit, UpstreamError> {
        let Some(queue) = &self.terms.queue else {
            return self.free_permit(affinity);
        };
        let most = (self.settings().queue, self.settings().queue_timeout);
        queue.wait(most, || self.free_permit(affinity)).await
    }

    fn free_permit(&self, affinity: Option<u64>) -> Result<ServerPermit, UpstreamError> {
        if self.is_full() {
            return Err(UpstreamError::TooManyConnections);
        }
        if self.ward.has_any_out()
            && let Some(permit) = self.trial_permit(&[])
        {
            return Ok(permit);
        }
        let picked = self.pick(affinity, |server| server.load());
        picked.ok_or_else(|| match &self.settings().health {
            Some(check) if !self.choice().servers.is_empty() => {
                UpstreamError::NoneLeft(check.every * check.healthy)
            }
            _ => UpstreamError::NoServer,
        })
    }

    /// A place for another attempt: at a server not tried yet, one in order if possible; or at the
    /// same, if it `may_be_same` and no other is in order.
    pub(super) fn seat_elsewhere(
        &self,
        tried: &[Arc<Server>],
        affinity: Option<u64>,
        may_be_same: bool,
    ) -> Option<ServerPermit> {
        if self.is_full() {
            return None;
        }
        let is_tried = |server: &Arc<Server>| tried.iter().any(|one| Arc::ptr_eq(one, server));
        let in_order = |server: &Arc<Server>| match server.load() {
            Load::Ready(work) if !is_tried(server) => Load::Ready(work),
            _ => Load::Down,
        };
        if let Some(permit) = self.pick(affinity, in_order) {
            return Some(permit);
        }
        if let Some(same) = tried.last().filter(|_| may_be_same)
            && matches!(same.load(), Load::Ready(_))
        {
            return ServerPermit::take(same, Sent::InOrder);
        }
        self.trial_permit(tried).or_else(|| {
            self.pick(affinity, |server| match server.load() {
                _ if is_tried(server) => Load::Down,
                load => load,
            })
        })
    }

    fn pick(
        &self,
        affinity: Option<u64>,
        load: impl Fn(&Arc<Server>) -> Load,
    ) -> Option<ServerPermit> {
        match &self.choices {
            Choices::Fixed(choice) => self.pick_from(choice, affinity, load),
            Choices::Named(named) => self.pick_from(&named.choice.load(), affinity, load),
        }
    }

    fn pick_from(
        &self,
        choice: &Choice,
        affinity: Option<u64>,
        load: impl Fn(&Arc<Server>) -> Load,
    ) -> Option<ServerPermit> {
        // Another worker may take the last place at a server while we look: then we look again.
        for _ in 0..=choice.servers.len() {
            let chosen = choice.pick(affinity, &load)?;
            let sent = match self.ward.has_any_out() && !chosen.server.is_in_order() {
                true => Sent::LastResort,
                false => Sent::InOrder,
            };
            if let Some(mut permit) = ServerPermit::take(chosen.server, sent) {
                if chosen.measure {
                    permit.measure();
                }
                return Some(permit);
            }
        }
        None
    }

    /// A place at a server whose ejection is over, for the one request that tries it.
    #[cold]
    fn trial_permit(&self, tried: &[Arc<Server>]) -> Option<ServerPermit> {
        let choice = self.choice();
        let mut others = choice
            .servers
            .iter()
            .filter(|server| !tried.iter().any(|one| Arc::ptr_eq(one, server)));
        let server = others.find(|server| server.vital.watch.claim_trial())?;
        ServerPermit::take(server, Sent::Trial)
    }

    fn is_full(&self) -> bool {
        self.terms.in_use.load(Ordering::Relaxed) >= self.terms.settings.max_connections
            || self.terms.is_capped && self.are_all_full()
    }

    /// Whether those that are well have as many requests as they may. The others are then no
    /// better: a place will be free soon.
    fn are_all_full(&self) -> bool {
        let mut any_full = false;
        let any_ready = self.choice().servers.iter().any(|server| {
            let load = server.load();
            any_full |= load == Load::Full;
            matches!(load, Load::Ready(_))
        });
        any_full && !any_ready
    }

    /// The request that has `permit` met trouble: whether the server is left alone for that.
    #[cold]
    pub(super) fn failed(&self, permit: &ServerPermit, trouble: Trouble) -> bool {
        let Some(rules) = &self.settings().eject else {
            return false;
        };
        permit.failed(trouble, rules, || self.servers_and_out())
    }

    /// How many servers there are, and how many of them are not in order.
    pub(super) fn servers_and_out(&self) -> (usize, usize) {
        let choice = self.choice();
        let out = choice.servers.iter().filter(|one| !one.is_in_order());
        (choice.servers.len(), out.count())
    }

    /// One more request, which pays for its share of the retries.
    pub(super) fn count_request(&self) {
        // One worker alone counts here.
        let count = self.requests.load(Ordering::Relaxed);
        self.requests.store(count + 1, Ordering::Relaxed);
    }

    /// Takes a retry from what is left of them.
    #[cold]
    pub(super) fn may_retry(&self) -> bool {
        let mut budget = self.budget.lock().unwrap_or_else(PoisonError::into_inner);
        let requests = self.requests.load(Ordering::Relaxed);
        budget.take(&self.settings().retries, requests, clock::now())
    }

    /// Sends a request that may take so long as a whole: until the last byte of its answer, or
    /// until it has become a tunnel.
    pub(super) async fn send_within<B: Send>(
        &self,
        outgoing: Outgoing<'_>,
        answer: &mut Response<B>,
        within: Duration,
    ) -> Result<UpstreamBody, UpstreamError> {
        let whole = self.terms.sweep.alarm();
        whole.arm(within);
        let mut sending = pin!(Upstream::send(Some(self), outgoing, answer, Some(&whole)));
        let sent = poll_fn(|context| {
            if let Poll::Ready(sent) = sending.as_mut().poll(context) {
                return Poll::Ready(sent);
            }
            whole.poll(context).map(|()| Err(UpstreamError::TimedOut))
        })
        .await;
        let mut body = sent?;
        body.end_by(Arc::clone(&whole));
        Ok(body)
    }
}
