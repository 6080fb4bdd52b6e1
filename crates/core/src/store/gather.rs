//! Requests on their way to the store, gathered into as few groups as possible: equal requests are
//! one.
//!
//! Sans-IO: the connection's task decides what is sent where, and when.

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;
use std::time::{Duration, Instant};

use smallvec::{SmallVec, smallvec};
use tokio::sync::{oneshot, watch};

use super::StoreError;
use super::batch::{Group, GroupOutcome, Operation};
use super::lease::WorkerCache;
use crate::limit::{Charge, Decision, LimitCheck};

/// Items in one call: they block the server for about 0.3 ms at most.
const MAX_ITEMS: usize = 64;
/// Bundles that a new batch has room for, at most.
const MAX_INITIAL_BUNDLES: usize = 64;

pub(super) type StoreResult = Result<Decision, StoreError>;

#[derive(Debug)]
pub(super) struct StoreRequest {
    pub(super) charge: Charge,
    pub(super) operation: Operation,
    /// Numbers that the operation needs for each item; see [`super::batch::Group::extra`].
    pub(super) extra: SmallVec<[u64; 2]>,
    /// The generation of the hash key that its tags were made with.
    pub(super) generation: u64,
    pub(super) arrived: Instant,
    /// The slot of a cluster that all its keys lie in; 0 where the store is no cluster.
    pub(super) slot: u16,
}

/// A request on its way to the store. If it is dropped before it is answered, the asker gets
/// [`StoreError::Lost`].
#[derive(Debug)]
pub(super) struct QueuedRequest {
    request: StoreRequest,
    reply_to: ReplyTo,
    /// Ends when the request is answered or has failed.
    _open: Option<OpenCorrection>,
}

/// How many corrections, for whose answers nothing waits, are on their way to the store.
#[derive(Clone, Debug, Default)]
pub(super) struct Corrections(Arc<watch::Sender<usize>>);

#[derive(Debug)]
pub(super) struct OpenCorrection(Corrections);

impl Corrections {
    pub(super) fn open(&self) -> OpenCorrection {
        self.0.send_modify(|open| *open += 1);
        OpenCorrection(self.clone())
    }

    /// Waits until the store has all corrections.
    pub(super) async fn flush(&self) {
        // The sender lives as long as `self`.
        let _ = self.0.subscribe().wait_for(|open| *open == 0).await;
    }
}

impl Drop for OpenCorrection {
    fn drop(&mut self) {
        self.0.0.send_modify(|open| *open -= 1);
    }
}

enum ReplyTo {
    /// If the asker goes, the request is not sent.
    Asker(oneshot::Sender<StoreResult>),
    /// The request is sent, also if the asker goes: limits in shadow mode count all requests.
    ShadowAsker(oneshot::Sender<StoreResult>),
    /// Nothing waits for the answer. This is run if the request fails.
    OnFailure(OnFailure),
    Nothing,
}

pub(super) type OnFailure = Box<dyn FnOnce(&StoreRequest) + Send + Sync>;

impl fmt::Debug for ReplyTo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            ReplyTo::Asker(_) => "Asker",
            ReplyTo::ShadowAsker(_) => "ShadowAsker",
            ReplyTo::OnFailure(_) => "OnFailure",
            ReplyTo::Nothing => "Nothing",
        })
    }
}

/// The asker's end of a request.
pub(super) type PendingAnswer = oneshot::Receiver<StoreResult>;

/// A charge that needs a decision.
#[derive(Clone, Copy)]
pub(super) struct AskedCharge<'c> {
    pub(super) charge: &'c Charge,
    /// To charge, or to book.
    pub(super) operation: Operation,
    pub(super) generation: u64,
    pub(super) arrived: Instant,
    /// Whether the request that asks may end before it has the decision.
    pub(super) is_shadow: bool,
}

impl AskedCharge<'_> {
    pub(super) fn queued(self, slot: u16) -> (QueuedRequest, PendingAnswer) {
        let request = StoreRequest {
            charge: self.charge.clone(),
            operation: self.operation,
            extra: SmallVec::new(),
            generation: self.generation,
            arrived: self.arrived,
            slot,
        };
        match self.is_shadow {
            false => request.with_answer(),
            true => request.with_reply_to(ReplyTo::ShadowAsker),
        }
    }
}

impl StoreRequest {
    pub(super) fn with_answer(self) -> (QueuedRequest, PendingAnswer) {
        self.with_reply_to(ReplyTo::Asker)
    }

    fn with_reply_to(
        self,
        reply_to: fn(oneshot::Sender<StoreResult>) -> ReplyTo,
    ) -> (QueuedRequest, PendingAnswer) {
        let (sender, answer) = oneshot::channel();
        (self.replying(reply_to(sender)), answer)
    }

