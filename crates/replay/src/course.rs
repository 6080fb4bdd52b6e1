//! The log's clock. Lines are written when requests end, by several threads, so that a line may be
//! a little older than the one before it: what was counted is never forgotten for that.
//!
//! Pure.

/// From so far ahead on, one line alone is not believed, microseconds.
const LEAP_US: u64 = 32 * 86_400_000_000;
/// From so far behind on, lines are another time and not late, microseconds.
const BEHIND_US: u64 = 3_600_000_000;
/// So many of them in a row are believed.
const BELIEVED: u32 = 16;

/// A clock that lines set, and that does not step back for one of them.
#[derive(Clone, Debug, Default)]
pub struct Course {
    now_us: Option<u64>,
    leapt: bool,
    behind: u32,
    /// Lines older than the clock: they are taken at its time.
    pub late: u64,
    /// By how much the latest of them was, microseconds.
    pub latest_us: u64,
    /// How often the clock was set back, since lines went on in another time.
    pub steps: u64,
    /// Lines from a far future that no other line confirmed.
    pub leaps: u64,
}

impl Course {
    /// The time at which a line of `at_us` is taken.
    pub fn at(&mut self, at_us: u64) -> u64 {
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
mod tests {
    use super::*;

    const HOUR_US: u64 = 3_600_000_000;

    fn taken(lines: &[u64]) -> (Vec<u64>, Course) {
        let mut course = Course::default();
        let taken = lines.iter().map(|at| course.at(*at)).collect();
        (taken, course)
    }

    #[test]
    fn late_lines_are_taken_at_the_time_of_the_clock() {
        let (taken, course) = taken(&[5, 7, 6, 7, 9, 1]);
        assert_eq!(taken, [5, 7, 7, 7, 9, 9]);
        assert_eq!((course.late, course.latest_us), (2, 8));
    }

    #[test]
    fn one_line_from_the_future_is_not_believed_and_two_are() {
        let far = 1000 * 24 * HOUR_US;
        let (one, course) = taken(&[5, far, 6]);
        assert_eq!(one, [5, 5, 6]);
        assert_eq!(course.leaps, 1);
        let (two, course) = taken(&[5, far, far + 1, far + 2]);
        assert_eq!(two, [5, 5, far + 1, far + 2]);
        assert_eq!(course.leaps, 0);
    }

    #[test]
    fn lines_that_go_on_in_another_time_set_the_clock_back() {
        let mut lines = vec![10 * HOUR_US];
        lines.extend((0..20).map(|n| HOUR_US + n));
        let (taken, course) = taken(&lines);
        assert_eq!(taken[15], 10 * HOUR_US);
        assert_eq!(taken[16], HOUR_US + 15);
        assert_eq!((course.steps, course.late), (1, 15));
    }
}
