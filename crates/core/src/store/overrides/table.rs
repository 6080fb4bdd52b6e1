//! The table of overrides and blocks, which requests are checked against.
//!
//! Pure: the time is an argument, and all times are of one clock. An override that has ended does
//! not apply, even if it is still in the table.

use std::collections::HashMap;
use std::sync::Arc;

use smallvec::SmallVec;

use super::record::{MAX_RECORDS, Record, Subject};
use crate::limit::{KeyHash, Rule, Window};

/// Until when something an operator said holds, microseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Until {
    /// Until this time, and not at it.
    Time(u64),
    /// Until it is taken back.
    Removed,
}

impl Until {
    /// Whether it holds no more at `now_us`.
    pub fn is_over(self, now_us: u64) -> bool {
        matches!(self, Until::Time(end) if end <= now_us)
    }

    /// How long it still holds at `now_us`, microseconds; `None` if nobody knows.
    pub fn left_us(self, now_us: u64) -> Option<u64> {
        match self {
            Until::Time(end) => Some(end.saturating_sub(now_us)),
            Until::Removed => None,
        }
    }
}

/// Another rate for one key of one limit.
#[derive(Clone, Debug)]
struct Override {
    limit: Arc<str>,
    windows: Arc<[Arc<Window>]>,
    until: Until,
}

/// Every override and every block in force. Cheap to ask, made anew at each change.
#[derive(Clone, Debug, Default)]
pub struct Overrides {
    overrides: HashMap<KeyHash, SmallVec<[Override; 1]>>,
    blocks: HashMap<KeyHash, Until>,
    next_end_us: Option<u64>,
}

/// One moment on the store's clock and on this process's own, which does not step; microseconds.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ClockPair {
    pub(crate) store_us: u64,
    pub(crate) local_us: u64,
}

/// The parts of an override that many keys share.
struct SharedWindows {
    limit: Arc<str>,
    windows: Arc<[Arc<Window>]>,
}

impl Overrides {
    /// The table of the records in force, with ends by this process's clock.
    pub(crate) fn from_records(records: &[Record], now: ClockPair) -> Overrides {
        let mut table = Overrides::default();
        // There are many overrides and few rates: overrides with the same rates share windows.
        let mut known: HashMap<(&str, &[Rule]), SharedWindows> = HashMap::new();
        let in_force = records.iter().filter(|one| !one.is_over(now.store_us));
        for record in in_force.take(MAX_RECORDS) {
            let until = match record.terms.until_us {
                0 => Until::Removed,
                end => Until::Time(
                    now.local_us
                        .saturating_add(end.saturating_sub(now.store_us)),
                ),
            };
            match &record.subject {
                Subject::Override(limit, tag) => {
                    let rules = &record.terms.rules;
                    let shared = known.entry((limit, rules));
                    let shared = shared.or_insert_with(|| SharedWindows {
                        limit: limit.as_str().into(),
                        windows: Window::all(limit, rules).into(),
                    });
                    table.set_override(&shared.limit, *tag, &shared.windows, until);
                }
                Subject::Block(tag) => table.block(*tag, until),
                Subject::Reset(..) => {}
            }
        }
        table
    }

    /// Gives one key of `limit` these windows instead of the limit's; none for no limit at all.
    /// Many keys may share them.
    pub fn set_override(
        &mut self,
        limit: &Arc<str>,
        tag: KeyHash,
        windows: &Arc<[Arc<Window>]>,
        until: Until,
    ) {
        self.will_end(until);
        let of_tag = self.overrides.entry(tag).or_default();
        of_tag.retain(|one| one.limit != *limit);
        of_tag.push(Override {
            limit: Arc::clone(limit),
            windows: Arc::clone(windows),
            until,
        });
    }

    /// Keeps out whoever has this key.
    pub fn block(&mut self, tag: KeyHash, until: Until) {
        self.will_end(until);
        self.blocks.insert(tag, until);
    }

    fn will_end(&mut self, until: Until) {
        if let Until::Time(end) = until {
            self.next_end_us = Some(self.next_end_us.map_or(end, |next| next.min(end)));
        }
    }

    /// Whether nothing is said of anyone.
    pub fn is_empty(&self) -> bool {
        self.overrides.is_empty() && self.blocks.is_empty()
    }

    /// Whether anyone is kept out.
    pub fn has_blocks(&self) -> bool {
        !self.blocks.is_empty()
    }

    /// What one key of `limit` is measured by instead of the limit's own windows.
    pub fn windows(&self, limit: &str, tag: KeyHash, now_us: u64) -> Option<&[Arc<Window>]> {
        let mut of_tag = self.overrides.get(&tag)?.iter();
        let found = of_tag.find(|one| *one.limit == *limit && !one.until.is_over(now_us))?;
        Some(&found.windows)
    }

    /// Until when the key is kept out, if it is.
    pub fn blocked(&self, tag: KeyHash, now_us: u64) -> Option<Until> {
        let until = *self.blocks.get(&tag)?;
        (!until.is_over(now_us)).then_some(until)
    }

