//! What a seed makes of a simulated world: its proxies, limits, clients, network and faults.

use std::fmt::Write as _;

pub(super) const MS: u64 = 1_000;
pub(super) const SECOND: u64 = 1_000_000;
/// 2023-11-15, midnight.
const SOME_DAY_US: u64 = 1_700_006_400 * SECOND;

/// A sequence of random numbers.
#[derive(Clone, Debug)]
pub(super) struct Dice(u64);

impl Dice {
    pub(super) fn new(seed: u64) -> Dice {
        let mut dice = Dice(seed.wrapping_add(1).wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1);
        for _ in 0..4 {
            dice.below(2);
        }
        dice
    }

    /// A number from 0 on, below `bound`.
    pub(super) fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % bound.max(1)
    }

    pub(super) fn between(&mut self, least: u64, most: u64) -> u64 {
        least + self.below(most - least + 1)
    }

    pub(super) fn percent(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    pub(super) fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.below(of.len() as u64) as usize]
    }
}

/// What happens to the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outage {
    /// Nothing.
    Calm,
    KilledAndKeeps,
    Frozen,
    /// It answers, and refuses to write.
    Refusing,
    KilledAndEmpty,
    Flushed,
    /// Killed; a replica that lags takes over.
    Failover,
    /// The same at once, while the master serves.
    Handover,
}

pub(super) const OUTAGES: [Outage; 8] = [
    Outage::Calm,
    Outage::KilledAndKeeps,
    Outage::Frozen,
    Outage::Refusing,
    Outage::KilledAndEmpty,
    Outage::Flushed,
    Outage::Failover,
    Outage::Handover,
];

impl Outage {
    pub(super) fn label(self) -> &'static str {
        match self {
            Outage::Calm => "well",
            Outage::KilledAndKeeps => "killed, back with its data",
            Outage::Frozen => "frozen, and thawed",
            Outage::Refusing => "refuses to write",
            Outage::KilledAndEmpty => "killed, back empty",
            Outage::Flushed => "flushed",
            Outage::Failover => "killed; a replica takes over",
            Outage::Handover => "a replica takes over at once",
        }
    }

    /// Whether the store comes back with less than it had.
    pub(super) fn loses(self) -> bool {
        matches!(
            self,
            Outage::KilledAndEmpty | Outage::Flushed | Outage::Failover | Outage::Handover
        )
    }

    pub(super) fn is_at_once(self) -> bool {
        matches!(self, Outage::Flushed | Outage::Handover)
    }
}

/// What happens to one of the proxies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mishap {
    None,
    Killed,
    /// Killed, and started again a while later.
    Restarted,
    Stopped,
    /// A second process takes over, and this one drains.
    Upgraded,
    /// The store answers nothing for a moment before it goes away.
    Stalled,
    /// The same, and it is silent for one proxy only.
    CutOff,
}

pub(super) const MISHAPS: [Mishap; 7] = [
    Mishap::None,
    Mishap::Killed,
    Mishap::Restarted,
    Mishap::Stopped,
    Mishap::Upgraded,
    Mishap::Stalled,
    Mishap::CutOff,
];

/// What a limit is about, beside its rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Plain,
    /// Some requests get their units back.
    Refunds,
    /// It holds requests.
    Delayed,
    /// It limits concurrent requests.
    Slots,
    /// Busy keys are leased.
    Leased,
    /// It counts by days of the calendar.
    Daily,
    /// It bans keys that it denies often.
    Banned,
}

#[derive(Clone, Debug)]
pub(super) struct PlannedLimit {
    pub(super) name: &'static str,
    pub(super) kind: Kind,
    pub(super) units: u64,
    pub(super) window_us: u64,
}

