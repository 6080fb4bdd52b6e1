//! `/api/v1/denials`: the last denials, and a stream of new ones.

use std::cmp::Reverse;
use std::collections::VecDeque;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use futures_util::stream;
use http::header::{CONTENT_TYPE, HeaderValue};
use http::{Response, StatusCode};
use http_body::Frame;
use http_body_util::{BodyExt, StreamBody};
use ipnet::IpNet;
use serde_json::json;
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, broadcast};

use super::response::{ApiError, ApiResult, json_text, seconds};
use super::schema::{described, quantity_words};
use crate::limit::KeyHash;
use crate::limit::key::KeyHashPrefix;
use crate::telemetry::watched::{DeniedRate, MOST_RATES, ObservedDenial, TakenDenials};

/// Denials that are kept, so that an operator can find one by the id of its request.
const MAX_KEPT: usize = 2000;
/// Denials in an answer.
const MAX_LISTED: usize = 200;
/// Events that wait for a slow reader of the stream. Further ones are counted as dropped.
const MAX_WAITING: usize = 256;
/// Streams at once.
const MAX_STREAMS: usize = 16;
/// A stream without events sends a comment this often, so that proxies do not close it.
const KEEP_ALIVE: Duration = Duration::from_secs(15);
/// The bits of a client's address that are shown: they name its network, but not the client.
const IPV4_BITS: u8 = 24;
const IPV6_BITS: u8 = 48;

described! {
    struct DenialList {
        denials: Vec<DenialReport>,
    }

    struct DenialReport as "Denial" {
        at: f64,
        limit: String,
        route: String,
        /// Where another proxy asked for the decision.
        door: Option<String>,
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
        /// The quantity of `units`, `used`, `remaining` and `cost`. Money is in millionths.
        counts: String = quantity_words(),
        units: u64,
        /// Units that were counted before the request.
        used: u64,
        remaining: u64,
        cost: u64,
        retry_after: Option<u64>,
    }
}

#[derive(Clone, Debug)]
enum DenialEvent {
    Denied(Arc<ObservedDenial>),
    /// So many denials were left out.
    Dropped(u64),
}

/// The last denials of all workers, and the streams that follow them.
#[derive(Debug)]
pub(super) struct DenialLog {
    last: Mutex<VecDeque<Arc<ObservedDenial>>>,
    events: broadcast::Sender<DenialEvent>,
    streams: Arc<Semaphore>,
}

impl Default for DenialLog {
    fn default() -> DenialLog {
        DenialLog {
            last: Mutex::default(),
            events: broadcast::Sender::new(MAX_WAITING),
            streams: Arc::new(Semaphore::new(MAX_STREAMS)),
        }
    }
}

#[derive(Debug)]
pub(super) struct DenialFilter {
    limit: Option<String>,
    route: Option<String>,
    /// The beginning of a client's hash.
    key: Option<KeyHashPrefix>,
    request_id: Option<String>,
    /// The newest time, microseconds since the Unix epoch.
    until_us: Option<u64>,
    /// Whether denials by limits in shadow mode are included.
    shadow: bool,
}

impl DenialFilter {
    /// Reads the query of a request, whose parameters `parameter` returns.
    pub(super) fn parse(
        parameter: impl Fn(&str) -> Option<String>,
    ) -> Result<DenialFilter, ApiError> {
        let key = parameter("key").map(|key| {
            let hash = key.strip_prefix("tag=").unwrap_or(&key);
            KeyHashPrefix::parse(hash).ok_or_else(|| {
                ApiError::bad_request("`key` is a client's hash as logs show it, or its beginning")
            })
        });
        let until = parameter("until").map(|until| {
            let until = until.parse().ok().filter(|until| *until >= 0.0);
            until.ok_or_else(|| ApiError::bad_request("`until` is a number of seconds"))
        });
        Ok(DenialFilter {
            limit: parameter("limit"),
            route: parameter("route"),
            key: key.transpose()?,
            request_id: parameter("request_id"),
            until_us: until
                .transpose()?
                .map(|until: f64| (until * 1e6).round() as u64),
            shadow: match parameter("shadow").as_deref() {
                None | Some("true") => true,
                Some("false") => false,
                Some(_) => {
                    return Err(ApiError::bad_request("`shadow` is `true` or `false`"));
                }
            },
        })
    }

    fn matches(&self, denial: &ObservedDenial) -> bool {
        let is = |wanted: &Option<String>, found: &str| {
            wanted.as_ref().is_none_or(|wanted| wanted == found)
        };
        is(&self.limit, &denial.limit)
            && is(&self.route, &denial.route)
            && is(&self.request_id, &denial.request_id)
            && self.key.as_ref().is_none_or(|key| key.matches(denial.tag))
            && self.until_us.is_none_or(|until| denial.at_us <= until)
            && (self.shadow || !denial.shadow)
    }
}

impl DenialLog {
    /// Adds the denials that a worker has noted.
    pub(super) fn record(&self, taken: TakenDenials) {
        let mut last = self.last();
        for denial in taken.denials {
            let denial = Arc::new(denial);
            if last.len() == MAX_KEPT {
                last.pop_front();
            }
            last.push_back(Arc::clone(&denial));
            // Sending fails if there is no stream.
            let _ = self.events.send(DenialEvent::Denied(denial));
        }
        if taken.dropped > 0 {
            let _ = self.events.send(DenialEvent::Dropped(taken.dropped));
        }
    }