    /// Whether something has ended by `now_us` that is still held.
    pub fn has_ended(&self, now_us: u64) -> bool {
        self.next_end_us.is_some_and(|end| end <= now_us)
    }

    /// What has ended by `now_us`: each key, with the limit of an override.
    pub fn ended(&self, now_us: u64) -> impl Iterator<Item = (Option<&str>, KeyHash)> {
        let overrides = self.overrides.iter().flat_map(move |(tag, of_tag)| {
            let ended = of_tag.iter().filter(move |one| one.until.is_over(now_us));
            ended.map(|one| (Some(&*one.limit), *tag))
        });
        let blocks = self.blocks.iter();
        let blocks = blocks.filter(move |(_, until)| until.is_over(now_us));
        overrides.chain(blocks.map(|(tag, _)| (None, *tag)))
    }

    /// What is left at `now_us`.
    pub fn without_ended(&self, now_us: u64) -> Overrides {
        let mut left = Overrides::default();
        for (tag, of_tag) in &self.overrides {
            for one in of_tag.iter().filter(|one| !one.until.is_over(now_us)) {
                left.set_override(&one.limit, *tag, &one.windows, one.until);
            }
        }
        for (tag, until) in self.blocks.iter().filter(|(_, end)| !end.is_over(now_us)) {
            left.block(*tag, *until);
        }
        left
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limit::Algorithm;

    fn windows(units: u64) -> Arc<[Arc<Window>]> {
        let rule = Rule {
            algorithm: Algorithm::Log,
            units,
            window_us: 60_000_000,
            precision_us: 1,
        };
        Window::all("login", &[rule]).into()
    }

    fn units(table: &Overrides, limit: &str, who: u8, now_us: u64) -> Option<Vec<u64>> {
        let windows = table.windows(limit, KeyHash([who; 16]), now_us)?;
        Some(windows.iter().map(|one| one.rule.units).collect())
    }

    #[test]
    fn an_override_is_for_one_key_of_one_limit_until_its_end() {
        let mut table = Overrides::default();
        assert!(table.is_empty());
        table.set_override(
            &"login".into(),
            KeyHash([1; 16]),
            &windows(7),
            Until::Time(100),
        );
        table.set_override(
            &"login".into(),
            KeyHash([2; 16]),
            &Arc::from([]),
            Until::Removed,
        );
        table.set_override(
            &"search".into(),
            KeyHash([1; 16]),
            &windows(9),
            Until::Removed,
        );
        assert!(!table.is_empty() && !table.has_blocks());
        assert_eq!(units(&table, "login", 1, 99), Some(vec![7]));
        assert_eq!(units(&table, "login", 1, 100), None);
        assert_eq!(units(&table, "login", 2, 1000), Some(vec![]));
        assert_eq!(units(&table, "search", 1, 1000), Some(vec![9]));
        assert_eq!(units(&table, "search", 2, 0), None);
        assert_eq!(units(&table, "other", 1, 0), None);
        table.set_override(
            &"login".into(),
            KeyHash([1; 16]),
            &windows(8),
            Until::Time(200),
        );
        assert_eq!(units(&table, "login", 1, 150), Some(vec![8]));
    }

    #[test]
    fn a_block_holds_until_its_end_and_says_how_long() {
        let mut table = Overrides::default();
        table.block(KeyHash([1; 16]), Until::Time(100));
        table.block(KeyHash([2; 16]), Until::Removed);
        assert!(table.has_blocks());
        let left = |who: u8, now_us| {
            let until = table.blocked(KeyHash([who; 16]), now_us)?;
            Some(until.left_us(now_us))
        };
        assert_eq!(left(1, 40), Some(Some(60)));
        assert_eq!(left(1, 100), None);
        assert_eq!(left(2, u64::MAX), Some(None));
        assert_eq!(left(3, 0), None);
    }

    #[test]
    fn what_has_ended_is_noticed_once_and_taken_out() {
        let mut table = Overrides::default();
        table.block(KeyHash([1; 16]), Until::Time(100));
        table.set_override(
            &"login".into(),
            KeyHash([1; 16]),
            &windows(7),
            Until::Time(50),
        );
        table.set_override(
            &"search".into(),
            KeyHash([1; 16]),
            &windows(7),
            Until::Removed,
        );
        assert!(!table.has_ended(49));
        assert!(table.has_ended(50));
        let ended = |now_us| table.ended(now_us).map(|(limit, _)| limit);
        assert_eq!(ended(50).collect::<Vec<_>>(), [Some("login")]);
        assert_eq!(ended(100).collect::<Vec<_>>(), [Some("login"), None]);
        let left = table.without_ended(50);
        assert!(!left.has_ended(99) && left.has_ended(100));
        assert!(left.has_blocks());
        let left = left.without_ended(100);
        assert!(!left.has_blocks() && !left.has_ended(u64::MAX));
        assert_eq!(units(&left, "search", 1, 100), Some(vec![7]));
    }
}
