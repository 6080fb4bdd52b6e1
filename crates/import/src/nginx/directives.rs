//! Sorts directives by their names: translated elsewhere, needless, lost, or a guard.
//!
//! A route whose guard cannot be translated is closed: tidegate asks for no passwords.

use std::collections::BTreeSet;

use ipnet::IpNet;

use super::scope::BlockScope;
use super::syntax::Directive;
use super::variables;
use crate::draft::TargetDraft;
use crate::values::{has_word, quote_one_or_list};

/// Directives that other files of this room translate. They note what they lose.
const TRANSLATED: &str = "\
    http server location upstream map geo listen server_name ssl if include return rewrite \
    internal limit_except limit_req_zone limit_req limit_req_status limit_req_dry_run \
    limit_conn_zone limit_conn limit_conn_status limit_conn_dry_run ssl_certificate \
    ssl_certificate_key \
    ssl_protocols ssl_client_certificate ssl_verify_client proxy_pass proxy_set_header \
    proxy_hide_header proxy_connect_timeout proxy_read_timeout proxy_next_upstream \
    proxy_next_upstream_tries proxy_ssl_name proxy_ssl_trusted_certificate proxy_ssl_certificate \
    proxy_ssl_certificate_key proxy_ssl_verify proxy_ssl_session_reuse grpc_ssl_session_reuse \
    proxy_http_version grpc_pass grpc_set_header grpc_connect_timeout \
    grpc_read_timeout grpc_next_upstream grpc_next_upstream_tries \
    grpc_ssl_name grpc_ssl_verify grpc_ssl_trusted_certificate grpc_ssl_certificate \
    grpc_ssl_certificate_key add_header add_trailer client_max_body_size client_header_timeout \
    client_body_timeout keepalive_timeout large_client_header_buffers set_real_ip_from \
    real_ip_header real_ip_recursive allow deny auth_basic auth_request auth_jwt \
    access_by_lua_block modsecurity SecRulesEnabled app_protect_enable wallarm_mode max_headers \
    http2_max_concurrent_streams worker_shutdown_timeout access_log log_format \
    default_type fastcgi_pass uwsgi_pass scgi_pass memcached_pass \
    content_by_lua_block stub_status autoindex dav_methods limit_rate limit_rate_after \
    proxy_limit_rate proxy_redirect proxy_cookie_path proxy_method \
    proxy_pass_request_headers proxy_pass_request_body \
    proxy_cookie_domain proxy_cookie_flags error_page proxy_intercept_errors \
    grpc_intercept_errors keepalive_requests keepalive_time underscores_in_headers ssl_crl \
    proxy_ssl_crl grpc_ssl_crl ssl_reject_handshake proxy_ssl_server_name grpc_ssl_server_name \
    absolute_redirect port_in_redirect server_name_in_redirect expires";

/// Directives that tidegate does not need, and the reason.
const NEEDLESS: &str = "\
user worker_priority daemon | the unit file says it
pid | `pid_file` of [server], where one is needed
worker_processes worker_cpu_affinity | a worker for each core
worker_rlimit_nofile | the proxy raises its limit itself
load_module | there are no modules
events | `max_connections` of [server]
sendfile types_hash_max_size types index log_not_found open_file_cache | no files are served
tcp_nopush tcp_nodelay ssl_buffer_size | always as fast as it can be
server_names_hash_bucket_size server_names_hash_max_size | tables fit by themselves
map_hash_bucket_size map_hash_max_size variables_hash_max_size | tables fit by themselves
variables_hash_bucket_size proxy_headers_hash_max_size | tables fit by themselves
proxy_headers_hash_bucket_size | tables fit by themselves
charset | what upstreams say is passed on
server_tokens | tidegate does not say what it is
error_log | standard error, for the journal
open_log_file_cache | logs are kept open
limit_req_log_level limit_conn_log_level | the access log has every denial
http2 | HTTP/2 is spoken by itself
keepalive_disable proxy_socket_keepalive | connections are kept by themselves
reset_timedout_connection lingering_close | always
ignore_invalid_headers | headers that are none are refused
merge_slashes | limits see one spelling of each path
client_body_buffer_size client_body_temp_path proxy_request_buffering | bodies are streamed
client_header_buffer_size | `max_header_bytes` of [server]
send_timeout proxy_send_timeout grpc_send_timeout | `body_timeout` of [server]
proxy_buffering proxy_buffers proxy_buffer_size proxy_busy_buffers_size | answers are streamed
proxy_max_temp_file_size proxy_temp_path proxy_temp_file_write_size | answers are streamed
proxy_pass_header | upstreams' headers pass
proxy_ssl_protocols | TLS 1.2 and 1.3
proxy_ssl_verify_depth ssl_verify_depth | chains are verified whole
ssl_session_cache ssl_session_timeout ssl_session_tickets | sessions are resumed by tickets
ssl_prefer_server_ciphers | rustls chooses
ssl_ciphers ssl_ecdh_curve | rustls has safe ones only
ssl_dhparam | there is no finite-field exchange
ssl_early_data | there is no early data
resolver resolver_timeout | the system's resolver, every `dns_every`
gzip_vary gzip_proxied gzip_types gzip_comp_level gzip_min_length | nothing is compressed
gzip_buffers gzip_http_version gzip_disable | nothing is compressed
satisfy auth_basic_user_file | the import closes the routes of a guarded location
";

