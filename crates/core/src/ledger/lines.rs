//! The lines of the ledger: those of a process without a shared store, and the rows of a report.

use std::collections::{BTreeMap, HashMap};

use jiff::ToSpan as _;
use jiff::civil::Date;

use super::{BatchReceipt, LedgerAmounts, LedgerBatch, LedgerClient};

/// Lines in the memory of a process, about 100 bytes each. With more, the oldest days are dropped.
pub const MAX_LINES: usize = 2_000_000;

/// The lines of a day.
pub type DayLines = HashMap<LedgerClient, LedgerAmounts>;

/// The ledger of a process whose store is its memory.
#[derive(Debug, Default)]
pub struct LedgerDays {
    days: BTreeMap<Date, MemoryDay>,
    /// Of all days.
    lines: usize,
}

#[derive(Debug, Default)]
struct MemoryDay {
    lines: DayLines,
    /// Lines of clients with a name.
    clients: usize,
}

impl LedgerDays {
    pub fn add(&mut self, batch: &LedgerBatch, max_clients: usize) -> BatchReceipt {
        let MemoryDay {
            lines: day,
            clients,
        } = self.days.entry(batch.shard.date).or_default();
        let (before, mut receipt) = (day.len(), BatchReceipt::default());
        for line in &batch.lines {
            let is_named = matches!(line.client, LedgerClient::Named(_));
            let is_new = is_named && !day.contains_key(&line.client);
            // A correction downwards is of a request that is in the line of other clients.
            let has_place = *clients < max_clients && !line.amounts.has_negative();
            let client = match is_new && !has_place {
                true => {
                    receipt.other.add(line.amounts);
                    LedgerClient::Other
                }
                false => {
                    *clients += usize::from(is_new);
                    line.client.clone()
                }
            };
            day.entry(client).or_default().add(line.amounts);
        }
        self.lines += day.len() - before;
        receipt.clients = *clients as u64;
        receipt
    }

    /// Drops the days before `first`, and the oldest days if there are too many lines. Returns the
    /// days that were dropped although they are not over.
    pub fn drop_before(&mut self, first: Date) -> Vec<Date> {
        let mut dropped = Vec::new();
        while let Some(entry) = self.days.first_entry() {
            let is_over = *entry.key() < first;
            if !is_over && (self.lines <= MAX_LINES || self.days.len() == 1) {
                break;
            }
            let Some((date, day)) = self.days.pop_first() else {
                break;
            };
            self.lines -= day.lines.len();
            if !is_over {
                dropped.push(date);
            }
        }
        dropped
    }

    pub fn day(&self, date: Date) -> Option<&DayLines> {
        self.days.get(&date).map(|day| &day.lines)
    }
}

/// The days of a range, both ends included.
pub fn days_of(from: Date, to: Date) -> impl Iterator<Item = Date> {
    from.series(1.day()).take_while(move |date| *date <= to)
}

/// The part of time that a row is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LedgerPeriod {
    Day,
    Month,
    /// The whole range.
    Whole,
}

/// A row of a report.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LedgerRow {
    /// `2026-11-26` or `2026-11`; `None` for the whole range.
    pub period: Option<String>,
    /// `None` for all clients together.
    pub client: Option<LedgerClient>,
    pub amounts: LedgerAmounts,
}

/// A report would have more rows than there may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooManyRows;

/// Adds lines up by period and client.
#[derive(Debug)]
pub struct LedgerGroups {
    period: LedgerPeriod,
    by_client: bool,
    max_rows: usize,
    /// By the first day of the period.
    rows: BTreeMap<Option<Date>, BTreeMap<Option<LedgerClient>, LedgerAmounts>>,
    count: usize,
    total: LedgerAmounts,
}

impl LedgerGroups {
    pub fn new(period: LedgerPeriod, by_client: bool, max_rows: usize) -> LedgerGroups {
        LedgerGroups {
            period,
            by_client,
            max_rows,
            rows: BTreeMap::new(),
            count: 0,
            total: LedgerAmounts::default(),
        }
    }

    pub fn add(
        &mut self,
        date: Date,
        client: &LedgerClient,
        amounts: LedgerAmounts,
    ) -> Result<(), TooManyRows> {
        let period = match self.period {
            LedgerPeriod::Day => Some(date),
            LedgerPeriod::Month => Some(date.first_of_month()),
            LedgerPeriod::Whole => None,
        };
        self.total.add(amounts);
        let client = self.by_client.then(|| client.clone());
        let clients = self.rows.entry(period).or_default();
        let before = clients.len();
        clients.entry(client).or_default().add(amounts);
        self.count += clients.len() - before;
        match self.count <= self.max_rows {
            true => Ok(()),
            false => Err(TooManyRows),
        }
    }

    pub fn total(&self) -> LedgerAmounts {
        self.total
    }

