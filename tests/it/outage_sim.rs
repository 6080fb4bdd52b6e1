//! The breaker and the heartbeats, simulated: the shipped `Breaker` and `Fleet` of many proxies in
//! virtual time, around a store that comes and goes as a seed says. Every run is named by its seed.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::time::{Duration, Instant};

use tidegate::limit::{Algorithm, Rule};
use tidegate::store::fleet::Fleet;
use tidegate::store::guard::{Breaker, FAILURES, PAUSE_MAX};

use crate::support::Chance;

const SEEDS: std::ops::RangeInclusive<u64> = 1..=60;
/// How long a call, and how long a probe, is waited for, microseconds.
const TIMEOUT_US: u64 = 25_000;
const PROBE_TIMEOUT_US: u64 = 400_000;
/// A store that is back must be used again within this.
const SOON_US: u64 = 1_000_000;

/// How a store is away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Away {
    /// Connections are refused, and calls fail at once.
    Down,
    /// Nothing is answered.
    Silent,
    /// Probes pass and calls fail: it has no memory, or is a replica.
    Unable,
}

/// When it is away, from and until, microseconds.
type Outages = Vec<(u64, u64, Away)>;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    /// A request comes.
    Request,
    /// A call of this beginning has been answered, or has not.
    Called {
        began_us: u64,
    },
    Probe,
    Probed {
        began_us: u64,
    },
}

struct Proxy {
    guard: Breaker,
    calls: u32,
    /// What it had to do with the outage that it is in: requests that waited in vain.
    waited: u32,
    /// The first call that went well since the store was back.
    well_us: Option<u64>,
}

struct Sim {
    chance: Chance,
    start: Instant,
    now_us: u64,
    outages: Outages,
    proxies: Vec<Proxy>,
    events: BinaryHeap<Reverse<(u64, usize, Event)>>,
    probes: Vec<u64>,
    /// The most requests that waited in vain at one proxy in one outage.
    waited: u32,
}

impl Sim {
    fn new(seed: u64) -> Sim {
        let mut chance = Chance(seed);
        let (mut outages, mut at) = (Vec::new(), 500_000);
        for _ in 0..1 + chance.below(4) {
            let until = at + 100_000 + chance.below(3_000_000);
            outages.push((
                at,
                until,
                chance.pick(&[Away::Down, Away::Silent, Away::Unable]),
            ));
            at = until + SOON_US + chance.below(2_000_000);
        }
        let proxy = |number: u64| Proxy {
            guard: Breaker::new(seed << 16 | number),
            calls: 0,
            waited: 0,
            well_us: None,
        };
        let many = chance.pick(&[1, 5, 100]);
        let mut sim = Sim {
            start: tidegate::clock::now(),
            now_us: 0,
            outages,
            proxies: (0..many).map(proxy).collect(),
            events: BinaryHeap::new(),
            probes: Vec::new(),
            waited: 0,
            chance,
        };
        for who in 0..sim.proxies.len() {
            let at = sim.chance.below(20_000);
            sim.at(at, who, Event::Request);
        }
        sim
    }

    fn at(&mut self, in_us: u64, who: usize, event: Event) {
        self.events.push(Reverse((self.now_us + in_us, who, event)));
    }

    fn now(&self) -> Instant {
        self.start + Duration::from_micros(self.now_us)
    }

    fn away(&self, at_us: u64) -> Option<Away> {
        let within = |(from, until, _): &&(u64, u64, Away)| (*from..*until).contains(&at_us);
        self.outages.iter().find(within).map(|(_, _, how)| *how)
    }

    fn run(&mut self) {
        let end_us = self.outages.last().unwrap().1 + 2 * SOON_US;
        while let Some(Reverse((at_us, who, event))) = self.events.pop() {
            if at_us > end_us {
                return;
            }
            self.pass_outages(self.now_us, at_us);
            self.now_us = at_us;
            match event {
                Event::Request => self.request(who),
                Event::Called { began_us } => self.called(who, began_us),
                Event::Probe => self.probe(who),
                Event::Probed { began_us } => self.probed(who, began_us),
            }
        }
    }

