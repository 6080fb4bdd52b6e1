//! What a service says of API keys, cached for all workers, and the questions that are under way.
//!
//! One question is under way for a key; other requests with it wait for the same answer. Whoever
//! invents keys cannot make the service busy: an address has few questions about keys that turn out
//! unknown, and all addresses have [`MAX_UNDER_WAY`] at once. A request that may not ask counts as
//! one with an unknown key. While the service is away, keys that were known stay known for a while.
//!
//! The questions are sent elsewhere: this file knows no HTTP.

mod answers;
mod budget;
#[cfg(test)]
mod tests;

use std::fmt;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::{Notify, mpsc, watch};
use tokio::time::timeout_at;

use crate::clock;
use crate::config::{KeyCallbackSettings, process_secret};
use crate::limit::key::{HashSecret, KeyClient};
use crate::telemetry::metrics::cells::{Histogram, REQUEST_BOUNDS, WorkerCounter};
use answers::{CachedAnswers, Freshness, KeyId};
use budget::AddressBudgets;

/// Questions under way at once.
pub const MAX_UNDER_WAY: usize = 1000;
/// Bytes of a key that is asked for.
const MAX_KEY: usize = 4096;
/// Parts of the cache, each with a lock of its own.
const SHARDS: usize = 16;
/// Outages in a row after which the service counts as away.
const FAILURES: u32 = 3;
/// How often a service that is away gets a question. A key whose question failed rests as long.
const RETRY_EVERY: Duration = Duration::from_secs(1);
/// For so many times `ttl` a key stays known while the service is away.
const STALE_TTLS: u32 = 10;

/// What the service says of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeyAnswer {
    Known(KeyClient),
    Unknown,
    Failed(CallbackFailure),
}

/// Why there is no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallbackFailure {
    Timeout,
    /// There is no connection.
    Unreachable,
    /// There is no TLS with the service: its certificate is not trusted, for example.
    Untrusted,
    /// The service answers with a status of 500 and above.
    ServerError,
    /// An answer with another status, or with content that cannot be read.
    Unusable,
}

impl CallbackFailure {
    /// Whether it shows that the service is away. An answer that cannot be used may concern one
    /// key alone: a client could invent such keys.
    fn is_outage(self) -> bool {
        self != CallbackFailure::Unusable
    }
}

/// The label `outcome`, in the order of [`outcome_of`].
pub const OUTCOMES: [&str; 7] = [
    "known",
    "unknown",
    "timeout",
    "unreachable",
    "untrusted",
    "server_error",
    "unusable",
];
/// The label `reason` of questions that were not asked, in the order of [`Refusal`].
pub const REFUSALS: [&str; 3] = ["address", "busy", "away"];

/// Why a question is not asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Refusal {
    /// The address has asked for too many unknown keys.
    Address,
    /// Too many questions are under way.
    Busy,
    /// The service is away, and was asked just now.
    Away,
}

#[derive(Default)]
struct CallbackCounts {
    /// Only the task that asks writes these two.
    outcomes: [WorkerCounter; OUTCOMES.len()],
    durations: Histogram,
    refused: [AtomicU64; REFUSALS.len()],
}

/// Whether the service answers.
#[derive(Debug, Default)]
struct ServiceHealth {
    failures: u32,
    /// Set while the service is away.
    away: Option<AwayService>,
}

#[derive(Clone, Copy, Debug)]
struct AwayService {
    since: Instant,
    retry_at: Instant,
}

/// The service as all workers of the process know it, by one configuration.
pub struct KeyCallback {
    settings: Arc<KeyCallbackSettings>,
    known: Arc<KnownService>,
    questions: mpsc::Sender<KeyQuestion>,
}

/// What is known of the service. It outlives a configuration with the same URL.
struct KnownService {
    secret: HashSecret,
    shards: [Mutex<CachedAnswers>; SHARDS],
    budgets: Mutex<AddressBudgets>,
    health: Mutex<ServiceHealth>,
    under_way: AtomicUsize,
    /// Wakes requests that wait for a question of their address to end.
    freed: Notify,
    counts: CallbackCounts,
}

/// A question to be sent. A drop without an answer counts as a failure.
pub struct KeyQuestion {
    callback: Arc<KeyCallback>,
    /// The key in the clear.
    key: Vec<u8>,
    id: KeyId,
    /// The address that the question counts for; `None` if it counts for none.
    payer: Option<IpAddr>,
    asked: Instant,
    answer: Option<KeyAnswer>,
}

/// What a request has to do for one key.
enum NextStep {
    /// Nothing: the cache has the answer, or the question may not be asked.
    Done,
    /// The question is under way.
    WaitFor(watch::Receiver<()>),
    /// Other questions of the address must end first.
    WaitForAddress,
}

