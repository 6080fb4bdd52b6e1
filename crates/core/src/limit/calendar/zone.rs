//! When calendar windows begin and end, in any time zone.
//!
//! A window begins at a wall time of its zone: each date, each week's first day, each month's or
//! each year's anchor, at one time of day. A wall time that a zone skips is the first instant after
//! the gap. One that occurs twice is the first. A date that a zone skips whole begins no day.
//! So windows join without gap or overlap.
//!
//! Pure: the instant is an argument, microseconds since the Unix epoch.

use std::sync::Arc;

use arc_swap::ArcSwapOption;
use jiff::civil::{Date, DateTime, Time, Weekday};
use jiff::tz::{AmbiguousOffset, Offset, TimeZone};
use jiff::{Timestamp, ToSpan};

const HOUR_US: u64 = 3_600_000_000;
const DAY_US: u64 = 24 * HOUR_US;
/// How much longer than its days a window may be, where a zone sets its clocks back. Troll sets
/// them back by two hours each year, and Casey did by three.
const SET_BACK_US: u64 = 3 * HOUR_US;
const SECOND_US: u64 = 1_000_000;
/// Ends of one window by two clocks differ by less.
const CLOCKS_US: u64 = 10 * SECOND_US;
/// Later instants are treated as this one: the year 9000, within the years of a [`Date`].
const LAST_US: u64 = 221_845_392_000_000_000;

/// The length of a calendar window.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CalendarUnit {
    Day,
    Week,
    Month,
    Year,
}

impl CalendarUnit {
    pub const ALL: [CalendarUnit; 4] = [
        CalendarUnit::Day,
        CalendarUnit::Week,
        CalendarUnit::Month,
        CalendarUnit::Year,
    ];

    /// The word in a rate.
    pub const fn word(self) -> &'static str {
        match self {
            CalendarUnit::Day => "day",
            CalendarUnit::Week => "week",
            CalendarUnit::Month => "month",
            CalendarUnit::Year => "year",
        }
    }

    /// The unit whose windows have this longest length, microseconds.
    pub fn of_longest(us: u64) -> Option<CalendarUnit> {
        let mut all = CalendarUnit::ALL.into_iter();
        all.find(|unit| unit.longest_us() == us)
    }

    /// No window of the unit is longer, microseconds. It differs from unit to unit.
    pub const fn longest_us(self) -> u64 {
        let days = match self {
            CalendarUnit::Day => 1,
            CalendarUnit::Week => 7,
            CalendarUnit::Month => 31,
            CalendarUnit::Year => 366,
        };
        days * DAY_US + SET_BACK_US
    }
}

/// The day on which a client's months and years begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AnchorDay {
    /// 1 to 12. A month ignores it. 0 for a day of each month: then years begin on January 1.
    month: u8,
    /// 1 to 31. A shorter month uses its last day.
    day: u8,
}

impl AnchorDay {
    /// The first day of a month, and January 1 of a year.
    pub const FIRST: AnchorDay = AnchorDay { month: 0, day: 1 };

    /// A day of each month. `None` if it is not from 1 to 31. Years begin on January 1.
    pub fn of_month(day: u64) -> Option<AnchorDay> {
        let day = u8::try_from(day).ok()?;
        (1..=31)
            .contains(&day)
            .then_some(AnchorDay { month: 0, day })
    }

    /// The day and month of `2026-02-29`, or of the date of an RFC 3339 time.
    pub fn of_date(text: &str) -> Option<AnchorDay> {
        let date: Date = text.get(..10)?.parse().ok()?;
        let rest = &text[10..];
        let is_date = rest.is_empty() || rest.starts_with(['T', 't', ' ']);
        Some(AnchorDay {
            month: u8::try_from(date.month()).ok()?,
            day: u8::try_from(date.day()).ok()?,
        })
        .filter(|_| is_date)
    }

