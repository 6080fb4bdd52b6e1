//! Settings of Kong's plugins.

use super::import_text;
use crate::{Imported, SourceProgram};

/// Imports routes of a service, written as the items of a list. `more` are further sections.
fn import_routes(routes: &str, more: &str) -> Imported {
    let text = format!(
        "_format_version: \"3.0\"\nservices:\n- name: api\n  url: http://10.0.0.1\n  \
         routes: [{routes}]\n{more}"
    );
    import_text(SourceProgram::Kong, &text)
}

const KEYS: &str = "{name: key-auth}";

#[test]
fn a_route_stays_open_only_if_a_limit_asks_for_its_keys() {
    let budget = |more: &str| {
        format!(
            "{{name: ai-rate-limiting-advanced, config: {{identifier: consumer, llm_providers: \
             [{{name: openai, limit: [100], window_size: [60]}}]{more}}}}}"
        )
    };
    let route = |plugins: &[&str]| {
        let plugins = [&[KEYS], plugins].concat().join(", ");
        import_routes(
            &format!("{{name: r, paths: [/a/], plugins: [{plugins}]}}"),
            "",
        )
    };
    let proxy = "{name: ai-proxy, config: {model: {provider: openai}}}";
    route(&[&budget(""), proxy]).assert_open("route r");
    let keyed = "{name: rate-limiting, config: {minute: 5}}";
    route(&[keyed]).assert_open("route r");
    let anonymous = "{name: key-auth, config: {anonymous: guest}}";
    route(&[keyed, anonymous]).assert_lost("key-auth.anonymous: Kong serves clients");
    let plain = budget("");
    let money = budget(", tokens_count_strategy: cost");
    for plugins in [
        &[][..],
        // Without a model, no budget counts. Without its price, no money does.
        &[plain.as_str()],
        &[money.as_str(), proxy],
        &["{name: rate-limiting, config: {minute: 5, limit_by: ip}}"],
    ] {
        let imported = route(plugins);
        imported.assert_closed("route r");
        imported.assert_lost("no limit by key is left");
    }
}

#[test]
fn each_scope_of_a_plugin_has_a_budget_of_its_own() {
    let limit =
        |by: &str| format!("{{name: rate-limiting, config: {{minute: 3, limit_by: {by}}}}}");
    let import = |of_routes: &str, more: &str| {
        let route = |path: &str| format!("{{paths: [{path}], plugins: [{of_routes}]}}");
        import_routes(&format!("{}, {}", route("/a/"), route("/b/")), more)
    };
    let other = "- {name: b, url: \"http://10.0.0.2\", routes: [{name: c, paths: [/c/]}]}\n";
    for (imported, names) in [
        (
            import(&limit("ip"), ""),
            &["requests--a", "requests--b"][..],
        ),
        (
            import("", &format!("  plugins: [{}]\n{other}", limit("ip"))),
            &["requests-api"],
        ),
        (
            import("", &format!("{other}plugins: [{}]", limit("ip"))),
            &["requests-all-routes"],
        ),
        (
            import("", &format!("{other}plugins: [{}]", limit("service"))),
            &["requests-api", "requests-b"],
        ),
    ] {
        let found = imported.text.matches("[limit.").count();
        assert_eq!(found, names.len(), "{}", imported.text);
        for name in names {
            imported.assert_has(&format!("[limit.{name}]"));
        }
    }
}

#[test]
fn guards_of_consumers_close_routes_with_keys() {
    let routes = format!(
        "{{name: keyed, paths: [/a/], plugins: [{KEYS}, {{name: rate-limiting, config: \
         {{minute: 5}}}}]}}, {{name: free, paths: [/b/]}}"
    );
    for more in [
        "consumers: [{username: ann, plugins: [{name: ip-restriction}]}]",
        "consumer_groups: [{name: gold, plugins: [{name: ip-restriction}]}]",
        "plugins: [{name: ip-restriction, consumer: ann}]",
        "plugins: [{name: ip-restriction, consumer_group: {name: gold}, route: keyed}]",
    ] {
        let imported = import_routes(&routes, more);
        imported.assert_closed("route keyed");
        imported.assert_open("route free");
        imported.assert_lost("ip-restriction of ");
    }
    for more in [
        "plugins: [{name: ip-restriction, consumer: ann, route: free}]",
        "plugins: [{name: ip-restriction, consumer: ann, enabled: false}]",
        "consumers: [{username: ann, plugins: [{name: cors}]}]",
    ] {
        import_routes(&routes, more).assert_open("route keyed");
    }
    let more = "plugins: [{name: rate-limiting, consumer: ann}]";
    import_routes(&routes, more).assert_lost("rate-limiting of ann");
}

