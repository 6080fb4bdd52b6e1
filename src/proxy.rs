//! The path of a request, [`Proxy::handle`].
//!
//! A request is one [`Exchange`]. The stages are in `exchange::stages` of `crates/core`; `answer`
//! and `finish` are here. ARCHITECTURE.md lists the stages, and what each may wait for.

mod ask;
pub mod body;
mod body_pace;
pub(crate) mod decide;
pub mod dry_run;
mod encoding;
mod error_page;
mod forward;
mod hold;
mod read_body;
pub mod upgrade;
mod usage;

use std::convert::Infallible;
use std::future::Future;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use grpc::Call;
use http::{HeaderMap, Request, Response};
use limiter::{Limiter, WorkerStore};
use tidegate_core::exchange::access_record::{AccessRecord, CLIENT_LEFT};
use tidegate_core::exchange::changes::own_response;
pub use tidegate_core::exchange::downstream::{Arrival, Downstream, Secured};
use tidegate_core::exchange::key_callback::KeyCallback;
use tidegate_core::exchange::key_lookup::KeyLookup;
use tidegate_core::exchange::key_wait::wait_for_keys;
use tidegate_core::exchange::rejection::Rejection;
use tidegate_core::exchange::stages::Stages;
pub use tidegate_core::exchange::status::StatusAnswers;
use tidegate_core::exchange::traced::Tracer;
pub use tidegate_core::exchange::unreadable_head::UnreadableHead;
pub use tidegate_core::exchange::{Exchange, grpc, headers, limiter, local_reply, problem};

use crate::body::RequestBody;
use crate::clock::{self, Sweep};
use crate::config::{Config, DecideSettings, TracingSettings};
use crate::request_head::HeadError;
use crate::route::{ErrorPage, Route, Target};
use crate::telemetry::access::Buffer;
use crate::telemetry::metrics::grpc::is_in_body;
use crate::telemetry::metrics::usage::UsageOutcome;
use crate::telemetry::metrics::{CountedAnswer, GrpcStatus, Meter};
use crate::telemetry::spans::SpanQueue;
use crate::upstream::{Upstreams, Vitals};
use body::Body;
use error_page::{AskedTarget, has_servers};
pub use hold::HeldRequests;
pub use read_body::BodyMemory;
use upgrade::Tunnel;
use usage::{UsageBounds, UsageMeter};

type ProxyExchange<'c> = Exchange<'c, RequestBody, Body>;

#[derive(Debug)]
pub struct Proxy {
    stages: Stages,
    upstreams: Upstreams,
    /// `None` without `[decide]`.
    decide: Option<Arc<DecideSettings>>,
    body_memory: BodyMemory,
    /// Bytes.
    max_body_memory: usize,
    held: HeldRequests,
    max_held: usize,
    /// Whether a limit holds requests.
    may_hold: bool,
    usage_bounds: UsageBounds,
    /// For errors of requests without a route.
    error_pages: Vec<Arc<ErrorPage>>,
    /// Whether a server may have to be asked for a page.
    fetches_error_pages: bool,
    status_answers: StatusAnswers,
}

impl Proxy {
    /// A proxy for the worker of `sweep`. After a reload it keeps the counts of `old`, and its
    /// connections to unchanged upstreams.
    pub fn new(
        config: Config,
        store: WorkerStore,
        sweep: &Sweep,
        vitals: &Vitals,
        log: &Buffer,
        old: Option<&Proxy>,
    ) -> Proxy {
        let error_pages = config.error_pages.clone();
        Proxy {
            fetches_error_pages: has_servers(error_pages.iter().map(|page| &**page)),
            error_pages,
            decide: config.decide.clone(),
            body_memory: old.map(|old| old.body_memory.clone()).unwrap_or_default(),
            max_body_memory: config.server.body_memory,
            held: old.map(|old| old.held.clone()).unwrap_or_default(),
            max_held: config.server.waiting,
            may_hold: config.limits.iter().any(|limit| limit.delay.is_some()),
            usage_bounds: old.map(|old| old.usage_bounds.clone()).unwrap_or_default(),
            status_answers: StatusAnswers::default(),
            upstreams: match old {
                None => Upstreams::new(&config.upstreams, sweep.clone(), vitals),
                Some(old) => old.upstreams.renewed(&config.upstreams, sweep, vitals),
            },
            stages: Stages::new(config, store, log, old.map(Proxy::meter)),
        }
    }

