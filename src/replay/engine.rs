//! The engine: each request of a log goes the way it would go through the proxy, up to the
//! decision, with the log's clock.
//!
//! Route, canonical path, client address, keys, tiers, exemptions and counts are the proxy's own
//! code. What the log lacks is what the limit's `missing` says, and is told.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::net::IpAddr;
use std::sync::Arc;

use http::{HeaderMap, HeaderValue, StatusCode};
use smallvec::SmallVec;

use super::course::Course;
use super::entry::Entry;
use super::held::{Held, Release};
use super::logs::Line;
use super::meter::{Ask, Entry as Keyed, Looked};
pub use super::outside::Outside;
use super::plan::Plan;
use super::rates::{RATES, Rates};
use super::series::{Minutes, Timeline};
use super::spaces::Spaces;
use super::target::split;
use super::ways::{Sent, Ways};
use crate::config::Config;
use crate::limit::key::{Derived, Facts, KeyStanding};
use crate::limit::{Algorithm, Window};
use crate::route::{RouteMatch, RouteQuery};

mod lane;
mod reading;

use lane::Lane;
use reading::{Reading, parse};

/// What a row has seen.
#[derive(Clone, Debug, Default)]
pub struct Seen {
    /// Requests that asked it.
    pub asked: u64,
    /// Those that it denies at each rate.
    pub denied: Rates<u64>,
    /// When.
    pub minutes: Minutes,
    /// Clients that were forgotten: how many needed each limit.
    pub forgotten: HashMap<u32, u64>,
    /// Those of them that each rate would have denied something.
    pub forgotten_hit: Rates<u64>,
}

/// What the whole log has.
#[derive(Clone, Debug, Default)]
pub struct Totals {
    /// Requests.
    pub requests: u64,
    /// Those that are denied at each rate.
    pub denied: Rates<u64>,
    /// Those that asked no limit.
    pub outside: HashMap<Outside, u64>,
    /// The first time and the last, microseconds since the epoch.
    pub times: Option<(u64, u64)>,
    /// Requests that a limit of requests at once could not count: the log does not say how long
    /// they took.
    pub untimed: u64,
    /// Requests whose API key is not known, on routes that count by it.
    pub unknown_keys: u64,
    /// Requests that a limit exempts, for each limit.
    pub exempt: HashMap<usize, u64>,
}

/// Replays requests.
#[derive(Debug)]
pub struct Engine {
    reading: Reading,
    /// What is counted for whom.
    pub plan: Plan,
    /// Keys, and what the log had of them.
    pub spaces: Spaces,
    /// What each row has seen.
    pub seen: Vec<Seen>,
    /// All rows together.
    pub totals: Totals,
    /// Requests, what is denied, and what each row denies, over time.
    pub timeline: Timeline,
    /// The clock.
    pub course: Course,
    max_keys: usize,
    held: BinaryHeap<Reverse<Release>>,
    headers: HeaderMap,
    /// Where targets went that came before; nowhere if nothing is to be remembered.
    ways: Option<Ways>,
    /// What plain requests ask on each route.
    lanes: Vec<Option<Lane>>,
    /// The path of one of those, where a key has it.
    lane_path: String,
    /// The time of the line before, as the log says it and as it was taken.
    last_us: (u64, u64),
}

/// What one request asks of one window.
#[derive(Debug)]
struct Item {
    row: usize,
    ask: Ask,
}

type Items = SmallVec<[Item; 4]>;

