//! The keys that tokens are verified with: a shared secret, or a JSON Web Key Set (RFC 7517).

use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::hmac;
use ring::signature::{self, RsaParameters, RsaPublicKeyComponents, UnparsedPublicKey};
use serde_json::{Map, Value};

use super::JwtAlgorithm;

/// Keys of one set, at most: a token may have to be tried with each.
const MAX_KEYS: usize = 64;
/// Bytes of an RSA modulus: 2048 to 8192 bits.
const RSA_BYTES: std::ops::RangeInclusive<usize> = 256..=1024;

#[derive(Clone)]
pub struct JwtKey {
    id: Option<String>,
    /// The only algorithm that the key set allows for this key.
    algorithm: Option<JwtAlgorithm>,
    material: Material,
}

#[derive(Clone)]
enum Material {
    Secret(Vec<u8>),
    Rsa {
        n: Vec<u8>,
        e: Vec<u8>,
    },
    /// A public point of the curve that this algorithm signs with.
    Point(JwtAlgorithm, Vec<u8>),
}

/// How `ring` verifies signatures of one algorithm.
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

/// A text that is not a set of keys. The configuration's author is at fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JwksError {
    /// Not JSON, or without `keys`.
    NotASet,
    /// More than [`MAX_KEYS`].
    TooMany,
    /// The key with this number, from 1, lacks something or is too weak.
    Key(usize, &'static str),
    /// No key in it can verify anything.
    Empty,
}

impl fmt::Display for JwksError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotASet => f.write_str("not a JSON Web Key Set: an object with `keys`"),
            Self::TooMany => write!(f, "more than {MAX_KEYS} keys"),
            Self::Key(number, why) => write!(f, "key {number}: {why}"),
            Self::Empty => {
                f.write_str("no key for signatures; RSA, P-256, P-384 and Ed25519 are possible")
            }
        }
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
        let set: Map<String, Value> =
            serde_json::from_slice(text).map_err(|_| JwksError::NotASet)?;
        let all = set.get("keys").and_then(Value::as_array);
        let all = all.ok_or(JwksError::NotASet)?;
        if all.len() > MAX_KEYS {
            return Err(JwksError::TooMany);
        }
        let mut keys = Vec::new();
        for (index, key) in all.iter().enumerate() {
            let wrong = |why| JwksError::Key(index + 1, why);
            let key = key.as_object().ok_or(wrong("not an object"))?;
            keys.extend(read_key(key).map_err(wrong)?);
        }
        if keys.is_empty() {
            return Err(JwksError::Empty);
        }
        Ok(keys)
    }

    /// Whether a token with this `kid` may be signed by this key.
    pub(super) fn may_have_id(&self, wanted: Option<&str>) -> bool {
        match (&self.id, wanted) {
            (Some(own), Some(wanted)) => own == wanted,
            _ => true,
        }
    }

    /// Whether this key made the signature, by an algorithm of its kind.
    pub(super) fn has_signed(
        &self,
        algorithm: JwtAlgorithm,
        message: &[u8],
        signature: &[u8],
    ) -> bool {
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
        id: text("kid").map(str::to_owned),
        algorithm,
        material,
    }))
}

#[cfg(test)]
mod tests {
    use ring::rand::SystemRandom;
    use ring::signature::{EcdsaKeyPair, Ed25519KeyPair, KeyPair};

    use super::*;

    fn encoded(bytes: &[u8]) -> String {
        URL_SAFE_NO_PAD.encode(bytes)
    }

    fn set(key: &str) -> Result<Vec<JwtKey>, JwksError> {
        JwtKey::set(format!(r#"{{"keys":[{key}]}}"#).as_bytes())
    }

    #[test]
    fn each_kind_of_key_verifies_its_own_signatures() {
        let random = SystemRandom::new();
        let ed = Ed25519KeyPair::generate_pkcs8(&random).unwrap();
        let ed = Ed25519KeyPair::from_pkcs8(ed.as_ref()).unwrap();
        let x = encoded(ed.public_key().as_ref());
        let key = &set(&format!(r#"{{"kty":"OKP","crv":"Ed25519","x":"{x}"}}"#)).unwrap()[0];
        let signature = ed.sign(b"text");
        assert!(key.has_signed(JwtAlgorithm::EdDsa, b"text", signature.as_ref()));
        assert!(!key.has_signed(JwtAlgorithm::EdDsa, b"other", signature.as_ref()));
        assert!(!key.has_signed(JwtAlgorithm::Es256, b"text", signature.as_ref()));

        let kind = &signature::ECDSA_P256_SHA256_FIXED_SIGNING;
        let ec = EcdsaKeyPair::generate_pkcs8(kind, &random).unwrap();
        let ec = EcdsaKeyPair::from_pkcs8(kind, ec.as_ref(), &random).unwrap();
        let point = ec.public_key().as_ref();
        let (x, y) = (encoded(&point[1..33]), encoded(&point[33..]));
        let text = format!(r#"{{"kty":"EC","crv":"P-256","x":"{x}","y":"{y}","alg":"ES256"}}"#);
        let key = &set(&text).unwrap()[0];
        let signature = ec.sign(&random, b"text").unwrap();
        assert!(key.has_signed(JwtAlgorithm::Es256, b"text", signature.as_ref()));
        assert!(!key.has_signed(JwtAlgorithm::Es384, b"text", signature.as_ref()));
        let other = set(&text.replace("ES256", "ES384")).unwrap();
        assert!(!other[0].has_signed(JwtAlgorithm::Es256, b"text", signature.as_ref()));
    }

    #[test]
    fn broken_keys_are_told_and_strange_ones_left_out() {
        let short = encoded(&[200; 128]);
        for (key, expected) in [
            ("7", JwksError::Key(1, "not an object")),
            ("{}", JwksError::Key(1, "no `kty`")),
            (r#"{"kty":"RSA"}"#, JwksError::Key(1, "no `n` in base64url")),
            (
                &format!(r#"{{"kty":"RSA","n":"{short}","e":"AQAB"}}"#),
                JwksError::Key(1, "RSA keys have 2048 to 8192 bits"),
            ),
            (
                r#"{"kty":"EC","crv":"P-256","x":"AA","y":"AA"}"#,
                JwksError::Key(1, "`x` and `y` are not of the curve's length"),
            ),
            (
                r#"{"kty":"oct","k":"AA"}"#,
                JwksError::Key(1, "a secret among public keys; use `secret_file`"),
            ),
            (r#"{"kty":"EC","crv":"secp256k1"}"#, JwksError::Empty),
            (r#"{"kty":"RSA","use":"enc"}"#, JwksError::Empty),
        ] {
            assert_eq!(set(key).unwrap_err(), expected, "{key}");
        }
        assert_eq!(JwtKey::set(b"[]").unwrap_err(), JwksError::NotASet);
        assert_eq!(
            set(&vec!["{}"; 65].join(",")).unwrap_err(),
            JwksError::TooMany
        );
    }
}
