//! Whether a named wait is true: denied until then, allowed at it.

use super::contender::{Ask, Client, Contender, Wait};
use super::exactness::BOUNDARY_US;
use crate::support::{Chance, RedisServer};

const LIMIT: u64 = 10;
const MINUTE_US: u64 = 60_000_000;

/// What the waits of one contender are worth; `None` where it names none.
#[derive(Clone, Copy, Debug)]
pub struct Honesty {
    pub ones: Option<Waits>,
    pub mixed: Option<Waits>,
    /// What it says to a cost above the limit, which can never pass.
    pub above: Wait,
}

#[derive(Clone, Copy, Debug, Default)]
pub struct Waits {
    pub denials: u64,
    /// Waits at whose end the request passes, and one unit of the named wait before does not.
    pub honest: u64,
    /// By how much the request came too early that waited as told, at worst, us.
    pub worst_us: u64,
}

pub fn measure(server: &RedisServer, contender: Contender, denials: u64) -> Honesty {
    let named = contender.wait_unit_us().is_some();
    server.run("FLUSHALL");
    let above = Ask {
        cost: LIMIT + 1,
        ..Ask::new(1, LIMIT, MINUTE_US).at(BOUNDARY_US)
    };
    let above = match named {
        true => Client::new(contender, server).one(&above).wait,
        false => Wait::Unnamed,
    };
    Honesty {
        ones: named.then(|| trace(server, contender, 1, denials)),
        mixed: named.then(|| trace(server, contender, 5, denials)),
        above,
    }
}

/// Requests at random instants, of costs from 1 to `most`; every wait that is named is tried.
fn trace(server: &RedisServer, contender: Contender, most: u64, denials: u64) -> Waits {
    server.run("FLUSHALL");
    let mut client = Client::new(contender, server);
    let mut kept = Kept::new(server);
    let mut chance = Chance(most);
    let mut waits = Waits::default();
    let mut now_us = BOUNDARY_US;
    while waits.denials < denials {
        now_us += chance.below(MINUTE_US / 8);
        let ask = Ask {
            cost: 1 + chance.below(most),
            ..Ask::new(1, LIMIT, MINUTE_US).at(now_us)
        };
        let answer = client.one(&ask);
        if answer.allowed {
            continue;
        }
        let Wait::Us(named_us) = answer.wait else {
            panic!("{contender:?} names no wait: {answer:?}");
        };
        kept.keep();
        let mut passes = |wait_us: u64| {
            kept.restore();
            client.one(&ask.at(now_us + wait_us)).allowed
        };
        let unit_us = contender.wait_unit_us().unwrap();
        let (at_it, before) = (passes(named_us), passes(named_us.saturating_sub(unit_us)));
        waits.denials += 1;
        waits.honest += u64::from(at_it && !before);
        if !at_it {
            let true_us = first_pass(&mut passes, named_us);
            waits.worst_us = waits.worst_us.max(true_us - named_us);
        }
        kept.restore();
    }
    waits
}

/// The smallest wait that passes, above one that does not; two windows at most.
fn first_pass(passes: &mut impl FnMut(u64) -> bool, fails_us: u64) -> u64 {
    let (mut low, mut high) = (fails_us, 2 * MINUTE_US);
    while high - low > 1 {
        let middle = low.midpoint(high);
        if passes(middle) {
            high = middle;
        } else {
            low = middle;
        }
    }
    high
}

/// All keys of the server as they were, so that a request can be tried and undone.
struct Kept {
    connection: redis::Connection,
    keys: Vec<(Vec<u8>, Vec<u8>)>,
}

impl Kept {
    fn new(server: &RedisServer) -> Kept {
        Kept {
            connection: server.connect(),
            keys: Vec::new(),
        }
    }

    fn keep(&mut self) {
        let mut all = redis::cmd("KEYS");
        let keys: Vec<Vec<u8>> = all.arg("*").query(&mut self.connection).unwrap();
        let dump = |key: Vec<u8>| {
            let mut dump = redis::cmd("DUMP");
            let value = dump.arg(&key).query(&mut self.connection).unwrap();
            (key, value)
        };
        self.keys = keys.into_iter().map(dump).collect();
    }

    fn restore(&mut self) {
        let mut pipe = redis::pipe();
        pipe.cmd("FLUSHDB").ignore();
        for (key, value) in &self.keys {
            pipe.cmd("RESTORE").arg(key).arg(0).arg(value).ignore();
        }
        pipe.exec(&mut self.connection).unwrap();
    }
}
