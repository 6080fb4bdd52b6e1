//! The effective configuration means what the file means, says every default, and no secret.

use super::super::effective::{differences, effective, toml};
use super::{accept, env};

const FILE: &str = r#"
    listen = ["127.0.0.1:1", "unix:a b"]
    x-note = "ours"
    [store]
    url = "${STORE}"
    [limit.default]
    rate = "${RATE}"
    tiers = { pro = ["10/s", "1000/h"] }
    exempt = ["10.0.0.0/8"]
    [tier]
    from = "api_key or jwt:plan"
    "#;

const PLAIN: &str = r#"
    [limit.default]
    rate = "7/min"
    [limit."x-y"]
    rate = ["10/s", "100/h"]
    shadow = true
    ban = { after = "9/min", for = "48h" }
    [upstream.api]
    servers = ["http://a.test", { url = "http://b.test:81", weight = 3 }]
    health = "/healthz"
    retries = 1
    eject = false
    [[upstream.b.servers]]
    url = "unix:/s"
    [[route]]
    path = "/a/*"
    methods = ["GET"]
    upstream = "api"
    headers = { x-version = "2", "x.odd" = true }
    headers_up = { "+x-tag" = "a\"b\\", cookie = false }
    [[route]]
    path = "/b"
    upstream = "b"
    limits = ["x-y", "default"]
    [[bypass]]
    path = "/healthz"
    [deny.body]
    text = "slow\ndown"
    "#;

#[test]
fn it_means_what_the_file_means() {
    for text in [PLAIN, include_str!("../../../proxy.toml")] {
        let (config, _) = accept(text);
        let whole = toml(&effective(text, &env));
        let (again, _) = accept(&whole);
        assert_eq!(format!("{config:#?}"), format!("{again:#?}"), "{whole}");
        // There is nothing left to say.
        assert_eq!(toml(&effective(&whole, &env)), whole);
        assert_eq!(
            differences(&effective(text, &env), &effective(&whole, &env)),
            [""; 0]
        );
    }
}

#[test]
fn a_ban_has_its_defaults() {
    let ban = |first: &str| {
        let text =
            format!("[limit.a]\nrate = \"9/s\"\nban = {{ after = \"9/s\", for = {first:?} }}");
        effective(&text, &env)["limit"]["a"]["ban"].to_string()
    };
    let text = r#"{"after":"9/s","again":2,"for":"1h","max_for":"24h"}"#;
    assert_eq!(ban("1h"), text);
    assert_eq!(ban("48h"), text.replace("24h", "48h").replace("1h", "48h"));
}

#[test]
fn variables_are_filled_in_and_defaults_said() {
    let whole = toml(&effective(FILE, &env));
    for line in [
        "listen = [\"127.0.0.1:1\", \"unix:a b\"]",
        "url = \"redis://***@redis.local\"",
        "rate = \"7/min\"",
        "timeout = \"25ms\"",
        "on_error = \"local\"",
        "tiers = { pro = [\"10/s\", \"1000/h\"] }",
        "exempt = [\"10.0.0.0/8\"]",
        "[limit.default]",
        "[server]",
        "max_body = \"100MiB\"",
    ] {
        assert!(whole.lines().any(|one| one == line), "{line}\n{whole}");
    }
    assert!(!whole.contains("x-note"));
}

#[test]
fn routes_that_answer_get_no_settings_of_an_upstream() {
    let text = r#"
        upstream = "http://a.test"
        [deny.body]
        text = "cost $${HOME} or $$$$5, $5$"
        [[route]]
        path = "/old"
        redirect = "/new"
        [[route]]
        path = "/ok"
        respond = { status = 200, body = "fine" }
        "#;
    let (config, _) = accept(text);
    let whole = toml(&effective(text, &env));
    assert!(
        whole.contains("text = \"cost $${HOME} or $$$5, $5$\""),
        "{whole}"
    );
    let (again, _) = accept(&whole);
    assert_eq!(format!("{config:#?}"), format!("{again:#?}"), "{whole}");
}

#[test]
fn nothing_secret_is_in_it() {
    let text = r#"
        [api_key]
        known = { url = "https://h/keys?token=hush&page=2" }
        [jwt]
        jwks_url = "https://u:hush@h/?user=a@b&key=hush#x"
        [store]
        url = "redis://:hush@h1"
        urls = ["redis://u:hush@h1"]
        [limit.a]
        rate = "1/s"
        exempt = ["hush", "10.0.0.1"]
        [limit.b]
        rate = "1/s"
        exempt = "hush"
        key = ["ip", "api_key"]
        values = { api_key = ["hush", "hush2"] }
        [[route]]
        path = "/"
        headers = { x-api-key = "hush", authorization = true }
        headers_up = { "+Authorization" = "Bearer hush", x-auth = "hush" }
        query = { token = "hush", v = "2" }
        [[bypass]]
        header = "x-in"
        value = "hush"
        [[bypass]]
        key = "hush"
        [upstream.u]
        servers = ["http://a"]
        health = "/healthz?token=hush&deep=1"
        [error_page.e]
        status = "5xx"
        redirect = "/sorry?key=hush&more={request_id}"
        "#;
    let whole = toml(&effective(text, &env));
    assert!(!whole.contains("hush"), "{whole}");
    assert!(whole.contains("keys?token=***&page=2\""), "{whole}");
    assert!(whole.contains("\"/healthz?token=***&deep=1\""), "{whole}");
    assert!(whole.contains("\"https://***@b&key=***#x\""), "{whole}");
    assert!(whole.contains("authorization = true"), "{whole}");
    assert!(whole.contains("v = \"2\""), "{whole}");
    assert!(
        whole.contains("values = { api_key = [\"***\"] }"),
        "{whole}"
    );
    assert!(
        whole.contains("exempt = [\"***\", \"10.0.0.1\"]"),
        "{whole}"
    );
    assert!(whole.contains("header = \"x-in\"\n"), "{whole}");
    assert!(whole.matches("value = \"***\"").count() == 1, "{whole}");
}

#[test]
fn differences_are_told_as_a_reload_tells_them() {
    let old = effective("[limit.a]\nrate = \"1/s\"\n", &env);
    let new = effective(
        "[limit.a]\nrate = \"2/s\"\n[store]\ntimeout = \"25ms\"\n",
        &env,
    );
    assert_eq!(differences(&old, &new), ["limit a: 1/s -> 2/s"]);
}
