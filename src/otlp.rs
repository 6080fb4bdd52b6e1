//! Exports spans to an OpenTelemetry collector by OTLP, on one thread of the process.
//!
//! The thread takes the spans from the workers' queues in batches and sends each a few times. Then
//! it drops the batch: a slow or missing collector costs spans, never requests. An outage has two
//! lines in the log, at its begin and at its end. A panic costs the taken spans, which are counted,
//! and the connection.
//!
//! ```text
//! take       the waiting spans of all workers              telemetry::spans
//! encode     as messages of the protocol                   messages
//! send       over a kept connection, with a timeout        collector
//! ```

mod collector;
mod messages;
#[cfg(test)]
mod panics;

use std::io;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use tokio::sync::watch;
use tokio::time::{sleep, timeout};

use crate::clock;
use crate::config::TracingSettings;
use crate::telemetry::panics::{contained, lock, spawn_thread};
use crate::telemetry::spans::{SpanCounts, SpanQueue, SpanQueues, TraceSpan};
use collector::{Collector, ExportError};

const ATTEMPTS: u32 = 5;
/// The rest after the first failure; it doubles with each further one.
const FIRST_REST: Duration = Duration::from_millis(500);
const LONGEST_REST: Duration = Duration::from_secs(10);
/// The least time for the last spans at the end of the process, and all of it during an outage.
const LAST_LEAST: Duration = Duration::from_millis(500);
const LAST_MOST: Duration = Duration::from_secs(5);

type Settings = Option<Arc<TracingSettings>>;

/// Controls the export. The thread ends when it is dropped.
#[derive(Debug)]
pub struct Exports {
    depot: Arc<SpanQueues>,
    settings: watch::Sender<Settings>,
    /// At the end of the process: until when everything has to be sent.
    end: watch::Sender<Option<Instant>>,
    thread: Mutex<ExportThread>,
}

#[derive(Debug, Default)]
struct ExportThread {
    handle: Option<JoinHandle<()>>,
    /// Until when the workers may take to end.
    workers_end_by: Option<Instant>,
}

impl Default for Exports {
    fn default() -> Exports {
        Exports {
            depot: Arc::default(),
            settings: watch::Sender::new(None),
            end: watch::Sender::new(None),
            thread: Mutex::default(),
        }
    }
}

impl Exports {
    /// Exports by these settings from now on; `None` stops the export after the waiting spans.
    pub(crate) fn follow(&self, settings: Option<&Arc<TracingSettings>>) -> io::Result<()> {
        let mut thread = lock(&self.thread);
        if thread.handle.is_none() && settings.is_some() {
            thread.handle = Some(self.spawn()?);
        }
        let settings = settings.cloned();
        self.settings.send_if_modified(|known| {
            let changes = *known != settings;
            *known = settings;
            changes
        });
        Ok(())
    }

    pub(crate) fn queue(&self) -> Arc<SpanQueue> {
        self.depot.queue()
    }

    pub fn span_counts(&self) -> SpanCounts {
        self.depot.counts()
    }

    /// Notes that a worker ends, until `by` at the latest.
    pub(crate) fn note_end(&self, by: Instant) {
        let mut thread = lock(&self.thread);
        thread.workers_end_by = thread.workers_end_by.max(Some(by));
    }

    /// Sends the last spans in the rest of the workers' time. All workers must have ended.
    pub(crate) fn finish(&self) {
        let mut thread = lock(&self.thread);
        let (handle, by) = (thread.handle.take(), thread.workers_end_by);
        drop(thread);
        let Some(handle) = handle else { return };
        let (least, most) = (clock::now() + LAST_LEAST, clock::now() + LAST_MOST);
        let by = by.map_or(least, |by| by.min(most).max(least));
        self.end.send_replace(Some(by));
        if handle.join().is_err() {
            tracing::error!("the thread that exports spans panicked");
        }
    }

    fn spawn(&self) -> io::Result<JoinHandle<()>> {
        let exporter = Exporter {
            depot: Arc::clone(&self.depot),
            settings: self.settings.subscribe(),
            end: self.end.subscribe(),
            collector: None,
            failures: 0,
            outage: None,
        };
        spawn_thread("otlp", move || exporter.run())
    }
}

struct Exporter {
    depot: Arc<SpanQueues>,
    settings: watch::Receiver<Settings>,
    end: watch::Receiver<Option<Instant>>,
    collector: Option<Collector>,
    failures: u32,
    outage: Option<ExportOutage>,
}

struct ExportOutage {
    since: Instant,
    lost: u64,
}

enum WakeReason {
    Spans,
    NewSettings,
    End,
}

/// Spans that were taken from the queues. A drop counts the rest of them as failed.
struct SpanBatch {
    depot: Arc<SpanQueues>,
    spans: Vec<TraceSpan>,
    settled: usize,
}

impl SpanBatch {
    fn take(depot: &Arc<SpanQueues>) -> SpanBatch {
        SpanBatch {
            depot: Arc::clone(depot),
            spans: depot.take(),
            settled: 0,
        }
    }

    fn left(&self) -> &[TraceSpan] {
        &self.spans[self.settled..]
    }

    /// The next spans as a message, and their number.
    fn encode_next(&self, settings: &TracingSettings) -> (Vec<u8>, usize) {
        let count = settings.batch.min(self.left().len());
        let body = messages::encode(&self.left()[..count], &settings.service);
        (body, count)
    }

    /// Settles `count` spans that were sent. The collector refused some of them.
    fn note_sent(&mut self, count: usize, refused: u64) {
        self.settled += count;
        let count = count as u64;
        let refused = refused.min(count);
        self.depot.note_exported(count - refused, refused);
    }

