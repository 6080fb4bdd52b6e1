"""A tidegate with TLS and certificates of RSA and P-256, before an upstream without content."""

import http.server
import os
import pathlib
import subprocess
import time

from running import free_port, upstream

CONFIG = """
listen = "127.0.0.1:{plain}"
upstream = "{upstream}"
[tls]
listen = "127.0.0.1:{tls}"
hsts = true
[[tls.certificates]]
cert = "{folder}/ec.pem"
key = "{folder}/ec.key"
[[tls.certificates]]
cert = "{folder}/rsa.pem"
key = "{folder}/rsa.key"
[[tls.certificates]]
cert = "{folder}/other.pem"
key = "{folder}/other.key"
[limit.default]
rate = "10_000_000/day"
[limit.one]
rate = "1/day"
[[route]]
path = "/denied"
limits = ["one"]
[[route]]
path = "/said"
limits = []
respond = {{ body = "hello" }}
[[route]]
path = "/*"
"""


class Empty(http.server.BaseHTTPRequestHandler):
    """Answers without content, so that an answer is one record of TLS."""

    protocol_version = "HTTP/1.1"

    def do_GET(self):
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.send_header("Cache-Control", "no-store")
        self.end_headers()

    do_HEAD = do_POST = do_GET

    def log_message(self, *_):
        pass


def openssl(*words, given=b""):
    """What openssl prints."""
    words = ["openssl", *map(str, words)]
    try:
        run = subprocess.run(words, input=given, capture_output=True, timeout=3)
        said = run.stdout + run.stderr
    except subprocess.TimeoutExpired as late:
        # A renegotiation that is refused: the client goes on waiting.
        said = (late.stdout or b"") + (late.stderr or b"")
    return said.decode(errors="replace")


def certificate(folder, name, algorithm, hosts):
    ca = folder / "ca.pem"
    names = ",".join(f"DNS:{host}" for host in hosts)
    openssl("req", "-newkey", *algorithm, "-nodes", "-keyout", folder / f"{name}.key",
            "-out", folder / f"{name}.csr", "-subj", f"/CN={hosts[0]}")
    extensions = folder / f"{name}.ext"
    extensions.write_text(
        f"subjectAltName={names}\nextendedKeyUsage=serverAuth\nkeyUsage=digitalSignature\n")
    openssl("x509", "-req", "-in", folder / f"{name}.csr", "-CA", ca, "-CAkey", folder / "ca.key",
            "-CAcreateserial", "-days", "300", "-extfile", extensions,
            "-out", folder / f"{name}.pem")


def certificates(folder):
    ec = ["ec", "-pkeyopt", "ec_paramgen_curve:P-256"]
    openssl("req", "-x509", "-newkey", *ec, "-nodes", "-keyout", folder / "ca.key",
            "-out", folder / "ca.pem", "-days", "300", "-subj", "/CN=Test authority")
    certificate(folder, "ec", ec, ["localhost", "example.test"])
    certificate(folder, "rsa", ["rsa:2048"], ["localhost", "example.test"])
    certificate(folder, "other", ec, ["other.test"])


def start(folder):
    """The process, and its ports without and with TLS."""
    folder = pathlib.Path(folder)
    certificates(folder)
    plain, tls = free_port(), free_port()
    config = CONFIG.format(plain=plain, tls=tls, upstream=upstream(Empty), folder=folder)
    (folder / "proxy.toml").write_text(config)
    with open(folder / "log", "wb") as log:
        process = subprocess.Popen(
            [os.environ["TIDEGATE"], "run", "-c", "proxy.toml"], cwd=folder,
            stdout=subprocess.DEVNULL, stderr=log)
    for _ in range(100):
        if "CONNECTED" in openssl("s_client", "-connect", f"127.0.0.1:{tls}"):
            return process, plain, tls
        time.sleep(0.1)
    raise SystemExit((folder / "log").read_text())
