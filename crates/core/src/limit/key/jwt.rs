//! JSON Web Tokens (RFC 7519) in their compact form, verified with the keys that the file names.
//!
//! Whatever is wrong with a token makes it none: there is one answer, so nobody learns why. A key
//! is used only with the algorithms of its own kind, so that a public key is never taken for a
//! shared secret, and `none` is no algorithm at all. Time is an argument.

mod keys;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::{Map, Value};

use super::value::{Carried, bearer};
use super::{Claims, Facts};

pub use keys::{JwksError, JwtKey};

/// Bytes of a token, at most.
const MAX_TOKEN: usize = 16 << 10;

/// How a token may be signed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JwtAlgorithm {
    /// HMAC with SHA-256.
    Hs256,
    /// HMAC with SHA-384.
    Hs384,
    /// HMAC with SHA-512.
    Hs512,
    /// RSA, PKCS #1 v1.5, with SHA-256.
    Rs256,
    /// RSA, PKCS #1 v1.5, with SHA-384.
    Rs384,
    /// RSA, PKCS #1 v1.5, with SHA-512.
    Rs512,
    /// RSA-PSS with SHA-256.
    Ps256,
    /// RSA-PSS with SHA-384.
    Ps384,
    /// RSA-PSS with SHA-512.
    Ps512,
    /// ECDSA on P-256 with SHA-256.
    Es256,
    /// ECDSA on P-384 with SHA-384.
    Es384,
    /// Ed25519.
    EdDsa,
}

impl JwtAlgorithm {
    /// All of them, as headers name them.
    pub const ALL: [(&'static str, JwtAlgorithm); 12] = [
        ("HS256", Self::Hs256),
        ("HS384", Self::Hs384),
        ("HS512", Self::Hs512),
        ("RS256", Self::Rs256),
        ("RS384", Self::Rs384),
        ("RS512", Self::Rs512),
        ("PS256", Self::Ps256),
        ("PS384", Self::Ps384),
        ("PS512", Self::Ps512),
        ("ES256", Self::Es256),
        ("ES384", Self::Es384),
        ("EdDSA", Self::EdDsa),
    ];

    fn named(name: &str) -> Option<JwtAlgorithm> {
        let found = Self::ALL.iter().find(|(known, _)| *known == name);
        found.map(|(_, algorithm)| *algorithm)
    }

    /// Whether whoever can verify can also sign.
    pub fn is_symmetric(self) -> bool {
        matches!(self, Self::Hs256 | Self::Hs384 | Self::Hs512)
    }
}

/// `[auth.jwt]`: which tokens are believed.
#[derive(Clone, Debug)]
pub struct JwtRules {
    /// Whose signatures; at least one.
    pub keys: Vec<JwtKey>,
    /// Made how; at least one.
    pub algorithms: Vec<JwtAlgorithm>,
    /// Who may have issued them; empty for anybody who can sign.
    pub issuers: Vec<String>,
    /// Whom they must be meant for, one of these; empty for anybody.
    pub audiences: Vec<String>,
    /// By how much clocks may differ, seconds.
    pub leeway_s: u64,
}

/// What a token says, and how long that holds.
#[derive(Debug)]
pub struct Verified {
    /// What it says.
    pub claims: Claims,
    /// Unix time from which on it has expired, leeway included, seconds.
    pub until_s: u64,
}

impl Facts<'_> {
    /// What `read` makes of the bearer token that the request carries; nothing if it carries none,
    /// or several that differ.
    pub fn with_bearer<T>(&self, read: impl FnOnce(&[u8]) -> Option<T>) -> Option<T> {
        match bearer(self.headers) {
            Carried::One(token) => read(token.as_bytes()),
            Carried::Nothing | Carried::Several | Carried::Unknown => None,
        }
    }
}

