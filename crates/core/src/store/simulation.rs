//! Fifty proxies and one hot key, in virtual time: the shipped gathering, leases and deny cache
//! around a store of a few lines, so that what they cost and what they keep can be counted.
//!
//! `cargo test --release --lib hot_key -- --nocapture` prints the table of `docs/limits.md`.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::sync::Arc;

use super::batch::GroupOutcome;
use super::deny_cache::{CallSpan, DenyCache};
use super::lease::{LeaseGrant, Leases};
use crate::limit::{
    Algorithm, Charge, Decision, Key, KeyHash, Limit, LimitCheck, Retry, Rule, Verdict,
};

const WINDOW_US: u64 = 1_000_000;
const ROUND_TRIP_US: u64 = 500;
const PROXIES: usize = 50;

/// The exact log, one entry for each stamp.
#[derive(Default)]
struct Store {
    entries: VecDeque<(u64, u64)>,
    used: u64,
    calls: u64,
}

impl Store {
    fn charge(&mut self, count: u16, ahead_us: u64, units: u64, now_us: u64) -> GroupOutcome {
        self.calls += 1;
        while let Some((stamp, cost)) = self.entries.front().copied()
            && stamp + WINDOW_US <= now_us
        {
            self.used -= cost;
            self.entries.pop_front();
        }
        let before = self.used;
        let granted = u64::from(count).min(units.saturating_sub(before));
        if granted > 0 {
            let newest = self.entries.back().map_or(0, |(stamp, _)| *stamp);
            let stamp = (now_us + ahead_us).max(newest);
            self.entries.push_back((stamp, granted));
            self.used += granted;
        }
        let oldest = self.entries.front().map_or(now_us, |(stamp, _)| *stamp);
        let verdict = |used: u64, retry| Verdict {
            used,
            remaining: units.saturating_sub(used),
            retry,
            reset_us: WINDOW_US,
            next_us: oldest + WINDOW_US - now_us,
            stamp: 0,
        };
        let decision = |allowed, verdict| Decision {
            allowed,
            at_us: now_us,
            spread_us: 0,
            verdicts: [verdict].into_iter().collect(),
        };
        let wait = Retry::After(oldest + WINDOW_US - now_us);
        GroupOutcome {
            granted: u16::try_from(granted).unwrap(),
            allowed: (granted > 0).then(|| decision(true, verdict(before, Retry::Now))),
            denied: (granted < u64::from(count)).then(|| decision(false, verdict(self.used, wait))),
        }
    }
}

#[derive(Default)]
struct Proxy {
    leases: Leases,
    denied: DenyCache,
    waiting: u16,
    /// How many asked, and how many more were asked for, in the call under way.
    asked: Option<(u16, u16, u64)>,
    outcome: Option<(GroupOutcome, u64)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Request,
    AtStore,
    Answer,
}

/// What came of it, by second of virtual time.
#[derive(Debug)]
struct Figures {
    calls_per_second: f64,
    admitted_share: f64,
    fullest_share: f64,
}

