//! The sliding-window log: exact. Twin of `lua/log.lua`.
//!
//! A unit admitted at `s` counts at `t` if and only if `t - W < s <= t`. Admissions are stamped up
//! to a multiple of the precision `q`, and `now` is rounded down before ageing. So no window ever
//! holds more than the limit, whatever `q` is. A unit may count up to `q` too long.
//!
//! A log keeps the precision of its entries while some of them count, even if its rule changes. A
//! finer log keeps its precision until the next charge, which rewrites the entries in the rule's
//! precision; no stamp gets earlier. A coarser log keeps its precision until it is empty. So a
//! limit keeps its count when its precision changes.
//!
//! A stamp may be ahead of the clock: a request that is held counts from the time at which it will
//! be forwarded. Units that are admitted meanwhile get the newest stamp, since stamps never go
//! back.
//!
//! A [`Log`] is 80 bytes and holds a ring of one entry for each stamp: 8 bytes where
//! `W / q < 1.8e9` (30 minutes at 1 us), 12 beyond. The first three (two) entries fit inside. The
//! ring then grows by doubling up to `min(L, W / q + 2)` entries, and beyond that for requests that
//! are held. It is freed when it is empty. A refund of one charge may leave an entry without units;
//! the last entry always has units. Time is an argument; nothing here reads a clock.

mod refund;

use super::Rule;

/// Words of a ring inside the log. Most keys send few requests and need no more.
const INSIDE: usize = 6;
/// Entries of the smallest ring outside. glibc puts smaller pieces into bins that it clears in one
/// pass, which takes 30 ms after a million keys have expired.
const OUTSIDE: usize = 16;
/// An empty ring above this many entries is freed.
const SHRINK: usize = 32;
/// A refund works only if at most this many entries came since. This bounds its time.
const MAX_REFUND_ENTRIES: u32 = 4096;
/// A stamp names a charge modulo this.
pub const STAMPS: u64 = 1 << 48;
/// One charge rewrites at most this many entries in a coarser precision. A longer log waits until
/// fewer entries count.
const COARSEN: u32 = 65_536;
/// With this many stamps in a window, the stamp of an entry needs more than 32 bits.
const WIDE: u64 = 1_800_000_000;

/// The admissions of one key that may still count.
#[derive(Clone, Debug, Default)]
pub struct Log {
    ring: Ring,
    head: u32,
    count: u32,
    /// Running total before the first entry, modulo 2^32.
    base: u32,
    /// Running total after the last entry, modulo 2^32.
    total: u32,
    /// Own time of the last admission.
    last_us: u64,
    /// The last entry's stamp, in units of the precision.
    newest: u64,
    /// Own time is the clock plus this. It grows when the clock steps back.
    shift_us: u64,
    /// The unit of the entries' stamps, microseconds.
    precision_us: u64,
}

/// Entries of two words (stamp, total) or three (stamp in two words, total).
#[derive(Clone, Debug)]
enum Ring {
    Inside([u32; INSIDE]),
    Outside(Box<[u32]>),
}

impl Default for Ring {
    fn default() -> Self {
        Ring::Inside([0; INSIDE])
    }
}

impl Ring {
    fn words(&self) -> &[u32] {
        match self {
            Ring::Inside(words) => words,
            Ring::Outside(words) => words,
        }
    }

    fn words_mut(&mut self) -> &mut [u32] {
        match self {
            Ring::Inside(words) => words,
            Ring::Outside(words) => words,
        }
    }
}

/// The state of a log at one instant. Valid until that log changes.
#[derive(Clone, Copy, Debug)]
pub struct AgedLog {
    pub used: u64,
    /// Whether the clock is before the last admission.
    pub stepped: bool,
    own_us: u64,
    shift_us: u64,
    /// Entries that no longer count.
    skip: u32,
    /// Running total before the first entry that counts.
    base: u32,
    /// How long after now a charge is stamped.
    ahead_us: u64,
}

impl AgedLog {
    /// The same state, for a request that is held for so long.
    pub fn ahead(self, ahead_us: u64) -> AgedLog {
        AgedLog { ahead_us, ..self }
    }
}

