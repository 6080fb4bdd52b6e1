"""Envoy's rate limit service on the wire: answers, errors, health, JSON, TLS, and what is counted."""

import http.client
import json as texts
import pathlib
import re
import signal
import subprocess
import time
from statistics import median

import grpc
from google.protobuf.json_format import MessageToDict
from grpc_health.v1 import health_pb2

from calls import (OK, OVER, SHOULD_RATE_LIMIT, UNLIMITED, check, codes, descriptor, headers, left,
                   request, until)

UNITS = [("s", "SECOND"), ("min", "MINUTE"), ("h", "HOUR"), ("d", "DAY"), ("7d", "WEEK"),
         ("30d", "MONTH"), ("365d", "YEAR"), ("10s", "UNKNOWN"), ("2d", "UNKNOWN")]

TOP = """
listen = []
admin  = "127.0.0.1:{admin}"

[decide]
listen = "127.0.0.1:{port}"
max_message = "4KiB"
max_descriptors = 3
"""

RULES = "".join(f"""
[[descriptor]]
domain  = "units"
entries = ["every={every}"]
limits  = ["7/{every}"]
""" for every, _ in UNITS) + """
[limit.login]
rate = "2/min"
key  = "entry:user"

[[descriptor]]
name    = "signing in"
domain  = "shop"
entries = ["login", "user"]
limits  = ["login"]
metadata = { service = { name = "one", weight = 2 }, list = [true, "x"] }

[[descriptor]]
domain  = "shop"
entries = ["more"]
limits  = ["9/h"]
metadata = { service = { tier = "gold", weight = 3 } }

[[descriptor]]
domain  = "shop"
entries = ["free"]
limits  = []

[[descriptor]]
domain  = "shop"
entries = ["blocked"]
block   = true
"""


def login(user):
    return descriptor("login=1", f"user={user}")


def answers(server):
    for every, unit in UNITS:
        status = server.call("units", f"every={every}").statuses[0]
        limit = status.current_limit
        check(f"7/{every} is of the unit {unit}", [7, unit],
              [limit.requests_per_unit, limit.Unit.Name(limit.unit)])
    first, second = (server.call("shop", login("a")) for _ in range(2))
    denied = server.call("shop", login("a"))
    check("a named limit", "login", first.statuses[0].current_limit.name)
    check("what is left of it", [[1], [0], [0]], [left(one) for one in (first, second, denied)])
    waits = [one.statuses[0].duration_until_reset for one in (first, second, denied)]
    check("whole seconds, rounded up", [[60, 0]] * 3, [[one.seconds, one.nanos] for one in waits])
    allowed = headers(first)
    check("headers of what is allowed",
          ["ratelimit", "ratelimit-policy", "x-ratelimit-limit", "x-ratelimit-remaining",
           "x-ratelimit-reset"], sorted(allowed))
    check("their values", ["2", "1", '"login";q=2;w=60'],
          [allowed["x-ratelimit-limit"], allowed["x-ratelimit-remaining"],
           allowed["ratelimit-policy"]])
    check("no body of what is allowed", b"", first.raw_body)
    told = headers(denied)
    check("headers of a denial", sorted(
        [*allowed, "cache-control", "content-type", "retry-after"]), sorted(told))
    check("their values", ["60", "application/problem+json", "0"],
          [told["retry-after"], told["content-type"], told["x-ratelimit-remaining"]])
    problem = texts.loads(denied.raw_body)
    check("the body of a denial", [429, True],
          [problem["status"], "quota-exceeded" in problem["type"]])
    one_second = server.call("units", descriptor("every=s", hits=7)).statuses[0]
    check("at least one second", [1, 0], [one_second.duration_until_reset.seconds,
                                          one_second.duration_until_reset.nanos])
    answer = server.call("shop", "free=1")
    check("unlimited", [OK, OK, UNLIMITED, False, 0],
          [*codes(answer), *left(answer), answer.statuses[0].HasField("current_limit"),
           len(answer.response_headers_to_add)])
    metadata = MessageToDict(server.call("shop", login("m"), "more=1").dynamic_metadata)
    check("metadata of rules are merged", {
        "domain": "shop", "metadata": {"service": {"name": "one", "tier": "gold", "weight": 2.0},
                                       "list": [True, "x"]}}, metadata)
    check("no metadata without a rule that has some", False,
          server.call("shop", "free=1").HasField("dynamic_metadata"))
    check("a denied rule has no metadata", False, denied.HasField("dynamic_metadata"))