    /// Reads a day of the month, 1 to 31, or a date.
    pub fn parse(text: &str) -> Option<AnchorDay> {
        let is_number = text.len() <= 2 && text.bytes().all(|byte| byte.is_ascii_digit());
        match is_number {
            true => AnchorDay::of_month(text.parse().ok()?),
            false => AnchorDay::of_date(text),
        }
    }

    pub fn day(self) -> u8 {
        self.day
    }

    /// Whether it has a month too, and so says when years begin.
    pub fn is_date(self) -> bool {
        self.month > 0
    }

    /// The month, 1 to 12, and the day on which years begin.
    fn of_year(self) -> AnchorDay {
        match self.is_date() {
            true => self,
            false => AnchorDay { month: 1, day: 1 },
        }
    }

    /// This day of a month, or the month's last day. `month` is any date of it.
    fn within(self, month: Date) -> Date {
        let day = (self.day as i8).min(month.days_in_month());
        Date::new(month.year(), month.month(), day).unwrap_or(month)
    }
}

/// Where a limit finds the anchor of a client.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum AnchorSource {
    /// All clients have the anchor of the limit.
    #[default]
    Limit,
    /// The word `anchor=15` in the client's line of the file of known keys.
    Keys,
    /// A claim of the client's token: a day of the month or a date.
    Claim(Box<str>),
}

/// A time zone and the name by which the configuration knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Zone {
    pub name: Box<str>,
    pub zone: TimeZone,
}

impl Zone {
    pub fn utc() -> Zone {
        Zone {
            name: "UTC".into(),
            zone: TimeZone::UTC,
        }
    }

    /// A zone without changes of its clocks: `+02:00`, `-03:30`. `None` if the text is no offset.
    pub fn of_offset(text: &str) -> Option<Zone> {
        let sign = match text.as_bytes().first()? {
            b'+' => 1,
            b'-' => -1,
            _ => return None,
        };
        let (hours, minutes) = text[1..].split_once(':')?;
        let number = |text: &str, most: i32| {
            let is_plain = text.len() == 2 && text.bytes().all(|byte| byte.is_ascii_digit());
            let number: i32 = text.parse().ok().filter(|_| is_plain)?;
            (number <= most).then_some(number)
        };
        let seconds = sign * (number(hours, 23)? * 3600 + number(minutes, 59)? * 60);
        let offset = Offset::from_seconds(seconds).ok()?;
        Some(Zone {
            name: text.into(),
            zone: TimeZone::fixed(offset),
        })
    }
}

/// How a limit cuts time into calendar windows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CalendarSettings {
    pub zone: Zone,
    /// The time of day at which every window begins.
    pub day: Time,
    /// The day on which weeks begin.
    pub week: Weekday,
    /// The anchor of clients that have no other.
    pub anchor: AnchorDay,
    pub source: AnchorSource,
}

impl Default for CalendarSettings {
    /// UTC, midnight, Monday, the first day.
    fn default() -> CalendarSettings {
        CalendarSettings {
            zone: Zone::utc(),
            day: Time::midnight(),
            week: Weekday::Monday,
            anchor: AnchorDay::FIRST,
            source: AnchorSource::Limit,
        }
    }
}

/// One window and the one after it, microseconds since the Unix epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CalendarSpan {
    pub start_us: u64,
    /// The window ends before this instant, where the next one begins.
    pub end_us: u64,
    pub next_end_us: u64,
}

/// The windows of one unit of one limit. It remembers the last window of each anchor.
#[derive(Debug)]
pub struct Calendar {
    unit: CalendarUnit,
    settings: Arc<CalendarSettings>,
    /// The window that was last asked for, at the index of its anchor.
    last: Box<[ArcSwapOption<CalendarSpan>]>,
}

impl Calendar {
    pub fn new(unit: CalendarUnit, settings: Arc<CalendarSettings>) -> Calendar {
        let anchors = match unit {
            CalendarUnit::Day | CalendarUnit::Week => 1,
            CalendarUnit::Month => 31,
            CalendarUnit::Year => 12 * 31,
        };
        Calendar {
            unit,
            settings,
            last: (0..anchors).map(|_| ArcSwapOption::empty()).collect(),
        }
    }

