//! The Redis store of a build without the feature `redis`: none can be made.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Instant;

use super::hash_key::{CurrentKey, KeyRing};
use super::known_keys::RegisteredKeys;
use super::memory::Memory;
use super::overrides::OverrideSnapshot;
use super::recovery::Recovery;
use super::{Observed, StoreError};
use crate::config::{RedisSettings, StoreSettings};
use crate::limit::{Charge, Decided, Decision, LimitCheck};
use crate::telemetry::decisions::{BannedRequest, DecisionLog, Source};

#[derive(Debug)]
pub struct RedisShared(Infallible);

#[derive(Clone, Debug)]
pub struct Redis(Infallible);

#[derive(Debug)]
pub struct GuardedAnswer(Infallible);

impl RedisShared {
    /// # Errors
    /// Always [`StoreError::NoRedis`].
    pub fn new(
        _: &StoreSettings,
        _: &RedisSettings,
        _: KeyRing,
        _: Option<Arc<DecisionLog>>,
    ) -> Result<RedisShared, StoreError> {
        Err(StoreError::NoRedis)
    }

    pub(super) fn renewed(
        &self,
        _: &StoreSettings,
        _: &RedisSettings,
    ) -> Result<RedisShared, StoreError> {
        match self.0 {}
    }

    pub fn recovery(&self) -> &Arc<Recovery> {
        match self.0 {}
    }

    pub fn away_since(&self) -> Option<Instant> {
        match self.0 {}
    }

    pub fn overrides(&self) -> Option<OverrideSnapshot> {
        match self.0 {}
    }

    pub(super) fn log_banned(&self, _: &BannedRequest<'_>) {
        match self.0 {}
    }

    pub(super) fn bans_begun(&self) -> BTreeMap<Arc<str>, u64> {
        match self.0 {}
    }

    pub(super) fn count_banned(&self) -> usize {
        match self.0 {}
    }

    pub fn known_keys(&self) -> Option<&Arc<RegisteredKeys>> {
        match self.0 {}
    }

    pub(super) fn hash_key(&self) -> CurrentKey {
        match self.0 {}
    }

    pub(super) fn set_local(&self, _: &Arc<Memory>) {
        match self.0 {}
    }

    pub(super) fn is_cluster(&self) -> bool {
        match self.0 {}
    }

    pub(super) fn may_decide_alone(&self) -> bool {
        match self.0 {}
    }

    pub(super) fn owe_if_lost(&self, _: &Charge, _: u64, _: u64) {
        match self.0 {}
    }

    pub(super) fn owe(&self, _: &Charge, _: u64) {
        match self.0 {}
    }

    pub(super) fn owe_less(&self, _: Decided<'_>, _: u64, _: u64) {
        match self.0 {}
    }

    pub(super) fn suspect(&self, _: Charge) {
        match self.0 {}
    }
}

impl Redis {
    pub fn spawn(shared: Arc<RedisShared>) -> Redis {
        match shared.0 {}
    }

    pub(super) fn count_denial(&self, _: &LimitCheck, _: u64) {
        match self.0 {}
    }

    pub async fn charge_or_book(
        &self,
        _: &Charge,
        _: u64,
        _: u64,
        _: Instant,
    ) -> Result<Decision, StoreError> {
        match self.0 {}
    }

    pub(super) fn find_denial(&self, _: &Charge, _: u64, _: Instant) -> Option<Decision> {
        match self.0 {}
    }

    pub(super) fn knows_denials(&self) -> bool {
        match self.0 {}
    }

    pub fn observe(&self, _: &Charge, _: u64) -> Observed {
        match self.0 {}
    }

    pub fn refund(&self, _: &Charge, _: &Decision, _: u64) {
        match self.0 {}
    }

    pub fn refund_oldest(&self, _: &Charge, _: u64) {
        match self.0 {}
    }

    pub fn settle(&self, _: &Charge, _: u64) {
        match self.0 {}
    }

    pub fn hold(&self, _: &Charge, _: u64) {
        match self.0 {}
    }

    pub async fn ready(&self) {
        match self.0 {}
    }

    pub fn shared(&self) -> &RedisShared {
        match self.0 {}
    }

    pub(super) fn source(&self) -> Source {
        match self.0 {}
    }

    pub(super) fn release(&self, _: &Charge) {
        match self.0 {}
    }

    pub(super) fn forget_denials(&self) {
        match self.0 {}
    }

    pub(super) async fn flush(&self) {
        match self.0 {}
    }
}

impl GuardedAnswer {
    pub(super) async fn take(self) -> Result<Decision, StoreError> {
        match self.0 {}
    }

    pub(super) fn try_take(&mut self) -> Option<Result<Decision, StoreError>> {
        match self.0 {}
    }
}
