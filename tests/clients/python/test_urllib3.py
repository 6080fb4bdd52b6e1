"""urllib3: `Retry` obeys Retry-After by itself, and raises on anything but whole seconds."""

import hashlib
import time
import unittest

import urllib3
from fields import Denial, Quota
from stage import LARGE_BYTES, Case, LargeBody, large_sha256, upstream
from urllib3.util import Retry


class Retries(Case):
    config = '[limit.default]\nrate = "3/3s"\nkey = "api_key"'
    windows = 1

    def pool(self, retries):
        pool = urllib3.PoolManager(headers={"X-Api-Key": self.key}, retries=retries, timeout=10)
        self.addCleanup(pool.clear)
        return pool

    def test_one_wait_of_retry_after_is_enough(self):
        pool = self.pool(Retry(total=1, backoff_factor=0))
        with self.assert_seconds(1, 7):
            answers = [pool.request("GET", f"{self.url}/echo") for _ in range(4)]
        self.assertEqual([answer.status for answer in answers], [200] * 4)
        self.assertEqual([len(answer.retries.history) for answer in answers], [0, 0, 0, 1])
        self.assertEqual(answers[3].retries.history[0].status, 429)

    def test_waiting_less_than_retry_after_says_is_denied_and_costs_nothing(self):
        pool = self.pool(False)
        for _ in range(3):
            self.assertEqual(pool.request("GET", f"{self.url}/echo").status, 200)
        asked = time.monotonic()
        denied = pool.request("GET", f"{self.url}/echo")
        denial = Denial(denied.status, denied.headers, denied.data, self.windows)
        until = time.monotonic() + denial.retry_after
        # A wait is whole seconds: up to one of them may be more than is needed.
        needed = asked + denial.retry_after - 1
        while time.monotonic() < needed:
            again = pool.request("GET", f"{self.url}/echo")
            if time.monotonic() < needed:
                self.assertEqual(again.status, 429, "before its time")
        time.sleep(max(0, until - time.monotonic()))
        answer = pool.request("GET", f"{self.url}/echo")
        self.assertEqual(answer.status, 200, "the denials in between were charged")

    def test_a_budget_comes_back_unit_by_unit_as_the_window_slides(self):
        pool = self.pool(False)
        self.assertEqual(pool.request("GET", f"{self.url}/echo").status, 200)
        time.sleep(1.5)
        for _ in range(2):
            self.assertEqual(pool.request("GET", f"{self.url}/echo").status, 200)
        denied = pool.request("GET", f"{self.url}/echo")
        denial = Denial(denied.status, denied.headers, denied.data, self.windows)
        self.assertLessEqual(denial.retry_after, 2, "the first unit is free before the others")
        time.sleep(denial.retry_after)
        answer = pool.request("GET", f"{self.url}/echo")
        self.assertEqual(answer.status, 200)
        self.assertEqual(Quota(answer.headers).remaining, 0)

    def test_at_the_reset_the_whole_budget_is_there(self):
        pool = self.pool(False)
        for _ in range(3):
            quota = Quota(pool.request("GET", f"{self.url}/echo").headers, self.windows)
        time.sleep(max(0, quota.reset - time.time()))
        answer = pool.request("GET", f"{self.url}/echo")
        self.assertEqual(answer.status, 200)
        self.assertEqual(Quota(answer.headers, self.windows).remaining, 2)


class Counters(Retries):
    """The same promises from the algorithm that only counts."""

    config = '[limit.default]\nrate = "3/3s"\nkey = "api_key"\nalgorithm = "counter"'
    windows = 2

    # It knows how many, not when: what comes back is a share of the last window.
    test_a_budget_comes_back_unit_by_unit_as_the_window_slides = None


class Bodies(Case):
    config = '[limit.default]\nrate = "1000/s"'

    def setUp(self):
        super().setUp()
        self.pool = urllib3.PoolManager(retries=False, timeout=10)
        self.addCleanup(self.pool.clear)

    def test_a_large_download_to_a_slow_reader_takes_no_memory(self):
        digest, total = hashlib.sha256(), 0
        with self.proxy.flat_memory(self):
            answer = self.pool.request(
                "GET", f"{self.url}/bytes/{LARGE_BYTES}", preload_content=False
            )
            self.assertEqual(answer.headers["Content-Length"], str(LARGE_BYTES))
            for chunk in answer.stream(1 << 18):
                if not total:
                    time.sleep(0.7)
                total += len(chunk)
                digest.update(chunk)
            answer.release_conn()
        self.assertEqual(total, LARGE_BYTES)
        self.assertEqual(digest.hexdigest(), large_sha256())

    def test_a_large_chunked_upload_to_a_slow_upstream_takes_no_memory(self):
        body = LargeBody()
        with self.proxy.flat_memory(self):
            answer = self.pool.request("PUT", f"{self.url}/upload?pause=700", body=body)
        got = answer.json()
        self.assertEqual((got["bytes"], got["sha256"]), (LARGE_BYTES, body.sha256))
        self.assertEqual(got["encoding"], "chunked")

    def test_a_body_that_ends_too_early_is_an_error_and_not_a_short_answer(self):
        for target in ("/cut", "/cut?chunked"):
            with self.subTest(target):
                with self.assertRaises(urllib3.exceptions.ProtocolError):
                    self.pool.request("GET", self.url + target)

    def test_set_cookie_lines_stay_apart(self):
        through = self.pool.request("GET", f"{self.url}/cookies")
        direct = self.pool.request("GET", f"{upstream().url}/cookies")
        self.assertEqual(len(direct.headers.getlist("set-cookie")), 3)
        self.assertEqual(
            through.headers.getlist("set-cookie"), direct.headers.getlist("set-cookie")
        )


if __name__ == "__main__":
    unittest.main()
