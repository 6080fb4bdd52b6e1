//! What must hold in a simulated world: the counts of each budget, and the invariants over them.

use std::collections::BTreeMap;
use std::fmt;

use crate::limit::{Algorithm, LimitCheck};

/// An invariant that does not hold.
#[derive(Clone, Debug)]
pub(super) struct Violation {
    pub(super) what: String,
    pub(super) budget: Option<u128>,
    pub(super) at_us: u64,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.what)
    }
}

#[derive(Clone, Copy, Debug)]
struct Admitted {
    by: usize,
    at_us: u64,
    cost: u64,
}

/// The units that a limit allows from an instant on: the most of all proxies.
#[derive(Clone, Copy, Debug)]
struct Allowed {
    from_us: u64,
    units: u64,
}

/// One budget: a limit and a key.
#[derive(Clone, Debug)]
pub(super) struct Budget {
    pub(super) item: LimitCheck,
    pub(super) limit: usize,
    /// When the day ends, if it counts by days.
    day_ends_us: Option<u64>,
    admitted: Vec<Admitted>,
    allowed: Vec<Allowed>,
    /// Units above the limit that `docs/outages.md` concedes.
    pub(super) excused: u64,
    /// Units that calls have charged, and those of calls whose answer was lost.
    pub(super) charged: u64,
    pub(super) charged_lost: u64,
    /// The same of debts.
    pub(super) settled: u64,
    pub(super) settled_lost: u64,
    /// Units of requests that the store admitted, that the share refused after the store had
    /// granted them, and of those that left before they were answered, or whose proxy ended.
    pub(super) by_store: u64,
    pub(super) refused: u64,
    pub(super) left: u64,
    /// When it denied a request last.
    pub(super) denied_at_us: u64,
    /// Units of requests that proxies admitted by themselves.
    pub(super) alone: u64,
    /// Units that the store gave back.
    pub(super) refunded: u64,
    /// Slots in use, and the most of them while all was well.
    pub(super) in_use: u64,
}

impl Budget {
    pub(super) fn new(item: LimitCheck, limit: usize, day_ends_us: u64) -> Budget {
        let is_daily = item.window.rule.algorithm == Algorithm::Calendar;
        Budget {
            limit,
            day_ends_us: is_daily.then_some(day_ends_us),
            admitted: Vec::new(),
            allowed: vec![Allowed {
                from_us: 0,
                units: item.window.rule.units,
            }],
            item,
            excused: 0,
            charged: 0,
            charged_lost: 0,
            settled: 0,
            settled_lost: 0,
            by_store: 0,
            refused: 0,
            left: 0,
            denied_at_us: 0,
            alone: 0,
            refunded: 0,
            in_use: 0,
        }
    }

    pub(super) fn is_slots(&self) -> bool {
        self.item.window.rule.algorithm == Algorithm::Slots
    }

    pub(super) fn is_daily(&self) -> bool {
        self.day_ends_us.is_some()
    }

    /// The first instant whose units count at `now_us`.
    pub(super) fn counts_from(&self, now_us: u64) -> u64 {
        match self.day_ends_us {
            Some(day_ends_us) if now_us >= day_ends_us => day_ends_us,
            Some(_) => 0,
            None => (now_us + 1).saturating_sub(self.item.window.rule.window_us),
        }
    }

    pub(super) fn name(&self) -> String {
        format!("{} of key {}", self.item.limit.name, self.item.tag.0[0])
    }

    /// A request passes that this proxy has admitted.
    pub(super) fn admit(&mut self, by: usize, at_us: u64, cost: u64) {
        self.admitted.push(Admitted { by, at_us, cost });
    }

    /// The units of a request that passed at `at_us` are given back.
    pub(super) fn refund(&mut self, by: usize, at_us: u64, cost: u64) {
        let found = self.admitted.iter_mut().rev();
        let mut found = found.filter(|one| (one.by, one.at_us, one.cost) == (by, at_us, cost));
        if let Some(one) = found.next() {
            one.cost = 0;
        }
    }

    /// Units that a proxy admitted up to `to_us`, of those that counted at `at_us`.
    pub(super) fn own_units(&self, by: usize, to_us: u64, at_us: u64) -> u64 {
        let from_us = self.counts_from(at_us);
        let counts = |one: &&Admitted| one.at_us <= to_us && one.at_us >= from_us;
        let own = self
            .admitted
            .iter()
            .filter(|one| one.by == by)
            .filter(counts);
        own.map(|one| one.cost).sum()
    }

    /// Units that other proxies admitted from `from_us` on.
    pub(super) fn admitted_by_others(&self, than: usize, from_us: u64) -> u64 {
        let others = self
            .admitted
            .iter()
            .filter(|one| one.by != than && one.at_us >= from_us);
        others.map(|one| one.cost).sum()
    }