    /// Waits for responses that are read to the end for their usage, although their clients have
    /// left. A worker ends after that.
    pub async fn finish_drains(&self) {
        self.usage_bounds.finish_drains().await;
    }

    /// Shares the answers of `[status]` with the other workers. Each is kept for a second.
    pub fn with_status_answers(mut self, answers: &StatusAnswers) -> Proxy {
        self.status_answers = answers.clone();
        self
    }

    /// Traces requests into `queue`, if there are settings.
    pub fn traced(mut self, settings: Option<&TracingSettings>, queue: &Arc<SpanQueue>) -> Proxy {
        let tracer = |settings| Box::new(Tracer::new(settings, Arc::clone(queue)));
        self.stages.tracer = settings.map(tracer);
        self
    }

    /// Has this service say which API keys are known.
    pub fn with_key_callback(mut self, callback: Option<&Arc<KeyCallback>>) -> Proxy {
        if let Some(callback) = callback {
            self.stages.router.keys = KeyLookup::Callback(Arc::clone(callback));
        }
        self
    }

    /// Counts the bodies that are read before their decisions together with those of other workers.
    pub fn with_body_memory(mut self, memory: &BodyMemory) -> Proxy {
        self.body_memory = memory.clone();
        self
    }

    /// Counts the requests that are held together with those of other workers.
    pub fn with_held_requests(mut self, held: &HeldRequests) -> Proxy {
        self.held = held.clone();
        self
    }

    /// Whether the peer at `ip` may name its client.
    pub fn trusts(&self, ip: IpAddr) -> bool {
        self.stages.router.client_ip.trusts(ip)
    }

    pub fn downstream(&self, arrival: Arrival) -> Downstream {
        self.stages.downstream(arrival)
    }

    /// The connection after a reload, if its peer is trusted now and was not before, or the
    /// reverse.
    pub fn another_downstream(&self, known: &Downstream) -> Option<Box<Downstream>> {
        let same = self.trusts(known.arrival.ip) == known.trusted;
        (!same).then(|| {
            let renewed = self.downstream(known.arrival.clone());
            Box::new(renewed.on_connection_of(known))
        })
    }

    /// Drops a part of the expired counts. Call it a few times a second.
    pub(crate) fn tidy(&self) {
        self.stages.limiter.tidy();
    }

    pub fn upstreams(&self) -> &Upstreams {
        &self.upstreams
    }

    pub fn meter(&self) -> &Meter {
        &self.stages.limiter.meter
    }

    pub(crate) fn log(&self) -> &Buffer {
        &self.stages.log
    }

    /// Answers one request. `response` must be new or empty: writing it in place saves several
    /// copies of a head. Afterwards the content of `request` is unspecified.
    pub async fn handle(
        &self,
        request: &mut Request<RequestBody>,
        response: &mut Response<Body>,
        downstream: &Downstream,
        head_error: Option<HeadError>,
    ) {
        let asked =
            (self.fetches_error_pages).then(|| Box::new(AskedTarget::from_request(request)));
        let mut exchange = self.stages.begin(request, response, downstream);
        let mut unanswered = DisconnectGuard {
            limiter: &self.stages.limiter,
            has_grpc_status: exchange.record.grpc && !is_in_body(exchange.request.headers()),
            exchange: &mut exchange,
            is_answered: false,
        };
        let x = &mut *unanswered.exchange;
        if let Err(rejection) = self.serve(x, head_error).await {
            self.stages.reject(x, &rejection);
        }
        self.replace_error(x, asked).await;
        unanswered.is_answered = true;
        drop(unanswered);
        self.finish(exchange);
    }

