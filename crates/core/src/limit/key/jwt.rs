//! JSON Web Tokens (RFC 7519) in their compact form, verified with the configured keys.
//!
//! A wrong token counts as no token. All errors have one answer, so that a client learns nothing
//! from it. A key works only with the algorithms of its own kind, so that a public key is never
//! used as a shared secret. `none` is not an algorithm. Time is an argument.

mod key_sets;

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use aws_lc_rs::hmac;
use aws_lc_rs::signature::{self, RsaParameters, RsaPublicKeyComponents, UnparsedPublicKey};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::{Map, Value};

pub use key_sets::{BelievedKeys, FetchAttempt, FetchStatus, FetchedKeys, JwtKeys, KeyWait};

/// Bytes of a token, at most.
const MAX_TOKEN: usize = 16 << 10;
/// Keys of one set, at most: a token may have to be tried with each.
const MAX_KEYS: usize = 100;
/// Bytes of an RSA modulus: 2048 to 8192 bits.
const RSA_BYTES: std::ops::RangeInclusive<usize> = 256..=1024;

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
    pub keys: JwtKeys,
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
    /// The `kid` of the key that verified it; `None` for a key without one.
    pub key_id: Option<Arc<str>>,
    /// The Unix time at which it expires, leeway included, seconds.
    pub until_s: u64,
}

/// The claims of a verified token, as values of keys.
#[derive(Debug)]
pub struct Claims(pub(in crate::limit) Map<String, Value>);

impl Claims {
    /// The text of a claim: a string as it is, a number or a boolean as JSON writes it. Dots lead
    /// into objects, unless the claim's own name has them (`https://example.com/plan`).
    pub fn text(&self, name: &str) -> Option<Cow<'_, str>> {
        match find_claim(&self.0, name)? {
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

/// A token that is right but for its signature, which is not verified yet.
struct UnverifiedToken<'t> {
    algorithm: JwtAlgorithm,
    key_id: Option<String>,
    claims: Map<String, Value>,
    until_s: u64,
    signed: &'t str,
    signature: Vec<u8>,
}

impl JwtRules {
    /// Verifies a token at this Unix time in seconds.
    pub fn verify(&self, token: &[u8], now_s: u64) -> Option<Verified> {
        let verify = |believed: BelievedKeys<'_>| self.verify_by(believed.keys, token, now_s);
        self.keys.with_believed(now_s, verify)
    }

    /// Verifies a token with one of these keys. The expensive signature comes last.
    pub fn verify_by(&self, keys: &[JwtKey], token: &[u8], now_s: u64) -> Option<Verified> {
        let token = self.read(token, now_s)?;
        let key_id = token.key_id.as_deref();
        let mut keys = keys.iter().filter(|key| key.may_have_id(key_id));
        let signed = token.signed.as_bytes();
        let key = keys.find(|key| key.has_signed(token.algorithm, signed, &token.signature))?;
        Some(Verified {
            claims: Claims(token.claims),
            key_id: key.id.clone(),
            until_s: token.until_s,
        })
    }

    /// Whether another set of keys could verify a token, and this one cannot: no key has its `kid`,
    /// or there are no keys.
    pub fn lacks_key_of(&self, token: &[u8], now_s: u64) -> bool {
        let Some(token) = self.read(token, now_s) else {
            return false;
        };
        let has_key = |believed: BelievedKeys<'_>| {
            let mut keys = believed.keys.iter();
            let is_known = keys.any(|key| key.may_have_id(token.key_id.as_deref()));
            (is_known || token.key_id.is_none()).then_some(())
        };
        self.keys.with_believed(now_s, has_key).is_none()
    }

