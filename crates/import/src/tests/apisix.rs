//! Routes of APISIX that must not become open, and their servers.

use super::import_text;
use crate::SourceProgram;

#[test]
fn a_route_whose_plugins_are_in_another_file_is_closed() {
    let upstream = "\"upstream\": {\"nodes\": {\"10.0.0.1:80\": 1}}";
    for key in ["plugin_config_id", "service_id"] {
        let route = format!("{{\"id\": \"r\", \"uri\": \"/a\", \"{key}\": \"7\", {upstream}}}");
        for text in [route.clone(), format!("{{\"routes\": [{route}]}}")] {
            let imported = import_text(SourceProgram::Apisix, &text);
            imported.assert_closed("route r");
            imported.assert_lost(&format!("route r.{key}: its "));
        }
        let text = format!(
            "{{\"routes\": [{route}], \"services\": [{{\"id\": 7}}], \
             \"plugin_configs\": [{{\"id\": 7}}]}}"
        );
        import_text(SourceProgram::Apisix, &text).assert_open("route r");
    }
}

#[test]
fn a_global_rule_counts_beside_the_plugins_of_a_route() {
    let limit = |more: &str| format!("{{limit-count: {{{more}time_window: 60}}}}");
    let off = limit("_meta: {disable: true}, count: 9, ");
    let import = |rules: &str| {
        let text = format!(
            "services:\n- {{id: s, upstream: {{nodes: {{'10.0.0.1:80': 1}}}}, plugins: {}}}\n\
             routes:\n- {{id: a, uri: /a, service_id: s}}\n\
             - {{id: b, uri: /b, service_id: s, plugins: {off}}}\n\
             global_rules: {rules}\n",
            limit("count: 4, ")
        );
        import_text(SourceProgram::Apisix, &text)
    };
    let rule = |id: u8| format!("{{id: {id}, plugins: {}}}", limit("count: 2, "));
    let imported = import(&format!("[{}, {}]", rule(1), rule(2)));
    let global = "\"global-rule-1-requests\", \"global-rule-2-requests\"";
    let lines = [
        ("a", format!("[{global}, \"a-requests\"]")),
        ("b", format!("[{global}]")),
    ];
    for (name, limits) in lines {
        let route = imported.route(&format!("route {name}"));
        assert!(route.contains(&limits), "{}", imported.text);
    }
    assert_eq!(
        imported.text.matches("[limit.").count(),
        3,
        "{}",
        imported.text
    );
    // ADC writes the plugins without rules.
    import("{key-auth: {}}").assert_closed("route b");
}

#[test]
fn nodes_of_weight_0_get_no_requests() {
    let import = |nodes: &str| {
        let text =
            format!("{{\"id\": \"r\", \"uri\": \"/a\", \"upstream\": {{\"nodes\": {nodes}}}}}");
        import_text(SourceProgram::Apisix, &text)
    };
    let imported = import("{\"10.0.0.1:80\": 0, \"10.0.0.2:80\": 1}");
    imported.assert_open("route r");
    imported.assert_has("servers = [\"http://10.0.0.2:80\"]");
    let imported = import("[{\"host\": \"10.0.0.1\", \"port\": 80, \"weight\": 0}]");
    assert!(
        imported.route("route r").contains("status = 503"),
        "{}",
        imported.text
    );
}

#[test]
fn the_route_of_the_higher_priority_takes_a_path() {
    let route = |name: &str, more: &str| {
        let upstream = "\"upstream\": {\"nodes\": {\"10.0.0.1:80\": 1}}";
        format!("{{\"id\": \"{name}\", \"uri\": \"/a\", {upstream}, {more}}}")
    };
    let guard = route("guard", "\"priority\": 5, \"plugins\": {\"key-auth\": {}}");
    let open = route("open", "\"methods\": [\"GET\"]");
    let imported = import_text(
        SourceProgram::Apisix,
        &format!("{{\"routes\": [{open}, {guard}]}}"),
    );
    imported.assert_closed("route open");
    imported.assert_lost("APISIX asks `route guard` before it");
}
