"""Clients that keep to HTTP, and the count of what they were answered."""

import asyncio
import collections
import dataclasses
import hashlib
import json
import os
import random
import ssl
import struct
import time

# A request without an answer in this time is unanswered, seconds.
ANSWER_S = 20
TLS = ssl.create_default_context()
TLS.check_hostname = False
TLS.verify_mode = ssl.CERT_NONE


class Tally:
    """What all clients saw."""

    def __init__(self):
        self.statuses = collections.Counter()
        self.unanswered = []
        self.wrong = []
        self.retried = collections.Counter()
        self.cut_tunnels = 0
        self.messages = 0
        self.seconds = []
        self.rude = collections.Counter()

    def answered(self, kind, status, seconds):
        self.statuses[kind, status] += 1
        if len(self.seconds) < 2_000_000:
            self.seconds.append(seconds)


@dataclasses.dataclass
class Answer:
    status: int
    headers: dict
    body: bytes


class Gone(Exception):
    """The connection ended. `begun` says whether a byte of the answer had come."""

    def __init__(self, why, begun):
        super().__init__(why)
        self.begun = begun


class Connection:
    def __init__(self, reader, writer):
        self.reader, self.writer = reader, writer
        self.uses = 0

    @classmethod
    async def open(cls, proxy, tls):
        port = proxy.tls if tls else proxy.plain
        return cls(*await asyncio.open_connection(
            "127.0.0.1", port, ssl=TLS if tls else None, limit=1 << 20))

    async def ask(self, request):
        self.uses += 1
        begun = False
        try:
            self.writer.write(request)
            await self.writer.drain()
            line = await self.reader.readline()
            if not line:
                raise Gone("closed", False)
            begun = True
            return await self.read(line)
        except (OSError, EOFError, ValueError) as error:
            raise Gone(repr(error), begun) from error

    async def read(self, line):
        headers = {}
        while (field := await self.reader.readline()) not in (b"\r\n", b""):
            name, _, value = field.decode("latin-1").partition(":")
            headers[name.lower()] = value.strip()
        status = int(line.split()[1])
        body = b""
        if headers.get("transfer-encoding") == "chunked":
            while size := int(await self.reader.readline(), 16):
                body += await self.reader.readexactly(size)
                await self.reader.readexactly(2)
            await self.reader.readline()
        elif status != 101:
            body = await self.reader.readexactly(int(headers.get("content-length", 0)))
        return Answer(status, headers, body)

    def close(self):
        self.writer.close()


@dataclasses.dataclass
class Request:
    name: str
    bytes: bytes
    body: bytes


def make_request(path, client, body=b"", chunked=False):
    name = f"{random.getrandbits(64):016x}"
    method = "POST" if body else random.choice(["GET", "GET", "GET", "DELETE"])
    lines = [f"{method} {path}/{random.randrange(10**6)}?q={name[:5]} HTTP/1.1", "Host: api.test",
             f"X-Client: {client}", f"X-Id: {name}", f"X-Sent: {time.time():.6f}"]
    sent = body
    if chunked and body:
        lines.append("Transfer-Encoding: chunked")
        cut = random.randrange(1, len(body) + 1)
        parts = [part for part in (body[:cut], body[cut:]) if part]
        sent = b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in parts) + b"0\r\n\r\n"
    elif body:
        lines.append(f"Content-Length: {len(body)}")
    head = "\r\n".join([*lines, "", ""]).encode()
    return Request(name, head + sent, body)


