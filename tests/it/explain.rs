//! `tidegate explain`: what it says is what happens, and nothing happens by it.

use std::path::Path;
use std::process::Output;

use crate::house::{Tidegate, Upstream};
use crate::support::{RedisServer, mortal};

const FILE: &str = r#"
trusted_proxies = ["10.0.0.0/8"]
upstream = "http://127.0.0.1:1"

[api_key]
from = ["header:x-api-key", "bearer", "query:api_key"]
unknown = "trust"

[limit.per_client]
rate = "600/min"
key  = "api_key or ip"

[limit.login]
rate = "5/min"
key  = "ip"

[limit.trial]
rate   = "1/min"
shadow = true

[limit.partner]
rate    = "10/s"
key     = "header:x-partner"
missing = "deny"

[limit.heavy]
rate = "5/min"
exempt = ["10.9.0.0/16"]

[[route]]
path    = "/login"
methods = ["POST"]
limits  = ["login", "per_client", "trial"]

[[route]]
path   = "/users/{id}"
host   = "api.example.com"
limits = ["partner"]

[[route]]
path   = "/heavy"
cost   = "header:x-cost"
limits = ["heavy"]

[[route]]
path     = "/old"
redirect = "https://example.com/new"
limits   = []

[[route]]
path    = "/teapot"
respond = { status = 418, body = "short and stout" }
limits  = []

[[bypass]]
path = "/healthz"
"#;

const HEAVY: [&str; 6] = ["GET", "/heavy", "--ip", "10.0.0.5", "-H", "x-cost: 9"];

fn run(folder: &Path, words: &[&str]) -> Output {
    let mut command = mortal(env!("CARGO_BIN_EXE_tidegate"));
    command.current_dir(folder).arg("explain").args(words);
    command.output().unwrap()
}

/// What is printed of `words`, about [`FILE`].
fn told(words: &[&str]) -> String {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("proxy.toml"), FILE).unwrap();
    let output = run(folder.path(), words);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{words:?}: {said}");
    String::from_utf8(output.stdout).unwrap()
}

fn json(words: &[&str]) -> serde_json::Value {
    serde_json::from_str(&told(&[words, &["--json"]].concat())).unwrap()
}

#[track_caller]
fn says(text: &str, lines: &[&str]) {
    // Wrapped lines are one again.
    let flat: Vec<&str> = text.split_whitespace().collect();
    let flat = flat.join(" ");
    for line in lines {
        assert!(flat.contains(line), "no `{line}` in\n{text}");
    }
}

#[test]
fn a_request_is_explained_from_its_client_to_its_answer() {
    let forwarded = "x-forwarded-for: 6.6.6.6, 203.0.113.9, 10.0.0.7";
    let words = [
        "POST",
        "http://a.example/login",
        "--ip",
        "10.0.0.5",
        "-H",
        forwarded,
    ];
    let text = told(&words);
    says(
        &text,
        &[
            "POST http://a.example/login from 10.0.0.5",
            "Verdict forwarded: every limit allows it",
            "Client 203.0.113.9 10.0.0.5 is a trusted proxy; its x-forwarded-for, from the right:",
            "10.0.0.7 a trusted proxy: on to the next",
            "203.0.113.9 no trusted proxy: this is the client",
            "Route POST /login",
            "not default: it fits too, but POST /login has the more specific path",
            "login (enforced) by ip = 203.0.113.9 5/min (exact log): allows, 0 used before, 4 left",
            "per_client (enforced) by api_key or ip: ip = 203.0.113.9 600/min",
            "trial (shadow: counted and reported, never enforced)",
            "x-forwarded-for: 6.6.6.6, 203.0.113.9, 10.0.0.7, 10.0.0.5",
            "x-ratelimit-limit: 5 x-ratelimit-remaining: 4",
            "ratelimit-policy: \"login\";q=5;w=60, \"per_client\";q=600;w=60",
        ],
    );
    assert!(
        !text.contains("6.6.6.6  "),
        "left of the client nobody looks"
    );
    for line in text.lines() {
        assert!(line.chars().count() <= 80, "{line}");
    }
    assert!(
        !text.contains('\x1b'),
        "no colour where there is no terminal"
    );
}

