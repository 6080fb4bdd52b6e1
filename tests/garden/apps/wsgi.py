"""The origin as a WSGI application: python wsgi.py SERVER PORT."""

import sys

from note import content, note


def application(environ, start_response):
    stream = environ["wsgi.input"]
    length = environ.get("CONTENT_LENGTH")
    has_chunks = environ.get("HTTP_TRANSFER_ENCODING") == "chunked"
    body = stream.read(int(length)) if length else stream.read() if has_chunks else b""
    if length and len(body) < int(length):
        # The client has left.
        start_response("400 Bad Request", [("Content-Length", "0")])
        return [b""]
    told = note(environ["REQUEST_METHOD"], environ.get("HTTP_X_NAME", ""), body)
    status, data = content(environ["PATH_INFO"])
    if status == 204:
        start_response("204 No Content", [("X-Name", environ.get("HTTP_X_NAME", ""))])
        return [b""]
    data = told if data is None else data
    head = [("Content-Type", "application/octet-stream"), ("X-Name", environ.get("HTTP_X_NAME", ""))]
    if environ["PATH_INFO"].endswith("/chunked"):
        start_response("200 OK", head)
        half = len(data) // 2
        return iter([data[:half], data[half:]])
    start_response("200 OK", [*head, ("Content-Length", str(len(data)))])
    return [b"" if environ["REQUEST_METHOD"] == "HEAD" else data]


def main():
    server, port = sys.argv[1], int(sys.argv[2])
    if server == "waitress":
        import waitress
        waitress.serve(application, host="127.0.0.1", port=port, channel_timeout=2)
    elif server == "cheroot":
        from cheroot import wsgi
        wsgi.Server(("127.0.0.1", port), application, timeout=2).start()
    elif server == "werkzeug":
        from werkzeug.serving import WSGIRequestHandler, run_simple
        WSGIRequestHandler.protocol_version = "HTTP/1.1"
        run_simple("127.0.0.1", port, application, threaded=True)
    elif server == "twisted":
        from twisted.internet import reactor
        from twisted.web.server import Site
        from twisted.web.wsgi import WSGIResource
        reactor.suggestThreadPoolSize(8)
        site = Site(WSGIResource(reactor, reactor.getThreadPool(), application), timeout=2)
        reactor.listenTCP(port, site, interface="127.0.0.1")
        reactor.run()


if __name__ == "__main__":
    main()
