//! What passes through the proxy for longer than a request: gRPC calls and WebSocket messages
//! beside nginx, a gibibyte in each direction, and a crowd of idle and slow connections.
//!
//! `make bench-streams` builds and runs it; nginx is left out where it is not installed. With
//! `-- --quick` it takes seconds, and its figures are worth little. Words after it choose parts:
//! `grpc`, `websocket`, `bulk`, `crowd`.

mod backend;
mod bulk;
mod crowd;
mod proxies;
mod round_trips;

use std::time::Duration;

use crate::stage::Stage;
use proxies::Proxy;

/// How much is measured.
#[derive(Clone, Copy)]
pub struct Plan {
    rounds: usize,
    each: Duration,
    bulk_bytes: u64,
    idle: usize,
    slow: usize,
}

const FULL: Plan = Plan {
    rounds: 5,
    each: Duration::from_secs(3),
    bulk_bytes: 1 << 30,
    idle: 10_000,
    slow: 1000,
};
const QUICK: Plan = Plan {
    rounds: 1,
    each: Duration::from_millis(500),
    bulk_bytes: 64 << 20,
    idle: 500,
    slow: 100,
};

/// Measures the parts that are named, or all.
pub fn run(words: &[String]) {
    let plan = match words.iter().any(|word| word == "--quick") {
        true => QUICK,
        false => FULL,
    };
    let parts: Vec<&str> = words
        .iter()
        .map(String::as_str)
        .filter(|word| !word.starts_with("--"))
        .collect();
    let wants = |part: &str| parts.is_empty() || parts.contains(&part);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap();
    let _entered = runtime.enter();
    let backend = runtime.block_on(backend::start());
    let stage = Stage::new();
    let mut proxies = vec![Proxy::tidegate(&stage, &backend)];
    proxies.extend(Proxy::nginx(&stage, &backend));
    runtime.block_on(async {
        if wants("grpc") {
            round_trips::grpc(plan, &backend, &proxies).await;
        }
        if wants("websocket") {
            round_trips::websocket(plan, &backend, &proxies).await;
        }
        if wants("bulk") {
            bulk::both_ways(plan, &proxies).await;
        }
        if wants("crowd") {
            crowd::gather(plan, &proxies).await;
        }
    });
}
