"""Envoy's external authorization over gRPC, and forward-auth for clients that speak gRPC; and one
budget through all doors at once."""

import collections
import concurrent.futures
import json
import signal
import subprocess

from envoy.service.auth.v3 import external_auth_pb2

from calls import OK, OVER, check, codes, descriptor, until, word

CHECK = "/envoy.service.auth.v3.Authorization/Check"
GRPC = ("content-type", "application/grpc")

CONFIG = """
listen = []
admin  = "127.0.0.1:{admin}"
trusted_proxies = ["10.9.9.9"]

[decide]
listen = "127.0.0.1:{port}"
max_message = "4KiB"

[log]
format = "json"
access = "{access}"
sample_allowed = 1.0

[limit.login]
rate = "2/h"
key  = "ip"

[limit.user]
rate = "2/h"
key  = "header:x-user"

[limit.strict]
rate = "2/h"
key  = "ip"
on_error = "deny"

[[route]]
name   = "signing in"
path   = "/login"
limits = ["login"]

[[route]]
path   = "/user"
limits = ["user"]

[[route]]
path   = "/strict"
limits = ["strict"]

[[descriptor]]
domain  = "shop"
entries = ["remote_address"]
limits  = ["login"]
"""


def question(path="/login", source="192.0.2.1", **more):
    """A client's request as Envoy describes it; `headers` by name."""
    message = external_auth_pb2.CheckRequest()
    if source:
        message.attributes.source.address.socket_address.address = source
    http = message.attributes.request.http
    http.method, http.path, http.host, http.scheme = "POST", path, "shop.test", "https"
    names = {":path": path, ":method": "POST"} | more.get("headers", {})
    if more.get("is_raw"):
        for name, value in names.items():
            http.header_map.headers.add(key=name, raw_value=value.encode())
    else:
        http.headers.update(names)
    return message


def options(added):
    return {one.header.key: one.header.value for one in added}


class Asker:
    def __init__(self, server):
        self.server = server

    def ask(self, *path, **more):
        return self.server.auth.Check(question(*path, **more), timeout=10)

    def status(self, *path, **more):
        """200, or the status of the denial."""
        answer = self.ask(*path, **more)
        if answer.HasField("ok_response"):
            return 200
        return answer.denied_response.status.code


def allowed_and_denied(server):
    name, asker = server.name, Asker(server)
    first, second, third = (asker.ask() for _ in range(3))
    check(f"{name}: allowed", [True, 0], [first.HasField("ok_response"), first.status.code])
    added = options(first.ok_response.response_headers_to_add)
    check(f"{name}: headers for the client", ["2", "1", False, False],
          [added["x-ratelimit-limit"], added["x-ratelimit-remaining"], "content-type" in added,
           "retry-after" in added])
    check(f"{name}: no headers for the upstream", 0, len(first.ok_response.headers))
    check(f"{name}: denied", [True, 7, 429],
          [third.HasField("denied_response"), third.status.code,
           third.denied_response.status.code])
    added = options(third.denied_response.headers)
    check(f"{name}: headers of the denial", ["0", "application/problem+json", True],
          [added["x-ratelimit-remaining"], added["content-type"],
           1 <= int(added["retry-after"]) <= 3600])
    check(f"{name}: body of the denial", 429, json.loads(third.denied_response.body)["status"])
    check(f"{name}: one path, however it is written", 429, asker.status("//login?next=1"))
    check(f"{name}: the same budget as a descriptor's", [OVER, OVER],
          server.codes("shop", "remote_address=192.0.2.1"))
    check(f"{name}: another path is free", 200, asker.status("/any"))
    # What a gRPC client would get from tidegate itself is HTTP 200.
    grpc_client = asker.ask(headers=dict([GRPC]))
    added = options(grpc_client.denied_response.headers)
    check(f"{name}: a gRPC client's request is denied by its status",
          [429, 7, "application/problem+json", False],
          [grpc_client.denied_response.status.code, grpc_client.status.code,
           added["content-type"], "grpc-status" in added])


