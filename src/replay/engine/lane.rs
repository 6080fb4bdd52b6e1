//! The short way of plain lines: what a route asks is worked out once, where nothing but a client's
//! address and the path can change it. Everything else goes the long way, which says the same; so
//! does whoever is never charged, or exempt.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use http::{HeaderMap, StatusCode};
use ipnet::IpNet;
use memchr::memchr2;
use smallvec::SmallVec;

use super::super::meter::{Ask, Looked, Meter};
use super::super::plain::Plain;
use super::super::rates::{RATES, Rates};
use super::super::ways::Sent;
use super::reading::{Reading, parse};
use super::{Engine, Plan, RouteQuery, Seen, Spaces, Timeline};
use crate::limit::{Algorithm, Window};
use crate::route::Route;

/// What a plain request asks on one route.
#[derive(Debug)]
pub(super) struct Lane {
    /// First what is charged together, then each trial.
    sets: Vec<Vec<Asked>>,
    /// Keys that are derived, each once.
    spaces: Vec<usize>,
    /// Whether some key has the path in it.
    by_path: bool,
    /// Clients whom some limit does not concern.
    exempt: Vec<IpNet>,
    refunds: bool,
}

/// One window.
#[derive(Clone, Copy, Debug)]
struct Asked {
    row: usize,
    meter: usize,
    space: usize,
    /// Whether its key is the address and nothing else.
    by_ip: bool,
    cost: u64,
    units: Rates<u64>,
}

/// The lanes of all routes, by their numbers; nowhere if every request goes the long way.
pub(super) fn all(reading: &Reading, plan: &Plan, spaces: &Spaces) -> Vec<Option<Lane>> {
    let in_query = reading.api_key.from.reads_query();
    let tier = match &reading.tiers {
        Some(tiers) if tiers.may_be_in_target(in_query) => return Vec::new(),
        Some(tiers) => tiers.default.as_deref(),
        None => None,
    };
    if in_query && reading.bypass.iter().any(|rule| rule.key.is_some()) {
        return Vec::new();
    }
    let lane = |route| Lane::of(route, (plan, spaces), (tier, in_query));
    reading.routes.iter().map(lane).collect()
}

impl Lane {
    fn of(
        route: &Route,
        (plan, spaces): (&Plan, &Spaces),
        (tier, in_query): (Option<&str>, bool),
    ) -> Option<Lane> {
        let mut lane = Lane {
            sets: vec![Vec::new()],
            spaces: Vec::new(),
            by_path: false,
            exempt: Vec::new(),
            refunds: !route.refund.is_empty(),
        };
        let cost = route.cost.units(&HeaderMap::new(), false);
        for (nth, limit) in route.limits.iter().enumerate() {
            let place = plan.find(route, nth);
            let space = plan.limits[place].space;
            // A key that is exempt is in no header here, and may be in a query.
            if !spaces.is_bare(space) || in_query && !limit.exempt.keys.is_empty() {
                return None;
            }
            lane.exempt.extend(&limit.exempt.nets);
            if !lane.spaces.contains(&space) {
                lane.spaces.push(space);
            }
            let by_ip = spaces.is_by_ip(space);
            lane.by_path |= !by_ip;
            let asked = |window: &Arc<Window>| {
                let row = plan.limits[place].row(window);
                let known = plan.rows.get(row)?;
                (window.rule.algorithm != Algorithm::Slots).then_some(Asked {
                    row,
                    meter: known.meter,
                    space,
                    by_ip,
                    cost: limit.units(cost),
                    units: known.units,
                })
            };
            let own: Option<Vec<Asked>> = limit.windows_of(tier).iter().map(asked).collect();
            match limit.shadow {
                true => lane.sets.push(own?),
                false => lane.sets[0].extend(own?),
            }
            if !limit.candidate.is_empty() {
                let rider: Option<Vec<Asked>> = limit.candidate.iter().map(asked).collect();
                lane.sets.push(rider?);
            }
        }
        Some(lane)
    }
}

impl Engine {
    /// Replays one plain request, if that can be done the short way; else nothing is done.
    pub fn take_plain(&mut self, plain: &Plain<'_>) -> bool {
        let Some(number) = self.lane_of(plain) else {
            return false;
        };
        let Some(Some(lane)) = self.lanes.get(number) else {
            return false;
        };
        let asked = lane.sets.iter().flatten();
        let mut meters = asked.map(|asked| self.plan.meters[asked.meter].entries().len());
        // Where room must be made, or a peer may speak for others, the other way knows how.
        if meters.any(|keys| keys >= self.max_keys) {
            return false;
        }
        let peer = IpAddr::from(plain.peer);
        if lane.exempt.iter().any(|net| net.contains(&peer)) {
            return false;
        }
        let trusted = &self.reading.client_ip.trusted;
        if !trusted.is_empty() && self.reading.client_ip.trusts(peer) {
            return false;
        }
        let ip = match self.reading.client_ip.group(peer) {
            IpAddr::V4(ip) => ip,
            IpAddr::V6(_) => return false,
        };
        let now_us = self.arrive(plain.at_us);
        let lane = self.lanes[number].as_ref();
        let Some(lane) = lane.filter(|lane| !lane.spaces.is_empty()) else {
            *self
                .totals
                .outside
                .entry(super::Outside::Unlimited)
                .or_default() += 1;
            return true;
        };
        for space in &lane.spaces {
            self.spaces.pass_bare(*space);
        }
        let refunds = lane.refunds
            && StatusCode::from_u16(plain.status).is_ok_and(|status| {
                let route = self.reading.routes.iter().nth(number);
                route.is_some_and(|route| route.refund.contains(status))
            });
        let mut going = Going {
            meters: &mut self.plan.meters,
            seen: &mut self.seen,
            timeline: &mut self.timeline,
            spaces: &mut self.spaces,
            of: (ip, &self.lane_path),
            now_us,
            refunds,
        };
        let mut sets = lane.sets.iter();
        let allowed = sets.next().map(|set| going.decide(set)).unwrap_or_default();
        for set in sets {
            going.decide(set);
        }
        if !(allowed.half && allowed.own && allowed.twice) {
            for rate in RATES {
                self.totals.denied[rate] += u64::from(!allowed[rate]);
            }
            if !allowed.own {
                self.timeline.note(1);
            }
        }
        true
    }

