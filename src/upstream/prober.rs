//! Health checks: one thread of the process sends them, over connections like those of requests.
//!
//! Workers see the results in the shared [`ServerHealth`](super::server_health::ServerHealth). A
//! server never gets two checks at once, and a check never outlasts its timeout. The head of the
//! answer decides; what is left of the timeout is for the body.

use std::collections::HashSet;
use std::future::poll_fn;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use http::header::{ACCEPT, HOST, USER_AGENT};
use http::{HeaderValue, Request, Response, StatusCode};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout, timeout_at};

use super::connection::{ExchangeOptions, UpstreamConnection};
use super::error::UpstreamError;
use super::permit::ServerPermit;
use super::pool::Upstream;
use super::server::Server;
use super::server_health::Vitals;
use crate::body::RequestBody;
use crate::clock::{self, Sweep};
use crate::config::{HealthCheck, UpstreamSettings};

/// The most bytes of a body that are read, so that the server sees no broken connection.
const MAX_BODY_BYTES: usize = 64 << 10;

/// Runs the health checks of all upstreams until it is dropped. Upstreams without checks forget the
/// results of earlier ones.
pub async fn run_health_checks(settings: &[UpstreamSettings], vitals: &Vitals) {
    let sweep = Sweep::new();
    let mut tasks = JoinSet::new();
    tasks.spawn(sweep.clone().run());
    for settings in settings {
        match &settings.health {
            Some(rules) => {
                let upstream = Upstream::new(None, settings, sweep.clone(), vitals);
                tasks.spawn(check_upstream(upstream, rules.clone()));
            }
            None => vitals.forget_checks(&settings.name),
        }
    }
    while let Some(Ok(())) = tasks.join_next().await {}
}

/// Checks each server on its own, so that one that hangs does not hold up the others.
async fn check_upstream(upstream: Arc<Upstream>, rules: HealthCheck) {
    // Not in tasks of their own: after this task has ended, no check may report a result.
    let mut checks = FuturesUnordered::new();
    let mut under_way = HashSet::new();
    loop {
        for server in upstream.current_servers() {
            if under_way.insert(server.number) {
                checks.push(check_and_rest(server, &rules));
            }
        }
        // A name may have other servers meanwhile.
        match timeout(rules.every, checks.next()).await {
            Ok(Some(number)) => _ = under_way.remove(&number),
            Ok(None) => sleep(rules.every).await,
            Err(_) => {}
        }
    }
}

/// Checks a server, and waits until its next check. Returns its number.
async fn check_and_rest(server: Arc<Server>, rules: &HealthCheck) -> u64 {
    let began = clock::now();
    check_server(&server, rules).await;
    // Varies the interval by 10 %, so that several proxies do not check in step.
    let chance = RandomState::new().hash_one(server.number);
    let part = 0.9 + 0.2 * (chance >> 11) as f64 / (1_u64 << 53) as f64;
    let interval = rules.every.mul_f64(part);
    sleep(interval.saturating_sub(clock::now() - began)).await;
    server.number
}

async fn check_server(server: &Arc<Server>, rules: &HealthCheck) {
    let permit = ServerPermit::uncapped(server);
    let mut connection = None;
    let ends = Instant::now() + rules.timeout;
    let asked = timeout_at(ends, request_status(&permit, rules, &mut connection)).await;
    let shared = connection.as_ref().and_then(UpstreamConnection::shared);
    if asked.is_err()
        && let Some(shared) = shared
    {
        // The connection may be dead, and the next check must not depend on it.
        shared.retire();
    }
    let has_head = matches!(asked, Ok(Ok(_)));
    let failure = match asked {
        Ok(Ok(status)) if rules.status.contains(status) => None,
        Ok(Ok(status)) => Some(format!("status {}", status.as_u16())),
        // This machine's problem says nothing about the server.
        Ok(Err(UpstreamError::OutOfSockets(_))) => return,
        Ok(Err(error)) => Some(error.in_full()),
        Err(_) => Some(format!("no answer within {:?}", rules.timeout)),
    };
    server.health.note_check(failure.as_deref(), rules);
    if let Some(connection) = connection.filter(|_| has_head) {
        let _ = timeout_at(ends, discard_body(connection)).await;
    }
}

