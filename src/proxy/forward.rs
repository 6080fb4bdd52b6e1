//! Forwarding: the request to the upstream, and its response to the client.

use std::net::IpAddr;

use http::header::HOST;
use http::{HeaderMap, Request, Response, StatusCode};

use super::Proxy;
use super::ProxyExchange;
use super::ask;
use super::body::Body;
use super::encoding;
use super::headers::{self, UpstreamRequest};
use super::read_body::{bound_body, drop_body};
use super::upgrade::Tunnel;
use crate::route::{Route, Settle};
use crate::upstream::{Outgoing, SendOptions};
use tidegate_core::exchange::changes::Changes;
use tidegate_core::exchange::downstream::Downstream;
use tidegate_core::exchange::rejection::{NoAnswer, Rejection};

impl Proxy {
    /// Sends the request to the upstream, and waits for the head of the response. Returns the
    /// headers before the route changes them, if the rest of the response decides the cost.
    pub(super) async fn forward(
        &self,
        x: &mut ProxyExchange<'_>,
        route: &Route,
        upstream: usize,
    ) -> Result<Option<Box<HeaderMap>>, Rejection> {
        let is_asked = ask::ask_for_usage(x, route);
        // A body that was read before the decision is bounded already.
        if x.body.is_none() {
            bound_body(x.request, route.body_limit)?;
        }
        if !route.pass_body {
            Box::pin(drop_body(x, route)).await?;
        }
        let (request, response) = (&mut *x.request, &mut *x.response);
        let changes = x.changes.as_deref();
        let reads_body = route.usage.is_some() || matches!(route.settle, Some(Settle::Json(_)));
        if reads_body && !is_asked {
            encoding::accept_readable(request.headers_mut());
        }
        let ready = prepare(request, x.downstream, x.record.client, route, changes)?;
        if ready.is_forwarding_untrusted {
            self.meter().count_untrusted_forwarding();
        }
        let trace = x.record.trace.as_deref_mut();
        let attempts = trace.and_then(|trace| trace.send(request.headers_mut()));
        let attempts = match &mut x.changes {
            Some(changes) => changes.keep_attempts(attempts),
            None => attempts,
        };
        let attempts = x.record.keep_attempts(attempts);
        let changes = x.changes.as_deref();
        let client_host = client_host(request, route);
        let outgoing = Outgoing {
            request,
            prerendered: ready.prerendered,
            timeout: x.record.time_left(route.timeout),
            options: SendOptions {
                asks_upgrade: ready.asks_upgrade,
                has_host: ready.has_host,
                affinity: x.admission.affinity,
                is_grpc: x.record.grpc,
                attempts,
            },
        };
        let sent = self.upstreams.send(upstream, outgoing, response).await;
        let body = sent.map_err(|error| Rejection::Upstream(NoAnswer::from(error)))?;
        headers::to_downstream(response);
        let is_changed = route.settles_by_body() && !route.headers_down.is_empty();
        let sent_headers = is_changed.then(|| Box::new(response.headers().clone()));
        self.change_head(route, upstream, client_host.as_deref(), changes, response);
        if ready.asks_upgrade {
            if response.status() == StatusCode::SWITCHING_PROTOCOLS {
                response.extensions_mut().insert(Tunnel::new(body));
                return Ok(None);
            }
            headers::close_after(response);
        }
        *response.body_mut() = Body::upstream(body);
        if is_asked && let Some(stream) = ask::filter(response.headers_mut()) {
            response.body_mut().filter(stream);
        }
        if let Some(bandwidth) = route.bandwidth {
            response.body_mut().pace(bandwidth);
        }
        Ok(sent_headers)
    }

    /// Changes the head of an upstream's response as the route says.
    fn change_head(
        &self,
        route: &Route,
        upstream: usize,
        client_host: Option<&str>,
        changes: Option<&Changes<'_>>,
        response: &mut Response<Body>,
    ) {
        let mut is_location_changed = false;
        if let Some(replacement) = &route.replace_prefix {
            is_location_changed = headers::restore(
                response.headers_mut(),
                replacement,
                client_host.unwrap_or_default(),
                |host| self.upstreams.has_host(upstream, host),
            );
        }
        if let Some(rewrites) = &route.rewrite_down {
            is_location_changed |= rewrites.apply(response.headers_mut());
        }
        if let Some(changes) = changes {
            if is_location_changed {
                changes.complete_location(response.headers_mut());
            }
            changes.apply_to_response(response);
        }
    }
}

/// The host that the client named, if the route rewrites `Location`.
fn client_host<B>(request: &Request<B>, route: &Route) -> Option<String> {
    route.replace_prefix.as_ref().filter(|one| one.location)?;
    Some(request.headers().get(HOST)?.to_str().ok()?.to_owned())
}

/// Makes a client's request ready for its upstream.
#[inline]
pub(super) fn prepare<B>(
    request: &mut Request<B>,
    downstream: &Downstream,
    client: IpAddr,
    route: &Route,
    changes: Option<&Changes<'_>>,
) -> Result<UpstreamRequest, Rejection> {
    if !route.pass_headers {
        headers::keep_forwarding(request.headers_mut());
    }
    // The changes of a route need all headers in the map.
    let mut ready = downstream.to_upstream(request, client, changes.is_none())?;
    let sent_slash = route.add_prefix.is_some() && request.uri().path().ends_with('/');
    if let Some(prefix) = &route.strip_prefix {
        headers::strip(request, prefix, downstream.peer())?;
    }
    if let Some(prefix) = &route.add_prefix {
        headers::prepend(request, prefix, sent_slash)?;
    }
    if let Some(replacement) = &route.replace_prefix {
        headers::replace(request, replacement)?;
    }
    if matches!(route.settle, Some(Settle::Trailer(_))) && !ready.asks_upgrade {
        headers::ask_for_trailers(request.headers_mut());
    }
    if let Some(changes) = changes {
        changes.apply_to_request(request);
        ready.has_host = request.headers().contains_key(HOST);
    }
    Ok(ready)
}
