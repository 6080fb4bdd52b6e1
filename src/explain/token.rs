//! Explains whether the token of a request is believed, and by which key.

use super::explanation::TokenExplanation;
use crate::config::Config;
use crate::limit::key::Facts;

/// `None` if the file verifies no tokens, or the request has none.
pub(super) fn explain_token(
    config: &Config,
    facts: &Facts<'_>,
    now_s: u64,
) -> Option<TokenExplanation> {
    let rules = config.jwt.as_ref()?;
    let status = rules.keys.fetched().map(|keys| keys.status(now_s));
    let age = status.as_ref().filter(|status| status.keys.is_some());
    facts.with_bearer(|token| {
        let verified = rules.verify(token, now_s);
        let why = match &verified {
            Some(_) => None,
            None if status.as_ref().is_some_and(|status| status.keys.is_none()) => {
                Some("the keys of `jwks_url` are not here; a running proxy fetches them")
            }
            None if rules.lacks_key_of(token, now_s) => match &status {
                Some(_) => Some("its `kid` is not among the keys, or the keys are stale"),
                None => Some("its `kid` is not among the keys"),
            },
            None => Some("its form, times, issuer, audience or signature is not accepted"),
        };
        Some(TokenExplanation {
            believed: verified.is_some(),
            key_id: verified.and_then(|token| token.key_id.as_deref().map(str::to_owned)),
            keys_age_seconds: age.map(|status| status.age_s),
            why: why.map(str::to_owned),
        })
    })
}
