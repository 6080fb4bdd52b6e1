"""What a token budget costs: CPU, instructions, calls of Redis, delay and memory of streamed
answers, with `usage` on the route and without, in turn.

    cargo build --release --locked
    TIDEGATE=target/release/tidegate PYTHONPATH=tests:tests/usage python3 bench/usage.py

Needs redis-server, two cores, and valgrind for the instructions. tidegate has core 0, everything
else has core 1. Fifteen minutes; `--pairs 3 --hold 15` is shorter, and `--parts cpu,memory`
measures less.

An answer is a stream of 400 events in 64 KiB, each in a chunk of its own, and the last event says
the usage. Each request has its own query, body, request id and user. The shapes of an answer are:

    burst   the server writes the answer at once
    null    the same, and each event has `"usage":null`, as OpenAI's servers send it
    flow    the server writes each event by itself
"""

import argparse
import asyncio
import contextlib
import json
import os
import pathlib
import random
import re
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time

from calls import Fleet
from running import free_port

EVENTS = 400
BYTES = 64 * 1024
USERS = 1000
CLIENTS = 8
SHAPES = ["burst", "null", "flow"]
NAMES = ["without", "with"]
END = b"0\r\n\r\n"
# How an event of a paced stream says when it was written.
SENT = re.compile(rb'"sent":(\d+)')

CONFIG = """
listen = "127.0.0.1:{port}"
admin  = "127.0.0.1:{admin}"

[server]
workers = 1

[api_key]
known = "keys.txt"

[limit.budget]
rate   = ["4_000_000_000/d", "4_000_000_000/h"]
key    = "api_key"
counts = "COUNTS"

[limit.calls]
rate   = "1_000_000_000/h"
key    = "api_key"
counts = "requests"

[[route]]
path     = "/v1/chat/completions"
methods  = ["POST"]
upstream = "{model}"
limits   = ["budget", "calls"]
refund   = ["4xx", "5xx"]
"""


