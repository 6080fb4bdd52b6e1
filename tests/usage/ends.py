"""Answers that say nothing, clients that leave, and bytes that pass as they came."""

import gzip
import json
import random
import socket
import statistics
import time
import zlib

import brotli
import h2.connection
import h2.errors
import h2.events

from calls import Failed, check, ok, on_both_stores, until
from dialects import FORGED, message, text
from model import Plan

TOP = """
listen = "127.0.0.1:{port}"
admin  = "127.0.0.1:{admin}"

[server]
drain_timeout = "1s"

[log]
format = "json"
access = "{access}"
sample_allowed = 1.0

[limit.tokens]
rate   = "1_000_000/d"
key    = "header:x-key"
counts = "tokens"

[limit.cost]
rate   = "1_000_000/d"
key    = "header:x-key"

[[route]]
path     = "/settle-json"
upstream = "{model}"
limits   = ["cost"]
cost     = 5
settle   = "response-json:stats.units"

[[route]]
path     = "/settle-trailer"
upstream = "{model}"
limits   = ["cost"]
cost     = 5
settle   = "response-trailer:x-units"

"""


def routes(kind, more):
    return "".join(f"""[usage.{name}]
format = "{kind}"
{line}

[[route]]
name     = "{name}"
path     = "/{name}/*"
upstream = "{{model}}"
limits   = ["tokens"]
usage    = "{name}"
refund   = ["5xx"]

""" for name, line in more.items())


CONFIG = TOP + routes("openai", {
    "estimate": "", "watched": "", "prompt": 'missing = "prompt"',
    "observed": 'missing = "observed"',
    "aborted": 'abort = "observed"', "drain": 'abort = "drain"\ndrain = "1500ms"',
}) + routes("bedrock", {"aws": ""})

BODY = '{"max_tokens":100}'
INPUT, OUTPUT = 6, 100
USAGE = '"usage":{"prompt_tokens":11,"completion_tokens":22,"total_tokens":33}'
SAID = 33
TEXT = '{"choices":[{"index":0,"delta":{"content":"%s"},"finish_reason":null}]}'
EVENT = b"data: " + (TEXT % ("abc" * 5)).encode() + b"\n\n"
LAST = b'data: {"choices":[],' + USAGE.encode() + b"}\n\n"
DONE = b"data: [DONE]\n\n"
SSE = "text/event-stream"


def sse(*pieces, **options):
    return Plan(list(pieces), SSE, **options)


WHOLE = ('{"choices":[{"message":{"content":"' + "abc" * 5 + '"},"finish_reason":"stop"}]%s}')
plain = lambda more, **options: Plan([(WHOLE % more).encode()], **options)
encoded = lambda body, name: Plan([body], headers=[("content-encoding", name)])
SAYS = (WHOLE % f",{USAGE}").encode()
ERROR = b'data: {"error":{"message":"overloaded"}}\n\n'

