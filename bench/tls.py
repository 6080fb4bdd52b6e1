"""What TLS costs: CPU time of tidegate, nginx and HAProxy for a handshake and for a request.

    make release
    PYTHONPATH=tests python3 bench/tls.py [--rounds 5] [--quick] [ROW...]

Needs nginx, haproxy, openssl and h2load (Debian: nghttp2-client). Each proxy has one worker on a core of
its own, unless the row has two. The load and the origin (nginx) have the other core. Every row is
measured with each proxy in turn, then all of it again. The table has the medians, and tidegate's part of
what the better of the two others needs, round by round. Each request has its own path and query.
"""

import argparse
import os
import pathlib
import random
import socket
import ssl
import statistics
import subprocess
import tempfile
from dataclasses import dataclass

from peers import PROGRAM, Group, Proxy, end_all, in_turn, nginx_command, table, wait_for
from running import free_port

PROXIES = ("tidegate", "nginx", "HAProxy")
KEYS = {
    "p256": ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"],
    "p384": ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-384"],
    "rsa": ["-newkey", "rsa:2048"],
}
LARGE = {"64k": 64 << 10, "1m": 1 << 20}


@dataclass(frozen=True)
class Row:
    name: str
    # The key of the certificate; "" for clients without TLS.
    key: str = "p256"
    # "full" or "resumed" handshakes, or "h1" and "h2" for kept connections.
    load: str = "h1"
    # The folder that is asked: small responses, or those of LARGE.
    size: str = "small"
    # The protocol to the origin: "h1", "tls" (HTTP/1.1 in TLS) or "h2".
    origin: str = "h1"
    workers: int = 1
    number: int = 20_000


ROWS = {
    "full-p256": Row("full handshake, P-256", load="full", number=1_500),
    "full-p384": Row("full handshake, P-384", "p384", "full", number=800),
    "full-rsa": Row("full handshake, RSA 2048", "rsa", "full", number=1_000),
    "resumed": Row("resumed handshake, P-256", load="resumed", number=1_500),
    "kept": Row("request, kept connection"),
    "kept-64k": Row("64 KiB, kept connection", size="64k", number=5_000),
    "kept-1m": Row("1 MiB, kept connection", size="1m", number=500),
    "h2": Row("request, HTTP/2", load="h2"),
    "h2-64k": Row("64 KiB, HTTP/2", load="h2", size="64k", number=5_000),
    "two": Row("request, kept connection, two workers", workers=2),
    "plain-two": Row("request without TLS, two workers", key="", workers=2),
    "to-tls": Row("request without TLS, TLS to the origin", key="", origin="tls"),
    "to-h2": Row("request without TLS, HTTP/2 to the origin", key="", origin="h2"),
}


def certificates(folder):
    for name, key in KEYS.items():
        subprocess.run(
            ["openssl", "req", "-x509", "-nodes", *key, "-keyout", f"{name}.key", "-out",
             f"{name}.pem", "-days", "30", "-subj", f"/CN={name}.test", "-addext",
             f"subjectAltName=DNS:{name}.test,DNS:localhost", "-addext",
             "basicConstraints=critical,CA:FALSE"],
            cwd=folder, check=True, capture_output=True)
        both = (folder / f"{name}.pem").read_text() + (folder / f"{name}.key").read_text()
        (folder / f"{name}.both").write_text(both)


class Origin:
    """nginx, which answers all paths; those below /64k and /1m with so many bytes."""

    def __init__(self, folder, certs):
        self.ports = {"h1": free_port(), "tls": free_port(), "h2": free_port()}
        for name, size in LARGE.items():
            (folder / name).write_bytes(b"x" * size)
        places = "".join(f"location /{name}/ {{ try_files /{name} =404; }}\n" for name in LARGE)
        inner = f"""server {{
listen 127.0.0.1:{self.ports['h1']}; listen 127.0.0.1:{self.ports['tls']} ssl;
listen 127.0.0.1:{self.ports['h2']} http2;
ssl_certificate {certs}/p256.pem; ssl_certificate_key {certs}/p256.key;
default_type text/plain; root {folder}; {places}
location / {{ return 200 "hello from the origin\\n"; }} }}"""
        self.group = Group(nginx_command(folder, 1, inner), folder, "1")
        wait_for(self.ports["h1"])


def tidegate(folder, certs, row, port, origin):
    scheme = {"h1": "http", "tls": "https", "h2": "h2c"}[row.origin]
    names = "".join(f'[[tls.certificates]]\ncert = "{certs}/{name}.pem"\nkey = "{certs}/{name}.key"\n'
                    for name in KEYS)
    listen = f'listen = []\n[tls]\nlisten = "127.0.0.1:{port}"\n{names}'
    if not row.key:
        listen = f'listen = "127.0.0.1:{port}"\n'
    trust = f'[upstream.origin.tls]\nca = "{certs}/p256.pem"\n' if row.origin == "tls" else ""
    (folder / "proxy.toml").write_text(f"""{listen}
[server]
workers = {row.workers}
control = "off"
[log]
access = "off"
[upstream.origin]
servers = ["{scheme}://localhost:{origin}"]
idle_timeout = "60s"
{trust}
[[route]]
path = "/*"
upstream = "origin"
limits = []
""")
    return [PROGRAM, "run", "-c", "proxy.toml"]


