//! The finding about keys of tokens that cannot be fetched.

use super::FoundIssue;
use crate::config::JwksSettings;

/// `now` is the Unix time in seconds.
pub(super) fn stale(settings: Option<&JwksSettings>, now: u64) -> Option<FoundIssue> {
    let settings = settings?;
    let status = settings.keys.status(now);
    let from = &settings.endpoint;
    if status.keys == Some(0) {
        let text = format!(
            "the issuer publishes no key that can be used, so no token is valid: {from} \
             (`jwks_url`)"
        );
        return Some(FoundIssue { text, count: 1 });
    }
    let why = status.failure?;
    let max_stale_s = settings.max_stale.as_secs();
    let consequence = match status.keys {
        None => "No token is valid until they are fetched".to_owned(),
        Some(_) if status.age_s >= max_stale_s => {
            format!("They are older than `max_stale`, {max_stale_s} s: no token is valid")
        }
        Some(_) => {
            let left_s = max_stale_s - status.age_s;
            format!("Those at hand hold for another {left_s} s (`max_stale`)")
        }
    };
    let text = format!(
        "the keys of tokens cannot be fetched from {from} (`jwks_url`): {why}. {consequence}"
    );
    Some(FoundIssue {
        text,
        count: status.failed,
    })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use super::*;
    use crate::config::{ClientTls, Endpoint};
    use crate::limit::key::jwt::JwtKey;

    #[test]
    fn keys_that_cannot_be_fetched_are_a_finding() {
        let settings = JwksSettings {
            endpoint: Endpoint {
                secure: true,
                host: "login.example".to_owned(),
                port: 443,
                path: "/secret-path".to_owned(),
            },
            refresh: Duration::from_secs(10),
            max_stale: Duration::from_secs(100),
            tls: ClientTls::default(),
            keys: Arc::default(),
        };
        let text = |now| stale(Some(&settings), now).map(|found| found.text);
        let has = |now, part: &str| {
            let text = text(now).unwrap_or_default();
            assert!(
                text.contains(part) && !text.contains("secret-path"),
                "{text}"
            );
        };
        assert!(stale(None, 1000).is_none());
        settings.keys.follow(1000);
        assert_eq!(text(1000), None);
        settings.keys.begin().fail("it does not answer");
        has(
            1001,
            "it does not answer. No token is valid until they are fetched",
        );
        let key = JwtKey::secret(&[7; 32]);
        settings.keys.begin().succeed(vec![key], 1010);
        assert_eq!(text(1020), None);
        settings.keys.begin().fail("status 500");
        has(1040, "Those at hand hold for another 70 s");
        has(
            1110,
            "They are older than `max_stale`, 100 s: no token is valid",
        );
        settings.keys.begin().succeed(Vec::new(), 1120);
        has(1120, "publishes no key that can be used");
    }
}
