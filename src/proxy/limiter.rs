//! What decides whether a request may pass, and what its client is told: everything of the proxy
//! but the forwarding. Whoever has requests of its own to limit can use it without the rest.

use std::io;
use std::net::IpAddr;
use std::sync::Arc;

use http::{HeaderValue, Request};

use super::admit::Admission;
use super::claims::Tokens;
use super::headers::check_framing;
use super::line::Line;
use super::logged::Logged;
use super::reject::Rejection;
use super::slots::Stores;
use crate::certificate::Certificate;
use crate::client::ClientIp;
use crate::config::{Bypass, Config, DenySettings, StoreSettings};
use crate::limit::headers::HeaderSettings;
use crate::limit::key::{ApiKeySource, ApiKeys, Facts, Part};
use crate::limit::tier::Tiers;
use crate::route::{Ask, Found, Route, RouteTable};
use crate::store::memory::Memory;
use crate::store::{Backing, Store};
use crate::telemetry::decisions::DecisionLog;
use crate::telemetry::metrics::Meter;

/// What all limiters of a process have in common: where they count, and what decides while that
/// is away.
#[derive(Debug)]
pub struct StoreHandle {
    settings: StoreSettings,
    backing: Backing,
    local: Arc<Memory>,
    log: Option<Arc<DecisionLog>>,
}

impl StoreHandle {
    /// Opens the decision log, if `config` wants one; asks no server anything.
    pub fn new(config: &Config) -> io::Result<StoreHandle> {
        let log = config.log.decisions.as_deref().map(|path| {
            let named = |error: io::Error| {
                let text = format!("log.decisions: cannot open {}: {error}", path.display());
                io::Error::new(error.kind(), text)
            };
            DecisionLog::open(path).map_err(named)
        });
        StoreHandle::open_store(&config.store, log.transpose()?.map(Arc::new))
    }

    pub(super) fn open_store(
        store: &StoreSettings,
        log: Option<Arc<DecisionLog>>,
    ) -> io::Result<StoreHandle> {
        let backing = Backing::new(store, log.clone()).map_err(io::Error::other)?;
        let local = backing
            .local(store, log.clone())
            .map_err(io::Error::other)?;
        let local = Arc::new(local);
        backing.forgets_in(&local);
        Ok(StoreHandle {
            settings: store.clone(),
            backing,
            local,
            log,
        })
    }

    /// What counts from now on, where the store has these settings: these very counts if it can be,
    /// so that nothing is forgotten. The decision log goes on, in a new file where its own was
    /// moved away.
    pub fn renewed(self: &Arc<Self>, store: &StoreSettings) -> io::Result<Arc<StoreHandle>> {
        if let Some(log) = &self.log {
            let named = |error: io::Error| {
                io::Error::new(
                    error.kind(),
                    format!("log.decisions cannot be opened: {error}"),
                )
            };
            log.reopen().map_err(named)?;
        }
        let bounded = StoreSettings {
            max_keys: store.max_keys,
            max_memory: store.max_memory,
            // Each limit has its own by now.
            on_error: store.on_error,
            ..self.settings.clone()
        };
        if bounded == *store {
            self.local.rebound(store);
            if let Backing::Memory(memory) = &self.backing {
                memory.rebound(store);
            }
            return Ok(Arc::clone(self));
        }
        StoreHandle::open_store(store, self.log.clone()).map(Arc::new)
    }

    /// Lines that the decision log could not take, if there is one.
    pub fn log_dropped(&self) -> Option<u64> {
        self.log.as_ref().map(|log| log.dropped())
    }

    /// What all workers share of the store.
    pub fn backing(&self) -> &Backing {
        &self.backing
    }

    /// The counts in this process: the store itself, or what stands in for it while it is away.
    pub fn in_process(&self) -> &Memory {
        match &self.backing {
            Backing::Memory(memory) => memory,
            Backing::Redis(_) => &self.local,
        }
    }

    /// One worker's way to the counts; called on that worker's runtime.
    pub fn open(&self) -> (Store, Arc<Memory>) {
        (self.backing.open(), Arc::clone(&self.local))
    }
}

/// One worker's limiter: its compiled routes and limits, and its store connection.
#[derive(Debug)]
pub struct Limiter {
    routes: RouteTable,
    pub(super) bypass: Vec<Bypass>,
    client_ip: ClientIp,
    api_key: ApiKeys,
    tokens: Option<Tokens>,
    tiers: Option<Tiers>,
    pub(super) logged: Logged,
    pub(super) headers: HeaderSettings,
    pub(super) deny: DenySettings,
    pub(super) docs_link: Option<HeaderValue>,
    pub(super) store: Store,
    /// What decides while the store is away.
    pub(super) local: Arc<Memory>,
    /// What is counted of its requests and decisions.
    pub(super) meter: Arc<Meter>,
    /// What outlives the request's path.
    pub(super) stores: Arc<Stores>,
}

/// Whoever sends a request: the peer itself, and not whom it may speak for.
#[derive(Clone, Copy, Debug)]
pub struct Caller<'c> {
    /// The peer's address.
    pub ip: IpAddr,
    /// Whether the peer may say whom it speaks for.
    pub trusted: bool,
    /// The certificate that it showed.
    pub certificate: Option<&'c Certificate>,
}