def errors(server):
    bad, one = "INVALID_ARGUMENT", descriptor("more=1")
    for what, message in [
        ("an empty domain", request("", one)),
        ("no descriptors", request("shop")),
        ("a descriptor without entries", request("shop", one, descriptor())),
        ("an entry without key", request("shop", descriptor(("", "value")))),
        ("too many descriptors", request("shop", *[one] * 4)),
        ("too many entries", request("shop", descriptor(*["more=1"] * 17))),
        ("garbage", [b"\xff\xff\xff"]),
        ("a text that is no UTF-8", [b"\x0a\x02\xff\xfe\x12\x08\x0a\x06\x0a\x01a\x12\x01b"]),
        ("no message", []),
        ("two messages", [request("shop", one).SerializeToString()] * 2),
    ]:
        check(f"{what} is an error", bad, server.error(message))
    long = request("shop", descriptor(("more", "x" * 5000)))
    check("a message that is too long is denied", [OVER],
          codes(server.rls.ShouldRateLimit(long, timeout=10)))
    squeezed = request("shop", descriptor(("more", "x" * 2000)))
    check("a compressed message", "UNIMPLEMENTED",
          server.error(squeezed, compression=grpc.Compression.Gzip))
    same = lambda message: message
    for path in (SHOULD_RATE_LIMIT.replace("v3", "v2"), "/nobody/Nothing"):
        check(f"{path} is no method", "UNIMPLEMENTED", code_of(
            lambda: server.channel.unary_unary(path, same, same)(b"", timeout=10)))
    check("as many descriptors as may be", [OK] * 4, server.codes("shop", *["free=1"] * 3))
    check("as many entries as may be", [OK, OK], server.codes("shop", descriptor(*["a=1"] * 16)))
    late = texts.dumps({"domain": "shop", "descriptors": [
        {"entries": [{"key": "more", "value": "late"}]}]})
    found = server.http("POST", "/json", {"grpc-timeout": "1n"}, late)[0]
    check("a passed deadline is not decided", 408, found)
    message = request("shop", "more=late").SerializeToString()
    body = server.file.with_suffix(".message")
    body.write_bytes(b"\0" + len(message).to_bytes(4, "big") + message)
    answer = subprocess.run(
        ["curl", "-s", "--http2-prior-knowledge", "-H", "content-type: application/grpc",
         "-H", "te: trailers", "-H", "grpc-timeout: 1n", "--data-binary", f"@{body}", "-o",
         "/dev/null", "-w", "%{http_code} %header{grpc-status}",
         f"http://127.0.0.1:{server.port}{SHOULD_RATE_LIMIT}"],
        capture_output=True, text=True, timeout=20)
    check("nor over gRPC", "200 4", answer.stdout)
    check("and nothing is charged", 9, server.left("shop", "more=late"))
    check("gRPC needs HTTP/2", 505, server.http(
        "POST", SHOULD_RATE_LIMIT, {"Content-Type": "application/grpc"}, b"")[0])
    check("a method needs its type", 415, server.http("POST", SHOULD_RATE_LIMIT, body=b"")[0])
    check("another path", 404, server.http("GET", "/nothing")[0])


def seconds_of(call):
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def code_of(call):
    try:
        call()
    except grpc.RpcError as error:
        return error.code().name
    return "no error"


