//! `/api/v1/denials`: the last of them, and a stream of those to come.

use std::collections::VecDeque;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use http::StatusCode;
use http::header::{CONTENT_TYPE, HeaderValue};
use ipnet::IpNet;
use serde_json::json;
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::{Semaphore, broadcast, mpsc};

use super::AdminState;
use super::body::Body;
use super::place::parameter;
use super::respond::{ApiError, ApiResult, json_text};
use super::schema::described;
use super::time::seconds;
use crate::limit::KeyHash;
use crate::limit::key::key_hash_prefix::KeyHashPrefix;
use crate::telemetry::denials::{Denial, DeniedRate, MOST_RATES};

/// Denials that are kept, for those that ask for one by its request's id; and those of them that
/// are listed, where all are asked for.
const KEPT: usize = 2000;
const LISTED: usize = 200;
/// Events that wait for whoever is slow to take them; more are counted as dropped.
const WAITING: usize = 256;
/// Streams at once.
const STREAMS: usize = 16;
/// A stream on which nothing happens says so, that proxies between do not end it.
const QUIET: Duration = Duration::from_secs(15);
/// Bits of an address that are told: enough to see where, too few to see who.
const IPV4_BITS: u8 = 24;
const IPV6_BITS: u8 = 48;

/// What is told of one.
#[derive(Clone, Debug)]
enum Event {
    Denied(Arc<Told>),
    /// So many were not told.
    Dropped(u64),
}

/// A denial as it is told.
#[derive(Debug)]
struct Told {
    tag: KeyHash,
    report: DenialReport,
}

described! {
    struct DenialList {
        denials: Vec<DenialReport>,
    }

    struct DenialReport as "Denial" {
        at: f64,
        limit: String,
        route: String,
        method: String,
        path: String,
        client: Option<String>,
        id: String,
        retry_after: Option<u64>,
        request_id: String,
        shadow: bool,
        /// What the rates that denied it had counted at that moment.
        rates: Vec<DeniedRateReport> = json!({ "maxItems": MOST_RATES }),
    }

    struct DeniedRateReport as "DeniedRate" {
        policy: String,
        /// The parts of the key, as the configuration has them.
        key: String,
        /// The hash of the key.
        id: String,
        rate: String,
        units: u64,
        /// Units that were counted before the request.
        used: u64,
        remaining: u64,
        cost: u64,
        retry_after: Option<u64>,
    }
}

/// The last ones, and whoever follows.
#[derive(Debug)]
pub(super) struct Followed {
    last: Mutex<VecDeque<Arc<Told>>>,
    events: broadcast::Sender<Event>,
    streams: Arc<Semaphore>,
}

impl Default for Followed {
    fn default() -> Followed {
        Followed {
            last: Mutex::default(),
            events: broadcast::Sender::new(WAITING),
            streams: Arc::new(Semaphore::new(STREAMS)),
        }
    }
}

/// What a follower wants to hear.
#[derive(Debug)]
pub(super) struct Filter {
    pub(super) limit: Option<String>,
    pub(super) route: Option<String>,
    /// The beginning of a client's hash.
    pub(super) key: Option<KeyHashPrefix>,
    /// A request's id.
    pub(super) request: Option<String>,
    /// Whether those of limits on trial are told too.
    pub(super) shadow: bool,
}

impl Filter {
    /// Reads a query.
    pub(super) fn of(query: Option<&str>) -> Result<Filter, ApiError> {
        let key = parameter(query, "key").map(|key| {
            let hash = key.strip_prefix("tag=").unwrap_or(&key);
            KeyHashPrefix::parse(hash).ok_or_else(|| {
                ApiError::bad_request("`key` is a client's hash as logs show it, or its beginning")
            })
        });
        Ok(Filter {
            limit: parameter(query, "limit"),
            route: parameter(query, "route"),
            key: key.transpose()?,
            request: parameter(query, "request_id"),
            shadow: parameter(query, "shadow").as_deref() != Some("false"),
        })
    }

    fn wants(&self, told: &Told) -> bool {
        let is = |wanted: &Option<String>, found: &str| {
            wanted.as_ref().is_none_or(|wanted| wanted == found)
        };
        let is_of = |key: &KeyHashPrefix| key.matches(told.tag);
        let has_id = |request: &String| told.report.request_id == **request;
        let is_named =
            self.key.as_ref().is_none_or(is_of) && self.request.as_ref().is_none_or(has_id);
        let is_real = !told.report.shadow;
        is(&self.limit, &told.report.limit)
            && is(&self.route, &told.report.route)
            && is_named
            && (self.shadow || is_real)
    }
}

impl AdminState {
    /// Denials that a worker has told, and how many it has not.
    pub(super) fn tell_denials(&self, list: Vec<Denial>, dropped: u64) {
        let followed = &self.followed;
        let mut last = followed.last.lock().unwrap_or_else(PoisonError::into_inner);
        for denial in list {
            let told = Arc::new(Told::of(denial));
            if last.len() == KEPT {
                last.pop_front();
            }
            last.push_back(Arc::clone(&told));
            // Where nobody follows there is nobody to tell.
            let _ = followed.events.send(Event::Denied(told));
        }
        if dropped > 0 {
            let _ = followed.events.send(Event::Dropped(dropped));
        }
    }

