//! The settings of the ledger, and where its days begin.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use jiff::civil::{Date, Time};

use super::LedgerCount;
use crate::limit::calendar::Zone;
use crate::limit::key::Part;
use crate::limit::{Calendar, CalendarSettings, CalendarUnit};

const DAY: Duration = Duration::from_secs(86_400);

/// `[ledger]`
#[derive(Clone, Debug)]
pub struct LedgerSettings {
    pub by: BilledIdentity,
    /// In the order of [`LedgerCount::ALL`], each once.
    pub counts: Vec<LedgerCount>,
    pub zone: Zone,
    /// The days of `zone`.
    pub(crate) days: Arc<Calendar>,
    pub keep: Duration,
    /// Clients with a line of their own on one day.
    pub max_clients: usize,
}

/// What tells clients apart: a part that they cannot invent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BilledIdentity(pub Part);

impl LedgerSettings {
    /// The default settings, with the days of a zone.
    pub fn of_zone(zone: Zone) -> LedgerSettings {
        let calendar = CalendarSettings {
            zone: zone.clone(),
            ..CalendarSettings::default()
        };
        LedgerSettings {
            by: BilledIdentity(Part::ApiKey),
            counts: LedgerCount::ALL.to_vec(),
            zone,
            days: Arc::new(Calendar::new(CalendarUnit::Day, Arc::new(calendar))),
            keep: DAY * 400,
            max_clients: 100_000,
        }
    }

    /// The same settings, with memory that no other worker writes to.
    pub fn deep_copy(&self) -> LedgerSettings {
        LedgerSettings {
            days: Arc::new(self.days.deep_copy()),
            ..self.clone()
        }
    }

    /// The day of an instant, microseconds since the Unix epoch.
    pub fn date_at(&self, at_us: u64) -> Date {
        let start_us = self.days.span(None, at_us).start_us;
        let start_us = i64::try_from(start_us).unwrap_or_default();
        let start = Timestamp::from_microsecond(start_us).unwrap_or(Timestamp::UNIX_EPOCH);
        self.zone.zone.to_datetime(start).date()
    }

    /// When the lines of a day may be forgotten, milliseconds since the Unix epoch.
    pub fn forget_at_ms(&self, date: Date) -> u64 {
        let start = date.to_datetime(Time::midnight());
        let start = self.zone.zone.to_ambiguous_timestamp(start).compatible();
        let start = start.map_or(0, Timestamp::as_millisecond);
        let kept = u64::try_from((self.keep + DAY).as_millis()).unwrap_or(u64::MAX >> 1);
        u64::try_from(start).unwrap_or(0) + kept
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(zone: &str) -> LedgerSettings {
        LedgerSettings::of_zone(Zone::of_offset(zone).unwrap())
    }

    #[test]
    fn a_day_is_that_of_the_zone() {
        // 2026-11-26 22:30 UTC.
        let at_us = 1_795_732_200_000_000;
        for (zone, day) in [
            ("+00:00", "2026-11-26"),
            ("+01:29", "2026-11-26"),
            ("+01:30", "2026-11-27"),
            ("-22:31", "2026-11-25"),
        ] {
            assert_eq!(settings(zone).date_at(at_us).to_string(), day, "{zone}");
        }
    }

    #[test]
    fn a_day_is_forgotten_after_its_time() {
        let date = Date::constant(2026, 11, 26);
        let end_ms = 1_795_737_600_000;
        let settings = LedgerSettings {
            keep: DAY * 2,
            ..settings("+00:00")
        };
        assert_eq!(settings.forget_at_ms(date), end_ms + 2 * 86_400_000);
    }
}
