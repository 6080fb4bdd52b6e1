//! The stages of a request that the proxy, the tower layer and the dry run share.

use std::net::IpAddr;
use std::sync::Arc;

use bytes::Bytes;
use http::header::{CONTENT_LENGTH, ORIGIN};
use http::{HeaderMap, HeaderName, HeaderValue, Request, Response};

use super::Exchange;
use super::access_record::AccessRecord;
use super::admit::Admission;
use super::changes::{Changes, note_route};
use super::claims::Tokens;
use super::downstream::{Arrival, Downstream};
use super::headers::{self, check_framing};
use super::key_lookup::KeyLookup;
use super::limiter::{Limiter, WorkerStore};
use super::local_reply::LocalReplies;
use super::rejection::{Blocked, Rejection};
use super::request_id;
use super::reserve::{Adjustment, UsageReserve};
use super::router::Router;
use super::secure::Secure;
use super::shadow::ShadowChecks;
use super::traced::{Trace, Tracer};
use crate::config::{Config, LogKeys, StatusSettings};
use crate::descriptor::DescriptorTable;
use crate::limit::key::Facts;
use crate::limit::{Limit, OnError};
use crate::path::CanonicalPath;
use crate::request_head::{HeadError, RequestHead, Scheme};
use crate::route::template::max_value;
use crate::route::{Route, RouteMatch, RouteQuery};
use crate::store::overrides::OverrideSnapshot;
use crate::telemetry::access::Buffer;
use crate::telemetry::decisions::BannedRequest;
use crate::telemetry::metrics::Meter;
use crate::trace::TraceId;

/// One worker's stages.
#[derive(Debug)]
pub struct Stages {
    pub router: Router,
    pub limiter: Arc<Limiter>,
    pub replies: LocalReplies,
    /// `None` if clients cannot ask for what is left of their limits.
    pub(super) status: Option<Arc<StatusSettings>>,
    pub(super) descriptors: DescriptorTable,
    /// Whether limits that callers bring with a descriptor count.
    pub(super) believes_limits: bool,
    /// `on_error` of a caller's limit whose descriptor fits no rule.
    pub(super) on_error: OnError,
    pub log: Buffer,
    pub(super) log_keys: LogKeys,
    pub(super) logs_decisions: bool,
    /// The limits with `ban`.
    pub(super) banning_limits: Vec<Arc<Limit>>,
    /// Whether the decision log has the traces of requests.
    logs_traces: bool,
    secure: Secure,
    max_headers: usize,
    /// Bytes of a value that a template of a route makes, at most.
    max_value: usize,
    underscores_in_headers: bool,
    /// Whether a route needs the body of a request for its decision.
    reads_bodies: bool,
    /// Whether some clients are refused by their address.
    has_access_lists: bool,
    /// The header with the id of a request, if requests have ids.
    request_id: Option<HeaderName>,
    /// `None` if requests are not traced.
    pub tracer: Option<Box<Tracer>>,
}

/// What is known of a request when its limits are checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CheckPhase {
    /// All but its body.
    BeforeBody,
    Whole,
}

/// What the limits of a request ask before its body is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LeastChecks {
    Complete,
    /// A denial must wait for the body.
    NeedBody,
}

/// A request whose route and client are known.
pub struct LimitQuery<'q, 't, 'p> {
    pub head: &'q RequestHead<'q>,
    pub found: &'q RouteMatch<'t, 'p>,
    pub facts: &'q Facts<'q>,
    pub overrides: Option<&'q OverrideSnapshot>,
    /// What the request reserves, if it asks a model. Before its body is read, it is the least
    /// that a request can reserve.
    pub reserve: Option<&'q UsageReserve>,
    /// The trace for the decision log.
    pub trace: Option<TraceId>,
}

