//! API definitions of Tyk, and their classic form.

use crate::budgets::rate_of;
use crate::limit::Rate;
use crate::patterns;
use crate::route::{HostPattern, method_of};
use crate::tree::{TreeItem, TreeNode};
use crate::values::{TomlEntries, inline_table, parse_go_us, quote_list};

/// Where keys are if a definition does not say it.
pub(super) const AUTH_HEADER: &str = "Authorization";

/// Settings of the classic form that guard an API in a way that no route does.
const GUARDS: [&str; 12] = [
    "enable_jwt",
    "use_basic_auth",
    "use_oauth2",
    "use_openid",
    "enable_signature_checking",
    "use_mutual_tls_auth",
    "use_go_plugin_auth",
    "enable_coprocess_auth",
    "external_oauth.enabled",
    "auth_configs.coprocess.use_certificate",
    "graphql.enabled",
    "proxy.service_discovery.use_discovery_service",
];

/// Lists of the classic form that guard some paths, or run programs.
const GUARD_LISTS: [&str; 9] = [
    "white_list",
    "black_list",
    "validate_json",
    "validate_request",
    "go_plugin",
    "virtual",
    "size_limits",
    "method_transforms",
    "url_rewrites",
];

/// Keys of the classic form that are read or concern Tyk alone.
const KNOWN: &str = "id api_id name slug org_id active internal proxy domain domain_disabled \
    use_keyless use_standard_auth auth auth_configs global_rate_limit disable_rate_limit \
    disable_quota version_data definition enable_ip_whitelisting allowed_ips \
    enable_ip_blacklisting blacklisted_ips tags expire_analytics_after do_not_track \
    enable_detailed_recording listen_port protocol base_identity_provided_by auth_provider \
    session_provider session_lifetime notifications created_at updated_at config_data \
    enable_context_vars strip_auth_data schema is_oas detailed_tracing";

/// Keys of `proxy` in the classic form.
const KNOWN_PROXY: &str = "listen_path target_url target_list strip_listen_path \
    preserve_host_header enable_load_balancing service_discovery disable_strip_slash";

pub(super) enum TykAuth {
    Keyless,
    /// Sources of keys, as `from` of `[api_key]` writes them.
    Keys(Vec<String>),
}

/// A rate of one path, which all clients share.
pub(super) struct TykEndpoint {
    pub(super) path: String,
    pub(super) method: Option<String>,
    pub(super) rate: Rate,
}

pub(super) struct TykApi<'d> {
    /// `API NAME`
    pub(super) what: String,
    pub(super) item: &'d TreeItem,
    pub(super) ids: Vec<String>,
    pub(super) host: Option<String>,
    /// The only port that serves it; `None` for every port.
    pub(super) port: Option<u16>,
    pub(super) path: String,
    pub(super) strips: bool,
    pub(super) keeps_host: bool,
    pub(super) targets: Vec<String>,
    pub(super) auth: TykAuth,
    /// `access` of its routes.
    pub(super) access: TomlEntries,
    pub(super) global: Option<Rate>,
    pub(super) endpoints: Vec<TykEndpoint>,
    /// Bytes of a request's body, at most.
    pub(super) body_limit: Option<u64>,
    pub(super) closed: Option<String>,
}

/// Notes the keys of a table that are set, and that are not in `known`.
pub(super) fn note_used(item: &TreeItem, path: &str, known: &str) {
    for (key, value) in item.entries() {
        let is_known = known.split_whitespace().any(|one| one == key);
        if !is_known && is_used(value) {
            value.lost(&format!("{path}{key}"), "tidegate has nothing like it");
        }
    }
}

/// Whether a setting is on. Definitions of Tyk have every setting, most of them off.
pub(super) fn is_used(item: &TreeItem) -> bool {
    match &item.node {
        TreeNode::Null => false,
        TreeNode::Text(text) => !matches!(text.as_str(), "" | "0" | "-1" | "false"),
        TreeNode::List(items) => items.iter().any(is_used),
        TreeNode::Table(entries) => {
            let is_off = |key: &str| item.text_at(key) == Some("false");
            let is_on = !is_off("enabled") && !is_off("enable") && !item.is_true("disabled");
            is_on && entries.iter().any(|(_, one)| is_used(one))
        }
    }
}

pub(super) fn rate_at(item: &TreeItem, what: &str) -> Option<Rate> {
    let units = item.text_at("rate")?;
    let per = item.text_at("per")?;
    let seconds = parse_go_us(per).map(|us| us / 1_000_000).unwrap_or(0);
    if !is_used(item.get("rate")?) || seconds == 0 {
        return None;
    }
    match rate_of(units, seconds) {
        Ok(rate) => Some(rate),
        Err(why) => {
            item.lost(what, why);
            None
        }
    }
}

