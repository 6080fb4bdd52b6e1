"""What no library sends: requests by hand, through the proxy, to one origin."""

import hashlib
import json
import os
import random
import socket
import time

# The origins end a connection that is idle for 2 s. Requests come around that time.
RACE_S = (1.96, 1.99, 2.0, 2.01, 2.05)


class Wire:
    def __init__(self, servers, origin, pair):
        address, slash, path = servers.url(origin).removeprefix("http://").partition("/")
        self.prefix, self.pair = slash + path, pair
        self.socket = socket.create_connection(tuple(address.split(":")), timeout=20)
        self.file = self.socket.makefile("rb")
        self.sent = {}

    def head(self, method, path, fields):
        name = f"{random.getrandbits(64):016x}"
        lines = [f"{method} {self.prefix}{path} HTTP/1.1", "Host: a.test", f"X-Name: {name}",
                 f"X-Pair: {self.pair}", *fields, "", ""]
        return name, "\r\n".join(lines).encode()

    def request(self, method="GET", path="/echo", body=b""):
        fields = [f"Content-Length: {len(body)}"] if body or method == "POST" else []
        name, head = self.head(method, path, fields)
        self.sent[name] = (method, body)
        return name, head + body

    def answer(self):
        """The id that the answer tells, its status and its body."""
        status = 100
        while status < 200:
            line = self.file.readline()
            if not line:
                return None, 0, b""
            status, headers = int(line.split()[1]), {}
            while (field := self.file.readline()) not in (b"\r\n", b""):
                name, _, value = field.decode("latin-1").partition(":")
                headers[name.lower()] = value.strip()
        if headers.get("transfer-encoding") == "chunked":
            body = b""
            while size := int(self.file.readline(), 16):
                body += self.file.read(size)
                self.file.read(2)
            while self.file.readline() not in (b"\r\n", b""):
                pass
        else:
            body = self.file.read(int(headers.get("content-length", 0)))
        return headers.get("x-name"), status, body

    def close(self):
        self.file.close()
        self.socket.close()


def pipelined(wire):
    """Requests of many lengths at once: the answers come in their order."""
    both = [wire.request("POST", body=os.urandom(size)) for size in (1, 3000, 0, 70_000, 17)]
    wire.socket.sendall(b"".join(text for _, text in both))
    for name, _ in both:
        told, status, _ = wire.answer()
        if (told, status) != (name, 200):
            return f"pipelined: {status}, and the answer to {told} in place of {name}"
    return ""


def expects(wire):
    body = os.urandom(5000)
    name, head = wire.head("POST", "/echo", ["Content-Length: 5000", "Expect: 100-continue"])
    wire.sent[name] = ("POST", body)
    wire.socket.sendall(head)
    line = wire.file.readline()
    if b" 100 " not in line:
        return f"expects: {line!r}"
    wire.file.readline()
    wire.socket.sendall(body)
    told, status, _ = wire.answer()
    return "" if (told, status) == (name, 200) else f"expects: {status} to {told}"


def chunks_and_trailers(wire):
    body = os.urandom(9000)
    name, head = wire.head("POST", "/trailers", ["Transfer-Encoding: chunked", "Trailer: X-Sum"])
    wire.sent[name] = ("POST", body)
    text = b"".join(b"%x;a=b\r\n%s\r\n" % (len(part), part)
                    for part in (body[:1], body[1:5000], body[5000:]))
    wire.socket.sendall(head + text + b"0\r\nX-Sum: 1\r\n\r\n")
    told, status, content = wire.answer()
    if (told, status) != (name, 200):
        return f"chunks and trailers: {status} to {told}"
    return "" if json.loads(content)["bytes"] == 9000 else "chunks and trailers: another body"


def races(wire):
    """A kept connection to the origin ends just when the next request comes."""
    for pause in RACE_S:
        for method in ("POST", "GET"):
            name, text = wire.request(method, body=b"x" * 10 if method == "POST" else b"")
            wire.socket.sendall(text)
            told, status, _ = wire.answer()
            if method == "POST" and status == 502:
                # It may have been read, so it is not sent again. It must not be read twice.
                wire.sent[name] = None
                continue
            if (told, status) != (name, 200):
                return f"races: {status} to {told} after {pause} s"
            time.sleep(pause if method == "GET" else 0)
    return ""


def answers_early(wire):
    """The origin answers before it has read the body, which the client has not sent yet."""
    name, head = wire.head("POST", "/early", ["Content-Length: 1000000"])
    wire.sent[name] = None
    wire.socket.sendall(head + b"only this")
    _, status, _ = wire.answer()
    return "" if status == 413 else f"answers early: {status}"


def cuts(wire):
    """The origin ends in the middle of its answer: the client must see that it is not whole."""
    name, text = wire.request(path="/cut")
    wire.socket.sendall(text)
    told, status, body = wire.answer()
    is_cut = len(body) < 100_000 and wire.file.read(1) == b""
    return "" if told == name and is_cut else f"cuts: {status} with {len(body)} bytes"


def leaves(servers, origin, pair):
    """A client leaves in the middle of its body: the origin must not take it for a whole one."""
    wire = Wire(servers, origin, pair)
    name, head = wire.head("POST", "/echo", ["Content-Length: 100000"])
    wire.socket.sendall(head + b"only this")
    wire.close()
    return name


CASES = (pipelined, expects, chunks_and_trailers, races)
# Only an origin by hand does so.
CASES_OF_PLAIN = (answers_early, cuts)


def try_all(servers, origin, pair):
    """Returns how many requests were sent, and what was wrong."""
    failures, count, left = [], 0, leaves(servers, origin, pair)
    for case in CASES + (CASES_OF_PLAIN if origin.name == "plain sockets" else ()):
        wire = Wire(servers, origin, pair)
        try:
            wrong = case(wire)
        except (OSError, ValueError, EOFError) as error:
            wrong = f"{case.__name__}: {error!r}"
        wire.close()
        count += len(wire.sent)
        notes = servers.noted(wire.sent)
        for name, sent in wire.sent.items():
            reads = notes[name]
            if sent is None:
                wrong = wrong or ("races: a POST was read twice" if len(reads) > 1 else "")
                continue
            method, body = sent
            if len(reads) != 1 or reads[0]["sha256"] != hashlib.sha256(body).hexdigest() \
                    or reads[0]["method"] != method:
                wrong = wrong or f"{case.__name__}: the origin read {reads}"
        if wrong:
            failures.append(wrong)
    if servers.noted({left})[left]:
        failures.append("leaves: the origin took a part of a body for a whole one")
    return count + 1, failures
