//! Files that are right, and what they mean.

use std::time::Duration;

use http::Method;

use super::super::*;
use super::{accept, codes, fine};
use crate::limit::key::{Key, Part};
use crate::limit::{Algorithm, Missing, OnError};
use crate::route::{CostSource, Route, Target, ValueMatch};

const SMALLEST: &str = r#"
listen   = ":8080"
upstream = "http://127.0.0.1:3000"

[limit.default]
rate = "100/min"
key  = "ip"
"#;

fn route<'c>(config: &'c Config, name: &str) -> &'c Route {
    config
        .routes
        .iter()
        .find(|route| &*route.name == name)
        .expect("a route of this name")
}

fn limit_names(route: &Route) -> Vec<&str> {
    route.limits.iter().map(|limit| &*limit.name).collect()
}

#[test]
fn the_smallest_file_limits_everything() {
    let config = fine(SMALLEST);
    assert_eq!(config.listen, [Listen::Tcp("[::]:8080".parse().unwrap())]);
    assert_eq!(config.store.kind, StoreKind::Memory);
    assert_eq!(config.upstreams.len(), 1);
    assert_eq!(&*config.upstreams[0].name, "http://127.0.0.1:3000");
    assert_eq!(
        config.upstreams[0].servers,
        [ServerAddress::Http("127.0.0.1".into(), 3000).into()]
    );
    let default = route(&config, "default");
    assert_eq!(limit_names(default), ["default"]);
    let limit = &default.limits[0];
    assert_eq!(
        (limit.windows[0].rule.units, limit.windows[0].rule.window_us),
        (100, 60_000_000)
    );
    assert_eq!(limit.windows[0].rule.algorithm, Algorithm::Log);
    assert_eq!(limit.missing, Missing::Ip);
    assert_eq!(limit.on_error, OnError::Local);
    assert!(limit.windows[0].store_suffix.starts_with("default."));
}

#[test]
fn the_typical_file_is_read() {
    let config = fine(
        r#"
        listen          = ":8080"
        trusted_proxies = ["10.0.0.0/8"]

        [store]
        url      = "${STORE:-memory:}"
        timeout  = "20ms"
        on_error = "local"

        [upstream.api]
        servers = ["http://10.0.1.10:3000", "http://10.0.1.11:3000"]

        [api_key]
        known = "src/config/tests/keys.txt"

        [limit.per_client]
        rate = "600/min"
        key  = "api_key or ip"

        [limit.login]
        rate      = "5/min"
        key       = "ip"
        on_error  = "deny"

        [limit.search]
        rate   = "30/10s"
        key    = ["api_key or ip", "path"]
        x-note = "more than enough"

        [[route]]
        path     = "/login"
        methods  = ["POST"]
        upstream = "api"
        limits   = ["login", "per_client"]

        [[route]]
        path     = "/search/*"
        upstream = "api"
        limits   = ["search", "per_client"]

        [[route]]
        path     = "/*"
        upstream = "api"
        limits   = ["per_client"]

        [[bypass]]
        path = "/healthz"
        "#,
    );
    let StoreKind::Redis(redis) = &config.store.kind else {
        panic!("not Redis")
    };
    let address = RedisAddress::Tcp("redis.local".into(), 6379);
    assert_eq!(redis.topology, RedisTopology::Single(address));
    assert_eq!(redis.password.as_deref(), Some("secret"));
    assert_eq!(config.store.timeout, Duration::from_millis(20));
    let login = route(&config, "POST /login");
    assert_eq!(login.methods, [Method::POST]);
    assert_eq!(limit_names(login), ["login", "per_client"]);
    assert_eq!(login.limits[0].on_error, OnError::Deny);
    assert_eq!(
        limit_names(route(&config, "/search/*")),
        ["search", "per_client"]
    );
    assert_eq!(limit_names(route(&config, "/*")), ["per_client"]);
    assert_eq!(config.routes.iter().count(), 3);
    assert_eq!(config.bypass.len(), 1);
    assert_eq!(config.client_ip.trusted.len(), 1);
}

