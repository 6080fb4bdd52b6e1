//! How long one message takes to an echo and back, and what it costs the proxy.

use std::future::Future;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::Request;
use http_body::Frame;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::Plan;
use super::backend::Backend;
use super::proxies::{Proxy, say};

/// Messages under way at once.
const AT_ONCE: [usize; 2] = [1, 16];
/// Bytes in a message, as a gRPC frame and as a WebSocket's.
const MESSAGE: usize = 100;

/// Unary calls and messages of a bidirectional stream.
pub async fn grpc(plan: Plan, backend: &Backend, proxies: &[Proxy]) {
    let places = places(("direct", backend.h2), proxies, |proxy| proxy.h2);
    for at_once in AT_ONCE {
        compare("gRPC unary", (plan, at_once), &places, unary).await;
    }
    for at_once in AT_ONCE {
        compare("gRPC stream", (plan, at_once), &places, stream).await;
    }
}

/// Messages of WebSockets.
pub async fn websocket(plan: Plan, backend: &Backend, proxies: &[Proxy]) {
    let places = places(("direct", backend.plain), proxies, |proxy| proxy.plain);
    for at_once in AT_ONCE {
        compare("WebSocket", (plan, at_once), &places, socket).await;
    }
}

/// Somewhere messages can be sent.
struct Place<'p> {
    name: &'static str,
    address: SocketAddr,
    proxy: Option<&'p Proxy>,
}

fn places<'p>(
    (name, address): (&'static str, SocketAddr),
    proxies: &'p [Proxy],
    of: fn(&Proxy) -> SocketAddr,
) -> Vec<Place<'p>> {
    let direct = Place {
        name,
        address,
        proxy: None,
    };
    let others = proxies.iter().map(|proxy| Place {
        name: proxy.name,
        address: of(proxy),
        proxy: Some(proxy),
    });
    [direct].into_iter().chain(others).collect()
}

/// What one run found: round trips in microseconds, sorted, and CPU time of the proxy for each.
struct Run {
    waits: Vec<u32>,
    cpu_us: f64,
}

async fn compare<F: Future<Output = Vec<u32>> + Send + 'static>(
    what: &str,
    (plan, at_once): (Plan, usize),
    places: &[Place<'_>],
    talk: fn(SocketAddr, Instant) -> F,
) {
    let mut runs: Vec<Vec<Run>> = places.iter().map(|_| Vec::new()).collect();
    for _ in 0..plan.rounds {
        for (place, runs) in places.iter().zip(&mut runs) {
            runs.push(run(place, at_once, plan.each, talk).await);
        }
    }
    say(&format!(
        "\n{what}, {at_once} at once (medians of {} runs)",
        plan.rounds
    ));
    say("                 p50 us   p99 us   round trips/s   CPU us/round trip");
    for (place, runs) in places.iter().zip(&runs) {
        let median = |of: &dyn Fn(&Run) -> f64| {
            let mut all: Vec<f64> = runs.iter().map(of).collect();
            all.sort_by(f64::total_cmp);
            all[all.len() / 2]
        };
        let at = |run: &Run, share: f64| {
            f64::from(run.waits[((run.waits.len() - 1) as f64 * share) as usize])
        };
        say(&format!(
            "{:<14} {:>8.0} {:>8.0} {:>15.0} {:>19.1}",
            place.name,
            median(&|run| at(run, 0.5)),
            median(&|run| at(run, 0.99)),
            median(&|run| run.waits.len() as f64 / plan.each.as_secs_f64()),
            median(&|run| run.cpu_us),
        ));
    }
}

async fn run<F: Future<Output = Vec<u32>> + Send + 'static>(
    place: &Place<'_>,
    at_once: usize,
    each: Duration,
    talk: fn(SocketAddr, Instant) -> F,
) -> Run {
    let before = place.proxy.map_or(0.0, Proxy::cpu_us);
    let until = Instant::now() + each;
    let talks: Vec<_> = (0..at_once)
        .map(|_| tokio::spawn(talk(place.address, until)))
        .collect();
    let mut waits = Vec::new();
    for talk in talks {
        waits.extend(talk.await.unwrap());
    }
    waits.sort_unstable();
    let spent = place.proxy.map_or(0.0, Proxy::cpu_us) - before;
    let cpu_us = spent / waits.len() as f64;
    Run { waits, cpu_us }
}

