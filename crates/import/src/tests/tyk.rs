//! APIs of Tyk that must not become open.

use super::import_text;
use crate::{Imported, SourceProgram};

fn import_api(settings: &str) -> Imported {
    let text = format!(
        "{{\"name\": \"A\", \"use_keyless\": true, \
         \"proxy\": {{\"listen_path\": \"/a/\", \"target_url\": \"http://10.0.0.1\"}}, {settings}}}"
    );
    import_text(SourceProgram::Tyk, &text)
}

fn import_open_api(info: &str, middleware: &str) -> Imported {
    let text = format!(
        "{{\"openapi\": \"3.0.3\", \"x-tyk-api-gateway\": {{\
         \"info\": {{\"name\": \"A\", {info}}}, \"upstream\": {{\"url\": \"http://10.0.0.1\"}}, \
         \"server\": {{\"listenPath\": {{\"value\": \"/a/\"}}}}, \
         \"middleware\": {{\"global\": {{{middleware}}}}}}}}}"
    );
    import_text(SourceProgram::Tyk, &text)
}

#[test]
fn an_internal_api_is_left_out() {
    let on = "\"state\": {\"active\": true, \"internal\": true}";
    for imported in [import_api("\"internal\": true"), import_open_api(on, "")] {
        imported.assert_lost("API A: is internal");
        imported.assert_has_not("10.0.0.1");
    }
    import_api("\"internal\": false").assert_open("API A");
}

#[test]
fn plugins_and_versions_of_an_open_api_close_it() {
    let active = "\"state\": {\"active\": true}";
    let plugin = |enabled: bool| {
        let list = format!("\"prePlugins\": [{{\"enabled\": {enabled}, \"functionName\": \"f\"}}]");
        import_open_api(active, &list)
    };
    plugin(true).assert_closed("API A");
    plugin(true).assert_lost("API A.middleware.global.prePlugins");
    plugin(false).assert_open("API A");
    let size = |enabled: bool| {
        let limit = format!("\"requestSizeLimit\": {{\"enabled\": {enabled}, \"value\": 2500}}");
        import_open_api(active, &limit)
    };
    assert!(size(true).route("API A").contains("\"2500B\""));
    assert!(!size(false).route("API A").contains("\"2500B\""));
    import_open_api(active, "\"cors\": {\"enabled\": true}").assert_lost("global.cors");
    import_open_api("\"versioning\": {\"enabled\": true}", "").assert_closed("API A");
}

#[test]
fn settings_of_a_version_are_kept() {
    let version = |more: &str| {
        import_api(&format!(
            "\"version_data\": {{{more} \"versions\": {{\"Default\": {{\
             \"global_size_limit\": 2500, \"override_target\": \"http://10.0.0.2\", \
             \"global_headers\": {{\"x\": \"y\"}}}}}}}}"
        ))
    };
    let imported = version("");
    assert!(imported.route("API A").contains("\"2500B\""));
    assert!(imported.text.contains("http://10.0.0.2"));
    imported.assert_lost("API A.versions.Default.global_headers");
    let imported = version("\"not_versioned\": true,");
    assert!(imported.text.contains("http://10.0.0.1"));
    let middleware = "\"custom_middleware\": {\"pre\": [{\"name\": \"f\"}]}";
    import_api(middleware).assert_closed("API A");
    let middleware = "\"custom_middleware\": {\"pre\": [], \"auth_check\": {\"name\": \"\"}}";
    import_api(middleware).assert_open("API A");
}

#[test]
fn paths_of_a_policy_close_the_api() {
    let import = |right: &str| {
        let text = format!(
            "{{\"apis\": [{{\"name\": \"A\", \"api_id\": \"a\", \"auth\": {{}}, \
             \"proxy\": {{\"listen_path\": \"/a/\", \"target_url\": \"http://10.0.0.1\"}}}}], \
             \"policies\": [{{\"_id\": \"p\", \"rate\": 10, \"per\": 1, \
             \"access_rights\": {{\"a\": {{\"api_id\": \"a\", {right}}}}}}}]}}"
        );
        import_text(SourceProgram::Tyk, &text)
    };
    let imported = import("\"allowed_urls\": [{\"url\": \"/reports\", \"methods\": [\"GET\"]}]");
    imported.assert_closed("API A");
    imported.assert_lost("policy p gives access to some of its paths only");
    import("\"allowed_urls\": []").assert_open("API A");
    let endpoints = "\"endpoints\": [{\"path\": \"/r\", \"methods\": [{\"name\": \"GET\"}]}]";
    import(endpoints).assert_lost("policy p.access_rights.a.endpoints");
}
