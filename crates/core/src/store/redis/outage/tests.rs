//! Which outages get lines in the log.

use super::*;

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);
const KIND: StoreError = StoreError::Refused;

/// A log, its clock, and the lines so far with their times.
struct TimedLog {
    log: OutageLog,
    now: Instant,
    lines: Vec<OutageLine>,
}

impl TimedLog {
    fn new() -> TimedLog {
        TimedLog {
            log: OutageLog::default(),
            now: clock::now(),
            lines: Vec::new(),
        }
    }

    /// Lets time pass as the reporter's timer does.
    fn pass(&mut self, time: Duration) {
        let until = self.now + time;
        while let Some(due) = self.log.sums_up_at().filter(|due| *due <= until) {
            self.lines.extend(self.log.sum_up(due));
        }
        self.now = until;
    }

    fn outage(&mut self, time: Duration) {
        let since = self.now;
        assert!(self.log.begin(KIND, since));
        if time >= OUTAGE_AFTER {
            self.pass(OUTAGE_AFTER);
            self.lines.extend(self.log.lasts(since, self.now));
            self.pass(time - OUTAGE_AFTER);
        } else {
            self.pass(time);
            let (since, now) = (self.now, self.now);
            assert_eq!(self.log.lasts(since, now), None, "it is another outage");
        }
        self.lines.extend(self.log.end(self.now));
    }

    fn outages(&mut self, count: u32, away: Duration, well: Duration) {
        for _ in 0..count {
            self.outage(away);
            self.pass(well);
        }
    }
}

#[test]
fn an_outage_of_milliseconds_gets_no_line() {
    let mut told = TimedLog::new();
    told.outages(9, 99 * MS, 60 * SECOND);
    assert_eq!(told.lines, []);
    told.outage(100 * MS);
    let after = 100 * MS;
    assert_eq!(
        told.lines,
        [OutageLine::Away(KIND), OutageLine::Back { after }]
    );
}

#[test]
fn many_outages_of_milliseconds_get_one_line() {
    let mut told = TimedLog::new();
    told.outages(10, 50 * MS, 150 * MS);
    told.pass(20 * SECOND);
    let [
        OutageLine::Summary {
            outages,
            away,
            still,
            ..
        },
    ] = told.lines[..]
    else {
        panic!("{:?}", told.lines);
    };
    assert_eq!((outages, away, still), (10, 500 * MS, None));
}

#[test]
fn outages_of_single_workers_are_one() {
    let mut told = TimedLog::new();
    let since = told.now;
    assert!(told.log.begin(KIND, since));
    assert!(!told.log.begin(KIND, since + 30 * MS));
    assert_eq!(
        told.log.lasts(since, since + 100 * MS),
        Some(OutageLine::Away(KIND))
    );
    assert_eq!(told.log.end(since + SECOND), None);
    let after = 2 * SECOND;
    assert_eq!(
        told.log.end(since + after),
        Some(OutageLine::Back { after })
    );
}

#[test]
fn a_store_that_flaps_for_an_hour_gets_few_lines_that_count_every_outage() {
    let mut told = TimedLog::new();
    told.outages(6_000, 300 * MS, 300 * MS);
    told.pass(2 * SUM_UP_AFTER);
    let sums = told
        .lines
        .iter()
        .filter(|line| matches!(line, OutageLine::Summary { .. }));
    assert!(sums.count() <= 360, "one in ten seconds");
    assert!(told.lines.len() <= 2 * 5 + 2 * 360, "{}", told.lines.len());
    let counted: u32 = (told.lines.iter())
        .map(|line| match line {
            OutageLine::Summary { outages, .. } => *outages,
            OutageLine::Away(_) => 1,
            OutageLine::Back { .. } => 0,
        })
        .sum();
    assert_eq!(counted, 6_000);
}

#[test]
fn a_damped_outage_that_lasts_is_told_by_the_sum_and_its_end_too() {
    let mut told = TimedLog::new();
    told.outages(5, 300 * MS, 700 * MS);
    told.lines.clear();
    told.outage(30 * SECOND);
    let [sum, back] = told.lines[..] else {
        panic!("{:?}", told.lines);
    };
    assert_eq!(
        sum,
        OutageLine::Summary {
            outages: 1,
            within: SUM_UP_AFTER,
            away: SUM_UP_AFTER + OUTAGE_AFTER,
            still: Some(KIND),
        }
    );
    assert_eq!(back, OutageLine::Back { after: 30 * SECOND });
}

#[test]
fn a_store_that_was_well_for_a_minute_has_two_lines_for_its_next_outage() {
    let mut told = TimedLog::new();
    told.outages(9, 300 * MS, SECOND);
    told.pass(QUIET);
    assert!(told.log.is_over(told.now));
    told.lines.clear();
    told.outage(SECOND);
    let after = SECOND;
    assert_eq!(
        told.lines,
        [OutageLine::Away(KIND), OutageLine::Back { after }]
    );
}
