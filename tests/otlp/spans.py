"""Spans of a running tidegate, taken by a real collector and read with the protocol's own messages."""

import contextlib
import gzip
import http.client
import http.server
import os
import pathlib
import re
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request

from opentelemetry.proto.collector.trace.v1 import trace_service_pb2
from opentelemetry.proto.trace.v1 import trace_pb2

from running import free_port

PATIENCE = 20.0
TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
SECRET = "sekrit-api-key"

CONFIG = """
listen = "127.0.0.1:0"
admin  = "127.0.0.1:0"
{trusted}

[upstream.api]
servers = [{servers}]
balance = "round-robin"
retries = {{ attempts = 2, on = ["503"] }}
eject   = false

[limit.login]
rate = "{rate}"
key  = "api_key or ip"

[limit.tried]
rate   = "1/h"
key    = "ip"
shadow = true

[api_key]
from = ["header:x-api-key", "query:api_key"]

[[route]]
path     = "/users/{{id}}"
upstream = "api"
limits   = ["login", "tried"]

[headers]
request_id = "x-request-id"

[tracing]
endpoint = "{endpoint}"
protocol = "{protocol}"
sample   = {sample}
service  = "edge"
every    = "50ms"
timeout  = "2s"

[log]
access = "access.jsonl"
format = "json"
sample_allowed = 1.0

[server]
workers = 2
control = "off"
"""


