//! Counts a body whose length is not known.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The bytes of a body that have come. It is counted on while the request is sent.
#[derive(Clone, Debug, Default)]
pub struct UploadedBytes(Arc<AtomicU64>);

impl UploadedBytes {
    pub fn add(&self, bytes: u64) {
        self.0.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(super) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}
