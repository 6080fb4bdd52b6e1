"""By whom requests are counted: API keys against addresses, and claims that must not help."""

import requests
from fields import Denial, Quota
from stage import Case


class KeyCase(Case):
    apart = True

    def get(self, target="/echo", **headers):
        headers = {name.replace("_", "-"): value for name, value in headers.items()}
        return requests.get(self.url + target, headers=headers, timeout=10)

    def left(self, target="/echo", **headers):
        """What remains after one more request; None when it was denied."""
        answer = self.get(target, **headers)
        return Quota(answer.headers).remaining if answer.status_code == 200 else None


class ByKeyOrAddress(KeyCase):
    config = """
        [limit.default]
        rate = "3/h"
        key = "api_key or ip"
        """

    def test_each_key_has_a_budget_and_those_without_share_their_address(self):
        for left in (2, 1, 0, None, None):
            self.assertEqual(self.left(X_Api_Key="anna"), left)
        self.assertEqual(self.left(X_Api_Key="ben"), 2)
        for left in (2, 1, 0, None):
            self.assertEqual(self.left(), left)
        self.assertEqual(self.left(X_Api_Key="ben"), 1)

    def test_a_bearer_token_is_a_key(self):
        for left in (2, 1, 0, None):
            self.assertEqual(self.left(Authorization="Bearer t0ken"), left)
        self.assertEqual(self.left(Authorization="bearer 0ther"), 2)

    def test_an_empty_key_is_no_key_of_its_own(self):
        self.assertEqual(self.left(), 2)
        self.assertEqual(self.left(X_Api_Key=""), 1)


class ByAddress(KeyCase):
    config = '[limit.default]\nrate = "3/h"\nkey = "ip"'

    def test_no_header_of_a_client_makes_it_another_client(self):
        for left in (2, 1, 0):
            self.assertEqual(self.left(), left)
        for claim in (
            {"X_Forwarded_For": "203.0.113.1"},
            {"Forwarded": "for=203.0.113.1"},
            {"X_Real_IP": "203.0.113.1"},
            {"True_Client_IP": "203.0.113.1"},
            {"X_Api_Key": "fresh"},
            {"Host": "fresh.example"},
            {"Cookie": "session=fresh"},
            {"User_Agent": "fresh"},
        ):
            with self.subTest(claim):
                self.assertIsNone(self.left(**claim))


class ByPath(KeyCase):
    config = """
        [limit.default]
        rate = "3/h"
        key = ["ip", "path"]
        """

    def test_no_spelling_of_a_path_is_another_path(self):
        for left in (2, 1, 0):
            self.assertEqual(self.left("/echo"), left)
        self.assertEqual(self.left("/gzip"), 2)
        with requests.Session() as session:
            for target in ("/echo?fresh=1", "/echo/", "//echo", "/%65cho", "/./echo", "/x/../echo"):
                asked = requests.Request("GET", self.url).prepare()
                asked.url = self.url + target
                with self.subTest(target):
                    status = session.send(asked, timeout=10).status_code
                    # Refusing a spelling that has two readings is as good as counting it.
                    self.assertIn(status, (400, 429))


class ByTrustedPeer(KeyCase):
    config = """
        trusted_proxies = ["127.0.0.0/8"]
        [limit.default]
        rate = "3/h"
        key = "ip"
        """

    def test_the_rightmost_address_that_is_no_proxy_counts(self):
        for left in (2, 1, 0, None):
            self.assertEqual(self.left(X_Forwarded_For="198.51.100.7"), left)
        self.assertEqual(self.left(X_Forwarded_For="198.51.100.8"), 2)
        # Whatever stands left of the client's own address, the client wrote.
        self.assertIsNone(self.left(X_Forwarded_For="1.2.3.4, 198.51.100.7"))
        self.assertIsNone(self.left(X_Forwarded_For="198.51.100.7, 127.0.0.9"))

    def test_a_household_is_one_client(self):
        self.assertEqual(self.left(X_Forwarded_For="2001:db8:1:2::1"), 2)
        self.assertEqual(self.left(X_Forwarded_For="2001:db8:1:2:ffff::9"), 1)
        self.assertEqual(self.left(X_Forwarded_For="2001:db8:1:3::1"), 2)


