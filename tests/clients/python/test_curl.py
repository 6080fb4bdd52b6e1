"""curl, the command: what people try first, and the corners of HTTP/1.1 that only it reaches."""

import contextlib
import hashlib
import json
import pathlib
import re
import subprocess
import tempfile
import time

from fields import Denial, Quota, check_problem
from requests.structures import CaseInsensitiveDict
from stage import LARGE_BYTES, Case, LargeBody, Proxy, free_port, large_sha256, upstream


class Answer:
    """One response in the output of `curl -i`."""

    def __init__(self, text):
        head, _, self.body = text.partition(b"\r\n\r\n")
        lines = head.decode("latin-1").split("\r\n")
        self.version, status = lines[0].split(" ")[:2]
        self.status = int(status)
        fields = [line.split(": ", 1) for line in lines[1:]]
        self.headers = CaseInsensitiveDict(fields)

    def json(self):
        return json.loads(self.body)


TIMEOUT = 45


class CurlCase(Case):
    def command(self, *arguments):
        """curl without its user's configuration."""
        return ["curl", "-q", "-sS", "--max-time", "40", "-H", f"X-Api-Key: {self.key}", *arguments]

    def start_curl(self, *arguments, **more):
        process = subprocess.Popen(self.command(*arguments), stdout=subprocess.PIPE, **more)
        self.addCleanup(process.kill)
        return process

    def curl(self, *arguments, **more):
        """What it writes; it must succeed."""
        found = self.curl_run(*arguments, **more)
        self.assertEqual(found.returncode, 0, found.stderr.decode(errors="replace"))
        return found.stdout

    def curl_run(self, *arguments, stdin=b""):
        command = self.command(*arguments)
        return subprocess.run(command, input=stdin, capture_output=True, timeout=TIMEOUT)

    def ask(self, *arguments, **more):
        return Answer(self.curl("-i", *arguments, **more))

    def trickle(self, url):
        """The answer to an upload of unknown length that comes in pieces, without asking first."""
        pipes = {"stdin": subprocess.PIPE, "stderr": subprocess.PIPE}
        process = self.start_curl("-i", "-H", "Expect:", "-T", "-", url, **pipes)
        with contextlib.suppress(BrokenPipeError):
            for _ in range(5):
                process.stdin.write(b"u" * 60_000)
                process.stdin.flush()
                time.sleep(0.02)
        out, complaint = process.communicate(timeout=TIMEOUT)
        self.assertEqual(process.returncode, 0, complaint.decode())
        return Answer(out)


class Limits(CurlCase):
    # Nothing comes back while curl is started so often.
    config = '[limit.default]\nrate = "3/h"\nkey = "api_key"'

    def spend(self, units=3):
        for _ in range(units):
            self.curl(f"{self.url}/echo")

    def test_include_shows_limits_and_denial(self):
        for left in (2, 1, 0):
            answer = self.ask(f"{self.url}/echo")
            self.assertEqual((answer.version, answer.status), ("HTTP/1.1", 200))
            self.assertEqual(Quota(answer.headers).remaining, left)
        answer = self.ask(f"{self.url}/echo")
        Denial(answer.status, answer.headers, answer.body)
        self.assertEqual(len(answer.body), int(answer.headers["Content-Length"]))

    def test_head_is_charged_and_denied_without_a_body(self):
        for left in (2, 1, 0):
            answer = Answer(self.curl("-I", f"{self.url}/bytes/5000"))
            self.assertEqual((answer.status, answer.body), (200, b""))
            self.assertEqual(answer.headers["Content-Length"], "5000")
            self.assertEqual(Quota(answer.headers).remaining, left)
        answer = Answer(self.curl("-I", f"{self.url}/bytes/5000"))
        self.assertEqual((answer.status, answer.body), (429, b""))
        self.assertGreaterEqual(int(answer.headers["Retry-After"]), 1)

    def test_fail_makes_a_denial_an_error(self):
        self.spend()
        found = self.curl_run("--fail", f"{self.url}/echo")
        self.assertEqual(found.returncode, 22)
        self.assertIn(b"429", found.stderr)

    def test_several_urls_share_a_connection_and_are_counted_each(self):
        urls = [f"{self.url}/echo?{n}" for n in range(5)]
        written = "%{num_connects} %{http_code}\\n"
        sinks = [argument for _ in urls for argument in ("-o", "/dev/null")]
        text = self.curl(*sinks, "-w", written, *urls).decode()
        self.assertEqual(text.split("\n")[:5], ["1 200", "0 200", "0 200", "0 429", "0 429"])

    def test_a_denied_upload_that_asks_first_is_never_sent(self):
        self.spend()
        with tempfile.NamedTemporaryFile() as file:
            file.write(b"u" * (1 << 20))
            file.flush()
            found = self.curl_run(
                "-v", "-H", "Expect: 100-continue", "--expect100-timeout", "10", "-o", "/dev/null",
                "-w", "%{http_code} %{size_upload}", "-T", file.name, f"{self.url}/upload",
            )  # fmt: skip
        self.assertEqual(found.stdout, b"429 0")
        self.assertNotIn(b"100 Continue", found.stderr)

    def test_a_denied_upload_that_does_not_ask_gets_its_denial(self):
        """RFC 9112 section 9.6: who closes at once while the client still sends takes back the
        answer as well. Several times, since it is a race."""
        for _ in range(8):
            self.spend()
            answer = self.trickle(f"{self.url}/upload")
            Denial(answer.status, answer.headers, answer.body)
            self.key += "+"

    def test_a_unix_socket_is_served_from_the_same_budget(self):
        self.spend(1)
        socket = ["--unix-socket", self.proxy.socket_path]
        for left in (1, 0):
            answer = self.ask(*socket, "http://any.example/echo")
            self.assertEqual(Quota(answer.headers).remaining, left)
        answer = self.ask(f"{self.url}/echo")
        Denial(answer.status, answer.headers, answer.body)

    def test_http_1_0_is_counted_and_denied(self):
        self.spend()
        answer = self.ask("--http1.0", f"{self.url}/echo")
        self.assertEqual(answer.status, 429)
        self.assertNotIn("Transfer-Encoding", answer.headers)
        self.assertEqual(len(answer.body), int(answer.headers["Content-Length"]))


