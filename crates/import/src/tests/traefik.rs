//! Routers of Traefik that must not become open.

use super::import_text;
use crate::{Imported, SourceProgram};

/// Imports routers of the services `a` and `b`.
fn import_routers(head: &str, routers: &str) -> Imported {
    let text = format!(
        "{head}\nhttp:\n  services:\n    \
         a: {{loadBalancer: {{servers: [{{url: \"http://10.0.0.1\"}}]}}}}\n    \
         b: {{loadBalancer: {{servers: [{{url: \"http://10.0.0.2\"}}]}}}}\n  routers:\n{routers}"
    );
    import_text(SourceProgram::Traefik, &text)
}

const SITE: &str = "    site: {entryPoints: [web], rule: \"Host(`a.test`)\", service: a}\n";

#[test]
fn a_router_is_served_at_its_entry_points_alone() {
    let points = "entryPoints: {web: {address: \":80\"}, admin: {address: \":81\"}, \
                  metrics: {address: \":82\"}}";
    let office = "    office: {entryPoints: [admin], rule: \"Path(`/o`)\", service: b}\n";
    let imported = import_routers(points, &format!("{SITE}{office}"));
    assert!(imported.text.contains("listen = [\":80\", \":81\"]"));
    assert!(imported.route("router office").contains("port     = 81\n"));
    assert!(imported.route("router site").contains("port     = 80\n"));
    // Without need, routes have no ports.
    let imported = import_routers(points, SITE);
    assert!(imported.text.contains("listen = [\":80\"]"));
    imported.assert_has_not("port ");
    // Its address is in another file.
    let imported = import_routers("", &format!("{SITE}{office}"));
    imported.assert_closed("router office");
    imported.assert_open("router site");
    imported.assert_lost("none of its entryPoints has an address in this file; it is closed");
    let points = "entryPoints: {web: {address: \":80\"}, admin: {address: \"127.0.0.1:80\"}}";
    let imported = import_routers(points, &format!("{SITE}{office}"));
    imported.assert_closed("router office");
    imported.assert_lost("have the same port");
}

#[test]
fn each_router_has_counts_of_its_own() {
    let router = |name: &str| {
        format!("    {name}: {{rule: \"Host(`{name}.test`)\", service: a, middlewares: [m]}}\n")
    };
    let limit = "  middlewares: {m: {rateLimit: {average: 5}}}\n";
    let imported = import_routers("", &[router("a"), router("b"), limit.to_owned()].concat());
    assert!(
        imported.route("router a").contains("[\"m\"]"),
        "{}",
        imported.text
    );
    assert!(
        imported.route("router b").contains("[\"m-2\"]"),
        "{}",
        imported.text
    );
}

#[test]
fn a_list_of_addresses_is_kept_or_closes_its_routers() {
    let import = |options: &str| {
        let router = "    a: {rule: \"Host(`a.test`)\", service: a, middlewares: [m, n]}\n";
        let middlewares = format!(
            "  middlewares:\n    m: {{ipAllowList: {{sourceRange: [10.0.0.0/8, \"::1\"]}}}}\n    \
             n: {{{options}}}\n"
        );
        import_routers("", &format!("{router}{middlewares}"))
    };
    let imported = import("compress: {}");
    imported.assert_open("router a");
    let access = "access   = { allow = [\"10.0.0.0/8\", \"::1\"] }\n";
    assert!(
        imported.route("router a").contains(access),
        "{}",
        imported.text
    );
    for (options, why) in [
        (
            "ipWhiteList: {sourceRange: [10.0.0.0/8]}",
            "a route has one list",
        ),
        (
            "ipAllowList: {sourceRange: [office]}",
            "its sourceRange cannot be read",
        ),
        ("ipAllowList: {}", "its sourceRange cannot be read"),
    ] {
        let imported = import(options);
        imported.assert_closed("router a");
        imported.assert_lost(why);
    }
}

const POINTS: &str = "entryPoints: {web: {address: \":80\"}, websecure: {address: \":443\"}}";