/// Directives that tidegate has nothing for, and the reason.
const LOST: &str = "\
stream mail | tidegate speaks HTTP only
gzip brotli | tidegate does not compress; let upstreams do it
gzip_static root alias try_files | tidegate serves no files
proxy_cache proxy_cache_path | tidegate does not cache
ssl_stapling ssl_stapling_verify | responses of OCSP are not sent
ssl_trusted_certificate | responses of OCSP are not sent, and `client_ca` alone says whom to believe
proxy_set_body sub_filter | bodies pass as they are
proxy_ignore_client_abort | a client that disconnects cancels its request
proxy_bind | connections come from the system's choice of address
set split_clients | there are no variables of one's own
mirror | requests are sent once
valid_referers | the import closes routes that use `$invalid_referer`
";

/// Beginnings of the names of directives that check access, or run programs that may check it.
const GUARDING: &str = "\
    auth_ access_by_ rewrite_by_lua server_rewrite_by_lua js_access secure_link perl_access \
    testcookie oidc_";

/// Directives that turn a web application firewall on.
const FIREWALLS: &str = "modsecurity SecRulesEnabled app_protect_enable wallarm_mode";

/// Words in the names of unknown directives that may check access.
const SUSPECT: &str = "\
    auth access deny allow block guard secure acl token jwt oidc ldap captcha firewall forbid ban_ \
    password";

/// Endings of the names of directives that only set something of a guard.
const SETTINGS: &str = "_file _set _timeout _md5 _secret _shm_size";

/// Files of packages that contain no guard.
const HARMLESS: &str = "\
    mime.types fastcgi_params fastcgi.conf proxy_params uwsgi_params scgi_params proxy.conf \
    options-ssl-nginx.conf ssl-params.conf";

