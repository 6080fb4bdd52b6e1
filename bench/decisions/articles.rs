//! The articles' limiters as their clients would send them: `bench/articles`, filled in.

use redis::{Cmd, Value, from_redis_value_ref};

use super::contender::{Answer, Ask, Contender, Wait};

const MULTI_EXEC: &str = include_str!("../articles/000_sorted_set.redis");
const VIDEO_API: &str = include_str!("../articles/001_video_api.lua");
const TWO_COUNTERS: &str = include_str!("../articles/002_two_counters.redis");
const PRODUCTION_READY: &str = include_str!("../articles/003_production_ready.lua");
const BUCKETS: &str = include_str!("../articles/004_buckets.lua");
const FIXED_WINDOW: &str = include_str!("../articles/fixed_window.redis");

/// The script to load, for those that are scripts.
pub fn script(contender: Contender) -> Option<&'static str> {
    match contender {
        Contender::VideoApi => Some(VIDEO_API),
        Contender::ProductionReady => Some(PRODUCTION_READY),
        Contender::Buckets => Some(BUCKETS),
        _ => None,
    }
}

/// The commands of the first round trip.
pub fn first(contender: Contender, known: &str, ask: &Ask) -> Vec<Cmd> {
    let seconds = ask.window_us / 1_000_000;
    let now_us = ask.client_us();
    let mut call = redis::cmd("EVALSHA");
    call.arg(known).arg(1).arg(format!("user:{}", ask.who));
    match contender {
        Contender::MultiExec => return commands(MULTI_EXEC, false, ask),
        Contender::TwoCounters => return commands(TWO_COUNTERS, false, ask),
        Contender::FixedWindow => return commands(FIXED_WINDOW, false, ask),
        Contender::VideoApi => {
            let now = format!("{}.{:06}", now_us / 1_000_000, now_us % 1_000_000);
            call.arg(now).arg(seconds).arg(ask.units).arg(ask.cost);
            call.arg(random_text());
        }
        Contender::ProductionReady => {
            call.arg(ask.units).arg(seconds);
            call.arg(ask.now_us.map_or_else(String::new, |us| us.to_string()));
        }
        Contender::Buckets => {
            let precision = (seconds / 60).max(1);
            call.arg(format!("[[{seconds},{},{precision}]]", ask.units));
            call.arg(now_us / 1_000_000).arg(ask.cost);
        }
        Contender::Log | Contender::Counter => unreachable!("not an article's"),
    }
    vec![call]
}

/// What the replies of the first round trip say.
pub fn read(contender: Contender, replies: &[Value], ask: &Ask) -> Answer {
    let numbers = |reply: &Value| -> Vec<i64> { from_redis_value_ref(reply).unwrap() };
    let count = |reply: &Value| -> Option<u64> { from_redis_value_ref(reply).unwrap() };
    let (allowed, wait) = match contender {
        Contender::MultiExec => (members(replies) < ask.units, Wait::Unnamed),
        Contender::VideoApi => {
            let reply = numbers(&replies[0]);
            let seconds = u64::try_from(reply[2]).unwrap();
            (reply[0] == 1, Wait::Us(seconds * 1_000_000))
        }
        Contender::TwoCounters => {
            let gone = (ask.client_us() % ask.window_us) as f64 / ask.window_us as f64;
            let previous = count(&replies[0]).unwrap_or(0) as f64;
            let current = count(&replies[1]).unwrap_or(0) as f64;
            let estimate = previous * (1.0 - gone) + current;
            (estimate < ask.units as f64, Wait::Unnamed)
        }
        Contender::ProductionReady => (numbers(&replies[0])[0] == 1, Wait::Unnamed),
        Contender::Buckets => (count(&replies[0]) == Some(0), Wait::Unnamed),
        Contender::FixedWindow => {
            let used = count(&replies[0]).unwrap_or(0);
            (used < ask.units, Wait::Unnamed)
        }
        Contender::Log | Contender::Counter => unreachable!("not an article's"),
    };
    Answer { allowed, wait }
}

/// The commands of the second round trip of an allowed request.
pub fn then(contender: Contender, ask: &Ask) -> Vec<Cmd> {
    match contender {
        Contender::TwoCounters => commands(TWO_COUNTERS, true, ask),
        Contender::FixedWindow => commands(FIXED_WINDOW, true, ask),
        _ => Vec::new(),
    }
}

/// What the sorted set of MULTI/EXEC writes, without what it reads back: for filling it.
pub fn written(ask: &Ask) -> Vec<Cmd> {
    let mut all = commands(MULTI_EXEC, false, ask);
    all.retain(|command| command.args_iter().next() != Some(redis::Arg::Simple(b"ZRANGE")));
    all
}

/// How many members EXEC's ZRANGE returned.
fn members(replies: &[Value]) -> u64 {
    let Some(Value::Array(replies)) = replies.last() else {
        panic!("EXEC answered {replies:?}");
    };
    let Value::Array(members) = &replies[1] else {
        panic!("ZRANGE answered {replies:?}");
    };
    members.len() as u64
}

/// The lines of a list of commands before or after its `then`, filled in for one request.
fn commands(text: &str, after: bool, ask: &Ask) -> Vec<Cmd> {
    let (first, then) = text.split_once("\nthen\n").unwrap_or((text, ""));
    let lines = if after { then } else { first }.lines();
    let lines = lines.filter(|line| !line.starts_with("--"));
    lines
        .map(|line| {
            let mut words = line.split(' ');
            let mut command = redis::cmd(words.next().unwrap());
            words.for_each(|word| {
                command.arg(filled_in(word, ask));
            });
            command
        })
        .collect()
}

fn filled_in(word: &str, ask: &Ask) -> String {
    let now_us = ask.client_us();
    let place = now_us / ask.window_us;
    match word {
        "$key" => format!("user:{}", ask.who),
        "$current" => format!("user:{}:{place}", ask.who),
        "$previous" => format!("user:{}:{}", ask.who, place - 1),
        "$now_ms" => (now_us / 1_000).to_string(),
        "$edge_ms" => ((now_us - ask.window_us) / 1_000).to_string(),
        "$seconds" => (ask.window_us / 1_000_000).to_string(),
        word => word.to_owned(),
    }
}

/// Eight random letters, as the video API's client adds to its members.
fn random_text() -> String {
    let mut bytes = [0; 4];
    getrandom::fill(&mut bytes).unwrap();
    format!("{:08x}", u32::from_le_bytes(bytes))
}