impl KeyCallback {
    /// The other end of the channel gets the questions.
    pub fn new(
        settings: &Arc<KeyCallbackSettings>,
    ) -> (Arc<KeyCallback>, mpsc::Receiver<KeyQuestion>) {
        let (questions, receiver) = mpsc::channel(MAX_UNDER_WAY);
        let known = KnownService {
            secret: process_secret(),
            shards: std::array::from_fn(|_| Mutex::default()),
            budgets: Mutex::default(),
            health: Mutex::default(),
            under_way: AtomicUsize::new(0),
            freed: Notify::new(),
            counts: CallbackCounts::default(),
        };
        let callback = KeyCallback {
            settings: Arc::clone(settings),
            known: Arc::new(known),
            questions,
        };
        (Arc::new(callback), receiver)
    }

    /// The same service by other settings, which have the same URL. Its questions go into the same
    /// channel. Keys that count as unknown are asked for again if `ttl_unknown` changes.
    pub fn renewed(&self, settings: &Arc<KeyCallbackSettings>) -> Arc<KeyCallback> {
        if self.settings.ttl_unknown != settings.ttl_unknown {
            let shards = self.known.shards.iter();
            shards.for_each(|shard| lock(shard).forget_unknown());
        }
        Arc::new(KeyCallback {
            settings: Arc::clone(settings),
            known: Arc::clone(&self.known),
            questions: self.questions.clone(),
        })
    }

    pub fn settings(&self) -> &Arc<KeyCallbackSettings> {
        &self.settings
    }

    /// The client of a key that is known, also by an older answer.
    pub(super) fn find(&self, key: &[u8], now: Instant) -> Option<Arc<KeyClient>> {
        let id = self.id(key)?;
        let longest = self.settings.ttl * STALE_TTLS;
        self.shard(&id).client(&id, now, longest)
    }

    /// Whether the cache lacks an answer about a key.
    pub(super) fn wants_answer(&self, key: &[u8], now: Instant) -> bool {
        let Some(id) = self.id(key) else {
            return false;
        };
        self.shard(&id).freshness(&id, now, &self.settings) != Freshness::Fresh
    }

    /// Asks about a key, if that is still necessary, and waits for the answer: no longer than the
    /// timeout. The answer is in the cache then.
    pub(super) async fn ask_about(self: &Arc<Self>, key: &[u8], ip: IpAddr) {
        let deadline = (clock::now() + self.settings.timeout).into();
        loop {
            let mut freed = std::pin::pin!(self.known.freed.notified());
            // Before the question is tried, so that no end of another one is missed.
            freed.as_mut().enable();
            match self.begin(key, ip, clock::now()) {
                NextStep::Done => return,
                NextStep::WaitFor(mut answered) => {
                    let _ = timeout_at(deadline, answered.changed()).await;
                    return;
                }
                NextStep::WaitForAddress => {
                    if timeout_at(deadline, freed).await.is_err() {
                        return self.refuse(Refusal::Address);
                    }
                }
            }
        }
    }

    fn begin(self: &Arc<Self>, key: &[u8], ip: IpAddr, now: Instant) -> NextStep {
        let Some(id) = self.id(key) else {
            return NextStep::Done;
        };
        let mut shard = self.shard(&id);
        let freshness = shard.freshness(&id, now, &self.settings);
        if freshness == Freshness::Fresh {
            return NextStep::Done;
        }
        if let Some(answered) = shard.wait_for(&id) {
            return NextStep::WaitFor(answered);
        }
        if self.known.under_way.load(Ordering::Relaxed) >= MAX_UNDER_WAY {
            self.refuse(Refusal::Busy);
            return NextStep::Done;
        }
        // A key that was known before may be asked for always: nobody has invented it.
        let payer = (freshness == Freshness::NeverKnown).then_some(ip);
        if let Some(ip) = payer {
            let mut budgets = lock(&self.known.budgets);
            if !budgets.take(ip, now) {
                if budgets.may_be_freed(ip, now) {
                    return NextStep::WaitForAddress;
                }
                self.refuse(Refusal::Address);
                return NextStep::Done;
            }
        }
        if !self.may_ask_service(now) {
            if let Some(ip) = payer {
                lock(&self.known.budgets).free(ip);
            }
            self.refuse(Refusal::Away);
            return NextStep::Done;
        }
        let answered = shard.begin(&id);
        drop(shard);
        self.known.under_way.fetch_add(1, Ordering::Relaxed);
        let question = KeyQuestion {
            callback: Arc::clone(self),
            key: key.to_vec(),
            id,
            payer,
            asked: now,
            answer: None,
        };
        // If it cannot be sent, its drop counts as a failure.
        let _ = self.questions.try_send(question);
        NextStep::WaitFor(answered)
    }

    /// Whether the service is there. If it is away, one question in a while is let through.
    fn may_ask_service(&self, now: Instant) -> bool {
        let mut health = lock(&self.known.health);
        match &mut health.away {
            None => true,
            Some(away) if now >= away.retry_at => {
                away.retry_at = now + RETRY_EVERY;
                true
            }
            Some(_) => false,
        }
    }

