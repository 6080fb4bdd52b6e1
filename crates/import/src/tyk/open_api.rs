//! API definitions of Tyk in the form of OpenAPI, with `x-tyk-api-gateway`.

use super::apis::{
    AUTH_HEADER, TykApi, TykAuth, TykEndpoint, access_of, close, host_of, is_used, note_used,
    rate_at,
};
use crate::tree::TreeItem;

pub(super) fn read_open_api<'d>(item: &'d TreeItem, gateway: &'d TreeItem) -> TykApi<'d> {
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
    for (key, known) in [
        ("info", "id dbId orgId name state versioning"),
        ("upstream", "url rateLimit preserveHostHeader"),
        ("middleware", "global operations"),
    ] {
        if let Some(table) = gateway.get(key) {
            note_used(table, &format!("{what}.{key}."), known);
        }
    }
    let rate_limit = upstream.and_then(|one| one.get("rateLimit"));
    let global = rate_limit.filter(|one| one.is_true("enabled"));
    let (endpoints, guard) = read_operations(item, gateway, &what);
    let guard = read_global(gateway, &what).or(guard);
    let control = server
        .get("ipAccessControl")
        .filter(|one| one.is_true("enabled"));
    let list = |key: &str| control.map(|one| one.texts_at(key)).unwrap_or_default();
    let target = upstream.and_then(|one| one.text_at("url"));
    let host = host_of(server, &what, domain);
    TykApi {
        ids: ids.collect(),
        host: host.name,
        port: None,
        path: server.text_at("listenPath.value").unwrap_or("/").to_owned(),
        strips: server.is_true("listenPath.strip"),
        keeps_host: upstream.is_some_and(|one| one.is_true("preserveHostHeader.enabled")),
        targets: target.map(str::to_owned).into_iter().collect(),
        auth,
        access: access_of(list("allow"), list("block")),
        global: global.and_then(|one| rate_at(one, &format!("{what}.rateLimit"))),
        endpoints,
        body_limit: find_body_limit(gateway),
        closed: closed.or(guard).or(host.closed),
        what,
        item,
    }
}

/// Reads the rates of operations. Returns why the API is closed, if one of them is guarded.
fn read_operations(
    item: &TreeItem,
    gateway: &TreeItem,
    what: &str,
) -> (Vec<TykEndpoint>, Option<String>) {
    let (mut endpoints, mut guard) = (Vec::new(), None);
    for (id, operation) in gateway.entries_at("middleware.operations") {
        for (kind, setting) in operation
            .entries()
            .iter()
            .filter(|(_, one)| one.is_true("enabled"))
        {
            if kind == "rateLimit" {
                endpoints.extend(open_api_endpoint(item, id, setting, what));
            } else {
                guard = Some(close(setting, what, &format!("{id}.{kind}")));
            }
        }
    }
    (endpoints, guard)
}

/// Reads what holds for all paths. Returns why the API is closed, if it has versions or plugins.
fn read_global(gateway: &TreeItem, what: &str) -> Option<String> {
    let versioning = gateway.at("info.versioning").filter(|one| is_used(one));
    let mut guard = versioning.map(|one| close(one, what, "info.versioning"));
    for (kind, setting) in gateway.entries_at("middleware.global") {
        match kind.as_str() {
            _ if !is_used(setting) => {}
            "pluginConfig" | "contextVariables" | "trafficLogs" | "requestSizeLimit" => {}
            kind if kind.contains("Plugin") => {
                guard = Some(close(setting, what, &format!("middleware.global.{kind}")));
            }
            kind => setting.lost(
                &format!("{what}.middleware.global.{kind}"),
                "tidegate has nothing like it",
            ),
        }
    }
    guard
}

fn find_body_limit(gateway: &TreeItem) -> Option<u64> {
    let limit = gateway.at("middleware.global.requestSizeLimit");
    let limit = limit.filter(|one| is_used(one))?;
    limit.number_at("value").filter(|bytes| *bytes > 0)
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
