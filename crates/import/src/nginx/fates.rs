//! What becomes of directives by their name: those that others read, those that nobody needs here,
//! and those that cannot be kept. Every directive is one of the three.

use super::syntax::Directive;
use crate::notes::Notes;

/// Where directives stand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Context {
    Main,
    Server,
    Location,
}

/// Read elsewhere, which says by itself what of them is lost.
const READ: &[&str] = &[
    "http",
    "server",
    "location",
    "upstream",
    "map",
    "geo",
    "listen",
    "server_name",
    "ssl",
    "limit_req_zone",
    "limit_req",
    "limit_req_status",
    "limit_req_dry_run",
    "limit_conn_zone",
    "limit_conn",
    "limit_conn_dry_run",
    "proxy_pass",
    "grpc_pass",
    "proxy_set_header",
    "grpc_set_header",
    "proxy_hide_header",
    "add_header",
    "proxy_connect_timeout",
    "proxy_read_timeout",
    "grpc_connect_timeout",
    "grpc_read_timeout",
    "proxy_next_upstream",
    "proxy_next_upstream_tries",
    "grpc_next_upstream",
    "grpc_next_upstream_tries",
    "proxy_ssl_name",
    "proxy_ssl_trusted_certificate",
    "proxy_ssl_certificate",
    "proxy_ssl_certificate_key",
    "proxy_ssl_verify",
    "grpc_ssl_name",
    "grpc_ssl_verify",
    "grpc_ssl_trusted_certificate",
    "grpc_ssl_certificate",
    "grpc_ssl_certificate_key",
    "ssl_certificate",
    "ssl_certificate_key",
    "ssl_protocols",
    "ssl_client_certificate",
    "ssl_verify_client",
    "client_max_body_size",
    "client_header_timeout",
    "client_body_timeout",
    "keepalive_timeout",
    "large_client_header_buffers",
    "set_real_ip_from",
    "real_ip_header",
    "real_ip_recursive",
    "return",
    "rewrite",
    "internal",
    "allow",
    "deny",
    "auth_basic",
    "auth_request",
    "auth_jwt",
    "access_by_lua_block",
    "modsecurity",
    "SecRulesEnabled",
    "app_protect_enable",
    "wallarm_mode",
    "if",
    "limit_except",
    "include",
    "proxy_http_version",
    "max_headers",
    "worker_shutdown_timeout",
    "default_type",
    "fastcgi_pass",
    "uwsgi_pass",
    "scgi_pass",
    "memcached_pass",
    "content_by_lua_block",
    "stub_status",
    "autoindex",
    "dav_methods",
];

/// What tidegate does by itself, or what concerns nginx alone.
const NEEDLESS: &[(&str, &str)] = &[
    ("user", "the unit file says it"),
    ("pid", "`pid_file` of [server], where one is needed"),
    ("worker_processes", "a worker for each core"),
    ("worker_rlimit_nofile", "the proxy raises its limit itself"),
    ("worker_cpu_affinity", "a worker for each core"),
    ("worker_priority", "the unit file says it"),
    ("daemon", "the unit file says it"),
    ("load_module", "there are no modules"),
    ("events", "`max_connections` of [server]"),
    ("sendfile", "no files are served"),
    ("tcp_nopush", "always as fast as it can be"),
    ("tcp_nodelay", "always as fast as it can be"),
    ("types_hash_max_size", "no files are served"),
    ("server_names_hash_bucket_size", "tables fit by themselves"),
    ("server_names_hash_max_size", "tables fit by themselves"),
    ("map_hash_bucket_size", "tables fit by themselves"),
    ("map_hash_max_size", "tables fit by themselves"),
    ("variables_hash_max_size", "tables fit by themselves"),
    ("variables_hash_bucket_size", "tables fit by themselves"),
    ("proxy_headers_hash_max_size", "tables fit by themselves"),
    ("proxy_headers_hash_bucket_size", "tables fit by themselves"),
    ("types", "no files are served"),
    ("charset", "what upstreams say is passed on"),
    ("index", "no files are served"),
    ("server_tokens", "tidegate does not say what it is"),
    ("access_log", "`access` of [log]"),
    ("error_log", "standard error, for the journal"),
    ("log_format", "`format` of [log]"),
    ("log_not_found", "no files are served"),
    ("open_log_file_cache", "logs are kept open"),
    ("open_file_cache", "no files are served"),
    ("limit_req_log_level", "the access log has every denial"),
    ("limit_conn_log_level", "the access log has every denial"),
    ("http2", "HTTP/2 is spoken by itself"),
    ("http2_max_concurrent_streams", "`max_streams` of [server]"),
    ("keepalive_requests", "connections are kept by themselves"),
    ("keepalive_disable", "connections are kept by themselves"),
    ("reset_timedout_connection", "always"),
    ("lingering_close", "always"),
    (
        "ignore_invalid_headers",
        "headers that are none are refused",
    ),
    ("underscores_in_headers", "such headers pass"),
    ("merge_slashes", "limits see one spelling of each path"),
    ("port_in_redirect", "redirects are as they are written"),
    ("absolute_redirect", "redirects are as they are written"),
    (
        "server_name_in_redirect",
        "redirects are as they are written",
    ),
    ("client_body_buffer_size", "bodies are streamed"),
    ("client_body_temp_path", "bodies are streamed"),
    (
        "client_header_buffer_size",
        "`max_header_bytes` of [server]",
    ),
    ("send_timeout", "`body_timeout` of [server]"),
    ("proxy_buffering", "answers are streamed"),
    ("proxy_buffers", "answers are streamed"),
    ("proxy_buffer_size", "answers are streamed"),
    ("proxy_busy_buffers_size", "answers are streamed"),
    ("proxy_max_temp_file_size", "answers are streamed"),
    ("proxy_temp_path", "answers are streamed"),
    ("proxy_temp_file_write_size", "answers are streamed"),
    ("proxy_request_buffering", "bodies are streamed"),
    ("proxy_send_timeout", "`body_timeout` of [server]"),
    ("grpc_send_timeout", "`body_timeout` of [server]"),
    (
        "proxy_socket_keepalive",
        "connections are kept by themselves",
    ),
    ("proxy_pass_header", "upstreams' headers pass"),
    ("proxy_pass_request_headers", "headers pass"),
    ("proxy_pass_request_body", "bodies pass"),
    ("proxy_ssl_server_name", "SNI is always sent"),
    ("grpc_ssl_server_name", "SNI is always sent"),
    ("proxy_ssl_session_reuse", "sessions are resumed"),
    ("proxy_ssl_protocols", "TLS 1.2 and 1.3"),
    ("proxy_ssl_verify_depth", "chains are verified whole"),
    ("ssl_session_cache", "sessions are resumed by tickets"),
    ("ssl_session_timeout", "sessions are resumed by tickets"),
    ("ssl_session_tickets", "sessions are resumed by tickets"),
    ("ssl_prefer_server_ciphers", "rustls chooses"),
    ("ssl_ciphers", "rustls has safe ones only"),
    ("ssl_ecdh_curve", "rustls has safe ones only"),
    ("ssl_dhparam", "there is no finite-field exchange"),
    ("ssl_verify_depth", "chains are verified whole"),
    ("ssl_buffer_size", "always as fast as it can be"),
    ("ssl_early_data", "there is no early data"),
    ("resolver", "the system's resolver, every `dns_every`"),
    (
        "resolver_timeout",
        "the system's resolver, every `dns_every`",
    ),
    ("gzip_vary", "nothing is compressed"),
    ("gzip_proxied", "nothing is compressed"),
    ("gzip_types", "nothing is compressed"),
    ("gzip_comp_level", "nothing is compressed"),
    ("gzip_min_length", "nothing is compressed"),
    ("gzip_buffers", "nothing is compressed"),
    ("gzip_http_version", "nothing is compressed"),
    ("gzip_disable", "nothing is compressed"),
    ("satisfy", "what guards the location closes the route"),
    (
        "auth_basic_user_file",
        "what guards the location closes the route",
    ),
];