/// `demand` is in limits: 10.0 is ten times what is allowed. The first second warms up.
fn hot_key(units: u64, demand: f64, lease_us: u64, seconds: u64) -> Figures {
    let charge = charge(units, lease_us);
    let mut store = Store::default();
    let mut proxies: Vec<Proxy> = (0..PROXIES).map(|_| Proxy::default()).collect();
    let mut events = BinaryHeap::new();
    let every_us = PROXIES as f64 * 1e6 / (units as f64 * demand);
    let (start_us, mut random) = (1_000_000_000_u64, 7_u64);
    let end_us = start_us + seconds * WINDOW_US;
    for who in 0..PROXIES {
        events.push(Reverse((start_us + who as u64, who, Event::Request)));
    }
    let (mut admitted, mut warm_calls) = (Vec::new(), 0);
    while let Some(Reverse((now_us, who, event))) = events.pop() {
        if now_us >= end_us {
            break;
        }
        if now_us < start_us + WINDOW_US {
            warm_calls = store.calls;
        }
        let proxy = &mut proxies[who];
        match event {
            Event::Request => {
                random = random
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(1);
                let share = (random >> 11) as f64 / (1_u64 << 53) as f64;
                let gap_us = (-(1.0 - share).ln() * every_us).ceil() as u64;
                events.push(Reverse((now_us + gap_us.max(1), who, Event::Request)));
                if proxy.denied.find(&charge, now_us, false).is_some() {
                    continue;
                }
                let leased = (lease_us > 0).then(|| proxy.leases.spend(&charge, now_us));
                if leased.flatten().is_some() {
                    admitted.push(now_us);
                    continue;
                }
                proxy.waiting += 1;
                if proxy.asked.is_none() {
                    proxy.send(&charge, now_us);
                    events.push(Reverse((now_us + ROUND_TRIP_US / 2, who, Event::AtStore)));
                }
            }
            Event::AtStore => {
                let (asked, ahead, _) = proxy.asked.unwrap();
                let stamp_us = if ahead > 0 { lease_us } else { 0 };
                let outcome = store.charge(asked + ahead, stamp_us, units, now_us);
                let now_granted = asked.min(outcome.granted);
                admitted.extend((0..now_granted).map(|_| now_us));
                proxy.outcome = Some((outcome, now_us));
                events.push(Reverse((now_us + ROUND_TRIP_US / 2, who, Event::Answer)));
            }
            Event::Answer => {
                proxy.answered(&charge, now_us);
                if proxy.waiting > 0 {
                    proxy.send(&charge, now_us);
                    events.push(Reverse((now_us + ROUND_TRIP_US / 2, who, Event::AtStore)));
                }
            }
        }
    }
    let measured = (seconds - 1) as f64;
    let late = |at: &&u64| **at >= start_us + WINDOW_US;
    let possible = units as f64 * demand.min(1.0) * measured;
    Figures {
        calls_per_second: (store.calls - warm_calls) as f64 / measured,
        admitted_share: admitted.iter().filter(late).count() as f64 / possible,
        fullest_share: fullest(&mut admitted) as f64 / units as f64,
    }
}

impl Proxy {
    fn send(&mut self, charge: &Charge, now_us: u64) {
        let ahead = self.leases.ahead(charge, now_us);
        self.asked = Some((std::mem::take(&mut self.waiting), ahead, now_us));
    }

    fn answered(&mut self, charge: &Charge, now_us: u64) {
        let (asked, ahead, sent_us) = self.asked.take().unwrap();
        let (outcome, _) = self.outcome.take().unwrap();
        let span = CallSpan {
            sent_us,
            came_us: now_us,
        };
        if let Some(denied) = &outcome.denied {
            self.denied.note(charge, denied, span);
        }
        let grant = LeaseGrant {
            waiting: asked,
            asked: asked + ahead,
            outcome: &outcome,
            span,
        };
        self.leases.note(charge, grant);
    }
}

/// The most that any interval of a window's length holds.
fn fullest(admitted: &mut [u64]) -> usize {
    admitted.sort_unstable();
    let (mut from, mut most) = (0, 0);
    for (index, at) in admitted.iter().enumerate() {
        while admitted[from] + WINDOW_US <= *at {
            from += 1;
        }
        most = most.max(index - from + 1);
    }
    most
}

fn charge(units: u64, lease_us: u64) -> Charge {
    let rule = Rule {
        algorithm: Algorithm::Log,
        units,
        window_us: WINDOW_US,
        precision_us: 1,
    };
    let limit = Limit {
        lease_us,
        ..Limit::new("hot", &[rule], Key::parse(["global"]).unwrap())
    };
    let item = LimitCheck {
        window: Arc::clone(&limit.windows[0]),
        limit: Arc::new(limit),
        tag: KeyHash([1; 16]),
        anchor: None,
        cost: 1,
        asker: None,
    };
    [item].into_iter().collect()
}

#[test]
fn fifty_proxies_share_a_hot_key_exactly_and_for_few_calls() {
    let (units, seconds) = if cfg!(debug_assertions) {
        (10_000, 3)
    } else {
        (100_000, 4)
    };
    println!("| lease | demand | calls/s | admitted | fullest window |");
    println!("|---|---|---|---|---|");
    for lease_us in [0, 10_000, 20_000] {
        for demand in [10.0, 1.1, 0.95] {
            let figures = hot_key(units, demand, lease_us, seconds);
            println!(
                "| {} ms | {demand} | {:.0} | {:.2} % | {:.2} % |",
                lease_us / 1000,
                figures.calls_per_second,
                100.0 * figures.admitted_share,
                100.0 * figures.fullest_share
            );
            assert!(figures.fullest_share <= 1.0, "{figures:?}");
            assert!(figures.admitted_share > 0.95, "{figures:?}");
            let requests = units as f64 * demand;
            assert!(figures.calls_per_second < 1.05 * requests, "{figures:?}");
        }
    }
}
