//! Forwarding: the request as the upstream should see it, and the response as the client should.

use http::header::HOST;
use http::{Request, StatusCode};
use http_body::Body as _;

use super::Proxy;
use super::ProxyExchange;
use super::body::Body;
use super::headers::{self, Turned};
use super::upgrade::Tunnel;
use crate::body::RequestBody;
use crate::route::Route;
use crate::upstream::{Outgoing, SendOptions};
use tidegate_core::exchange::changes::Changes;
use tidegate_core::exchange::downstream::Downstream;
use tidegate_core::exchange::rejection::{NoAnswer, Rejection};

impl Proxy {
    /// Sends the request to its route's upstream and waits for the head of the answer, which is
    /// put into the exchange's response.
    pub(super) async fn forward(
        &self,
        x: &mut ProxyExchange<'_>,
        route: &Route,
        upstream: usize,
    ) -> Result<(), Rejection> {
        let (request, response) = (&mut *x.request, &mut *x.response);
        let changes = x.changes.as_deref();
        bound_body(request, route.body_limit)?;
        let turned = turn(request, x.downstream, route, changes)?;
        if turned.forged {
            self.meter().count_untrusted_forwarding();
        }
        let trace = x.record.trace.as_deref_mut();
        let attempts = trace.and_then(|trace| trace.send(request.headers_mut()));
        let outgoing = Outgoing {
            request,
            prerendered: turned.beside,
            timeout: route.timeout,
            options: SendOptions {
                asks_upgrade: turned.upgrade,
                has_host: turned.names_host,
                affinity: x.admission.affinity,
                is_grpc: x.record.grpc,
                attempts,
            },
        };
        let body = self
            .upstreams
            .send(upstream, outgoing, response)
            .await
            .map_err(NoAnswer::from)?;
        headers::to_downstream(response);
        if let Some(changes) = changes {
            changes.downwards(response.headers_mut());
        }
        if turned.upgrade {
            if response.status() == StatusCode::SWITCHING_PROTOCOLS {
                response.extensions_mut().insert(Tunnel::new(body));
                return Ok(());
            }
            headers::close_after(response);
        }
        *response.body_mut() = Body::upstream(body);
        Ok(())
    }
}

/// Makes of a client's request the one that its upstream gets.
#[inline]
pub(super) fn turn<B>(
    request: &mut Request<B>,
    downstream: &Downstream,
    route: &Route,
    changes: Option<&Changes<'_>>,
) -> Result<Turned, Rejection> {
    // What the route changes are fields.
    let mut turned = headers::to_upstream(request, downstream.peer(), changes.is_none())?;
    let sent_slash = route.add_prefix.is_some() && request.uri().path().ends_with('/');
    if let Some(prefix) = &route.strip_prefix {
        headers::strip(request, prefix, downstream.peer())?;
    }
    if let Some(prefix) = &route.add_prefix {
        headers::prepend(request, prefix, sent_slash)?;
    }
    if let Some(changes) = changes {
        changes.upwards(request.headers_mut());
        turned.names_host = request.headers().contains_key(HOST);
    }
    Ok(turned)
}

/// Refuses a body that says itself that it is too long; one that does not say is cut off on its
/// way.
fn bound_body(request: &mut Request<RequestBody>, most: Option<u64>) -> Result<(), Rejection> {
    let Some(most) = most else {
        return Ok(());
    };
    if request.body().size_hint().lower() > most {
        return Err(Rejection::BodyTooLarge);
    }
    request.body_mut().limit(most);
    Ok(())
}
