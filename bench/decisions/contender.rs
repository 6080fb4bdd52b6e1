//! Who is measured, and how a request is put to each of them over one connection.

use std::time::{SystemTime, UNIX_EPOCH};

use redis::{Cmd, Value, from_redis_value_ref};
use tidegate::limit::Algorithm;

use super::{articles, ours};
use crate::support::RedisServer;

/// The limiters, ours first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Contender {
    Log,
    Counter,
    MultiExec,
    VideoApi,
    TwoCounters,
    ProductionReady,
    Buckets,
    FixedWindow,
}

pub const ALL: [Contender; 8] = [
    Contender::Log,
    Contender::Counter,
    Contender::MultiExec,
    Contender::VideoApi,
    Contender::TwoCounters,
    Contender::ProductionReady,
    Contender::Buckets,
    Contender::FixedWindow,
];

impl Contender {
    pub fn name(self) -> &'static str {
        match self {
            Contender::Log => "**tidegate `log`**",
            Contender::Counter => "tidegate `counter`",
            Contender::MultiExec => "000 sorted set, MULTI/EXEC",
            Contender::VideoApi => "001 video API, ZSET script",
            Contender::TwoCounters => "002 two counters, GET GET INCR",
            Contender::ProductionReady => "003 \"production-ready\" ZSET script",
            Contender::Buckets => "004 HASH of buckets",
            Contender::FixedWindow => "fixed window, GET INCR",
        }
    }

    /// The commands it sends, as `INFO commandstats` names them; not those that a script calls.
    pub fn commands(self) -> &'static [&'static str] {
        match self {
            Contender::MultiExec => &["multi", "exec"],
            Contender::TwoCounters => &["get", "incr"],
            Contender::FixedWindow => &["get", "incr", "expire"],
            _ => &["evalsha"],
        }
    }

    /// The unit it names waits in, if it names any, us.
    pub fn wait_unit_us(self) -> Option<u64> {
        match self {
            Contender::Log | Contender::Counter => Some(1),
            Contender::VideoApi => Some(1_000_000),
            _ => None,
        }
    }

    fn algorithm(self) -> Option<Algorithm> {
        match self {
            Contender::Log => Some(Algorithm::Log),
            Contender::Counter => Some(Algorithm::Counter),
            _ => None,
        }
    }
}

/// One request, the same for each of them.
#[derive(Clone, Copy, Debug)]
pub struct Ask {
    /// The client that is limited.
    pub who: u64,
    pub cost: u64,
    /// The limit.
    pub units: u64,
    /// Whole seconds: most articles know nothing shorter.
    pub window_us: u64,
    /// The instant of the request; `None` is now.
    pub now_us: Option<u64>,
    /// Equal limits that it is put to at once; more than 1 is for ours alone.
    pub limits: u64,
}

impl Ask {
    pub fn new(who: u64, units: u64, window_us: u64) -> Ask {
        Ask {
            who,
            cost: 1,
            units,
            window_us,
            now_us: None,
            limits: 1,
        }
    }

    pub fn at(self, now_us: u64) -> Ask {
        Ask {
            now_us: Some(now_us),
            ..self
        }
    }

    /// The time of the client's clock, us since the Unix epoch.
    pub fn client_us(&self) -> u64 {
        self.now_us.unwrap_or_else(clock_us)
    }
}

/// The machine's clock, us since the Unix epoch.
pub fn clock_us() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    u64::try_from(since.as_micros()).unwrap()
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answer {
    pub allowed: bool,
    pub wait: Wait,
}

/// When to come back, as the contender says it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Wait {
    /// It does not say.
    Unnamed,
    Us(u64),
    Never,
}

/// A connection over which one contender decides.
pub struct Client {
    pub contender: Contender,
    connection: redis::Connection,
    known: String,
}

impl Client {
    pub fn new(contender: Contender, server: &RedisServer) -> Client {
        let mut connection = server.connect();
        let text = match contender.algorithm() {
            Some(_) => Some(ours::TEXT),
            None => articles::script(contender),
        };
        let known = text.map_or_else(String::new, |text| {
            let mut load = redis::cmd("SCRIPT");
            load.arg("LOAD").arg(text).query(&mut connection).unwrap()
        });
        Client {
            contender,
            connection,
            known,
        }
    }