impl Log {
    /// Ages the log to `now_us`, microseconds, without changing it.
    pub fn age(&self, rule: &Rule, now_us: u64) -> AgedLog {
        match self.own_rule(rule) {
            None => self.age_by(rule, now_us),
            Some(own) => self.age_by(&own, now_us),
        }
    }

    /// The rule of the entries, if their precision is not that of `rule`.
    fn own_rule(&self, rule: &Rule) -> Option<Rule> {
        let is_other = self.count > 0 && self.precision_us != rule.precision_us;
        is_other.then_some(Rule {
            precision_us: self.precision_us,
            ..*rule
        })
    }

    fn age_by(&self, rule: &Rule, now_us: u64) -> AgedLog {
        let mut aged = AgedLog {
            used: 0,
            stepped: now_us + self.shift_us < self.last_us,
            own_us: (now_us + self.shift_us).max(self.last_us),
            shift_us: self.shift_us.max(self.last_us.saturating_sub(now_us)),
            skip: 0,
            base: self.base,
            ahead_us: 0,
        };
        // An entry is live if stamp > tick - span. This form cannot go below zero.
        let tick = ticks(aged.own_us, rule);
        let span = ticks(rule.window_us, rule);
        if self.count == 0 || self.newest + span <= tick {
            aged.skip = self.count;
            return aged;
        }
        aged.skip = self.first_where(0, |i| self.entry(rule, i).0 + span > tick);
        if aged.skip > 0 {
            aged.base = self.entry(rule, aged.skip - 1).1;
        }
        aged.used = u64::from(self.total.wrapping_sub(aged.base));
        aged
    }

    /// Microseconds until at most `room` units count if nothing else is admitted.
    pub fn wait(&self, aged: &AgedLog, rule: &Rule, room: u64) -> u64 {
        if aged.used <= room {
            return 0;
        }
        match self.own_rule(rule) {
            None => self.wait_by(aged, rule, room),
            Some(own) => self.wait_by(aged, &own, room),
        }
    }

    fn wait_by(&self, aged: &AgedLog, rule: &Rule, room: u64) -> u64 {
        if room == 0 {
            return self.wait_for(self.newest, aged, rule);
        }
        let need = aged.used - room;
        let through = |i| u64::from(self.entry(rule, i).1.wrapping_sub(aged.base));
        let place = self.first_where(aged.skip, |i| through(i) >= need);
        self.wait_for(self.entry(rule, place).0, aged, rule)
    }

    /// Microseconds until the units admitted at `stamp` expire.
    fn wait_for(&self, stamp: u64, aged: &AgedLog, rule: &Rule) -> u64 {
        stamp * rule.precision_us + rule.window_us - aged.own_us
    }

    /// The units that are held: their stamps are after that of a unit admitted now.
    pub fn held_units(&self, aged: &AgedLog, rule: &Rule) -> u64 {
        match self.own_rule(rule) {
            None => self.held_units_by(aged, rule),
            Some(own) => self.held_units_by(aged, &own),
        }
    }

    fn held_units_by(&self, aged: &AgedLog, rule: &Rule) -> u64 {
        let edge = ticks_up(aged.own_us, rule);
        if aged.used == 0 || self.newest <= edge {
            return 0;
        }
        let place = self.first_where(aged.skip, |i| self.entry(rule, i).0 > edge);
        let before = match place {
            place if place == aged.skip => aged.base,
            place => self.entry(rule, place - 1).1,
        };
        u64::from(self.total.wrapping_sub(before))
    }

    /// Admits `cost` units (at least 1) at the instant of `aged`. Returns the log's state after
    /// that.
    pub fn charge(&mut self, aged: &AgedLog, rule: &Rule, cost: u64) -> AgedLog {
        match self.own_rule(rule) {
            None => self.charge_by(aged, rule, cost),
            Some(own) => self.charge_in_another_precision(aged, rule, &own, cost),
        }
    }