    /// Looks at everybody once for each outage, when the store has been back for long enough.
    fn pass_outages(&mut self, from_us: u64, to_us: u64) {
        for (_, until, how) in self.outages.clone() {
            let look_us = until + SOON_US;
            if from_us < until && until <= to_us {
                self.proxies
                    .iter_mut()
                    .for_each(|proxy| proxy.well_us = None);
            }
            if (from_us..to_us).contains(&look_us) {
                for proxy in &mut self.proxies {
                    assert!(proxy.well_us.is_some(), "not used again after {how:?}");
                    self.waited = self.waited.max(std::mem::take(&mut proxy.waited));
                }
            }
        }
    }

    fn request(&mut self, who: usize) {
        let next = 1 + self.chance.below(20_000);
        self.at(next, who, Event::Request);
        // While the breaker is open nobody asks, and so nobody waits.
        if self.proxies[who].guard.is_open() {
            return;
        }
        self.proxies[who].calls += 1;
        let took = match self.away(self.now_us) {
            Some(Away::Silent) => TIMEOUT_US,
            _ => 200 + self.chance.below(2_000),
        };
        let began_us = self.now_us;
        self.at(took, who, Event::Called { began_us });
    }

    fn called(&mut self, who: usize, began_us: u64) {
        let (now, now_us) = (self.now(), self.now_us);
        let away = self.away(began_us).or(self.away(now_us));
        let proxy = &mut self.proxies[who];
        let was_open = proxy.guard.is_open();
        match away {
            None => {
                // What comes after the breaker has opened is of a connection that was given up.
                if !was_open {
                    proxy.guard.call_succeeded();
                    proxy.well_us.get_or_insert(now_us);
                }
                return;
            }
            Some(_) if was_open => return,
            Some(Away::Down) => proxy.guard.connect_failed(now),
            Some(Away::Silent | Away::Unable) => proxy.guard.call_failed(now),
        }
        proxy.waited += u32::from(away == Some(Away::Silent));
        if proxy.guard.is_open() {
            self.plan_probe(who);
        }
    }

    fn plan_probe(&mut self, who: usize) {
        let at = self.proxies[who].guard.probe_at().expect("it is open");
        let wait = at.saturating_duration_since(self.now());
        assert!(wait <= PAUSE_MAX, "{wait:?}");
        self.at(wait.as_micros() as u64, who, Event::Probe);
    }

    fn probe(&mut self, who: usize) {
        self.probes.push(self.now_us);
        let took = match self.away(self.now_us) {
            Some(Away::Silent) => PROBE_TIMEOUT_US,
            _ => 500,
        };
        let began_us = self.now_us;
        self.at(took, who, Event::Probed { began_us });
    }

    fn probed(&mut self, who: usize, began_us: u64) {
        let now = self.now();
        match self.away(began_us) {
            Some(Away::Down | Away::Silent) => {
                self.proxies[who].guard.connect_failed(now);
                self.plan_probe(who);
            }
            Some(Away::Unable) | None => self.proxies[who].guard.connected(),
        }
    }

    /// The most that came within any 20 ms to a store that is just back, as a share of all proxies.
    /// After a short outage they have not been spread yet, and have not missed much either.
    fn herd(&self) -> f64 {
        let mut most = 0;
        let long = self.outages.iter();
        let long = long.filter(|(from, until, _)| until - from >= 2_000_000);
        for (_, until, _) in long {
            for slot in 0..50 {
                let from = until + slot * 20_000;
                let within = |at: &&u64| (from..from + 20_000).contains(*at);
                most = most.max(self.probes.iter().filter(within).count());
            }
        }
        most as f64 / self.proxies.len() as f64
    }
}

