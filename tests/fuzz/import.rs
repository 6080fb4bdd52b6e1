//! Other programs' configurations: any file is read to its end in bounded time, and what is written
//! for it is a `proxy.toml` that we read.

mod gateways;

use std::path::Path;
use std::time::{Duration, Instant};

use tidegate::config;
use tidegate::import::{ImportError, SourceProgram, import};

use crate::both;

/// More than one should ever take, on a machine that does much else.
const PATIENCE: Duration = Duration::from_secs(20);

const NGINX: &[&str] = &[
    "\n",
    ";\n",
    ";\n",
    "}\n",
    "}\n",
    "{\n",
    "http {\n",
    "server {\n",
    "server {\n",
    "location / {\n",
    "location = /a {\n",
    "location ^~ /b/ {\n",
    "location ~ ^/c/(\\d+)\\.php$ {\n",
    "location ~* \\.(?:gif|jpe?g)$ {\n",
    "location @named {\n",
    "listen 80;\n",
    "listen [::]:443 ssl http2 proxy_protocol;\n",
    "listen unix:/run/a.sock;\n",
    "server_name a.test *.b.test ~^(?<x>.+)$ _ \"\";\n",
    "proxy_pass http://u;\n",
    "proxy_pass http://127.0.0.1:1/x/;\n",
    "proxy_pass http://unix:/run/b.sock:/y;\n",
    "proxy_pass $where;\n",
    "grpc_pass grpcs://u;\n",
    "upstream u {\n",
    "server 127.0.0.1:2 weight=3 max_fails=0 backup;\n",
    "server h.test:3 down;\n",
    "keepalive 16;\n",
    "hash $request_uri consistent;\n",
    "limit_req_zone $binary_remote_addr zone=z:10m rate=5r/s;\n",
    "limit_req_zone \"$http_x_a$uri\" zone=y:1m rate=1r/m;\n",
    "limit_req zone=z burst=9 nodelay;\n",
    "limit_req zone=y burst=99999999999;\n",
    "limit_conn_zone $server_name zone=c:1m;\n",
    "limit_conn c 7;\n",
    "limit_req_status 429;\n",
    "limit_req_dry_run on;\n",
    "map $http_x_a $k {\n",
    "default \"\";\n",
    "~*^x(.*)$ $1;\n",
    "geo $whitelist {\n",
    "10.0.0.0/8 1;\n",
    "if ($http_x_a = b) {\n",
    "return 301 https://$host$request_uri;\n",
    "return 200 \"a\\nb${x}\";\n",
    "rewrite ^/(.*)$ /x/$1 break;\n",
    "set $where http://u;\n",
    "if ($request_method !~ ^(GET|POST)$) {\n",
    "if ($http_user_agent ~* (wget|curl)) {\n",
    "if ($http_x_a = \"\") {\n",
    "if ($host = a.test) {\n",
    "if ($uri ~ \\.sql$) {\n",
    "if ($cookie_s != 1) {\n",
    "if ($k) {\n",
    "return 403;\n",
    "limit_except GET {\n",
    "location ~ /\\.(?!well-known) {\n",
    "location /no-slash {\n",
    "proxy_pass http://u/v1/;\n",
    "proxy_http_version 2;\n",
    "max_headers 9;\n",
    "worker_shutdown_timeout 9s;\n",
    "proxy_set_header Host $host;\n",
    "proxy_set_header X-A \"\";\n",
    "add_header X-B \"$request_id {y}\" always;\n",
    "proxy_read_timeout 5m30s;\n",
    "client_max_body_size 8k;\n",
    "client_max_body_size 99999999999g;\n",
    "ssl_certificate a.pem;\n",
    "ssl_certificate_key a.key;\n",
    "auth_basic on;\n",
    "allow 10.0.0.0/8;\n",
    "deny all;\n",
    "satisfy any;\n",
    "set_real_ip_from 10.0.0.0/8;\n",
    "real_ip_header proxy_protocol;\n",
    "content_by_lua_block {\n",
    "include *.conf;\n",
    "include nothing;\n",
    "root /srv;\n",
    "try_files $uri @named;\n",
    "zone=",
    "$",
    "\"",
    "'",
    "\\",
    "#",
    "~",
    "%2f",
    "{id}",
    "/",
    " ",
    "-1",
    "0",
    "18446744073709551616",
    "\u{20ac}",
    "\0",
    "\r",
    "\u{feff}",
];
const TRAEFIK: &[&str] = &[
    "\n",
    "http:\n",
    "  routers:\n",
    "    r:\n",
    "    s:\n",
    "      rule: \"Host(`a.test`) && PathPrefix(`/x`)\"\n",
    "      rule: 'Path(`/a`) || (Method(`GET`) && !Header(`x-a`, `b`))'\n",
    "      rule: 'PathRegexp(`^/(?:a|b)/[0-9]+$`)'\n",
    "      rule: HostRegexp(`{sub:[a-z]+}.h.test`)\n",
    "      rule: 'ClientIP(`10.0.0.0/8`)'\n",
    "      rule: Query(`a`, `b`)\n",
    "      rule: \"\"\n",
    "      service: v\n",
    "      service: api@internal\n",
    "      middlewares: [m, n]\n",
    "      entryPoints: [web, websecure]\n",
    "      priority: 99\n",
    "      tls: {}\n",
    "      tls: {certResolver: le, domains: [{main: a.test}]}\n",
    "  middlewares:\n",
    "    m:\n",
    "    n:\n",
    "      rateLimit: {average: 5, burst: 9, period: 1m}\n",
    "      rateLimit: {average: 0}\n",
    "      rateLimit: {average: 99999999999999999999, burst: -1, period: 0s}\n",
    "      rateLimit:\n",
    "        average: 100\n",
    "        sourceCriterion: {requestHeaderName: x-a}\n",
    "        sourceCriterion: {ipStrategy: {depth: 2, excludedIPs: [10.0.0.0/8]}}\n",
    "      inFlightReq: {amount: 7}\n",
    "      stripPrefix: {prefixes: [/x, /y]}\n",
    "      addPrefix: {prefix: \"/{z}\"}\n",
    "      redirectScheme: {scheme: https, permanent: true}\n",
    "      redirectRegex: {regex: '^http://(.*)', replacement: 'https://${1}'}\n",
    "      ipAllowList: {sourceRange: [10.0.0.0/8, ::/0, x]}\n",
    "      basicAuth: {users: [a]}\n",
    "      headers: {customRequestHeaders: {X-A: b, X-B: \"\"}, stsSeconds: 9}\n",
    "      chain: {middlewares: [m, n]}\n",
    "      retry: {attempts: 3}\n",
    "      buffering: {maxRequestBodyBytes: 9}\n",
    "  services:\n",
    "    v:\n",
    "    w:\n",
    "      loadBalancer: {servers: [{url: 'http://127.0.0.1:1'}, {url: 'h2c://h:2', weight: 3}]}\n",
    "      loadBalancer: {healthCheck: {path: /h, interval: 10s}, sticky: {cookie: {}}}\n",
    "      weighted: {services: [{name: v, weight: 1}, {name: w, weight: 3}]}\n",
    "      failover: {service: v, fallback: w}\n",
    "      mirroring: {service: v}\n",
    "entryPoints:\n",
    "  web: {address: ':80'}\n",
    "  websecure: {address: ':443', http: {tls: {}}, proxyProtocol: {trustedIPs: [::1]}}\n",
    "tls: {certificates: [{certFile: a.pem, keyFile: a.key}]}\n",
    "tcp: {routers: {}}\n",
    "    labels:\n",
    "      - traefik.http.routers.r.rule=Host(`a.test`)\n",
    "      - traefik.http.routers.r.middlewares=m,n\n",
    "      - traefik.http.services.s.loadbalancer.server.port=80\n",
    "      traefik.http.middlewares.m.ratelimit.average: 5\n",
    "    command: [--entrypoints.web.address=:80]\n",
    "[http.routers.r]\n",
    "rule = \"PathPrefix(`/`)\"\n",
    "service = \"v\"\n",
    "middlewares = [\"m\"]\n",
    "[http.middlewares.m.rateLimit]\n",
    "average = 5\n",
    "[[http.services.v.loadBalancer.servers]]\n",
    "url = \"http://127.0.0.1:1\"\n",
    "&x ",
    "*x",
    "<<: *x\n",
    "- ",
    ": ",
    "{",
    "}",
    "[",
    "\"",
    "'",
    "`",
    "(",
    ")",
    "&&",
    "||",
    "!",
    "#",
    "|\n",
    "---\n",
    "  ",
    "\t",
    "~",
    "\u{20ac}",
    "\0",
];

