//! The path of a request: one sentence, [`Proxy::handle`], in which nothing waits but the store's
//! decision and the upstream's answer.
//!
//! ```text
//! read    framing, canonical path, host, client address, route, keys      pure
//! admit   the store's decision                                            await 1
//! forward to the upstream, and its answer's head                          await 2
//! mark    the rate-limit headers of that decision                         pure
//! ```
//!
//! Whatever refuses on the way is a `reject::Rejection`; only `reject` makes HTTP of it.

pub mod admit;
pub mod body;
pub mod flaw;
mod forward;
pub mod grpc;
pub mod headers;
mod line;
pub mod problem;
pub mod reject;
pub mod service;
pub mod upgrade;

use std::net::IpAddr;
use std::sync::Arc;

use http::{HeaderValue, Request, Response};

use crate::client::ClientIp;
use crate::clock::Sweep;
use crate::config::{Bypass, Config, DenySettings, LogKeys};
use crate::limit::headers::HeaderSettings;
use crate::limit::key::{ApiKeySources, Facts};
use crate::path::CanonicalPath;
use crate::route::{Ask, Route, RouteTable};
use crate::store::Store;
use crate::store::memory::Memory;
use crate::telemetry::access::Buffer;
use crate::upstream::Upstreams;
use crate::upstream::body::RequestBody;
use admit::Asked;
use body::Body;
use flaw::Flaw;
use line::Line;
use reject::Rejection;

/// One worker's proxy: its compiled routes, its store connection, its upstream pools.
#[derive(Debug)]
pub struct Proxy {
    routes: RouteTable,
    bypass: Vec<Bypass>,
    client_ip: ClientIp,
    api_key: ApiKeySources,
    headers: HeaderSettings,
    deny: DenySettings,
    docs_link: Option<HeaderValue>,
    max_headers: usize,
    max_body: Option<u64>,
    show_keys: bool,
    store: Store,
    /// What decides while the store is away.
    local: Arc<Memory>,
    upstreams: Upstreams,
    log: Buffer,
}

/// One client connection, as the proxy sees it.
#[derive(Debug)]
pub struct Downstream {
    /// The peer's address.
    pub ip: IpAddr,
    /// Whether the peer may say whom it speaks for.
    pub trusted: bool,
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
        let link = config.deny.docs_url.as_ref();
        Proxy {
            routes: config.routes,
            bypass: config.bypass,
            client_ip: config.client_ip,
            api_key: config.api_key,
            headers: config.headers,
            docs_link: link
                .and_then(|url| HeaderValue::try_from(format!("<{url}>; rel=\"help\"")).ok()),
            deny: config.deny,
            max_headers: config.server.max_headers,
            max_body: config.server.max_body,
            show_keys: config.log.keys == LogKeys::Hash,
            store,
            local,
            upstreams: Upstreams::new(&config.upstreams, sweep.clone()),
            log: log.clone(),
        }
    }

    /// A client connection from `ip`.
    pub fn downstream(&self, ip: IpAddr) -> Downstream {
        let trusted = self.client_ip.trusts(ip);
        Downstream {
            ip,
            trusted,
            peer: headers::Peer::new(ip, trusted),
        }
    }

    /// Answers one request: routes it, asks its limits, forwards it, or says why not.
    pub async fn handle(
        &self,
        request: Request<RequestBody>,
        downstream: &Downstream,
        flaw: Option<Flaw>,
    ) -> Response<Body> {
        let mut line = Line::begin(&request, downstream.ip, (&self.log, self.show_keys));
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
        let admission = self.admit(&request, asked).await?;
        line.note_admission(admission.is_limited());
        let forwarded = self.forward(request, downstream, route).await;
        let response = forwarded.unwrap_or_else(|refused| self.answer(&refused, line));
        Ok(admission.mark(response, self.headers))
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
        let host = headers::check_framing(request)?;
        let path = CanonicalPath::parse(request.uri().path())?;
        line.client = self.client_ip.find(downstream.ip, request.headers());
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
        let facts = Facts {
            ip: self.client_ip.group(line.client),
            api_key: &self.api_key,
            method,
            host: &host,
            path: &path,
            query: request.uri().query(),
            headers,
            route: &found.route.name,
            params: &found.params,
        };
        let asked = self.ask(request, &found, &facts, (downstream, line.client))?;
        Ok((found.route, asked))
    }
}

/// Has the line written when the response's body has ended, if it is wanted at all.
fn finish(mut response: Response<Body>, mut line: Line) -> Response<Body> {
    line.status = response.status().as_u16();
    if line.is_wanted() {
        response.body_mut().log(Box::new(line));
    }
    response
}
