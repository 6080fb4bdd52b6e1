"""The origins of the garden: how each server is configured and started."""

import dataclasses
import os
import pathlib
import sys

HERE = pathlib.Path(__file__).parent
APPS = HERE / "apps"
PYTHON = sys.executable
BIN = pathlib.Path(sys.executable).parent


@dataclasses.dataclass(frozen=True)
class Origin:
    name: str
    # Prints its release.
    version: tuple
    # A function of the folder, the port and the port of the plain origin behind it. It writes
    # files, and returns the command.
    start: object
    # Whether it stands before the plain origin, and passes requests on.
    is_proxy: bool = True
    # Whether it speaks WebSockets.
    tunnels: bool = True
    # Whether it takes a body whose length it is not told.
    takes_chunks: bool = True
    scheme: str = "http"
    is_grpc: bool = False


def nginx(folder, port, behind):
    (folder / "nginx.conf").write_text(f"""daemon off; user root; pid {folder}/pid;
error_log stderr warn; events {{ }}
http {{ access_log off; keepalive_timeout 2s; client_max_body_size 0;
client_body_temp_path {folder}/b; proxy_temp_path {folder}/p; fastcgi_temp_path {folder}/f;
uwsgi_temp_path {folder}/u; scgi_temp_path {folder}/s;
server {{ listen 127.0.0.1:{port}; location / {{ proxy_pass http://127.0.0.1:{behind};
proxy_http_version 1.1; proxy_set_header Connection $http_connection;
proxy_set_header Upgrade $http_upgrade; proxy_request_buffering off; }} }} }}
""")
    return ["nginx", "-p", folder, "-c", folder / "nginx.conf"]


def apache(folder, port, behind):
    modules = "/usr/lib/apache2/modules"
    loads = "".join(f"LoadModule {name}_module {modules}/mod_{name}.so\n" for name in (
        "mpm_event", "authz_core", "proxy", "proxy_http"))
    (folder / "apache.conf").write_text(f"""{loads}ServerName localhost
ServerRoot {folder}
PidFile {folder}/pid
ErrorLog {folder}/error.log
Listen 127.0.0.1:{port}
KeepAliveTimeout 2
ProxyPass / http://127.0.0.1:{behind}/ upgrade=websocket
""")
    return ["apache2", "-X", "-f", folder / "apache.conf"]


def lighttpd(folder, port, behind):
    (folder / "lighttpd.conf").write_text(f"""server.modules = ("mod_proxy")
server.port = {port}
server.bind = "127.0.0.1"
server.document-root = "{folder}"
server.max-keep-alive-idle = 2
server.stream-request-body = 2
server.stream-response-body = 2
proxy.server = ("" => (("host" => "127.0.0.1", "port" => {behind})))
proxy.header = ("upgrade" => "enable")
""")
    return ["lighttpd", "-D", "-f", folder / "lighttpd.conf"]


def haproxy(folder, port, behind):
    (folder / "haproxy.cfg").write_text(f"""defaults
    mode http
    timeout connect 5s
    timeout client 20s
    timeout server 20s
    timeout http-keep-alive 2s
    timeout tunnel 20s
frontend clients
    bind 127.0.0.1:{port}
    default_backend origin
backend origin
    server origin 127.0.0.1:{behind}
""")
    return ["haproxy", "-f", "haproxy.cfg"]


def varnish(folder, port, behind):
    (folder / "default.vcl").write_text(f"""vcl 4.1;
backend default {{ .host = "127.0.0.1"; .port = "{behind}"; }}
sub vcl_recv {{ if (req.http.upgrade) {{ return (pipe); }} return (pass); }}
sub vcl_pipe {{ if (req.http.upgrade) {{ set bereq.http.upgrade = req.http.upgrade;
set bereq.http.connection = req.http.connection; }} }}
""")
    return ["varnishd", "-F", "-a", f"127.0.0.1:{port}", "-f", folder / "default.vcl", "-n",
            folder / "work", "-p", "timeout_idle=2", "-s", "malloc,32m"]


