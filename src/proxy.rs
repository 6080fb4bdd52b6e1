//! The path of a request: one sentence, [`Proxy::handle`], in which nothing waits but the store's
//! decision and the upstream's answer.
//!
//! ```text
//! read    framing, canonical path, host, client address, route, keys      pure
//! admit   the store's decision                                            await 1
//! forward to the upstream, and its answer's head                          await 2
//! adjust  what was charged, by what the answer says                       told, not awaited
//! mark    the rate-limit headers of that decision                         pure
//! ```
//!
//! Whatever refuses on the way is a `reject::Rejection`; only `reject` makes HTTP of it.

mod adjust;
pub mod admit;
mod arrival;
pub mod body;
mod changes;
mod claims;
mod counts;
pub mod flaw;
mod forward;
pub mod grpc;
pub mod headers;
pub mod layer;
pub mod limiter;
mod line;
mod logged;
mod overrides;
pub mod problem;
pub mod rehearsal;
pub mod reject;
mod request_id;
mod riders;
mod secure;
pub mod service;
mod slots;
mod traced;
pub mod upgrade;

use std::net::IpAddr;
use std::sync::Arc;

use http::{HeaderMap, HeaderName, HeaderValue, Request, Response};

use crate::body::RequestBody;
use crate::clock::Sweep;
use crate::config::{Config, LogKeys, TracingSettings};
use crate::route::{Route, Target};
use crate::store::Store;
use crate::store::memory::Memory;
use crate::telemetry::access::Buffer;
use crate::telemetry::metrics::Meter;
use crate::telemetry::spans::Queue;
use crate::upstream::{Upstreams, Vitals};
use admit::Admission;
pub use arrival::{Arrival, Secured};
use body::Body;
use changes::Changes;
use flaw::Flaw;
use forward::With;
use grpc::Call;
use limiter::{Caller, Limiter};
use line::Line;
use reject::Rejection;
use secure::Secure;
use slots::Slots;
use traced::Tracer;
use upgrade::Tunnel;

/// One worker's proxy: what limits, and what forwards.
#[derive(Debug)]
pub struct Proxy {
    limiter: Limiter,
    max_headers: usize,
    /// The header in which requests have ids, if they have.
    request_id: Option<HeaderName>,
    upstreams: Upstreams,
    secure: Secure,
    log: Buffer,
    show_keys: bool,
    /// What traces are made by, if they are.
    tracer: Option<Box<Tracer>>,
}

/// One client connection, as the proxy sees it.
#[derive(Debug)]
pub struct Downstream {
    /// Whether its other end may say whom it speaks for.
    trusted: bool,
    /// How that one came.
    pub arrival: Arrival,
    /// What is told of it upstream, formatted once.
    peer: headers::Peer,
}

impl Proxy {
    /// A proxy of `config` for the worker that `sweep` belongs to; `vitals` are its process's.
    pub fn new(
        config: Config,
        (store, local): (Store, Arc<Memory>),
        (sweep, vitals): (&Sweep, &Vitals),
        log: &Buffer,
    ) -> Proxy {
        let upstreams = Upstreams::new(&config.upstreams, sweep.clone(), vitals);
        Proxy::build(config, (store, local), upstreams, (log, None))
    }

    /// A proxy of another `config` that goes on where this one is: with its connections, wherever
    /// they lead where they led.
    pub fn renewed(
        &self,
        config: Config,
        (store, local): (Store, Arc<Memory>),
        (sweep, vitals): (&Sweep, &Vitals),
        log: &Buffer,
    ) -> Proxy {
        let upstreams = self.upstreams.renewed(&config.upstreams, sweep, vitals);
        let meter = Some(self.meter());
        Proxy::build(config, (store, local), upstreams, (log, meter))
    }

    fn build(
        config: Config,
        (store, local): (Store, Arc<Memory>),
        upstreams: Upstreams,
        (log, meter): (&Buffer, Option<&Meter>),
    ) -> Proxy {
        Proxy {
            max_headers: config.server.max_headers,
            request_id: config.request_id.clone(),
            upstreams,
            secure: Secure::new(config.tls.as_deref(), &config.server),
            log: log.clone(),
            show_keys: config.log.keys != LogKeys::Off,
            tracer: None,
            limiter: Limiter::new(config, (store, local), meter),
        }
    }

