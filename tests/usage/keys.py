"""Keys and costs that the bodies of requests name, and how bodies are read before the decision."""

import json
import socket
import time

from calls import Failed, check, on_both_stores, until

CONFIG = """
listen = "127.0.0.1:{port}"
admin  = "127.0.0.1:{admin}"

[log]
format = "json"
access = "{access}"
sample_allowed = 1.0

[server]
workers      = 1
body_memory  = "1MiB"
body_timeout = "1s"

[limit.model]
rate   = "1000/d"
key    = ["header:x-key", "body:model"]
values = { "body:model" = ["gpt-5", "gpt-5-mini"] }

[limit.tool]
rate   = "1000/d"
key    = ["header:x-key", "mcp:tool"]
values = { "mcp:tool" = ["search", "fetch"] }

[limit.method]
rate   = "1000/d"
key    = ["header:x-key", "mcp:method"]
values = { "mcp:method" = ["tools/list", "tools/call"] }

[limit.operation]
rate   = "1000/d"
key    = ["header:x-key", "graphql:operation"]
values = { "graphql:operation" = ["Search", "Pay"] }

[limit.nested]
rate   = "1000/d"
key    = ["header:x-key", "body:user.plan"]
values = { "body:user.plan" = ["free", "12"] }

[limit.cost]
rate   = "1000/d"
key    = "header:x-key"

[limit.once]
rate   = "1/d"
key    = "header:x-key"
""" + "".join(f"""
[[route]]
name      = "{name}"
path      = "/{name}"
upstream  = "{{model}}"
limits    = ["{name}"]
{more}
""" for name, more in [
    ("model", 'body_read = "1KiB"'), ("tool", ""), ("method", ""), ("operation", ""),
    ("nested", ""), ("cost", 'cost = "body:units"')]) + """
[[route]]
path      = "/large"
upstream  = "{model}"
limits    = ["model"]
body_read = "512KiB"

[[route]]
path      = "/once"
upstream  = "{model}"
limits    = ["once", "model"]
"""

CALL = ('{"jsonrpc":"2.0","id":1,"method":"tools/call","params":'
        '{"name":"%s","arguments":{"name":"x"}}}')
QUERY = lambda query, **more: json.dumps({"query": query, **more})

# The route, a body, and the value that its key has; `None` if it is missing, 400 if it is refused.
KEYS = [
    ("model", '{"model":"gpt-5"}', "gpt-5"),
    ("model", '{"messages":[{"model":"gpt-5-mini"}],"model":"gpt-5"}', "gpt-5"),
    ("model", '{"m\\u006fdel":"gpt\\u002d5"}', "gpt-5"),
    ("model", '{"model":"gpt-4"}', "other"),
    ("model", '{"model":"gpt-5 "}', "other"),
    ("model", '{"model":"GPT-5"}', "other"),
    ("model", '{"model":"gpt-5","model":"gpt-5"}', "gpt-5"),
    ("model", '{"model":"gpt-5","model":"gpt-5-mini"}', 400),
    ("model", '{"model":"gpt-5","Model":"gpt-5-mini"}', 400),
    ("model", '{"model":"gpt-5","model":null}', 400),
    ("model", '{"model":null}', None),
    ("model", '{"model":{}}', None),
    ("model", "{}", None),
    ("model", "", None),
    ("model", "model=gpt-5", None),
    ("model", '{"model":"gpt-5"', None),
    ("model", '{"a":"' + "x" * 1100 + '","model":"gpt-5"}', None),
    ("model", '{"model":"gpt-5","a":"' + "x" * 1100 + '"}', None),
    ("tool", CALL % "search", "search"),
    ("tool", CALL % "fetch", "fetch"),
    ("tool", CALL % "delete", "other"),
    ("tool", '{"method":"tools/list","params":{"name":"search"}}', None),
    ("tool", f'[{CALL % "search"}]', "search"),
    ("tool", f'[{CALL % "search"},{CALL % "search"}]', 400),
    ("tool", f'[{CALL % "search"},{CALL % "fetch"}]', 400),
    ("method", CALL % "search", "tools/call"),
    ("method", '{"method":"tools/list"}', "tools/list"),
    ("method", '{"method":"ping"}', "other"),
    ("operation", QUERY("query Search { a }"), "Search"),
    ("operation", QUERY("mutation Pay($a: Int = 1) { a }"), "Pay"),
    ("operation", QUERY("{ a }"), None),
    ("operation", QUERY("# query Pay { a }\n query Search { b }"), "Search"),
    ("operation", QUERY('query Search { a(b: "} query Pay {") }'), "Search"),
    ("operation", QUERY("query Search { a } query Pay { b }", operationName="Pay"), "Pay"),
    ("operation", QUERY("query Search { a } query Pay { b }"), None),
    ("operation", QUERY("query Delete { a }"), "other"),
    ("nested", '{"user":{"plan":"free"}}', "free"),
    ("nested", '{"user":{"plan":12.0}}', "12"),
    ("nested", '{"user":{"plan":"paid"},"plan":"free"}', "other"),
    ("nested", '{"user.plan":"free"}', None),
]


