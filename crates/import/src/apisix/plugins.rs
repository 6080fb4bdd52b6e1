//! The plugins of a route.

use std::collections::BTreeMap;

use super::{ApisixFile, ApisixRoute};
use crate::budgets::{Budget, Counted, rate_of};
use crate::tree::TreeItem;
use crate::values::{KeyDraft, has_word};

/// The plugin of token budgets.
const BUDGETS: &str = "ai-rate-limiting";

/// Plugins that only watch.
const NEEDLESS: &str = "\
    prometheus http-logger file-logger tcp-logger udp-logger syslog datadog kafka-logger \
    loki-logger zipkin opentelemetry request-id";

/// Plugins that change requests and guard nothing.
const LOST: &str = "\
    cors proxy-cache response-rewrite ai-prompt-decorator ai-prompt-template gzip";

/// What the plugins of a route are.
#[derive(Default)]
pub(super) struct RoutePlugins<'d> {
    pub(super) proxy: Option<&'d TreeItem>,
    pub(super) budgets: Option<&'d TreeItem>,
    pub(super) limits: Vec<String>,
    /// Why the route is closed.
    pub(super) closed: Option<String>,
}

pub(super) fn read<'d>(route: &ApisixRoute<'d>, file: &mut ApisixFile<'d>) -> RoutePlugins<'d> {
    let mut found = RoutePlugins {
        closed: find_missing(route, file),
        ..RoutePlugins::default()
    };
    // APISIX runs the plugins of each global rule beside those of the route. A file of ADC has the
    // plugins of one rule.
    let root = file.root;
    let mut rules = vec![("", root.entries_at("global_rules"))];
    for rule in root.list_at("global_rules") {
        let id = rule.text_at("id").unwrap_or_default();
        rules.push((id, rule.entries_at("plugins")));
    }
    for (id, plugins) in rules {
        let scope = &format!("global rule {id}");
        for (name, config) in plugins {
            found.add(
                PluginOf {
                    route,
                    scope,
                    name,
                    config,
                },
                file,
            );
        }
    }
    for (name, config) in find_effective(route, file) {
        found.add(
            PluginOf {
                route,
                scope: &route.what,
                name,
                config,
            },
            file,
        );
    }
    found
}

/// A plugin of a route, and whose it is.
struct PluginOf<'r, 'd> {
    route: &'r ApisixRoute<'d>,
    /// `route NAME` or `global rule ID`. Requests of one scope are counted together.
    scope: &'r str,
    name: &'d str,
    config: &'d TreeItem,
}

impl<'d> RoutePlugins<'d> {
    fn add(&mut self, plugin: PluginOf<'_, 'd>, file: &mut ApisixFile<'d>) {
        let PluginOf {
            route,
            scope,
            name,
            config,
        } = plugin;
        if config.is_true("_meta.disable") {
            return;
        }
        match name {
            "ai-proxy" | "ai-proxy-multi" => self.proxy = Some(config),
            BUDGETS => {
                if let Some(global) = self.budgets.replace(config) {
                    let why = format!("{} has one too, and only that is kept", route.what);
                    global.lost(name, why);
                }
            }
            "limit-count" => self.add_request_limit(scope, config, file),
            name if has_word(NEEDLESS, name) => {
                config.needless(name, "tidegate has metrics, logs and traces of its own");
            }
            name if has_word(LOST, name) => config.lost(name, "tidegate has nothing like it"),
            name => {
                let why = "it may guard the route, and tidegate has nothing like it";
                config.lost(name, format!("{why}; {} is closed", route.what));
                self.closed = Some(format!("`{name}`: {why}"));
            }
        }
    }

    /// Translates `limit-count`: its own count, or `rules` with several.
    fn add_request_limit(&mut self, scope: &str, config: &TreeItem, file: &mut ApisixFile<'_>) {
        let known = "count time_window window_type key key_type rules rejected_code rejected_msg \
                     policy group allow_degradation show_limit_quota_header redis_host redis_port \
                     redis_password redis_database redis_timeout sync_interval _meta";
        config.note_unknown("limit-count.", known);
        note_window(config);
        let code = config.text_at("rejected_code").unwrap_or("503");
        if code != "429" {
            let why = format!("APISIX denies with {code}; here `status` of the limit says it");
            config.differs("limit-count.rejected_code", why);
        }
        if config.is_true("allow_degradation") {
            let why = "without its store APISIX lets requests pass; `on_error = \"allow\"` of the \
                       limit does the same";
            config.lost("limit-count.allow_degradation", why);
        }
        let rules = config.list_at("rules");
        for rule in rules {
            rule.note_unknown("limit-count.rules.", "count time_window key header_prefix");
            self.limits.extend(add_count(scope, rule, config, file));
        }
        if rules.is_empty() {
            self.limits.extend(add_count(scope, config, config, file));
        }
    }
}

/// Returns why a route is closed that names plugins of another file.
fn find_missing(route: &ApisixRoute<'_>, file: &ApisixFile<'_>) -> Option<String> {
    let lists = [
        ("plugin_config_id", "plugin_configs"),
        ("service_id", "services"),
    ];
    let mut missing = None;
    for (key, list) in lists {
        let Some(id) = route.item.get(key) else {
            continue;
        };
        if file.find(list, id).is_none() {
            let why = format!("its {list} are not in this file, and their plugins may guard it");
            let what = format!("{}.{key}", route.what);
            id.lost(&what, format!("{why}; the route is closed"));
            missing = Some(format!("`{key}`: {why}"));
        }
    }
    missing
}

