"""CORS in the manner of browsers: what the Fetch standard lets a page's script read.

`Page` does what a browser does around `fetch()`: a preflight where one is needed, the CORS check on
the answer (section 4.10 of the standard), and the filter on its headers (section 2.2.6).
"""

import requests
from fields import Quota
from stage import Case, upstream

SAFELISTED_METHODS = {"GET", "HEAD", "POST"}
SAFELISTED_REQUEST = {"accept", "accept-language", "content-language"}
SAFELISTED_RESPONSE = {
    "cache-control", "content-language", "content-length", "content-type", "expires",
    "last-modified", "pragma",
}  # fmt: skip
OURS = [
    "RateLimit", "RateLimit-Policy", "Retry-After",
    "X-RateLimit-Limit", "X-RateLimit-Remaining", "X-RateLimit-Reset",
]  # fmt: skip


class NetworkError(Exception):
    """All that a script learns of an answer that fails the CORS check."""


def names(headers, name):
    """A list header's members in lower case."""
    return {member.strip().lower() for member in headers.get(name, "").split(",")} - {""}


class Page:
    """A page of `origin`, whose scripts fetch from elsewhere."""

    def __init__(self, origin, credentials=False):
        self.origin = origin
        self.credentials = credentials
        self.session = requests.Session()

    def fetch(self, url, method="GET", headers=None):
        """Status, readable headers and body; or NetworkError."""
        headers = headers or {}
        unsafe = sorted(name.lower() for name in headers if name.lower() not in SAFELISTED_REQUEST)
        if method not in SAFELISTED_METHODS or unsafe:
            self.preflight(url, method, unsafe)
        answer = self._send(method, url, {**headers, "Origin": self.origin})
        self._check(answer)
        exposed = names(answer.headers, "Access-Control-Expose-Headers")
        if "*" in exposed and not self.credentials:
            exposed = {name.lower() for name in answer.headers}
        readable = (exposed | SAFELISTED_RESPONSE) - {"set-cookie"}
        kept = {name: value for name, value in answer.headers.items() if name.lower() in readable}
        return answer.status_code, requests.structures.CaseInsensitiveDict(kept), answer.text

    def preflight(self, url, method, unsafe):
        asked = {"Origin": self.origin, "Access-Control-Request-Method": method}
        if unsafe:
            asked["Access-Control-Request-Headers"] = ",".join(unsafe)
        answer = self._send("OPTIONS", url, asked)
        self._check(answer)
        if not 200 <= answer.status_code < 300:
            raise NetworkError(f"the preflight got {answer.status_code}")
        if method not in SAFELISTED_METHODS:
            allowed = names(answer.headers, "Access-Control-Allow-Methods")
            if method.lower() not in allowed:
                raise NetworkError(f"{method} is not in {allowed}")
        refused = set(unsafe) - names(answer.headers, "Access-Control-Allow-Headers")
        if refused:
            raise NetworkError(f"headers not allowed: {refused}")
        return answer

    def _send(self, method, url, headers):
        return self.session.request(method, url, headers=headers, timeout=10)

    def _check(self, answer):
        """The CORS check, on the one value that a browser takes."""
        origin = answer.headers.get("Access-Control-Allow-Origin")
        if origin == "*" and not self.credentials:
            return
        if origin != self.origin:
            raise NetworkError(f"{answer.status_code} allows {origin}")
        if self.credentials and answer.headers.get("Access-Control-Allow-Credentials") != "true":
            raise NetworkError("no credentials")


class Cors(Case):
    config = '[limit.default]\nrate = "3/h"\nkey = "api_key"'

    def setUp(self):
        super().setUp()
        self.page = Page("https://app.example", credentials=True)
        self.addCleanup(self.page.session.close)

    def fetch(self, target="/cors", method="GET", page=None):
        page = page or self.page
        return page.fetch(self.url + target, method, {"X-Api-Key": self.key})

    def test_a_script_reads_its_limits_and_what_the_upstream_exposed(self):
        status, headers, body = self.fetch()
        self.assertEqual((status, body), (200, "for scripts"))
        self.assertEqual(headers["X-Total-Count"], "42")
        self.assertEqual(Quota(headers).remaining, 2)

    def test_preflights_are_never_charged(self):
        for _ in range(20):
            self.page.preflight(f"{self.url}/cors?id={self.key}", "PUT", ["x-api-key"])
        self.assertEqual(upstream().seen(self.key)["requests"], 20, "the upstream answers them")
        _, headers, _ = self.fetch(method="PUT")
        self.assertEqual(Quota(headers).remaining, 2)

    def test_a_script_reads_its_denial_whole(self):
        for _ in range(3):
            self.assertEqual(self.fetch()[0], 200)
        status, headers, body = self.fetch()
        self.assertEqual(status, 429)
        self.assertGreaterEqual(int(headers["Retry-After"]), 1)
        self.assertEqual(Quota(headers).remaining, 0)
        self.assertIn("quota-exceeded", body)
        for name in OURS:
            self.assertIn(name, headers)

    def test_a_spent_budget_still_lets_preflights_pass(self):
        for _ in range(4):
            self.fetch()
        answer = self.page.preflight(f"{self.url}/cors", "PUT", ["x-api-key"])
        self.assertEqual(answer.status_code, 204)

    def test_a_page_without_credentials_reads_its_denial_too(self):
        page = Page("https://other.example")
        self.addCleanup(page.session.close)
        statuses = [self.fetch(page=page)[0] for _ in range(4)]
        self.assertEqual(statuses, [200, 200, 200, 429])

    def test_caches_keep_the_denials_of_different_origins_apart(self):
        headers = {"Origin": "https://app.example", "X-Api-Key": self.key}
        for _ in range(4):
            answer = requests.get(f"{self.url}/cors", headers=headers, timeout=10)
        self.assertEqual(answer.status_code, 429)
        self.assertIn("origin", names(answer.headers, "Vary"))

    def test_an_options_request_that_is_no_preflight_is_charged(self):
        for _ in range(3):
            headers = {"X-Api-Key": self.key, "Origin": "https://app.example"}
            answer = requests.options(f"{self.url}/cors", headers=headers, timeout=10)
            self.assertEqual(answer.status_code, 204)
        answer = requests.options(f"{self.url}/cors", headers=headers, timeout=10)
        self.assertEqual(answer.status_code, 429)

    def test_without_an_origin_nothing_is_said_of_origins(self):
        for _ in range(4):
            answer = requests.get(
                f"{self.url}/echo", headers={"X-Api-Key": self.key}, timeout=10
            )
            for name in answer.headers:
                self.assertFalse(name.lower().startswith("access-control-"), name)
        self.assertEqual(answer.status_code, 429)

    def test_an_upstream_that_does_not_speak_cors_is_not_opened_by_the_proxy(self):
        with self.assertRaises(NetworkError):
            self.page.fetch(f"{self.url}/echo")