    /// The same with its requests traced: spans go into `queue`.
    pub fn traced(self, settings: Option<&TracingSettings>, queue: &Arc<Queue>) -> Proxy {
        let tracer = |settings| Box::new(Tracer::new(settings, Arc::clone(queue)));
        Proxy {
            tracer: settings.map(tracer),
            ..self
        }
    }

    /// Whether the peer at `ip` may say whom it speaks for.
    pub fn trusts(&self, ip: IpAddr) -> bool {
        self.limiter.caller(ip).trusted
    }

    /// A client connection that came as `arrival` says.
    pub fn downstream(&self, arrival: Arrival) -> Downstream {
        let trusted = self.limiter.caller(arrival.ip).trusted;
        let scheme = headers::Scheme::of(arrival.tls.is_some());
        Downstream {
            trusted,
            peer: headers::Peer::new(arrival.ip, trusted, scheme),
            arrival,
        }
    }

    /// The same for the client of a connection that another configuration was asked about:
    /// nothing where its word is still worth what it was.
    pub fn another_downstream(&self, known: &Downstream) -> Option<Box<Downstream>> {
        let same = self.limiter.caller(known.arrival.ip).trusted == known.trusted;
        (!same).then(|| Box::new(self.downstream(known.arrival.clone())))
    }

    /// Drops some of what has expired in this process; called a few times a second.
    pub(crate) fn tidy(&self) {
        self.limiter.tidy();
    }

    /// Where it forwards to.
    pub fn upstreams(&self) -> &Upstreams {
        &self.upstreams
    }

    /// What it has counted.
    pub fn meter(&self) -> &Meter {
        &self.limiter.meter
    }

    /// Where its lines go.
    pub(crate) fn log(&self) -> &Buffer {
        &self.log
    }

    /// Answers one request: routes it, asks its limits, forwards it, or says why not. The answer is
    /// put into `response`, which is a new one or as good as that: the head of an upstream's has
    /// been in many places before it is there otherwise. What is left in `request` has no meaning.
    pub async fn handle(
        &self,
        (request, response): (&mut Request<RequestBody>, &mut Response<Body>),
        downstream: &Downstream,
        flaw: Option<Flaw>,
    ) {
        let mut line = Line::begin(request, downstream.arrival.ip, (&self.log, self.show_keys));
        if let Some(name) = &self.request_id {
            let id = request_id::of(request.headers(), name, downstream.trusted);
            line.request_id = Some(id);
        }
        if let Some(tracer) = &self.tracer {
            line.belongs(tracer.begin(request, downstream), request);
        }
        headers::prefer_target(request);
        let mut admission = Admission::default();
        let asked = (&mut line, &mut admission);
        match self.read(request, downstream, flaw, asked) {
            Ok(route) => {
                let exchange = (request, &mut *response);
                let (line, admission) = (&mut line, &mut admission);
                self.serve(exchange, (downstream, route), admission, line)
                    .await;
            }
            Err(refused) => *response = self.answer(&refused, &mut line, HeaderMap::new()),
        }
        if let (Some(name), Some(id)) = (&self.request_id, &line.request_id)
            && let Ok(id) = HeaderValue::from_str(id.as_str())
        {
            response.headers_mut().insert(name, id);
        }
        self.secure.mark(response, downstream);
        self.count(response, &mut line);
        // Written when the response's body has ended.
        let body = response.body();
        if line.is_wanted() || line.tells_truncation() && body.may_be_cut() {
            response.body_mut().log(Box::new(line));
        }
    }

