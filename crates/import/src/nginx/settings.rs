//! Settings of the server and of routes: timeouts, sizes, trusted proxies and headers.

use super::scope::BlockScope;
use super::syntax::Directive;
use super::variables;
use crate::draft::Draft;
use crate::patterns;
use crate::route::Direction;
use crate::values::{self, TomlEntries, quote, quote_one_or_list};

/// nginx's own limit of a request's body.
const DEFAULT_BODY: u64 = 1 << 20;

/// The longest time that `proxy.toml` takes.
const DAY_MS: u64 = 86_400_000;

/// Reads a time of at least 1 ms and at most a day.
pub(super) fn parse_timeout(text: &str) -> Option<u64> {
    values::parse_nginx_ms(text).filter(|ms| (1..=DAY_MS).contains(ms))
}

pub(super) fn read_http(scope: &BlockScope<'_>, draft: &mut Draft) {
    type Translate = fn(&Directive) -> Option<String>;
    let time: Translate = |one| Some(values::time_text(parse_timeout(one.arg(0))?));
    let buffers: Translate = |one| {
        let count = one.arg(0).parse::<u64>().ok()?;
        let bytes = count.checked_mul(values::parse_nginx_size(one.arg(1))?)?;
        let fits = (4096..=1 << 20).contains(&bytes);
        fits.then(|| values::size_text(bytes))
    };
    let count: Translate = |one| {
        let count = one.arg(0).parse::<u64>().ok();
        Some(count.filter(|most| (1..=1000).contains(most))?.to_string())
    };
    let no_time = "not such a time here";
    for (theirs, ours, translate, why) in [
        ("client_header_timeout", "header_timeout", time, no_time),
        ("keepalive_timeout", "idle_timeout", time, no_time),
        ("client_body_timeout", "body_timeout", time, no_time),
        (
            "large_client_header_buffers",
            "max_header_bytes",
            buffers,
            "4 KiB to 1 MiB are possible",
        ),
        (
            "max_headers",
            "max_headers",
            count,
            "1 to 1000 are possible",
        ),
        ("worker_shutdown_timeout", "drain_timeout", time, no_time),
    ] {
        let Some(one) = scope.last(theirs).or_else(|| of_server(scope, theirs)) else {
            continue;
        };
        match translate(one) {
            Some(value) => draft.server.add(ours, value),
            None => one.lost(why),
        }
    }
    let bytes = max_body(scope).unwrap_or(DEFAULT_BODY);
    draft.server.add("max_body", body_text(bytes));
    read_real_ip(scope, draft);
}

/// Returns the directive of the first server that has it.
fn of_server<'d>(http: &BlockScope<'d>, name: &str) -> Option<&'d Directive> {
    let servers: Vec<&Directive> = http.named("server").collect();
    let mut found = servers.iter().filter_map(|server| server.first(name));
    let first = found.next()?;
    let is_same =
        |server: &&Directive| server.first(name).is_some_and(|one| one.args == first.args);
    if !servers.iter().all(is_same) {
        first.differs("it is one setting for all servers");
    }
    Some(first)
}

pub(super) fn max_body(scope: &BlockScope<'_>) -> Option<u64> {
    let one = scope.last("client_max_body_size")?;
    let size = values::parse_nginx_size(one.arg(0));
    if size.is_none() {
        one.lost("not a size");
    }
    size
}

/// Adds the speed of responses: the smaller one of that to the client and that from the upstream.
pub(super) fn add_bandwidth(scope: &BlockScope<'_>, entries: &mut TomlEntries) {
    let size_of = |name: &str| {
        let one = scope.last(name)?;
        let size = values::parse_nginx_size(one.arg(0));
        if size.is_none() {
            one.lost("not a size");
        }
        size.filter(|bytes| *bytes > 0)
    };
    let rates = [size_of("limit_rate"), size_of("proxy_limit_rate")];
    let Some(rate) = rates.into_iter().flatten().min() else {
        return;
    };
    let rate = values::size_text(rate);
    entries.add("bandwidth", quote(&format!("{}/s", rate.trim_matches('"'))));
    if let Some(bytes) = size_of("limit_rate_after") {
        entries.add("bandwidth_after", values::size_text(bytes));
    }
}

/// Writes the limit of a body. For nginx, 0 is no limit.
pub(super) fn body_text(bytes: u64) -> String {
    match bytes {
        0 => quote("unlimited"),
        bytes => values::size_text(bytes),
    }
}

/// Uses nginx's default header for the client's address if the files name none.
pub(super) fn add_default_real_ip(main: &Directive, draft: &mut Draft) {
    if !draft.trusted.is_empty() && !names_header(main) && draft.client_ip_header.is_none() {
        draft.client_ip_header = Some("x-real-ip".to_owned());
    }
}

fn names_header(block: &Directive) -> bool {
    block.name == "real_ip_header" || block.inner().iter().any(names_header)
}