    /// Units that a proxy admitted from `from_us` on.
    pub(super) fn admitted_by(&self, by: usize, from_us: u64) -> u64 {
        let own = self
            .admitted
            .iter()
            .filter(|one| one.by == by && one.at_us >= from_us);
        own.map(|one| one.cost).sum()
    }

    /// From now on some proxy allows so many units, and none more.
    pub(super) fn allow(&mut self, from_us: u64, units: u64) {
        self.allowed.push(Allowed { from_us, units });
    }

    /// The most units that were allowed at some time from `from_us` to `to_us`.
    pub(super) fn units_within(&self, from_us: u64, to_us: u64) -> u64 {
        let mut most = 0;
        for (index, allowed) in self.allowed.iter().enumerate() {
            let until_us = self
                .allowed
                .get(index + 1)
                .map_or(u64::MAX, |next| next.from_us);
            if allowed.from_us <= to_us && until_us >= from_us {
                most = most.max(allowed.units);
            }
        }
        most
    }

    /// Units admitted from `from_us` on.
    pub(super) fn admitted_since(&self, from_us: u64) -> u64 {
        let later = self.admitted.iter().filter(|one| one.at_us >= from_us);
        later.map(|one| one.cost).sum()
    }

    /// Checks every window. Returns the units of the fullest, in thousandths of what it may hold.
    fn check_windows(&mut self) -> Result<u64, Overfull> {
        self.admitted.sort_by_key(|one| one.at_us);
        // A proxy that decides alone goes by its own clock, which may gain this in a window.
        let drifts_us = match self.alone > 0 && !self.is_daily() {
            true => self.item.window.rule.window_us / 5_000,
            false => 0,
        };
        let (mut from, mut held, mut fullest) = (0, 0, 0);
        for (index, one) in self.admitted.iter().enumerate() {
            held += one.cost;
            let from_us = self.counts_from(one.at_us) + drifts_us;
            while self.admitted[from].at_us < from_us {
                held -= self.admitted[from].cost;
                from += 1;
            }
            // Requests of one instant are counted together.
            let next = self.admitted.get(index + 1);
            if next.is_some_and(|next| next.at_us == one.at_us) {
                continue;
            }
            let units = self.units_within(from_us, one.at_us);
            if held > units + self.excused {
                return Err(Overfull {
                    at_us: one.at_us,
                    held,
                    units,
                });
            }
            fullest = fullest.max(held * 1_000 / units.max(1));
        }
        Ok(fullest)
    }

    /// Checks that no unit was charged twice. With `has_lost`, the store has lost some memory.
    fn check_charges(&self, is_leased: bool, has_lost: bool) -> Result<(), String> {
        let received = self.charged - self.charged_lost;
        // A request over several nodes gives back what some have granted.
        let wanted = self.by_store + self.refused + self.left + self.refunded;
        if received > wanted && !is_leased {
            return Err(format!(
                "{} was charged {received} units by calls that were answered, for {wanted} units \
                 of requests",
                self.name()
            ));
        }
        if received < self.by_store && !is_leased {
            return Err(format!(
                "{} admitted {} units in the name of the store, which granted {received}",
                self.name(),
                self.by_store
            ));
        }
        let paid = self.settled - self.settled_lost;
        if paid > self.alone && !has_lost {
            return Err(format!(
                "{} was charged debts of {paid} units, and owed {}",
                self.name(),
                self.alone
            ));
        }
        Ok(())
    }
}

/// A window that holds too much.
struct Overfull {
    /// When it ends.
    at_us: u64,
    held: u64,
    units: u64,
}

/// All budgets of a world.
#[derive(Clone, Debug, Default)]
pub(super) struct Books {
    pub(super) budgets: BTreeMap<u128, Budget>,
}

impl Books {
    /// The most units that are conceded to a budget.
    pub(super) fn conceded(&self) -> u64 {
        let conceded = self.budgets.values().map(|budget| budget.excused);
        conceded.max().unwrap_or_default()
    }

    /// Checks the books at the end. Returns the fullest window, in thousandths.
    pub(super) fn check(&mut self, has_lost: bool) -> Result<u64, Violation> {
        let mut fullest = 0;
        for (id, budget) in &mut self.budgets {
            if budget.is_slots() {
                continue;
            }
            let checked = budget.check_windows().map_err(|overfull| Violation {
                what: format!(
                    "a window of {} that ends at {} us holds {} units, and {} are allowed; {} more \
                     are conceded",
                    budget.name(),
                    overfull.at_us,
                    overfull.held,
                    overfull.units,
                    budget.excused
                ),
                budget: Some(*id),
                at_us: overfull.at_us,
            });
            fullest = fullest.max(checked?);
            let is_leased = budget.item.limit.lease_us > 0;
            let checked = budget.check_charges(is_leased, has_lost);
            checked.map_err(|what| Violation {
                what,
                budget: Some(*id),
                at_us: u64::MAX,
            })?;
        }
        Ok(fullest)
    }
}