#[test]
fn secrets_are_not_shown() {
    let url = "/x?api_key=supersecretvalue";
    let secret = "authorization: Bearer supersecretvalue";
    let cookie = "cookie: sid=supersecretvalue";
    for words in [
        &["GET", url][..],
        &["GET", "/x", "-H", secret, "-H", cookie],
    ] {
        for text in [told(words), json(words).to_string()] {
            assert!(!text.contains("supers"), "{text}");
            assert!(text.contains("supe\u{2026}"), "{text}");
        }
    }
}

#[test]
fn every_ending_is_told() {
    let cases: [(&[&str], &str, Option<u64>, &str); 13] = [
        (
            &["GET", "/healthz"],
            "forwarded",
            None,
            "bypass rule 1 of the file",
        ),
        (
            &["GET", "/old"],
            "redirected",
            Some(302),
            "the route has no limits",
        ),
        (
            &["GET", "/teapot"],
            "answered",
            Some(418),
            "the route has no limits",
        ),
        (&["GET", "/a%2f..;/b"], "refused", Some(400), "refused path"),
        (
            &["GET", "/x/../login%2f"],
            "refused",
            Some(400),
            "refused path",
        ),
        (
            &["POST", "/x/../login"],
            "refused",
            Some(400),
            "ambiguous path",
        ),
        (&["TRACE", "/"], "refused", Some(405), "malformed request"),
        (
            &["GET", "/", "-H", "host: a", "-H", "host: b"],
            "refused",
            Some(400),
            "malformed request",
        ),
        (
            &["GET", "http://api.example.com/users/7"],
            "refused",
            Some(400),
            "missing key",
        ),
        (&HEAVY, "denied", Some(429), "by heavy"),
        (
            &["GET", "/heavy", "-H", "x-cost: 9"],
            "forwarded",
            None,
            "every limit allows it",
        ),
        (
            &["GET", "/heavy", "--ip", "10.9.0.1"],
            "forwarded",
            None,
            "no limit is asked",
        ),
        (
            &[
                "OPTIONS",
                "/login",
                "-H",
                "origin: https://a.example",
                "-H",
                "access-control-request-method: POST",
            ],
            "forwarded",
            None,
            "it is a browser's preflight",
        ),
    ];
    for (words, outcome, status, why) in cases {
        let told = json(words);
        let verdict = &told["verdict"];
        assert_eq!(verdict["outcome"], outcome, "{words:?} {verdict}");
        assert_eq!(verdict["status"].as_u64(), status, "{words:?} {verdict}");
        let said = verdict["why"].as_str().unwrap();
        assert!(said.contains(why), "{words:?}: {said}");
    }
    let partner = [
        "GET",
        "http://api.example.com/users/7",
        "-H",
        "x-partner: acme",
    ];
    let told = json(&partner);
    assert_eq!(told["route"]["params"], serde_json::json!([["id", "7"]]));
    assert_eq!(told["limits"][0]["key"][0]["value"], "acme");
    let upgrade = [
        "GET",
        "/",
        "-H",
        "connection: upgrade",
        "-H",
        "upgrade: websocket",
    ];
    assert_eq!(json(&upgrade)["upstream"]["upgrade"], true);
    let never = json(&HEAVY);
    assert_eq!(never["limits"][0]["state"], "enforced");
    assert_eq!(never["client_sees"]["status"], 429);
    assert!(
        never["client_sees"]["body"]
            .as_str()
            .unwrap()
            .contains("costs 9")
    );
}

#[test]
fn why_near_routes_are_not_its_own() {
    let of = |words: &[&str]| -> Vec<String> {
        let told = json(words);
        let near = told["near"].as_array().unwrap().iter();
        let text = |value: &serde_json::Value| value.as_str().unwrap().to_owned();
        near.map(|one| format!("{}: {}", text(&one["route"]), text(&one["why"])))
            .collect()
    };
    assert_eq!(
        of(&["GET", "/login"]),
        ["POST /login: it takes POST, not GET"]
    );
    assert_eq!(
        of(&["GET", "http://www.example.com/users/7"]),
        ["api.example.com/users/{id}: it is for host api.example.com, not www.example.com"]
    );
    assert_eq!(
        of(&["POST", "/logni"]),
        ["POST /login: its path /login differs at /logni"]
    );
}

