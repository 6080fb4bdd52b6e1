//! The known API keys, as the status, the metrics and the findings report them.

use super::schema::{described, words};
use crate::limit::key::KeyRegistry;
use crate::server::introspection::Snapshot;
use crate::store::known_keys::MAX_KNOWN_KEYS;

described! {
    struct KnownKeysReport as "KnownKeys" {
        /// What knows the keys that no file lists.
        source: String = words(&["file", "redis", "callback"]),
        /// Keys of files, and keys in Redis or those that the callback knows and that are cached.
        keys: usize,
        /// Whether the keys in Redis were read, and whether the callback answers.
        up: bool,
    }
}

/// `None` if the configuration has no source of known keys.
pub(super) fn report(snapshot: &Snapshot<'_>) -> Option<KnownKeysReport> {
    let api_key = &snapshot.config.api_key;
    let files = api_key.known.as_ref()?.len();
    let (source, keys, up) = match api_key.registry {
        KeyRegistry::None => ("file", 0, true),
        KeyRegistry::Redis => {
            let keys = snapshot.counts.backing.known_keys();
            let count = keys.map_or(0, |keys| keys.len());
            ("redis", count, keys.is_some_and(|keys| keys.is_read()))
        }
        KeyRegistry::Callback => {
            let callback = snapshot.key_callback;
            let count = callback.map_or(0, |callback| callback.known());
            let is_away = callback.is_some_and(|callback| callback.is_away());
            ("callback", count, !is_away)
        }
    };
    Some(KnownKeysReport {
        source: source.to_owned(),
        keys: files + keys,
        up,
    })
}

/// Why the process should not get requests yet.
pub(super) fn unread(snapshot: &Snapshot<'_>) -> Option<&'static str> {
    let keys = snapshot.counts.backing.known_keys()?;
    (!keys.is_read()).then_some("the API keys in Redis are not read yet")
}

/// What is wrong with the API keys in Redis.
pub(super) fn unusable_keys(snapshot: &Snapshot<'_>) -> Option<String> {
    let keys = snapshot.counts.backing.known_keys()?;
    if keys.is_overdue() {
        let text = "the API keys in Redis were never read, so no key of them is known. The log \
                    says why";
        return Some(text.to_owned());
    }
    let left_out = keys.left_out();
    (left_out > 0).then(|| {
        format!(
            "{left_out} API keys in Redis are not known here: there may be {MAX_KNOWN_KEYS}, each \
             as `tidegate keys add` writes it. Let a service say which keys are known: `known = \
             {{ url = \"..\" }}`"
        )
    })
}

/// Whether the service that knows the API keys is away.
pub(super) fn away_callback(snapshot: &Snapshot<'_>) -> Option<String> {
    let callback = snapshot.key_callback?;
    callback.is_away().then(|| {
        format!(
            "the callback {} does not say which API keys are known. Keys that it knew stay known \
             for 10 times `ttl`; others count as `unknown` says",
            callback.settings().endpoint
        )
    })
}