/// In whatever way a store is away and comes back, hardly anybody waits for it, it is used again
/// within a second, and not by all at once.
#[test]
fn breakers_keep_requests_from_waiting_and_come_back_in_time() {
    let (mut herd, mut waited, mut outages) = (0.0_f64, 0, 0);
    for seed in SEEDS {
        let mut sim = Sim::new(seed);
        let ran = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            sim.run();
            // Those that opened it; whoever was under way beside them is not asked for again.
            let most = sim.waited;
            assert!(most <= 2 * FAILURES, "{most} requests of one proxy waited");
            waited = waited.max(most);
            if sim.proxies.len() >= 100 {
                herd = herd.max(sim.herd());
            }
        }));
        outages += sim.outages.len();
        assert!(ran.is_ok(), "seed {seed}: {:?}", sim.outages);
    }
    println!(
        "{outages} outages: at most {waited} waited at one proxy, {:.0} % at once",
        herd * 100.0
    );
    assert!(herd < 0.4, "{herd}: they come as a herd");
}

const BEAT_US: u64 = 1_000_000;
/// How long a proxy that says nothing is counted.
const COUNTED_US: u64 = 5_000_000;
const UNITS: u64 = 1_000;

/// What `lua/fleet.lua` keeps.
#[derive(Default)]
struct Names(BTreeMap<u64, u64>);

impl Names {
    /// How many there are, and how many of them have a smaller name.
    fn beat(&mut self, name: u64, now_us: u64) -> (u32, u32) {
        self.0.insert(name, now_us);
        self.0
            .retain(|_, heard| *heard + COUNTED_US >= now_us && *heard <= now_us);
        let smaller = self.0.range(..name).count();
        (self.0.len() as u32, smaller as u32)
    }
}

/// Proxies come and go, beats are lost, the store's clock steps and it forgets: once all is quiet,
/// everybody's shares add up to the limit, and in between they are never none.
#[test]
fn heartbeats_divide_a_limit_whoever_comes_and_goes() {
    let rule = Rule {
        algorithm: Algorithm::Log,
        units: UNITS,
        window_us: 1_000_000,
        precision_us: 1,
    };
    for seed in SEEDS {
        let mut chance = Chance(seed);
        let (mut names, mut skew_us) = (Names::default(), 10_000_000_i64);
        let mut fleet: Vec<(u64, u64, Fleet)> = Vec::new();
        let quiet_us = 20_000_000;
        let mut now_us = 0;
        while now_us < quiet_us + 2 * COUNTED_US {
            now_us += 10_000;
            let is_quiet = now_us > quiet_us;
            if !is_quiet && (fleet.is_empty() || chance.below(200) == 0) {
                fleet.push((
                    chance.next(),
                    now_us + chance.below(BEAT_US),
                    Fleet::counted(),
                ));
            }
            if !is_quiet && fleet.len() > 1 && chance.below(400) == 0 {
                fleet.swap_remove(chance.below(fleet.len() as u64) as usize);
            }
            if !is_quiet && chance.below(1000) == 0 {
                match chance.below(2) {
                    0 => names.0.clear(),
                    // Either way, by up to an hour.
                    _ => skew_us = 4_000_000_000 - chance.below(7_200_000_000) as i64,
                }
            }
            for (name, next_us, own) in &mut fleet {
                if *next_us > now_us {
                    continue;
                }
                *next_us = now_us + BEAT_US;
                let is_lost = !is_quiet && chance.below(10) == 0;
                if !is_lost {
                    let store_us = (now_us as i64 + skew_us + 5_000_000_000) as u64;
                    let (size, place) = names.beat(*name, store_us);
                    own.learn(size, place);
                }
                assert!(own.share(rule).units >= 1, "seed {seed}");
            }
        }
        let shares: u64 = fleet.iter().map(|(_, _, own)| own.share(rule).units).sum();
        assert_eq!(shares, UNITS, "seed {seed}: {} proxies", fleet.len());
    }
}
