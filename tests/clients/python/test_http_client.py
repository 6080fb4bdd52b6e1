"""http.client, of Python itself: a request's parts sent one by one, with time between them."""

import http.client
import time

from fields import Denial, Quota
from stage import Case


class Pieces(Case):
    config = '[limit.default]\nrate = "2/4s"\nkey = "api_key"'

    def setUp(self):
        super().setUp()
        self.connection = http.client.HTTPConnection("127.0.0.1", self.proxy.port, timeout=20)
        # A connection that was closed unannounced shows as an error, not as a new connection.
        self.connection.connect()
        self.connection.auto_open = False
        self.addCleanup(self.connection.close)

    def get(self):
        self.connection.request("GET", "/echo", headers={"X-Api-Key": self.key})
        answer = self.connection.getresponse()
        return answer, answer.read()

    def post(self, length, pieces):
        """Head first; each piece a moment later."""
        self.connection.putrequest("POST", "/echo")
        self.connection.putheader("X-Api-Key", self.key)
        self.connection.putheader("Content-Length", str(length))
        self.connection.endheaders()
        for piece in pieces:
            time.sleep(0.1)
            self.connection.send(piece)
        answer = self.connection.getresponse()
        return answer, answer.read()

    def test_a_body_that_comes_later_is_waited_for(self):
        answer, body = self.post(6, [b"one", b"two"])
        self.assertEqual(answer.status, 200)
        self.assertIn(b'"bytes":6', body)
        self.assertEqual(Quota(answer.headers).remaining, 1)

    def test_a_denial_before_the_body_says_whether_the_connection_goes_on(self):
        """RFC 9112 section 9.6: a server that closes says so, or a pool sends on it once more."""
        for _ in range(2):
            self.assertEqual(self.get()[0].status, 200)
        denied, body = self.post(1000, [b"x" * 1000])
        denial = Denial(denied.status, denied.headers, body)
        if denied.will_close:
            return
        time.sleep(denial.retry_after)
        self.assertEqual(self.get()[0].status, 200)