impl JwtRules {
    /// What a token says, if it is to be believed at this Unix time in seconds.
    ///
    /// The signature comes last: it alone costs something.
    pub fn verify(&self, token: &[u8], now_s: u64) -> Option<Verified> {
        let token = std::str::from_utf8(token).ok()?;
        if token.len() > MAX_TOKEN {
            return None;
        }
        let (signed, signature) = token.rsplit_once('.')?;
        let (head, body) = signed
            .split_once('.')
            .filter(|(_, body)| !body.contains('.'))?;
        let head = object(head)?;
        // What it names as critical must be understood, and we know no extensions.
        if head.contains_key("crit") {
            return None;
        }
        let algorithm = JwtAlgorithm::named(head.get("alg")?.as_str()?)?;
        if !self.algorithms.contains(&algorithm) {
            return None;
        }
        let claims = object(body)?;
        let until_s = self.until(&claims, now_s)?;
        if !self.is_meant(&claims) {
            return None;
        }
        let signature = URL_SAFE_NO_PAD.decode(signature).ok()?;
        let id = match head.get("kid") {
            Some(id) => Some(id.as_str()?),
            None => None,
        };
        let mut keys = self.keys.iter().filter(|key| key.may_have_id(id));
        let signed = signed.as_bytes();
        keys.any(|key| key.has_signed(algorithm, signed, &signature))
            .then(|| Verified {
                claims: Claims::new(claims),
                until_s,
            })
    }

    /// When it expires, if it is valid now. Without an `exp` it does not (RFC 7519, section 4.1.4:
    /// the claim is optional).
    fn until(&self, claims: &Map<String, Value>, now_s: u64) -> Option<u64> {
        let until_s = match claims.get("exp") {
            Some(end) => seconds(end)?.saturating_add(self.leeway_s),
            None => u64::MAX,
        };
        if now_s >= until_s {
            return None;
        }
        if let Some(from) = claims.get("nbf")
            && seconds(from)? > now_s.saturating_add(self.leeway_s)
        {
            return None;
        }
        Some(until_s)
    }

    /// Whether it comes from and is for those whom the rules name.
    fn is_meant(&self, claims: &Map<String, Value>) -> bool {
        let is_one_of = |allowed: &[String], value: &Value| {
            value
                .as_str()
                .is_some_and(|text| allowed.iter().any(|one| one == text))
        };
        let issuer = || {
            let issuer = claims.get("iss");
            issuer.is_some_and(|issuer| is_one_of(&self.issuers, issuer))
        };
        let audience = || match claims.get("aud") {
            Some(Value::Array(all)) => all.iter().any(|one| is_one_of(&self.audiences, one)),
            Some(one) => is_one_of(&self.audiences, one),
            None => false,
        };
        (self.issuers.is_empty() || issuer()) && (self.audiences.is_empty() || audience())
    }
}

/// A part of a token that is an object.
fn object(part: &str) -> Option<Map<String, Value>> {
    serde_json::from_slice(&URL_SAFE_NO_PAD.decode(part).ok()?).ok()
}

