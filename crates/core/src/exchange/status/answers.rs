//! Answers to status requests, kept for a second. So a client that asks often costs the store one
//! look in a second.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::StatusAnswer;

/// How long an answer is repeated, and the time in which looks of an address are counted.
const KEEP: Duration = Duration::from_secs(1);
/// Looks of one address in [`KEEP`].
const LOOKS: u32 = 10;
/// Clients and addresses that are remembered at once, each.
const MOST: usize = 10_000;

/// The answers of the last second, of all workers. Time is an argument.
#[derive(Clone, Debug, Default)]
pub struct StatusAnswers(Arc<Mutex<LastSecond>>);

#[derive(Debug, Default)]
struct LastSecond {
    answers: HashMap<u64, KeptAnswer>,
    looks: HashMap<IpAddr, Looks>,
}

#[derive(Debug)]
struct KeptAnswer {
    answer: Arc<StatusAnswer>,
    since: Instant,
}

#[derive(Debug)]
struct Looks {
    count: u32,
    since: Instant,
}

fn is_over(since: Instant, now: Instant) -> bool {
    now.saturating_duration_since(since) >= KEEP
}

impl StatusAnswers {
    /// The answer of the last second. `asked` is a hash over all that the answer depends on.
    pub(super) fn find(&self, asked: u64, now: Instant) -> Option<Arc<StatusAnswer>> {
        let last = self.lock();
        let kept = last.answers.get(&asked)?;
        (!is_over(kept.since, now)).then(|| Arc::clone(&kept.answer))
    }

    /// Whether the store may be asked for this address once more in this second.
    pub(super) fn may_ask(&self, ip: IpAddr, now: Instant) -> bool {
        let mut last = self.lock();
        if last.looks.len() >= MOST {
            last.looks.retain(|_, looks| !is_over(looks.since, now));
        }
        if last.looks.len() >= MOST && !last.looks.contains_key(&ip) {
            return false;
        }
        let fresh = Looks {
            count: 0,
            since: now,
        };
        let looks = last.looks.entry(ip).or_insert(fresh);
        if is_over(looks.since, now) {
            (looks.count, looks.since) = (0, now);
        }
        looks.count += 1;
        looks.count <= LOOKS
    }

    pub(super) fn keep_answer(&self, asked: u64, answer: &Arc<StatusAnswer>, now: Instant) {
        let mut last = self.lock();
        if last.answers.len() >= MOST {
            last.answers.retain(|_, kept| !is_over(kept.since, now));
        }
        if last.answers.len() < MOST {
            let answer = Arc::clone(answer);
            last.answers
                .insert(asked, KeptAnswer { answer, since: now });
        }
    }

    fn lock(&self) -> MutexGuard<'_, LastSecond> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use http::HeaderMap;

    use super::*;

    fn answer() -> Arc<StatusAnswer> {
        Arc::new(StatusAnswer {
            headers: HeaderMap::new(),
            body: Bytes::new(),
        })
    }

    #[test]
    fn an_answer_is_repeated_for_a_second() {
        let (answers, start) = (StatusAnswers::default(), crate::clock::now());
        let after = |ms| start + Duration::from_millis(ms);
        assert!(answers.find(1, start).is_none());
        answers.keep_answer(1, &answer(), start);
        assert!(answers.find(1, after(999)).is_some());
        assert!(answers.find(2, after(999)).is_none());
        assert!(answers.find(1, after(1000)).is_none());
    }

    #[test]
    fn an_address_has_ten_looks_a_second() {
        let (answers, start) = (StatusAnswers::default(), crate::clock::now());
        let (one, other) = (IpAddr::from([192, 0, 2, 1]), IpAddr::from([192, 0, 2, 2]));
        assert!((0..10).all(|_| answers.may_ask(one, start)));
        assert!(!answers.may_ask(one, start + Duration::from_millis(999)));
        assert!(answers.may_ask(other, start));
        assert!(answers.may_ask(one, start + Duration::from_secs(1)));
    }

    #[test]
    fn memory_is_bounded() {
        let (answers, start) = (StatusAnswers::default(), crate::clock::now());
        let answer = answer();
        for number in 0..3 * MOST as u32 {
            answers.keep_answer(number.into(), &answer, start);
            answers.may_ask(IpAddr::from(number.to_be_bytes()), start);
        }
        let last = answers.lock();
        assert!(last.answers.len() <= MOST && last.looks.len() <= MOST);
    }
}
