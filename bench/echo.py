"""The origin of messages.py: `python3 bench/echo.py SOCKET CALLS EVENTS`, three ports.

SOCKET has WebSockets and sends back their bytes. CALLS has gRPC and sends back each message. EVENTS
answers each gRPC call with a stream of messages. The request's message has their number. Each stream
gets one message every PACE.
"""

import base64
import hashlib
import random
import re
import selectors
import socket
import sys
import time

import frames

# Seconds between two messages of a stream.
PACE = 0.005
SIZE = 125
_RNG = random.Random(1)
POOL = [frames.message(_RNG.randbytes(SIZE)) for _ in range(509)]


class Socket:
    """A WebSocket: after the handshake all bytes go back."""

    def __init__(self, sock):
        self.socket, self.is_open = sock, False

    def ready(self):
        arrived = self.socket.recv(1 << 16)
        if self.is_open or not arrived:
            self.socket.sendall(arrived)
            return bool(arrived)
        key = re.search(rb"(?i)\r\nsec-websocket-key: *([^\r]+)\r\n", arrived)[1]
        digest = hashlib.sha1(key + b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11").digest()
        self.socket.sendall(
            b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            b"Sec-WebSocket-Accept: " + base64.b64encode(digest) + b"\r\n\r\n")
        self.is_open = True
        return True


class Calls:
    """gRPC calls: each message goes back, then the status."""

    def __init__(self, sock):
        self.http = frames.Connection(sock, is_client=False)
        self.answered = set()

    def ready(self):
        found = self.http.frames()
        out = b"".join(self.answer(one) for one in found or ())
        if out:
            self.http.socket.sendall(out)
        return found is not None

    def answer(self, one):
        if one.kind == frames.HEADERS:
            self.http.opens(one.stream)
            return b""
        if one.kind != frames.DATA:
            self.http.ends(one.stream)
            return b""
        out = b""
        if one.stream not in self.answered:
            self.answered.add(one.stream)
            out = frames.frame(frames.HEADERS, frames.END_HEADERS, one.stream, frames.ANSWER_HEAD)
        if one.payload:
            assert self.http.has_window(one.stream, len(one.payload)), "messages wait for a window"
            out += self.http.data(one.stream, one.payload)
        if one.flags & frames.END_STREAM:
            self.answered.discard(one.stream)
            out += self.end(one.stream)
        return out

    def end(self, stream):
        self.http.ends(stream)
        flags = frames.END_HEADERS | frames.END_STREAM
        return frames.frame(frames.HEADERS, flags, stream, frames.TRAILERS)


class Events(Calls):
    """gRPC calls with a stream of messages in the answer."""

    def __init__(self, sock):
        super().__init__(sock)
        self.asked, self.left = {}, {}

    def answer(self, one):
        if one.kind == frames.HEADERS:
            self.http.opens(one.stream)
            self.asked[one.stream] = b""
        elif one.kind == frames.DATA:
            self.asked[one.stream] += one.payload
            if one.flags & frames.END_STREAM:
                self.left[one.stream] = int.from_bytes(self.asked.pop(one.stream)[5:9], "big")
                return frames.frame(
                    frames.HEADERS, frames.END_HEADERS, one.stream, frames.ANSWER_HEAD)
        return b""

    def turn(self, turn):
        """One message on each stream that has a window for it."""
        out = []
        for stream, left in list(self.left.items()):
            said = POOL[(turn * 31 + stream) % len(POOL)]
            if left == 0:
                del self.left[stream]
                out.append(self.end(stream))
            elif self.http.has_window(stream, len(said)):
                self.left[stream] = left - 1
                out.append(self.http.data(stream, said))
        if out:
            self.http.socket.sendall(b"".join(out))


def accept(selector, listener, kind):
    sock, _ = listener.accept()
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    selector.register(sock, selectors.EVENT_READ, kind(sock))


def ready(selector, sock, connection):
    try:
        stays = connection.ready()
    except ConnectionError:
        stays = False
    if not stays:
        selector.unregister(sock)
        sock.close()


def turn_all(selector, turn):
    for key in list(selector.get_map().values()):
        if isinstance(key.data, Events):
            try:
                key.data.turn(turn)
            except ConnectionError:
                selector.unregister(key.fileobj)
                key.fileobj.close()


def main():
    selector = selectors.DefaultSelector()
    for port, kind in zip(sys.argv[1:], (Socket, Calls, Events)):
        listener = socket.create_server(("127.0.0.1", int(port)), backlog=512)
        selector.register(listener, selectors.EVENT_READ, kind)
    turn, due = 0, time.monotonic()
    while True:
        for key, _ in selector.select(max(0, due - time.monotonic())):
            if isinstance(key.data, type):
                accept(selector, key.fileobj, key.data)
            else:
                ready(selector, key.fileobj, key.data)
        if time.monotonic() >= due:
            turn_all(selector, turn)
            turn, due = turn + 1, max(due + PACE, time.monotonic())


if __name__ == "__main__":
    main()
