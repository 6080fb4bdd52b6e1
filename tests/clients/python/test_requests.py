"""requests: sessions, cookies, redirects, uploads, and the forms of a denial."""

import tempfile
import time

import requests
from fields import Denial, Quota, check_problem
from requests.adapters import HTTPAdapter
from stage import LARGE_BYTES, Case, LargeBody, upstream
from urllib3.util import Retry


def lines(echoed, name):
    """The values of a request's header lines of this name, as the upstream got them."""
    raw = echoed["headers"]
    return [raw[i + 1] for i in range(0, len(raw), 2) if raw[i].lower() == name]


class SessionCase(Case):
    def setUp(self):
        super().setUp()
        self.session = requests.Session()
        self.session.headers["X-Api-Key"] = self.key
        self.addCleanup(self.session.close)

    def get(self, target, **more):
        return self.session.get(self.url + target, timeout=10, **more)


class Denials(SessionCase):
    config = """
        [limit.burst]
        rate = "2/4s"
        key = "api_key"
        [limit.wide]
        rate = "100/h"
        key = "api_key"
        [[route]]
        path = "/*"
        limits = ["burst", "wide"]
        """

    def deny(self, **more):
        """The first denial after two that passed."""
        for _ in range(2):
            self.assertEqual(self.get("/echo").status_code, 200)
        return self.get("/echo", **more)

    def test_an_adapter_with_retries_gets_through(self):
        self.session.mount("http://", HTTPAdapter(max_retries=Retry(total=2, backoff_factor=0)))
        with self.assert_seconds(1, 8):
            self.assertEqual([self.get("/echo").status_code for _ in range(4)], [200] * 4)

    def test_a_denial_is_problem_details_and_names_only_what_denied(self):
        denied = self.deny()
        denial = Denial(denied.status_code, denied.headers, denied.content)
        self.assertEqual(denial.violated, ["burst"])
        self.assertEqual(list(denial.policies), ["burst", "wide"])
        self.assertEqual(denial.policies, {"burst": {"q": 2, "w": 4}, "wide": {"q": 100, "w": 3600}})
        self.assertEqual((denial.limit, denial.remaining), (2, 0))
        self.assertIn(denial.retry_after, (1, 2, 3, 4))
        self.assertIn("burst", denial.problem["detail"])

    def test_a_denial_charges_no_other_limit(self):
        denied = self.deny()
        before = Denial(denied.status_code, denied.headers, denied.content)
        self.assertEqual(before.states["wide"]["r"], 98)
        for _ in range(5):
            self.assertEqual(self.get("/echo").status_code, 429)
        time.sleep(before.retry_after)
        after = Quota(self.get("/echo").headers)
        self.assertEqual(after.states["wide"]["r"], 97)

    def test_each_denial_has_a_request_id_of_its_own(self):
        self.deny()
        ids = {self.get("/echo").json()["request_id"] for _ in range(5)}
        self.assertEqual(len(ids), 5)

    def test_a_browser_gets_a_page(self):
        accept = "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"
        denied = self.deny(headers={"Accept": accept})
        self.assertEqual(denied.status_code, 429)
        self.assertRegex(denied.headers["Content-Type"], r"^text/html\b")
        self.assertIn("<html", denied.text.lower())
        self.assertGreaterEqual(int(denied.headers["Retry-After"]), 1)
        self.assertEqual(denied.headers["Cache-Control"], "no-store")

    def test_a_terminal_gets_text(self):
        denied = self.deny(headers={"Accept": "text/plain"})
        self.assertEqual(denied.status_code, 429)
        self.assertRegex(denied.headers["Content-Type"], r"^text/plain\b")
        self.assertNotIn("<", denied.text)
        self.assertIn("burst", denied.text)

    def test_a_script_gets_problem_details_whatever_else_it_would_take(self):
        denied = self.deny(headers={"Accept": "application/json, text/plain, */*"})
        Denial(denied.status_code, denied.headers, denied.content)

    def test_head_is_denied_without_a_body_and_the_connection_goes_on(self):
        self.deny()
        head = self.session.head(f"{self.url}/echo", timeout=10)
        self.assertEqual((head.status_code, head.content), (429, b""))
        self.assertGreaterEqual(int(head.headers["Retry-After"]), 1)
        Quota(head.headers)
        time.sleep(int(head.headers["Retry-After"]))
        self.assertEqual(self.get("/echo").status_code, 200)

    def test_a_denied_request_never_reaches_the_upstream(self):
        for _ in range(6):
            self.get(f"/echo?id={self.key}")
        self.assertEqual(upstream().seen(self.key)["requests"], 2)

    def test_a_denied_upload_is_answered_and_the_session_goes_on(self):
        self.deny()
        denied = self.session.post(f"{self.url}/upload", data=b"x" * 200_000, timeout=10)
        Denial(denied.status_code, denied.headers, denied.content)
        time.sleep(int(denied.headers["Retry-After"]))
        again = self.session.post(f"{self.url}/upload", data=b"x" * 200_000, timeout=10)
        self.assertEqual(again.json()["bytes"], 200_000)


