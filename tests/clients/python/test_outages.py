"""An upstream that is away, silent or broken, and the proxy's own orderly end."""

import contextlib
import socket
import threading
import time

import requests
import urllib3
from fields import Quota, check_problem
from stage import Case, Proxy, free_port, upstream
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

LIMIT = '[limit.default]\nrate = "1000/s"\nkey = "ip"\n'


@contextlib.contextmanager
def listener(attend):
    """A server that leaves each connection to `attend`, in a thread of its own."""
    server = socket.create_server(("127.0.0.1", 0))

    def accept():
        with contextlib.suppress(OSError):
            while True:
                threading.Thread(target=attend, args=server.accept()[:1], daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.getsockname()[1]}"
    finally:
        server.shutdown(socket.SHUT_RDWR)
        server.close()


def read_head(connection):
    """A request's head, or what came before the end."""
    head = b""
    while b"\r\n\r\n" not in head:
        piece = connection.recv(4096)
        if not piece:
            break
        head += piece
    return head


class Upstreams(Case):
    def start(self, to, settings="", server=""):
        config = f'{LIMIT}[[route]]\npath = "/*"\nupstream = "api"\n[upstream.api]\n'
        proxy = Proxy(f'{config}servers = ["{to}"]\n{settings}', server=server)
        self.addCleanup(proxy.stop)
        return proxy.url

    def check(self, url, status, **more):
        answer = requests.get(f"{url}/anything", timeout=10, **more)
        self.assertEqual(answer.status_code, status)
        Quota(answer.headers)
        return check_problem(status, answer.headers, answer.content)

    def test_nobody_listens(self):
        url = self.start(f"http://127.0.0.1:{free_port()}")
        with self.assert_seconds(0, 2):
            self.check(url, 502)

    def test_an_upstream_that_comes_back_is_used_at_once(self):
        port = free_port()
        url = self.start(f"http://127.0.0.1:{port}")
        self.check(url, 502)
        with socket.create_server(("127.0.0.1", port)) as server:
            threading.Thread(target=self._answer_once, args=(server,), daemon=True).start()
            self.assertEqual(requests.get(url, timeout=20).text, "back")

    def _answer_once(self, server):
        connection, _ = server.accept()
        with connection:
            # The proxy's own look at whether its upstream is up sends nothing.
            if read_head(connection):
                connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nback")

    def test_a_silent_upstream_is_given_up_in_time(self):
        with listener(lambda connection: time.sleep(10)) as silent:
            url = self.start(silent, 'timeout = "1s"')
            with self.assert_seconds(0.9, 3):
                self.check(url, 504)

    def test_an_upstream_that_never_accepts_is_given_up_in_time(self):
        with socket.socket() as full:
            full.bind(("127.0.0.1", 0))
            full.listen(0)
            address = full.getsockname()
            # Connections that fill its queue, so that the kernel drops further ones.
            fill = [socket.socket() for _ in range(4)]
            for one in fill:
                one.setblocking(False)
                one.connect_ex(address)
            url = self.start(f"http://127.0.0.1:{address[1]}", 'connect_timeout = "1s"')
            with self.assert_seconds(0.9, 4):
                self.check(url, 504)
            for one in fill:
                one.close()

    def test_an_upstream_that_hangs_up_is_a_bad_gateway(self):
        def hang_up(connection):
            read_head(connection)
            connection.close()

        with listener(hang_up) as rude:
            url = self.start(rude)
            with self.assert_seconds(0, 2):
                self.check(url, 502)

    def test_an_upstream_that_speaks_nonsense_is_a_bad_gateway(self):
        def babble(connection):
            read_head(connection)
            connection.sendall(b"220 mail.example ESMTP ready\r\n")
            connection.close()

        with listener(babble) as mail:
            self.check(self.start(mail), 502)

    def test_a_stale_connection_is_replaced_unseen(self):
        """A server that ends each idle connection after its answer, without saying so."""

        def answer_and_leave(connection):
            if read_head(connection):
                connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
                time.sleep(0.05)
            connection.close()

        with listener(answer_and_leave) as leaving:
            url = self.start(leaving)
            with requests.Session() as session:
                for _ in range(10):
                    answer = session.get(url, timeout=20)
                    self.assertEqual((answer.status_code, answer.text), (200, "ok"))
                    time.sleep(0.1)

    def test_an_upload_to_an_upstream_that_answers_early_gets_that_answer(self):
        def refuse(connection):
            with contextlib.suppress(OSError):
                read_head(connection)
                connection.sendall(b"HTTP/1.1 403 Forbidden\r\nContent-Length: 2\r\n\r\nno")
                connection.shutdown(socket.SHUT_WR)
                while connection.recv(1 << 16):
                    pass

        with listener(refuse) as strict:
            url = self.start(strict)
            answer = requests.put(url, data=b"z" * (8 << 20), timeout=20)
            self.assertEqual((answer.status_code, answer.text), (403, "no"))


