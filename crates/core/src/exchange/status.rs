//! `[status]`: a client asks how much of its limits is left. That charges nothing and counts
//! nowhere, and a client that is denied or blocked may ask too.

mod answers;

use std::borrow::Cow;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use http::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderMap, HeaderValue};
use http::{Method, Response, StatusCode};

pub use answers::StatusAnswers;

use super::Exchange;
use super::admit::{Admission, CheckedClient};
use super::headers::check_framing;
use super::rejection::Rejection;
use super::stages::Stages;
use crate::clock;
use crate::config::StatusSettings;
use crate::limit::headers::{self, RateLimitStatus, seconds_up};
use crate::limit::key::{Derived, Facts, HashSecret};
use crate::limit::{CheckResult, Decided, Limit};
use crate::request_head::RequestHead;
use crate::route::{Route, RouteMatch};
use crate::store::overrides::{KeyBlock, OverrideSnapshot};
use crate::telemetry::{json, stamp};
use crate::usage::settings::Quantity;

/// The answer to a client, without its id.
#[derive(Debug)]
pub struct StatusAnswer {
    headers: HeaderMap,
    body: Bytes,
}

/// What a client asks the store.
struct StatusQuery<'s> {
    /// Its checks cost nothing.
    admission: Admission,
    not_told: Vec<&'s str>,
    block: Option<BlockReport>,
    /// The client's address, grouped.
    ip: IpAddr,
}

struct StatusReport<'s> {
    limits: Vec<ToldLimit<'s>>,
    not_told: &'s [&'s str],
    block: Option<BlockReport>,
}

#[derive(Clone, Copy, Hash)]
struct BlockReport {
    /// The Unix second of its end; `None` if it has none.
    until: Option<u64>,
}

struct ToldLimit<'s> {
    policy: &'s str,
    unit: &'static str,
    limit: u64,
    used: u64,
    remaining: u64,
    /// The Unix second at which nothing is counted any more.
    reset: u64,
    resets_at: String,
    /// Seconds until a unit is free.
    retry_after: u64,
}

impl Stages {
    /// The settings of `[status]`, if the request is for its path.
    pub fn status_of<B, R>(&self, x: &Exchange<'_, B, R>) -> Option<&StatusSettings> {
        let status = self.status.as_deref()?;
        let takes = status.takes(x.request.method(), x.request.uri().path());
        takes.then_some(status)
    }

    /// Answers a status request.
    pub async fn tell_status<B, R: From<Bytes>>(
        &self,
        x: &mut Exchange<'_, B, R>,
        settings: &StatusSettings,
        answers: &StatusAnswers,
    ) -> Result<(), Rejection> {
        let query = self.status_query(x, settings)?;
        let (asked, now) = (query.fingerprint(), x.record.began);
        let answer = match answers.find(asked, now) {
            Some(answer) => answer,
            None if !answers.may_ask(query.ip, now) => return Err(Rejection::StatusBusy),
            None => {
                let answer = Arc::new(self.ask_status(&query, now).await?);
                answers.keep_answer(asked, &answer, now);
                answer
            }
        };
        let mut response = Response::new(R::from(answer.body.clone()));
        *response.headers_mut() = answer.headers.clone();
        *response.status_mut() = StatusCode::OK;
        if x.request.method() == Method::HEAD {
            *response.body_mut() = R::from(Bytes::new());
        }
        self.replies
            .allow_script(response.headers_mut(), x.request.headers());
        *x.response = response;
        Ok(())
    }

    /// Refuses what [`Stages::tell_status`] refuses.
    pub fn check_status<B, R>(
        &self,
        x: &mut Exchange<'_, B, R>,
        settings: &StatusSettings,
    ) -> Result<(), Rejection> {
        self.status_query(x, settings).map(drop)
    }

