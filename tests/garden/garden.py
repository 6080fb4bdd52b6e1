"""Every client before every origin, through tidegate: garden.py PAGE. See run.sh.

Each request has an id. The origin notes what it read of which id, and the proxy counts what it
charged. The answer, the note and the charge must be those of the request.
"""

import collections
import concurrent.futures
import contextlib
import copy
import dataclasses
import hashlib
import http.client
import itertools
import json
import os
import pathlib
import random
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
import tomllib

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent))
import raw  # noqa: E402
from origins import ORIGINS, PLAIN, PYTHON  # noqa: E402
from running import free_port  # noqa: E402

HERE = pathlib.Path(__file__).parent
LIMIT = 1_000_000
NODE = pathlib.Path(os.environ["GARDEN_NODE"])
PYTHON_CLIENTS = ("requests", "urllib3", "httpx", "httpx_h2", "aiohttp")
NODE_CLIENTS = ("undici", "got", "axios")
TOOLS = ("curl", "curl, HTTP/2", "wget")
# Methods and bodies of one pair; True for a body in chunks.
EXCHANGES = (
    ("GET", "/echo", 0, False), ("HEAD", "/echo", 0, False), ("OPTIONS", "/echo", 0, False),
    ("DELETE", "/echo", 0, False), ("POST", "/echo", 1, False), ("PUT", "/echo", 70_000, False),
    ("PATCH", "/echo", 300, False), ("POST", "/echo", 5 << 20, False),
    ("POST", "/echo", 70_000, True),
    ("GET", "/none", 0, False), ("GET", "/chunked", 0, False), ("POST", "/chunked", 2_000, True),
    ("GET", "/large", 0, False), ("GET", "/echo", 0, False),
)
LARGE = hashlib.sha256(bytes(range(256)) * 4096).hexdigest()


@dataclasses.dataclass
class Result:
    client: str
    origin: str
    requests: int
    failures: list
    # Failures that the client and the origin have without the proxy as well.
    shared: list = dataclasses.field(default_factory=list)


