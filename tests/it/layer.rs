//! The limiter as a tower layer: what it does to services that are no proxy.

mod likeness;

use std::convert::Infallible;
use std::future::{Future, pending};
use std::io;
use std::net::IpAddr;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use http::{HeaderMap, Request, Response, Version};
use http_body::Frame;
use http_body_util::{BodyExt, Empty, Full, StreamBody};
use tidegate_limiter::{LimitLayer, LimitedBody, Limiter};
use tower::{Layer, Service, ServiceExt, service_fn};

use crate::log_lines::LogLines;

use crate::house::{Tidegate, Upstream};
use crate::support::{RedisServer, free_port, on_a_worker};

type Head = Request<Empty<Bytes>>;

const CLIENT: [u8; 4] = [127, 0, 0, 1];
const TWO: &str = "[limit.default]\nrate = \"2/h\"\n";

fn limiter(text: &str) -> Limiter {
    Limiter::from_toml("limits.toml", text).unwrap()
}

fn layer_of(limiter: &Limiter) -> LimitLayer {
    limiter.layer(|extensions| extensions.get().copied())
}

fn layer(text: &str) -> LimitLayer {
    layer_of(&limiter(text))
}

fn request(path: &str) -> Head {
    Request::get(path)
        .header("host", "test")
        .extension(IpAddr::from(CLIENT))
        .body(Empty::new())
        .unwrap()
}

/// A service that says `ok`.
async fn ok<B>(_: Request<B>) -> Result<Response<Full<Bytes>>, Infallible> {
    Ok(Response::new(Full::from("ok")))
}

async fn ask<S, R>(service: &S, request: Head) -> Response<R>
where
    S: Service<Head, Response = Response<R>, Error = Infallible> + Clone,
{
    service.clone().oneshot(request).await.unwrap()
}

async fn statuses<S, R>(service: &S, times: usize) -> Vec<u16>
where
    S: Service<Head, Response = Response<R>, Error = Infallible> + Clone,
{
    let mut all = Vec::new();
    for _ in 0..times {
        all.push(ask(service, request("/")).await.status().as_u16());
    }
    all
}

#[test]
fn a_layer_and_a_proxy_count_together_in_redis() {
    let redis = RedisServer::start();
    let upstream = Upstream::ok();
    let shared = format!(
        "[store]\nurl = \"redis://127.0.0.1:{}\"\ntimeout = \"5s\"\n\
         [limit.default]\nrate = \"4/h\"\n",
        redis.port()
    );
    let top = format!("upstream = \"{}\"\n", upstream.url());
    let proxy = Tidegate::start(&format!("{top}{shared}"));
    on_a_worker(async {
        let limiter = limiter(&shared);
        limiter.ready().await;
        let layer = layer_of(&limiter);
        let service = layer.layer(service_fn(ok));
        let remaining = |headers: &HeaderMap| headers["x-ratelimit-remaining"].clone();
        for left in [3, 1] {
            let response = ask(&service, request("/")).await;
            assert_eq!((response.status().as_u16(), left), (200, left));
            assert_eq!(remaining(response.headers()), left.to_string());
            let answer = proxy.get("/");
            assert_eq!(answer.status, 200);
            let left = (left - 1).to_string();
            assert_eq!(answer.header("x-ratelimit-remaining"), Some(left));
        }
        assert_eq!(ask(&service, request("/")).await.status(), 429);
        assert_eq!(proxy.get("/").status, 429);
        assert_eq!(upstream.seen().len(), 2);
    });
}

#[test]
fn threads_share_one_limit_exactly() {
    let redis = RedisServer::start();
    let text = format!(
        "[store]\nurl = \"redis://127.0.0.1:{}\"\ntimeout = \"10s\"\n\
         [limit.default]\nrate = \"50/h\"\n",
        redis.port()
    );
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(4)
        .enable_all()
        .build()
        .unwrap();
    let allowed = runtime.block_on(async {
        let limiter = limiter(&text);
        limiter.ready().await;
        let layer = layer_of(&limiter);
        let service = layer.layer(service_fn(ok));
        let tasks = (0..200).map(|_| {
            let service = service.clone();
            tokio::spawn(async move { ask(&service, request("/")).await.status() == 200 })
        });
        let mut allowed = 0;
        for task in tasks.collect::<Vec<_>>() {
            allowed += usize::from(task.await.unwrap());
        }
        allowed
    });
    assert_eq!(allowed, 50);
}

