"""What the tests of the rate limit service share: tidegates, Redis, calls through stubs that are not
ours, and the reading of answers."""

import http.client
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import time
import urllib.request

import grpc
from envoy.extensions.common.ratelimit.v3 import ratelimit_pb2
from envoy.service.auth.v3 import external_auth_pb2, external_auth_pb2_grpc
from envoy.service.ratelimit.v3 import rls_pb2, rls_pb2_grpc
from google.protobuf import json_format, wrappers_pb2
from grpc_health.v1 import health_pb2, health_pb2_grpc

from running import free_port, redis_server

SHOULD_RATE_LIMIT = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit"
# Field 4 of a descriptor, which these stubs do not have.
IS_NEGATIVE_HITS = b"\x20\x01"
UNLIMITED = 4294967295
OK, OVER = "OK", "OVER_LIMIT"


class Failed(Exception):
    pass


def check(what, expected, found):
    if expected != found:
        raise Failed(f"{what}: expected {expected!r}, found {found!r}")
    print("ok", what, flush=True)


def until(what, expected, ask, seconds=5):
    """Checks what is so only after a moment, since nobody waits for it."""
    end = time.monotonic() + seconds
    while (found := ask()) != expected and time.monotonic() < end:
        time.sleep(0.02)
    check(what, expected, found)


def descriptor(*entries, hits=None, limit=None, gives_back=False):
    """A descriptor of entries KEY=VALUE, or pairs."""
    message = ratelimit_pb2.RateLimitDescriptor()
    for entry in entries:
        key, value = entry.split("=", 1) if isinstance(entry, str) else entry
        message.entries.add(key=key, value=value)
    if hits is not None:
        message.hits_addend.CopyFrom(wrappers_pb2.UInt64Value(value=hits))
    if limit is not None:
        message.limit.requests_per_unit, message.limit.unit = limit
    if gives_back:
        message.MergeFromString(IS_NEGATIVE_HITS)
    return message


def request(domain, *descriptors, hits=0):
    """A call. A text is a descriptor of one entry."""
    made = [descriptor(one) if isinstance(one, str) else one for one in descriptors]
    return rls_pb2.RateLimitRequest(domain=domain, descriptors=made, hits_addend=hits)


def word(code):
    return rls_pb2.RateLimitResponse.Code.Name(code)


def codes(answer):
    """The code of the whole, then those of the descriptors."""
    return [word(answer.overall_code), *(word(one.code) for one in answer.statuses)]


def left(answer):
    return [one.limit_remaining for one in answer.statuses]


def headers(answer):
    return {one.key: one.value for one in answer.response_headers_to_add}