    /// The last ones that the filter wants, newest first.
    pub(super) fn last_denials(&self, filter: &Filter) -> DenialList {
        self.drain();
        let last = self.last();
        let wanted = last.iter().rev().filter(|told| filter.wants(told));
        let listed = wanted.take(LISTED).map(|told| told.report.clone());
        DenialList {
            denials: listed.collect(),
        }
    }

    /// The client that was denied as its request had this id: by the limit, where it is among those
    /// that denied.
    pub(super) fn denied(&self, request: &str, limit: Option<&str>) -> Option<KeyHash> {
        let request = request.strip_prefix("request=").unwrap_or(request);
        if request.is_empty() {
            return None;
        }
        self.drain();
        let last = self.last();
        let is_it = |told: &&Arc<Told>| told.report.request_id == *request;
        let by_limit = |told: &&Arc<Told>| limit.is_none_or(|limit| told.report.limit == limit);
        let mut all = last.iter().rev().filter(is_it);
        all.clone()
            .find(by_limit)
            .or_else(|| all.next())
            .map(|told| told.tag)
    }

    /// Clients that were denied.
    pub(super) fn denied_tags(&self) -> Vec<KeyHash> {
        self.last().iter().map(|told| told.tag).collect()
    }

    fn last(&self) -> MutexGuard<'_, VecDeque<Arc<Told>>> {
        let last = self.followed.last.lock();
        last.unwrap_or_else(PoisonError::into_inner)
    }
}

impl Told {
    fn of(denial: Denial) -> Told {
        let report = DenialReport {
            at: seconds(denial.at_us),
            limit: denial.limit,
            route: denial.route,
            method: denial.method.to_string(),
            path: denial.path,
            client: network(denial.client),
            id: denial.tag.to_string(),
            retry_after: denial.retry_after,
            request_id: denial.request_id,
            shadow: denial.shadow,
            rates: denial.rates.into_iter().map(rate).collect(),
        };
        Told {
            tag: denial.tag,
            report,
        }
    }
}

/// One rate that denied, as it stood at that moment.
fn rate(denied: DeniedRate) -> DeniedRateReport {
    DeniedRateReport {
        policy: denied.policy,
        key: denied.key,
        id: denied.tag.to_string(),
        rate: denied.rate,
        units: denied.units,
        used: denied.used,
        remaining: denied.remaining,
        cost: denied.cost,
        retry_after: denied.retry_after,
    }
}

/// Where a client is, without who it is.
fn network(ip: IpAddr) -> Option<String> {
    let bits = match ip {
        IpAddr::V4(_) => IPV4_BITS,
        IpAddr::V6(_) => IPV6_BITS,
    };
    let net = IpNet::new(ip, bits).ok()?;
    Some(net.trunc().to_string())
}

/// A stream of what is to come, as far as `filter` wants it.
pub(super) fn stream(state: &Arc<AdminState>, filter: Filter) -> ApiResult {
    let followed = &state.followed;
    let Ok(permit) = Arc::clone(&followed.streams).try_acquire_owned() else {
        let detail = "as many follow as may";
        return Err(ApiError::new(StatusCode::TOO_MANY_REQUESTS, detail));
    };
    let mut events = followed.events.subscribe();
    let (sender, receiver) = mpsc::channel(16);
    tokio::spawn(async move {
        let mut dropped = 0;
        // So that whoever follows knows that it does.
        let mut text = ": following\n\n".to_owned();
        while sender.send(Bytes::from(text)).await.is_ok() {
            text = match tokio::time::timeout(QUIET, next(&mut events, &filter)).await {
                Err(_) => ": quiet\n\n".to_owned(),
                Ok(Some(Event::Denied(told))) => format!("data: {}\n\n", json_text(&told.report)),
                Ok(Some(Event::Dropped(more))) => {
                    dropped += more;
                    let count = json!({ "dropped": more, "all": dropped });
                    format!("event: dropped\ndata: {count}\n\n")
                }
                Ok(None) => break,
            };
        }
        drop(permit);
    });
    let mut response = http::Response::new(Body::Events(receiver));
    let media = HeaderValue::from_static("text/event-stream");
    response.headers_mut().insert(CONTENT_TYPE, media);
    Ok(response)
}

/// The next event that the filter wants; nothing at the end.
async fn next(events: &mut broadcast::Receiver<Event>, filter: &Filter) -> Option<Event> {
    loop {
        match events.recv().await {
            Ok(Event::Denied(told)) if !filter.wants(&told) => {}
            Ok(event) => return Some(event),
            Err(RecvError::Lagged(missed)) => return Some(Event::Dropped(missed)),
            Err(RecvError::Closed) => return None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_tells_where_and_not_who() {
        let told = |text: &str| network(text.parse().unwrap()).unwrap();
        assert_eq!(told("203.0.113.77"), "203.0.113.0/24");
        assert_eq!(told("2001:db8:1:2:3:4:5:6"), "2001:db8:1::/48");
    }
}
