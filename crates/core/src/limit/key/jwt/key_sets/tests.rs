//! Keys of a URL: what is believed, and who waits.

use super::*;

const NOW: u64 = 1_700_000_000;

fn key(id: &str) -> JwtKey {
    let set = format!(
        r#"{{"keys":[{{"kty":"OKP","crv":"Ed25519","kid":"{id}",
        "x":"11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"}}]}}"#
    );
    JwtKey::set(set.as_bytes()).unwrap().remove(0)
}

fn followed() -> Arc<FetchedKeys> {
    let keys = Arc::<FetchedKeys>::default();
    keys.follow(NOW);
    keys
}

fn is_ready(wait: &mut KeyWait<'_>) -> bool {
    let mut cx = Context::from_waker(Waker::noop());
    Pin::new(wait).poll(&mut cx).is_ready()
}

fn is_wanted(keys: &FetchedKeys) -> bool {
    let mut cx = Context::from_waker(Waker::noop());
    keys.poll_wanted(&mut cx).is_ready()
}

#[test]
fn the_first_fetch_is_due_at_once_and_requests_wait_for_it() {
    let nobody = FetchedKeys::default();
    assert!(nobody.wait(0).is_none() && !is_wanted(&nobody));
    let keys = followed();
    assert!(is_wanted(&keys));
    let mut wait = keys.wait(0).unwrap();
    assert!(!is_ready(&mut wait));
    let attempt = keys.begin();
    assert!(!is_wanted(&keys) && !is_ready(&mut wait));
    assert!(attempt.succeed(vec![key("a")], NOW));
    assert!(is_ready(&mut wait));
}

#[test]
fn invented_keys_cause_one_fetch_in_half_a_minute() {
    let keys = followed();
    keys.begin().succeed(vec![key("a")], NOW);
    let mut fetches = 0;
    for number in 0..60_000 {
        // One each millisecond.
        let wait = keys.wait(number * 1000);
        if is_wanted(&keys) {
            fetches += 1;
            assert!(wait.is_some());
            keys.begin().succeed(vec![key("a")], NOW);
        } else {
            assert!(wait.is_none());
        }
    }
    assert_eq!(fetches, 2);
    // A clock that was set back does not stop them.
    assert!(keys.wait(0).is_some());
}

#[test]
fn no_more_than_a_thousand_wait() {
    let keys = followed();
    let waits: Vec<_> = (0..MAX_WAITING + 10).map(|_| keys.wait(0)).collect();
    assert_eq!(waits.iter().flatten().count(), MAX_WAITING);
    drop(waits);
    assert!(keys.wait(0).is_some());
    assert!(keys.lock().waiters.is_empty());
}

#[test]
fn a_fetch_that_is_given_up_is_a_failure() {
    let keys = followed();
    let mut wait = keys.wait(0).unwrap();
    drop(keys.begin());
    assert!(is_ready(&mut wait));
    assert_eq!(keys.status(NOW + 7).failed, 1);
    assert_eq!(keys.status(NOW + 7).age_s, 7);
}

#[test]
fn keys_are_believed_until_they_are_stale_or_replaced() {
    let keys = followed();
    let rule = JwtKeys::Fetched {
        keys: Arc::clone(&keys),
        max_stale_s: 100,
    };
    let believed = |now_s| rule.with_believed(now_s, |set| Some((set.keys.len(), set.generation)));
    assert_eq!(believed(NOW), None);
    keys.begin().succeed(vec![key("a")], NOW);
    assert_eq!(believed(NOW + 99), Some((1, 1)));
    assert_eq!(believed(NOW + 100), None);
    // The same keys again are no other set, and are as good as new.
    assert!(!keys.begin().succeed(vec![key("a")], NOW + 50));
    assert_eq!(believed(NOW + 149), Some((1, 1)));
    assert!(keys.begin().fail("away") && !keys.begin().fail("away"));
    let status = keys.status(NOW + 60);
    assert_eq!((status.age_s, status.fetched, status.failed), (10, 2, 2));
    assert_eq!(status.failure.as_deref(), Some("away"));
    assert!(keys.begin().succeed(vec![key("b")], NOW + 60));
    assert_eq!(believed(NOW + 60), Some((1, 2)));
    // An issuer may withdraw all its keys.
    assert!(keys.begin().succeed(Vec::new(), NOW + 61));
    assert_eq!(believed(NOW + 61), Some((0, 3)));
}

#[test]
fn a_published_set_may_have_keys_that_cannot_be_used() {
    let good = r#"{"kty":"OKP","crv":"Ed25519","kid":"a",
        "x":"11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"}"#;
    for (members, count) in [
        (good.to_owned(), 1),
        (format!(r#"7, {{"kty":"oct","k":"AA"}}, {{}}, {good}"#), 1),
        (r#"{"kty":"oct","k":"AA"}"#.to_owned(), 0),
        (String::new(), 0),
    ] {
        let set = format!(r#"{{"keys":[{members}]}}"#);
        let keys = JwtKey::published_set(set.as_bytes()).unwrap();
        assert_eq!(keys.len(), count, "{members}");
    }
    assert!(JwtKey::published_set(b"<html>").is_err());
    let many = format!(r#"{{"keys":[{}]}}"#, vec!["{}"; 101].join(","));
    assert!(JwtKey::published_set(many.as_bytes()).is_err());
}
