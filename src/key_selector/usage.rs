//! How much of a limit one client uses, for each window that counts the client's key.

use std::sync::Arc;

use serde::Serialize;
use tidegate_core::exchange::admit::CheckedClient;

use super::SelectedKey;
use crate::clock;
use crate::limit::calendar::AnchorSource;
use crate::limit::{Charge, Decision, KeyHash, Limit, LimitCheck, Retry, Window};
use crate::store::overrides::{Record, Subject};

/// One window of a limit, and how much of it a client uses.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct WindowStatus {
    /// The window's name in the `RateLimit` header.
    pub policy: String,
    /// `tier gold`, `override` or `candidate`; none for the limit's own rates.
    pub of: Option<String>,
    /// `100/min`
    pub rate: String,
    pub used: u64,
    pub remaining: u64,
    /// Microseconds until all units are free again.
    pub reset_us: u64,
    /// When a calendar window ends, as RFC 3339 in its zone.
    pub resets_at: Option<String>,
    /// When the next request would pass.
    #[serde(skip)]
    pub retry: Retry,
}

/// Windows with one origin: see [`WindowStatus::of`].
struct WindowSet {
    of: Option<String>,
    windows: Vec<Arc<Window>>,
}

/// How much of `limit` a client uses. `peek` returns the decision on a charge without making it.
///
/// # Errors
/// Those of `peek`.
pub fn client_usage<E>(
    limit: &Arc<Limit>,
    key: &SelectedKey,
    records: &[Record],
    mut peek: impl FnMut(&Charge) -> Result<Decision, E>,
) -> Result<Vec<WindowStatus>, E> {
    let mut rows = Vec::new();
    let anchor = match limit.calendar.source {
        AnchorSource::Keys => key.anchor,
        AnchorSource::Limit | AnchorSource::Claim(_) => None,
    };
    let has_anchor = match limit.calendar.source {
        AnchorSource::Limit => true,
        AnchorSource::Keys => key.is_listed,
        AnchorSource::Claim(_) => false,
    };
    let client = CheckedClient {
        tag: key.tag,
        anchor,
    };
    for set in sets_in_force(limit, key.tag, records) {
        let charge: Charge = limit_checks(limit, &set.windows, client).collect();
        if charge.is_empty() {
            continue;
        }
        let decision = peek(&charge)?;
        for (window, verdict) in set.windows.iter().zip(&decision.verdicts) {
            let resets_at = window.resets_at(anchor, clock::unix_us(), verdict.reset_us);
            // Before the first unit only the client's anchor tells the end. It may be unknown.
            let is_known = verdict.used > 0 || has_anchor || !window.asks_anchor();
            rows.push(WindowStatus {
                of: set.of.clone(),
                policy: window.policy.to_string(),
                rate: window.rate_and_zone(),
                used: verdict.used,
                remaining: verdict.remaining,
                reset_us: if is_known { verdict.reset_us } else { 0 },
                resets_at: resets_at.filter(|_| is_known),
                retry: verdict.retry,
            });
        }
    }
    Ok(rows)
}

/// Every window that may hold counts of this key, once each.
pub fn windows_of_key(limit: &Limit, tag: KeyHash, records: &[Record]) -> Vec<Arc<Window>> {
    let tiers = limit.tiers.iter().flat_map(|tier| &tier.windows);
    let mut all: Vec<Arc<Window>> = limit.windows.iter().chain(tiers).cloned().collect();
    let in_force = sets_in_force(limit, tag, records).into_iter();
    all.extend(in_force.flat_map(|set| set.windows));
    all.sort_by(|one, other| one.store_suffix.cmp(&other.store_suffix));
    all.dedup_by(|one, other| one.store_suffix == other.store_suffix);
    all
}

/// The checks of a request with this key, one for each window.
pub fn limit_checks(
    limit: &Arc<Limit>,
    windows: &[Arc<Window>],
    client: CheckedClient,
) -> impl Iterator<Item = LimitCheck> {
    windows.iter().map(move |window| LimitCheck {
        limit: Arc::clone(limit),
        window: Arc::clone(window),
        tag: client.tag,
        anchor: client.anchor,
        cost: limit.cost,
        asker: None,
    })
}

/// The windows of an override, or else those of the limit and its tiers; then the candidate's.
fn sets_in_force(limit: &Limit, tag: KeyHash, records: &[Record]) -> Vec<WindowSet> {
    let set = |of: Option<String>, windows: Vec<Arc<Window>>| WindowSet { of, windows };
    let subject = Subject::Override(limit.name.to_string(), tag);
    let mut sets = match records.iter().find(|one| one.subject == subject) {
        Some(record) => {
            let windows = Window::all(&limit.name, &record.terms.rules, &limit.calendar);
            vec![set(Some("override".to_owned()), windows)]
        }
        None => {
            let tiers = limit.tiers.iter();
            let tiers =
                tiers.map(|tier| set(Some(format!("tier {}", tier.name)), tier.windows.clone()));
            std::iter::once(set(None, limit.windows.clone()))
                .chain(tiers)
                .collect()
        }
    };
    sets.push(set(Some("candidate".to_owned()), limit.candidate.clone()));
    sets
}
