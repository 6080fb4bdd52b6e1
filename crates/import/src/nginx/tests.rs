//! Tests of single faults of the import. `tests/it/import.rs` imports whole files.

use std::fs;

use crate::{Grade, Imported, SourceProgram, import};

/// Imports a text in `http`, from a folder that has no other file.
pub(super) fn import_http(text: &str) -> Imported {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("nginx.conf");
    fs::write(&path, format!("events {{}}\nhttp {{\n{text}\n}}\n")).unwrap();
    import(SourceProgram::Nginx, &[path]).unwrap()
}

impl Imported {
    fn has_note(&self, grade: Grade, why: &str) -> bool {
        let mut notes = self.notes.iter();
        notes.any(|note| note.grade == grade && note.why.contains(why))
    }

    #[track_caller]
    fn assert_note(&self, grade: Grade, why: &str) {
        assert!(self.has_note(grade, why), "{why}: {:#?}", self.notes);
    }

    /// Returns the parts of the text between empty lines that have such a line.
    fn sections(&self, line: &str) -> Vec<&str> {
        let sections = self.text.split("\n\n");
        sections
            .filter(|section| section.lines().any(|one| one == line))
            .collect()
    }
}

#[test]
fn a_pattern_without_its_folder_closes_its_block() {
    let imported = import_http(
        "server { listen 80; include snippets/auth*.conf;\n\
         location / { proxy_pass http://10.0.0.1; } }",
    );
    imported.assert_note(Grade::Lost, "no such folder here");
    imported.assert_has_not("\nupstream ");
    // Nothing beside `http` guards a route, and an empty folder includes nothing.
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("nginx.conf");
    let text = "include modules/*.conf;\nhttp { include *.none; server { listen 80;\n\
                location / { proxy_pass http://10.0.0.1; } } }";
    fs::write(&path, text).unwrap();
    let imported = import(SourceProgram::Nginx, &[path]).unwrap();
    imported.assert_has("\nupstream ");
}

#[test]
fn a_page_is_not_asked_for_past_the_guards_of_its_location() {
    let page = |directives: &str| {
        import_http(&format!(
            "limit_req_zone $binary_remote_addr zone=a:1m rate=1r/s;\n\
             server {{ listen 80; location / {{ error_page 502 = @spare;\n\
             proxy_pass http://10.0.0.1; }}\n\
             location @spare {{ {directives} proxy_pass http://10.0.0.2; }} }}"
        ))
    };
    for (directives, why) in [
        ("limit_req zone=a;", "without the `limit_req`"),
        (
            "allow 10.0.0.0/8; deny all;",
            "without the `allow` and `deny`",
        ),
        ("if ($http_x_a = 1) { return 403; }", "without the `if`"),
    ] {
        let imported = page(directives);
        imported.assert_note(Grade::Lost, why);
        imported.assert_has_not("[error_page");
    }
    let imported = page("");
    imported.assert_note(Grade::Differs, "no limit counts it");
    imported.assert_has("[error_page");
    let early = import_http(
        "limit_req_zone $binary_remote_addr zone=a:1m rate=1r/s;\n\
         server { listen 80; limit_req zone=a; location / { error_page 418 = @beta;\n\
         if ($http_x_a = 1) { return 418; } proxy_pass http://10.0.0.1; }\n\
         location @beta { proxy_pass http://10.0.0.2; } }",
    );
    early.assert_note(Grade::Lost, "without the `limit_req`");
}

#[test]
fn a_host_that_a_location_tests_has_a_route_of_its_own() {
    let imported = import_http(
        "server { listen 80; server_name a.test www.a.test;\n\
         location / { if ($host = www.a.test) { return 403; } proxy_pass http://10.0.0.1; } }\n\
         server { listen 80; server_name b.test;\n\
         location / { if ($host = a.test) { return 403; } proxy_pass http://10.0.0.1; } }",
    );
    let hosts = imported.sections("host    = \"www.a.test\"");
    assert!(!hosts.is_empty(), "{}", imported.text);
    let refuses = |section: &&str| section.contains("status = 403");
    assert!(hosts.iter().all(refuses), "{}", imported.text);
    assert_eq!(
        imported.text.matches("status = 403").count(),
        1,
        "{}",
        imported.text
    );
    let mixed = import_http(
        "server { listen 80; server_name *.a.test;\n\
         location / { if ($host = x.b.a.test) { return 403; } proxy_pass http://10.0.0.1; } }\n\
         server { listen 80; server_name *.b.a.test;\n\
         location / { proxy_pass http://10.0.0.2; } }",
    );
    mixed.assert_has("only some hosts are meant");
}