impl Stages {
    /// Makes the stages of the worker that opened `store`. Metrics keep the counts of `old`.
    pub fn new(config: Config, store: WorkerStore, log: &Buffer, old: Option<&Meter>) -> Stages {
        let reads_bodies = config.routes.iter().any(|route| route.reads_body.is_some());
        let lists = config.routes.iter().map(|route| &route.access);
        let banning = config.limits.iter().filter(|limit| limit.ban.is_some());
        let banning_limits = banning.cloned().collect();
        let has_access_lists = lists.chain([&config.access]).any(|list| !list.serves_all());
        let secure = Secure::new(config.tls.as_deref(), &config.server);
        let decide = config.decide.as_ref();
        let keys = match store.store.known_keys() {
            Some(keys) => KeyLookup::Table(Arc::clone(keys)),
            None => KeyLookup::None,
        };
        let limiter = Limiter::new(&config, store, old);
        let router = Router {
            routes: config.routes,
            unrouted: config.unrouted,
            bypass: config.bypass,
            client_ip: Arc::new(config.client_ip),
            access: config.access,
            api_key: config.api_key,
            keys,
            tokens: config.jwt.map(Tokens::new),
            tiers: config.tier,
            billed_by: config.ledger.as_ref().map(|ledger| ledger.by.0.clone()),
        };
        Stages {
            limiter,
            descriptors: config.descriptors,
            believes_limits: decide.is_some_and(|decide| decide.overrides),
            on_error: config.store.on_error,
            replies: LocalReplies::new(config.headers, config.deny, router.challenge()),
            router,
            status: config.status,
            log: log.clone(),
            log_keys: config.log.keys,
            logs_decisions: config.log.decisions.is_some(),
            banning_limits,
            logs_traces: config.tracing.is_some() && config.log.decisions.is_some(),
            secure,
            max_headers: config.server.max_headers,
            max_value: max_value(config.server.max_header_bytes),
            underscores_in_headers: config.server.underscores_in_headers,
            reads_bodies,
            has_access_lists,
            request_id: config.request_id,
            tracer: None,
        }
    }

    pub fn downstream(&self, arrival: Arrival) -> Downstream {
        Downstream::new(&self.router.client_ip, arrival, self.max_value)
    }

    /// A client that another proxy describes.
    pub fn described(&self, arrival: Arrival) -> Downstream {
        self.downstream(arrival).described()
    }