#[test]
fn who_goes_away_was_charged_once() {
    let redis = RedisServer::start();
    let text = format!(
        "[store]\nurl = \"redis://127.0.0.1:{}\"\ntimeout = \"10s\"\n\
         [limit.default]\nrate = \"5/h\"\n",
        redis.port()
    );
    on_a_worker(async {
        let limiter = limiter(&text);
        limiter.ready().await;
        let layer = layer_of(&limiter);
        let reached = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&reached);
        let stuck = layer.layer(service_fn(move |_: Head| {
            count.fetch_add(1, Ordering::Relaxed);
            pending::<Result<Response<Full<Bytes>>, Infallible>>()
        }));
        // One leaves while the store is at it, which answers only when nobody listens any more.
        redis.freeze();
        let mut early = Box::pin(stuck.clone().oneshot(request("/")));
        for _ in 0..100 {
            let mut idle = Context::from_waker(Waker::noop());
            assert!(early.as_mut().poll(&mut idle).is_pending());
            tokio::task::yield_now().await;
        }
        drop(early);
        redis.thaw();
        // Another while the service works.
        let mut late = pin!(stuck.clone().oneshot(request("/")));
        std::future::poll_fn(|context| {
            assert!(late.as_mut().poll(context).is_pending());
            match reached.load(Ordering::Relaxed) {
                0 => Poll::Pending,
                _ => Poll::Ready(()),
            }
        })
        .await;
        assert_eq!(reached.load(Ordering::Relaxed), 1);
        let response = ask(&layer.layer(service_fn(ok)), request("/")).await;
        assert_eq!(response.headers()["x-ratelimit-remaining"], "2");
    });
}

#[test]
fn a_request_without_an_address_is_never_unlimited() {
    let lines = LogLines::collect();
    on_a_worker(async {
        let service = layer(TWO).layer(service_fn(ok));
        let mut request = request("/");
        request.extensions_mut().clear();
        let response = ask(&service, request).await;
        assert_eq!(response.status(), 500);
        assert_eq!(
            response.headers()["content-type"],
            "application/problem+json"
        );
        assert_eq!(statuses(&service, 3).await, [200, 200, 429]);
    });
    let said = lines.text();
    assert!(said.contains("without its peer's address"), "{said}");
}

#[test]
fn slots_are_held_until_the_body_has_ended() {
    on_a_worker(async {
        let layer = layer("[limit.default]\nconcurrent = 1\n");
        let service = layer.layer(service_fn(ok));
        let first = ask(&service, request("/")).await;
        assert_eq!(first.status(), 200);
        assert_eq!(statuses(&service, 1).await, [429]);
        drop(first);
        assert_eq!(statuses(&service, 2).await, [200, 200]);

        let stuck = layer.layer(service_fn(|_: Head| {
            pending::<Result<Response<Full<Bytes>>, Infallible>>()
        }));
        let mut given_up = Box::pin(stuck.oneshot(request("/")));
        let mut idle = Context::from_waker(Waker::noop());
        assert!(given_up.as_mut().poll(&mut idle).is_pending());
        assert_eq!(statuses(&service, 1).await, [429]);
        drop(given_up);
        assert_eq!(statuses(&service, 1).await, [200]);

        // As an async closure, rustc 1.95 fails now and then where it compiles incrementally.
        let broken = layer.layer(service_fn(|_: Head| async {
            Err::<Response<Full<Bytes>>, _>(io::ErrorKind::BrokenPipe)
        }));
        assert!(broken.oneshot(request("/")).await.is_err());
        assert_eq!(statuses(&service, 1).await, [200]);
    });
}

#[test]
fn the_service_says_what_a_request_cost() {
    let text = r#"
        [limit.default]
        rate = "10/h"
        [[route]]
        path   = "/*"
        settle = "response-header:x-cost"
        refund = ["5xx"]
    "#;
    on_a_worker(async {
        let service = layer(text).layer(service_fn(async |request: Head| {
            let path = request.uri().path();
            let (status, cost) = match path {
                "/broken" => (503, "1"),
                _ => (200, path.trim_start_matches('/')),
            };
            let response = Response::builder().status(status).header("x-cost", cost);
            Ok::<_, Infallible>(response.body(Full::<Bytes>::default()).unwrap())
        }));
        let last = layered(&service, ["/6", "/broken", "/1", "/3"]).await;
        assert_eq!(last, [200, 503, 200, 200]);
        // 6, nothing, 1 and 3: the limit is used up.
        assert_eq!(layered(&service, ["/1"]).await, [429]);
    });
}

/// The statuses of requests one after the other; none shows what it cost.
async fn layered<S, R, const N: usize>(service: &S, paths: [&str; N]) -> Vec<u16>
where
    S: Service<Head, Response = Response<R>, Error = Infallible> + Clone,
{
    let mut all = Vec::new();
    for path in paths {
        let response = ask(service, request(path)).await;
        assert!(!response.headers().contains_key("x-cost"));
        all.push(response.status().as_u16());
    }
    all
}

