//! Time in a log: its clock, counts over the whole log in a bounded number of steps, and the
//! minutes with the most denials.

use std::cmp::Reverse;

use serde::Serialize;

/// Steps of a timeline, at most. Steps grow so that the whole log fits.
const STEPS: usize = 480;
/// Lengths of a step, seconds, each a multiple of the one before. Longer ones double.
const LENGTHS_S: [u64; 10] = [1, 5, 15, 60, 300, 900, 3_600, 10_800, 21_600, 86_400];
const MINUTE_US: u64 = 60_000_000;
/// The number of busiest minutes that are stored.
const BUSIEST: usize = 5;
/// A single line that is further ahead than this is not believed, microseconds.
const LEAP_US: u64 = 32 * 86_400_000_000;
/// Lines further behind than this are not late: the log's clock was set back, microseconds.
const BEHIND_US: u64 = 3_600_000_000;
/// The clock follows lines that are behind after so many in a row.
const BELIEVED: u32 = 16;

#[derive(Debug)]
pub struct Timeline {
    /// The length of a step, seconds.
    pub length_s: u64,
    /// The first step, counted from the epoch.
    first: u64,
    /// For each series a count for each step.
    pub counts: Vec<Vec<u32>>,
    step: usize,
    /// The end of the current step, microseconds.
    end_us: u64,
}

impl Timeline {
    pub fn new(series: usize) -> Timeline {
        Timeline {
            length_s: LENGTHS_S[0],
            first: 0,
            counts: vec![Vec::new(); series],
            step: 0,
            end_us: 0,
        }
    }

    /// Goes to the step of this time. The first step also takes earlier times.
    pub fn advance(&mut self, now_us: u64) {
        let length_us = self.length_s * 1_000_000;
        if now_us < self.end_us && now_us + length_us >= self.end_us {
            return;
        }
        let mut step = now_us / length_us;
        if self.counts[0].is_empty() {
            self.first = step;
        }
        while step.saturating_sub(self.first) >= STEPS as u64 {
            self.widen();
            step = now_us / (self.length_s * 1_000_000);
        }
        self.end_us = (step + 1) * self.length_s * 1_000_000;
        self.step = usize::try_from(step.saturating_sub(self.first)).unwrap_or(0);
        let steps = self.counts[0].len().max(self.step + 1);
        for counts in &mut self.counts {
            counts.resize(steps, 0);
        }
    }

    pub fn note(&mut self, series: usize) {
        if let Some(count) = self.counts[series].get_mut(self.step) {
            *count = count.saturating_add(1);
        }
    }

    fn widen(&mut self) {
        let longer = LENGTHS_S.iter().find(|length| **length > self.length_s);
        let length_s = longer.copied().unwrap_or(self.length_s * 2);
        let factor = length_s / self.length_s;
        let first = self.first / factor;
        for counts in &mut self.counts {
            let mut wide: Vec<u32> = Vec::new();
            for (index, count) in (self.first..).zip(counts.iter()) {
                let place = usize::try_from(index / factor - first).unwrap_or(0);
                wide.resize(wide.len().max(place + 1), 0);
                wide[place] = wide[place].saturating_add(*count);
            }
            *counts = wide;
        }
        (self.length_s, self.first) = (length_s, first);
    }

    /// The beginning of the first step, seconds since the epoch.
    pub fn start_s(&self) -> u64 {
        self.first * self.length_s
    }
}

#[derive(Clone, Debug, Default)]
pub struct BusiestMinutes {
    minute: u64,
    count: u32,
    busiest: Vec<Minute>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Minute {
    /// Its beginning, seconds since the epoch.
    #[serde(rename = "at")]
    pub at_s: u64,
    #[serde(rename = "denied")]
    pub count: u32,
}

impl BusiestMinutes {
    pub fn note(&mut self, now_us: u64) {
        let minute = now_us / MINUTE_US;
        if minute != self.minute {
            self.close();
            (self.minute, self.count) = (minute, 0);
        }
        self.count = self.count.saturating_add(1);
    }

    fn close(&mut self) {
        if self.count > 0 {
            let (at_s, count) = (self.minute * 60, self.count);
            self.busiest.push(Minute { at_s, count });
            let rank = |minute: &Minute| (Reverse(minute.count), minute.at_s);
            self.busiest.sort_by_key(rank);
            self.busiest.truncate(BUSIEST);
        }
    }

    /// The minutes by their counts, the largest first.
    pub fn into_sorted(mut self) -> Vec<Minute> {
        self.close();
        self.busiest
    }
}

/// The log's clock. Its lines set it, and one line cannot set it back.
///
/// Several threads write a log, each line when its request ends. So a line may be a little older
/// than the line before. It is taken at the clock's time.
#[derive(Clone, Debug, Default)]
pub struct LogClock {
    now_us: Option<u64>,
    /// The last line was far ahead, and is not believed yet.
    leapt: bool,
    /// Lines in a row that were far behind.
    behind: u32,
    /// Lines older than the clock.
    pub late: u64,
    /// The largest age of those lines, microseconds.
    pub latest_us: u64,
    /// How often the clock was set back because all lines went on at an earlier time.
    pub steps: u64,
    /// Lines from the far future that no other line confirmed.
    pub leaps: u64,
}

impl LogClock {
    /// Moves the clock to a line's time. Returns the time at which the line is taken.
    pub fn advance(&mut self, at_us: u64) -> u64 {
        let now_us = self.now_us.unwrap_or(at_us);
        let next_us = if at_us >= now_us {
            self.behind = 0;
            self.forward(now_us, at_us)
        } else {
            self.back(now_us, at_us)
        };
        self.now_us = Some(next_us);
        next_us
    }

    fn forward(&mut self, now_us: u64, at_us: u64) -> u64 {
        let leaps = at_us - now_us > LEAP_US;
        if leaps && !self.leapt {
            self.leapt = true;
            return now_us;
        }
        if self.leapt && !leaps {
            self.leaps += 1;
        }
        self.leapt = false;
        at_us
    }

    fn back(&mut self, now_us: u64, at_us: u64) -> u64 {
        let by_us = now_us - at_us;
        if by_us > BEHIND_US {
            self.behind += 1;
            if self.behind >= BELIEVED {
                self.behind = 0;
                self.steps += 1;
                return at_us;
            }
        } else {
            self.behind = 0;
        }
        self.late += 1;
        self.latest_us = self.latest_us.max(by_us);
        now_us
    }
}

#[cfg(test)]
mod tests;