def keyed(server):
    """Each body has a key of its own, whose counts tell where it was counted."""
    for number, (route, body, value) in enumerate(KEYS):
        headers, plan = server.fleet.model.plan(b"{}")
        own = f"key-{number}"
        found = server.post(f"/{route}", body, {**headers, "x-key": own})
        what = f"{server.name}: {route} {body[:70]!r}"
        if value == 400:
            check(f"{what}: is refused", (400, 0), (found.status, len(plan.calls)))
            continue
        if found.status != 200 or plan.calls[0].body != body.encode():
            raise Failed(f"{what}: {found.status}")
        part = {"model": "body:model", "tool": "mcp:tool", "method": "mcp:method",
                "operation": "graphql:operation", "nested": "body:user.plan"}[route]
        used = found.headers["x-ratelimit-remaining"]
        if used != "999":
            raise Failed(f"{what}: remaining {used}")
        if value is not None:
            check(f"{what}: counts as {value}", 1, used_by(server, route, own, part, value))


def used_by(server, limit, key, part, value):
    return server.count(limit, f"header:x-key={key}&{part}={value}")


def escapes(server):
    """Padding and missing members share one key, so nobody gets a second budget."""
    bodies = ["{}", "", "no json", '{"model":null}', '{"a":"' + "x" * 2000 + '"}']
    left = [server.post("/model", body, {"x-key": "escapes"}).headers["x-ratelimit-remaining"]
            for body in bodies]
    check(f"{server.name}: bodies without the member share a key",
          ["999", "998", "997", "996", "995"], left)
    left = [server.post("/model", json.dumps({"model": name}), {"x-key": "invents"})
            .headers["x-ratelimit-remaining"] for name in ("a", "b", "c")]
    check(f"{server.name}: invented values share a key", ["999", "998", "997"], left)


def costs(server):
    for body, cost in [('{"units":7}', 7), ('{"units":0}', 0), ("{}", 1), ('{"units":"x"}', 1),
                       ('{"units":-5}', 1), ('{"units":1.5}', 2), ('{"units":"9"}', 9),
                       ("none", 1)]:
        key = f"cost-{body}"
        found = server.post("/cost", body, {"x-key": key})
        check(f"{server.name}: cost of {body}", (200, str(1000 - cost)),
              (found.status, found.headers["x-ratelimit-remaining"]))
    found = server.post("/cost", '{"units":1001}', {"x-key": "much"})
    check(f"{server.name}: a cost that never fits", (429, None),
          (found.status, found.headers.get("retry-after")))


def raw(server, head, *pieces, gap=0.05):
    """A request written as it stands; what comes back until the end."""
    with socket.create_connection(("127.0.0.1", server.port), 20) as connection:
        connection.sendall(head.replace("\n", "\r\n").encode())
        for piece in pieces:
            time.sleep(gap)
            connection.sendall(piece)
        found = b""
        while data := connection.recv(65_536):
            found += data
        return found.decode("latin1")


HEAD = "POST {path} HTTP/1.1\nhost: h\nconnection: close\nx-key: {key}\n{more}\n"


def wires(server):
    """Slow, chunked and announced bodies."""
    head = lambda key, more, path="/model": HEAD.format(key=key, more=more, path=path)
    body = b'{"model":"gpt-5"}'
    count = lambda key: used_by(server, "model", key, "body:model", "gpt-5")
    found = raw(server, head("slow", f"content-length: {len(body)}\n"),
                *[body[at:at + 1] for at in range(len(body))], gap=0.005)
    check(f"{server.name}: a body byte by byte", ("HTTP/1.1 200", 1), (found[:12], count("slow")))
    found = raw(server, head("chunked", "transfer-encoding: chunked\n"),
                b"6\r\n" + body[:6] + b"\r\n", b"b\r\n" + body[6:] + b"\r\n0\r\n\r\n")
    check(f"{server.name}: a chunked body", ("HTTP/1.1 200", 1), (found[:12], count("chunked")))
    expects = f"content-length: {len(body)}\nexpect: 100-continue\n"
    found = raw(server, head("expects", expects), body)
    check(f"{server.name}: 100 Continue, then the answer", (True, True, 1),
          (found.startswith("HTTP/1.1 100"), "HTTP/1.1 200" in found, count("expects")))
    found = raw(server, head("late", "content-length: 17\n"), body[:5])[:12]
    check(f"{server.name}: body_timeout", "HTTP/1.1 408", found)
    check(f"{server.name}: a body that never ends charges nothing", 0, count("late"))


def memory(server):
    """All bodies that are read at once have a bound."""
    head = HEAD.format(key="memory", path="/large", more=f"content-length: {600 << 10}\n")
    held = []
    for _ in range(2):
        connection = socket.create_connection(("127.0.0.1", server.port), 20)
        connection.sendall(head.replace("\n", "\r\n").encode() + b'{"a":"')
        held.append(connection)
    time.sleep(0.2)
    body = b'{"model":"gpt-5","a":"' + b"x" * (600 << 10) + b'"}'
    found = server.post("/large", body, {"x-key": "memory"})
    check(f"{server.name}: body_memory is used up", (503, "1"),
          (found.status, found.headers.get("retry-after")))
    found = server.post("/model", '{"model":"gpt-5"}', {"x-key": "memory-small"})
    check(f"{server.name}: so is it for small ones", 503, found.status)
    for connection in held:
        connection.close()
    until(f"{server.name}: and is free again", 200,
          lambda: server.post("/large", body, {"x-key": "memory"}).status)


def early(server):
    """A client that is denied anyway."""
    server.post("/once", "{}", {"x-key": "early"})
    found = raw(server, HEAD.format(key="early", path="/once", more="content-length: 2\n"), b"{}")
    check(f"{server.name}: a denial with a body", "HTTP/1.1 429", found[:12])


def main(fleet, name, store):
    server = fleet.server(name, CONFIG + store)
    keyed(server)
    escapes(server)
    costs(server)
    wires(server)
    memory(server)
    early(server)


if __name__ == "__main__":
    on_both_stores(main)
