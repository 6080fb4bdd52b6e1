//! Sends what the workers have added up to the ledger, each second, on one thread of the process.
//!
//! No request waits for it. While the store is away, usage waits in the `LedgerBacklog`, which has
//! a bound. At the end of the process the rest is sent; a killed process loses its last second.
//! With the embedded store the ledger is in the memory of this process.
//!
//! ```text
//! collect    what the workers have added up                ledger::pending
//! merge      a line for each client and day                ledger::backlog
//! send       in numbered batches, each counted once        store::redis::ledger_client
//! ```

use std::fmt;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use tokio::sync::watch;
use tokio::time::{sleep, timeout};

use crate::clock;
use crate::config::{Config, StoreKind, StoreSettings};
use crate::ledger::{
    BatchReceipt, Date, DayLines, LedgerAmounts, LedgerBacklog, LedgerBatch, LedgerDays,
    LedgerInbox, LedgerSettings, LedgerShard,
};
use crate::store::StoreError;
use crate::store::redis::ledger_client::LedgerStore;
use crate::telemetry::panics::{contained, lock, spawn_thread};
use tidegate_core::failpoint;

/// How often usage is sent.
const SEND_EVERY: Duration = Duration::from_secs(1);
/// After this time a store that fails gets no more hashes until the next attempt.
const LONGEST_ROUND: Duration = Duration::from_secs(10);
/// How long the rest may take at the end of the process.
const LAST: Duration = Duration::from_secs(5);
/// The pause between two attempts at the end.
const LAST_PAUSE: Duration = Duration::from_millis(200);

/// The ledger of a process, and the thread that fills it.
#[derive(Debug)]
pub struct Billing {
    shared: Arc<BillingShared>,
    settings: watch::Sender<Option<BillingSettings>>,
    /// Becomes true when all workers have ended.
    end: watch::Sender<bool>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

/// What operators see of the ledger.
#[derive(Debug, Default)]
pub struct BillingShared {
    /// The lines, if the store is the memory of this process.
    days: Mutex<LedgerDays>,
    /// When the oldest usage that the store lacks was collected, microseconds since the Unix epoch;
    /// 0 if it lacks none.
    oldest_us: AtomicU64,
    /// What went into the line of other clients.
    other: Mutex<LedgerAmounts>,
    /// What has lost its client, because too much waited.
    lost: Mutex<LedgerAmounts>,
}

#[derive(Clone, Debug)]
struct BillingSettings {
    /// The last ones: what was collected is sent even if the section is removed.
    ledger: Arc<LedgerSettings>,
    store: StoreSettings,
}

impl Default for Billing {
    fn default() -> Billing {
        Billing {
            shared: Arc::default(),
            settings: watch::Sender::new(None),
            end: watch::Sender::new(false),
            thread: Mutex::default(),
        }
    }
}

impl Billing {
    /// Fills the ledger by this configuration from now on, from the usage in `inbox`.
    pub(crate) fn follow(&self, config: &Config, inbox: &Arc<LedgerInbox>) -> io::Result<()> {
        let Some(ledger) = &config.ledger else {
            return Ok(());
        };
        self.settings.send_replace(Some(BillingSettings {
            ledger: Arc::clone(ledger),
            store: config.store.clone(),
        }));
        let mut thread = lock(&self.thread);
        if thread.is_none() {
            let sender = BillingSender {
                shared: Arc::clone(&self.shared),
                inbox: Arc::clone(inbox),
                settings: self.settings.subscribe(),
                end: self.end.subscribe(),
                backlog: LedgerBacklog::default(),
                target: None,
                away_since: None,
                full_day: None,
                spoiled: None,
            };
            *thread = Some(spawn_thread("ledger", move || sender.run())?);
        }
        Ok(())
    }

    pub(crate) fn shared(&self) -> &Arc<BillingShared> {
        &self.shared
    }

    /// Sends the rest. All workers must have ended.
    pub(crate) fn finish(&self) {
        let Some(thread) = lock(&self.thread).take() else {
            return;
        };
        self.end.send_replace(true);
        if thread.join().is_err() {
            tracing::error!("the thread of the ledger panicked");
        }
    }
}

impl BillingShared {
    /// The lines of a day, if the store is the memory of this process.
    pub(crate) fn day(&self, date: Date) -> DayLines {
        lock(&self.days).day(date).cloned().unwrap_or_default()
    }

