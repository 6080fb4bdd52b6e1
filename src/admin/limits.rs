//! `/api/v1/limits`: the limits with their decisions, the busiest clients of a limit, and what the
//! client of one key has used.
//!
//! A key in a request is hashed and forgotten: no answer contains it.

use std::collections::BTreeMap;
use std::sync::Arc;

use http::StatusCode;
use serde_json::{Value, json};

use super::crowd::{BusyClient, LimitUse};
use super::history::LimitRates;
use super::operator_store::{OperatorStore, RecordReport, StorePlace};
use super::request::ApiRequest;
use super::response::{ApiError, now_s, seconds};
use super::schema::{described, words};
use super::state::AdminState;
use crate::client::ClientIp;
use crate::key_selector::{
    KeySelectionError, KeySelectionErrorKind, KeySelector, SelectedKey, WindowStatus, client_usage,
    hash_prefix,
};
use crate::limit::key::KeyHashPrefix;
use crate::limit::key::{ApiKeys, HashSecret};
use crate::limit::{Algorithm, KeyHash, Limit, Retry, Tier, Window};
use crate::proxy::Proxy;
use crate::store::overrides::{OverrideList, Record};
use crate::telemetry::metrics::{LimitSum, LimitVerdict, Sum};

/// Routes that are listed for a limit.
const MAX_ROUTES: usize = 100;
/// The most and the usual number of busiest clients in an answer.
pub(super) const MAX_BUSIEST: usize = 100;
pub(super) const DEFAULT_BUSIEST: usize = 50;
/// The most words of a key.
const MAX_WORDS: usize = 16;

described! {
    struct LimitList {
        limits: Vec<LimitState>,
    }

    struct LimitState as "Limit" {
        name: String,
        rates: Vec<String>,
        tiers: BTreeMap<String, Vec<String>>,
        key: String,
        algorithm: &'static str = words(&["log", "counter", "slots"]),
        mode: &'static str = words(&["enforced", "shadow"]),
        candidate: Option<CandidateReport>,
        on_error: &'static str,
        routes: Vec<String>,
        totals: LimitTotals,
        per_second: LimitRates,
        headroom: Option<f64> = json!({ "minimum": 0, "maximum": 1 }),
        r#use: LimitUse,
    }

    struct CandidateReport {
        rates: Vec<String>,
        allowed: u64,
        denied: u64,
    }

    struct LimitTotals {
        allowed: u64,
        denied: u64,
        shadow_denied: u64,
        bypassed: u64,
    }

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

    struct KeyUsage as "Standing" {
        limit: String,
        id: String,
        key: String,
        windows: Vec<WindowUsage>,
        r#override: Option<RecordReport>,
        block: Option<RecordReport>,
    }

    struct WindowUsage as "Window" {
        policy: String,
        /// `tier ..`, `override` or `candidate`; null for the limit's own rate.
        of: Option<String>,
        rate: String,
        used: u64,
        remaining: u64,
        reset_seconds: f64 = json!({ "minimum": 0 }),
        retry: &'static str = words(&["now", "after", "never", "released"]),
        retry_seconds: Option<f64>,
    }
}

/// All limits, in the order of the configuration.
pub(super) fn limits(state: &AdminState) -> Result<LimitList, ApiError> {
    state.collect();
    state.inspect(|snapshot| {
        let mut routes: BTreeMap<&str, Vec<String>> = BTreeMap::new();
        for route in snapshot.config.routes.iter() {
            for limit in &route.limits {
                let names = routes.entry(&limit.name).or_default();
                if names.len() < MAX_ROUTES {
                    names.push(route.name.to_string());
                }
            }
        }
        let sum = Sum::without_routes(snapshot.proxies().map(Proxy::meter));
        let reports = snapshot.config.limits.iter().map(|limit| {
            let routes = routes.remove(&*limit.name).unwrap_or_default();
            limit_state(state, limit, routes, &sum)
        });
        LimitList {
            limits: reports.collect(),
        }
    })
}

