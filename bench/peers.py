"""Shared by the measurements beside other proxies: processes, CPU time, tables."""

import os
import pathlib
import random
import signal
import socket
import statistics
import subprocess
import tempfile
import time

from running import free_port

PROGRAM = pathlib.Path(os.environ.get("TIDEGATE", "target/release/tidegate")).resolve()


class Group:
    """A process with all that it starts."""

    running = []

    def __init__(self, command, folder, core):
        words = ["taskset", "-c", core, *map(str, command)]
        self.log = open(folder / "log", "w")
        Group.running.append(self)
        self.process = subprocess.Popen(
            words, cwd=folder, start_new_session=True, stdout=self.log, stderr=self.log)

    def pids(self):
        for stat in pathlib.Path("/proc").glob("[0-9]*/stat"):
            try:
                fields = stat.read_text().rsplit(")", 1)[1].split()
            except OSError:
                continue
            if int(fields[2]) == self.process.pid:
                yield stat.parent

    def cpu_us(self):
        return sum(int(task.read_text().split()[0]) / 1000
                   for pid in self.pids() for task in pid.glob("task/*/schedstat"))

    def end(self):
        os.killpg(self.process.pid, signal.SIGTERM)
        self.process.wait()
        self.log.close()
        Group.running.remove(self)


def wait_for(port):
    until = time.monotonic() + 10
    while True:
        try:
            return socket.create_connection(("127.0.0.1", port)).close()
        except OSError:
            if time.monotonic() > until:
                raise
            time.sleep(0.02)


# As root, nginx would read the files as another user, who may not.
_USER = "user root;" if os.geteuid() == 0 else ""
_NGINX = """{user} daemon off; worker_processes {workers}; pid {root}/pid; error_log stderr crit;
events {{ worker_connections 4096; }}
http {{ access_log off; keepalive_requests 1000000000; keepalive_timeout 60s;
client_body_temp_path {root}/b; proxy_temp_path {root}/p; fastcgi_temp_path {root}/f;
uwsgi_temp_path {root}/u; scgi_temp_path {root}/s;
{inner} }}
"""


def nginx_command(folder, workers, inner):
    """nginx with `inner` as its http block."""
    text = _NGINX.format(user=_USER, root=folder, workers=workers, inner=inner)
    (folder / "nginx.conf").write_text(text)
    return ["nginx", "-p", folder, "-c", folder / "nginx.conf"]


class Proxy:
    """A proxy that listens. `command` makes its configuration and says how it starts, or None."""

    def __init__(self, scratch, workers, command):
        folder = pathlib.Path(tempfile.mkdtemp(dir=scratch))
        self.port = free_port()
        words = command(folder, self.port)
        self.group = None
        if words:
            self.group = Group(words, folder, "0" if workers == 1 else "0,1")
            wait_for(self.port)


def in_turn(names, start, load, number):
    """CPU time of each proxy, microseconds for one of `number`. Their order is drawn."""
    found = {}
    for name in random.sample(names, len(names)):
        proxy = start(name)
        if proxy.group is None:
            continue
        load(proxy, max(number // 10, 64))
        before = proxy.group.cpu_us()
        load(proxy, number)
        found[name] = (proxy.group.cpu_us() - before) / number
        proxy.group.end()
    return found


def table(names, rounds, of, others=("nginx", "HAProxy")):
    """Prints `of` the rounds of each row, and tidegate's part of the better of `others`."""
    print("| CPU, us | " + " | ".join(names) + " | of the better other |")
    print("|---|" + "--:|" * (len(names) + 1))
    for title, seen in rounds.items():
        cells = [f"{of(one[name] for one in seen):.1f}" if name in seen[0] else "-"
                 for name in names]
        shares = [one["tidegate"] / min(one[name] for name in others if name in one)
                  for one in seen]
        cells.append(f"{statistics.median(shares):.2f} ({min(shares):.2f} to {max(shares):.2f})")
        print(f"| {title} | " + " | ".join(cells) + " |")


def end_all():
    for group in list(Group.running):
        group.end()