    /// Copies the calendar for another worker, without shared memory.
    pub fn deep_copy(&self) -> Calendar {
        Calendar::new(self.unit, Arc::new(CalendarSettings::clone(&self.settings)))
    }

    pub fn unit(&self) -> CalendarUnit {
        self.unit
    }

    pub fn settings(&self) -> &CalendarSettings {
        &self.settings
    }

    /// Zone, time of day and weekday: counts of another calendar are not these counts. The anchor
    /// is no part of it, so that a client whose anchor changes keeps its counts.
    pub fn identity(&self) -> String {
        let CalendarSettings {
            zone, day, week, ..
        } = &*self.settings;
        format!("{} {} {day} {week:?}", self.unit.word(), zone.name)
    }

    /// No window of this calendar is longer, microseconds.
    pub fn longest_us(&self) -> u64 {
        self.unit.longest_us()
    }

    /// The window that holds `at_us` for a client with this anchor. Without an anchor, that of the
    /// limit.
    pub fn span(&self, anchor: Option<AnchorDay>, at_us: u64) -> CalendarSpan {
        let anchor = anchor.unwrap_or(self.settings.anchor);
        let index = match self.unit {
            CalendarUnit::Day | CalendarUnit::Week => 0,
            CalendarUnit::Month => usize::from(anchor.day) - 1,
            CalendarUnit::Year => {
                let anchor = anchor.of_year();
                31 * (usize::from(anchor.month) - 1) + usize::from(anchor.day) - 1
            }
        };
        let last = &self.last[index];
        if let Some(span) = &*last.load()
            && (span.start_us..span.end_us).contains(&at_us)
        {
            return **span;
        }
        let span = self.find(anchor, at_us);
        last.store(Some(Arc::new(span)));
        span
    }

    /// The window that ends at `end_us` as the store counts it. `at_us` is now by the store's
    /// clock, or by this process's clock, which may differ a little. Where the store's window is
    /// none of this calendar, since the anchor has changed, the end is the store's.
    pub fn span_ending(&self, anchor: Option<AnchorDay>, at_us: u64, end_us: u64) -> CalendarSpan {
        let span = self.span(anchor, at_us);
        let is_near = |us: u64| us.abs_diff(end_us) < CLOCKS_US;
        let anchor = anchor.unwrap_or(self.settings.anchor);
        if end_us <= at_us || is_near(span.end_us) {
            span
        } else if is_near(span.next_end_us) {
            self.find(anchor, span.end_us)
        } else {
            let end_us = (end_us + SECOND_US / 2) / SECOND_US * SECOND_US;
            CalendarSpan { end_us, ..span }
        }
    }

    /// Computes the window that holds an instant.
    fn find(&self, anchor: AnchorDay, at_us: u64) -> CalendarSpan {
        let at_us = i64::try_from(at_us.min(LAST_US)).unwrap_or_default();
        let at = Timestamp::from_microsecond(at_us).unwrap_or(Timestamp::UNIX_EPOCH);
        let mut period = self.period(self.settings.zone.zone.to_datetime(at).date());
        while self.start(period, anchor).is_none_or(|start| start > at) {
            period = self.step(period, -1);
        }
        let mut starts = [Timestamp::UNIX_EPOCH; 3];
        starts[0] = self.start(period, anchor).unwrap_or(at);
        let mut known = 0;
        while known < 2 {
            period = self.step(period, 1);
            let Some(start) = self.start(period, anchor) else {
                continue;
            };
            if start <= at {
                starts[0] = start;
            } else if start > starts[known] {
                known += 1;
                starts[known] = start;
            }
        }
        let [start_us, end_us, next_end_us] =
            starts.map(|start| u64::try_from(start.as_microsecond()).unwrap_or(0));
        CalendarSpan {
            start_us,
            end_us,
            next_end_us,
        }
    }

