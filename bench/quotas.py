"""What calendar windows, bans, `delay` and the status endpoint cost.

    cargo build --release --locked
    TIDEGATE=target/release/tidegate PYTHONPATH=tests python3 bench/quotas.py [PART...]

The parts: `instructions` of a request that uses none of these, with each of them set, and with
BEFORE=PROGRAM also of another build (valgrind counts them); `redis`, the time of Redis for a decision;
`status`, CPU of a look beside a request; `waiting`, memory of 10,000 requests that are held.
Needs redis-server, and valgrind for the first part. Each request has its own path, query and id.
"""

import asyncio
import os
import pathlib
import random
import re
import resource
import signal
import subprocess
import sys
import tempfile
import time

from running import free_port

PROGRAM = pathlib.Path(os.environ.get("TIDEGATE", "target/release/tidegate")).resolve()
CLIENTS = 1000
CONNECTIONS = 16
WAITING = 10_000

LOG = 'rate = "1000000/h"'
CALENDAR = 'rate = "1000000/day"\ncalendar = { zone = "Europe/Berlin" }'
BAN = 'ban = { after = "20/10min", for = "1h" }'
SETTINGS = {
    "log": LOG,
    "calendar": CALENDAR,
    "ban": f"{LOG}\n{BAN}",
    "delay": f'{LOG}\ndelay = "2s"',
}


def cpu_of(pid):
    """CPU time of a process, nanoseconds."""
    tasks = pathlib.Path(f"/proc/{pid}/task").glob("*/schedstat")
    return sum(int(task.read_text().split()[0]) for task in tasks)


def resident(pid):
    """Resident memory of a process, bytes."""
    status = pathlib.Path(f"/proc/{pid}/status").read_text()
    return int(re.search(r"VmRSS:\s+(\d+)", status)[1]) * 1024


class Redis:
    def __init__(self, folder):
        self.port = free_port()
        self.process = subprocess.Popen(
            ["redis-server", "--port", str(self.port), "--save", "", "--appendonly", "no"],
            cwd=folder, stdout=subprocess.DEVNULL)
        while self.ask("PING") != "PONG":
            time.sleep(0.05)

    def ask(self, *words):
        words = ["redis-cli", "-p", str(self.port), *words]
        return subprocess.run(words, capture_output=True, check=False).stdout.decode().strip()

    def url(self):
        return f"redis://127.0.0.1:{self.port}"

    def end(self):
        self.process.terminate()
        self.process.wait()


