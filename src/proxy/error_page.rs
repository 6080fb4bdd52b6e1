//! Pages in place of error responses.
//!
//! A page replaces the body of an error. The headers of the error stay, such as `Retry-After` and
//! those of limits, except those that describe the old body.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{
    ACCEPT_RANGES, AGE, CACHE_CONTROL, CONTENT_TYPE, ETAG, EXPIRES, HeaderMap, HeaderName,
    LAST_MODIFIED, LOCATION, REFRESH, TRAILER, VIA,
};
use http::uri::PathAndQuery;
use http::{Method, Request, Response, StatusCode, Uri};
use http_body::Body as _;
use hyper::ext::ReasonPhrase;
use tidegate_core::exchange::changes::{Changes, CloseUnanswered};
use tidegate_core::exchange::grpc::is_grpc;
use tokio::time::timeout;

use super::body::Body;
use super::headers;
use super::{Proxy, ProxyExchange};
use crate::body::RequestBody;
use crate::clock;
use crate::route::{ErrorPage, PageServer, PageSource, Respond, RespondBody, Target};
use crate::telemetry::access::Outcome;
use crate::upstream::body::UpstreamBody;
use crate::upstream::{Outgoing, SendOptions};

/// Bytes of a replaced body that are read at most, so that its connection serves other requests.
const DISCARD_BYTES: usize = 64 << 10;
/// The longest time for this. The page waits for it.
const DISCARD_TIME: Duration = Duration::from_millis(50);

/// Headers that describe the body of a response. So do all that begin with `content-`.
const OF_BODY: [HeaderName; 7] = [
    ETAG,
    LAST_MODIFIED,
    ACCEPT_RANGES,
    EXPIRES,
    AGE,
    REFRESH,
    TRAILER,
];

/// The parts of a request that the server of a page is told, as the client sent them.
#[derive(Debug)]
pub(super) struct AskedTarget {
    is_head: bool,
    target: PathAndQuery,
    /// The proxies that it came through, so that a loop of pages ends.
    via: HeaderMap,
}

impl AskedTarget {
    pub(super) fn from_request<B>(request: &Request<B>) -> AskedTarget {
        let target = request.uri().path_and_query().cloned();
        let target = target.filter(|target| target.as_str().starts_with('/'));
        let passed = request.headers().get_all(VIA).iter();
        AskedTarget {
            is_head: request.method() == Method::HEAD,
            target: target.unwrap_or_else(|| PathAndQuery::from_static("/")),
            via: passed.map(|value| (VIA, value.clone())).collect(),
        }
    }
}

/// Whether some page has to be asked for.
pub(super) fn has_servers<'p>(pages: impl IntoIterator<Item = &'p ErrorPage>) -> bool {
    let is_server = |page: &ErrorPage| matches!(page.source, PageSource::Upstream(_));
    pages.into_iter().any(is_server)
}