    /// The number of the route that a plain request takes, unless it is never charged; its path is
    /// in `lane_path` where it matters.
    fn lane_of(&mut self, plain: &Plain<'_>) -> Option<usize> {
        let ways = self.ways.as_mut().filter(|_| !self.lanes.is_empty())?;
        let reading = &self.reading;
        let end = memchr2(b'?', b'#', plain.target).unwrap_or(plain.target.len());
        let path = &plain.target[..end];
        let hash = ways.hash_of(plain.method, &reading.host, path);
        let by_path = |number: usize| {
            let lane = self.lanes.get(number).and_then(Option::as_ref);
            lane.is_some_and(|lane| lane.by_path)
        };
        if let Some((number, path)) = ways.route_of(hash, (plain.method, &reading.host), path) {
            let case = reading.case_of(number);
            if reading.spares(path, plain.peer.into(), case) {
                return None;
            }
            if by_path(number) {
                self.lane_path.clear();
                self.lane_path.push_str(path.in_case(case).as_str());
            }
            return Some(number);
        }
        let sent = Sent {
            method: plain.method,
            host: &reading.host,
            path: std::str::from_utf8(path).ok()?,
        };
        let parsed = parse(&sent, &reading.routes).ok()?;
        self.headers.clear();
        let found = reading.routes.find(&RouteQuery {
            host: &parsed.host,
            path: &parsed.path,
            method: &parsed.method,
            headers: &self.headers,
        })?;
        let number = found.route.number;
        ways.keep(hash, &sent, &parsed, &found);
        let case = found.route.case;
        if reading.spares(&parsed.path, plain.peer.into(), case) {
            return None;
        }
        if by_path(number) {
            self.lane_path.clear();
            self.lane_path.push_str(parsed.path.in_case(case).as_str());
        }
        Some(number)
    }
}

/// All that a plain request changes.
struct Going<'e> {
    meters: &'e mut [Meter],
    seen: &'e mut [Seen],
    timeline: &'e mut Timeline,
    spaces: &'e mut Spaces,
    /// The client's address, and the path where a key has it.
    of: (Ipv4Addr, &'e str),
    now_us: u64,
    refunds: bool,
}

impl Going<'_> {
    /// All or nothing, at each rate by itself.
    fn decide(&mut self, set: &[Asked]) -> Rates<bool> {
        if let [asked] = set {
            let ask = self.place(asked);
            let looked = self.meters[asked.meter].look(&ask, self.now_us);
            let allowed = looked.denies.map(|denies| !denies);
            self.settle(asked, &ask, &looked, &allowed);
            return allowed;
        }
        let mut allowed = Rates::default().map(|_: &bool| true);
        let mut looks: SmallVec<[(Ask, Looked); 4]> = SmallVec::new();
        for asked in set {
            let ask = self.place(asked);
            let looked = self.meters[asked.meter].look(&ask, self.now_us);
            for rate in RATES {
                allowed[rate] &= !looked.denies[rate];
            }
            looks.push((ask, looked));
        }
        for (asked, (ask, looked)) in set.iter().zip(&looks) {
            self.settle(asked, ask, looked, &allowed);
        }
        allowed
    }

    fn place(&mut self, asked: &Asked) -> Ask {
        let (ip, path) = self.of;
        let meter = &mut self.meters[asked.meter];
        let recent = if asked.by_ip { meter.recent(ip) } else { None };
        let place = recent.unwrap_or_else(|| {
            let name = self.spaces.bare_name(asked.space, ip, path);
            match asked.by_ip {
                true => meter.place_of(ip, name),
                false => meter.place(name),
            }
        });
        Ask {
            place,
            cost: asked.cost,
            units: asked.units,
        }
    }

    fn settle(&mut self, asked: &Asked, ask: &Ask, looked: &Looked, allowed: &Rates<bool>) {
        let counts = &mut self.meters[asked.meter];
        let stamps = counts.settle(ask, looked, allowed);
        counts.note(
            ask.place,
            u16::try_from(asked.row).unwrap_or(0),
            &looked.denies,
        );
        if self.refunds && ask.cost > 0 {
            counts.give_back(ask, &stamps, allowed, self.now_us);
        }
        let seen = &mut self.seen[asked.row];
        seen.asked += 1;
        let denies = &looked.denies;
        if denies.half || denies.own || denies.twice {
            for rate in RATES {
                seen.denied[rate] += u64::from(denies[rate]);
            }
            if denies.own {
                seen.minutes.note(self.now_us);
                self.timeline.note(2 + asked.row);
            }
        }
    }
}

#[cfg(test)]
mod tests;
