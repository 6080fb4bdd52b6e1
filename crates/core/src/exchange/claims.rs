//! The claims of bearer tokens. A verified token is cached for a minute, so that not every request
//! costs the check of a signature.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use crate::clock;
use crate::limit::key::jwt::JwtRules;
use crate::limit::key::{Claims, Facts};

/// Cached tokens, at most. Clients cannot fill the cache: a token needs a valid signature.
const MAX_TOKENS: usize = 4096;
/// Seconds that a token is cached, unless it expires before.
const CACHED_S: u64 = 60;

/// One worker's cache of verified tokens.
pub(super) struct Tokens {
    rules: JwtRules,
    /// By the BLAKE3 hash of the token.
    known: Mutex<HashMap<[u8; 32], VerifiedToken>>,
}

struct VerifiedToken {
    claims: Arc<Claims>,
    until_s: u64,
}

impl fmt::Debug for Tokens {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.rules.fmt(f)
    }
}

impl Tokens {
    pub(super) fn new(rules: JwtRules) -> Tokens {
        Tokens {
            rules,
            known: Mutex::default(),
        }
    }

    /// The claims of the request's token; `None` without a valid token.
    pub(super) fn claims(&self, facts: &Facts<'_>) -> Option<Arc<Claims>> {
        facts.with_bearer(|token| self.verified(token, clock::unix_us() / 1_000_000))
    }

    fn verified(&self, token: &[u8], now_s: u64) -> Option<Arc<Claims>> {
        let hash = *blake3::hash(token).as_bytes();
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(one) = known.get(&hash).filter(|one| now_s < one.until_s) {
            return Some(Arc::clone(&one.claims));
        }
        let verified = self.rules.verify(token, now_s)?;
        if known.len() >= MAX_TOKENS {
            known.retain(|_, one| now_s < one.until_s);
        }
        if known.len() >= MAX_TOKENS {
            known.clear();
        }
        let claims = Arc::new(verified.claims);
        let one = VerifiedToken {
            claims: Arc::clone(&claims),
            until_s: verified.until_s.min(now_s + CACHED_S),
        };
        known.insert(hash, one);
        Some(claims)
    }
}

#[cfg(test)]
mod tests {
    use base64::Engine as _;
    use base64::engine::general_purpose::URL_SAFE_NO_PAD;
    use ring::hmac;

    use super::*;
    use crate::limit::key::jwt::{JwtAlgorithm, JwtKey};

    const SECRET: &[u8] = b"0123456789abcdef0123456789abcdef";

    fn tokens() -> Tokens {
        Tokens::new(JwtRules {
            keys: vec![JwtKey::secret(SECRET)],
            algorithms: vec![JwtAlgorithm::Hs256],
            issuers: Vec::new(),
            audiences: Vec::new(),
            leeway_s: 0,
        })
    }

    fn token(sub: usize, exp: u64) -> Vec<u8> {
        let body = format!(r#"{{"sub":"{sub}","exp":{exp}}}"#);
        let parts = [r#"{"alg":"HS256"}"#, &body].map(|part| URL_SAFE_NO_PAD.encode(part));
        let signed = parts.join(".");
        let key = hmac::Key::new(hmac::HMAC_SHA256, SECRET);
        let signature = hmac::sign(&key, signed.as_bytes());
        format!("{signed}.{}", URL_SAFE_NO_PAD.encode(signature)).into_bytes()
    }

    #[test]
    fn a_token_is_verified_once_and_forgotten_when_it_expires() {
        let tokens = tokens();
        let first = tokens.verified(&token(1, 1000), 100).unwrap();
        let again = tokens.verified(&token(1, 1000), 159).unwrap();
        assert!(Arc::ptr_eq(&first, &again));
        let later = tokens.verified(&token(1, 1000), 160).unwrap();
        assert!(!Arc::ptr_eq(&first, &later));
        assert!(tokens.verified(&token(2, 1000), 990).is_some());
        assert!(tokens.verified(&token(2, 1000), 1000).is_none());
        assert!(tokens.verified(b"x.y.z", 100).is_none());
    }

    #[test]
    fn no_more_are_remembered_than_there_is_room_for() {
        let tokens = tokens();
        for sub in 0..MAX_TOKENS + 10 {
            assert!(tokens.verified(&token(sub, 1000), 100).is_some());
        }
        assert!(tokens.known.lock().unwrap().len() <= MAX_TOKENS);
    }
}
