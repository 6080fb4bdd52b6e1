//! The keys that verify tokens: those of a file, or those that an issuer publishes at a URL, with
//! the requests that wait for them.
//!
//! Pure: a thread of the proxy fetches, and brings the keys here. Time is an argument. A token with
//! an unknown `kid` may cause a fetch, at most once in half a minute: anyone can make up a `kid`.

use std::collections::BTreeMap;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use arc_swap::ArcSwapOption;

use super::JwtKey;

/// The least time between two fetches for unknown keys, microseconds.
const UNKNOWN_EVERY_US: u64 = 30_000_000;
/// Requests that wait for a fetch at once, at most.
const MAX_WAITING: usize = 1000;

/// The keys that verify tokens.
#[derive(Clone, Debug)]
pub enum JwtKeys {
    /// Of a file. They stay until the next configuration.
    Fixed(Vec<JwtKey>),
    /// Of `jwks_url`.
    Fetched {
        keys: Arc<FetchedKeys>,
        /// How long keys are believed after their fetch, seconds.
        max_stale_s: u64,
    },
}

/// The keys that are believed at one moment.
#[derive(Clone, Copy, Debug)]
pub struct BelievedKeys<'k> {
    pub keys: &'k [JwtKey],
    /// Another number for each other set of keys.
    pub generation: u64,
}

impl JwtKeys {
    /// Calls `read` with the keys that are believed at this Unix time. `None` if no key is.
    pub fn with_believed<T>(
        &self,
        now_s: u64,
        read: impl FnOnce(BelievedKeys<'_>) -> Option<T>,
    ) -> Option<T> {
        match self {
            JwtKeys::Fixed(keys) => read(BelievedKeys {
                keys,
                generation: 0,
            }),
            JwtKeys::Fetched { keys, max_stale_s } => {
                let set = keys.set.load();
                let set = set.as_ref()?;
                let is_believed = now_s < set.fetched_s.saturating_add(*max_stale_s);
                is_believed.then_some(())?;
                read(BelievedKeys {
                    keys: &set.keys,
                    generation: set.generation,
                })
            }
        }
    }

    /// The keys that are fetched from a URL.
    pub fn fetched(&self) -> Option<&Arc<FetchedKeys>> {
        match self {
            JwtKeys::Fixed(_) => None,
            JwtKeys::Fetched { keys, .. } => Some(keys),
        }
    }
}

/// The keys of a URL, shared by all workers and the thread that fetches them.
#[derive(Default)]
pub struct FetchedKeys {
    set: ArcSwapOption<FetchedSet>,
    state: Mutex<FetchState>,
}

struct FetchedSet {
    keys: Vec<JwtKey>,
    /// The number of different sets before this one, and one.
    generation: u64,
    /// The Unix time of the last fetch that brought these keys, seconds.
    fetched_s: u64,
}

#[derive(Default)]
struct FetchState {
    /// Whether a thread fetches. Without one, nothing waits.
    is_followed: bool,
    /// Whether a fetch is under way, or is due now.
    is_under_way: bool,
    /// Whether the thread must fetch now.
    is_wanted: bool,
    /// When an unknown key last caused a fetch, microseconds.
    unknown_us: Option<u64>,
    /// When the thread began to fetch, the Unix time in seconds.
    since_s: u64,
    fetched: u64,
    failed: u64,
    /// Why the last fetch failed, if it did.
    failure: Option<Arc<str>>,
    last_waiter: u64,
    waiters: BTreeMap<u64, Waker>,
    fetcher: Option<Waker>,
}

/// The state of the fetched keys, for operators.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FetchStatus {
    /// Seconds since the keys were fetched; without keys, since the proxy began to try.
    pub age_s: u64,
    /// `None` without keys.
    pub keys: Option<usize>,
    /// Why the last fetch failed, if it did.
    pub failure: Option<Arc<str>>,
    /// Fetches that succeeded.
    pub fetched: u64,
    /// Fetches that failed.
    pub failed: u64,
}

impl fmt::Debug for FetchedKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let keys = self.set.load().as_ref().map(|set| set.keys.len());
        f.debug_tuple("FetchedKeys").field(&keys).finish()
    }
}

impl FetchedKeys {
    /// Announces the thread that fetches. The first fetch is due at once, and requests wait for it.
    pub fn follow(&self, now_s: u64) {
        let mut state = self.lock();
        if !state.is_followed {
            (state.is_followed, state.since_s) = (true, now_s);
            (state.is_under_way, state.is_wanted) = (true, true);
        }
    }