    fn status_query<'s, B, R>(
        &self,
        x: &mut Exchange<'_, B, R>,
        settings: &'s StatusSettings,
    ) -> Result<StatusQuery<'s>, Rejection> {
        let (request, downstream) = (&*x.request, x.downstream);
        let host = check_framing(request)?;
        let path = self.router.routes.read_path(request.uri().path());
        let path = path.map_err(Rejection::Path)?;
        let head = self.head_of(request, downstream, x.record.client, &host, &path);
        if !self.router.access.admits(head.client) {
            return Err(Rejection::AccessDenied);
        }
        let found = RouteMatch {
            route: &settings.route,
            params: Default::default(),
        };
        let overrides = self.limiter.store.overrides();
        let query =
            |facts: &Facts<'_>| self.status_checks(&head, settings, facts, overrides.as_ref());
        Ok(self.router.identify(&head, &found, None, query))
    }

    fn status_checks<'s>(
        &self,
        head: &RequestHead<'_>,
        settings: &'s StatusSettings,
        facts: &Facts<'_>,
        overrides: Option<&OverrideSnapshot>,
    ) -> StatusQuery<'s> {
        let key = self.limiter.hash_key();
        let told = |block: Option<KeyBlock>| {
            let block = block.filter(|block| !self.is_spared(block, head.client, facts));
            block.map(|block| BlockReport::new(&block, clock::unix_us()))
        };
        let mut query = StatusQuery {
            admission: Admission::default(),
            not_told: settings.not_told.iter().map(|name| &**name).collect(),
            block: told(overrides.and_then(|overrides| find_block(overrides, facts, &key.key))),
            ip: facts.ip,
        };
        query.admission.generation = key.generation;
        let route: &'s Route = &settings.route;
        for limit in &route.limits {
            if limit.exempt.has(head.client, &limit.key, facts) {
                continue;
            }
            let tag = match limit.key.derive(facts, limit.missing, &key.key) {
                Derived::Hash(tag) if limit.enforces(tag) => tag,
                Derived::Hash(_) | Derived::Skip => continue,
                Derived::Denied | Derived::Ambiguous | Derived::Unknown => {
                    query.not_told.push(&limit.name);
                    continue;
                }
            };
            let block = || overrides.and_then(|overrides| overrides.block_of(tag));
            query.block = query.block.or_else(|| told(block()));
            let raised = overrides.and_then(|overrides| overrides.windows(limit, tag));
            let own = || Cow::Borrowed(limit.windows_of(facts.tier));
            let windows = raised.unwrap_or_else(own);
            let anchor = limit.anchor_of(facts);
            let client = CheckedClient { tag, anchor };
            query.admission.add(limit, &windows, client, 0, None);
        }
        query.admission.shadow.clear();
        query
    }

    async fn ask_status(
        &self,
        query: &StatusQuery<'_>,
        since: Instant,
    ) -> Result<StatusAnswer, Rejection> {
        let admission = &query.admission;
        let decision = self.limiter.peek(admission, since).await;
        let decision = decision.map_err(|error| Rejection::StoreAway {
            limits: Vec::new(),
            reason: error.label(),
        })?;
        let decided = Decided {
            charge: &admission.charge,
            decision: &decision,
        };
        let unix_us = clock::unix_us();
        let report = StatusReport {
            limits: (decided.results())
                .map(|result| ToldLimit::new(result, unix_us))
                .collect(),
            not_told: &query.not_told,
            block: query.block,
        };
        let body = report.to_json();
        let mut map = HeaderMap::new();
        map.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        map.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
        let settings = self.replies.headers;
        let mut status = RateLimitStatus::new(decided, settings.reset, unix_us);
        // The next look need not wait.
        status.wait = None;
        headers::write(&mut map, settings, &admission.charge, &status);
        Ok(StatusAnswer {
            headers: map,
            body: body.into(),
        })
    }
}

impl StatusQuery<'_> {
    /// A hash over all that the answer depends on. Keys are keyed hashes, so no client can choose
    /// it.
    fn fingerprint(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        for check in &self.admission.charge {
            let (limit, window) = (&check.limit, &check.window);
            (&limit.name, check.tag, check.anchor).hash(&mut hasher);
            (window.identity, window.rule.units).hash(&mut hasher);
        }
        (&self.not_told, self.block).hash(&mut hasher);
        hasher.finish()
    }
}