fn message() -> Bytes {
    let mut bytes = vec![0; 5 + MESSAGE];
    bytes[4] = MESSAGE as u8;
    Bytes::from(bytes)
}

async fn connect(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).await.unwrap();
    stream.set_nodelay(true).unwrap();
    stream
}

fn call<B>(address: SocketAddr, body: B) -> Request<B> {
    Request::post(format!("http://{address}/echo.Echo/Echo"))
        .header("content-type", "application/grpc")
        .header("te", "trailers")
        .body(body)
        .unwrap()
}

async fn unary(address: SocketAddr, until: Instant) -> Vec<u32> {
    let io = TokioIo::new(connect(address).await);
    let (mut sender, connection) = http2::handshake(TokioExecutor::new(), io).await.unwrap();
    tokio::spawn(connection);
    let mut waits = Vec::new();
    while Instant::now() < until {
        let start = Instant::now();
        let request = call(address, Full::new(message()));
        let response = sender.send_request(request).await.unwrap();
        assert_eq!(response.status(), 200);
        let body = response.into_body().collect().await.unwrap();
        assert_eq!(body.trailers().unwrap()["grpc-status"], "0");
        assert_eq!(body.to_bytes().len(), 5 + MESSAGE);
        waits.push(start.elapsed().as_micros() as u32);
    }
    waits
}

async fn stream(address: SocketAddr, until: Instant) -> Vec<u32> {
    let io = TokioIo::new(connect(address).await);
    let (mut sender, connection) = http2::handshake(TokioExecutor::new(), io).await.unwrap();
    tokio::spawn(connection);
    let (say, mut said) = tokio::sync::mpsc::channel::<Bytes>(1);
    let frames = futures_util::stream::poll_fn(move |context| {
        said.poll_recv(context)
            .map(|bytes| bytes.map(|bytes| Ok::<_, hyper::Error>(Frame::data(bytes))))
    });
    say.send(message()).await.unwrap();
    let request = call(address, StreamBody::new(frames));
    let mut body = sender.send_request(request).await.unwrap().into_body();
    let mut waits = Vec::new();
    let mut start = Instant::now();
    loop {
        let mut left = 5 + MESSAGE;
        while left > 0 {
            let frame = body.frame().await.unwrap().unwrap();
            left -= frame.data_ref().unwrap().len();
        }
        waits.push(start.elapsed().as_micros() as u32);
        if Instant::now() >= until {
            drop(say);
            let trailers = body.collect().await.unwrap();
            assert_eq!(trailers.trailers().unwrap()["grpc-status"], "0");
            return waits;
        }
        start = Instant::now();
        say.send(message()).await.unwrap();
    }
}

async fn socket(address: SocketAddr, until: Instant) -> Vec<u32> {
    let mut stream = connect(address).await;
    let head = "GET /socket HTTP/1.1\r\nhost: bench\r\nconnection: upgrade\r\n\
                upgrade: websocket\r\nsec-websocket-version: 13\r\n\
                sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n";
    stream.write_all(head.as_bytes()).await.unwrap();
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.unwrap());
    }
    assert!(head.starts_with(b"HTTP/1.1 101"));
    // A masked frame of binary data; its echo is taken as it is.
    let mut frame = vec![0x82, 0x80 | MESSAGE as u8, 1, 2, 3, 4];
    frame.resize(6 + MESSAGE, 0x55);
    let mut echo = vec![0; frame.len()];
    let mut waits = Vec::new();
    while Instant::now() < until {
        let start = Instant::now();
        stream.write_all(&frame).await.unwrap();
        stream.read_exact(&mut echo).await.unwrap();
        waits.push(start.elapsed().as_micros() as u32);
    }
    assert_eq!(echo, frame);
    waits
}