def clients(server):
    name, asker = server.name, Asker(server)
    check(f"{name}: another client", [200, 200, 429],
          [asker.status(source="192.0.2.2") for _ in range(3)])
    forged = {"x-forwarded-for": "198.51.100.1", "x-real-ip": "198.51.100.1",
              "forwarded": "for=198.51.100.1", "x-envoy-external-address": "198.51.100.1"}
    check(f"{name}: forged addresses are not believed", 429,
          asker.status(source="192.0.2.2", headers=forged))
    trusted = lambda list: asker.status(source="10.9.9.9", headers={"x-forwarded-for": list})
    check(f"{name}: a trusted proxy is believed", [200, 200, 429, 200],
          [trusted(f"203.0.113.{n}") for n in (1, 1, 1, 2)])
    check(f"{name}: what its client adds is not", 429, trusted("8.8.8.8, 203.0.113.1"))
    check(f"{name}: IPv4 within IPv6 is the same client", 429,
          asker.status(source="::ffff:192.0.2.2"))
    user = lambda value, **more: asker.status("/user", headers={"x-user": value}, **more)
    check(f"{name}: a key of a header", [200, 200, 429, 200],
          [user("ann"), user("ann"), user("ann"), user("bob")])
    check(f"{name}: a raw header is the same", 429, user("ann", is_raw=True))
    check(f"{name}: a doubled key", 400, user("ann,eve"))
    check(f"{name}: a key with a list is charged to nobody", 200, user("bob"))


def unreadable(server):
    name, asker = server.name, Asker(server)
    check(f"{name}: no source", 400, asker.status(source=None))
    check(f"{name}: a source that is no address", 400, asker.status(source="somewhere"))
    check(f"{name}: a path that is none", 400, asker.status("login"))
    empty = server.auth.Check(external_auth_pb2.CheckRequest(), timeout=10)
    check(f"{name}: nothing is described", 400, empty.denied_response.status.code)
    check(f"{name}: too long", 413, asker.status(headers={"x-long": "x" * 5000}))
    try:
        server.raw(b"\xff\xff\xff", path=CHECK)
        code = "no error"
    except Exception as error:
        code = error.code().name
    check(f"{name}: garbage", "INVALID_ARGUMENT", code)


def counted(server):
    name, metrics = server.name, server.metrics()
    for code in ("ok", "over_limit", "error"):
        key = f'tidegate_decide_requests_total{{door="check",code="{code}"}}'
        check(f"{name}: {code} is counted", True, metrics[key] > 0)
    def logged():
        lines = map(json.loads, server.access.read_text().splitlines())
        found = [one for one in lines if one.get("door") == "check" and one["status"] == 429]
        return [found[0]["route"], found[0]["client"], found[0]["path"]] if found else None
    until(f"{name}: the access log", ["signing in", "192.0.2.1", "/login"], logged)


def described(client, path="/login", **more):
    return {"X-Forwarded-Method": "POST", "X-Forwarded-Uri": path, "X-Forwarded-Host": "shop.test",
            "X-Forwarded-For": client, "X-Forwarded-Proto": "https", **more}


def forward_auth(server):
    """The type of the described content says nothing of the question."""
    typed = {"Content-Type": "application/grpc", "TE": "trailers"}
    for path, denial in [("/auth", 429), ("/auth/nginx", 403)]:
        found = [server.http("GET", path, described(f"198.51.100.{denial % 256}", **typed))
                 for _ in range(3)]
        check(f"{path} of gRPC clients",
              [(200, "allow"), (200, "allow"), (denial, "deny")],
              [(status, headers["x-decision"]) for status, headers, _ in found])
        check(f"{path} says when", True, 1 <= int(found[2][1]["retry-after"]) <= 3600)
        check(f"{path} has no status of gRPC", None, found[2][1]["grpc-status"])
    for path, given, address in [
        ("/auth", described("198.51.100.7"), None),
        ("/auth/envoy/login", {"x-forwarded-for": "198.51.100.8"}, None),
    ]:
        found = [over_http2(server, path, given | {"content-type": "application/grpc"})
                 for _ in range(3)]
        check(f"{path} of gRPC clients over HTTP/2", ["200 allow", "200 allow", "429 deny"], found)
    check("/auth believes the last address", 429, server.http(
        "GET", "/auth", described("6.6.6.6, 198.51.100.7"))[0])


