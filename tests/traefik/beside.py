"""Traefik and `tidegate import`, one beside the other, before an upstream that tells what it gets."""

import contextlib
import http.client
import http.server
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time

from running import free_port, upstream

# Of a request and of an answer, what both must agree on.
UP = ("host", "x-edge", "x-drop", "x-kept")
DOWN = ("x-answered", "x-inner", "x-frame-options", "x-plain")
REQUESTS = [
    # method, host, path, headers
    ("GET", "api.test", "/v1/users", {"X-Kept": "1", "X-Drop": "1"}),
    ("GET", "api.test", "/v1/a%20b?q=1", {}),
    ("GET", "api.test", "/v1/orders", {}),
    ("POST", "api.test", "/v1/orders", {}),
    ("PUT", "api.test", "/v1/orders", {}),
    ("DELETE", "api.test", "/v1/orders", {}),
    ("GET", "api.test", "/files/a", {}),
    ("GET", "api.test", "/files/a", {"X-Version": "1"}),
    ("GET", "api.test", "/files/a", {"X-Version": "2"}),
    ("GET", "API.TEST", "/v1/upper", {}),
    ("GET", "api.test", "/V1/upper", {}),
    ("GET", "other.test", "/v1/users", {}),
    ("GET", "api.test", "/", {}),
    ("GET", "old.test", "/", {}),
    ("GET", "older.test", "/x", {}),
]


class Echo(http.server.BaseHTTPRequestHandler):
    """Says what it was asked."""

    protocol_version = "HTTP/1.1"

    def do_GET(self):
        seen = {name: self.headers.get(name) for name in UP}
        body = json.dumps([self.command, self.path, seen]).encode()
        self.send_response(200)
        self.send_header("X-Inner", "1")
        self.send_header("X-Plain", "1")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_POST = do_PUT = do_DELETE = do_GET

    def log_message(self, *_):
        pass


def ask(port, method, host, path, headers):
    """Status, what the upstream was asked, and the headers of the answer that count."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    connection.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
    for name, value in {"Host": host, "Content-Length": "0", **headers}.items():
        connection.putheader(name, value)
    connection.endheaders()
    answer = connection.getresponse()
    body = answer.read()
    connection.close()
    if answer.status != 200:
        return answer.status, None, None
    return 200, json.loads(body), {name: answer.headers.get(name) for name in DOWN}


def wait_for(port, process):
    until = time.monotonic() + 60
    while time.monotonic() < until:
        if process.poll() is not None:
            sys.exit(f"{process.args[0]} ended")
        with contextlib.suppress(OSError):
            if ask(port, "GET", "api.test", "/v1/ready", {})[0] == 200:
                return
        time.sleep(0.05)
    sys.exit(f"{process.args[0]} never answered")


def main():
    text = (pathlib.Path(__file__).parent / "dynamic.yml").read_text()
    text = text.replace("UPSTREAM", upstream(Echo))
    with tempfile.TemporaryDirectory() as made:
        beside(pathlib.Path(made), text)


def beside(folder, text):
    theirs, ours = free_port(), free_port()
    (folder / "dynamic.yml").write_text(text)
    static = f'entryPoints:\n  web:\n    address: "127.0.0.1:{ours}"\n'
    (folder / "both.yml").write_text(static + text)
    tidegate = os.environ["TIDEGATE"]
    imported = subprocess.run([tidegate, "import", "traefik", "both.yml"], cwd=folder,
                              capture_output=True, text=True, check=True)
    (folder / "proxy.toml").write_text(imported.stdout)
    commands = {
        theirs: [sys.argv[1], f"--entryPoints.web.address=127.0.0.1:{theirs}",
                 "--providers.file.filename=dynamic.yml", "--log.level=ERROR",
                 "--global.checkNewVersion=false", "--global.sendAnonymousUsage=false"],
        ours: [tidegate, "run", "-c", "proxy.toml"],
    }
    processes = [subprocess.Popen(command, cwd=folder, stdout=subprocess.DEVNULL,
                                stderr=subprocess.DEVNULL) for command in commands.values()]
    try:
        for port, process in zip(commands, processes):
            wait_for(port, process)
        wrong = compare(theirs, ours)
    finally:
        for process in processes:
            process.kill()
            process.wait()
    if wrong:
        sys.exit("\n".join(wrong) + f"\n\n{imported.stdout}")
    print(f"{len(REQUESTS) + 12} requests, answered alike by Traefik and by its import")


def compare(theirs, ours):
    wrong = []
    for request in REQUESTS:
        found = [ask(port, *request) for port in (theirs, ours)]
        if found[0] != found[1]:
            wrong.append(f"{request}\n  Traefik  {found[0]}\n  tidegate {found[1]}")
    # So many at once, for each key.
    for key in ("a", "b"):
        request = ("GET", "api.test", "/limited", {"X-Api-Key": key})
        found = [[ask(port, *request)[0] for _ in range(6)] for port in (theirs, ours)]
        if found != [[200] * 5 + [429]] * 2:
            wrong.append(f"{request}: {found}")
    return wrong


main()
