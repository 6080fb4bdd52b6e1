"""The origin with aiohttp, with tornado, as plain sockets, and as gRPC: others.py SERVER PORT."""

import asyncio
import base64
import hashlib
import sys

from note import content, note

CHUNKED = ("/chunked", "/trailers")
WEBSOCKET = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"


def serve_aiohttp(port):
    from aiohttp import WSMsgType, web

    async def handle(request):
        if request.headers.get("upgrade", "").lower() == "websocket":
            socket = web.WebSocketResponse()
            await socket.prepare(request)
            async for message in socket:
                if message.type == WSMsgType.BINARY:
                    await socket.send_bytes(message.data)
            return socket
        name = request.headers.get("x-name", "")
        told = note(request.method, name, await request.read())
        status, data = content(request.path)
        data = told if data is None else data
        if request.path.endswith("/chunked"):
            answer = web.StreamResponse(headers={"X-Name": name})
            await answer.prepare(request)
            if request.method != "HEAD":
                await answer.write(data)
            await answer.write_eof()
            return answer
        return web.Response(status=status, body=None if status == 204 else data,
                            headers={"X-Name": name})

    app = web.Application(client_max_size=1 << 26)
    app.router.add_route("*", "/{path:.*}", handle)
    web.run_app(app, host="127.0.0.1", port=port, keepalive_timeout=2, print=None)


def serve_tornado(port):
    from tornado import httpserver, web, websocket

    class Socket(websocket.WebSocketHandler):
        def on_message(self, message):
            self.write_message(message, binary=isinstance(message, bytes))

    class Handler(web.RequestHandler):
        SUPPORTED_METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")

        async def answer(self):
            name = self.request.headers.get("x-name", "")
            told = note(self.request.method, name, self.request.body)
            status, data = content(self.request.path)
            self.set_header("X-Name", name)
            self.set_status(status)
            if status == 204:
                return
            self.write(told if data is None else data)
            if self.request.path.endswith("/chunked"):
                await self.flush()

        get = head = post = put = patch = delete = options = answer

    async def main():
        app = web.Application([(r"/ws", Socket), (r"/.*", Handler)])
        server = httpserver.HTTPServer(app, idle_connection_timeout=2, max_buffer_size=1 << 26)
        server.listen(port, "127.0.0.1")
        await asyncio.Event().wait()

    asyncio.run(main())


def serve_grpc(port):
    from concurrent import futures

    import grpc

    class Echo(grpc.GenericRpcHandler):
        def service(self, details):
            if details.method.startswith("/stream"):
                return grpc.stream_stream_rpc_method_handler(lambda messages, _: messages)
            return grpc.unary_unary_rpc_method_handler(lambda message, _: message)

    server = grpc.server(futures.ThreadPoolExecutor(4), handlers=[Echo()])
    server.add_insecure_port(f"127.0.0.1:{port}")
    server.start()
    server.wait_for_termination()


def serve_behind(port):
    """The same origin behind another server, which need not cope with connections that end."""
    serve_plain(port, 60)


def serve_plain(port, idle_s=2):
    """HTTP/1.1 by hand, with what no framework does: early answers, trailers, cut answers."""
    async def read_body(reader, headers):
        if headers.get("transfer-encoding") == "chunked":
            body = b""
            while size := int((await reader.readline()).split(b";")[0], 16):
                body += await reader.readexactly(size)
                await reader.readexactly(2)
            while await reader.readline() not in (b"\r\n", b""):
                pass
            return body
        return await reader.readexactly(int(headers.get("content-length", 0)))

    async def echo(reader, writer, headers):
        digest = hashlib.sha1((headers["sec-websocket-key"] + WEBSOCKET).encode()).digest()
        writer.write(b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\n"
                     b"Connection: Upgrade\r\nSec-WebSocket-Accept: %s\r\n\r\n"
                     % base64.b64encode(digest))
        while head := await reader.readexactly(2):
            length = head[1] & 0x7F
            size = {126: 2, 127: 8}.get(length, 0)
            more = await reader.readexactly(size)
            mask = await reader.readexactly(4)
            data = await reader.readexactly(int.from_bytes(more, "big") if size else length)
            key = (mask * (len(data) // 4 + 1))[:len(data)]
            data = (int.from_bytes(data, "big") ^ int.from_bytes(key, "big")).to_bytes(
                len(data), "big")
            writer.write(bytes([head[0], length]) + more + data)
            await writer.drain()
            if head[0] & 0x0F == 8:
                return

    async def answer(reader, writer, line, headers):
        method, path = line.split()[0].decode(), line.split()[1].decode().split("?")[0]
        name = headers.get("x-name", "")
        if path.endswith("/early"):
            writer.write(b"HTTP/1.1 413 Too Large\r\nContent-Length: 0\r\n"
                         b"Connection: close\r\n\r\n")
            return False
        if headers.get("expect") == "100-continue":
            writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        told = note(method, name, await read_body(reader, headers))
        status, data = content(path)
        data = told if data is None else data
        own = f"X-Name: {name}\r\n".encode()
        if path.endswith("/cut"):
            writer.write(b"HTTP/1.1 200 OK\r\n%sContent-Length: 100000\r\n\r\nonly this" % own)
            return False
        if status == 204:
            writer.write(b"HTTP/1.1 204 No Content\r\n%s\r\n" % own)
        elif path.endswith(CHUNKED) and method != "HEAD" and b"HTTP/1.1" in line:
            end = b"X-End: yes\r\n" if path.endswith("/trailers") else b""
            writer.write(b"HTTP/1.1 200 OK\r\n%sTransfer-Encoding: chunked\r\n\r\n"
                         b"%x\r\n%s\r\n0\r\n%s\r\n" % (own, len(data), data, end))
        else:
            writer.write(b"HTTP/1.1 200 OK\r\n%sContent-Length: %d\r\n\r\n" % (own, len(data)))
            writer.write(b"" if method == "HEAD" else data)
        await writer.drain()
        return True

    async def serve(reader, writer):
        try:
            while True:
                # It ends connections that are idle, as servers do.
                async with asyncio.timeout(idle_s):
                    line = await reader.readline()
                if not line:
                    return
                headers = {}
                while (field := await reader.readline()) not in (b"\r\n", b""):
                    key, _, value = field.decode("latin-1").partition(":")
                    headers[key.lower()] = value.strip().lower() if key.lower() == "expect" \
                        else value.strip()
                if "sec-websocket-key" in headers:
                    return await echo(reader, writer, headers)
                if not await answer(reader, writer, line, headers):
                    return
        except (OSError, EOFError, ValueError, TimeoutError):
            pass
        finally:
            writer.close()

    async def main():
        server = await asyncio.start_server(serve, "127.0.0.1", port)
        await server.serve_forever()

    asyncio.run(main())


if __name__ == "__main__":
    globals()[f"serve_{sys.argv[1]}"](int(sys.argv[2]))
