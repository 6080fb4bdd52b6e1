"""The recipe of docs/howto/envoy.md: two Envoys ask two tidegates that share one Redis."""

import collections
import concurrent.futures
import os
import pathlib
import re
import subprocess
import sys
import tempfile

from proxies import PROGRAMS, App, ask, blocks_of, check, wait_for
from running import free_port, redis_server, upstream

PAGE = pathlib.Path(__file__).parents[2] / "docs/howto/envoy.md"

ENVOY = """
static_resources:
  listeners:
    - address: {{ socket_address: {{ address: 127.0.0.1, port_value: 8080 }} }}
      filter_chains:
        - filters:
            - name: envoy.filters.network.http_connection_manager
              typed_config:
                "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
                stat_prefix: web
                route_config:
                  virtual_hosts:
                    - name: app
                      domains: ["*"]
                      routes:
                        - match: {{ prefix: "/login" }}
                          route:
                            cluster: app
{actions}
                        - match: {{ prefix: "/" }}
                          route: {{ cluster: app }}
                http_filters:
{filter}
                  - name: envoy.filters.http.router
                    typed_config:
                      "@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router
  clusters:
    - name: app
      load_assignment:
        cluster_name: app
        endpoints: [{{ lb_endpoints: [{{ endpoint: {{ address: {{ socket_address: {{ address: 127.0.0.1, port_value: 3000 }} }} }} }}] }}]
{cluster}
"""


def indented(text, by):
    return "".join(" " * by + line for line in text.splitlines(keepends=True))


class Fleet:
    """Processes of one test, on ports of their own."""

    def __init__(self, directory, app):
        self.directory, self.app, self.processes = directory, app, []

    def start(self, name, command):
        log = open(self.directory / f"{name}.log", "w")
        process = subprocess.Popen(command, cwd=self.directory, stdout=log, stderr=log)
        self.processes.append(process)
        return process

    def redis(self):
        process, port = redis_server(self.directory)
        self.processes.append(process)
        return port

    def tidegate(self, name, config):
        port = free_port()
        file = self.directory / f"{name}.toml"
        file.write_text(config.replace("8081", str(port)))
        process = self.start(name, [os.environ["TIDEGATE"], "run", "-c", file])
        wait_for(port, process, "/healthcheck", 200)
        return port

    def envoy(self, name, decider):
        filter_, actions, cluster, once = blocks_of(PAGE)["yaml"]
        filter_ = once + filter_.replace("timeout: 0.05s", "timeout: 5s")
        config = ENVOY.format(filter=indented(filter_, 18), actions=indented(actions, 28),
                              cluster=indented(cluster, 4))
        listen = free_port()
        ports = {8080: listen, 8081: decider, 3000: self.app}
        config = re.sub(r"\b(8080|8081|3000)\b", lambda found: str(ports[int(found[0])]), config)
        file = self.directory / f"{name}.yml"
        file.write_text(config)
        process = self.start(name, [PROGRAMS / "envoy", "-c", file, "--concurrency", "1",
                                    "--use-dynamic-base-id"])
        wait_for(listen, process)
        return listen

    def end(self):
        for process in self.processes:
            process.terminate()
        for process in self.processes:
            process.wait(20)


def login(port, user=None):
    headers = [("x-user", user)] if user else []
    status, headers = ask(port, ("POST", "/login"), headers)
    return status, headers


def main():
    app = int(upstream(App).rsplit(":", 1)[1])
    with tempfile.TemporaryDirectory() as directory:
        fleet = Fleet(pathlib.Path(directory), app)
        try:
            redis = fleet.redis()
            config = blocks_of(PAGE)["toml"][0].replace("5/min", "50/min")
            # Of a busy machine nobody can say how long an answer takes.
            config += f'[store]\nurl = "redis://127.0.0.1:{redis}"\ntimeout = "2s"\n'
            deciders = [fleet.tidegate(f"tidegate-{n}", config) for n in range(2)]
            envoys = [fleet.envoy(f"envoy-{n}", port) for n, port in enumerate(deciders)]
            exactly(envoys)
            denied(envoys)
            doubled(envoys)
            frozen(fleet, envoys)
        except SystemExit:
            for log in pathlib.Path(directory).glob("*.log"):
                print(f"--- {log.name}\n{log.read_text()[-4000:]}", file=sys.stderr)
            raise
        finally:
            fleet.end()


def exactly(envoys):
    """Of many requests at once through both, as many pass as the limit says."""
    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        answers = pool.map(lambda n: login(envoys[n % 2])[0], range(120))
        passed = collections.Counter(answers)
    check("two Envoys, two tidegates, one budget", {200: 50, 429: 70}, dict(passed))


def denied(envoys):
    status, headers = login(envoys[0])
    check("denied", 429, status)
    check("says when", True, 1 <= int(headers["Retry-After"]) <= 60)
    check("one value of each header", ["0"], headers.get_all("X-RateLimit-Remaining"))
    check("the problem", "application/problem+json", headers["Content-Type"])
    check("other routes are free", 200, ask(envoys[0], ("GET", "/"))[0])


def doubled(envoys):
    """A second line of the header that is the key is refused."""
    twice = [("x-user", "someone"), ("X-User", "else")]
    check("a key that is there twice", 400, ask(envoys[0], ("GET", "/any"), twice)[0])
    check("a key that is there once", 200, ask(envoys[0], ("GET", "/any"), twice[:1])[0])


def frozen(fleet, envoys):
    """Without Redis tidegate decides by itself, before Envoy stops to wait."""
    redis = fleet.processes[0]
    redis.kill()
    redis.wait()
    status, _ = login(envoys[1], "someone")
    check("denied without Redis", 429, status)


if __name__ == "__main__":
    main()