#[test]
fn the_first_server_keeps_a_name() {
    let imported = import_http(
        "server { listen 80; server_name a.test;\n\
         location / { proxy_pass http://10.0.0.1; } }\n\
         server { listen 80; server_name a.test b.test;\n\
         location / { proxy_pass http://10.0.0.2; } }\n\
         server { listen 80; server_name b.test;\n\
         location / { proxy_pass http://10.0.0.3; } }\n\
         server { listen 81; server_name a.test;\n\
         location / { proxy_pass http://10.0.0.4; } }",
    );
    for why in [
        "nginx ignores a.test: line 3 has this name",
        "nginx ignores b.test: line 5 has this name",
        "earlier servers have all its names",
    ] {
        imported.assert_note(Grade::Needless, why);
    }
    imported.assert_has_not("10.0.0.3");
    imported.assert_has("10.0.0.4");
}

#[test]
fn only_a_redirect_to_the_same_place_becomes_that_of_tls() {
    let site = |names: &str, redirect: &str| {
        import_http(&format!(
            "server {{ listen 80; server_name {names}; {redirect} }}\n\
             server {{ listen 443 ssl; server_name a.test b.test; ssl_certificate no.pem;\n\
             ssl_certificate_key no.key; location / {{ proxy_pass http://10.0.0.1; }} }}"
        ))
    };
    for (names, redirect, keeps_route) in [
        ("a.test", "return 301 https://$host$request_uri;", false),
        ("a.test", "return 301 https://${host}$request_uri;", false),
        ("a.test", "return 301 https://a.test$request_uri;", false),
        (
            "a.test",
            "rewrite ^/(.*)$ https://a.test/$1 permanent;",
            false,
        ),
        (
            "a.test b.test",
            "return 301 https://a.test$request_uri;",
            false,
        ),
        ("_", "return 301 https://a.test$request_uri;", false),
        (
            "a.test c.test",
            "return 301 https://a.test$request_uri;",
            true,
        ),
        ("c.test", "return 301 https://docs.test$request_uri;", true),
        ("a.test", "return 301 https://$host/start;", true),
    ] {
        let imported = site(names, redirect);
        let has_route = imported.text.contains("\nredirect = { to = ");
        assert_eq!(
            has_route, keeps_route,
            "{names} {redirect}\n{}",
            imported.text
        );
    }
    let imported = site("_", "return 301 https://a.test$request_uri;");
    imported.assert_note(Grade::Differs, "keeps the host");
}

#[test]
fn the_name_of_a_server_is_no_key_that_clients_choose() {
    let zone = "limit_req_zone $server_name zone=all:1m rate=5r/s;\n";
    let server = |name: &str| {
        format!(
            "server {{ listen 80; server_name {name} www.{name}; limit_req zone=all;\n\
             location / {{ proxy_pass http://10.0.0.1; }} }}\n"
        )
    };
    let one = import_http(&format!("{zone}{}", server("a.test")));
    one.assert_has("[limit.all]");
    one.assert_has("\"global\"");
    let two = import_http(&format!("{zone}{}{}", server("a.test"), server("b.test")));
    for name in ["[limit.all-a-test]", "[limit.all-b-test]"] {
        two.assert_has(name);
    }
    two.assert_has_not("\"host\"");
}

