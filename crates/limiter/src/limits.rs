//! Limits as a program names them.

use std::net::IpAddr;
use std::sync::Arc;

use tidegate_core::config::{BuiltLimit, LimitsBuilder};
use tidegate_core::limit::key::CustomKey;
use tidegate_core::limit::{self, Key, Rule};
use tidegate_core::route::PathPattern;

use crate::{Limiter, LimitsError, Rate};

/// How long Redis keeps a permit whose holder does not renew it, microseconds: as `hold` in a file.
const HOLD_US: u64 = 15_000_000;

/// The rule for requests while Redis does not answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnError {
    /// This process goes on limiting by itself, with its share of the budget.
    #[default]
    Local,
    /// They pass.
    Allow,
    /// They are denied.
    Deny,
}

/// A request, as a closure of [`Limits::key_by`] sees it.
pub use tidegate_core::limit::key::KeyRequest;

/// Limits that a program names. Methods that say more about a limit, such as
/// [`key`](Limits::key), follow its [`limit`](Limits::limit).
///
/// ```
/// use tidegate_limiter::{Limits, OnError, Rate};
///
/// let limiter = Limits::new()
///     .limit("login", Rate::per_minute(5))
///     .path("/login")
///     .on_error(OnError::Deny)
///     .limit("client", Rate::per_second(10))
///     .and(Rate::per_hour(1_000))
///     .key("api_key or ip")
///     .build()?;
/// # Ok::<(), tidegate_limiter::LimitsError>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct Limits {
    built: LimitsBuilder,
    mistakes: Vec<String>,
}

impl Limits {
    /// No limits yet, counted in this process.
    pub fn new() -> Limits {
        Limits::default()
    }

    /// Adds a limit. Clients, logs and metrics know it by `name`: 1 to 64 of `a-z`, `0-9`, `_`,
    /// `-`.
    ///
    /// It counts by the client's address, and holds for every path.
    #[must_use]
    pub fn limit(mut self, name: &str, rate: Rate) -> Limits {
        match rate.checked() {
            Ok(rate) => self
                .built
                .limits
                .push(BuiltLimit::new(name, Rule::by_size(rate))),
            Err(why) => self.wrong(name, why),
        }
        self
    }

    /// Adds a limit of requests under way at once. A permit is held until the response's body ends,
    /// or until the [`Decision`](crate::Decision) is dropped.
    #[must_use]
    pub fn concurrent(mut self, name: &str, most: u32) -> Limits {
        match most {
            0 => self.wrong(name, "0 at once lets nothing pass"),
            _ => self
                .built
                .limits
                .push(BuiltLimit::new(name, Rule::slots(u64::from(most), HOLD_US))),
        }
        self
    }

    /// Gives the limit another rate: both hold.
    #[must_use]
    pub fn and(mut self, rate: Rate) -> Limits {
        match (rate.checked(), self.last()) {
            (Ok(rate), Some(one)) => one.rules.push(Rule::by_size(rate)),
            (Err(why), _) => self.wrong("and", why),
            (Ok(_), None) => self.without_limit("and"),
        }
        self
    }

    /// Counts by this key, in the words of `proxy.toml`: `ip`, `header:x-user`, `api_key or ip`,
    /// `global`.
    #[must_use]
    pub fn key(mut self, key: &str) -> Limits {
        match (Key::parse([key]), self.last()) {
            (Ok(key), Some(one)) => one.key = key,
            (Err(why), _) => self.wrong(key, &why.to_string()),
            (Ok(_), None) => self.without_limit("key"),
        }
        self
    }

    /// Counts by the text that `key` makes of a request; a request of which it makes none is
    /// counted by its address.
    ///
    /// [`Limiter::check`] with the same text counts together with such requests.
    #[must_use]
    pub fn key_by(
        mut self,
        key: impl Fn(&KeyRequest<'_>) -> Option<String> + Send + Sync + 'static,
    ) -> Limits {
        match self.last() {
            Some(one) => one.key = Key::custom(CustomKey::new(Arc::new(key))),
            None => self.without_limit("key_by"),
        }
        self
    }

    /// Holds for requests of these paths alone: `/login`, `/users/{id}`, `/api/*`. Where paths of
    /// several limits match, the most specific one counts.
    #[must_use]
    pub fn path(mut self, pattern: &str) -> Limits {
        match (PathPattern::parse(pattern), self.last()) {
            (Ok(path), Some(one)) => one.path = Some(path),
            (Err(why), _) => self.wrong(pattern, &why.fault.to_string()),
            (Ok(_), None) => self.without_limit("path"),
        }
        self
    }

    /// The rule of this limit for an outage of Redis.
    #[must_use]
    pub fn on_error(mut self, on_error: OnError) -> Limits {
        match self.last() {
            Some(one) => {
                one.on_error = match on_error {
                    OnError::Local => limit::OnError::Local,
                    OnError::Allow => limit::OnError::Allow,
                    OnError::Deny => limit::OnError::Deny,
                }
            }
            None => self.without_limit("on_error"),
        }
        self
    }

    /// Counts and reports, and denies nothing.
    #[must_use]
    pub fn shadow(mut self) -> Limits {
        match self.last() {
            Some(one) => one.shadow = true,
            None => self.without_limit("shadow"),
        }
        self
    }

    /// Counts in Redis or Valkey: `redis://HOST:6379`, `rediss://` for TLS, `redis+sentinel://`,
    /// `redis+cluster://`. Programs and proxies that name the same server count together.
    #[cfg(feature = "redis")]
    #[must_use]
    pub fn redis(mut self, url: &str) -> Limits {
        if let Err(why) = self.built.store(url) {
            // The URL may have a password in it.
            self.mistakes.push(format!("the store's URL: {why}"));
        }
        self
    }

    /// Believes `X-Forwarded-For` of peers in this network, such as `10.0.0.0/8`.
    #[must_use]
    pub fn trusted_proxy(mut self, network: &str) -> Limits {
        let network = network
            .parse()
            .or_else(|_| network.parse::<IpAddr>().map(Into::into));
        match network {
            Ok(network) => self.built.trust(network),
            Err(why) => self.mistakes.push(format!("trusted_proxy: {why}")),
        }
        self
    }

    /// Opens the store. With Redis this is called on a tokio runtime: the connection lives there.
    ///
    /// # Errors
    /// Every mistake in the limits at once, or a store that cannot be used.
    pub fn build(self) -> Result<Limiter, LimitsError> {
        if !self.mistakes.is_empty() {
            return Err(LimitsError::Invalid(self.mistakes.join("\n")));
        }
        let limits = self.built.build().map_err(LimitsError::Invalid)?;
        Limiter::open(limits, String::new())
    }

    fn last(&mut self) -> Option<&mut BuiltLimit> {
        self.built.limits.last_mut()
    }

    fn wrong(&mut self, what: &str, why: &str) {
        self.mistakes.push(format!("{what}: {why}"));
    }

    fn without_limit(&mut self, method: &str) {
        self.mistakes
            .push(format!("{method}() comes after limit() or concurrent()"));
    }
}
