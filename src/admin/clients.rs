//! `/api/v1/limits/NAME/clients`: who asks most of a limit. And how the crowd is looked at.

use std::collections::HashMap;
use std::sync::{Arc, MutexGuard, PoisonError};

use super::AdminState;
use super::crowd::{Client, Crowd};
use super::place::parameter;
use super::respond::{ApiError, available};
use super::schema::described;
use super::time::now_s;
use crate::limit::{KeyHash, Limit};
use tidegate_core::failpoint;

/// Clients that are told.
pub(super) const MOST: usize = 100;
/// The same where nobody says how many.
pub(super) const USUAL: usize = 50;

impl AdminState {
    pub(super) fn crowd(&self) -> MutexGuard<'_, Crowd> {
        self.crowd.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes what the workers have told since the last time.
    pub(super) fn drain(&self) {
        failpoint!("admin.look");
        let now = now_s();
        self.server.introspection.inspect(|snapshot| {
            let mut crowd = self.crowd();
            let limits: HashMap<u32, (Arc<str>, u64)> = (snapshot.config.limits.iter())
                .map(|limit| {
                    (
                        limit.number as u32,
                        (Arc::clone(&limit.name), window_s(limit)),
                    )
                })
                .collect();
            for trail in snapshot.proxies().filter_map(|proxy| proxy.meter().trail()) {
                let missed = trail.drain(|seen| {
                    if let Some((name, window)) = limits.get(&seen.limit) {
                        crowd.see(name, *window, &seen, now);
                    }
                });
                crowd.missed += missed;
            }
            crowd.retain(|name| limits.values().any(|(there, _)| **there == *name));
            for denials in snapshot
                .proxies()
                .filter_map(|proxy| proxy.meter().denials())
            {
                let (list, dropped) = denials.take();
                self.tell_denials(list, dropped);
            }
        });
    }
}

/// The longest of a limit's windows, seconds.
fn window_s(limit: &Limit) -> u64 {
    let windows = limit
        .windows
        .iter()
        .map(|window| window.rule.window_us / 1_000_000);
    windows.max().unwrap_or(0)
}

described! {
    struct ClientsReport {
        requests: u64,
        clients: Vec<ClientReport>,
    }

    struct ClientReport as "Client" {
        id: String,
        key: Option<String>,
        requests: u64,
        error: u64,
        denied: u64,
        share: f64,
    }
}

pub(super) fn clients(
    state: &AdminState,
    limit: &str,
    query: Option<&str>,
) -> Result<ClientsReport, ApiError> {
    let top = match parameter(query, "top") {
        None => USUAL,
        Some(text) => match text.parse() {
            Ok(top @ 1..=MOST) => top,
            _ => return Err(ApiError::bad_request("`top` is a number from 1 to 100")),
        },
    };
    let is_there = state.server.introspection.inspect(|snapshot| {
        let mut limits = snapshot.config.limits.iter();
        limits.any(|one| *one.name == *limit)
    });
    if !available(is_there)? {
        return Err(ApiError::not_found(format!("there is no limit `{limit}`")));
    }
    state.drain();
    let (clients, all) = state.crowd().clients(limit, now_s());
    let report = |client: &Client| ClientReport {
        id: KeyHash(client.tag.to_le_bytes()).to_string(),
        key: None,
        requests: client.requests,
        error: client.error,
        denied: client.denied,
        share: client.requests as f64 / all.max(1) as f64,
    };
    Ok(ClientsReport {
        requests: all,
        clients: clients.iter().take(top).map(report).collect(),
    })
}