#[derive(Clone, Debug)]
pub(super) struct PlannedClient {
    pub(super) limits: Vec<usize>,
    /// Its key; clients may share one.
    pub(super) key: u8,
    pub(super) cost: u64,
    /// The mean time between two requests.
    pub(super) every_us: u64,
    /// It always asks this proxy, if there is one.
    pub(super) proxy: Option<usize>,
    /// It waits for as long as it is told, and uses its key alone.
    pub(super) is_patient: bool,
    /// How long its admitted requests take.
    pub(super) takes_us: u64,
    /// How many of its requests it leaves before they are answered, percent.
    pub(super) leaves: u64,
    /// How many of its requests get their units back, percent.
    pub(super) refunds: u64,
}

/// A proxy's clock.
#[derive(Clone, Copy, Debug)]
pub(super) struct PlannedClock {
    /// How much it gains, millionths.
    pub(super) drift_ppm: i64,
    /// How far its wall clock is off, microseconds.
    pub(super) off_us: i64,
}

/// Deliberate faults of the simulation itself: each must break an invariant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// Debts are taken for paid, and the store never gets them.
    DebtsDropped,
    /// What gives units back comes again, and names no charge.
    RefundsTwice,
    /// The network repeats calls.
    CallsTwice,
    /// The store tells each proxy that it is alone: no share holds.
    SharesIgnored,
    /// The store tells that every proxy owes nothing.
    AllAreClear,
    /// Waits that the store tells are a tenth shorter.
    ShortWaits,
    /// Waits that the store tells are a fifth longer.
    LongWaits,
    /// Answers of the store are kept from requests.
    AnswersKept,
    /// Slots of requests that end are not given back.
    SlotsKept,
    /// The store begins bans, and tells them to no proxy.
    BansForgotten,
}

pub(super) const FAULTS: [Fault; 10] = [
    Fault::BansForgotten,
    Fault::DebtsDropped,
    Fault::RefundsTwice,
    Fault::CallsTwice,
    Fault::SharesIgnored,
    Fault::AllAreClear,
    Fault::ShortWaits,
    Fault::LongWaits,
    Fault::AnswersKept,
    Fault::SlotsKept,
];

