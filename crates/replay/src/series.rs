//! What happened when: counts over the whole log in a bounded number of steps, and the minutes that
//! were the worst.
//!
//! Pure.

/// Steps that are kept, at most; steps grow so that the whole log fits.
const STEPS: usize = 480;
/// Lengths of a step, seconds, each a multiple of the one before; beyond, they double.
const LENGTHS_S: [u64; 10] = [1, 5, 15, 60, 300, 900, 3_600, 10_800, 21_600, 86_400];
const MINUTE_US: u64 = 60_000_000;
/// Minutes that are remembered.
const WORST: usize = 5;

/// Counts of several things over time.
#[derive(Debug)]
pub struct Timeline {
    length_s: u64,
    first: u64,
    /// For each thing a count for each step.
    counts: Vec<Vec<u32>>,
    /// The step of now, and when it ends.
    step: usize,
    end_us: u64,
}

impl Timeline {
    /// For so many things.
    pub fn new(things: usize) -> Timeline {
        Timeline {
            length_s: LENGTHS_S[0],
            first: 0,
            counts: vec![Vec::new(); things],
            step: 0,
            end_us: 0,
        }
    }

    /// Goes to the step of this time. What is before the first one belongs to it.
    pub fn go(&mut self, now_us: u64) {
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

    /// Counts one of a thing now.
    pub fn note(&mut self, thing: usize) {
        if let Some(count) = self.counts[thing].get_mut(self.step) {
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

    /// Seconds in a step.
    pub fn length_s(&self) -> u64 {
        self.length_s
    }

    /// When the first step begins, seconds since the epoch.
    pub fn start_s(&self) -> u64 {
        self.first * self.length_s
    }

    /// A thing's counts, step by step.
    pub fn counts(&self, thing: usize) -> &[u32] {
        &self.counts[thing]
    }
}

/// The minutes in which most happened.
#[derive(Clone, Debug, Default)]
pub struct Minutes {
    minute: u64,
    count: u32,
    worst: Vec<Minute>,
}

/// One minute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Minute {
    /// When it began, seconds since the epoch.
    pub at_s: u64,
    /// What was counted in it.
    pub count: u32,
}

impl Minutes {
    /// Counts one.
    pub fn note(&mut self, now_us: u64) {
        let minute = now_us / MINUTE_US;
        if minute != self.minute {
            self.close();
            (self.minute, self.count) = (minute, 0);
        }
        self.count = self.count.saturating_add(1);
    }

    fn close(&mut self) {
        let least = self.worst.last().map_or(0, |minute| minute.count);
        if self.count > least || (self.count > 0 && self.worst.len() < WORST) {
            let at_s = self.minute * 60;
            self.worst.push(Minute {
                at_s,
                count: self.count,
            });
            self.worst
                .sort_by_key(|minute| (std::cmp::Reverse(minute.count), minute.at_s));
            self.worst.truncate(WORST);
        }
    }

    /// The worst ones, the very worst first.
    pub fn worst(mut self) -> Vec<Minute> {
        self.close();
        self.worst
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_grow_until_the_log_fits() {
        let mut line = Timeline::new(2);
        for second in 0..7200 {
            line.go((1_000_000_000 + second) * 1_000_000);
            line.note(0);
            if second % 60 == 0 {
                line.note(1);
            }
        }
        assert_eq!(line.length_s(), 60);
        assert_eq!(line.start_s(), 999_999_960);
        let sums = [0, 1].map(|thing| line.counts(thing).iter().sum::<u32>());
        assert_eq!(sums, [7200, 120]);
        assert_eq!(line.counts(0).len(), 121);
        assert_eq!(line.counts(0)[..3], [20, 60, 60]);
        // A year later, and back to before it all.
        line.go(1_030_000_000 * 1_000_000);
        line.go(5);
        line.note(0);
        assert!(line.counts(0).len() <= STEPS);
        assert_eq!(line.counts(0)[0], 7201);
    }

    #[test]
    fn the_worst_minutes_are_kept_in_order() {
        let mut minutes = Minutes::default();
        for (minute, count) in [(1, 3), (2, 9), (3, 1), (4, 9), (5, 2), (6, 4), (7, 1)] {
            for n in 0..count {
                minutes.note(minute * MINUTE_US + n);
            }
        }
        let worst: Vec<_> = minutes
            .worst()
            .iter()
            .map(|m| (m.at_s / 60, m.count))
            .collect();
        assert_eq!(worst, [(2, 9), (4, 9), (6, 4), (1, 3), (5, 2)]);
        assert!(Minutes::default().worst().is_empty());
    }
}