    /// Ready when a fetch must begin before its time.
    pub fn poll_wanted(&self, cx: &mut Context<'_>) -> Poll<()> {
        let mut state = self.lock();
        if state.is_wanted {
            return Poll::Ready(());
        }
        state.fetcher = Some(cx.waker().clone());
        Poll::Pending
    }

    /// Begins a fetch. A drop of the attempt ends it as a failure.
    pub fn begin(&self) -> FetchAttempt<'_> {
        let mut state = self.lock();
        (state.is_under_way, state.is_wanted) = (true, false);
        FetchAttempt {
            keys: self,
            has_ended: false,
        }
    }

    /// Lets a request with an unknown key wait for the end of a fetch. It begins one, unless one is
    /// under way. `None` if there is nothing to wait for, or too many requests wait.
    pub fn wait(&self, now_us: u64) -> Option<KeyWait<'_>> {
        let mut state = self.lock();
        if state.waiters.len() >= MAX_WAITING || !state.is_followed {
            return None;
        }
        if !state.is_under_way {
            // The clock may have been set back.
            let is_recent = |asked_us: u64| now_us.abs_diff(asked_us) < UNKNOWN_EVERY_US;
            if state.unknown_us.is_some_and(is_recent) {
                return None;
            }
            state.unknown_us = Some(now_us);
            (state.is_under_way, state.is_wanted) = (true, true);
            if let Some(fetcher) = state.fetcher.take() {
                fetcher.wake();
            }
        }
        state.last_waiter += 1;
        let number = state.last_waiter;
        state.waiters.insert(number, Waker::noop().clone());
        Some(KeyWait { keys: self, number })
    }

    pub fn status(&self, now_s: u64) -> FetchStatus {
        let set = self.set.load();
        let state = self.lock();
        let since_s = set.as_ref().map_or(state.since_s, |set| set.fetched_s);
        FetchStatus {
            age_s: now_s.saturating_sub(since_s),
            keys: set.as_ref().map(|set| set.keys.len()),
            failure: state.failure.clone(),
            fetched: state.fetched,
            failed: state.failed,
        }
    }

    fn lock(&self) -> MutexGuard<'_, FetchState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends a fetch, and wakes the requests that wait for it.
    fn end(&self, note: impl FnOnce(&mut FetchState)) {
        let mut state = self.lock();
        state.is_under_way = false;
        note(&mut state);
        let waiters = std::mem::take(&mut state.waiters);
        drop(state);
        waiters.into_values().for_each(Waker::wake);
    }
}

/// A fetch that is under way.
#[derive(Debug)]
pub struct FetchAttempt<'k> {
    keys: &'k FetchedKeys,
    has_ended: bool,
}

impl FetchAttempt<'_> {
    /// Replaces the keys. A key that is no longer there is not believed any more. Returns whether
    /// the keys are others than before.
    pub fn succeed(mut self, keys: Vec<JwtKey>, now_s: u64) -> bool {
        self.has_ended = true;
        let old = self.keys.set.load_full();
        let is_other = old.as_ref().is_none_or(|old| old.keys != keys);
        let generation = old.map_or(0, |old| old.generation);
        self.keys.set.store(Some(Arc::new(FetchedSet {
            keys,
            generation: generation + u64::from(is_other),
            fetched_s: now_s,
        })));
        self.keys.end(|state| {
            state.fetched += 1;
            state.failure = None;
        });
        is_other
    }

    /// Keeps the keys. Returns whether the fetch before had succeeded.
    pub fn fail(mut self, why: &str) -> bool {
        self.has_ended = true;
        let mut is_first = false;
        self.keys.end(|state| {
            is_first = state.failure.is_none();
            state.failed += 1;
            state.failure = Some(why.into());
        });
        is_first
    }
}

impl Drop for FetchAttempt<'_> {
    fn drop(&mut self) {
        if !self.has_ended {
            self.keys.end(|state| state.failed += 1);
        }
    }
}

/// Ends with the fetch that is under way.
#[derive(Debug)]
pub struct KeyWait<'k> {
    keys: &'k FetchedKeys,
    number: u64,
}

impl Future for KeyWait<'_> {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let mut state = self.keys.lock();
        match state.waiters.get_mut(&self.number) {
            // The end of the fetch has removed it.
            None => Poll::Ready(()),
            Some(waker) => {
                waker.clone_from(cx.waker());
                Poll::Pending
            }
        }
    }
}

impl Drop for KeyWait<'_> {
    fn drop(&mut self) {
        self.keys.lock().waiters.remove(&self.number);
    }
}

#[cfg(test)]
mod tests;