def health(server):
    """Ends this server."""
    names = ["", "ratelimit", "envoy.service.ratelimit.v3.RateLimitService"]
    check("health", ["SERVING"] * 3, [server.serving(name) for name in names])
    check("health of an unknown service", "NOT_FOUND", server.serving("shop"))
    check("the health check", (200, b"OK\n"), server.http("GET", "/healthcheck")[::2])
    ask = health_pb2.HealthCheckRequest
    unknown = server.health.Watch(ask(service="shop"), timeout=10)
    status = health_pb2.HealthCheckResponse
    check("the watch of an unknown service", status.SERVICE_UNKNOWN, next(unknown).status)
    unknown.cancel()
    watched = server.health.Watch(ask(), timeout=10)
    check("the watch begins", status.SERVING, next(watched).status)
    kept = http.client.HTTPConnection("127.0.0.1", server.port, timeout=10)
    kept.request("GET", "/healthcheck")
    kept.getresponse().read()
    server.process.send_signal(signal.SIGTERM)
    check("the watch sees the end", status.NOT_SERVING, next(watched).status)
    def asked_again():
        kept.request("GET", "/healthcheck")
        answer = kept.getresponse()
        answer.read()
        return answer.status

    # Another worker may hear of the end a moment later.
    until("the health check while draining", 500, asked_again)
    check("the watch ends", "UNAVAILABLE", code_of(lambda: next(watched)))
    check("the server ends", 0, server.process.wait(20))


def json(server):
    """`/json` asks the same."""
    name = server.name
    entry = lambda key, value: {"entries": [{"key": key, "value": value}]}
    ask = lambda *all, **more: server.json_answer({"domain": "hits", "descriptors": [*all], **more})
    status, answer = ask(entry("ten", "j"))
    check(f"{name}: /json allows", [200, OK, OK, 9], [status, *codes(answer), *left(answer)])
    check(f"{name}: as gRPC does", 9, server.left("hits", "ten=j"))
    check(f"{name}: hits in one spelling", [4], left(ask(entry("ten", "j"), hits_addend=5)[1]))
    check(f"{name}: and the other, as text", [2], left(ask(entry("ten", "j"), hitsAddend="2")[1]))
    own = entry("ten", "j") | {"hitsAddend": "2"}
    check(f"{name}: hits of a descriptor", [0], left(ask(own)[1]))
    status, answer = ask(entry("ten", "j"))
    check(f"{name}: /json denies", [429, OVER, OVER], [status, *codes(answer)])
    limit, added = answer.statuses[0].current_limit, headers(answer)
    check(f"{name}: with all that gRPC has", [10, "HOUR", True, True, 429],
          [limit.requests_per_unit, limit.Unit.Name(limit.unit), "retry-after" in added,
           1 <= answer.statuses[0].duration_until_reset.seconds <= 3600,
           texts.loads(answer.raw_body)["status"]])
    back = entry("ten", "j") | {"hits_addend": 3, "is_negative_hits": True}
    check(f"{name}: /json gives back", [200, 3], [ask(back)[0], *left(ask(entry(
        "ten", "j") | {"hits_addend": 0})[1])])
    answer = MessageToDict(ask(entry("q1", "j"), domain="quota")[1])
    check(f"{name}: /json has metadata", {"one": "left"},
          answer["dynamicMetadata"]["metadata"]["service"])
    call = '{"domain": "hits", "descriptors": [%s]}'
    entries = '"entries": [{"key": "ten", "value": "n"}]'
    for what, expected, text in [
        ("null is the default", 200, '{"domain": "hits", "hitsAddend": null, "descriptors": [{'
         + entries + ', "limit": null, "hitsAddend": null, "isNegativeHits": null}]}'),
        ("a value that is missing is empty", 200, call % '{"entries": [{"key": "ten"}]}'),
        ("1.0 is a number", 200, call % ("{" + entries + ', "hits_addend": 1.0}')),
        ("a unit by name", 200, call % (
            "{" + entries + ', "limit": {"requestsPerUnit": 5, "unit": "DAY"}}')),
        ("a unit by number", 200, call % (
            "{" + entries + ', "limit": {"requests_per_unit": "5", "unit": 4}}')),
        ("an unknown unit", 400, call % (
            "{" + entries + ', "limit": {"requests_per_unit": 5, "unit": "FORTNIGHT"}}')),
        ("an unknown field", 400, call % ("{" + entries + ', "hits": 1}')),
        ("an unknown field above", 400, '{"domain": "hits", "descriptor": []}'),
        ("a negative number", 400, call % ("{" + entries + ', "hits_addend": -1}')),
        ("a part of a number", 400, call % ("{" + entries + ', "hits_addend": 1.5}')),
        ("a number that is too large", 400, '{"hitsAddend": 4294967296}'),
        ("no JSON", 400, "{"),
        ("two messages", 400, call % ("{" + entries + "}") + "{}"),
        ("no object", 400, '"text"'),
        ("nothing", 400, ""),
        ("an empty domain", 400, '{"domain": "", "descriptors": [{%s}]}' % entries),
        ("no descriptor", 400, call % ""),
        ("a field twice", 400,
         '{"domain": "a", "domain": "hits", "descriptors": [{%s}]}' % entries),
        ("too long", 413, '{"domain": "%s"}' % ("x" * 70_000)),
    ]:
        check(f"{name}: /json, {what}", expected, server.json(text)[0])
    check(f"{name}: /json by GET", 405, server.http("GET", "/json")[0])


