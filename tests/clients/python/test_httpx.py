"""httpx, blocking and async: concurrency at the edge of a limit, event streams, 204 and 304."""

import asyncio
import hashlib
import time

import httpx
from fields import Denial, Quota
from stage import LARGE_BYTES, Case, LargeBody, large_sha256, upstream


class Limits(Case):
    config = '[limit.default]\nrate = "5/4s"\nkey = "api_key"'

    def test_a_crowd_gets_exactly_the_limit_and_the_rest_after_the_wait(self):
        asyncio.run(self._crowd())

    async def _crowd(self):
        headers = {"X-Api-Key": self.key}
        async with httpx.AsyncClient(headers=headers, timeout=10) as client:
            for _ in range(2):
                answers = await asyncio.gather(
                    *(client.get(f"{self.url}/echo") for _ in range(20))
                )
                passed = [answer for answer in answers if answer.status_code == 200]
                self.assertEqual(len(passed), 5)
                left = sorted(Quota(answer.headers).remaining for answer in passed)
                self.assertEqual(left, [0, 1, 2, 3, 4], "every one was counted once")
                denials = [
                    Denial(answer.status_code, answer.headers, answer.content)
                    for answer in answers
                    if answer.status_code != 200
                ]
                self.assertEqual(len(denials), 15)
                await asyncio.sleep(max(denial.retry_after for denial in denials))

    def test_requests_over_one_connection_are_counted_one_by_one(self):
        with httpx.Client(headers={"X-Api-Key": self.key}, timeout=10) as client:
            streams = set()
            for expected in (4, 3, 2, 1, 0):
                answer = client.get(f"{self.url}/echo")
                self.assertEqual(Quota(answer.headers).remaining, expected)
                stream = answer.extensions["network_stream"]
                streams.add(stream.get_extra_info("client_addr"))
            self.assertEqual(client.get(f"{self.url}/echo").status_code, 429)
            self.assertEqual(len(streams), 1, "it did not stay one connection")

    def test_every_answer_leaves_the_connection_usable(self):
        """One connection, answers of every framing: a byte too many would spoil the next one."""
        limits = httpx.Limits(max_connections=1)
        with httpx.Client(timeout=10, limits=limits) as client:
            ports = set()
            for method, target, status in (
                ("GET", "/status/204", 204),
                ("GET", "/status/304", 304),
                ("HEAD", "/bytes/5000", 200),
                ("HEAD", "/bytes/5000?chunked", 200),
                ("GET", "/bytes/5000?chunked", 200),
                ("GET", "/bytes/0", 200),
                ("PUT", "/status/500?body=x", 500),
                ("GET", "/bytes/70000", 200),
                ("HEAD", "/status/404?body=none", 404),
                ("DELETE", "/status/200", 200),
                ("GET", "/hints", 200),
                ("GET", "/echo", 200),
            ):
                # A key of its own for each: the same address, never a denial.
                headers = {"X-Api-Key": f"{self.key} {method} {target}"}
                answer = client.request(method, self.url + target, headers=headers)
                with self.subTest(f"{method} {target}"):
                    self.assertEqual(answer.status_code, status)
                    if method == "HEAD" or status in (204, 304):
                        self.assertEqual(answer.content, b"")
                    Quota(answer.headers)
                stream = answer.extensions["network_stream"]
                ports.add(stream.get_extra_info("client_addr"))
            self.assertEqual(len(ports), 1, "it did not stay one connection")

    def test_denials_leave_the_connection_usable(self):
        headers = {"X-Api-Key": self.key}
        with httpx.Client(timeout=10, headers=headers) as client:
            ports, statuses = set(), []
            for method in ("GET", "POST", "HEAD", "GET", "DELETE", "GET", "HEAD", "DELETE", "GET"):
                body = b"y" * 1000 if method == "POST" else None
                answer = client.request(method, f"{self.url}/echo", content=body)
                statuses.append(answer.status_code)
                stream = answer.extensions["network_stream"]
                ports.add(stream.get_extra_info("client_addr"))
            self.assertEqual(statuses, [200] * 5 + [429] * 4)
            self.assertEqual(len(ports), 1, "it did not stay one connection")


