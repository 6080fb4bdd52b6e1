//! The path of a request as a [`tower::Service`], for whoever has no socket: tests, and programs
//! that put the proxy behind a server of their own. Errors are answers: it never fails.

use std::convert::Infallible;
use std::future::Future;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use http::{Request, Response};

use super::Proxy;
use super::body::Body;
use crate::body::RequestBody;
use tidegate_core::exchange::downstream::{Arrival, Downstream};

/// One client's requests to one worker's proxy.
#[derive(Clone, Debug)]
pub struct Client {
    proxy: Arc<Proxy>,
    downstream: Arc<Downstream>,
}

impl Client {
    /// Requests of the peer at `ip`.
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
        // Bounds are the store's and the upstreams', and are known only with the request.
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