    fn note_lost(&mut self, count: usize) {
        self.settled += count;
        self.depot.note_failed(count as u64);
    }
}

impl Drop for SpanBatch {
    fn drop(&mut self) {
        self.note_lost(self.left().len());
    }
}

impl Exporter {
    async fn run(mut self) {
        while contained(self.export_until_end()).await.is_none() && self.end.borrow().is_none() {}
        contained(self.export_last()).await;
        let fates = self.depot.counts();
        let lost = fates.failed + fates.dropped + fates.refused;
        if lost > 0 && self.settings.borrow().is_some() {
            tracing::warn!(lost, "tracing: spans were lost since the start");
        }
    }

    async fn export_until_end(&mut self) {
        self.apply_settings();
        loop {
            match self.wait().await {
                WakeReason::Spans => self.export().await,
                WakeReason::NewSettings => {
                    // The waiting spans were recorded under the old settings. If that collector is
                    // away, the new one gets them.
                    if self.outage.is_none() {
                        self.export().await;
                    }
                    self.apply_settings();
                }
                WakeReason::End => return,
            }
        }
    }

    fn apply_settings(&mut self) {
        self.collector = None;
        let settings = self.settings.borrow_and_update().clone();
        self.collector = settings.map(Collector::new);
    }

    async fn wait(&mut self) -> WakeReason {
        let every = self.collector.as_ref().map(|one| one.settings.every);
        tokio::select! {
            _ = self.end.wait_for(Option::is_some) => WakeReason::End,
            changed = self.settings.changed() => match changed {
                Ok(()) => WakeReason::NewSettings,
                Err(_) => WakeReason::End,
            },
            () = self.depot.filled(), if every.is_some() => WakeReason::Spans,
            () = sleep(every.unwrap_or_default()), if every.is_some() => WakeReason::Spans,
        }
    }

    /// Sends all waiting spans. At the end of the process the rest of them counts as failed.
    async fn export(&mut self) {
        // Taken away, so that a panic drops it.
        let Some(mut collector) = self.collector.take() else {
            return;
        };
        let mut batch = SpanBatch::take(&self.depot);
        while !batch.left().is_empty() {
            self.send(&mut collector, &mut batch).await;
        }
        self.collector = Some(collector);
    }

    async fn send(&mut self, collector: &mut Collector, batch: &mut SpanBatch) {
        let (body, count) = batch.encode_next(&collector.settings);
        for attempt in 1..=ATTEMPTS {
            let mut end = self.end.clone();
            let sent = tokio::select! {
                sent = collector.send(&body) => sent,
                () = wait_past(&mut end) => Err(ExportError::timed_out()),
            };
            let error = match sent {
                Ok(refused) => {
                    batch.note_sent(count, refused);
                    return self.end_outage(collector);
                }
                Err(error) => error,
            };
            self.begin_outage(collector, &error);
            let mut settings = self.settings.clone();
            let is_over = self.end.borrow().is_some() || settings.has_changed().is_ok_and(|is| is);
            if !error.is_temporary {
                batch.note_sent(count, count as u64);
                return self.note_outage_loss(count);
            }
            if attempt == ATTEMPTS || is_over {
                break;
            }
            let usual = rest_after(self.failures);
            let rest = error.retry_after.unwrap_or(usual);
            self.failures += 1;
            tokio::select! {
                () = sleep(rest.min(LONGEST_REST)) => {}
                _ = self.end.wait_for(Option::is_some) => {}
                _ = settings.changed() => {}
            }
        }
        batch.note_lost(count);
        self.note_outage_loss(count);
    }

    fn note_outage_loss(&mut self, count: usize) {
        if let Some(outage) = &mut self.outage {
            outage.lost += count as u64;
        }
    }

    fn begin_outage(&mut self, collector: &Collector, error: &ExportError) {
        if self.outage.is_none() {
            let since = clock::now();
            self.outage = Some(ExportOutage { since, lost: 0 });
            tracing::warn!(
                collector = %collector.settings.endpoint,
                why = %error.reason,
                "tracing: the collector does not accept spans; requests do not wait for it"
            );
        }
    }

    fn end_outage(&mut self, collector: &Collector) {
        self.failures = 0;
        if let Some(ExportOutage { since, lost }) = self.outage.take() {
            let seconds = clock::now().saturating_duration_since(since).as_secs();
            tracing::info!(
                collector = %collector.settings.endpoint,
                seconds,
                lost,
                "tracing: the collector takes spans again"
            );
        }
    }

    /// Sends the last spans: one attempt for each batch, and a common deadline.
    async fn export_last(&mut self) {
        let settings = self.settings.borrow().clone();
        // A panic may have dropped the collector.
        self.collector = (self.collector.take()).or_else(|| settings.map(Collector::new));
        match self.outage {
            Some(_) => drop(timeout(LAST_LEAST, self.export()).await),
            None => self.export().await,
        }
    }
}

/// Waits for the end of the process, and then until everything has to be sent.
async fn wait_past(end: &mut watch::Receiver<Option<Instant>>) {
    let by = end.wait_for(Option::is_some).await.ok().and_then(|by| *by);
    sleep(by.map_or(Duration::ZERO, |by| {
        by.saturating_duration_since(clock::now())
    }))
    .await;
}

fn rest_after(failures: u32) -> Duration {
    (FIRST_REST * 2_u32.saturating_pow(failures.min(16))).min(LONGEST_REST)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rests_grow_and_are_bounded() {
        let rests: Vec<u128> = [0, 1, 4, 5, 60].map(|n| rest_after(n).as_millis()).to_vec();
        assert_eq!(rests, [500, 1000, 8000, 10_000, 10_000]);
    }
}
