"""What happens to the proxies and to Redis during the run."""

import asyncio
import collections
import os
import signal
import subprocess
import time


class Events:
    def __init__(self, run):
        self.run, self.stage = run, run.stage
        self.counts = collections.Counter()
        self.failures = []
        # When the store was disturbed, Unix seconds.
        self.store_times = []

    async def live(self):
        pause = max(3.0, min(15.0, self.run.seconds / 60))
        steps = [self.reload, self.upgrade, self.break_reload, self.failover, self.reload,
                 self.freeze_master, self.upgrade, self.kill_master, self.stop_origin]
        number = 0
        while not self.run.over():
            await asyncio.sleep(pause)
            step = steps[number % len(steps)]
            number += 1
            try:
                await step()
                self.counts[step.__name__] += 1
            except (OSError, TimeoutError, subprocess.SubprocessError) as error:
                self.failures.append(f"{self.run.age():.1f} s {step.__name__}: {error!r}")

    async def reload(self):
        for proxy in self.stage.proxies:
            self.stage.write_config(proxy, f"\n# {time.time()}\n[limit.extra]\n"
                                           f"rate = \"{100 + int(time.time()) % 100}/s\"\n")
            os.kill(proxy.pid(), signal.SIGHUP)

    async def break_reload(self):
        for proxy in self.stage.proxies:
            self.stage.write_config(proxy, "\n[limit.broken]\nrate = \"soon\"\n")
            os.kill(proxy.pid(), signal.SIGHUP)
        await asyncio.sleep(1)
        for proxy in self.stage.proxies:
            self.stage.write_config(proxy)

    async def upgrade(self):
        """Only of the first proxy: the second lives as long as the run."""
        proxy = self.stage.proxies[0]
        self.stage.write_config(proxy)
        old = proxy.pid()
        os.kill(old, signal.SIGUSR2)
        async with asyncio.timeout(30):
            while proxy.pid() in (0, old):
                await asyncio.sleep(0.1)

    async def failover(self):
        self.store_times.append(time.time())
        await asyncio.to_thread(self.stage.sentinel, "failover", "main")

    async def freeze_master(self):
        self.store_times.append(time.time())
        master = self.stage.redis[await asyncio.to_thread(self.stage.master_port)]
        master.send_signal(signal.SIGSTOP)
        await asyncio.sleep(1)
        master.send_signal(signal.SIGCONT)

    async def kill_master(self):
        self.store_times.append(time.time())
        port = await asyncio.to_thread(self.stage.master_port)
        self.stage.redis[port].kill()
        async with asyncio.timeout(30):
            while (new := await asyncio.to_thread(self.stage.master_port)) == port:
                await asyncio.sleep(0.2)
        self.stage.start_redis(port, new)

    async def stop_origin(self):
        self.stage.origin.send_signal(signal.SIGSTOP)
        await asyncio.sleep(1)
        self.stage.origin.send_signal(signal.SIGCONT)