    pub fn begin<'c, B, R>(
        &self,
        request: &'c mut Request<B>,
        response: &'c mut Response<R>,
        downstream: &'c Downstream,
    ) -> Exchange<'c, B, R> {
        let ip = downstream.arrival.ip;
        let mut record = AccessRecord::begin(request, ip, &self.log, self.log_keys != LogKeys::Off);
        record.connection_requests = downstream.usage.begun();
        if let Some(name) = &self.request_id {
            let id = request_id::from_headers(request.headers(), name, downstream.trusted);
            record.request_id = Some(id);
        }
        if let Some(tracer) = &self.tracer {
            record.set_trace(tracer.begin(request, downstream), request);
        }
        headers::prefer_target(request);
        if !self.underscores_in_headers {
            headers::remove_odd_names(request.headers_mut(), |_| true);
        }
        // The log names the client also if the request is refused before its route is known.
        record.client = self.router.client_ip.find(ip, request.headers());
        Exchange {
            request,
            response,
            downstream,
            route: None,
            admission: Admission::default(),
            body: None,
            changes: None,
            record,
        }
    }

    /// Refuses a malformed or too long head, and plain HTTP where TLS is required.
    pub fn check<B, R>(
        &self,
        x: &Exchange<'_, B, R>,
        head_error: Option<HeadError>,
    ) -> Result<(), Rejection> {
        if let Some(error) = head_error {
            return Err(Rejection::HeadError(error));
        }
        if x.request.headers().len() > self.max_headers {
            return Err(Rejection::HeadError(HeadError::TooManyLines));
        }
        self.secure.check(x.request, x.downstream)
    }

    /// Finds the route, the client, and the checks of the route's limits.
    pub fn identify<'c, B, R>(&'c self, x: &mut Exchange<'c, B, R>) -> Result<(), Rejection> {
        let overrides = self.limiter.store.overrides();
        self.identify_with(overrides.as_ref(), x, |_, _, _| ())
    }

    /// As [`Stages::identify`], with these overrides. It calls `observe` if a route was found, also
    /// if the request is refused.
    #[inline]
    pub fn identify_with<'c, B, R>(
        &'c self,
        overrides: Option<&OverrideSnapshot>,
        x: &mut Exchange<'c, B, R>,
        observe: impl FnOnce(&LimitQuery<'_, '_, '_>, &Admission, &Result<(), Rejection>),
    ) -> Result<(), Rejection> {
        self.query(overrides, x, CheckPhase::Whole, |query, admission| {
            let checked = self.add_checks(query, admission);
            self.limiter.note_client(query.facts, admission);
            observe(query, admission, &checked);
            checked
        })?
    }

    /// Finds the route and the client. It calls `then` if a route was found.
    #[inline]
    pub(super) fn query<'c, B, R, T>(
        &'c self,
        overrides: Option<&OverrideSnapshot>,
        x: &mut Exchange<'c, B, R>,
        phase: CheckPhase,
        then: impl FnOnce(&LimitQuery<'_, '_, '_>, &mut Admission) -> T,
    ) -> Result<T, Rejection> {
        let (request, downstream) = (&*x.request, x.downstream);
        let host = check_framing(request)?;
        let path = self.router.routes.read_path(request.uri().path());
        let path = path.map_err(Rejection::Path)?;
        let head = self.head_of(request, downstream, x.record.client, &host, &path);
        if !self.router.access.admits(head.client) {
            return Err(Rejection::AccessDenied);
        }
        let found = match self.router.find_route(&head) {
            Err(Rejection::NoRoute) if downstream.is_described => self.router.unrouted()?,
            found => found?,
        };
        x.route = Some(found.route);
        note_route(&mut x.record, found.route, &head, request, downstream);
        Router::check_client(found.route, &head)?;
        let trace = self.logged_trace(&x.record);
        let admission = &mut x.admission;
        let body = x.body.as_deref();
        let settings = Route::usage_of(found.route, request.method(), request.headers(), &path);
        let reserve = settings.map(|settings| {
            let length = length_of(request);
            match phase {
                CheckPhase::BeforeBody => UsageReserve::least(settings, length, path.as_str()),
                CheckPhase::Whole => UsageReserve::new(settings, body, length, path.as_str()),
            }
        });
        let body = body.map(|body| &body.facts);
        let checked = self.router.identify(&head, &found, body, |facts| {
            let query = LimitQuery {
                head: &head,
                found: &found,
                facts,
                overrides,
                reserve: reserve.as_ref(),
                trace,
            };
            then(&query, admission)
        });
        x.admission.reserve = reserve.map(Box::new);
        Ok(checked)
    }

    /// The trace of a request for the decision log.
    pub(super) fn logged_trace(&self, record: &AccessRecord) -> Option<TraceId> {
        let trace = record.trace.as_deref().filter(|_| self.logs_traces);
        trace.map(Trace::id)
    }

    /// Refuses a request of a route that reads bodies, if the body cannot change that.
    ///
    /// Only limits whose keys do not need the body are asked. Each is asked for the smallest cost
    /// that a body can lead to, so a request that would be allowed is never denied. Nothing is
    /// charged, and no store is called: the embedded store looks at its counts, and a worker with
    /// Redis at the denials that it knows. A denial is counted, logged and answered like any other.
    /// Its wait is that of the smallest cost.
    ///
    /// With Redis, the counts of this process alone cannot show that a request is denied. An
    /// operator may reset a key, Redis may forget it, and another process may give its units back.
    /// Then this process would deny what the store allows.
    pub fn deny_before_body<'c, B, R>(
        &'c self,
        x: &mut Exchange<'c, B, R>,
    ) -> Result<(), Rejection> {
        let overrides = self.limiter.store.overrides();
        let may_know = overrides.is_some() || self.limiter.store.may_know_denials();
        if !may_know && !self.has_access_lists {
            return Ok(());
        }
        let phase = CheckPhase::BeforeBody;
        let checks = self.query(overrides.as_ref(), x, phase, |query, admission| {
            self.add_least_checks(query, admission)
        });
        let mut admission = std::mem::take(&mut x.admission);
        admission.reserve = None;
        if checks?? == LeastChecks::NeedBody || !self.limiter.find_denial(&mut admission) {
            return Ok(());
        }
        self.rewrite(x)?;
        self.conclude_denial(x, admission)
    }

    /// Does for a decision that was found what [`Stages::admit`] does for one that is made.
    #[cold]
    fn conclude_denial<B, R>(
        &self,
        x: &mut Exchange<'_, B, R>,
        admission: Admission,
    ) -> Result<(), Rejection> {
        x.admission = admission;
        let admission = &mut x.admission;
        if let (Some(trace), Some(route)) = (&mut x.record.trace, x.route) {
            trace.start_decision(route, &admission.charge);
        }
        let shadow = std::mem::take(&mut admission.shadow);
        x.record.shadow = ShadowChecks::start(&self.limiter, shadow, admission.generation);
        let denied = self.limiter.conclude(admission, None);
        if let Some(trace) = &mut x.record.trace {
            trace.end_decision(admission, &denied);
        }
        denied
    }

    pub(super) fn head_of<'h, B>(
        &self,
        request: &'h Request<B>,
        downstream: &'h Downstream,
        client: IpAddr,
        host: &'h str,
        path: &'h CanonicalPath<'h>,
    ) -> RequestHead<'h> {
        RequestHead {
            method: request.method(),
            host,
            path,
            query: request.uri().query(),
            scheme: Scheme::new(downstream.arrival.tls.is_some()),
            headers: request.headers(),
            client,
            is_trusted: downstream.trusted,
            port: downstream.arrival.ports.local,
            certificate: downstream.arrival.certificate(),
            extensions: Some(request.extensions()),
        }
    }

    /// The route of a request whose body is needed for its decision; `None` if it is not needed, or
    /// if the request has no route.
    pub fn route_that_reads<B, R>(&self, x: &Exchange<'_, B, R>) -> Option<&Route> {
        if !self.reads_bodies {
            return None;
        }
        let host = check_framing(x.request).ok()?;
        let path = self.router.routes.read_path(x.request.uri().path()).ok()?;
        let found = self.router.routes.find(&RouteQuery {
            host: &host,
            path: &path,
            method: x.request.method(),
            headers: x.request.headers(),
            query: x.request.uri().query(),
            port: x.downstream.arrival.ports.local,
        });
        let route = found?.route;
        route.reads_body.is_some().then_some(route)
    }

    /// Makes the changes of the route from the request as the client sent it.
    pub fn rewrite<'c, B, R>(&'c self, x: &mut Exchange<'c, B, R>) -> Result<(), Rejection> {
        if let Some(route) = x.route {
            let id = self.request_id.as_ref();
            x.changes = Changes::new(route, id, x.request, x.downstream, &mut x.record)?;
        }
        Ok(())
    }

    /// Admits the request, or refuses it.
    pub async fn admit<B, R>(&self, x: &mut Exchange<'_, B, R>) -> Result<(), Rejection> {
        if let (Some(trace), Some(route)) = (&mut x.record.trace, x.route) {
            trace.start_decision(route, &x.admission.charge);
        }
        let admitted = match self.begin_admission(x) {
            Some(admitted) => admitted,
            None => {
                let since = x.record.began;
                self.limiter.admit_by_store(&mut x.admission, since).await
            }
        };
        if let Some(trace) = &mut x.record.trace {
            trace.end_decision(&x.admission, &admitted);
        }
        admitted?;
        if x.admission.wait_us() == 0 {
            self.limiter.bill_admitted(&mut x.admission);
        }
        x.record.note_admission(x.admission.granted().is_some());
        Ok(())
    }

    /// Starts the shadow checks. Then it decides, unless the store must be asked. That is so if
    /// something is checked, and the counts are not in this process.
    pub fn begin_admission<B, R>(
        &self,
        x: &mut Exchange<'_, B, R>,
    ) -> Option<Result<(), Rejection>> {
        let admission = &mut x.admission;
        let shadow = std::mem::take(&mut admission.shadow);
        x.record.shadow = ShadowChecks::start(&self.limiter, shadow, admission.generation);
        admission.cors = !admission.charge.is_empty()
            && self.replies.headers.cors_expose
            && x.request.headers().contains_key(ORIGIN);
        self.limiter.admit_here(admission)
    }

    /// Makes the response to a request that a stage refused. It has the route's own headers, if
    /// the route is known.
    pub fn reject<B, R: From<Bytes>>(&self, x: &mut Exchange<'_, B, R>, rejection: &Rejection) {
        let mut response = self.replies.respond(rejection, x);
        if let Some(changes) = &mut x.changes {
            changes.note_decision(&mut x.record);
            changes.add_missing(response.status(), response.headers_mut());
        }
        *x.response = response.map(R::from);
        if let Rejection::Blocked(blocked) = rejection {
            self.log_banned(blocked);
        }
        if !matches!(rejection, Rejection::Upstream(_))
            && x.admission.reserve.is_some()
            && let Some(shadow) = &mut x.record.shadow
        {
            // No answer will settle what limits in shadow mode have charged ahead.
            shadow.adjust(Adjustment::ReturnReserve, x.admission.generation);
        }
        if let Rejection::Limited(denial) = rejection {
            let (method, uri) = (x.request.method(), x.request.uri());
            let request = || x.record.denied_request(method, uri);
            self.limiter.note_denial(denial.decided(), request);
            if let Some(reserve) = &x.admission.reserve {
                x.record.note_denied_usage(reserve, &denial.charge);
            }
        }
    }

    /// Writes the denial into the decision log, if a ban denies.
    fn log_banned(&self, blocked: &Blocked) {
        if let (Some(limit), Some(left_us)) = (&blocked.ban, blocked.left_us) {
            self.limiter.store.log_banned(&BannedRequest {
                limit,
                tag: blocked.tag,
                plain: blocked.plain.as_deref(),
                left_us,
            });
        }
    }

    /// Adds the headers that every response on this connection has.
    pub fn mark_connection<R>(&self, response: &mut Response<R>, downstream: &Downstream) {
        self.secure.mark(response, downstream);
    }

    /// Adds the request's id to its response.
    pub fn mark_id(&self, headers: &mut HeaderMap, record: &AccessRecord) {
        if let (Some(name), Some(id)) = (&self.request_id, &record.request_id)
            && let Ok(id) = HeaderValue::from_str(id.as_str())
        {
            headers.insert(name, id);
        }
    }
}

/// The announced length of a request's body, bytes.
fn length_of<B>(request: &Request<B>) -> u64 {
    let length = request.headers().get(CONTENT_LENGTH);
    let length = length.and_then(|length| length.to_str().ok()?.parse().ok());
    length.unwrap_or(0)
}