impl Engine {
    /// Replays through `config`; `host` is asked for where the log does not say it.
    pub fn new(config: Config, host: &str, max_keys: usize) -> Engine {
        let plan = Plan::new(&config);
        let rows = plan.rows.len();
        let by_headers = config.routes.iter().any(|route| !route.headers.is_empty());
        let reading = Reading {
            by_headers,
            routes: config.routes,
            bypass: config.bypass,
            client_ip: config.client_ip,
            api_key: config.api_key,
            jwt: config.jwt,
            tiers: config.tier,
            host: host.to_owned(),
        };
        let spaces = Spaces::new(&plan.spaces, &reading.api_key.from);
        Engine {
            lanes: lane::all(&reading, &plan, &spaces),
            lane_path: String::new(),
            last_us: (u64::MAX, 0),
            spaces,
            seen: vec![Seen::default(); rows],
            totals: Totals::default(),
            timeline: Timeline::new(2 + rows),
            course: Course::default(),
            max_keys: max_keys.max(16),
            held: BinaryHeap::new(),
            headers: HeaderMap::new(),
            ways: Some(Ways::default()),
            plan,
            reading,
        }
    }

    /// Replays a line; false if it must be told in full.
    pub fn take_line(&mut self, line: Line<'_, '_>) -> bool {
        match line {
            Line::Plain(plain) => self.take_plain(plain),
            Line::Whole(entry) => {
                self.take(entry);
                true
            }
        }
    }

    /// Replays one request.
    pub fn take(&mut self, entry: &Entry<'_>) {
        let now_us = self.arrive(entry.at_us);
        self.note_headers(entry);
        if let Err(outside) = self.read(entry, now_us) {
            *self.totals.outside.entry(outside).or_default() += 1;
        }
    }

    /// A request comes; returns when.
    fn arrive(&mut self, at_us: u64) -> u64 {
        let (last_us, taken_us) = self.last_us;
        let now_us = match at_us == last_us {
            // Of the same second as the one before.
            true => taken_us,
            false => self.advance(at_us),
        };
        self.totals.requests += 1;
        self.timeline.note(0);
        self.release(now_us);
        now_us
    }

    fn advance(&mut self, at_us: u64) -> u64 {
        let now_us = self.course.at(at_us);
        let (first_us, last_us) = self.totals.times.unwrap_or((now_us, now_us));
        self.totals.times = Some((first_us.min(now_us), last_us.max(now_us)));
        self.timeline.go(now_us);
        // Lines that the clock does not follow are each looked at.
        if now_us == at_us {
            self.last_us = (at_us, now_us);
        } else {
            self.last_us = (u64::MAX, 0);
        }
        now_us
    }

    /// Headers that nobody asks about are left alone.
    fn note_headers(&mut self, entry: &Entry<'_>) {
        self.headers.clear();
        for (name, value) in &entry.headers {
            let wanted = self.plan.headers.iter();
            let mut wanted = wanted.filter(|one| one.as_str().eq_ignore_ascii_case(name));
            if let Some(name) = wanted.next()
                && let Ok(value) = HeaderValue::from_bytes(value.as_bytes())
            {
                self.headers.append(name, value);
            }
        }
    }

    /// What `Limiter::read` does, unless the same target went somewhere already.
    fn read(&mut self, entry: &Entry<'_>, now_us: u64) -> Result<(), Outside> {
        let Engine {
            reading, headers, ..
        } = self;
        let (authority, path, query) = split(&entry.target);
        let said = authority.or(entry.host.as_deref());
        let sent = Sent {
            method: entry.method,
            host: said.unwrap_or(&reading.host),
            path,
        };
        let mut counting = Counting {
            plan: &mut self.plan,
            spaces: &mut self.spaces,
            totals: &mut self.totals,
            seen: &mut self.seen,
            timeline: &mut self.timeline,
            held: &mut self.held,
            max_keys: self.max_keys,
            now_us,
        };
        // Where headers decide, only requests without any go the same way.
        let ways = self.ways.as_mut();
        let mut ways = ways.filter(|_| headers.is_empty() || !reading.by_headers);
        let hash = ways.as_ref().map_or(0, |ways| ways.hash(&sent));
        let known = ways.as_ref();
        if let Some((parsed, found)) =
            known.and_then(|ways| ways.find(hash, &sent, &reading.routes))
        {
            let facts = reading.facts(parsed, &found, (query, headers));
            return reading.ask(entry, &found, (facts, now_us), |facts, of| {
                counting.ask(entry, &found, facts, of)
            });
        }
        let parsed = parse(&sent, &reading.routes)?;
        let ask = RouteQuery {
            host: &parsed.host,
            path: &parsed.path,
            method: &parsed.method,
            headers,
        };
        let found = reading.routes.find(&ask).ok_or(Outside::NoRoute)?;
        if let Some(ways) = &mut ways {
            ways.keep(hash, &sent, &parsed, &found);
        }
        let facts = reading.facts(&parsed, &found, (query, headers));
        reading.ask(entry, &found, (facts, now_us), |facts, of| {
            counting.ask(entry, &found, facts, of)
        })
    }

