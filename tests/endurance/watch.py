"""The memory and the descriptors of the proxies, once a second."""

import asyncio
import dataclasses
import os
import pathlib
import statistics

# A line through the last two thirds may rise by this share, or by this much.
GROWTH_SHARE, GROWTH_KIB, GROWTH_DESCRIPTORS = 0.03, 1024, 10
# A process that has begun fills its memory for this long, seconds.
WARM_S = 20


@dataclasses.dataclass
class Sample:
    second: float
    pid: int
    kib: int
    descriptors: int


def look(second, pid):
    status = pathlib.Path(f"/proc/{pid}/status").read_text()
    kib = next(line.split()[1] for line in status.splitlines() if line.startswith("VmRSS"))
    return Sample(second, pid, int(kib), len(os.listdir(f"/proc/{pid}/fd")))


async def live(run):
    while not run.over():
        for proxy in run.stage.proxies:
            try:
                run.samples[proxy.name].append(look(run.age(), proxy.pid()))
            except (OSError, StopIteration):
                pass
        await asyncio.sleep(1)


def rise(samples, field):
    """How much a line through the last two thirds rises, and its first value."""
    kept = samples[len(samples) // 3:]
    times = [one.second for one in kept]
    values = [getattr(one, field) for one in kept]
    if len(kept) < 3:
        return 0, values[0] if values else 0
    line = statistics.linear_regression(times, values)
    return line.slope * (times[-1] - times[0]), statistics.mean(values[:5])


def generations(samples):
    """The samples of each process, without its first seconds."""
    found = {}
    for one in samples:
        found.setdefault(one.pid, []).append(one)
    grown = [[one for one in own if one.second - own[0].second >= WARM_S] for own in found.values()]
    return [own for own in grown if own]
