//! Settings of the server and of routes: timeouts, sizes, trusted proxies and headers.

use super::hsts;
use super::scope::BlockScope;
use super::syntax::Directive;
use super::variables;
use crate::draft::{CertificateDraft, Draft};
use crate::patterns;
use crate::route::Direction;
use crate::route::template::Template;
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
    let buffers: Translate = head_bytes;
    let headers: Translate = |one| count_text(one, 1000);
    let streams: Translate = |one| count_text(one, 10_000);
    let requests: Translate = |one| Some(connection_requests(one)?.to_string());
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
            headers,
            "1 to 1000 are possible",
        ),
        (
            "http2_max_concurrent_streams",
            "max_streams",
            streams,
            "1 to 10000 are possible",
        ),
        ("worker_shutdown_timeout", "drain_timeout", time, no_time),
        (
            "keepalive_requests",
            "connection_requests",
            requests,
            "a number above 0 is possible",
        ),
        ("keepalive_time", "connection_age", time, no_time),
    ] {
        let one = scope.last(theirs).or_else(|| of_server(scope, theirs));
        note_others(scope.http, theirs, one);
        let Some(one) = one else {
            continue;
        };
        match translate(one) {
            Some(value) => draft.server.add_new(ours, value),
            // Connections are closed after one request.
            None if theirs == "keepalive_timeout"
                && values::parse_nginx_ms(one.arg(0)) == Some(0) =>
            {
                draft.server.replace("connection_requests", "1".to_owned());
            }
            None => one.lost(why),
        }
    }
    // nginx removes headers with underscores unless a directive says otherwise.
    let word_of = |name: &str| {
        let one = scope.last(name).or_else(|| of_server(scope, name));
        one.map_or("", |one| one.arg(0))
    };
    if word_of("underscores_in_headers") != "on" && word_of("ignore_invalid_headers") != "off" {
        draft
            .server
            .add("underscores_in_headers", "false".to_owned());
    }
    let bytes = max_body(scope).unwrap_or(DEFAULT_BODY);
    draft.server.add("max_body", body_text(bytes));
    read_real_ip(scope, draft);
}

/// Returns the size of all `large_client_header_buffers` together.
fn head_bytes(one: &Directive) -> Option<String> {
    let count = one.arg(0).parse::<u64>().ok()?;
    let bytes = count.checked_mul(values::parse_nginx_size(one.arg(1))?)?;
    let fits = (4096..=1 << 20).contains(&bytes);
    fits.then(|| values::size_text(bytes))
}

/// Returns a number from 1 to `most`.
fn count_text(one: &Directive, most: u64) -> Option<String> {
    let count = one.arg(0).parse::<u64>().ok()?;
    (1..=most).contains(&count).then(|| count.to_string())
}

/// Returns the requests that one connection may have.
pub(super) fn connection_requests(one: &Directive) -> Option<u64> {
    let requests = one.arg(0).parse::<u64>().ok();
    requests.filter(|requests| (1..=1_000_000_000).contains(requests))
}

/// Returns the directive of the first server that has it.
fn of_server<'d>(http: &BlockScope<'d>, name: &str) -> Option<&'d Directive> {
    let servers: Vec<&Directive> = http.named("server").collect();
    let mut found = servers.iter().filter_map(|server| server.first(name));
    let first = found.next()?;
    let has_it = |server: &&Directive| server.first(name).is_some();
    if !servers.iter().all(has_it) {
        first.differs("it is one setting for all servers");
    }
    Some(first)
}

