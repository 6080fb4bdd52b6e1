//! A very large body in each direction: how much memory the proxy has while it passes.

use std::time::{Duration, Instant};

use bytes::Bytes;
use http::Request;
use http_body_util::{BodyExt, Empty, combinators::BoxBody};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;

use super::Plan;
use super::backend::Answer;
use super::proxies::{Proxy, say};

/// How often memory is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// Down, then up.
pub async fn both_ways(plan: Plan, proxies: &[Proxy]) {
    let mib = plan.bulk_bytes >> 20;
    say(&format!("\nOne body of {mib} MiB"));
    say("                 way   MiB/s   RSS before, most, after (MiB)   CPU s/GiB");
    for proxy in proxies {
        for up in [false, true] {
            one(plan.bulk_bytes, proxy, up).await;
        }
    }
}

async fn one(bytes: u64, proxy: &Proxy, up: bool) {
    let stream = TcpStream::connect(proxy.plain).await.unwrap();
    let io = TokioIo::new(stream);
    let (mut sender, connection) = http1::handshake::<_, BoxBody<Bytes, hyper::Error>>(io)
        .await
        .unwrap();
    tokio::spawn(connection);
    let before = proxy.resident_kib();
    let (spent, start) = (proxy.cpu_us(), Instant::now());
    let request = match up {
        true => Request::post("/upload").body(Answer::Bytes(bytes).boxed()),
        false => Request::get(format!("/bytes/{bytes}"))
            .body(Empty::new().map_err(|never| match never {}).boxed()),
    };
    let request = request.unwrap();
    let request = {
        let (mut parts, body) = request.into_parts();
        parts.headers.insert("host", "bench".parse().unwrap());
        Request::from_parts(parts, body)
    };
    let mut most = before;
    let mut look = tokio::time::interval(LOOK_EVERY);
    let passing = async {
        let response = sender.send_request(request).await.unwrap();
        assert_eq!(response.status(), 200);
        let counted = response.headers().get("x-counted").cloned();
        let mut body = response.into_body();
        let mut came = 0;
        while let Some(frame) = body.frame().await {
            came += frame.unwrap().data_ref().map_or(0, Bytes::len) as u64;
        }
        match up {
            true => assert_eq!(counted.unwrap().to_str().unwrap(), bytes.to_string()),
            false => assert_eq!(came, bytes),
        }
    };
    tokio::pin!(passing);
    loop {
        tokio::select! {
            () = &mut passing => break,
            _ = look.tick() => most = most.max(proxy.resident_kib()),
        }
    }
    let took = start.elapsed().as_secs_f64();
    let mib = |kib: u64| kib as f64 / 1024.0;
    say(&format!(
        "{:<16} {:>4} {:>7.0}   {:>6.1} {:>6.1} {:>6.1} {:>23.2}",
        proxy.name,
        if up { "up" } else { "down" },
        bytes as f64 / took / f64::from(1 << 20),
        mib(before),
        mib(most),
        mib(proxy.resident_kib()),
        (proxy.cpu_us() - spent) / 1e6 * f64::from(1 << 30) / bytes as f64,
    ));
}