const ENVOY_RATELIMIT: &[&str] = &[
    "\n",
    "domain: d\n",
    "domain: '${HOME} $$'\n",
    "descriptors:\n",
    "- key: a\n",
    "- key: a\n",
    "- key: b\n",
    "- key: 'a=b'\n",
    "- key: 'b*'\n",
    "- key: \"a \\t\\u0007\\\"\"\n",
    "- {key: c, value: '${X}*', rate_limit: {unit: day}}\n",
    "  value: x\n",
    "  value: 'x*'\n",
    "  value: '*y'\n",
    "  value: 'x*y*z'\n",
    "  value: '*'\n",
    "  value: '='\n",
    "  value: 1e3\n",
    "  value: 010\n",
    "  value: ''\n",
    "  descriptors:\n",
    "  - key: a\n",
    "  - key: b\n",
    "  - {key: a, value: 'y*z', rate_limit: {unit: Week, requests_per_unit: 7}}\n",
    "    value: y\n",
    "    descriptors: [{key: a, rate_limit: {unit: second, requests_per_unit: 1}}]\n",
    "    rate_limit: {unit: day, requests_per_unit: 4294967295}\n",
    "    rate_limit: {unlimited: true, name: n}\n",
    "  rate_limit: {unit: day, requests_per_unit: 3}\n",
    "  rate_limit: {unit: minute, requests_per_unit: 3, name: n, replaces: [{name: m}]}\n",
    "  rate_limit: {unit: year, requests_per_unit: 0, name: m, replaces: [{name: n}]}\n",
    "  rate_limit: {unlimited: yes, name: \"\\0\"}\n",
    "  rate_limit: {unit: none, requests_per_unit: -1}\n",
    "  rate_limit:\n",
    "    unit: hour\n",
    "    requests_per_unit: 0x1_0\n",
    "    name: 'd/a=x'\n",
    "    replaces: [{name: ''}]\n",
    "  share_threshold: true\n",
    "    share_threshold: true\n",
    "  shadow_mode: true\n",
    "  quota_mode: on\n",
    "  detailed_metric: true\n",
    "  value_to_metric: 1\n",
    "  metadata: {'${X}': [1, 1.5, ~, {a.b: \"\\u0007\"}], n: 99999999999999999999}\n",
    "  metadata: {d: 2001-01-01, i: .inf, o: 010, '': {}}\n",
    "  x: y\n",
    "0.5: y\n",
    "  <<: {key: e}\n",
    "- &x {key: f}\n- *x\n",
    "---\n",
    "  ",
    "\t",
    "{",
    "[",
    "\"",
    "'",
    "*",
    "#",
    "~",
    "\u{20ac}",
    "\0",
];

