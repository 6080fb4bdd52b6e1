//! Forwarding: the request as the upstream should see it, and the response as the client should.

use http::{Request, Response, StatusCode};
use http_body::Body as _;
use hyper::upgrade::OnUpgrade;

use super::body::Body;
use super::headers;
use super::reject::Rejection;
use super::upgrade::Tunnel;
use super::{Downstream, Proxy};
use crate::route::Route;
use crate::upstream::body::{RequestBody, ResponseBody};

impl Proxy {
    /// Sends the request to its route's upstream and waits for the head of the answer.
    pub(super) async fn forward(
        &self,
        mut request: Request<RequestBody>,
        downstream: &Downstream,
        route: &Route,
    ) -> Result<Response<Body>, Rejection> {
        self.bound_body(&mut request)?;
        let upgrade = headers::wants_upgrade(&request).then(|| hyper::upgrade::on(&mut request));
        headers::to_upstream(&mut request, &downstream.peer)?;
        let mut response = self.upstreams.send(route.upstream, request).await?;
        headers::to_downstream(&mut response);
        match upgrade {
            Some(client) if response.status() == StatusCode::SWITCHING_PROTOCOLS => {
                Ok(tunnelled(response, client))
            }
            Some(_) => {
                headers::close_after(&mut response);
                Ok(response.map(Body::upstream))
            }
            None => Ok(response.map(Body::upstream)),
        }
    }

    /// Refuses a body that says itself that it is too long; one that does not say is cut off on
    /// its way.
    fn bound_body(&self, request: &mut Request<RequestBody>) -> Result<(), Rejection> {
        let Some(most) = self.max_body else {
            return Ok(());
        };
        if request.body().size_hint().lower() > most {
            return Err(Rejection::BodyTooLarge);
        }
        request.body_mut().limit(most);
        Ok(())
    }
}

/// The answer that agrees to an upgrade, with both ends of the tunnel that it opens.
fn tunnelled(mut response: Response<ResponseBody>, client: OnUpgrade) -> Response<Body> {
    let tunnel = Tunnel::new(client, &mut response);
    let mut response = response.map(|_| Body::empty());
    response.extensions_mut().insert(tunnel);
    response
}
