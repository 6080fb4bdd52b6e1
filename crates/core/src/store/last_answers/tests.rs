//! What last answers let a process admit alone, and when an answer shows a loss.

use std::sync::Arc;

use super::*;
use crate::limit::{Key, KeyHash, Limit, Retry, Rule, Window};

fn item(who: u64) -> LimitCheck {
    let rule = Rule {
        algorithm: Algorithm::Log,
        units: 400,
        window_us: 10_000_000,
        precision_us: 1,
    };
    let limit = Limit::new("l", &[rule], Key::parse(["ip"]).unwrap());
    let mut tag = KeyHash([0; 16]);
    tag.0[..8].copy_from_slice(&who.to_le_bytes());
    LimitCheck {
        window: Arc::clone(&limit.windows[0]),
        limit: Arc::new(limit),
        tag,
        anchor: None,
        cost: 1,
        asker: None,
    }
}

fn verdict(used: u64) -> Verdict {
    Verdict {
        used,
        remaining: 399 - used.min(399),
        retry: Retry::Now,
        reset_us: 10_000_000,
        next_us: 4_000_000,
        stamp: 0,
    }
}

fn answered<'a>(item: &'a LimitCheck, verdict: &'a Verdict, own: u64) -> StoreAnswer<'a> {
    StoreAnswer {
        item,
        verdict,
        charged: 1,
        own,
        store_us: 50_000_000,
        now_us: 50_000_000,
    }
}

#[test]
fn a_proxy_has_its_part_of_what_was_left_and_what_it_had() {
    let (answers, fleet, item) = (LastAnswers::default(), Fleet::new(4), item(1));
    let at = |since_us, now_us| Away { since_us, now_us };
    let soon = at(51_000_000, 52_000_000);
    assert_eq!(answers.max_units(&item, &fleet, soon, None), None);
    answers.note(&answered(&item, &verdict(199), 50));
    assert_eq!(answers.max_units(&item, &fleet, soon, None), Some(50 + 50));
    answers.note(&answered(&item, &verdict(399), 100));
    assert_eq!(answers.max_units(&item, &fleet, soon, None), Some(100));
    // All that the store had admitted has left the window.
    assert_eq!(
        answers.max_units(&item, &fleet, at(51_000_000, 61_000_000), None),
        None
    );
    assert_eq!(
        answers.max_units(&item, &fleet, at(60_000_001, 60_000_002), None),
        None
    );
}

#[test]
fn what_is_known_of_a_calendar_window_holds_until_it_ends() {
    let (answers, fleet, mut item) = (LastAnswers::default(), Fleet::new(4), item(1));
    let rule = Rule {
        algorithm: Algorithm::Calendar,
        window_us: 7_000_000_000,
        ..item.window.rule
    };
    item.window = Arc::new(Window::new("l", rule));
    answers.note(&answered(&item, &verdict(199), 50));
    let max_units = |now_us, ends_us| {
        let at = Away {
            since_us: 51_000_000,
            now_us,
        };
        answers.max_units(&item, &fleet, at, Some(ends_us))
    };
    let next_us = 60_000_000 + 86_400_000_000;
    assert_eq!(max_units(59_999_999, 60_000_000), Some(100));
    assert_eq!(
        max_units(60_000_400, 60_000_000),
        Some(100),
        "the store's clock is behind by the way of its answers"
    );
    assert_eq!(max_units(59_999_600, next_us), Some(100));
    assert_eq!(max_units(60_000_000, next_us), None);
}

#[test]
fn an_answer_with_less_left_is_tighter() {
    let (answers, fleet, item) = (LastAnswers::default(), Fleet::new(4), item(1));
    let is_tighter = |used, own| {
        let verdict = verdict(used);
        answers.is_tighter(&answered(&item, &verdict, own), &fleet)
    };
    assert!(is_tighter(0, 1), "nothing is known");
    answers.note(&answered(&item, &verdict(199), 50));
    assert!(!is_tighter(199, 50));
    assert!(!is_tighter(99, 50), "the store does not know of all units");
    assert!(is_tighter(299, 50));
}

#[test]
fn a_cached_denial_does_not_replace_a_newer_answer() {
    let (answers, fleet, item) = (LastAnswers::default(), Fleet::new(4), item(1));
    let at = Away {
        since_us: 51_000_000,
        now_us: 52_000_000,
    };
    let (older, newer) = (verdict(390), verdict(399));
    let denied = StoreAnswer {
        charged: 0,
        ..answered(&item, &older, 50)
    };
    answers.note(&denied);
    answers.note(&answered(&item, &newer, 51));
    assert_eq!(answers.max_units(&item, &fleet, at, None), Some(51));
    answers.note_earlier(&denied);
    assert_eq!(answers.max_units(&item, &fleet, at, None), Some(50));
    let lease = StoreAnswer {
        charged: 1,
        ..answered(&item, &newer, 51)
    };
    answers.note_earlier(&lease);
    assert_eq!(answers.max_units(&item, &fleet, at, None), Some(51));
}

