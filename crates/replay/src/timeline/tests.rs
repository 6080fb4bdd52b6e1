//! Timelines and the log's clock.

use super::*;

#[test]
fn steps_grow_until_the_log_fits() {
    let mut line = Timeline::new(2);
    for second in 0..7200 {
        line.advance((1_000_000_000 + second) * 1_000_000);
        line.note(0);
        if second % 60 == 0 {
            line.note(1);
        }
    }
    assert_eq!(line.length_s, 60);
    assert_eq!(line.start_s(), 999_999_960);
    let sums = [0, 1].map(|thing| line.counts[thing].iter().sum::<u32>());
    assert_eq!(sums, [7200, 120]);
    assert_eq!(line.counts[0].len(), 121);
    assert_eq!(line.counts[0][..3], [20, 60, 60]);
    // A year later, and back to before it all.
    line.advance(1_030_000_000 * 1_000_000);
    line.advance(5);
    line.note(0);
    assert!(line.counts[0].len() <= STEPS);
    assert_eq!(line.counts[0][0], 7201);
}

#[test]
fn the_worst_minutes_are_kept_in_order() {
    let mut minutes = BusiestMinutes::default();
    for (minute, count) in [(1, 3), (2, 9), (3, 1), (4, 9), (5, 2), (6, 4), (7, 1)] {
        for n in 0..count {
            minutes.note(minute * MINUTE_US + n);
        }
    }
    let worst: Vec<_> = minutes
        .into_sorted()
        .iter()
        .map(|m| (m.at_s / 60, m.count))
        .collect();
    assert_eq!(worst, [(2, 9), (4, 9), (6, 4), (1, 3), (5, 2)]);
    assert!(BusiestMinutes::default().into_sorted().is_empty());
}

const HOUR_US: u64 = 3_600_000_000;

fn taken(lines: &[u64]) -> (Vec<u64>, LogClock) {
    let mut course = LogClock::default();
    let taken = lines.iter().map(|at| course.advance(*at)).collect();
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