# Answers that say no usage; the outcome, and the bytes of text that can be seen, if any.
MISSING = [
    ("no usage", lambda: plain(""), "missing", 15),
    ("null", lambda: plain(',"usage":null'), "missing", 15),
    ("no numbers", lambda: plain(',"usage":{"prompt_tokens":"11","completion_tokens":null}'),
     "missing", 15),
    ("negative", lambda: plain(',"usage":{"completion_tokens":-5}'), "missing", 15),
    ("in an array", lambda: plain(',"usage":[{"completion_tokens":5}]'), "missing", 15),
    ("nested too deep", lambda: plain(',"x":{"usage":{"completion_tokens":5}}'), "missing", 15),
    ("in a text", lambda: plain(f',"x":{text(FORGED)}'), "missing", 15),
    ("no end", lambda: Plan([SAYS[:-1]]), "missing", 15),
    ("no JSON", lambda: Plan([SAYS.replace(b'"stop"', b"stop")]), "missing", 15),
    ("a stream without usage", lambda: sse(EVENT, EVENT, DONE), "missing", 30),
    ("an error after 200", lambda: sse(EVENT, ERROR), "missing", 15),
    ("nothing", lambda: Plan([], framing="length"), "missing", 0),
    ("cut before the usage", lambda: sse(EVENT, EVENT, 0.02, is_cut=True), "missing", 30),
    ("cut in the usage", lambda: sse(EVENT, LAST[:-9], 0.02, is_cut=True), "missing", 15),
    ("too short", lambda: Plan([SAYS[:-30]], framing="length", length=len(SAYS), is_cut=True),
     "missing", 15),
    ("another type", lambda: Plan([SAYS], "text/plain"), "missing", None),
    ("no type", lambda: Plan([SAYS], None), "missing", None),
    ("br", lambda: encoded(brotli.compress(SAYS), "br"), "encoded", None),
    ("two encodings", lambda: encoded(gzip.compress(SAYS), "gzip, gzip"), "encoded", None),
    ("no gzip", lambda: encoded(SAYS, "gzip"), "encoded", None),
    ("half of a gzip", lambda: encoded(gzip.compress(SAYS)[:-20], "gzip"), "encoded", None),
    ("no deflate", lambda: encoded(b"\xff" + SAYS, "deflate"), "encoded", None),
]
# Input and output that a document has reported before it broke off: it costs at least as much.
SO_FAR = {"no end": (11, 22), "too short": (11, 0)}
# Answers that say it in odd ways.
EXACT = [
    ("cut behind the usage", lambda: sse(EVENT, LAST, 0.02, is_cut=True)),
    ("usage, then an error", lambda: sse(EVENT, LAST, ERROR)),
    ("every event has a sum", lambda: sse(*(
        (b'data: {"choices":[{"delta":{}}],"usage":{"prompt_tokens":11,"completion_tokens":%d}}\n\n'
         % number) for number in (1, 7, 22)), DONE)),
    ("then null", lambda: sse(LAST, b'data: {"choices":[],"usage":null}\n\n', DONE)),
    ("only a total", lambda: plain(',"usage":{"total_tokens":33}')),
    ("deflate", lambda: encoded(zlib.compress(SAYS), "deflate")),
    ("GZIP", lambda: encoded(gzip.compress(SAYS), "GZIP")),
    ("no blank line", lambda: sse(EVENT, LAST.rstrip())),
    ("early hints", lambda: plain(f",{USAGE}", before=b"HTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n"
                                  b"HTTP/1.1 102 Processing\r\n\r\n")),
    ("a redirect", lambda: plain(f",{USAGE}", status=307, headers=[("location", "/elsewhere")])),
    ("an error that says its usage", lambda: plain(f",{USAGE}", status=404)),
    ("trailers", lambda: plain(f",{USAGE}", trailers=[("x-units", "5")])),
]


class Keys:
    def __init__(self, server):
        self.server, self.count = server, 0

    def begin(self, path, plan):
        """Sends a call of its own key."""
        headers, plan = self.server.fleet.model.plan(plan)
        self.count += 1
        key = f"end-{self.count}"
        connection, answer = self.server.begin(path, BODY, {**headers, "x-key": key})
        return key, plan, connection, answer

    def whole(self, path, plan):
        key, plan, connection, answer = self.begin(path, plan)
        try:
            found = answer.read()
            if found != plan.body:
                raise Failed(f"{path}: not the bytes that were sent: {found!r}")
        except (OSError, Exception) as error:
            if isinstance(error, Failed) or not plan.is_cut:
                raise
        connection.close()
        return key

    def charged(self, what, units, key, limit="tokens"):
        until(f"{self.server.name}: {what}", units, lambda: self.server.count(limit, key))