class Quiet(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def answer(self, status=200, body=b"", headers=()):
        self.send_response(status)
        for name, value in headers:
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


@contextlib.contextmanager
def served(handler):
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        server.server_close()


class Reader:
    """What the collector hands on."""

    def __init__(self):
        self.exports, self.lock = [], threading.Lock()
        reader = self

        class Sink(Quiet):
            def do_POST(self):
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if self.headers["Content-Encoding"] == "gzip":
                    body = gzip.decompress(body)
                export = trace_service_pb2.ExportTraceServiceRequest()
                export.ParseFromString(body)
                with reader.lock:
                    reader.exports.append(export)
                done = trace_service_pb2.ExportTraceServiceResponse().SerializeToString()
                self.answer(200, done, [("Content-Type", "application/x-protobuf")])

        self.handler = Sink

    def spans(self):
        with self.lock:
            exports = list(self.exports)
        found = []
        for export in exports:
            for resource in export.resource_spans:
                named = attributes(resource.resource)
                assert named["service.name"] == "edge", named
                assert named["service.version"], named
                for scope in resource.scope_spans:
                    assert scope.scope.name == "tidegate", scope.scope
                    found.extend(scope.spans)
        return found

    def wait(self, count, what):
        until = time.monotonic() + PATIENCE
        while time.monotonic() < until:
            spans = self.spans()
            if len(spans) >= count:
                return spans
            time.sleep(0.02)
        raise AssertionError(f"{what}: {len(self.spans())} spans of {count}: {self.spans()}")


def attributes(holder):
    return {one.key: value_of(one.value) for one in holder.attributes}


def value_of(value):
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [value_of(one) for one in value.array_value.values]
    return getattr(value, kind)


class Upstream:
    """A server that answers `statuses` in turn, the last of them for ever."""

    def __init__(self, *statuses):
        self.seen, statuses, upstream = [], list(statuses), self

        class Handler(Quiet):
            def do_GET(self):
                upstream.seen.append(dict((k.lower(), v) for k, v in self.headers.items()))
                self.answer(statuses.pop(0) if len(statuses) > 1 else statuses[0])

        self.handler = Handler


class Tidegate:
    def __init__(self, directory, **values):
        directory.mkdir()
        self.directory = directory
        (directory / "proxy.toml").write_text(CONFIG.format(**values))
        self.process = subprocess.Popen(
            [os.environ["TIDEGATE"], "run", "-c", "proxy.toml"], cwd=directory,
            stderr=subprocess.PIPE, text=True)
        self.lines, found = [], {}
        for line in self.process.stderr:
            if match := re.match(r"(listening|dashboard) +http://([0-9.:]+)", line):
                found[match[1]] = match[2]
            if "dashboard" in found:
                break
            print(line, end="", file=sys.stderr)
        assert "dashboard" in found, "it does not serve"
        threading.Thread(target=self.read, daemon=True).start()
        self.address, self.admin = found["listening"], found["dashboard"]
        self.client = http.client.HTTPConnection(self.address, timeout=10)
        until = time.monotonic() + PATIENCE
        while not self.is_ready():
            assert time.monotonic() < until, "it never gets ready"
            time.sleep(0.02)

    def is_ready(self):
        try:
            with urllib.request.urlopen(f"http://{self.admin}/readyz", timeout=10) as answer:
                return answer.status == 200
        except urllib.error.HTTPError:
            return False

    def read(self):
        for line in self.process.stderr:
            self.lines.append(line)

    def wait_for(self, part):
        until = time.monotonic() + PATIENCE
        while time.monotonic() < until:
            if found := [line for line in self.lines if part in line]:
                return found
            time.sleep(0.02)
        raise AssertionError(f"no line says {part!r}: {self.lines}")

    def get(self, path, **headers):
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        self.client.request("GET", path, headers=named)
        answer = self.client.getresponse()
        answer.read()
        return answer.status

    def fates(self):
        with urllib.request.urlopen(f"http://{self.admin}/metrics", timeout=10) as answer:
            text = answer.read().decode()
        found = re.findall(r'^tidegate_spans_total\{outcome="(\w+)"\} (\d+)', text, re.M)
        return {outcome: int(count) for outcome, count in found}

    def wait_for_exported(self, count):
        """Spans count once the collector has answered, which is after it handed them on."""
        until = time.monotonic() + PATIENCE
        while (fates := self.fates())["exported"] < count and time.monotonic() < until:
            time.sleep(0.02)
        assert fates == {"exported": count, "dropped": 0, "failed": 0, "refused": 0}, fates

    def stop(self):
        self.process.terminate()
        return self.process.wait(PATIENCE)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()


@contextlib.contextmanager
def collector(program, directory, ports, sink):
    """A real one, which hands on what it takes."""
    process = subprocess.Popen(
        [program, "start", "--otlp-http-endpoint", f"127.0.0.1:{ports[0]}",
         "--otlp-grpc-endpoint", f"127.0.0.1:{ports[1]}", "--exporter", "otlp",
         "--otlp-exporter-endpoint", f"http://127.0.0.1:{sink}",
         "--otlp-exporter-protocol", "http", "--batch-timeout", "20ms",
         "--pid-file", str(directory / "rotel.pid"), "--log-file", str(directory / "rotel.log")],
        stdout=(directory / "rotel.out").open("ab"), stderr=subprocess.STDOUT)
    try:
        until = time.monotonic() + PATIENCE
        for port in ports:
            while True:
                with socket.socket() as one:
                    if one.connect_ex(("127.0.0.1", port)) == 0:
                        break
                assert process.poll() is None, (directory / "rotel.out").read_text()
                assert time.monotonic() < until, "the collector does not listen"
                time.sleep(0.05)
        yield process
    finally:
        process.terminate()
        try:
            process.wait(5)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def by_kind(spans, kind):
    return [span for span in spans if span.kind == kind]


def check_ids(spans):
    for span in spans:
        assert len(span.trace_id) == 16 and len(span.span_id) == 8, span
        assert span.parent_span_id == b"" or len(span.parent_span_id) == 8, span
        assert 0 < span.start_time_unix_nano <= span.end_time_unix_nano, span
        assert SECRET not in str(span), "a key in the clear"
    ids = [span.span_id for span in spans]
    assert len(ids) == len(set(ids)), "an id twice"


def read_requests(spans, status):
    """Requests that were answered so: each with its decisions and its attempts."""
    kinds = trace_pb2.Span
    for root in by_kind(spans, kinds.SPAN_KIND_SERVER):
        if attributes(root)["http.response.status_code"] != status:
            continue
        own = [span for span in spans if span.parent_span_id == root.span_id]
        for span in own:
            assert span.trace_id == root.trace_id, span
            assert root.start_time_unix_nano <= span.start_time_unix_nano, span
            assert span.end_time_unix_nano <= root.end_time_unix_nano, span
        attempts = by_kind(own, kinds.SPAN_KIND_CLIENT)
        attempts.sort(key=lambda span: span.start_time_unix_nano)
        yield root, by_kind(own, kinds.SPAN_KIND_INTERNAL), attempts


def check_traffic(program, directory, protocol):
    """Allowed, retried, denied; with a trace of the client's, who is trusted."""
    reader, one, other = Reader(), Upstream(503, 200), Upstream(200)
    ports = free_port(), free_port()
    with contextlib.ExitStack() as stack:
        sink = stack.enter_context(served(reader.handler))
        up = [stack.enter_context(served(each.handler)) for each in (one, other)]
        stack.enter_context(collector(program, directory, ports, sink))
        endpoint = f"http://127.0.0.1:{ports[0 if protocol == 'http' else 1]}"
        servers = ", ".join(f'"http://127.0.0.1:{port}"' for port in up)
        proxy = stack.enter_context(Tidegate(
            directory / f"proxy-{protocol}", trusted='trusted_proxies = ["127.0.0.1"]',
            servers=servers, rate="2/h", endpoint=endpoint, protocol=protocol, sample=1.0))
        assert proxy.fates() == {"exported": 0, "dropped": 0, "failed": 0, "refused": 0}
        path = f"/users/7?api_key={SECRET}&q=1"
        said = dict(traceparent=f"00-{TRACE}-{PARENT}-01", tracestate="a=b",
                    x_forwarded_for="192.0.2.7")
        statuses = [proxy.get(path, **said), proxy.get(path, **said),
                    proxy.get(path, x_forwarded_for="192.0.2.7")]
        assert statuses == [200, 200, 429], statuses
        # Of each a request, its decision and its trial; and attempts: one was made again.
        spans = reader.wait(3 * 3 + 3, protocol)
        assert len(spans) == 12, spans
        check_ids(spans)
        allowed = list(read_requests(spans, 200))
        assert len(allowed) == 2, spans
        for root, decisions, _ in allowed:
            check_root(root)
            check_decisions(decisions)
        check_attempts([attempts for _, _, attempts in allowed], one.seen + other.seen)
        check_denied(*next(read_requests(spans, 429)))
        proxy.wait_for_exported(12)
        # What has not been exported yet is, before the end.
        proxy.get("/elsewhere")
        assert proxy.stop() == 0
        last = reader.wait(13, "the last span")[-1]
        check_log(proxy, [*spans, last])
        assert last.name == "GET" and attributes(last)["url.path"] == "/elsewhere", last
    print(f"{protocol}: 13 spans of 4 requests, as they should be")


def check_root(root):
    assert (root.trace_id.hex(), root.parent_span_id.hex()) == (TRACE, PARENT), root
    assert root.name == "GET /users/{id}", root.name
    said = attributes(root)
    expected = {
        "http.request.method": "GET", "http.route": "/users/{id}", "url.path": "/users/7",
        "url.scheme": "http", "http.response.status_code": 200, "client.address": "192.0.2.7",
        "network.protocol.version": "1.1", "tidegate.outcome": "allowed",
        "http.response.body.size": 0}
    assert {name: said.get(name) for name in expected} == expected, said
    assert root.status.code == trace_pb2.Status.STATUS_CODE_UNSET, root


def check_decisions(decisions):
    enforced = [attributes(span) for span in decisions if span.name == "decide"]
    trial = [attributes(span) for span in decisions if span.name != "decide"]
    assert len(enforced) == 1 and len(trial) == 1, decisions
    said = enforced[0]
    expected = {"tidegate.verdict": "allowed", "tidegate.source": "store",
                "tidegate.limits": ["login"], "tidegate.cost": [1]}
    assert {name: said.get(name) for name in expected} == expected, said
    assert said["tidegate.remaining"][0] in (0, 1), said
    assert re.fullmatch(r"[\w-]{8}", said["tidegate.keys"][0]), said
    assert trial[0]["tidegate.role"] == "shadow", trial
    assert trial[0]["tidegate.limits"] == ["tried"], trial


def check_attempts(requests, heads):
    statuses = [[attributes(span)["http.response.status_code"] for span in attempts]
                for attempts in requests]
    assert sorted(statuses) == [[200], [503, 200]], statuses
    for attempts, answers in zip(requests, statuses):
        for number, (span, status) in enumerate(zip(attempts, answers)):
            said = attributes(span)
            assert said.get("http.request.resend_count", 0) == number, said
            assert said["server.address"] == "127.0.0.1" and said["server.port"] > 0, said
            failed = span.status.code == trace_pb2.Status.STATUS_CODE_ERROR
            assert failed == (status == 503) and (said.get("error.type") == "503") == failed, span
    # The upstream knows each attempt by its own name.
    ours = {f"00-{TRACE}-{span.span_id.hex()}-01" for attempts in requests for span in attempts}
    assert len(heads) == 3 and {head["traceparent"] for head in heads} == ours, (heads, ours)
    assert all(head.get("tracestate") == "a=b" for head in heads), heads


def check_denied(root, decisions, attempts):
    assert root.trace_id.hex() != TRACE and root.parent_span_id == b"", root
    assert attributes(root)["tidegate.outcome"] == "denied" and attempts == [], root
    said = next(attributes(span) for span in decisions if span.name == "decide")
    assert said["tidegate.verdict"] == "denied", said
    assert said["tidegate.denied_by"] == ["login"], said
    trial = next(attributes(span) for span in decisions if span.name != "decide")
    assert trial["tidegate.verdict"] == "shadow_denied", trial


def check_log(proxy, spans):
    """Each line of the access log names its trace."""
    text = (proxy.directory / "access.jsonl").read_text()
    logged = re.findall(r'"trace_id":"([0-9a-f]{32})"', text)
    assert set(logged) == {span.trace_id.hex() for span in spans}, text


def check_outage(program, directory):
    """The collector is away, and comes: requests never notice, the log says it twice."""
    reader, upstream, ports = Reader(), Upstream(200), (free_port(), free_port())
    with contextlib.ExitStack() as stack:
        sink = stack.enter_context(served(reader.handler))
        up = stack.enter_context(served(upstream.handler))
        proxy = stack.enter_context(Tidegate(
            directory / "proxy-outage", trusted="", servers=f'"http://127.0.0.1:{up}"',
            rate="1000/h", endpoint=f"http://127.0.0.1:{ports[0]}", protocol="http", sample=1.0))
        assert [proxy.get("/users/1") for _ in range(5)] == [200] * 5
        proxy.wait_for("the collector does not accept spans")
        with collector(program, directory, ports, sink):
            reader.wait(1, "the collector is back")
            proxy.wait_for("takes spans again")
        assert proxy.get("/users/1") == 200
        assert len(proxy.wait_for("the collector does not accept spans")) >= 1
        # Nobody listens: the end does not wait for anybody.
        began = time.monotonic()
        assert proxy.stop() == 0
        assert time.monotonic() - began < 8, "the end waited for a collector that is away"
    print("outage: told twice, and no request noticed")


def check_sampling(directory):
    """A tenth is a tenth, decided by the trace's number; strangers have no say."""
    reader, upstream = Reader(), Upstream(200)
    with contextlib.ExitStack() as stack:
        sink = stack.enter_context(served(reader.handler))
        up = stack.enter_context(served(upstream.handler))
        proxy = stack.enter_context(Tidegate(
            directory / "proxy-sampling", trusted="", servers=f'"http://127.0.0.1:{up}"',
            rate="100000/h", endpoint=f"http://127.0.0.1:{sink}", protocol="http", sample=0.1))
        for _ in range(1500):
            forced = f"00-{TRACE}-{PARENT}-01"
            assert proxy.get("/users/1", traceparent=forced, tracestate="a=b") == 200
        assert proxy.stop() == 0
        roots = by_kind(reader.spans(), trace_pb2.Span.SPAN_KIND_SERVER)
        # Five standard deviations.
        assert 150 - 58 < len(roots) < 150 + 58, len(roots)
        sent = [head["traceparent"].split("-") for head in upstream.seen]
        assert not any("tracestate" in head for head in upstream.seen)
        assert len({trace for _, trace, _, _ in sent}) == 1500
        recorded = {trace for _, trace, _, flags in sent if flags == "01"}
        assert recorded == {root.trace_id.hex() for root in roots}
        for _, trace, _, flags in sent:
            below = int(trace[16:], 16) >> 1 < 0.1 * 2**63
            assert below == (flags == "01"), trace
        assert all(root.links[0].trace_id.hex() == TRACE for root in roots)
    print(f"sampling: {len(roots)} of 1500 at 0.1, by the trace's number")


def main():
    program = sys.argv[1]
    with tempfile.TemporaryDirectory() as name:
        directory = pathlib.Path(name)
        check_traffic(program, directory, "http")
        check_traffic(program, directory, "grpc")
        check_outage(program, directory)
        check_sampling(directory)
    print("4 passed, 0 failed")


main()