    fn replying(self, reply_to: ReplyTo) -> QueuedRequest {
        QueuedRequest {
            request: self,
            reply_to,
            _open: None,
        }
    }

    /// A request whose answer nothing waits for.
    pub(super) fn without_answer(self) -> QueuedRequest {
        self.replying(ReplyTo::Nothing)
    }

    /// A request whose answer nothing waits for. If it fails, `on_failure` gets it.
    pub(super) fn or_else(self, on_failure: OnFailure) -> QueuedRequest {
        self.replying(ReplyTo::OnFailure(on_failure))
    }
}

impl QueuedRequest {
    pub(super) fn counted(self, open: OpenCorrection) -> QueuedRequest {
        QueuedRequest {
            _open: Some(open),
            ..self
        }
    }

    /// Whether the request need not be sent, since its asker has gone.
    pub(super) fn is_given_up(&self) -> bool {
        matches!(&self.reply_to, ReplyTo::Asker(asker) if asker.is_closed())
    }

    fn wants_answer(&self) -> bool {
        matches!(self.reply_to, ReplyTo::Asker(_) | ReplyTo::ShadowAsker(_))
    }

    /// Returns false if the asker has gone, or never wanted an answer.
    #[inline]
    pub(super) fn answer(self, answer: StoreResult) -> bool {
        match self.reply_to {
            ReplyTo::Asker(asker) | ReplyTo::ShadowAsker(asker) => asker.send(answer).is_ok(),
            ReplyTo::OnFailure(on_failure) => {
                if answer.is_err() {
                    on_failure(&self.request);
                }
                false
            }
            ReplyTo::Nothing => false,
        }
    }

    pub(super) fn fail(self, kind: StoreError) {
        // The asker has gone if its client has.
        let _ = self.answer(Err(kind));
    }
}

impl Deref for QueuedRequest {
    type Target = StoreRequest;

    fn deref(&self) -> &StoreRequest {
        &self.request
    }
}

/// Waits for the answer.
pub(super) async fn wait_for(answer: &mut PendingAnswer) -> StoreResult {
    answer.await.unwrap_or(Err(StoreError::Lost))
}

/// Requests that ask exactly the same, or one operation of another kind.
#[derive(Debug)]
pub(super) struct Bundle {
    pub(super) operation: Operation,
    pub(super) extra: SmallVec<[u64; 2]>,
    first: QueuedRequest,
    /// In order of arrival, which is the order in which grants are given.
    more: Vec<QueuedRequest>,
    fingerprint: u64,
}

/// Bundles to be sent in one call.
#[derive(Debug, Default)]
pub(super) struct Batch {
    pub(super) bundles: Vec<Bundle>,
    items: usize,
    /// When the oldest request that wants an answer arrived.
    oldest: Option<Instant>,
}

/// Which requests are worth sending now.
#[derive(Clone, Copy, Debug)]
pub(super) struct SendConditions {
    pub(super) now: Instant,
    pub(super) timeout: Duration,
    /// The generation of the hash key in force.
    pub(super) generation: u64,
}

impl Batch {
    pub(super) fn for_about(requests: usize) -> Batch {
        Batch {
            bundles: Vec::with_capacity(requests.min(MAX_INITIAL_BUNDLES)),
            ..Batch::default()
        }
    }

    /// Adds a request, unless its asker has gone or it must fail. Returns the request if the batch
    /// is full.
    pub(super) fn add_if_due(
        &mut self,
        request: QueuedRequest,
        conditions: SendConditions,
    ) -> Option<QueuedRequest> {
        if request.is_given_up() {
            return None;
        }
        let is_late = conditions.now >= request.arrived + conditions.timeout;
        if request.generation != conditions.generation {
            request.fail(StoreError::Away);
        } else if is_late && request.wants_answer() {
            request.fail(StoreError::Timeout);
        } else {
            return self.add(request, MAX_ITEMS);
        }
        None
    }

    /// Adds a request. Returns it if the batch would have more than `max_items` items with it.
    pub(super) fn add(
        &mut self,
        request: QueuedRequest,
        max_items: usize,
    ) -> Option<QueuedRequest> {
        let fingerprint = fingerprint(&request.charge);
        if let Operation::Charge(count) = request.operation {
            let same = self.bundles.iter_mut().find(|bundle| {
                bundle.fingerprint == fingerprint && bundle.accepts(&request, count)
            });
            if let Some(bundle) = same {
                bundle.operation = Operation::Charge(bundle.count() + count);
                bundle.more.push(request);
                return None;
            }
        }
        if !self.bundles.is_empty() && self.items + request.charge.len() > max_items {
            return Some(request);
        }
        self.items += request.charge.len();
        self.oldest = self.oldest.or(Some(request.arrived));
        self.bundles.push(Bundle {
            operation: request.operation,
            extra: request.extra.clone(),
            first: request,
            more: Vec::new(),
            fingerprint,
        });
        None
    }

