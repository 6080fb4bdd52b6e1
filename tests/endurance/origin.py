"""The origin of the endurance run: it answers with what it has read, and notes when.

A request names its client in `X-Client` and itself in `X-Id`. Some answers have chunks, some are
slow, and some end their connection. `/ws` echoes. `/_noted` tells when requests of `/counted` were
sent and read.
"""

import asyncio
import base64
import hashlib
import json
import sys
import time

ADMITTED = {}
WEBSOCKET = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"


async def body_of(reader, headers):
    if headers.get("transfer-encoding") == "chunked":
        body = b""
        while size := int((await reader.readline()).split(b";")[0], 16):
            body += await reader.readexactly(size)
            await reader.readexactly(2)
        await reader.readline()
        return body
    return await reader.readexactly(int(headers.get("content-length", 0)))


async def echo(reader, writer, headers):
    """Sends the bytes of each frame back. Clients mask with zeros, so the bytes are the same."""
    key = headers["sec-websocket-key"] + WEBSOCKET
    accept = base64.b64encode(hashlib.sha1(key.encode()).digest()).decode()
    writer.write(f"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\n"
                 f"Connection: Upgrade\r\nSec-WebSocket-Accept: {accept}\r\n\r\n".encode())
    while data := await reader.read(65536):
        writer.write(data)
        await writer.drain()


def answer_to(request, number, body):
    digest = hashlib.sha256(body).hexdigest()
    told = json.dumps({"id": request["id"], "bytes": len(body), "sha256": digest}).encode()
    if request["path"].startswith("/_noted"):
        told = json.dumps(ADMITTED).encode()
    last = b"Connection: close\r\n" if number % 97 == 0 else b""
    if number % 20 == 0:
        half = len(told) // 2
        parts = (told[:half], told[half:])
        parts = b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in parts)
        return b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n%s\r\n%s0\r\n\r\n" % (last, parts)
    head = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n%s\r\n" % (len(told), last)
    return head + told


async def serve(reader, writer):
    try:
        while line := await reader.readline():
            path = line.split()[1].decode()
            headers = {}
            while (field := await reader.readline()) not in (b"\r\n", b""):
                name, _, value = field.decode("latin-1").partition(":")
                headers[name.lower()] = value.strip()
            if "sec-websocket-key" in headers:
                return await echo(reader, writer, headers)
            if path.startswith("/counted"):
                times = {"sent": float(headers["x-sent"]), "read": time.time()}
                ADMITTED.setdefault(headers.get("x-client", ""), []).append(times)
            body = await body_of(reader, headers)
            request = {"path": path, "id": headers.get("x-id", "")}
            number = int(hashlib.sha256(request["id"].encode()).hexdigest()[:8], 16)
            if number % 50 == 0:
                await asyncio.sleep(0.2)
            answer = answer_to(request, number, body)
            writer.write(answer)
            await writer.drain()
            if b"Connection: close" in answer[:120]:
                return
    except (OSError, EOFError, ValueError, asyncio.IncompleteReadError):
        pass
    finally:
        writer.close()


async def main():
    server = await asyncio.start_server(serve, "127.0.0.1", int(sys.argv[1]), backlog=1000)
    await server.serve_forever()


asyncio.run(main())
