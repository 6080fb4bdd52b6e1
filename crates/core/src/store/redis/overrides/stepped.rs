//! Overrides and bans in steps, for simulations: what `refresh` and `bans::send` do with what they
//! have read.

use std::sync::Arc;
use std::sync::atomic::Ordering;

pub(crate) use super::bans::{TakenDenials, ToldBan};
use super::{StoredOverrides, UNREAD, put_in_force};
use crate::store::overrides::{ClockPair, Record};
use crate::store::redis::RedisShared;

/// What the store has of overrides: the fields of one version, and the last changes.
#[derive(Clone, Debug, Default)]
pub(crate) struct OverrideFields {
    pub(crate) version: u64,
    pub(crate) store_us: u64,
    pub(crate) fields: Vec<(String, String)>,
    pub(crate) changes: Vec<Record>,
}

impl RedisShared {
    pub(in crate::store::redis) fn learn_overrides(self: &Arc<Self>, read: &OverrideFields) {
        let overrides = &self.overrides;
        let known = overrides.version.load(Ordering::Acquire);
        if read.version == 0 && known == UNREAD {
            return overrides.version.store(0, Ordering::Release);
        }
        if read.version == known {
            return overrides.sweep();
        }
        let bytes =
            |(field, value): &(String, String)| (field.clone().into(), value.clone().into());
        let stored = StoredOverrides {
            version: read.version,
            clocks: ClockPair {
                store_us: read.store_us,
                local_us: overrides.table.clock.now_us(),
            },
            fields: read.fields.iter().map(bytes).collect(),
        };
        let is_new = |change: &&Record| known != UNREAD && change.terms.version > known;
        let new: Vec<Record> = read.changes.iter().filter(is_new).cloned().collect();
        put_in_force(self, known, &stored, &new);
    }
}