def nginx(folder, certs, row, port, origin):
    if row.origin == "h2":
        return None
    names = [f"ssl_certificate {certs}/{name}.pem; ssl_certificate_key {certs}/{name}.key; "
             f"server_name {name}.test;" for name in KEYS]
    secure = "ssl http2"
    if not row.key:
        names, secure = [""], ""
    scheme = "https" if row.origin == "tls" else "http"
    trust = ""
    if row.origin == "tls":
        trust = (f"proxy_ssl_verify on; proxy_ssl_trusted_certificate {certs}/p256.pem; "
                 "proxy_ssl_name localhost; proxy_ssl_server_name on;")
    place = (f"location / {{ proxy_pass {scheme}://origin; proxy_http_version 1.1; "
             f"proxy_set_header Connection ''; {trust} }}")
    servers = "".join(f"server {{ listen 127.0.0.1:{port} {secure}; {name} {place} }}\n" for name in names)
    inner = (f"ssl_session_cache shared:a:10m; ssl_protocols TLSv1.2 TLSv1.3;\nupstream origin {{ server 127.0.0.1:{origin}; "
             f"keepalive 256; keepalive_requests 1000000000; }}\n{servers}")
    return nginx_command(folder, row.workers, inner)


def haproxy(folder, certs, row, port, origin):
    files = " ".join(f"crt {certs}/{name}.both" for name in KEYS)
    secure = f"ssl {files} alpn h2,http/1.1" if row.key else ""
    to = {"h1": "", "tls": f"ssl verify required ca-file {certs}/p256.pem sni str(localhost)",
          "h2": "proto h2"}[row.origin]
    (folder / "haproxy.cfg").write_text(f"""global
    nbthread {row.workers}
    maxconn 4000
    no strict-limits
defaults
    mode http
    timeout connect 5s
    timeout client 60s
    timeout server 60s
frontend clients
    bind 127.0.0.1:{port} {secure}
    default_backend origin
backend origin
    http-reuse always
    server origin 127.0.0.1:{origin} {to}
""")
    return ["haproxy", "-f", "haproxy.cfg"]


STARTS = {"tidegate": tidegate, "nginx": nginx, "HAProxy": haproxy}


def handshakes(port, row, number, is_resumed):
    """So many connections, each with a handshake and one request."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    session, rng = None, random.Random(number)
    for _ in range(number):
        plain = socket.create_connection(("127.0.0.1", port))
        client = context.wrap_socket(plain, server_hostname=f"{row.key}.test", session=session)
        assert client.session_reused == (session is not None), "not the handshake that was asked for"
        client.sendall(f"GET /{rng.getrandbits(40):x}?page={rng.randrange(99)} HTTP/1.1\r\n"
                       f"Host: {row.key}.test\r\nConnection: close\r\n\r\n".encode())
        head = client.recv(4096)
        assert head.startswith(b"HTTP/1.1 200"), head
        while client.recv(4096):
            pass
        session = client.session if is_resumed else None
        client.close()


def kept(scratch, port, row, number):
    """So many requests on 16 connections; of HTTP/2 8 at a time on each."""
    rng = random.Random(number)
    scheme, host = ("https", f"{row.key}.test") if row.key else ("http", "localhost")
    folder = "" if row.size == "small" else f"{row.size}/"
    uris = scratch / "uris"
    uris.write_text("".join(
        f"{scheme}://{host}:{port}/{folder}{rng.getrandbits(40):x}?page={rng.randrange(99)}\n"
        for _ in range(2_000)))
    words = ["taskset", "-c", "1", "h2load", "-n", str(number), "-c", "16", "-i", str(uris),
             f"--connect-to=127.0.0.1:{port}"]
    words += ["-m", "8"] if row.load == "h2" else ["--h1"]
    said = subprocess.run(words, capture_output=True, check=True).stdout.decode()
    # h2load takes a status line without a reason, as HAProxy writes it, for no success.
    assert f" {number} done" in said and " 0 3xx, 0 4xx, 0 5xx" in said and " 0 errored" in said, said


def load(scratch, proxy, row, number):
    if row.load in ("full", "resumed"):
        handshakes(proxy.port, row, number, row.load == "resumed")
    else:
        kept(scratch, proxy.port, row, number)


def measure(scratch, certs, origin, row, number):
    """CPU time of each proxy, microseconds for each handshake or request."""
    def start(name):
        place = origin.ports[row.origin]
        return Proxy(scratch, row.workers, lambda folder, port: STARTS[name](
            folder, certs, row, port, place))
    return in_turn(PROXIES, start, lambda proxy, number: load(scratch, proxy, row, number), number)


def main():
    options = argparse.ArgumentParser()
    options.add_argument("--rounds", type=int, default=5)
    options.add_argument("--quick", action="store_true")
    options.add_argument("rows", nargs="*", choices=[*ROWS, []])
    options = options.parse_args()
    os.sched_setaffinity(0, {1})
    with tempfile.TemporaryDirectory() as scratch:
        scratch = pathlib.Path(scratch)
        certs, folder = scratch / "certs", scratch / "origin"
        certs.mkdir()
        folder.mkdir()
        certificates(certs)
        origin = Origin(folder, certs)
        asked = options.rows or list(ROWS)
        rounds = {name: [] for name in asked}
        for _ in range(options.rounds):
            for name in asked:
                row = ROWS[name]
                number = row.number // 10 if options.quick else row.number
                rounds[name].append(measure(scratch, certs, origin, row, number))
    table(PROXIES, {ROWS[name].name: seen for name, seen in rounds.items()}, statistics.median)


try:
    main()
finally:
    end_all()
