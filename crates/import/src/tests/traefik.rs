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
    assert!(!imported.text.contains("port "), "{}", imported.text);
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
