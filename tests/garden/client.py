"""One client library of Python: client.py NAME. Reads requests as JSON, writes the answers."""

import asyncio
import hashlib
import json
import os
import sys


def body_of(request):
    return os.urandom(request["bytes"]) if request["bytes"] else b""


def parts_of(body):
    """The body as a generator, so that the library sends chunks."""
    for start in range(0, len(body), 10_000):
        yield body[start:start + 10_000]


def answer(request, body, status, headers, content):
    return {"id": request["id"], "status": status, "answered": headers.get("x-name", ""),
            "sent": hashlib.sha256(body).hexdigest(), "sha256": hashlib.sha256(content).hexdigest(),
            "text": content[:300].decode("latin-1"), "length": len(content)}


def with_requests(requests):
    import requests as library
    with library.Session() as session:
        for request in requests:
            body = body_of(request)
            data = parts_of(body) if request["chunked"] else body or None
            said = session.request(request["method"], request["url"], data=data, timeout=20,
                                   headers=request["headers"], allow_redirects=False)
            yield answer(request, body, said.status_code, said.headers, said.content)


def with_urllib3(requests):
    import urllib3
    with urllib3.PoolManager(retries=False, timeout=20) as pool:
        for request in requests:
            body = body_of(request)
            data = parts_of(body) if request["chunked"] else body or None
            said = pool.request(request["method"], request["url"], body=data,
                                headers=request["headers"])
            yield answer(request, body, said.status, said.headers, said.data)


def httpx_client(requests, **options):
    import httpx
    with httpx.Client(timeout=20, **options) as client:
        for request in requests:
            body = body_of(request)
            data = parts_of(body) if request["chunked"] else body or None
            said = client.request(request["method"], request["url"], content=data,
                                  headers=request["headers"])
            yield answer(request, body, said.status_code, said.headers, said.content)


def with_httpx(requests):
    yield from httpx_client(requests)


def with_httpx_h2(requests):
    yield from httpx_client(requests, http1=False, http2=True)


def with_aiohttp(requests):
    import aiohttp

    async def stream(body):
        for part in parts_of(body):
            yield part

    async def all_of():
        found = []
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(20)) as session:
            for request in requests:
                body = body_of(request)
                data = stream(body) if request["chunked"] else body or None
                async with session.request(request["method"], request["url"], data=data,
                                           headers=request["headers"]) as said:
                    found.append(answer(request, body, said.status, said.headers,
                                        await said.read()))
        return found

    yield from asyncio.run(all_of())


def with_websockets(requests):
    from websockets.sync.client import connect
    for request in requests:
        body = body_of(request)
        with connect(request["url"].replace("http", "ws", 1), max_size=1 << 24,
                     additional_headers=request["headers"]) as socket:
            socket.send(body)
            back = socket.recv(20)
        yield answer(request, body, 101, {"x-name": request["id"]}, back)


def with_grpcio(requests):
    import grpc
    address = requests[0]["url"].split("/")[2]
    with grpc.insecure_channel(address) as channel:
        for request in requests:
            body = body_of(request)
            metadata = [(name.lower(), value) for name, value in request["headers"].items()]
            if request["chunked"]:
                call = channel.stream_stream("/stream.S/Echo")(parts_of(body), metadata=metadata)
                back = b"".join(call)
            else:
                back = channel.unary_unary("/unary.S/Echo")(body, metadata=metadata)
            yield answer(request, body, 200, {"x-name": request["id"]}, back)


if __name__ == "__main__":
    print(json.dumps(list(globals()["with_" + sys.argv[1]](json.load(sys.stdin)))))