    /// Routes whose responses say what a request weighed, which no log does.
    pub fn settles(&self) -> Vec<String> {
        let routes = self.reading.routes.iter();
        let settling = routes.filter(|route| route.settle.is_some());
        settling.map(|route| format!("`{}`", route.name)).collect()
    }

    /// Limits that have forgotten keys, and how many.
    pub fn forgotten(&self) -> Vec<(String, u64)> {
        let rows = self.plan.rows.iter().zip(&self.seen);
        let count = |seen: &Seen| seen.forgotten.values().sum::<u64>();
        rows.filter(|(_, seen)| !seen.forgotten.is_empty())
            .map(|(row, seen)| (row.window.policy.to_string(), count(seen)))
            .collect()
    }

    /// Lets go of what requests held that have ended by now.
    fn release(&mut self, now_us: u64) {
        while let Some(Reverse(first)) = self.held.peek()
            && first.at_us <= now_us
        {
            if let Some(Reverse(release)) = self.held.pop() {
                release.apply(&mut self.plan.meters, now_us);
            }
        }
    }
}

/// All that a request that asks limits changes.
struct Counting<'e> {
    plan: &'e mut Plan,
    spaces: &'e mut Spaces,
    totals: &'e mut Totals,
    seen: &'e mut [Seen],
    timeline: &'e mut Timeline,
    held: &'e mut Held,
    max_keys: usize,
    now_us: u64,
}