    async fn serve<'c>(
        &'c self,
        x: &mut ProxyExchange<'c>,
        head_error: Option<HeadError>,
    ) -> Result<(), Rejection> {
        self.stages.check(x, head_error)?;
        if let Some(wait) = self.stages.key_wait(x) {
            Box::pin(wait_for_keys(wait)).await;
        }
        if let Some(questions) = self.stages.key_questions(x) {
            questions.ask_all().await;
        }
        if let Some(status) = self.stages.status_of(x) {
            return Box::pin(self.stages.tell_status(x, status, &self.status_answers)).await;
        }
        let _memory = self.read_body(x).await?;
        self.stages.identify(x)?;
        self.stages.rewrite(x)?;
        if self.may_hold {
            self.allow_wait(x);
        }
        self.stages.admit(x).await?;
        if self.may_hold && x.admission.wait_us() > 0 {
            // Few requests wait: the others need no memory for it.
            Box::pin(self.delay(x)).await?;
        }
        self.answer(x).await;
        Ok(())
    }

    /// Gets the answer of the upstream or of the route, adjusts the cost, and writes the rate-limit
    /// headers.
    async fn answer(&self, x: &mut ProxyExchange<'_>) {
        let Some(route) = x.route else { return };
        let may_settle = x.admission.granted().is_some()
            || x.record.shadow.is_some()
            || x.admission.reserve.is_some();
        if route.adjusts() && may_settle {
            x.response.body().note_settling();
        }
        if let Some(changes) = &mut x.changes {
            changes.note_decision(&mut x.record);
        }
        let mut sent_headers = None;
        if let Target::Upstream(upstream) = &route.target {
            match self.forward(x, route, *upstream).await {
                Ok(headers) => sent_headers = headers,
                Err(rejection) => {
                    self.stages.reject(x, &rejection);
                    if rejection.is_cut_upload() {
                        // A client must not get its units back by leaving.
                        note_unread_usage(&self.stages.limiter, x, UsageOutcome::Aborted);
                        return attach_slots(x);
                    }
                }
            }
        } else if let Some(response) = own_response(&route.target, x.changes.as_deref()) {
            *x.response = response.map(Body::made);
        }
        if let Some(changes) = &mut x.changes
            && let Some(trailers) = changes.take_trailers(x.response)
        {
            x.response.body_mut().end_with(trailers);
        }
        let stages = &self.stages;
        let limiter = &stages.limiter;
        let is_final = limiter.adjust(route, &x.admission, x.response, &mut x.record);
        attach_slots(x);
        stages.replies.mark(&x.admission, x.response);
        if is_final {
            note_unread_usage(limiter, x, UsageOutcome::Refunded);
        } else if route.settles_by_body() && may_settle {
            self.meter_body(x, route, sent_headers.as_deref());
        }
    }

    /// Lets the rest of the response decide the cost of its request. `sent` has the headers of the
    /// server, if the route has changed them.
    fn meter_body(&self, x: &mut ProxyExchange<'_>, route: &Route, sent: Option<&HeaderMap>) {
        let admission = std::mem::take(&mut x.admission);
        let limiter = Arc::clone(&self.stages.limiter);
        let headers = sent.unwrap_or(x.response.headers());
        let meter = UsageMeter::new(limiter, &self.usage_bounds, route, admission, headers);
        if let Some(meter) = meter {
            x.response.body_mut().meter(Box::new(meter));
        }
    }

    /// Adds the headers of every response, counts the request, and passes its record to the body,
    /// which writes it at its end.
    fn finish(&self, x: ProxyExchange<'_>) {
        let Exchange {
            response,
            downstream,
            mut record,
            ..
        } = x;
        self.stages.mark_id(response.headers_mut(), &record);
        self.stages.mark_connection(response, downstream);
        self.count(response, &mut record);
        record.note_headers(response.headers());
        if record.is_wanted()
            && let Some(tunnel) = response.extensions_mut().get_mut::<Tunnel>()
        {
            return tunnel.log(Box::new(record));
        }
        let body = response.body();
        if record.is_wanted() || record.logs_truncation() && body.may_be_cut() {
            response.body_mut().log(Box::new(record));
        }
    }

    fn count(&self, response: &Response<Body>, record: &mut AccessRecord) {
        record.status = response.status().as_u16();
        let took = clock::now().saturating_duration_since(record.began);
        let answer = CountedAnswer {
            method: record.method,
            status: record.status,
            took,
        };
        self.meter().count_answer(record.route_number, answer);
        self.meter().count_outcome(record.outcome);
        if record.grpc {
            let counter = self.meter().grpc_counter(record.route_number);
            record.call = counter.and_then(|counter| Call::begin(counter, response));
        }
        record.choose_line();
    }
}

