//! The path of a request: one sentence, [`Proxy::handle`], in which nothing waits but the store's
//! decision and the upstream's answer.
//!
//! ```text
//! check     bounds of the head, TLS rules                     pure
//! identify  framing, path, route, client, token, tier, keys   pure
//! rewrite   what the route changes                            pure
//! admit     the store's decision                              await 1
//! answer    the upstream's answer, or the route's own         await 2
//! reject    the answer to a request that a stage refused
//! finish    headers of every answer, metrics, the log line
//! ```
//!
//! A request is one [`Exchange`]. All stages but `answer` and `finish` are those of the tower layer
//! and the dry run too: see `exchange` in `crates/core`.

pub mod body;
pub mod dry_run;
mod forward;
pub mod service;
pub mod upgrade;

use std::net::IpAddr;
use std::sync::Arc;

use grpc::Call;
use http::{Request, Response};
use limiter::WorkerStore;
use tidegate_core::exchange::access_record::AccessRecord;
use tidegate_core::exchange::changes;
pub use tidegate_core::exchange::downstream::{Arrival, Downstream, Secured};
use tidegate_core::exchange::rejection::Rejection;
use tidegate_core::exchange::slots::HeldSlots;
use tidegate_core::exchange::stages::Stages;
use tidegate_core::exchange::traced::Tracer;
pub use tidegate_core::exchange::{Exchange, grpc, headers, limiter, local_reply, problem};

use crate::body::RequestBody;
use crate::clock::{self, Sweep};
use crate::config::{Config, TracingSettings};
use crate::request_head::HeadError;
use crate::route::Target;
use crate::telemetry::access::Buffer;
use crate::telemetry::metrics::{CountedAnswer, Meter};
use crate::telemetry::spans::SpanQueue;
use crate::upstream::{Upstreams, Vitals};
use body::Body;
use upgrade::Tunnel;

/// A request that came to the proxy, and its answer.
type ProxyExchange<'c> = Exchange<'c, RequestBody, Body>;

/// One worker's proxy: what limits, and what forwards.
#[derive(Debug)]
pub struct Proxy {
    stages: Stages,
    upstreams: Upstreams,
}

impl Proxy {
    /// A proxy of `config` for the worker that `sweep` belongs to; `vitals` are its process's.
    pub fn new(
        config: Config,
        store: WorkerStore,
        sweep: &Sweep,
        vitals: &Vitals,
        log: &Buffer,
    ) -> Proxy {
        Proxy {
            upstreams: Upstreams::new(&config.upstreams, sweep.clone(), vitals),
            stages: Stages::new(config, store, log, None),
        }
    }

    /// A proxy of another `config` that goes on where this one is: with its connections, wherever
    /// they lead where they led.
    pub fn renewed(
        &self,
        config: Config,
        store: WorkerStore,
        sweep: &Sweep,
        vitals: &Vitals,
        log: &Buffer,
    ) -> Proxy {
        Proxy {
            upstreams: self.upstreams.renewed(&config.upstreams, sweep, vitals),
            stages: Stages::new(config, store, log, Some(self.meter())),
        }
    }

    /// The same with its requests traced: spans go into `queue`.
    pub fn traced(mut self, settings: Option<&TracingSettings>, queue: &Arc<SpanQueue>) -> Proxy {
        let tracer = |settings| Box::new(Tracer::new(settings, Arc::clone(queue)));
        self.stages.tracer = settings.map(tracer);
        self
    }

    /// Whether the peer at `ip` may say whom it speaks for.
    pub fn trusts(&self, ip: IpAddr) -> bool {
        self.stages.router.client_ip.trusts(ip)
    }

    /// A client connection that came as `arrival` says.
    pub fn downstream(&self, arrival: Arrival) -> Downstream {
        self.stages.downstream(arrival)
    }

