//! Variables of nginx in `proxy.toml`: as templates of values, and as keys of limits.

use ipnet::IpNet;

use super::scope::BlockScope;
use super::syntax::Directive;
use crate::patterns;
use crate::values::KeyDraft;

/// Maps of maps, at most.
const MAX_DEPTH: usize = 4;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ValuePart<'t> {
    Text(&'t str),
    /// `$name` or `${name}`
    Variable(&'t str),
}

pub(super) fn split_variables(text: &str) -> Vec<ValuePart<'_>> {
    let mut parts = Vec::new();
    let mut rest = text;
    while let Some(at) = rest.find('$') {
        let behind = &rest[at + 1..];
        let braced = behind
            .strip_prefix('{')
            .and_then(|inner| inner.split_once('}'));
        let end = behind.find(|c: char| !(c.is_ascii_alphanumeric() || c == '_'));
        let (name, after) = braced.unwrap_or(behind.split_at(end.unwrap_or(behind.len())));
        if name.is_empty() {
            // A dollar sign without a name stands for itself.
            parts.push(ValuePart::Text(&rest[..=at]));
            rest = behind;
            continue;
        }
        if at > 0 {
            parts.push(ValuePart::Text(&rest[..at]));
        }
        parts.push(ValuePart::Variable(name));
        rest = after;
    }
    if !rest.is_empty() {
        parts.push(ValuePart::Text(rest));
    }
    parts
}

/// Replaces the variables that have one value in a scope: the server's name, and what `set` says.
pub(super) fn expand_constants(text: &str, scope: &BlockScope<'_>) -> String {
    let parts = split_variables(text).into_iter().map(|part| match part {
        ValuePart::Text(text) => text.to_owned(),
        ValuePart::Variable("server_name") => scope.server_name().to_owned(),
        ValuePart::Variable(name) => {
            match scope.constant(name).filter(|value| is_constant(value)) {
                Some(value) => value.to_owned(),
                None => format!("${{{name}}}"),
            }
        }
    });
    parts.collect()
}

pub(super) fn is_constant(text: &str) -> bool {
    let parts = split_variables(text);
    parts.iter().all(|part| matches!(part, ValuePart::Text(_)))
}

/// Notes variables of a value whose values are a little different here.
pub(super) fn note_differences(text: &str, one: &Directive) {
    for part in split_variables(text) {
        match part {
            ValuePart::Variable("ssl_client_cert") => {
                one.differs("the certificate is in one line, escaped as for a URL");
            }
            ValuePart::Variable("limit_req_status" | "limit_conn_status") => {
                one.differs("`{limit_status}` tells the decision of all limits");
            }
            _ => {}
        }
    }
}

/// Translates a value with variables to a template. Fails with a reason if `proxy.toml` has not one
/// of the variables.
pub(super) fn translate_template(text: &str) -> Result<String, String> {
    translate_parts(text, translate_variable)
}

/// Does the same in a scope, which has a server's name, and groups of regular expressions.
pub(super) fn translate_value(text: &str, scope: &BlockScope<'_>) -> Result<String, String> {
    let text = expand_constants(text, scope);
    translate_parts(&text, |name| {
        scope.group(name).or_else(|| translate_scoped(name, scope))
    })
}

/// Translates the place that a `rewrite` with this expression leads to.
pub(super) fn translate_place(
    text: &str,
    regex: &str,
    scope: &BlockScope<'_>,
) -> Result<String, String> {
    let text = expand_constants(text, scope);
    translate_parts(&text, |name| match patterns::has_group(regex, name) {
        true => Some(format!("{{path:{name}}}")),
        false => translate_scoped(name, scope),
    })
}

/// Translates a variable whose meaning depends on directives of its scope.
fn translate_scoped(name: &str, scope: &BlockScope<'_>) -> Option<String> {
    // nginx takes the client from a PROXY header only where it is told to.
    let name = match name {
        // Here a client may show a certificate that another server asks for.
        "ssl_client_verify" if scope.asks_for_no_certificate() => return Some("NONE".to_owned()),
        "remote_addr" | "remote_port" if scope.ignores_proxy_header() => {
            format!("realip_{name}")
        }
        name => name.to_owned(),
    };
    translate_variable(&name)
}

