//! What is to be reached: ratios of two rows of one run.

use super::findings::Findings;
use super::measure::Sample;
use super::peer::Peer;
use super::scenario::Scenario;
use crate::numbers::Spread;

/// One line of the table.
#[derive(Clone, Copy, Debug)]
pub struct Goal {
    pub job: &'static str,
    pub goal: f64,
    /// What must not be missed.
    pub bar: f64,
    pub of: Of,
}

/// What is divided: ours by theirs.
#[derive(Clone, Copy, Debug)]
pub enum Of {
    /// Something of a scenario's samples.
    Samples(Scenario, Peer, Peer, Figure),
    /// Resident memory with so many idle connections.
    Memory(usize, Peer, Peer),
}

#[derive(Clone, Copy, Debug)]
pub enum Figure {
    Proxy,
    Redis,
    Both,
    P99,
}

impl Figure {
    pub fn of(self, sample: &Sample) -> f64 {
        match self {
            Figure::Proxy => sample.proxy_us,
            Figure::Redis => sample.redis_us,
            Figure::Both => sample.proxy_us + sample.redis_us,
            Figure::P99 => sample.waits_us.map_or(f64::NAN, |waits| waits[1]),
        }
    }
}

const fn goal(job: &'static str, (goal, bar): (f64, f64), of: Of) -> Goal {
    Goal { job, goal, bar, of }
}

use Figure::{Both, P99, Proxy, Redis};
use Of::{Memory, Samples};
use Peer::{Haproxy, Nginx, NginxLimit, NginxLua, Tidegate, TidegateEmbedded, TidegateRedis};
use Scenario::{Few, Large, Many, Post, Rejected, RejectedVaried, Steady, Varied};

pub const ALL: [Goal; 18] = [
    goal(
        "no limit: tidegate / nginx",
        (1.00, 1.20),
        Samples(Many, Tidegate, Nginx, Proxy),
    ),
    goal(
        "no limit: tidegate / HAProxy",
        (0.85, 1.00),
        Samples(Many, Tidegate, Haproxy, Proxy),
    ),
    goal(
        "allowed by Redis: tidegate / nginx that limits nothing",
        (1.15, 1.40),
        Samples(Many, TidegateRedis, Nginx, Proxy),
    ),
    goal(
        "allowed by Redis: tidegate / nginx + Lua + Redis",
        (0.50, 0.60),
        Samples(Many, TidegateRedis, NginxLua, Proxy),
    ),
    goal(
        "the same, CPU of Redis",
        (0.40, 0.65),
        Samples(Many, TidegateRedis, NginxLua, Redis),
    ),
    goal(
        "the same at 8 connections, proxy and Redis together",
        (0.60, 0.80),
        Samples(Few, TidegateRedis, NginxLua, Both),
    ),
    goal(
        "allowed by the embedded store: tidegate / nginx limit_req",
        (1.00, 1.20),
        Samples(Many, TidegateEmbedded, NginxLimit, Proxy),
    ),
    goal(
        "rejected, embedded store: tidegate / nginx limit_req",
        (0.90, 1.00),
        Samples(Rejected, TidegateEmbedded, NginxLimit, Proxy),
    ),
    goal(
        "rejected, Redis: tidegate / nginx limit_req",
        (0.90, 1.00),
        Samples(Rejected, TidegateRedis, NginxLimit, Proxy),
    ),
    goal(
        "varied requests, no limit: tidegate / nginx",
        (0.95, 1.20),
        Samples(Varied, Tidegate, Nginx, Proxy),
    ),
    goal(
        "varied, allowed by Redis: tidegate / nginx + Lua + Redis",
        (0.50, 0.60),
        Samples(Varied, TidegateRedis, NginxLua, Proxy),
    ),
    goal(
        "varied, allowed by the embedded store: tidegate / nginx limit_req",
        (1.00, 1.20),
        Samples(Varied, TidegateEmbedded, NginxLimit, Proxy),
    ),
    goal(
        "varied, rejected, embedded store: tidegate / nginx limit_req",
        (0.90, 1.00),
        Samples(RejectedVaried, TidegateEmbedded, NginxLimit, Proxy),
    ),
    goal(
        "varied, rejected, Redis: tidegate / nginx limit_req",
        (0.90, 1.00),
        Samples(RejectedVaried, TidegateRedis, NginxLimit, Proxy),
    ),
    goal(
        "p99 at 2000/s, allowed by Redis: tidegate / nginx + Lua + Redis",
        (0.70, 1.00),
        Samples(Steady, TidegateRedis, NginxLua, P99),
    ),
    goal(
        "memory with 10,000 idle clients: tidegate / nginx",
        (1.5, 4.0),
        Memory(10_000, Tidegate, Nginx),
    ),
    goal(
        "64 KiB answers: tidegate / HAProxy",
        (0.85, 1.00),
        Samples(Large, Tidegate, Haproxy, Proxy),
    ),
    goal(
        "16 KiB POSTs: tidegate / nginx",
        (1.00, 1.20),
        Samples(Post, Tidegate, Nginx, Proxy),
    ),
];

impl Goal {
    /// The ratio of each round, since two that are apart say less; if both were measured.
    pub fn reached(&self, findings: &Findings) -> Option<Spread> {
        match self.of {
            Memory(connections, ours, theirs) => {
                let of = |peer| findings.resident_mib(peer, connections);
                Spread::of([of(ours)? / of(theirs)?])
            }
            Samples(scenario, ours, theirs, figure) => {
                let ratio = |round| {
                    let of = |peer| Some(figure.of(findings.sample(scenario, peer, round)?));
                    Some(of(ours)? / of(theirs)?)
                };
                Spread::of((0..findings.rounds_of(scenario, ours)).filter_map(ratio))
            }
        }
    }

    /// The same in a word; as exact as it is printed.
    pub fn verdict(&self, ratio: f64) -> &'static str {
        let ratio = (ratio * 100.0).round() / 100.0;
        match ratio {
            _ if ratio <= self.goal => "goal",
            _ if ratio <= self.bar => "bar",
            _ => "missed",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(proxy_us: f64) -> Sample {
        Sample {
            requests: 1,
            per_second: 1.0,
            proxy_us,
            redis_us: 0.0,
            upstream_us: 0.0,
            busy: 1.0,
            foreign: 0.0,
            waits_us: None,
        }
    }

    #[test]
    fn ratios_are_of_one_round_each() {
        let mut findings = Findings::default();
        let ours = vec![Some(sample(10.0)), Some(sample(30.0)), Some(sample(6.0))];
        let theirs = vec![Some(sample(10.0)), Some(sample(20.0)), None];
        findings.samples.insert((Many, Tidegate), ours);
        findings.samples.insert((Many, Nginx), theirs);
        let reached = ALL[0].reached(&findings).unwrap();
        assert_eq!((reached.min, reached.max), (1.0, 1.5));
        assert_eq!(ALL[1].reached(&findings), None);
    }

    #[test]
    fn a_ratio_is_judged_as_it_is_printed() {
        assert_eq!(ALL[0].verdict(1.004), "goal");
        assert_eq!(ALL[0].verdict(1.2), "bar");
        assert_eq!(ALL[0].verdict(1.21), "missed");
    }
}
