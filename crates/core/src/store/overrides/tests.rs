//! The table that requests are checked against.

use super::*;
use crate::limit::calendar::{CalendarSettings, CalendarUnit, Zone};
use crate::limit::{Algorithm, Ban, DayWord, Key, Rule};

fn limit(name: &str) -> Limit {
    Limit::new(name, &[], Key::all_of([]))
}

fn set_of(units: u64) -> Arc<OverrideWindows> {
    let rule = Rule {
        algorithm: Algorithm::Log,
        units,
        window_us: 60_000_000,
        precision_us: 1,
    };
    Arc::new(OverrideWindows::new("login", &[rule]))
}

fn units(table: &Overrides, name: &str, who: u8, now_us: u64) -> Option<Vec<u64>> {
    let limit = limit(name);
    let windows = table.windows(&limit, KeyHash([who; 16]), now_us)?;
    Some(windows.iter().map(|one| one.rule.units).collect())
}

fn block(table: &mut Overrides, who: u8, until_us: u64) {
    let ban = None;
    table.block(KeyHash([who; 16]), Block { until_us, ban });
}

#[test]
fn an_override_is_for_one_key_of_one_limit_until_its_end() {
    let mut table = Overrides::default();
    assert!(table.is_empty());
    table.set_override(&"login".into(), KeyHash([1; 16]), &set_of(7), 100);
    table.set_override(
        &"login".into(),
        KeyHash([2; 16]),
        &Arc::new(OverrideWindows::new("login", &[])),
        NEVER,
    );
    table.set_override(&"search".into(), KeyHash([1; 16]), &set_of(9), NEVER);
    assert!(!table.is_empty() && !table.has_blocks());
    assert_eq!(units(&table, "login", 1, 99), Some(vec![7]));
    assert_eq!(units(&table, "login", 1, 100), None);
    assert_eq!(units(&table, "login", 2, 1000), Some(vec![]));
    assert_eq!(units(&table, "search", 1, 1000), Some(vec![9]));
    assert_eq!(units(&table, "search", 2, 0), None);
    assert_eq!(units(&table, "other", 1, 0), None);
    table.set_override(&"login".into(), KeyHash([1; 16]), &set_of(8), 200);
    assert_eq!(units(&table, "login", 1, 150), Some(vec![8]));
}

#[test]
fn a_block_holds_until_its_end_and_says_how_long() {
    let mut table = Overrides::default();
    block(&mut table, 1, 100);
    block(&mut table, 2, NEVER);
    assert!(table.has_blocks());
    let left = |who: u8, now_us| {
        let block = table.block_of(KeyHash([who; 16]), now_us)?;
        Some(block.left_us)
    };
    assert_eq!(left(1, 40), Some(Some(60)));
    assert_eq!(left(1, 100), None);
    assert_eq!(left(2, u64::MAX - 1), Some(None));
    assert_eq!(left(3, 0), None);
}

#[test]
fn what_has_ended_is_noticed_once_and_taken_out() {
    let mut table = Overrides::default();
    block(&mut table, 1, 100);
    table.set_override(&"login".into(), KeyHash([1; 16]), &set_of(7), 50);
    table.set_override(&"search".into(), KeyHash([1; 16]), &set_of(7), NEVER);
    assert!(!table.has_ended(49));
    assert!(table.has_ended(50));
    let ended = |now_us| table.ended(now_us).map(|(limit, _)| limit);
    assert_eq!(ended(50).collect::<Vec<_>>(), [Some("login")]);
    assert_eq!(ended(100).collect::<Vec<_>>(), [Some("login"), None]);
    let left = table.without_ended(50);
    assert!(!left.has_ended(99) && left.has_ended(100));
    assert!(left.has_blocks());
    let left = left.without_ended(100);
    assert!(!left.has_blocks() && !left.has_ended(u64::MAX - 1));
    assert_eq!(units(&left, "search", 1, 100), Some(vec![7]));
}

fn change(subject: Subject, kind: ChangeKind, lasts_us: u64) -> OverrideChange {
    OverrideChange {
        subject,
        lasts_us,
        terms: RecordTerms {
            kind,
            ..RecordTerms::default()
        },
    }
}

