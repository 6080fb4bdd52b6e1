"""Every query of deploy/grafana and deploy/prometheus, asked of a Prometheus that scrapes a running
tidegate under a little load. Calls of gRPC to a server that is away get an HTTP 200, and their alert
must fire; then Redis is stopped, and so must its alert."""

import contextlib
import http.client
import json
import pathlib
import re
import subprocess
import sys
import tempfile
import threading
import time
import urllib.parse

import running

PATIENCE = 60  # seconds, for anything
CONFIG = """
listen   = "127.0.0.1:0"
admin    = "127.0.0.1:0"

[store]
url = "redis://127.0.0.1:{redis}"
# A machine that does much else is no outage.
timeout = "2s"

[limit.api]
rate = "5/min"

delay = "20ms"
ban   = {{ after = "1000/1h", for = "1s" }}

[limit.tried]
rate   = "3/min"
shadow = true

[upstream.site]
servers = ["{upstream}"]

# Nothing listens there.
[upstream.away]
servers = ["h2c://127.0.0.1:{away}"]

[[route]]
path     = "/calls.Service/*"
upstream = "away"
limits   = []

[[route]]
path     = "/*"
upstream = "site"
limits   = ["api", "tried"]

[ledger]

[log]
access = "off"

[server]
control = "{control}"
"""


@contextlib.contextmanager
def ended(process):
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def ask(address, path):
    connection = http.client.HTTPConnection(address, timeout=10)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


def call(address):
    """A call of gRPC; its status of HTTP, and of gRPC."""
    answer = subprocess.run(
        ["curl", "--silent", "--max-time", "10", "--http2-prior-knowledge", "--request", "POST",
         "--header", "content-type: application/grpc", "--header", "te: trailers",
         "--output", "/dev/null", "--write-out", "%{http_code} %header{grpc-status}",
         f"http://{address}/calls.Service/Method"], capture_output=True, text=True, check=False)
    return answer.stdout


def until(what, found):
    """What `found` returns, once that is anything; a server that is not up yet is waited for."""
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        with contextlib.suppress(OSError, http.client.HTTPException):
            if result := found():
                return result
        time.sleep(0.2)
    sys.exit(f"waited in vain: {what}")


def scraping(directory, deploy, admin):
    """A configuration that scrapes `admin`, with the rules of deploy/."""
    text = (deploy / "prometheus/prometheus.yml").read_text()
    text = text.replace("127.0.0.1:9180", admin).replace("15s", "1s")
    (directory / "prometheus.yml").write_text(text)
    rules = (deploy / "prometheus/tidegate.rules.yml").read_text()
    # Nobody waits minutes for a test; how long each waits is what promtool tries.
    rules = re.sub(r"for: \d+[sm]", "for: 1s", rules)
    (directory / "tidegate.rules.yml").write_text(rules)


def queries(deploy):
    """Each query with its place: of panels, annotations and variables, and of alerts."""
    board = json.loads((deploy / "grafana/dashboards/tidegate.json").read_text())
    for panel in board["panels"]:
        for target in panel.get("targets", []):
            yield f"panel {panel['title']!r}", target["expr"]
    for note in board["annotations"]["list"]:
        # Answers only where something has changed.
        yield f"annotation {note['name']!r}", f"({note['expr']}) or vector(0)"
    rules = (deploy / "prometheus/tidegate.rules.yml").read_text()
    # The series of a rule must be there, whether it fires or not.
    for name in sorted(set(re.findall(r"\b(?:tidegate|process)_[a-z_]+", rules))):
        yield "alerts", name


def filled_in(query):
    query = query.replace("$__rate_interval", "30s")
    return re.sub(r"\$(instance|route|limit)\b", ".*", query)


def check(prometheus, deploy):
    def result(query):
        status, body = ask(prometheus, "/api/v1/query?" + urllib.parse.urlencode({"query": query}))
        if status != 200:
            sys.exit(f"not a query: {query}\n{body}")
        return json.loads(body)["data"]["result"]

    count = 0
    for place, query in queries(deploy):
        until(f"{place}: {query}", lambda: result(filled_in(query)))
        count += 1
    denied = 'sum(tidegate_decisions_total{decision="denied"}) > 0'
    until("denials that Prometheus sees", lambda: result(denied))
    failing = 'ALERTS{alertname="TidegateGrpcErrors",alertstate="firing"}'
    until("the alert that calls of gRPC fail", lambda: result(failing))
    away = 'ALERTS{alertname="TidegateNoServer",upstream="away",alertstate="firing"}'
    until("the alert that no server is up", lambda: result(away))
    firing = 'ALERTS{alertname="TidegateStoreDown",alertstate="firing"}'
    if result(firing):
        sys.exit("an alert about a store that is up")
    return count, lambda: until("the alert that Redis is away", lambda: result(firing))


def main(deploy):
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as stack:
        directory = pathlib.Path(name)
        process, redis = running.redis_server(directory)
        store = stack.enter_context(ended(process))
        proxy, listening, admin = running.start(
            directory, CONFIG, redis=redis, away=running.free_port())
        stack.enter_context(ended(proxy))
        scraping(directory, deploy, admin)
        at = f"127.0.0.1:{running.free_port()}"
        stack.enter_context(ended(subprocess.Popen(
            ["prometheus", "--config.file=prometheus.yml", f"--web.listen-address={at}",
             f"--storage.tsdb.path={directory}/data"], cwd=directory, **quiet)))
        until("Prometheus", lambda: ask(at, "/-/ready")[0] == 200)

        stop = threading.Event()

        def load():
            while not stop.is_set():
                ask(listening, "/")
                call(listening)
                stop.wait(0.05)

        if (told := call(listening)) != "200 14":
            sys.exit(f"a call to a server that is away gets {told!r}")
        loading = threading.Thread(target=load)
        loading.start()
        try:
            count, fires = check(at, deploy)
            store.kill()
            fires()
        finally:
            stop.set()
            loading.join()
    print(f"{count} queries answered by a running Prometheus; the alerts of gRPC and of the store fired")


main(pathlib.Path(sys.argv[1]))
