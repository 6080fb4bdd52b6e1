//! How many unknown keys each address may ask for.

use std::collections::HashMap;
use std::net::IpAddr;
use std::time::{Duration, Instant};

/// Questions about unknown keys of one address in a second.
const PER_SECOND: u32 = 10;
const SECOND: Duration = Duration::from_secs(1);
/// Addresses at once. Those above it may not ask.
const MAX_ADDRESSES: usize = 100_000;
/// From this number of addresses on, those that are at rest are forgotten.
const MANY_ADDRESSES: usize = 1000;

/// The questions of all addresses about keys that are not known yet.
#[derive(Debug, Default)]
pub(super) struct AddressBudgets {
    addresses: HashMap<IpAddr, AddressBudget>,
    /// When addresses at rest were last looked for.
    tidied: Option<Instant>,
}

#[derive(Debug)]
struct AddressBudget {
    /// The begin of the second that is counted.
    since: Instant,
    /// Keys that turned out unknown in this second.
    unknown: u32,
    under_way: u32,
}

impl AddressBudgets {
    /// Takes a question. Returns false if the address has none left.
    pub(super) fn take(&mut self, ip: IpAddr, now: Instant) -> bool {
        self.tidy(now);
        if self.addresses.len() >= MAX_ADDRESSES && !self.addresses.contains_key(&ip) {
            return false;
        }
        let budget = self.addresses.entry(ip).or_insert(AddressBudget {
            since: now,
            unknown: 0,
            under_way: 0,
        });
        budget.begin_second(now);
        let is_left = budget.unknown + budget.under_way < PER_SECOND;
        budget.under_way += u32::from(is_left);
        is_left
    }

    /// Whether a question that is under way may give its place back: its key may be known.
    pub(super) fn may_be_freed(&self, ip: IpAddr, now: Instant) -> bool {
        let budget = self.addresses.get(&ip);
        budget.is_some_and(|budget| budget.under_way > 0 && budget.unknown_at(now) < PER_SECOND)
    }

    /// Ends a question that was never sent.
    pub(super) fn free(&mut self, ip: IpAddr) {
        if let Some(budget) = self.addresses.get_mut(&ip) {
            budget.under_way = budget.under_way.saturating_sub(1);
        }
    }

    /// Ends a question. A known key costs the address nothing.
    pub(super) fn end(&mut self, ip: IpAddr, is_known: bool, now: Instant) {
        if let Some(budget) = self.addresses.get_mut(&ip) {
            budget.begin_second(now);
            budget.under_way = budget.under_way.saturating_sub(1);
            budget.unknown += u32::from(!is_known);
        }
    }

    fn tidy(&mut self, now: Instant) {
        let is_due = self.tidied.is_none_or(|tidied| now >= tidied + SECOND);
        if is_due && self.addresses.len() >= MANY_ADDRESSES {
            self.tidied = Some(now);
            self.addresses
                .retain(|_, budget| budget.under_way > 0 || now < budget.since + SECOND);
        }
    }
}

impl AddressBudget {
    fn begin_second(&mut self, now: Instant) {
        if now >= self.since + SECOND {
            (self.since, self.unknown) = (now, 0);
        }
    }

    fn unknown_at(&self, now: Instant) -> u32 {
        match now >= self.since + SECOND {
            true => 0,
            false => self.unknown,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock;

    #[test]
    fn an_address_has_ten_unknown_keys_in_a_second() {
        let now = clock::now();
        let (one, other) = ("192.0.2.1".parse().unwrap(), "192.0.2.2".parse().unwrap());
        let mut budgets = AddressBudgets::default();
        for _ in 0..10 {
            assert!(budgets.take(one, now));
        }
        assert!(!budgets.take(one, now) && budgets.take(other, now));
        assert!(budgets.may_be_freed(one, now));
        // A known key gives its place back, an unknown one does not.
        budgets.end(one, true, now);
        assert!(budgets.take(one, now) && !budgets.take(one, now));
        (0..10).for_each(|_| budgets.end(one, false, now));
        assert!(!budgets.take(one, now) && !budgets.may_be_freed(one, now));
        assert!(budgets.take(one, now + SECOND));
    }

    #[test]
    fn addresses_at_rest_are_forgotten() {
        let mut now = clock::now();
        let mut budgets = AddressBudgets::default();
        for number in 0..3 * MANY_ADDRESSES as u32 {
            let ip = IpAddr::from(number.to_be_bytes());
            assert!(budgets.take(ip, now));
            budgets.end(ip, false, now);
            now += Duration::from_millis(2);
        }
        assert!(budgets.addresses.len() <= 2 * MANY_ADDRESSES);
    }
}
