//! What all servers of an upstream have in common.

use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use super::queue::Queue;
use super::tls::Tls;
use crate::clock::Sweep;
use crate::config::UpstreamSettings;

/// See the file's head.
#[derive(Debug)]
pub(super) struct UpstreamTerms {
    pub(super) settings: UpstreamSettings,
    pub(super) sweep: Sweep,
    /// For those that speak TLS.
    pub(super) tls: Option<Tls>,
    /// Requests under way, also those that began under other settings.
    pub(super) in_use: Arc<AtomicUsize>,
    /// Whether any server has a bound of its own.
    pub(super) is_capped: bool,
    /// Where requests wait for a place, if they may.
    pub(super) queue: Option<Arc<Queue>>,
}

impl UpstreamTerms {
    /// Whether connections that were made under `old` may be used under these.
    pub(super) fn takes_connections_of(&self, old: &UpstreamTerms) -> bool {
        let connecting = |settings: &UpstreamSettings| {
            let tls = (settings.http2, Arc::clone(&settings.tls));
            (settings.timeout, settings.body_timeout, tls)
        };
        connecting(&self.settings) == connecting(&old.settings)
    }
}
