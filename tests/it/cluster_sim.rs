//! Reserve and refund, simulated: the shipped protocol and the shipped counts, in virtual time,
//! over a network that delays and loses, between places whose clocks differ. In half of the runs
//! requests that passed give their units back later, of the oldest. Every run is named by its seed.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::sync::Arc;

use smallvec::SmallVec;
use tidegate::limit::decide::Count;
use tidegate::limit::{Charge, Decision, Limit, Retry};
use tidegate::store::deny_cache::{CallSpan, DenyCache, GIVES_BACK_US};
use tidegate::store::reserve::{Habit, Reserve, Step, Steps};

use crate::support::{Chance, item, limit, log_rule};

/// When a client is answered at the latest, microseconds; late enough for the slowest two calls.
const DEADLINE_US: u64 = 100_000;
/// The places' clocks begin here.
const EPOCH_US: u64 = 1_000_000_000;

/// How requests are asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    AllAtOnce,
    NarrowFirst,
    /// As shipped: which of the two is learned.
    Learned,
}

/// How a second refund is sent, where one is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Again {
    Never,
    /// The same one twice.
    Same,
    /// One that does not say what it takes back.
    Blind,
}

#[derive(Clone, Copy, Debug)]
struct World {
    seed: u64,
    mode: Mode,
    cache: bool,
    round_trip_us: u64,
    /// Messages lost, of a thousand.
    lost: u64,
    /// Clocks differ by as much, either way.
    skew_us: u64,
    again: Again,
    /// Some requests that passed give their units back later, without saying which.
    oldest: bool,
}

enum Event {
    Arrive(usize),
    AtPlace(usize, usize),
    Reply(usize, usize, Decision),
    Refund(usize, usize, SmallVec<[u64; 2]>),
    /// The units of a request's item are given back, whose stamp is not told to its place.
    RefundOldest(usize, usize, u64),
    Deadline(usize),
}

struct Request {
    charge: Charge,
    proxy: usize,
    arrived_us: u64,
    reserve: Option<Reserve>,
    decided: Option<Decision>,
}

/// What came of a run.
#[derive(Debug, Default)]
struct Outcome {
    admitted: u64,
    calls: u64,
    refunds: u64,
    returns: u64,
    /// Of the fullest window, in percent of its limit.
    fullest: f64,
}

/// What passed of a key: its units, its window, and each stamp with its cost.
type Passed = (u64, u64, Vec<(u64, u64)>);

struct Run {
    world: World,
    chance: Chance,
    now_us: u64,
    numbered: u64,
    events: BinaryHeap<Reverse<(u64, u64, usize)>>,
    pending: Vec<Option<Event>>,
    requests: Vec<Request>,
    counts: HashMap<u128, Count>,
    caches: Vec<DenyCache>,
    habit: Habit,
    /// By key.
    passed: HashMap<u128, Passed>,
    outcome: Outcome,
}

/// Every key is in a place of its own, but that two of three share one now and then.
fn place(item: &tidegate::limit::LimitCheck) -> u16 {
    (item.id() % 97) as u16
}

impl Run {
    fn new(world: World, arrivals: &[(u64, Charge)]) -> Run {
        let mut run = Run {
            world,
            chance: Chance(world.seed),
            now_us: 0,
            numbered: 0,
            events: BinaryHeap::new(),
            pending: Vec::new(),
            requests: Vec::new(),
            counts: HashMap::new(),
            caches: (0..4).map(|_| DenyCache::default()).collect(),
            habit: Habit::default(),
            passed: HashMap::new(),
            outcome: Outcome::default(),
        };
        for (number, (at_us, charge)) in arrivals.iter().enumerate() {
            run.requests.push(Request {
                charge: charge.clone(),
                proxy: number % 4,
                arrived_us: *at_us,
                reserve: None,
                decided: None,
            });
            run.at(*at_us, Event::Arrive(number));
        }
        run
    }

    fn at(&mut self, at_us: u64, event: Event) {
        self.numbered += 1;
        self.pending.push(Some(event));
        let index = self.pending.len() - 1;
        self.events.push(Reverse((at_us, self.numbered, index)));
    }

    /// Sends a message; it may not arrive.
    fn send(&mut self, event: Event) {
        if self.chance.below(1000) < self.world.lost {
            return;
        }
        // Half a round trip on average, mostly less and now and then twice as much.
        let half_us = self.world.round_trip_us / 2;
        let delay_us = match self.chance.below(20) {
            0 => half_us + self.chance.below(2 * half_us),
            _ => half_us / 2 + self.chance.below(half_us * 7 / 10),
        };
        self.at(self.now_us + delay_us, event);
    }