impl Limiter {
    /// A limiter of `config` for the worker that opened `store`. It goes on with what was counted
    /// by `old`.
    pub fn new(
        config: Config,
        (store, local): (Store, Arc<Memory>),
        old: Option<&Meter>,
    ) -> Limiter {
        let link = config.deny.docs_url.as_ref();
        let routes = config.routes.iter().map(|route| &*route.name);
        let limits = config.limits.iter().map(|limit| &*limit.name);
        let meter = Meter::new(routes, limits, old);
        let meter = Arc::new(match config.admin {
            Some(_) => meter.watched(),
            None => meter,
        });
        let stores = Stores {
            store: store.clone(),
            local: Arc::clone(&local),
            meter: Arc::clone(&meter),
        };
        Limiter {
            logged: Logged::new(&config),
            routes: config.routes,
            bypass: config.bypass,
            client_ip: config.client_ip,
            api_key: config.api_key,
            tokens: config.jwt.map(Tokens::new),
            tiers: config.tier,
            headers: config.headers,
            docs_link: link
                .and_then(|url| HeaderValue::try_from(format!("<{url}>; rel=\"help\"")).ok()),
            deny: config.deny,
            store,
            local,
            meter,
            stores: Arc::new(stores),
        }
    }

    /// Waits until the first attempt to reach the store has ended, well or badly.
    pub(super) async fn ready(&self) {
        self.store.ready().await;
    }

    /// Waits until the store knows what is held here.
    pub(super) async fn told(&self) {
        self.store.told().await;
    }

    /// Drops some of what has expired in this process.
    pub(super) fn tidy(&self) {
        self.local.tidy();
        if let Store::Memory(memory) = &self.store {
            memory.tidy();
        }
    }

    /// What is known of the peer at `ip`.
    pub fn caller(&self, ip: IpAddr) -> Caller<'static> {
        Caller {
            ip,
            trusted: self.client_ip.trusts(ip),
            certificate: None,
        }
    }

    /// What a request is: its route, and in `asked` what that route's limits ask of it.
    pub(super) fn read<B>(
        &self,
        request: &Request<B>,
        caller: Caller<'_>,
        line: &mut Line,
        asked: &mut Admission,
    ) -> Result<&Route, Rejection> {
        let trace = self.logged.trace(line);
        let (route, is_asked) = self.look(request, caller, line, |found, facts, client| {
            let overrides = self.store.overrides();
            let whose = (caller, client, trace);
            self.ask(request, (found, overrides.as_ref(), asked), facts, whose)
        })?;
        is_asked.map(|()| route)
    }

    /// What is known of a request whose route is found: looked at by `see`.
    #[inline]
    pub(super) fn look<B, R>(
        &self,
        request: &Request<B>,
        caller: Caller<'_>,
        line: &mut Line,
        see: impl FnOnce(&Found<'_, '_>, &Facts<'_>, IpAddr) -> R,
    ) -> Result<(&Route, R), Rejection> {
        let host = check_framing(request)?;
        let path = self.routes.read_path(request.uri().path())?;
        line.client = self.client_ip.find(caller.ip, request.headers());
        let (method, headers) = (request.method(), request.headers());
        let ask = Ask {
            host: &host,
            path: &path,
            method,
            headers,
        };
        let Some(found) = self.routes.find(&ask) else {
            return Err(match self.routes.is_ambiguous(&ask) {
                true => Rejection::AmbiguousPath,
                false => Rejection::NoRoute,
            });
        };
        line.route = Some(Arc::clone(&found.route.name));
        line.route_number = found.route.number;
        let (claims, tier);
        let mut facts = Facts {
            ip: self.client_ip.group(line.client),
            api_key: &self.api_key,
            standing: None,
            method,
            host: &host,
            path: path.in_case(found.route.case),
            query: request.uri().query(),
            headers,
            route: &found.route.name,
            params: &found.params,
            claims: None,
            tier: None,
            certificate: caller.certificate,
        };
        let tiers = self.tiers_for(found.route);
        claims = self
            .tokens_for(found.route, tiers)
            .and_then(|tokens| tokens.claims(&facts));
        facts.claims = claims.as_deref();
        if self.api_key.has_source() && self.asks_api_key(found.route, tiers) {
            facts.standing = Some(facts.key_standing());
        }
        tier = tiers.and_then(|tiers| tiers.tier_of(&facts, caller.trusted));
        facts.tier = tier.as_deref();
        let seen = see(&found, &facts, line.client);
        Ok((found.route, seen))
    }

    /// What finds the tier, where the route asks for it.
    fn tiers_for(&self, route: &Route) -> Option<&Tiers> {
        let tiers = self.tiers.as_ref()?;
        let asked = route.limits.iter().any(|limit| limit.asks_tier())
            || route.is_balanced_by(|part| matches!(part, Part::Tier));
        asked.then_some(tiers)
    }

    /// Whether something of the route or the tier depends on the API key.
    fn asks_api_key(&self, route: &Route, tiers: Option<&Tiers>) -> bool {
        tiers.is_some_and(|tiers| tiers.by_key)
            || route.limits.iter().any(|limit| limit.key.asks_api_key())
            || route.is_balanced_by(|part| matches!(part, Part::ApiKey))
    }

    /// How a client that is refused may show who it is.
    pub(super) fn challenge(&self) -> &'static str {
        match self.api_key.from.0.contains(&ApiKeySource::Bearer) {
            true => "Bearer error=\"invalid_token\"",
            false => "ApiKey",
        }
    }

    /// What verifies tokens, where something of the route or the tier depends on one.
    fn tokens_for(&self, route: &Route, tiers: Option<&Tiers>) -> Option<&Tokens> {
        let tokens = self.tokens.as_ref()?;
        let for_tier = tiers.is_some_and(Tiers::asks_claims);
        let asked = for_tier
            || (self.api_key.tokens && self.asks_api_key(route, tiers))
            || route.limits.iter().any(|limit| limit.asks_claims())
            || route.is_balanced_by(|part| matches!(part, Part::Jwt(_)));
        asked.then_some(tokens)
    }
}