class Client:
    """One client of one kind. It asks until the run ends."""

    def __init__(self, run, kind, proxy, tls=False, path="/api", names=1, pause=0.05, uses=100):
        self.run, self.kind, self.proxy, self.tls = run, kind, proxy, tls
        self.path, self.names, self.pause, self.uses = path, names, pause, uses
        self.most_body = 0
        self.connection = None

    async def live(self):
        while not self.run.over():
            # The next request comes at a random time, as those of many people do.
            await asyncio.sleep(random.expovariate(1 / self.pause))
            await self.ask_once()
        if self.connection:
            self.connection.close()

    def request(self):
        client = f"{self.kind}-{random.randrange(self.names)}"
        size = random.randrange(1, self.most_body) if self.most_body else 0
        return make_request(self.path, client, os.urandom(size), random.random() < 0.5)

    async def ask_once(self):
        tally, request, began = self.run.tally, self.request(), time.monotonic()
        for attempt in (1, 2):
            is_kept = self.connection is not None
            try:
                async with asyncio.timeout(ANSWER_S):
                    self.connection = self.connection or await Connection.open(self.proxy, self.tls)
                    answer = await self.connection.ask(request.bytes)
                break
            except (Gone, OSError, TimeoutError) as error:
                self.drop()
                # A server may close a kept connection just when it is used
                # (RFC 9112 section 9.3.1).
                if is_kept and attempt == 1 and not getattr(error, "begun", True):
                    tally.retried[self.kind] += 1
                    continue
                tally.unanswered.append(f"{self.run.age():.1f} s {self.kind} {self.proxy.name}: "
                                        f"{error!r}")
                return
        tally.answered(self.kind, answer.status, time.monotonic() - began)
        self.check(request, answer)
        if answer.headers.get("connection") == "close" or self.connection.uses >= self.uses:
            self.drop()

    def check(self, request, answer):
        """The answer must be to this request, and tell the body that was sent."""
        if answer.status != 200:
            return
        told = json.loads(answer.body)
        digest = hashlib.sha256(request.body).hexdigest()
        if told != {"id": request.name, "bytes": len(request.body), "sha256": digest}:
            self.run.tally.wrong.append(f"{self.kind}: sent {request.name}, read {told}")

    def drop(self):
        if self.connection:
            self.connection.close()
        self.connection = None


async def tunnel(run, proxy):
    """A WebSocket: messages of several lengths come back as they were sent."""
    while not run.over():
        connection = None
        try:
            async with asyncio.timeout(ANSWER_S):
                connection = await Connection.open(proxy, False)
                answer = await connection.ask(
                    b"GET /ws HTTP/1.1\r\nHost: api.test\r\nX-Client: ws\r\nUpgrade: websocket\r\n"
                    b"Connection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
                    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n")
            run.tally.statuses["websocket", answer.status] += 1
            for _ in range(50 if answer.status == 101 else 0):
                data = os.urandom(random.randrange(1, 4000))
                # Masked with zeros, so that the echo has the same bytes.
                frame = b"\x82" + struct.pack(">BH", 0xFE, len(data)) + bytes(4) + data
                connection.writer.write(frame)
                async with asyncio.timeout(ANSWER_S):
                    back = await connection.reader.readexactly(len(frame))
                if back != frame:
                    run.tally.wrong.append("websocket: another message came back")
                run.tally.messages += 1
                await asyncio.sleep(0.1)
        except (Gone, OSError, EOFError, TimeoutError) as error:
            # A tunnel ends with the drain of its process, at the latest.
            run.tally.cut_tunnels += 1
            if isinstance(error, TimeoutError):
                run.tally.unanswered.append(f"{run.age():.1f} s websocket {proxy.name}: {error!r}")
        if connection:
            connection.close()
        await asyncio.sleep(0.2)


async def http2(run, proxy, httpx):
    """Requests of HTTP/2, several at once on one connection."""
    async def one(client):
        request, began = make_request("/api", "h2"), time.monotonic()
        url = f"https://127.0.0.1:{proxy.tls}/api/{random.randrange(10**6)}"
        try:
            answer = await client.get(url, headers={"x-client": "h2", "x-id": request.name})
        except httpx.HTTPError as error:
            return error
        run.tally.answered("http2", answer.status_code, time.monotonic() - began)
        if answer.status_code == 200 and answer.json()["id"] != request.name:
            run.tally.wrong.append("http2: another answer")
        return None

    while not run.over():
        async with httpx.AsyncClient(http2=True, verify=False, timeout=ANSWER_S) as client:
            for _ in range(20):
                errors = [error for error in await asyncio.gather(*(one(client) for _ in range(4)))
                          if error]
                for error in errors:
                    # GOAWAY names the streams that were not served (RFC 9113 section 6.8); httpx
                    # does not repeat them.
                    async with httpx.AsyncClient(http2=True, verify=False,
                                                 timeout=ANSWER_S) as fresh:
                        run.tally.retried["http2"] += 1
                        if again := await one(fresh):
                            run.tally.unanswered.append(
                                f"{run.age():.1f} s http2 {proxy.name}: {error!r}, {again!r}")
                if errors:
                    break
                await asyncio.sleep(0.2)
