"""What a ledger costs: memory of Redis for many clients, CPU of Redis and of the proxy, and the lag.

    cargo build --release --locked
    TIDEGATE=target/release/tidegate PYTHONPATH=tests python3 bench/ledger.py --clients 100000

Needs redis-server. Each client has a key of its own and sends one request for each round. The proxy
answers by itself, without an upstream. The first run has `[ledger]`, the second has none.
"""

import argparse
import asyncio
import json
import os
import pathlib
import re
import subprocess
import tempfile
import time
import urllib.request

from running import free_port

CONNECTIONS = 32
# Requests that are sent at once on a connection.
PIPELINED = 16


def cpu_of(pid):
    """CPU time of a process, seconds."""
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def wait_for(what, holds, timeout=120):
    until = time.monotonic() + timeout
    while not holds():
        if time.monotonic() > until:
            raise SystemExit(f"never: {what}")
        time.sleep(0.05)


def redis_cli(port, *words):
    done = subprocess.run(["redis-cli", "-p", str(port), *words], capture_output=True, check=False)
    return done.stdout.decode().strip()


class Run:
    """A Redis and a proxy, with a ledger or without."""

    def __init__(self, clients, has_ledger):
        self.folder = tempfile.TemporaryDirectory()
        folder = pathlib.Path(self.folder.name)
        self.redis_port, self.port, self.admin = free_port(), free_port(), free_port()
        self.redis = subprocess.Popen(
            ["redis-server", "--port", str(self.redis_port), "--save", "", "--appendonly", "no"],
            cwd=folder, stdout=subprocess.DEVNULL)
        keys = "".join(f"key-{n:07} client-{n:07}\n" for n in range(clients))
        (folder / "keys.txt").write_text(keys)
        ledger = f"[ledger]\nmax_clients = {clients}\n" if has_ledger else ""
        (folder / "proxy.toml").write_text(f"""
listen = "127.0.0.1:{self.port}"
admin = "127.0.0.1:{self.admin}"
[server]
workers = 1
[log]
access = "off"
[store]
url = "redis://127.0.0.1:{self.redis_port}"
timeout = "1s"
[api_key]
known = "keys.txt"
[limit.default]
rate = "1000000/h"
key = "api_key"
[[route]]
path = "/*"
limits = ["default"]
respond = {{ status = 200 }}
{ledger}""")
        wait_for("redis", lambda: redis_cli(self.redis_port, "PING") == "PONG")
        program = pathlib.Path(os.environ["TIDEGATE"]).resolve()
        self.proxy = subprocess.Popen([program, "run", "-c", "proxy.toml"], cwd=folder,
                                      stderr=subprocess.DEVNULL)
        wait_for("the proxy", self.is_ready)
        self.program, self.path = program, folder

    def is_ready(self):
        try:
            self.get("/readyz")
            return True
        except OSError:
            return False

    def get(self, path):
        with urllib.request.urlopen(f"http://127.0.0.1:{self.admin}{path}", timeout=30) as answer:
            return answer.read().decode()

    def lag(self):
        found = re.search(r"^tidegate_ledger_lag_seconds (\S+)$", self.get("/metrics"), re.M)
        return float(found[1]) if found else 0.0

    def end(self):
        self.proxy.terminate()
        self.proxy.wait()
        self.redis.terminate()
        self.redis.wait()
        self.folder.cleanup()


async def send(port, numbers):
    """Sends a request of each client; returns the number of 200s."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    allowed = 0
    for first in range(0, len(numbers), PIPELINED):
        part = numbers[first:first + PIPELINED]
        writer.write(b"".join(
            b"GET /%d HTTP/1.1\r\nHost: bench\r\nX-Api-Key: key-%07d\r\n\r\n" % (n, n)
            for n in part))
        for _ in part:
            head = await reader.readuntil(b"\r\n\r\n")
            allowed += head.startswith(b"HTTP/1.1 200")
            length = re.search(rb"(?i)content-length: (\d+)", head)
            if length and int(length[1]):
                await reader.readexactly(int(length[1]))
    writer.close()
    return allowed


async def round_of(port, clients, lags, run):
    watching = True

    async def watch():
        while watching:
            lags.append(await asyncio.to_thread(run.lag))
            await asyncio.sleep(0.5)

    watcher = asyncio.create_task(watch())
    numbers = [list(range(clients))[start::CONNECTIONS] for start in range(CONNECTIONS)]
    sent = await asyncio.gather(*(send(port, part) for part in numbers))
    watching = False
    await watcher
    return sum(sent)


def measure(clients, rounds, has_ledger):
    run = Run(clients, has_ledger)
    before = int(re.search(r"used_memory:(\d+)", redis_cli(run.redis_port, "INFO", "memory"))[1])
    cpu = [cpu_of(run.proxy.pid), cpu_of(run.redis.pid)]
    began, lags, allowed = time.monotonic(), [], 0
    for _ in range(rounds):
        allowed += asyncio.run(round_of(run.port, clients, lags, run))
    took = time.monotonic() - began
    if has_ledger:
        wait_for("the ledger is sent", lambda: run.lag() == 0)
    sent = time.monotonic() - began - took
    proxy, redis = cpu_of(run.proxy.pid) - cpu[0], cpu_of(run.redis.pid) - cpu[1]
    result = {
        "ledger": has_ledger,
        "requests": allowed,
        "seconds": round(took, 1),
        "proxy_cpu_us_per_request": round(proxy / allowed * 1e6, 1),
        "redis_cpu_us_per_request": round(redis / allowed * 1e6, 1),
        "redis_memory_grown_mib": round((int(re.search(
            r"used_memory:(\d+)", redis_cli(run.redis_port, "INFO", "memory"))[1]) - before) / 2**20, 1),
    }
    if has_ledger:
        keys = redis_cli(run.redis_port, "--scan", "--pattern", "*{ledger:*").split()
        usages = [int(redis_cli(run.redis_port, "MEMORY", "USAGE", key, "SAMPLES", "0")) for key in keys]
        began = time.monotonic()
        usage = subprocess.run([run.program, "usage", "--by", "client", "--json"], cwd=run.path,
                               capture_output=True, check=True)
        read = time.monotonic() - began
        usage = json.loads(usage.stdout)
        assert usage["total"]["requests"] == allowed, (usage["total"], allowed)
        result |= {
            "hashes": len(keys),
            "ledger_memory_mib": round(sum(usages) / 2**20, 1),
            "bytes_per_client": round(sum(usages) / clients, 1),
            "rows": len(usage["rows"]),
            "lag_max_seconds": round(max(lags), 2),
            "sent_after_last_request_seconds": round(sent, 2),
            "read_seconds": round(read, 2),
        }
    run.end()
    return result


def main():
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--clients", type=int, default=100_000)
    arguments.add_argument("--rounds", type=int, default=1)
    options = arguments.parse_args()
    for has_ledger in [True, False]:
        print(json.dumps(measure(options.clients, options.rounds, has_ledger)), flush=True)


if __name__ == "__main__":
    main()