#[test]
fn each_lost_hsts_is_said() {
    const HSTS: &str = "add_header Strict-Transport-Security \"max-age=31536000\" always;";
    let site = |of_server: &str, of_location: &str| {
        import_http(&format!(
            "server {{ listen 443 ssl; server_name a.test; {of_server}\n\
             location / {{ {of_location} proxy_pass http://10.0.0.1; }} }}\n\
             server {{ listen 443 ssl; server_name b.test;\n\
             location / {{ proxy_pass http://10.0.0.1; }} }}"
        ))
    };
    let for_all = "`hsts` of [tls] is for all servers, also for those without";
    let only_there = "only `hsts` of [tls] sends it";
    let imported = site(HSTS, "");
    imported.assert_note(Grade::Differs, for_all);
    assert!(!imported.has_note(Grade::Lost, only_there), "{imported:?}");
    let imported = site("", HSTS);
    imported.assert_note(Grade::Lost, only_there);
    let plain = import_http(&format!(
        "server {{ listen 80; {HSTS} location / {{ proxy_pass http://10.0.0.1; }} }}"
    ));
    plain.assert_note(Grade::Lost, only_there);
}

#[test]
fn unusual_values_of_automatic_headers_are_said() {
    let header = |header: &str| {
        import_http(&format!(
            "server {{ listen 80; server_name a.test; set $tenant one.internal;\n\
             location / {{ proxy_set_header {header}; proxy_pass http://10.0.0.1; }} }}"
        ))
    };
    for (text, is_kept) in [
        ("X-Forwarded-Proto $scheme", true),
        ("X-Forwarded-Proto https", false),
        ("X-Real-IP ${remote_addr}", true),
        ("X-Real-IP $http_cf_connecting_ip", false),
        ("Upgrade $http_upgrade", true),
        ("Host ${host}", true),
        ("Host $http_host", true),
        ("Host $proxy_host", true),
        ("Host $host:8443", false),
        ("Host $http_x_forwarded_host", false),
    ] {
        let imported = header(text);
        let is_lost = imported.notes.iter().any(|note| note.grade == Grade::Lost);
        assert_eq!(is_lost, !is_kept, "{text} {imported:?}");
    }
    let imported = header("Host $tenant");
    imported.assert_has("\"one.internal\"");
}

#[test]
fn an_if_that_answers_has_its_own_headers() {
    let imported = import_http(
        "server { listen 80; server_name a.test; location / {\n\
         if ($request_method = OPTIONS) { add_header Access-Control-Max-Age 600; return 204; }\n\
         if ($http_x_bad) { add_header X-Why bad always; add_header X-Ok ok; return 403; }\n\
         if ($http_x_old) { return 204; }\n\
         add_header X-Own own always; proxy_pass http://10.0.0.1; } }",
    );
    let route = |part: &str| {
        let mut routes = imported.text.split("[[route]]");
        let found = routes.find(|route| route.contains(part));
        found.unwrap_or_else(|| panic!("{part} {imported:?}"))
    };
    let preflight = route("methods");
    assert!(preflight.contains("headers_success = { \"+access-control-max-age\" = \"600\" }"));
    assert!(!preflight.contains("x-own"), "{preflight}");
    let denied = route("x-bad");
    assert!(
        denied.contains("headers_down = { \"+x-why\" = \"bad\" }"),
        "{denied}"
    );
    assert!(
        !denied.contains("x-ok") && !denied.contains("x-own"),
        "{denied}"
    );
    assert!(route("{ \"x-old\"").contains("x-own"), "{imported:?}");
    assert!(route("upstream ").contains("x-own"), "{imported:?}");
}

#[test]
fn a_redirect_with_the_scheme_of_the_request_keeps_it() {
    let imported = import_http(
        "server { listen 80; server_name a.test;\n\
         location / { return 301 $scheme://b.test$request_uri; } }",
    );
    let to = "to = \"{scheme}://b.test{uri}\"";
    imported.assert_has(to);
}

#[test]
fn a_firm_guard_with_longer_locations_comes_before_expressions() {
    let import = |regex: &str| {
        import_http(&format!(
            "server {{ listen 80; location / {{ proxy_pass http://10.0.0.1; }}\n\
             location ^~ /admin/ {{ deny all; }}\n\
             location /admin/public/ {{ proxy_pass http://10.0.0.2; }}\n\
             location ~ \\.php$ {{ {regex} }} }}"
        ))
    };
    let imported = import("proxy_pass http://10.0.0.3;");
    let at = |text: &str| {
        imported
            .text
            .find(text)
            .unwrap_or_else(|| panic!("{}", imported.text))
    };
    // nginx asks the expressions before the longer location.
    let copy = at("\"regex:^/admin/public/.*(?:\\\\.php$)\"");
    assert!(copy < at("\"regex:^/admin/public/\""));
    assert!(at("\"regex:^/admin/public/\"") < at("\"regex:^/admin/\""));
    assert!(at("\"regex:^/admin/\"") < at("\"regex:\\\\.php$\""));
    let imported = import("deny all;");
    let guard = imported.sections("path    = \"regex:^/admin/public/.*(?:\\\\.php$)\"");
    assert!(guard[0].contains("status = 403"), "{}", imported.text);
}

