//! The claims of bearer tokens. A verified token is cached for a minute, so that not every request
//! costs the check of a signature. If the keys change, the cache is emptied.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use crate::clock;
use crate::limit::key::jwt::{BelievedKeys, FetchedKeys, JwtRules};
use crate::limit::key::{Claims, Facts};

/// Cached tokens, at most. Clients cannot fill the cache: a token needs a valid signature.
const MAX_TOKENS: usize = 4096;
/// Seconds that a token is cached, unless it expires before.
const CACHED_S: u64 = 60;

/// One worker's cache of verified tokens.
pub(super) struct Tokens {
    rules: JwtRules,
    known: Mutex<KnownTokens>,
}

#[derive(Default)]
struct KnownTokens {
    /// That of the keys which verified them.
    generation: u64,
    /// By the BLAKE3 hash of the token.
    tokens: HashMap<[u8; 32], VerifiedToken>,
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

    /// The keys that are fetched from a URL, if they are.
    pub(super) fn fetched_keys(&self) -> Option<&FetchedKeys> {
        self.rules.keys.fetched().map(|keys| &**keys)
    }

    /// Whether newer keys could verify a token, and those at hand cannot.
    pub(super) fn lacks_key_of(&self, token: &[u8], now_s: u64) -> bool {
        self.rules.lacks_key_of(token, now_s)
    }

    fn verified(&self, token: &[u8], now_s: u64) -> Option<Arc<Claims>> {
        let verified = |believed: BelievedKeys<'_>| self.verified_by(believed, token, now_s);
        self.rules.keys.with_believed(now_s, verified)
    }

    fn verified_by(
        &self,
        believed: BelievedKeys<'_>,
        token: &[u8],
        now_s: u64,
    ) -> Option<Arc<Claims>> {
        let hash = *blake3::hash(token).as_bytes();
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if known.generation != believed.generation {
            known.generation = believed.generation;
            known.tokens.clear();
        }
        let known = &mut known.tokens;
        if let Some(one) = known.get(&hash).filter(|one| now_s < one.until_s) {
            return Some(Arc::clone(&one.claims));
        }
        let verified = self.rules.verify_by(believed.keys, token, now_s)?;
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
    use aws_lc_rs::hmac;
    use base64::Engine as _;
    use base64::engine::general_purpose::URL_SAFE_NO_PAD;

    use super::*;
    use crate::limit::key::jwt::{JwtAlgorithm, JwtKey, JwtKeys};

    const SECRET: &[u8] = b"0123456789abcdef0123456789abcdef";

    fn tokens() -> Tokens {
        Tokens::new(JwtRules {
            keys: JwtKeys::Fixed(vec![JwtKey::secret(SECRET)]),
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
    fn a_token_whose_key_was_withdrawn_is_not_believed_from_the_cache() {
        let fetched = Arc::<FetchedKeys>::default();
        let tokens = Tokens::new(JwtRules {
            keys: JwtKeys::Fetched {
                keys: Arc::clone(&fetched),
                max_stale_s: 50,
            },
            ..tokens().rules
        });
        let token = token(1, 1000);
        assert!(tokens.verified(&token, 100).is_none());
        fetched.begin().succeed(vec![JwtKey::secret(SECRET)], 100);
        assert!(tokens.verified(&token, 100).is_some());
        // Stale keys are not believed, neither are the tokens that they verified.
        assert!(tokens.verified(&token, 149).is_some());
        assert!(tokens.verified(&token, 150).is_none());
        fetched.begin().succeed(vec![JwtKey::secret(SECRET)], 150);
        assert!(tokens.verified(&token, 150).is_some());
        let other = JwtKey::secret(&[b'x'; 32]);
        fetched.begin().succeed(vec![other], 151);
        assert!(tokens.verified(&token, 151).is_none());
    }

    #[test]
    fn no_more_are_remembered_than_there_is_room_for() {
        let tokens = tokens();
        for sub in 0..MAX_TOKENS + 10 {
            assert!(tokens.verified(&token(sub, 1000), 100).is_some());
        }
        assert!(tokens.known.lock().unwrap().tokens.len() <= MAX_TOKENS);
    }
}
