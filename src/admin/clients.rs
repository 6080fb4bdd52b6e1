//! `/api/v1/clients/KEY`: one client in every limit that counts it. The dashboard finds clients
//! with it, and shows their last quarter of an hour.

use serde_json::json;

use super::client_history::ClientInterval;
use super::limits::mode;
use super::operator_store::{OperatorStore, RecordReport, WindowUsage};
use super::overrides::{ClientInLimits, ClientLookup, path_words};
use super::request::ApiRequest;
use super::response::{ApiError, now_s};
use super::schema::{described, quantity_words, words};
use super::state::AdminState;
use crate::store::overrides::OverrideList;

/// Clients in an answer.
const MAX_FOUND: usize = 8;

described! {
    struct FoundClients {
        clients: Vec<ClientStateReport> = json!({ "maxItems": MAX_FOUND }),
    }

    struct ClientStateReport as "ClientState" {
        id: String,
        /// The parts of the client's key without their values; empty if they are not known.
        key: String,
        block: Option<RecordReport>,
        limits: Vec<ClientLimitReport>,
    }

    struct ClientLimitReport as "ClientOfLimit" {
        limit: String,
        rates: Vec<String>,
        mode: String = words(&["enforced", "shadow"]),
        /// The quantity of its units. Money is in millionths.
        counts: String = quantity_words(),
        windows: Vec<WindowUsage>,
        r#override: Option<RecordReport>,
        /// The oldest first. Empty if this proxy has no decision of the client in memory.
        timeline: Vec<ClientInterval>,
    }
}

pub(super) async fn find(request: ApiRequest) -> Result<FoundClients, ApiError> {
    let words = path_words(&request)?;
    let lookup = ClientLookup::new(&request)?;
    let work = move || {
        let mut store = lookup.store.open()?;
        let overrides = store.overrides()?;
        let found = lookup.find_in_all(&mut store, &words, &overrides)?;
        let mut clients = Vec::new();
        for one in found.iter().take(MAX_FOUND) {
            clients.push(report(&lookup.state, &mut store, one, &overrides)?);
        }
        // A plain word fits limits by quite different keys. Clients that are known come first.
        if clients.iter().any(is_known) {
            clients.retain(is_known);
        }
        Ok(FoundClients { clients })
    };
    let state = &request.state;
    state.run_blocking("it could not be read", work).await
}

fn report(
    state: &AdminState,
    store: &mut OperatorStore,
    found: &ClientInLimits,
    overrides: &OverrideList,
) -> Result<ClientStateReport, ApiError> {
    let client = &found.client;
    state.collect();
    let mut report = ClientStateReport {
        id: client.tag.to_string(),
        key: client.parts.clone(),
        ..ClientStateReport::default()
    };
    for limit in &found.limits {
        let usage = store.usage(limit, client, overrides)?;
        let timeline = state
            .record()
            .clients
            .report(client.tag, &limit.name, now_s());
        let counted = ClientLimitReport {
            limit: usage.limit,
            rates: limit.windows.iter().map(|window| window.rate()).collect(),
            mode: mode(limit).to_owned(),
            counts: usage.counts,
            windows: usage.windows,
            r#override: usage.r#override,
            timeline,
        };
        report.block = usage.block;
        if found.is_sure || is_counted(&counted) {
            report.limits.push(counted);
        }
    }
    Ok(report)
}

fn is_known(client: &ClientStateReport) -> bool {
    client.block.is_some() || client.limits.iter().any(is_counted)
}

fn is_counted(one: &ClientLimitReport) -> bool {
    let is_used = one.windows.iter().any(|window| window.used > 0);
    is_used || one.r#override.is_some() || !one.timeline.is_empty()
}
