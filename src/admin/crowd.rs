//! The clients of each limit: the busiest ones, and how many clients use how much of the limit.
//!
//! The state feeds it with the decisions that workers note. It has a fixed size: for each of at
//! most [`MAX_LIMITS`] limits a sketch of the busiest clients and a sample of all clients.
//!
//! Pure: the time is an argument, in seconds.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::Arc;

use super::schema::described;
use crate::limit::{KeyHash, Limit};
use crate::telemetry::watched::TrailEntry;

/// Limits whose clients are recorded.
const MAX_LIMITS: usize = 256;
/// A client counts as a user of a limit for one window of the limit, within these bounds, seconds.
const SHORTEST: u64 = 10;
const LONGEST: u64 = 900;
/// How long the fullest client of a limit is remembered, seconds.
const FULLEST_PERIOD: u64 = 10;
/// Clients in a sketch of the busiest.
const MAX_BUSIEST: usize = 128;
/// How long a sketch is filled, seconds.
const SKETCH_PERIOD: u64 = 300;
/// Clients in a sample.
const MAX_SAMPLE: usize = 512;

#[derive(Debug, Default)]
pub(super) struct Crowd {
    limits: BTreeMap<Arc<str>, LimitClients>,
}

#[derive(Debug)]
struct LimitClients {
    busiest: TwoPeriods<Sketch, SKETCH_PERIOD>,
    sample: ClientSample,
    /// The largest share of the limit that a client had used.
    fullest: TwoPeriods<f32, FULLEST_PERIOD>,
}

#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct BusiestClients {
    /// The busiest first.
    pub(super) clients: Vec<BusyClient>,
    /// The requests of all clients.
    pub(super) requests: u64,
}

impl Crowd {
    pub(super) fn record(&mut self, limit: &Limit, entry: &TrailEntry, now: u64) {
        if self.limits.len() >= MAX_LIMITS && !self.limits.contains_key(&limit.name) {
            return;
        }
        let clients = self.limits.entry(Arc::clone(&limit.name));
        let clients = clients.or_insert_with(|| LimitClients {
            busiest: TwoPeriods::default(),
            sample: ClientSample::new(window_s(limit).clamp(SHORTEST, LONGEST)),
            fullest: TwoPeriods::default(),
        });
        let used = used_share(entry);
        clients.busiest.current(now).record(entry);
        let (hash, denied) = (u128::from_le_bytes(entry.tag) as u64, entry.denied);
        clients
            .sample
            .record(SampledRequest { hash, used, denied }, now);
        let fullest = clients.fullest.current(now);
        *fullest = fullest.max(used);
    }

    /// Forgets limits that do not exist any more. Returns whether there were any.
    pub(super) fn retain(&mut self, exists: impl Fn(&str) -> bool) -> bool {
        let before = self.limits.len();
        self.limits.retain(|name, _| exists(name));
        self.limits.len() < before
    }

    /// The busiest clients of a limit in the last five to ten minutes.
    pub(super) fn busiest(&self, limit: &str, now: u64) -> BusiestClients {
        let Some(clients) = self.limits.get(limit) else {
            return BusiestClients::default();
        };
        let mut sum: BTreeMap<KeyHash, BusyClient> = BTreeMap::new();
        let mut requests = 0;
        for sketch in clients.busiest.both(now) {
            requests += sketch.requests;
            for client in sketch.clients.values() {
                let sum = sum
                    .entry(client.tag)
                    .or_insert_with(|| BusyClient::new(client.tag));
                sum.requests += client.requests;
                sum.error += client.error;
                sum.denied += client.denied;
                // The sketch of the running period is the first one.
                if sum.units == 0 {
                    (sum.used, sum.units) = (client.used, client.units);
                }
            }
        }
        let mut clients: Vec<BusyClient> = sum.into_values().collect();
        clients.sort_by_key(|client| (Reverse(client.requests), client.tag));
        BusiestClients { clients, requests }
    }

    /// The client that makes at least this share of a limit's requests, its counting error
    /// considered. `None` where the limit had fewer than `least` requests.
    pub(super) fn dominant(
        &self,
        limit: &str,
        share: f64,
        least: u64,
        now: u64,
    ) -> Option<BusyClient> {
        let all = self.busiest(limit, now);
        let busiest = *all.clients.first().filter(|_| all.requests >= least)?;
        let sure = busiest.requests.saturating_sub(busiest.error);
        (sure as f64 >= share * all.requests as f64).then_some(busiest)
    }