#[test]
fn one_budget_is_one_limit_wherever_it_is_used() {
    let text = format!("{SMALLEST}\n[[route]]\npath = \"/a\"\n[[route]]\npath = \"/b\"\n");
    let config = fine(&text);
    let (a, b) = (route(&config, "/a"), route(&config, "/b"));
    assert!(Arc::ptr_eq(&a.limits[0], &b.limits[0]));
    assert!(Arc::ptr_eq(&a.limits[0], &config.limits[0]));
}

#[test]
fn a_copy_is_equal_and_shares_nothing() {
    let config = fine(SMALLEST);
    let copy = config.fresh_copy();
    assert_eq!(format!("{config:?}"), format!("{copy:?}"));
    let (a, b) = (route(&config, "default"), route(&copy, "default"));
    assert!(!Arc::ptr_eq(&a.limits[0], &b.limits[0]));
    assert!(!Arc::ptr_eq(&a.limits[0].name, &b.limits[0].name));
    assert!(!Arc::ptr_eq(&a.name, &b.name));
    assert!(Arc::ptr_eq(&b.limits[0], &copy.limits[0]));
    assert!(!Arc::ptr_eq(
        &config.upstreams[0].name,
        &copy.upstreams[0].name
    ));
}

#[test]
fn rates_in_place_are_limits_named_after_their_route() {
    let config = fine(
        r#"
        upstream = "http://127.0.0.1:3000"
        [limit.default]
        rate = "100/min"
        key  = "jwt:sub"
        missing = "deny"
        [auth.jwt]
        jwks_file = "src/config/tests/jwks.json"
        [[route]]
        path    = "/login"
        methods = ["POST"]
        limits  = ["5/min", "50/h", "default"]
        "#,
    );
    let login = route(&config, "POST /login");
    assert_eq!(
        limit_names(login),
        ["post-login", "post-login-2", "default"]
    );
    assert_eq!(login.limits[0].key, Key::parse(["jwt:sub"]).unwrap());
    assert_eq!(login.limits[0].missing, Missing::Deny);
    assert_ne!(
        login.limits[0].windows[0].identity,
        login.limits[1].windows[0].identity
    );
    assert_eq!(config.limits.len(), 3);
}

#[test]
fn a_rate_in_place_is_nobody_elses_limit() {
    let config = fine(
        r#"
        upstream = "http://127.0.0.1:3000"
        [[route]]
        name   = "default"
        path   = "/a"
        limits = ["5/min"]
        [[route]]
        path   = "/b"
        "#,
    );
    assert_eq!(limit_names(route(&config, "default")), ["default-2"]);
    assert!(route(&config, "/b").limits.is_empty());
    let text = r#"
        upstream = "http://127.0.0.1:3000"
        [[route]]
        path   = "/a"
        limits = ["5/min"]
        [[route]]
        path   = "/b"
        limits = ["a"]
        "#;
    assert_eq!(codes(text), ["T117"]);
}

#[test]
fn rates_in_place_count_by_address_without_a_default() {
    let config = fine("[[route]]\npath = \"/*\"\nupstream = \"http://a\"\nlimits = \"100/min\"\n");
    let limit = &route(&config, "/*").limits[0];
    assert_eq!(
        (&*limit.name, limit.key.parts[0].0.as_slice()),
        ("all", [Part::Ip].as_slice())
    );
}

#[test]
fn no_limits_and_unlimited_charge_nothing() {
    let config = fine(
        r#"
        upstream = "http://127.0.0.1:3000"
        [limit.default]
        rate = "100/min"
        [limit.free]
        rate = "unlimited"
        [[route]]
        path   = "/static/*"
        limits = []
        [[route]]
        path   = "/free"
        limits = ["free"]
        [[route]]
        path   = "/also"
        limits = ["unlimited"]
        "#,
    );
    for name in ["/static/*", "/free", "/also"] {
        assert!(route(&config, name).limits.is_empty(), "{name}");
    }
    assert_eq!(limit_names(route(&config, "default")), ["default"]);
    assert_eq!(config.limits.len(), 1);
}