#[derive(Clone, Debug)]
pub(super) struct Plan {
    pub(super) seed: u64,
    /// The Unix time at the beginning.
    pub(super) epoch_us: u64,
    /// When a day ends.
    pub(super) day_ends_us: u64,
    pub(super) fault: Option<Fault>,
    /// Known faults are not conceded.
    pub(super) is_strict: bool,
    pub(super) outage: Outage,
    pub(super) mishap: Mishap,
    /// Masters of a cluster; 1 for a store of one server.
    pub(super) nodes: usize,
    /// The node that the outage hits.
    pub(super) victim: usize,
    pub(super) clocks: Vec<PlannedClock>,
    pub(super) limits: Vec<PlannedLimit>,
    pub(super) clients: Vec<PlannedClient>,
    /// The longest way to the store, microseconds.
    pub(super) way_us: u64,
    /// Calls of which the answer is late or lost, of 10,000.
    pub(super) lost: u64,
    /// How far a replica is behind.
    pub(super) lag_us: u64,
    pub(super) away_at_us: u64,
    pub(super) away_for_us: u64,
    /// The units of the first limit after a reload, and when it comes.
    pub(super) reload: Option<PlannedReload>,
    /// An operator gives a key of the first limit another rate for a while.
    pub(super) order: Option<PlannedOrder>,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct PlannedReload {
    pub(super) at_us: u64,
    pub(super) units: u64,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct PlannedOrder {
    pub(super) at_us: u64,
    pub(super) for_us: u64,
    pub(super) units: u64,
}

impl Plan {
    pub(super) fn from_seed(seed: u64, fault: Option<Fault>) -> Plan {
        let mut dice = Dice::new(seed);
        let outage = dice.pick(&OUTAGES);
        // An answer that lacks units is not noticed so shortly after a stall.
        let mishap = loop {
            let mishap = dice.pick(&MISHAPS);
            let stalls = matches!(mishap, Mishap::Stalled | Mishap::CutOff);
            if !(stalls && outage.is_at_once()) {
                break mishap;
            }
        };
        let proxies = dice.between(2, 6) as usize;
        let clock = |dice: &mut Dice| PlannedClock {
            drift_ppm: dice.below(201) as i64 - 100,
            off_us: dice.below(4 * SECOND) as i64 - 2 * SECOND as i64,
        };
        let clocks = (0..proxies).map(|_| clock(&mut dice)).collect();
        // A node that returns empty shows in answers only, key by key.
        let may_be_cluster = !outage.loses() || outage == Outage::Failover;
        let nodes = match may_be_cluster && outage != Outage::Refusing && dice.percent(40) {
            true => dice.between(2, 3) as usize,
            false => 1,
        };
        let limits = Plan::limits(&mut dice, mishap, nodes);
        let away_at_us = dice.between(4 * SECOND, 6 * SECOND);
        let away_for_us = match outage.is_at_once() {
            true => 0,
            false => dice.between(100 * MS, 5 * SECOND),
        };
        let mut plan = Plan {
            seed,
            epoch_us: 0,
            day_ends_us: 0,
            fault,
            is_strict: false,
            outage,
            mishap,
            nodes,
            victim: dice.below(nodes as u64) as usize,
            clocks,
            clients: Vec::new(),
            way_us: dice.pick(&[500, 2 * MS, 5 * MS]),
            lost: if dice.percent(25) {
                dice.pick(&[5, 50])
            } else {
                0
            },
            lag_us: dice.between(5 * MS, 40 * MS),
            away_at_us,
            away_for_us,
            reload: None,
            order: None,
            limits,
        };
        plan.day_ends_us = dice.between(2 * SECOND, plan.end_us());
        plan.epoch_us = SOME_DAY_US - plan.day_ends_us;
        plan.add_clients(&mut dice);
        if dice.percent(30) {
            plan.reload = Some(PlannedReload {
                at_us: dice.between(2 * SECOND, plan.end_us()),
                units: dice.between(8, 60),
            });
        }
        if dice.percent(30) {
            plan.order = Some(PlannedOrder {
                at_us: dice.between(2 * SECOND, plan.end_us()),
                for_us: dice.between(2 * SECOND, 6 * SECOND),
                units: dice.between(8, 60),
            });
        }
        plan
    }

    fn limits(dice: &mut Dice, mishap: Mishap, nodes: usize) -> Vec<PlannedLimit> {
        // A process that never reached the store goes by its own wall clock.
        let daily = match mishap {
            Mishap::Restarted | Mishap::Upgraded => Kind::Plain,
            _ if nodes > 1 => Kind::Plain,
            _ => Kind::Daily,
        };
        let kinds = [
            Kind::Plain,
            Kind::Refunds,
            Kind::Delayed,
            Kind::Slots,
            Kind::Leased,
            daily,
            Kind::Banned,
        ];
        let kinds = [Kind::Plain, dice.pick(&kinds), dice.pick(&kinds)];
        let many = dice.between(1, 3) as usize;
        let names = ["first", "second", "third"];
        let limit = |(name, kind): (&'static str, Kind)| PlannedLimit {
            name,
            kind,
            units: match kind {
                Kind::Slots => dice.between(6, 20),
                Kind::Banned => dice.between(8, 16),
                Kind::Daily => dice.between(40, 200),
                Kind::Leased => dice.between(600, 900),
                _ => dice.between(8, 40),
            },
            window_us: dice.between(1, 3) * SECOND + dice.below(2) * 500 * MS,
        };
        names.into_iter().zip(kinds).take(many).map(limit).collect()
    }

    fn add_clients(&mut self, dice: &mut Dice) {
        for (number, limit) in self.limits.iter().enumerate() {
            let (units, window_us) = (limit.units, limit.window_us);
            // From half of the limit to four times as much is asked for.
            let demand = match limit.kind {
                Kind::Leased => dice.pick(&[1, 2]),
                _ => dice.pick(&[1, 2, 4, 8]),
            };
            let crowd = dice.between(1, 3);
            let takes_us = dice.between(5 * MS, 400 * MS);
            for member in 0..crowd {
                let cost = if dice.percent(70) {
                    1
                } else {
                    dice.between(1, 3)
                };
                let every_us = match limit.kind {
                    Kind::Slots => takes_us * 2 * crowd / (units * demand),
                    // Each has a key of its own.
                    Kind::Banned => window_us / (units * (2 + demand)),
                    _ => window_us * 2 * crowd * cost / (units * demand),
                };
                let mut limits = vec![number];
                if number > 0 && dice.percent(40) && limit.kind != Kind::Banned {
                    limits.push(0);
                }
                self.clients.push(PlannedClient {
                    limits,
                    // Others must not be banned with it.
                    key: match limit.kind {
                        Kind::Banned => 20 + member as u8,
                        _ => 0,
                    },
                    cost,
                    every_us: every_us.max(200),
                    proxy: dice.percent(30).then(|| dice.below(8) as usize),
                    is_patient: false,
                    takes_us,
                    leaves: if dice.percent(25) { 5 } else { 0 },
                    refunds: if limit.kind == Kind::Refunds { 20 } else { 0 },
                });
            }
            if matches!(limit.kind, Kind::Plain | Kind::Delayed) {
                self.clients.push(PlannedClient {
                    limits: vec![number],
                    key: 1 + number as u8,
                    cost: dice.between(1, 3),
                    every_us: window_us / (2 * units),
                    proxy: dice.percent(50).then(|| dice.below(8) as usize),
                    is_patient: true,
                    takes_us,
                    leaves: 0,
                    refunds: 0,
                });
            }
        }
    }

    pub(super) fn longest_window_us(&self) -> u64 {
        let windows = self.limits.iter().filter(|limit| limit.kind != Kind::Daily);
        let windows = windows.map(|limit| limit.window_us);
        windows.max().unwrap_or_default()
    }

    pub(super) fn back_at_us(&self) -> u64 {
        self.away_at_us + self.away_for_us
    }

    /// When clients stop.
    pub(super) fn end_us(&self) -> u64 {
        self.back_at_us() + 2 * self.longest_window_us() + 4 * SECOND
    }

    /// The configuration of the proxies, before or after the reload.
    pub(super) fn config(&self, is_reloaded: bool) -> String {
        let mut text = match self.nodes {
            1 => "[store]\nurl = \"redis://127.0.0.1:1\"\n".to_owned(),
            _ => "[store]\nurl = \"redis+cluster://127.0.0.1:1\"\n".to_owned(),
        };
        for (number, limit) in self.limits.iter().enumerate() {
            let units = match self.reload.filter(|_| is_reloaded && number == 0) {
                Some(reload) => reload.units,
                None => limit.units,
            };
            let window_ms = limit.window_us / MS;
            let _ = writeln!(text, "[limit.{}]\nkey = \"ip\"", limit.name);
            let _ = match limit.kind {
                Kind::Slots => {
                    writeln!(text, "concurrent = {units}\nhold = \"{window_ms}ms\"")
                }
                Kind::Daily => writeln!(text, "rate = \"{units}/day\""),
                _ => writeln!(text, "rate = \"{units}/{window_ms}ms\""),
            };
            let _ = match limit.kind {
                Kind::Delayed => writeln!(text, "delay = \"{}ms\"", window_ms / 2),
                Kind::Leased => writeln!(text, "lease = \"20ms\""),
                Kind::Daily => writeln!(text, "[limit.{}.calendar]", limit.name),
                Kind::Banned => writeln!(
                    text,
                    "[limit.{}.ban]\nafter = \"4/2s\"\nfor = \"2s\"\nmax_for = \"5s\"",
                    limit.name
                ),
                _ => Ok(()),
            };
        }
        let names: Vec<&str> = self.limits.iter().map(|limit| limit.name).collect();
        let _ = writeln!(text, "[[route]]\npath = \"/\"\nlimits = {names:?}");
        text
    }
}
