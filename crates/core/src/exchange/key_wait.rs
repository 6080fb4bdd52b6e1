//! Requests whose tokens name a key that is not known yet. They wait a moment for the keys of the
//! issuer, which a thread of the proxy fetches.

use std::time::Duration;

use super::Exchange;
use super::claims::Tokens;
use super::headers::check_framing;
use super::rejection::Rejection;
use super::router::Router;
use super::stages::Stages;
use crate::clock;
use crate::limit::key::jwt::{FetchedKeys, KeyWait};
use crate::limit::key::with_bearer;
use crate::route::Route;

/// How long a request waits for keys. After that its token is not believed.
const MOST_WAIT: Duration = Duration::from_secs(1);

impl Stages {
    /// What a request must wait for before it is identified: the keys of the issuer, if its route
    /// reads tokens and its token may be right by a key that is not known.
    #[inline]
    pub fn key_wait<B, R>(&self, x: &Exchange<'_, B, R>) -> Option<KeyWait<'_>> {
        let tokens = self.router.tokens.as_ref()?;
        let keys = tokens.fetched_keys()?;
        self.find_key_wait(x, tokens, keys)
    }

    #[inline(never)]
    fn find_key_wait<'s, B, R>(
        &'s self,
        x: &Exchange<'_, B, R>,
        tokens: &Tokens,
        keys: &'s FetchedKeys,
    ) -> Option<KeyWait<'s>> {
        let now_us = clock::unix_us();
        let lacks_key = |token: &[u8]| Some(tokens.lacks_key_of(token, now_us / 1_000_000));
        let is_unknown = with_bearer(x.request.headers(), lacks_key)?;
        if !is_unknown {
            return None;
        }
        let route = self.admitted_route(x)?;
        self.router.reads_tokens(route).then(|| keys.wait(now_us))?
    }

    /// The route of a request, unless its client is not served.
    fn admitted_route<B, R>(&self, x: &Exchange<'_, B, R>) -> Option<&Route> {
        let host = check_framing(x.request).ok()?;
        let path = self.router.routes.read_path(x.request.uri().path()).ok()?;
        let head = self.head_of(x.request, x.downstream, x.record.client, &host, &path);
        if !self.router.access.admits(head.client) {
            return None;
        }
        let route = match self.status_of(x) {
            Some(status) => &*status.route,
            None => match self.router.find_route(&head) {
                Err(Rejection::NoRoute) if x.downstream.is_described => {
                    self.router.unrouted().ok()?.route
                }
                found => found.ok()?.route,
            },
        };
        Router::check_client(route, &head).ok().map(|()| route)
    }
}

impl Router {
    fn reads_tokens(&self, route: &Route) -> bool {
        self.tokens_for(route, self.tiers_for(route)).is_some()
    }
}

/// Waits for the end of a fetch, at most a second.
pub async fn wait_for_keys(wait: KeyWait<'_>) {
    // Then the token is not believed.
    let _ = tokio::time::timeout(MOST_WAIT, wait).await;
}