#[test]
fn what_cannot_be_asked_is_said() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("proxy.toml"), FILE).unwrap();
    for (words, said) in [
        (["GET", "ftp://x/"], "tidegate: `ftp://x/` is no URL"),
        (["G ET", "/"], "tidegate: `G ET` is no method"),
        (["GET", "/a b"], "must be escaped"),
    ] {
        let output = run(folder.path(), &words);
        assert_eq!(output.status.code(), Some(2), "{words:?}");
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(error.contains(said), "{error}");
    }
    let output = run(folder.path(), &["GET", "/", "--live"]);
    assert_eq!(output.status.code(), Some(1));
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        error.contains("counts or keys are in its own process"),
        "{error}"
    );
}

#[test]
fn live_counts_are_those_of_the_proxy_and_stay_as_they_are() {
    let redis = RedisServer::start();
    let upstream = Upstream::ok();
    let config = format!(
        "upstream = \"{}\"\n[store]\nurl = \"redis://127.0.0.1:{}\"\ntimeout = \"5s\"\n\
         [limit.default]\nrate = \"3/day\"\nkey = \"header:x-user\"\n",
        upstream.url(),
        redis.port()
    );
    let proxy = Tidegate::start(&config);
    let explain = |user: &str| -> serde_json::Value {
        let header = format!("x-user: {user}");
        let words = ["GET", "/", "-H", &header, "--live", "--json"];
        let output = run(proxy.directory.path(), &words);
        assert!(output.status.success(), "{output:?}");
        serde_json::from_slice(&output.stdout).unwrap()
    };
    for sent in 0..3 {
        for _ in 0..2 {
            let told = explain("7");
            let rate = &told["limits"][0]["rates"][0];
            assert_eq!(rate["used"], sent, "{told}");
            assert_eq!(rate["remaining"], 2 - sent, "{told}");
            assert_eq!(told["verdict"]["outcome"], "forwarded");
            assert_eq!(told["counts"]["live"], true);
        }
        let answer = proxy.get_with("/", "x-user: 7\r\n");
        assert_eq!(answer.status, 200, "{answer:?}");
    }
    let told = explain("7");
    assert_eq!(told["verdict"]["outcome"], "denied", "{told}");
    assert_eq!(told["client_sees"]["status"], 429);
    let header = |name: &str| {
        let headers = told["client_sees"]["headers"].as_array().unwrap().iter();
        let mut found = headers.filter(|pair| pair[0] == name);
        found
            .next()
            .map(|pair| pair[1].as_str().unwrap().to_owned())
    };
    let answer = proxy.get_with("/", "x-user: 7\r\n");
    assert_eq!(answer.status, 429);
    for name in [
        "ratelimit-policy",
        "x-ratelimit-remaining",
        "x-ratelimit-limit",
    ] {
        assert_eq!(header(name), answer.header(name), "{name}");
    }
    assert_eq!(explain("8")["verdict"]["outcome"], "forwarded");
}

const BUDGETS: &str = r#"
upstream = "http://127.0.0.1:1"

[limit.tokens]
rate   = "2_000/min"
key    = "ip"
counts = "tokens"

[limit.spend]
rate   = "1_000_000/30d"
key    = "ip"
counts = "money"

[limit.models]
rate   = "10/h"
key    = ["ip", "body:model"]
counts = "requests"
values = { "body:model" = ["gpt-5"] }

[usage.chat]
format = "openai"
ask    = true

[prices]
"gpt-5*" = { input = 1.25, output = 10 }

[[route]]
path   = "/v1/chat/completions"
limits = ["tokens", "spend", "models"]
usage  = "chat"

[[route]]
path   = "/other"
limits = ["models"]
"#;

