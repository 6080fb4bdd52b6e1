//! The plugins of a route: which of the file's plugins apply, and what those do that are no
//! budgets of tokens.

use std::collections::BTreeMap;

use super::identifiers;
use super::{KongFile, KongRoute, name_of, refers_to};
use crate::budgets::{Budget, Counted, add_rate, note_fixed_window, rate_of};
use crate::draft::clean_name;
use crate::limit::{CalendarUnit, Rate};
use crate::tree::TreeItem;
use crate::values::{KeyDraft, TomlEntries, has_word, quote};

/// The plugin of token budgets.
pub(super) const BUDGETS: &str = "ai-rate-limiting-advanced";

/// Plugins that only watch.
const NEEDLESS: &str = "\
    prometheus http-log file-log tcp-log udp-log syslog datadog statsd loggly zipkin \
    opentelemetry correlation-id";

/// Plugins that change requests and guard nothing.
const LOST: &str = "\
    cors request-transformer response-transformer proxy-cache proxy-cache-advanced \
    ai-semantic-cache ai-prompt-decorator ai-prompt-template metering-and-billing";

/// A plugin that holds on a route.
pub(super) struct ScopedPlugin<'d> {
    /// `route NAME`, `service NAME`, `all routes`, or a consumer. Kong counts the requests of one
    /// scope together.
    pub(super) scope: String,
    plugin: &'d TreeItem,
}

impl<'d> ScopedPlugin<'d> {
    /// Returns the configuration. A plugin without one has the defaults.
    pub(super) fn config(&self) -> &'d TreeItem {
        self.plugin.get("config").unwrap_or(self.plugin)
    }
}

/// A plugin of budgets for one consumer or group.
pub(super) struct TierPlugin<'d> {
    pub(super) tier: String,
    pub(super) plugin: ScopedPlugin<'d>,
}

/// What the plugins of a route are.
#[derive(Default)]
pub(super) struct KongRoutePlugins<'d> {
    /// `config` of ai-proxy.
    pub(super) proxy: Option<&'d TreeItem>,
    pub(super) budgets: Option<ScopedPlugin<'d>>,
    pub(super) tiers: Vec<TierPlugin<'d>>,
    /// Whether clients must have a key.
    pub(super) has_keys: bool,
    pub(super) limits: Vec<String>,
    pub(super) entries: TomlEntries,
    /// Why the route is closed.
    pub(super) closed: Option<String>,
}

impl<'d> KongRoutePlugins<'d> {
    pub(super) fn first_budget(&self) -> Option<&'d TreeItem> {
        let tiers = self.tiers.first().map(|one| &one.plugin);
        self.budgets.as_ref().or(tiers).map(ScopedPlugin::config)
    }
}

fn is_enabled(plugin: &TreeItem) -> bool {
    plugin.text_at("enabled") != Some("false")
}

pub(super) fn read<'d>(route: &KongRoute<'d>, file: &mut KongFile<'d>) -> KongRoutePlugins<'d> {
    let mut found = KongRoutePlugins::default();
    for (name, plugin) in find_effective(route, file) {
        let config = plugin.config();
        match name {
            "ai-proxy" | "ai-proxy-advanced" => found.proxy = Some(config),
            BUDGETS => found.budgets = Some(plugin),
            "key-auth" => {
                read_key_auth(config, file);
                found.has_keys = true;
            }
            "rate-limiting" => add_request_limit(route, &plugin, file, &mut found),
            "request-size-limiting" => {
                let most = config.number_at("allowed_payload_size").unwrap_or(128);
                // Kong counts in powers of two.
                let unit = match config.text_at("size_unit") {
                    Some("bytes") => "B",
                    Some("kilobytes") => "KiB",
                    _ => "MiB",
                };
                let size = quote(&format!("{most}{unit}"));
                found.entries.add("body_limit", size);
            }
            name => {
                found.closed = note_other(route, plugin.plugin, name).or(found.closed.take());
            }
        }
    }
    for one in find_of_consumers(route, file) {
        found.add_of_consumer(route, one);
    }
    found
}

/// Notes a plugin that is not translated. Returns why the route is closed, if the plugin may guard
/// it. `what` is the plugin in notes.
fn note_other(route: &KongRoute<'_>, plugin: &TreeItem, what: &str) -> Option<String> {
    let name = plugin.text_at("name").unwrap_or_default();
    if has_word(NEEDLESS, name) {
        plugin.needless(what, "tidegate has metrics, logs and traces of its own");
        return None;
    }
    if has_word(LOST, name) {
        plugin.lost(what, "tidegate has nothing like it");
        return None;
    }
    let why = "it may guard the route, and tidegate has nothing like it";
    plugin.lost(what, format!("{why}; {} is closed", route.what));
    Some(format!("`{what}`: {why}"))
}