    /// The last denials that match the filter, newest first.
    pub(super) fn list(&self, filter: &DenialFilter) -> DenialList {
        let last = self.last();
        let matching = last.iter().rev().filter(|denial| filter.matches(denial));
        let mut matching: Vec<&Arc<ObservedDenial>> = matching.collect();
        // Workers pass their denials on in turn, so later ones may come before earlier ones.
        matching.sort_by_key(|denial| Reverse(denial.at_us));
        let listed = matching.into_iter().take(MAX_LISTED);
        let listed = listed.map(|denial| report(denial));
        DenialList {
            denials: listed.collect(),
        }
    }

    /// The client whose request had this id. Prefers a denial by `limit` where several limits
    /// denied the request.
    pub(super) fn find_client(&self, request: &str, limit: Option<&str>) -> Option<KeyHash> {
        let last = self.last();
        let newest = last.iter().rev();
        let mut matching = newest.filter(|denial| denial.request_id == *request);
        let by_limit =
            |denial: &&Arc<ObservedDenial>| limit.is_none_or(|limit| denial.limit == limit);
        let preferred = matching.clone().find(by_limit);
        preferred
            .or_else(|| matching.next())
            .map(|denial| denial.tag)
    }

    pub(super) fn clients(&self) -> Vec<KeyHash> {
        self.last().iter().map(|denial| denial.tag).collect()
    }

    fn last(&self) -> MutexGuard<'_, VecDeque<Arc<ObservedDenial>>> {
        self.last.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Streams the denials to come that match the filter, as server-sent events.
    pub(super) fn stream(&self, filter: DenialFilter) -> ApiResult {
        let Ok(permit) = Arc::clone(&self.streams).try_acquire_owned() else {
            let detail = "too many streams are open";
            return Err(ApiError::new(StatusCode::TOO_MANY_REQUESTS, detail));
        };
        let follower = Follower {
            events: self.events.subscribe(),
            filter,
            dropped: 0,
            is_greeted: false,
            _permit: permit,
        };
        let frames = stream::unfold(follower, |mut follower| async move {
            let text = follower.next_text().await?;
            Some((Ok(Frame::data(Bytes::from(text))), follower))
        });
        let mut response = Response::new(StreamBody::new(frames).boxed_unsync());
        let media = HeaderValue::from_static("text/event-stream");
        response.headers_mut().insert(CONTENT_TYPE, media);
        Ok(response)
    }
}

struct Follower {
    events: broadcast::Receiver<DenialEvent>,
    filter: DenialFilter,
    /// Denials that were left out so far.
    dropped: u64,
    is_greeted: bool,
    _permit: OwnedSemaphorePermit,
}

impl Follower {
    /// The next text of the stream. `None` at its end.
    async fn next_text(&mut self) -> Option<String> {
        if !std::mem::replace(&mut self.is_greeted, true) {
            // The client learns at once that its request is answered.
            return Some(": following\n\n".to_owned());
        }
        let Ok(event) = tokio::time::timeout(KEEP_ALIVE, self.next_event()).await else {
            return Some(": quiet\n\n".to_owned());
        };
        Some(match event? {
            DenialEvent::Denied(denial) => format!("data: {}\n\n", json_text(&report(&denial))),
            DenialEvent::Dropped(more) => {
                self.dropped += more;
                let count = json!({ "dropped": more, "all": self.dropped });
                format!("event: dropped\ndata: {count}\n\n")
            }
        })
    }

    async fn next_event(&mut self) -> Option<DenialEvent> {
        loop {
            match self.events.recv().await {
                Ok(DenialEvent::Denied(denial)) if !self.filter.matches(&denial) => {}
                Ok(event) => return Some(event),
                Err(RecvError::Lagged(missed)) => return Some(DenialEvent::Dropped(missed)),
                Err(RecvError::Closed) => return None,
            }
        }
    }
}

fn report(denial: &ObservedDenial) -> DenialReport {
    let rate = |denied: &DeniedRate| DeniedRateReport {
        policy: denied.policy.clone(),
        key: denied.key.clone(),
        id: denied.tag.to_string(),
        rate: denied.rate.clone(),
        counts: denied.counts.word().to_owned(),
        units: denied.units,
        used: denied.used,
        remaining: denied.remaining,
        cost: denied.cost,
        retry_after: denied.retry_after,
    };
    DenialReport {
        at: seconds(denial.at_us),
        limit: denial.limit.clone(),
        route: denial.route.clone(),
        door: denial.door.map(|door| door.word().to_owned()),
        method: denial.method.to_string(),
        path: denial.path.clone(),
        client: network(denial.client),
        id: denial.tag.to_string(),
        retry_after: denial.retry_after,
        request_id: denial.request_id.clone(),
        shadow: denial.shadow,
        rates: denial.rates.iter().map(rate).collect(),
    }
}

/// The network of a client's address.
fn network(ip: IpAddr) -> Option<String> {
    let bits = match ip {
        IpAddr::V4(_) => IPV4_BITS,
        IpAddr::V6(_) => IPV6_BITS,
    };
    let net = IpNet::new(ip, bits).ok()?;
    Some(net.trunc().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_shown_as_its_network() {
        let shown = |text: &str| network(text.parse().unwrap()).unwrap();
        assert_eq!(shown("203.0.113.77"), "203.0.113.0/24");
        assert_eq!(shown("2001:db8:1:2:3:4:5:6"), "2001:db8:1::/48");
    }
}