/// Records that a client has left, if a request is dropped before it has a response.
struct DisconnectGuard<'e, 'c> {
    limiter: &'e Limiter,
    exchange: &'e mut ProxyExchange<'c>,
    /// False for gRPC-Web too, whose status no proxy reads.
    has_grpc_status: bool,
    is_answered: bool,
}

impl Drop for DisconnectGuard<'_, '_> {
    fn drop(&mut self) {
        let x = &mut *self.exchange;
        if self.is_answered {
            return;
        }
        if self.has_grpc_status
            && let Some(counter) = self.limiter.meter.grpc_counter(x.record.route_number)
        {
            counter.ended(GrpcStatus::CANCELLED, CLIENT_LEFT);
        }
        if x.admission.granted().is_some() {
            note_unread_usage(self.limiter, x, UsageOutcome::Aborted);
        }
        match std::thread::panicking() {
            true => x.record.note_panic(),
            false => x.record.note_client_left(),
        }
        x.record.write();
    }
}

/// Counts a call to a model server whose answer is not read.
fn note_unread_usage(limiter: &Limiter, x: &mut ProxyExchange<'_>, outcome: UsageOutcome) {
    if let Some(reserve) = x.admission.reserve.take() {
        limiter.note_unread_usage(&reserve, &x.admission, outcome, &mut x.record);
    }
}

/// Passes the slots to the response or the tunnel, whose end releases them.
fn attach_slots(x: &mut ProxyExchange<'_>) {
    let slots = x.admission.slots.take();
    if let Some(tunnel) = x.response.extensions_mut().get_mut::<Tunnel>() {
        tunnel.hold(slots);
        // The record ends now, and the shadow checks with it.
        let shadow = x.record.shadow.as_mut();
        tunnel.hold(shadow.and_then(|shadow| shadow.take_slots()));
    } else if let Some(slots) = slots {
        x.response.body_mut().hold(slots);
    }
}

/// The proxy as a [`tower::Service`] without a socket, for tests and other servers. It never fails.
#[derive(Clone, Debug)]
pub struct Client {
    proxy: Arc<Proxy>,
    downstream: Arc<Downstream>,
}

impl Client {
    pub fn new(proxy: Arc<Proxy>, ip: IpAddr) -> Client {
        let downstream = Arc::new(proxy.downstream(Arrival::plain(ip)));
        Client { proxy, downstream }
    }
}

impl tower::Service<Request<RequestBody>> for Client {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, mut request: Request<RequestBody>) -> Self::Future {
        let Client { proxy, downstream } = self.clone();
        Box::pin(async move {
            let mut response = Response::new(Body::empty());
            proxy
                .handle(&mut request, &mut response, &downstream, None)
                .await;
            Ok(response)
        })
    }
}