def squid(folder, port, behind):
    (folder / "squid.conf").write_text(f"""http_port 127.0.0.1:{port} accel defaultsite=a.test \
no-vhost
cache_peer 127.0.0.1 parent {behind} 0 no-query originserver name=origin no-digest
http_access allow all
cache deny all
cache_mem 8 MB
pid_filename {folder}/pid
cache_log {folder}/cache.log
access_log none
shutdown_lifetime 0 seconds
client_idle_pconn_timeout 2 seconds
visible_hostname garden
""")
    return ["squid", "-N", "-n", f"garden{port}", "-f", folder / "squid.conf"]


def traffic_server(folder, port, behind):
    for name in ("etc", "var", "log", "cache"):
        (folder / name).mkdir(exist_ok=True)
    (folder / "etc" / "remap.config").write_text(f"map / http://127.0.0.1:{behind}/\n")
    for name in ("storage.config", "plugin.config", "logging.yaml", "hosting.config",
                 "volume.config", "parent.config", "cache.config"):
        (folder / "etc" / name).write_text("")
    (folder / "etc" / "ip_allow.yaml").write_text(
        "ip_allow:\n  - apply: in\n    ip_addrs: 0/0\n    action: allow\n    methods: ALL\n")
    (folder / "etc" / "records.config").write_text(f"""\
CONFIG proxy.config.http.server_ports STRING {port}:ip-in=127.0.0.1
CONFIG proxy.config.http.cache.http INT 0
CONFIG proxy.config.http.keep_alive_no_activity_timeout_in INT 2
CONFIG proxy.config.http.wait_for_cache INT 0
CONFIG proxy.config.url_remap.pristine_host_hdr INT 1
CONFIG proxy.config.admin.user_id STRING nobody
""")
    (folder / "runroot.yaml").write_text(f"""prefix: {folder}
exec_prefix: /usr
bindir: /usr/bin
sbindir: /usr/sbin
sysconfdir: {folder}/etc
datadir: /usr/share/trafficserver
includedir: /usr/include
libdir: /usr/lib
libexecdir: /usr/lib/trafficserver/modules
localstatedir: {folder}/var
runtimedir: {folder}/var
logdir: {folder}/log
cachedir: {folder}/cache
""")
    return ["traffic_server", f"--run-root={folder}/runroot.yaml"]


def caddy(folder, port, behind):
    (folder / "Caddyfile").write_text(f"""{{
    admin off
    auto_https off
    servers {{
        timeouts {{
            idle 2s
        }}
    }}
}}
http://:{port} {{
    reverse_proxy 127.0.0.1:{behind}
}}
""")
    return ["caddy", "run", "--config", "Caddyfile", "--adapter", "caddyfile"]


def h2o(folder, port, behind):
    (folder / "h2o.yaml").write_text(f"""listen:
  host: 127.0.0.1
  port: {port}
user: root
http1-request-timeout: 2
hosts:
  default:
    paths:
      /:
        proxy.reverse.url: http://127.0.0.1:{behind}/
        proxy.websocket: ON
        proxy.preserve-host: ON
""")
    return ["h2o", "-c", folder / "h2o.yaml"]