#[test]
fn a_route_of_https_alone_has_no_plain_requests() {
    let route = |protocols: &str| {
        import_routes(
            &format!("{{name: r, paths: [/a/], protocols: [{protocols}]}}"),
            "",
        )
    };
    let imported = route("https");
    imported.assert_has("https_port = 443");
    imported.assert_lost("route r.protocols: https: was served over TLS only");
    assert!(!route("http, https").text.contains("https_port"));
    let imported = route("tcp");
    imported.assert_lost("tidegate speaks HTTP only");
    imported.assert_has_not("10.0.0.1");
}

#[test]
fn expressions_keep_the_order_of_their_priorities() {
    let route = |name: &str, more: &str| {
        format!("{{name: {name}, paths: [\"~/a.*{name}\"], regex_priority: {more}}}")
    };
    let routes = [
        route("x", "0"),
        route("y", "5"),
        route("z", "-1, methods: [GET]"),
    ];
    let imported = import_routes(&routes.join(", "), "");
    let at = |name: &str| imported.text.find(&format!(": route {name}\n")).unwrap();
    // A route with a condition more is asked first.
    assert!(at("z") < at("y") && at("y") < at("x"), "{}", imported.text);
}

#[test]
fn a_guard_that_kong_asks_first_closes_the_more_specific_route() {
    let routes = |guard: &str, open: &str| {
        let guard = format!("{{name: guard, {guard}, plugins: [{{name: acl}}]}}");
        import_routes(&format!("{{name: open, {open}}}, {guard}"), "")
    };
    // Both ask an expression first, unless it can be written as a plain path.
    routes("paths: [\"~/a/.*x\"]", "paths: [/a/b]").assert_open("route open");
    for (guard, open) in [
        ("paths: [\"~/a/.*\"]", "paths: [/a/b]"),
        (
            "paths: [\"~/a/.*x\"], methods: [GET], headers: {x: [y]}",
            "hosts: [a.test], paths: [/]",
        ),
    ] {
        let imported = routes(guard, open);
        imported.assert_closed("route open");
        imported.assert_lost("Kong asks `route guard` before it, which guards");
    }
}

#[test]
fn the_size_of_a_body_has_its_unit() {
    for (unit, size) in [
        ("", "10MiB"),
        (", size_unit: megabytes", "10MiB"),
        (", size_unit: kilobytes", "10KiB"),
        (", size_unit: bytes", "10B"),
    ] {
        let imported = import_text(
            SourceProgram::Kong,
            &format!(
                "_format_version: \"3.0\"\nservices:\n- name: api\n  url: http://10.0.0.1\n  \
                 routes:\n  - {{name: r, paths: [/v1/], plugins: [{{name: request-size-limiting, \
                 config: {{allowed_payload_size: 10{unit}}}}}]}}\n"
            ),
        );
        let limit = format!("body_limit = \"{size}\"");
        let text = imported.text.replace("  ", " ").replace("  ", " ");
        assert!(text.contains(&limit), "{unit} {}", imported.text);
    }
}

#[test]
fn targets_have_the_weight_of_kong() {
    let import = |targets: &str| {
        let text = format!(
            "services: [{{name: api, host: pool, routes: [{{name: r, paths: [/]}}]}}]\n\
             upstreams: [{{name: pool, targets: [{targets}]}}]\n"
        );
        import_text(SourceProgram::Kong, &text)
    };
    let imported = import("{target: \"10.0.0.1:80\", weight: 50}, {target: \"10.0.0.2:80\"}");
    imported.assert_has("weight = 50 }");
    imported.assert_has("weight = 100 }");
    let imported = import("{target: \"10.0.0.1:80\", weight: 0}");
    assert!(
        imported.route("route r").contains("status = 503"),
        "{}",
        imported.text
    );
}
