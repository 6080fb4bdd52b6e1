//! Tests of single faults of the imports of gateways and of Traefik. `tests/it/import.rs` imports
//! whole files.

mod apisix;
mod kong;
mod traefik;
mod tyk;

use std::fs;

use crate::{Grade, Imported, SourceProgram, import};

/// Imports a text from a folder that has no other file.
fn import_text(program: SourceProgram, text: &str) -> Imported {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("source");
    fs::write(&path, text).unwrap();
    import(program, &[path]).unwrap()
}

impl Imported {
    /// Whether something is lost whose note has this text.
    #[track_caller]
    fn assert_lost(&self, text: &str) {
        let mut lost = self.notes.iter().filter(|one| one.grade == Grade::Lost);
        let is_lost = lost.any(|note| format!("{}: {}", note.what, note.why).contains(text));
        assert!(is_lost, "{text}: {:#?}", self.notes);
    }

    /// Returns the lines of the route whose comment has this text.
    #[track_caller]
    pub(super) fn assert_has(&self, text: &str) {
        assert!(self.text.contains(text), "{text}: {}", self.text);
    }

    #[track_caller]
    pub(super) fn assert_has_not(&self, text: &str) {
        assert!(!self.text.contains(text), "{text}: {}", self.text);
    }

    #[track_caller]
    fn route(&self, text: &str) -> &str {
        let mut sections = self.text.split("\n\n");
        let is_it = |section: &&str| {
            section.trim_start().starts_with("[[route]]\n")
                && section
                    .lines()
                    .any(|line| line.starts_with('#') && line.contains(text))
        };
        let found = sections.find(is_it);
        found.unwrap_or_else(|| panic!("no route {text}:\n{}", self.text))
    }

    #[track_caller]
    fn assert_closed(&self, text: &str) {
        let route = self.route(text);
        assert!(route.contains("status = 501"), "{route}");
    }

    #[track_caller]
    fn assert_open(&self, text: &str) {
        let route = self.route(text);
        assert!(route.contains("\nupstream "), "{route}");
    }
}

#[test]
fn a_rule_of_a_gateway_has_a_budget_for_each_route_or_one_that_they_share() {
    let route = |name: &str| {
        format!(
            "kind: AIGatewayRoute\nmetadata: {{name: {name}}}\n\
             spec: {{parentRefs: [{{name: g}}], hostnames: [{name}.test], \
             rules: [{{backendRefs: [{{name: s}}]}}]}}\n---\n"
        )
    };
    for (more, count) in [("", 2), ("shared: true, ", 1), ("shared: false, ", 2)] {
        let text = format!(
            "{}{}kind: AIServiceBackend\nmetadata: {{name: s}}\n\
             spec: {{schema: {{name: OpenAI}}, backendRef: {{name: b}}}}\n\
             ---\nkind: Backend\nmetadata: {{name: b}}\n\
             spec: {{endpoints: [{{ip: {{address: 10.0.0.1, port: 80}}}}]}}\n\
             ---\nkind: BackendTrafficPolicy\nmetadata: {{name: p}}\n\
             spec: {{targetRefs: [{{kind: Gateway, name: g}}], rateLimit: {{global: {{rules: \
             [{{{more}limit: {{requests: 9, unit: Hour}}}}]}}}}}}\n",
            route("a"),
            route("b")
        );
        let imported = import_text(SourceProgram::EnvoyAi, &text);
        assert_eq!(
            imported.text.matches("[limit.").count(),
            count,
            "{}",
            imported.text
        );
    }
}

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