class Servers:
    def __init__(self, folder):
        self.folder = pathlib.Path(folder)
        self.folder.chmod(0o755)
        self.processes = []
        self.ports = {}
        self.log = self.folder / "garden.log"
        self.log.touch()
        self.missing = []

    def spawn(self, words, folder):
        folder.mkdir(exist_ok=True)
        # Some servers become another user when root starts them.
        for one in (folder, *folder.iterdir()):
            one.chmod(0o777 if one.is_dir() else 0o644)
        environment = {**os.environ, "GARDEN_LOG": str(self.log), "HOME": str(folder),
                       "PYTHONPATH": str(HERE / "apps")}
        with open(folder / "output.log", "wb") as log:
            process = subprocess.Popen([str(word) for word in words], cwd=folder, stdout=log,
                                       stderr=log, env=environment, start_new_session=True)
        self.processes.append(process)
        return process

    def start(self):
        behind = free_port()
        self.spawn([PYTHON, HERE / "apps" / "others.py", "behind", behind], self.folder / "behind")
        for origin in ORIGINS:
            port = self.ports.setdefault(origin.name, free_port())
            folder = self.folder / origin.name.replace(" ", "-").replace(",", "")
            folder.mkdir()
            self.spawn(origin.start(folder, port, behind), folder)
        for origin in ORIGINS:
            port = self.ports[origin.name]
            if not opens(port) or origin.scheme == "http" and not answers(port):
                self.missing.append(origin.name)
        self.start_proxy()

    def start_proxy(self):
        self.proxy, self.admin = free_port(), free_port()
        text = f"""listen = "127.0.0.1:{self.proxy}"
admin = "127.0.0.1:{self.admin}"
[limit.all]
rate = "{LIMIT}/day"
key = "header:x-pair or ip"
[log]
access = "off"
"""
        for number, origin in enumerate(ORIGINS):
            text += f"""[upstream.o{number}]
servers = ["{origin.scheme}://127.0.0.1:{self.ports[origin.name]}"]
[[route]]
path = "/o{number}/*"
upstream = "o{number}"
strip_prefix = "/o{number}"
limits = ["all"]
body_limit = "20MiB"
"""
            if origin.is_grpc:
                text += f"""[[route]]
path = "/*"
upstream = "o{number}"
limits = ["all"]
"""
        folder = self.folder / "tidegate"
        folder.mkdir()
        (folder / "proxy.toml").write_text(text)
        self.spawn([os.environ["TIDEGATE"], "run", "-c", "proxy.toml"], folder)
        if not opens(self.proxy):
            sys.exit((folder / "output.log").read_text())

    def without_proxy(self):
        """The same servers, asked without the proxy."""
        direct = copy.copy(self)
        direct.url = lambda origin: f"http://127.0.0.1:{self.ports[origin.name]}"
        direct.charged = lambda pair: None
        return direct

    def url(self, origin):
        return f"http://127.0.0.1:{self.proxy}/o{ORIGINS.index(origin)}"

    def noted(self, ids):
        found = collections.defaultdict(list)
        for line in self.log.read_text().splitlines():
            told = json.loads(line)
            if told["id"] in ids:
                found[told["id"]].append(told)
        return found

    def charged(self, pair):
        """What the proxy has charged a pair, without this question."""
        connection = http.client.HTTPConnection("127.0.0.1", self.proxy, timeout=20)
        connection.request("GET", f"/o{ORIGINS.index(PLAIN)}/echo", headers={"X-Pair": pair})
        answer = connection.getresponse()
        answer.read()
        left = int(answer.getheader("X-RateLimit-Remaining"))
        connection.close()
        return LIMIT - left - 1

    def stop(self):
        for process in self.processes:
            try:
                os.killpg(process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            process.wait()


def opens(port):
    for _ in range(300):
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return True
        time.sleep(0.1)
    return False


def answers(port):
    """Whether it answers with 200 in time. Some servers listen before they are ready."""
    for _ in range(300):
        try:
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
            with contextlib.closing(connection) as one:
                one.request("GET", "/echo")
                if one.getresponse().status == 200:
                    return True
        except (OSError, http.client.HTTPException):
            pass
        time.sleep(0.1)
    return False


def name_of():
    return f"{random.getrandbits(64):016x}"


def make_requests(url, pair, exchanges):
    for method, path, size, chunked in exchanges:
        name = name_of()
        yield {"id": name, "method": method, "url": f"{url}{path}?id={name}", "bytes": size,
               "chunked": chunked, "path": path,
               "headers": {"X-Name": name, "X-Pair": pair,
                           **({"Content-Type": "application/octet-stream"} if size else {})}}


def ask_tool(client, request, folder):
    """One request with curl or wget."""
    body = os.urandom(request["bytes"])
    data, head, out = (folder / f"{request['id']}-{part}" for part in ("data", "head", "out"))
    data.write_bytes(body)
    fields = [f"{name}: {value}" for name, value in request["headers"].items()]
    if client == "wget":
        words = ["wget", "-q", "--server-response", "--content-on-error", "--tries=1",
                 "--timeout=20", f"--method={request['method']}", "-O", out]
        words += [f"--header={field}" for field in fields]
        words += [f"--body-file={data}"] if body else []
        said = subprocess.run([*words, request["url"]], capture_output=True, text=True).stderr
        head.write_text("\n".join(line.strip() for line in said.splitlines()))
    else:
        words = ["curl", "-s", "-S", "--max-time", "20", "-D", head, "-o", out]
        words += ["--http2-prior-knowledge"] if "2" in client else []
        words += [word for field in fields for word in ("-H", field)]
        words += ["-I"] if request["method"] == "HEAD" else ["-X", request["method"]]
        if request["chunked"]:
            words += ["-H", "Transfer-Encoding: chunked"] if "2" not in client else []
            words += ["-T", "-"]
            words[words.index("-X") + 1] = request["method"]
        elif body:
            words += ["--data-binary", f"@{data}", "-H", "Expect:"]
        with open(data, "rb") as source:
            subprocess.run([*words, request["url"]], stdin=source, capture_output=True)
    lines = head.read_text().splitlines() if head.exists() else []
    statuses = [line for line in lines if line.startswith("HTTP/")]
    names = [line.split(":", 1)[1].strip() for line in lines if line.lower().startswith("x-name:")]
    content = out.read_bytes() if out.exists() and request["method"] != "HEAD" else b""
    for file in (data, head, out):
        file.unlink(missing_ok=True)
    return {"id": request["id"], "status": int(statuses[-1].split()[1]) if statuses else 0,
            "answered": names[-1] if names else "", "sent": hashlib.sha256(body).hexdigest(),
            "sha256": hashlib.sha256(content).hexdigest(), "length": len(content),
            "text": content[:300].decode("latin-1")}


def ask(client, requests, folder):
    if client in TOOLS:
        return [ask_tool(client, request, folder) for request in requests]
    words = [PYTHON, HERE / "client.py", client]
    if client in NODE_CLIENTS or client == "ws":
        words = ["node", NODE / "client.mjs", client]
    run = subprocess.run([str(word) for word in words], input=json.dumps(requests), text=True,
                         capture_output=True, timeout=120)
    if run.returncode:
        raise RuntimeError(run.stderr.strip().splitlines()[-1:] or "no answer")
    return json.loads(run.stdout)


def judge(request, answer, notes):
    """What is wrong with the answer to a request, and with what its origin has read."""
    expected = 204 if request["path"] == "/none" else 200
    if answer["status"] != expected:
        return f"status {answer['status']}"
    if answer["answered"] != request["id"]:
        return f"the answer is to {answer['answered']!r}"
    if len(notes) != 1:
        return f"the origin read it {len(notes)} times"
    told = notes[0]
    if (told["method"], told["bytes"], told["sha256"]) != (
            request["method"], request["bytes"], answer["sent"]):
        return f"the origin read {told['method']} with {told['bytes']} bytes"
    if request["method"] == "HEAD" or expected == 204:
        return "a body came" if answer["length"] else ""
    if request["path"] == "/large":
        return "" if answer["sha256"] == LARGE else "another body came"
    is_own = f'"id": "{request["id"]}"' in answer["text"].replace('":"', '": "')
    return "" if is_own else f"another body came: {answer['text'][:60]!r}"


def try_pair(servers, client, origin, folder):
    pair = name_of()
    exchanges = [one for one in EXCHANGES if not (one[3] and client == "wget")]
    requests = list(make_requests(servers.url(origin), pair, exchanges))
    try:
        answers = ask(client, requests, folder)
    except (RuntimeError, subprocess.TimeoutExpired) as error:
        return Result(client, origin.name, len(requests), [str(error)])
    notes = servers.noted({request["id"] for request in requests})
    failures = []
    for request, answer in zip(requests, answers):
        if wrong := judge(request, answer, notes[request["id"]]):
            failures.append(f"{request['method']} {request['path']} of {request['bytes']} bytes"
                            f"{' in chunks' if request['chunked'] else ''}: {wrong}")
    charged = servers.charged(pair)
    if charged not in (None, len(requests)):
        failures.append(f"charged {charged} of {len(requests)} requests")
    return Result(client, origin.name, len(requests), failures)


def try_echo(servers, client, origin, folder):
    """WebSockets, or gRPC: the bytes come back, and each call is charged once."""
    pair = name_of()
    url = servers.url(origin) if not origin.is_grpc else f"http://127.0.0.1:{servers.proxy}"
    path = "" if origin.is_grpc else "/ws"
    exchanges = [("GET", path, size, chunked) for size in (1, 125, 126, 70_000, 1 << 20)
                 for chunked in ((False, True) if origin.is_grpc else (False,))]
    requests = list(make_requests(url, pair, exchanges))
    try:
        answers = ask(client, requests, folder)
    except (RuntimeError, subprocess.TimeoutExpired) as error:
        return Result(client, origin.name, len(requests), [str(error)])
    failures = [f"message of {request['bytes']} bytes: another one came back"
                for request, answer in zip(requests, answers) if answer["sha256"] != answer["sent"]]
    if (charged := servers.charged(pair)) not in (None, len(requests)):
        failures.append(f"charged {charged} of {len(requests)} calls")
    return Result(client, origin.name, len(requests), failures)


def try_raw(servers, origin):
    pair = name_of()
    requests, failures = raw.try_all(servers, origin, pair)
    if (charged := servers.charged(pair)) not in (None, requests):
        failures.append(f"charged {charged} of {requests} requests")
    return Result("raw sockets", origin.name, requests, failures)


def try_with_control(job, servers, *words):
    """Tries a pair. What fails is tried without the proxy too: then it is no fault of the proxy."""
    result = job(servers, *words)
    origin = next(word for word in words if hasattr(word, "scheme"))
    if result.failures and origin.scheme == "http":
        control = job(servers.without_proxy(), *words)
        result.shared = [one for one in result.failures if one in control.failures]
        result.failures = [one for one in result.failures if one not in control.failures]
    return result


def jobs(servers, folder):
    for origin in ORIGINS:
        if origin.name in servers.missing:
            continue
        if origin.is_grpc:
            yield try_echo, servers, "grpcio", origin, folder
            continue
        for client in itertools.chain(PYTHON_CLIENTS, NODE_CLIENTS, TOOLS):
            yield try_pair, servers, client, origin, folder
        yield try_raw, servers, origin
        if origin.tunnels:
            for client in ("websockets", "ws"):
                yield try_echo, servers, client, origin, folder


def version_of(origin):
    run = subprocess.run([str(word) for word in origin.version], capture_output=True, text=True)
    found = re.search(r"\d+\.\d+(\.\d+)*", run.stdout + run.stderr)
    return found[0] if found else ""


def told(result):
    text = str(result.requests)
    if result.failures:
        text += f", {len(result.failures)} differ"
    return f"{text} ({len(result.shared)})" if result.shared else text


def page(results, servers, known):
    clients = list(dict.fromkeys(one.client for one in results))
    cells = {(one.client, one.origin): one for one in results}
    lines = ["| origin | release | " + " | ".join(clients) + " |",
             "|---|---|" + "--:|" * len(clients)]
    for origin in ORIGINS:
        row = [cells.get((client, origin.name)) for client in clients]
        texts = ["" if one is None else told(one) for one in row]
        lines.append(f"| {origin.name} | {version_of(origin)} | " + " | ".join(texts) + " |")
    text = (HERE / "page.md").read_text()
    text = text.replace("{{table}}", "\n".join(lines))
    text = text.replace("{{requests}}", f"{sum(one.requests for one in results):,}")
    text = text.replace("{{pairs}}", str(len(results)))
    rows = [f"| {row['client']} | {row['origin']} | {row['failure']} | {row['why']} |"
            for row in known]
    return text.replace("{{known}}", "\n".join(rows) or "| | | | |")


def is_known(failure, one, known):
    return any(row["client"] in ("every", one.client) and row["origin"] in ("every", one.origin)
               and row["failure"] in failure for row in known)


def main():
    known = tomllib.loads((HERE / "known.toml").read_text()).get("known", [])
    with tempfile.TemporaryDirectory(prefix="garden-") as folder:
        servers = Servers(folder)
        try:
            servers.start()
            scratch = servers.folder / "scratch"
            scratch.mkdir()
            with concurrent.futures.ThreadPoolExecutor(4) as pool:
                running = [pool.submit(try_with_control, *job) for job in jobs(servers, scratch)]
                results = [one.result() for one in running]
            if folder_of_logs := os.environ.get("KEEP_LOGS"):
                for log in servers.folder.glob("*/output.log"):
                    target = pathlib.Path(folder_of_logs) / f"{log.parent.name}.log"
                    target.write_bytes(log.read_bytes())
        finally:
            servers.stop()
    bad = [f"{name} did not start" for name in servers.missing]
    for one in results:
        for failure in one.shared:
            print(f"without the proxy too: {one.client} -> {one.origin}: {failure}")
        for failure in one.failures:
            sign = "known" if is_known(failure, one, known) else "FAILED"
            print(f"{sign}: {one.client} -> {one.origin}: {failure}")
            if sign == "FAILED":
                bad.append(failure)
    for row in known:
        hits = [one for one in results for failure in one.failures if is_known(failure, one, [row])]
        if not hits:
            bad.append(f"this row of known.toml holds no more: {row}")
    print(f"{sum(one.requests for one in results)} requests of {len(results)} pairs")
    pathlib.Path(sys.argv[1]).write_text(page(results, servers, known))
    for text in bad[:20]:
        print(text)
    sys.exit(1 if bad else 0)


if __name__ == "__main__":
    main()