def watched(server):
    """Metrics, findings and the access log."""
    name, before = server.name, server.metrics()
    server.call("hits", "ten=watched")
    server.call("hits", descriptor("ten=watched", hits=11))
    server.error(request(""))
    server.call("hits", "unmatched=1")
    server.call("nobody", "unmatched=1")
    server.json({"domain": "hits", "descriptors": [{"entries": [{"key": "ten", "value": "w"}]}]})
    server.json("{")
    after = server.metrics()
    for labels, more in [('door="rls",code="ok"', 3), ('door="rls",code="over_limit"', 1),
                         ('door="rls",code="error"', 1), ('door="json",code="ok"', 1),
                         ('door="json",code="error"', 1)]:
        key = f"tidegate_decide_requests_total{{{labels}}}"
        check(f"{name}: questions with {labels}", more, after[key] - before.get(key, 0))
    for domain in ("hits", "(other)"):
        key = f'tidegate_decide_unmatched_total{{domain="{domain}"}}'
        check(f"{name}: unmatched in {domain}", 1, after.get(key, 0) - before.get(key, 0))
    key = 'tidegate_decide_duration_seconds_count{door="rls"}'
    check(f"{name}: durations are observed", 5, after[key] - before.get(key, 0))
    server.call("names", "big=logged")
    server.call("names", "blocked=logged", "remote_address=192.0.2.9")
    lines = [["rls", "names/big", "allowed", "127.0.0.1"],
             ["rls", "names/blocked", "denied", "192.0.2.9"]]
    until(f"{name}: the access log", [True, True], lambda: [one in logged(server) for one in lines])


def logged(server):
    """Door, route, outcome and client of each line of the access log."""
    entries = map(texts.loads, server.access.read_text().splitlines())
    return [[one.get("door"), one.get("route"), one["outcome"], one["client"]] for one in entries]


OUTAGE = """
listen = []
admin  = "127.0.0.1:{admin}"

[decide]
listen = "127.0.0.1:{port}"
""" + "".join(f"""
[limit.{word}]
rate = "3/h"
on_error = "{word}"
key = "entry:{word}"

[[descriptor]]
domain  = "away"
entries = ["{word}"]
limits  = ["{word}"]
""" for word in ("local", "deny", "allow")) + """
[[descriptor]]
domain  = "away"
entries = ["blocked"]
block   = true

[[descriptor]]
domain  = "away"
entries = ["report"]
limits  = ["3/h"]
charge  = "always"
"""


# Far below the timeout of the store, and enough for a busy machine.
IN_TIME = 0.2


