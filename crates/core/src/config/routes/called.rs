//! What routes are called: in logs, in metrics and by their operators.

use std::collections::HashMap;

use super::super::diagnostic::{Code, Diagnostic, Span};
use super::super::names::Names;
use super::super::route::RawRoute;

/// What each route is called: its `name`, or its methods and path.
pub(super) fn route_names(names: &Names<'_>, raw: &[RawRoute]) -> Vec<String> {
    let mut taken: HashMap<String, Span> = HashMap::new();
    for name in raw.iter().filter_map(|route| route.name.as_ref()) {
        if let Some(first) = taken.get(&name.value) {
            let message = format!("two routes are called `{}`", name.value);
            let diagnostic = Diagnostic::new(Code::Duplicate, message)
                .at(&name.span, "")
                .at(first, "first here");
            names.reader.report(diagnostic);
        }
        taken.entry(name.value.clone()).or_insert(name.span.clone());
    }
    let mut called = Vec::new();
    for route in raw {
        let name = match &route.name {
            Some(name) => name.value.clone(),
            None => unique(derived_name(route), |name| taken.contains_key(name)),
        };
        taken.entry(name.clone()).or_insert(route.span.clone());
        called.push(name);
    }
    called
}

/// `POST example.com/login`
fn derived_name(route: &RawRoute) -> String {
    let methods: Vec<_> = route.methods.iter().map(http::Method::as_str).collect();
    let space = if methods.is_empty() { "" } else { " " };
    let host = route.host_text.as_deref().unwrap_or_default();
    format!("{}{space}{host}{}", methods.join(","), route.path_text)
}

pub(super) fn unique(name: String, taken: impl Fn(&str) -> bool) -> String {
    if !taken(&name) {
        return name;
    }
    let numbered = |number: usize| format!("{name} #{number}");
    (2..)
        .map(numbered)
        .find(|candidate| !taken(candidate))
        .unwrap_or(name)
}