#[test]
fn a_prefix_with_limits_takes_the_rest_of_its_segment() {
    let imported = import_http(
        "limit_req_zone $binary_remote_addr zone=a:1m rate=1r/s;\n\
         server { listen 80; location / { proxy_pass http://10.0.0.1; }\n\
         location /login { limit_req zone=a; proxy_pass http://10.0.0.1; } }",
    );
    imported.assert_has("\"regex:^/login\"");
}

#[test]
fn the_status_of_a_nested_limit_is_read() {
    let imported = import_http(
        "limit_req_zone $binary_remote_addr zone=a:1m rate=1r/s;\n\
         server { listen 80; location /a/ { proxy_pass http://10.0.0.1;\n\
         location /a/b/ { limit_req zone=a; limit_req_status 429;\n\
         proxy_pass http://10.0.0.1; } } }",
    );
    imported.assert_has("[deny]\nstatus = 429");
}

#[test]
fn settings_of_single_locations_are_said() {
    let imported = import_http(
        "client_body_timeout 10s;\n\
         server { listen 80; location / { client_body_timeout 5m; internal;\n\
         proxy_pass http://10.0.0.1; } }",
    );
    imported.assert_note(Grade::Lost, "one setting for all servers and locations");
    imported.assert_note(Grade::Lost, "`X-Accel-Redirect` of an upstream");
    let page = import_http(
        "server { listen 80; error_page 502 /50x.html;\n\
         location = /50x.html { internal; proxy_pass http://10.0.0.1; } }",
    );
    assert!(
        !page.has_note(Grade::Lost, "`X-Accel-Redirect`"),
        "{page:?}"
    );
}

#[test]
fn rewrites_of_a_server_redirect_with_their_groups() {
    let imported = import_http(
        "server { listen 80; rewrite ^/old/(.*)$ /new/$1 permanent;\n\
         rewrite ^/show/(?<id>\\d+)$ https://b.test/item?id=$id redirect;\n\
         rewrite ^/bare/(.*)$ /b/$1? redirect;\n\
         rewrite ^/in/(.*)$ /out/$1; rewrite ^/to/(.*)$ https://$1.test/ redirect;\n\
         location / { proxy_pass http://10.0.0.1; } }",
    );
    for (path, target) in [
        (
            "/old/(.*)$",
            "{ to = \"/new/{path:1}?{query}\", status = 301 }",
        ),
        (
            "/show/(?<id>\\\\d+)$",
            "{ to = \"https://b.test/item?id={path:id}&{query}\", status = 302 }",
        ),
        ("/bare/(.*)$", "{ to = \"/b/{path:1}\", status = 302 }"),
        // The path of a request, and a host that a client could choose.
        ("/in/(.*)$", "{ status = 501, body = \"not imported\\n\" }"),
        ("/to/(.*)$", "{ status = 501, body = \"not imported\\n\" }"),
    ] {
        let mut routes = imported.text.split("[[route]]");
        let route = routes.find(|route| route.contains(&format!("\"regex:^{path}\"")));
        let route = route.unwrap_or_else(|| panic!("{path} {}", imported.text));
        assert!(route.contains(&format!("= {target}\n")), "{route}");
    }
}

