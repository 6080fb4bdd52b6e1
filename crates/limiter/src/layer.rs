//! Limits before an HTTP service, as a [`tower::Layer`]. It runs the stages of the proxy.

use std::fmt;
use std::future::Future;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::header::CONNECTION;
use http::{Extensions, Request, Response, Version};
use http_body::{Frame, SizeHint};
use pin_project_lite::pin_project;
use tower::{Layer, Service};

use tidegate_core::exchange::Exchange;
use tidegate_core::exchange::access_record::AccessRecord;
use tidegate_core::exchange::downstream::Arrival;
use tidegate_core::exchange::limiter::HeldSlots;
use tidegate_core::exchange::local_reply;
use tidegate_core::exchange::rejection::Rejection;
use tidegate_core::exchange::stages::Stages;
use tidegate_core::telemetry::access::Buffer;

/// Finds a request's peer in its extensions, where the server has put it.
pub type PeerOf = fn(&Extensions) -> Option<IpAddr>;

/// A layer that limits services. All its services and clones count together.
#[derive(Clone)]
pub struct LimitLayer {
    /// Their access log is off. It only reports what shadow limits would have denied.
    stages: Arc<Stages>,
    peer: PeerOf,
}

impl LimitLayer {
    pub(crate) fn new(stages: Arc<Stages>, peer: PeerOf) -> LimitLayer {
        LimitLayer { stages, peer }
    }

    /// The path of a request. A caller that drops the future may have been charged, once.
    async fn pass<S, B, R>(
        self,
        request: Request<B>,
        mut service: S,
    ) -> Result<Response<LimitedBody<R>>, S::Error>
    where
        S: Service<Request<B>, Response = Response<R>>,
    {
        let Some(ip) = (self.peer)(request.extensions()).map(|ip| ip.to_canonical()) else {
            return Ok(refused(without_address(), request.version()));
        };
        // The body need not be `Sync`, so the stages see only the head.
        let (head, body) = request.into_parts();
        let mut head = Request::from_parts(head, ());
        let mut denied = Response::new(Bytes::new());
        let downstream = self.stages.downstream(Arrival::plain(ip));
        let mut x = self.stages.begin(&mut head, &mut denied, &downstream);
        let admitted = self.admit(&mut x).await;
        if let Err(rejection) = &admitted {
            self.stages.reject(&mut x, rejection);
        }
        let log = &self.stages.log;
        let Some(route) = x.route.filter(|_| admitted.is_ok()) else {
            let response = refused(std::mem::take(x.response), x.request.version());
            return Ok(response.map(|body| body.ending_with(None, x.record, log)));
        };
        let request = std::mem::take(x.request).map(|()| body);
        let mut response = service.call(request).await?;
        let limiter = &self.stages.limiter;
        limiter.adjust(route, &x.admission, &mut response, &mut x.record);
        let slots = x.admission.slots.take();
        self.stages.replies.mark(&x.admission, &mut response);
        Ok(response.map(|body| LimitedBody::passed(body).ending_with(slots, x.record, log)))
    }

    async fn admit<'c>(&'c self, x: &mut Exchange<'c, (), Bytes>) -> Result<(), Rejection> {
        self.stages.identify(x)?;
        self.stages.admit(x).await
    }
}

impl fmt::Debug for LimitLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LimitLayer").finish_non_exhaustive()
    }
}

impl<S> Layer<S> for LimitLayer {
    type Service = Limited<S>;

    fn layer(&self, inner: S) -> Limited<S> {
        Limited {
            inner,
            layer: self.clone(),
        }
    }
}

/// A service behind limits. It is ready when the inner service is, and passes its errors on.
#[derive(Clone, Debug)]
pub struct Limited<S> {
    inner: S,
    layer: LimitLayer,
}

impl<S, B, R> Service<Request<B>> for Limited<S>
where
    S: Service<Request<B>, Response = Response<R>> + Clone + Send + 'static,
    S::Future: Send,
    B: Send + 'static,
    R: 'static,
{
    type Response = Response<LimitedBody<R>>;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, S::Error>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        // `poll_ready` was called on this service, and not on its clone.
        let next = self.inner.clone();
        let ready = std::mem::replace(&mut self.inner, next);
        let layer = self.layer.clone();
        Box::pin(layer.pass(request, ready))
    }
}

/// The response to a request without an address, which no limit could count.
fn without_address() -> Response<Bytes> {
    tracing::error!(
        "a request without its peer's address is refused: the function given to Limiter::layer \
         found none in its extensions"
    );
    local_reply::panicked()
}

fn refused<R>(mut response: Response<Bytes>, version: Version) -> Response<LimitedBody<R>> {
    if version >= Version::HTTP_2 {
        // HTTP/2 has no such header.
        response.headers_mut().remove(CONNECTION);
    }
    response.map(LimitedBody::made)
}

pin_project! {
    /// The body of a service's response, or that of a denial.
    #[derive(Debug)]
    pub struct LimitedBody<R> {
        #[pin]
        passed: Option<R>,
        made: Bytes,
        ending: BodyEnd,
    }
}

/// The work at the end of a response's body, or when the body is dropped.
#[derive(Debug, Default)]
struct BodyEnd {
    slots: Option<Box<HeldSlots>>,
    /// Set if there are shadow checks, whose decisions are counted.
    record: Option<Box<(AccessRecord, Buffer)>>,
}

impl Drop for BodyEnd {
    fn drop(&mut self) {
        if let Some((mut record, log)) = self.record.take().map(|record| *record) {
            record.write();
            log.flush();
        }
    }
}

impl<R> LimitedBody<R> {
    fn passed(body: R) -> LimitedBody<R> {
        LimitedBody {
            passed: Some(body),
            made: Bytes::new(),
            ending: BodyEnd::default(),
        }
    }

    fn made(bytes: Bytes) -> LimitedBody<R> {
        LimitedBody {
            passed: None,
            made: bytes,
            ending: BodyEnd::default(),
        }
    }

    fn ending_with(
        mut self,
        slots: Option<Box<HeldSlots>>,
        record: AccessRecord,
        log: &Buffer,
    ) -> LimitedBody<R> {
        self.ending.slots = slots;
        if record.is_wanted() {
            self.ending.record = Some(Box::new((record, log.clone())));
        }
        self
    }
}

impl<R: http_body::Body> http_body::Body for LimitedBody<R>
where
    R::Data: From<Bytes>,
{
    type Data = R::Data;
    type Error = R::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<R::Data>, R::Error>>> {
        let this = self.project();
        match this.passed.as_pin_mut() {
            Some(body) => body.poll_frame(context),
            None if this.made.is_empty() => Poll::Ready(None),
            None => {
                let bytes = std::mem::take(this.made);
                Poll::Ready(Some(Ok(Frame::data(bytes.into()))))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        let passed = self.passed.as_ref();
        passed.map_or(self.made.is_empty(), http_body::Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        let made = || SizeHint::with_exact(self.made.len() as u64);
        let passed = self.passed.as_ref();
        passed.map_or_else(made, http_body::Body::size_hint)
    }
}