    #[cold]
    fn charge_in_another_precision(
        &mut self,
        aged: &AgedLog,
        rule: &Rule,
        own: &Rule,
        cost: u64,
    ) -> AgedLog {
        let live = self.count - aged.skip;
        if live == 0 {
            // No entry of the old precision is left.
            self.count = 0;
            self.ring = Ring::default();
            return self.charge_by(&AgedLog { skip: 0, ..*aged }, rule, cost);
        }
        if own.precision_us > rule.precision_us || live > COARSEN {
            return self.charge_by(aged, own, cost);
        }
        self.coarsen(aged, own, rule);
        self.charge_by(&AgedLog { skip: 0, ..*aged }, rule, cost)
    }

    /// Rewrites the live entries from the precision of `old` to the coarser one of `new`.
    fn coarsen(&mut self, aged: &AgedLog, old: &Rule, new: &Rule) {
        let up = |stamp: u64| (stamp * old.precision_us).div_ceil(new.precision_us);
        let mut entries: Vec<(u64, u32)> = Vec::new();
        for place in aged.skip..self.count {
            let (stamp, total) = self.entry(old, place);
            match entries.last_mut() {
                Some(last) if last.0 == up(stamp) => last.1 = total,
                _ => entries.push((up(stamp), total)),
            }
        }
        let needed = entries.len() * words(new);
        self.ring = match needed <= INSIDE {
            true => Ring::default(),
            false => Ring::Outside(vec![0; needed.max(OUTSIDE * words(new))].into_boxed_slice()),
        };
        self.newest = up(self.newest);
        (self.head, self.base, self.precision_us) = (0, aged.base, new.precision_us);
        self.count = u32::try_from(entries.len()).unwrap_or(u32::MAX);
        for (place, (stamp, total)) in (0..).zip(entries) {
            self.put(new, place, stamp, total);
        }
    }

    fn charge_by(&mut self, aged: &AgedLog, rule: &Rule, cost: u64) -> AgedLog {
        let mut stamp = ticks_up(aged.own_us + aged.ahead_us, rule);
        self.total = self
            .total
            .wrapping_add(u32::try_from(cost).unwrap_or(u32::MAX));
        let capacity = self.capacity(rule);
        let live = self.count - aged.skip;
        if live > 0 {
            stamp = stamp.max(self.newest);
        }
        let joins = live > 0 && stamp == self.newest;
        self.head = if live == 0 {
            0
        } else {
            wrapped(self.head, aged.skip, capacity)
        };
        self.base = aged.base;
        if live == 0 {
            // Nothing counts before this admission.
            self.base = self
                .total
                .wrapping_sub(u32::try_from(cost).unwrap_or(u32::MAX));
        }
        self.count = live;
        if !joins {
            self.make_room(rule);
            self.count += 1;
        }
        self.last_us = aged.own_us;
        self.newest = stamp;
        self.precision_us = rule.precision_us;
        self.shift_us = aged.shift_us;
        self.put(rule, self.count - 1, stamp, self.total);
        AgedLog {
            used: aged.used + cost,
            stepped: false,
            skip: 0,
            base: self.base,
            ..*aged
        }
    }

    /// Drops expired entries, and their units in the running totals.
    fn forget_expired(&mut self, aged: &AgedLog, rule: &Rule) {
        self.head = wrapped(self.head, aged.skip, self.capacity(rule));
        self.count -= aged.skip;
        self.base = aged.base;
        self.shift_us = aged.shift_us;
    }

    /// Keeps the ages after a step back of the clock. A denial changes nothing else.
    pub fn keep_ages(&mut self, aged: &AgedLog) {
        self.shift_us = aged.shift_us;
    }

    /// The clock's time (not own time) from which nothing is counted any more.
    pub fn empty_at_us(&self, rule: &Rule) -> u64 {
        let own = self.newest * self.precision_us + rule.window_us;
        own.saturating_sub(self.shift_us)
    }

    /// Names the last admission, so that it can be refunded.
    pub fn last_stamp(&self) -> u64 {
        self.newest & (STAMPS - 1)
    }

    pub fn heap_bytes(&self) -> usize {
        match &self.ring {
            Ring::Inside(_) => 0,
            Ring::Outside(words) => size_of_val(&**words),
        }
    }

