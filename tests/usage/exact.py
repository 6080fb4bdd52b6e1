"""Charged is what the server says, call for call: six dialects, streamed and whole, cut anywhere,
compressed or not."""

import concurrent.futures
import gzip
import itertools
import random
import threading
import zlib

import dialects
from calls import Failed, check, ok, on_both_stores, until
from dialects import DIALECTS, Tokens
from model import Plan

LIMITS = ["tokens", "input", "output", "costs", "money"]
ROUTES = ["openai", "anthropic", "gemini", "ollama", "bedrock", "own"]
# Millionths, as in the configuration.
WEIGHTS = dict(input=1_000_000, cached=100_000, written=1_250_000, output=4_000_000)
PRICES = {
    "gpt-5": dict(input=1_250_000, cached=125_000, written=1_250_000, output=10_000_000),
    "own": dict(input=2_000_000, cached=2_000_000, written=2_000_000, output=3_500_000),
    "claude": dict(input=3_000_000, cached=300_000, written=3_750_000, output=15_000_000),
    "*": dict(input=5_000_000, cached=5_000_000, written=5_000_000, output=20_000_000),
}

TOP = """
listen = "127.0.0.1:{port}"
admin  = "127.0.0.1:{admin}"

[log]
format = "json"
access = "{access}"
sample_allowed = 1.0

[prices]
"gpt-5*" = { input = 1.25, cached = 0.125, output = 10 }
"own-*"  = { input = 2, output = 3.5 }
"claude" = { input = 3, cached = 0.3, cache_write = 3.75, output = 15 }
"*"      = { input = 5, output = 20 }

""" + "".join(f"""[limit.{name}]
rate   = "4_000_000_000/d"
key    = "header:x-key"
counts = "{name}"

""" for name in LIMITS)

PATHS = """model  = "name"
input  = "stats.tokens_in"
output = "stats.tokens_out"
"""


def usage(name, more=""):
    kind, paths = ("json", PATHS) if name == "own" else (name, "")
    return f"""[usage.{name}]
format  = "{kind}"
weights = {{ input = 1, cached = 0.1, cache_write = 1.25, output = 4 }}
{paths}{more}
"""


CONFIG = TOP + "".join(usage(name) for name in ROUTES) + "".join(f"""[[route]]
name     = "{name}"
path     = "/{name}/*"
upstream = "{{model}}"
limits   = {LIMITS}
usage    = "{name}"
refund   = ["4xx", "5xx"]

""" for name in ROUTES)