fn limit_state(state: &AdminState, limit: &Limit, routes: Vec<String>, sum: &Sum) -> LimitState {
    let rates = |windows: &[Arc<Window>]| -> Vec<String> {
        windows.iter().map(|window| window.rate()).collect()
    };
    let none = LimitSum::default();
    let count =
        |counts: &LimitSum, verdict: LimitVerdict| counts[verdict as usize].iter().sum::<u64>();
    let counted = sum.limits.get(&limit.name).unwrap_or(&none);
    let tried = sum.candidates.get(&limit.name).unwrap_or(&none);
    let candidate = (!limit.candidate.is_empty()).then(|| CandidateReport {
        rates: rates(&limit.candidate),
        allowed: count(tried, LimitVerdict::Allowed),
        denied: count(tried, LimitVerdict::ShadowDenied),
    });
    let tier = |tier: &Tier| (tier.name.to_string(), rates(&tier.windows));
    let key: Vec<String> = limit.key.parts.iter().map(ToString::to_string).collect();
    let now = now_s();
    let crowd = state.crowd();
    LimitState {
        name: limit.name.to_string(),
        rates: rates(&limit.windows),
        tiers: limit.tiers.iter().map(tier).collect(),
        key: key.join(", "),
        algorithm: algorithm(limit),
        mode: if limit.shadow { "shadow" } else { "enforced" },
        candidate,
        on_error: limit.on_error.word(),
        routes,
        totals: LimitTotals {
            allowed: count(counted, LimitVerdict::Allowed),
            denied: count(counted, LimitVerdict::Denied),
            shadow_denied: count(counted, LimitVerdict::ShadowDenied),
            bypassed: count(counted, LimitVerdict::Bypassed),
        },
        per_second: state.history().per_second(&limit.name),
        headroom: crowd.headroom(&limit.name, now).map(f64::from),
        r#use: crowd.usage(&limit.name, now),
    }
}

fn algorithm(limit: &Limit) -> &'static str {
    let first = limit.windows.first();
    first.map_or("log", |window| match window.rule.algorithm {
        Algorithm::Log => "log",
        Algorithm::Counter => "counter",
        Algorithm::Slots => "slots",
    })
}

/// The busiest clients of a limit.
pub(super) fn busiest(request: &ApiRequest) -> Result<ClientsReport, ApiError> {
    let state = &request.state;
    let limit = request.path.limit.as_deref().unwrap_or_default();
    let top = match request.parameter("top").map(|top| top.parse()) {
        None => DEFAULT_BUSIEST,
        Some(Ok(top @ 1..=MAX_BUSIEST)) => top,
        Some(_) => return Err(ApiError::bad_request("`top` is a number from 1 to 100")),
    };
    let exists = state.inspect(|snapshot| {
        let mut limits = snapshot.config.limits.iter();
        limits.any(|one| *one.name == *limit)
    })?;
    if !exists {
        return Err(ApiError::no_limit(limit));
    }
    state.collect();
    let busiest = state.crowd().busiest(limit, now_s());
    let report = |client: &BusyClient| ClientReport {
        id: KeyHash(client.tag.to_le_bytes()).to_string(),
        key: None,
        requests: client.requests,
        error: client.error,
        denied: client.denied,
        share: client.requests as f64 / busiest.requests.max(1) as f64,
    };
    Ok(ClientsReport {
        requests: busiest.requests,
        clients: busiest.clients.iter().take(top).map(report).collect(),
    })
}

/// Finds the client that a request names. Holds the settings that this takes.
pub(super) struct ClientLookup {
    state: Arc<AdminState>,
    client_ip: ClientIp,
    api_key: ApiKeys,
    limits: Vec<Arc<Limit>>,
    /// The limit that the request names.
    pub(super) limit: Option<Arc<Limit>>,
    pub(super) store: StorePlace,
}

impl ClientLookup {
    /// Reads the settings. A request whose path has no limit is about all limits.
    pub(super) fn new(request: &ApiRequest) -> Result<ClientLookup, ApiError> {
        let name = request.path.limit.as_deref();
        let lookup = request.state.inspect(|snapshot| {
            let config = snapshot.config;
            let mut limits = config.limits.iter();
            ClientLookup {
                state: Arc::clone(&request.state),
                client_ip: config.client_ip.clone(),
                api_key: config.api_key.clone(),
                limit: name.and_then(|name| limits.find(|one| *one.name == *name).cloned()),
                limits: config.limits.clone(),
                store: StorePlace::new(snapshot),
            }
        })?;
        match (&lookup.limit, name) {
            (None, Some(name)) => Err(ApiError::no_limit(name)),
            _ => Ok(lookup),
        }
    }

    /// The client that `words` name.
    pub(super) fn find(
        &self,
        store: &mut OperatorStore,
        words: &[String],
        overrides: &OverrideList,
    ) -> Result<SelectedKey, ApiError> {
        let denied = match words {
            [word] => {
                self.state.collect();
                let limit = self.limit.as_ref().map(|limit| &*limit.name);
                self.state.denials.find_client(word, limit)
            }
            _ => None,
        };
        let words = match denied {
            Some(tag) => vec![format!("tag={tag}")],
            None => words.to_vec(),
        };
        let known = match hash_prefix(&words) {
            Some(prefix) => self.known_clients(store, &prefix),
            None => Vec::new(),
        };
        let eyes = KeySelector {
            client_ip: &self.client_ip,
            api_key: &self.api_key,
            hash_key: &HashSecret::from_bytes(store.hash_key()),
            records: &overrides.records,
            known: &known,
        };
        let found = eyes.select(&words, self.limit.as_deref(), &self.limits);
        found.map_err(not_found)
    }

