"""websockets (Python) on both sides of the proxy: the upgrade is one request, then bytes."""

import http
import json
import os
import socket
import struct
import threading
import time

from fields import Denial, Quota
from stage import Case, Proxy
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import connect
from websockets.sync.server import serve

CONFIG = '[limit.default]\nrate = "{rate}"\nkey = "api_key"'


class Server:
    """An echo server of the same library, which remembers how each connection ended."""

    def __init__(self):
        self.closes = []
        self._server = serve(
            self._attend,
            "127.0.0.1",
            0,
            max_size=4 << 20,
            select_subprotocol=lambda _, offered: "tide.v1" if "tide.v1" in offered else None,
        )
        port = self._server.socket.getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def _attend(self, socket):
        try:
            for message in socket:
                if isinstance(message, str) and message.startswith("close "):
                    _, code, reason = message.split(" ", 2)
                    socket.close(int(code), reason)
                elif isinstance(message, str) and message == "pieces":
                    socket.send(iter(["in ", "three ", "pieces"]))
                else:
                    socket.send(message)
        except ConnectionClosed:
            pass
        self.closes.append((socket.close_code, socket.close_reason))

    def stop(self):
        self._server.shutdown()


class WebSocketCase(Case):
    rate = "1000/s"

    @classmethod
    def setUpClass(cls):
        cls.echo = Server()
        cls.addClassCleanup(cls.echo.stop)
        cls.proxy = Proxy(
            CONFIG.format(rate=cls.rate), to=cls.echo.url, server='idle_timeout = "1s"'
        )
        cls.addClassCleanup(cls.proxy.stop)
        cls.url = cls.proxy.websocket_url

    def connect(self, **more):
        headers = {"X-Api-Key": self.key, **more.pop("headers", {})}
        return connect(
            f"{self.url}/chat?room=1",
            additional_headers=headers,
            open_timeout=20,
            close_timeout=20,
            max_size=4 << 20,
            proxy=None,
            **more,
        )


class Messages(WebSocketCase):
    def test_text_and_binary_come_back(self):
        with self.connect() as client:
            texts = ("hello", "grüß dich, 世界 🌊", "", "x" * 65_536)
            for message in (*texts, b"", bytes(range(256))):
                client.send(message)
                self.assertEqual(client.recv(timeout=20), message)

    def test_a_mebibyte_comes_back_with_and_without_compression(self):
        message = os.urandom(1 << 20)
        for compression in ("deflate", None):
            with self.subTest(compression), self.connect(compression=compression) as client:
                client.send(message)
                self.assertEqual(client.recv(timeout=10), message)

    def test_fragments_stay_fragments(self):
        with self.connect() as client:
            client.send("pieces")
            self.assertEqual(list(client.recv_streaming()), ["in ", "three ", "pieces", ""])

    def test_pings_are_answered_from_the_other_side(self):
        with self.connect() as client:
            self.assertTrue(client.ping().wait(timeout=20))

    def test_many_small_messages_keep_their_order(self):
        with self.connect() as client:
            for number in range(500):
                client.send(str(number))
            self.assertEqual([client.recv(timeout=20) for _ in range(500)], [*map(str, range(500))])

    def test_a_subprotocol_is_agreed_on_end_to_end(self):
        with self.connect(subprotocols=["other", "tide.v1"]) as client:
            self.assertEqual(client.subprotocol, "tide.v1")

    def test_an_idle_tunnel_outlives_the_idle_timeout_of_http(self):
        with self.connect() as client:
            time.sleep(2.5)
            client.send("still there")
            self.assertEqual(client.recv(timeout=20), "still there")

    def test_the_servers_close_code_arrives(self):
        for code, reason in ((4001, "go away"), (1000, "done"), (1011, "mine")):
            with self.subTest(code), self.connect() as client:
                client.send(f"close {code} {reason}")
                with self.assertRaises(ConnectionClosed) as closed:
                    client.recv(timeout=20)
                self.assertEqual((closed.exception.rcvd.code, closed.exception.rcvd.reason),
                                 (code, reason))  # fmt: skip

    def test_the_clients_close_code_arrives(self):
        client = self.connect()
        client.close(4321, "tired")
        self.eventually(lambda: (4321, "tired") in self.echo.closes)
        with self.assertRaises(ConnectionClosed):
            client.recv(timeout=1)

    def test_a_client_that_vanishes_is_gone_upstream_too(self):
        before = self.echo.closes.count((1006, ""))
        client = self.connect()
        client.send("hello")
        client.recv(timeout=20)
        client.socket.shutdown(socket.SHUT_RDWR)
        self.eventually(lambda: self.echo.closes.count((1006, "")) == before + 1)