/// Where the host of an API leads to.
#[derive(Default)]
pub(super) struct TykHost {
    /// `None` for every host.
    pub(super) name: Option<String>,
    /// Why the API is closed, if no route can have its host.
    pub(super) closed: Option<String>,
}

pub(super) fn host_of(item: &TreeItem, what: &str, host: Option<&str>) -> TykHost {
    let Some(host) = host.filter(|host| !host.is_empty()) else {
        return TykHost::default();
    };
    let found = match host.contains('{') {
        true => patterns::regex_host(&host_regex(host)).map(|mut names| names.pop().flatten()),
        false => Ok(Some(host.to_ascii_lowercase())),
    };
    match found {
        Ok(Some(name)) if HostPattern::parse(&name).is_ok() => TykHost {
            name: Some(name),
            closed: None,
        },
        _ => {
            let why = "no route can have this host";
            let text = format!("{why}; the API is closed on all hosts");
            item.lost(&format!("{what}: {host}"), text);
            TykHost {
                name: None,
                closed: Some(why.to_owned()),
            }
        }
    }
}

/// Writes a host with parts `{NAME}` or `{NAME:EXPRESSION}` as an expression.
fn host_regex(host: &str) -> String {
    let mut regex = "^".to_owned();
    let mut rest = host;
    while let Some((before, after)) = rest.split_once('{') {
        let (part, after) = after.split_once('}').unwrap_or((after, ""));
        let expression = part.split_once(':').map_or("[^.]+", |(_, one)| one);
        let expression = if expression.is_empty() {
            "[^.]+"
        } else {
            expression
        };
        regex.push_str(&patterns::escape_regex(before));
        regex.push_str(&format!("(?:{expression})"));
        rest = after;
    }
    regex.push_str(&patterns::escape_regex(rest));
    regex.push('$');
    regex
}

pub(super) fn access_of(allow: Vec<String>, deny: Vec<String>) -> TomlEntries {
    let mut access = TomlEntries::default();
    let lists = [("allow", allow), ("deny", deny)];
    let lists = lists.iter().filter(|(_, list)| !list.is_empty());
    let fields: Vec<String> = lists
        .map(|(key, list)| format!("{key} = {}", quote_list(list)))
        .collect();
    if !fields.is_empty() {
        access.add("access", inline_table(&fields));
    }
    access
}

pub(super) fn read_classic<'d>(item: &'d TreeItem, proxy: &'d TreeItem) -> TykApi<'d> {
    let name = item.text_at("name").or_else(|| item.text_at("api_id"));
    let what = format!("API {}", name.unwrap_or("unnamed"));
    let guards = GUARDS.join(" ");
    note_used(
        item,
        &format!("{what}."),
        &format!("{KNOWN} {guards} external_oauth graphql custom_middleware"),
    );
    note_used(proxy, &format!("{what}.proxy."), KNOWN_PROXY);
    let ids = ["api_id", "id"].iter().filter_map(|key| item.text_at(key));
    let listed = |on: &str, list: &str| match item.is_true(on) {
        true => item.texts_at(list),
        false => Vec::new(),
    };
    let mut targets = Vec::new();
    if proxy.is_true("enable_load_balancing") {
        targets = proxy.texts_at("target_list");
    }
    if targets.is_empty() {
        targets.extend(proxy.text_at("target_url").map(str::to_owned));
    }
    let versions = read_versions(item, &what);
    if let Some(target) = versions.target {
        targets = vec![target];
    }
    let global = item.get("global_rate_limit");
    let is_off = item.is_true("disable_rate_limit") || item.is_true("global_rate_limit.disabled");
    let global = global.filter(|_| !is_off);
    for (key, on) in [
        ("quota_max", "disable_quota"),
        ("rate", "disable_rate_limit"),
    ] {
        if item.is_true(on) && !item.is_true("use_keyless") {
            let why = format!("`{key}` of policies did not hold for this API; here it does");
            item.lost(&format!("{what}.{on}"), why);
        }
    }
    let domain = item.text_at("domain");
    let domain = domain.filter(|_| !item.is_true("domain_disabled"));
    let host = host_of(item, &what, domain);
    let port = read_port(item, &what);
    TykApi {
        ids: ids.map(str::to_owned).collect(),
        host: host.name,
        port,
        path: proxy.text_at("listen_path").unwrap_or("/").to_owned(),
        strips: proxy.is_true("strip_listen_path"),
        keeps_host: proxy.is_true("preserve_host_header"),
        targets,
        auth: match item.is_true("use_keyless") {
            true => TykAuth::Keyless,
            false => TykAuth::Keys(key_sources(item)),
        },
        access: access_of(
            listed("enable_ip_whitelisting", "allowed_ips"),
            listed("enable_ip_blacklisting", "blacklisted_ips"),
        ),
        global: global.and_then(|one| rate_at(one, &format!("{what}.global_rate_limit"))),
        endpoints: versions.endpoints,
        body_limit: versions.body_limit,
        closed: find_guard(item, &what).or(versions.closed).or(host.closed),
        what,
        item,
    }
}

