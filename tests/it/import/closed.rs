//! Guarded and limited routes of gateways: no other route of the result takes their requests.

use std::fs;

use super::run;
use crate::house::{Tidegate, Upstream};

/// The result of an import in a proxy. `@UP@` in the source is an upstream.
struct Imported {
    proxy: Tidegate,
    text: String,
    _upstream: Upstream,
}

impl Imported {
    fn start(program: &str, source: &str) -> Imported {
        let upstream = Upstream::ok();
        let address = upstream.url().replace("http://", "");
        let folder = tempfile::tempdir().unwrap();
        fs::write(
            folder.path().join("source"),
            source.replace("@UP@", &address),
        )
        .unwrap();
        let written = run(folder.path(), &["import", program, "source"]);
        assert!(written.status.success(), "{written:?}");
        let text = String::from_utf8(written.stdout).unwrap();
        // The tests' proxies say themselves where they listen.
        let lines = text.lines().filter(|line| !line.starts_with("listen "));
        let config: String = lines.map(|line| format!("{line}\n")).collect();
        Imported {
            proxy: Tidegate::start(&config),
            text,
            _upstream: upstream,
        }
    }

    /// Asks `HOST PATH` in order, and compares the statuses.
    #[track_caller]
    fn check(&self, rows: &[(&str, u16)]) {
        for (request, expected) in rows {
            let (host, path) = request.split_once(' ').unwrap();
            let asked = format!("GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
            let status = self.proxy.connect().ask(asked).status;
            assert_eq!(status, *expected, "{request}\n{}", self.text);
        }
    }
}

#[test]
fn guards_of_kong_hold_for_hosts_expressions_and_prefixes() {
    let imported = Imported::start(
        "kong",
        r#"_format_version: "3.0"
services:
  - name: web
    url: http://@UP@
    routes:
      - {name: all, paths: ["/"], strip_path: false}
      - {name: port, hosts: ["admin.test:8000"], plugins: [{name: ip-restriction}]}
      - {name: open, hosts: ["admin.*"], plugins: [{name: ip-restriction}]}
      - {name: look, paths: ["~/v\\d+/admin(?=/|$)"], plugins: [{name: ip-restriction}]}
      - {name: begin, paths: ["/secret"], plugins: [{name: ip-restriction}]}
      - name: login
        paths: ["/login"]
        strip_path: false
        plugins: [{name: rate-limiting, config: {minute: 1, limit_by: ip}}]
      - name: strips
        paths: ["/pay"]
        plugins: [{name: rate-limiting, config: {minute: 1, limit_by: ip}}]
      - {name: docs, paths: ["/login/docs"], strip_path: false}
"#,
    );
    imported.check(&[
        ("a.test /x", 200),
        ("admin.test:8000 /x", 501),
        ("admin.com /x", 501),
        ("a.test /v1/admin", 501),
        ("a.test /secret", 501),
        ("a.test /secret.php", 501),
        ("a.test /login.php", 200),
        ("a.test /login", 429),
        ("a.test /login-more/x", 429),
        ("a.test /pay", 200),
        ("a.test /pay-more", 501),
    ]);
}

#[test]
fn paths_of_kong_2_are_expressions() {
    let imported = Imported::start(
        "kong",
        r#"_format_version: "2.1"
services:
  - name: web
    url: http://@UP@
    routes:
      - {name: all, paths: ["/api"], strip_path: false}
      - {name: admin, paths: ["/api/v\\d+/admin"], plugins: [{name: ip-restriction}]}
"#,
    );
    imported.check(&[("a.test /api/v1/admin", 501), ("a.test /api/v1", 200)]);
}

#[test]
fn guards_of_apisix_hold_for_parameters_stars_and_prefixes() {
    let imported = Imported::start(
        "apisix",
        r#"routes:
  - {id: all, uri: /*, upstream: {nodes: {"@UP@": 1}}}
  - {id: host, uri: /*, host: "adm.test:80", plugins: {basic-auth: {}}}
  - {id: param, uri: /users/:id/admin, plugins: {basic-auth: {}}}
  - {id: star, uri: /t/*/adm, plugins: {basic-auth: {}}}
  - {id: begin, uri: /secr*, plugins: {basic-auth: {}}}
"#,
    );
    imported.check(&[
        ("a.test /x", 200),
        ("adm.test /x", 501),
        ("a.test /users/7/admin", 501),
        ("a.test /users/7", 200),
        ("a.test /t/a/b/adm", 501),
        ("a.test /secret", 501),
    ]);
}

#[test]
fn apis_of_tyk_stay_on_their_hosts_and_ports() {
    let imported = Imported::start(
        "tyk",
        r#"[{"name": "int", "use_keyless": true, "active": true,
  "domain": "{s:int|stage}.test",
  "proxy": {"listen_path": "/int/", "target_url": "http://@UP@"}},
{"name": "port", "use_keyless": true, "active": true, "listen_port": 9,
  "proxy": {"listen_path": "/adm/", "target_url": "http://@UP@"}}]"#,
    );
    imported.check(&[
        ("stage.test /int/x", 200),
        ("a.test /int/x", 404),
        ("a.test /adm/x", 404),
    ]);
}

#[test]
fn requests_that_fail_count_for_limits_of_requests() {
    let imported = Imported::start(
        "kong",
        r#"_format_version: "3.0"
services:
  - name: chat
    url: http://@UP@
    routes:
      - name: chat
        paths: ["/chat"]
        plugins:
          - name: ai-proxy
            config:
              route_type: llm/v1/chat
              model: {provider: openai, options: {upstream_url: "http://127.0.0.1:9/v1"}}
          - name: ai-rate-limiting-advanced
            config: {llm_providers: [{name: openai, limit: 1000, window_size: 60}]}
          - {name: rate-limiting, config: {minute: 2, limit_by: ip}}
"#,
    );
    // No server listens there. `refund` would give both requests back.
    imported.check(&[
        ("a.test /chat", 502),
        ("a.test /chat", 502),
        ("a.test /chat", 429),
    ]);
}
