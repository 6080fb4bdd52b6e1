//! Blocks of clients by operators, checked for each request.

use super::logged::Logged;
use super::rejection::{BLOCK_POLICY, Blocked, Rejection};
use crate::limit::KeyHash;
use crate::limit::key::{Facts, HashSecret, Part};
use crate::store::overrides::OverrideSnapshot;

/// Refuses a client with a blocked address or API key, also where limits count by other keys.
pub(super) fn refuse_blocked(
    overrides: &OverrideSnapshot,
    facts: &Facts<'_>,
    key: &HashSecret,
    logged: Logged,
) -> Result<(), Rejection> {
    if !overrides.has_blocks() {
        return Ok(());
    }
    refuse_blocked_key(overrides, facts.ip_tag(key))
        .map_err(|refused| logged.named(refused, || Part::Ip.spell(facts)))?;
    // Known or not: a blocked key stays out when it is taken off the list of known ones.
    let mut refused = Ok(());
    let clear = facts.each_api_key(key, |tag| {
        if refused.is_ok() {
            refused = refuse_blocked_key(overrides, tag);
        }
    });
    refused.map_err(|refused| logged.named(refused, || Part::ApiKey.spell(facts)))?;
    // One of them could be blocked and hide behind the others.
    match clear {
        true => Ok(()),
        false => Err(Rejection::AmbiguousKey(BLOCK_POLICY.into())),
    }
}

pub(super) fn refuse_blocked_key(
    overrides: &OverrideSnapshot,
    tag: KeyHash,
) -> Result<(), Rejection> {
    let Some(block) = overrides.block_of(tag) else {
        return Ok(());
    };
    Err(Rejection::Blocked(Box::new(Blocked {
        tag,
        plain: None,
        left_us: block.left_us,
    })))
}
