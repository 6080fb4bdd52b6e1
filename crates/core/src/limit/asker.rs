//! Who asks, as logs tell it beyond the hash of a key: only where an operator wants that.

use std::fmt;
use std::sync::Arc;

use super::KeyHash;
use crate::trace::TraceId;

/// What goes along with an item for the logs. Nothing counts by it.
#[derive(Clone, PartialEq, Eq)]
pub struct Asker {
    /// The key before it was hashed, as [`super::Key::spell`] writes it.
    pub key: Option<Arc<str>>,
    /// The trace that the request belongs to.
    pub trace: Option<TraceId>,
}

/// How a log shows whom a limit denied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Shown {
    /// By the beginning of this hash.
    Hash(KeyHash),
    /// As it is.
    Plain(Arc<str>),
}

impl fmt::Debug for Asker {
    /// Without the key: nobody asked for it here.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("Asker");
        shown.field("trace", &self.trace).finish_non_exhaustive()
    }
}
