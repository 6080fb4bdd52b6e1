//! Sends spans to an OpenTelemetry collector, in the background.
//!
//! One thread for the process, which is there once traces are wanted. It takes out of the workers'
//! queues what has come together, and sends it by OTLP; what cannot be sent is tried a few times
//! and given up, so that a collector which is slow or away costs spans, and never a request. Of an
//! outage the log has two lines: one when it begins, one when it is over. A panic costs what was
//! being sent, which is counted, and the connection.
//!
//! ```text
//! take       what waits, of all workers                                 telemetry::spans
//! encode     as the protocol's messages                                 messages
//! send       over a connection that is kept, within the timeout         collector
//! again      after a rest that grows, a few times                       here
//! ```

mod collector;
mod messages;
#[cfg(test)]
mod panics;

use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use tokio::sync::watch;

use crate::clock;
use crate::config::TracingSettings;
use crate::telemetry::panics::contained;
use crate::telemetry::spans::{SpanCounts, SpanQueue, SpanQueues, TraceSpan};
use collector::{Collector, Sent, Trouble};

/// How often a batch is sent at most.
const ATTEMPTS: u32 = 5;
/// The first rest after a failure; each further one is twice as long,
const FIRST_REST: Duration = Duration::from_millis(500);
/// up to this.
const LONGEST_REST: Duration = Duration::from_secs(10);
/// What the last spans have at the end, of the time for that: at least, and where the collector is
/// known to be away,
const LAST_LEAST: Duration = Duration::from_millis(500);
/// and at most.
const LAST_MOST: Duration = Duration::from_secs(5);

type Settings = Option<Arc<TracingSettings>>;

/// Who has spans exported. The thread ends when it is dropped.
#[derive(Debug)]
pub struct Exports {
    depot: Arc<SpanQueues>,
    settings: watch::Sender<Settings>,
    /// Until when everything has to be sent: set at the end.
    end: watch::Sender<Option<Instant>>,
    /// Until when the workers' own end takes.
    drained_by: Mutex<Option<Instant>>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Default for Exports {
    fn default() -> Exports {
        Exports {
            depot: Arc::default(),
            settings: watch::Sender::new(None),
            end: watch::Sender::new(None),
            drained_by: Mutex::default(),
            thread: Mutex::default(),
        }
    }
}

impl Exports {
    /// From now on exports as these settings say; without any, what waits is the last.
    pub(crate) fn follow(&self, settings: Option<&Arc<TracingSettings>>) -> io::Result<()> {
        let mut thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner);
        if thread.is_none() && settings.is_some() {
            *thread = Some(self.spawn()?);
        }
        let settings = settings.cloned();
        self.settings.send_if_modified(|known| {
            let changes = *known != settings;
            *known = settings;
            changes
        });
        Ok(())
    }

    /// A worker's end.
    pub(crate) fn queue(&self) -> Arc<SpanQueue> {
        self.depot.queue()
    }

    /// What has become of all spans so far.
    pub fn span_counts(&self) -> SpanCounts {
        self.depot.counts()
    }

    /// A worker is about to end, until then at the latest.
    pub(crate) fn note_end(&self, by: Instant) {
        let mut known = self
            .drained_by
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        *known = Some(known.map_or(by, |known| known.max(by)));
    }

    /// All workers have ended: sends what is left, in what is left of their time.
    pub(crate) fn finish(&self) {
        let thread = self
            .thread
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        let Some(thread) = thread else { return };
        let by = *self
            .drained_by
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let (least, most) = (clock::now() + LAST_LEAST, clock::now() + LAST_MOST);
        self.end
            .send_replace(Some(by.map_or(least, |by| by.min(most).max(least))));
        if thread.join().is_err() {
            tracing::error!("the thread that exports spans panicked");
        }
    }

    fn spawn(&self) -> io::Result<JoinHandle<()>> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        let exporter = Exporter {
            depot: Arc::clone(&self.depot),
            follow: self.settings.subscribe(),
            end: self.end.subscribe(),
            collector: None,
            failures: 0,
            outage: None,
        };
        std::thread::Builder::new()
            .name("otlp".to_owned())
            .spawn(move || runtime.block_on(exporter.run()))
    }
}

/// The thread's own.
struct Exporter {
    depot: Arc<SpanQueues>,
    follow: watch::Receiver<Settings>,
    end: watch::Receiver<Option<Instant>>,
    /// Where the last spans go, once no others do.
    collector: Option<Collector>,
    /// Attempts in a row that failed.
    failures: u32,
    /// Since when nothing is taken, and how many spans that has cost.
    outage: Option<(Instant, u64)>,
}

/// Spans that nobody else has. What is left of them when it is dropped is lost, and counted.
struct Taken {
    depot: Arc<SpanQueues>,
    spans: Vec<TraceSpan>,
    /// How many of them are no longer its business.
    settled: usize,
}

impl Taken {
    fn new(depot: &Arc<SpanQueues>) -> Taken {
        Taken {
            depot: Arc::clone(depot),
            spans: depot.take(),
            settled: 0,
        }
    }

    fn left(&self) -> &[TraceSpan] {
        &self.spans[self.settled..]
    }

    /// The next batch as a message, and how many it is.
    fn next(&self, settings: &TracingSettings) -> (Vec<u8>, usize) {
        let count = settings.batch.min(self.left().len());
        let body = messages::encode(&self.left()[..count], &settings.service);
        (body, count)
    }

    /// The collector has had so many more, and may not have wanted all of them.
    fn sent(&mut self, count: usize, sent: &Sent) {
        self.settled += count;
        let count = count as u64;
        let refused = sent.refused.min(count);
        self.depot.note_exported(count - refused, refused);
    }