class Proxy:
    """A proxy with one limit. It answers by itself, or `upstream` does."""

    def __init__(self, folder, limit, store="memory:", more="", program=PROGRAM, before=()):
        self.port = free_port()
        (folder / "proxy.toml").write_text(f"""
listen = "127.0.0.1:{self.port}"
{more}
[server]
workers = 1
max_connections = 20_000
[log]
access = "off"
[store]
url = "{store}"
timeout = "5s"
[limit.one]
key = "header:x-user"
{limit}
[[route]]
path = "/*"
limits = ["one"]
respond = {{ status = 200 }}
""")
        self.process = subprocess.Popen(
            [*before, program, "run", "-c", "proxy.toml"], cwd=folder, stderr=subprocess.PIPE)

    async def ready(self):
        while True:
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", self.port)
                writer.close()
                return self
            except OSError:
                await asyncio.sleep(0.05)

    def end(self):
        """Ends the proxy and returns what it said."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.communicate()[1].decode()


def request(rng, path=None):
    path = path or "/%x/%d?page=%d" % (rng.getrandbits(40), rng.randrange(1000), rng.randrange(99))
    return (f"GET {path} HTTP/1.1\r\nHost: api.example\r\nX-User: user-{rng.randrange(CLIENTS)}\r\n"
            f"User-Agent: client/{rng.randrange(6)}\r\nX-Request-Id: {rng.getrandbits(64):x}\r\n"
            f"X-Forwarded-For: 10.{rng.randrange(256)}.{rng.randrange(256)}.{rng.randrange(256)}\r\n"
            "\r\n").encode()


async def answer_of(reader):
    head = await reader.readuntil(b"\r\n\r\n")
    length = re.search(rb"(?i)content-length: (\d+)", head)
    if length and int(length[1]):
        await reader.readexactly(int(length[1]))
    return int(head[9:12])


async def send(port, number, path=None, seed=1, connections=CONNECTIONS):
    """Sends so many requests, one after the other on each connection."""
    async def part(seed):
        rng = random.Random(seed)
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for _ in range(number // connections):
            writer.write(request(rng, path))
            status = await answer_of(reader)
            if status != 200:
                raise SystemExit(f"a response with status {status}")
        writer.close()
    await asyncio.gather(*(part(seed * 1000 + one) for one in range(connections)))


async def instructions(folder):
    """Of two runs of unlike length the difference is what requests cost."""
    short, long = 1_600, 8_000
    count = ["valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null"]

    async def of(program, limit):
        seen = []
        for number in (short, long):
            proxy = await Proxy(folder, limit, program=program, before=count).ready()
            await send(proxy.port, number)
            seen.append(int(re.search(r"Collected : (\d+)", proxy.end())[1]))
        return (seen[1] - seen[0]) / (long - short)

    rows = [("this build", PROGRAM, name) for name in SETTINGS]
    if before := os.environ.get("BEFORE"):
        rows.insert(0, ("the build before", pathlib.Path(before).resolve(), "log"))
    for build, program, name in rows:
        print(f"instructions of a request, {build}, {name}: {await of(program, SETTINGS[name]):,.0f}")


async def redis(folder):
    """The script's time by Redis's own clock, for each request: the best of some rounds."""
    number, best = 8_000, {}
    rows = [(one, name) for one in (1, CONNECTIONS) for name in SETTINGS] * 5
    for row in rows:
        connections, name = row
        redis = Redis(folder)
        proxy = await Proxy(folder, SETTINGS[name], store=redis.url()).ready()
        redis.ask("CONFIG", "RESETSTAT")
        await send(proxy.port, number, connections=connections)
        stats = redis.ask("INFO", "commandstats")
        found = re.findall(r"cmdstat_(\w+):calls=(\d+),usec=(\d+)", stats)
        scripts = [one for one in found if one[0] in ("evalsha", "fcall")]
        seen = [sum(int(usec) for _, _, usec in scripts) / number,
                sum(int(calls) for _, calls, _ in scripts) / number,
                sum(int(calls) for command, calls, _ in found
                    if command not in ("evalsha", "fcall", "config", "ping")) / number]
        best[row] = min(best.get(row, seen), seen)
        proxy.end()
        redis.end()
    for (connections, name), (time_us, calls, commands) in best.items():
        print(f"Redis for a request on {connections} connections, {name}: {time_us:.1f} us, "
              f"{calls:.2f} calls, {commands:.2f} commands in scripts")


async def status(folder):
    """CPU of the proxy for a look, and for a request that is counted. An address may look ten times a
    second, so each request has an address of its own."""
    more = 'trusted_proxies = ["127.0.0.1"]\n[status]\npath = "/rate_limit"'
    for name in ("the embedded store", "Redis"):
        redis = Redis(folder) if name == "Redis" else None
        store = redis.url() if redis else "memory:"
        proxy = await Proxy(folder, LOG, store=store, more=more).ready()
        for what, path in (("a request", None), ("a look", "/rate_limit")):
            await send(proxy.port, 1_600, path, seed=2)
            began = cpu_of(proxy.process.pid)
            await send(proxy.port, 16_000, path, seed=3)
            cost = (cpu_of(proxy.process.pid) - began) / 16_000 / 1000
            print(f"CPU of {what}, {name}: {cost:.1f} us")
        proxy.end()
        if redis:
            redis.end()


async def waiting(folder):
    """Resident memory with so many connections: idle, then each with a request that is held."""
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    limit = 'rate = "1/s"\ndelay = "30min"\ndelay_queue = 10_000'
    proxy = await Proxy(folder, limit).ready()
    pid = proxy.process.pid
    start = resident(pid)
    opened = []
    for first in range(0, WAITING, 500):
        opened += await asyncio.gather(
            *(asyncio.open_connection("127.0.0.1", proxy.port) for _ in range(500)))
        await asyncio.sleep(0.05)
    await asyncio.sleep(2)
    idle = resident(pid)
    rng = random.Random(4)
    for number, (_, writer) in enumerate(opened):
        # Ten clients: ten requests are answered at once.
        writer.write(re.sub(rb"X-User: \S+", b"X-User: %d" % (number % 10), request(rng)))
        if number % 500 == 0:
            await asyncio.sleep(0.05)
    await asyncio.sleep(3)
    held = resident(pid)
    print(f"memory of {WAITING} connections: {(idle - start) / WAITING:,.0f} bytes each idle, "
          f"{(held - start) / WAITING:,.0f} with a request that is held")
    for _, writer in opened:
        writer.close()
    proxy.end()


PARTS = {"instructions": instructions, "redis": redis, "status": status, "waiting": waiting}


def main():
    for name in sys.argv[1:] or PARTS:
        with tempfile.TemporaryDirectory() as folder:
            asyncio.run(PARTS[name](pathlib.Path(folder)))


main()
