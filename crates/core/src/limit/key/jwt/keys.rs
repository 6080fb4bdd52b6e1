//! The keys that tokens are verified with: a shared secret, or a JSON Web Key Set (RFC 7517).

use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::signature::{self, RsaParameters, RsaPublicKeyComponents, UnparsedPublicKey};
use ring::{error::Unspecified, hmac};
use serde_json::{Map, Value};

use super::JwtAlgorithm;

/// Keys of one set, at most: a token may have to be tried with each.
const MAX_KEYS: usize = 64;
/// Bytes of an RSA modulus: 2048 to 8192 bits.
const RSA_BYTES: std::ops::RangeInclusive<usize> = 256..=1024;

/// One key.
#[derive(Clone)]
pub struct JwtKey {
    id: Option<String>,
    /// The only algorithm it is meant for, where its set says so.
    algorithm: Option<JwtAlgorithm>,
    material: Material,
}

#[derive(Clone)]
enum Material {
    Secret(Vec<u8>),
    Rsa { n: Vec<u8>, e: Vec<u8> },
    P256(Vec<u8>),
    P384(Vec<u8>),
    Ed25519(Vec<u8>),
}

impl fmt::Debug for JwtKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("JwtKey").field(&self.id).finish()
    }
}

/// Why a text is not a set of keys. The configuration's author is at fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JwksError {
    /// Not JSON, or without `keys`.
    NotASet,
    /// More than we would try.
    TooMany,
    /// The key at this place, from 1, lacks something or is too weak.
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
    /// A secret that issuer and verifier share.
    pub fn secret(bytes: &[u8]) -> JwtKey {
        JwtKey {
            id: None,
            algorithm: None,
            material: Material::Secret(bytes.to_vec()),
        }
    }

    /// The keys of a set that verify signatures. Kinds that we do not know are left out, as the
    /// standard wants it; one that is broken is an error.
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
            keys.extend(read(key).map_err(wrong)?);
        }
        if keys.is_empty() {
            return Err(JwksError::Empty);
        }
        Ok(keys)
    }

    /// Whether a token that names its key so may mean this one.
    pub(super) fn may_have_id(&self, wanted: Option<&str>) -> bool {
        match (&self.id, wanted) {
            (Some(own), Some(wanted)) => own == wanted,
            _ => true,
        }
    }

    /// Whether the signature is this key's, made in a way that fits it.
    pub(super) fn has_signed(
        &self,
        algorithm: JwtAlgorithm,
        message: &[u8],
        signature: &[u8],
    ) -> bool {
        if self.algorithm.is_some_and(|only| only != algorithm) {
            return false;
        }
        let verified = match (&self.material, algorithm) {
            (Material::Secret(secret), algorithm) => {
                let Some(hash) = hmac_of(algorithm) else {
                    return false;
                };
                hmac::verify(&hmac::Key::new(hash, secret), message, signature)
            }
            (Material::Rsa { n, e }, algorithm) => {
                let Some(parameters) = rsa_of(algorithm) else {
                    return false;
                };
                RsaPublicKeyComponents { n, e }.verify(parameters, message, signature)
            }
            (Material::P256(point), JwtAlgorithm::Es256) => {
                let kind = &signature::ECDSA_P256_SHA256_FIXED;
                UnparsedPublicKey::new(kind, point).verify(message, signature)
            }
            (Material::P384(point), JwtAlgorithm::Es384) => {
                let kind = &signature::ECDSA_P384_SHA384_FIXED;
                UnparsedPublicKey::new(kind, point).verify(message, signature)
            }
            (Material::Ed25519(point), JwtAlgorithm::EdDsa) => {
                UnparsedPublicKey::new(&signature::ED25519, point).verify(message, signature)
            }
            _ => Err(Unspecified),
        };
        verified.is_ok()
    }
}

fn hmac_of(algorithm: JwtAlgorithm) -> Option<hmac::Algorithm> {
    match algorithm {
        JwtAlgorithm::Hs256 => Some(hmac::HMAC_SHA256),
        JwtAlgorithm::Hs384 => Some(hmac::HMAC_SHA384),
        JwtAlgorithm::Hs512 => Some(hmac::HMAC_SHA512),
        _ => None,
    }
}

fn rsa_of(algorithm: JwtAlgorithm) -> Option<&'static RsaParameters> {
    match algorithm {
        JwtAlgorithm::Rs256 => Some(&signature::RSA_PKCS1_2048_8192_SHA256),
        JwtAlgorithm::Rs384 => Some(&signature::RSA_PKCS1_2048_8192_SHA384),
        JwtAlgorithm::Rs512 => Some(&signature::RSA_PKCS1_2048_8192_SHA512),
        JwtAlgorithm::Ps256 => Some(&signature::RSA_PSS_2048_8192_SHA256),
        JwtAlgorithm::Ps384 => Some(&signature::RSA_PSS_2048_8192_SHA384),
        JwtAlgorithm::Ps512 => Some(&signature::RSA_PSS_2048_8192_SHA512),
        _ => None,
    }
}

/// One member of a set; `None` for a key that is not for us.
fn read(key: &Map<String, Value>) -> Result<Option<JwtKey>, &'static str> {
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
            let length = if curve == "P-256" { 32 } else { 48 };
            let (x, y) = (
                bytes("x", "no `x` in base64url")?,
                bytes("y", "no `y` in base64url")?,
            );
            if x.len() != length || y.len() != length {
                return Err("`x` and `y` are not of the curve's length");
            }
            // Uncompressed (SEC 1, section 2.3.3).
            let point = [&[4], &x[..], &y[..]].concat();
            match length {
                32 => Material::P256(point),
                _ => Material::P384(point),
            }
        }
        ("OKP", Some("Ed25519")) => {
            let point = bytes("x", "no `x` in base64url")?;
            if point.len() != 32 {
                return Err("`x` is not of the curve's length");
            }
            Material::Ed25519(point)
        }
        ("oct", _) => return Err("a secret among public keys; use `secret_file`"),
        _ => return Ok(None),
    };
    let algorithm = match text("alg").map(JwtAlgorithm::named) {
        // Another algorithm than ours: the key is for that one only.
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
