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
pub mod body;
mod claims;
pub mod flaw;
mod forward;
pub mod grpc;
pub mod headers;
pub mod layer;
pub mod limiter;
mod line;
mod people;
pub mod problem;
pub mod reject;
mod riders;
pub mod service;
mod slots;
pub mod upgrade;

use std::net::IpAddr;
use std::sync::Arc;

use http::{Request, Response};

use crate::clock::Sweep;
use crate::config::{Config, LogKeys};
use crate::route::Route;
use crate::store::Store;
use crate::store::memory::Memory;
use crate::telemetry::access::Buffer;
use crate::upstream::Upstreams;
use crate::upstream::body::RequestBody;
use admit::Asked;
use body::Body;
use flaw::Flaw;
use limiter::{Caller, Limiter};
use line::Line;
use reject::Rejection;
use slots::Slots;
use upgrade::Tunnel;

/// One worker's proxy: what limits, and what forwards.
#[derive(Debug)]
pub struct Proxy {
    limiter: Limiter,
    max_headers: usize,
    max_body: Option<u64>,
    upstreams: Upstreams,
    log: Buffer,
    show_keys: bool,
}

/// One client connection, as the proxy sees it.
#[derive(Debug)]
pub struct Downstream {
    /// Who is at its other end.
    pub caller: Caller,
    /// What is told of it upstream, formatted once.
    peer: headers::Peer,
}

impl Proxy {
    /// A proxy of `config` for the worker that `sweep` belongs to.
    pub fn new(
        config: Config,
        (store, local): (Store, Arc<Memory>),
        sweep: &Sweep,
        log: &Buffer,
    ) -> Proxy {
        Proxy {
            max_headers: config.server.max_headers,
            max_body: config.server.max_body,
            upstreams: Upstreams::new(&config.upstreams, sweep.clone()),
            log: log.clone(),
            show_keys: config.log.keys == LogKeys::Hash,
            limiter: Limiter::new(config, (store, local)),
        }
    }

    /// A client connection from `ip`.
    pub fn downstream(&self, ip: IpAddr) -> Downstream {
        let caller = self.limiter.caller(ip);
        Downstream {
            caller,
            peer: headers::Peer::new(ip, caller.trusted),
        }
    }

    /// Answers one request: routes it, asks its limits, forwards it, or says why not.
    pub async fn handle(
        &self,
        request: Request<RequestBody>,
        downstream: &Downstream,
        flaw: Option<Flaw>,
    ) -> Response<Body> {
        let mut line = Line::begin(&request, downstream.caller.ip, (&self.log, self.show_keys));
        let answered = match self.read(&request, downstream, flaw, &mut line) {
            Ok((route, asked)) => {
                self.serve(request, (downstream, route), asked, &mut line)
                    .await
            }
            Err(rejection) => Err(rejection),
        };
        let response = answered.unwrap_or_else(|refused| self.answer(&refused, &mut line));
        finish(response, line)
    }

    /// The part of the path that waits.
    async fn serve(
        &self,
        request: Request<RequestBody>,
        (downstream, route): (&Downstream, &Route),
        asked: Asked,
        line: &mut Line,
    ) -> Result<Response<Body>, Rejection> {
        let mut admission = self.limiter.admit(&request, asked, line).await?;
        line.note_admission(admission.is_limited());
        let forwarded = self.forward(request, downstream, route).await;
        let mut response = forwarded.unwrap_or_else(|refused| self.answer(&refused, line));
        self.limiter.adjust(route, &admission, &mut response, line);
        hold(&mut response, admission.slots.take(), line);
        Ok(self.limiter.mark(&admission, response))
    }

    /// What a request is: its route, and what that route's limits ask of it.
    fn read(
        &self,
        request: &Request<RequestBody>,
        downstream: &Downstream,
        flaw: Option<Flaw>,
        line: &mut Line,
    ) -> Result<(&Route, Asked), Rejection> {
        if let Some(flaw) = flaw {
            return Err(Rejection::Flaw(flaw));
        }
        if request.headers().len() > self.max_headers {
            return Err(Rejection::Flaw(Flaw::HeadTooLarge));
        }
        self.limiter.read(request, downstream.caller, line)
    }

    /// The answer to a request that is refused, and what the log says of it.
    fn answer(&self, refused: &Rejection, line: &mut Line) -> Response<Body> {
        self.limiter.answer(refused, line).map(Body::made)
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

/// Has the line written when the response's body has ended, if it is wanted at all.
fn finish(mut response: Response<Body>, mut line: Line) -> Response<Body> {
    line.status = response.status().as_u16();
    line.decide();
    if line.is_wanted() {
        response.body_mut().log(Box::new(line));
    }
    response
}
