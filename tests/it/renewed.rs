//! Upstreams of another configuration: what they keep of those before.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on says where")]

use std::time::Duration;

use http::{Request, Response};
use http_body_util::BodyExt;
use tidegate::body::RequestBody;
use tidegate::clock::Sweep;
use tidegate::config::{Balance, UpstreamSettings};
use tidegate::upstream::body::UpstreamBody;
use tidegate::upstream::{UpstreamError, Upstreams, Vitals};

use super::house;
use super::scripted::Step::{self, Send, Stay};
use super::scripted::{HEAD, Upstream, settings};
use super::upstream::send;

const OK: &str = "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok";
/// Answers three requests on one connection.
const THRICE: &[Step] = &[HEAD, Send(OK), HEAD, Send(OK), HEAD, Send(OK), Stay];

/// One worker's upstreams through reloads.
struct Worker {
    upstreams: Upstreams,
    sweep: Sweep,
    vitals: Vitals,
}

impl Worker {
    fn start(settings: &UpstreamSettings) -> Worker {
        let (sweep, vitals) = (Sweep::new(), Vitals::default());
        Worker {
            upstreams: Upstreams::new(std::slice::from_ref(settings), sweep.clone(), &vitals),
            sweep,
            vitals,
        }
    }

    fn reload(&mut self, settings: &[UpstreamSettings]) {
        self.upstreams = self.upstreams.renewed(settings, &self.sweep, &self.vitals);
    }

    async fn ask(&self, upstream: usize) -> Result<Response<UpstreamBody>, UpstreamError> {
        let request = Request::get("/").header("host", "a.example");
        let mut request = request.body(RequestBody::empty()).unwrap();
        send(&self.upstreams, upstream, &mut request).await
    }

    async fn is_ok(&self, upstream: usize) {
        let answer = self.ask(upstream).await.unwrap();
        let body = answer.into_body().collect().await.unwrap();
        assert_eq!(body.to_bytes(), "ok");
    }
}

#[tokio::test]
async fn connections_stay_when_settings_of_others_change() {
    let upstream = Upstream::start(&[THRICE]).await;
    let first = settings(&[upstream.port]);
    let mut worker = Worker::start(&first);
    worker.is_ok(0).await;
    let mut other = settings(&[1]);
    other.name = "other".into();
    let mut changed = first.clone();
    (changed.balance, changed.max_idle) = (Balance::RoundRobin, 3);
    changed.servers[0].weight = 7;
    changed.servers.push(settings(&[1]).servers.remove(0));
    // Another upstream comes before it, a server comes to it, and its settings change.
    worker.reload(&[other.clone(), changed.clone()]);
    worker.is_ok(1).await;
    worker.reload(&[changed, other]);
    worker.is_ok(0).await;
    assert_eq!(upstream.accepted(), 1);
}

#[tokio::test]
async fn a_connection_in_use_comes_back_to_the_new_settings() {
    let upstream = Upstream::start(&[THRICE]).await;
    let first = settings(&[upstream.port]);
    let mut worker = Worker::start(&first);
    let answer = worker.ask(0).await.unwrap();
    let mut changed = first.clone();
    changed.max_connections = 2;
    worker.reload(&[changed.clone()]);
    changed.max_connections = 1;
    worker.reload(&[changed]);
    // It counts, although it began before.
    assert!(matches!(
        worker.ask(0).await,
        Err(UpstreamError::TooManyConnections)
    ));
    answer.into_body().collect().await.unwrap();
    worker.is_ok(0).await;
    worker.is_ok(0).await;
    assert_eq!(upstream.accepted(), 1);
}

#[tokio::test]
async fn connections_made_for_other_timeouts_are_not_used() {
    let upstream = Upstream::start(&[THRICE, THRICE]).await;
    let first = settings(&[upstream.port]);
    let mut worker = Worker::start(&first);
    worker.is_ok(0).await;
    let mut changed = first.clone();
    changed.timeout = Duration::from_secs(3);
    worker.reload(&[changed]);
    upstream.wait_closed(1).await;
    worker.is_ok(0).await;
    assert_eq!(upstream.accepted(), 2);
}

#[tokio::test]
async fn a_connection_that_was_idle_beyond_its_age_gets_one_more_request() {
    let upstream = Upstream::start(&[THRICE]).await;
    let mut aged = settings(&[upstream.port]);
    aged.connections.age = Some(Duration::from_secs(10));
    let worker = Worker::start(&aged);
    worker.is_ok(0).await;
    worker.sweep.advance(Duration::from_secs(9));
    worker.is_ok(0).await;
    assert_eq!(upstream.accepted(), 1);
    worker.sweep.advance(Duration::from_secs(11));
    worker.is_ok(0).await;
    // As with keepalive_time of nginx.
    assert_eq!(upstream.accepted(), 1);
    worker.is_ok(0).await;
    assert_eq!(upstream.accepted(), 2);
}

#[tokio::test]
async fn a_server_that_goes_takes_its_connections_with_it() {
    let upstream = Upstream::start(&[THRICE]).await;
    let another = Upstream::start(&[THRICE]).await;
    let mut worker = Worker::start(&settings(&[upstream.port]));
    worker.is_ok(0).await;
    worker.reload(&[settings(&[another.port])]);
    upstream.wait_closed(1).await;
    worker.is_ok(0).await;
    assert_eq!((upstream.accepted(), another.accepted()), (1, 1));
}

#[tokio::test]
async fn a_new_server_starts_slowly_where_that_is_wanted() {
    let servers = [house::Upstream::ok(), house::Upstream::ok()];
    let ports = [0, 1].map(|at: usize| servers[at].address.port());
    let mut both = settings(&ports);
    both.slow_start = Some(Duration::from_secs(3600));
    let mut one = both.clone();
    one.servers.pop();
    let mut worker = Worker::start(&one);
    worker.is_ok(0).await;
    worker.reload(&[both]);
    for _ in 0..400 {
        worker.is_ok(0).await;
    }
    // A tenth of its weight beside another's whole: one in eleven.
    let seen = servers[1].seen().len();
    assert!((10..80).contains(&seen), "{seen} of 400");
}