    pub(super) fn usage(&self, limit: &str, now: u64) -> LimitUse {
        let clients = self.limits.get(limit);
        clients.map_or_else(LimitUse::default, |clients| clients.sample.counts(now))
    }

    /// The share of a limit that its fullest client had left in the last seconds.
    pub(super) fn headroom(&self, limit: &str, now: u64) -> Option<f32> {
        let periods = self.limits.get(limit)?.fullest.both(now);
        Some(1.0 - periods.fold(0.0, |most, used| used.max(most)))
    }
}

/// The share of the limit that a client had used after a request.
pub(super) fn used_share(entry: &TrailEntry) -> f32 {
    match entry.units {
        0 => 0.0,
        units => 1.0 - entry.remaining.min(units) as f32 / units as f32,
    }
}

/// The units of the limit that a client had used after a request.
pub(super) fn used_units(entry: &TrailEntry) -> u32 {
    entry.units.saturating_sub(entry.remaining)
}

/// The longest window of a limit, seconds.
fn window_s(limit: &Limit) -> u64 {
    let windows = limit.windows.iter();
    let longest = windows.map(|window| window.rule.window_us).max();
    longest.unwrap_or(0) / 1_000_000
}

/// A value of the running period of so many seconds, and the value of the period before it.
#[derive(Debug, Default)]
struct TwoPeriods<T, const SECONDS: u64> {
    current: T,
    previous: T,
    period: u64,
}

impl<T: Default, const SECONDS: u64> TwoPeriods<T, SECONDS> {
    /// The value of the period at `now`, a new one if that period has just begun.
    fn current(&mut self, now: u64) -> &mut T {
        let period = now / SECONDS;
        if period != self.period {
            let ended = std::mem::take(&mut self.current);
            let follows = period == self.period + 1;
            self.previous = if follows { ended } else { T::default() };
            self.period = period;
        }
        &mut self.current
    }

