//! The stages of a request that everybody shares who has requests to limit: the proxy, the tower
//! layer, and the dry run. Each of them adds its own last stage.
//!
//! ```text
//! check     bounds of the head, TLS rules                     pure
//! identify  framing, path, route, client, token, tier, keys   pure
//! rewrite   what the route changes, made before it is sent    pure
//! admit     the store's decision                              may wait
//! reject    the answer to a request that a stage refused      pure
//! ```

use std::sync::Arc;

use bytes::Bytes;
use http::header::ORIGIN;
use http::{HeaderMap, HeaderName, HeaderValue, Request, Response};

use super::Exchange;
use super::access_record::AccessRecord;
use super::admission::{Admission, CountedLimit};
use super::changes::Changes;
use super::claims::Tokens;
use super::downstream::{Arrival, Downstream};
use super::headers::{self, check_framing};
use super::limiter::{Limiter, WorkerStore};
use super::local_reply::LocalReplies;
use super::logged::Logged;
use super::overrides::{refuse_blocked, refuse_blocked_key};
use super::rejection::Rejection;
use super::request_id;
use super::router::{Router, affinity};
use super::secure::Secure;
use super::shadow::ShadowChecks;
use super::traced::Tracer;
use crate::config::{Config, LogKeys};
use crate::limit::key::{Derived, Facts};
use crate::request_head::HeadError;
use crate::request_head::{RequestHead, Scheme};
use crate::route::{RouteMatch, is_preflight};
use crate::store::overrides::OverrideSnapshot;
use crate::telemetry::access::Buffer;
use crate::telemetry::metrics::Meter;
use crate::trace::TraceId;

/// One worker's stages; see the file's head.
#[derive(Debug)]
pub struct Stages {
    pub router: Router,
    pub limiter: Limiter,
    pub replies: LocalReplies,
    pub(super) logged: Logged,
    pub log: Buffer,
    show_keys: bool,
    secure: Secure,
    max_headers: usize,
    /// The header in which requests have ids, if they have.
    pub(super) request_id: Option<HeaderName>,
    /// What traces are made by, if they are.
    pub tracer: Option<Box<Tracer>>,
}

/// What limits are asked about: a request whose route and client are known.
pub struct LimitQuery<'q, 't, 'p> {
    pub head: &'q RequestHead<'q>,
    pub found: &'q RouteMatch<'t, 'p>,
    pub facts: &'q Facts<'q>,
    pub overrides: Option<&'q OverrideSnapshot>,
    /// The trace that its decisions are logged with.
    pub trace: Option<TraceId>,
}

impl Stages {
    /// Of `config`, for the worker that opened `store`; metrics go on with what `old` counted.
    pub fn new(config: Config, store: WorkerStore, log: &Buffer, old: Option<&Meter>) -> Stages {
        let limiter = Limiter::new(&config, store, old);
        let logged = Logged::new(&config);
        let secure = Secure::new(config.tls.as_deref(), &config.server);
        let router = Router {
            routes: config.routes,
            bypass: config.bypass,
            client_ip: config.client_ip,
            api_key: config.api_key,
            tokens: config.jwt.map(Tokens::new),
            tiers: config.tier,
        };
        Stages {
            limiter,
            replies: LocalReplies::new(config.headers, config.deny, router.challenge()),
            router,
            logged,
            log: log.clone(),
            show_keys: config.log.keys != LogKeys::Off,
            secure,
            max_headers: config.server.max_headers,
            request_id: config.request_id,
            tracer: None,
        }
    }

    /// A client connection that came as `arrival` says.
    pub fn downstream(&self, arrival: Arrival) -> Downstream {
        Downstream::new(self.router.client_ip.trusts(arrival.ip), arrival)
    }

