//! The table that requests are checked against.

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