class Ending(Case):
    def start(self, drain):
        proxy = Proxy(LIMIT, server=f'drain_timeout = "{drain}"')
        self.addCleanup(proxy.stop)
        return proxy

    def fetch_later(self, url):
        """Starts a request in a thread; returns where its answer will be."""
        answers = []

        def fetch():
            try:
                answers.append(urllib3.request("GET", url, retries=False, timeout=10))
            except urllib3.exceptions.HTTPError as error:
                answers.append(error)

        thread = threading.Thread(target=fetch, daemon=True)
        thread.start()
        return thread, answers

    def refuses(self, port):
        try:
            socket.create_connection(("127.0.0.1", port), timeout=20).close()
        except ConnectionRefusedError:
            return True
        return False

    def test_requests_under_way_are_answered_and_new_connections_refused(self):
        proxy = self.start("8s")
        thread, answers = self.fetch_later(f"{proxy.url}/slow/4000?id={self.key}")
        self.eventually(lambda: upstream().seen(self.key)["requests"] == 1)
        proxy.terminate()
        self.eventually(lambda: self.refuses(proxy.port))
        self.assertIsNone(proxy.process.poll(), "it left before its request was answered")
        thread.join(20)
        self.assertEqual((answers[0].status, answers[0].data), (200, b"at last"))
        self.assertEqual(answers[0].headers["Connection"], "close", "the client was not told")
        with self.assert_seconds(0, 2):
            self.assertEqual(proxy.process.wait(20), 0)

    def test_a_body_under_way_is_finished(self):
        proxy = self.start("8s")
        target = f"{proxy.url}/events/6?every=250&id={self.key}"
        thread, answers = self.fetch_later(target)
        self.eventually(lambda: upstream().seen(self.key)["requests"] == 1)
        proxy.terminate()
        thread.join(20)
        self.assertEqual(answers[0].data.count(b"data: "), 6)
        self.assertEqual(proxy.process.wait(20), 0)

    def test_idle_connections_do_not_hold_it_up(self):
        proxy = self.start("8s")
        with requests.Session() as session:
            self.assertEqual(session.get(f"{proxy.url}/echo", timeout=20).status_code, 200)
            with socket.create_connection(("127.0.0.1", proxy.port)):
                proxy.terminate()
                with self.assert_seconds(0, 2):
                    self.assertEqual(proxy.process.wait(20), 0)

    def test_what_takes_longer_than_the_deadline_is_cut(self):
        proxy = self.start("1s")
        thread, answers = self.fetch_later(f"{proxy.url}/slow/9000?id={self.key}")
        self.eventually(lambda: upstream().seen(self.key)["requests"] == 1)
        proxy.terminate()
        with self.assert_seconds(0.8, 3):
            proxy.process.wait(20)
        thread.join(20)
        self.assertIsInstance(answers[0], urllib3.exceptions.HTTPError)

    def test_a_websocket_does_not_outlive_the_deadline(self):
        proxy = self.start("1s")
        with connect(f"{proxy.websocket_url}/ws", proxy=None, close_timeout=1) as client:
            client.send("hello")
            self.assertEqual(client.recv(timeout=20), "hello")
            proxy.terminate()
            with self.assert_seconds(0, 3):
                proxy.process.wait(20)
            with self.assertRaises(ConnectionClosed):
                client.recv(timeout=20)