class Server:
    """A tidegate with `[decide]`, and a channel to it."""

    def __init__(self, fleet, name, config, is_plain=True):
        self.name, self.port, self.admin = name, free_port(), free_port()
        self.file = fleet.directory / f"{name}.toml"
        self.access = fleet.directory / f"{name}.access"
        self.log = fleet.directory / f"{name}.log"
        ports = {"{port}": self.port, "{admin}": self.admin, "{access}": self.access}
        for mark, value in ports.items():
            config = config.replace(mark, str(value))
        self.file.write_text(config)
        self.process = subprocess.Popen(
            [os.environ["TIDEGATE"], "run", "-c", self.file], cwd=fleet.directory,
            stdout=subprocess.DEVNULL, stderr=open(self.log, "w"))
        fleet.processes.append(self.process)
        self.wait()
        if is_plain:
            self.use(grpc.insecure_channel(f"127.0.0.1:{self.port}"))

    def wait(self):
        end = time.monotonic() + 30
        while time.monotonic() < end and self.process.poll() is None:
            try:
                url = f"http://127.0.0.1:{self.admin}/readyz"
                with urllib.request.urlopen(url, timeout=5):
                    return
            except OSError:
                time.sleep(0.02)
        raise Failed(f"{self.name} did not start: {self.log.read_text()}")

    def use(self, channel):
        self.channel = channel
        self.rls = rls_pb2_grpc.RateLimitServiceStub(channel)
        self.auth = external_auth_pb2_grpc.AuthorizationStub(channel)
        self.health = health_pb2_grpc.HealthStub(channel)

    def call(self, domain, *descriptors, hits=0, timeout=10):
        message = request(domain, *descriptors, hits=hits)
        return self.rls.ShouldRateLimit(message, timeout=timeout)

    def codes(self, domain, *descriptors, hits=0):
        return codes(self.call(domain, *descriptors, hits=hits))

    def left(self, domain, *entries):
        """The units that are left to one descriptor."""
        return self.call(domain, descriptor(*entries, hits=0)).statuses[0].limit_remaining

    def error(self, message, timeout=10, **options):
        """The code of a call that fails."""
        try:
            if isinstance(message, rls_pb2.RateLimitRequest):
                self.rls.ShouldRateLimit(message, timeout=timeout, **options)
            else:
                self.raw(*message, timeout=timeout)
        except grpc.RpcError as error:
            return error.code().name
        return "no error"

    def raw(self, *messages, path=SHOULD_RATE_LIMIT, timeout=10):
        """A call with messages of any bytes."""
        same = lambda message: message
        return self.channel.stream_unary(path, same, same)(iter(messages), timeout=timeout)

    def serving(self, service=""):
        asked = health_pb2.HealthCheckRequest(service=service)
        try:
            status = self.health.Check(asked, timeout=10).status
        except grpc.RpcError as error:
            return error.code().name
        return health_pb2.HealthCheckResponse.ServingStatus.Name(status)

    def http(self, method, path, headers=(), body=None):
        """Status, headers and body of an answer over HTTP/1.1."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)
        connection.request(method, path, body, dict(headers))
        answer = connection.getresponse()
        found = answer.status, answer.headers, answer.read()
        connection.close()
        return found

    def json(self, message):
        """Status and body of an answer of /json."""
        body = message if isinstance(message, (str, bytes)) else json.dumps(message)
        status, _, body = self.http("POST", "/json", body=body)
        return status, body.decode()

    def json_answer(self, message):
        status, body = self.json(message)
        return status, json_format.Parse(body, rls_pb2.RateLimitResponse())

    def metrics(self):
        """The value of each line of the metrics."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.admin}/metrics", timeout=10) as answer:
            lines = answer.read().decode().splitlines()
        pairs = (line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
        return {name: float(value) for name, value in pairs}

    def admin_json(self, path):
        url = f"http://127.0.0.1:{self.admin}{path}"
        with urllib.request.urlopen(url, timeout=10) as answer:
            return json.load(answer)

    def findings(self):
        """The ids of what the admin finds in the calls."""
        found = re.findall(r'tidegate_findings{id="(decide-[a-z]+)"}', "\n".join(
            name for name, value in self.metrics().items() if value == 1))
        listed = [one["id"] for one in self.admin_json("/api/v1/status")["findings"]]
        return sorted(found) if set(found) <= set(listed) else f"{found}, {listed}"

    def block(self, client):
        subprocess.run([os.environ["TIDEGATE"], "limits", "block", "-c", self.file, client],
                       check=True, capture_output=True, timeout=20)

    def end(self):
        self.process.send_signal(signal.SIGTERM)


class Fleet:
    """The processes of a run."""

    def __init__(self, directory):
        self.directory, self.processes = pathlib.Path(directory), []

    def redis(self):
        """A Redis: its process and the `[store]` for it. A busy machine is no outage."""
        process, port = redis_server(self.directory)
        self.processes.append(process)
        return process, f'[store]\nurl = "redis://127.0.0.1:{port}"\ntimeout = "2s"\n'

    def server(self, name, config, **options):
        return Server(self, name, config, **options)

    def end(self):
        for process in self.processes:
            process.send_signal(signal.SIGCONT)
            process.kill()
        for process in self.processes:
            process.wait(20)

    def show_logs(self):
        for log in sorted(self.directory.glob("*.log")):
            print(f"--- {log.name}\n{log.read_text()[-3000:]}", file=sys.stderr)
