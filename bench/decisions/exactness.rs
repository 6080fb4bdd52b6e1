//! How full a window gets: under clients at once, at a boundary, in one instant; and what a client
//! gets that tries too often.

use std::time::Duration;

use super::contender::{Ask, Client, Contender, clock_us};
use crate::support::RedisServer;

const LIMIT: u64 = 100;
const CLIENTS: usize = 8;
const MINUTE_US: u64 = 60_000_000;
/// A boundary of every aligned window used here, us since the Unix epoch.
pub const BOUNDARY_US: u64 = 1_700_006_400_000_000;

#[derive(Clone, Copy, Debug)]
pub struct Exactness {
    /// The fullest window under eight clients at once, percent of the limit; if it was tried.
    pub at_once: Option<f64>,
    /// The same, by a client that begins to try shortly before a boundary.
    pub boundary: f64,
    /// How many of 300 requests of one instant passed, percent of the limit.
    pub instant: f64,
    /// What a client gets that always tries at twice the limit, percent of the limit.
    pub persistent: f64,
}

/// Measures one contender, for `seconds` under clients at once; not at all if that is 0.
pub fn measure(server: &RedisServer, contender: Contender, seconds: u64) -> Exactness {
    Exactness {
        at_once: (seconds > 0).then(|| at_once(server, contender, seconds)),
        boundary: boundary(server, contender),
        instant: instant(server, contender),
        persistent: persistent(server, contender),
    }
}

/// Eight connections, one key, as fast as they can, from shortly after a boundary on, so that
/// only what they do to each other shows. What counts as one window is certain: an admission is
/// known to lie between two readings of the server's clock, and all of a window's must be inside.
fn at_once(server: &RedisServer, contender: Contender, seconds: u64) -> f64 {
    server.run("FLUSHALL");
    let second_us = 1_000_000;
    let ready_us = clock_us() + 200_000;
    let start_us = (ready_us / second_us + 1) * second_us + 20_000;
    let one_client = || {
        let mut client = Client::new(contender, server);
        let ask = Ask::new(1, LIMIT, second_us);
        std::thread::sleep(Duration::from_micros(start_us.saturating_sub(clock_us())));
        let mut admitted = Vec::new();
        while clock_us() < start_us + seconds * second_us {
            let (answer, between) = client.timed(&ask);
            if answer.allowed {
                admitted.push(between);
            }
        }
        admitted
    };
    let admitted = std::thread::scope(|scope| {
        let clients: Vec<_> = (0..CLIENTS).map(|_| scope.spawn(one_client)).collect();
        let admitted = clients.into_iter().map(|client| client.join().unwrap());
        admitted.flatten().collect()
    });
    percent(fullest(admitted, second_us))
}

/// The most admissions that lie for certain within less than a window.
fn fullest(mut admitted: Vec<(u64, u64)>, window_us: u64) -> u64 {
    admitted.sort_unstable();
    let within = |place: usize| {
        let (first_us, _) = admitted[place];
        let later = admitted[place..]
            .iter()
            .take_while(|(before_us, _)| *before_us < first_us + window_us);
        later
            .filter(|(_, after_us)| *after_us < first_us + window_us)
            .count()
    };
    (0..admitted.len()).map(within).max().unwrap_or(0) as u64
}

/// A client that tries as often as it is let through, and else 200 times a window. It
/// begins shortly before a boundary of aligned windows. No two tries share a millisecond.
fn boundary(server: &RedisServer, contender: Contender) -> f64 {
    server.run("FLUSHALL");
    let mut client = Client::new(contender, server);
    let ask = Ask::new(1, LIMIT, MINUTE_US);
    let mut now_us = BOUNDARY_US - (LIMIT + 50) * 1_000;
    let mut admitted = Vec::new();
    while now_us < BOUNDARY_US + 2 * MINUTE_US {
        let allowed = client.one(&ask.at(now_us)).allowed;
        if allowed {
            admitted.push((now_us, now_us));
        }
        now_us += if allowed { 1_000 } else { MINUTE_US / 200 };
    }
    percent(fullest(admitted, MINUTE_US))
}

fn instant(server: &RedisServer, contender: Contender) -> f64 {
    server.run("FLUSHALL");
    let mut client = Client::new(contender, server);
    let ask = Ask::new(1, LIMIT, MINUTE_US).at(BOUNDARY_US + 30_000_000);
    let tries = (0..300).map(|_| client.one(&ask).allowed);
    percent(tries.filter(|allowed| *allowed).count() as u64)
}

/// Four windows of tries at twice the limit, evenly spaced; the first window is not counted.
fn persistent(server: &RedisServer, contender: Contender) -> f64 {
    server.run("FLUSHALL");
    let mut client = Client::new(contender, server);
    let ask = Ask::new(1, LIMIT, MINUTE_US);
    let mut admitted = 0;
    for try_ in 0..2 * LIMIT * 4 {
        let now_us = BOUNDARY_US + try_ * MINUTE_US / (2 * LIMIT);
        let allowed = client.one(&ask.at(now_us)).allowed;
        admitted += u64::from(allowed && now_us >= BOUNDARY_US + MINUTE_US);
    }
    percent(admitted) / 3.0
}

fn percent(units: u64) -> f64 {
    units as f64 * 100.0 / LIMIT as f64
}