def envoy(folder, port, behind):
    manager = "envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager"
    router = "envoy.extensions.filters.http.router.v3.Router"
    (folder / "envoy.yaml").write_text(f"""static_resources:
  listeners:
  - address: {{socket_address: {{address: 127.0.0.1, port_value: {port}}}}}
    filter_chains:
    - filters:
      - name: http
        typed_config:
          "@type": type.googleapis.com/{manager}
          stat_prefix: garden
          upgrade_configs: [{{upgrade_type: websocket}}]
          http_protocol_options: {{enable_trailers: true}}
          common_http_protocol_options: {{idle_timeout: 2s}}
          route_config:
            virtual_hosts:
            - name: all
              domains: ["*"]
              routes:
              - match: {{prefix: "/"}}
                route: {{cluster: origin, timeout: 20s}}
          http_filters:
          - name: router
            typed_config: {{"@type": type.googleapis.com/{router}}}
  clusters:
  - name: origin
    connect_timeout: 5s
    load_assignment:
      cluster_name: origin
      endpoints:
      - lb_endpoints:
        - endpoint: {{address: {{socket_address: {{address: 127.0.0.1, port_value: {behind}}}}}}}
""")
    return [BIN / "envoy", "-c", "envoy.yaml", "--concurrency", "1", "--use-dynamic-base-id",
            "--log-level", "warn"]


def wsgi(server):
    return lambda folder, port, _: [PYTHON, APPS / "wsgi.py", server, port]


def gunicorn(folder, port, _):
    return [BIN / "gunicorn", "--chdir", APPS, "-b", f"127.0.0.1:{port}", "--keep-alive", "2",
            "-k", "gthread", "--threads", "4", "wsgi:application"]


def uvicorn(folder, port, _):
    return [BIN / "uvicorn", "--app-dir", APPS, "--port", port, "--timeout-keep-alive", "2",
            "--log-level", "warning", "asgi:app"]


def hypercorn(folder, port, _):
    return [BIN / "hypercorn", "-b", f"127.0.0.1:{port}", "--keep-alive", "2",
            f"{APPS}/asgi.py:app"]


def other(server):
    return lambda folder, port, _: [PYTHON, APPS / "others.py", server, port]


def node(folder, port, _):
    return ["node", pathlib.Path(os.environ["GARDEN_NODE"]) / "node.mjs", port]


def module(name):
    return (PYTHON, "-c", f"import importlib.metadata as m; print(m.version('{name}'))")


PLAIN = Origin("plain sockets", (PYTHON, "-c", "print('')"), other("plain"), is_proxy=False)
ORIGINS = (
    PLAIN,
    Origin("nginx", ("nginx", "-v"), nginx),
    Origin("apache2", ("apache2", "-v"), apache),
    Origin("lighttpd", ("lighttpd", "-v"), lighttpd),
    Origin("haproxy", ("haproxy", "-v"), haproxy),
    Origin("varnish", ("varnishd", "-V"), varnish),
    Origin("squid", ("squid", "-v"), squid, tunnels=False),
    Origin("trafficserver", ("traffic_server", "--version"), traffic_server),
    Origin("caddy", ("caddy", "version"), caddy),
    Origin("h2o", ("h2o", "--version"), h2o),
    Origin("envoy", (BIN / "envoy", "--version"), envoy),
    Origin("node", ("node", "--version"), node, is_proxy=False),
    Origin("gunicorn", module("gunicorn"), gunicorn, is_proxy=False, tunnels=False),
    Origin("uvicorn", module("uvicorn"), uvicorn, is_proxy=False),
    Origin("hypercorn", module("hypercorn"), hypercorn, is_proxy=False),
    Origin("hypercorn, h2c", module("hypercorn"), hypercorn, is_proxy=False, tunnels=False,
           scheme="h2c"),
    Origin("waitress", module("waitress"), wsgi("waitress"), is_proxy=False, tunnels=False),
    Origin("aiohttp", module("aiohttp"), other("aiohttp"), is_proxy=False),
    Origin("tornado", module("tornado"), other("tornado"), is_proxy=False),
    Origin("twisted", module("twisted"), wsgi("twisted"), is_proxy=False, tunnels=False),
    Origin("cheroot", module("cheroot"), wsgi("cheroot"), is_proxy=False, tunnels=False),
    Origin("werkzeug", module("werkzeug"), wsgi("werkzeug"), is_proxy=False, tunnels=False),
    Origin("grpcio", module("grpcio"), other("grpc"), is_proxy=False, scheme="h2c", is_grpc=True,
           tunnels=False),
)
