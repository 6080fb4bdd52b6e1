//! `[tier]` and `[auth.jwt]`: who a client is, and who says so.

use super::super::{Config, Fleet};
use super::{check, codes, fine, refuse};
use crate::limit::key::jwt::{JwtAlgorithm, JwtKey, JwtKeys};

const BASE: &str = "upstream = \"http://10.0.0.1:3000\"\n";
const BY_TOKEN: &str = "[limit.default]\nrate = \"9/s\"\nkey = \"jwt:sub or ip\"\n";
const JWKS: &str = "jwks_file = \"src/config/tests/jwks.json\"\n";

fn file(text: &str) -> tempfile::NamedTempFile {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), text).unwrap();
    file
}

#[test]
fn tiers_are_said_by_a_claim_a_trusted_header_or_a_list() {
    let list = file("# customers\nk1 pro\n\"k2\" = free # trial\n");
    let config = fine(&format!(
        "{BASE}[tier]\nkeys_file = \"{}\"\ndefault = \"free\"\n",
        list.path().display()
    ));
    let tiers = config.tier.as_ref().unwrap();
    assert!(tiers.from.is_none() && tiers.by_key, "{tiers:?}");
    assert!(config.api_key.is_listed(b"k1") && config.api_key.is_listed(b"k2"));
    assert!(!config.api_key.is_listed(b"pro"));
    assert_eq!(tiers.default.as_deref(), Some("free"));
    let copy = config.fresh_copy();
    assert_eq!(format!("{config:?}"), format!("{copy:?}"));

    fine(&format!(
        "{BASE}[auth.jwt]\n{JWKS}[tier]\nfrom = \"jwt:org.plan\"\n"
    ));
    let trusted = "trusted_proxies = \"10.0.0.0/8\"\n";
    fine(&format!(
        "{trusted}{BASE}[tier]\nfrom = \"header:x-plan\"\n"
    ));
    let with = |lines: &str| codes(&format!("{BASE}[tier]\n{lines}\n"));
    assert_eq!(with(""), ["T104"]);
    assert_eq!(with("from = \"jwt:plan\""), ["T124"]);
    assert_eq!(with("from = \"header:x-plan\""), ["T209"]);
    assert_eq!(with("from = \"query:plan\""), ["T111"]);
    assert_eq!(with("from = \"jwtt:plan\""), ["T111"]);
    assert_eq!(with("keys_file = \"/nowhere/x\""), ["T108"]);
    assert_eq!(
        with("from = \"header:a\"\nkeys_file = \"/dev/null\""),
        ["T124"]
    );
    assert_eq!(
        with("keys_file = \"/dev/null\"\ndefault = \"No\""),
        ["T112"]
    );
}

#[test]
fn a_wrong_line_of_keys_is_named_and_not_shown() {
    let list = file("k1 pro\nsecret-key\nk1 free\n");
    let found = refuse(&format!(
        "{BASE}[tier]\nkeys_file = \"{}\"\n",
        list.path().display()
    ));
    let said = found.to_string();
    assert!(said.contains("line 2: not a key and a tier"), "{said}");
    assert!(said.contains("line 3: this key has another tier"), "{said}");
    assert!(!said.contains("secret-key"), "{said}");
    let many = file(&"x\n".repeat(1000));
    let text = format!("{BASE}[tier]\nkeys_file = \"{}\"\n", many.path().display());
    assert_eq!(codes(&text), ["T108"; 5]);
}