impl Proxy {
    /// Replaces the response by the page for its status, if it has one. `asked` is there if a
    /// page's server may have to be asked.
    #[inline]
    pub(super) async fn replace_error<'c>(
        &'c self,
        x: &mut ProxyExchange<'c>,
        asked: Option<Box<AskedTarget>>,
    ) {
        if x.response.status().as_u16() < 400 {
            return;
        }
        if let Some(page) = self.page_for(x) {
            Box::pin(self.replace_by(x, page, asked)).await;
        }
    }

    fn page_for<'c>(&'c self, x: &ProxyExchange<'c>) -> Option<&'c ErrorPage> {
        let pages = x
            .route
            .map_or(&self.error_pages, |route| &route.error_pages);
        // A call of gRPC has no pages. A route has chosen the text that it responds with.
        let is_grpc = x.record.grpc && is_grpc(x.response.headers());
        if pages.is_empty() || is_grpc || responds_with_text(x) {
            return None;
        }
        let status = x.response.status();
        let body = x.response.body();
        // Tokens are counted in the upstream's own body.
        let is_upstreams = !body.is_made_here();
        let may_replace = !body.is_metered();
        // Requests without a route have no variables.
        let changes = x.changes.as_deref();
        let has_text = |page: &ErrorPage| {
            page.made_text().is_none() || changes.is_some_and(|all| all.has_page(page))
        };
        let fits = |page: &&Arc<ErrorPage>| {
            let is_meant = !is_upstreams || page.replaces_upstream && may_replace;
            is_meant && has_text(page) && page.statuses.contains(status)
        };
        pages.iter().find(fits).map(|page| &**page)
    }

    async fn replace_by(
        &self,
        x: &mut ProxyExchange<'_>,
        page: &ErrorPage,
        asked: Option<Box<AskedTarget>>,
    ) {
        let error = x.response.status();
        let changes = x.changes.as_deref();
        let content = match &page.source {
            PageSource::Body(body) => {
                let text = match &body.text {
                    RespondBody::Fixed(bytes) => bytes.clone(),
                    RespondBody::Made(_) => {
                        let made =
                            changes.and_then(|all| all.page_text(page, x.response.headers()));
                        made.unwrap_or_default().into()
                    }
                };
                put_page(x.response, page.status(error, None), changes, |headers| {
                    headers.insert(CONTENT_TYPE, body.content_type.clone());
                });
                Body::made(text)
            }
            PageSource::Redirect(place) => {
                put_page(x.response, page.status(error, None), changes, |headers| {
                    headers.insert(LOCATION, place.clone());
                });
                Body::empty()
            }
            PageSource::Upstream(server) => {
                let Some(asked) = asked else { return };
                let Some(answer) = self.ask_for_page(x, server, *asked).await else {
                    return;
                };
                let (mut head, body) = answer.into_parts();
                let changes = x.changes.as_deref();
                let status = page.status(error, Some(head.status));
                if let Some(changes) = changes {
                    changes.remove_from(status, &mut head.headers);
                }
                let is_made_here = x.response.body().is_made_here();
                put_page(x.response, status, changes, |headers| {
                    add_headers(headers, head.headers, is_made_here);
                });
                body
            }
        };
        if let Some(replaced) = x.response.body_mut().replace_content(content) {
            // A longer or slower body ends with its connection.
            let _ = timeout(DISCARD_TIME, discard(replaced)).await;
        }
    }

    /// The response of a page's server; `None` if it sends none. The error stays then.
    async fn ask_for_page(
        &self,
        x: &mut ProxyExchange<'_>,
        server: &PageServer,
        asked: AskedTarget,
    ) -> Option<Response<Body>> {
        let mut request = Request::new(RequestBody::empty());
        if asked.is_head {
            *request.method_mut() = Method::HEAD;
        }
        *request.uri_mut() = Uri::from(server.target.clone().unwrap_or(asked.target));
        *request.headers_mut() = asked.via;
        let (downstream, client) = (x.downstream, x.record.client);
        downstream.to_upstream(&mut request, client, false).ok()?;
        let passed = clock::now().saturating_duration_since(x.record.began);
        let whole = x.route.and_then(|route| route.timeout);
        let outgoing = Outgoing {
            request: &mut request,
            prerendered: None,
            timeout: whole.map(|whole| whole.saturating_sub(passed)),
            options: SendOptions {
                affinity: x.admission.affinity,
                ..SendOptions::default()
            },
        };
        let mut answer = Response::new(Body::empty());
        let body = self.upstreams.send(server.upstream, outgoing, &mut answer);
        let body = body.await.ok()?;
        headers::to_downstream(&mut answer);
        // Neither has a body that could be a page. The head of the second may give a length.
        let no_page = [StatusCode::SWITCHING_PROTOCOLS, StatusCode::NOT_MODIFIED];
        (!no_page.contains(&answer.status())).then(|| answer.map(|_| Body::upstream(body)))
    }
}

/// Reads the rest of a short body.
async fn discard(mut body: UpstreamBody) {
    let mut left = DISCARD_BYTES;
    while let Some(Ok(frame)) = poll_fn(|context| Pin::new(&mut body).poll_frame(context)).await {
        let length = frame.data_ref().map_or(0, Bytes::len);
        let Some(rest) = left.checked_sub(length) else {
            return;
        };
        left = rest;
    }
}

/// Whether the route itself responds with this error, and with a text, or closes the connection.
fn responds_with_text(x: &ProxyExchange<'_>) -> bool {
    let responds = |target: &Target| match target {
        Target::Respond(respond) => respond.closes() || !respond.body.is_empty(),
        Target::Upstream(_) | Target::Redirect(_) => false,
    };
    let is_admitted = matches!(x.record.outcome, Outcome::Allowed | Outcome::Unlimited);
    is_admitted && x.route.is_some_and(|route| responds(&route.target))
}

/// Adds the headers of a page. Those of the error stay, such as those of limits. An error that the
/// proxy made is for one client, so no cache may keep its page.
fn add_headers(headers: &mut HeaderMap, mut of_page: HeaderMap, is_made_here: bool) {
    if is_made_here {
        for name in [CACHE_CONTROL, EXPIRES, ETAG, LAST_MODIFIED] {
            of_page.remove(name);
        }
    } else if of_page.contains_key(CACHE_CONTROL) {
        headers.remove(CACHE_CONTROL);
    }
    for name in headers.keys() {
        of_page.remove(name);
    }
    headers.extend(of_page);
}

/// Gives a response another status, and the headers of another body.
fn put_page(
    response: &mut Response<Body>,
    status: StatusCode,
    changes: Option<&Changes<'_>>,
    put: impl FnOnce(&mut HeaderMap),
) {
    if response.status() != status {
        // The phrase of the upstream is that of the status before.
        response.extensions_mut().remove::<ReasonPhrase>();
    }
    *response.status_mut() = status;
    if status.as_u16() == Respond::CLOSED {
        response.extensions_mut().insert(CloseUnanswered);
    }
    let headers = response.headers_mut();
    for name in OF_BODY {
        headers.remove(name);
    }
    let of_content = headers.keys();
    let of_content = of_content.filter(|name| name.as_str().starts_with("content-"));
    let of_content: Vec<HeaderName> = of_content.cloned().collect();
    for name in of_content {
        headers.remove(name);
    }
    put(headers);
    if let Some(changes) = changes {
        changes.add_missing(status, headers);
    }
}
