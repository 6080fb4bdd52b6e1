"""What a decision of the rate limit service costs: decisions a second, CPU, calls of Redis, memory, and
the time that it adds to requests through a real Envoy.

    make release
    tests/decide/run.sh                      # installs Envoy
    TIDEGATE=target/release/tidegate PYTHONPATH=tests:tests/decide \\
        target/clients/decide/bin/python bench/decide.py target/clients/decide/bin

Needs h2load, redis-server and two cores. tidegate has core 0, everything else core 1. Four minutes.
"""

import os
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile
import time

from envoys import Fleet, indented
from proxies import App, wait_for
from running import free_port, upstream

PROGRAMS = pathlib.Path(sys.argv[1])
CLOCK_TICKS = os.sysconf("SC_CLK_TCK")
SERVICE = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit"
WATCH = "/grpc.health.v1.Health/Watch"
# Clients at once, each with a key of its own.
CLIENTS = 8
SECONDS = 5
ROUNDS = 3

CONFIG = """
listen = []
[decide]
listen = "127.0.0.1:8081"
[server]
workers = 1
[[descriptor]]
domain  = "bench"
entries = ["path"]
limits  = ["{rate}"]
"""

ENVOY = """
static_resources:
  listeners:
    - address: {{ socket_address: {{ address: 127.0.0.1, port_value: {listen} }} }}
      filter_chains:
        - filters:
            - name: envoy.filters.network.http_connection_manager
              typed_config:
                "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
                stat_prefix: web
                route_config:
                  virtual_hosts:
                    - name: app
                      domains: ["*"]
                      routes:
                        - match: {{ prefix: / }}
                          direct_response: {{ status: 200 }}
                      rate_limits:
                        - actions: [{{ request_headers: {{ header_name: ":path", descriptor_key: path }} }}]
                http_filters:
{filter}
                  - name: envoy.filters.http.router
                    typed_config:
                      "@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router
  clusters:
    - name: tidegate
      typed_extension_protocol_options:
        envoy.extensions.upstreams.http.v3.HttpProtocolOptions:
          "@type": type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions
          explicit_http_config: {{ http2_protocol_options: {{}} }}
      load_assignment:
        cluster_name: tidegate
        endpoints: [{{ lb_endpoints: [{{ endpoint: {{ address: {{ socket_address: {{ address: 127.0.0.1, port_value: {decide} }} }} }} }}] }}]
"""

FILTER = """
- name: envoy.filters.http.ratelimit
  typed_config:
    "@type": type.googleapis.com/envoy.extensions.filters.http.ratelimit.v3.RateLimit
    domain: bench
    timeout: 0.1s
    rate_limit_service:
      transport_api_version: V3
      grpc_service: { envoy_grpc: { cluster_name: tidegate } }
"""


def field(number, content):
    return bytes([number << 3 | 2, len(content)]) + content


def framed(message):
    return b"\0" + len(message).to_bytes(4, "big") + message


def call(value):
    """A call with one descriptor of one entry."""
    entry = field(1, b"path") + field(2, value.encode())
    return framed(field(1, b"bench") + field(2, field(1, entry)))


