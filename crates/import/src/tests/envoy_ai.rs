//! Policies of Envoy AI gateway that choose their routes by labels.

use super::import_text;
use crate::SourceProgram;

#[test]
fn a_policy_with_a_selector_guards_the_routes_with_its_labels() {
    let import = |selector: &str| {
        let text = format!(
            "kind: AIGatewayRoute\n\
             metadata: {{name: r, labels: {{team: a, app.kubernetes.io/name: x}}}}\n\
             spec: {{parentRefs: [{{name: g}}], rules: [{{backendRefs: [{{name: s}}]}}]}}\n\
             ---\nkind: Gateway\nmetadata: {{name: g, labels: {{zone: b}}}}\n\
             ---\nkind: AIServiceBackend\nmetadata: {{name: s}}\n\
             spec: {{schema: {{name: OpenAI}}, backendRef: {{name: b}}}}\n\
             ---\nkind: Backend\nmetadata: {{name: b}}\n\
             spec: {{endpoints: [{{ip: {{address: 10.0.0.1, port: 80}}}}]}}\n\
             ---\nkind: SecurityPolicy\nmetadata: {{name: p}}\n\
             spec: {{targetSelectors: [{{{selector}}}]}}\n"
        );
        import_text(SourceProgram::EnvoyAi, &text)
    };
    for selector in [
        "kind: HTTPRoute, matchLabels: {team: a}",
        "kind: HTTPRoute, matchLabels: {app.kubernetes.io/name: x}",
        "kind: HTTPRoute, matchExpressions: [{key: team, operator: Exists}]",
        "kind: Gateway, matchLabels: {zone: b}",
    ] {
        let imported = import(selector);
        imported.assert_closed("AIGatewayRoute r");
        imported.assert_lost("SecurityPolicy p guards it");
    }
    for selector in [
        "kind: HTTPRoute, matchLabels: {team: b}",
        "kind: Gateway, matchLabels: {zone: c}",
    ] {
        import(selector).assert_open("AIGatewayRoute r");
    }
}