    /// One request.
    pub fn one(&mut self, ask: &Ask) -> Answer {
        self.pipelined(std::slice::from_ref(ask))[0]
    }

    /// All of them in flight at once, each decided by itself.
    pub fn pipelined(&mut self, asks: &[Ask]) -> Vec<Answer> {
        let first = asks.iter().map(|ask| self.first(ask)).collect();
        let replies = self.send(first);
        let read = |(replies, ask): (&Vec<Value>, &Ask)| self.read(replies, ask);
        let answers: Vec<Answer> = replies.iter().zip(asks).map(read).collect();
        let allowed = answers
            .iter()
            .zip(asks)
            .filter(|(answer, _)| answer.allowed);
        let then: Vec<Vec<Cmd>> = allowed
            .map(|(_, ask)| articles::then(self.contender, ask))
            .filter(|commands| !commands.is_empty())
            .collect();
        if !then.is_empty() {
            self.send(then);
        }
        answers
    }

    /// One request, and the server's clock just before and just after it was decided; for those
    /// with two round trips, before and after it was counted.
    pub fn timed(&mut self, ask: &Ask) -> (Answer, (u64, u64)) {
        let (replies, mut between) = self.send_timed(self.first(ask));
        let answer = self.read(&replies, ask);
        let then = articles::then(self.contender, ask);
        if answer.allowed && !then.is_empty() {
            between = self.send_timed(then).1;
        }
        (answer, between)
    }

    /// All of them in one call of our script.
    pub fn together(&mut self, asks: &[Ask]) -> Vec<Answer> {
        let algorithm = self.contender.algorithm().unwrap();
        let call = ours::call(&self.known, algorithm, asks);
        let reply: Vec<u8> = call.query(&mut self.connection).unwrap();
        ours::answers(&reply, asks)
    }

    /// Counts all of them, by the shortest way to the same content of the server's memory.
    pub fn fill(&mut self, asks: &[Ask]) {
        for asks in asks.chunks(16) {
            if self.contender == Contender::MultiExec {
                self.send(asks.iter().map(articles::written).collect());
            } else {
                let answers = self.pipelined(asks);
                assert!(answers.iter().all(|answer| answer.allowed));
            }
        }
    }

    fn first(&self, ask: &Ask) -> Vec<Cmd> {
        match self.contender.algorithm() {
            Some(algorithm) => vec![ours::call(&self.known, algorithm, &[*ask])],
            None => articles::first(self.contender, &self.known, ask),
        }
    }

    fn read(&self, replies: &[Value], ask: &Ask) -> Answer {
        if self.contender.algorithm().is_none() {
            return articles::read(self.contender, replies, ask);
        }
        let reply: Vec<u8> = from_redis_value_ref(&replies[0]).unwrap();
        ours::answers(&reply, &[*ask])[0]
    }

    fn send(&mut self, requests: Vec<Vec<Cmd>>) -> Vec<Vec<Value>> {
        let lengths: Vec<usize> = requests.iter().map(Vec::len).collect();
        let mut pipe = redis::pipe();
        for command in requests.into_iter().flatten() {
            pipe.add_command(command);
        }
        let replies: Vec<Value> = pipe.query(&mut self.connection).unwrap();
        let mut replies = replies.into_iter();
        let part = |length| replies.by_ref().take(length).collect();
        lengths.into_iter().map(part).collect()
    }

    fn send_timed(&mut self, commands: Vec<Cmd>) -> (Vec<Value>, (u64, u64)) {
        let time = || vec![redis::cmd("TIME")];
        let mut replies = self.send(vec![time(), commands, time()]);
        let clock_us = |replies: &[Value]| {
            let (seconds, us): (u64, u64) = from_redis_value_ref(&replies[0]).unwrap();
            seconds * 1_000_000 + us
        };
        let between = (clock_us(&replies[0]), clock_us(&replies[2]));
        (replies.swap_remove(1), between)
    }
}
