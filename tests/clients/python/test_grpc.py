"""grpcio on both sides of the proxy: all four kinds of calls with metadata both ways, statuses,
deadlines and cancelling, over HTTP/2 from the client to the server and with its trailers."""

import concurrent.futures
import pathlib
import subprocess
import tempfile
import threading
import time

import grpc
from stage import Case, Proxy, free_port

WIDE = '[limit.default]\nrate = "100000/min"\nkey = "global"\n'


class Server:
    """A server of the same library, whose messages are bytes. It remembers whose calls were
    cancelled, and how much time each call said it had."""

    def __init__(self, credentials=None):
        self.cancelled = set()
        self.remaining = {}
        self._changed = threading.Condition()
        kinds = {
            "Unary": grpc.unary_unary_rpc_method_handler(self._unary),
            "Down": grpc.unary_stream_rpc_method_handler(self._down),
            "Up": grpc.stream_unary_rpc_method_handler(self._up),
            "Both": grpc.stream_stream_rpc_method_handler(self._both),
        }
        self._server = grpc.server(concurrent.futures.ThreadPoolExecutor(32))
        self._server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler("test.Echo", kinds),)
        )
        if credentials is None:
            self.port = self._server.add_insecure_port("127.0.0.1:0")
        else:
            self.port = self._server.add_secure_port("127.0.0.1:0", credentials)
        self._server.start()

    def stop(self):
        self._server.stop(None)

    def _begin(self, context):
        told = dict(context.invocation_metadata())
        name = told.get("x-call", "")
        self.remaining[name] = context.time_remaining()

        def ended():
            with self._changed:
                if context.code() is None and not done.is_set():
                    self.cancelled.add(name)
                self._changed.notify_all()

        done = threading.Event()
        context.add_callback(ended)
        context.send_initial_metadata((("x-begin", told.get("x-say", "none")),))
        context.set_trailing_metadata((("x-end", name), ("x-end-bin", b"\x00\xff")))
        return done

    def _unary(self, message, context):
        done = self._begin(context)
        if message == b"fail":
            done.set()
            context.abort(grpc.StatusCode.FAILED_PRECONDITION, "not – like this")
        if message == b"wait":
            threading.Event().wait(10)
        done.set()
        return message

    def _down(self, message, context):
        done = self._begin(context)
        if message == b"endless":
            while context.is_active():
                yield b"x" * 1000
            return
        for number in range(int(message)):
            yield b"%d" % number
        done.set()

    def _up(self, messages, context):
        done = self._begin(context)
        total = sum(len(message) for message in messages)
        done.set()
        return b"%d" % total

    def _both(self, messages, context):
        done = self._begin(context)
        message = None
        for message in messages:
            yield b"re: " + message
        # A call that was cancelled may look ended a moment before it looks cancelled.
        if message != b"one" or not self._ends_within(context, 1):
            done.set()

    @staticmethod
    def _ends_within(context, seconds):
        until = time.monotonic() + seconds
        while context.is_active() and time.monotonic() < until:
            time.sleep(0.01)
        return not context.is_active()

    def was_cancelled(self, name):
        with self._changed:
            return self._changed.wait_for(lambda: name in self.cancelled, 5)