class SeveralLimits(KeyCase):
    config = """
        [limit.login]
        rate = "2/30s"
        key = "ip"
        [limit.per_client]
        rate = "4/h"
        key = "api_key"
        missing = "deny"
        [[route]]
        path = "/echo"
        methods = ["POST"]
        limits = ["login", "per_client"]
        [[route]]
        path = "/bytes/{count}"
        limits = []
        [[route]]
        path = "/*"
        limits = ["per_client"]
        [[bypass]]
        path = "/status/200"
        """

    def post(self, key):
        return requests.post(f"{self.url}/echo", headers={"X-Api-Key": key}, timeout=10)

    def test_the_tightest_limit_is_shown_and_all_are_listed(self):
        first = Quota(self.post("one").headers)
        self.assertEqual(list(first.policies), ["login", "per_client"])
        self.assertEqual((first.limit, first.remaining), (2, 1))
        self.assertEqual(first.states["per_client"]["r"], 3)
        self.assertEqual(self.post("two").status_code, 200)
        third = self.post("three")
        denial = Denial(third.status_code, third.headers, third.content)
        self.assertEqual(denial.violated, ["login"], "the address is spent, the key is not")
        self.assertEqual(denial.states["per_client"]["r"], 4, "a denial charges nothing")

    def test_the_other_limit_can_be_the_one_that_denies(self):
        answers = [self.get(X_Api_Key="five") for _ in range(5)]
        self.assertEqual([answer.status_code for answer in answers], [200] * 4 + [429])
        denied = answers[-1]
        denial = Denial(denied.status_code, denied.headers, denied.content)
        self.assertEqual(denial.violated, ["per_client"])
        self.assertEqual(list(denial.policies), ["per_client"])

    def test_a_missing_key_is_refused_where_the_limit_says_so(self):
        answer = self.get()
        self.assertEqual(answer.status_code, 400)
        self.assertEqual(answer.headers["Content-Type"], "application/problem+json")

    def test_unlimited_routes_and_bypassed_requests_tell_no_limits(self):
        for target in ("/bytes/10", "/status/200?body=x"):
            for _ in range(6):
                answer = self.get(target)
                self.assertEqual(answer.status_code, 200)
            for name in ("RateLimit", "RateLimit-Policy", "X-RateLimit-Limit", "Retry-After"):
                self.assertNotIn(name, answer.headers)


class UpstreamsOwn(KeyCase):
    config = '[limit.default]\nrate = "3/h"'

    def test_the_upstreams_rate_limit_headers_are_replaced(self):
        answer = self.get("/limits")
        quota = Quota(answer.headers)
        self.assertEqual((quota.limit, list(quota.policies)), (3, ["default"]))


class Costs(KeyCase):
    config = """
        trusted_proxies = ["127.0.0.1"]
        [limit.default]
        rate = "10/30s"
        key = "api_key"
        [[route]]
        path = "/*"
        cost = "header:x-cost"
        """

    def test_a_cost_is_charged_whole_or_not_at_all(self):
        self.assertEqual(self.left(X_Api_Key="a", X_Cost="7"), 3)
        denied = self.get(X_Api_Key="a", X_Cost="4")
        self.assertEqual(denied.status_code, 429)
        self.assertEqual(Quota(denied.headers).remaining, 3)
        self.assertEqual(self.left(X_Api_Key="a", X_Cost="3"), 0)

    def test_a_cost_above_the_limit_has_no_retry_after(self):
        denied = self.get(X_Api_Key="b", X_Cost="11")
        self.assertEqual(denied.status_code, 429)
        self.assertNotIn("Retry-After", denied.headers)
        self.assertNotIn("retry_after", denied.json())
        self.assertEqual(self.left(X_Api_Key="b", X_Cost="10"), 0)
