//! Which questions are asked, and who waits for them.

use std::future::Future;

use super::*;
use crate::config::Endpoint;

fn settings() -> Arc<KeyCallbackSettings> {
    Arc::new(KeyCallbackSettings {
        endpoint: Endpoint::default(),
        ttl: Duration::from_secs(300),
        ttl_unknown: Duration::from_secs(10),
        tls: Default::default(),
        timeout: Duration::from_secs(20),
    })
}

fn run<F: Future>(body: F) -> F::Output {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    runtime.unwrap().block_on(body)
}

fn ip(number: u32) -> IpAddr {
    IpAddr::from(number.to_be_bytes())
}

fn is_known(callback: &KeyCallback, key: &str) -> bool {
    callback.find(key.as_bytes(), clock::now()).is_some()
}

/// Starts a request with this key.
fn asks(callback: &Arc<KeyCallback>, key: &str, number: u32) -> tokio::task::JoinHandle<()> {
    let (callback, key) = (Arc::clone(callback), key.to_owned());
    tokio::spawn(async move { callback.ask_about(key.as_bytes(), ip(number)).await })
}

#[test]
fn requests_with_one_key_wait_for_one_question() {
    run(async {
        let (callback, mut questions) = KeyCallback::new(&settings());
        let all: Vec<_> = (0..100).map(|_| asks(&callback, "k1", 1)).collect();
        let question = questions.recv().await.unwrap();
        assert_eq!(question.key(), b"k1");
        question.answer(KeyAnswer::Known(KeyClient::default()));
        for one in all {
            one.await.unwrap();
        }
        assert!(questions.try_recv().is_err() && is_known(&callback, "k1"));
        assert!(!callback.wants_answer(b"k1", clock::now()));
        let later = clock::now() + Duration::from_secs(301);
        assert!(callback.wants_answer(b"k1", later));
        assert!(callback.find(b"k1", later).is_some(), "by the older answer");
        let too_late = clock::now() + Duration::from_secs(3001);
        assert!(callback.find(b"k1", too_late).is_none());
    });
}

#[test]
fn an_address_asks_for_few_unknown_keys_and_for_any_number_of_known_ones() {
    run(async {
        let (callback, mut questions) = KeyCallback::new(&settings());
        let all: Vec<_> = (0..40)
            .map(|number| asks(&callback, &format!("key-{number}"), 1))
            .collect();
        for _ in 0..40 {
            let question = questions.recv().await.unwrap();
            question.answer(KeyAnswer::Known(KeyClient::default()));
        }
        for one in all {
            one.await.unwrap();
        }
        assert_eq!(callback.known(), 40);
        let all: Vec<_> = (0..40)
            .map(|number| asks(&callback, &format!("made-up-{number}"), 1))
            .collect();
        for _ in 0..10 {
            questions.recv().await.unwrap().answer(KeyAnswer::Unknown);
        }
        for one in all {
            one.await.unwrap();
        }
        assert!(questions.try_recv().is_err(), "ten in a second");
        assert_eq!(callback.refusals(), [30, 0, 0]);
        let other = asks(&callback, "made-up-99", 2);
        questions.recv().await.unwrap().answer(KeyAnswer::Unknown);
        other.await.unwrap();
        assert_eq!(callback.outcomes()[..2], [40, 11]);
    });
}

#[test]
fn a_service_that_is_away_is_asked_once_in_a_while() {
    run(async {
        let (callback, mut questions) = KeyCallback::new(&settings());
        for number in 0..FAILURES {
            let one = asks(&callback, &format!("key-{number}"), number);
            // A question that is dropped has no answer.
            drop(questions.recv().await.unwrap());
            one.await.unwrap();
        }
        assert!(callback.is_away());
        callback.ask_about(b"other", ip(9)).await;
        assert!(questions.try_recv().is_err());
        assert_eq!(callback.refusals(), [0, 0, 1]);
        assert_eq!(callback.outcomes()[3], u64::from(FAILURES));
        assert!(!callback.wants_answer(b"key-0", clock::now()), "it rests");
        assert!(callback.may_ask_service(clock::now() + RETRY_EVERY));
    });
}

#[test]
fn answers_that_cannot_be_used_do_not_make_the_service_away() {
    run(async {
        let (callback, mut questions) = KeyCallback::new(&settings());
        for number in 0..2 * FAILURES {
            let key = format!("made-up-{number}");
            let one = asks(&callback, &key, 1);
            let unusable = KeyAnswer::Failed(CallbackFailure::Unusable);
            questions.recv().await.unwrap().answer(unusable);
            one.await.unwrap();
            let now = clock::now();
            assert!(!callback.wants_answer(key.as_bytes(), now), "it rests");
        }
        assert!(!callback.is_away());
        let one = asks(&callback, "k1", 2);
        let known = KeyAnswer::Known(KeyClient::default());
        questions.recv().await.unwrap().answer(known);
        one.await.unwrap();
        assert!(is_known(&callback, "k1"));
    });
}

#[test]
fn no_more_questions_are_under_way_than_there_may_be() {
    run(async {
        let (callback, mut questions) = KeyCallback::new(&settings());
        let most = MAX_UNDER_WAY as u32;
        let all: Vec<_> = (0..most)
            .map(|number| asks(&callback, &format!("key-{number}"), number))
            .collect();
        tokio::task::yield_now().await;
        callback.ask_about(b"one-more", ip(most)).await;
        assert_eq!(callback.refusals(), [0, 1, 0]);
        for _ in 0..most {
            questions.recv().await.unwrap().answer(KeyAnswer::Unknown);
        }
        for one in all {
            one.await.unwrap();
        }
        let long = [b'k'; MAX_KEY + 1];
        callback.ask_about(&long, ip(most)).await;
        assert!(questions.try_recv().is_err(), "it is too long to be a key");
    });
}

#[test]
fn other_settings_of_a_service_keep_what_is_known_of_it() {
    run(async {
        let (callback, mut questions) = KeyCallback::new(&settings());
        for (key, answer) in [
            ("k1", KeyAnswer::Known(KeyClient::default())),
            ("made-up", KeyAnswer::Unknown),
        ] {
            let asking = asks(&callback, key, 1);
            questions.recv().await.unwrap().answer(answer);
            asking.await.unwrap();
        }
        let mut longer = settings();
        Arc::make_mut(&mut longer).timeout = Duration::from_secs(1);
        Arc::make_mut(&mut longer).ttl = Duration::from_secs(600);
        let renewed = callback.renewed(&longer);
        assert!(is_known(&renewed, "k1") && renewed.known() == 1);
        assert!(!renewed.wants_answer(b"made-up", clock::now()));
        assert!(!renewed.wants_answer(b"k1", clock::now() + Duration::from_secs(301)));
        assert_eq!(renewed.outcomes()[..2], [1, 1]);
        // A question of earlier requests answers later ones.
        let all = [asks(&callback, "k2", 1), asks(&renewed, "k2", 1)];
        let question = questions.recv().await.unwrap();
        question.answer(KeyAnswer::Known(KeyClient::default()));
        for one in all {
            one.await.unwrap();
        }
        assert!(questions.try_recv().is_err() && is_known(&renewed, "k2"));
        Arc::make_mut(&mut longer).ttl_unknown = Duration::from_secs(1);
        let renewed = renewed.renewed(&longer);
        assert!(renewed.wants_answer(b"made-up", clock::now()));
    });
}