#[test]
fn what_is_said_holds_until_it_is_taken_back() {
    let overrides = MemoryOverrides::default();
    let (one, other) = (KeyHash([1; 16]), KeyHash([2; 16]));
    assert!(overrides.snapshot().is_none());
    let block = || Subject::Block(one);
    assert_eq!(
        overrides.change(change(block(), ChangeKind::Remove, 0)),
        ChangeOutcome::Nothing
    );
    assert_eq!(
        overrides.change(change(block(), ChangeKind::Set, 0)),
        ChangeOutcome::Made(0)
    );
    let subject = Subject::Override("login".to_owned(), other);
    let hour = 3_600_000_000;
    let ChangeOutcome::Made(until_us) = overrides.change(change(subject, ChangeKind::Set, hour))
    else {
        panic!("it is made");
    };
    let login = limit("login");
    let now = overrides.snapshot().unwrap();
    assert!(until_us > now.now_us && now.block_of(one).is_some());
    assert_eq!(now.windows(&login, other).unwrap().len(), 0);
    assert!(now.table.windows(&login, other, until_us).is_none());
    assert_eq!(overrides.list().records.len(), 2);
    assert_eq!(
        overrides.change(change(block(), ChangeKind::Remove, 0)),
        ChangeOutcome::Made(0)
    );
    let now = overrides.snapshot().unwrap();
    assert!(now.block_of(one).is_none());
}

#[test]
fn the_end_of_a_block_takes_back_denials_that_began_no_ban() {
    let overrides = MemoryOverrides::default();
    let tag = KeyHash([1; 16]);
    let ban = Ban {
        after: 3,
        window_us: 60_000_000,
        first_us: 60_000_000,
        again: 2,
        max_us: 60_000_000,
    };
    let login = Limit {
        ban: Some(ban),
        ..limit("login")
    };
    overrides.count_denial(&login, tag);
    let end = || overrides.change(change(Subject::Block(tag), ChangeKind::Remove, 0));
    assert_eq!(end(), ChangeOutcome::Made(0));
    assert_eq!(end(), ChangeOutcome::Nothing);
    assert_eq!(overrides.changes().len(), 1);
}

#[test]
fn what_was_changed_is_kept_up_to_a_number() {
    let overrides = MemoryOverrides::default();
    let tag = KeyHash([1; 16]);
    assert_eq!(
        overrides.change(change(Subject::Block(tag), ChangeKind::Set, 0)),
        ChangeOutcome::Made(0)
    );
    assert_eq!(
        overrides.change(change(Subject::Block(tag), ChangeKind::Remove, 0)),
        ChangeOutcome::Made(0)
    );
    // Nothing was changed by this one.
    assert_eq!(
        overrides.change(change(Subject::Block(tag), ChangeKind::Remove, 0)),
        ChangeOutcome::Nothing
    );
    let whats: Vec<&str> = overrides.changes().iter().map(Record::what).collect();
    assert_eq!(whats, ["block removed", "block"]);
    for _ in 0..MAX_CHANGES {
        overrides.change(change(
            Subject::Reset("login".to_owned(), tag),
            ChangeKind::Set,
            0,
        ));
    }
    let changes = overrides.changes();
    assert_eq!(
        (changes.len(), changes[MAX_CHANGES - 1].what()),
        (MAX_CHANGES, "reset")
    );
    assert!(overrides.list().records.is_empty());
}

#[test]
fn calendar_windows_of_an_override_are_made_once_for_each_calendar() {
    let month = Rule {
        algorithm: Algorithm::Calendar,
        units: 10,
        window_us: CalendarUnit::Month.longest_us(),
        precision_us: 1,
    };
    let windows = OverrideWindows::new("plan", &[month]);
    let in_zone = |name: &str| {
        let mut limit = limit("plan");
        limit.calendar = Arc::new(CalendarSettings {
            zone: Zone::of_offset(name).unwrap(),
            ..CalendarSettings::default()
        });
        limit
    };
    let zone = |windows: &[Arc<Window>]| {
        let calendar = windows[0].calendar.as_ref().unwrap();
        calendar.settings().zone.name.to_string()
    };
    let (india, copy, nepal) = (in_zone("+05:30"), in_zone("+05:30"), in_zone("+05:45"));
    let first = windows.windows_of(&india);
    assert_eq!(zone(&first), "+05:30");
    assert!(
        Arc::ptr_eq(&first[0], &windows.windows_of(&copy)[0]),
        "of another worker"
    );
    assert_eq!(zone(&windows.windows_of(&nepal)), "+05:45");
    let plain = OverrideWindows::new("plan", &[]);
    assert!(matches!(plain.windows_of(&india), Cow::Borrowed([])));
}

#[test]
fn a_day_is_what_it_is_in_the_limit() {
    let month = rules("9/month", &Limit::new("login", &[], Key::ip())).unwrap()[0];
    for (day, expected) in [
        (DayWord::Calendar, Some(CalendarUnit::Day)),
        (DayWord::Sliding, None),
    ] {
        let limit = Limit {
            day,
            ..Limit::new("login", &[month], Key::ip())
        };
        let rules = rules("5/day", &limit).unwrap();
        assert_eq!(rules[0].calendar_unit(), expected);
    }
}