impl BlockReport {
    fn new(block: &KeyBlock, unix_us: u64) -> BlockReport {
        let end = |us: u64| seconds_up(unix_us.saturating_add(us));
        BlockReport {
            until: block.left_us.map(end),
        }
    }
}

impl StatusReport<'_> {
    fn to_json(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(256);
        out.extend_from_slice(b"{\"limits\":[");
        for (place, limit) in self.limits.iter().enumerate() {
            out.extend_from_slice(if place > 0 { b"," } else { b"" });
            limit.put_json(&mut out);
        }
        out.push(b']');
        if !self.not_told.is_empty() {
            out.extend_from_slice(b",\"not_told\":[");
            for (place, name) in self.not_told.iter().enumerate() {
                out.extend_from_slice(if place > 0 { b"," } else { b"" });
                json::string(&mut out, name);
            }
            out.push(b']');
        }
        if let Some(block) = &self.block {
            out.extend_from_slice(b",\"blocked_until\":");
            match block.until {
                Some(until) => json::string(&mut out, &second_text(until)),
                None => out.extend_from_slice(b"null"),
            }
        }
        out.extend_from_slice(b"}\n");
        out
    }
}

impl<'s> ToldLimit<'s> {
    fn put_json(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(b"{\"policy\":");
        json::string(out, self.policy);
        out.extend_from_slice(b",\"unit\":");
        json::string(out, self.unit);
        let numbers = [
            (",\"limit\":", self.limit),
            (",\"used\":", self.used),
            (",\"remaining\":", self.remaining),
            (",\"reset\":", self.reset),
            (",\"retry_after\":", self.retry_after),
        ];
        for (name, number) in numbers {
            out.extend_from_slice(name.as_bytes());
            json::number(out, number);
        }
        out.extend_from_slice(b",\"resets_at\":");
        json::string(out, &self.resets_at);
        out.push(b'}');
    }

    fn new(result: CheckResult<'s>, unix_us: u64) -> ToldLimit<'s> {
        let CheckResult { check, verdict } = result;
        let calendar = check.window.calendar.as_deref();
        let span = headers::calendar_span(result, unix_us);
        let end_us = span.map_or(unix_us.saturating_add(verdict.reset_us), |span| span.end_us);
        let reset = seconds_up(end_us);
        ToldLimit {
            policy: &check.window.policy,
            unit: unit(&check.limit),
            limit: check.window.rule.units,
            used: verdict.used,
            remaining: verdict.remaining,
            reset,
            resets_at: match calendar {
                Some(calendar) => calendar.text(end_us),
                None => second_text(reset),
            },
            retry_after: match verdict.remaining {
                0 => seconds_up(verdict.next_us).max(1),
                _ => 0,
            },
        }
    }
}

fn unit(limit: &Limit) -> &'static str {
    match limit.counts {
        Quantity::Costs | Quantity::Requests => "requests",
        Quantity::Tokens => "tokens",
        Quantity::Input => "input tokens",
        Quantity::Output => "output tokens",
        Quantity::Money => "millionths",
    }
}

/// `2026-11-20T22:37:06Z`
fn second_text(unix_s: u64) -> String {
    let text = stamp::rfc3339(unix_s.saturating_mul(1_000_000));
    format!("{}Z", &text[..19])
}

/// The block of the client's address or API key.
fn find_block(
    overrides: &OverrideSnapshot,
    facts: &Facts<'_>,
    secret: &HashSecret,
) -> Option<KeyBlock> {
    let mut found = overrides.block_of(facts.ip_tag(secret));
    facts.each_api_key(secret, |tag| {
        found = found.take().or_else(|| overrides.block_of(tag));
    });
    found
}

#[cfg(test)]
mod tests;