    /// Begins at a request's arrival.
    pub fn begin<'c, B, R>(
        &self,
        request: &'c mut Request<B>,
        response: &'c mut Response<R>,
        downstream: &'c Downstream,
    ) -> Exchange<'c, B, R> {
        let ip = downstream.arrival.ip;
        let mut record = AccessRecord::begin(request, ip, &self.log, self.show_keys);
        if let Some(name) = &self.request_id {
            let id = request_id::of(request.headers(), name, downstream.trusted);
            record.request_id = Some(id);
        }
        if let Some(tracer) = &self.tracer {
            record.belongs(tracer.begin(request, downstream), request);
        }
        headers::prefer_target(request);
        Exchange {
            request,
            response,
            downstream,
            route: None,
            admission: Admission::default(),
            changes: None,
            record,
        }
    }

    /// Refuses a head that was found wrong when it was read, is too long, or came without TLS where
    /// TLS is asked for.
    pub fn check<B, R>(
        &self,
        x: &Exchange<'_, B, R>,
        head_error: Option<HeadError>,
    ) -> Result<(), Rejection> {
        if let Some(error) = head_error {
            return Err(Rejection::HeadError(error));
        }
        if x.request.headers().len() > self.max_headers {
            return Err(Rejection::HeadError(HeadError::TooLarge));
        }
        self.secure.check(x.request, x.downstream)
    }

    /// Finds the request's route, and what that route's limits ask of it.
    pub fn identify<'c, B, R>(&'c self, x: &mut Exchange<'c, B, R>) -> Result<(), Rejection> {
        let overrides = self.limiter.overrides();
        self.identify_by(overrides.as_ref(), x, |_, _, _| ())
            .and_then(|((), asked)| asked)
    }

    /// The same by these overrides; `see` looks at what is known once the route is, whether the
    /// limits can be asked or not.
    #[inline]
    pub fn identify_by<'c, B, R, T>(
        &'c self,
        overrides: Option<&OverrideSnapshot>,
        x: &mut Exchange<'c, B, R>,
        see: impl FnOnce(&LimitQuery<'_, '_, '_>, &Admission, &Result<(), Rejection>) -> T,
    ) -> Result<(T, Result<(), Rejection>), Rejection> {
        let (request, downstream) = (&*x.request, x.downstream);
        let host = check_framing(request)?;
        let path = self.router.routes.read_path(request.uri().path())?;
        let client_ip = &self.router.client_ip;
        let head = RequestHead {
            method: request.method(),
            host: &host,
            path: &path,
            query: request.uri().query(),
            scheme: Scheme::of(downstream.arrival.tls.is_some()),
            headers: request.headers(),
            client: client_ip.find(downstream.arrival.ip, request.headers()),
            is_trusted: downstream.trusted,
            certificate: downstream.arrival.certificate(),
            extensions: Some(request.extensions()),
        };
        x.record.client = head.client;
        let found = self.router.find_route(&head)?;
        x.route = Some(found.route);
        x.record.route = Some(Arc::clone(&found.route.name));
        x.record.route_number = found.route.number;
        let trace = self.logged.trace(&x.record);
        let admission = &mut x.admission;
        Ok(self.router.identify(&head, &found, |facts| {
            let question = LimitQuery {
                head: &head,
                found: &found,
                facts,
                overrides,
                trace,
            };
            let asked = self.ask(&question, admission);
            (see(&question, admission, &asked), asked)
        }))
    }

    /// What the limits of the route that was found ask of this request, put into `asked`.
    fn ask(
        &self,
        question: &LimitQuery<'_, '_, '_>,
        asked: &mut Admission,
    ) -> Result<(), Rejection> {
        let LimitQuery {
            head,
            found,
            facts,
            overrides,
            trace,
        } = *question;
        let limiter = &self.limiter;
        let key = limiter.store.hash_key();
        asked.generation = key.generation;
        asked.affinity = affinity(found.route, facts);
        let free = found.route.limits.is_empty() || is_preflight(head.method, head.headers);
        if (free && overrides.is_none())
            || self
                .router
                .bypass_of(facts, head.client, found.route.case)
                .is_some()
        {
            limiter.count_bypassed(&found.route.limits);
            return Ok(());
        }
        if let Some(overrides) = overrides {
            refuse_blocked(overrides, facts, &key.key, self.logged)?;
        }
        if free {
            limiter.count_bypassed(&found.route.limits);
            return Ok(());
        }
        let cost = found.route.cost.units(head.headers, head.is_trusted);
        for limit in &found.route.limits {
            // Who is blocked is kept out, exempt or not.
            let exempt = limit.exempt.has(head.client, &limit.key, facts);
            match limit.key.derive(facts, limit.missing, &key.key) {
                Derived::Hash(tag) => {
                    let mut windows = limit.windows_of(facts.tier);
                    if let Some(overrides) = overrides {
                        refuse_blocked_key(overrides, tag).map_err(|refused| {
                            let spell = || limit.key.spell(facts, limit.missing);
                            self.logged.named(refused, spell)
                        })?;
                        windows = overrides.windows(&limit.name, tag).unwrap_or(windows);
                    }
                    if exempt {
                        limiter.count_bypassed(std::slice::from_ref(limit));
                    } else {
                        let asker = self.logged.asker(limit, facts, trace);
                        asked.add(CountedLimit {
                            limit,
                            windows,
                            tag,
                            cost: limit.units(cost),
                            asker,
                        });
                    }
                }
                Derived::Skip => {}
                _ if exempt => limiter.count_bypassed(std::slice::from_ref(limit)),
                Derived::Denied => return Err(Rejection::MissingKey(limit.name.clone())),
                Derived::Ambiguous => return Err(Rejection::AmbiguousKey(limit.name.clone())),
                Derived::Unknown => return Err(Rejection::UnknownKey(limit.name.clone())),
            }
        }
        Ok(())
    }

    /// Makes what the route changes, of the request as the client sent it.
    pub fn rewrite<'c, B, R>(&'c self, x: &mut Exchange<'c, B, R>) -> Result<(), Rejection> {
        if let Some(route) = x.route {
            let id = self.request_id.as_ref();
            x.changes = Changes::of(route, id, x.request, x.downstream, &mut x.record)?;
        }
        Ok(())
    }

    /// Asks the limits whether the request may pass.
    pub async fn admit<B, R>(&self, x: &mut Exchange<'_, B, R>) -> Result<(), Rejection> {
        if let (Some(trace), Some(route)) = (&mut x.record.trace, x.route) {
            trace.note_asked(route, &x.admission.charge);
        }
        let admitted = match self.admit_here(x) {
            Some(admitted) => admitted,
            None => self.limiter.admit(&mut x.admission, x.record.began).await,
        };
        if let Some(trace) = &mut x.record.trace {
            trace.note_decided(&x.admission, &admitted);
        }
        admitted?;
        x.record.note_admission(x.admission.granted().is_some());
        Ok(())
    }

    /// The same where that can be said without waiting: nothing is asked, or the counts are in this
    /// process. Limits on trial are asked in any case.
    pub fn admit_here<B, R>(&self, x: &mut Exchange<'_, B, R>) -> Option<Result<(), Rejection>> {
        let admission = &mut x.admission;
        let shadow = admission.take_shadow();
        x.record.shadow = ShadowChecks::ask(&self.limiter.stores, shadow, admission.generation);
        if admission.charge.is_empty() {
            return Some(Ok(()));
        }
        admission.cors =
            self.replies.exposes_to_scripts() && x.request.headers().contains_key(ORIGIN);
        self.limiter.admit_here(admission)
    }

    /// Answers a request that a stage refused: with what the route adds to every answer, once that
    /// is known.
    pub fn reject<B, R: From<Bytes>>(&self, x: &mut Exchange<'_, B, R>, rejection: &Rejection) {
        let mut response = self.replies.answer(rejection, x.request, &mut x.record);
        if let Some(changes) = &x.changes {
            changes.beside(response.headers_mut());
        }
        *x.response = response.map(R::from);
        if let Rejection::Limited(denial) = rejection {
            let (method, uri) = (x.request.method(), x.request.uri());
            let request = || x.record.denied_request(method, uri);
            self.limiter.note_denial(denial.decided(), request);
        }
    }

    /// Adds to an answer what every answer on this connection says.
    pub fn mark_connection<R>(&self, response: &mut Response<R>, downstream: &Downstream) {
        self.secure.mark(response, downstream);
    }

    /// Names the request in its answer, where requests have ids.
    pub fn mark_id(&self, headers: &mut HeaderMap, record: &AccessRecord) {
        if let (Some(name), Some(id)) = (&self.request_id, &record.request_id)
            && let Ok(id) = HeaderValue::from_str(id.as_str())
        {
            headers.insert(name, id);
        }
    }
}
