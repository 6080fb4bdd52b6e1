//! What a request asks the callback about API keys before it is identified.

use std::borrow::Cow;
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Instant;

use futures_util::future::join_all;
use smallvec::SmallVec;

use super::Exchange;
use super::headers::check_framing;
use super::key_callback::KeyCallback;
use super::key_lookup::KeyLookup;
use super::router::Router;
use super::stages::Stages;

/// What a request asks the callback, each question by itself.
pub struct KeyQuestions<'c> {
    callback: &'c Arc<KeyCallback>,
    keys: SmallVec<[Vec<u8>; 1]>,
    /// The client's address, grouped.
    ip: IpAddr,
}

impl Stages {
    /// What the callback must be asked before the request is identified: its limits count by API
    /// keys, and the cache has no answer. `None` if nothing.
    #[inline]
    pub fn key_questions<B, R>(&self, x: &Exchange<'_, B, R>) -> Option<KeyQuestions<'_>> {
        match &self.router.keys {
            KeyLookup::Callback(callback) => self.questions_to(callback, x),
            _ => None,
        }
    }

    fn questions_to<'s, B, R>(
        &'s self,
        callback: &'s Arc<KeyCallback>,
        x: &Exchange<'_, B, R>,
    ) -> Option<KeyQuestions<'s>> {
        let keys = self.unanswered(callback, x, x.record.began);
        if keys.is_empty() {
            return None;
        }
        let ip = self.asking_client(x)?;
        let ip = self.router.client_ip.group(ip);
        Some(KeyQuestions { callback, keys, ip })
    }

    /// The keys of the request that the cache has no answer for.
    fn unanswered<B, R>(
        &self,
        callback: &KeyCallback,
        x: &Exchange<'_, B, R>,
        now: Instant,
    ) -> SmallVec<[Vec<u8>; 1]> {
        let (headers, query) = (x.request.headers(), x.request.uri().query());
        let mut keys = SmallVec::new();
        let api_key = &self.router.api_key;
        api_key.each_unlisted(headers, query, |source, key| {
            if !api_key.is_bearer_token(source, key) && callback.wants_answer(key, now) {
                keys.push(key.to_vec());
            }
        });
        keys
    }

    /// The client's address; `None` if nothing of the request depends on its API key, or if it is
    /// refused in any case.
    fn asking_client<B, R>(&self, x: &Exchange<'_, B, R>) -> Option<IpAddr> {
        let (request, downstream) = (&*x.request, x.downstream);
        let host: Cow<'_, str> = check_framing(request).ok()?;
        let path = self.router.routes.read_path(request.uri().path()).ok()?;
        let head = self.head_of(request, downstream, x.record.client, &host, &path);
        if !self.router.access.admits(head.client) {
            return None;
        }
        if let Some(status) = self.status_of(x) {
            let asks = self.router.counts_by_key(&status.route);
            return asks.then_some(head.client);
        }
        let found = match self.router.find_route(&head) {
            Ok(found) => found,
            Err(_) if downstream.is_described => self.router.unrouted().ok()?,
            Err(_) => return None,
        };
        let route = found.route;
        let is_served = Router::check_client(route, &head).is_ok();
        let asks = is_served && self.router.counts_by_key(route);
        asks.then_some(head.client)
    }
}

impl fmt::Debug for KeyQuestions<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The keys are in the clear.
        f.write_str("KeyQuestions(..)")
    }
}

impl KeyQuestions<'_> {
    /// Asks, and waits for the answers: no longer than the callback's timeout.
    pub async fn ask_all(self) {
        let KeyQuestions { callback, keys, ip } = self;
        let asked = keys.iter().map(|key| callback.ask_about(key, ip));
        // In a box: few requests need this much room.
        Box::pin(join_all(asked)).await;
    }
}
