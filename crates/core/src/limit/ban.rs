//! Bans: a key that is denied often is denied everything for a while, and longer each time.
//!
//! `lua/bans.lua` is the twin of [`DenialRecord`]. Random traces must give equal bans. Pure: times
//! are microseconds of one clock.

use std::collections::VecDeque;
use std::fmt;

use super::rate::span_text;

/// Denials after which a ban begins, at most. A record has one entry for each of them at most.
pub const MAX_AFTER: u64 = 1000;
/// How often a ban may last longer than the one before.
const MAX_LEVEL: u32 = 64;
/// After so many times `for` without a ban, the next one is a first one again.
const REMEMBERED: u64 = 10;

/// `ban` of a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ban {
    /// Denials within the window that begin a ban; 1 to [`MAX_AFTER`].
    pub after: u64,
    /// The length of that window, microseconds.
    pub window_us: u64,
    /// `for`: how long the first ban lasts, microseconds.
    pub first_us: u64,
    /// How many times longer each further ban lasts.
    pub again: u64,
    /// The longest ban, microseconds.
    pub max_us: u64,
}

impl Ban {
    /// How long the ban with this number lasts, microseconds. The first one has the number 1.
    pub fn length_us(&self, level: u32) -> u64 {
        let factor = self.again.saturating_pow(level.saturating_sub(1));
        self.first_us.saturating_mul(factor).min(self.max_us)
    }

    /// How long after its end a ban makes the next one longer, microseconds.
    pub fn remembered_us(&self) -> u64 {
        self.first_us.saturating_mul(REMEMBERED)
    }
}

impl fmt::Display for Ban {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [window, first, longest] = [self.window_us, self.first_us, self.max_us].map(span_text);
        write!(
            f,
            "{} denials in {window} ban a key for {first}",
            self.after
        )?;
        match self.again {
            0 | 1 => Ok(()),
            again => write!(
                f,
                ", each further ban {again} times as long, up to {longest}"
            ),
        }
    }
}

/// A ban that begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BeginningBan {
    /// 1 for the first one.
    pub level: u32,
    pub length_us: u64,
}

/// The denials of one key by one limit, and its bans so far.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DenialRecord {
    /// Oldest first.
    denials: VecDeque<Denials>,
    /// The number of the last ban.
    level: u32,
    /// Until then a further ban lasts longer.
    remembered_until_us: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Denials {
    at_us: u64,
    count: u64,
}

impl DenialRecord {
    /// Adds denials. Returns the ban that they begin: it uses up all denials so far.
    pub fn add(&mut self, ban: &Ban, count: u64, now_us: u64) -> Option<BeginningBan> {
        let is_old = |one: &Denials| one.at_us.saturating_add(ban.window_us) <= now_us;
        while self.denials.front().is_some_and(is_old) {
            self.denials.pop_front();
        }
        let before: u64 = self.denials.iter().map(|one| one.count).sum();
        if before.saturating_add(count) < ban.after {
            let at_us = now_us;
            self.denials.push_back(Denials { at_us, count });
            return None;
        }
        self.denials.clear();
        self.level = match now_us < self.remembered_until_us {
            true => (self.level + 1).min(MAX_LEVEL),
            false => 1,
        };
        let length_us = ban.length_us(self.level);
        let end_us = now_us.saturating_add(length_us);
        self.remembered_until_us = end_us.saturating_add(ban.remembered_us());
        Some(BeginningBan {
            level: self.level,
            length_us,
        })
    }

    /// Whether a new record would do the same.
    pub fn is_over(&self, ban: &Ban, now_us: u64) -> bool {
        let newest = self.denials.back();
        let is_old = newest.is_none_or(|one| one.at_us.saturating_add(ban.window_us) <= now_us);
        is_old && self.remembered_until_us <= now_us
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000;

    fn ban() -> Ban {
        Ban {
            after: 5,
            window_us: 10 * SECOND,
            first_us: 60 * SECOND,
            again: 2,
            max_us: 200 * SECOND,
        }
    }

    fn begins(record: &mut DenialRecord, count: u64, at_s: u64) -> Option<(u32, u64)> {
        let begun = record.add(&ban(), count, at_s * SECOND)?;
        Some((begun.level, begun.length_us / SECOND))
    }

    #[test]
    fn a_ban_is_told_in_words() {
        let text = "5 denials in 10s ban a key for 1min";
        let longer = ", each further ban 2 times as long, up to 200s";
        assert_eq!(ban().to_string(), format!("{text}{longer}"));
        assert_eq!(Ban { again: 1, ..ban() }.to_string(), text);
    }

    #[test]
    fn a_ban_begins_at_the_last_denial_within_the_window() {
        let mut record = DenialRecord::default();
        for at_s in 0..4 {
            assert_eq!(begins(&mut record, 1, at_s), None);
        }
        // The first denial is no longer within the window: four count.
        assert_eq!(begins(&mut record, 1, 10), None);
        assert_eq!(begins(&mut record, 1, 10), Some((1, 60)));
        // Those denials are used up.
        assert_eq!(begins(&mut record, 4, 10), None);
        assert_eq!(begins(&mut record, 1, 20), None);
    }

    #[test]
    fn denials_that_are_told_together_begin_one_ban() {
        let mut record = DenialRecord::default();
        assert_eq!(begins(&mut record, 3, 0), None);
        assert_eq!(begins(&mut record, 900, 1), Some((1, 60)));
        let mut one = Ban { after: 1, ..ban() };
        one.again = 1;
        let mut record = DenialRecord::default();
        for at_us in 0..3 {
            assert_eq!(record.add(&one, 1, at_us).unwrap().length_us, 60 * SECOND);
        }
    }

    #[test]
    fn a_ban_soon_after_another_lasts_longer_up_to_the_most() {
        let mut record = DenialRecord::default();
        assert_eq!(begins(&mut record, 5, 0), Some((1, 60)));
        // It ended at 60, and is remembered until 660.
        assert_eq!(begins(&mut record, 5, 659), Some((2, 120)));
        assert_eq!(begins(&mut record, 5, 779), Some((3, 200)));
        assert_eq!(begins(&mut record, 5, 979), Some((4, 200)));
        // The last one ended at 1179.
        assert!(!record.is_over(&ban(), 1778 * SECOND));
        assert!(record.is_over(&ban(), 1779 * SECOND));
        assert_eq!(begins(&mut record, 5, 1779), Some((1, 60)));
    }

    #[test]
    fn no_number_of_bans_overflows() {
        let ban = Ban {
            again: 100,
            max_us: u64::MAX,
            ..ban()
        };
        assert_eq!(ban.length_us(u32::MAX), u64::MAX);
        let mut record = DenialRecord::default();
        for _ in 0..2 * MAX_LEVEL {
            record.add(&ban, 5, 0);
        }
        assert_eq!(record.level, MAX_LEVEL);
    }

    #[test]
    fn a_record_holds_fewer_entries_than_denials_begin_a_ban() {
        let ban = Ban {
            after: MAX_AFTER,
            ..ban()
        };
        let mut record = DenialRecord::default();
        for _ in 1..MAX_AFTER {
            assert_eq!(record.add(&ban, 1, 7), None);
        }
        assert_eq!(record.denials.len() as u64, MAX_AFTER - 1);
        assert!(record.add(&ban, 1, 8).is_some() && record.denials.is_empty());
    }
}
