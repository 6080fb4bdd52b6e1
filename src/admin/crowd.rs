//! What clients do: who asks most of each limit, and how many of them use how much of it.
//!
//! Made of what the workers' trails tell, on the admin's own thread, in fixed memory: for each of
//! at most [`MOST_LIMITS`] limits a sketch of the busiest ([`top`]) and a sample of all
//! ([`spread`]).

mod spread;
mod top;

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::telemetry::metrics::trail::Seen;
pub(super) use spread::Shares;
use spread::Spread;
pub(super) use top::Client;
use top::Top;

/// Limits whose clients are looked at.
const MOST_LIMITS: usize = 256;
/// For so long a client counts as one who uses a limit, seconds: as long as its window, within
/// these.
const SHORTEST: u64 = 10;
const LONGEST: u64 = 900;
/// How long what the fullest client used is told, seconds.
const LATELY: u64 = 10;

/// See the file's head.
#[derive(Debug, Default)]
pub(super) struct Crowd {
    limits: BTreeMap<Arc<str>, OfLimit>,
    /// Decisions that nobody had the time to look at.
    pub(super) missed: u64,
}

#[derive(Debug)]
struct OfLimit {
    top: Top,
    spread: Spread,
    /// The largest share that a client had used, in this stretch of time and in the one before.
    fullest: [f32; 2],
    stretch: u64,
}

impl Crowd {
    /// A limit whose window has this many seconds said this of a request; the time is in seconds.
    pub(super) fn see(&mut self, limit: &Arc<str>, window: u64, seen: &Seen, now: u64) {
        if self.limits.len() >= MOST_LIMITS && !self.limits.contains_key(limit) {
            return;
        }
        let of_limit = self.limits.entry(Arc::clone(limit));
        let of_limit = of_limit.or_insert_with(|| OfLimit::new(window, now));
        let (left, units) = seen.left;
        let used = match units {
            0 => 0.0,
            units => 1.0 - left.min(units) as f32 / units as f32,
        };
        let tag = u128::from_le_bytes(seen.tag);
        if !seen.again {
            of_limit.top.see(tag, seen.denied, now);
        }
        of_limit.spread.see(tag as u64, used, seen.denied, now);
        of_limit.turn(now);
        of_limit.fullest[0] = of_limit.fullest[0].max(used);
    }

    /// Forgets limits that there are no more.
    pub(super) fn retain(&mut self, is_there: impl Fn(&str) -> bool) {
        self.limits.retain(|name, _| is_there(name));
    }

    /// The busiest clients of a limit, and how many requests there were of all.
    pub(super) fn clients(&self, limit: &str, now: u64) -> (Vec<Client>, u64) {
        let found = self.limits.get(limit);
        found.map_or_else(Default::default, |found| found.top.clients(now))
    }

    /// The client that surely makes this share of a limit's requests, or more, where there are at
    /// least so many.
    pub(super) fn dominant(&self, limit: &str, share: f64, least: u64, now: u64) -> Option<Client> {
        let (clients, all) = self.clients(limit, now);
        let busiest = *clients.first().filter(|_| all >= least)?;
        let sure = busiest.requests.saturating_sub(busiest.error);
        (sure as f64 >= share * all as f64).then_some(busiest)
    }

    /// How many clients use how much of a limit; nothing before the first.
    pub(super) fn shares(&self, limit: &str, now: u64) -> Shares {
        let found = self.limits.get(limit);
        found.map_or_else(Shares::default, |found| found.spread.shares(now))
    }

    /// What the client that had used most of a limit lately had left of it.
    pub(super) fn headroom(&mut self, limit: &str, now: u64) -> Option<f32> {
        let found = self.limits.get_mut(limit)?;
        found.turn(now);
        Some(1.0 - found.fullest[0].max(found.fullest[1]))
    }
}

impl OfLimit {
    fn new(window: u64, now: u64) -> OfLimit {
        OfLimit {
            top: Top::default(),
            spread: Spread::new(window.clamp(SHORTEST, LONGEST)),
            fullest: [0.0; 2],
            stretch: now / LATELY,
        }
    }

    fn turn(&mut self, now: u64) {
        let stretch = now / LATELY;
        if stretch != self.stretch {
            let before = match stretch == self.stretch + 1 {
                true => self.fullest[0],
                false => 0.0,
            };
            (self.fullest, self.stretch) = ([0.0, before], stretch);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn available(client: u128, left: u32) -> Seen {
        Seen {
            tag: client.to_le_bytes(),
            limit: 0,
            denied: left == 0,
            again: false,
            left: (left, 100),
        }
    }

    #[test]
    fn clients_are_told_by_limit() {
        let mut crowd = Crowd::default();
        let login: Arc<str> = "login".into();
        for left in [90, 80, 70] {
            crowd.see(&login, 60, &available(1, left), 100);
        }
        crowd.see(&login, 60, &available(2, 0), 100);
        let (clients, all) = crowd.clients("login", 100);
        assert_eq!((clients.len(), all), (2, 4));
        assert_eq!(
            (clients[0].tag, clients[0].requests, clients[1].denied),
            (1, 3, 1)
        );
        let shares = crowd.shares("login", 100);
        assert_eq!(
            (shares.clients, shares.quarters, shares.denied),
            (2, [0, 1, 0, 1], 1)
        );
        assert_eq!(crowd.headroom("login", 105), Some(0.0));
        assert_eq!(crowd.headroom("login", 200), Some(1.0));
        assert_eq!(crowd.headroom("other", 200), None);
        crowd.retain(|name| name != "login");
        assert!(crowd.clients("login", 100).0.is_empty());
    }

    #[test]
    fn who_makes_nearly_all_requests_is_found() {
        let mut crowd = Crowd::default();
        let login: Arc<str> = "login".into();
        for number in 0..100 {
            let client = if number % 20 == 0 { number } else { 1 };
            crowd.see(&login, 60, &available(client, 90), 100);
        }
        let found = |share, least| crowd.dominant("login", share, least, 100);
        assert_eq!(
            found(0.9, 100).map(|one| (one.tag, one.requests)),
            Some((1, 95))
        );
        assert_eq!(found(0.96, 100), None);
        assert_eq!(found(0.9, 101), None);
        assert_eq!(crowd.dominant("other", 0.0, 0, 100), None);
    }

    #[test]
    fn limits_beyond_the_most_are_not_looked_at() {
        let mut crowd = Crowd::default();
        for number in 0..2 * MOST_LIMITS {
            crowd.see(&number.to_string().into(), 60, &available(1, 1), 100);
        }
        assert_eq!(crowd.limits.len(), MOST_LIMITS);
    }
}
