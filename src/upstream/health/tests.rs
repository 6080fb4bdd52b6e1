//! What is owed to a server that fails, and to those who ask it.

use proptest::prelude::*;

use super::*;
use crate::clock;
use crate::route::StatusSet;

fn rules() -> Ejection {
    Ejection::default()
}

fn check() -> HealthCheck {
    HealthCheck {
        path: "/healthz".parse().unwrap(),
        host: None,
        every: Duration::from_secs(5),
        timeout: Duration::from_secs(1),
        healthy: 2,
        unhealthy: 3,
        status: StatusSet::default(),
    }
}

const SECOND: Duration = Duration::from_secs(1);
const FAILED: (Trouble, Sent) = (Trouble::Failed, Sent::InOrder);
const UNREACHABLE: (Trouble, Sent) = (Trouble::Unreachable, Sent::InOrder);
const TRIAL: (Trouble, Sent) = (Trouble::Failed, Sent::Trial);

#[test]
fn failures_in_a_row_eject_and_a_success_between_them_does_not() {
    let (mut health, now) = (Health::default(), clock::now());
    for _ in 0..10 {
        for _ in 0..4 {
            assert_eq!(health.failed(FAILED, &rules(), true, now), None);
        }
        assert_eq!(health.succeeded(Sent::InOrder, now), None);
    }
    for _ in 0..4 {
        health.failed(FAILED, &rules(), true, now);
    }
    assert_eq!(health.standing(), Standing::InOrder);
    let change = health.failed(FAILED, &rules(), true, now).unwrap();
    assert_eq!(
        change.to_string(),
        "failed 5 times in a row: left alone for 10s"
    );
    assert_eq!(health.standing(), Standing::Ejected(now + 10 * SECOND));
}

#[test]
fn one_that_cannot_be_reached_rests_at_once_and_briefly() {
    let (mut health, now) = (Health::default(), clock::now());
    let change = health.failed(UNREACHABLE, &rules(), true, now).unwrap();
    assert_eq!(change.to_string(), "cannot be reached: left alone for 1s");
    assert_eq!(health.standing(), Standing::Ejected(now + SECOND));
}

#[test]
fn each_failed_trial_doubles_the_rest_up_to_its_bound_and_stragglers_do_not() {
    let (mut health, mut now) = (Health::default(), clock::now());
    for _ in 0..5 {
        health.failed(FAILED, &rules(), true, now);
    }
    for expected in [20, 40, 60, 60] {
        now += health.rest();
        for sent in [Sent::InOrder, Sent::LastResort] {
            assert_eq!(
                health.failed((Trouble::Failed, sent), &rules(), true, now),
                None
            );
        }
        assert!(health.failed(TRIAL, &rules(), true, now).is_some());
        assert_eq!(
            health.standing(),
            Standing::Ejected(now + expected * SECOND)
        );
    }
}

#[test]
fn the_trial_decides_and_not_what_was_under_way() {
    let (mut health, now) = (Health::default(), clock::now());
    health.failed(UNREACHABLE, &rules(), true, now);
    assert_eq!(health.succeeded(Sent::InOrder, now), None);
    assert_eq!(health.standing(), Standing::Ejected(now + SECOND));
    assert_eq!(health.succeeded(Sent::Trial, now), Some(Change::Returned));
    assert_eq!(health.standing(), Standing::InOrder);
}

#[test]
fn one_that_flaps_rests_longer_each_time_and_one_that_recovered_begins_anew() {
    let (mut health, mut now) = (Health::default(), clock::now());
    for expected in [1, 2, 4, 8] {
        health.failed(UNREACHABLE, &rules(), true, now);
        assert_eq!(
            health.standing(),
            Standing::Ejected(now + expected * SECOND)
        );
        now += health.rest();
        health.succeeded(Sent::Trial, now);
    }
    now += 8 * SECOND;
    health.failed(UNREACHABLE, &rules(), true, now);
    assert_eq!(health.standing(), Standing::Ejected(now + SECOND));
}

