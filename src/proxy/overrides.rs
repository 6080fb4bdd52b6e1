//! Blocks of clients by operators, checked for each request.

use std::sync::Arc;

use bytes::Bytes;
use http::header::RETRY_AFTER;
use http::{HeaderMap, Response};

use super::logged::Logged;
use super::problem::{Detail, Problem, QUOTA_EXCEEDED};
use super::reject::{Form, LocalReplies, Rejection};
use crate::limit::KeyHash;
use crate::limit::headers::{seconds_up, seconds_value};
use crate::limit::key::{Facts, HashSecret, Part};
use crate::store::overrides::OverrideSnapshot;

/// The policy that a block violates, as clients and logs call it.
pub(super) const POLICY: &str = "block";

/// A client that is kept out.
#[derive(Debug)]
pub(crate) struct Blocked {
    /// Its key.
    pub(crate) tag: KeyHash,
    /// The same before it was hashed, where logs tell that.
    pub(super) plain: Option<Arc<str>>,
    /// How long still, microseconds; `None` if nobody knows.
    left_us: Option<u64>,
}

/// Refuses a client with a blocked address or API key, also where limits count by other keys.
pub(super) fn refuse_blocked(
    overrides: &OverrideSnapshot,
    facts: &Facts<'_>,
    (key, logged): (&HashSecret, Logged),
) -> Result<(), Rejection> {
    if !overrides.has_blocks() {
        return Ok(());
    }
    refuse_blocked_key(overrides, facts.ip_tag(key))
        .map_err(|refused| logged.named(refused, || Part::Ip.spell(facts)))?;
    // Known or not: a blocked key stays out when it is taken off the list of known ones.
    let mut refused = Ok(());
    let clear = facts.each_api_key(key, |tag| {
        if refused.is_ok() {
            refused = refuse_blocked_key(overrides, tag);
        }
    });
    refused.map_err(|refused| logged.named(refused, || Part::ApiKey.spell(facts)))?;
    // One of them could be blocked and hide behind the others.
    match clear {
        true => Ok(()),
        false => Err(Rejection::AmbiguousKey(POLICY.into())),
    }
}

pub(super) fn refuse_blocked_key(
    overrides: &OverrideSnapshot,
    tag: KeyHash,
) -> Result<(), Rejection> {
    let Some(block) = overrides.block_of(tag) else {
        return Ok(());
    };
    Err(Rejection::Blocked(Box::new(Blocked {
        tag,
        plain: None,
        left_us: block.left_us,
    })))
}

impl LocalReplies {
    /// The answer to someone who is kept out. Without an end no Retry-After would be honest.
    pub(super) fn keep_out(
        &self,
        blocked: &Blocked,
        form: &Form,
        id: &str,
        room: HeaderMap,
    ) -> Response<Bytes> {
        let wait = blocked.left_us.map(|us| seconds_up(us).max(1));
        let detail = match wait {
            Some(seconds) => format!("this client is blocked; retry in {seconds} s"),
            None => "this client is blocked".to_owned(),
        };
        let problem = Problem {
            kind: QUOTA_EXCEEDED,
            title: "Blocked",
            status: self.deny.status.as_u16(),
            detail: Detail::Text(&detail),
            violated: &[POLICY],
            retry_after: wait,
            docs_url: self.deny.docs_url.as_deref(),
            request_id: id,
        };
        let (mut response, body) = self.refusal(&problem, (form, blocked.left_us), room);
        *response.body_mut() = body.into();
        if let Some(seconds) = wait {
            response
                .headers_mut()
                .insert(RETRY_AFTER, seconds_value(seconds));
        }
        self.open_to_scripts(response.headers_mut(), form);
        response
    }
}
