"""A model server of the tests' own: it sends what a test planned, cut where the test says."""

import collections
import http.client
import itertools
import socket
import socketserver
import threading
import time

# The header of a request that names its plan.
PLAN = "x-plan"


class Plan:
    """One answer; without a status there is none, and the connection ends. `pieces`
    are bytes that are written one by one, or seconds to wait.

    `framing` is `chunked`, `length` or `close`. With `is_cut` the connection breaks in the end.
    `before` is sent ahead of the head, such as a 103.
    """

    def __init__(self, pieces, kind="application/json", status=200, headers=(), framing="chunked",
                 is_cut=False, before=b"", trailers=(), length=None, head_wait=0):
        self.pieces, self.kind, self.status = pieces, kind, status
        self.headers, self.framing, self.is_cut = list(headers), framing, is_cut
        self.before, self.trailers, self.length = before, list(trailers), length
        self.head_wait = head_wait
        self.calls = []
        # Set once the answer was written, and where the reader left before.
        self.ended, self.left = threading.Event(), threading.Event()
        # Set once the first piece was written.
        self.began = threading.Event()

    @property
    def body(self):
        return b"".join(piece for piece in self.pieces if isinstance(piece, bytes))


class Call:
    """A request that has come."""

    def __init__(self, method, path, headers, body):
        self.method, self.path, self.headers, self.body = method, path, headers, body


class Handler(socketserver.StreamRequestHandler):
    disable_nagle_algorithm = True

    def handle(self):
        try:
            while self.answer():
                pass
        except OSError:
            pass

    def answer(self):
        line = self.rfile.readline(65_536)
        if not line.strip():
            return False
        method, path, _ = line.decode("latin1").split(" ", 2)
        headers = http.client.parse_headers(self.rfile)
        if headers.get("expect"):
            self.wfile.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        call = Call(method, path, headers, self.read_body(headers))
        plan = self.server.model.plan_of(call)
        plan.calls.append(call)
        try:
            self.send(plan)
        except OSError:
            plan.left.set()
            return False
        finally:
            plan.ended.set()
        return plan.framing != "close" and not plan.is_cut

    def read_body(self, headers):
        if headers.get("transfer-encoding", "").lower() != "chunked":
            return self.rfile.read(int(headers.get("content-length") or 0))
        body = b""
        while size := int(self.rfile.readline(), 16):
            body += self.rfile.read(size)
            self.rfile.readline()
        while self.rfile.readline().strip():
            pass
        return body

    def send(self, plan):
        if plan.status is None:
            raise ConnectionError("no answer")
        head = [f"HTTP/1.1 {plan.status} {http.client.responses.get(plan.status, 'X')}"]
        if plan.kind:
            head.append(f"content-type: {plan.kind}")
        if plan.framing == "length":
            length = len(plan.body) if plan.length is None else plan.length
            head.append(f"content-length: {length}")
        elif plan.framing == "chunked":
            head.append("transfer-encoding: chunked")
        else:
            head.append("connection: close")
        head += [f"{name}: {value}" for name, value in plan.headers]
        if plan.head_wait:
            self.wait(plan.head_wait)
        self.wfile.write(plan.before + "\r\n".join(head).encode() + b"\r\n\r\n")
        for piece in plan.pieces:
            if not isinstance(piece, bytes):
                self.wait(piece)
            elif plan.framing == "chunked":
                self.wfile.write(b"%x\r\n%b\r\n" % (len(piece), piece))
                plan.began.set()
            else:
                self.wfile.write(piece)
                plan.began.set()
        if plan.is_cut:
            self.connection.shutdown(socket.SHUT_RDWR)
        elif plan.framing == "chunked":
            lines = "".join(f"{name}: {value}\r\n" for name, value in plan.trailers)
            self.wfile.write(b"0\r\n" + lines.encode() + b"\r\n")

    def wait(self, seconds):
        """Waits, and notices a reader that leaves."""
        self.connection.settimeout(seconds)
        try:
            if not self.connection.recv(1, socket.MSG_PEEK):
                raise ConnectionError("the reader has left")
            time.sleep(seconds)
        except socket.timeout:
            pass
        finally:
            self.connection.settimeout(None)


class Server(socketserver.ThreadingTCPServer):
    allow_reuse_address = daemon_threads = True
    request_queue_size = 4096


class Model:
    """Three servers, and the plans that they know. Most tests need one server."""

    def __init__(self):
        servers = [Server(("127.0.0.1", 0), Handler) for _ in range(3)]
        self.urls = [f"http://127.0.0.1:{server.server_address[1]}" for server in servers]
        self.url = self.urls[0]
        self.plans, self.numbers = {}, itertools.count()
        self.unplanned = collections.deque(maxlen=100)
        for server in servers:
            server.model = self
            threading.Thread(target=server.serve_forever, daemon=True).start()

    def plan(self, *pieces, **options):
        """The header that asks for the plan, and the plan. Several pieces may be one list."""
        plan = pieces[0] if isinstance(pieces[0], (Plan, list)) else Plan(list(pieces), **options)
        number = str(next(self.numbers))
        self.plans[number] = plan
        return {PLAN: number}, plan

    def plan_of(self, call):
        """A list of plans is of a request that is sent several times."""
        plan = self.plans.get(call.headers.get(PLAN))
        if plan is None:
            self.unplanned.append(call)
            return Plan([b"{}"], framing="length")
        if isinstance(plan, list):
            return plan.pop(0) if len(plan) > 1 else plan[0]
        return plan
