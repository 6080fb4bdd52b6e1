//! Ejection, trial and health checks of one server, and of several.

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

/// A failed request: how it failed, and why it was sent.
type FailedRequest = (FailureKind, SendReason);
const FAILED: FailedRequest = (FailureKind::Failed, SendReason::Healthy);
const UNREACHABLE: FailedRequest = (FailureKind::Unreachable, SendReason::Healthy);
const TRIAL: FailedRequest = (FailureKind::Failed, SendReason::Trial);

#[test]
fn failures_in_a_row_eject_and_a_success_between_them_does_not() {
    let (mut health, now) = (HealthState::default(), clock::now());
    for _ in 0..10 {
        for _ in 0..4 {
            assert_eq!(health.fail(FAILED.0, FAILED.1, &rules(), true, now), None);
        }
        assert_eq!(health.succeed(SendReason::Healthy, now), None);
    }
    for _ in 0..4 {
        health.fail(FAILED.0, FAILED.1, &rules(), true, now);
    }
    assert_eq!(health.standing(), Standing::Healthy);
    let change = health
        .fail(FAILED.0, FAILED.1, &rules(), true, now)
        .unwrap();
    assert_eq!(
        change.to_string(),
        "failed 5 times in a row: gets no requests for 10s"
    );
    assert_eq!(health.standing(), Standing::Ejected(now + 10 * SECOND));
}

#[test]
fn within_a_time_failures_count_whatever_succeeds_between_them() {
    let rules = Ejection {
        failures: 3,
        within: Some(10 * SECOND),
        ..rules()
    };
    let (mut health, mut now) = (HealthState::default(), clock::now());
    // The first of the three is too old, again and again.
    for _ in 0..20 {
        assert_eq!(health.fail(FAILED.0, FAILED.1, &rules, true, now), None);
        health.succeed(SendReason::Healthy, now);
        now += 6 * SECOND;
    }
    now -= SECOND;
    assert_eq!(health.fail(FAILED.0, FAILED.1, &rules, true, now), None);
    health.succeed(SendReason::Healthy, now);
    now += 4 * SECOND;
    let change = health.fail(FAILED.0, FAILED.1, &rules, true, now).unwrap();
    assert_eq!(
        change.to_string(),
        "failed 3 times within 10s: gets no requests for 10s"
    );
    // A trial decides alone, and after it the count begins anew.
    now += health.rest;
    let change = health.fail(TRIAL.0, TRIAL.1, &rules, true, now).unwrap();
    assert_eq!(
        change.to_string(),
        "failed 2 times in a row: gets no requests for 20s"
    );
    health.succeed(SendReason::Trial, now);
    for _ in 0..2 {
        assert_eq!(health.fail(FAILED.0, FAILED.1, &rules, true, now), None);
        health.succeed(SendReason::Healthy, now);
    }
    assert!(health.fail(FAILED.0, FAILED.1, &rules, true, now).is_some());
}

#[test]
fn one_that_cannot_be_reached_rests_at_once_and_briefly() {
    let (mut health, now) = (HealthState::default(), clock::now());
    let change = health
        .fail(UNREACHABLE.0, UNREACHABLE.1, &rules(), true, now)
        .unwrap();
    assert_eq!(
        change.to_string(),
        "cannot be reached: gets no requests for 1s"
    );
    assert_eq!(health.standing(), Standing::Ejected(now + SECOND));
}

#[test]
fn each_failed_trial_doubles_the_rest_up_to_its_bound_and_stragglers_do_not() {
    let (mut health, mut now) = (HealthState::default(), clock::now());
    for _ in 0..5 {
        health.fail(FAILED.0, FAILED.1, &rules(), true, now);
    }
    for expected in [20, 40, 60, 60] {
        now += health.rest;
        for sent in [SendReason::Healthy, SendReason::LastResort] {
            let change = health.fail(FailureKind::Failed, sent, &rules(), true, now);
            assert_eq!(change, None);
        }
        assert!(health.fail(TRIAL.0, TRIAL.1, &rules(), true, now).is_some());
        assert_eq!(
            health.standing(),
            Standing::Ejected(now + expected * SECOND)
        );
    }
}

#[test]
fn the_trial_decides_and_not_what_was_under_way() {
    let (mut health, now) = (HealthState::default(), clock::now());
    health.fail(UNREACHABLE.0, UNREACHABLE.1, &rules(), true, now);
    assert_eq!(health.succeed(SendReason::Healthy, now), None);
    assert_eq!(health.standing(), Standing::Ejected(now + SECOND));
    assert_eq!(
        health.succeed(SendReason::Trial, now),
        Some(HealthChange::Returned)
    );
    assert_eq!(health.standing(), Standing::Healthy);
}

