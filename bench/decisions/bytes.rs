//! What a client costs the server in memory, at a full window.

use super::contender::{Ask, Client, Contender};
use super::cost::{field, info};
use super::exactness::BOUNDARY_US;
use crate::support::RedisServer;

/// Long enough that nothing expires meanwhile, short enough for our 8 bytes an entry.
pub const SHORT_US: u64 = 600_000_000;
/// A day; our entries have 10 bytes where the window is longer than half an hour.
pub const DAY_US: u64 = 86_400_000_000;

/// A limit and the length of its window.
#[derive(Clone, Copy, Debug)]
pub struct Window {
    pub units: u64,
    pub window_us: u64,
}

/// Bytes of a key, its places in the server's tables included, whose window holds `units`
/// requests, evenly spread from the middle of one aligned window to the middle of the next. About
/// `requests` are made, for at least twelve keys.
pub fn measure(server: &RedisServer, contender: Contender, window: Window, requests: u64) -> f64 {
    let Window { units, window_us } = window;
    server.run("FLUSHALL");
    let keys = (requests / units).clamp(12, 2048);
    let full = |who, requests| -> Vec<Ask> {
        let start_us = BOUNDARY_US + window_us / 2;
        let ask = |place| {
            let now_us = start_us + place * window_us / units;
            Ask::new(who, units, window_us).at(now_us)
        };
        (0..requests).map(ask).collect()
    };
    let fill = |first: u64, requests| {
        // A connection has buffers, which are not the key's: it goes before bytes are counted.
        let mut client = Client::new(contender, server);
        (first..first + keys).for_each(|who| client.fill(&full(who, requests)));
    };
    // Its histogram of a command is tens of kilobytes, made when the command is first used.
    server.run("CONFIG SET latency-tracking no");
    // As many others first, for what the server allocates once.
    fill(keys, 1);
    let before = used(server);
    fill(0, units);
    let bytes = used(server) - before;
    server.run("CONFIG SET latency-tracking yes");
    bytes / keys as f64
}

/// Bytes in use once no connection but the one that asks is left.
fn used(server: &RedisServer) -> f64 {
    let mut connection = server.connect();
    for _ in 0..1_000 {
        if field(&info(&mut connection, "clients"), "connected_clients:") == Some("1") {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    let memory = info(&mut connection, "memory");
    let bytes = field(&memory, "used_memory:").unwrap();
    bytes.parse().unwrap()
}