/// A NumericDate: seconds, whole or not. Anything else is wrong, never as good as absent.
fn seconds(value: &Value) -> Option<u64> {
    let seconds = value.as_f64().filter(|seconds| *seconds >= 0.0)?;
    Some(seconds as u64)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use ring::hmac;

    use super::*;

    const SECRET: &[u8] = b"0123456789abcdef0123456789abcdef";
    const NOW: u64 = 1_700_000_000;

    fn rules() -> JwtRules {
        JwtRules {
            keys: vec![JwtKey::secret(SECRET)],
            algorithms: vec![JwtAlgorithm::Hs256],
            issuers: Vec::new(),
            audiences: Vec::new(),
            leeway_s: 30,
        }
    }

    fn token_of(head: &str, body: &str) -> String {
        let signed = format!(
            "{}.{}",
            URL_SAFE_NO_PAD.encode(head),
            URL_SAFE_NO_PAD.encode(body)
        );
        let key = hmac::Key::new(hmac::HMAC_SHA256, SECRET);
        let signature = hmac::sign(&key, signed.as_bytes());
        format!("{signed}.{}", URL_SAFE_NO_PAD.encode(signature))
    }

    fn token(body: &str) -> String {
        token_of(r#"{"alg":"HS256","typ":"JWT"}"#, body)
    }

    fn is_believed(rules: &JwtRules, token: &str) -> bool {
        rules.verify(token.as_bytes(), NOW).is_some()
    }

    #[test]
    fn a_token_is_believed_until_it_expires() {
        let token = token(&format!(r#"{{"sub":"jo","exp":{NOW}}}"#));
        let at = |now_s| rules().verify(token.as_bytes(), now_s);
        let verified = at(NOW).unwrap();
        assert_eq!(verified.claims.text("sub").as_deref(), Some("jo"));
        assert_eq!(verified.until_s, NOW + 30);
        assert!(at(NOW + 29).is_some() && at(NOW + 30).is_none());
    }

    #[test]
    fn times_that_are_no_numbers_are_wrong() {
        let body = |claims: &str| token(&format!("{{{claims}}}"));
        for (claims, believed) in [
            ("\"exp\":9999999999", true),
            ("\"exp\":9999999999.5", true),
            ("\"sub\":\"jo\"", true),
            ("\"exp\":\"9999999999\"", false),
            ("\"exp\":null", false),
            ("\"exp\":-1", false),
            ("\"exp\":9999999999,\"nbf\":1700000030", true),
            ("\"exp\":9999999999,\"nbf\":1700000031", false),
            ("\"exp\":9999999999,\"nbf\":\"0\"", false),
        ] {
            assert_eq!(is_believed(&rules(), &body(claims)), believed, "{claims}");
        }
    }

    #[test]
    fn issuer_and_audience_must_be_among_those_named() {
        let rules = JwtRules {
            issuers: vec!["us".into()],
            audiences: vec!["api".into(), "web".into()],
            ..rules()
        };
        for (claims, believed) in [
            (r#""iss":"us","aud":"api""#, true),
            (r#""iss":"us","aud":["other","web"]"#, true),
            (r#""iss":"us","aud":[]"#, false),
            (r#""iss":"us""#, false),
            (r#""iss":"them","aud":"api""#, false),
            (r#""iss":["us"],"aud":"api""#, false),
            (r#""aud":"api""#, false),
        ] {
            let token = token(&format!(r#"{{"exp":9999999999,{claims}}}"#));
            assert_eq!(is_believed(&rules, &token), believed, "{claims}");
        }
    }

    #[test]
    fn only_the_named_algorithms_count() {
        let body = r#"{"exp":9999999999}"#;
        for (head, believed) in [
            (r#"{"alg":"HS256"}"#, true),
            (r#"{"alg":"none"}"#, false),
            (r#"{"alg":"None"}"#, false),
            (r#"{"alg":"hs256"}"#, false),
            (r#"{"alg":"HS512"}"#, false),
            (r#"{"alg":["HS256"]}"#, false),
            (r#"{}"#, false),
            (r#"{"alg":"HS256","crit":["b64"],"b64":false}"#, false),
            (r#"{"alg":"HS256","kid":"any"}"#, true),
            (r#"{"alg":"HS256","kid":7}"#, false),
        ] {
            assert_eq!(
                is_believed(&rules(), &token_of(head, body)),
                believed,
                "{head}"
            );
        }
        let unsigned = token_of(r#"{"alg":"none"}"#, body);
        let unsigned = format!("{}.", unsigned.rsplit_once('.').unwrap().0);
        assert!(!is_believed(&rules(), &unsigned));
    }

    #[test]
    fn a_public_key_is_no_secret() {
        // The classic: the public key's text as the secret of an HMAC.
        let jwks = r#"{"keys":[{"kty":"OKP","crv":"Ed25519",
            "x":"11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"}]}"#;
        let rules = JwtRules {
            keys: JwtKey::set(jwks.as_bytes()).unwrap(),
            algorithms: JwtAlgorithm::ALL.map(|(_, algorithm)| algorithm).to_vec(),
            ..rules()
        };
        assert!(!is_believed(&rules, &token(r#"{"exp":9999999999}"#)));
    }

    proptest! {
        #[test]
        fn any_change_makes_it_wrong(at in 0_usize..1000, byte in "[A-Za-z0-9_.-]") {
            let good = token(r#"{"sub":"jo","exp":9999999999}"#);
            let mut bad = good.clone();
            let at = at % good.len();
            bad.replace_range(at..=at, &byte);
            prop_assert_eq!(is_believed(&rules(), &bad), bad == good, "{}", bad);
        }

        #[test]
        fn nothing_panics(text in "[A-Za-z0-9_.-]{0,80}", any in "\\PC{0,40}") {
            prop_assert!(!is_believed(&rules(), &text) && !is_believed(&rules(), &any));
        }
    }
}
