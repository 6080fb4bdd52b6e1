//! What operators said of the client of one request: another rate, or no service at all.

use std::sync::Arc;

use bytes::Bytes;
use http::header::RETRY_AFTER;
use http::{HeaderMap, Response};

use super::limiter::Limiter;
use super::logged::Logged;
use super::problem::{Detail, Problem, QUOTA_EXCEEDED};
use super::reject::{Form, Rejection};
use crate::limit::headers::{seconds_up, seconds_value};
use crate::limit::key::{Facts, HashSecret, Part};
use crate::limit::people::{People, Until};
use crate::limit::{KeyHash, Limit, Window};
use crate::store::Store;
use crate::store::redis::CurrentPeople;

/// The policy that a block violates, as clients and logs call it.
pub(super) const POLICY: &str = "block";

/// What is said now; a request that is read while nothing is said of anyone has none.
pub(super) struct Said {
    people: CurrentPeople,
    now_us: u64,
}

/// A client that is kept out.
#[derive(Debug)]
pub(crate) struct Blocked {
    /// Its key.
    pub(crate) tag: KeyHash,
    /// The same before it was hashed, where logs tell that.
    pub(super) plain: Option<Arc<str>>,
    /// How long still, microseconds; `None` if nobody knows.
    left_us: Option<u64>,
    form: Form,
}

impl Said {
    /// What they say at a time, wherever that is known from.
    pub(super) fn at(people: People, now_us: u64) -> Option<Said> {
        let said = Said {
            people: CurrentPeople::from_inner(Arc::new(people)),
            now_us,
        };
        (!said.people.is_empty()).then_some(said)
    }

    /// What operators say of anyone.
    pub(super) fn of(store: &Store) -> Option<Said> {
        let (people, now_us) = store.people()?;
        Some(Said { people, now_us })
    }

    /// Refuses whoever has a blocked address or API key, also where limits count by others.
    pub(super) fn admits(
        &self,
        facts: &Facts<'_>,
        (key, logged): (&HashSecret, Logged),
    ) -> Result<(), Rejection> {
        if !self.people.has_blocks() {
            return Ok(());
        }
        self.admits_tag(facts.ip_tag(key), facts)
            .map_err(|refused| logged.named(refused, || Part::Ip.spell(facts)))?;
        // Known or not: a blocked key stays out when it is taken off the list of known ones.
        let mut refused = Ok(());
        let clear = facts.each_api_key(key, |tag| {
            if refused.is_ok() {
                refused = self.admits_tag(tag, facts);
            }
        });
        refused.map_err(|refused| logged.named(refused, || Part::ApiKey.spell(facts)))?;
        // One of them could be blocked and hide behind the others.
        match clear {
            true => Ok(()),
            false => Err(Rejection::AmbiguousKey(POLICY.into())),
        }
    }

    /// Refuses whoever has this key if it is blocked.
    pub(super) fn admits_tag(&self, tag: KeyHash, facts: &Facts<'_>) -> Result<(), Rejection> {
        let blocked = |until: Until| Blocked {
            tag,
            plain: None,
            left_us: until.left_us(self.now_us),
            form: Form::of(facts.method, facts.headers),
        };
        match self.people.blocked(tag, self.now_us) {
            Some(until) => Err(Rejection::Blocked(Box::new(blocked(until)))),
            None => Ok(()),
        }
    }

    /// The windows that the key has instead of the limit's own.
    pub(super) fn windows(&self, limit: &Limit, tag: KeyHash) -> Option<&[Arc<Window>]> {
        self.people.windows(&limit.name, tag, self.now_us)
    }
}

impl Limiter {
    /// The answer to someone who is kept out. Without an end no Retry-After would be honest.
    pub(super) fn keep_out(&self, blocked: &Blocked, id: &str, room: HeaderMap) -> Response<Bytes> {
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
        let (mut response, body) = self.refusal(&problem, (&blocked.form, blocked.left_us), room);
        *response.body_mut() = body.into();
        if let Some(seconds) = wait {
            response
                .headers_mut()
                .insert(RETRY_AFTER, seconds_value(seconds));
        }
        self.open_to_scripts(response.headers_mut(), &blocked.form);
        response
    }
}