#[test]
fn a_router_with_tls_has_no_plain_requests() {
    let tls = "    a: {rule: \"Host(`a.test`)\", service: a, tls: {}}\n";
    let plain = "    b: {rule: \"Host(`b.test`)\", service: b}\n";
    let imported = import_routers("", tls);
    imported.assert_open("router a");
    imported.assert_has("https_port = 443");
    for head in ["", POINTS] {
        let imported = import_routers(head, &format!("{tls}{plain}"));
        imported.assert_open("router a");
        imported.assert_lost("router a: was served over TLS only");
        imported.assert_has("https_port = 443");
    }
    let mixed = "    a: {entryPoints: [web], rule: \"Host(`a.test`)\", service: a, tls: {}}\n\
                 \x20   b: {entryPoints: [web], rule: \"Host(`b.test`)\", service: b}\n";
    let imported = import_routers(POINTS, mixed);
    imported.assert_closed("router a");
    imported.assert_open("router b");
}

#[test]
fn certificates_of_clients_stay_needed() {
    let import = |options: &str, name: &str| {
        let head = format!("{POINTS}\ntls: {{options: {{{options}}}}}");
        let routers = format!(
            "    a: {{entryPoints: [websecure], rule: \"Host(`a.test`)\", service: a, \
             tls: {{options: {name}}}}}\n    b: {{entryPoints: [websecure], \
             rule: \"Host(`b.test`)\", service: b, tls: {{}}}}\n"
        );
        import_routers(&head, &routers)
    };
    let needs = |more: &str| format!("{{clientAuth: {{caFiles: [ca.pem]{more}}}}}");
    let is_needed = |imported: &Imported, router: &str| {
        imported
            .route(router)
            .contains("require_client_certificate = true")
    };
    for word in ["", ", clientAuthType: RequireAndVerifyClientCert"] {
        let imported = import(&format!("mtls: {}", needs(word)), "mtls@file");
        assert!(is_needed(&imported, "router a"), "{}", imported.text);
        assert!(!is_needed(&imported, "router b"), "{}", imported.text);
        imported.assert_has("client_auth = \"optional\"");
    }
    let imported = import(&format!("default: {}", needs("")), "default");
    assert!(is_needed(&imported, "router a") && is_needed(&imported, "router b"));
    imported.assert_has("client_auth = \"required\"");
    let two = "mtls: {clientAuth: {caFiles: [a.pem, b.pem]}}";
    let any = format!("mtls: {}", needs(", clientAuthType: RequireAnyClientCert"));
    for (options, name) in [(two, "mtls"), (&any, "mtls"), ("x: {}", "elsewhere@file")] {
        let imported = import(options, name);
        imported.assert_closed("router a");
        imported.assert_open("router b");
    }
    let given = needs(", clientAuthType: VerifyClientCertIfGiven");
    let imported = import(&format!("mtls: {given}"), "mtls");
    assert!(!is_needed(&imported, "router a"), "{}", imported.text);
    let modern = "modern: {minVersion: VersionTLS13}";
    import(modern, "modern").assert_lost("tls.options.modern: there is one set");
}

