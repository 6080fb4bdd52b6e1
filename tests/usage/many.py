"""A thousand streams at once on a budget for a hundred; and budgets that are never overdrawn."""

import asyncio
import concurrent.futures
import json
import random
import threading
import time

from calls import Failed, check, on_both_stores, until
from model import Plan

CLIENTS, ROOM = 1000, 100
BODY = '{"max_tokens":94}'
# Input is 17 bytes, three for a token.
RESERVE, SAID = 100, 40

CONFIG = """
listen = "127.0.0.1:{port}"
admin  = "127.0.0.1:{admin}"

[limit.tokens]
rate   = "10_000/d"
key    = "header:x-key"
counts = "tokens"

[[route]]
name     = "all"
path     = "/"
upstream = "{model}"
limits   = ["tokens"]
usage    = "openai"
"""


class Held(Plan):
    """Streams that end when the test says so."""

    def __init__(self, end):
        super().__init__([], "text/event-stream")
        self.end = end

    @property
    def pieces(self):
        yield b'data: {"choices":[{"delta":{"content":"a"}}]}\n\n'
        self.end.wait(60)
        yield b'data: {"choices":[],"usage":{"prompt_tokens":6,"completion_tokens":34}}\n\n'

    @pieces.setter
    def pieces(self, _):
        pass


async def stream(server, headers, end, statuses):
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    writer.write(f"POST / HTTP/1.1\r\nhost: h\r\ncontent-length: {len(BODY)}\r\n{lines}"
                 f"connection: close\r\n\r\n{BODY}".encode())
    head = await reader.readuntil(b"\r\n\r\n")
    statuses.append(int(head[9:12]))
    if len(statuses) == CLIENTS:
        end.set()
    await reader.read()
    writer.close()


async def at_once(servers, headers):
    end, statuses = threading.Event(), []
    held, _ = servers[0].fleet.model.plan(Held(end))
    headers = {**held, **headers}
    calls = [stream(servers[number % len(servers)], headers, end, statuses)
             for number in range(CLIENTS)]
    await asyncio.wait_for(asyncio.gather(*calls), 60)
    return statuses


def thousand(servers, name):
    """Exactly as many as fit, wherever they ask. What they leave over fits then."""
    used, left = 0, ROOM * RESERVE
    for turn in ("first", "second"):
        statuses = asyncio.run(at_once(servers, {"x-key": "all"}))
        fit = left // RESERVE
        found = {status: statuses.count(status) for status in set(statuses)}
        check(f"{name}: {turn} thousand streams at once", {200: fit, 429: CLIENTS - fit}, found)
        used += fit * SAID
        left -= fit * SAID
        for server in servers:
            until(f"{name}: {turn}: the others are charged nothing", used,
                  lambda: server.count("tokens", "all"))


def bounded(servers, name):
    """No answer is above its maximum, so no count is above the limit at any time."""
    turn, said, highest, ended = random.Random(11), [], [0], threading.Event()

    def watch():
        while not ended.is_set():
            highest[0] = max(highest[0], servers[0].count("tokens", "bound"))
            time.sleep(0.005)

    def call(number):
        most, read = turn.randrange(1, 800), turn.randrange(1, 7)
        wrote = turn.randrange(0, most + 1)
        usage = {"prompt_tokens": read, "completion_tokens": wrote}
        plan = Plan([turn.random() * 0.02, json.dumps({"usage": usage}).encode()])
        headers, _ = servers[0].fleet.model.plan(plan)
        body = json.dumps({"max_tokens": most})
        server = servers[number % len(servers)]
        if server.post("/", body, {**headers, "x-key": "bound"}).status == 200:
            said.append(read + wrote)

    watcher = threading.Thread(target=watch)
    watcher.start()
    with concurrent.futures.ThreadPoolExecutor(24) as pool:
        list(pool.map(call, range(400)))
    until(f"{name}: charged is the sum of what was said", sum(said),
          lambda: servers[0].count("tokens", "bound"))
    ended.set()
    watcher.join()
    if not 5_000 < highest[0] <= 10_000 or len(said) == 400:
        raise Failed(f"{name}: at most {highest[0]} of 10,000 in {len(said)} calls")
    check(f"{name}: no count was above the limit", True, highest[0] <= 10_000)


def main(fleet, name, store):
    servers = [fleet.server(f"{name}-{number}", CONFIG + store)
               for number in range(2 if store else 1)]
    bounded(servers, name)
    thousand(servers, name)


if __name__ == "__main__":
    on_both_stores(main)