async fn request_status(
    permit: &ServerPermit,
    rules: &HealthCheck,
    connection: &mut Option<UpstreamConnection>,
) -> Result<StatusCode, UpstreamError> {
    let mut request = Request::new(RequestBody::empty());
    *request.uri_mut() = rules.path.clone().into();
    let headers = request.headers_mut();
    let host = rules.host.as_ref().unwrap_or(&permit.server.host);
    headers.insert(HOST, host.clone());
    headers.insert(ACCEPT, HeaderValue::from_static("*/*"));
    headers.insert(USER_AGENT, HeaderValue::from_static("tidegate-health"));
    let connection = connection.insert(permit.connect(false).await?);
    let mut response = Response::new(());
    let options = ExchangeOptions::default();
    let exchange = connection.exchange(&mut request, &mut response, options);
    exchange.await?;
    Ok(response.status())
}

async fn discard_body(mut connection: UpstreamConnection) {
    let mut left = MAX_BODY_BYTES;
    while !connection.is_end_stream() {
        let Some(Ok(frame)) = poll_fn(|context| connection.poll_frame(context)).await else {
            return;
        };
        let length = frame.data_ref().map_or(0, bytes::Bytes::len);
        let Some(rest) = left.checked_sub(length) else {
            return;
        };
        left = rest;
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::net::{TcpListener, TcpStream};
    use std::time::Duration;

    use tokio::net::UnixStream;

    use super::*;
    use crate::config;
    use crate::upstream::health::Standing;

    #[test]
    fn servers_of_a_name_forget_checks_that_were_removed() {
        let upstreams = |health: &str| {
            let text = format!("[upstream.api]\nservers = [\"http://api.test\"]\n{health}\n");
            let text = format!("{text}[[route]]\npath = \"/*\"\nupstream = \"api\"\nlimits = []\n");
            let (config, _) = config::parse("proxy.toml", &text, &|_| None).unwrap();
            config.upstreams
        };
        let rules = upstreams("health = { path = \"/\" }")[0].health.clone();
        let (rules, unchecked) = (rules.unwrap(), upstreams(""));
        let vitals = Vitals::default();
        let name = &unchecked[0].servers[0].address;
        let one = name.at(([10, 0, 0, 1], 80).into());
        let health = vitals.server(&vitals.upstream("api"), &one);
        while health.standing() != Standing::Down {
            health.note_check(Some("no answer"), &rules);
        }
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build();
        runtime.unwrap().block_on(async {
            let checks = run_health_checks(&unchecked, &vitals);
            let _ = timeout(Duration::from_millis(50), checks).await;
        });
        assert_eq!(health.standing(), Standing::Healthy);
    }

    #[test]
    fn the_head_of_an_answer_decides() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let text = format!(
            "[upstream.api]\nservers = [\"http://127.0.0.1:{port}\"]\n\
             health = {{ path = \"/\", timeout = \"300ms\" }}\n\
             [[route]]\npath = \"/*\"\nupstream = \"api\"\nlimits = []\n"
        );
        let (config, _) = config::parse("proxy.toml", &text, &|_| None).unwrap();
        let settings = &config.upstreams[0];
        let answering = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            // The body never comes.
            let head = b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n";
            stream.write_all(head).unwrap();
            while stream.read(&mut [0; 1024]).is_ok_and(|read| read > 0) {}
        });
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build();
        runtime.unwrap().block_on(async {
            let upstream = Upstream::new(None, settings, Sweep::new(), &Vitals::default());
            let server = &upstream.current_servers()[0];
            check_server(server, settings.health.as_ref().unwrap()).await;
            assert_eq!(server.health.standing(), Standing::Healthy);
        });
        answering.join().unwrap();
    }

    #[test]
    fn a_server_that_hangs_does_not_hold_up_the_checks_of_others() {
        let [hangs, serves] = [(); 2].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
        let text = format!(
            "[upstream.api]\nservers = [\"http://{}\", \"http://{}\"]\n\
             health = {{ path = \"/\", every = \"100ms\", timeout = \"60s\" }}\n\
             [[route]]\npath = \"/*\"\nupstream = \"api\"\nlimits = []\n",
            hangs.local_addr().unwrap(),
            serves.local_addr().unwrap()
        );
        let (config, _) = config::parse("proxy.toml", &text, &|_| None).unwrap();
        let answering = std::thread::spawn(move || {
            for stream in serves.incoming().take(3) {
                let head = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\nconnection: close\r\n\r\n";
                stream.unwrap().write_all(head).unwrap();
            }
        });
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build();
        runtime.unwrap().block_on(async {
            let vitals = Vitals::default();
            let checks = run_health_checks(&config.upstreams, &vitals);
            let answered = tokio::task::spawn_blocking(|| answering.join().unwrap());
            let answered = timeout(Duration::from_secs(20), answered);
            tokio::select! {
                () = checks => unreachable!(),
                answered = answered => answered.unwrap().unwrap(),
            }
        });
    }

    /// The end of the checks and the answer to a check become ready while the runtime rests. The
    /// end runs first. A check that survived it would report its result afterwards.
    #[test]
    fn a_check_that_was_ended_says_nothing_more() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let upstreams = |health: &str| {
            let text =
                format!("[upstream.api]\nservers = [\"http://127.0.0.1:{port}\"]\n{health}\n");
            let text = format!("{text}[[route]]\npath = \"/*\"\nupstream = \"api\"\nlimits = []\n");
            let (config, _) = config::parse("proxy.toml", &text, &|_| None).unwrap();
            config.upstreams
        };
        let checked = upstreams("health = { path = \"/\" }");
        let unchecked = upstreams("");
        let vitals = Vitals::default();
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build();
        runtime.unwrap().block_on(async {
            let upstream = Upstream::new(None, &unchecked[0], Sweep::new(), &vitals);
            let standing = || upstream.current_servers()[0].health.standing();
            let mut checks = Box::pin(run_health_checks(&checked, &vitals));
            // Until the check has come, and has been written.
            listener.set_nonblocking(true).unwrap();
            let (mut asked, mut request) = (None, [0; 1024]);
            let mut asked = loop {
                tokio::select! {
                    () = &mut checks => {}
                    () = sleep(Duration::from_millis(10)) => {}
                }
                asked = asked.or_else(|| Some(listener.accept().ok()?.0));
                let heard = asked.as_ref().map(|mut stream: &TcpStream| {
                    stream.set_nonblocking(true).unwrap();
                    stream.read(&mut request).unwrap_or(0)
                });
                if let (Some(asked), Some(1..)) = (asked.take_if(|_| heard > Some(0)), heard) {
                    break asked;
                }
            };
            let (mut end, ended) = std::os::unix::net::UnixStream::pair().unwrap();
            ended.set_nonblocking(true).unwrap();
            let ended = UnixStream::from_std(ended).unwrap();
            asked
                .write_all(b"HTTP/1.1 500 No\r\ncontent-length: 0\r\n\r\n")
                .unwrap();
            end.write_all(b"x").unwrap();
            ended.readable().await.unwrap();
            assert_eq!(standing(), Standing::Healthy, "the end comes first");
            drop(checks);
            tokio::select! {
                () = run_health_checks(&unchecked, &vitals) => {}
                () = sleep(Duration::from_millis(50)) => {}
            }
            assert_eq!(standing(), Standing::Healthy);
        });
    }
}