impl Counting<'_> {
    fn ask(
        &mut self,
        entry: &Entry<'_>,
        found: &RouteMatch<'_, '_>,
        facts: &Facts<'_>,
        (client, cost): (IpAddr, u64),
    ) -> Result<(), Outside> {
        self.spaces.begin();
        let mut limits = found.route.limits.iter();
        if facts.key_standing() == KeyStanding::Unknown
            && limits.any(|limit| limit.key.asks_api_key())
        {
            self.totals.unknown_keys += 1;
        }
        let (mut charge, mut riders) = (Items::new(), SmallVec::<[Items; 1]>::new());
        for (nth, limit) in found.route.limits.iter().enumerate() {
            let place = self.plan.find(found.route, nth);
            let planned = &self.plan.limits[place];
            let exempt = limit.exempt.has(client, &limit.key, facts);
            match self.spaces.derive(planned.space, facts) {
                Ok(()) => {}
                Err(Derived::Skip) => continue,
                Err(_) if exempt => {}
                Err(_) => return Err(Outside::NoKey),
            }
            if exempt {
                *self.totals.exempt.entry(place).or_default() += 1;
                continue;
            }
            let units = limit.units(cost);
            let windows = limit.windows_of(facts.tier);
            if limit.shadow {
                riders.push(Items::new());
            }
            let own = match riders.last_mut() {
                Some(rider) if limit.shadow => rider,
                _ => &mut charge,
            };
            self.items((place, windows), units, entry, own);
            if !limit.candidate.is_empty() {
                let mut rider = Items::new();
                self.items((place, &limit.candidate), units, entry, &mut rider);
                riders.push(rider);
            }
        }
        let allowed = self.decide(&charge, entry, found);
        for rate in RATES {
            self.totals.denied[rate] += u64::from(!allowed[rate]);
        }
        if !allowed.own {
            self.timeline.note(1);
        }
        for rider in &riders {
            self.decide(rider, entry, found);
        }
        Ok(())
    }

    /// What these windows of a limit are asked.
    fn items(
        &mut self,
        (place, windows): (usize, &[Arc<Window>]),
        cost: u64,
        entry: &Entry<'_>,
        items: &mut Items,
    ) {
        let planned = &self.plan.limits[place];
        let name = self.spaces.name(planned.space);
        for window in windows {
            let row = planned.row(window);
            let Some(known) = self.plan.rows.get(row) else {
                continue;
            };
            if window.rule.algorithm == Algorithm::Slots && entry.duration_us.is_none() {
                self.totals.untimed += 1;
                continue;
            }
            let meter = &mut self.plan.meters[known.meter];
            if meter.entries().len() >= self.max_keys {
                let tell = |one: &Keyed| forget(&mut self.seen[usize::from(one.row)], one);
                let places = meter.forget(self.now_us, tell);
                super::held::moved(self.held, known.meter, &places);
            }
            let place = meter.place(name);
            items.push(Item {
                row,
                ask: Ask {
                    place,
                    cost,
                    units: known.units,
                },
            });
        }
    }

    /// All or nothing, at each rate by itself.
    fn decide(
        &mut self,
        items: &Items,
        entry: &Entry<'_>,
        found: &RouteMatch<'_, '_>,
    ) -> Rates<bool> {
        let refund = &found.route.refund;
        let refunds = !refund.is_empty()
            && StatusCode::from_u16(entry.status).is_ok_and(|status| refund.contains(status));
        // Nearly every request asks one window.
        if let [item] = items.as_slice() {
            let looked = self.look(item);
            let allowed = looked.denies.map(|denies| !denies);
            self.settle((item, &looked), &allowed, entry, refunds);
            return allowed;
        }
        let mut allowed = Rates::default().map(|_: &bool| true);
        let mut looks: SmallVec<[Looked; 4]> = SmallVec::new();
        for item in items {
            let looked = self.look(item);
            for rate in RATES {
                allowed[rate] &= !looked.denies[rate];
            }
            looks.push(looked);
        }
        for asked in items.iter().zip(&looks) {
            self.settle(asked, &allowed, entry, refunds);
        }
        allowed
    }

    fn look(&mut self, Item { row, ask }: &Item) -> Looked {
        let meter = self.plan.rows[*row].meter;
        self.plan.meters[meter].look(ask, self.now_us)
    }

    /// Charges what is allowed, and notes what happened.
    fn settle(
        &mut self,
        (Item { row, ask }, looked): (&Item, &Looked),
        allowed: &Rates<bool>,
        entry: &Entry<'_>,
        refunds: bool,
    ) {
        let meter = self.plan.rows[*row].meter;
        let counts = &mut self.plan.meters[meter];
        let stamps = counts.settle(ask, looked, allowed);
        counts.note(ask.place, u16::try_from(*row).unwrap_or(0), &looked.denies);
        if counts.algorithm() == Algorithm::Slots {
            self.held.push(Reverse(Release {
                at_us: self.now_us + entry.duration_us.unwrap_or(0),
                meter,
                ask: *ask,
                stamps,
                allowed: *allowed,
            }));
        } else if refunds && ask.cost > 0 {
            counts.give_back(ask, &stamps, allowed, self.now_us);
        }
        let seen = &mut self.seen[*row];
        seen.asked += 1;
        for rate in RATES {
            seen.denied[rate] += u64::from(looked.denies[rate]);
        }
        if looked.denies.own {
            seen.minutes.note(self.now_us);
            self.timeline.note(2 + *row);
        }
    }
}

/// What is kept of a key that is forgotten.
fn forget(seen: &mut Seen, entry: &Keyed) {
    *seen.forgotten.entry(entry.need).or_default() += 1;
    for rate in RATES {
        seen.forgotten_hit[rate] += u64::from(entry.hit[rate]);
    }
}

#[cfg(test)]
mod tests;
