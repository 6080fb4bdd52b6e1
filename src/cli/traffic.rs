//! The clients of `tidegate demo`, so that a dashboard has something to show. Each sends from a
//! loopback address of its own, so they use up no budget of the user's client, which has 127.0.0.1
//! or `::1`.
//!
//! They send about 22 requests a second, for an hour at most, and end with the server.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use http::header::{HOST, RETRY_AFTER, USER_AGENT};
use http::{Method, Request, Response};
use http_body_util::{BodyExt, Empty};
use tokio::net::TcpSocket;
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval, sleep, timeout};

use super::output::say;
use super::send::{RequestSender, open_http1};
use crate::server::{Lifecycle, ServerHandles};
use crate::telemetry::panics::spawn_thread;

/// A client that is denied most of the time.
pub(super) const CRAWLER: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 31);
const POLLER: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 32);
const GUESSER: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 33);
const BATCH: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 34);
/// Visitors keep to ten requests in ten seconds.
const VISITORS: u8 = 12;
const FIRST_VISITOR: u8 = 11;

const MAX_TIME: Duration = Duration::from_secs(3600);
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
/// The pause after a request that got no answer.
const ERROR_PAUSE: Duration = Duration::from_secs(1);
/// The longest wait that a client obeys.
const MAX_WAIT: Duration = Duration::from_secs(60);

#[derive(Clone, Debug)]
struct TrafficClient {
    address: Ipv4Addr,
    agent: &'static str,
    method: Method,
    paths: &'static [&'static str],
    every: Duration,
    /// After a denial it waits as long as `Retry-After` says.
    obeys: bool,
}

fn clients() -> Vec<TrafficClient> {
    let client = |address, agent, paths, every_ms| TrafficClient {
        address,
        agent,
        method: Method::GET,
        paths,
        every: Duration::from_millis(every_ms),
        obeys: false,
    };
    let pages = &["/", "/products", "/products/7", "/search?q=tea", "/cart"];
    let mut clients = vec![
        client(
            CRAWLER,
            "crawler",
            &["/products/1", "/products/2", "/products/3"],
            125,
        ),
        client(POLLER, "poller", &["/api/orders"], 400),
        TrafficClient {
            method: Method::POST,
            ..client(GUESSER, "guesser", &["/login"], 500)
        },
        TrafficClient {
            obeys: true,
            ..client(BATCH, "batch", &["/api/report", "/api/stock"], 200)
        },
    ];
    clients.extend((0..VISITORS).map(|number| {
        let address = Ipv4Addr::new(127, 0, 0, FIRST_VISITOR + number);
        client(address, "visitor", pages, 1250)
    }));
    clients
}

/// Starts the clients on a thread of their own. Returns what they send, in words.
pub(super) fn start(server: &ServerHandles) -> io::Result<String> {
    let server = server.clone();
    let target = target(&server).ok_or_else(|| {
        io::Error::other("`listen` has no plain IPv4 address that the clients could reach")
    })?;
    let clients = clients();
    for client in &clients {
        // Other systems than Linux have only 127.0.0.1.
        std::net::TcpListener::bind((client.address, 0)).map_err(|error| {
            io::Error::new(
                error.kind(),
                format!("no address {}: {error}", client.address),
            )
        })?;
    }
    // The client that obeys waits most of the time.
    let steady = clients.iter().filter(|client| !client.obeys);
    let rate: f64 = steady.map(|client| 1.0 / client.every.as_secs_f64()).sum();
    let count = clients.len();
    spawn_thread("traffic", move || run(clients, server))?;
    Ok(format!(
        "{count} clients, about {rate:.0} requests/s to http://{target}"
    ))
}

async fn run(clients: Vec<TrafficClient>, server: ServerHandles) {
    let mut tasks = JoinSet::new();
    for (index, client) in (0..).zip(clients) {
        let server = server.clone();
        tasks.spawn(async move {
            // Not all at the same instant.
            sleep(client.every * index / 16).await;
            client.run(&server).await;
        });
    }
    let mut shutdown = server.shutdown.clone();
    tokio::select! {
        _ = shutdown.wait_for(|lifecycle| *lifecycle != Lifecycle::Serve) => {}
        () = sleep(MAX_TIME) => say("traffic    ended after an hour: start the demo again"),
    }
}

/// The address where clients of IPv4 reach the server. A reload may change it.
fn target(server: &ServerHandles) -> Option<SocketAddr> {
    let address = server.listeners.plain_address()?;
    let ip = match address.ip() {
        ip if ip.is_unspecified() => IpAddr::from(Ipv4Addr::LOCALHOST),
        ip => ip,
    };
    ip.is_ipv4().then(|| SocketAddr::new(ip, address.port()))
}

impl TrafficClient {
    async fn run(&self, server: &ServerHandles) {
        let mut ticks = interval(self.every);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut connection = None;
        for path in self.paths.iter().cycle() {
            ticks.tick().await;
            let sent = timeout(ANSWER_TIMEOUT, self.send(&mut connection, path, server)).await;
            match sent {
                Ok(Ok(answer)) if self.obeys => sleep(wait_of(&answer)).await,
                Ok(Ok(_)) => {}
                // A reload may have closed the address.
                _ => {
                    connection = None;
                    sleep(ERROR_PAUSE).await;
                }
            }
        }
    }

    async fn send(
        &self,
        connection: &mut Option<RequestSender>,
        path: &str,
        server: &ServerHandles,
    ) -> io::Result<Response<()>> {
        let target = target(server).ok_or(io::ErrorKind::AddrNotAvailable)?;
        let mut open = match connection.take() {
            Some(open) if open.is_ready() => open,
            _ => {
                let socket = TcpSocket::new_v4()?;
                socket.bind((self.address, 0).into())?;
                open_http1(socket.connect(target).await?).await?
            }
        };
        let request = Request::builder()
            .method(&self.method)
            .uri(path)
            .header(HOST, "localhost")
            .header(USER_AGENT, format!("tidegate-demo {}", self.agent))
            .header("x-api-key", format!("demo-{}-{}", self.agent, self.address))
            .body(Empty::new())
            .map_err(io::Error::other)?;
        let answer = open.send_request(request).await.map_err(io::Error::other)?;
        let (head, body) = answer.into_parts();
        body.collect().await.map_err(io::Error::other)?;
        *connection = Some(open);
        Ok(Response::from_parts(head, ()))
    }
}

fn wait_of(answer: &Response<()>) -> Duration {
    let seconds = answer.headers().get(RETRY_AFTER);
    let seconds = seconds.and_then(|value| value.to_str().ok()?.parse().ok());
    Duration::from_secs(seconds.unwrap_or_default()).min(MAX_WAIT)
}
