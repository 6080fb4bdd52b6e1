//! JSON Web Tokens (RFC 7519) in their compact form, verified with the configured keys.
//!
//! A wrong token counts as no token. All errors have one answer, so that a client learns nothing
//! from it. A key works only with the algorithms of its own kind, so that a public key is never
//! used as a shared secret. `none` is not an algorithm. Time is an argument.

mod keys;

use std::borrow::Cow;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::{Map, Value};

use super::Facts;
use super::value::{Carried, bearer};

pub use keys::{JwksError, JwtKey};

/// Bytes of a token, at most.
const MAX_TOKEN: usize = 16 << 10;

/// How a token may be signed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JwtAlgorithm {
    Hs256,
    Hs384,
    Hs512,
    /// RS*: RSA, PKCS #1 v1.5.
    Rs256,
    Rs384,
    Rs512,
    /// PS*: RSA-PSS.
    Ps256,
    Ps384,
    Ps512,
    Es256,
    Es384,
    /// Ed25519 only.
    EdDsa,
}

impl JwtAlgorithm {
    /// All algorithms by their names in a token's header.
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

    /// Whether a key that verifies can also sign.
    pub fn is_symmetric(self) -> bool {
        matches!(self, Self::Hs256 | Self::Hs384 | Self::Hs512)
    }
}

/// `[auth.jwt]`: which tokens are accepted.
#[derive(Clone, Debug)]
pub struct JwtRules {
    /// At least one.
    pub keys: Vec<JwtKey>,
    /// At least one.
    pub algorithms: Vec<JwtAlgorithm>,
    /// Accepted values of `iss`; empty accepts all.
    pub issuers: Vec<String>,
    /// Accepted values of `aud`; empty accepts all.
    pub audiences: Vec<String>,
    /// The accepted difference between clocks, seconds.
    pub leeway_s: u64,
}

/// A token whose signature, times, issuer and audience are right.
#[derive(Debug)]
pub struct Verified {
    pub claims: Claims,
    /// The Unix time at which it expires, leeway included, seconds.
    pub until_s: u64,
}

/// The claims of a verified token.
#[derive(Debug)]
pub struct Claims {
    all: Map<String, Value>,
}

impl Claims {
    /// The text of a claim: a string as it is, a number or a boolean as JSON writes it. Dots lead
    /// into objects, unless the claim's own name has them (`https://example.com/plan`).
    pub fn text(&self, name: &str) -> Option<Cow<'_, str>> {
        match find_claim(&self.all, name)? {
            Value::String(text) => Some(Cow::Borrowed(text)),
            Value::Number(number) => Some(Cow::Owned(number.to_string())),
            Value::Bool(truth) => Some(Cow::Borrowed(if *truth { "true" } else { "false" })),
            Value::Null | Value::Array(_) | Value::Object(_) => None,
        }
    }
}

/// Tries the whole name first, then each shorter beginning that names an object.
fn find_claim<'c>(object: &'c Map<String, Value>, name: &str) -> Option<&'c Value> {
    if let Some(value) = object.get(name) {
        return Some(value);
    }
    name.match_indices('.').find_map(|(dot, _)| {
        let inner = object.get(&name[..dot])?.as_object()?;
        find_claim(inner, &name[dot + 1..])
    })
}

impl Facts<'_> {
    /// Calls `read` with the request's bearer token. `None` if it carries no token, or several that
    /// differ.
    pub fn with_bearer<T>(&self, read: impl FnOnce(&[u8]) -> Option<T>) -> Option<T> {
        match bearer(self.headers) {
            Carried::One(token) => read(token.as_bytes()),
            Carried::Nothing | Carried::Several | Carried::Unknown => None,
        }
    }
}

impl JwtRules {
    /// Verifies a token at this Unix time in seconds. The expensive signature comes last.
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
        // The token requires an extension (RFC 7515, section 4.1.11). We know none.
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
                claims: Claims { all: claims },
                until_s,
            })
    }

    /// When a token expires, if it is valid now. A token without `exp` never expires (RFC 7519,
    /// section 4.1.4: the claim is optional).
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

    /// Whether the issuer and the audience are accepted.
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

/// Decodes a part of a token that is a JSON object.
fn object(part: &str) -> Option<Map<String, Value>> {
    serde_json::from_slice(&URL_SAFE_NO_PAD.decode(part).ok()?).ok()
}

/// Reads a NumericDate: seconds, whole or not. Any other value makes the token invalid.
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

    #[test]
    fn claims_are_found_by_name_and_by_path() {
        let text = r#"{"sub": "jo", "n": 7, "half": 0.5, "yes": true, "no": null, "list": ["a"],
            "org": {"id": 9, "plan": {"name": "pro"}, "plan.name": "own"},
            "https://example.com/plan": "gold", "a.b": {"c": "d"}}"#;
        let claims = Claims {
            all: serde_json::from_str(text).unwrap(),
        };
        for (name, expected) in [
            ("sub", Some("jo")),
            ("n", Some("7")),
            ("half", Some("0.5")),
            ("yes", Some("true")),
            ("no", None),
            ("list", None),
            ("org", None),
            ("org.id", Some("9")),
            ("org.plan.name", Some("own")),
            ("org.plan", None),
            ("https://example.com/plan", Some("gold")),
            ("a.b.c", Some("d")),
            ("sub.x", None),
            (".", None),
            ("", None),
        ] {
            assert_eq!(claims.text(name).as_deref(), expected, "{name}");
        }
    }
}
