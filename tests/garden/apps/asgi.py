"""The origin as an ASGI application, with WebSockets."""

from note import content, note


async def app(scope, receive, send):
    if scope["type"] == "websocket":
        return await echo(receive, send)
    if scope["type"] != "http":
        return None
    name = dict(scope["headers"]).get(b"x-name", b"").decode()
    body, more = b"", True
    while more:
        event = await receive()
        if event["type"] == "http.disconnect":
            return None
        body += event.get("body", b"")
        more = event.get("more_body", False)
    told = note(scope["method"], name, body)
    status, data = content(scope["path"])
    data = told if data is None else data
    head = [(b"x-name", name.encode())]
    if status == 200 and not scope["path"].endswith("/chunked"):
        head.append((b"content-length", b"%d" % len(data)))
    await send({"type": "http.response.start", "status": status, "headers": head})
    if status == 200 and scope["method"] != "HEAD":
        half = len(data) // 2
        await send({"type": "http.response.body", "body": data[:half], "more_body": True})
        await send({"type": "http.response.body", "body": data[half:]})
    else:
        await send({"type": "http.response.body", "body": b""})
    return None


async def echo(receive, send):
    await receive()
    await send({"type": "websocket.accept"})
    while (event := await receive())["type"] == "websocket.receive":
        message = {"bytes": event.get("bytes"), "text": event.get("text")}
        await send({"type": "websocket.send", **message})
