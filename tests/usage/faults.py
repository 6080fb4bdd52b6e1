"""A call is settled at most once, and never lost: retries, reloads, upgrades, ends of processes,
and a Redis that is frozen or gone."""

import concurrent.futures
import os
import pathlib
import signal
import subprocess
import threading
import time

from calls import Failed, check, on_both_stores, until
from model import Plan

BODY = '{"max_tokens":94}'
RESERVE, SAID = 100, 40
START = b'data: {"choices":[{"delta":{"content":"a"}}]}\n\n'
LARGE = b'data: {"choices":[],"usage":{"prompt_tokens":6,"completion_tokens":5000}}\n\n'
LAST = b'data: {"choices":[],"usage":{"prompt_tokens":6,"completion_tokens":34}}\n\n'

CONFIG = """
listen = "127.0.0.1:{port}"
admin  = "127.0.0.1:{admin}"

[server]
pid_file         = "{name}.pid"
drain_timeout    = "3s"
handover_timeout = "20s"

[log]
format = "json"
access = "{access}"
sample_allowed = 1.0

[limit.tokens]
rate   = "10_000/d"
key    = "header:x-key"
counts = "tokens"

[limit.trial]
rate   = "10_000/d"
key    = "header:x-key"
counts = "tokens"
shadow = true

[upstream.model]
servers = {models}
retries = { attempts = 3, on = ["closed", "503"], budget = 100 }

[[route]]
name     = "all"
path     = "/*"
upstream = "model"
limits   = ["tokens", "trial"]
usage    = "openai"
refund   = ["5xx"]

[[route]]
name     = "trial"
path     = "/trial"
upstream = "model"
limits   = ["trial"]
usage    = "openai"
"""


DRAINED = """
[usage.drained]
format = "openai"
abort  = "drain"
"""


class Stream:
    """A call whose answer has begun, and ends when the test says so."""

    def __init__(self, server, key, last=LAST):
        self.server, self.key, self.go = server, key, threading.Event()
        headers, self.plan = server.fleet.model.plan(Waiting(self.go, last))
        self.path = f"/{key}"
        self.connection, self.answer = server.begin(self.path, BODY, {**headers, "x-key": key})
        self.first = self.answer.read1(1000)

    def end(self):
        """Lets it end; whether all of it came."""
        self.go.set()
        try:
            return self.first + self.answer.read() == self.plan.body
        except Exception:
            return False
        finally:
            self.connection.close()


class Waiting(Plan):
    def __init__(self, go, last):
        super().__init__([], "text/event-stream")
        self.go, self.last = go, last

    @property
    def pieces(self):
        yield START
        self.go.wait(60)
        yield self.last

    @pieces.setter
    def pieces(self, _):
        pass


def charged(server, what, units, key, limit="tokens"):
    until(f"{server.name}: {what}", units, lambda: server.count(limit, key))


def until_among(what, expected, ask):
    """Waits until one of the expected counts is found."""
    counted = lambda: True if (found := ask()) in expected else found
    until(f"{what}: one of {expected}", True, counted, 15)


def retries(server):
    """The answer that is passed on decides."""
    good = lambda: Plan([b'{"usage":{"prompt_tokens":6,"completion_tokens":34}}'])
    bad = lambda **options: Plan([b'{"usage":{"total_tokens":2}}'], **options)
    lost = Plan([], status=None)
    for what, plans, units in [
        ("two 503", [bad(status=503), bad(status=503), good()], SAID),
        ("no answer, then a 503", [lost, bad(status=503), good()], SAID),
        ("a 503 that is passed on", [bad(status=503)], 0), ("no answer at all", [lost], 0),
    ]:
        headers, _ = server.fleet.model.plan(list(plans))
        connection = server.connect()
        connection.request("PUT", "/retry", headers={**headers, "x-key": what})
        connection.getresponse().read()
        charged(server, f"retries: {what}", units, what)
    # A decision in shadow mode counts if it has come before the answer has ended.
    slow = Plan([0.2, good().body])
    headers, _ = server.fleet.model.plan(slow)
    for turn in range(3):
        server.post("/trial", BODY, {**headers, "x-key": "trial"})
    charged(server, "a limit in shadow mode is settled", 3 * SAID, "trial", "trial")
    until(f"{server.name}: and logged", [SAID] * 3,
          lambda: [line["usage"]["charged"] for line in server.logged("/trial")])


