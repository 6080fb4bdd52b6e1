//! Limits that count by what clients can invent, and those that only look so.

use super::codes;

const BASE: &str = "upstream = \"http://10.0.0.1:3000\"\n";
const KNOWN: &str = "[api_key]\nknown = \"src/config/tests/keys.txt\"\n";
const TRUST: &str = "[api_key]\nunknown = \"trust\"\n";

/// What is found in a file whose only route has limits by these keys.
fn found(settings: &str, keys: &[&str]) -> Vec<&'static str> {
    let mut text = format!("{BASE}{settings}\n");
    let mut names = Vec::new();
    for (number, key) in keys.iter().enumerate() {
        let rate = 100 + number;
        text.push_str(&format!(
            "[limit.l{number}]\nrate = \"{rate}/min\"\nkey = {key}\n"
        ));
        names.push(format!("\"l{number}\""));
    }
    let names = names.join(", ");
    text.push_str(&format!(
        "[[route]]\npath = \"/{{id}}/x\"\nlimits = [{names}]\n"
    ));
    codes(&text)
}

const BY_KEY: &str = "rate = \"9/s\"\nkey = \"api_key or ip\"\n";

#[test]
fn a_key_that_clients_can_invent_is_no_guard_alone() {
    for key in [
        "\"header:x-user\"",
        "\"header:x-user or ip\"",
        "\"query:user\"",
        "\"cookie:session or ip\"",
        "\"path:id\"",
        "[\"header:x-user\", \"ip\"]",
        "[\"ip\", \"query:user\"]",
    ] {
        assert_eq!(found("", &[key]), ["T217"], "{key}");
        assert_eq!(found("", &[key, "\"ip\""]), [""; 0], "{key} beside ip");
    }
    let two = ["\"header:x-user\"", "\"query:user\""];
    assert_eq!(found("", &two), ["T217"], "told once for the route");
    assert_eq!(found(TRUST, &["\"api_key or ip\""]), ["T217"]);
    assert_eq!(found(TRUST, &["\"api_key or ip\"", "\"global\""]), [""; 0]);
}

#[test]
fn what_no_client_can_invent_earns_no_warning() {
    for key in [
        "\"ip\"",
        "\"global\"",
        "\"route\"",
        "[\"ip\", \"path\"]",
        "[\"ip\", \"method\"]",
    ] {
        assert_eq!(found("", &[key]), [""; 0], "{key}");
    }
    for key in [
        "\"api_key\"",
        "\"api_key or ip\"",
        "[\"api_key or ip\", \"path\"]",
    ] {
        assert_eq!(found(KNOWN, &[key]), [""; 0], "{key}");
        assert_eq!(found("", &[key]), ["T216"], "{key}");
    }
    let behind = "trusted_proxies = \"10.0.0.0/8\"";
    assert_eq!(found(behind, &["\"header:x-user\""]), [""; 0]);
    assert_eq!(found(behind, &["\"query:user\""]), ["T217"]);
}

#[test]
fn a_limit_that_enforces_nothing_is_no_guard() {
    let user = "[limit.user]\nrate = \"10/min\"\nkey = \"header:x-user\"\n";
    let route = "[[route]]\npath = \"/*\"\nlimits = [\"user\", \"beside\"]\n";
    let with = |beside: &str| {
        codes(&format!(
            "{BASE}{KNOWN}[limit.beside]\n{beside}\n{user}{route}"
        ))
    };
    assert_eq!(
        with("rate = \"99/min\"\nkey = \"ip\"\nshadow = true"),
        ["T217"]
    );
    let skipped = "rate = \"99/min\"\nkey = \"api_key\"\nmissing = \"skip\"";
    assert_eq!(with(skipped), ["T217"], "a client sends no key");
    assert_eq!(with("concurrent = 5\nkey = \"ip\""), [""; 0]);
    assert_eq!(with("rate = \"99/min\"\nkey = \"api_key\""), [""; 0]);
}

#[test]
fn a_file_without_keys_tells_none_apart() {
    let empty = "[api_key]\nknown = \"/dev/null\"\n";
    assert_eq!(found(empty, &["\"api_key or ip\""]), ["T216"]);
    let (_, warnings) = super::accept(&format!("{BASE}{empty}[limit.default]\n{BY_KEY}"));
    assert!(
        warnings.list[0]
            .message
            .ends_with("the file of known keys has none")
    );
    let tokens = "[auth.jwt]\njwks_file = \"src/config/tests/jwks.json\"\n";
    assert_eq!(found(tokens, &["\"api_key or ip\""]), [""; 0]);
    let elsewhere = format!("{tokens}[api_key]\nfrom = \"query:key\"\n");
    assert_eq!(
        found(&elsewhere, &["\"api_key or ip\""]),
        ["T216"],
        "no bearer"
    );
}

#[test]
fn mistakes_in_the_files_of_keys() {
    let known = |text: &str| {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), text).unwrap();
        let path = file.path().display();
        codes(&format!("{BASE}[api_key]\nknown = \"{path}\"\n"))
    };
    assert_eq!(known("k1\nk1\nk1 acme\nk1 acme pro\n"), [""; 0]);
    assert_eq!(known("k1 acme\nk1 other\n"), ["T108"]);
    assert_eq!(known("k1 acme pro\nk1 acme free\n"), ["T108"]);
    assert_eq!(known("k1 acme pro anchor=32\n"), ["T108"]);
    assert_eq!(known("sha256:12\n"), ["T108"]);
    assert_eq!(known("a b c d\n".repeat(99).as_str()), ["T108"; 5]);
    let words = |line: &str| codes(&format!("{BASE}[api_key]\n{line}\n"));
    assert_eq!(words("known = \"/nowhere/keys\""), ["T108"]);
    assert_eq!(words("known = \"redis\""), ["T136"]);
    let redis = "known = \"redis\"\n[store]\nurl = \"redis://127.0.0.1:1\"";
    assert_eq!(words(redis), [""; 0]);
    assert_eq!(words("unknown = \"allow\""), ["T106"]);
}

#[test]
fn mistakes_about_the_service_that_knows_keys() {
    let table = |table: &str| codes(&format!("{BASE}[api_key]\nknown = {{ {table} }}\n"));
    let url = "url = \"http://127.0.0.1:9\"";
    assert_eq!(table(url), [""; 0]);
    assert_eq!(table("url = \"https://keys.example.com/v1\""), [""; 0]);
    assert_eq!(table("url = \"http://keys.example.com/v1\""), ["T137"]);
    assert_eq!(table("url = \"keys.example.com\""), ["T114"]);
    assert_eq!(table("ttl = \"5min\""), ["T104"]);
    assert_eq!(table(&format!("{url}, tll = \"5min\"")), ["T101"]);
    assert_eq!(table(&format!("{url}, timeout = \"1min\"")), ["T105"]);
    assert_eq!(table(&format!("{url}, ttl = \"5\"")), ["T110"]);
    let text = format!("{BASE}[api_key]\nknown = {{ {url}, ttl = \"5m\" }}\n");
    let callback = super::fine(&text).key_callback.unwrap();
    let seconds = [callback.ttl, callback.ttl_unknown].map(|length| length.as_secs());
    assert_eq!((seconds, callback.timeout.as_millis()), ([300, 10], 200));
}