    /// Reads a token that a client may have made up.
    fn read<'t>(&self, token: &'t [u8], now_s: u64) -> Option<UnverifiedToken<'t>> {
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
        let key_id = match head.get("kid") {
            Some(id) => Some(id.as_str()?.to_owned()),
            None => None,
        };
        Some(UnverifiedToken {
            algorithm,
            key_id,
            claims,
            until_s,
            signed,
            signature,
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

fn object(part: &str) -> Option<Map<String, Value>> {
    serde_json::from_slice(&URL_SAFE_NO_PAD.decode(part).ok()?).ok()
}

/// Reads a NumericDate: seconds, whole or not. Any other value makes the token invalid.
fn seconds(value: &Value) -> Option<u64> {
    let seconds = value.as_f64().filter(|seconds| *seconds >= 0.0)?;
    Some(seconds as u64)
}

/// A key that verifies tokens: a shared secret, or a member of a JSON Web Key Set (RFC 7517).
#[derive(Clone, PartialEq, Eq)]
pub struct JwtKey {
    id: Option<Arc<str>>,
    /// The only algorithm that the key set allows for this key.
    algorithm: Option<JwtAlgorithm>,
    material: Material,
}

#[derive(Clone, PartialEq, Eq)]
enum Material {
    Secret(Vec<u8>),
    Rsa {
        n: Vec<u8>,
        e: Vec<u8>,
    },
    /// A public point of the curve that this algorithm signs with.
    Point(JwtAlgorithm, Vec<u8>),
}

enum Verification {
    Hmac(hmac::Algorithm),
    Rsa(&'static RsaParameters),
    Curve(&'static dyn signature::VerificationAlgorithm),
}

impl JwtAlgorithm {
    fn verification(self) -> Verification {
        match self {
            Self::Hs256 => Verification::Hmac(hmac::HMAC_SHA256),
            Self::Hs384 => Verification::Hmac(hmac::HMAC_SHA384),
            Self::Hs512 => Verification::Hmac(hmac::HMAC_SHA512),
            Self::Rs256 => Verification::Rsa(&signature::RSA_PKCS1_2048_8192_SHA256),
            Self::Rs384 => Verification::Rsa(&signature::RSA_PKCS1_2048_8192_SHA384),
            Self::Rs512 => Verification::Rsa(&signature::RSA_PKCS1_2048_8192_SHA512),
            Self::Ps256 => Verification::Rsa(&signature::RSA_PSS_2048_8192_SHA256),
            Self::Ps384 => Verification::Rsa(&signature::RSA_PSS_2048_8192_SHA384),
            Self::Ps512 => Verification::Rsa(&signature::RSA_PSS_2048_8192_SHA512),
            Self::Es256 => Verification::Curve(&signature::ECDSA_P256_SHA256_FIXED),
            Self::Es384 => Verification::Curve(&signature::ECDSA_P384_SHA384_FIXED),
            Self::EdDsa => Verification::Curve(&signature::ED25519),
        }
    }
}

impl fmt::Debug for JwtKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("JwtKey").field(&self.id).finish()
    }
}

/// Why a text is not a set of keys. The configuration's author is at fault, or the issuer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JwksError(String);

impl fmt::Display for JwksError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for JwksError {}

impl JwtKey {
    /// A secret that the issuer shares with the verifier.
    pub fn secret(bytes: &[u8]) -> JwtKey {
        JwtKey {
            id: None,
            algorithm: None,
            material: Material::Secret(bytes.to_vec()),
        }
    }

    /// Reads the keys of a set that verify signatures. Unknown kinds are left out, as the standard
    /// demands; a broken key is an error.
    pub fn set(text: &[u8]) -> Result<Vec<JwtKey>, JwksError> {
        let mut keys = Vec::new();
        for key in members(text)? {
            keys.extend(key?);
        }
        if keys.is_empty() {
            let message = "no key for signatures; RSA, P-256, P-384 and Ed25519 are possible";
            return Err(JwksError(message.to_owned()));
        }
        Ok(keys)
    }

    /// Reads the keys of a set that an issuer publishes. Broken keys are left out too, since nobody
    /// here can mend them. There may be none: then the issuer has withdrawn all.
    pub fn published_set(text: &[u8]) -> Result<Vec<JwtKey>, JwksError> {
        let usable = |key: Result<Option<JwtKey>, JwksError>| key.ok().flatten();
        Ok(members(text)?.into_iter().filter_map(usable).collect())
    }

    /// Whether a token with this `kid` may be signed by this key.
    fn may_have_id(&self, wanted: Option<&str>) -> bool {
        match (&self.id, wanted) {
            (Some(own), Some(wanted)) => **own == *wanted,
            _ => true,
        }
    }

    /// Whether this key made the signature, by an algorithm of its kind.
    fn has_signed(&self, algorithm: JwtAlgorithm, message: &[u8], signature: &[u8]) -> bool {
        if self.algorithm.is_some_and(|only| only != algorithm) {
            return false;
        }
        let verified = match (&self.material, algorithm.verification()) {
            (Material::Secret(secret), Verification::Hmac(hash)) => {
                hmac::verify(&hmac::Key::new(hash, secret), message, signature)
            }
            (Material::Rsa { n, e }, Verification::Rsa(parameters)) => {
                RsaPublicKeyComponents { n, e }.verify(parameters, message, signature)
            }
            (Material::Point(own, point), Verification::Curve(curve)) if *own == algorithm => {
                UnparsedPublicKey::new(curve, point).verify(message, signature)
            }
            _ => return false,
        };
        verified.is_ok()
    }
}

/// The members of a set, each read by itself.
fn members(text: &[u8]) -> Result<Vec<Result<Option<JwtKey>, JwksError>>, JwksError> {
    let set: Option<Map<String, Value>> = serde_json::from_slice(text).ok();
    let all = set.as_ref().and_then(|set| set.get("keys")?.as_array());
    let no_set = || JwksError("not a JSON Web Key Set: an object with `keys`".to_owned());
    let all = all.ok_or_else(no_set)?;
    if all.len() > MAX_KEYS {
        return Err(JwksError(format!("more than {MAX_KEYS} keys")));
    }
    let read = |(index, key): (usize, &Value)| {
        let wrong = |why| JwksError(format!("key {}: {why}", index + 1));
        let key = key.as_object().ok_or_else(|| wrong("not an object"))?;
        read_key(key).map_err(wrong)
    };
    Ok(all.iter().enumerate().map(read).collect())
}

/// Reads one key of a set. `None` if the key is for another purpose, or of an unknown kind.
fn read_key(key: &Map<String, Value>) -> Result<Option<JwtKey>, &'static str> {
    let text = |name: &str| key.get(name).and_then(Value::as_str);
    let bytes = |name: &'static str, missing: &'static str| {
        let value = text(name).ok_or(missing)?;
        URL_SAFE_NO_PAD.decode(value).map_err(|_| missing)
    };
    if text("use").is_some_and(|used| used != "sig") {
        return Ok(None);
    }
    let material = match (text("kty").ok_or("no `kty`")?, text("crv")) {
        ("RSA", _) => {
            let mut n = bytes("n", "no `n` in base64url")?;
            let zeros = n.iter().take_while(|byte| **byte == 0).count();
            n.drain(..zeros);
            if !RSA_BYTES.contains(&n.len()) {
                return Err("RSA keys have 2048 to 8192 bits");
            }
            let e = bytes("e", "no `e` in base64url")?;
            Material::Rsa { n, e }
        }
        ("EC", Some(curve @ ("P-256" | "P-384"))) => {
            let (algorithm, length) = match curve {
                "P-256" => (JwtAlgorithm::Es256, 32),
                _ => (JwtAlgorithm::Es384, 48),
            };
            let x = bytes("x", "no `x` in base64url")?;
            let y = bytes("y", "no `y` in base64url")?;
            if x.len() != length || y.len() != length {
                return Err("`x` and `y` are not of the curve's length");
            }
            // Uncompressed (SEC 1, section 2.3.3).
            Material::Point(algorithm, [&[4], &x[..], &y[..]].concat())
        }
        ("OKP", Some("Ed25519")) => {
            let point = bytes("x", "no `x` in base64url")?;
            if point.len() != 32 {
                return Err("`x` is not of the curve's length");
            }
            Material::Point(JwtAlgorithm::EdDsa, point)
        }
        ("oct", _) => return Err("a secret among public keys; use `secret_file`"),
        _ => return Ok(None),
    };
    let algorithm = match text("alg").map(JwtAlgorithm::named) {
        // The key is only for an algorithm that we do not know.
        Some(None) => return Ok(None),
        Some(named) => named,
        None => None,
    };
    Ok(Some(JwtKey {
        id: text("kid").map(Arc::from),
        algorithm,
        material,
    }))
}

#[cfg(test)]
mod key_tests;
#[cfg(test)]
mod tests;