def outage(fleet, what, number):
    """Redis fails, and an answer comes in time all the same."""
    redis, store = fleet.redis()
    server = fleet.server(what, OUTAGE + store)
    for word in ("local", "deny", "allow"):
        # Each worker connects by itself.
        until(f"{what}: {word} before", [OK, OK],
              lambda: server.codes("away", f"{word}=before"), 20)
    redis.send_signal(number)
    if number == signal.SIGKILL:
        redis.wait()
    ask = lambda *all: server.call("away", *all, timeout=IN_TIME)
    answer = ask("deny=a")
    check(f"{what}: deny", [OVER, OVER], codes(answer))
    check(f"{what}: deny says when", True, int(headers(answer)["retry-after"]) >= 1)
    check(f"{what}: deny says it in the status too", True,
          answer.statuses[0].duration_until_reset.seconds >= 1)
    check(f"{what}: allow", [[OK, OK]] * 5, [codes(ask("allow=a")) for _ in range(5)])
    check(f"{what}: local", [[OK, OK]] * 3 + [[OVER, OVER]] * 2,
          [codes(ask("local=a")) for _ in range(5)])
    check(f"{what}: together", [OVER, OK, OVER, OK], codes(ask("local=b", "deny=b", "allow=b")))
    check(f"{what}: health", "SERVING", server.serving())
    check(f"{what}: a look", [OK, OK], codes(ask(descriptor("local=a", hits=0))))
    # Envoy waits 20 ms unless it is told otherwise. On a busy machine each call is late by some
    # milliseconds, so a health check, which never asks the store, is timed beside each decision.
    pairs = [(seconds_of(server.serving), seconds_of(lambda: ask("deny=a"))) for _ in range(20)]
    added = median(decision for _, decision in pairs) - median(health for health, _ in pairs)
    check(f"{what}: a decision takes at most 10 ms longer than a health check", True, added < 0.01)
    if number == signal.SIGSTOP:
        redis.send_signal(signal.SIGCONT)
        until(f"{what}: after it", [OK, OK], lambda: server.codes("away", "deny=after"), 20)
    server.end()


def first_calls(fleet):
    """The first calls after Redis stood still wait for it, and no longer than their caller."""
    redis, store = fleet.redis()
    for what, expected, asked in [
        ("local", [OK, OK], ["local=a"]),
        ("deny", [OVER, OVER], ["deny=a"]),
        ("allow", [OK, OK], ["allow=a"]),
        ("a report", [OK, OK], ["report=a"]),
        ("a look", [OK, OK], [descriptor("local=a", hits=0)]),
        ("hits given back", [OK, OK], [descriptor("local=a", gives_back=True)]),
        ("a block", [OVER, OVER, OK], ["blocked=a", "local=a"]),
        ("reports and others", [OK] * 5, ["report=a", "report=b", "report=c", "local=b"]),
    ]:
        def first_call():
            server = fleet.server(f"first-{what}".replace(" ", "-"), OUTAGE + store)
            server.call("away", "allow=before")
            redis.send_signal(signal.SIGSTOP)
            try:
                return codes(server.call("away", *asked, timeout=IN_TIME))
            except grpc.RpcError as error:
                return error.code().name
            finally:
                server.process.kill()
                redis.send_signal(signal.SIGCONT)

        # The answer comes a few milliseconds before the caller leaves: a busy machine may be late.
        answers = (first_call() for _ in range(3))
        in_time = next((one for one in answers if one != "DEADLINE_EXCEEDED"), None)
        check(f"the first call without Redis in time: {what}", expected, in_time)