class Untouched(SessionCase):
    config = '[limit.default]\nrate = "1000/s"'

    def echo(self, target, **more):
        return self.get(target, **more).json()

    def test_what_the_client_made_of_a_query_arrives(self):
        for query in (
            {"a": ["1", "2"], "empty": "", "euro": "€", "space": "a b+c", "amp": "&=;#"},
            "semi;colon=1&brackets[]=2&quote='x'&at=@:!$()*,&flag",
            "dots=../..//x&percent=%25%32%35",
        ):
            with self.subTest(query):
                direct = self.session.get(f"{upstream().url}/echo", params=query, timeout=10)
                through = self.echo("/echo", params=query)
                self.assertEqual(through["target"], direct.json()["target"])

    def test_cookies_make_the_round_trip(self):
        self.assertEqual(self.get("/cookies").text, "take these")
        self.assertEqual(self.session.cookies["b"], '"two, three"')
        cookies = lines(self.echo("/echo"), "cookie")
        self.assertEqual(cookies, ['a=1; b="two, three"; c='])

    def test_credentials_and_user_agent_arrive(self):
        echoed = self.echo("/echo", auth=("aladdin", "opensesame"))
        self.assertEqual(lines(echoed, "authorization"), ["Basic YWxhZGRpbjpvcGVuc2VzYW1l"])
        self.assertEqual(
            lines(echoed, "user-agent"), [requests.utils.default_user_agent()]
        )

    def test_the_upstream_is_told_of_the_client(self):
        echoed = self.echo("/echo")
        self.assertEqual(lines(echoed, "x-forwarded-for"), ["127.0.0.1"])
        self.assertEqual(lines(echoed, "x-forwarded-proto"), ["http"])
        host = self.url.removeprefix("http://")
        self.assertEqual(lines(echoed, "x-forwarded-host"), [host])
        self.assertEqual(len(lines(echoed, "forwarded")), 1)
        self.assertEqual(len(lines(echoed, "via")), 1)

    def test_what_a_client_claims_of_itself_is_not_passed_on_as_true(self):
        claims = {"X-Forwarded-For": "203.0.113.9", "Forwarded": "for=203.0.113.9"}
        echoed = self.echo("/echo", headers=claims)
        self.assertEqual(lines(echoed, "x-forwarded-for"), ["127.0.0.1"])
        self.assertNotIn("203.0.113.9", str(lines(echoed, "forwarded")))

    def test_a_redirect_is_the_clients_to_follow(self):
        answer = self.get("/redirect")
        self.assertEqual([hop.status_code for hop in answer.history], [302])
        self.assertEqual(answer.history[0].headers["Location"], "/echo?after=redirect")
        self.assertEqual(answer.json()["target"], "/echo?after=redirect")

    def test_statuses_of_the_upstream_pass_as_they_are(self):
        for status in (201, 400, 403, 404, 418, 500, 502, 503, 599):
            with self.subTest(status):
                answer = self.get(f"/status/{status}?body=own+words")
                self.assertEqual(answer.status_code, status)
                self.assertEqual(answer.text, "own words")
                self.assertEqual(answer.headers["X-Upstream"], "as is")
                self.assertNotIn("Retry-After", answer.headers)
                Quota(answer.headers)

    def test_a_compressed_body_stays_compressed_until_the_client_opens_it(self):
        answer = self.get("/gzip", stream=True)
        self.assertEqual(answer.headers["Content-Encoding"], "gzip")
        self.assertEqual(answer.headers["Vary"].lower(), "accept-encoding")
        raw = answer.raw.read(decode_content=False)
        self.assertEqual(len(raw), int(answer.headers["Content-Length"]))
        self.assertEqual(raw[:2], b"\x1f\x8b")
        self.assertEqual(self.get("/gzip").text, "squeeze me " * 1000)

    def test_a_large_file_arrives_whole(self):
        body = LargeBody()
        with tempfile.TemporaryFile() as file:
            for piece in body:
                file.write(piece)
            file.seek(0)
            with self.proxy.flat_memory(self):
                got = self.session.put(f"{self.url}/upload", data=file, timeout=40).json()
        self.assertEqual((got["bytes"], got["sha256"]), (LARGE_BYTES, body.sha256))
        self.assertIsNone(got["encoding"])

    def test_a_form_with_files_arrives(self):
        files = {"one": ("a.bin", bytes(range(256)) * 100), "two": ("b.txt", "text")}
        asked = requests.Request("POST", f"{self.url}/echo", files=files).prepare()
        echoed = self.session.send(asked, timeout=10).json()
        self.assertEqual(echoed["body"]["bytes"], len(asked.body))
        self.assertEqual(lines(echoed, "content-type"), [asked.headers["Content-Type"]])


class OwnAnswers(SessionCase):
    config = """
        [limit.default]
        rate = "100/s"
        [[route]]
        path = "/echo"
        methods = ["GET"]
        upstream = "api"
        [upstream.api]
        servers = ["http://127.0.0.1:9"]
        """

    def check(self, status, answer):
        self.assertEqual(answer.status_code, status)
        check_problem(status, answer.headers, answer.content)

    def test_no_route_is_a_problem(self):
        self.check(404, self.get("/elsewhere"))
        self.check(404, self.session.put(f"{self.url}/echo", timeout=10))

    def test_a_path_of_two_readings_is_a_problem(self):
        asked = requests.Request("GET", self.url).prepare()
        asked.url = f"{self.url}/a%00b"
        self.check(400, self.session.send(asked, timeout=10))

    def test_a_body_that_says_it_is_too_long_is_a_problem(self):
        headers = {"Content-Length": str(101 << 20)}
        asked = requests.Request("GET", f"{self.url}/echo", headers=headers).prepare()
        self.check(413, self.session.send(asked, timeout=10))

    def test_a_head_that_is_too_large_is_a_problem(self):
        self.check(431, self.get("/echo", headers={"X-Large": "x" * 40_000}))
        self.check(431, self.get("/echo", headers={f"X-{n}": "many" for n in range(150)}))

    def test_head_gets_no_body_of_a_problem(self):
        answer = self.session.head(f"{self.url}/elsewhere", timeout=10)
        self.assertEqual((answer.status_code, answer.content), (404, b""))
        self.assertEqual(self.session.head(f"{self.url}/echo", timeout=10).status_code, 502)