#[test]
fn the_last_one_is_never_ejected_and_a_share_of_the_others_stays() {
    use Trouble::{Failed, Unreachable};
    for (servers, out, failed, unreachable) in [
        (1, 0, false, false),
        (2, 0, true, true),
        (2, 1, false, false),
        (3, 0, true, true),
        (3, 1, false, true),
        (3, 2, false, false),
        (10, 4, true, true),
        (10, 5, false, true),
        (10, 9, false, false),
    ] {
        let told = |trouble| has_room(servers, out, &rules(), trouble);
        assert_eq!(
            (told(Failed), told(Unreachable)),
            (failed, unreachable),
            "{out} of {servers}"
        );
    }
}

#[test]
fn the_first_check_decides_and_then_it_takes_several() {
    let (mut health, now) = (Health::default(), clock::now());
    assert_eq!(health.standing(), Standing::InOrder);
    assert_eq!(
        health.checked(false, &check(), now),
        Some(Change::WentDown(1))
    );
    assert_eq!(health.standing(), Standing::Down);
    assert_eq!(health.checked(true, &check(), now), None);
    assert_eq!(health.checked(false, &check(), now), None);
    assert_eq!(health.checked(true, &check(), now), None);
    assert_eq!(health.checked(true, &check(), now), Some(Change::CameUp(2)));
    for _ in 0..2 {
        assert_eq!(health.checked(false, &check(), now), None);
    }
    assert_eq!(health.standing(), Standing::InOrder);
    assert_eq!(
        health.checked(false, &check(), now),
        Some(Change::WentDown(3))
    );
}

#[test]
fn a_passed_check_does_not_end_an_ejection_but_coming_up_does() {
    let (mut health, now) = (Health::default(), clock::now());
    health.failed(UNREACHABLE, &rules(), true, now);
    health.checked(true, &check(), now);
    assert_eq!(health.standing(), Standing::Ejected(now + SECOND));
    for passed in [false, false, false, true, true] {
        health.checked(passed, &check(), now);
    }
    assert_eq!(health.standing(), Standing::InOrder);
}

#[test]
fn without_checks_nothing_is_down() {
    let (mut health, now) = (Health::default(), clock::now());
    health.checked(false, &check(), now);
    health.unchecked();
    assert_eq!(health.standing(), Standing::InOrder);
}

/// What can happen to one of several servers.
#[derive(Clone, Copy, Debug)]
enum Event {
    Request(usize, Option<Trouble>),
    Trial(usize, Option<Trouble>),
    Wait(u16),
}

fn events() -> impl Strategy<Value = Event> {
    let trouble = prop_oneof![
        Just(None),
        Just(Some(Trouble::Failed)),
        Just(Some(Trouble::Unreachable))
    ];
    let one = (0_usize..4, trouble, any::<u16>(), 0_u8..4);
    one.prop_map(|(server, trouble, wait, kind)| match kind {
        0 => Event::Wait(wait),
        1 => Event::Trial(server, trouble),
        _ => Event::Request(server, trouble),
    })
}

proptest! {
    /// Whatever happens: not all are ejected, no rest is longer than allowed, one success on trial
    /// ends it.
    #[test]
    fn whatever_happens_somebody_is_left(
        servers in 1_usize..=4,
        share in 1_u32..=100,
        happens in prop::collection::vec(events(), 1..200),
    ) {
        let mut rules = rules();
        rules.max_share = share;
        let mut all = vec![Health::default(); servers];
        let mut now = clock::now();
        for event in happens {
            let (server, trouble, sent) = match event {
                Event::Wait(ms) => {
                    now += Duration::from_millis(ms.into());
                    continue;
                }
                Event::Request(server, trouble) => (server % servers, trouble, Sent::InOrder),
                Event::Trial(server, trouble) => (server % servers, trouble, Sent::Trial),
            };
            let out = all.iter().filter(|one| one.standing() != Standing::InOrder).count();
            if let Some(trouble) = trouble {
                let room = has_room(servers, out, &rules, trouble);
                all[server].failed((trouble, sent), &rules, room, now);
            } else {
                all[server].succeeded(sent, now);
                let ended = sent == Sent::InOrder || all[server].standing() == Standing::InOrder;
                prop_assert!(ended);
            }
            let left = all.iter().filter(|one| one.standing() == Standing::InOrder).count();
            prop_assert!(left > 0);
            for one in &all {
                if let Standing::Ejected(until) = one.standing() {
                    prop_assert!(until <= now + rules.longest_rest);
                }
            }
        }
    }
}
