//! The decision benchmark: the articles' limiters beside ours, on a redis-server of its own.

pub mod articles;
pub mod bytes;
pub mod contender;
pub mod cost;
pub mod exactness;
pub mod honesty;
pub mod ours;
pub mod table;

use bytes::Window;
use contender::{ALL, Contender};
use cost::{Cost, Effort, Flight, Load};
use exactness::Exactness;
use honesty::Honesty;

use crate::support::RedisServer;

/// How much is measured.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// For how long clients at once try, seconds.
    pub at_once: u64,
    /// Whether that is tried with every contender, or with our log alone.
    pub at_once_all: bool,
    pub effort: Effort,
    pub waits: u64,
    pub limits: &'static [u64],
    /// Requests for one figure of memory, about.
    pub requests: u64,
}

impl Plan {
    fn bytes(&self, server: &RedisServer, contender: Contender, window_us: u64) -> Vec<f64> {
        let bytes = |units: &u64| {
            let window = Window {
                units: *units,
                window_us,
            };
            bytes::measure(server, contender, window, self.requests)
        };
        self.limits.iter().map(bytes).collect()
    }
}

/// For figures: under three minutes.
pub const FULL: Plan = Plan {
    at_once: 5,
    at_once_all: true,
    effort: Effort {
        before_us: 1_050_000,
        repeats: 5,
        repeat_us: 300_000,
        denials: 10_000,
    },
    waits: 300,
    limits: &[10, 100, 1_000, 10_000],
    requests: 30_000,
};

/// For seeing that it runs: a few seconds.
pub const QUICK: Plan = Plan {
    at_once: 2,
    at_once_all: false,
    effort: Effort {
        before_us: 0,
        repeats: 1,
        repeat_us: 20_000,
        denials: 64,
    },
    waits: 20,
    limits: &[10, 100],
    requests: 1_000,
};

/// What was measured of one contender.
#[derive(Debug)]
pub struct Findings {
    pub contender: Contender,
    pub exactness: Exactness,
    pub allowed: Cost,
    pub denied: Cost,
    /// For each limit of the plan: bytes of a key.
    pub bytes: Vec<f64>,
    pub honesty: Honesty,
}

/// Everything, of one contender.
pub fn measure(server: &RedisServer, contender: Contender, plan: &Plan) -> Findings {
    let tried = plan.at_once_all || contender == Contender::Log;
    let load = Load::of(contender);
    Findings {
        contender,
        exactness: exactness::measure(server, contender, if tried { plan.at_once } else { 0 }),
        allowed: cost::allowed(server, contender, load, plan.effort),
        denied: cost::denied(server, contender, load, plan.effort),
        bytes: plan.bytes(server, contender, bytes::SHORT_US),
        honesty: honesty::measure(server, contender, plan.waits),
    }
}

/// Everything, of all of them.
pub fn measure_all(server: &RedisServer, plan: &Plan) -> Vec<Findings> {
    ALL.iter()
        .map(|contender| measure(server, *contender, plan))
        .collect()
}

/// What our log costs beyond what all are measured by.
#[derive(Debug)]
pub struct Own {
    pub ways: Vec<Way>,
    /// For each limit of the plan: bytes of a key whose window is a day.
    pub day_bytes: Vec<f64>,
}

/// One way of asking, and what a decision costs.
#[derive(Debug)]
pub struct Way {
    pub name: &'static str,
    /// Allowed and denied, with one limit and with four.
    pub costs: [(Cost, Cost); 2],
}

/// What our log costs beyond what all are measured by.
pub fn own(server: &RedisServer, plan: &Plan) -> Own {
    Own {
        ways: ways(server, plan),
        day_bytes: plan.bytes(server, Contender::Log, bytes::DAY_US),
    }
}

fn ways(server: &RedisServer, plan: &Plan) -> Vec<Way> {
    let ways = [
        ("one call in flight", Flight::Lone, 5, 1_000),
        ("16 calls in flight", Flight::Pipelined, 10, 1_000),
        ("one call of 16, 16 keys", Flight::Together, 16, 1_000),
        ("one call of 16, one hot key", Flight::Together, 1, 16_000),
    ];
    ways.map(|(name, flight, keys, rate)| {
        let costs = [1, 4].map(|limits| {
            let load = Load {
                flight,
                keys,
                limits,
                rate,
            };
            let allowed = cost::allowed(server, Contender::Log, load, plan.effort);
            let denied = cost::denied(server, Contender::Log, load, plan.effort);
            (allowed, denied)
        });
        Way { name, costs }
    })
    .into()
}