/// Reads the only port that serves the API, if it has one.
fn read_port(item: &TreeItem, what: &str) -> Option<u16> {
    let port: u16 = item.text_at("listen_port")?.parse().ok()?;
    if port == 0 {
        return None;
    }
    let why = "the route is for this port alone: add the port to `listen`";
    item.lost(&format!("{what}.listen_port"), why);
    Some(port)
}

/// Returns why a setting of the whole API closes it.
fn find_guard(item: &TreeItem, what: &str) -> Option<String> {
    let mut guards = GUARDS.iter().filter(|guard| item.is_true(guard));
    if let Some(guard) = guards.next() {
        return Some(close(item, what, guard));
    }
    let kinds = ["pre", "post", "post_key_auth", "auth_check", "response"];
    let programs = item.get("custom_middleware")?;
    let mut used = kinds
        .iter()
        .filter(|kind| programs.get(kind).is_some_and(is_used));
    let kind = used.next()?;
    Some(close(programs, what, &format!("custom_middleware.{kind}")))
}

/// Notes a guard that no route has. Returns why the API is closed.
pub(super) fn close(item: &TreeItem, what: &str, guard: &str) -> String {
    let why = "it may guard the API, and tidegate has nothing like it";
    item.lost(
        &format!("{what}.{guard}"),
        format!("{why}; the API is closed"),
    );
    format!("`{guard}`: {why}")
}

fn key_sources(item: &TreeItem) -> Vec<String> {
    let auth = item.at("auth_configs.authToken").or(item.get("auth"));
    let text = |key: &str| auth.and_then(|auth| auth.text_at(key)).unwrap_or_default();
    let is_on = |key: &str| auth.is_some_and(|auth| auth.is_true(key));
    let header = match text("auth_header_name") {
        "" => AUTH_HEADER,
        header => header,
    };
    let mut sources = Vec::new();
    if !is_on("disable_header") {
        sources.push(format!("header:{}", header.to_ascii_lowercase()));
        if header.eq_ignore_ascii_case(AUTH_HEADER) {
            sources.push("bearer".to_owned());
        }
    }
    for (on, name, kind) in [
        ("use_param", "param_name", "query"),
        ("use_cookie", "cookie_name", "cookie"),
    ] {
        if is_on(on) {
            let name = match text(name) {
                "" => header,
                name => name,
            };
            sources.push(format!("{kind}:{name}"));
        }
    }
    sources
}

/// What the versions of an API say.
#[derive(Default)]
struct TykVersions {
    endpoints: Vec<TykEndpoint>,
    body_limit: Option<u64>,
    /// The server in place of that of the API.
    target: Option<String>,
    /// Why the API is closed.
    closed: Option<String>,
}

fn read_versions(item: &TreeItem, what: &str) -> TykVersions {
    let mut found = TykVersions::default();
    let versions = item.entries_at("version_data.versions");
    let is_versioned = !item.is_true("version_data.not_versioned");
    if versions.len() > 1 && is_versioned {
        found.closed = Some(close(item, what, "version_data"));
    }
    for (name, version) in versions {
        let path = format!("{what}.versions.{name}.");
        let known =
            "name use_extended_paths extended_paths paths global_size_limit override_target";
        note_used(version, &path, known);
        let bytes = version.number_at("global_size_limit");
        found.body_limit = found.body_limit.or(bytes.filter(|bytes| *bytes > 0));
        let target = version.text_at("override_target");
        // Tyk ignores the target of an API without versions.
        if let Some(target) = target.filter(|one| is_versioned && !one.is_empty()) {
            found.target = Some(target.to_owned());
        }
        let is_on = version.text_at("use_extended_paths") != Some("false");
        let paths = if is_on { "extended_paths" } else { "paths" };
        for (kind, list) in version.entries_at(paths) {
            if is_used(list) {
                found.add_paths(kind, list, what);
            }
        }
    }
    found
}

impl TykVersions {
    /// Adds the settings of single paths.
    fn add_paths(&mut self, kind: &str, list: &TreeItem, what: &str) {
        if kind == "rate_limit" {
            let listed = list.list().iter().filter(|one| !one.is_true("disabled"));
            self.endpoints
                .extend(listed.filter_map(|one| endpoint(one, what)));
        } else if GUARD_LISTS.contains(&kind) {
            self.closed = Some(close(list, what, kind));
        } else {
            list.lost(&format!("{what}.{kind}"), "tidegate has nothing like it");
        }
    }
}

fn endpoint(item: &TreeItem, what: &str) -> Option<TykEndpoint> {
    let method = item
        .text_at("method")
        .filter(|method| method_of(method).is_ok());
    Some(TykEndpoint {
        path: item.text_at("path")?.to_owned(),
        method: method.map(str::to_owned),
        rate: rate_at(item, &format!("{what}.rate_limit"))?,
    })
}