fn find_reason(table: &'static str, name: &str) -> Option<&'static str> {
    let mut rows = table.lines().filter_map(|row| row.split_once(" | "));
    let (_, why) = rows.find(|(names, _)| has_word(names, name))?;
    Some(why)
}

fn is_known(name: &str) -> bool {
    let has_reason = |table| find_reason(table, name).is_some();
    has_word(TRANSLATED, name) || has_reason(NEEDLESS) || has_reason(LOST)
}

/// Notes each directive of this block and of the blocks in it that is not translated.
pub(super) fn note_untranslated(block: &Directive) {
    for one in block.inner() {
        let name = one.name.as_str();
        // Files that a location serves close its route, which notes them.
        let is_noted_by_route =
            block.name == "location" && matches!(name, "root" | "alias" | "try_files");
        if let Some(why) = find_reason(NEEDLESS, name) {
            one.needless(why);
        } else if let Some(why) = find_reason(LOST, name) {
            let is_constant = name == "set" && variables::is_constant(one.arg(1));
            if !is_noted_by_route && !is_constant {
                one.lost(why);
            }
        } else if !has_word(TRANSLATED, name) {
            one.lost("tidegate has nothing like it");
        }
        if matches!(name, "http" | "location") {
            note_untranslated(one);
        }
    }
}

/// Returns what a route answers if a scope's guards deny requests; `None` if they allow all.
pub(super) fn find_guard(scope: &BlockScope<'_>) -> Option<TargetDraft> {
    guard_of_route(scope).or_else(|| match address_rules(scope) {
        AddressRules::Lists(_) => {
            let rules = scope.inherited_any(&["allow", "deny"]);
            let close = |one: &&Directive| one.close("the addresses of a route are one list");
            rules.iter().map(close).next_back()
        }
        _ => None,
    })
}

/// Does the same for a route, whose `access` says lists of addresses.
pub(super) fn guard_of_route(scope: &BlockScope<'_>) -> Option<TargetDraft> {
    let mut guard = guard_by_name(scope);
    // Nothing outside of `http` guards a route.
    let levels = scope.levels.iter();
    let levels = levels.filter(|level| level.name != "main" || std::ptr::eq(**level, scope.http));
    for one in levels.flat_map(|level| level.named("include")) {
        let file = one.arg(0).rsplit('/').next().unwrap_or_default();
        if !has_word(HARMLESS, file) {
            let why = "the file cannot be read here, and it may guard something; what it is for is \
                       closed";
            let closed = one.close(why);
            guard.get_or_insert(closed);
        }
    }
    if let Some(one) = scope.last("ssl_verify_client")
        && one.arg(0) == "on"
        && scope.last("ssl_client_certificate").is_none()
    {
        let why = "no `ssl_client_certificate` says which certificates are believed; it is closed";
        let closed = one.close(why);
        guard.get_or_insert(closed);
    }
    guard.or_else(|| match address_rules(scope) {
        AddressRules::DenyAll => Some(TargetDraft::respond(403)),
        AddressRules::Ordered(one) => Some(one.close(
            "it depends on the order of `allow` and `deny`, or on more than addresses; the route \
             is closed",
        )),
        AddressRules::AllowAll | AddressRules::Lists(_) => None,
    })
}

fn guard_by_name(scope: &BlockScope<'_>) -> Option<TargetDraft> {
    let names: BTreeSet<&str> = scope.all().map(|one| one.name.as_str()).collect();
    let mut guard = None;
    for name in names.into_iter().filter(|name| checks_access(name)) {
        let Some(one) = scope.last(name).filter(|one| one.arg(0) != "off") else {
            continue;
        };
        let why = match has_word(FIREWALLS, name) {
            true => "tidegate has no web application firewall; the route is closed",
            false => "tidegate asks for no credentials and runs no programs; the route is closed",
        };
        guard = Some(one.close(why));
    }
    guard
}

fn checks_access(name: &str) -> bool {
    let sets = name != "auth_request" && SETTINGS.split(' ').any(|end| name.ends_with(end));
    let known = GUARDING.split(' ').any(|begin| name.starts_with(begin))
        && !(sets && name.starts_with("auth_"));
    let suspect = || SUSPECT.split(' ').any(|word| name.contains(word)) && !is_known(name);
    known && name != "auth_http" || has_word(FIREWALLS, name) || !sets && suspect()
}

/// `allow` and `deny` of a scope.
pub(super) enum AddressRules<'d> {
    AllowAll,
    DenyAll,
    /// The fields of `access`.
    Lists(Vec<String>),
    /// `access` cannot say this rule.
    Ordered(&'d Directive),
}

/// Reads `allow` and `deny`, which are one list: the first rule that fits a client decides. In
/// `access`, `deny` wins over `allow`.
pub(super) fn address_rules<'d>(scope: &BlockScope<'d>) -> AddressRules<'d> {
    let (mut allow, mut deny): (Vec<IpNet>, Vec<IpNet>) = (Vec::new(), Vec::new());
    let mut denies_others = false;
    for one in scope.inherited_any(&["allow", "deny"]) {
        let allows = one.name == "allow";
        if one.arg(0) == "all" {
            denies_others = !allows;
            break;
        }
        let Some(net) = parse_network(one.arg(0)) else {
            return AddressRules::Ordered(one);
        };
        let meets = |other: &IpNet| other.contains(&net) || net.contains(other);
        match allows {
            true => allow.push(net),
            false if allow.iter().any(meets) => return AddressRules::Ordered(one),
            false => deny.push(net),
        }
    }
    let list = |key: &str, nets: &[IpNet]| {
        let nets: Vec<String> = nets.iter().map(network_text).collect();
        format!("{key} = {}", quote_one_or_list(&nets))
    };
    let mut fields = Vec::new();
    match (denies_others, allow.is_empty()) {
        (true, true) => return AddressRules::DenyAll,
        (true, false) => fields.push(list("allow", &allow)),
        // A client that no rule denies is served.
        (false, _) => {}
    }
    if !deny.is_empty() {
        fields.push(list("deny", &deny));
    }
    match fields.is_empty() {
        true => AddressRules::AllowAll,
        false => AddressRules::Lists(fields),
    }
}

/// Whether two scopes have the same `allow` and `deny`.
pub(super) fn have_same_addresses(one: &BlockScope<'_>, other: &BlockScope<'_>) -> bool {
    let rules = |scope: &BlockScope<'_>| -> Vec<String> {
        let rules = scope.inherited_any(&["allow", "deny"]);
        rules.iter().map(|one| one.line()).collect()
    };
    rules(one) == rules(other)
}

fn parse_network(text: &str) -> Option<IpNet> {
    let net = text.parse::<IpNet>().ok();
    let net = net.or_else(|| Some(text.parse::<std::net::IpAddr>().ok()?.into()))?;
    Some(net.trunc())
}

fn network_text(net: &IpNet) -> String {
    match net.prefix_len() == net.max_prefix_len() {
        true => net.addr().to_string(),
        false => net.to_string(),
    }
}
