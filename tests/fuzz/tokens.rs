//! Bearer tokens: whatever stands there, nothing is believed but what one of our keys has signed, in
//! a way that is that key's.

use aws_lc_rs::hmac;
use aws_lc_rs::signature::{Ed25519KeyPair, KeyPair as _};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use http::{HeaderMap, HeaderValue, Method, header};
use serde_json::{Map, Value};
use tidegate::limit::key::jwt::{JwtAlgorithm, JwtKey, JwtKeys, JwtRules};
use tidegate::limit::key::{ApiKeys, Facts};
use tidegate::path::CanonicalPath;

use crate::{both, spelled};

const NOW: u64 = 1_700_000_000;
const SECRET: &[u8] = b"0123456789abcdef0123456789abcdef";
const HEADS: &[&str] = &[
    "{",
    "}",
    "\"alg\":",
    "\"HS256\"",
    "\"HS384\"",
    "\"EdDSA\"",
    "\"ES256\"",
    "\"RS256\"",
    "\"none\"",
    "\"\"",
    "\"typ\":\"JWT\"",
    ",",
    "\"kid\":",
    "\"ours\"",
    "\"theirs\"",
    "\"crit\":[\"exp\"]",
    "\"b64\":false",
    "\"jwk\":{}",
    "{\"alg\":\"HS256\"}",
    "{\"alg\":\"EdDSA\",\"kid\":\"ours\"}",
    "null",
    "[",
    "]",
    " ",
    "7",
];
const CLAIMS: &[&str] = &[
    "{",
    "}",
    "\"sub\":\"jo\"",
    "\"exp\":",
    "\"nbf\":",
    "\"iss\":",
    "\"aud\":",
    "\"us\"",
    "\"them\"",
    "1700000000",
    "1700000031",
    "1699999970",
    "9999999999",
    "1e400",
    "1e19",
    "-1",
    "0.5",
    "null",
    "[",
    "]",
    ",",
    "\"plan\":{\"name\":\"pro\"}",
    "\"\\u0000\"",
    "\"\\ud800\"",
    "[[[[[[[[[[[[",
    " ",
];

/// What signs, and what verifies.
struct Keys {
    pair: Ed25519KeyPair,
    rules: JwtRules,
}

impl Keys {
    fn new() -> Keys {
        let pair = Ed25519KeyPair::from_seed_unchecked(&[9; 32]).unwrap();
        let x = URL_SAFE_NO_PAD.encode(pair.public_key().as_ref());
        let set = format!(
            "{{\"keys\":[{{\"kty\":\"OKP\",\"crv\":\"Ed25519\",\"kid\":\"ours\",\"x\":\"{x}\"}}]}}"
        );
        let mut keys = JwtKey::set(set.as_bytes()).unwrap();
        keys.push(JwtKey::secret(SECRET));
        let rules = JwtRules {
            keys: JwtKeys::Fixed(keys),
            algorithms: JwtAlgorithm::ALL.map(|(_, algorithm)| algorithm).to_vec(),
            issuers: Vec::new(),
            audiences: Vec::new(),
            leeway_s: 30,
        };
        Keys { pair, rules }
    }

    /// What the keys would sign a text with, each in its ways.
    fn signatures(&self, signed: &[u8]) -> [Vec<u8>; 4] {
        let by = |kind, secret: &[u8]| {
            let key = hmac::Key::new(kind, secret);
            hmac::sign(&key, signed).as_ref().to_vec()
        };
        [
            by(hmac::HMAC_SHA256, SECRET),
            by(hmac::HMAC_SHA384, SECRET),
            by(hmac::HMAC_SHA512, SECRET),
            self.pair.sign(signed).as_ref().to_vec(),
        ]
    }

    fn is_believed(&self, token: &[u8]) -> bool {
        self.rules.verify(token, NOW).is_some()
    }
}

#[test]
fn nothing_is_believed_but_what_we_have_signed() {
    let keys = Keys::new();
    let good = token(b"{\"alg\":\"HS256\"}", b"{\"sub\":\"jo\"}", |signed| {
        keys.signatures(signed)[0].clone()
    });
    assert!(keys.is_believed(good.as_bytes()));
    let parts: Vec<&str> = good.split('.').collect();
    let pieces = [
        parts[0],
        parts[1],
        parts[2],
        ".",
        "e30",
        "eyJhbGciOiJub25lIn0",
        "=",
        "+",
        "/",
        "_",
        "-",
        "A",
        " ",
        "\t",
        "Bearer ",
        "\u{e4}",
        "\0",
    ];
    bolero::check!(name = "tokens")
        .with_max_len(96)
        .for_each(|input: &[u8]| {
            both(input, &pieces, |token| check(&keys, token));
            check_made(&keys, input);
        });
}