#[test]
fn a_cached_denial_tells_no_loss_of_units_that_have_expired() {
    let (answers, item) = (LastAnswers::default(), item(1));
    let (full, later) = (verdict(400), verdict(391));
    let denied = |verdict| StoreAnswer {
        charged: 0,
        ..answered(&item, verdict, 40)
    };
    answers.note(&denied(&full));
    answers.note(&denied(&later));
    answers.note_earlier(&denied(&full));
    let newest = StoreAnswer {
        store_us: 50_000_001,
        ..denied(&later)
    };
    assert_eq!(answers.missing_units(&newest, true), 0);
}

#[test]
fn what_others_lately_used_between_two_answers_is_left_to_them() {
    let (answers, fleet, item) = (LastAnswers::default(), Fleet::new(4), item(1));
    answers.note(&answered(&item, &verdict(99), 50));
    answers.note(&answered(&item, &verdict(119), 51));
    let at = Away {
        since_us: 51_000_000,
        now_us: 52_000_000,
    };
    assert_eq!(
        answers.max_units(&item, &fleet, at, None),
        Some(51 + (280 - 20) / 4)
    );
}

#[test]
fn a_store_that_says_less_than_it_said_has_lost_some() {
    let (answers, item) = (LastAnswers::default(), item(1));
    let mut store_us = 50_000_000;
    let mut missing = |used, own, others| {
        let verdict = verdict(used);
        store_us += 1;
        let later = StoreAnswer {
            store_us,
            ..answered(&item, &verdict, own)
        };
        answers.missing_units(&later, others)
    };
    assert_eq!(missing(0, 40, true), 0, "the key is new");
    answers.note(&answered(&item, &verdict(99), 40));
    assert_eq!(missing(100, 40, true), 0);
    assert_eq!(missing(60, 40, true), 40);
    assert_eq!(missing(60, 40, false), 0, "others may have given it back");
    assert_eq!(missing(10, 40, false), 30);
    let verdict = verdict(0);
    let older = StoreAnswer {
        store_us: 50_000_000,
        ..answered(&item, &verdict, 40)
    };
    assert_eq!(answers.missing_units(&older, true), 0);
    let later = StoreAnswer {
        store_us: 53_950_000,
        now_us: 53_950_000,
        ..answered(&item, &verdict, 7)
    };
    assert_eq!(
        answers.missing_units(&later, true),
        7,
        "what others used may expire"
    );
}

#[test]
fn an_answer_lacks_the_units_of_a_newer_one() {
    let (answers, item) = (LastAnswers::default(), item(1));
    answers.note(&answered(&item, &verdict(99), 40));
    let newer = verdict(101);
    let newer = StoreAnswer {
        store_us: 50_000_002,
        ..answered(&item, &newer, 40)
    };
    assert_eq!(answers.missing_units(&newer, true), 0);
    // Its unit is counted here now, and it is not noted yet.
    let older = verdict(100);
    let older = StoreAnswer {
        store_us: 50_000_001,
        ..answered(&item, &older, 41)
    };
    let others_are_unknown = StoreAnswer { own: 101, ..older };
    assert_eq!(answers.missing_units(&older, true), 0);
    assert_eq!(answers.missing_units(&others_are_unknown, true), 0);
}

#[test]
fn a_clock_that_steps_forward_loses_nothing() {
    let (answers, item) = (LastAnswers::default(), item(1));
    answers.note(&answered(&item, &verdict(99), 40));
    let verdict = verdict(0);
    let stepped = |now_us| StoreAnswer {
        store_us: now_us + 8_000_000,
        now_us,
        ..answered(&item, &verdict, 40)
    };
    assert_eq!(answers.missing_units(&stepped(51_000_000), true), 0);
    answers.note(&stepped(51_000_000));
    assert_eq!(answers.missing_units(&stepped(52_000_000), true), 0);
    assert_eq!(answers.missing_units(&stepped(61_000_000), true), 40);
}

#[test]
fn it_is_bounded() {
    let answers = LastAnswers::default();
    let mut one = item(0);
    for who in 0..600_000_u64 {
        one.tag.0[..8].copy_from_slice(&who.to_le_bytes());
        answers.note(&answered(&one, &verdict(3), 1));
        if who == 3_000 {
            assert_eq!(answers.items(50_000_000).len(), 3_001);
        }
    }
    assert!(answers.items(50_000_000).len() <= MAPS * KEYS);
    assert!(answers.items(60_000_000).is_empty());
}