/// Does the same for the line of a log, which tells more of a response.
pub(super) fn translate_line(text: &str, scope: &BlockScope<'_>) -> Result<String, String> {
    let text = expand_constants(text, scope);
    translate_parts(&text, |name| {
        let ours = match name {
            "status" => "{status}",
            "bytes_sent" => "{bytes_sent}",
            "body_bytes_sent" => "{body_bytes_sent}",
            "time_local" => "{common_time}",
            "time_iso8601" => "{time}",
            "request" => "{method} {uri} {protocol}",
            "upstream_bytes_sent" => "{upstream_bytes_sent}",
            "upstream_bytes_received" => "{upstream_bytes_received}",
            "upstream_response_length" => "{upstream_body_bytes}",
            _ => return translate_scoped(name, scope),
        };
        Some(ours.to_owned())
    })
}

fn translate_parts(
    text: &str,
    translate: impl Fn(&str) -> Option<String>,
) -> Result<String, String> {
    let mut out = String::new();
    for part in split_variables(text) {
        match part {
            ValuePart::Text(text) => out.push_str(&escape_text(text)),
            ValuePart::Variable(name) => match translate(name) {
                Some(ours) => out.push_str(&ours),
                None => return Err(format!("there is no ${name} here")),
            },
        }
    }
    Ok(out)
}

fn escape_text(text: &str) -> String {
    text.replace('{', "{{").replace('}', "}}")
}

fn translate_variable(name: &str) -> Option<String> {
    let ours = match name {
        "remote_addr" | "binary_remote_addr" => "{client_ip}",
        "realip_remote_addr" => "{connection_ip}",
        "host" | "http_host" => "{host}",
        "scheme" => "{scheme}",
        "request_uri" => "{uri}",
        "uri" | "document_uri" => "{path}",
        "args" | "query_string" => "{query}",
        "request_method" => "{method}",
        "request_id" => "{request_id}",
        "request_port" => "{request_port}",
        "is_request_port" => "{is_request_port}",
        "request_time" => "{request_time}",
        "msec" => "{unix_time}",
        "server_protocol" => "{protocol}",
        "realip_remote_port" => "{connection_port}",
        "remote_port" => "{peer_port}",
        "proxy_protocol_addr" => "{proxy_header_ip}",
        "proxy_protocol_port" => "{proxy_header_port}",
        "proxy_protocol_server_addr" => "{proxy_header_server_ip}",
        "proxy_protocol_server_port" => "{proxy_header_server_port}",
        "connection_requests" => "{connection_requests}",
        "connection_time" => "{connection_age}",
        "remote_user" => "{basic_user}",
        "content_type" => "{header:content-type}",
        "content_length" => "{header:content-length}",
        "server_port" => "{port}",
        "http2" => "{http2}",
        "https" => "{tls_on}",
        "ssl_protocol" => "{tls_version}",
        "ssl_cipher" => "{tls_cipher}",
        "ssl_server_name" => "{tls_server_name}",
        "ssl_session_reused" => "{tls_resumed}",
        "ssl_client_verify" => "{tls_verified}",
        "ssl_client_s_dn" => "{tls_subject}",
        "ssl_client_i_dn" => "{tls_issuer}",
        "ssl_client_serial" => "{tls_serial}",
        "ssl_client_cert" | "ssl_client_escaped_cert" => "{tls_cert}",
        "limit_req_status" | "limit_conn_status" => "{limit_status}",
        "upstream_addr" => "{upstream_addr}",
        "upstream_status" => "{upstream_status}",
        "upstream_header_time" | "upstream_response_time" => "{upstream_time}",
        "is_args" => "",
        _ => {
            let field = translate_response_field(name).or_else(|| translate_field(name))?;
            return Some(format!("{{{field}}}"));
        }
    };
    Some(ours.to_owned())
}

/// Translates the variable of one header or cookie of the response.
fn translate_response_field(name: &str) -> Option<String> {
    let headers = ["upstream_http_", "sent_http_"];
    if let Some(field) = headers.iter().find_map(|kind| name.strip_prefix(kind)) {
        return Some(format!("response_header:{}", header_name(field)));
    }
    let cookie = name.strip_prefix("upstream_cookie_")?;
    Some(format!("response_cookie:{cookie}"))
}

fn header_name(field: &str) -> String {
    field.replace('_', "-")
}

/// Translates the variable of one header, cookie or query parameter: `$http_x_key` to
/// `header:x-key`.
fn translate_field(name: &str) -> Option<String> {
    let (kind, field) = name.split_once('_')?;
    match kind {
        "http" => Some(format!("header:{}", header_name(field))),
        "arg" => Some(format!("query:{field}")),
        "cookie" => Some(format!("cookie:{field}")),
        _ => None,
    }
}

