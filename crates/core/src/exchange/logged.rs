//! What logs tell of who asks, beyond the hash of a key: the key as it is where `[log] keys` says
//! `plain`, and the request's trace where decisions are logged. Off, it costs one look.

use std::sync::Arc;

use super::access_record::AccessRecord;
use super::rejection::Rejection;
use super::traced::Trace;
use crate::config::{Config, LogKeys};
use crate::limit::key::Facts;
use crate::limit::{Asker, Limit};
use crate::trace::TraceId;

/// See the file's head.
#[derive(Clone, Copy, Debug)]
pub(super) struct Logged {
    keys: bool,
    traces: bool,
}

impl Logged {
    pub(super) fn new(config: &Config) -> Logged {
        Logged {
            keys: config.log.keys == LogKeys::Plain,
            traces: config.tracing.is_some() && config.log.decisions.is_some(),
        }
    }

    /// The trace that its decisions are logged with.
    pub(super) fn trace(self, record: &AccessRecord) -> Option<TraceId> {
        match self.traces {
            true => record.trace.as_deref().map(Trace::id),
            false => None,
        }
    }

    /// Who asks this of a limit.
    #[inline]
    pub(super) fn asker(
        self,
        limit: &Limit,
        facts: &Facts<'_>,
        trace: Option<TraceId>,
    ) -> Option<Arc<Asker>> {
        if !self.keys && trace.is_none() {
            return None;
        }
        let spelled = self.keys.then(|| limit.key.spell(facts, limit.missing));
        let key = spelled.flatten().map(Arc::from);
        Some(Arc::new(Asker { key, trace }))
    }

    /// The same of someone who is kept out by a key that `spell` spells.
    #[cold]
    pub(super) fn named(
        self,
        mut refused: Rejection,
        spell: impl FnOnce() -> Option<String>,
    ) -> Rejection {
        if let (true, Rejection::Blocked(blocked)) = (self.keys, &mut refused) {
            blocked.plain = spell().map(Arc::from);
        }
        refused
    }
}