/// What is printed of a request with this body, about [`BUDGETS`].
fn told_of_body(path: &str, body: &str, words: &[&str]) -> String {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("proxy.toml"), BUDGETS).unwrap();
    std::fs::write(folder.path().join("body.json"), body).unwrap();
    let data = match words.is_empty() {
        true => body,
        false => "@body.json",
    };
    let given = ["POST", path, "-d", data];
    let output = run(folder.path(), &[&given[..], words].concat());
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn a_body_shows_its_model_and_what_it_reserves() {
    let body = r#"{"model":"gpt-5","stream":true,"messages":[],"max_tokens":500,"n":2}"#;
    let text = told_of_body("/v1/chat/completions", body, &[]);
    says(
        &text,
        &[
            "Usage chat (openai): gpt-5 input 23: one for 3 bytes of the body output 1000: the \
             maximum that the request names, for each of 2 answers the proxy asks the server",
            "costs 1023: reserved for its estimated input and output",
            "costs 10029: reserved for the price of its estimate, in millionths",
            "by body:model = gpt-5",
        ],
    );
    let json = told_of_body("/v1/chat/completions", body, &["--json"]);
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    let usage = &json["usage"];
    assert_eq!(usage["input"], 23);
    assert_eq!(usage["names_maximum"], true);
    assert_eq!(json["limits"][0]["cost"], 1023);
}

#[test]
fn a_body_without_a_maximum_reserves_what_the_limit_holds() {
    let body = format!(r#"{{"model":"gpt-5","prompt":"{}"}}"#, "x".repeat(3000));
    let text = told_of_body("/v1/chat/completions", &body, &[]);
    says(
        &text,
        &[
            "output 1024: `default_output`, since the request names no maximum",
            "costs 2000: reserved for its estimated input and output; 2034 is lowered",
        ],
    );
    assert!(!text.contains("asks the server"), "{text}");
    assert!(!text.contains("xxx"), "{text}");
    // Without a price there is no estimate of money.
    let text = told_of_body("/v1/chat/completions", r#"{"model":"o9"}"#, &[]);
    says(&text, &["refused (400): no price"]);
    // A key by members needs no usage.
    let text = told_of_body("/other", r#"{"model":"o9"}"#, &[]);
    says(&text, &["by body:model = other"]);
    assert!(!text.contains("Usage"), "{text}");
}

#[test]
fn the_route_that_refuses_a_client_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let text = "upstream = \"http://127.0.0.1:1\"\n[limit.default]\nrate = \"9/s\"\n\
                [[route]]\npath = \"/inner\"\naccess = { allow = [\"10.0.0.0/8\"] }\n";
    std::fs::write(folder.path().join("proxy.toml"), text).unwrap();
    let output = run(folder.path(), &["GET", "/inner", "--ip", "192.0.2.1"]);
    let text = String::from_utf8(output.stdout).unwrap();
    says(
        &text,
        &[
            "Verdict refused (403): access denied",
            "Route /inner",
            "not default: it fits too, but /inner has the more specific path",
        ],
    );
}

#[test]
fn a_url_with_tls_has_the_port_of_the_listener_with_tls() {
    let folder = tempfile::tempdir().unwrap();
    let text = "listen = \":8080\"\nupstream = \"http://127.0.0.1:1\"\n\
                [tls]\nlisten = \":8443\"\n[tls.acme]\ndomains = [\"b.example\"]\n\
                terms = true\ncache = \"acme\"\nchallenge = \"tls-alpn-01\"\n\
                [[route]]\nname = \"tls\"\npath = \"/a\"\nport = 8443\n\
                [[route]]\nname = \"plain\"\npath = \"/a\"\nport = 8080\n";
    std::fs::write(folder.path().join("proxy.toml"), text).unwrap();
    for (url, route) in [
        ("https://b.example/a", "Route tls"),
        ("http://b.example/a", "Route plain"),
    ] {
        let output = run(folder.path(), &["GET", url]);
        says(&String::from_utf8(output.stdout).unwrap(), &[route]);
    }
}