/// Notes the directives of servers and locations that say another value than the one for all.
fn note_others(block: &Directive, name: &str, chosen: Option<&Directive>) {
    for one in block.inner().iter().filter(|one| one.name != "upstream") {
        if one.name == name && chosen.is_none_or(|chosen| chosen.args != one.args) {
            one.lost("it is one setting for all servers and locations");
        }
        note_others(one, name, chosen);
    }
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

pub(super) fn read_tls(scope: &BlockScope<'_>, draft: &mut Draft) {
    let tls = &mut draft.tls;
    let keys = scope.inherited("ssl_certificate_key");
    for (cert, key) in scope.inherited("ssl_certificate").into_iter().zip(keys) {
        tls.certificates.push(CertificateDraft {
            cert: cert.arg(0).to_owned(),
            key: key.arg(0).to_owned(),
            place: cert.place.clone(),
        });
    }
    if let Some(one) = scope.last("ssl_protocols") {
        if one.has_arg("TLSv1") || one.has_arg("TLSv1.1") {
            one.differs("TLS 1.2 is the oldest that is spoken");
        } else if !one.has_arg("TLSv1.2") {
            tls.entries.add_new("min_version", quote("1.3"));
        }
    }
}

/// Headers of requests that tidegate sets by itself, and the values that say the same.
const AUTOMATIC: &str = "\
x-real-ip | ${remote_addr}
x-forwarded-for | ${remote_addr} ${proxy_add_x_forwarded_for}
x-forwarded-proto | ${scheme}
x-forwarded-host | ${host} ${http_host} ${host}:${server_port}
forwarded | ${proxy_add_forwarded}
upgrade | ${http_upgrade} websocket
";

/// Notes a header that tidegate sets by itself, if it has another value there. Returns whether it
/// is such a header.
fn is_automatic(name: &str, one: &Directive, scope: &BlockScope<'_>) -> bool {
    let mut rows = AUTOMATIC.lines().filter_map(|row| row.split_once(" | "));
    let Some((_, usual)) = rows.find(|(known, _)| *known == name) else {
        return false;
    };
    let value = variables::expand_constants(one.arg(1), scope);
    let says_scheme = name == "x-forwarded-proto" && value == "https" && scope.has_only_tls();
    if !says_scheme && usual.split(' ').all(|usual| usual != value) {
        one.lost("tidegate sets it by itself, by the connection and `trusted_proxies`");
    }
    true
}

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
    let mut entries = TomlEntries::default();
    let mut success = expires(scope, &mut entries);
    down.extend(added_headers(scope, |one| one.arg(2) == "always"));
    success.extend(added_headers(scope, |one| one.arg(2) != "always"));
    entries.add_table("headers_up", &up);
    entries.add_table("headers_down", &down);
    entries.add_table("headers_success", &success);
    entries.add_table("trailers_down", &trailers(scope));
    entries
}

/// Translates those `add_header` that `is_meant` chooses.
fn added_headers(scope: &BlockScope<'_>, is_meant: impl Fn(&Directive) -> bool) -> Vec<String> {
    let mut added: Vec<(String, Vec<String>)> = Vec::new();
    let mut set: Vec<(String, String)> = Vec::new();
    for one in scope.inherited("add_header") {
        // `[tls]` has a setting for this one.
        if hsts::is_hsts(one) {
            hsts::note_other_header(one, scope);
            continue;
        }
        if !is_meant(one) {
            continue;
        }
        let Some(name) = changed_header(one, Direction::Down) else {
            continue;
        };
        let value = header_value(one, scope).unwrap_or_default();
        // nginx has one of these headers, and an empty value removes it.
        if matches!(&*name, "last-modified" | "etag") {
            let value = match value.is_empty() {
                true => "false".to_owned(),
                false => quote(&value),
            };
            set.retain(|(known, _)| *known != name);
            set.push((name, value));
            continue;
        }
        match added.iter_mut().find(|(known, _)| *known == name) {
            _ if value.is_empty() => {}
            Some((_, values)) => values.push(value),
            None => added.push((name, vec![value])),
        }
    }
    let set = set
        .into_iter()
        .map(|(name, value)| format!("{name} = {value}"));
    added_lines(added).chain(set).collect()
}