def says_nothing(keys):
    server, seen = keys.server, {}
    for route in ("estimate", "prompt", "observed"):
        for what, plan, outcome, length in MISSING:
            output = {"estimate": OUTPUT, "prompt": 0,
                      "observed": OUTPUT if length is None else -(-length // 3)}[route]
            least = SO_FAR.get(what, (0, 0))
            # No more than what was reserved, unless more was reported.
            units = min(max(INPUT, least[0]) + max(output, least[1]), INPUT + OUTPUT)
            key = keys.whole(f"/{route}/v1", plan())
            keys.charged(f"{route}: {what}", units, key)
            seen.setdefault(route, []).append(outcome)
        expected = {name: seen[route].count(name) for name in ("missing", "encoded")}
        until(f"{server.name}: {route}: outcomes", expected, lambda: server.outcomes(route))
    for what, plan in EXACT:
        keys.charged(f"exact: {what}", SAID, keys.whole("/estimate/v1", plan()))
    keys.charged("refunded", 0, keys.whole("/estimate/v1", plain(f",{USAGE}", status=500)))
    broken = Plan([message("messageStart", "{}"), message("throttlingException", "{}", True)],
                  "application/vnd.amazon.eventstream")
    keys.charged("an exception in an event stream", INPUT + OUTPUT, keys.whole("/aws/m", broken))
    until(f"{server.name}: refunds are counted", 1, lambda: server.outcomes("estimate")["refunded"])


def read_event(answer):
    found = b""
    while not found.endswith(b"\n\n"):
        piece = answer.read1(1)
        if not piece:
            raise Failed(f"the stream ended: {found!r}")
        found += piece
    return found


def leaves(keys):
    """Clients that close their connection, and what their calls are logged as."""
    def leave(route, plan, events, what, units, outcome):
        path = f"/{route}/{keys.count}"
        key, plan, connection, answer = keys.begin(path, plan)
        for _ in range(events):
            read_event(answer)
        answer.close()
        connection.close()
        keys.charged(f"{route}: {what}", units, key)
        logged = lambda: [line["usage"]["outcome"] for line in keys.server.logged(path)]
        until(f"{keys.server.name}: {route}: {what}: is logged", [outcome], logged)
        return plan

    # The proxy believes within a second that a client has left, which may only have sent all.
    plan = leave("estimate", sse(EVENT, EVENT, 20.0, LAST, DONE), 2, "the client leaves",
                 INPUT + OUTPUT, "aborted")
    check(f"{keys.server.name}: the upstream is cut off", True, plan.left.wait(5))
    leave("estimate", sse(EVENT, LAST, 0.5, DONE), 2, "leaves behind the usage", SAID, "exact")
    leave("aborted", sse(EVENT, EVENT, EVENT, 20.0, LAST), 3, "the client leaves", INPUT + 15,
          "aborted")
    leave("aborted", sse(EVENT, LAST, 0.5, DONE), 2, "leaves behind the usage", SAID, "exact")
    plan = leave("drain", sse(*[EVENT, 0.1] * 8, LAST, DONE), 2, "the client leaves", SAID,
                 "drained")
    check(f"{keys.server.name}: the upstream was read to its end", False, plan.left.is_set())
    leave("drain", sse(EVENT, EVENT, 0.1, is_cut=True), 2, "the server leaves too",
          INPUT + OUTPUT, "missing")
    begun = time.monotonic()
    leave("drain", sse(*[EVENT, 0.1] * 100), 2, "the answer is too long", INPUT + OUTPUT, "aborted")
    if not 1 < time.monotonic() - begun < 6:
        raise Failed(f"drained for {time.monotonic() - begun} s")


def leaves_early(keys):
    """A client that leaves before the head of the answer."""
    path = f"/estimate/early-{keys.server.name}"
    headers, plan = keys.server.fleet.model.plan(plain(f",{USAGE}", head_wait=20))
    connection = keys.server.connect()
    connection.request("POST", path, BODY, {**headers, "x-key": "early"})
    until(f"{keys.server.name}: the reserve is charged", INPUT + OUTPUT,
          lambda: keys.server.count("tokens", "early"))
    connection.close()
    logged = lambda: [line["usage"]["outcome"] for line in keys.server.logged(path)]
    until(f"{keys.server.name}: a client that leaves before the answer is logged", ["aborted"],
          logged)
    keys.charged("and keeps the reserve", INPUT + OUTPUT, "early")


def leaves_http2(keys):
    """A client that resets a stream of HTTP/2, and keeps its connection."""
    with Http2(keys.server.port) as client:
        for route, units, outcome in [("estimate", INPUT + OUTPUT, "aborted"),
                                      ("drain", SAID, "drained")]:
            headers, plan = keys.server.fleet.model.plan(sse(*[EVENT, 0.1] * 10, LAST, DONE))
            key, path = f"http2-{route}", f"/{route}/http2"
            stream = client.ask(path, BODY, {**headers, "x-key": key})
            client.read(stream, len(EVENT))
            client.reset(stream)
            keys.charged(f"HTTP/2: {route}: the stream is reset", units, key)
            logged = lambda: [line["usage"]["outcome"] for line in keys.server.logged(path)]
            until(f"{keys.server.name}: HTTP/2: {route}: and logged", [outcome], logged)
            headers, plan = keys.server.fleet.model.plan(sse(EVENT, LAST, DONE))
            stream = client.ask(path, BODY, {**headers, "x-key": f"{key}-next"})
            check(f"{keys.server.name}: HTTP/2: the connection goes on", plan.body,
                  client.read(stream, len(plan.body)))
            keys.charged("HTTP/2: and is exact", SAID, f"{key}-next")


class Http2:
    """A client that can reset one stream; other clients only stop to read it."""

    def __init__(self, port):
        self.socket = socket.create_connection(("127.0.0.1", port), 20)
        self.wire = h2.connection.H2Connection()
        self.wire.initiate_connection()
        self.send()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.socket.close()

    def send(self):
        self.socket.sendall(self.wire.data_to_send())

    def ask(self, path, body, headers):
        stream = self.wire.get_next_available_stream_id()
        head = {":method": "POST", ":path": path, ":scheme": "http", ":authority": "h", **headers}
        self.wire.send_headers(stream, list(head.items()))
        self.wire.send_data(stream, body.encode(), end_stream=True)
        self.send()
        return stream

    def read(self, stream, length):
        found = b""
        while len(found) < length:
            for event in self.wire.receive_data(self.socket.recv(65_536)):
                if isinstance(event, h2.events.DataReceived) and event.stream_id == stream:
                    found += event.data
            self.send()
        return found

    def reset(self, stream):
        self.wire.reset_stream(stream, h2.errors.ErrorCodes.CANCEL)
        self.send()


def settles(keys):
    """`settle` by a member of the body, and by a trailer."""
    units = b'{"stats":{"units":%d}}'
    nd = lambda *pieces: Plan(list(pieces), "application/x-ndjson")
    for what, plan, cost in [
        ("a document", lambda: Plan([units % 42]), 42), ("less", lambda: Plan([units % 0]), 0),
        ("the last line", lambda: nd(units % 1 + b"\n", b"{}\n", units % 17, b"\n{}\n"), 17),
        ("the last event", lambda: sse(b"data: " + units % 1 + b"\n\n", b"data: " + units % 9), 9),
        ("gzip", lambda: encoded(gzip.compress(units % 33), "gzip"), 33),
        ("none", lambda: Plan([b"{}"]), 5),
        ("a text", lambda: Plan([b'{"stats":{"units":"9"}}']), 5),
        ("cut", lambda: sse(b"data: " + units % 1 + b"\n\n", 0.02, is_cut=True), 5),
    ]:
        keys.charged(f"settle by JSON: {what}", cost, keys.whole("/settle-json", plan()), "cost")
    for what, trailers, cost in [
        ("says", [("x-units", "42")], 42), ("less", [("x-units", "0")], 0), ("none", [], 5),
        ("no number", [("x-units", "many")], 5), ("twice", [("x-units", "1"), ("x-units", "2")], 5),
    ]:
        plan = Plan([b"hello"], trailers=trailers, headers=[("trailer", "x-units")])
        key = keys.whole("/settle-trailer", plan)
        keys.charged(f"settle by trailer: {what}", cost, key, "cost")


def passes(keys):
    """Every byte, and every gap."""
    server, turn = keys.server, random.Random(7)
    for sent, came in [("gzip, deflate, br, zstd", "gzip, deflate"), ("br", "identity"),
                       ("*", "identity"), (None, "identity"), ("gzip;q=0.1, br;q=1", "gzip;q=0.1")]:
        headers, plan = server.fleet.model.plan(plain(f",{USAGE}"))
        headers = {**headers, "x-key": "passes"}
        server.post("/estimate/v1", BODY, {**headers, **({"accept-encoding": sent} if sent else
                                                         {"accept-encoding": ""})})
        if sent:
            check(f"{server.name}: accept-encoding {sent}", came,
                  plan.calls[0].headers["accept-encoding"])
    noise = turn.randbytes(300_000)
    for what, plan in [("noise", Plan([noise])), ("noise as gzip", encoded(noise, "gzip")),
                       ("a large gzip", encoded(gzip.compress(noise), "gzip")),
                       ("noise as SSE", sse(noise)),
                       ("noise as an event stream",
                        Plan([noise], "application/vnd.amazon.eventstream"))]:
        keys.whole("/estimate/v1", plan)
        ok(f"{server.name}: passes as it came: {what}")
    # The machine of a test may pause for half a second, and ten events are late then. Events that
    # wait for the next one are 50 ms late each time.
    found = [lateness(server) for _ in range(3)]
    if all(statistics.median(late) > 8 or sorted(late)[-4] > 30 for late in found):
        raise Failed(f"events are late, ms: {found}")
    ok(f"{server.name}: events pass at once")


def lateness(server):
    """How late 30 events are, milliseconds."""
    stamps = [0.05 if number % 2 else None for number in range(60)]
    late = []
    headers, plan = server.fleet.model.plan(Stamped(stamps))
    connection, answer = server.begin("/estimate/v1", BODY, {**headers, "x-key": "gaps"})
    for _ in range(30):
        sent = json.loads(read_event(answer)[6:])["at"]
        late.append(1000 * (time.monotonic() - sent))
    connection.close()
    return late


class Stamped(Plan):
    """Events with the time at which they are sent."""

    def __init__(self, gaps):
        super().__init__([], SSE)
        self.gaps = gaps

    @property
    def pieces(self):
        for gap in self.gaps:
            yield gap or b"data: %b\n\n" % text({"at": time.monotonic()}).encode()

    @pieces.setter
    def pieces(self, _):
        pass


def watched(keys):
    """The metrics and the log of one route."""
    server = keys.server
    usage = (b'{"model":"gpt-5","usage":{"prompt_tokens":50,"completion_tokens":7,'
             b'"prompt_tokens_details":{"cached_tokens":20}}}')
    path, tokens = "/watched/v1", 'tidegate_usage_tokens_total{route="watched",class="%s"}'
    for plan in (Plan([usage]), Plan([usage]), Plan([b"{}"]), Plan([usage], status=503)):
        keys.whole(path, plan)
    found = lambda: [server.metrics()[tokens % name]
                     for name in ("input", "cached", "cache_write", "output")]
    until(f"{server.name}: tokens by class", [60, 40, 0, 14], found)
    check(f"{server.name}: settlements by outcome", {"exact": 2, "missing": 1, "refunded": 1},
          server.outcomes("watched"))
    check(f"{server.name}: the ratio of what was used", 2,
          server.metrics()['tidegate_usage_estimate_ratio_count{route="watched"}'])
    names = ("outcome", "model", "input", "cached", "output", "reserved", "charged")
    # Workers log by themselves.
    logged = lambda: sorted([line["usage"][name] for name in names] for line in server.logged(path))
    reserve = INPUT + OUTPUT
    exact = ["exact", "gpt-5", 50, 20, 7, reserve, 57]
    until(f"{server.name}: the access log", [
        exact, exact, ["missing", "", INPUT, 0, OUTPUT, reserve, reserve],
        ["refunded", "", 0, 0, 0, reserve, 0]], logged)
    texts = [text for line in server.access.read_text().splitlines() for text in (FORGED, "abcabc")
             if text in line]
    check(f"{server.name}: no text of an answer is logged", [], texts)


def main(fleet, name, store):
    keys = Keys(fleet.server(name, CONFIG + store))
    says_nothing(keys)
    leaves(keys)
    leaves_early(keys)
    leaves_http2(keys)
    settles(keys)
    passes(keys)
    watched(keys)


if __name__ == "__main__":
    on_both_stores(main)