def found(fleet):
    """Each finding about calls comes with the call that causes it, unless `silence` names it."""
    here = TOP.replace("[decide]", '[decide]\nfrom = ["127.0.0.1"]') + RULES
    elsewhere = TOP.replace("[decide]", '[decide]\nfrom = ["10.0.0.0/8"]') + RULES
    limit = descriptor("more=1", limit=(5, 3))
    causes = [
        ("decide-unmatched", here, lambda server: server.call("shop", "other=1")),
        ("decide-overrides", here, lambda server: server.call("shop", limit)),
        ("decide-report", here, lambda server: server.call("shop", descriptor("more=1", hits=10))),
        ("decide-from", elsewhere, lambda server: server.error(request("shop", "free=1"))),
    ]
    silent = []
    for finding, config, cause in causes:
        server = fleet.server(finding, config)
        silent.append(fleet.server(
            f"{finding}-silent", config + f'[log]\nsilence = ["{finding}"]\n'))
        if config == here:
            # A denied call without units of its own is no report.
            server.call("shop", "more=full", "blocked=1", "free=1")
        check(f"{finding} is not found at the start", [], server.findings())
        cause(silent[-1])
        cause(server)
        until(f"{finding} is found", [finding], server.findings)
        server.end()
    # The admin looks at the counters each second.
    time.sleep(1)
    for server in silent:
        check(f"{server.name} finds nothing", [], server.findings())
        server.end()


def networks(fleet):
    config = TOP.replace("[decide]", '[decide]\nfrom = ["10.0.0.0/8"]') + RULES
    server = fleet.server("networks", config)
    check("outside `from`", "PERMISSION_DENIED", server.error(request("shop", "free=1")))
    check("outside `from`, over HTTP", 403, server.json({})[0])
    check("outside `from`, health", "PERMISSION_DENIED", server.serving())
    check("outside `from`, of a gRPC client", 403, server.http(
        "GET", "/auth", {"Content-Type": "application/grpc"})[0])
    server.end()


def certificates(directory):
    """An authority, and what it has signed for the server and for a client; another's client."""
    run = lambda *words: subprocess.run(["openssl", *words], cwd=directory, check=True,
                                        capture_output=True)
    key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    for ca in ("ca", "stranger"):
        run("req", "-x509", *key, "-days", "2", "-subj", f"/CN={ca}", "-keyout", f"{ca}.key",
            "-out", f"{ca}.pem")
    (directory / "names").write_text("subjectAltName=DNS:localhost,IP:127.0.0.1\n")
    for name, ca in (("server", "ca"), ("client", "ca"), ("forged", "stranger")):
        run("req", *key, "-subj", f"/CN={name}", "-keyout", f"{name}.key", "-out", f"{name}.csr")
        run("x509", "-req", "-in", f"{name}.csr", "-CA", f"{ca}.pem", "-CAkey", f"{ca}.key",
            "-days", "2", "-extfile", "names", "-out", f"{name}.pem")


def tls(fleet):
    here = fleet.directory
    certificates(here)
    config = TOP + RULES + f"""
[decide.tls]
cert = "{here}/server.pem"
key  = "{here}/server.key"
client_ca = "{here}/ca.pem"
"""
    server = fleet.server("tls", config, is_plain=False)
    read = lambda name: pathlib.Path(here / name).read_bytes()

    def asked_by(*client):
        files = [read(f"{client[0]}.key"), read(f"{client[0]}.pem")] if client else []
        credentials = grpc.ssl_channel_credentials(read("ca.pem"), *files)
        server.use(grpc.secure_channel(f"localhost:{server.port}", credentials))
        return server.error(request("shop", "free=1"), timeout=5)

    check("TLS: no certificate", "UNAVAILABLE", asked_by())
    check("TLS: a certificate of another authority", "UNAVAILABLE", asked_by("forged"))
    check("TLS: the right certificate", "no error", asked_by("client"))
    check("TLS: health", "SERVING", server.serving())
    server.use(grpc.insecure_channel(f"127.0.0.1:{server.port}"))
    check("TLS: no plain text", "INTERNAL", server.error(request("shop", "free=1"), timeout=5))
    server.end()


def main(fleet, store):
    server = fleet.server("wire", TOP + RULES)
    answers(server)
    errors(server)
    health(server)
    networks(fleet)
    found(fleet)
    tls(fleet)
    first_calls(fleet)
    outage(fleet, "Redis is dead", signal.SIGKILL)
    outage(fleet, "Redis is frozen", signal.SIGSTOP)
