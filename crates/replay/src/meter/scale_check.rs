//! Whether a limit holds a request at one of the three rates.

use super::{MeterCharge, MeterFirstPass, Scale, WindowMeter, with_units};
use crate::limit::decide::{Count, FirstPass};
use crate::limit::delay::BookingCheck;
use crate::limit::{Algorithm, Delay, Rule};

/// What a key says to one request at one rate, between the two passes of its decision.
#[derive(Debug)]
pub struct ScaleCheck<'m> {
    count: &'m Count,
    rule: Rule,
    cost: u64,
    first: FirstPass,
}

impl ScaleCheck<'_> {
    pub fn booking(&self, delay: Option<Delay>) -> BookingCheck<'_> {
        BookingCheck {
            count: Some(self.count),
            rule: &self.rule,
            cost: self.cost,
            first: &self.first,
            delay: delay.filter(|_| self.rule.algorithm == Algorithm::Log),
        }
    }
}

impl WindowMeter {
    /// What the key says to a request at one rate. `look` is the first pass at the same instant.
    pub fn scale_check(
        &self,
        charge: &MeterCharge,
        first: &MeterFirstPass,
        scale: Scale,
        now_us: u64,
    ) -> ScaleCheck<'_> {
        let key = &self.keys[charge.place as usize];
        let (rule, cost) = (
            with_units(self.rule, charge.units[scale]),
            charge.costs[scale],
        );
        let fork = key.forks.as_ref().and_then(|forks| forks[scale].as_ref());
        let known = first.forks.as_ref().and_then(|looks| looks[scale]);
        let count = fork.unwrap_or(&key.base);
        ScaleCheck {
            count,
            rule,
            cost,
            first: known.unwrap_or_else(|| count.first_pass(&rule, cost, self.moment(now_us))),
        }
    }
}