/// Why others cannot be kept.
const LOST: &[(&str, &str)] = &[
    ("stream", "tidegate speaks HTTP only"),
    ("mail", "tidegate speaks HTTP only"),
    ("gzip", "tidegate does not compress; let upstreams do it"),
    ("gzip_static", "tidegate serves no files"),
    ("brotli", "tidegate does not compress; let upstreams do it"),
    ("proxy_cache", "tidegate does not cache"),
    ("proxy_cache_path", "tidegate does not cache"),
    ("limit_rate", "the speed of answers is not limited"),
    ("limit_rate_after", "the speed of answers is not limited"),
    (
        "error_page",
        "answers pass as they are; [deny.body] is for denials",
    ),
    (
        "proxy_intercept_errors",
        "answers pass as they are; [deny.body] is for denials",
    ),
    ("ssl_stapling", "responses of OCSP are not sent"),
    ("ssl_stapling_verify", "responses of OCSP are not sent"),
    ("ssl_trusted_certificate", "responses of OCSP are not sent"),
    (
        "ssl_reject_handshake",
        "who asks for another name gets the first certificate",
    ),
    ("ssl_crl", "lists of revoked certificates are not read"),
    ("proxy_redirect", "a Location passes as it is"),
    ("proxy_cookie_path", "cookies pass as they are"),
    ("proxy_cookie_domain", "cookies pass as they are"),
    ("proxy_method", "methods pass as they are"),
    ("proxy_set_body", "bodies pass as they are"),
    (
        "proxy_ignore_client_abort",
        "who goes away cancels the request",
    ),
    (
        "proxy_bind",
        "connections come from the system's choice of address",
    ),
    ("expires", "`headers_down` sets headers"),
    ("set", "there are no variables of one's own"),
    ("split_clients", "there are no variables of one's own"),
    ("mirror", "requests are sent once"),
    ("sub_filter", "bodies pass as they are"),
    ("root", "tidegate serves no files"),
    ("alias", "tidegate serves no files"),
    ("try_files", "tidegate serves no files"),
    (
        "valid_referers",
        "what asks for `$invalid_referer` is closed",
    ),
];

/// Whether it is known what a directive does.
pub(super) fn is_known(name: &str) -> bool {
    let is_in = |table: &[(&str, &str)]| table.iter().any(|(known, _)| *known == name);
    READ.contains(&name) || is_in(NEEDLESS) || is_in(LOST)
}

/// Tells of each directive that nobody reads, in this block and those within.
pub(super) fn tell(list: &[Directive], context: Context, notes: &mut Notes) {
    for one in list {
        let name = one.name.as_str();
        let why = |table: &[(&str, &'static str)]| {
            table
                .iter()
                .find(|(known, _)| *known == name)
                .map(|(_, why)| *why)
        };
        if let Some(why) = why(NEEDLESS) {
            notes.needless(&one.place, &one.line(), why);
        } else if let Some(why) = why(LOST) {
            // Files of a location close its route, which is told there.
            let is_files = matches!(name, "root" | "alias" | "try_files");
            if !(is_files && context == Context::Location) {
                notes.lost(&one.place, &one.line(), why);
            }
        } else if !READ.contains(&name) {
            notes.lost(&one.place, &one.line(), "tidegate has nothing like it");
        }
        match name {
            "http" => tell(one.inner(), Context::Main, notes),
            "location" => tell(one.inner(), Context::Location, notes),
            _ => {}
        }
    }
}
