//! Tokens.

use aws_lc_rs::hmac;
use proptest::prelude::*;

use super::*;

const SECRET: &[u8] = b"0123456789abcdef0123456789abcdef";
const NOW: u64 = 1_700_000_000;

fn rules() -> JwtRules {
    JwtRules {
        keys: JwtKeys::Fixed(vec![JwtKey::secret(SECRET)]),
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
        keys: JwtKeys::Fixed(JwtKey::set(jwks.as_bytes()).unwrap()),
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
    let claims = Claims(serde_json::from_str(text).unwrap());
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
