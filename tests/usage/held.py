"""Reserves while they are held: their gauge, what an answer leaves out, and limits on trial whose
decisions come after the answer."""

import signal
import threading
import time
import urllib.error

from calls import check, on_both_stores, until
from model import Plan

CONFIG = """
listen = "127.0.0.1:{port}"
admin  = "127.0.0.1:{admin}"

[log]
format = "json"
access = "{access}"
sample_allowed = 1.0
decisions = "{access}.decisions"

[limit.tokens]
rate   = ["100_000/d", "50_000/h"]
key    = "header:x-key"
counts = "tokens"

[limit.small]
rate   = "300/d"
key    = "header:x-key"
counts = "tokens"

[limit.tried]
rate   = "100_000/d"
key    = "header:x-key"
counts = "tokens"
shadow = true

[usage.drained]
format = "openai"
abort  = "drain"

""" + "".join(f"""[[route]]
name      = "{name}"
path      = "/{name}/*"
upstream  = "{{model}}"
limits    = ["{limit}"]
usage     = "{usage}"
refund    = ["5xx"]

""" for name, limit, usage in [
    ("tokens", "tokens", "openai"), ("drained", "tokens", "drained"),
    ("small", "small", "openai"), ("tried", "tried", "openai")])

BODY = '{"model":"small","max_tokens":100}'
# Input is 34 bytes, three for a token.
RESERVE, SAID = 112, 33
USAGE = b'{"usage":{"prompt_tokens":11,"completion_tokens":22}}'
SSE = "text/event-stream"
EVENT = b'data: {"choices":[{"delta":{"content":"a"}}]}\n\n'
LAST = b"data: " + USAGE + b"\n\n"
GAUGE = 'tidegate_usage_reserved_units{limit="tokens"}'


class Held(Plan):
    """A stream that goes on when the test says so."""

    def __init__(self, last=(LAST,), **options):
        super().__init__([], SSE, **options)
        self.end, self.last = threading.Event(), last

    @property
    def pieces(self):
        yield EVENT
        self.end.wait(60)
        yield from self.last

    @pieces.setter
    def pieces(self, _):
        pass


def gauge(server):
    """Every end of a call takes its units back once."""
    name = server.name

    def held():
        try:
            return server.metrics()[GAUGE]
        except urllib.error.HTTPError as error:
            # The workers may not have begun.
            return error.code

    def begin(route, plan):
        headers, plan = server.fleet.model.plan(plan)
        return plan, *server.begin(f"/{route}/v1", BODY, {**headers, "x-key": "held"})

    until(f"{name}: no units are reserved at first", 0, held)
    calls = [begin("tokens", Held()) for _ in range(3)]
    check(f"{name}: three calls reserve theirs, once for both rates", 3 * RESERVE, held())
    server.signal(signal.SIGHUP)
    calls.append(begin("tokens", Held(last=(LAST,), is_cut=True)))
    until(f"{name}: a reload keeps them", 4 * RESERVE, held)
    for left, (plan, connection, answer) in zip((3, 2), calls):
        plan.end.set()
        answer.read()
        connection.close()
        until(f"{name}: an answer that ends takes them back", left * RESERVE, held)
    plan, connection, answer = calls[2]
    answer.close()
    connection.close()
    until(f"{name}: a client that leaves takes them back", RESERVE, held)
    plan.end.set()
    calls[3][0].end.set()
    until(f"{name}: so does a server that leaves", 0, held)
    for status in (500, 404):
        headers, _ = server.fleet.model.plan(Plan([USAGE], status=status))
        server.post("/tokens/v1", BODY, {**headers, "x-key": "failed"})
        until(f"{name}: so does an answer of {status}", 0, held)
    plan, connection, answer = begin("drained", Held())
    answer.read1(1)
    answer.close()
    connection.close()
    time.sleep(0.3)
    check(f"{name}: an answer that is drained keeps them", RESERVE, held())
    plan.end.set()
    until(f"{name}: until its end", 0, held)
    check(f"{name}: a denied call reserves nothing", 429, server.post(
        "/tokens/v1", '{"max_tokens":200000}', {"x-key": "never"}).status)
    check(f"{name}: and changes no gauge", 0, held())


def partly(server):
    """A guess that is lowered to a small limit is never charged in full."""
    name = server.name
    for key, usage, units, reserved in [
        ("input", b'{"prompt_tokens":3}', 300, 300), ("output", b'{"completion_tokens":4}', 5, 300),
        ("none", b"{}", 300, 300), ("much", b'{"prompt_tokens":500}', 500, 300),
    ]:
        path = f"/small/{key}"
        headers, _ = server.fleet.model.plan(Plan([b'{"usage":' + usage + b"}"]))
        server.post(path, "{}", {**headers, "x-key": key})
        until(f"{name}: an answer that says {usage!r}", units, lambda: server.count("small", key))
        logged = lambda: [(line["usage"]["reserved"], line["usage"]["charged"])
                          for line in server.logged(path)]
        until(f"{name}: and is logged so", [(reserved, units)], logged)
    decisions = server.access.with_name(server.access.name + ".decisions")
    found = lambda: '"model":"small","reserved":112,"items":[["tokens' in decisions.read_text()
    until(f"{name}: the decision log has the model and the reserve", True, found)


def tried(server, process):
    """The decision of a limit on trial comes when the answer has ended."""
    def call(key, plan):
        headers, _ = server.fleet.model.plan(plan)
        process.send_signal(signal.SIGSTOP)
        # Each worker asks Redis twice a second for what proxies share. So the decision is not even
        # sent when the answer ends.
        time.sleep(0.6)
        found = server.post("/tried/v1", BODY, {**headers, "x-key": key})
        time.sleep(0.2)
        process.send_signal(signal.SIGCONT)
        return found.status

    headers, _ = server.fleet.model.plan(Plan([USAGE]))
    server.post("/tried/v1", BODY, {**headers, "x-key": "warm"})
    for key, plan, units in [
        ("said", Plan([USAGE]), SAID), ("silent", Plan([b"{}"]), RESERVE),
        ("more", Plan([USAGE.replace(b"22", b"2222")]), 2233),
        ("failed", Plan([USAGE], status=500), 0),
    ]:
        check(f"late trial: {key}: nothing waits for Redis", plan.status, call(key, plan))
        until(f"late trial: {key}: is settled when it has decided", units,
              lambda: server.count("tried", key))
        time.sleep(0.2)
        check(f"late trial: {key}: once", units, server.count("tried", key))


def main(fleet, name, store):
    server = fleet.server(name, CONFIG + store)
    gauge(server)
    partly(server)
    if store:
        process, own = fleet.redis()
        tried(fleet.server("trial", CONFIG + own), process)


if __name__ == "__main__":
    on_both_stores(main)
