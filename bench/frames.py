"""As much of HTTP/2 and WebSockets as a cheap client or origin of gRPC needs.

Headers of the other end are not decoded. So neither end needs a table of HPACK for them.
"""

from typing import NamedTuple

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RST_STREAM, SETTINGS, PING, GOAWAY, WINDOW_UPDATE = 0, 1, 3, 4, 6, 7, 8
END_STREAM, ACK, END_HEADERS = 1, 1, 4
MOST = (1 << 31) - 1
# Literals that no table keeps: `content-type` is entry 31 of the static table.
ANSWER_HEAD = b"\x88\x0f\x10\x10application/grpc"
TRAILERS = b"\x00\x0bgrpc-status\x010"
# :method POST and :scheme http.
_CALL = b"\x83\x86"
# Entries that the first call of a connection leaves in the table, oldest first.
_KEPT = b"\xc1\xc0\xbf\xbe"


class Frame(NamedTuple):
    kind: int
    flags: int
    stream: int
    payload: bytes


def frame(kind, flags, stream, payload=b""):
    head = len(payload).to_bytes(3, "big") + bytes((kind, flags)) + stream.to_bytes(4, "big")
    return head + payload


def text(words):
    return bytes((len(words),)) + words


def call_head(is_first, path, request_id):
    """Headers of a call. The constant ones are entries of the table after the first call."""
    constant = _KEPT
    if is_first:
        constant = (b"\x41" + text(b"localhost") + b"\x5f" + text(b"application/grpc")
                    + b"\x40" + text(b"te") + text(b"trailers") + b"\x7a" + text(b"grpc-bench/1"))
    return (_CALL + b"\x04" + text(path) + constant
            + b"\x00" + text(b"x-request-id") + text(request_id))


def message(body):
    """A gRPC message that is not compressed."""
    return b"\0" + len(body).to_bytes(4, "big") + body


class Connection:
    """One end of a connection. Its windows for receiving are as large as HTTP/2 allows."""

    def __init__(self, sock, is_client):
        self.socket = sock
        self.arrived = b""
        self.preface = 0 if is_client else len(PREFACE)
        self.window, self.first_window = 65_535, 65_535
        self.windows = {}
        settings = b"\x00\x04" + MOST.to_bytes(4, "big") + b"\x00\x03\x00\x00\x03\xe8"
        more = (MOST - 65_535).to_bytes(4, "big")
        sock.sendall((PREFACE if is_client else b"") + frame(SETTINGS, 0, 0, settings)
                     + frame(WINDOW_UPDATE, 0, 0, more))

    def frames(self):
        """The frames of one read that concern streams. None after the end of the connection."""
        read = self.socket.recv(1 << 16)
        if not read:
            return None
        self.arrived += read
        if self.preface:
            if len(self.arrived) < self.preface:
                return []
            self.arrived, self.preface = self.arrived[self.preface:], 0
        return list(self._whole())

    def _whole(self):
        bytes_, at = self.arrived, 0
        while len(bytes_) >= at + 9:
            end = at + 9 + int.from_bytes(bytes_[at:at + 3], "big")
            if len(bytes_) < end:
                break
            stream = int.from_bytes(bytes_[at + 5:at + 9], "big")
            one = Frame(bytes_[at + 3], bytes_[at + 4], stream, bytes_[at + 9:end])
            at = end
            if one.kind in (DATA, HEADERS, RST_STREAM, GOAWAY):
                yield one
            else:
                self._control(one)
        self.arrived = bytes_[at:]

    def _control(self, one):
        if one.kind == SETTINGS and not one.flags & ACK:
            for at in range(0, len(one.payload), 6):
                if one.payload[at:at + 2] == b"\x00\x04":
                    self.first_window = int.from_bytes(one.payload[at + 2:at + 6], "big")
            self.socket.sendall(frame(SETTINGS, ACK, 0))
        elif one.kind == PING and not one.flags & ACK:
            self.socket.sendall(frame(PING, ACK, 0, one.payload))
        elif one.kind == WINDOW_UPDATE:
            more = int.from_bytes(one.payload, "big")
            if one.stream == 0:
                self.window += more
            elif one.stream in self.windows:
                self.windows[one.stream] += more

    def opens(self, stream):
        self.windows[stream] = self.first_window

    def ends(self, stream):
        self.windows.pop(stream, None)

    def has_window(self, stream, size):
        return min(self.window, self.windows[stream]) >= size

    def data(self, stream, payload, flags=0):
        """A DATA frame, of which the windows know."""
        self.window -= len(payload)
        self.windows[stream] -= len(payload)
        return frame(DATA, flags, stream, payload)


def masked(size, rng):
    """A binary WebSocket message from a client. Random bytes need no mask applied."""
    length = bytes((0x80 | size,)) if size < 126 else b"\xfe" + size.to_bytes(2, "big")
    return b"\x82" + length + rng.randbytes(4 + size)