#[derive(Debug, Default)]
pub(super) struct ImportedKey {
    pub(super) key: KeyDraft,
    /// How it counts other clients than nginx.
    pub(super) differs: Option<String>,
    /// Each `$server_name` counts apart.
    pub(super) is_of_server: bool,
}

impl ImportedKey {
    fn part(part: &str, differs: Option<String>) -> ImportedKey {
        ImportedKey {
            key: KeyDraft::of_part(part),
            differs,
            is_of_server: false,
        }
    }

    /// A part that some requests have not. nginx does not count them.
    fn optional_part(part: &str) -> ImportedKey {
        let mut imported = ImportedKey::part(part, None);
        imported.key.missing = Some("skip");
        imported
    }
}

pub(super) fn translate_key(text: &str, scope: &BlockScope<'_>) -> Result<ImportedKey, String> {
    let mut all = ImportedKey::default();
    let mut is_always_there = false;
    for part in split_variables(text) {
        // A fixed text is the same for all clients.
        let ValuePart::Variable(name) = part else {
            is_always_there = true;
            continue;
        };
        let ImportedKey {
            key,
            differs,
            is_of_server,
        } = translate_key_variable(name, scope, 0)?;
        is_always_there |= key.missing.is_none();
        all.is_of_server |= is_of_server;
        all.key.exempt.extend(key.exempt);
        all.key.parts.extend(key.parts);
        all.key.missing = all.key.missing.or(key.missing);
        all.differs = all.differs.or(differs);
    }
    let key = &mut all.key;
    key.parts.dedup();
    if key.parts.is_empty() {
        key.parts.push("global".to_owned());
    }
    // nginx leaves out requests only where the whole key is empty.
    if key.missing == Some("skip") && is_always_there {
        key.missing = Some("shared");
    } else if key.missing == Some("skip") {
        // Each part stands in for a missing one, so that a part is missing only if all are.
        let parts = key.parts.clone();
        let others = |at: usize| [&parts[at..], &parts[..at]].concat().join(" or ");
        key.parts = (0..parts.len()).map(others).collect();
        if parts.len() > 1 {
            let differs = "a value counts apart from the same value of another variable";
            all.differs = all.differs.or(Some(differs.to_owned()));
        }
    }
    Ok(all)
}

fn translate_key_variable(
    name: &str,
    scope: &BlockScope<'_>,
    depth: usize,
) -> Result<ImportedKey, String> {
    if let Some(map) = scope.map(name) {
        if depth >= MAX_DEPTH {
            return Err(format!("${name} is made of too many maps"));
        }
        return translate_mapped_key(name, map, scope, depth + 1);
    }
    Ok(match name {
        "binary_remote_addr" | "remote_addr" => ImportedKey::part("ip", None),
        // One value for all requests to a server.
        "server_name" => ImportedKey {
            is_of_server: true,
            ..ImportedKey::default()
        },
        "host" | "http_host" => ImportedKey::part("host", None),
        "uri" | "document_uri" => ImportedKey::part("path", None),
        "request_uri" => {
            let differs = "counts by the path, without the query".to_owned();
            ImportedKey::part("path", Some(differs))
        }
        "request_method" => ImportedKey::part("method", None),
        "ssl_client_s_dn" => ImportedKey::optional_part("tls:subject"),
        "ssl_client_fingerprint" => ImportedKey::optional_part("tls:fingerprint"),
        "http_x_forwarded_for" | "proxy_add_x_forwarded_for" | "http_x_real_ip" => {
            let differs = format!(
                "counts by the client's address: name your proxies in `trusted_proxies`; any \
                 client can invent ${name}"
            );
            ImportedKey::part("ip", Some(differs))
        }
        "scheme" | "server_port" | "server_addr" => ImportedKey {
            key: KeyDraft::default(),
            differs: Some(format!("${name} tells no clients apart here")),
            is_of_server: false,
        },
        _ => {
            let field = translate_field(name);
            ImportedKey::optional_part(&field.ok_or(format!("there is no key for ${name}"))?)
        }
    })
}

