//! API definitions of Tyk: the classic form, and OpenAPI with `x-tyk-api-gateway`.

use crate::budgets::rate_of;
use crate::limit::Rate;
use crate::route::{HostPattern, method_of};
use crate::tree::{TreeItem, TreeNode};
use crate::values::{TomlEntries, inline_table, parse_go_us, quote_list};

/// Where keys are if a definition does not say it.
const AUTH_HEADER: &str = "Authorization";

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
    pub(super) path: String,
    pub(super) strips: bool,
    pub(super) keeps_host: bool,
    pub(super) targets: Vec<String>,
    pub(super) auth: TykAuth,
    /// `access` of its routes.
    pub(super) access: TomlEntries,
    pub(super) global: Option<Rate>,
    pub(super) endpoints: Vec<TykEndpoint>,
    pub(super) closed: Option<String>,
}

/// Reads an API; `None` for something else, and for an API that is off.
pub(super) fn read(item: &TreeItem) -> Option<TykApi<'_>> {
    let gateway = item.get("x-tyk-api-gateway");
    let is_off = match gateway {
        Some(gateway) => gateway.text_at("info.state.active") == Some("false"),
        None => item.text_at("active") == Some("false"),
    };
    if is_off {
        let name = gateway.map_or("name", |_| "x-tyk-api-gateway.info.name");
        let what = format!("API {}", item.text_at(name).unwrap_or("unnamed"));
        item.needless(&what, "the API is not active");
        return None;
    }
    Some(match gateway {
        Some(gateway) => read_open_api(item, gateway),
        None => read_classic(item, item.get("proxy")?),
    })
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
fn is_used(item: &TreeItem) -> bool {
    match &item.node {
        TreeNode::Null => false,
        TreeNode::Text(text) => !matches!(text.as_str(), "" | "0" | "-1" | "false"),
        TreeNode::List(items) => items.iter().any(is_used),
        TreeNode::Table(entries) => entries.iter().any(|(_, one)| is_used(one)),
    }
}