#[test]
fn patterns_of_version_2_are_expressions() {
    let router = |rule: &str, more: &str| {
        import_routers(
            "",
            &format!("    r: {{rule: \"{rule}\", service: a{more}}}\n"),
        )
    };
    for (rule, line) in [
        (
            "HostRegexp(`{x:[a-z]+}.a.test`)",
            r#"host     = "regex:^(?:[a-z]+)\\.a\\.test$""#,
        ),
        (
            "PathPrefix(`/p/{id:[0-9]+}`)",
            r#"path     = "regex:^/p/(?:[0-9]+)""#,
        ),
        (
            "Path(`/p/{id:a|b}/c`)",
            r#"path     = "regex:^/p/(?:a|b)/c$""#,
        ),
    ] {
        let imported = router(rule, "");
        assert!(
            imported.route("router r").contains(line),
            "{}",
            imported.text
        );
    }
    let imported = router("HostRegexp(`a.test`, `b.test`)", ", ruleSyntax: v2");
    imported.assert_has(r#""regex:^a\\.test$""#);
    imported.assert_has(r#""regex:^b\\.test$""#);
}

#[test]
fn only_plain_requests_are_redirected_to_https() {
    let to_https = "  middlewares: {secure: {redirectScheme: {scheme: https}}}\n  routers:\n";
    let router = |points: &str| {
        let text = format!(
            "    a: {{entryPoints: [{points}], rule: \"Host(`a.test`)\", service: a, \
             middlewares: [secure]}}\n    b: {{entryPoints: [websecure], \
             rule: \"Host(`b.test`)\", service: b, tls: {{}}}}\n"
        );
        let head = format!("{POINTS}\n");
        let text = format!(
            "{head}http:\n  services:\n    \
             a: {{loadBalancer: {{servers: [{{url: \"http://10.0.0.1\"}}]}}}}\n    \
             b: {{loadBalancer: {{servers: [{{url: \"http://10.0.0.2\"}}]}}}}\n{to_https}{text}"
        );
        import_text(SourceProgram::Traefik, &text)
    };
    let imported = router("web, websecure");
    imported.assert_open("router a");
    imported.assert_has_not("redirect = { to");
    imported.assert_has("https_port = 443");
}

#[test]
fn each_prefix_of_a_list_is_taken_off_its_own_path() {
    let import = |prefixes: &str, rule: &str| {
        let text = format!(
            "http:\n  services: {{a: {{loadBalancer: \
             {{servers: [{{url: \"http://10.0.0.1\"}}]}}}}}}\n  \
             middlewares: {{strip: {{stripPrefix: {{prefixes: [{prefixes}]}}}}}}\n  \
             routers: {{r: {{rule: \"PathPrefix(`{rule}`)\", service: a, middlewares: [strip]}}}}\n"
        );
        let text = import_text(SourceProgram::Traefik, &text).text;
        let routes = text.split("[[route]]").skip(1);
        let value = |route: &str, key: &str| {
            let line = route.lines().find(|line| line.starts_with(key));
            line.and_then(|line| line.split('"').nth(1))
                .unwrap_or_default()
                .to_owned()
        };
        let pair = |route: &str| format!("{} {}", value(route, "path"), value(route, "strip"));
        routes.map(pair).collect::<Vec<_>>()
    };
    assert_eq!(import("/a/b, /a", "/a/"), ["/a/b/* /a/b", "/a/* /a"]);
    assert_eq!(import("/a, /a/b", "/a/"), ["/a/* /a"]);
    assert_eq!(import("/a, /b", "/"), ["/a/* /a", "/b/* /b", "/* "]);
}

#[test]
fn servers_of_weight_0_get_no_requests() {
    let import = |servers: &str| {
        import_text(
            SourceProgram::Traefik,
            &format!(
                "http:\n  services: {{a: {{loadBalancer: {{servers: [{servers}]}}}}}}\n  \
                 routers: {{r: {{rule: \"Host(`a.test`)\", service: a}}}}\n"
            ),
        )
    };
    let imported = import("{url: \"http://10.0.0.1\", weight: 0}, {url: \"http://10.0.0.2\"}");
    imported.assert_open("router r");
    imported.assert_lost("http://10.0.0.1: its weight is 0");
    imported.assert_has("servers = [\"http://10.0.0.2\"]");
    let imported = import("{url: \"http://10.0.0.1\", weight: 0}");
    assert!(
        imported.route("router r").contains("status = 503"),
        "{}",
        imported.text
    );
    let imported = import(
        "{url: \"http://10.0.0.1\", weight: 4000}, {url: \"http://10.0.0.2\", weight: 1000}",
    );
    imported.assert_has("weight = 1000");
    imported.assert_has("weight = 250");
}

#[test]
fn a_guard_that_traefik_asks_first_closes_the_more_specific_router() {
    let routers = |priority: &str| {
        let guard = "a: {rule: \"Host(`a.test`)\", service: a, middlewares: [elsewhere]";
        let open = "b: {rule: \"Host(`a.test`) && PathPrefix(`/b/`)\", service: b}";
        import_routers("", &format!("    {guard}{priority}}}\n    {open}\n"))
    };
    routers("").assert_open("router b");
    let imported = routers(", priority: 100");
    imported.assert_closed("router b");
    imported.assert_lost("Traefik asks `router a: Host(`a.test`)` before it, which guards");
    routers(", priority: -1").assert_open("router b");
}
