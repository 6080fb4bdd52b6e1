//! Tables of what a running proxy has, for `status` and `top`.
//!
//! Pure.

use super::figures::{count, latency, share, span};
use super::ink::{Cell, Line, Tone, table};
use super::seen::{Limit, Server};

fn plain(text: impl Into<String>) -> Cell {
    (Tone::Plain, text.into())
}

/// What is above nothing stands out.
fn above_zero(tone: Tone, number: u64) -> Cell {
    match number {
        0 => plain("0"),
        many => (tone, count(many)),
    }
}

/// The upstream servers.
pub(super) fn servers(servers: &[Server], now: f64) -> Vec<Line> {
    let row = |server: &Server| {
        let state = match (server.ejected_until, server.state.as_str()) {
            (Some(until), _) if until > now => {
                (Tone::Bad, format!("out for {}", span((until - now).ceil())))
            }
            (_, "up") => (Tone::Good, "up".to_owned()),
            (_, "ejected") => (Tone::Bad, "out".to_owned()),
            (_, state) => (Tone::Bad, state.to_owned()),
        };
        vec![
            // One that was never named is called by its only server.
            plain(match server.upstream == server.server {
                true => "-",
                false => &server.upstream,
            }),
            plain(&server.server),
            state,
            plain(count(server.in_flight)),
            plain(count(server.idle)),
            plain(server.latency.map_or_else(|| "-".to_owned(), latency)),
            plain(count(server.requests)),
            above_zero(Tone::Warn, server.failures),
        ]
    };
    let head = [
        "UPSTREAM",
        "SERVER",
        "STATE",
        ">BUSY",
        ">IDLE",
        ">LATENCY",
        ">REQUESTS",
        ">FAILED",
    ];
    table(&head, &servers.iter().map(row).collect::<Vec<_>>())
}

/// The limits, in the order given.
pub(super) fn limits<'l>(limits: impl Iterator<Item = &'l Limit>) -> Vec<Line> {
    let row = |limit: &Limit| {
        let headroom = match limit.headroom {
            None => plain("-"),
            Some(left) if left < 0.05 => (Tone::Bad, share(left)),
            Some(left) if left < 0.25 => (Tone::Warn, share(left)),
            Some(left) => plain(share(left)),
        };
        vec![
            plain(&limit.name),
            plain(&limit.rate),
            plain(&limit.key),
            plain(if limit.shadow { "shadow" } else { "" }),
            plain(count(limit.allowed_per_second as u64)),
            above_zero(Tone::Warn, limit.denied_per_second as u64),
            headroom,
            plain(count(limit.denied)),
        ]
    };
    let head = [
        "LIMIT",
        "RATE",
        "KEY",
        "",
        ">ALLOWED/S",
        ">DENIED/S",
        ">HEADROOM",
        ">DENIED",
    ];
    table(&head, &limits.map(row).collect::<Vec<_>>())
}
