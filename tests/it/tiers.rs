//! Who a client is and what that allows it: tiers by key and by token, several rates in one limit,
//! precision, exemptions, and costs that no limit can grant.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use aws_lc_rs::hmac;
use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::rsa::{KeyPair, PublicKeyComponents};
use aws_lc_rs::signature::{self, KeyPair as _};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use tempfile::TempDir;

use crate::bypass::guarded;
use crate::house::{Tidegate, Upstream};

const SECRET: &str = "0123456789abcdef0123456789abcdef";
/// A key of these tests alone.
const RSA: &[u8] = include_bytes!("tiers/rsa.pkcs8.der");

fn unix_s() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.unwrap().as_secs()
}

fn signed_part(head: &str, body: &str) -> String {
    [head, body]
        .map(|part| URL_SAFE_NO_PAD.encode(part))
        .join(".")
}

fn hs256(secret: &[u8], body: &str) -> String {
    let signed = signed_part(r#"{"alg":"HS256","typ":"JWT"}"#, body);
    let key = hmac::Key::new(hmac::HMAC_SHA256, secret);
    let signature = hmac::sign(&key, signed.as_bytes());
    format!("{signed}.{}", URL_SAFE_NO_PAD.encode(signature))
}

fn rs256(body: &str) -> String {
    let signed = signed_part(r#"{"alg":"RS256","kid":"one"}"#, body);
    let key = KeyPair::from_pkcs8(RSA).unwrap();
    let mut signature = vec![0; key.public_key().modulus_len()];
    let padding = &signature::RSA_PKCS1_SHA256;
    key.sign(
        padding,
        &SystemRandom::new(),
        signed.as_bytes(),
        &mut signature,
    )
    .unwrap();
    format!("{signed}.{}", URL_SAFE_NO_PAD.encode(signature))
}

fn jwks() -> String {
    let key = KeyPair::from_pkcs8(RSA).unwrap();
    let public = PublicKeyComponents::<Vec<u8>>::from(key.public_key());
    let [n, e] = [public.n, public.e].map(|number| URL_SAFE_NO_PAD.encode(number));
    format!(r#"{{"keys":[{{"kty":"RSA","kid":"one","use":"sig","n":"{n}","e":"{e}"}}]}}"#)
}

/// A proxy whose directory has these files.
fn with_files(upstream: &Upstream, files: &[(&str, &str)], rules: &str) -> Tidegate {
    let directory: TempDir = tempfile::tempdir().unwrap();
    for (name, text) in files {
        std::fs::write(directory.path().join(name), text).unwrap();
    }
    let config = format!("upstream = \"{}\"\n{rules}", upstream.url());
    Tidegate::start_in(directory, &config, &[])
}

/// How many of `most` requests with these headers pass before one is denied.
fn served(proxy: &Tidegate, headers: &str, most: usize) -> usize {
    let statuses = (0..most).map(|_| proxy.get_with("/", headers).status);
    let mut count = 0;
    for status in statuses {
        match status {
            200 => count += 1,
            429 => break,
            other => panic!("{other}"),
        }
    }
    count
}

fn bearer(token: &str) -> String {
    format!("Authorization: Bearer {token}\r\n")
}

#[test]
fn a_key_has_the_rates_of_its_tier() {
    let upstream = Upstream::ok();
    let keys = "# customers\nkey-pro pro\nkey-free = free\nkey-in: \"internal\"\nkey-odd,gold\n";
    let proxy = with_files(
        &upstream,
        &[("tiers", keys)],
        r#"
        [tier]
        keys_file = "tiers"
        [limit.default]
        rate  = "2/day"
        key   = "api_key or ip"
        tiers = { pro = "5/day", free = ["3/day", "4/30d"], internal = "unlimited" }
        "#,
    );
    for (key, expected) in [("pro", 5), ("free", 3), ("in", 9), ("odd", 2), ("none", 2)] {
        let headers = format!("X-Api-Key: key-{key}\r\n");
        assert_eq!(served(&proxy, &headers, 9), expected, "{key}");
    }
    let free = proxy.get_with("/", "X-Api-Key: key-free\r\n");
    let policy = free.header("ratelimit-policy").unwrap();
    assert_eq!(
        policy,
        "\"default/d\";q=3;w=86400, \"default/30d\";q=4;w=2592000"
    );
    let internal = proxy.get_with("/", "X-Api-Key: key-in\r\n");
    assert_eq!(internal.header("ratelimit-policy"), None);
}

#[test]
fn a_tier_can_have_one_budget_for_all_its_clients() {
    let upstream = Upstream::ok();
    let proxy = with_files(
        &upstream,
        &[("tiers", "a free\nb free\nc pro\n")],
        r#"
        [tier]
        keys_file = "tiers"
        [limit.default]
        rate = "2/day"
        key  = "tier"
        "#,
    );
    let status = |key: &str| proxy.get_with("/", &format!("X-Api-Key: {key}\r\n")).status;
    assert_eq!(["a", "b", "a", "c"].map(status), [200, 200, 429, 200]);
}

#[test]
fn a_claim_of_a_token_says_when_the_clients_months_begin() {
    let upstream = Upstream::ok();
    let proxy = with_files(
        &upstream,
        &[("secret", SECRET)],
        r#"
        [auth.jwt]
        secret_file = "secret"
        [status]
        path = "/left"
        [limit.default]
        rate     = ["3/month", "100/s"]
        key      = "jwt:sub"
        missing  = "deny"
        calendar = { anchor = "jwt:billing.day" }
        "#,
    );
    let token = |sub: &str, day: &str| {
        let end = unix_s() + 600;
        let body = format!(r#"{{"sub":"{sub}","exp":{end},"billing":{{"day":{day}}}}}"#);
        bearer(&hs256(SECRET.as_bytes(), &body))
    };
    // A number, a text, a date; and no day at all, which is the first of the month.
    for (sub, day, expected) in [
        ("ann", "15", "-15T00:00:00"),
        ("bob", "\"20\"", "-20T00:00:00"),
        ("cy", "\"2026-03-07T10:00:00Z\"", "-07T00:00:00"),
        ("di", "null", "-01T00:00:00"),
        ("ed", "32", "-01T00:00:00"),
    ] {
        let token = token(sub, day);
        assert_eq!(served(&proxy, &token, 5), 3, "{sub}");
        let left = proxy.get_with("/left", &token).text();
        let month = left.split("default/month").nth(1).unwrap();
        let month = month.split("default/s").next().unwrap();
        assert!(month.contains(expected), "{sub}: {left}");
    }
}

#[test]
fn a_token_of_a_shared_secret_says_key_and_tier() {
    let upstream = Upstream::ok();
    let proxy = with_files(
        &upstream,
        &[("secret", SECRET)],
        r#"
        [auth.jwt]
        secret_file = "secret"
        issuer      = "us"
        [tier]
        from    = "jwt:org.plan"
        default = "free"
        [limit.default]
        rate    = "1/day"
        key     = "jwt:sub"
        missing = "deny"
        tiers   = { pro = "4/day", free = "2/day" }
        "#,
    );
    let end = unix_s() + 600;
    let body = |sub: &str, plan: &str| {
        format!(r#"{{"iss":"us","sub":"{sub}","org":{{"plan":"{plan}"}},"exp":{end}}}"#)
    };
    let token = |body: &str| bearer(&hs256(SECRET.as_bytes(), body));
    assert_eq!(served(&proxy, &token(&body("jo", "pro")), 9), 4);
    assert_eq!(served(&proxy, &token(&body("flo", "free")), 9), 2);
    assert_eq!(served(&proxy, &token(&body("mo", "odd")), 9), 1);
    let plain = format!(r#"{{"iss":"us","sub":"di","exp":{end}}}"#);
    assert_eq!(served(&proxy, &token(&plain), 9), 2);
    // Another token of the same person is the same budget.
    let other = format!(
        r#"{{"sub":"jo","iss":"us","org":{{"plan":"pro"}},"exp":{}}}"#,
        end + 1
    );
    assert_eq!(served(&proxy, &token(&other), 9), 0);
    let fresh = body("eve", "pro");
    let late = format!(r#"{{"iss":"us","sub":"eve","exp":{}}}"#, unix_s() - 60);
    let unsigned = format!("{}.", signed_part(r#"{"alg":"none"}"#, &fresh));
    for wrong in [
        bearer(&hs256(&[1; 32], &fresh)),
        token(&late),
        token(&fresh.replace("\"us\"", "\"them\"")),
        bearer(&unsigned),
        bearer("nonsense"),
    ] {
        let answer = proxy.get_with("/", &wrong);
        let challenge = answer.header("www-authenticate").unwrap();
        assert_eq!(answer.status, 401, "{wrong}");
        assert_eq!(challenge, "Bearer error=\"invalid_token\"", "{wrong}");
        assert!(answer.text().contains("The bearer token is not valid."));
    }
    for other in [String::new(), token(&fresh.replace("sub", "id"))] {
        let answer = proxy.get_with("/", &other);
        let challenge = answer.header("www-authenticate");
        assert_eq!((answer.status, challenge.as_deref()), (401, Some("Bearer")));
    }
    let two = format!("{}{}", token(&fresh), token(&body("ann", "pro")));
    assert_eq!(proxy.get_with("/", &two).status, 400);
}

#[test]
fn a_verified_token_is_a_known_api_key() {
    let upstream = Upstream::ok();
    let rules = |unknown: &str| {
        format!(
            "[auth.jwt]\nsecret_file = \"secret\"\n[api_key]\nunknown = \"{unknown}\"\n\
             [limit.default]\nrate = \"2/day\"\nkey = \"api_key or ip\"\n"
        )
    };
    let start = |unknown: &str| with_files(&upstream, &[("secret", SECRET)], &rules(unknown));
    let (by_address, denying) = (start("ip"), start("deny"));
    let end = unix_s() + 600;
    let token = |sub: &str, end: u64| {
        let body = format!(r#"{{"sub":"{sub}","exp":{end}}}"#);
        bearer(&hs256(SECRET.as_bytes(), &body))
    };
    for sub in ["jo", "flo"] {
        assert_eq!(served(&by_address, &token(sub, end), 5), 2, "{sub}");
        assert_eq!(served(&denying, &token(sub, end), 5), 2, "{sub}");
    }
    let forged = |number: usize| bearer(&hs256(&[1; 32], &format!(r#"{{"sub":"{number}"}}"#)));
    let late = token("jo", unix_s() - 600);
    for header in [forged(0), late.clone(), bearer("opaque")] {
        assert_eq!(denying.get_with("/", &header).status, 401, "{header}");
    }
    // Forged ones share the budget of their address.
    let statuses = (1..20).map(|number| by_address.get_with("/", &forged(number)).status);
    assert_eq!(statuses.filter(|status| *status == 200).count(), 2);
    assert_eq!(by_address.get_with("/", &late).status, 429);
}

#[test]
fn a_token_of_a_key_pair_is_verified_by_its_set() {
    let upstream = Upstream::ok();
    let proxy = with_files(
        &upstream,
        &[("jwks.json", &jwks())],
        r#"
        [auth.jwt]
        jwks_file  = "jwks.json"
        algorithms = "RS256"
        audience   = "api"
        [limit.default]
        rate    = "2/day"
        key     = "jwt:id"
        missing = "deny"
        "#,
    );
    let body = format!(r#"{{"aud":["api"],"id":7,"exp":{}}}"#, unix_s() + 600);
    assert_eq!(served(&proxy, &bearer(&rs256(&body)), 9), 2);
    // With the public key's own text as a secret.
    let key = KeyPair::from_pkcs8(RSA).unwrap();
    for secret in [key.public_key().as_ref().to_vec(), jwks().into_bytes()] {
        let forged = bearer(&hs256(&secret, &body.replace('7', "8")));
        assert_eq!(proxy.get_with("/", &forged).status, 401);
    }
    let elsewhere = bearer(&rs256(&body.replace("api", "web")));
    assert_eq!(proxy.get_with("/", &elsewhere).status, 401);
}

#[test]
fn each_rate_of_a_limit_is_named_and_the_tighter_is_shown() {
    let upstream = Upstream::ok();
    let proxy = guarded(
        &upstream,
        "[limit.api]\nrate = [\"3/s\", \"5/h\"]\n[[route]]\npath = \"/*\"\nlimits = [\"api\"]\n",
    );
    let first = proxy.get("/");
    let policy = first.header("ratelimit-policy").unwrap();
    assert_eq!(policy, "\"api/s\";q=3;w=1, \"api/h\";q=5;w=3600");
    assert_eq!(first.header("x-ratelimit-limit").as_deref(), Some("3"));
    // Both count: whatever the second lets pass, the hour ends at five.
    let until = std::time::Instant::now() + Duration::from_secs(10);
    let mut served = 1;
    let denied = loop {
        let answer = proxy.get("/");
        match answer.status {
            200 => served += 1,
            _ if answer.header("x-ratelimit-limit").as_deref() == Some("5") => break answer,
            _ => std::thread::sleep(Duration::from_millis(20)),
        }
        assert!(std::time::Instant::now() < until, "{}", answer.head);
    };
    assert_eq!(served, 5);
    let wait: u64 = denied.header("retry-after").unwrap().parse().unwrap();
    assert!((3500..=3600).contains(&wait), "{wait}");
}

#[test]
fn a_coarse_log_never_admits_too_much() {
    let upstream = Upstream::ok();
    let rules = "[limit.default]\nrate = \"4/min\"\nprecision = \"2s\"\n";
    let proxy = guarded(&upstream, rules);
    assert_eq!(served(&proxy, "", 9), 4);
    let wait: u64 = proxy
        .get("/")
        .header("retry-after")
        .unwrap()
        .parse()
        .unwrap();
    // Units count for up to two seconds longer than the minute.
    assert!((30..=62).contains(&wait), "{wait}");
}

#[test]
fn exempt_clients_are_not_counted() {
    let upstream = Upstream::ok();
    let rules = |key: &str| {
        format!(
            "trusted_proxies = \"127.0.0.1\"\n[limit.default]\nrate = \"1/day\"\n\
             key = \"{key}\"\nexempt = [\"192.0.2.0/24\", \"partner\"]\n"
        )
    };
    let by_user = guarded(&upstream, &rules("header:x-user or ip"));
    for (headers, expected) in [
        ("X-Forwarded-For: 192.0.2.9\r\n", 5),
        ("X-Forwarded-For: 192.0.3.9\r\n", 1),
        ("X-User: partner\r\n", 5),
        ("X-User: Partner\r\n", 1),
        // Whoever knows the name of a partner has not its key.
        ("X-Api-Key: partner\r\n", 1),
    ] {
        assert_eq!(served(&by_user, headers, 5), expected, "{headers}");
    }
    let proxy = guarded(&upstream, &rules("ip"));
    for (headers, expected) in [("X-Api-Key: partner\r\n", 5), ("X-Api-Key: other\r\n", 1)] {
        assert_eq!(served(&proxy, headers, 5), expected, "{headers}");
    }
    let free = proxy.get_with("/", "X-Api-Key: partner\r\n");
    assert_eq!(free.header("ratelimit-policy"), None);
}

/// Requests for this target that are allowed before the first denial, at most 3.
fn allowed(proxy: &Tidegate, target: &str, headers: &str) -> usize {
    let mut statuses = (0..3).map(|_| proxy.get_with(target, headers).status);
    statuses
        .by_ref()
        .take_while(|status| *status == 200)
        .count()
}

#[test]
fn a_client_with_a_token_cannot_take_the_name_of_an_exempt_one() {
    let upstream = Upstream::ok();
    let token = |sub: &str| {
        let body = format!(r#"{{"sub":"{sub}","exp":{}}}"#, unix_s() + 600);
        bearer(&hs256(SECRET.as_bytes(), &body))
    };
    let target = "/alice?project=alice";
    for key in [
        "\"jwt:sub or api_key\"",
        "[\"jwt:sub\", \"api_key\"]",
        "[\"jwt:sub\", \"query:project\"]",
        "[\"jwt:sub\", \"path:id\"]",
    ] {
        let rules = format!(
            "[auth.jwt]\nsecret_file = \"secret\"\n\
             [api_key]\nknown = \"keys\"\nfrom = \"header:x-api-key\"\n\
             [limit.own]\nrate = \"1/day\"\nkey = {key}\nexempt = [\"alice\"]\n\
             [[route]]\npath = \"/{{id}}\"\nlimits = [\"own\"]\n"
        );
        let files = [("secret", SECRET), ("keys", "known-key ann\n")];
        let proxy = with_files(&upstream, &files, &rules);
        let mallory = format!("{}X-Api-Key: alice\r\n", token("mallory"));
        assert_eq!(allowed(&proxy, target, &mallory), 1, "{key}");
        assert_eq!(allowed(&proxy, target, &token("alice")), 3, "{key}");
    }
}

#[test]
fn an_entry_is_a_value_of_the_key_in_any_spelling() {
    let upstream = Upstream::ok();
    let start = |key: &str, entry: &str| {
        guarded(
            &upstream,
            &format!(
                "case = \"insensitive\"\n[limit.default]\nrate = \"1/day\"\nkey = \"{key}\"\n\
                 exempt = [\"{entry}\"]\n"
            ),
        )
    };
    let by_path = start("path", "/Public/./a%7eb");
    assert_eq!(allowed(&by_path, "/public/A~b", ""), 3);
    assert_eq!(allowed(&by_path, "/x", "X-Api-Key: /Public/./a%7eb\r\n"), 1);
    assert_eq!(allowed(&by_path, "/y", "X-Api-Key: /public/a~b\r\n"), 1);
    let by_query = start("query:q", "a b");
    assert_eq!(allowed(&by_query, "/?q=a%20b", ""), 3);
    assert_eq!(allowed(&by_query, "/?q=a", ""), 1);
}

#[test]
fn listed_values_count_by_themselves_in_any_spelling() {
    let upstream = Upstream::ok();
    let proxy = guarded(
        &upstream,
        "trusted_proxies = \"127.0.0.1\"\ncase = \"insensitive\"\n\
         [client_ip]\nipv4_prefix = 24\n\
         [limit.by_ip]\nrate = \"1/day\"\nkey = \"ip\"\nvalues = { ip = [\"203.0.113.5\"] }\n\
         [limit.by_path]\nrate = \"1/day\"\nkey = \"path\"\nvalues = { path = [\"/p/Log%69n\"] }\n\
         [[route]]\npath = \"/\"\nlimits = [\"by_ip\"]\n\
         [[route]]\npath = \"/p/*\"\nlimits = [\"by_path\"]\n",
    );
    for (headers, expected) in [
        ("X-Forwarded-For: 203.0.113.5\r\n", 1),
        ("X-Forwarded-For: 203.0.113.6\r\n", 0),
        ("X-Forwarded-For: 192.0.2.1\r\n", 1),
        ("X-Forwarded-For: 198.51.100.1\r\n", 0),
    ] {
        assert_eq!(allowed(&proxy, "/", headers), expected, "{headers}");
    }
    for (path, expected) in [("/P/login", 1), ("/p/Login", 0), ("/p/x", 1), ("/p/y", 0)] {
        assert_eq!(allowed(&proxy, path, ""), expected, "{path}");
    }
}

#[test]
fn a_cost_above_the_limit_is_no_matter_of_time() {
    let upstream = Upstream::ok();
    let proxy = guarded(
        &upstream,
        "trusted_proxies = \"127.0.0.1\"\n[limit.api]\nrate = [\"10/min\", \"50/h\"]\n\
         [[route]]\npath = \"/*\"\ncost = \"header:x-cost\"\nlimits = [\"api\"]\n",
    );
    let denied = proxy.get_with("/", "X-Cost: 20\r\n");
    assert_eq!((denied.status, denied.header("retry-after")), (429, None));
    assert_eq!(proxy.get_with("/", "X-Cost: 10\r\n").status, 200);
    assert!(
        proxy
            .get_with("/", "X-Cost: 10\r\n")
            .header("retry-after")
            .is_some()
    );
}