#[test]
fn tokens_are_believed_by_the_rules_of_the_file() {
    let config = fine(&format!(
        "{BASE}[auth.jwt]\n{JWKS}algorithms = [\"RS256\", \"EdDSA\"]\nissuer = \"us\"\n\
         audience = [\"a\", \"b\"]\nleeway = \"1min\"\n{BY_TOKEN}"
    ));
    let rules = config.jwt.as_ref().unwrap();
    assert_eq!(rules.algorithms, [JwtAlgorithm::Rs256, JwtAlgorithm::EdDsa]);
    let JwtKeys::Fixed(keys) = &rules.keys else {
        panic!("{rules:?}");
    };
    assert_eq!((keys.len(), rules.leeway_s), (1, 60));
    assert_eq!((rules.issuers.len(), rules.audiences.len()), (1, 2));
    let secret = file("0123456789abcdef0123456789abcdef\n");
    let shared = format!("secret_file = \"{}\"\n", secret.path().display());
    let config = fine(&format!("{BASE}[auth.jwt]\n{shared}{BY_TOKEN}"));
    assert_eq!(
        config.jwt.as_ref().unwrap().algorithms,
        [JwtAlgorithm::Hs256]
    );
    assert!(!format!("{config:?}").contains("0123456789abcdef"));

    let with = |lines: &str| codes(&format!("{BASE}[auth.jwt]\n{lines}\n{BY_TOKEN}"));
    assert_eq!(with(""), ["T104"]);
    assert_eq!(with(&format!("{JWKS}{shared}")), ["T124"]);
    const URL: &str = "jwks_url = \"https://login.example/keys\"\n";
    assert_eq!(with(&format!("{JWKS}{URL}")), ["T124"]);
    assert_eq!(with(&format!("{URL}{shared}")), ["T124"]);
    assert_eq!(with(&format!("{URL}algorithms = \"HS256\"")), ["T124"]);
    assert_eq!(with(&format!("{JWKS}refresh = \"1min\"")), ["T124"]);
    assert_eq!(with(&format!("{JWKS}max_stale = \"1d\"")), ["T124"]);
    assert_eq!(with(&format!("{URL}max_stale = \"1min\"")), ["T124"]);
    assert_eq!(with(&format!("{URL}refresh = \"10ms\"")), ["T105"]);
    assert_eq!(with("jwks_url = \"http://login.example/keys\""), ["T138"]);
    assert_eq!(with("jwks_url = \"login.example/keys\""), ["T114"]);
    let config = fine(&format!("{BASE}[auth.jwt]\n{URL}{BY_TOKEN}"));
    let jwks = config.jwks.unwrap();
    let times = (jwks.refresh.as_secs(), jwks.max_stale.as_secs());
    assert_eq!(times, (600, 86_400));
    assert_eq!(config.jwt.unwrap().algorithms.len(), 9);
    assert_eq!(with(&format!("{JWKS}algorithms = [\"none\"]")), ["T106"]);
    assert_eq!(with(&format!("{JWKS}algorithms = [\"HS256\"]")), ["T124"]);
    assert_eq!(with(&format!("{shared}algorithms = \"RS256\"")), ["T124"]);
    assert_eq!(with(&format!("{JWKS}algorithms = []")), ["T105"]);
    assert_eq!(with(&format!("{JWKS}issuer = \"\"")), ["T105"]);
    assert_eq!(with(&format!("{JWKS}leeway = \"1h\"")), ["T105"]);
    let short = file("short");
    let short = format!("secret_file = \"{}\"", short.path().display());
    assert_eq!(with(&short), ["T210"]);
    let no_set = file("{}");
    let no_set = format!("jwks_file = \"{}\"", no_set.path().display());
    assert_eq!(with(&no_set), ["T108"]);
    let stray = format!("{BASE}[auth]\nbasic = 1\n[auth.jwt]\n{JWKS}");
    assert_eq!(codes(&stray), ["T101"]);
}

#[test]
fn algorithms_have_suggestions() {
    check(
        &format!("{BASE}[auth.jwt]\n{JWKS}algorithms = [\"RS255\"]\n"),
        r#"error[T106]: `RS255` is not an algorithm for tokens
 --> proxy.toml:4:15
  |
4 | algorithms = ["RS255"]
  |               ^^^^^^^
help: did you mean `RS256`?
"#,
    );
}

#[test]
fn a_fleet_is_a_number_or_counted() {
    let redis = "url = \"redis://127.0.0.1\"";
    let fleet = |line: &str| {
        fine(&format!("{BASE}[store]\n{redis}\n{line}\n"))
            .store
            .fleet
    };
    assert_eq!(fleet(""), Fleet::Auto);
    assert_eq!(fleet("fleet = 3"), Fleet::Fixed(3));
    assert_eq!(fleet("fleet = \"auto\""), Fleet::Auto);
    check(
        &format!("{BASE}[store]\nfleet = \"aut\"\n"),
        r#"error[T106]: `store.fleet` must be `"auto"`
 --> proxy.toml:3:9
  |
3 | fleet = "aut"
  |         ^^^^^ not one of these
help: did you mean `auto`?
"#,
    );
}

#[test]
fn a_reload_keeps_the_keys_of_the_same_url() {
    let read = |url: &str, more: &str| {
        let jwt = format!("[auth.jwt]\njwks_url = \"{url}\"\n{more}");
        fine(&format!("{BASE}{jwt}\n{BY_TOKEN}"))
    };
    let running = read("https://login.example/keys", "");
    let jwks = running.jwks.as_ref().unwrap();
    let keys = JwtKey::set(include_bytes!("jwks.json")).unwrap();
    jwks.keys.begin().succeed(keys, 100);
    let count = |config: &Config| {
        let rules = config.jwt.as_ref().unwrap();
        rules.keys.with_believed(160, |set| Some(set.keys.len()))
    };
    for (mut next, kept) in [
        (
            read("https://login.example/keys", "refresh = \"20s\""),
            Some(1),
        ),
        (read("https://login.example/others", ""), None),
        // The new bound holds for the old keys.
        (
            read(
                "https://login.example/keys",
                "refresh = \"1s\"\nmax_stale = \"50s\"",
            ),
            None,
        ),
    ] {
        next.keep_fetched_keys(&running);
        assert_eq!(count(&next), kept);
    }
}

#[test]
fn the_help_for_a_host_is_no_path() {
    let host = |host: &str| {
        let found = refuse(&format!(
            "{BASE}[[route]]\npath = \"/a\"\nhost = \"{host}\"\n"
        ));
        found.list[0].clone()
    };
    let odd = host("b\u{fc}cher.de");
    assert!(odd.labels[0].text.contains("`xn--` form"), "{odd:?}");
    assert_eq!(odd.help, None);
    let port = host("h.example:80").help;
    assert_eq!(port.as_deref(), Some("leave the port out: `h.example`"));
}
