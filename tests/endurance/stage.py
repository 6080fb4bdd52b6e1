"""The processes of the run: Redis with replicas and sentinels, the origin, and two proxies."""

import dataclasses
import os
import pathlib
import signal
import socket
import subprocess
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent))
from running import free_port  # noqa: E402

CONFIG = """\
listen = "127.0.0.1:{plain}"
admin  = "127.0.0.1:{admin}"

[server]
pid_file      = "{name}.pid"
control       = "{name}.sock"
drain_timeout = "10s"
header_timeout = "5s"
body_timeout  = "5s"

[tls]
listen       = "127.0.0.1:{tls}"
certificates = {{ cert = "cert.pem", key = "key.pem" }}

[store]
url = "redis+sentinel://{sentinels}/main/0"

[upstream.origin]
servers = ["http://127.0.0.1:{origin}"]

[limit.wide]
rate = "100000/s"
key  = "header:x-client"

[limit.hot]
rate = "5/s"
key  = "header:x-client"
ban  = {{ after = "50/10s", for = "5s" }}

[limit.counted]
rate = "{units}/{window_s}s"
key  = "header:x-client"

[limit.together]
concurrent = 4
key        = "header:x-client"

[[route]]
path     = "/hot/*"
upstream = "origin"
limits   = ["hot"]

[[route]]
path     = "/counted/*"
upstream = "origin"
limits   = ["counted"]

[[route]]
path     = "/together/*"
upstream = "origin"
limits   = ["together", "wide"]

[[route]]
path     = "/*"
upstream = "origin"
limits   = ["wide"]
"""
UNITS, WINDOW_S = 20, 2


@dataclasses.dataclass
class Proxy:
    name: str
    folder: pathlib.Path
    plain: int
    tls: int
    admin: int
    log: pathlib.Path

    def pid(self):
        try:
            return int((self.folder / f"{self.name}.pid").read_text())
        except (OSError, ValueError):
            return 0


def wait_for(is_ready, what, seconds=30):
    end = time.monotonic() + seconds
    while not is_ready():
        if time.monotonic() > end:
            sys.exit(f"{what}: not ready after {seconds} s")
        time.sleep(0.05)


def is_open(port):
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


class Stage:
    def __init__(self, folder):
        self.folder = pathlib.Path(folder)
        self.processes = []
        self.redis_ports = [free_port() for _ in range(3)]
        self.sentinel_ports = [free_port() for _ in range(3)]
        self.redis = {}
        for port in self.redis_ports:
            self.start_redis(port, None if port == self.redis_ports[0] else self.redis_ports[0])
        for number, port in enumerate(self.sentinel_ports):
            self.start_sentinel(number, port)
        self.origin_port = free_port()
        origin = pathlib.Path(__file__).with_name("origin.py")
        self.origin = self.spawn([sys.executable, str(origin), str(self.origin_port)], "origin")
        subprocess.run(
            ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256",
             "-nodes", "-keyout", "key.pem", "-out", "cert.pem", "-days", "30",
             "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"],
            cwd=self.folder, check=True, capture_output=True)
        self.proxies = [self.start_proxy(name) for name in ("a", "b")]

    def spawn(self, words, name):
        with open(self.folder / f"{name}.log", "ab") as log:
            process = subprocess.Popen(words, cwd=self.folder, stdout=log, stderr=log)
        self.processes.append(process)
        return process

    def start_redis(self, port, master):
        words = ["redis-server", "--port", str(port), "--save", "", "--appendonly", "no",
                 "--repl-diskless-sync-delay", "0", "--dir", str(self.folder)]
        if master:
            words += ["--replicaof", f"127.0.0.1 {master}"]
        self.redis[port] = self.spawn(words, f"redis-{port}")
        wait_for(lambda: is_open(port), "redis")

    def start_sentinel(self, number, port):
        file = self.folder / f"sentinel-{number}.conf"
        file.write_text(
            f"port {port}\nsentinel monitor main 127.0.0.1 {self.redis_ports[0]} 2\n"
            "sentinel down-after-milliseconds main 1500\nsentinel failover-timeout main 6000\n")
        self.spawn(["redis-server", str(file), "--sentinel"], f"sentinel-{number}")
        wait_for(lambda: is_open(port), "sentinel")

    def start_proxy(self, name):
        proxy = Proxy(name, self.folder, free_port(), free_port(), free_port(),
                      self.folder / f"{name}.log")
        self.write_config(proxy)
        self.spawn([os.environ["TIDEGATE"], "run", "-c", f"{name}.toml"], name)
        wait_for(lambda: is_open(proxy.plain) and is_open(proxy.tls) and proxy.pid(), "tidegate")
        return proxy

    def write_config(self, proxy, more=""):
        text = CONFIG.format(
            name=proxy.name, plain=proxy.plain, tls=proxy.tls, admin=proxy.admin,
            origin=self.origin_port, units=UNITS, window_s=WINDOW_S,
            sentinels=",".join(f"127.0.0.1:{port}" for port in self.sentinel_ports))
        (self.folder / f"{proxy.name}.toml").write_text(text + more)

    def sentinel(self, *words):
        for port in self.sentinel_ports:
            run = subprocess.run(["redis-cli", "-p", str(port), "sentinel", *words],
                                 capture_output=True, text=True, timeout=10)
            if run.returncode == 0 and run.stdout.strip():
                return run.stdout.split()
        return []

    def master_port(self):
        return int((self.sentinel("get-master-addr-by-name", "main") or [0, 0])[1])

    def stop(self):
        """Ends the processes in order. Returns the proxies that did not end by themselves."""
        late = []
        for proxy in self.proxies:
            pid = proxy.pid()
            if not pid:
                continue
            os.kill(pid, signal.SIGTERM)
            try:
                wait_for(lambda pid=pid: not pathlib.Path(f"/proc/{pid}/stat").exists()
                         or " Z " in pathlib.Path(f"/proc/{pid}/stat").read_text(), "end", 20)
            except (SystemExit, OSError):
                late.append(proxy.name)
        for process in reversed(self.processes):
            if process.poll() is None:
                process.send_signal(signal.SIGCONT)
                process.terminate()
        for process in self.processes:
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
        return late