    fn clock_us(&self, place: u16) -> u64 {
        let skew = Chance(self.world.seed ^ u64::from(place)).below(2 * self.world.skew_us + 1);
        EPOCH_US + self.now_us + skew
    }

    fn finish(mut self) -> Outcome {
        while let Some(Reverse((at_us, _, index))) = self.events.pop() {
            self.now_us = at_us;
            match self.pending[index].take().unwrap() {
                Event::Arrive(number) => self.arrive(number),
                Event::AtPlace(number, part) => self.decide(number, part),
                Event::Reply(number, part, decision) => self.replied(number, part, decision),
                Event::Refund(number, part, stamps) => self.refund(number, part, &stamps),
                Event::RefundOldest(number, index, stamp) => {
                    self.refund_oldest(number, index, stamp);
                }
                Event::Deadline(number) => {
                    self.drive(number, |reserve, charge| reserve.give_up(charge))
                }
            }
        }
        for (units, window_us, entries) in self.passed.values_mut() {
            let percent = 100.0 * fullest(entries, *window_us) as f64 / *units as f64;
            self.outcome.fullest = self.outcome.fullest.max(percent);
        }
        self.outcome
    }

    fn arrive(&mut self, number: usize) {
        let request = &mut self.requests[number];
        let cache = &self.caches[request.proxy];
        if self.world.cache && cache.find(&request.charge, self.now_us, false).is_some() {
            return;
        }
        let one_by_one = match self.world.mode {
            Mode::AllAtOnce => false,
            Mode::NarrowFirst => true,
            Mode::Learned => self.habit.one_by_one(),
        };
        request.reserve = Some(Reserve::new(&request.charge, place, false, one_by_one));
        self.at(self.now_us + DEADLINE_US, Event::Deadline(number));
        self.drive(number, |reserve, _| reserve.begin());
    }

    fn drive(&mut self, number: usize, step: impl FnOnce(&mut Reserve, &Charge) -> Steps) {
        let request = &mut self.requests[number];
        let (charge, proxy) = (request.charge.clone(), request.proxy);
        let steps = step(request.reserve.as_mut().unwrap(), &charge);
        for step in steps {
            match step {
                Step::Ask(part) => {
                    self.outcome.calls += 1;
                    self.send(Event::AtPlace(number, part));
                }
                Step::Refund(part, stamps) => {
                    self.outcome.calls += 1;
                    self.outcome.refunds += 1;
                    if self.world.again != Again::Never && self.chance.below(5) == 0 {
                        let blind = self.world.again == Again::Blind;
                        let stamps = if blind {
                            SmallVec::new()
                        } else {
                            stamps.clone()
                        };
                        self.send(Event::Refund(number, part, stamps));
                    }
                    self.send(Event::Refund(number, part, stamps));
                }
                Step::Answer(Ok(decision)) => {
                    self.habit.learn(!decision.allowed);
                    if decision.allowed {
                        self.pass(&charge, &decision);
                        if self.world.oldest && self.chance.below(3) == 0 {
                            self.return_later(number, &decision);
                        }
                    } else if self.world.cache {
                        let span = CallSpan {
                            sent_us: self.requests[number].arrived_us,
                            came_us: self.now_us,
                        };
                        self.caches[proxy].note_within(GIVES_BACK_US, &charge, &decision, span);
                    }
                    assert!(self.requests[number].decided.replace(decision).is_none());
                }
                // The policy decides; here it denies.
                Step::Answer(Err(_)) => {}
            }
        }
    }

    fn pass(&mut self, charge: &Charge, decision: &Decision) {
        self.outcome.admitted += 1;
        for (item, verdict) in charge.iter().zip(&decision.verdicts) {
            let rule = item.window.rule;
            let entry = self.passed.entry(item.id());
            let (_, _, entries) = entry.or_insert((rule.units, rule.window_us, Vec::new()));
            entries.push((verdict.stamp, item.cost));
        }
    }

    /// Each item's units are given back when some time has passed.
    fn return_later(&mut self, number: usize, decision: &Decision) {
        let in_us = self.chance.below(200_000);
        for (index, verdict) in decision.verdicts.iter().enumerate() {
            self.outcome.returns += 1;
            // A lost message is one that never arrives.
            if self.chance.below(1000) >= self.world.lost {
                let event = Event::RefundOldest(number, index, verdict.stamp);
                let delay_us = self.chance.below(self.world.round_trip_us);
                self.at(self.now_us + in_us + delay_us, event);
            }
        }
    }