/// Three parts, the third by `sign`.
fn token(head: &[u8], claims: &[u8], sign: impl FnOnce(&[u8]) -> Vec<u8>) -> String {
    let signed = format!(
        "{}.{}",
        URL_SAFE_NO_PAD.encode(head),
        URL_SAFE_NO_PAD.encode(claims)
    );
    let signature = sign(signed.as_bytes());
    format!("{signed}.{}", URL_SAFE_NO_PAD.encode(signature))
}

/// Anything at all.
fn check(keys: &Keys, token: &[u8]) {
    let believed = keys.is_believed(token);
    if believed {
        let text = std::str::from_utf8(token).unwrap();
        let (signed, signature) = text.rsplit_once('.').unwrap();
        let signature = URL_SAFE_NO_PAD.decode(signature).unwrap();
        let ours = keys.signatures(signed.as_bytes());
        assert!(ours.contains(&signature), "{text}");
    }
    // The same as a request carries it, in whatever spelling its header is.
    let line = [b"Bearer ", token].concat();
    let Ok(line) = HeaderValue::from_bytes(&line) else {
        return;
    };
    let mut headers = HeaderMap::new();
    headers.append(header::AUTHORIZATION, line.clone());
    let carried = |headers: &HeaderMap| {
        let path = CanonicalPath::parse("/").unwrap();
        let facts = Facts {
            ip: "192.0.2.7".parse().unwrap(),
            api_key: &ApiKeys::default(),
            standing: None,
            registered: None,
            method: &Method::GET,
            host: "h.example",
            path: &path,
            query: None,
            headers,
            route: "r",
            params: &[],
            claims: None,
            tier: None,
            certificate: None,
            extensions: None,
            body: None,
        };
        let verified = facts.with_bearer(|token| keys.rules.verify(token, NOW));
        verified.is_some()
    };
    let trimmed = keys.is_believed(token.trim_ascii());
    assert_eq!(carried(&headers), trimmed, "{line:?}");
    // Beside another one it is none of both.
    headers.append(
        header::AUTHORIZATION,
        HeaderValue::from_static("Bearer e30.e30.e30"),
    );
    assert!(!carried(&headers), "{line:?}");
}

/// A head and claims, signed in every way that there is.
fn check_made(keys: &Keys, input: &[u8]) {
    let (head, claims) = input.split_at(input.len() / 2);
    let (head, claims) = (spelled(head, HEADS), spelled(claims, CLAIMS));
    let what = || format!("{} {}", text(&head), text(&claims));
    let by = |which: usize| {
        let made = token(&head, &claims, |signed| {
            keys.signatures(signed)[which].clone()
        });
        keys.is_believed(made.as_bytes())
    };
    let expected = expected(&head, &claims);
    for (which, algorithm) in ["HS256", "HS384", "HS512", "EdDSA"].into_iter().enumerate() {
        let told = expected.as_deref() == Some(algorithm);
        assert_eq!(by(which), told, "{algorithm}: {}", what());
    }
    // A public key is no secret, and nothing signs nothing.
    let public = keys.pair.public_key().as_ref();
    for signature in [
        hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, public), b"").as_ref(),
        b"",
        &[0; 64],
    ] {
        let made = token(&head, &claims, |signed| match signature.len() {
            32 => {
                let key = hmac::Key::new(hmac::HMAC_SHA256, public);
                hmac::sign(&key, signed).as_ref().to_vec()
            }
            _ => signature.to_vec(),
        });
        assert!(!keys.is_believed(made.as_bytes()), "{}", what());
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// By which algorithm a token with these parts has to be signed to be believed.
fn expected(head: &[u8], claims: &[u8]) -> Option<String> {
    let head: Map<String, Value> = serde_json::from_slice(head).ok()?;
    let claims: Map<String, Value> = serde_json::from_slice(claims).ok()?;
    let algorithm = head.get("alg")?.as_str()?.to_owned();
    let id = match head.get("kid") {
        Some(id) => Some(id.as_str()?),
        None => None,
    };
    let time = |name: &str| match claims.get(name) {
        Some(value) => value.as_f64().filter(|at| *at >= 0.0).map(Some),
        None => Some(None),
    };
    let now = NOW as f64;
    // Whole seconds count, as clocks that differ by half a minute may.
    let ends = time("exp")?.is_none_or(|at| at.floor() + 30.0 > now);
    let begins = time("nbf")?.is_none_or(|at| at.floor() <= now + 30.0);
    let is_meant = algorithm != "EdDSA" || id.is_none_or(|id| id == "ours");
    (!head.contains_key("crit") && ends && begins && is_meant).then_some(algorithm)
}
