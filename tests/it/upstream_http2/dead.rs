//! Connections over which nothing comes any more, as after a router has lost its state: requests
//! are given up, and later ones get another connection.

use std::pin::pin;
use std::time::Duration;

use http::{Request, Response};
use http_body_util::BodyExt;
use tidegate::body::RequestBody;
use tidegate::clock::Sweep;
use tidegate::config::{self, ServerAddress, UpstreamSettings};
use tidegate::upstream::{Outgoing, Upstreams, Vitals, run_health_checks};

use super::polite;
use crate::backend::{Backend, Call};
use crate::house::PATIENCE;
use crate::http2::client::run;

const MS: Duration = Duration::from_millis(1);

/// Answers `/quick` and nothing else.
async fn mostly_silent(mut call: Call) {
    match call.request.uri().path() {
        "/quick" => call.say("ok"),
        _ => std::future::pending().await,
    }
}

fn settings(backend: &Backend) -> UpstreamSettings {
    let server = ServerAddress::H2c("127.0.0.1".to_owned(), backend.address.port());
    UpstreamSettings::new("api", vec![server.into()])
}

/// One worker, whose clock the test moves.
struct Worker<'b> {
    backend: &'b Backend,
    upstreams: Upstreams,
    sweep: Sweep,
    vitals: Vitals,
}

impl<'b> Worker<'b> {
    fn start(backend: &'b Backend, settings: UpstreamSettings) -> Worker<'b> {
        let (sweep, vitals) = (Sweep::new(), Vitals::default());
        Worker {
            backend,
            upstreams: Upstreams::new(&[settings], sweep.clone(), &vitals),
            sweep,
            vitals,
        }
    }

    fn reload(&mut self, settings: UpstreamSettings) {
        self.upstreams = self
            .upstreams
            .renewed(&[settings], &self.sweep, &self.vitals);
    }

    /// Asks, and gives up at this time, while `meanwhile` runs.
    async fn give_up(&self, at: Duration, meanwhile: impl Future<Output = ()>) {
        let before = self.backend.seen().len();
        let mut request = Request::get("/").body(RequestBody::empty()).unwrap();
        let mut head = Response::new(());
        let outgoing = Outgoing::from(&mut request);
        let mut sent = pin!(self.upstreams.send(0, outgoing, &mut head));
        let seen = async {
            while self.backend.seen().len() == before {
                tokio::time::sleep(MS).await;
            }
            meanwhile.await;
        };
        tokio::select! {
            _ = &mut sent => panic!("an answer"),
            () = seen => {}
        }
        self.sweep.advance(at);
    }

    async fn is_quick(&self) {
        let mut request = Request::get("/quick").body(RequestBody::empty()).unwrap();
        let mut head = Response::new(());
        let sent = self
            .upstreams
            .send(0, Outgoing::from(&mut request), &mut head);
        let body = sent.await.unwrap().collect().await.unwrap();
        assert_eq!(body.to_bytes(), "ok");
    }

    /// The time at which the clock stands when all connections are closed.
    async fn closed_at(&self) -> Duration {
        let until = std::time::Instant::now() + PATIENCE;
        while self.backend.open() > 0 {
            assert!(std::time::Instant::now() < until, "never closed");
            self.sweep.advance(self.sweep.elapsed() + 50 * MS);
            tokio::time::sleep(MS).await;
        }
        self.sweep.elapsed()
    }
}

#[test]
fn a_request_that_is_given_up_after_long_silence_costs_its_connection_new_requests() {
    let backend = Backend::h2c(polite(), mostly_silent);
    run(async {
        let worker = Worker::start(&backend, settings(&backend));
        worker.give_up(2000 * MS, async {}).await;
        worker.is_quick().await;
        assert_eq!(backend.connections(), 2);
        // A short wait proves nothing, but short ones add up.
        worker.give_up(2500 * MS, async {}).await;
        worker.give_up(2900 * MS, async {}).await;
        assert_eq!(backend.connections(), 2);
        worker.give_up(3600 * MS, async {}).await;
        worker.is_quick().await;
        assert_eq!(backend.connections(), 3);
    });
}

#[test]
fn a_connection_on_which_something_came_stays() {
    let backend = Backend::h2c(polite(), mostly_silent);
    run(async {
        let worker = Worker::start(&backend, settings(&backend));
        worker.give_up(9000 * MS, worker.is_quick()).await;
        worker.is_quick().await;
        assert_eq!(backend.connections(), 1);
    });
}

#[test]
fn a_check_without_an_answer_is_repeated_on_another_connection() {
    let backend = Backend::h2c(polite(), mostly_silent);
    let text = format!(
        "[upstream.api]\nservers = [\"{}\"]\n\
         health = {{ path = \"/healthz\", every = \"200ms\", timeout = \"200ms\" }}\n\
         [[route]]\npath = \"/*\"\nupstream = \"api\"\nlimits = []\n",
        backend.h2c_url()
    );
    let (config, _) = config::parse("proxy.toml", &text, &|_| None).unwrap();
    run(async {
        let vitals = Vitals::default();
        let seen = async {
            while backend.seen().len() < 3 {
                tokio::time::sleep(MS).await;
            }
        };
        tokio::select! {
            () = run_health_checks(&config.upstreams, &vitals) => {}
            () = seen => {}
        }
        assert!(backend.connections() >= 3, "{}", backend.connections());
    });
}

#[test]
fn idle_connections_close_after_a_reload_by_its_settings() {
    for idle_timeout in [Duration::from_secs(4), Duration::from_secs(9)] {
        let backend = Backend::h2c(polite(), mostly_silent);
        run(async {
            let mut first = settings(&backend);
            first.idle_timeout = Duration::from_secs(4);
            let mut worker = Worker::start(&backend, first.clone());
            worker.is_quick().await;
            first.max_connections += 1;
            first.idle_timeout = idle_timeout;
            worker.reload(first);
            let at = worker.closed_at().await;
            assert!(at >= idle_timeout, "{at:?}");
            assert_eq!(backend.connections(), 1);
        });
    }
}