    /// The hashes in which `prefix` is looked up: those of the last denials, of the busiest
    /// clients, and of the clients that the store counts.
    fn known_clients(&self, store: &mut OperatorStore, prefix: &KeyHashPrefix) -> Vec<KeyHash> {
        self.state.collect();
        let mut known = self.state.denials.clients();
        let limits = match &self.limit {
            Some(limit) => std::slice::from_ref(limit),
            None => &self.limits,
        };
        for limit in limits {
            let busiest = self.state.crowd().busiest(&limit.name, now_s());
            let hash = |client: &BusyClient| KeyHash(client.tag.to_le_bytes());
            known.extend(busiest.clients.iter().map(hash));
        }
        known.extend(store.find_key_hashes(limits.iter().map(AsRef::as_ref), prefix));
        known
    }
}

fn not_found(unclear: KeySelectionError) -> ApiError {
    let status = match unclear.kind {
        KeySelectionErrorKind::Wrong => StatusCode::BAD_REQUEST,
        KeySelectionErrorKind::Unknown => StatusCode::NOT_FOUND,
        KeySelectionErrorKind::Ambiguous => StatusCode::CONFLICT,
    };
    let detail = match unclear.help {
        Some(help) => format!("{}; {help}", unclear.message),
        None => unclear.message,
    };
    ApiError::new(status, detail)
}

/// The words that name a client in a body: `id`, its hash, or `key`, one word or several.
pub(super) fn key_words(request: &ApiRequest) -> Result<Vec<String>, ApiError> {
    let words = match (request.get("id"), request.get("key")) {
        (Some(Value::String(id)), None) => vec![format!("tag={id}")],
        (None, Some(Value::String(word))) => vec![word.clone()],
        (None, Some(Value::Array(words))) => {
            let words = words.iter().map(|word| word.as_str().map(str::to_owned));
            words.collect::<Option<Vec<_>>>().unwrap_or_default()
        }
        _ => Vec::new(),
    };
    match words.len() {
        1..=MAX_WORDS => Ok(words),
        _ => Err(ApiError::bad_request(
            "name the client by its `id`, a string, or by its `key`, a word for each part",
        )),
    }
}

/// The usage of a limit by one client.
pub(super) async fn usage(request: ApiRequest) -> Result<KeyUsage, ApiError> {
    let words = match request.parameter("by").as_deref() {
        Some("id") => vec![format!("tag={}", request.path.key.join("&"))],
        _ => request.path.key.clone(),
    };
    let lookup = ClientLookup::new(&request)?;
    let work = move || {
        let mut store = lookup.store.open()?;
        let overrides = store.overrides()?;
        let client = lookup.find(&mut store, &words, &overrides)?;
        let missing = || ApiError::not_found("there is no limit");
        let limit = lookup.limit.as_ref().ok_or_else(missing)?;
        let rows = client_usage(limit, &client, &overrides.records, |charge| {
            store.stand(charge)
        })?;
        Ok(report(limit, &client, &rows, &overrides))
    };
    let state = &request.state;
    state.run_blocking("it could not be read", work).await
}

fn report(
    limit: &Limit,
    client: &SelectedKey,
    rows: &[WindowStatus],
    overrides: &OverrideList,
) -> KeyUsage {
    let applies = |record: &&Record| {
        let name = record.subject.limit();
        record.subject.tag() == client.tag && name.is_none_or(|name| *name == *limit.name)
    };
    let record = |is_block: bool| {
        let mut records = overrides.records.iter().filter(applies);
        let found = records.find(|record| record.subject.limit().is_none() == is_block);
        found.map(RecordReport::new)
    };
    KeyUsage {
        limit: limit.name.to_string(),
        id: client.tag.to_string(),
        key: client.parts.clone(),
        windows: rows.iter().map(window).collect(),
        r#override: record(false),
        block: record(true),
    }
}

fn window(row: &WindowStatus) -> WindowUsage {
    let (retry, retry_seconds) = match row.retry {
        Retry::Now | Retry::Unasked => ("now", Some(0.0)),
        Retry::After(us) => ("after", Some(seconds(us))),
        Retry::Never => ("never", None),
        Retry::Released => ("released", None),
    };
    WindowUsage {
        policy: row.policy.clone(),
        of: row.of.clone(),
        rate: row.rate.clone(),
        used: row.used,
        remaining: row.remaining,
        reset_seconds: seconds(row.reset_us),
        retry,
        retry_seconds,
    }
}
