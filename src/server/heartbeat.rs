//! The workers' signs of life: each beats a few times a second from the moment it accepts
//! connections. Whoever started the house learns from it when all serve, whether any stands still,
//! and whether one has ended that should not have.

use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::Notify;

const ENDED: u64 = u64::MAX;

/// See the file's head.
#[derive(Debug)]
pub struct Heartbeats {
    beats: Vec<AtomicU64>,
    first: Notify,
    fallen: Notify,
}

impl Heartbeats {
    /// For so many workers, none of which serves yet.
    pub fn new(workers: usize) -> Heartbeats {
        Heartbeats {
            beats: (0..workers).map(|_| AtomicU64::new(0)).collect(),
            first: Notify::new(),
            fallen: Notify::new(),
        }
    }

    /// A worker serves.
    pub(crate) fn beat(&self, worker: usize) {
        if self.beats[worker].fetch_add(1, Ordering::Relaxed) == 0 {
            self.first.notify_one();
        }
    }

    /// A worker has ended, as it should: it is not missed.
    pub(crate) fn end(&self, worker: usize) {
        self.beats[worker].store(ENDED, Ordering::Relaxed);
    }

    /// A worker has ended though nobody told it to.
    pub(crate) fn fall(&self, worker: usize) {
        self.end(worker);
        self.fallen.notify_one();
    }

    /// Returns once a worker has ended though nobody told it to; whoever waits is told once. Its
    /// clients are lost, and those that its sockets still get would wait for ever.
    pub async fn one_falls(&self) {
        self.fallen.notified().await;
    }

    /// Whether all workers serve.
    pub fn serves(&self) -> bool {
        let beats = |beats: &AtomicU64| beats.load(Ordering::Relaxed) > 0;
        self.beats.iter().all(beats)
    }

    /// Returns once all workers serve.
    pub async fn all_serve(&self) {
        while !self.serves() {
            self.first.notified().await;
        }
    }

    /// Whether every worker has beaten since the last call with this `memory`.
    pub fn all_beat_since(&self, memory: &mut Vec<u64>) -> bool {
        let now: Vec<u64> = self
            .beats
            .iter()
            .map(|beats| beats.load(Ordering::Relaxed))
            .collect();
        let before = std::mem::replace(memory, now);
        let moved = |(index, now): (usize, &u64)| *now == ENDED || before.get(index) != Some(now);
        memory.iter().enumerate().all(moved)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_worker_that_stands_still_is_seen() {
        let heartbeats = Heartbeats::new(2);
        let mut memory = Vec::new();
        heartbeats.beat(0);
        heartbeats.beat(1);
        assert!(heartbeats.all_beat_since(&mut memory));
        heartbeats.beat(0);
        assert!(!heartbeats.all_beat_since(&mut memory));
        heartbeats.beat(0);
        heartbeats.end(1);
        assert!(heartbeats.all_beat_since(&mut memory));
        heartbeats.beat(0);
        assert!(heartbeats.all_beat_since(&mut memory));
    }
}