class Waits(CurlCase):
    config = '[limit.default]\nrate = "1/3s"\nkey = "api_key"'

    def test_retry_waits_as_long_as_retry_after_says(self):
        self.curl(f"{self.url}/echo")
        # A file, which curl empties before it tries again.
        with tempfile.NamedTemporaryFile() as file, self.assert_seconds(1, 6):
            status = self.curl(
                "--retry", "1", "-o", file.name, "-w", "%{http_code}", f"{self.url}/echo"
            )
            self.assertEqual(json.loads(file.read())["target"], "/echo")
        self.assertEqual(status, b"200")


class Forwarding(CurlCase):
    config = '[limit.default]\nrate = "1000/s"\nkey = "api_key"'

    def test_an_upload_that_asks_first_is_told_to_go_on(self):
        with tempfile.NamedTemporaryFile() as file:
            file.write(b"u" * (1 << 20))
            file.flush()
            with self.assert_seconds(0, 3):
                found = self.curl_run(
                    "-v", "-H", "Expect: 100-continue", "--expect100-timeout", "10",
                    "-T", file.name, f"{self.url}/upload",
                )  # fmt: skip
        self.assertIn(b"HTTP/1.1 100 Continue", found.stderr)
        got = json.loads(found.stdout)
        expected = hashlib.sha256(b"u" * (1 << 20)).hexdigest()
        self.assertEqual((got["bytes"], got["sha256"]), (1 << 20, expected))

    def test_an_upload_of_unknown_length_is_chunked(self):
        body = bytes(range(256)) * 3000
        got = self.ask("-T", "-", f"{self.url}/upload", stdin=body).body
        got = json.loads(got[got.index(b"{"):])
        self.assertEqual((got["bytes"], got["encoding"]), (len(body), "chunked"))
        self.assertEqual(got["sha256"], hashlib.sha256(body).hexdigest())

    def test_http_1_0_gets_a_body_that_ends_with_the_connection(self):
        answer = self.ask("--http1.0", f"{self.url}/bytes/100000?chunked")
        self.assertEqual(answer.status, 200)
        self.assertNotIn("Transfer-Encoding", answer.headers)
        expected = upstream().ask("/sha256/100000")
        self.assertEqual(hashlib.sha256(answer.body).hexdigest(), expected)

    def test_http_1_0_with_keep_alive_and_without_a_host(self):
        answer = self.ask("--http1.0", "-H", "Host:", "-H", "Connection: keep-alive",
                          f"{self.url}/bytes/100")  # fmt: skip
        self.assertEqual((answer.status, len(answer.body)), (200, 100))
        self.assertEqual(answer.headers["Content-Length"], "100")

    def test_compressed_is_opened_by_curl_alone(self):
        text = self.curl("--compressed", f"{self.url}/gzip")
        self.assertEqual(text, b"squeeze me " * 1000)
        packed = self.ask("-H", "Accept-Encoding: gzip", f"{self.url}/gzip")
        self.assertEqual(packed.headers["Content-Encoding"], "gzip")
        self.assertEqual(len(packed.body), int(packed.headers["Content-Length"]))

    def test_targets_arrive_byte_for_byte(self):
        for target in (
            "/echo?a=1&a=2&empty=&flag",
            "/echo?b=%2F%20+c&euro=%E2%82%AC&low=%e2%82%ac",
            "/echo?semi;colon=1&brackets[]=2&quote='x'&at=@:!$()*,",
            "/echo?dots=../..//x&percent=%25%32%35",
            "/echo??=?",
            "/echo/%7Euser/",
            "/echo/x/../y",
        ):
            with self.subTest(target):
                echoed = self.ask("--path-as-is", "--globoff", self.url + target).json()
                self.assertEqual(echoed["target"], target)

    def test_trailers_come_last(self):
        with tempfile.TemporaryDirectory() as folder:
            head = pathlib.Path(folder, "head")
            body = self.curl("-H", "TE: trailers", "-D", head, f"{self.url}/trailers")
            text = head.read_text()
        self.assertEqual(body, b"the sum comes after it\n")
        expected = hashlib.sha256(body).hexdigest()
        self.assertRegex(text, rf"(?im)^x-sum: {expected}\r?$")

    def test_a_proxy_request_is_forwarded_by_its_path(self):
        answer = self.ask("--proxy", self.url, "--noproxy", "", "http://shop.example/echo?x=1")
        self.assertEqual(answer.status, 200)
        echoed = answer.json()
        self.assertEqual(echoed["target"], "/echo?x=1")
        host = echoed["headers"].index("host" if "host" in echoed["headers"] else "Host")
        self.assertEqual(echoed["headers"][host + 1], "shop.example")

    def test_headers_of_one_connection_stay_on_it(self):
        echoed = self.ask("-H", "Connection: x-hop", "-H", "X-Hop: 1", "-H", "X-Stay: 2",
                          "-H", "Keep-Alive: timeout=9", "-H", "Proxy-Connection: keep-alive",
                          f"{self.url}/echo").json()  # fmt: skip
        names = {name.lower() for name in echoed["headers"][::2]}
        self.assertIn("x-stay", names)
        self.assertFalse(names & {"x-hop", "keep-alive", "proxy-connection"}, names)

    def test_methods_of_any_name_pass(self):
        for method in ("PATCH", "DELETE", "OPTIONS", "PROPFIND", "PURGE"):
            with self.subTest(method):
                answer = self.ask("-X", method, f"{self.url}/echo")
                self.assertEqual(answer.status, 200)
                self.assertEqual(answer.json()["method"], method)

    def test_a_slow_large_download_is_whole(self):
        with tempfile.NamedTemporaryFile() as file, self.proxy.flat_memory(self):
            # Slower than the upstream sends, so that somebody has to wait or to store.
            self.curl("--limit-rate", "48M", "-o", file.name, f"{self.url}/bytes/{LARGE_BYTES}")
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        self.assertEqual(digest, large_sha256())

    def test_large_bodies_pass_both_ways_at_once(self):
        body = LargeBody()
        with tempfile.NamedTemporaryFile() as file:
            for piece in body:
                file.write(piece)
            file.flush()
            commands = [
                ["-T", file.name, f"{self.url}/upload"],
                [f"{self.url}/bytes/{LARGE_BYTES}"],
            ]
            with self.proxy.flat_memory(self):
                started = [self.start_curl(*command) for command in commands]
                uploaded, downloaded = [one.communicate(timeout=40)[0] for one in started]
        self.assertEqual(json.loads(uploaded)["sha256"], body.sha256)
        self.assertEqual(hashlib.sha256(downloaded).hexdigest(), large_sha256())

    def test_events_are_seen_as_they_come(self):
        process = self.start_curl("-N", f"{self.url}/events/4?every=1000")
        lags = []
        for line in process.stdout:
            sent = re.match(rb"data: ([\d.]+)", line)
            if sent:
                lags.append(time.time() - float(sent[1]))
        self.assertEqual(process.wait(20), 0)
        self.assertEqual(len(lags), 4)
        self.assertLess(max(lags), 1, "one came after its successor was sent")


class OwnAnswers(CurlCase):
    """What the proxy says itself must reach a client that is still sending, as a denial must."""

    def check(self, target, status, server=""):
        config = f"""
            [[route]]
            path = "/down"
            upstream = "http://127.0.0.1:{free_port()}"
            [[route]]
            path = "/upload"
            upstream = "up"
            [upstream.up]
            servers = ["{upstream().url}"]
            """
        proxy = Proxy(config, server=server)
        self.addCleanup(proxy.stop)
        for _ in range(8):
            answer = self.trickle(proxy.url + target)
            self.assertEqual(answer.status, status)
            check_problem(status, answer.headers, answer.body)

    def test_an_upload_to_nowhere_gets_its_404(self):
        self.check("/elsewhere", 404)

    def test_an_upload_to_a_dead_upstream_gets_its_502(self):
        self.check("/down", 502)

    def test_an_upload_that_grows_too_long_gets_its_413(self):
        self.check("/upload", 413, server='max_body = "100KiB"')