class Framing(Case):
    config = '[limit.default]\nrate = "1000/s"'

    def setUp(self):
        super().setUp()
        self.client = httpx.Client(base_url=self.url, timeout=10)
        self.addCleanup(self.client.close)

    def test_no_content_has_no_length_and_no_body(self):
        answer = self.client.get("/status/204")
        self.assertEqual((answer.status_code, answer.content), (204, b""))
        self.assertNotIn("content-length", answer.headers)
        self.assertNotIn("transfer-encoding", answer.headers)

    def test_a_conditional_request_is_answered_by_the_upstream(self):
        first = self.client.get("/etag")
        self.assertEqual((first.status_code, first.text), (200, "version one"))
        again = self.client.get("/etag", headers={"If-None-Match": first.headers["ETag"]})
        self.assertEqual((again.status_code, again.content), (304, b""))
        self.assertEqual(again.headers["ETag"], '"v1"')
        self.assertEqual(again.headers["Cache-Control"], "max-age=60")
        Quota(again.headers)

    def test_head_has_the_length_and_not_the_body(self):
        answer = self.client.head("/bytes/5000")
        self.assertEqual(answer.headers["Content-Length"], "5000")
        self.assertEqual(answer.content, b"")

    def test_early_hints_do_not_disturb_the_answer(self):
        self.assertEqual(self.client.get("/hints").text, "after a 103")

    def test_a_large_chunked_download_is_whole(self):
        digest, total = hashlib.sha256(), 0
        with self.proxy.flat_memory(self):
            with self.client.stream("GET", f"/bytes/{LARGE_BYTES}?chunked") as answer:
                self.assertEqual(answer.headers["Transfer-Encoding"], "chunked")
                for chunk in answer.iter_raw():
                    if not total:
                        time.sleep(0.7)
                    total += len(chunk)
                    digest.update(chunk)
        self.assertEqual((total, digest.hexdigest()), (LARGE_BYTES, large_sha256()))

    def test_a_large_async_upload_is_whole(self):
        got, body = asyncio.run(self._upload())
        self.assertEqual((got["bytes"], got["sha256"]), (LARGE_BYTES, body.sha256))

    async def _upload(self):
        body = LargeBody()

        async def pieces():
            for piece in body:
                yield piece

        async with httpx.AsyncClient(timeout=40) as client:
            answer = await client.put(f"{self.url}/upload", content=pieces())
            return answer.json(), body


class Events(Case):
    config = '[limit.default]\nrate = "1000/s"'
    every = 1

    def lags(self, lines):
        """How long each event took to get here: its text is when it was sent."""
        for line in lines:
            if line.startswith("data: "):
                yield time.time() - float(line.removeprefix("data: "))

    def check(self, lags):
        self.assertEqual(len(lags), 5)
        self.assertLess(max(lags), self.every, "an event came after its successor was sent")

    def test_events_arrive_as_they_are_sent(self):
        target = f"{self.url}/events/5?every={self.every * 1000:.0f}"
        with httpx.stream("GET", target, timeout=20) as answer:
            self.assertEqual(answer.headers["Content-Type"], "text/event-stream")
            Quota(answer.headers)
            self.check(list(self.lags(answer.iter_lines())))

    def test_many_listen_at_once(self):
        asyncio.run(self._many())

    async def _many(self):
        target = f"{self.url}/events/5?every={self.every * 1000:.0f}"

        async def listen(client):
            found = []
            async with client.stream("GET", target) as answer:
                async for line in answer.aiter_lines():
                    found.extend(self.lags([line]))
            return found

        async with httpx.AsyncClient(timeout=20) as client:
            for found in await asyncio.gather(*(listen(client) for _ in range(20))):
                self.check(found)

    def test_a_listener_that_leaves_ends_the_upstreams_work(self):
        target = f"{self.url}/events/50?every=100&id={self.key}"
        with httpx.stream("GET", target, timeout=20) as answer:
            next(answer.iter_lines())
        self.eventually(lambda: upstream().seen(self.key)["aborted"] == 1)

    def test_a_client_that_gives_up_waiting_ends_the_upstreams_work(self):
        with self.assertRaises(httpx.ReadTimeout):
            httpx.get(f"{self.url}/slow/9000?never&id={self.key}", timeout=2)
        self.eventually(lambda: upstream().seen(self.key)["aborted"] == 1)