fn rate_at(item: &TreeItem, what: &str) -> Option<Rate> {
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

fn host_of(item: &TreeItem, what: &str, host: Option<&str>) -> Option<String> {
    let host = host.filter(|host| !host.is_empty())?;
    if HostPattern::parse(host).is_err() {
        item.lost(
            &format!("{what}: {host}"),
            "no route can have this host; it is left out",
        );
        return None;
    }
    Some(host.to_ascii_lowercase())
}

fn access_of(allow: Vec<String>, deny: Vec<String>) -> TomlEntries {
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

fn read_classic<'d>(item: &'d TreeItem, proxy: &'d TreeItem) -> TykApi<'d> {
    let name = item.text_at("name").or_else(|| item.text_at("api_id"));
    let what = format!("API {}", name.unwrap_or("unnamed"));
    let guards = GUARDS.join(" ");
    note_used(
        item,
        &format!("{what}."),
        &format!("{KNOWN} {guards} external_oauth graphql"),
    );
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
    let (endpoints, closed) = read_versions(item, &what);
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
    TykApi {
        ids: ids.map(str::to_owned).collect(),
        host: host_of(
            item,
            &what,
            item.text_at("domain")
                .filter(|_| !item.is_true("domain_disabled")),
        ),
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
        endpoints,
        closed: GUARDS
            .iter()
            .find(|guard| item.is_true(guard))
            .map(|guard| close(item, &what, guard))
            .or(closed),
        what,
        item,
    }
}

/// Notes a guard that no route has. Returns why the API is closed.
fn close(item: &TreeItem, what: &str, guard: &str) -> String {
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

/// Reads the rates of single paths. Returns why the API is closed, if its versions guard it.
fn read_versions(item: &TreeItem, what: &str) -> (Vec<TykEndpoint>, Option<String>) {
    let versions = item.entries_at("version_data.versions");
    let (mut endpoints, mut closed) = (Vec::new(), None);
    if versions.len() > 1 && !item.is_true("version_data.not_versioned") {
        closed = Some(close(item, what, "version_data"));
    }
    for (_, version) in versions {
        let Some(paths) = version.get("extended_paths") else {
            continue;
        };
        let is_on = version.text_at("use_extended_paths") != Some("false");
        for (kind, list) in paths
            .entries()
            .iter()
            .filter(|(_, list)| is_on && is_used(list))
        {
            if kind == "rate_limit" {
                let found = list.list().iter().filter(|one| !one.is_true("disabled"));
                endpoints.extend(found.filter_map(|one| endpoint(one, what)));
            } else if GUARD_LISTS.contains(&kind.as_str()) {
                closed = Some(close(list, what, kind));
            } else {
                list.lost(&format!("{what}.{kind}"), "tidegate has nothing like it");
            }
        }
    }
    (endpoints, closed)
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

fn read_open_api<'d>(item: &'d TreeItem, gateway: &'d TreeItem) -> TykApi<'d> {
    let name = gateway
        .text_at("info.name")
        .or_else(|| item.text_at("info.title"));
    let what = format!("API {}", name.unwrap_or("unnamed"));
    gateway.note_unknown(&format!("{what}."), "info upstream server middleware");
    let ids = ["info.id", "info.dbId"].iter();
    let ids = ids
        .filter_map(|key| gateway.text_at(key))
        .map(str::to_owned);
    let server = gateway.get("server").unwrap_or(gateway);
    let known = "listenPath authentication customDomain ipAccessControl eventHandlers \
                 detailedActivityLogs detailedTracing gatewayTags";
    if gateway.get("server").is_some() {
        note_used(server, &format!("{what}.server."), known);
    }
    let domain = server.text_at("customDomain.name");
    let domain = domain.filter(|_| server.is_true("customDomain.enabled"));
    let mut closed = None;
    let authentication = server.get("authentication");
    let auth = match authentication.filter(|one| one.is_true("enabled")) {
        None => TykAuth::Keyless,
        Some(authentication) => match open_api_sources(item, authentication) {
            Ok(sources) => TykAuth::Keys(sources),
            Err(scheme) => {
                closed = Some(close(authentication, &what, &scheme));
                TykAuth::Keyless
            }
        },
    };
    let upstream = gateway.get("upstream");
    let rate_limit = upstream.and_then(|one| one.get("rateLimit"));
    let global = rate_limit.filter(|one| one.is_true("enabled"));
    let (mut endpoints, mut guard) = (Vec::new(), None);
    for (id, operation) in gateway.entries_at("middleware.operations") {
        for (kind, setting) in operation
            .entries()
            .iter()
            .filter(|(_, one)| one.is_true("enabled"))
        {
            if kind == "rateLimit" {
                endpoints.extend(open_api_endpoint(item, id, setting, &what));
            } else {
                guard = Some(close(setting, &what, &format!("{id}.{kind}")));
            }
        }
    }
    let control = server
        .get("ipAccessControl")
        .filter(|one| one.is_true("enabled"));
    let list = |key: &str| control.map(|one| one.texts_at(key)).unwrap_or_default();
    let target = upstream.and_then(|one| one.text_at("url"));
    TykApi {
        ids: ids.collect(),
        host: host_of(server, &what, domain),
        path: server.text_at("listenPath.value").unwrap_or("/").to_owned(),
        strips: server.is_true("listenPath.strip"),
        keeps_host: false,
        targets: target.map(str::to_owned).into_iter().collect(),
        auth,
        access: access_of(list("allow"), list("block")),
        global: global.and_then(|one| rate_at(one, &format!("{what}.rateLimit"))),
        endpoints,
        closed: closed.or(guard),
        what,
        item,
    }
}

/// The places of keys. The error names a scheme that is no API key.
fn open_api_sources(item: &TreeItem, authentication: &TreeItem) -> Result<Vec<String>, String> {
    let mut sources = Vec::new();
    for (name, scheme) in authentication.entries_at("securitySchemes") {
        if scheme.text_at("enabled") == Some("false") {
            continue;
        }
        let described = item
            .at("components.securitySchemes")
            .and_then(|all| all.get(name));
        let text = |key: &str| {
            described
                .and_then(|one| one.text_at(key))
                .unwrap_or_default()
        };
        if text("type") != "apiKey" {
            return Err(name.clone());
        }
        let key = text("name");
        sources.push(match text("in") {
            "query" => format!("query:{key}"),
            "cookie" => format!("cookie:{key}"),
            _ => format!("header:{}", key.to_ascii_lowercase()),
        });
        if key.eq_ignore_ascii_case(AUTH_HEADER) {
            sources.push("bearer".to_owned());
        }
    }
    match sources.is_empty() {
        true => Err("authentication".to_owned()),
        false => Ok(sources),
    }
}

/// The path and the method of an operation are in the part of OpenAPI.
fn open_api_endpoint(
    item: &TreeItem,
    id: &str,
    setting: &TreeItem,
    what: &str,
) -> Option<TykEndpoint> {
    let rate = rate_at(setting, &format!("{what}.{id}.rateLimit"))?;
    let mut paths = item.entries_at("paths").iter();
    paths.find_map(|(path, methods)| {
        let mut methods = methods.entries().iter();
        let (method, _) = methods.find(|(_, one)| one.text_at("operationId") == Some(id))?;
        Some(TykEndpoint {
            path: path.clone(),
            method: Some(method.to_ascii_uppercase()),
            rate,
        })
    })
}