def reload(server):
    """A stream settles on the limit that was charged, whatever the file says now."""
    streams = [Stream(server, f"reload-{number}") for number in range(3)]
    text = server.file.read_text()
    server.file.write_text(text.replace("10_000/d", "9_000/d"))
    subprocess.run([os.environ["TIDEGATE"], "reload", "-c", server.file], check=True,
                   capture_output=True, timeout=20)
    check(f"{server.name}: a reload", True, "9000" in str(server.admin_json("/api/v1/limits")))
    check(f"{server.name}: a stream goes on", True, streams[0].end())
    charged(server, "and settles", SAID, "reload-0")
    server.file.write_text(text.replace('usage    = "openai"\nrefund', "refund")
                           .replace('limits   = ["tokens", "trial"]', "")
                           .replace('refund   = ["5xx"]', "", 1))
    subprocess.run([os.environ["TIDEGATE"], "reload", "-c", server.file], check=True,
                   capture_output=True, timeout=20)
    check(f"{server.name}: a stream goes on without its limits", True, streams[1].end())
    server.file.write_text(text)
    subprocess.run([os.environ["TIDEGATE"], "reload", "-c", server.file], check=True,
                   capture_output=True, timeout=20)
    check(f"{server.name}: and one that sees them again", True, streams[2].end())
    charged(server, "and settles", SAID, "reload-2")
    lines = lambda: [line["usage"]["outcome"] for number in range(3)
                     for line in server.logged(f"/reload-{number}")]
    until(f"{server.name}: all are logged as exact", ["exact"] * 3, lines)


def upgrade(server):
    """A stream ends in the old process, and settles there."""
    stream = Stream(server, "upgrade")
    file = pathlib.Path(server.fleet.directory / f"{server.name}.pid")
    old = int(file.read_text())
    os.kill(old, signal.SIGUSR2)
    until(f"{server.name}: an upgrade", True, lambda: int(file.read_text() or old) != old, 20)
    server.newer = int(file.read_text())
    charged(server, "the new process knows the reserve", RESERVE, "upgrade")
    check(f"{server.name}: the stream ends in the old process", True, stream.end())
    charged(server, "and settles", SAID, "upgrade")
    check(f"{server.name}: the old process ends", 0, server.process.wait(20))
    os.kill(server.newer, signal.SIGKILL)


def drains(fleet, config):
    """SIGTERM: streams have some time; those that are cut keep their reserve, and are logged."""
    server, other = fleet.server("drains", config), fleet.server("other", config)
    soon, late = Stream(server, "soon"), Stream(server, "late")
    server.signal(signal.SIGTERM)
    time.sleep(0.3)
    check("SIGTERM: a stream ends in time", True, soon.end())
    charged(other, "SIGTERM: and settles", SAID, "soon")
    server.process.wait(20)
    check("SIGTERM: a stream is cut", False, late.end())
    charged(other, "SIGTERM: and keeps its reserve", RESERVE, "late")
    found = [[line["usage"]["outcome"] for line in server.logged(f"/{key}")]
             for key in ("soon", "late")]
    check("SIGTERM: both are logged", [["exact"], ["aborted"]], found)
    left = fleet.server("left", config.replace('"openai"', '"drained"') + DRAINED)
    streams = [Stream(left, key) for key in ("left", "read")]
    for stream in streams:
        stream.answer.close()
        stream.connection.close()
    # Within a second the proxy believes that the client has left.
    time.sleep(1.5)
    left.signal(signal.SIGTERM)
    time.sleep(0.3)
    streams[1].go.set()
    left.process.wait(20)
    found = [[line["usage"]["outcome"] for line in left.logged(f"/{key}")]
             for key in ("left", "read")]
    check("SIGTERM: answers that are read without their clients end in time", [["aborted"], ["drained"]],
          found)
    charged(other, "SIGTERM: and keep their reserve", RESERVE, "left")
    charged(other, "SIGTERM: or settle", SAID, "read")
    killed = fleet.server("killed", config)
    streams = [Stream(killed, "killed") for _ in range(3)]
    killed.process.kill()
    killed.process.wait(20)
    check("SIGKILL: the streams break", [False] * 3, [stream.end() for stream in streams])
    charged(other, "SIGKILL: the reserves stay", 3 * RESERVE, "killed")