    /// The part of the path that waits. Nothing large is moved on it that can stay where it is.
    #[expect(
        clippy::manual_async_fn,
        reason = "that would keep what is asked twice"
    )]
    fn serve(
        &self,
        (request, response): (&mut Request<RequestBody>, &mut Response<Body>),
        (downstream, route): (&Downstream, &Route),
        admission: &mut Admission,
        line: &mut Line,
    ) -> impl Future<Output = ()> + Send {
        async move {
            let with = (route, self.request_id.as_ref());
            let changes = match Changes::of(with, request, downstream, line) {
                Ok(changes) => changes,
                Err(refused) => {
                    *response = self.answer(&refused, line, HeaderMap::new());
                    return;
                }
            };
            let changes = changes.as_deref();
            if let Some(trace) = &mut line.trace {
                trace.note_asked(route, &admission.charge);
            }
            let admitted = match self.limiter.admit_here(request, admission, line) {
                Some(admitted) => admitted,
                None => {
                    let since = line.began;
                    self.limiter.admit(request, admission, since).await
                }
            };
            if let Some(trace) = &mut line.trace {
                trace.note_decided(admission, &admitted);
            }
            if let Err(refused) = admitted {
                let with = (changes, line);
                *response = self.deny(&refused, request, with);
                return;
            }
            line.note_admission(admission.told().is_some());
            if route.adjusts() && admission.told().is_some() {
                response.body().note_settling();
            }
            match &route.target {
                Target::Upstream(upstream) => {
                    let to = (route, *upstream, admission.affinity);
                    let with = With {
                        changes,
                        is_grpc: line.grpc,
                        trace: line.trace.as_deref_mut(),
                    };
                    let exchange = (request, &mut *response);
                    if let Err(refused) = self.forward(exchange, downstream, to, with).await {
                        *response = self.refuse(&refused, changes, line, HeaderMap::new());
                        if refused.is_cut_upload() {
                            // A client must not get its units back by leaving.
                            return hold(response, admission.slots.take(), line);
                        }
                    }
                }
                Target::Respond(answer) => *response = changes::respond(answer, changes),
                Target::Redirect(answer) => *response = changes::redirect(answer, changes),
            }
            self.limiter.adjust(route, admission, response, line);
            hold(response, admission.slots.take(), line);
            self.limiter.mark(admission, response);
        }
    }

    /// The answer to a request that its limits do not let pass.
    fn deny(
        &self,
        refused: &Rejection,
        request: &mut Request<RequestBody>,
        (changes, line): (Option<&Changes<'_>>, &mut Line),
    ) -> Response<Body> {
        // The answer's head takes the place of the request's.
        let mut room = std::mem::take(request.headers_mut());
        room.clear();
        let response = self.refuse(refused, changes, line, room);
        if let Rejection::Limited(denial) = refused {
            let asked = (request.method(), request.uri());
            let said = (&denial.charge, &denial.decision);
            self.limiter.note_denial(said, || line.asked(asked));
        }
        response
    }

    /// What a request is: its route, and what that route's limits ask of it.
    fn read(
        &self,
        request: &Request<RequestBody>,
        downstream: &Downstream,
        flaw: Option<Flaw>,
        (line, asked): (&mut Line, &mut Admission),
    ) -> Result<&Route, Rejection> {
        if let Some(flaw) = flaw {
            return Err(Rejection::Flaw(flaw));
        }
        if request.headers().len() > self.max_headers {
            return Err(Rejection::Flaw(Flaw::HeadTooLarge));
        }
        self.secure.check(request, downstream)?;
        (self.limiter).read(request, downstream.caller(), line, asked)
    }

    /// The same for a request whose route is known, with what the route adds to every answer.
    fn refuse(
        &self,
        refused: &Rejection,
        changes: Option<&Changes<'_>>,
        line: &mut Line,
        room: HeaderMap,
    ) -> Response<Body> {
        let mut response = self.answer(refused, line, room);
        if let Some(changes) = changes {
            changes.beside(response.headers_mut());
        }
        response
    }

    /// Counts the request, and decides whether its line is to be written.
    fn count(&self, response: &Response<Body>, line: &mut Line) {
        line.status = response.status().as_u16();
        self.limiter.count_answer(line);
        if line.grpc {
            let counter = self.meter().grpc_counter(line.route_number);
            line.call = counter.and_then(|counter| Call::begin(counter, response));
        }
        line.decide();
    }

    /// The answer to a request that is refused, and what the log says of it.
    fn answer(&self, refused: &Rejection, line: &mut Line, room: HeaderMap) -> Response<Body> {
        self.limiter.answer(refused, line, room).map(Body::made)
    }
}

impl Downstream {
    /// It asks for nothing for a while.
    pub(crate) fn rest(&self) {
        self.peer.rest();
    }

    /// Who is at its other end.
    fn caller(&self) -> Caller<'_> {
        Caller {
            ip: self.arrival.ip,
            trusted: self.trusted,
            certificate: self.arrival.certificate(),
        }
    }
}

/// Has the request's slots let go of when its response, or the tunnel it became, has ended.
fn hold(response: &mut Response<Body>, slots: Option<Box<Slots>>, line: &mut Line) {
    if let Some(tunnel) = response.extensions_mut().get_mut::<Tunnel>() {
        tunnel.hold(slots);
        // The line is written now: what riders hold is not theirs any more.
        tunnel.hold(line.riders.as_mut().and_then(|riders| riders.take_slots()));
    } else if let Some(slots) = slots {
        response.body_mut().hold(slots);
    }
}