    fn capacity(&self, rule: &Rule) -> u32 {
        let words_in_ring = self.ring.words().len();
        // The compiler knows these divisors. A division by a variable takes many times as long.
        let entries = match words(rule) {
            2 => words_in_ring / 2,
            _ => words_in_ring / 3,
        };
        u32::try_from(entries).unwrap_or(u32::MAX)
    }

    /// Entry `i` from the oldest: its stamp and the running total after it.
    fn entry(&self, rule: &Rule, i: u32) -> (u64, u32) {
        let at = self.place(rule, i);
        let ring = self.ring.words();
        let low = ring[at];
        if words(rule) == 2 {
            // All stamps lie within two windows of the last one, so 32 bits suffice.
            let age = (self.newest as u32).wrapping_sub(low);
            return (self.newest - u64::from(age), ring[at + 1]);
        }
        let stamp = u64::from(low) | u64::from(ring[at + 1]) << 32;
        (stamp, ring[at + 2])
    }

    fn put(&mut self, rule: &Rule, i: u32, stamp: u64, total: u32) {
        let at = self.place(rule, i);
        let words = words(rule);
        let ring = self.ring.words_mut();
        ring[at] = stamp as u32;
        if words == 3 {
            ring[at + 1] = (stamp >> 32) as u32;
        }
        ring[at + words - 1] = total;
    }

    fn place(&self, rule: &Rule, i: u32) -> usize {
        wrapped(self.head, i, self.capacity(rule)) as usize * words(rule)
    }

    /// Finds the first entry from `from` on for which `past` holds. `past` must be monotonic and
    /// hold for the last entry. Steps double, since usually only few entries expire.
    fn first_where(&self, from: u32, past: impl Fn(u32) -> bool) -> u32 {
        if past(from) {
            return from;
        }
        let (mut low, mut high, mut step) = (from, self.count - 1, 1);
        while high - low > 1 {
            let middle = low + ((high - low) / 2).min(step);
            if past(middle) {
                high = middle;
            } else {
                low = middle;
            }
            step *= 2;
        }
        high
    }

    /// Makes room for one more entry. A new ring begins with the oldest entry in slot 0.
    fn make_room(&mut self, rule: &Rule) {
        let words = words(rule);
        let (live, capacity) = (self.count as usize, self.ring.words().len() / words);
        if live == 0 && capacity > SHRINK {
            self.ring = Ring::default();
        } else if live == capacity {
            let most = rule.units.min(rule.window_us / rule.precision_us + 2);
            let most = usize::try_from(most).unwrap_or(usize::MAX);
            let most = if live >= most { live + OUTSIDE } else { most };
            let entries = (2 * capacity).min(most).max(OUTSIDE).max(live + 1);
            let mut ring = Vec::with_capacity(entries * words);
            let (newer, older) = self.ring.words().split_at(self.head as usize * words);
            ring.extend_from_slice(older);
            ring.extend_from_slice(newer);
            ring.resize(entries * words, 0);
            self.ring = Ring::Outside(ring.into_boxed_slice());
            self.head = 0;
        }
    }
}

/// Stamps of entries in the store are kept modulo this, a power of two.
pub fn modulus(rule: &Rule) -> u64 {
    if words(rule) == 2 { 1 << 32 } else { STAMPS }
}

/// The place `by` after `head` in a ring. Most places need no slow division.
fn wrapped(head: u32, by: u32, capacity: u32) -> u32 {
    let (past, capacity) = (u64::from(head) + u64::from(by), u64::from(capacity));
    let place = if past < capacity {
        past
    } else {
        past % capacity
    };
    place as u32
}

/// Microseconds in units of the precision, which is 1 for most rules.
fn ticks(us: u64, rule: &Rule) -> u64 {
    match rule.precision_us {
        1 => us,
        precision_us => us / precision_us,
    }
}

/// The same, rounded up.
fn ticks_up(us: u64, rule: &Rule) -> u64 {
    match rule.precision_us {
        1 => us,
        precision_us => us.div_ceil(precision_us),
    }
}

/// Words in an entry.
fn words(rule: &Rule) -> usize {
    // W / q < WIDE without a division. A saturated product is above every window.
    if rule.window_us < rule.precision_us.saturating_mul(WIDE) {
        2
    } else {
        3
    }
}