#[test]
fn no_redirect_of_an_expression_leads_to_itself() {
    for (text, is_kept) in [
        ("rewrite ^/(.*)/$ /$1 permanent;", false),
        ("rewrite ^/(.*[^/])$ /$1/ permanent;", false),
        ("rewrite ^/a/ /a permanent;", false),
        ("rewrite ^/a/(.*)$ https://a.test/$1 permanent;", false),
        ("rewrite ^/a/(.*)$ https://b.test/$1 permanent;", true),
        ("rewrite ^/a/(.*)$ /b/$1 permanent;", true),
        ("location ~ ^/(.*[^/])$ { return 301 /$1/; }", false),
        ("location ~ ^/a/(.*)$ { return 301 /b/$1; }", true),
    ] {
        let imported = import_http(&format!(
            "server {{ listen 80; server_name a.test; {text}\n\
             location / {{ proxy_pass http://10.0.0.1; }} }}"
        ));
        let has_redirect = imported.text.contains("status = 301 }");
        assert_eq!(has_redirect, is_kept, "{text} {}", imported.text);
    }
}

#[test]
fn a_location_redirects_with_groups_of_its_expression() {
    let imported = import_http(
        "server { listen 80; location ~ ^/a/(.*)$ { return 301 /b/$1; }\n\
         location ~ ^/c/(?<id>[0-9]+)$ { return 302 https://b.test/$id; }\n\
         location ~ ^/d/(.*)$ { add_header X-Rest $1 always; proxy_pass http://10.0.0.1; }\n\
         location ~ ^/e/(.*)$ { if ($http_x_a ~ (f)) { return 301 /f/$1; } return 403; } }",
    );
    for text in [
        "= \"regex:^/a/(.*)$\"\n",
        "{ to = \"/b/{path:1}\", status = 301 }",
        "{ to = \"https://b.test/{path:id}\", status = 302 }",
        "headers_down = { \"+x-rest\" = \"{path:1}\" }",
    ] {
        imported.assert_has(text);
    }
    // These are groups of the condition.
    imported.assert_note(Grade::Lost, "there is no $1 here");
}

#[test]
fn a_rewrite_gives_a_path_another_beginning() {
    for (path, rewrite, expected) in [
        ("/a/", "^/a/(.*)$ /b/$1", "{ from = \"/a/\", to = \"/b/\" }"),
        ("/a/", "^/a(/.*)$ /b$1", "{ from = \"/a/\", to = \"/b/\" }"),
        (
            "/a",
            "^/a/?(.*)$ /b/c/$1",
            "{ from = \"/a/\", to = \"/b/c/\" }",
        ),
        ("/a/", "^/a/(.*)$ /$1", "\"/a\""),
    ] {
        let imported = import_http(&format!(
            "server {{ listen 80; location {path} {{ rewrite {rewrite} break;\n\
             proxy_pass http://10.0.0.1/ignored/; }} }}"
        ));
        imported.assert_has(&format!(" = {expected}\n"));
    }
    for rewrite in ["^/a/(.*)$ /b$1", "^/a/(.*)$ /b/$1?x=1", "^/c/(.*)$ /b/$1"] {
        let imported = import_http(&format!(
            "server {{ listen 80; location /a/ {{ rewrite {rewrite} break;\n\
             proxy_pass http://10.0.0.1; }} }}"
        ));
        imported.assert_note(Grade::Lost, "no route can say this rewrite");
    }
}

#[test]
fn a_range_of_ports_is_each_port() {
    let server = |listen: &str| {
        import_http(&format!(
            "server {{ listen {listen}; location / {{ proxy_pass http://10.0.0.1; }} }}"
        ))
    };
    for (listen, expected) in [
        ("8080-8082", "[\":8080\", \":8081\", \":8082\"]"),
        ("[::1]:81-82", "[\"[::1]:81\", \"[::1]:82\"]"),
    ] {
        server(listen).assert_has(&format!("listen = {expected}\n"));
    }
    for listen in ["8082-8080", "1-65535"] {
        server(listen).assert_note(Grade::Lost, "no address to listen on");
    }
}

#[test]
fn a_page_that_is_an_error_has_its_own_status() {
    for (page, expected) in [
        ("return 405;", Some("405")),
        ("return 405 text;", None),
        ("return 200;", None),
    ] {
        let imported = import_http(&format!(
            "server {{ listen 80; location / {{ error_page 404 /page; return 404; }}\n\
             location /page {{ {page} }} }}"
        ));
        let answer = imported.text.lines().find_map(|line| {
            let (key, value) = line.split_once('=')?;
            (key.trim() == "answer").then(|| value.trim())
        });
        assert_eq!(answer, expected, "{page} {}", imported.text);
    }
}