/// Translates a variable of `map` in one of two usual forms: a fallback for an empty value, or an
/// exemption of the networks of a `geo`.
fn translate_mapped_key(
    name: &str,
    map: &Directive,
    scope: &BlockScope<'_>,
    depth: usize,
) -> Result<ImportedKey, String> {
    if map.name == "geo" {
        return Err(format!("${name} is a group of addresses, not a client"));
    }
    let source = map.map_source();
    let key_of_value = |text: &str| match split_variables(text)[..] {
        [ValuePart::Variable(name)] => translate_key_variable(name, scope, depth).map(Some),
        [] => Ok(None),
        _ => Err(format!("`{text}` is no client")),
    };
    if let Some(geo) = scope.map(source).filter(|source| source.name == "geo") {
        let Some(mut all) = key_of_value(value_of_group(map, geo.map_default()))? else {
            return Err(format!(
                "${name} limits only some networks; `exempt` names the clients without a limit"
            ));
        };
        exempt_networks(map, geo, &mut all.key)?;
        return Ok(all);
    }
    // `"" $binary_remote_addr; default $http_x_key;`: the first variable that is not empty.
    let lines: Vec<_> = map.map_lines().collect();
    let defaults_to_source = map.map_default().strip_prefix('$') == Some(source);
    if let ([only], true) = (&lines[..], defaults_to_source)
        && only.name.is_empty()
    {
        let first = translate_key_variable(source, scope, depth)?;
        let Some(mut second) = key_of_value(only.arg(0))? else {
            return Ok(first);
        };
        let ([first], [other]) = (&first.key.parts[..], &mut second.key.parts[..]) else {
            return Err(format!("${name} is made of several things"));
        };
        *other = format!("{first} or {other}");
        second.differs = None;
        return Ok(second);
    }
    Err(format!(
        "${name} depends on ${source} in a way that no key does; a limit of its own route, \
         `tiers` or `exempt` may say it"
    ))
}

/// Returns the value of a `map` for a group of a `geo`: `map $limited { 0 ""; 1 $remote_addr; }`.
fn value_of_group<'d>(map: &'d Directive, group: &str) -> &'d str {
    let line = map.map_lines().find(|line| line.name == group);
    line.map_or(map.map_default(), |line| line.arg(0))
}

/// Exempts the networks of a `geo` whose key is empty. All others must have the default key.
fn exempt_networks(map: &Directive, geo: &Directive, key: &mut KeyDraft) -> Result<(), String> {
    let default = value_of_group(map, geo.map_default());
    let networks = geo.networks();
    let networks =
        networks.ok_or_else(|| format!("{} has lines that are no networks", geo.line()))?;
    let values = networks
        .into_iter()
        .map(|(net, group)| (net, value_of_group(map, group)));
    let (exempt, others): (Vec<_>, Vec<_>) = values.partition(|(_, value)| value.is_empty());
    key.exempt
        .extend(exempt.iter().map(|(net, _)| net.to_string()));
    for (net, value) in others {
        if value != default {
            return Err(format!(
                "{net} is counted by `{value}`, others by `{default}`"
            ));
        }
        if key.exempt.iter().any(|outer| contains(outer, &net)) {
            return Err(format!("{net} is an exception of an exception"));
        }
    }
    Ok(())
}

fn contains(outer: &str, inner: &IpNet) -> bool {
    let outer = outer.parse::<IpNet>();
    outer.is_ok_and(|outer| outer.contains(inner))
}

#[cfg(test)]
mod tests {
    use super::super::tests::import_http;
    use super::*;

    #[test]
    fn a_zone_counts_requests_with_a_part_of_its_key() {
        for (key, expected) in [
            ("$http_a", "key     = \"header:a\"\nmissing = \"skip\"\n"),
            (
                "$http_a$arg_b",
                "key     = [\"header:a or query:b\", \"query:b or header:a\"]\n\
                 missing = \"skip\"\n",
            ),
            (
                "$remote_addr$http_a",
                "key     = [\"ip\", \"header:a\"]\nmissing = \"shared\"\n",
            ),
            (
                "all:$http_a",
                "key     = \"header:a\"\nmissing = \"shared\"\n",
            ),
            (
                "$server_name$http_a",
                "key     = \"header:a\"\nmissing = \"shared\"\n",
            ),
        ] {
            let imported = import_http(&format!(
                "limit_req_zone {key} zone=a:1m rate=1r/s;\n\
                 server {{ limit_req zone=a; location / {{ proxy_pass http://10.0.0.1; }} }}"
            ));
            imported.assert_has(expected);
        }
    }

    #[test]
    fn variables_become_ours() {
        for (text, expected) in [
            ("https://$host$request_uri", Ok("https://{host}{uri}")),
            ("${http_x_user}-$arg_v", Ok("{header:x-user}-{query:v}")),
            ("a{b}", Ok("a{{b}}")),
            ("$geoip_country", Err("there is no $geoip_country here")),
            ("5$", Ok("5$")),
        ] {
            let found = translate_template(text);
            let found = found.as_deref().map_err(String::as_str);
            assert_eq!(found, expected, "{text}");
        }
    }
}
