"""A tidegate that runs, before an upstream that answers: for the tests that are Python scripts."""

import http.server
import itertools
import os
import re
import socket
import subprocess
import sys
import threading
import time


class Upstream(http.server.BaseHTTPRequestHandler):
    """Answers every request with an empty 200."""

    protocol_version = "HTTP/1.1"

    def do_GET(self):
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    do_POST = do_GET

    def log_message(self, *_):
        pass


# Below those that the kernel hands out by itself, from a place of this process's own.
_TURNS = itertools.count(os.getpid() * 97)


def free_port():
    """A port that nobody has, and that nobody gets who asks the kernel for any."""
    for turn in _TURNS:
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port := 10_240 + turn % (32_000 - 10_240)))
            except OSError:
                continue
            return port


def redis_server(directory, port=None):
    """A redis-server that listens and keeps nothing: its process and its port."""
    port = port or free_port()
    with open(directory / f"redis-{port}.log", "w") as log:
        process = subprocess.Popen(
            ["redis-server", "--port", str(port), "--save", "", "--bind", "127.0.0.1"],
            cwd=directory, stdout=log, stderr=log)
    end = time.monotonic() + 30
    while time.monotonic() < end and process.poll() is None:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            return process, port
        except OSError:
            time.sleep(0.02)
    process.kill()
    sys.exit(f"redis-server does not listen on port {port}")


def upstream(handler=Upstream):
    """A server in a thread of its own; its URL."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return f"http://127.0.0.1:{server.server_address[1]}"


def start(directory, config, **places):
    """A running tidegate: the process, its address and its admin's, both HOST:PORT.

    `config` is a proxy.toml with an admin, in which {upstream} and {control} stand for what is made
    here and `places` for the rest.
    """
    text = config.format(
        upstream=upstream(), control=directory / "control.sock", **places)
    (directory / "proxy.toml").write_text(text)
    process = subprocess.Popen(
        [os.environ["TIDEGATE"], "run", "-c", "proxy.toml"], cwd=directory,
        stderr=subprocess.PIPE, text=True)
    found = {}
    for line in process.stderr:
        if match := re.match(r"(listening|dashboard) +http://([0-9.:]+)", line):
            found[match[1]] = match[2]
        if len(found) == 2:
            break
        print(line, end="", file=sys.stderr)
    else:
        sys.exit("tidegate did not start")
    threading.Thread(target=process.stderr.read, daemon=True).start()
    return process, found["listening"], found["dashboard"]
