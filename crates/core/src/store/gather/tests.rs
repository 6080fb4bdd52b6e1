//! Both ends of a request, and how requests are gathered.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use futures_util::FutureExt as _;

use super::*;
use crate::limit::{Algorithm, Asker, Key, KeyHash, Limit, Retry, Rule, Verdict};
use crate::trace::TraceId;

fn waiting(who: u8, cost: u64) -> (QueuedRequest, PendingAnswer) {
    waiting_for(who, cost, None)
}

fn waiting_for(who: u8, cost: u64, asker: Option<Arc<Asker>>) -> (QueuedRequest, PendingAnswer) {
    let rule = Rule {
        algorithm: Algorithm::Log,
        units: 10,
        window_us: 1_000_000,
        precision_us: 1,
    };
    let limit = Limit::new("l", &[rule], Key::parse(["global"]).unwrap());
    let item = LimitCheck {
        window: Arc::clone(&limit.windows[0]),
        limit: Arc::new(limit),
        tag: KeyHash([who; 16]),
        anchor: None,
        cost,
        asker,
    };
    let request = StoreRequest {
        charge: [item].into_iter().collect(),
        operation: Operation::Charge(1),
        extra: SmallVec::new(),
        generation: 1,
        arrived: crate::clock::now(),
        slot: 0,
    };
    request.with_answer()
}

fn decision(allowed: bool, used: u64) -> Decision {
    let verdict = Verdict {
        used,
        remaining: 10_u64.saturating_sub(used + u64::from(allowed)),
        retry: if allowed { Retry::Now } else { Retry::After(7) },
        reset_us: 9,
        next_us: 7,
        stamp: 0,
    };
    Decision {
        allowed,
        at_us: 1,
        spread_us: 0,
        verdicts: [verdict].into_iter().collect(),
    }
}

#[test]
fn equal_requests_are_one_group_and_grants_follow_arrival() {
    let mut batch = Batch::default();
    let mut answers = Vec::new();
    for (who, cost) in [(1, 1), (2, 1), (1, 1), (1, 2), (1, 1)] {
        let (waiting, answer) = waiting(who, cost);
        assert!(batch.add(waiting, 64).is_none());
        answers.push(answer);
    }
    let counts: Vec<u16> = batch.bundles.iter().map(Bundle::count).collect();
    assert_eq!(counts, [3, 1, 1]);
    let mut outcome = GroupOutcome {
        granted: 2,
        allowed: Some(decision(true, 8)),
        denied: Some(decision(false, 10)),
    };
    let mut seen = 0;
    let bundle = batch.bundles.remove(0);
    bundle.answer(&mut outcome, |_, _| seen += 1);
    let mut of = |which: usize| answers[which].try_recv().unwrap().unwrap();
    let (first, second, third) = (of(0), of(2), of(4));
    assert_eq!((first.allowed, first.verdicts[0].used), (true, 8));
    assert_eq!((second.allowed, second.verdicts[0].used), (true, 9));
    assert_eq!((second.verdicts[0].remaining, third.allowed), (0, false));
    assert_eq!(seen, 3);
}

#[test]
fn each_of_several_that_ask_the_same_is_logged_with_its_own_trace() {
    let mut batch = Batch::default();
    for number in 1..4 {
        let trace = Some(TraceId([number; 16]));
        let (waiting, _) = waiting_for(
            1,
            1,
            Some(Arc::new(Asker {
                trace,
                ..Asker::default()
            })),
        );
        assert!(batch.add(waiting, 64).is_none());
    }
    let mut outcome = GroupOutcome {
        granted: 3,
        allowed: Some(decision(true, 1)),
        denied: None,
    };
    let mut seen = Vec::new();
    let bundle = batch.bundles.remove(0);
    bundle.answer(&mut outcome, |charge, _| {
        let asker = charge[0].asker.as_ref().unwrap();
        seen.push(asker.trace.unwrap().0[0]);
    });
    assert_eq!(seen, [1, 2, 3]);
}

#[test]
fn a_batch_is_bounded_by_its_items_and_equal_requests_cost_none() {
    let mut batch = Batch::default();
    for who in 0..4 {
        assert!(batch.add(waiting(who, 1).0, 4).is_none());
    }
    assert!(batch.add(waiting(9, 1).0, 4).is_some());
    assert!(batch.add(waiting(2, 1).0, 4).is_none());
}

fn question() -> StoreRequest {
    StoreRequest {
        charge: Charge::new(),
        operation: Operation::Charge(1),
        extra: SmallVec::new(),
        generation: 1,
        arrived: crate::clock::now(),
        slot: 0,
    }
}

fn poll(asked: &mut PendingAnswer) -> Option<StoreResult> {
    wait_for(asked).now_or_never()
}

#[test]
fn an_answer_is_there_once() {
    let (waiting, mut asked) = question().with_answer();
    assert!(poll(&mut asked).is_none() && asked.try_recv().is_err());
    assert!(waiting.answer(Ok(Decision::default())));
    assert_eq!(poll(&mut asked), Some(Ok(Decision::default())));
    assert!(asked.try_recv().is_err());
}

#[test]
fn what_the_task_drops_is_lost_and_not_waited_for() {
    let (waiting, mut asked) = question().with_answer();
    assert!(poll(&mut asked).is_none());
    drop(waiting);
    assert_eq!(poll(&mut asked), Some(Err(StoreError::Lost)));
}

#[test]
fn whoever_answers_knows_whether_somebody_cared() {
    let (waiting, mut asked) = question().with_answer();
    assert!(waiting.wants_answer() && !waiting.is_given_up());
    asked.close();
    assert!(asked.try_recv().is_err());
    assert!(!waiting.answer(Ok(Decision::default())), "it has gone");
    let (waiting, asked) = question().with_answer();
    drop(asked);
    assert!(waiting.is_given_up());
    let (shadow, asked) = question().with_reply_to(ReplyTo::ShadowAsker);
    drop(asked);
    assert!(shadow.wants_answer() && !shadow.is_given_up());
    assert!(!shadow.answer(Ok(Decision::default())), "it has gone");
    let told = question().without_answer();
    assert!(!told.wants_answer() && !told.is_given_up());
}

#[test]
fn a_request_without_an_asker_tells_of_its_failure_once() {
    let failures = Arc::new(AtomicU32::new(0));
    let told = || {
        let failures = Arc::clone(&failures);
        let count = move |request: &StoreRequest| {
            assert!(request.charge.is_empty());
            failures.fetch_add(1, Ordering::Relaxed);
        };
        question().or_else(Box::new(count))
    };
    assert!(!told().wants_answer() && !told().is_given_up());
    assert!(!told().answer(Ok(Decision::default())));
    assert_eq!(failures.load(Ordering::Relaxed), 0);
    told().fail(StoreError::Away);
    assert_eq!(failures.load(Ordering::Relaxed), 1);
}