    /// The rows by period, then by client.
    pub fn into_rows(self) -> Vec<LedgerRow> {
        let kind = self.period;
        let text = |date: Date| match kind {
            LedgerPeriod::Month => format!("{:04}-{:02}", date.year(), date.month()),
            LedgerPeriod::Day | LedgerPeriod::Whole => date.to_string(),
        };
        let rows = self.rows.into_iter().flat_map(|(period, clients)| {
            let period = period.map(text);
            let row = move |(client, amounts)| LedgerRow {
                period: period.clone(),
                client,
                amounts,
            };
            clients.into_iter().map(row)
        });
        rows.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::super::backlog::{BatchLine, LedgerShard};
    use super::*;

    fn batch(date: Date, lines: &[(&str, i64)]) -> LedgerBatch {
        let line = |(name, requests): &(&str, i64)| BatchLine {
            client: match *name {
                "?" => LedgerClient::Unknown,
                name => LedgerClient::named(name),
            },
            amounts: LedgerAmounts {
                requests: *requests,
                ..LedgerAmounts::default()
            },
        };
        LedgerBatch {
            shard: LedgerShard { date, number: 0 },
            number: 1,
            lines: lines.iter().map(line).collect(),
        }
    }

    fn date(day: i8) -> Date {
        Date::constant(2026, 11, day)
    }

    #[test]
    fn a_day_has_so_many_clients_and_one_line_of_others() {
        let mut ledger = LedgerDays::default();
        ledger.add(&batch(date(26), &[("a", 1), ("?", 5)]), 2);
        let receipt = ledger.add(&batch(date(26), &[("b", 1), ("c", 3), ("a", 1)]), 2);
        assert_eq!((receipt.clients, receipt.other.requests), (2, 3));
        let day = ledger.day(date(26)).unwrap();
        assert_eq!(day[&LedgerClient::named("a")].requests, 2);
        assert_eq!(day[&LedgerClient::Other].requests, 3);
        assert_eq!(day[&LedgerClient::Unknown].requests, 5);
        assert_eq!((day.len(), ledger.lines), (4, 4));
    }

    #[test]
    fn a_correction_of_a_client_without_a_line_is_of_the_line_of_others() {
        let mut ledger = LedgerDays::default();
        ledger.add(&batch(date(26), &[("a", 1), ("b", 3)]), 1);
        ledger.add(&batch(date(26), &[("b", -2)]), 10);
        let day = ledger.day(date(26)).unwrap();
        assert_eq!(day[&LedgerClient::Other].requests, 1);
        assert!(!day.contains_key(&LedgerClient::named("b")));
        ledger.add(&batch(date(26), &[("b", 4), ("a", -1)]), 10);
        let day = ledger.day(date(26)).unwrap();
        assert_eq!(day[&LedgerClient::named("b")].requests, 4);
        assert_eq!(day[&LedgerClient::named("a")].requests, 0);
    }

    #[test]
    fn old_days_are_dropped() {
        let mut ledger = LedgerDays::default();
        for day in 20..=26 {
            ledger.add(&batch(date(day), &[("a", 1)]), 2);
        }
        assert_eq!(ledger.drop_before(date(24)), []);
        assert_eq!(ledger.days.len(), 3);
        ledger.lines += MAX_LINES;
        assert_eq!(ledger.drop_before(date(24)), [date(24), date(25)]);
        assert!(ledger.day(date(26)).is_some(), "today stays");
    }

    #[test]
    fn rows_are_by_period_and_client() {
        let rows = |period, by_client| {
            let mut groups = LedgerGroups::new(period, by_client, 100);
            for (day, name, requests) in [(25, "b", 1), (25, "a", 2), (26, "a", 4)] {
                let amounts = LedgerAmounts {
                    requests,
                    ..LedgerAmounts::default()
                };
                let client = LedgerClient::named(name);
                groups.add(date(day), &client, amounts).unwrap();
            }
            assert_eq!(groups.total().requests, 7);
            let text = |row: LedgerRow| {
                let client = row.client.as_ref().map_or("-", LedgerClient::text);
                let period = row.period.as_deref().unwrap_or("-");
                format!("{period} {client} {}", row.amounts.requests)
            };
            let rows = groups.into_rows().into_iter().map(text);
            rows.collect::<Vec<String>>()
        };
        assert_eq!(
            rows(LedgerPeriod::Day, true),
            ["2026-11-25 a 2", "2026-11-25 b 1", "2026-11-26 a 4"]
        );
        assert_eq!(
            rows(LedgerPeriod::Month, true),
            ["2026-11 a 6", "2026-11 b 1"]
        );
        assert_eq!(rows(LedgerPeriod::Whole, false), ["- - 7"]);
    }

    #[test]
    fn a_range_has_both_ends_and_rows_are_bounded() {
        let days: Vec<String> = days_of(date(29), Date::constant(2026, 12, 1))
            .map(|date| date.to_string())
            .collect();
        assert_eq!(days, ["2026-11-29", "2026-11-30", "2026-12-01"]);
        let mut groups = LedgerGroups::new(LedgerPeriod::Day, true, 1);
        let client = LedgerClient::Unknown;
        assert_eq!(
            groups.add(date(1), &client, LedgerAmounts::default()),
            Ok(())
        );
        let second = groups.add(date(2), &client, LedgerAmounts::default());
        assert_eq!(second, Err(TooManyRows));
    }
}
