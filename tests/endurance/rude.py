"""Clients that misbehave. None of them may harm another client, or cost memory for long."""

import asyncio
import os
import random
import socket
import struct

from clients import TLS

HEAD = b"GET /api/1 HTTP/1.1\r\nHost: api.test\r\nX-Client: rude\r\n"
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"


def frame(kind, flags, stream, payload=b""):
    length = struct.pack(">I", len(payload))[1:]
    return length + bytes([kind, flags]) + struct.pack(">I", stream) + payload


async def half_head(reader, writer):
    writer.write(HEAD[:random.randrange(1, len(HEAD))])
    await asyncio.sleep(random.random() * 8)


async def slow_head(reader, writer):
    for byte in HEAD:
        writer.write(bytes([byte]))
        await asyncio.sleep(0.2)


async def body_that_stops(reader, writer):
    writer.write(b"POST /api/1 HTTP/1.1\r\nHost: api.test\r\nX-Client: rude\r\n"
                 b"Content-Length: 100000\r\n\r\n" + os.urandom(1000))
    await asyncio.sleep(random.random() * 8)


async def reset(reader, writer):
    writer.write(HEAD + b"\r\n")
    linger = struct.pack("ii", 1, 0)
    writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)


async def garbage(reader, writer):
    writer.write(os.urandom(random.randrange(1, 5000)))
    await reader.read(1000)


async def huge_head(reader, writer):
    writer.write(HEAD + b"X-Long: " + b"a" * 200_000 + b"\r\n\r\n")
    await reader.read(1000)


async def never_reads(reader, writer):
    writer.write((HEAD + b"\r\n") * 2000)
    await asyncio.sleep(5)


async def resets_streams(reader, writer):
    writer.write(PREFACE + frame(4, 0, 0))
    # :method GET, :scheme http, :path /, :authority a (RFC 7541 appendix A)
    head = b"\x82\x86\x84\x41\x01a"
    for stream in range(1, 400, 2):
        writer.write(frame(1, 5, stream, head) + frame(3, 0, stream, struct.pack(">I", 8)))
    await writer.drain()
    await reader.read(10_000)


async def connects_only(reader, writer):
    await asyncio.sleep(random.random())


KINDS = (half_head, slow_head, body_that_stops, reset, garbage, huge_head, never_reads,
         resets_streams, connects_only)


async def live(run, proxy):
    while not run.over():
        kind = random.choice(KINDS)
        tls = random.random() < 0.3
        writer = None
        try:
            async with asyncio.timeout(12):
                reader, writer = await asyncio.open_connection(
                    "127.0.0.1", proxy.tls if tls else proxy.plain,
                    ssl=TLS if tls and random.random() < 0.5 else None)
                await kind(reader, writer)
        except (OSError, TimeoutError):
            pass
        run.tally.rude[kind.__name__] += 1
        if writer:
            writer.close()
        await asyncio.sleep(random.random() * 0.3)
