"""What messages cost: CPU time of tidegate, nginx, HAProxy and Caddy for gRPC and WebSockets.

    make release
    PYTHONPATH=$PWD/tests:$PWD/bench python3 bench/messages.py [--rounds 5] [--quick] [ROW...]

Needs what bench/tls.py needs, the Python module grpcio, and caddy if it is to be measured. Each
proxy has one core, and the load and the origin have the other. Every row is measured with each
proxy in turn, then all of it again. The table has the medians, and tidegate's part of what the
better of nginx and HAProxy needs. Each call has its own path, each message its own bytes and length.
"""

import argparse
import itertools
import os
import pathlib
import random
import shutil
import socket
import statistics
import struct
import subprocess
import sys
import tempfile
from dataclasses import dataclass

import tls
from running import free_port
from tls import Group, wait_for

PROXIES = ("tidegate", "nginx", "HAProxy", *(["Caddy"] if shutil.which("caddy") else []))
UPGRADE = (b"GET /ws/%d HTTP/1.1\r\nHost: a.test\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
           b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n")


@dataclass(frozen=True)
class Row:
    name: str
    # "unary", "stream" or "websocket".
    kind: str
    # The longest message, bytes.
    most: int
    number: int


ROWS = {
    "unary": Row("gRPC, unary call", "unary", 100, 20_000),
    "unary-64k": Row("gRPC, unary call of 64 KiB", "unary", 64 << 10, 2_000),
    "stream": Row("gRPC, message of a stream, to 200 bytes", "stream", 200, 20_000),
    "stream-16k": Row("gRPC, message of a stream, to 16 KiB", "stream", 16 << 10, 5_000),
    "ws": Row("WebSocket, message to 125 bytes", "websocket", 125, 60_000),
    "ws-4k": Row("WebSocket, message to 4 KiB", "websocket", 4096, 40_000),
    "ws-64k": Row("WebSocket, message to 64 KiB", "websocket", 64 << 10, 5_000),
}


def tidegate(folder, port, origin, is_grpc):
    scheme = "h2c" if is_grpc else "http"
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
    return [tls.PROGRAM, "run", "-c", "proxy.toml"]


def nginx(folder, port, origin, is_grpc):
    place = "grpc_pass grpc://origin;" if is_grpc else (
        "proxy_pass http://origin; proxy_http_version 1.1; proxy_set_header Upgrade $http_upgrade; "
        "proxy_set_header Connection upgrade;")
    inner = (f"upstream origin {{ server 127.0.0.1:{origin}; keepalive 64; "
             f"keepalive_requests 1000000000; }} server {{ listen 127.0.0.1:{port} "
             f"{'http2' if is_grpc else ''}; client_max_body_size 0; location / {{ {place} }} }}")
    text = tls.NGINX.format(user=tls.USER, root=folder, workers=1, inner=inner)
    (folder / "nginx.conf").write_text(text)
    return ["nginx", "-p", folder, "-c", folder / "nginx.conf"]


def haproxy(folder, port, origin, is_grpc):
    proto = "proto h2" if is_grpc else ""
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
    bind 127.0.0.1:{port} {proto}
    default_backend origin
backend origin
    http-reuse always
    server origin 127.0.0.1:{origin} {proto}
""")
    return ["haproxy", "-f", "haproxy.cfg"]


def caddy(folder, port, origin, is_grpc):
    scheme = "h2c://" if is_grpc else ""
    (folder / "Caddyfile").write_text(f"""{{
    admin off
    auto_https off
    servers {{
        protocols h1 h2c
    }}
}}
http://:{port} {{
    reverse_proxy {scheme}127.0.0.1:{origin}
}}
""")
    return ["env", "GOMAXPROCS=1", f"HOME={folder}", "caddy", "run", "--config", "Caddyfile",
            "--adapter", "caddyfile"]


STARTS = {"tidegate": tidegate, "nginx": nginx, "HAProxy": haproxy, "Caddy": caddy}


def serve_grpc(port):
    """Answers each message with itself, whatever the method is called."""
    from concurrent import futures

    import grpc

    class Echo(grpc.GenericRpcHandler):
        def service(self, details):
            if details.method.startswith("/stream"):
                return grpc.stream_stream_rpc_method_handler(lambda messages, _: messages)
            return grpc.unary_unary_rpc_method_handler(lambda message, _: message)

    server = grpc.server(futures.ThreadPoolExecutor(4), handlers=[Echo()],
                         options=[("grpc.max_receive_message_length", -1)])
    server.add_insecure_port(f"127.0.0.1:{port}")
    server.start()
    server.wait_for_termination()


def serve_websockets(port):
    """Accepts every upgrade, and sends the bytes back."""
    import asyncio

    async def serve(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\n"
                     b"Connection: Upgrade\r\n"
                     b"Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\r\n")
        while data := await reader.read(1 << 17):
            writer.write(data)
        writer.close()

    async def main():
        server = await asyncio.start_server(serve, "127.0.0.1", port)
        await server.serve_forever()

    asyncio.run(main())


def unary(scratch, port, row, number):
    """Calls on 8 connections, 8 at a time on each."""
    rng = random.Random(number)
    uris, body = scratch / "uris", scratch / "body"
    uris.write_text("".join(f"http://a.test:{port}/pkg.Service/Method{rng.getrandbits(32):x}\n"
                            for _ in range(2_000)))
    message = rng.randbytes(row.most)
    body.write_bytes(struct.pack(">BI", 0, len(message)) + message)
    words = ["taskset", "-c", "1", "h2load", "-n", str(number), "-c", "8", "-m", "8", "-i", uris,
             "-d", body, "-H", "content-type: application/grpc", "-H", "te: trailers",
             f"--connect-to=127.0.0.1:{port}"]
    said = subprocess.run(words, capture_output=True, check=True).stdout.decode()
    assert f" {number} succeeded" in said and " 0 errored" in said, said


def stream(_, port, row, number):
    """Messages on 4 streams, each answered before the next is sent."""
    import grpc

    rng = random.Random(number)
    each = number // 4
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        streams = []
        for index in range(4):
            messages = [rng.randbytes(rng.randrange(1, row.most)) for _ in range(min(each, 500))]
            call = channel.stream_stream(f"/stream.Service/Method{index}")
            sent = itertools.islice(itertools.cycle(messages), each)
            streams.append((messages, call(sent)))
        for messages, call in streams:
            for answer, message in zip(call, itertools.cycle(messages)):
                assert answer == message, "another message came back"


def websockets(_, port, row, number):
    """Messages on 16 connections: one on each, then their echoes."""
    rng = random.Random(number)
    sockets = []
    for index in range(16):
        one = socket.create_connection(("127.0.0.1", port))
        one.sendall(UPGRADE % index)
        head = b""
        while not head.endswith(b"\r\n\r\n"):
            head += one.recv(1)
        assert b" 101 " in head, head
        sockets.append(one)
    frames = []
    for _ in range(200):
        data = rng.randbytes(rng.randrange(1, row.most + 1))
        length = (bytes([0x80 | len(data)]) if len(data) < 126
                  else struct.pack(">BH", 0xFE, len(data)) if len(data) < 65536
                  else struct.pack(">BQ", 0xFF, len(data)))
        # The mask is zero, so that the echo has the same bytes.
        frames.append(b"\x82" + length + bytes(4) + data)
    for turn in range(number // 16):
        sent = [frames[(turn * 16 + index) % len(frames)] for index in range(16)]
        for one, frame in zip(sockets, sent):
            one.sendall(frame)
        for one, frame in zip(sockets, sent):
            left = len(frame)
            while left:
                left -= len(one.recv(left))
    for one in sockets:
        one.close()


LOADS = {"unary": unary, "stream": stream, "websocket": websockets}


def measure(scratch, row, number, origin):
    """CPU time of each proxy, microseconds for each call or message."""
    found = {}
    for name in random.sample(PROXIES, len(PROXIES)):
        folder, port = pathlib.Path(tempfile.mkdtemp(dir=scratch)), free_port()
        group = Group(STARTS[name](folder, port, origin, row.kind != "websocket"), folder, "0")
        wait_for(port)
        LOADS[row.kind](scratch, port, row, max(number // 10, 64))
        before = group.cpu_us()
        LOADS[row.kind](scratch, port, row, number)
        found[name] = (group.cpu_us() - before) / number
        group.end()
    return found


def start_origin(scratch, kind):
    folder, port = pathlib.Path(tempfile.mkdtemp(dir=scratch)), free_port()
    own = pathlib.Path(__file__).resolve()
    Group([sys.executable, own, "--serve", kind, str(port)], folder, "1")
    wait_for(port)
    return port


def show(rounds):
    print("| CPU, us | " + " | ".join(PROXIES) + " | of the better of nginx and HAProxy |")
    print("|---|" + "--:|" * (len(PROXIES) + 1))
    for name, seen in rounds.items():
        cells = [f"{statistics.median(one[proxy] for one in seen):.1f}" for proxy in PROXIES]
        shares = [one["tidegate"] / min(one["nginx"], one["HAProxy"]) for one in seen]
        cells.append(f"{statistics.median(shares):.2f} ({min(shares):.2f} to {max(shares):.2f})")
        print(f"| {ROWS[name].name} | " + " | ".join(cells) + " |")


def main():
    if sys.argv[1:2] == ["--serve"]:
        serve = serve_grpc if sys.argv[2] == "grpc" else serve_websockets
        return serve(int(sys.argv[3]))
    options = argparse.ArgumentParser()
    options.add_argument("--rounds", type=int, default=5)
    options.add_argument("--quick", action="store_true")
    options.add_argument("rows", nargs="*", choices=[*ROWS, []])
    options = options.parse_args()
    os.sched_setaffinity(0, {1})
    with tempfile.TemporaryDirectory() as scratch:
        scratch = pathlib.Path(scratch)
        origins = {kind: start_origin(scratch, kind) for kind in ("grpc", "websocket")}
        asked = options.rows or list(ROWS)
        rounds = {name: [] for name in asked}
        for _ in range(options.rounds):
            for name in asked:
                row = ROWS[name]
                number = row.number // 10 if options.quick else row.number
                origin = origins["websocket" if row.kind == "websocket" else "grpc"]
                rounds[name].append(measure(scratch, row, number, origin))
        show(rounds)
        tls.end_all()
    return None


try:
    main()
finally:
    tls.end_all()