    /// How long the oldest usage waits that the store lacks, seconds.
    pub(crate) fn lag_seconds(&self) -> f64 {
        match self.oldest_us.load(Ordering::Relaxed) {
            0 => 0.0,
            oldest_us => clock::unix_us().saturating_sub(oldest_us) as f64 / 1e6,
        }
    }

    pub(crate) fn other(&self) -> LedgerAmounts {
        *lock(&self.other)
    }

    pub(crate) fn lost(&self) -> LedgerAmounts {
        *lock(&self.lost)
    }
}

/// Where the ledger is.
enum BatchReceiver {
    Here(Arc<BillingShared>),
    Redis(Box<LedgerStore>),
}

/// Where the ledger is, and by which settings.
struct LedgerTarget {
    store: StoreSettings,
    place: BatchReceiver,
}

impl LedgerTarget {
    fn new(store: &StoreSettings, shared: &Arc<BillingShared>) -> Result<Self, StoreError> {
        Ok(LedgerTarget {
            store: store.clone(),
            place: match &store.kind {
                StoreKind::Memory => BatchReceiver::Here(Arc::clone(shared)),
                StoreKind::Redis(server) => {
                    BatchReceiver::Redis(Box::new(LedgerStore::new(store, server)?))
                }
            },
        })
    }

    fn follow(
        &mut self,
        store: &StoreSettings,
        shared: &Arc<BillingShared>,
    ) -> Result<(), StoreError> {
        if self.store == *store {
            return Ok(());
        }
        match (&mut self.place, &store.kind) {
            (BatchReceiver::Redis(redis), StoreKind::Redis(server)) => {
                redis.follow(store, server)?;
                self.store = store.clone();
            }
            _ => *self = LedgerTarget::new(store, shared)?,
        }
        Ok(())
    }

    async fn send(
        &mut self,
        batch: &LedgerBatch,
        settings: &LedgerSettings,
    ) -> Result<BatchReceipt, StoreError> {
        match &mut self.place {
            BatchReceiver::Here(shared) => {
                let mut days = lock(&shared.days);
                Ok(days.add(batch, settings.max_clients))
            }
            BatchReceiver::Redis(store) => store.send(batch, settings).await,
        }
    }
}

struct BillingSender {
    shared: Arc<BillingShared>,
    inbox: Arc<LedgerInbox>,
    settings: watch::Receiver<Option<BillingSettings>>,
    end: watch::Receiver<bool>,
    backlog: LedgerBacklog,
    /// `None` before the first batch.
    target: Option<LedgerTarget>,
    away_since: Option<Instant>,
    /// The last day that the log says to have too many clients.
    full_day: Option<Date>,
    /// The last hash that the log says to have a value that is no integer.
    spoiled: Option<LedgerShard>,
}

/// Why usage waits.
#[derive(Clone, Copy, Debug)]
struct LedgerFailure {
    /// The hash that was sent to; `None` if none was.
    shard: Option<LedgerShard>,
    error: StoreError,
}

impl LedgerFailure {
    fn new(error: StoreError) -> LedgerFailure {
        LedgerFailure { shard: None, error }
    }
}

impl fmt::Display for LedgerFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.shard {
            Some(shard) => write!(f, "{shard}: {}", self.error),
            None => self.error.fmt(f),
        }
    }
}

impl BillingSender {
    async fn run(mut self) {
        while contained(self.send_until_end()).await.is_none() {}
        let rest = contained(self.send_rest());
        // A store that does not answer must not keep the process.
        let _ = timeout(LAST, rest).await;
        let lost = self.backlog.unsent();
        if !lost.is_zero() {
            tracing::error!(
                requests = lost.requests,
                tokens = lost.tokens,
                "ledger: the store did not take this usage before the process ended; it is lost"
            );
        }
    }

    async fn send_until_end(&mut self) {
        loop {
            tokio::select! {
                _ = self.end.wait_for(|end| *end) => return,
                changed = self.settings.changed() => if changed.is_err() {
                    return;
                },
                () = sleep(SEND_EVERY) => {}
            }
            failpoint!("billing.send");
            self.collect();
            self.send().await;
        }
    }