def sum_of(tokens, weights):
    plain = tokens.input - tokens.cached - tokens.written
    parts = [(plain, "input"), (tokens.cached, "cached"), (tokens.written, "written"),
             (tokens.output, "output")]
    return -(-sum(count * weights[name] for count, name in parts) // 1_000_000)


# Bedrock names its model in the path alone.
NAMES = {"openai": "gpt-5", "own": "own", "bedrock": "claude"}


def prices_of(dialect):
    return PRICES[NAMES.get(dialect.name, "*")]


def units(dialect, tokens):
    """What each of LIMITS charges."""
    return [tokens.input + tokens.output, tokens.input, tokens.output, sum_of(tokens, WEIGHTS),
            sum_of(tokens, prices_of(dialect))]


def draw(dialect, turn):
    """Tokens of an answer."""
    input_ = turn.choice([1, 17, turn.randrange(1, 300), turn.randrange(1, 1_000_000)])
    output = turn.choice([0, 1, turn.randrange(300), turn.randrange(1_000_000)])
    cached = turn.randrange(input_ + 1) if dialect.caches and turn.random() < 0.7 else 0
    written = turn.randrange(input_ - cached + 1) if dialect.writes and turn.random() < 0.5 else 0
    return Tokens(input_, output, cached, written)


def cut(body, how, turn):
    if how == "whole":
        return [body]
    if how == "bytes":
        return [body[at:at + 1] for at in range(len(body))]
    pieces, at = [], 0
    while at < len(body):
        size = turn.choice([1, 2, turn.randrange(1, 40), turn.randrange(1, 900)])
        pieces.append(body[at:at + size])
        at += size
    return pieces


def encode(body, encoding, turn):
    """The body in an encoding, flushed in places of no meaning."""
    if encoding == "identity":
        return body
    packer = zlib.compressobj(wbits=31 if encoding == "gzip" else 15)
    packed = b""
    for piece in cut(body, "random", turn):
        packed += packer.compress(piece) + packer.flush(zlib.Z_SYNC_FLUSH)
    packed += packer.flush()
    if encoding == "gzip" and turn.random() < 0.3:
        # Several members are one text.
        half = len(body) // 2
        packed = gzip.compress(body[:half]) + gzip.compress(body[half:])
    return packed


def answer(dialect, streamed, end, encoding, how, turn):
    """A plan, and its tokens."""
    tokens = draw(dialect, turn)
    if streamed:
        body = dialects.framed(dialect, dialect.stream(tokens), end, blank=turn.random() < 0.7)
        kind = dialect.kind
        if kind == "text/event-stream" and turn.random() < 0.2:
            body = b"\xef\xbb\xbf" + body
    else:
        body, kind = dialect.whole(tokens)[0].encode(), "application/json; charset=utf-8"
    if turn.random() < 0.2:
        # Names may be escaped too.
        body = body.replace(b"usage\":", b"us\\u0061ge\":") if dialect.kind != \
            dialects.EVENT_STREAM or not streamed else body
    body = encode(body, encoding, turn)
    headers = [("content-encoding", encoding)] if encoding != "identity" else []
    framing = turn.choice(["chunked", "length", "close"] if how != "bytes" else ["chunked"])
    return Plan(cut(body, how, turn), kind, headers=headers, framing=framing), tokens


def cases():
    for number, dialect in enumerate(DIALECTS):
        for encoding in ("identity", "gzip", "deflate"):
            ends = ["\n", "\r", "\r\n"] if dialect.kind == "text/event-stream" else ["\n", "\r\n"]
            for end in ends:
                yield number, True, end, encoding
            yield number, False, "\n", encoding


class Caller:
    """Calls from several threads, each with a connection of its own."""

    def __init__(self, server):
        self.server, self.own = server, threading.local()

    def call(self, path, plan, key, encoding):
        header, plan = self.server.fleet.model.plan(plan)
        headers = {**header, "x-key": key, "accept-encoding": encoding,
                   "content-type": "application/json"}
        # Where the path names the model, a name in the body says nothing.
        body = '{"model":"gpt-5-mini","max_tokens":50,"messages":[]}'
        if not hasattr(self.own, "connection"):
            self.own.connection = self.server.connect()
        found = self.server.post(path, body, headers, self.own.connection)
        if (found.status, found.body) != (200, plan.body):
            raise Failed(f"{path} {key}: {found.status}, not the bytes that were sent")
        if (came := plan.calls[0].headers.get("accept-encoding")) != encoding:
            raise Failed(f"{path}: accept-encoding {came}")

    def run(self, number, case, turn):
        """All calls of one case; what they must have charged."""
        place, streamed, end, encoding = case
        dialect, expected = DIALECTS[place], [0] * len(LIMITS)
        for how in ["bytes"] + ["random"] * 9 + ["whole"] * 6:
            plan, tokens = answer(dialect, streamed, end, encoding, how, turn)
            self.call(dialect.path, plan, f"case-{number}", encoding)
            expected = [sum_ + one for sum_, one in zip(expected, units(dialect, tokens))]
        return expected


def counted(server):
    """Thousands of calls."""
    caller, listed = Caller(server), list(cases())
    seeds = [random.Random(f"tidegate {number}") for number in range(len(listed))]
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        charged = list(pool.map(caller.run, itertools.count(), listed, seeds))
    for number, (case, expected) in enumerate(zip(listed, charged)):
        dialect = DIALECTS[case[0]]
        until(f"{server.name}: charged is said: {dialect.path} streamed={case[1]} "
              f"end={case[2]!r} {case[3]}", expected,
              lambda: server.counts(LIMITS, f"case-{number}"))
    check(f"{server.name}: all answers were exact", [{"exact"}] * len(ROUTES),
          [set(server.outcomes(name)) for name in ROUTES])
    ok(f"{server.name}: {16 * len(listed)} calls")


def main(fleet, name, store):
    counted(fleet.server(name, CONFIG + store))


if __name__ == "__main__":
    on_both_stores(main)