impl<'d> KongRoutePlugins<'d> {
    /// Adds the budget of a consumer or a group. Another plugin that may guard closes the route, if
    /// the route asks who its clients are.
    fn add_of_consumer(&mut self, route: &KongRoute<'d>, one: ConsumerPlugin<'d>) {
        let plugin = one.plugin.plugin;
        let name = plugin.text_at("name").unwrap_or_default();
        let what = format!("{name} of {}", one.owner);
        match name {
            BUDGETS => self.tiers.push(TierPlugin {
                tier: clean_name(one.owner),
                plugin: one.plugin,
            }),
            "rate-limiting" | "request-size-limiting" => {
                plugin.lost(&what, "limits of consumers are `tiers` of a limit");
            }
            _ if self.has_keys => {
                self.closed = note_other(route, plugin, &what).or(self.closed.take());
            }
            _ => {}
        }
    }
}

/// Returns the enabled plugins that hold on a route: the global ones, then those of its service,
/// then its own.
fn find_all<'d>(route: &KongRoute<'d>, file: &KongFile<'d>) -> Vec<ScopedPlugin<'d>> {
    let (mut global, mut service, mut own) = (Vec::new(), Vec::new(), Vec::new());
    for plugin in file.root.list_at("plugins") {
        match (plugin.get("route"), plugin.get("service")) {
            (Some(one), _) if refers_to(one, route.item) => own.push(plugin),
            (None, Some(one)) if route.service.is_some_and(|item| refers_to(one, item)) => {
                service.push(plugin);
            }
            (None, None) => global.push(plugin),
            _ => {}
        }
    }
    let nested = route.service.map(|item| item.list_at("plugins"));
    service.extend(nested.unwrap_or_default());
    own.extend(route.item.list_at("plugins"));
    let of_service = route
        .service
        .map_or(String::new(), |item| format!("service {}", name_of(item)));
    let scopes = [
        ("all routes", global),
        (&of_service, service),
        (&route.what, own),
    ];
    let scoped = scopes.into_iter().flat_map(|(scope, plugins)| {
        let enabled = plugins.into_iter().filter(|one| is_enabled(one));
        enabled.map(move |plugin| ScopedPlugin {
            scope: scope.to_owned(),
            plugin,
        })
    });
    scoped.collect()
}

/// Returns the plugins of a route by name. Those of the route replace those of its service, and
/// these the global ones.
fn find_effective<'d>(
    route: &KongRoute<'d>,
    file: &KongFile<'d>,
) -> BTreeMap<&'d str, ScopedPlugin<'d>> {
    let all = find_all(route, file).into_iter();
    all.filter(|one| !is_of_consumers(one.plugin))
        .filter_map(|one| Some((one.plugin.text_at("name")?, one)))
        .collect()
}

fn is_of_consumers(plugin: &TreeItem) -> bool {
    plugin.get("consumer").is_some() || plugin.get("consumer_group").is_some()
}

/// A plugin of a consumer or of a group, and the name of that.
struct ConsumerPlugin<'d> {
    owner: &'d str,
    plugin: ScopedPlugin<'d>,
}

/// Returns the plugins of consumers and their groups that hold on a route.
fn find_of_consumers<'d>(route: &KongRoute<'d>, file: &KongFile<'d>) -> Vec<ConsumerPlugin<'d>> {
    let mut found = Vec::new();
    for section in ["consumers", "consumer_groups"] {
        for entity in file.root.list_at(section) {
            let owner = name_of(entity);
            let plugins = entity.list_at("plugins").iter();
            found.extend(plugins.filter(|one| is_enabled(one)).map(|plugin| {
                let scope = owner.to_owned();
                ConsumerPlugin {
                    owner,
                    plugin: ScopedPlugin { scope, plugin },
                }
            }));
        }
    }
    for ScopedPlugin { scope, plugin } in find_all(route, file) {
        if let Some(client) = plugin.get("consumer").or(plugin.get("consumer_group")) {
            let owner = client.text().unwrap_or_else(|| name_of(client));
            let scope = format!("{owner} on {scope}");
            found.push(ConsumerPlugin {
                owner,
                plugin: ScopedPlugin { scope, plugin },
            });
        }
    }
    found
}