#[test]
fn a_catch_all_route_replaces_the_default_one() {
    let config = fine(&format!(
        "{SMALLEST}[[route]]\npath = \"/*\"\nname = \"mine\"\n"
    ));
    let names: Vec<_> = config.routes.iter().map(|route| &*route.name).collect();
    assert_eq!(names, ["mine"]);
    // One for some methods only does not.
    let text =
        format!("{SMALLEST}[[route]]\npath = \"/*\"\nname = \"default\"\nmethods = \"GET\"\n");
    let config = fine(&text);
    let names: Vec<_> = config.routes.iter().map(|route| &*route.name).collect();
    assert_eq!(names, ["default", "default #2"]);
}

#[test]
fn routes_that_differ_only_in_headers_have_different_names() {
    let config = fine(
        r#"
        upstream = "http://127.0.0.1:3000"
        [[route]]
        path    = "/a"
        headers = { X-Version = "2" }
        [[route]]
        path    = "/a"
        headers = { x-version = "3", authorization = true }
        [[route]]
        path    = "/a"
        host    = "*.Example.com"
        "#,
    );
    let names: Vec<_> = config.routes.iter().map(|route| &*route.name).collect();
    assert_eq!(names, ["/a", "/a #2", "*.Example.com/a", "default"]);
    let second = route(&config, "/a #2");
    let matched: Vec<_> = second
        .headers
        .iter()
        .map(|one| (one.name.as_str(), &one.value))
        .collect();
    let exactly = ValueMatch::Exactly("3".to_owned());
    let expected = [("x-version", &exactly), ("authorization", &ValueMatch::Any)];
    assert_eq!(matched, expected);
}

#[test]
fn costs_are_numbers_or_headers() {
    let config = fine(
        r#"
        upstream = "http://127.0.0.1:3000"
        trusted_proxies = "10.0.0.1"
        [limit.default]
        rate = "100/min"
        cost = 2
        [[route]]
        path = "/export"
        cost = 50
        [[route]]
        path = "/batch"
        cost = "header:x-cost"
        "#,
    );
    assert_eq!(route(&config, "/export").cost, CostSource::Fixed(50));
    assert_eq!(route(&config, "/export").limits[0].cost, 2);
    let header = http::HeaderName::from_static("x-cost");
    let cost = CostSource::Header(header.clone());
    assert_eq!(route(&config, "/batch").cost, cost);
    let units = |lines: &[&'static str], trusted| {
        let line = |text: &&'static str| (header.clone(), http::HeaderValue::from_static(text));
        let headers: http::HeaderMap = lines.iter().map(line).collect();
        cost.units(&headers, trusted)
    };
    assert_eq!((units(&["7"], true), units(&["7"], false)), (7, 1));
    // A client may have sent all but one of these.
    assert_eq!(units(&["2", "50"], true), 50);
    assert_eq!(units(&["much", "2, 50 , 3"], true), 50);
    assert_eq!((units(&["0"], true), units(&["", "x"], true)), (0, 1));
}

#[test]
fn the_same_url_is_one_upstream() {
    let config = fine(
        r#"
        upstream = "http://localhost:3000"
        [[route]]
        path     = "/a"
        upstream = "http://LOCALHOST:3000/"
        [[route]]
        path     = "/b"
        upstream = "unix:/run/b.sock"
        "#,
    );
    let names: Vec<_> = config
        .upstreams
        .iter()
        .map(|upstream| &*upstream.name)
        .collect();
    assert_eq!(names, ["http://localhost:3000", "unix:/run/b.sock"]);
    assert!(matches!(route(&config, "/a").target, Target::Upstream(0)));
    assert!(matches!(route(&config, "/b").target, Target::Upstream(1)));
}