class Resets(Case):
    """Sockets alone: a library's reading thread would keep a closed one open."""

    UPGRADE = (
        b"GET /ws HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
        b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
    )
    AGREED = (
        b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
        b"Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\r\n"
    )

    def setUp(self):
        """A tunnel: `self.client` and `self.server` are its ends."""
        super().setUp()
        with socket.create_server(("127.0.0.1", 0)) as listener:
            listener.settimeout(20)
            port = listener.getsockname()[1]
            proxy = Proxy(CONFIG.format(rate="100/s"), to=f"http://127.0.0.1:{port}")
            self.addCleanup(proxy.stop)
            self.client = socket.create_connection(("127.0.0.1", proxy.port), timeout=20)
            self.addCleanup(self.client.close)
            self.client.sendall(self.UPGRADE)
            asked = b""
            # The proxy's look at whether its upstream is up connects as well, and sends nothing.
            while not asked:
                self.server, _ = listener.accept()
                self.addCleanup(self.server.close)
                self.server.settimeout(20)
                asked = self.server.recv(4096)
        self.server.sendall(self.AGREED)
        self.assertIn(b"101 Switching", self.client.recv(4096))
        for one, other in ((self.client, self.server), (self.server, self.client)):
            one.sendall(b"frames")
            self.assertEqual(other.recv(100), b"frames")

    def reset(self, end):
        """Closing without lingering sends RST instead of FIN."""
        end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        end.close()

    def assert_ended(self, end):
        try:
            self.assertEqual(end.recv(100), b"")
        except ConnectionResetError:
            pass
        except TimeoutError:
            self.fail("the other end never learns of it")

    def test_a_client_that_resets_ends_the_tunnel(self):
        self.reset(self.client)
        self.assert_ended(self.server)

    def test_an_upstream_that_resets_ends_the_tunnel(self):
        self.reset(self.server)
        self.assert_ended(self.client)

    def test_one_direction_may_end_before_the_other(self):
        self.client.shutdown(socket.SHUT_WR)
        self.assertEqual(self.server.recv(100), b"")
        self.server.sendall(b"last words")
        self.assertEqual(self.client.recv(100), b"last words")
        self.server.close()
        self.assertEqual(self.client.recv(100), b"")


class Limits(WebSocketCase):
    rate = "2/4s"

    def test_an_upgrade_is_one_request_and_messages_are_none(self):
        with self.connect() as first:
            quota = Quota(first.response.headers)
            self.assertEqual(first.response.status_code, http.HTTPStatus.SWITCHING_PROTOCOLS)
            self.assertEqual((quota.limit, quota.remaining), (2, 1))
            for _ in range(20):
                first.send("not counted")
                first.recv(timeout=20)
            with self.connect() as second:
                self.assertEqual(Quota(second.response.headers).remaining, 0)

    def test_over_the_limit_an_upgrade_is_denied_until_retry_after(self):
        for _ in range(2):
            self.connect().close()
        with self.assertRaises(InvalidStatus) as refused:
            self.connect()
        answer = refused.exception.response
        denial = Denial(answer.status_code, answer.headers, answer.body)
        self.assertEqual(json.loads(answer.body)["violated-policies"], ["default"])
        time.sleep(denial.retry_after)
        with self.connect() as client:
            client.send("again")
            self.assertEqual(client.recv(timeout=20), "again")