    fn note_answer(&self, question: &KeyQuestion, answer: KeyAnswer) {
        let now = clock::now();
        let outcome = outcome_of(&answer);
        self.known.counts.outcomes[outcome].add(1);
        let took = now.saturating_duration_since(question.asked);
        self.known.counts.durations.observe(took, &REQUEST_BOUNDS);
        let is_outage = matches!(&answer, KeyAnswer::Failed(failure) if failure.is_outage());
        self.note_health(is_outage, outcome, now);
        let is_known = matches!(answer, KeyAnswer::Known(_));
        let id = &question.id;
        let mut shard = self.shard(id);
        match answer {
            KeyAnswer::Known(client) => shard.note_known(id, Arc::new(client), now),
            KeyAnswer::Unknown => shard.note_unknown(id, now + self.settings.ttl_unknown),
            KeyAnswer::Failed(_) => shard.note_failure(id, now + RETRY_EVERY),
        }
        shard.end(id);
        drop(shard);
        self.known.under_way.fetch_sub(1, Ordering::Relaxed);
        if let Some(ip) = question.payer {
            lock(&self.known.budgets).end(ip, is_known, now);
        }
        self.known.freed.notify_waiters();
    }

    fn note_health(&self, is_outage: bool, outcome: usize, now: Instant) {
        let mut health = lock(&self.known.health);
        if !is_outage {
            health.failures = 0;
            if let Some(away) = health.away.take() {
                let seconds = now.saturating_duration_since(away.since).as_secs();
                tracing::info!(seconds, "api keys: the callback answers again");
            }
            return;
        }
        health.failures = health.failures.saturating_add(1);
        if health.failures >= FAILURES && health.away.is_none() {
            health.away = Some(AwayService {
                since: now,
                retry_at: now + RETRY_EVERY,
            });
            tracing::warn!(
                callback = %self.settings.endpoint,
                why = OUTCOMES[outcome],
                "api keys: the callback does not answer; known keys stay known for 10 times `ttl`"
            );
        }
    }

    fn refuse(&self, refusal: Refusal) {
        self.known.counts.refused[refusal as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// `None` for a key that is too long to be asked for.
    fn id(&self, key: &[u8]) -> Option<KeyId> {
        let fits = (1..=MAX_KEY).contains(&key.len());
        fits.then(|| KeyId(*blake3::keyed_hash(self.known.secret.as_bytes(), key).as_bytes()))
    }

    fn shard(&self, id: &KeyId) -> MutexGuard<'_, CachedAnswers> {
        lock(&self.known.shards[usize::from(id.0[0]) % SHARDS])
    }

    /// Keys that are cached as known.
    pub fn known(&self) -> usize {
        self.known
            .shards
            .iter()
            .map(|shard| lock(shard).known())
            .sum()
    }

    pub fn is_away(&self) -> bool {
        lock(&self.known.health).away.is_some()
    }

    /// Answers by [`OUTCOMES`].
    pub fn outcomes(&self) -> [u64; OUTCOMES.len()] {
        std::array::from_fn(|index| self.known.counts.outcomes[index].get())
    }

    /// Questions that were not asked, by [`REFUSALS`].
    pub fn refusals(&self) -> [u64; REFUSALS.len()] {
        std::array::from_fn(|index| self.known.counts.refused[index].load(Ordering::Relaxed))
    }

    pub fn durations(&self) -> &Histogram {
        &self.known.counts.durations
    }
}

/// The index in [`OUTCOMES`].
fn outcome_of(answer: &KeyAnswer) -> usize {
    match answer {
        KeyAnswer::Known(_) => 0,
        KeyAnswer::Unknown => 1,
        KeyAnswer::Failed(CallbackFailure::Timeout) => 2,
        KeyAnswer::Failed(CallbackFailure::Unreachable) => 3,
        KeyAnswer::Failed(CallbackFailure::Untrusted) => 4,
        KeyAnswer::Failed(CallbackFailure::ServerError) => 5,
        KeyAnswer::Failed(CallbackFailure::Unusable) => 6,
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl KeyQuestion {
    /// The key in the clear. It must not be logged.
    pub fn key(&self) -> &[u8] {
        &self.key
    }

    pub fn settings(&self) -> &Arc<KeyCallbackSettings> {
        &self.callback.settings
    }

    /// When the request that waits gives up.
    pub fn deadline(&self) -> Instant {
        self.asked + self.callback.settings.timeout
    }

    pub fn answer(mut self, answer: KeyAnswer) {
        self.answer = Some(answer);
    }
}

impl Drop for KeyQuestion {
    fn drop(&mut self) {
        let failed = KeyAnswer::Failed(CallbackFailure::Unreachable);
        let answer = self.answer.take().unwrap_or(failed);
        let callback = Arc::clone(&self.callback);
        callback.note_answer(self, answer);
    }
}

impl fmt::Debug for KeyCallback {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "KeyCallback({})", self.settings.endpoint)
    }
}

impl fmt::Debug for KeyQuestion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("KeyQuestion(..)")
    }
}
