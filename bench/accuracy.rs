//! How full each window of a minute was, over time, by the limiters that people use: one client,
//! three ways of asking, a clock of the measurement's own, and a real redis-server that decides.
//!
//! `make bench-accuracy` puts the picture and the table into docs/algorithms.md; it takes seconds,
//! and its figures are the same on every machine.

mod picture;
mod traffic;

use crate::decisions::bench::contender::{Ask, Client, Contender};
use crate::decisions::bench::exactness::BOUNDARY_US;
use crate::page;
use crate::support::RedisServer;
use traffic::{SECOND_US, TRAFFIC, Traffic};

pub const LIMIT: u64 = 100;
pub const WINDOW_US: u64 = 60 * SECOND_US;

const GCRA: &str = include_str!("articles/gcra.lua");
const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/algorithms.md");
const PICTURE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/accuracy.svg");

/// Who decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limiter {
    Of(Contender),
    Gcra,
}

const LIMITERS: [Limiter; 7] = [
    Limiter::Of(Contender::Log),
    Limiter::Of(Contender::Counter),
    Limiter::Of(Contender::FixedWindow),
    Limiter::Of(Contender::TwoCounters),
    Limiter::Gcra,
    Limiter::Of(Contender::MultiExec),
    Limiter::Of(Contender::ProductionReady),
];

impl Limiter {
    pub fn name(self) -> &'static str {
        match self {
            Limiter::Of(Contender::Log) => "tidegate log",
            Limiter::Of(Contender::Counter) => "tidegate counter",
            Limiter::Of(Contender::FixedWindow) => "fixed window",
            Limiter::Of(Contender::TwoCounters) => "two counters",
            Limiter::Of(Contender::MultiExec) => "sorted set, MULTI",
            Limiter::Of(_) => "sorted set, script",
            Limiter::Gcra => "GCRA, full burst",
        }
    }

    /// What it is, under its name.
    pub fn about(self) -> &'static str {
        match self {
            Limiter::Of(Contender::Log) => "exact, the default",
            Limiter::Of(Contender::Counter) => "constant memory",
            Limiter::Of(Contender::FixedWindow) => "GET, INCR, EXPIRE",
            Limiter::Of(Contender::TwoCounters) => "previous one faded",
            Limiter::Of(Contender::MultiExec) => "denials are recorded",
            Limiter::Of(_) => "exact, one at a time",
            Limiter::Gcra => "bucket that leaks",
        }
    }

    pub fn is_ours(self) -> bool {
        matches!(self, Limiter::Of(Contender::Log | Contender::Counter))
    }

    /// When it let requests through, of those that were made at these instants.
    fn admits(self, server: &RedisServer, asked: &[u64]) -> Vec<u64> {
        server.run("FLUSHALL");
        let mut decide: Box<dyn FnMut(u64) -> bool> = match self {
            Limiter::Of(contender) => {
                let mut client = Client::new(contender, server);
                let ask = Ask::new(1, LIMIT, WINDOW_US);
                Box::new(move |us| client.one(&ask.at(us)).allowed)
            }
            Limiter::Gcra => {
                let mut connection = server.connect();
                Box::new(move |us| {
                    let mut call = redis::cmd("EVAL");
                    call.arg(GCRA).arg(1).arg("user:1");
                    call.arg(us).arg(WINDOW_US).arg(LIMIT);
                    call.query(&mut connection).unwrap()
                })
            }
        };
        let asked = asked.iter().copied();
        asked.filter(|us| decide(BOUNDARY_US + us)).collect()
    }
}

/// What one limiter let through of one kind of traffic.
pub struct Run {
    pub admitted: Vec<u64>,
}

impl Run {
    /// Admissions in the window that ends at this instant, both of its ends in it but the first.
    pub fn within(&self, end_us: u64) -> u64 {
        let upto = |us: u64| self.admitted.partition_point(|one| *one <= us);
        let before = end_us.checked_sub(WINDOW_US).map_or(0, upto);
        (upto(end_us) - before) as u64
    }

    /// The most in any window.
    pub fn fullest(&self) -> u64 {
        let ends = self.admitted.iter().map(|us| self.within(*us));
        ends.max().unwrap_or(0)
    }
}

/// Runs all, prints, and with `--write` puts it where it belongs.
pub fn run(words: &[String]) {
    let server = RedisServer::start();
    let asked = TRAFFIC.map(Traffic::asked);
    let runs: Vec<(Limiter, Vec<Run>)> = LIMITERS
        .into_iter()
        .map(|limiter| {
            let admitted = asked.iter().map(|asked| limiter.admits(&server, asked));
            (limiter, admitted.map(|admitted| Run { admitted }).collect())
        })
        .collect();
    let table = table(&runs);
    print!("{table}");
    if words.iter().any(|word| word == "--write") {
        std::fs::write(PICTURE, picture::draw(&runs)).unwrap();
        let text = std::fs::read_to_string(PAGE).unwrap();
        let text = page::with(&text, "accuracy", &table).expect("its place");
        std::fs::write(PAGE, text).unwrap();
    }
}

/// For each kind of traffic the fullest window, and how much was let through of what the first
/// limiter, which is exact, lets through.
fn table(runs: &[(Limiter, Vec<Run>)]) -> String {
    let mut head = vec!["fullest window / let through, %".to_owned()];
    head.extend(TRAFFIC.map(|traffic| traffic.name().to_owned()));
    let exact: Vec<f64> = runs[0]
        .1
        .iter()
        .map(|run| run.admitted.len() as f64)
        .collect();
    let rows: Vec<Vec<String>> = runs
        .iter()
        .map(|(limiter, runs)| {
            let cells = runs.iter().zip(&exact).map(|(run, exact)| {
                let fullest = run.fullest() * 100 / LIMIT;
                let passed = run.admitted.len() as f64 * 100.0 / exact;
                format!("{fullest} / {passed:.0}")
            });
            let name = match limiter.is_ours() {
                true => format!("**{}**", limiter.name()),
                false => limiter.name().to_owned(),
            };
            std::iter::once(name).chain(cells).collect()
        })
        .collect();
    let head: Vec<&str> = head.iter().map(String::as_str).collect();
    page::table(&head, &rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_holds_its_end_and_not_its_beginning() {
        let run = Run {
            admitted: vec![0, 1, WINDOW_US, WINDOW_US + 1],
        };
        assert_eq!(run.within(0), 1);
        assert_eq!(run.within(WINDOW_US - 1), 2);
        assert_eq!(run.within(WINDOW_US), 2);
        assert_eq!(run.fullest(), 2);
    }

    #[test]
    fn only_the_log_stays_within_its_limit_at_a_boundary() {
        let server = RedisServer::start();
        let asked = Traffic::Boundary.asked();
        let fullest = |limiter: Limiter| {
            let admitted = limiter.admits(&server, &asked);
            Run { admitted }.fullest()
        };
        assert_eq!(fullest(Limiter::Of(Contender::Log)), LIMIT);
        assert_eq!(fullest(Limiter::Of(Contender::FixedWindow)), 2 * LIMIT);
        assert!(fullest(Limiter::Gcra) > LIMIT * 3 / 2);
    }
}
