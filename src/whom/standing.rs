//! How a client stands: each window that it is measured by, and what is used of it.

use std::sync::Arc;

use super::Whom;
use crate::limit::{Charge, Decision, KeyHash, Limit, LimitCheck, Retry, Window};
use crate::store::overrides::{Record, Subject, rate_text};

/// One window.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// Whose it is: `tier gold`, `override`, `candidate`; nothing for the limit's own.
    pub of: Option<String>,
    /// What it is called in `RateLimit`.
    pub policy: String,
    /// `100/min`
    pub rate: String,
    /// Units that are taken.
    pub used: u64,
    /// Units that are left.
    pub remaining: u64,
    /// Until all of it is there again, microseconds.
    pub reset_us: u64,
    /// When the next request would pass.
    pub retry: Retry,
}

/// Windows that a key is measured by, and whose they are.
type Set = (Option<String>, Vec<Arc<Window>>);

/// How a client stands in a limit, as `stand` tells of a charge, which it does not make.
///
/// # Errors
/// Those of `stand`.
pub fn standing<E>(
    limit: &Arc<Limit>,
    whom: &Whom,
    records: &[Record],
    mut stand: impl FnMut(&Charge) -> Result<Decision, E>,
) -> Result<Vec<Row>, E> {
    let mut rows = Vec::new();
    for (of, windows) in in_force(limit, whom.tag, records) {
        let charge: Charge = items(limit, &windows, whom.tag).collect();
        if charge.is_empty() {
            continue;
        }
        let decision = stand(&charge)?;
        for (window, verdict) in windows.iter().zip(&decision.verdicts) {
            rows.push(Row {
                of: of.clone(),
                policy: window.policy.to_string(),
                rate: rate_text(&window.rule),
                used: verdict.used,
                remaining: verdict.remaining,
                reset_us: verdict.reset_us,
                retry: verdict.retry,
            });
        }
    }
    Ok(rows)
}

/// Every window that counts of this key may lie in, each once.
pub fn every_window(limit: &Limit, tag: KeyHash, records: &[Record]) -> Vec<Arc<Window>> {
    let tiers = limit.tiers.iter().flat_map(|tier| &tier.windows);
    let mut all: Vec<Arc<Window>> = limit.windows.iter().chain(tiers).cloned().collect();
    all.extend(in_force(limit, tag, records).flat_map(|(_, windows)| windows));
    all.sort_by(|one, other| one.store_suffix.cmp(&other.store_suffix));
    all.dedup_by(|one, other| one.store_suffix == other.store_suffix);
    all
}

/// What a request with this key takes of each window.
pub fn items(
    limit: &Arc<Limit>,
    windows: &[Arc<Window>],
    tag: KeyHash,
) -> impl Iterator<Item = LimitCheck> {
    windows.iter().map(move |window| LimitCheck {
        limit: Arc::clone(limit),
        window: Arc::clone(window),
        tag,
        cost: limit.cost,
        asker: None,
    })
}

/// An override's windows, or the limit's own and those of its tiers; and the candidate's.
fn in_force(limit: &Limit, tag: KeyHash, records: &[Record]) -> impl Iterator<Item = Set> {
    let subject = Subject::Override(limit.name.to_string(), tag);
    let found = records.iter().find(|one| one.subject == subject);
    let mut sets: Vec<Set> = Vec::new();
    match found {
        Some(record) => {
            let windows = Window::all(&limit.name, &record.terms.rules);
            sets.push((Some("override".to_owned()), windows));
        }
        None => {
            sets.push((None, limit.windows.clone()));
            for tier in &limit.tiers {
                sets.push((Some(format!("tier {}", tier.name)), tier.windows.clone()));
            }
        }
    }
    sets.push((Some("candidate".to_owned()), limit.candidate.clone()));
    sets.into_iter()
}
