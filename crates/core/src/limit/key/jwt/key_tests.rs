//! Keys that verify tokens.

use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::signature::{EcdsaKeyPair, Ed25519KeyPair, KeyPair};

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
    let ec = EcdsaKeyPair::from_pkcs8(kind, ec.as_ref()).unwrap();
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

const EMPTY: &str = "no key for signatures; RSA, P-256, P-384 and Ed25519 are possible";

#[test]
fn broken_keys_are_told_and_strange_ones_left_out() {
    let short = encoded(&[200; 128]);
    for (key, expected) in [
        ("7", "key 1: not an object"),
        ("{}", "key 1: no `kty`"),
        (r#"{"kty":"RSA"}"#, "key 1: no `n` in base64url"),
        (
            &format!(r#"{{"kty":"RSA","n":"{short}","e":"AQAB"}}"#),
            "key 1: RSA keys have 2048 to 8192 bits",
        ),
        (
            r#"{"kty":"EC","crv":"P-256","x":"AA","y":"AA"}"#,
            "key 1: `x` and `y` are not of the curve's length",
        ),
        (
            r#"{"kty":"oct","k":"AA"}"#,
            "key 1: a secret among public keys; use `secret_file`",
        ),
        (r#"{"kty":"EC","crv":"secp256k1"}"#, EMPTY),
        (r#"{"kty":"RSA","use":"enc"}"#, EMPTY),
    ] {
        assert_eq!(set(key).unwrap_err().to_string(), expected, "{key}");
    }
    let error = JwtKey::set(b"[]").unwrap_err().to_string();
    assert_eq!(error, "not a JSON Web Key Set: an object with `keys`");
    let error = set(&vec!["{}"; 101].join(",")).unwrap_err().to_string();
    assert_eq!(error, "more than 100 keys");
}