    /// The values of the period at `now` and of the one before.
    fn both(&self, now: u64) -> impl Iterator<Item = &T> {
        let periods_ago = (now / SECONDS).saturating_sub(self.period);
        let kept = 2_u64.saturating_sub(periods_ago) as usize;
        [&self.current, &self.previous].into_iter().take(kept)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct BusyClient {
    pub(super) tag: KeyHash,
    /// Its requests; at most `error` of them are not its own.
    pub(super) requests: u64,
    pub(super) error: u64,
    /// Its denied requests that were counted; there may be more.
    pub(super) denied: u64,
    /// Units that were used after its last request, of the rate that was used most. Of requests on
    /// several workers in one 100 ms any may be the last.
    pub(super) used: u32,
    /// Units of that rate.
    pub(super) units: u32,
}

impl BusyClient {
    fn new(tag: KeyHash) -> BusyClient {
        BusyClient {
            tag,
            requests: 0,
            error: 0,
            denied: 0,
            used: 0,
            units: 0,
        }
    }

    /// Notes the rate of an entry, unless another rate of the same request was used more.
    fn note_use(&mut self, entry: &TrailEntry) {
        let used = used_units(entry);
        let share = |used: u32, units: u32| f64::from(used) / f64::from(units.max(1));
        if !entry.again || share(used, entry.units) > share(self.used, self.units) {
            (self.used, self.units) = (used, entry.units);
        }
    }
}

/// The Space-Saving sketch (Metwally, Agrawal, El Abbadi 2005) of the busiest clients.
///
/// It holds `k` clients. A new client replaces the client with the fewest requests, and begins with
/// that count as its error. After `n` requests the sketch holds every client with more than `n/k`
/// of them, and for each client that it holds: `requests - error <= true count <= requests`. The
/// sums of two sketches have the sums of their bounds.
#[derive(Debug, Default)]
struct Sketch {
    clients: BTreeMap<KeyHash, BusyClient>,
    requests: u64,
}

impl Sketch {
    /// Records a request, or another rate of the request before.
    fn record(&mut self, entry: &TrailEntry) {
        let tag = KeyHash(entry.tag);
        if !entry.again {
            self.count(tag, entry.denied);
        }
        if let Some(client) = self.clients.get_mut(&tag) {
            client.note_use(entry);
        }
    }

    fn count(&mut self, tag: KeyHash, denied: bool) {
        self.requests += 1;
        if !self.clients.contains_key(&tag) {
            let mut client = BusyClient::new(tag);
            client.error = self.remove_least();
            client.requests = client.error;
            self.clients.insert(tag, client);
        }
        if let Some(client) = self.clients.get_mut(&tag) {
            client.requests += 1;
            client.denied += u64::from(denied);
        }
    }

    /// Makes place for a client. Returns the requests of the client that was removed.
    fn remove_least(&mut self) -> u64 {
        if self.clients.len() < MAX_BUSIEST {
            return 0;
        }
        let least = self.clients.values().min_by_key(|client| client.requests);
        let removed = least
            .map(|client| client.tag)
            .and_then(|tag| self.clients.remove(&tag));
        removed.map_or(0, |client| client.requests)
    }
}

/// A sample of the clients of a limit.
///
/// Hashes of keys are as good as random numbers. So the clients with a hash up to a bound are a
/// fair sample of all clients, and always the same ones. Their number divided by the share of
/// hashes up to the bound estimates all clients. The bound falls when the sample is full, and rises
/// again when it is nearly empty.
#[derive(Debug)]
struct ClientSample {
    /// How long a client counts after its last request, seconds.
    keep_for: u64,
    /// Clients with hashes up to this one are in the sample.
    bound: u64,
    /// When clients without recent requests were last removed.
    cleaned_at: u64,
    clients: BTreeMap<u64, SampledClient>,
}

#[derive(Clone, Copy, Debug)]
struct SampledClient {
    used: f32,
    at: u64,
    denied_at: Option<u64>,
}

/// A request of the client with this hash, after which it had used this share of the limit.
#[derive(Clone, Copy)]
struct SampledRequest {
    hash: u64,
    used: f32,
    denied: bool,
}

described! {
    // The number of clients, by the share of the limit that they had used at their last request: up
    // to a quarter, a half, three quarters, or more. `denied` counts clients that were denied
    // lately.
    #[derive(Copy, Eq)]
    struct LimitUse {
        clients: u64,
        q25: u64,
        q50: u64,
        q75: u64,
        q100: u64,
        denied: u64,
    }
}

impl ClientSample {
    fn new(keep_for: u64) -> ClientSample {
        ClientSample {
            keep_for,
            bound: u64::MAX,
            cleaned_at: 0,
            clients: BTreeMap::new(),
        }
    }

    fn record(&mut self, request: SampledRequest, now: u64) {
        if now >= self.cleaned_at + self.keep_for {
            self.remove_old(now);
            if self.clients.len() < MAX_SAMPLE / 8 {
                self.bound = self.bound.saturating_mul(2);
            }
            self.cleaned_at = now;
        }
        let SampledRequest { hash, used, denied } = request;
        if hash > self.bound {
            return;
        }
        let before = self.clients.get(&hash);
        let denied_before = before.and_then(|before| before.denied_at);
        // Of several rates of one limit, which are recorded one after the other, the fullest
        // counts.
        let used = match before {
            Some(before) if before.at == now => used.max(before.used),
            _ => used,
        };
        let client = SampledClient {
            used,
            at: now,
            denied_at: if denied { Some(now) } else { denied_before },
        };
        self.clients.insert(hash, client);
        if self.clients.len() > MAX_SAMPLE {
            self.remove_old(now);
            self.lower_bound();
        }
    }

    fn remove_old(&mut self, now: u64) {
        let keep_for = self.keep_for;
        self.clients.retain(|_, client| client.at + keep_for >= now);
    }

    fn lower_bound(&mut self) {
        while self.clients.len() > MAX_SAMPLE {
            self.bound /= 2;
            // All hashes above the bound must go: a part of them would not be a fair sample.
            drop(self.clients.split_off(&self.bound.saturating_add(1)));
        }
    }

    fn counts(&self, now: u64) -> LimitUse {
        let scale = u64::MAX as f64 / self.bound as f64;
        let (mut clients, mut quarters, mut denied) = (0, [0; 4], 0);
        let is_recent = |at: u64| at + self.keep_for >= now;
        for one in self.clients.values().filter(|one| is_recent(one.at)) {
            clients += 1;
            let quarter = ((one.used * 4.0).ceil() as usize).clamp(1, 4) - 1;
            quarters[quarter] += 1;
            denied += u64::from(one.denied_at.is_some_and(is_recent));
        }
        let scaled = |count: u64| (count as f64 * scale).round() as u64;
        let [q25, q50, q75, q100] = quarters.map(scaled);
        LimitUse {
            clients: scaled(clients),
            q25,
            q50,
            q75,
            q100,
            denied: scaled(denied),
        }
    }
}

#[cfg(test)]
mod tests;