/// Reads which proxies are trusted, and in which header they send the client's address.
pub(super) fn read_real_ip(scope: &BlockScope<'_>, draft: &mut Draft) {
    for one in scope.named("set_real_ip_from") {
        let net = one.arg(0);
        match net.parse::<ipnet::IpNet>().is_ok() || net.parse::<std::net::IpAddr>().is_ok() {
            true => draft.trusted.push(net.to_owned()),
            false => one.lost("only addresses and networks can be trusted"),
        }
    }
    let Some(one) = scope.first("real_ip_header") else {
        return;
    };
    match one.arg(0).to_ascii_lowercase().as_str() {
        "x-forwarded-for" if scope.is_on("real_ip_recursive") => {}
        "x-forwarded-for" => {
            let why = "tidegate passes over trusted addresses from the right, as with \
                       `real_ip_recursive on`";
            one.differs(why);
        }
        "proxy_protocol" => {}
        other => match &draft.client_ip_header {
            Some(known) if known != other => {
                let why = format!("there is one header for all, `{known}`");
                one.lost(why);
            }
            _ => draft.client_ip_header = Some(other.to_owned()),
        },
    }
}

/// Headers of requests that tidegate sets by itself, or does not need.
const AUTOMATIC: [&str; 8] = [
    "host",
    "x-real-ip",
    "x-forwarded-for",
    "x-forwarded-proto",
    "x-forwarded-host",
    "forwarded",
    "upgrade",
    "connection",
];

pub(super) fn header_changes(scope: &BlockScope<'_>, draft: &mut Draft) -> TomlEntries {
    let mut up = Vec::new();
    for name in ["proxy_set_header", "grpc_set_header"] {
        for one in scope.inherited(name) {
            up.extend(request_header(one, scope, draft));
        }
    }
    let mut down = Vec::new();
    for one in scope.inherited("proxy_hide_header") {
        let name = changed_header(one, Direction::Down);
        let change = name.map(|name| format!("{} = false", toml_key(&name)));
        down.extend(change.filter(|change| !down.contains(change)));
    }
    let mut added: Vec<(String, Vec<String>)> = Vec::new();
    let mut set = Vec::new();
    for one in scope.inherited("add_header") {
        // `[tls]` has a setting for this one.
        if one.arg(0).eq_ignore_ascii_case("strict-transport-security") {
            continue;
        }
        let Some(name) = changed_header(one, Direction::Down) else {
            continue;
        };
        let value = header_value(one, scope).unwrap_or_default();
        // nginx has one of this header, and an empty value removes it.
        if name == "last-modified" {
            let value = if value.is_empty() {
                "false".to_owned()
            } else {
                quote(&value)
            };
            set.push(format!("{name} = {value}"));
            continue;
        }
        match added.iter_mut().find(|(known, _)| *known == name) {
            _ if value.is_empty() => {}
            Some((_, values)) => values.push(value),
            None => added.push((name, vec![value])),
        }
    }
    down.extend(added.into_iter().map(|(name, values)| {
        let name = quote(&format!("+{name}"));
        format!("{name} = {}", quote_one_or_list(&values))
    }));
    down.extend(set);
    let mut entries = TomlEntries::default();
    entries.add_table("headers_up", &up);
    entries.add_table("headers_down", &down);
    entries
}

fn toml_key(name: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
    match name.bytes().all(plain) {
        true => name.to_owned(),
        false => quote(name),
    }
}

/// Returns the name of the directive's header if a route may change it.
fn changed_header(one: &Directive, direction: Direction) -> Option<String> {
    patterns::parse_changed_header(one.arg(0), direction)
        .map_err(|why| one.lost(why))
        .ok()
}

fn header_value(one: &Directive, scope: &BlockScope<'_>) -> Option<String> {
    let name = scope.server_name();
    let text = one.arg(1).replace("${server_name}", "$server_name");
    let value = text
        .split("$server_name")
        .map(variables::translate_template);
    value
        .collect::<Result<Vec<String>, String>>()
        .map(|parts| parts.join(&name.replace('{', "{{").replace('}', "}}")))
        .map_err(|why| one.lost(why))
        .ok()
}

/// Translates `proxy_set_header X-User $http_x_user;`.
fn request_header(one: &Directive, scope: &BlockScope<'_>, draft: &mut Draft) -> Option<String> {
    let lower = one.arg(0).to_ascii_lowercase();
    if AUTOMATIC.contains(&lower.as_str()) {
        return None;
    }
    if matches!(lower.as_str(), "x-forwarded-port" | "x-forwarded-server") {
        one.lost("tidegate tells X-Forwarded-For, -Proto and -Host, and Forwarded");
        return None;
    }
    if one.arg(1) == "$request_id" {
        draft.request_id = Some(lower);
        return None;
    }
    let name = changed_header(one, Direction::Up)?;
    let value = header_value(one, scope)?;
    let value = match value.is_empty() {
        true => "false".to_owned(),
        false => quote(&value),
    };
    Some(format!("{} = {value}", toml_key(&name)))
}