#[test]
fn secrets_come_from_files_and_are_never_shown() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.display().to_string()
    };
    let password = file("password", "hush-hush\n");
    let key = file("key", "0123456789abcdef0123456789abcdef\n");
    let value = file("value", "let me in\r\n");
    let config = fine(&format!(
        r#"
        upstream = "http://127.0.0.1:3000"
        [store]
        url           = "redis://localhost/2"
        username      = "proxy"
        password_file = "{password}"
        hash_key_file = "{key}"
        [[bypass]]
        header     = "x-internal"
        value_file = "{value}"
        [[bypass]]
        key = "monitor"
        ip  = "10.0.0.0/8"
        "#,
    ));
    let StoreKind::Redis(redis) = &config.store.kind else {
        panic!("not Redis")
    };
    assert_eq!(redis.username.as_deref(), Some("proxy"));
    assert_eq!(redis.password.as_deref(), Some("hush-hush"));
    assert!(config.store.hash_key.is_some());
    let header = config.bypass[0].header.as_ref().unwrap();
    assert_eq!(*header.1, *b"let me in");
    let shown = format!("{config:?}");
    for secret in ["hush-hush", "let me in", "monitor"] {
        assert!(!shown.contains(secret), "{shown}");
    }
}

#[test]
fn a_byte_order_mark_does_no_harm() {
    fine(&format!("\u{feff}{SMALLEST}"));
}

#[test]
fn the_quick_start_file_is_fine() {
    let config = fine(include_str!("../../../proxy.toml"));
    assert_eq!(
        limit_names(route(&config, "POST /login")),
        ["login", "default"]
    );
    assert_eq!(limit_names(route(&config, "default")), ["default"]);
}

#[test]
fn ten_thousand_routes_load_in_a_moment() {
    let mut text = String::from("upstream = \"http://127.0.0.1:3000\"\n");
    for i in 0..10_000 {
        text.push_str(&format!(
            "[[route]]\npath = \"/r{i}\"\nlimits = [\"5/min\"]\n"
        ));
    }
    let (config, _) = accept(&text);
    assert_eq!(config.routes.iter().count(), 10_001);
}

#[test]
fn the_end_of_a_process_has_its_times() {
    let server = fine(SMALLEST).server;
    let seconds = Duration::from_secs;
    assert_eq!(server.drain_timeout, seconds(25));
    assert_eq!(server.drain_idle, seconds(1));
    assert_eq!(server.handover_timeout, seconds(25));
    assert_eq!(server.pid_file, None);
    let text =
        format!("{SMALLEST}[server]\ndrain_timeout = \"40s\"\npid_file = \"/run/tidegate.pid\"\n");
    let server = fine(&text).server;
    assert_eq!(server.handover_timeout, seconds(40));
    assert_eq!(server.pid_file, Some("/run/tidegate.pid".into()));
    let text = format!("{SMALLEST}[server]\ndrain_idle = \"0s\"\nhandover_timeout = \"10min\"\n");
    let server = fine(&text).server;
    assert_eq!(
        (server.drain_idle, server.handover_timeout),
        (seconds(0), seconds(600))
    );
}

#[test]
fn what_clients_may_speak() {
    use crate::config::ProxyProtocol;
    let text = "upstream = \"http://a\"\ntrusted_proxies = \"10.0.0.1\"\n";
    let server = fine(text).server;
    assert_eq!(server.proxy_protocol, ProxyProtocol::Off);
    assert_eq!((server.http2, server.max_streams), (true, 128));
    let text =
        format!("{text}proxy_protocol = \"optional\"\n[server]\nhttp2 = false\nmax_streams = 10\n");
    let server = accept(&text).0.server;
    assert_eq!(server.proxy_protocol, ProxyProtocol::Optional);
    assert_eq!((server.http2, server.max_streams), (false, 10));
}