#[test]
fn one_that_flaps_rests_longer_each_time_and_one_that_recovered_begins_anew() {
    let (mut health, mut now) = (HealthState::default(), clock::now());
    for expected in [1, 2, 4, 8] {
        health.fail(UNREACHABLE.0, UNREACHABLE.1, &rules(), true, now);
        assert_eq!(
            health.standing(),
            Standing::Ejected(now + expected * SECOND)
        );
        now += health.rest;
        health.succeed(SendReason::Trial, now);
    }
    now += 8 * SECOND;
    health.fail(UNREACHABLE.0, UNREACHABLE.1, &rules(), true, now);
    assert_eq!(health.standing(), Standing::Ejected(now + SECOND));
}

#[test]
fn the_last_one_is_never_ejected_and_a_share_of_the_others_stays() {
    use FailureKind::{Failed, Unreachable};
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
    let (mut health, now) = (HealthState::default(), clock::now());
    assert_eq!(health.standing(), Standing::Healthy);
    assert_eq!(
        health.note_check(false, &check(), now),
        Some(HealthChange::WentDown(1))
    );
    assert_eq!(health.standing(), Standing::Down);
    assert_eq!(health.note_check(true, &check(), now), None);
    assert_eq!(health.note_check(false, &check(), now), None);
    assert_eq!(health.note_check(true, &check(), now), None);
    assert_eq!(
        health.note_check(true, &check(), now),
        Some(HealthChange::CameUp(2))
    );
    for _ in 0..2 {
        assert_eq!(health.note_check(false, &check(), now), None);
    }
    assert_eq!(health.standing(), Standing::Healthy);
    assert_eq!(
        health.note_check(false, &check(), now),
        Some(HealthChange::WentDown(3))
    );
}

#[test]
fn a_passed_check_does_not_end_an_ejection_but_coming_up_does() {
    let (mut health, now) = (HealthState::default(), clock::now());
    health.fail(UNREACHABLE.0, UNREACHABLE.1, &rules(), true, now);
    health.note_check(true, &check(), now);
    assert_eq!(health.standing(), Standing::Ejected(now + SECOND));
    for passed in [false, false, false, true, true] {
        health.note_check(passed, &check(), now);
    }
    assert_eq!(health.standing(), Standing::Healthy);
}

#[test]
fn without_checks_nothing_is_down() {
    let (mut health, now) = (HealthState::default(), clock::now());
    health.note_check(false, &check(), now);
    health.forget_checks();
    assert_eq!(health.standing(), Standing::Healthy);
}

/// An event at one of several servers.
#[derive(Clone, Copy, Debug)]
enum Event {
    Request(usize, Option<FailureKind>),
    Trial(usize, Option<FailureKind>),
    Wait(u16),
}

fn events() -> impl Strategy<Value = Event> {
    let trouble = prop_oneof![
        Just(None),
        Just(Some(FailureKind::Failed)),
        Just(Some(FailureKind::Unreachable))
    ];
    let one = (0_usize..4, trouble, any::<u16>(), 0_u8..4);
    one.prop_map(|(server, trouble, wait, kind)| match kind {
        0 => Event::Wait(wait),
        1 => Event::Trial(server, trouble),
        _ => Event::Request(server, trouble),
    })
}

proptest! {
    /// After any events: not all are ejected, no rest is longer than allowed, one success on trial
    /// ends it.
    #[test]
    fn whatever_happens_somebody_is_left(
        servers in 1_usize..=4,
        share in 1_u32..=100,
        happens in prop::collection::vec(events(), 1..200),
    ) {
        let mut rules = rules();
        rules.max_share = share;
        let mut all = vec![HealthState::default(); servers];
        let mut now = clock::now();
        for event in happens {
            let (server, trouble, sent) = match event {
                Event::Wait(ms) => {
                    now += Duration::from_millis(ms.into());
                    continue;
                }
                Event::Request(server, trouble) => (server % servers, trouble, SendReason::Healthy),
                Event::Trial(server, trouble) => (server % servers, trouble, SendReason::Trial),
            };
            let out = all.iter().filter(|one| one.standing() != Standing::Healthy).count();
            if let Some(trouble) = trouble {
                let room = has_room(servers, out, &rules, trouble);
                all[server].fail(trouble, sent, &rules, room, now);
            } else {
                all[server].succeed(sent, now);
                let standing = all[server].standing();
                let ended = sent == SendReason::Healthy || standing == Standing::Healthy;
                prop_assert!(ended);
            }
            let left = all.iter().filter(|one| one.standing() == Standing::Healthy).count();
            prop_assert!(left > 0);
            for one in &all {
                if let Standing::Ejected(until) = one.standing() {
                    prop_assert!(until <= now + rules.longest_rest);
                }
            }
        }
    }
}