    /// So many more are given up.
    fn lost(&mut self, count: usize) {
        self.settled += count;
        self.depot.note_failed(count as u64);
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        self.lost(self.left().len());
    }
}

impl Exporter {
    async fn run(mut self) {
        while contained(self.export_on()).await.is_none() && self.end.borrow().is_none() {}
        contained(self.last()).await;
        let fates = self.depot.counts();
        let lost = fates.failed + fates.dropped;
        if lost > 0 && self.follow.borrow().is_some() {
            tracing::warn!(lost, "tracing: spans that no collector has");
        }
    }

    /// Exports until the end, always as the settings say.
    async fn export_on(&mut self) {
        let mut collector: Option<Collector> = None;
        loop {
            let settings = self.follow.borrow_and_update().clone();
            if let Some(mut old) = collector.take() {
                // Told by the settings that it was recorded by.
                self.export(&mut old).await;
            }
            collector = settings.map(Collector::new);
            if self.serve(collector.as_mut()).await.is_break() {
                break;
            }
        }
        self.collector = collector;
    }

    /// Exports until the settings change; breaks at the end.
    async fn serve(&mut self, collector: Option<&mut Collector>) -> std::ops::ControlFlow<()> {
        use std::ops::ControlFlow::{Break, Continue};
        let Some(collector) = collector else {
            tokio::select! {
                _ = self.end.wait_for(Option::is_some) => return Break(()),
                changed = self.follow.changed() => {
                    return if changed.is_ok() { Continue(()) } else { Break(()) };
                }
            }
        };
        loop {
            tokio::select! {
                _ = self.end.wait_for(Option::is_some) => return Break(()),
                changed = self.follow.changed() => {
                    return if changed.is_ok() { Continue(()) } else { Break(()) };
                }
                () = self.depot.filled() => {}
                () = tokio::time::sleep(collector.settings.every) => {}
            }
            self.export(collector).await;
        }
    }

    /// Sends what waits. Ends early where the process does: what is left is given back as failed.
    async fn export(&mut self, collector: &mut Collector) {
        let mut taken = Taken::new(&self.depot);
        while !taken.left().is_empty() {
            self.send(collector, &mut taken).await;
        }
    }

    /// Sends a batch, a few times if need be.
    async fn send(&mut self, collector: &mut Collector, taken: &mut Taken) {
        let (body, count) = taken.next(&collector.settings);
        for attempt in 1..=ATTEMPTS {
            let mut end = self.end.clone();
            let sent = tokio::select! {
                sent = collector.send(&body) => sent,
                () = past(&mut end) => Err(Trouble::timed_out()),
            };
            let trouble = match sent {
                Ok(sent) => {
                    taken.sent(count, &sent);
                    return self.end_outage(collector);
                }
                Err(trouble) => trouble,
            };
            self.begin_outage(collector, &trouble);
            let is_over = self.end.borrow().is_some();
            if !trouble.may_pass || attempt == ATTEMPTS || is_over {
                break;
            }
            let rest = trouble.rest.unwrap_or_else(|| rest_after(self.failures));
            self.failures += 1;
            tokio::select! {
                () = tokio::time::sleep(rest.min(LONGEST_REST)) => {}
                _ = self.end.wait_for(Option::is_some) => {}
            }
        }
        taken.lost(count);
        if let Some((_, lost)) = &mut self.outage {
            *lost += count as u64;
        }
    }

    fn end_outage(&mut self, collector: &Collector) {
        self.failures = 0;
        if let Some((since, lost)) = self.outage.take() {
            let away = clock::now().saturating_duration_since(since);
            tracing::info!(
                collector = %collector.settings.endpoint,
                seconds = away.as_secs(),
                lost,
                "tracing: the collector takes spans again"
            );
        }
    }

    fn begin_outage(&mut self, collector: &Collector, trouble: &Trouble) {
        if self.outage.is_none() {
            self.outage = Some((clock::now(), 0));
            tracing::warn!(
                collector = %collector.settings.endpoint,
                why = %trouble.why,
                "tracing: the collector takes no spans; requests do not wait for it"
            );
        }
    }

    /// The end: what is left gets one attempt, and all of it together the time that there is.
    async fn last(&mut self) {
        let settings = self.follow.borrow().clone();
        // A panic may have cost the one there was.
        let known = self.collector.take();
        let Some(mut collector) = known.or_else(|| settings.map(Collector::new)) else {
            return;
        };
        let by = (*self.end.borrow()).unwrap_or_else(clock::now);
        let by = match self.outage {
            Some(_) => by.min(clock::now() + LAST_LEAST),
            None => by,
        };
        let mut taken = Taken::new(&self.depot);
        while !taken.left().is_empty() {
            let (body, count) = taken.next(&collector.settings);
            let left = by.saturating_duration_since(clock::now());
            let sent = tokio::time::timeout(left, collector.send(&body)).await;
            match sent.unwrap_or_else(|_| Err(Trouble::timed_out())) {
                Ok(sent) => {
                    taken.sent(count, &sent);
                    self.end_outage(&collector);
                }
                Err(trouble) => return self.begin_outage(&collector, &trouble),
            }
        }
    }
}

/// Waits until the end, and then until everything had to be sent.
async fn past(end: &mut watch::Receiver<Option<Instant>>) {
    let by = end.wait_for(Option::is_some).await.map(|by| *by);
    let left = by.ok().flatten().map_or(Duration::ZERO, |by| {
        by.saturating_duration_since(clock::now())
    });
    tokio::time::sleep(left).await;
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