    /// The same for the client of a connection that another configuration was asked about:
    /// nothing where its word is still worth what it was.
    pub fn another_downstream(&self, known: &Downstream) -> Option<Box<Downstream>> {
        let same = self.trusts(known.arrival.ip) == known.trusted;
        (!same).then(|| Box::new(self.downstream(known.arrival.clone())))
    }

    /// Drops some of what has expired in this process; called a few times a second.
    pub(crate) fn tidy(&self) {
        self.stages.limiter.tidy();
    }

    /// Where it forwards to.
    pub fn upstreams(&self) -> &Upstreams {
        &self.upstreams
    }

    /// What it has counted.
    pub fn meter(&self) -> &Meter {
        &self.stages.limiter.meter
    }

    /// Where its lines go.
    pub(crate) fn log(&self) -> &Buffer {
        &self.stages.log
    }

    /// Answers one request: routes it, asks its limits, forwards it, or says why not. The answer is
    /// put into `response`, which is a new one or as good as that: the head of an upstream's has
    /// been in many places before it is there otherwise. What is left in `request` has no meaning.
    pub async fn handle(
        &self,
        request: &mut Request<RequestBody>,
        response: &mut Response<Body>,
        downstream: &Downstream,
        head_error: Option<HeadError>,
    ) {
        let mut exchange = self.stages.begin(request, response, downstream);
        let x = &mut exchange;
        if let Err(rejection) = self.serve(x, head_error).await {
            self.stages.reject(x, &rejection);
        }
        self.finish(exchange);
    }

    /// Every stage that may refuse the request.
    async fn serve<'c>(
        &'c self,
        x: &mut ProxyExchange<'c>,
        head_error: Option<HeadError>,
    ) -> Result<(), Rejection> {
        self.stages.check(x, head_error)?;
        self.stages.identify(x)?;
        self.stages.rewrite(x)?;
        self.stages.admit(x).await?;
        self.answer(x).await;
        Ok(())
    }

    /// Has the request answered, by its upstream or by its route; settles what it cost, and tells
    /// the client of its limits.
    async fn answer(&self, x: &mut ProxyExchange<'_>) {
        let Some(route) = x.route else { return };
        if route.adjusts() && x.admission.granted().is_some() {
            x.response.body().note_settling();
        }
        match &route.target {
            Target::Upstream(upstream) => {
                if let Err(rejection) = self.forward(x, route, *upstream).await {
                    self.stages.reject(x, &rejection);
                    if rejection.is_cut_upload() {
                        // A client must not get its units back by leaving.
                        return hold(x);
                    }
                }
            }
            Target::Respond(answer) => {
                *x.response = changes::respond(answer, x.changes.as_deref()).map(Body::made);
            }
            Target::Redirect(answer) => {
                *x.response = changes::redirect(answer, x.changes.as_deref()).map(Body::made);
            }
        }
        let stages = &self.stages;
        stages
            .limiter
            .adjust(route, &x.admission, x.response, &mut x.record);
        hold(x);
        stages.replies.mark(&x.admission, x.response);
    }

    /// Adds what every answer says, counts the request, and has its line written when the answer's
    /// body has ended.
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
        let body = response.body();
        if record.is_wanted() || record.tells_truncation() && body.may_be_cut() {
            response.body_mut().log(Box::new(record));
        }
    }

    /// Counts the request, and decides whether its line is to be written.
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
        record.decide();
    }
}

/// Has the request's slots let go of when its response, or the tunnel it became, has ended.
fn hold(x: &mut ProxyExchange<'_>) {
    let slots: Option<Box<HeldSlots>> = x.admission.slots.take();
    if let Some(tunnel) = x.response.extensions_mut().get_mut::<Tunnel>() {
        tunnel.hold(slots);
        // The line is written now: limits on trial hold nothing any more.
        let shadow = x.record.shadow.as_mut();
        tunnel.hold(shadow.and_then(|shadow| shadow.take_slots()));
    } else if let Some(slots) = slots {
        x.response.body_mut().hold(slots);
    }
}