#[test]
fn any_file_of_nginx_is_imported_or_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("nginx.conf");
    bolero::check!(name = "nginx")
        .with_max_len(96)
        .for_each(|input: &[u8]| {
            both(input, NGINX, |text| {
                check(SourceProgram::Nginx, &path, text)
            })
        });
}

#[test]
fn any_file_of_traefik_is_imported_or_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("traefik.yml");
    bolero::check!(name = "traefik")
        .with_max_len(96)
        .for_each(|input: &[u8]| {
            both(input, TRAEFIK, |text| {
                check(SourceProgram::Traefik, &path, text)
            })
        });
}

#[test]
fn any_file_of_envoy_ratelimit_is_imported_or_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("config.yml");
    bolero::check!(name = "envoy_ratelimit")
        .with_max_len(96)
        .for_each(|input: &[u8]| {
            both(input, ENVOY_RATELIMIT, |text| {
                check(SourceProgram::EnvoyRatelimit, &path, text)
            })
        });
}

#[test]
fn any_file_of_kong_is_imported_or_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("kong.yml");
    bolero::check!(name = "kong")
        .with_max_len(96)
        .for_each(|input: &[u8]| {
            both(input, gateways::KONG, |text| {
                check(SourceProgram::Kong, &path, text)
            })
        });
}

#[test]
fn any_file_of_apisix_is_imported_or_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("apisix.yml");
    bolero::check!(name = "apisix")
        .with_max_len(96)
        .for_each(|input: &[u8]| {
            both(input, gateways::APISIX, |text| {
                check(SourceProgram::Apisix, &path, text)
            })
        });
}

#[test]
fn any_file_of_envoy_ai_is_imported_or_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("resources.yml");
    bolero::check!(name = "envoy_ai")
        .with_max_len(96)
        .for_each(|input: &[u8]| {
            both(input, gateways::ENVOY_AI, |text| {
                check(SourceProgram::EnvoyAi, &path, text)
            })
        });
}

#[test]
fn any_file_of_tyk_is_imported_or_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tyk.json");
    bolero::check!(name = "tyk")
        .with_max_len(96)
        .for_each(|input: &[u8]| {
            both(input, gateways::TYK, |text| {
                check(SourceProgram::Tyk, &path, text)
            })
        });
}

fn check(from: SourceProgram, path: &Path, text: &[u8]) {
    // A file that is written over is put on the disk at once; a new one is not.
    let _ = std::fs::remove_file(path);
    std::fs::write(path, text).unwrap();
    let told = || String::from_utf8_lossy(text).into_owned();
    let began = Instant::now();
    let imported = import(from, &[path.to_owned()]);
    assert!(began.elapsed() < PATIENCE, "{}", told());
    match imported {
        Ok(imported) => {
            let read = config::parse("proxy.toml", &imported.text, &|_| None);
            if let Err(found) = read {
                panic!("{}\n{}\n{found}", told(), imported.text);
            }
            let lines = 1 + text.iter().filter(|byte| **byte == b'\n').count();
            for note in &imported.notes {
                let (line, note) = (note.place.line, note.to_string());
                assert!((1..=lines).contains(&line), "{}: {note}", told());
            }
        }
        Err(ImportError::Syntax(faults)) => {
            assert!(!faults.is_empty(), "{}", told());
            for fault in faults {
                assert!(
                    fault.place.line > 0 && !fault.what.is_empty(),
                    "{}: {fault}",
                    told()
                );
            }
        }
        Err(error) => panic!("{}\n{error}", told()),
    }
}