def over_http2(server, path, headers):
    lines = [word for name, value in headers.items() for word in ("-H", f"{name}: {value}")]
    answer = subprocess.run(
        ["curl", "-s", "-X", "POST", "--http2-prior-knowledge", *lines, "-o", "/dev/null", "-w",
         "%{http_code} %header{x-decision}", f"http://127.0.0.1:{server.port}{path}"],
        capture_output=True, text=True, timeout=20)
    return answer.stdout


def without_redis(fleet):
    redis, store = fleet.redis()
    server = fleet.server("check-without-redis", CONFIG + store)
    asker = Asker(server)
    check("Check with Redis", 200, asker.status("/strict"))
    redis.send_signal(signal.SIGSTOP)
    # Far below the timeout of the store.
    answer = server.auth.Check(question("/strict"), timeout=0.2)
    check("Check while Redis is frozen, in time", 503, answer.denied_response.status.code)
    redis.kill()
    redis.wait()
    answer = asker.ask("/strict")
    added = options(answer.denied_response.headers)
    check("Check without Redis, on_error deny", [503, True, True],
          [answer.denied_response.status.code, answer.status.code != 0,
           int(added["retry-after"]) >= 1])
    check("Check without Redis, of a gRPC client", 503,
          asker.status("/strict", headers=dict([GRPC])))
    check("Check without Redis, on_error local", [200, 200, 429],
          [asker.status() for _ in range(3)])
    check("/auth/envoy without Redis", "429 deny", over_http2(
        server, "/auth/envoy/strict", {"x-forwarded-for": "192.0.2.1"}))
    server.end()


TOGETHER = """
listen = []
admin  = "127.0.0.1:{admin}"

[decide]
listen = "127.0.0.1:{port}"

[limit.shared]
rate = "200/h"
key  = "ip"

[[route]]
path   = "/*"
limits = ["shared"]

[[descriptor]]
domain  = "shop"
entries = ["remote_address"]
limits  = ["shared"]
"""


def exactly(fleet, what, stores):
    """Sixteen threads ask at once through four doors: as many pass as the limit says."""
    servers = [fleet.server(f"{what}-{n}", TOGETHER + store) for n, store in enumerate(stores)]
    client = "192.0.2.1"
    call = {"domain": "shop", "descriptors": [
        {"entries": [{"key": "remote_address", "value": client}]}]}
    doors = [
        lambda server: server.codes("shop", f"remote_address={client}") == [OK, OK],
        lambda server: server.json(call)[0] == 200,
        lambda server: server.http("GET", "/auth", described(client))[0] == 200,
        lambda server: Asker(server).status("/any") == 200,
    ]

    def work(n):
        door, server = doors[n % 4], servers[n // 4 % len(servers)]
        return [door(server) for _ in range(25)]

    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        passed = collections.Counter(one for many in pool.map(work, range(16)) for one in many)
    check(f"{what}: four doors, one budget", {True: 200, False: 200}, dict(passed))
    for server in servers:
        server.end()


def main(fleet, store):
    for name, own in (("Check", ""), ("Check with Redis", store)):
        server = fleet.server(name.replace(" ", "-"), CONFIG + own)
        server.name = name
        for group in (allowed_and_denied, clients, unreadable, counted, forward_auth):
            group(server)
        server.end()
    without_redis(fleet)
    exactly(fleet, "one tidegate", [""])
    exactly(fleet, "two tidegates and a Redis", [store, store])