    async fn send_rest(&mut self) {
        self.collect();
        while !self.send().await {
            sleep(LAST_PAUSE).await;
        }
    }

    fn collect(&mut self) {
        self.backlog.add(self.inbox.collect(), clock::unix_us());
        *lock(&self.shared.lost) = self.backlog.lost();
        self.note_lag();
    }

    fn note_lag(&self) {
        let oldest_us = self.backlog.oldest_us().unwrap_or(0);
        self.shared.oldest_us.store(oldest_us, Ordering::Relaxed);
    }

    /// Sends all that waits. Returns whether the store has taken it.
    async fn send(&mut self) -> bool {
        let Some(settings) = self.settings.borrow().clone() else {
            return true;
        };
        let sent = self.send_all(&settings).await;
        self.note_lag();
        match sent {
            Ok(()) => self.note_back(),
            Err(error) => self.note_away(&error),
        }
        if let Some(BatchReceiver::Here(shared)) = self.target.as_ref().map(|target| &target.place)
        {
            let keep_us = u64::try_from(settings.ledger.keep.as_micros()).unwrap_or(u64::MAX);
            let first = clock::unix_us().saturating_sub(keep_us);
            let first = settings.ledger.date_at(first);
            for date in lock(&shared.days).drop_before(first) {
                tracing::warn!(%date, "ledger: too many lines in memory, so this day is dropped");
            }
        }
        sent.is_ok()
    }

    /// An error of one hash does not keep the others from the store.
    async fn send_all(&mut self, settings: &BillingSettings) -> Result<(), LedgerFailure> {
        if let Some(target) = &mut self.target {
            let followed = target.follow(&settings.store, &self.shared);
            followed.map_err(LedgerFailure::new)?;
        }
        let (mut first, since) = (None, clock::now());
        for shard in self.backlog.shards() {
            let Err(error) = self.send_shard(shard, settings).await else {
                continue;
            };
            first.get_or_insert(LedgerFailure {
                shard: Some(shard),
                error,
            });
            if clock::now().saturating_duration_since(since) > LONGEST_ROUND {
                break;
            }
        }
        first.map_or(Ok(()), Err)
    }

    async fn send_shard(
        &mut self,
        shard: LedgerShard,
        settings: &BillingSettings,
    ) -> Result<(), StoreError> {
        while let Some(batch) = self.backlog.batch(shard) {
            let target = match &mut self.target {
                Some(target) => target,
                none => none.insert(LedgerTarget::new(&settings.store, &self.shared)?),
            };
            let receipt = target.send(batch, &settings.ledger).await?;
            let has_more = self.backlog.acknowledge(shard);
            self.note_receipt(shard, receipt, settings);
            if !has_more {
                break;
            }
        }
        Ok(())
    }

    fn note_receipt(
        &mut self,
        shard: LedgerShard,
        receipt: BatchReceipt,
        settings: &BillingSettings,
    ) {
        if receipt.left_out > 0 && self.spoiled.replace(shard) != Some(shard) {
            tracing::error!(
                %shard,
                amounts = receipt.left_out,
                "ledger: a value in Redis is no integer, so its usage is not billed; `tidegate \
                 usage` names the field"
            );
        }
        let date = shard.date;
        if receipt.other.is_zero() {
            return;
        }
        lock(&self.shared.other).add(receipt.other.raised());
        if self.full_day.replace(date) != Some(date) {
            let max_clients = settings.ledger.max_clients;
            tracing::warn!(
                %date,
                max_clients,
                "ledger: more clients than `max_clients`; further ones are in the line `other`"
            );
        }
    }

    fn note_away(&mut self, error: &LedgerFailure) {
        if self.away_since.is_none() {
            self.away_since = Some(clock::now());
            tracing::warn!(
                why = %error,
                "ledger: the store takes no usage; it waits in memory, and no request waits for it"
            );
        }
    }

    fn note_back(&mut self) {
        if let Some(since) = self.away_since.take() {
            let seconds = clock::now().saturating_duration_since(since).as_secs();
            tracing::info!(seconds, "ledger: the store takes usage again");
        }
    }
}
