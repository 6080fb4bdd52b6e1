//! People: what an operator said of single keys. Another rate than the limit's, or none, or no
//! service at all, each until a certain time.
//!
//! Pure: the time is an argument, and all times are of one clock. What has ended is not there any
//! more, whether or not it has been taken out yet.

use std::collections::HashMap;
use std::sync::Arc;

use smallvec::SmallVec;

use super::{KeyHash, Window};

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
pub struct People {
    overrides: HashMap<KeyHash, SmallVec<[Override; 1]>>,
    blocks: HashMap<KeyHash, Until>,
    next_end_us: Option<u64>,
}

impl People {
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
    pub fn without_ended(&self, now_us: u64) -> People {
        let mut left = People::default();
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
    use crate::limit::{Algorithm, Rule};

    fn windows(units: u64) -> Arc<[Arc<Window>]> {
        let rule = Rule {
            algorithm: Algorithm::Log,
            units,
            window_us: 60_000_000,
            precision_us: 1,
        };
        Window::all("login", &[rule]).into()
    }

    fn units(people: &People, limit: &str, who: u8, now_us: u64) -> Option<Vec<u64>> {
        let windows = people.windows(limit, KeyHash([who; 16]), now_us)?;
        Some(windows.iter().map(|one| one.rule.units).collect())
    }

    #[test]
    fn an_override_is_for_one_key_of_one_limit_until_its_end() {
        let mut people = People::default();
        assert!(people.is_empty());
        people.set_override(
            &"login".into(),
            KeyHash([1; 16]),
            &windows(7),
            Until::Time(100),
        );
        people.set_override(
            &"login".into(),
            KeyHash([2; 16]),
            &Arc::from([]),
            Until::Removed,
        );
        people.set_override(
            &"search".into(),
            KeyHash([1; 16]),
            &windows(9),
            Until::Removed,
        );
        assert!(!people.is_empty() && !people.has_blocks());
        assert_eq!(units(&people, "login", 1, 99), Some(vec![7]));
        assert_eq!(units(&people, "login", 1, 100), None);
        assert_eq!(units(&people, "login", 2, 1000), Some(vec![]));
        assert_eq!(units(&people, "search", 1, 1000), Some(vec![9]));
        assert_eq!(units(&people, "search", 2, 0), None);
        assert_eq!(units(&people, "other", 1, 0), None);
        people.set_override(
            &"login".into(),
            KeyHash([1; 16]),
            &windows(8),
            Until::Time(200),
        );
        assert_eq!(units(&people, "login", 1, 150), Some(vec![8]));
    }

    #[test]
    fn a_block_holds_until_its_end_and_says_how_long() {
        let mut people = People::default();
        people.block(KeyHash([1; 16]), Until::Time(100));
        people.block(KeyHash([2; 16]), Until::Removed);
        assert!(people.has_blocks());
        let left = |who: u8, now_us| {
            let until = people.blocked(KeyHash([who; 16]), now_us)?;
            Some(until.left_us(now_us))
        };
        assert_eq!(left(1, 40), Some(Some(60)));
        assert_eq!(left(1, 100), None);
        assert_eq!(left(2, u64::MAX), Some(None));
        assert_eq!(left(3, 0), None);
    }

    #[test]
    fn what_has_ended_is_noticed_once_and_taken_out() {
        let mut people = People::default();
        people.block(KeyHash([1; 16]), Until::Time(100));
        people.set_override(
            &"login".into(),
            KeyHash([1; 16]),
            &windows(7),
            Until::Time(50),
        );
        people.set_override(
            &"search".into(),
            KeyHash([1; 16]),
            &windows(7),
            Until::Removed,
        );
        assert!(!people.has_ended(49));
        assert!(people.has_ended(50));
        let ended = |now_us| people.ended(now_us).map(|(limit, _)| limit);
        assert_eq!(ended(50).collect::<Vec<_>>(), [Some("login")]);
        assert_eq!(ended(100).collect::<Vec<_>>(), [Some("login"), None]);
        let left = people.without_ended(50);
        assert!(!left.has_ended(99) && left.has_ended(100));
        assert!(left.has_blocks());
        let left = left.without_ended(100);
        assert!(!left.has_blocks() && !left.has_ended(u64::MAX));
        assert_eq!(units(&left, "search", 1, 100), Some(vec![7]));
    }
}
