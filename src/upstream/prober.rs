//! Asks servers from time to time whether they are well: once for a whole process, on a thread of
//! its own, over a connection as a request would have it.
//!
//! What it finds out is in the servers' [`Vital`](super::vitals::Vital)s, where workers see it. It
//! must never ask one server twice at once, nor wait longer than a check's timeout.

use std::fmt;
use std::future::poll_fn;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use http::header::{ACCEPT, HOST, USER_AGENT};
use http::{HeaderValue, Request, Response, StatusCode};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use super::connection::Connection;
use super::error::{Failure, UpstreamError};
use super::health::Sent;
use super::permit::ServerPermit;
use super::pool::Upstream;
use super::server::Server;
use super::vitals::Vitals;
use crate::body::RequestBody;
use crate::clock::{self, Sweep};
use crate::config::{HealthCheck, UpstreamSettings};

/// Bytes of an answer's body that are read, so that its server does not see a broken connection.
const MAX_BODY_BYTES: usize = 64 << 10;

/// Why a check failed.
#[derive(Debug)]
enum Unwell {
    /// It answered so.
    Status(StatusCode),
    /// It did not answer within the check's timeout.
    Late(Duration),
    /// There was no answer.
    Failed(UpstreamError),
}

impl fmt::Display for Unwell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Unwell::Status(status) => write!(f, "status {}", status.as_u16()),
            Unwell::Late(within) => write!(f, "no answer within {within:?}"),
            Unwell::Failed(error) => f.write_str(&error.in_full()),
        }
    }
}

/// Checks the servers of every upstream that is to be checked, until it is dropped. What earlier
/// checks said of the others is forgotten.
pub async fn check(settings: &[UpstreamSettings], vitals: &Vitals) {
    let sweep = Sweep::new();
    let mut tasks = JoinSet::new();
    tasks.spawn(sweep.clone().run());
    for settings in settings {
        let upstream = Upstream::new(settings, sweep.clone(), vitals);
        match &settings.health {
            Some(rules) => {
                tasks.spawn(watch_over(upstream, rules.clone()));
            }
            None => {
                for server in &upstream.choice().servers {
                    server.vital.watch.unchecked();
                }
            }
        }
    }
    // Servers that nobody checks any more would stay as they are for ever.
    while let Some(Ok(())) = tasks.join_next().await {}
}

/// Checks the servers of one upstream, all of them in each round.
async fn watch_over(upstream: Upstream, rules: HealthCheck) {
    let chance = RandomState::new();
    for round in 0_u64.. {
        let began = clock::now();
        // Within this task: one that is ended with it must not say anything afterwards, when nobody
        // may be left to say otherwise.
        let servers = upstream.choice().servers.clone();
        join_all(servers.iter().map(|server| check_one(server, &rules))).await;
        // A little more or less, so that several proxies do not ask at the same moment for ever.
        let part = 0.9 + 0.2 * (chance.hash_one(round) >> 11) as f64 / (1_u64 << 53) as f64;
        sleep(
            rules
                .every
                .mul_f64(part)
                .saturating_sub(clock::now() - began),
        )
        .await;
    }
}

async fn check_one(server: &Arc<Server>, rules: &HealthCheck) {
    let asked = timeout(rules.timeout, ask(server, rules)).await;
    let unwell = match asked {
        Ok(Ok(status)) if rules.status.contains(status) => None,
        Ok(Ok(status)) => Some(Unwell::Status(status)),
        // Which says nothing of the server.
        Ok(Err(UpstreamError::OutOfSockets(_))) => return,
        Ok(Err(error)) => Some(Unwell::Failed(error)),
        Err(_) => Some(Unwell::Late(rules.timeout)),
    };
    let failure = unwell.as_ref().map(|unwell| unwell as &dyn fmt::Display);
    server.vital.watch.checked(failure, rules);
}

/// The status of the answer to one check.
async fn ask(server: &Arc<Server>, rules: &HealthCheck) -> Result<StatusCode, UpstreamError> {
    let permit = ServerPermit::beside(server, Sent::InOrder);
    let mut request = Request::new(RequestBody::empty());
    *request.uri_mut() = rules.path.clone().into();
    let headers = request.headers_mut();
    let host = rules.host.as_ref().unwrap_or(permit.host());
    headers.insert(HOST, host.clone());
    headers.insert(ACCEPT, HeaderValue::from_static("*/*"));
    headers.insert(USER_AGENT, HeaderValue::from_static("tidegate-health"));
    let mut connection = permit.connect(false).await?;
    let mut answer = Response::new(());
    let with = (None, false, false);
    match connection.exchange(&mut request, &mut answer, with).await {
        Ok(()) => {
            take_some(connection).await;
            Ok(answer.status())
        }
        Err(Failure::Sent(error) | Failure::Unsent(error)) => Err(error),
    }
}

/// Reads a body to its end, or as much of it as is read at most.
async fn take_some(mut content: Connection) {
    let mut left = MAX_BODY_BYTES;
    while !content.is_end_stream() {
        let Some(Ok(frame)) = poll_fn(|context| content.poll_frame(context)).await else {
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

    use tokio::net::UnixStream;

    use super::*;
    use crate::config;
    use crate::upstream::health::Standing;

    /// Both become ready while the runtime rests, so that the end comes first of what runs then,
    /// and the answer to a check is taken up after it, if anybody is left to take it up.
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
            let upstream = Upstream::new(&unchecked[0], Sweep::new(), &vitals);
            let standing = || upstream.choice().servers[0].vital.watch.standing();
            let mut checks = Box::pin(check(&checked, &vitals));
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
            assert_eq!(standing(), Standing::InOrder, "the end comes first");
            drop(checks);
            tokio::select! {
                () = check(&unchecked, &vitals) => {}
                () = sleep(Duration::from_millis(50)) => {}
            }
            assert_eq!(standing(), Standing::InOrder);
        });
    }
}