/// Returns the plugins of a route by name. Those of the route replace those of its plugin config
/// and of its service, also if they are switched off.
fn find_effective<'d>(
    route: &ApisixRoute<'d>,
    file: &ApisixFile<'d>,
) -> BTreeMap<&'d str, &'d TreeItem> {
    let mut all = Vec::from_iter(route.service);
    let id = route.item.get("plugin_config_id");
    all.extend(id.and_then(|id| file.find("plugin_configs", id)));
    all.push(route.item);
    let plugins = all.into_iter().flat_map(|one| one.entries_at("plugins"));
    plugins
        .map(|(name, config)| (name.as_str(), config))
        .collect()
}

/// Translates a combination of variables, such as `$remote_addr $http_x_user`, or the name of one.
pub(super) fn key_of(text: &str) -> Result<KeyDraft, String> {
    let mut key = KeyDraft::default();
    for word in text
        .split('$')
        .map(str::trim)
        .filter(|word| !word.is_empty())
    {
        let name = word.trim_start_matches('{').trim_end_matches('}');
        let part = match name {
            "remote_addr" => "ip".to_owned(),
            "consumer_name" => "api_key".to_owned(),
            "host" => "host".to_owned(),
            "uri" => "path".to_owned(),
            "request_method" => "method".to_owned(),
            "route_id" => "route".to_owned(),
            _ => {
                let kinds = [
                    ("http_", "header"),
                    ("arg_", "query"),
                    ("cookie_", "cookie"),
                ];
                let found = kinds.iter().find_map(|(start, kind)| {
                    let name = name.strip_prefix(start)?;
                    let is_name = |c: char| c.is_ascii_alphanumeric() || "_-".contains(c);
                    let is_plain = !name.is_empty() && name.chars().all(is_name);
                    let name = match *kind {
                        "header" => name.replace('_', "-"),
                        _ => name.to_owned(),
                    };
                    is_plain.then(|| format!("{kind}:{name}"))
                });
                found.ok_or_else(|| format!("no key is `{name}`"))?
            }
        };
        if !key.parts.contains(&part) {
            key.parts.push(part);
        }
    }
    match key.parts.is_empty() {
        true => Err("it has no key".to_owned()),
        false => Ok(key),
    }
}

/// Adds the limit of one count. Routes of a `group` share it.
fn add_count(
    scope: &str,
    rule: &TreeItem,
    config: &TreeItem,
    file: &mut ApisixFile<'_>,
) -> Option<String> {
    let count = rule.text_at("count").unwrap_or_default();
    let seconds = rule.number_at("time_window").unwrap_or(0);
    let rate = match rate_of(count, seconds) {
        Ok(rate) => rate,
        Err(why) => {
            rule.lost("limit-count", why);
            return None;
        }
    };
    let text = rule.text_at("key").unwrap_or("remote_addr");
    let key = match config.text_at("key_type") {
        Some("constant") => Ok(KeyDraft::of_part("global")),
        _ => key_of(text),
    };
    let mut key = key.unwrap_or_else(|why| {
        rule.lost(
            "limit-count.key",
            format!("{why}; it counts by the address"),
        );
        KeyDraft::of_part("ip")
    });
    if config.get("rules").is_some() {
        // A rule is not for requests without its key.
        key.missing = Some("skip");
    }
    let scope = match config.text_at("group") {
        Some(group) => format!("group {group}"),
        None => scope.to_owned(),
    };
    let name = scope
        .trim_start_matches("route ")
        .trim_start_matches("group ");
    let budget = Budget {
        name: format!("{name}-requests"),
        source: rule.entry(format!("limit-count of {scope}")),
        rates: vec![rate],
        tiers: Vec::new(),
        counts: Counted::Requests,
        key,
    };
    Some(budget.add_to(&mut file.draft))
}

/// Says how the windows of APISIX and tidegate differ.
fn note_window(config: &TreeItem) {
    match config.text_at("window_type") {
        Some("sliding") => {
            let why = "APISIX estimates a window that slides from two fixed ones; here it is exact";
            config.differs("limit-count.window_type", why);
        }
        None | Some("fixed") => {
            let why = "a fixed window of APISIX begins with the first request of a key and ends \
                       `time_window` seconds later, so up to twice the count may pass around its \
                       end; here no window of this length ever holds more, wherever it begins. For \
                       a quota that begins anew at a date write `day`, `week` or `month`, with \
                       `calendar`";
            config.differs("limit-count.window_type", why);
        }
        Some(other) => {
            let why = format!("no window is `{other}`; here windows of this length slide");
            config.lost("limit-count.window_type", why);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_become_parts_of_keys() {
        for (text, expected) in [
            ("remote_addr", Some(vec!["ip"])),
            (
                "$http_x_user ${arg_team}",
                Some(vec!["header:x-user", "query:team"]),
            ),
            ("$consumer_name", Some(vec!["api_key"])),
            ("$geoip_country", None),
            ("", None),
            ("$http_", None),
        ] {
            let parts = key_of(text).map(|key| key.parts).ok();
            let expected = expected.map(|list| list.into_iter().map(str::to_owned).collect());
            assert_eq!(parts, expected, "{text}");
        }
    }
}