    /// When its requests have waited long enough. Its oldest request decides, except that a call
    /// has a quarter of the timeout at least: old requests may want no answer.
    pub(super) fn deadline(&self, now: Instant, timeout: Duration) -> Instant {
        (self.oldest.unwrap_or(now) + timeout).max(now + timeout / 4)
    }

    /// The batch of bundles that are sent once more.
    pub(super) fn again(bundles: Vec<Bundle>) -> Batch {
        let asked = bundles.iter().filter(|bundle| bundle.first.wants_answer());
        Batch {
            items: bundles.iter().map(|bundle| bundle.charge().len()).sum(),
            oldest: asked.map(|bundle| bundle.first.arrived).min(),
            bundles,
        }
    }

    /// Each bundle in a batch of its own.
    pub(super) fn split(self) -> Vec<Batch> {
        let alone = |bundle: Bundle| Batch {
            items: bundle.charge().len(),
            oldest: self.oldest,
            bundles: vec![bundle],
        };
        self.bundles.into_iter().map(alone).collect()
    }

    /// Asks for more units of leased keys than the requests need.
    pub(super) fn ask_ahead(&mut self, cache: &WorkerCache, now_us: u64) {
        for bundle in &mut self.bundles {
            // A lease may end in another calendar window than it began.
            let first = bundle.charge().first();
            let first = first.filter(|item| item.window.calendar.is_none());
            let lease_us = first.map_or(0, |item| item.limit.lease_us);
            if lease_us > 0 && matches!(bundle.operation, Operation::Charge(_)) {
                let more = cache.lock().leases.ahead(bundle.charge(), now_us);
                if more > 0 {
                    let count = bundle.count().saturating_add(more);
                    bundle.operation = Operation::Charge(count);
                    bundle.extra = smallvec![lease_us];
                }
            }
        }
    }
}

impl Bundle {
    pub(super) fn charge(&self) -> &Charge {
        &self.first.charge
    }

    pub(super) fn group(&self) -> Group<'_> {
        Group {
            operation: self.operation,
            charge: self.charge(),
            extra: &self.extra,
        }
    }

    /// How many requests the group stands for, with those that are asked for ahead.
    pub(super) fn count(&self) -> u16 {
        match self.operation {
            Operation::Charge(count) => count,
            Operation::Book(_) => 1,
            Operation::Report | Operation::Refund | Operation::Settle | Operation::RefundOldest => {
                0
            }
        }
    }

    pub(super) fn waiting(&self) -> u16 {
        u16::try_from(1 + self.more.len()).unwrap_or(u16::MAX)
    }

    fn into_requests(self) -> impl Iterator<Item = QueuedRequest> {
        std::iter::once(self.first).chain(self.more)
    }

    /// Answers each request with its decision, after `observe` has seen it. Returns how many were
    /// granted to askers that have gone.
    pub(super) fn answer(
        self,
        outcome: &mut GroupOutcome,
        mut observe: impl FnMut(&Charge, &Decision),
    ) -> u16 {
        let (mut unwanted, is_alone) = (0, self.more.is_empty());
        for (index, request) in (0..).zip(self.into_requests()) {
            let decision = match is_alone {
                true => outcome.take(),
                false => outcome.decision(index, &request.charge),
            };
            let Some(decision) = decision else {
                request.fail(StoreError::Garbled);
                continue;
            };
            observe(&request.charge, &decision);
            let granted = decision.allowed;
            let taken = request.answer(Ok(decision));
            unwanted += u16::from(granted && !taken);
        }
        unwanted
    }

    /// Answers an operation that asks for no decision: it was done.
    pub(super) fn done(self) {
        for request in self.into_requests() {
            request.answer(Ok(Decision::default()));
        }
    }

    pub(super) fn fail(self, kind: StoreError) {
        self.into_requests().for_each(|request| request.fail(kind));
    }

    fn accepts(&self, request: &QueuedRequest, count: u16) -> bool {
        let same = |(mine, other): (&LimitCheck, &LimitCheck)| {
            mine.id() == other.id()
                && mine.cost == other.cost
                && mine.window.rule == other.window.rule
        };
        matches!(self.operation, Operation::Charge(_))
            && self.charge().len() == request.charge.len()
            && self.charge().iter().zip(&request.charge).all(same)
            && self.extra.is_empty()
            && request.extra.is_empty()
            && self.count().checked_add(count).is_some()
    }
}

/// Equal for equal charges, and seldom for others.
fn fingerprint(charge: &Charge) -> u64 {
    let folded = charge.iter().fold(0_u128, |print, item| {
        print.rotate_left(17) ^ item.id() ^ u128::from(item.cost)
    });
    folded as u64 ^ (folded >> 64) as u64
}

#[cfg(test)]
mod tests;