/// Translates where clients carry their keys. Unknown keys are refused, as in Kong.
fn read_key_auth(config: &TreeItem, file: &mut KongFile<'_>) {
    let known = "key_names key_in_header key_in_query key_in_body hide_credentials anonymous \
                 run_on_preflight realm name id enabled tags protocols route service";
    config.note_unknown("key-auth.", known);
    let mut names = config.texts_at("key_names");
    if names.is_empty() {
        names.push("apikey".to_owned());
    }
    let mut from = Vec::new();
    for name in names {
        if config.text_at("key_in_header") != Some("false") {
            from.push(format!("header:{}", name.to_ascii_lowercase()));
        }
        if config.text_at("key_in_query") != Some("false") {
            from.push(format!("query:{name}"));
        }
    }
    for key in ["key_in_body", "hide_credentials"] {
        if config.is_true(key) {
            config.lost(&format!("key-auth.{key}"), "tidegate has nothing like it");
        }
    }
    if config
        .text_at("anonymous")
        .is_some_and(|name| !name.is_empty())
    {
        let why = "Kong serves clients without a known key as this consumer; here they are refused";
        config.lost("key-auth.anonymous", why);
    }
    file.draft.calls.add_key_sources(&from, config);
    let why = "the keys of consumers are not copied: list them in a file with lines `KEY NAME \
               TIER`, and set `known` of [api_key]. Until then every request is refused";
    config.lost("key-auth: credentials of consumers", why);
}

/// Translates the limits of requests of Kong itself.
fn add_request_limit(
    route: &KongRoute<'_>,
    plugin: &ScopedPlugin<'_>,
    file: &mut KongFile<'_>,
    found: &mut KongRoutePlugins<'_>,
) {
    let config = plugin.config();
    let known = "second minute hour day month year limit_by header_name path policy \
                 fault_tolerant hide_client_headers redis error_code error_message sync_rate";
    config.note_unknown("rate-limiting.", known);
    for (key, why) in [
        ("error_code", "`status` of the limit is like it"),
        ("error_message", "`[deny.body]` is like it"),
        (
            "hide_client_headers",
            "`x_ratelimit` and `ietf` of [headers] are like it",
        ),
    ] {
        let item = config.get(key).filter(|item| item.text() != Some("false"));
        if let Some(item) = item {
            item.lost(&format!("rate-limiting.{key}"), why);
        }
    }
    let mut rates = Vec::new();
    for (unit, seconds) in [("second", 1), ("minute", 60), ("hour", 3_600)] {
        let Some(units) = config.text_at(unit) else {
            continue;
        };
        match rate_of(units, seconds) {
            Ok(rate) => add_rate(&mut rates, rate),
            Err(why) => config.lost(&format!("rate-limiting.{unit}"), why),
        }
    }
    if !rates.is_empty() {
        note_fixed_window(config, "rate-limiting");
    }
    add_calendar_rates(config, &mut rates);
    if rates.is_empty() {
        return;
    }
    let by = config.text_at("limit_by").unwrap_or("consumer");
    let scope = identifiers::counted_scope(by, &plugin.scope, route);
    let name = format!("requests-{}", identifiers::scope_name(&scope));
    let budget = Budget {
        source: config.entry(format!("rate-limiting by {by} of {scope}")),
        key: identifiers::key_of(by, config, found.has_keys).unwrap_or_else(|why| {
            config.lost("rate-limiting.limit_by", why);
            KeyDraft::of_part("ip")
        }),
        name,
        rates,
        tiers: Vec::new(),
        counts: Counted::Requests,
    };
    found.limits.push(budget.add_to(&mut file.draft));
}

/// Translates `day`, `month` and `year`, which follow the calendar of UTC in Kong too.
fn add_calendar_rates(config: &TreeItem, rates: &mut Vec<Rate>) {
    for (unit, days) in [
        (CalendarUnit::Day, 1),
        (CalendarUnit::Month, 30),
        (CalendarUnit::Year, 365),
    ] {
        let what = format!("rate-limiting.{}", unit.word());
        let Some(units) = config.text_at(unit.word()) else {
            continue;
        };
        match rate_of(units, 1) {
            Ok(rate) => add_rate(rates, Rate::per(rate.units, unit)),
            Err(why) => config.lost(&what, why),
        }
        if days > 1 {
            let why = format!(
                "Kong counts from the first day of the {unit} in UTC, but keeps a count for {days} \
                 days from its first request, and tells clients so: a longer {unit} ends with a \
                 budget of its own. Here the whole {unit} counts",
                unit = unit.word()
            );
            config.differs(&what, why);
        }
    }
}

/// Writes `[tier]` for the budgets of consumers and groups.
pub(super) fn note_tiers(file: &mut KongFile<'_>) {
    let has_tiers = |one: &crate::draft::LimitDraft| one.entries.has("tiers");
    if !file.draft.limits.iter().any(has_tiers) {
        return;
    }
    let tier: &mut TomlEntries = &mut file.draft.calls.tier;
    tier.add_new("from", quote("header:x-consumer-groups"));
    let why = "its consumers have a tier of this name. Give the tiers in the file of keys, `known` \
               of [api_key], with lines `KEY NAME TIER`. The header in `from` of [tier] counts \
               from trusted proxies only";
    file.root.lost("budgets of consumers and groups", why);
}