#[test]
fn limits_on_trial_are_reported_and_deny_nothing() {
    let lines = LogLines::collect();
    on_a_worker(async {
        let service = layer(&format!("{TWO}shadow = true\n")).layer(service_fn(ok));
        assert_eq!(statuses(&service, 5).await, [200; 5]);
    });
    let said = lines.text();
    let report = "limit default (shadow): would have denied 3 of 5";
    assert!(said.contains(report), "{said}");
}

#[test]
fn readiness_and_errors_are_the_services_own() {
    #[derive(Clone)]
    struct Broken {
        ready: bool,
    }
    impl Service<Head> for Broken {
        type Response = Response<Full<Bytes>>;
        type Error = io::Error;
        type Future = std::future::Ready<io::Result<Response<Full<Bytes>>>>;

        fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            self.ready = true;
            Poll::Ready(Ok(()))
        }

        fn call(&mut self, _: Head) -> Self::Future {
            // Services may panic when they are called unasked.
            assert!(std::mem::take(&mut self.ready));
            std::future::ready(Err(io::ErrorKind::BrokenPipe.into()))
        }
    }
    on_a_worker(async {
        let mut service = layer(TWO).layer(Broken { ready: false });
        for _ in 0..2 {
            let service = service.ready().await.unwrap();
            let error = service.call(request("/")).await.unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::BrokenPipe);
        }
        let denied = service.ready().await.unwrap().call(request("/")).await;
        assert_eq!(denied.unwrap().status(), 429);
    });
}

#[test]
fn bodies_stream_through_with_their_trailers() {
    on_a_worker(async {
        let service = layer(TWO).layer(service_fn(async |_: Head| {
            let trailers = HeaderMap::from_iter([(
                http::HeaderName::from_static("x-sum"),
                http::HeaderValue::from_static("1"),
            )]);
            let frames = [
                Ok::<_, Infallible>(Frame::data(Bytes::from("one "))),
                Ok(Frame::data(Bytes::from("two"))),
                Ok(Frame::trailers(trailers)),
            ];
            let body = StreamBody::new(futures_util::stream::iter(frames));
            Ok::<_, Infallible>(Response::new(body))
        }));
        let body: LimitedBody<_> = ask(&service, request("/")).await.into_body();
        let whole = body.collect().await.unwrap();
        assert_eq!(whole.trailers().unwrap()["x-sum"], "1");
        assert_eq!(whole.to_bytes(), "one two");
    });
}

#[test]
fn http_2_names_its_host_in_the_target() {
    on_a_worker(async {
        let service = layer(TWO).layer(service_fn(ok));
        let request = |target: &str| {
            let mut request = request(target);
            request.headers_mut().clear();
            *request.version_mut() = Version::HTTP_2;
            request
        };
        for status in [200, 200, 429] {
            let response = ask(&service, request("https://api.example/a")).await;
            assert_eq!(response.status(), status);
        }
        let refused = ask(&service, request("https://api.example/a%00")).await;
        assert_eq!(refused.status(), 400);
        let mut without = request("https://api.example/");
        without.extensions_mut().clear();
        let refused = ask(&service, without).await;
        assert_eq!(refused.status(), 500);
        assert!(!refused.headers().contains_key("connection"));
    });
}

#[test]
fn an_outage_means_what_on_error_says() {
    let text = |on_error: &str| {
        format!(
            "[store]\nurl = \"redis://127.0.0.1:{}\"\nfleet = 1\n{TWO}on_error = \"{on_error}\"\n",
            free_port()
        )
    };
    on_a_worker(async {
        for (on_error, expected) in [
            ("local", [200, 200, 429]),
            ("deny", [503, 503, 503]),
            ("allow", [200, 200, 200]),
        ] {
            let limiter = limiter(&text(on_error));
            limiter.ready().await;
            let layer = layer_of(&limiter);
            let service = layer.layer(service_fn(ok));
            assert_eq!(statuses(&service, 3).await, expected, "{on_error}");
        }
    });
    let error = Limiter::from_toml("limits.toml", &text("local")).unwrap_err();
    assert!(error.to_string().contains("runtime"), "{error}");
}

#[test]
fn it_stands_before_an_axum_router() {
    use axum::body::Body;
    use axum::routing::get;
    on_a_worker(async {
        let router = axum::Router::new()
            .route("/", get(async || "hello"))
            .layer(layer(TWO));
        for status in [200, 200, 429] {
            let response = router
                .clone()
                .oneshot(request("/").map(Body::new))
                .await
                .unwrap();
            assert_eq!(response.status(), status);
            assert!(response.headers().contains_key("ratelimit"));
        }
    });
}