/// Returns `"+NAME" = ["VALUE"]` of each header.
fn added_lines(added: Vec<(String, Vec<String>)>) -> impl Iterator<Item = String> {
    added.into_iter().map(|(name, values)| {
        let name = quote(&format!("+{name}"));
        format!("{name} = {}", quote_one_or_list(&values))
    })
}

/// Translates `expires 1h;`. Returns the headers for a time that is fixed.
fn expires(scope: &BlockScope<'_>, entries: &mut TomlEntries) -> Vec<String> {
    let fixed = |date: &str, control: &str| {
        let fields = [("expires", date), ("cache-control", control)];
        fields
            .map(|(name, value)| format!("{name} = {}", quote(value)))
            .to_vec()
    };
    let Some(one) = scope.last("expires") else {
        return Vec::new();
    };
    let (is_from_change, time) = match one.arg(0) {
        "modified" => (true, one.arg(1)),
        time => (false, time),
    };
    match time {
        "off" => {}
        "max" => return fixed("Thu, 31 Dec 2037 23:55:55 GMT", "max-age=315360000"),
        // The exact time in the past does not matter.
        "epoch" => return fixed("Thu, 01 Jan 1970 00:00:01 GMT", "no-cache"),
        past if past.starts_with('-') && !is_from_change => {
            return fixed("Thu, 01 Jan 1970 00:00:01 GMT", "no-cache");
        }
        time => match values::parse_nginx_ms(time) {
            Some(ms) => {
                entries.add("expires", values::time_text(ms));
                if is_from_change {
                    entries.add("expires_from", quote("modified"));
                }
            }
            None => one.lost("`expires` of a route is a time that begins with the response"),
        },
    }
    Vec::new()
}

/// Translates `add_trailer X-Time $msec;`.
fn trailers(scope: &BlockScope<'_>) -> Vec<String> {
    let mut found: Vec<(String, Vec<String>)> = Vec::new();
    for one in scope.inherited("add_trailer") {
        let name = changed_header(one, Direction::Trailer);
        // Without a value it adds nothing, but a response has the form that can have trailers.
        let (Some(name), Some(value)) = (name, header_value(one, scope)) else {
            continue;
        };
        if one.has_arg("always") {
            one.differs("responses from status 400 on have no added trailers");
        }
        match found.iter_mut().find(|(known, _)| *known == name) {
            Some((_, values)) => values.push(value),
            None => found.push((name, vec![value])),
        }
    }
    added_lines(found).collect()
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
    variables::note_differences(one.arg(1), one);
    variables::translate_value(one.arg(1), scope)
        .map_err(|why| one.lost(why))
        .ok()
}

/// Translates `proxy_set_header Connection close`. tidegate sets all other values by itself, and no
/// client decides by its own `Connection` how long a connection to an upstream lives.
fn closed_connection(one: &Directive, scope: &BlockScope<'_>) -> Option<String> {
    let value = variables::translate_value(one.arg(1), scope).ok()?;
    let template = Template::parse(&value).ok()?;
    let may_close = match template.fixed() {
        Some(text) => text.eq_ignore_ascii_case("close"),
        None => !template.is_late() && !value.contains("{header:connection}"),
    };
    may_close.then(|| format!("connection = {}", quote(&value)))
}

/// Translates `proxy_set_header X-User $http_x_user;`.
fn request_header(one: &Directive, scope: &BlockScope<'_>, draft: &mut Draft) -> Option<String> {
    let lower = one.arg(0).to_ascii_lowercase();
    if lower == "connection" {
        return closed_connection(one, scope);
    }
    // The upstream has a setting for the host.
    if lower == "host" || is_automatic(&lower, one, scope) {
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
    if Template::parse(&value).is_ok_and(|value| value.is_late()) {
        one.lost("a request cannot tell what its upstream will answer");
        return None;
    }
    let value = match value.is_empty() {
        true => "false".to_owned(),
        false => quote(&value),
    };
    Some(format!("{} = {value}", toml_key(&name)))
}