def event(number, shape, sent=None):
    """One event of OpenAI's, of the same length for every shape."""
    value = {"id": "chatcmpl-7", "object": "chat.completion.chunk", "created": 1764115200 + number,
             "model": "gpt-5", "choices": [{"index": 0, "delta": {"content": ""}}]}
    if shape == "null":
        value["usage"] = None
    if sent is not None:
        value["sent"] = sent
    text = random.Random(number).choices("abcdefghij klmnop qrst uvwxyz", k=BYTES // EVENTS)
    short = BYTES // EVENTS - len(framed(value))
    value["choices"][0]["delta"]["content"] = "".join(text[:max(short, 0)])
    return framed(value)


def framed(value):
    return b"data: " + json.dumps(value, separators=(",", ":")).encode() + b"\n\n"


def last_events():
    usage = {"prompt_tokens": 20, "completion_tokens": EVENTS, "total_tokens": EVENTS + 20}
    value = {"id": "chatcmpl-7", "object": "chat.completion.chunk", "choices": [], "usage": usage}
    return [framed(value), b"data: [DONE]\n\n"]


def chunk(data):
    return b"%x\r\n%b\r\n" % (len(data), data)


class Upstream(asyncio.Protocol):
    """Answers as the header `x-shape` says: a shape, or EVENTS/SECONDS of a paced stream."""

    HEAD = (b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n"
            b"transfer-encoding: chunked\r\n\r\n")
    ANSWERS = {shape: [chunk(event(number, shape)) for number in range(EVENTS)]
               + [chunk(data) for data in last_events()] + [END] for shape in SHAPES}
    BODIES = {shape: b"".join(pieces) for shape, pieces in ANSWERS.items()}

    def connection_made(self, transport):
        self.transport, self.received, self.task = transport, b"", None
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def connection_lost(self, _):
        if self.task:
            self.task.cancel()

    def data_received(self, data):
        self.received += data
        head, found, body = self.received.partition(b"\r\n\r\n")
        if not found:
            return
        length = int(re.search(rb"content-length: (\d+)", head, re.I)[1])
        if len(body) >= length:
            self.received = body[length:]
            self.answer(re.search(rb"x-shape: (\S+)", head, re.I)[1].decode())

    def answer(self, shape):
        if "/" in shape:
            events, seconds = shape.split("/")
            self.task = asyncio.ensure_future(self.pace(int(events), float(seconds)))
        elif shape == "flow":
            self.transport.write(self.HEAD)
            for piece in self.ANSWERS[shape]:
                self.transport.write(piece)
        else:
            self.transport.write(self.HEAD + self.BODIES[shape])

    async def pace(self, events, seconds):
        self.transport.write(self.HEAD)
        for number in range(events):
            if number:
                await asyncio.sleep(seconds)
            self.transport.write(chunk(event(number, "burst", time.monotonic_ns())))
        self.transport.write(b"".join(chunk(data) for data in last_events()) + END)


async def serve_upstream(port):
    loop = asyncio.get_running_loop()
    server = await loop.create_server(Upstream, "127.0.0.1", port, backlog=4096)
    await server.serve_forever()


def requests(shape, count, seed):
    """Requests that differ, as those of clients do."""
    turn, made = random.Random(seed), []
    for _ in range(count):
        words = " ".join(f"w{turn.randrange(10_000)}" for _ in range(turn.randrange(20, 300)))
        body = json.dumps({"model": "gpt-5", "stream": True, "max_tokens": turn.randrange(1, 2000),
                           "messages": [{"role": "user", "content": words}]})
        made.append((f"POST /v1/chat/completions?trace={turn.getrandbits(64):x} HTTP/1.1\r\n"
                     f"host: api.example\r\nuser-agent: client/{turn.randrange(6)}\r\n"
                     f"x-api-key: user-{turn.randrange(USERS)}\r\n"
                     f"x-request-id: {turn.getrandbits(96):x}\r\nx-shape: {shape}\r\n"
                     f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
                     f"{body}").encode())
    return made


def read_answer(connection):
    """Reads one answer."""
    tail = first = connection.recv(1 << 18)
    assert first.startswith(b"HTTP/1.1 200 "), first[:400]
    while not tail.endswith(END):
        data = connection.recv(1 << 18)
        assert data, "the answer broke off"
        tail = (tail + data)[-len(END):]


def send_all(port, made, clients=CLIENTS):
    """Sends the requests over kept connections, each as soon as it has its answer."""
    failures = []

    def client(mine):
        try:
            with socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
                for request in mine:
                    connection.sendall(request)
                    read_answer(connection)
        except (OSError, AssertionError) as error:
            failures.append(error)

    threads = [threading.Thread(target=client, args=(made[number::clients],))
               for number in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, failures[0]


def cpu_us(pid):
    """Run time of all threads, as the scheduler counts it."""
    tasks = pathlib.Path(f"/proc/{pid}/task").iterdir()
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1000


def resident_kib(pid):
    status = pathlib.Path(f"/proc/{pid}/status").read_text()
    return int(re.search(r"VmRSS:\s+(\d+)", status)[1])


class Bench:
    """The servers of a run."""

    def __init__(self, directory, options):
        self.options, self.program = options, os.path.abspath(os.environ["TIDEGATE"])
        os.environ["TIDEGATE"] = self.program
        port = free_port()
        self.url = f"http://127.0.0.1:{port}"
        self.urls = [self.url]
        self.fleet = Fleet(directory, self)
        self.directory = self.fleet.directory
        users = "".join(f"user-{number}\n" for number in range(USERS))
        (self.directory / "keys.txt").write_text(users)
        os.sched_setaffinity(0, {1})
        upstream = [sys.executable, __file__, "--upstream", str(port)]
        self.fleet.processes.append(subprocess.Popen(upstream))
        self.redis, self.store = self.fleet.redis()
        self.port = port
        self.wait_for(port)
        self.redis_port = int(re.search(r":(\d+)\"", self.store)[1])
        self.wait_for(self.redis_port)
        self.numbers = 0

    def wait_for(self, port):
        end = time.monotonic() + 30
        while time.monotonic() < end:
            with contextlib.suppress(OSError):
                return socket.create_connection(("127.0.0.1", port)).close()
            time.sleep(0.05)
        raise TimeoutError(f"nothing listens on {port}")

    def proxy(self, name):
        """A tidegate on core 0."""
        self.numbers += 1
        counts = "tokens" if name == "with" else "requests"
        config = CONFIG.replace("COUNTS", counts) + ('usage = "openai"\n' if name == "with" else "")
        os.sched_setaffinity(0, {0})
        try:
            return self.fleet.server(f"{name}-{self.numbers}", config + self.store)
        finally:
            os.sched_setaffinity(0, {1})

    def calls(self):
        """Scripts that Redis ran so far."""
        told = subprocess.run(["redis-cli", "-p", str(self.redis_port), "info", "commandstats"],
                              capture_output=True, text=True, check=True).stdout
        counts = dict(re.findall(r"cmdstat_([a-z|_]+):calls=(\d+)", told))
        return sum(int(counts.get(name, 0)) for name in ("evalsha", "eval", "fcall"))


def spread(values, digits=1):
    return f"{statistics.median(values):.{digits}f} ({min(values):.{digits}f} to " \
           f"{max(values):.{digits}f})"


def measure_cpu(bench):
    """CPU time and calls of Redis for one answer; the two proxies take turns."""
    proxies = {name: bench.proxy(name) for name in NAMES}
    for shape in SHAPES:
        count = bench.options.requests // (4 if shape == "flow" else 1)
        rows = {name: [] for name in NAMES}
        for turn in range(bench.options.pairs + 1):
            for name in NAMES if turn % 2 else NAMES[::-1]:
                server, made = proxies[name], requests(shape, count, turn)
                pid, calls = server.process.pid, bench.calls()
                before = cpu_us(pid)
                send_all(server.port, made)
                time.sleep(0.05)
                row = (cpu_us(pid) - before) / count, (bench.calls() - calls) / count
                # The first pair warms up.
                if turn:
                    rows[name].append(row)
        for name in NAMES:
            cpu, calls = zip(*rows[name])
            print(f"cpu {shape:6} {name:8} {spread(cpu)} us an answer, "
                  f"{spread(calls, 2)} calls of Redis")
        pairs = zip(*(rows[name] for name in NAMES))
        ratios = [(more[0] / less[0] - 1) * 100 for less, more in pairs]
        print(f"cpu {shape:6} difference of pairs {spread(ratios)} %, {len(ratios)} pairs")
    for name in NAMES:
        before = bench.calls()
        send_all(proxies[name].port, requests("burst", 100, 0), clients=1)
        time.sleep(0.5)
        print(f"calls of Redis with one client, {name}: {(bench.calls() - before) / 100} an answer")
    for server in proxies.values():
        server.end()


def counted(bench, name, shape, count):
    """Instructions of a tidegate that serves so many requests, without those of the kernel."""
    kept = pathlib.Path(bench.options.keep or bench.directory)
    file = kept / f"callgrind.{name}.{shape}.{count}"
    wrapper = bench.directory / "counted.sh"
    wrapper.write_text("#!/bin/sh\nexec valgrind -q --tool=callgrind "
                       f"--callgrind-out-file={file} {bench.program} \"$@\"\n")
    wrapper.chmod(0o755)
    os.environ["TIDEGATE"] = str(wrapper)
    try:
        server = bench.proxy(name)
    finally:
        os.environ["TIDEGATE"] = bench.program
    send_all(server.port, requests(shape, count, count), clients=1)
    server.end()
    server.process.wait(120)
    return int(re.search(r"^(?:totals|summary): (\d+)", file.read_text(), re.M)[1])


def measure_instructions(bench):
    """Two runs of unlike length: what a start takes is in both."""
    if not shutil.which("valgrind"):
        return print("instructions: valgrind is not installed")
    few, many = 100, 100 + bench.options.counted
    for shape in ("burst", "null"):
        found = {}
        for name in NAMES:
            least = [min(counted(bench, name, shape, count) for _ in range(2))
                     for count in (few, many)]
            found[name] = (least[1] - least[0]) / (many - few)
        more = found["with"] - found["without"]
        print(f"instructions {shape:6} without {found['without']:.0f}, with {found['with']:.0f}: "
              f"{more:+.0f} an answer, {more / found['without'] * 100:+.1f} %, in user space")


class Times:
    """Milliseconds of a round of paced streams."""

    def __init__(self):
        self.first, self.gaps, self.delays = [], [], []


async def stream(port, request, start, times):
    """One paced stream. The first byte of its body counts from the planned start."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(request)
        head = await reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200 "), head
        last, data = None, b""
        while not data.endswith(END):
            piece = await reader.read(1 << 16)
            assert piece, "the stream broke off"
            now, data = time.monotonic_ns(), (data + piece)[-4096:]
            if last is None:
                times.first.append(now / 1e6 - start * 1e3)
            else:
                times.gaps.append((now - last) / 1e6)
            if sent := SENT.findall(piece):
                times.delays.append((now - int(sent[-1])) / 1e6)
            last = now
    finally:
        writer.close()


async def paced_round(port, options, seed):
    """Streams of 40 events, 10 ms apart, that start at a fixed rate."""
    times, streams = Times(), []
    made = requests("40/0.01", int(options.rate * options.seconds), seed)
    began = time.monotonic() + 0.1
    for number, request in enumerate(made):
        start = began + number / options.rate
        await asyncio.sleep(max(0, start - time.monotonic()))
        streams.append(asyncio.ensure_future(stream(port, request, start, times)))
    await asyncio.gather(*streams)
    return times


def at(values, share):
    return sorted(values)[min(len(values) - 1, int(len(values) * share))]


def measure_latency(bench):
    """Times without a proxy, and through both proxies, in turn."""
    proxies = {name: bench.proxy(name) for name in NAMES}
    ports = {"direct": bench.port, **{name: server.port for name, server in proxies.items()}}
    found = {name: [] for name in ports}
    for turn in range(bench.options.pairs + 1):
        for name in list(ports) if turn % 2 else list(ports)[::-1]:
            times = asyncio.run(paced_round(ports[name], bench.options, turn))
            if turn:
                found[name].append(times)
    for name, rounds in found.items():
        told = []
        for word in ("first", "delays", "gaps"):
            half, most = ([at(getattr(times, word), share) for times in rounds]
                          for share in (0.5, 0.99))
            told.append(f"{word} p50 {spread(half, 2)}, p99 {spread(most, 2)}")
        print(f"latency {name:8} ms: {'; '.join(told)}")
    for word in ("first", "delays", "gaps"):
        more = [at(getattr(b, word), 0.99) - at(getattr(a, word), 0.99)
                for a, b in zip(found["without"], found["with"])]
        print(f"latency {word}: p99 with less p99 without, of pairs: {spread(more, 2)} ms")
    for server in proxies.values():
        server.end()


def hold(bench, name):
    """Resident KiB of a fresh tidegate: idle, and with streams that are held."""
    options, server = bench.options, bench.proxy(name)
    pid = server.process.pid
    send_all(server.port, requests("burst", 200, 1))
    time.sleep(1)
    idle, samples, connections = resident_kib(pid), [], []
    events = int(options.hold / options.every) + 10
    for request in requests(f"{events}/{options.every}", options.streams, 2):
        connection = socket.create_connection(("127.0.0.1", server.port), timeout=60)
        connection.sendall(request)
        connections.append(connection)
    began = time.monotonic()
    while (now := time.monotonic() - began) < options.hold:
        for connection in connections:
            with contextlib.suppress(BlockingIOError):
                assert connection.recv(1 << 16, socket.MSG_DONTWAIT), "a stream broke off"
        if now > len(samples) * options.hold / 6 + 5:
            samples.append(resident_kib(pid))
        time.sleep(0.5)
    for connection in connections:
        connection.close()
    server.end()
    server.process.wait(60)
    return idle, samples


def measure_memory(bench):
    """Two proxies, one after the other, as often as `--memory-pairs` says."""
    grown = {name: [] for name in NAMES}
    for _ in range(bench.options.memory_pairs):
        for name in NAMES:
            idle, samples = hold(bench, name)
            grown[name].append(statistics.median(samples) - idle)
            print(f"memory {name:8} idle {idle} KiB, with {bench.options.streams} streams, "
                  f"in order: {samples}")
    more = [more - less for less, more in zip(grown["without"], grown["with"])]
    print(f"memory: {bench.options.streams} streams take {spread(more, 0)} KiB more with usage")


PARTS = {"cpu": measure_cpu, "instructions": measure_instructions, "latency": measure_latency,
         "memory": measure_memory}


def options():
    parser = argparse.ArgumentParser(description="What a token budget costs.")
    parser.add_argument("--parts", default=",".join(PARTS), help="of these, with commas")
    parser.add_argument("--pairs", type=int, default=12, help="rounds with and without usage")
    parser.add_argument("--requests", type=int, default=1600, help="of a round of `cpu`")
    parser.add_argument("--counted", type=int, default=400, help="requests of `instructions`")
    parser.add_argument("--keep", help="folder for the files of callgrind")
    parser.add_argument("--rate", type=float, default=20, help="streams a second of `latency`")
    parser.add_argument("--seconds", type=float, default=5, help="of a round of `latency`")
    parser.add_argument("--streams", type=int, default=1000, help="of `memory`")
    parser.add_argument("--every", type=float, default=3, help="seconds between two events of them")
    parser.add_argument("--hold", type=float, default=75, help="seconds that they are held")
    parser.add_argument("--memory-pairs", type=int, default=2)
    parser.add_argument("--upstream", type=int, help=argparse.SUPPRESS)
    return parser.parse_args()


def main():
    chosen = options()
    if chosen.upstream:
        return asyncio.run(serve_upstream(chosen.upstream))
    with tempfile.TemporaryDirectory() as directory:
        bench = Bench(directory, chosen)
        try:
            for part in chosen.parts.split(","):
                PARTS[part](bench)
        except BaseException:
            bench.fleet.show_logs()
            raise
        finally:
            bench.fleet.end()


if __name__ == "__main__":
    main()
