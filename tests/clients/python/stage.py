"""What a test stands on: a running tidegate, the upstream behind it, and a deadline.

Everything listens on a free loopback port and is ended with the test class that started it.
"""

import atexit
import contextlib
import functools
import hashlib
import itertools
import json
import os
import pathlib
import re
import signal
import socket
import subprocess
import tempfile
import threading
import time
import unittest
import urllib.request

# Long for a machine that does much else; nothing takes so long where all is well.
TEST_SECONDS = 60
START_SECONDS = 30
# What such a machine may add to a time that is measured.
BUSY_SECONDS = 4
LARGE_BYTES = 64 << 20
# How much more memory the proxy may take while LARGE_BYTES go through it.
FLAT_KIB = 8 << 10


class Upstream:
    """upstream.mjs in a process of its own, which ends with this one."""

    def __init__(self):
        script = pathlib.Path(__file__).parent.parent / "upstream.mjs"
        self._process = subprocess.Popen(
            ["node", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        atexit.register(self._process.kill)
        self.url = self._process.stdout.readline().strip()
        if not self.url.startswith("http://"):
            raise RuntimeError("the upstream did not start")

    def ask(self, target):
        """A question past the proxy: /sha256/N or /seen/ID."""
        with urllib.request.urlopen(self.url + target, timeout=10) as answer:
            return answer.read().decode()

    def seen(self, request_id):
        """How many requests with `?id=` of this value came, were given up, and closed how."""
        return json.loads(self.ask(f"/seen/{request_id}"))


@functools.cache
def upstream():
    """The one upstream of this run."""
    return Upstream()


@functools.cache
def large_sha256():
    """The hash of /bytes/LARGE_BYTES."""
    return upstream().ask(f"/sha256/{LARGE_BYTES}")


class Proxy:
    """A tidegate process on a configuration of its own."""

    def __init__(self, config, to=None, server=""):
        """`config` is all but where it listens, where it forwards to, `[server]` and `[log]`.

        Each test is a client with an API key of its own, which is believed.
        """
        if '"api_key' in config:
            config += '\n[api_key]\nunknown = "trust"\n'
        self._folder = tempfile.TemporaryDirectory(prefix="tidegate-clients-")
        path = pathlib.Path(self._folder.name, "proxy.toml")
        # A file names its upstream at the top or has tables of them.
        forward = "" if "[upstream." in config else f'upstream = "{to or upstream().url}"'
        self.socket_path = str(pathlib.Path(self._folder.name, "socket"))
        path.write_text(
            f'listen = ["127.0.0.1:0", "unix:{self.socket_path}"]\n{forward}\n{config}\n'
            f'[server]\nworkers = 2\n{server}\n[log]\naccess = "off"\n'
        )
        self.process = subprocess.Popen(
            [os.environ["TIDEGATE"], "run", "-c", path], stderr=subprocess.PIPE, text=True
        )
        self.said = []
        self._listening = threading.Event()
        self.url = None
        threading.Thread(target=self._listen_to_it, daemon=True).start()
        if not self._listening.wait(START_SECONDS) or self.url is None:
            self.stop()
            raise RuntimeError("tidegate did not start:\n" + "".join(self.said))
        self.port = int(self.url.rsplit(":", 1)[1])

    def _listen_to_it(self):
        for line in self.process.stderr:
            self.said.append(line)
            found = re.match(r"listening\s+(http://127\.0\.0\.1:\d+)", line)
            if found:
                self.url = found[1]
                self._listening.set()
        self._listening.set()

    @property
    def websocket_url(self):
        return "ws" + self.url.removeprefix("http")

    def terminate(self):
        self.process.send_signal(signal.SIGTERM)

    def stop(self):
        """Ends it, and does not wait for politeness: a test of that calls `terminate`."""
        self.process.kill()
        self.process.wait()
        self.process.stderr.close()
        self._folder.cleanup()

    def _memory_kib(self, field):
        status = pathlib.Path(f"/proc/{self.process.pid}/status").read_text()
        return int(re.search(rf"^{field}:\s+(\d+) kB$", status, re.M)[1])

    @contextlib.contextmanager
    def flat_memory(self, test):
        """Fails `test` if the proxy's peak memory within the block leaves its level before."""
        before = self._memory_kib("VmRSS")
        # Resets the peak, so that an earlier one does not hide a new one (proc(5)).
        pathlib.Path(f"/proc/{self.process.pid}/clear_refs").write_text("5")
        yield
        peak = self._memory_kib("VmHWM")
        test.assertLessEqual(peak - before, FLAT_KIB, f"KiB grown from {before} to {peak}")


class Case(unittest.TestCase):
    """A test against the proxy that its class configures; none may hang."""

    config = None
    # Whether each test has a proxy of its own, since they count by what they all share.
    apart = False
    maxDiff = None

    @classmethod
    def setUpClass(cls):
        if cls.config is not None and not cls.apart:
            cls.proxy = Proxy(cls.config)
            cls.addClassCleanup(cls.proxy.stop)
            cls.url = cls.proxy.url

    def setUp(self):
        if self.apart:
            self.proxy = Proxy(self.config)
            self.addCleanup(self.proxy.stop)
            self.url = self.proxy.url
        # A budget of its own for each test, and a name for what it sends upstream.
        self.key = self.id()
        signal.signal(signal.SIGALRM, self._too_late)
        signal.setitimer(signal.ITIMER_REAL, TEST_SECONDS)
        self.addCleanup(signal.setitimer, signal.ITIMER_REAL, 0)

    def _too_late(self, _signal, _frame):
        raise TimeoutError(f"the test took longer than {TEST_SECONDS} s")

    @contextlib.contextmanager
    def assert_seconds(self, least, most):
        """The block takes at least and at most so long; the machine may add its part."""
        started = time.monotonic()
        yield
        took = time.monotonic() - started
        self.assertGreaterEqual(took, least)
        self.assertLessEqual(took, most + BUSY_SECONDS)

    def eventually(self, true, seconds=20):
        """Waits until `true()` is."""
        deadline = time.monotonic() + seconds
        while not true():
            self.assertLess(time.monotonic(), deadline, "it did not become true in time")
            time.sleep(0.02)


def _ports():
    """Ports below those that the kernel hands out by itself, from a place of this process's own."""
    first, last = 10_240, 32_000
    for turn in itertools.count(os.getpid() * 97):
        yield first + turn % (last - first)


_PORTS = _ports()


def free_port():
    """A port that nobody listens on, and that nobody gets who asks the kernel for any."""
    for port in _PORTS:
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port


class LargeBody:
    """LARGE_BYTES in pieces that all differ; `sha256` once they have been taken."""

    def __init__(self):
        self._digest = hashlib.sha256()

    def __iter__(self):
        block = os.urandom(1 << 20)
        for number in range(LARGE_BYTES >> 20):
            piece = number.to_bytes(4, "big") + block[4:]
            self._digest.update(piece)
            yield piece

    @property
    def sha256(self):
        return self._digest.hexdigest()
