"""A tidegate that runs, before an upstream that answers: for the tests that are Python scripts."""

import http.server
import os
import re
import subprocess
import sys
import threading


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


def start(directory, config, **places):
    """A running tidegate: the process, its address and its admin's, both HOST:PORT.

    `config` is a proxy.toml with an admin, in which {upstream} and {control} stand for what is made
    here and `places` for the rest.
    """
    upstream = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Upstream)
    threading.Thread(target=upstream.serve_forever, daemon=True).start()
    text = config.format(
        upstream=f"http://127.0.0.1:{upstream.server_address[1]}",
        control=directory / "control.sock", **places)
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
