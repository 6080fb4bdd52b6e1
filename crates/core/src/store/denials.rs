//! What the store does with denials: it counts those of limits with `ban`, and bans keys.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::{Backing, Store};
use crate::limit::LimitCheck;
use crate::telemetry::decisions::BannedRequest;

impl Store {
    /// Counts a denial of a check, if its limit has `ban`. `generation` is as for
    /// [`Store::charge`]. It waits for nothing: with Redis a ban begins up to 100 ms later.
    pub fn count_denial(&self, check: &LimitCheck, generation: u64) {
        if check.limit.ban.is_none() {
            return;
        }
        match self {
            Store::Memory(memory) => memory.overrides().count_denial(&check.limit, check.tag),
            Store::Redis(redis) => redis.count_denial(check, generation),
        }
    }

    /// Writes the denial of a request by a ban into the decision log.
    pub fn log_banned(&self, request: &BannedRequest<'_>) {
        match self {
            Store::Memory(memory) => memory.log_banned(request),
            Store::Redis(redis) => redis.shared().log_banned(request),
        }
    }
}

impl Backing {
    /// The bans that this process has begun, by limit.
    pub fn bans_begun(&self) -> BTreeMap<Arc<str>, u64> {
        match self {
            Backing::Memory(memory) => memory.overrides().bans().begun(),
            Backing::Redis(shared) => shared.bans_begun(),
        }
    }

    /// How many keys are banned now, as far as this process knows.
    pub fn count_banned(&self) -> usize {
        match self {
            Backing::Memory(memory) => memory.overrides().count_banned(),
            Backing::Redis(shared) => shared.count_banned(),
        }
    }
}
