"""What the tests of token budgets share: tidegates, Redis, calls, and the reading of counts."""

import concurrent.futures
import http.client
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.parse
import urllib.request

from model import Model
from running import free_port, redis_server

# No check may fail because the machine is busy.
TIMEOUT = 20


class Failed(Exception):
    pass


def ok(what):
    print(f"ok {what}\n", end="", flush=True)


def check(what, expected, found):
    if expected != found:
        raise Failed(f"{what}: expected {expected!r}, found {found!r}")
    ok(what)


def until(what, expected, ask, seconds=5):
    """Checks what is so only after a moment, since nobody waits for it."""
    end = time.monotonic() + seconds
    while (found := ask()) != expected and time.monotonic() < end:
        time.sleep(0.02)
    check(what, expected, found)


class Answer:
    def __init__(self, status, headers, body):
        self.status, self.headers, self.body = status, headers, body


class Server:
    """A running tidegate."""

    def __init__(self, fleet, name, config):
        self.fleet, self.name, self.port, self.admin = fleet, name, free_port(), free_port()
        self.file = fleet.directory / f"{name}.toml"
        self.access = fleet.directory / f"{name}.access"
        self.log = fleet.directory / f"{name}.log"
        self.write(config)
        self.start()

    def write(self, config):
        model = self.fleet.model
        marks = {"{port}": self.port, "{admin}": self.admin, "{access}": self.access,
                 "{model}": model.url, "{models}": json.dumps(model.urls), "{name}": self.name}
        for mark, value in marks.items():
            config = config.replace(mark, str(value))
        self.file.write_text(config)

    def start(self):
        self.process = subprocess.Popen(
            [os.environ["TIDEGATE"], "run", "-c", self.file], cwd=self.fleet.directory,
            stdout=subprocess.DEVNULL, stderr=open(self.log, "a"))
        self.fleet.processes.append(self.process)
        end = time.monotonic() + 30
        while time.monotonic() < end and self.process.poll() is None:
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{self.admin}/readyz", timeout=5):
                    return
            except urllib.error.HTTPError as error:
                if b"starting" not in error.read():
                    return
            except OSError:
                pass
            time.sleep(0.02)
        raise Failed(f"{self.name} did not start: {self.log.read_text()}")

    @property
    def url(self):
        return f"http://127.0.0.1:{self.port}"

    def connect(self):
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=TIMEOUT)

    def begin(self, path, body, headers=(), connection=None, chunked=False):
        """Sends a POST; its connection and its answer, whose body waits."""
        connection = connection or self.connect()
        text = body if isinstance(body, (str, bytes)) else json.dumps(body)
        connection.request("POST", path, text, dict(headers), encode_chunked=chunked)
        return connection, connection.getresponse()

    def post(self, path, body, headers=(), connection=None):
        own, answer = self.begin(path, body, headers, connection)
        found = Answer(answer.status, answer.headers, answer.read())
        if connection is None:
            own.close()
        return found

    def count(self, limit, key):
        """The units that a key has used of a limit. Several parts are PART=VALUE&PART=VALUE."""
        parts = (part.split("=", 1) for part in key.split("&"))
        key = "&".join("=".join(urllib.parse.quote(text, safe="") for text in part)
                       for part in parts)
        try:
            return self.admin_json(f"/api/v1/limits/{limit}/keys/{key}")["windows"][0]["used"]
        except urllib.error.HTTPError as error:
            raise Failed(f"{limit} {key}: {error.code} {error.read()[:500]}") from error

    def counts(self, limits, key):
        return [self.count(limit, key) for limit in limits]

    def admin_text(self, path):
        url = f"http://127.0.0.1:{self.admin}{path}"
        with urllib.request.urlopen(url, timeout=TIMEOUT) as answer:
            return answer.read().decode()

    def admin_json(self, path):
        return json.loads(self.admin_text(path))

    def metrics(self):
        """The value of each line of the metrics."""
        lines = self.admin_text("/metrics").splitlines()
        pairs = (line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
        return {name: float(value) for name, value in pairs}

    def outcomes(self, route):
        """How often each outcome of an answer was counted on a route."""
        begin = f'tidegate_usage_settlements_total{{route="{route}",outcome="'
        found = {name[len(begin):-2]: int(value) for name, value in self.metrics().items()
                 if name.startswith(begin)}
        return {name: value for name, value in found.items() if value}

    def logged(self, path):
        """The lines of the access log for a path."""
        text = self.access.read_text() if self.access.exists() else ""
        lines = (json.loads(line) for line in text.splitlines() if line.endswith("}"))
        return [line for line in lines if line["path"] == path]

    def signal(self, number):
        self.process.send_signal(number)

    def end(self):
        self.process.send_signal(signal.SIGTERM)


class Fleet:
    """The processes of a run."""

    def __init__(self, directory, model):
        self.directory, self.model, self.processes = pathlib.Path(directory), model, []

    def redis(self, port=None):
        """A Redis: its process and the `[store]` for it. A busy machine is no outage."""
        process, port = redis_server(self.directory, port)
        self.processes.append(process)
        return process, f'[store]\nurl = "redis://127.0.0.1:{port}"\ntimeout = "5s"\n'

    def server(self, name, config):
        return Server(self, name, config)

    def end(self):
        for process in self.processes:
            process.send_signal(signal.SIGCONT)
            process.kill()
        for process in self.processes:
            process.wait(20)

    def show_logs(self):
        for log in sorted(self.directory.glob("*.log")):
            print(f"--- {log.name}\n{log.read_text()[-3000:]}", file=sys.stderr)


def on_both_stores(run):
    """Calls run(fleet, name, store) for the embedded store and for a Redis, at the same time."""
    with tempfile.TemporaryDirectory() as directory:
        fleet = Fleet(directory, Model())
        try:
            _, shared = fleet.redis()
            stores = {"embedded": "", "redis": shared}
            with concurrent.futures.ThreadPoolExecutor(2) as pool:
                runs = [pool.submit(run, fleet, *store) for store in stores.items()]
                for one in runs:
                    one.result()
        except BaseException:
            fleet.show_logs()
            raise
        finally:
            fleet.end()
