"""Everything at once for a long time: endurance.py SECONDS [REPORT]. Exits with 1 if a check fails.

Two proxies share one Redis with replicas and sentinels. See CONTRIBUTING.md.
"""

import asyncio
import collections
import json
import logging
import os
import pathlib
import statistics
import sys
import tempfile
import time

import clients
import httpx
import rude
import watch
from events import Events
from stage import UNITS, WINDOW_S, Stage

# A disturbed store may let more pass for this long, seconds (docs/outages.md, "Cases that remain").
DISTURBED_S = 12


class Run:
    def __init__(self, stage, seconds):
        self.stage, self.seconds = stage, seconds
        self.began = time.monotonic()
        self.tally = clients.Tally()
        self.samples = collections.defaultdict(list)
        self.events = Events(self)
        self.noted = {}

    def age(self):
        return time.monotonic() - self.began

    def over(self):
        return self.age() >= self.seconds

    def clients(self):
        for proxy in self.stage.proxies:
            for tls in (False, True):
                yield clients.Client(self, "kept", proxy, tls, names=300)
                yield clients.Client(self, "fresh", proxy, tls, names=1000, uses=1, pause=0.1)
            upload = clients.Client(self, "upload", proxy, names=10, pause=0.2)
            upload.most_body = 256 * 1024
            yield upload
            yield clients.Client(self, "hot", proxy, path="/hot", pause=0.05)
            for _ in range(6):
                yield clients.Client(self, "together", proxy, path="/together", pause=0.2)
            for _ in range(2):
                yield clients.Client(self, "counted", proxy, path="/counted", names=2, pause=0.06)

    async def live(self):
        others = [watch.live(self), self.events.live()]
        for proxy in self.stage.proxies:
            others += [clients.tunnel(self, proxy), clients.http2(self, proxy, httpx)]
            others += [rude.live(self, proxy) for _ in range(6)]
        await asyncio.gather(*others, *(one.live() for one in self.clients()))
        async with asyncio.timeout(10):
            port = self.stage.origin_port
            direct = await asyncio.open_connection("127.0.0.1", port, limit=1 << 28)
            direct[1].write(b"GET /_noted HTTP/1.1\r\nHost: a\r\n\r\n")
            answer = await clients.Connection(*direct).read(await direct[0].readline())
        self.noted = json.loads(answer.body)


def fullest(requests, window_s):
    """The most requests that were decided in one window, whatever time they took.

    The store has decided a request after it was sent and before the origin read it.
    """
    requests = sorted(requests, key=lambda one: one["sent"])
    most = 0
    for index, first in enumerate(requests):
        count = 0
        for one in requests[index:]:
            if one["sent"] >= first["sent"] + window_s:
                break
            count += one["read"] < first["sent"] + window_s
        most = max(most, count)
    return most


def part_ms(times, share):
    return 1000 * times[min(len(times) - 1, int(len(times) * share))]


def listed(counts):
    return ", ".join(f"{name} {count}" for name, count in sorted(counts.items()))


class Report:
    def __init__(self, run, late):
        self.run, self.late = run, late
        self.lines, self.failed = [], []

    def check(self, holds, text):
        self.lines.append(f"| {'yes' if holds else '**no**'} | {text} |")
        if not holds:
            self.failed.append(text)

    def windows(self):
        disturbed = self.run.events.store_times
        for client, requests in sorted(self.run.noted.items()):
            calm = [one for one in requests
                    if not any(-1 <= one["sent"] - event <= DISTURBED_S for event in disturbed)]
            most, ever = fullest(calm, WINDOW_S), fullest(requests, WINDOW_S)
            self.check(most <= UNITS,
                       f"`{client}`: the fullest window of {WINDOW_S} s had {most} of {UNITS} "
                       f"requests, {ever} near disturbances of the store; {len(requests)} passed")

    def memory(self):
        a, b = self.run.stage.proxies
        for field, unit, least in (("kib", "KiB", watch.GROWTH_KIB),
                                   ("descriptors", "descriptors", watch.GROWTH_DESCRIPTORS)):
            risen, first = watch.rise(self.run.samples[b.name], field)
            most = max(first * watch.GROWTH_SHARE, least)
            self.check(risen <= most, f"proxy b, which lived as long as the run: {unit} rose by "
                       f"{risen:.0f} from {first:.0f} in the last two thirds; at most {most:.0f}")
            own = watch.generations(self.run.samples[a.name])
            medians = [statistics.median(getattr(one, field) for one in each) for each in own]
            if len(medians) > 3:
                most = medians[0] * 1.1 + least
                self.check(max(medians[-3:]) <= most,
                           f"proxy a, {len(medians)} processes: the median of {unit} was "
                           f"{medians[0]:.0f} in the first, {max(medians[-3:]):.0f} in the last "
                           f"three; at most {most:.0f}")

    def logs(self):
        bad = []
        for proxy in self.run.stage.proxies:
            for line in proxy.log.read_text(errors="replace").splitlines():
                if "panic" in line or "\"level\":\"ERROR\"" in line and "reload" not in line:
                    bad.append(f"{proxy.name}: {line[:300]}")
        self.check(not bad, f"no panic and no unexpected error in the logs: {bad[:3] or 'none'}")

    def text(self):
        run, tally = self.run, self.run.tally
        lost = tally.unanswered
        self.check(not lost, f"requests without an answer: {len(lost)} {lost[:5] or ''}")
        self.check(not tally.wrong, f"wrong answers: {len(tally.wrong)} {tally.wrong[:3] or ''}")
        self.check(not run.events.failures, f"events that failed: {run.events.failures or 'none'}")
        self.windows()
        self.memory()
        self.logs()
        self.check(not self.late, f"processes that did not end within 20 s: {self.late or 'none'}")
        times = sorted(tally.seconds) or [0]
        rows = [f"| {kind} {status} | {count} |"
                for (kind, status), count in sorted(tally.statuses.items())]
        return "\n".join([
            f"# {run.seconds} s of everything at once", "",
            f"- events: {listed(run.events.counts)}",
            f"- misbehaving clients: {listed(tally.rude)}",
            f"- sent again, because a kept connection had ended: {listed(tally.retried) or 'none'}",
            f"- WebSocket messages: {tally.messages}, tunnels that ended: {tally.cut_tunnels}",
            f"- time to an answer: median {part_ms(times, 0.5):.1f} ms, "
            f"p99 {part_ms(times, 0.99):.1f} ms, longest {part_ms(times, 1):.0f} ms", "",
            "| holds | check |", "|---|---|", *self.lines, "",
            "| kind and status | answers |", "|---|--:|", *rows, ""])


def main():
    seconds = int(sys.argv[1])
    # It warns of each write to a connection that the proxy has ended.
    logging.getLogger("asyncio").setLevel(logging.ERROR)
    with tempfile.TemporaryDirectory(prefix="endurance-") as folder:
        stage = Stage(folder)
        late = []
        try:
            run = Run(stage, seconds)
            asyncio.run(run.live())
        finally:
            late = stage.stop()
        report = Report(run, late)
        text = report.text()
        if os.environ.get("KEEP_LOGS"):
            for log in pathlib.Path(folder).glob("*.log"):
                (pathlib.Path(os.environ["KEEP_LOGS"]) / log.name).write_bytes(log.read_bytes())
    print(text)
    if len(sys.argv) > 2:
        pathlib.Path(sys.argv[2]).write_text(text)
    sys.exit(1 if report.failed else 0)


if __name__ == "__main__":
    main()
