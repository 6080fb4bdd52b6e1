//! Fetches the keys of tokens from `jwks_url`, on one thread of the process.
//!
//! The thread fetches at its start, at each `refresh`, and for a token with an unknown `kid` where
//! `FetchedKeys` wants it. After a failure the old keys stay, and the next attempt comes after a
//! second, then later and later. Requests wait for the thread a second at most, and never for a
//! server. A failure has a line in the log, and its end another.

use std::future::poll_fn;
use std::io;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use http::header::HeaderValue;
use tokio::sync::watch;
use tokio::time::sleep;

use crate::clock;
use crate::config::JwksSettings;
use crate::limit::key::jwt::JwtKey;
use crate::outgoing::{OutgoingBounds, OutgoingClient, OutgoingError};
use crate::telemetry::panics::{contained, lock, spawn_thread};
use tidegate_core::failpoint;

const BOUNDS: OutgoingBounds = OutgoingBounds {
    within: Duration::from_secs(10),
    most_bytes: 256 << 10,
};
const ACCEPT: HeaderValue = HeaderValue::from_static("application/jwk-set+json, application/json");
/// The rest after the first failure; it doubles with each further one.
const FIRST_REST: Duration = Duration::from_secs(1);
const LONGEST_REST: Duration = Duration::from_secs(60);

type Followed = Option<Arc<JwksSettings>>;

/// Controls the thread, which starts with the first URL. It ends when this is dropped.
#[derive(Debug, Default)]
pub(crate) struct JwksFetcher(Mutex<Option<watch::Sender<Followed>>>);

impl JwksFetcher {
    /// Fetches by these settings from now on.
    pub(crate) fn follow(&self, settings: Option<&Arc<JwksSettings>>) -> io::Result<()> {
        if let Some(settings) = settings {
            settings.keys.follow(now_s());
        }
        let mut thread = lock(&self.0);
        let Some(sender) = &*thread else {
            let Some(settings) = settings else {
                return Ok(());
            };
            let (sender, followed) = watch::channel(Some(Arc::clone(settings)));
            spawn_thread("jwks", move || run(followed))?;
            *thread = Some(sender);
            return Ok(());
        };
        sender.send_if_modified(|known| {
            let is_same = match (known.as_deref(), settings) {
                (Some(known), Some(settings)) => known.is_same(settings),
                (known, settings) => known.is_none() && settings.is_none(),
            };
            *known = settings.cloned();
            !is_same
        });
        Ok(())
    }
}

fn now_s() -> u64 {
    clock::unix_us() / 1_000_000
}

async fn run(mut followed: watch::Receiver<Followed>) {
    loop {
        let settings = followed.borrow_and_update().clone();
        tokio::select! {
            changed = followed.changed() => if changed.is_err() { return },
            // Again after a panic.
            _ = contained(maintain(settings)) => {}
        }
    }
}

/// Keeps the keys up to date. Never returns.
async fn maintain(settings: Followed) {
    let Some(settings) = settings else {
        return std::future::pending().await;
    };
    let client = OutgoingClient::new(&settings.endpoint, &settings.tls);
    let keys = &settings.keys;
    let status = keys.status(now_s());
    let mut failures = 0;
    // After a change of the other settings the keys may be fresh.
    let mut rest = match (status.keys, &status.failure) {
        (Some(_), None) => (settings.refresh).saturating_sub(Duration::from_secs(status.age_s)),
        _ => Duration::ZERO,
    };
    loop {
        tokio::select! {
            () = poll_fn(|cx| keys.poll_wanted(cx)) => {}
            () = sleep(rest) => {}
        }
        failpoint!("jwks.fetch");
        let attempt = keys.begin();
        match fetch(&client).await {
            Ok(found) => {
                let count = found.len();
                let is_back = keys.status(now_s()).failure.is_some();
                if attempt.succeed(found, now_s()) {
                    log_keys(&settings, count);
                } else if is_back {
                    let from = &settings.endpoint;
                    tracing::info!(%from, "jwks: the keys of tokens can be fetched again");
                }
                (failures, rest) = (0, settings.refresh);
            }
            Err(why) => {
                if attempt.fail(&why.0) {
                    log_failure(&settings, &why);
                }
                rest = rest_after(failures).min(settings.refresh);
                failures += 1;
            }
        }
    }
}

async fn fetch(client: &OutgoingClient) -> Result<Vec<JwtKey>, OutgoingError> {
    let response = client.get(ACCEPT, &[], BOUNDS).await?;
    if response.status != http::StatusCode::OK {
        let status = response.status.as_u16();
        return Err(OutgoingError(format!("it answers with status {status}")));
    }
    let set = JwtKey::published_set(&response.body);
    set.map_err(|error| OutgoingError(format!("its answer is {error}")))
}

fn log_keys(settings: &JwksSettings, count: usize) {
    let from = &settings.endpoint;
    match count {
        0 => tracing::warn!(
            %from,
            "jwks: the issuer publishes no key that can be used; no token is valid"
        ),
        count => tracing::info!(%from, keys = count, "jwks: other keys verify tokens now"),
    }
}

fn log_failure(settings: &JwksSettings, why: &OutgoingError) {
    let from = &settings.endpoint;
    match settings.keys.status(now_s()).keys {
        Some(_) => tracing::warn!(
            %from, %why, max_stale = ?settings.max_stale,
            "jwks: the keys of tokens cannot be fetched; the old keys hold until they are stale"
        ),
        None => tracing::warn!(
            %from, %why,
            "jwks: cannot fetch the keys of tokens; no token is valid until they are fetched"
        ),
    }
}

fn rest_after(failures: u32) -> Duration {
    (FIRST_REST * 2_u32.saturating_pow(failures.min(16))).min(LONGEST_REST)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rests_grow_and_are_bounded() {
        let rests = [0, 1, 5, 6, 60].map(|failures| rest_after(failures).as_secs());
        assert_eq!(rests, [1, 2, 32, 60, 60]);
    }
}