def ends_beside_a_slow_redis(fleet):
    """A process ends after Redis has what its streams used: less or more than was reserved."""
    redis, shared = fleet.redis()
    port = shared.split("127.0.0.1:")[1].split('"')[0]
    server = fleet.server("slow", CONFIG + shared)
    less, more = Stream(server, "less"), Stream(server, "more", LARGE)
    subprocess.run(["redis-cli", "-p", port, "client", "pause", "1000", "write"], check=True,
                   capture_output=True)
    check("a slow Redis: streams end", [True, True], [less.end(), more.end()])
    server.signal(signal.SIGTERM)
    server.process.wait(20)
    after = fleet.server("after", CONFIG + shared)
    charged(after, "units below the reserve are given back before the end", SAID, "less")
    charged(after, "units above it are charged before the end", 5006, "more")


def frozen(fleet):
    """A Redis that stops between reserve and settlement."""
    redis, shared = fleet.redis()
    server = fleet.server("frozen", CONFIG + shared.replace('"5s"', '"1s"'))
    streams = [Stream(server, "frozen") for _ in range(5)]
    above = Stream(server, "above", LARGE)
    # Units to give back to a store that is away stay charged.
    kept = [RESERVE * number + SAID * (6 - number) for number in range(7)]
    redis.send_signal(signal.SIGSTOP)
    begun = time.monotonic()
    ends = [stream.end() for stream in streams]
    took = time.monotonic() - begun
    check("a frozen Redis slows no stream", ([True] * 5, True), (ends, took < 0.5))
    fresh = Stream(server, "frozen")
    check("calls go on without Redis", True, fresh.end())
    # So is a call that had passed before, and uses more than it reserved.
    check("a lying stream ends without Redis", True, above.end())
    redis.send_signal(signal.SIGCONT)
    until_among("what was owed to a frozen Redis is charged there", kept,
                lambda: server.count("tokens", "frozen"))
    # What Redis has read and could not answer is paid once more: never too little is charged.
    above = [5006, 5006 + 4906]
    until_among("units above the reserve are owed too", above,
                lambda: server.count("tokens", "above"))
    before = server.count("tokens", "frozen")
    again = Stream(server, "frozen")
    charged(server, "and calls are exact again", before + RESERVE, "frozen")
    again.end()
    charged(server, "and settle", before + SAID, "frozen")


def killed(fleet):
    """A Redis that is killed, and comes back empty."""
    redis, shared = fleet.redis()
    server = fleet.server("gone", CONFIG + shared.replace('"5s"', '"1s"'))
    streams = [Stream(server, "gone") for _ in range(3)]
    redis.kill()
    redis.wait()
    check("a Redis that is gone breaks no stream", [True] * 3, [one.end() for one in streams])
    port = int(shared.split('127.0.0.1:')[1].split('"')[0])
    fleet.redis(port)

    def passes():
        stream = Stream(server, "later")
        try:
            return stream.end() and server.count("tokens", "later") > 0
        except Failed:
            # The admin answers 503 while the store is away.
            return False

    until("calls pass when Redis is back", True, passes, 15)
    time.sleep(0.5)
    before = server.count("tokens", "later")
    Stream(server, "later").end()
    charged(server, "and are exact", before + SAID, "later")
    left = server.count("tokens", "gone")
    check("an empty Redis holds no more than was reserved", True, 0 <= left <= 3 * RESERVE)


def main(fleet, name, store):
    server = fleet.server(name, CONFIG + store)
    retries(server)
    reload(server)
    if not store:
        return
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        runs = [pool.submit(drains, fleet, CONFIG + store), pool.submit(frozen, fleet),
                pool.submit(killed, fleet), pool.submit(upgrade, server),
                pool.submit(ends_beside_a_slow_redis, fleet)]
        for run in runs:
            run.result()


if __name__ == "__main__":
    on_both_stores(main)
