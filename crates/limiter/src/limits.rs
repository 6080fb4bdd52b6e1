//! The builder of limits, their rates, and its errors.

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;
use std::{fmt, io};

use tidegate_core::config::{BuiltLimit, LimitsBuilder};
use tidegate_core::limit::key::CustomKey;
use tidegate_core::limit::{self, Key, Rule};
use tidegate_core::route::PathPattern;

use crate::Limiter;

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
    pub fn and(self, rate: Rate) -> Limits {
        self.change("and", rate.checked(), "and", |limit, rate| {
            limit.rules.push(Rule::by_size(rate));
        })
    }

    /// Counts by this key, in the words of `proxy.toml`: `ip`, `header:x-user`, `api_key or ip`,
    /// `global`.
    #[must_use]
    pub fn key(self, key: &str) -> Limits {
        self.change("key", Key::parse([key]), key, |limit, key| limit.key = key)
    }

    /// Counts by the text that `key` makes of a request; a request of which it makes none is
    /// counted by its address.
    ///
    /// [`Limiter::check`] with the same text counts together with such requests.
    #[must_use]
    pub fn key_by(
        self,
        key: impl Fn(&KeyRequest<'_>) -> Option<String> + Send + Sync + 'static,
    ) -> Limits {
        let key = Key::custom(CustomKey::new(Arc::new(key)));
        self.set("key_by", |limit| limit.key = key)
    }

    /// Holds for requests of these paths alone: `/login`, `/users/{id}`, `/api/*`. Where paths of
    /// several limits match, the most specific one counts.
    #[must_use]
    pub fn path(self, pattern: &str) -> Limits {
        self.change(
            "path",
            PathPattern::parse(pattern),
            pattern,
            |limit, path| {
                limit.path = Some(path);
            },
        )
    }

    /// The rule of this limit for an outage of Redis.
    #[must_use]
    pub fn on_error(self, on_error: OnError) -> Limits {
        let on_error = match on_error {
            OnError::Local => limit::OnError::Local,
            OnError::Allow => limit::OnError::Allow,
            OnError::Deny => limit::OnError::Deny,
        };
        self.set("on_error", |limit| limit.on_error = on_error)
    }

    /// Counts and reports, and denies nothing.
    #[must_use]
    pub fn shadow(self) -> Limits {
        self.set("shadow", |limit| limit.shadow = true)
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
        if let Err(why) = self.built.trust(network) {
            self.mistakes.push(format!("trusted_proxy: {why}"));
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

    fn wrong(&mut self, what: &str, why: &str) {
        self.mistakes.push(format!("{what}: {why}"));
    }

    /// Changes the last limit; `method` is the caller.
    fn set(mut self, method: &str, set: impl FnOnce(&mut BuiltLimit)) -> Limits {
        match self.built.limits.last_mut() {
            Some(limit) => set(limit),
            None => self
                .mistakes
                .push(format!("{method}() comes after limit() or concurrent()")),
        }
        self
    }

    /// Changes the last limit by a value that was read from `text`.
    fn change<T, E: fmt::Display>(
        mut self,
        method: &str,
        value: Result<T, E>,
        text: &str,
        set: impl FnOnce(&mut BuiltLimit, T),
    ) -> Limits {
        match value {
            Ok(value) => return self.set(method, |limit| set(limit, value)),
            Err(why) => self.wrong(text, &why.to_string()),
        }
        self
    }
}

/// Units in any window of this length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    units: u32,
    window: Duration,
}

impl Rate {
    /// `units` in any `window`. The window is in whole milliseconds, from 1 ms to 366 days.
    /// [`Limits::build`](crate::Limits::build) refuses any other.
    pub const fn new(units: u32, window: Duration) -> Rate {
        Rate { units, window }
    }

    /// `units` in any second.
    pub const fn per_second(units: u32) -> Rate {
        Rate::new(units, Duration::from_secs(1))
    }

    /// `units` in any minute.
    pub const fn per_minute(units: u32) -> Rate {
        Rate::new(units, Duration::from_secs(60))
    }

    /// `units` in any hour.
    pub const fn per_hour(units: u32) -> Rate {
        Rate::new(units, Duration::from_secs(3_600))
    }

    /// `units` in any 24 hours.
    pub const fn per_day(units: u32) -> Rate {
        Rate::new(units, Duration::from_secs(86_400))
    }

    /// The rate as the limiter counts it, or what is wrong with it.
    pub(crate) fn checked(self) -> Result<limit::Rate, &'static str> {
        let window_us = u64::try_from(self.window.as_micros()).unwrap_or(u64::MAX);
        if self.units == 0 {
            return Err("a rate of 0 units lets nothing pass");
        }
        if window_us % 1_000 != 0 {
            return Err("a window is in whole milliseconds");
        }
        if !(limit::rate::MIN_WINDOW_US..=limit::rate::MAX_WINDOW_US).contains(&window_us) {
            return Err("a window is from 1 ms to 366 days long");
        }
        Ok(limit::Rate::sliding(u64::from(self.units), window_us))
    }
}

/// Why there is no [`Limiter`].
#[derive(Debug)]
#[non_exhaustive]
pub enum LimitsError {
    /// The limits are wrong. The text names every mistake, and what to write instead.
    Invalid(String),
    /// The store or the decision log cannot be opened.
    Store(io::Error),
}

impl fmt::Display for LimitsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LimitsError::Invalid(mistakes) => f.write_str(mistakes),
            LimitsError::Store(error) => error.fmt(f),
        }
    }
}

impl Error for LimitsError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            LimitsError::Invalid(_) => None,
            LimitsError::Store(error) => Some(error),
        }
    }
}