def cpu_s(pid):
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(") ", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / CLOCK_TICKS


def resident_mib(pid):
    status = pathlib.Path(f"/proc/{pid}/status").read_text()
    return int(re.search(r"VmRSS:\s+(\d+)", status)[1]) / 1024


class Redis:
    def __init__(self, fleet):
        self.port = fleet.redis()
        self.process = fleet.processes[-1]

    def calls(self):
        """Calls so far, without those that ask for this count."""
        told = subprocess.run(["redis-cli", "-p", str(self.port), "info", "commandstats"],
                              capture_output=True, text=True, check=True).stdout
        counts = dict(re.findall(r"cmdstat_([a-z|_]+):calls=(\d+)", told))
        # Calls within a script are counted too. A script is one call.
        return sum(int(counts.get(name, 0)) for name in ("evalsha", "eval", "fcall"))


def h2load(arguments):
    return ["taskset", "-c", "1", "h2load", "-t1", *map(str, arguments)]


def grpc_load(directory, port, number, more):
    body = directory / f"call-{number}"
    body.write_bytes(call(f"/items/{number}"))
    return h2load(["-d", body, "-H", "content-type: application/grpc", "-H", "te: trailers", *more,
                   f"http://127.0.0.1:{port}{SERVICE}"])


def throughput(directory, fleet, name, rate, redis):
    """Decisions of eight clients, each with another key."""
    store = f'[store]\nurl = "redis://127.0.0.1:{redis.port}"\n' if redis else ""
    port = fleet.tidegate(name, CONFIG.format(rate=rate) + store)
    pid = fleet.processes[-1].pid
    subprocess.run(["taskset", "-acp", "0", str(pid)], check=True, capture_output=True)
    rows = []
    for _ in range(ROUNDS):
        before, calls = cpu_s(pid), redis.calls() if redis else 0
        started = time.monotonic()
        loads = [subprocess.Popen(grpc_load(directory, port, n, ["-c1", "-m16", f"-D{SECONDS}"]),
                                  stdout=subprocess.PIPE, text=True) for n in range(CLIENTS)]
        told = [load.communicate()[0] for load in loads]
        took = time.monotonic() - started
        done = sum(int(re.search(r"(\d+) succeeded", text)[1]) for text in told)
        calls = redis.calls() - calls if redis else 0
        rows.append((done / took, (cpu_s(pid) - before) / done * 1e6, calls / done))
    rate_s, cpu_us, calls = (statistics.median(column) for column in zip(*rows))
    print(f"{name:22} {rate_s:9.0f} decisions/s  {cpu_us:6.1f} us of CPU  {calls:6.3f} calls of Redis")
    return port, pid


def memory(directory, port, pid):
    idle = resident_mib(pid)
    watch = directory / "watch"
    watch.write_bytes(framed(b""))
    streams = subprocess.Popen(
        h2load(["-d", watch, "-H", "content-type: application/grpc", "-H", "te: trailers", "-c10", "-m100",
                "-n1000", f"http://127.0.0.1:{port}{WATCH}"]), stdout=subprocess.DEVNULL)
    time.sleep(3)
    print(f"memory                 {idle:.1f} MiB, with 1,000 open streams {resident_mib(pid):.1f} MiB")
    streams.kill()
    streams.wait()


def latency(directory, fleet, port):
    """Requests through Envoy at a fixed rate, with 1,000 paths, with and without tidegate."""
    paths = directory / "paths"
    envoys = {}
    for name, text in (("without", ""), ("with", FILTER)):
        listen = free_port()
        file = directory / f"{name}.yml"
        file.write_text(ENVOY.format(listen=listen, decide=port, filter=indented(text, 18)))
        process = fleet.start(f"envoy-{name}", ["taskset", "-c", "1", PROGRAMS / "envoy", "-c", file,
                                                "--concurrency", "1", "--use-dynamic-base-id"])
        wait_for(listen, process, "/", 200)
        envoys[name] = listen
    found = {name: [] for name in envoys}
    for _ in range(ROUNDS):
        for name, listen in envoys.items():
            log = directory / "times"
            log.unlink(missing_ok=True)
            paths.write_text("\n".join(f"http://127.0.0.1:{listen}/items/{n}" for n in range(1000)))
            subprocess.run(h2load(["--h1", "-c8", "-D5", "--rps=100", "-i", paths, f"--log-file={log}"]),
                           check=True, stdout=subprocess.DEVNULL)
            rows = [line.split() for line in log.read_text().splitlines()]
            bad = [row for row in rows if row[1] != "200"]
            times = sorted(int(row[2]) for row in rows)
            assert not bad and times, (len(bad), len(times))
            found[name].append((times[len(times) // 2], times[len(times) * 99 // 100]))
    for name, rounds in found.items():
        p50, p99 = (statistics.median(column) for column in zip(*rounds))
        print(f"Envoy {name:8} tidegate p50 {p50:6.0f} us, p99 {p99:6.0f} us, rounds {rounds}")


def main():
    with tempfile.TemporaryDirectory() as folder:
        directory = pathlib.Path(folder)
        fleet = Fleet(directory, int(upstream(App).rsplit(":", 1)[1]))
        try:
            redis = Redis(fleet)
            allowed, denied = "1000000000/h", "5/h"
            throughput(directory, fleet, "embedded, allowed", allowed, None)
            throughput(directory, fleet, "embedded, denied", denied, None)
            port, pid = throughput(directory, fleet, "Redis, allowed", allowed, redis)
            throughput(directory, fleet, "Redis, denied", denied, redis)
            memory(directory, port, pid)
            latency(directory, fleet, port)
        finally:
            fleet.end()


if __name__ == "__main__":
    main()