    /// The place takes the oldest units. The request that is meant, which still counts, has passed
    /// with fewer.
    fn refund_oldest(&mut self, number: usize, index: usize, stamp: u64) {
        let item = &self.requests[number].charge[index];
        let (rule, now_us) = (item.window.rule, self.clock_us(place(item)));
        let cost = item.cost;
        let (_, _, entries) = self.passed.get_mut(&item.id()).unwrap();
        let meant = entries.iter_mut().find(|entry| **entry == (stamp, cost));
        if let Some(meant) = meant.filter(|(stamp, _)| stamp + rule.window_us > now_us) {
            meant.1 = 0;
            let count = self.counts.get_mut(&item.id()).unwrap();
            count.refund_oldest(&rule, cost, now_us);
        }
    }

    /// A place decides on a part's items, all or nothing, as the script does.
    fn decide(&mut self, number: usize, part: usize) {
        let request = &self.requests[number];
        let reserve = request.reserve.as_ref().unwrap();
        let charge = reserve.charge_of(part, &request.charge);
        let now_us = self.clock_us(reserve.parts()[part].place);
        let decision = decide(&mut self.counts, &charge, now_us);
        self.send(Event::Reply(number, part, decision));
    }

    fn replied(&mut self, number: usize, part: usize, decision: Decision) {
        self.drive(number, |reserve, charge| {
            reserve.replied(part, Ok(decision), charge)
        });
    }

    fn refund(&mut self, number: usize, part: usize, stamps: &[u64]) {
        let request = &self.requests[number];
        let reserve = request.reserve.as_ref().unwrap();
        let now_us = self.clock_us(reserve.parts()[part].place);
        for (index, item) in reserve.charge_of(part, &request.charge).iter().enumerate() {
            let (rule, count) = (item.window.rule, self.counts.get_mut(&item.id()).unwrap());
            let look = count.first_pass(&rule, 0, now_us);
            // Who does not say what it takes back takes the last that came.
            let newest = count.settle(&rule, 0, &look, false).stamp;
            let stamp = stamps.get(index).copied().unwrap_or(newest);
            count.refund(&rule, item.cost, stamp, now_us);
        }
    }
}

fn decide(counts: &mut HashMap<u128, Count>, charge: &Charge, now_us: u64) -> Decision {
    let look = |counts: &mut HashMap<u128, Count>, item: &tidegate::limit::LimitCheck| {
        let rule = item.window.rule;
        let count = counts
            .entry(item.id())
            .or_insert_with(|| Count::new(rule.algorithm));
        count.first_pass(&rule, item.cost, now_us)
    };
    let looks: Vec<_> = charge.iter().map(|item| look(counts, item)).collect();
    let allowed = looks.iter().all(|look| look.retry == Retry::Now);
    let settle = |(item, look): (&tidegate::limit::LimitCheck, _)| {
        let count = counts.get_mut(&item.id()).unwrap();
        count.settle(&item.window.rule, item.cost, look, allowed)
    };
    Decision {
        allowed,
        at_us: now_us,
        spread_us: 0,
        verdicts: charge.iter().zip(&looks).map(settle).collect(),
    }
}

fn fullest(entries: &mut [(u64, u64)], window_us: u64) -> u64 {
    entries.sort_unstable();
    let (mut from, mut held, mut most) = (0, 0, 0);
    for at in 0..entries.len() {
        held += entries[at].1;
        while entries[from].0 + window_us <= entries[at].0 {
            held -= entries[from].1;
            from += 1;
        }
        most = most.max(held);
    }
    most
}

/// `count` requests at `rate` a second on average.
fn arrivals(
    chance: &mut Chance,
    (count, rate): (u64, u64),
    mut charge: impl FnMut(&mut Chance) -> Charge,
) -> Vec<(u64, Charge)> {
    let mut at_us = 0;
    let mut next = |_| {
        at_us += chance.below(2_000_000 / rate + 1);
        (at_us, charge(chance))
    };
    (0..count).map(&mut next).collect()
}

/// What one store that holds everything would admit.
fn atomically(arrivals: &[(u64, Charge)]) -> u64 {
    let mut counts = HashMap::new();
    let allowed = arrivals
        .iter()
        .filter(|(at_us, charge)| decide(&mut counts, charge, EPOCH_US + at_us).allowed);
    allowed.count() as u64
}

