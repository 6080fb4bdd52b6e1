//! What is measured of each.

use super::peer::{ALL as ALL_PEERS, BY_REDIS, CLOSE, LIMITED, PLAIN, Peer, REJECTING};
use crate::upstream::{LARGE, SMALL};

/// A kind of load.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Scenario {
    Many,
    Few,
    Large,
    Post,
    Http2,
    Rejected,
    /// As `Many` and `Rejected`, but each request has bytes of its own.
    Varied,
    RejectedVaried,
    Steady,
    Memory,
}

pub const ALL: [Scenario; 10] = [
    Scenario::Many,
    Scenario::Few,
    Scenario::Large,
    Scenario::Post,
    Scenario::Http2,
    Scenario::Rejected,
    Scenario::Varied,
    Scenario::RejectedVaried,
    Scenario::Steady,
    Scenario::Memory,
];

/// Connections where it is not said otherwise.
pub const MANY: usize = 64;
/// What a client may do where it is let through, and where it is not.
pub const OPEN: Limit = Limit {
    units: 1000,
    seconds: 1,
};
pub const STRICT: Limit = Limit {
    units: 1,
    seconds: 10,
};
/// Clients that take turns.
pub const CLIENTS: usize = 1000;
/// Requests a second where that is fixed.
pub const RATE: u64 = 2000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limit {
    pub units: u64,
    pub seconds: u64,
}

/// How requests come.
#[derive(Clone, Copy, Debug)]
pub enum Load {
    /// Each connection asks as soon as it is answered.
    Closed(Closed),
    /// The same over HTTP/2: connections, and streams on each.
    Multiplexed(usize, usize),
    /// At a fixed rate.
    Paced,
    /// Connections that do nothing.
    Idle,
}

#[derive(Clone, Copy, Debug)]
pub struct Closed {
    pub connections: usize,
    pub path: &'static str,
    /// Bytes of a request's body.
    pub body: usize,
    /// Bytes of an answer's body.
    pub answer: usize,
    /// Whether each request has a path, a query and a request id of its own, from a client drawn at
    /// random. Otherwise a client sends the same bytes each time, and clients take turns.
    pub varied: bool,
}

const SMALL_GET: Closed = Closed {
    connections: MANY,
    path: "/",
    body: 0,
    answer: SMALL,
    varied: false,
};

impl Scenario {
    /// As `--only` says it.
    pub fn id(self) -> &'static str {
        match self {
            Scenario::Many => "c64",
            Scenario::Few => "c8",
            Scenario::Large => "64k",
            Scenario::Post => "post",
            Scenario::Http2 => "http2",
            Scenario::Rejected => "rejected",
            Scenario::Varied => "varied",
            Scenario::RejectedVaried => "rejected-varied",
            Scenario::Steady => "steady",
            Scenario::Memory => "memory",
        }
    }

    pub fn title(self) -> &'static str {
        match self {
            Scenario::Many => "64 connections",
            Scenario::Few => "8 connections",
            Scenario::Large => "64 KiB answers",
            Scenario::Post => "16 KiB POSTs",
            Scenario::Http2 => "HTTP/2",
            Scenario::Rejected => "rejected (429)",
            Scenario::Varied => "varied requests",
            Scenario::RejectedVaried => "rejected, varied",
            Scenario::Steady => "2000 requests/s",
            Scenario::Memory => "memory",
        }
    }

    pub fn peers(self) -> &'static [Peer] {
        match self {
            Scenario::Many | Scenario::Few | Scenario::Varied => &ALL_PEERS,
            Scenario::Steady | Scenario::Memory => &ALL_PEERS,
            Scenario::Large | Scenario::Post | Scenario::Http2 => &PLAIN,
            Scenario::Rejected | Scenario::RejectedVaried => &LIMITED,
        }
    }

    /// Those that are measured more often than all, and how many times as often: where the middle
    /// of three rounds says too little. Redis shares its core with the load, so those that ask it
    /// differ more from round to round; plain proxies, and those that reject by themselves, differ
    /// less from each other than from round to round; and the p99 of a few seconds is mostly about
    /// who waits for a core.
    pub fn oftener(self) -> Option<(&'static [Peer], usize)> {
        match self {
            Scenario::Many | Scenario::Varied => Some((&CLOSE, 2)),
            Scenario::Few => Some((&BY_REDIS, 2)),
            Scenario::Rejected | Scenario::RejectedVaried => Some((&REJECTING, 2)),
            Scenario::Steady => Some((&BY_REDIS, 3)),
            _ => None,
        }
    }

    /// Whether nearly all requests are to be denied.
    pub fn rejects(self) -> bool {
        matches!(self, Scenario::Rejected | Scenario::RejectedVaried)
    }

    pub fn limit(self) -> Limit {
        match self {
            Scenario::Rejected | Scenario::RejectedVaried => STRICT,
            _ => OPEN,
        }
    }

    pub fn load(self) -> Load {
        match self {
            Scenario::Many | Scenario::Rejected => Load::Closed(SMALL_GET),
            Scenario::Varied | Scenario::RejectedVaried => Load::Closed(Closed {
                varied: true,
                ..SMALL_GET
            }),
            Scenario::Few => Load::Closed(Closed {
                connections: 8,
                ..SMALL_GET
            }),
            Scenario::Large => Load::Closed(Closed {
                path: "/64k",
                answer: LARGE,
                ..SMALL_GET
            }),
            Scenario::Post => Load::Closed(Closed {
                body: 16 << 10,
                ..SMALL_GET
            }),
            Scenario::Http2 => Load::Multiplexed(8, 8),
            Scenario::Steady => Load::Paced,
            Scenario::Memory => Load::Idle,
        }
    }
}