class Calls:
    """The calls themselves; what carries them is the subclasses' own."""

    def setUp(self):
        super().setUp()
        channel = grpc.insecure_channel(f"127.0.0.1:{self.proxy.port}")
        self.addCleanup(channel.close)
        self.unary = channel.unary_unary("/test.Echo/Unary")
        self.down = channel.unary_stream("/test.Echo/Down")
        self.up = channel.stream_unary("/test.Echo/Up")
        self.both = channel.stream_stream("/test.Echo/Both")
        self.told = (("x-call", self.id()), ("x-say", "hello"))

    def assert_metadata(self, call):
        self.assertEqual(dict(call.initial_metadata())["x-begin"], "hello")
        trailing = dict(call.trailing_metadata())
        self.assertEqual(trailing["x-end"], self.id())
        self.assertEqual(trailing["x-end-bin"], b"\x00\xff")
        self.assertEqual(call.code(), grpc.StatusCode.OK)

    def test_unary(self):
        for size in (0, 1, 100_000, 3_000_000):
            answer, call = self.unary.with_call(b"m" * size, metadata=self.told, timeout=10)
            self.assertEqual(len(answer), size)
            self.assert_metadata(call)

    def test_server_stream(self):
        call = self.down(b"500", metadata=self.told, timeout=10)
        self.assertEqual(list(call), [b"%d" % number for number in range(500)])
        self.assert_metadata(call)
        self.assertEqual(list(self.down(b"0", metadata=self.told)), [])

    def test_client_stream(self):
        pieces = (b"p" * 10_000 for _ in range(300))
        answer, call = self.up.with_call(pieces, metadata=self.told, timeout=10)
        self.assertEqual(answer, b"3000000")
        self.assert_metadata(call)

    def test_both_at_once(self):
        # Each message waits for the answer to the one before: nothing may be held back.
        answered = threading.Semaphore(1)

        def messages():
            for number in range(50):
                self.assertTrue(answered.acquire(timeout=20))
                yield b"%d" % number

        call = self.both(messages(), metadata=self.told, timeout=10)
        for number, answer in enumerate(call):
            self.assertEqual(answer, b"re: %d" % number)
            answered.release()
        self.assertEqual(number, 49)
        self.assert_metadata(call)

    def test_a_status_and_its_details(self):
        with self.assertRaises(grpc.RpcError) as failed:
            self.unary(b"fail", metadata=self.told, timeout=10)
        self.assertEqual(failed.exception.code(), grpc.StatusCode.FAILED_PRECONDITION)
        self.assertEqual(failed.exception.details(), "not – like this")
        self.assertEqual(dict(failed.exception.trailing_metadata())["x-end"], self.id())

    def test_an_unknown_method(self):
        missing = self.unary
        with grpc.insecure_channel(f"127.0.0.1:{self.proxy.port}") as channel:
            missing = channel.unary_unary("/test.Echo/Missing")
            with self.assertRaises(grpc.RpcError) as failed:
                missing(b"", timeout=10)
        self.assertEqual(failed.exception.code(), grpc.StatusCode.UNIMPLEMENTED)

    def test_a_deadline_is_told_and_held(self):
        with self.assert_seconds(1.9, 4), self.assertRaises(grpc.RpcError) as failed:
            self.unary(b"wait", metadata=self.told, timeout=2)
        self.assertEqual(failed.exception.code(), grpc.StatusCode.DEADLINE_EXCEEDED)
        self.assertLess(self.server.remaining[self.id()], 2.1)
        self.assertTrue(self.server.was_cancelled(self.id()))

    def test_a_call_that_is_cancelled_ends_at_the_server(self):
        call = self.down(b"endless", metadata=self.told, timeout=10)
        next(call)
        call.cancel()
        self.assertTrue(self.server.was_cancelled(self.id()))
        never = threading.Event()
        self.addCleanup(never.set)

        def messages():
            yield b"one"
            never.wait(10)

        other = (("x-call", self.id() + " both"),)
        call = self.both(messages(), metadata=other, timeout=10)
        self.assertEqual(next(call), b"re: one")
        call.cancel()
        self.assertTrue(self.server.was_cancelled(self.id() + " both"))

    def test_many_calls_at_once(self):
        calls = [self.unary.future(b"%d" % n, metadata=self.told, timeout=10) for n in range(300)]
        self.assertEqual([call.result() for call in calls], [b"%d" % n for n in range(300)])


class OverH2c(Calls, Case):
    @classmethod
    def setUpClass(cls):
        cls.server = Server()
        cls.addClassCleanup(cls.server.stop)
        cls.proxy = Proxy(WIDE, to=f"h2c://127.0.0.1:{cls.server.port}")
        cls.addClassCleanup(cls.proxy.stop)


class OverTls(Calls, Case):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory(prefix="tidegate-clients-")
        cls.addClassCleanup(folder.cleanup)
        key, cert = (pathlib.Path(folder.name, name) for name in ("key.pem", "cert.pem"))
        words = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2"
        names = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"]
        # An authority's certificate is not a server's.
        names += ["-addext", "basicConstraints=critical,CA:FALSE"]
        subprocess.run(
            [*words.split(), *names, "-keyout", key, "-out", cert], check=True, capture_output=True
        )
        pair = (key.read_bytes(), cert.read_bytes())
        cls.server = Server(grpc.ssl_server_credentials([pair]))
        cls.addClassCleanup(cls.server.stop)
        cls.proxy = Proxy(
            f'{WIDE}[[route]]\npath = "/*"\nupstream = "api"\n[upstream.api]\n'
            f'servers = ["https://localhost:{cls.server.port}"]\ntls = {{ ca = "{cert}" }}\n'
        )
        cls.addClassCleanup(cls.proxy.stop)


class Refused(Case):
    def test_a_limit_is_a_status(self):
        server = Server()
        self.addCleanup(server.stop)
        limit = '[limit.default]\nrate = "2/h"\nkey = "global"\n'
        proxy = Proxy(limit, to=f"h2c://127.0.0.1:{server.port}")
        self.addCleanup(proxy.stop)
        with grpc.insecure_channel(f"127.0.0.1:{proxy.port}") as channel:
            unary = channel.unary_unary("/test.Echo/Unary")
            self.assertEqual([unary(b"a", timeout=20), unary(b"b", timeout=20)], [b"a", b"b"])
            with self.assertRaises(grpc.RpcError) as failed:
                unary(b"c", timeout=20)
            self.assertEqual(failed.exception.code(), grpc.StatusCode.RESOURCE_EXHAUSTED)
            pushback = dict(failed.exception.trailing_metadata())["grpc-retry-pushback-ms"]
            self.assertGreater(int(pushback), 0)

    def test_an_upstream_that_is_away_is_unavailable(self):
        proxy = Proxy(WIDE, to=f"h2c://127.0.0.1:{free_port()}")
        self.addCleanup(proxy.stop)
        with grpc.insecure_channel(f"127.0.0.1:{proxy.port}") as channel:
            with self.assertRaises(grpc.RpcError) as failed:
                channel.unary_unary("/test.Echo/Unary")(b"", timeout=20)
            self.assertEqual(failed.exception.code(), grpc.StatusCode.UNAVAILABLE)