/// Whatever is lost and however clocks differ, nothing is ever overfull; where refunds are sent
/// twice it is: very much if they do not say what they take back, and a little even if they do, for
/// charges of one instant are one entry.
#[test]
fn no_window_is_ever_overfull_unless_refunds_are_repeated() {
    let (mut most, mut blind, mut same) = (0.0_f64, 0.0_f64, 0.0_f64);
    let (mut requests, mut returns) = (0, 0);
    for seed in 1..=60 {
        let mut chance = Chance(seed);
        let limits: Vec<Arc<Limit>> = [("all", 40), ("team", 20), ("each", 8)]
            .into_iter()
            .map(|(name, units)| {
                let window = std::time::Duration::from_millis(100 + chance.below(400));
                limit(name, log_rule(units + chance.below(units), window))
            })
            .collect();
        let trace = arrivals(&mut chance, (1500, 2000), |chance| {
            let (who, cost) = (chance.below(20), 1 + chance.below(5));
            let whose = [0, 100 + who % 4, 200 + who];
            let skipped = chance.below(4) as usize;
            let asked = limits
                .iter()
                .zip(whose)
                .enumerate()
                .filter(|(at, _)| *at != skipped);
            asked
                .map(|(_, (limit, who))| item(limit, who, cost))
                .collect()
        });
        requests += trace.len();
        let world = World {
            seed,
            mode: chance.pick(&[Mode::AllAtOnce, Mode::NarrowFirst, Mode::Learned]),
            cache: chance.below(2) == 0,
            round_trip_us: chance.pick(&[500, 2_000, 10_000]),
            lost: chance.pick(&[0, 10, 100]),
            skew_us: 50_000,
            again: Again::Never,
            oldest: chance.below(2) == 0,
        };
        let outcome = Run::new(world, &trace).finish();
        assert!(outcome.fullest <= 100.0, "{}: {world:?}", outcome.fullest);
        most = most.max(outcome.fullest);
        returns += outcome.returns;
        let control = World {
            again: Again::Blind,
            cache: false,
            oldest: false,
            ..world
        };
        blind = blind.max(Run::new(control, &trace).finish().fullest);
        let control = World {
            again: Again::Same,
            oldest: false,
            ..world
        };
        same = same.max(Run::new(control, &trace).finish().fullest);
    }
    println!("{requests} requests: fullest window {most:.2} %; twice and blind: {blind:.1} %");
    println!("a fifth of the refunds twice, by their stamps: {same:.1} %");
    println!("{returns} items gave their units back, of the oldest");
    assert!(returns > 1_000, "{returns}");
    assert!(most > 99.0, "{most}: limits were not reached");
    assert!(blind > 110.0, "{blind}: the control shows nothing");
}

/// What it costs: 300/s for all, 10/s for each of 150 clients, 5,000 requests a second over four
/// proxies.
#[test]
fn little_is_held_back_for_what_is_refused() {
    let second = std::time::Duration::from_secs(1);
    let (all, each) = (
        limit("all", log_rule(300, second)),
        limit("each", log_rule(10, second)),
    );
    let trace = arrivals(&mut Chance(7), (20_000, 5_000), |chance| {
        // A few clients ask for most of it.
        let drawn = chance.below(1_000_000) as f64 / 1e6;
        let who = (150.0 * drawn.powi(12)) as u64;
        [item(&all, 1_000, 1), item(&each, who, 1)]
            .into_iter()
            .collect()
    });
    let ideal = atomically(&trace);
    for round_trip_us in [2_000, 10_000] {
        for (mode, cache, least, calls) in [
            (Mode::AllAtOnce, false, 85.0, 3.0),
            (Mode::AllAtOnce, true, 95.0, 1.0),
            (Mode::NarrowFirst, false, 95.0, 2.4),
            (Mode::Learned, true, 95.0, 1.0),
        ] {
            let world = World {
                seed: 7,
                mode,
                cache,
                round_trip_us,
                lost: 0,
                skew_us: 0,
                again: Again::Never,
                oldest: false,
            };
            let outcome = Run::new(world, &trace).finish();
            let admitted = 100.0 * outcome.admitted as f64 / ideal as f64;
            let per_request = outcome.calls as f64 / trace.len() as f64;
            println!(
                "{round_trip_us} us, {mode:?}, cache {cache}: admitted {admitted:.1} % of atomic, \
                 {per_request:.2} calls a request, {} refunds, fullest {:.1} %",
                outcome.refunds, outcome.fullest
            );
            assert!(outcome.fullest <= 100.0, "{}", outcome.fullest);
            assert!(admitted > least, "{admitted}");
            assert!(per_request < calls, "{per_request}");
        }
    }
}