    /// A date that names the day, week, month or year of a date.
    fn period(&self, date: Date) -> Date {
        match self.unit {
            CalendarUnit::Day => date,
            CalendarUnit::Week => {
                let days = date.weekday().since(self.settings.week);
                date.checked_sub(days.days()).unwrap_or(date)
            }
            CalendarUnit::Month => date.first_of_month(),
            CalendarUnit::Year => date.first_of_year(),
        }
    }

    fn step(&self, period: Date, by: i32) -> Date {
        let span = match self.unit {
            CalendarUnit::Day => by.days(),
            CalendarUnit::Week => by.weeks(),
            CalendarUnit::Month => by.months(),
            CalendarUnit::Year => by.years(),
        };
        period.checked_add(span).unwrap_or(period)
    }

    /// The instant at which a period begins. `None` for a day that the zone skips.
    fn start(&self, period: Date, anchor: AnchorDay) -> Option<Timestamp> {
        let date = match self.unit {
            CalendarUnit::Day | CalendarUnit::Week => period,
            CalendarUnit::Month => anchor.within(period),
            CalendarUnit::Year => {
                let anchor = anchor.of_year();
                let month = Date::new(period.year(), anchor.month as i8, 1).unwrap_or(period);
                anchor.within(month)
            }
        };
        let zone = &self.settings.zone.zone;
        let wall = date.to_datetime(self.settings.day);
        let AmbiguousOffset::Gap { before, .. } = zone.to_ambiguous_timestamp(wall).offset() else {
            return zone.to_ambiguous_timestamp(wall).earlier().ok();
        };
        if self.unit == CalendarUnit::Day && is_skipped(zone, date) {
            return None;
        }
        after_gap(zone, wall, before)
    }

    /// `month in Europe/Berlin`
    pub fn name(&self) -> String {
        format!("{} in {}", self.unit.word(), self.settings.zone.name)
    }

    /// The instant as RFC 3339 in the zone, in whole seconds: `2026-12-01T00:00:00+01:00`.
    pub fn text(&self, at_us: u64) -> String {
        let at_us = i64::try_from(at_us.min(LAST_US)).unwrap_or_default();
        let at = Timestamp::from_microsecond(at_us).unwrap_or(Timestamp::UNIX_EPOCH);
        let zone = &self.settings.zone.zone;
        let offset = zone.to_offset(at);
        let minutes = offset.seconds() / 60;
        let sign = if minutes < 0 { '-' } else { '+' };
        let (hours, minutes) = (minutes.abs() / 60, minutes.abs() % 60);
        let wall = zone.to_datetime(at);
        let (date, time) = (wall.date(), wall.time());
        let (hour, minute, second) = (time.hour(), time.minute(), time.second());
        format!("{date}T{hour:02}:{minute:02}:{second:02}{sign}{hours:02}:{minutes:02}")
    }
}

/// Whether no instant of the zone has this date.
fn is_skipped(zone: &TimeZone, date: Date) -> bool {
    let midnight = date.to_datetime(Time::midnight());
    let AmbiguousOffset::Gap { before, .. } = zone.to_ambiguous_timestamp(midnight).offset() else {
        return false;
    };
    let after = after_gap(zone, midnight, before);
    after.is_some_and(|after| zone.to_datetime(after).date() > date)
}

/// The first instant after the gap that holds a wall time. `before` is the offset before the gap.
fn after_gap(zone: &TimeZone, wall: DateTime, before: Offset) -> Option<Timestamp> {
    // By the offset before it, the wall time is an instant after the change, at most a gap later.
    let late = before.to_timestamp(wall).ok()?;
    let mut from = late.checked_add(1.second()).ok()?;
    loop {
        let change = zone.preceding(from).next()?;
        let earlier = change.timestamp().checked_sub(1.second()).ok()?;
        if zone.to_offset(earlier) == before {
            return Some(change.timestamp());
        }
        from = change.timestamp();
    }
}

#[cfg(test)]
mod tests;
