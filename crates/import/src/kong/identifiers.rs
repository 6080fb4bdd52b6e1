//! Identifiers: what Kong counts by, as keys of limits.

use super::{KongRoute, name_of};
use crate::tree::TreeItem;
use crate::values::KeyDraft;

/// The scope whose requests have one budget: that of the plugin, or each service of it.
pub(super) fn counted_scope(by: &str, scope: &str, route: &KongRoute<'_>) -> String {
    match (by, route.service) {
        ("service", Some(service)) => format!("service {}", name_of(service)),
        _ => scope.to_owned(),
    }
}

/// The name of a limit of a scope.
pub(super) fn scope_name(scope: &str) -> &str {
    let kinds = ["route ", "service "];
    let names = kinds.iter().find_map(|kind| scope.strip_prefix(kind));
    names.unwrap_or(scope)
}

/// Translates an identifier. The error says why it has no key here.
pub(super) fn key_of(by: &str, config: &TreeItem, has_keys: bool) -> Result<KeyDraft, String> {
    match by {
        "consumer" | "credential" if !has_keys => {
            let why = "the route has no key-auth, so Kong has no consumer and counts by the \
                       address";
            config.differs(by, why);
            Ok(KeyDraft::of_part("ip"))
        }
        "consumer" | "credential" => {
            let mut key = KeyDraft::of_part("api_key");
            key.missing = Some("deny");
            Ok(key)
        }
        "ip" => Ok(KeyDraft::of_part("ip")),
        "header" => match config.text_at("header_name") {
            Some(name) => Ok(KeyDraft::of_part(&format!(
                "header:{}",
                name.to_ascii_lowercase()
            ))),
            None => Err("there is no `header_name`; it counts by the address".to_owned()),
        },
        "path" => {
            let path = config.text_at("path").unwrap_or_default();
            let why = format!(
                "each path has a budget of its own; Kong had one for `{path}`, and one for each \
                 address elsewhere"
            );
            config.differs("path", why);
            Ok(KeyDraft::of_part("path"))
        }
        "service" => Ok(KeyDraft::of_part("global")),
        "consumer-group" => Ok(KeyDraft::of_part("tier")),
        other => Err(format!("no key is `{other}`; it counts by the address")),
    }
}
