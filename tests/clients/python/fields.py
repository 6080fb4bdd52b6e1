"""What a client can read of its limits, parsed strictly: anything malformed is an AssertionError.

The IETF pair is parsed as the structured fields that it is (RFC 9651), by a parser not of our own.
"""

import json
import math
import re
import time

import http_sfv

QUOTA_EXCEEDED = "https://iana.org/assignments/http-problem-types#quota-exceeded"


def integer(headers, name):
    """A field that is digits and nothing else."""
    text = headers.get(name)
    assert text is not None, f"{name} is missing"
    assert re.fullmatch(r"\d+", text), f"{name}: {text!r} is not an integer"
    return int(text)


def structured(headers, name):
    """A list of strings with parameters, as [(string, {parameter: integer})]."""
    text = headers.get(name)
    assert text is not None, f"{name} is missing"
    parsed = http_sfv.List()
    parsed.parse(text.encode())
    assert parsed, f"{name} is empty"
    members = []
    for member in parsed:
        assert type(member.value) is str, f"{name}: {member.value!r} is not a string"
        params = dict(member.params)
        for param, value in params.items():
            assert type(value) is int and value >= 0, f"{name}: {param}={value!r}"
        members.append((member.value, params))
    return members


class Quota:
    """The rate-limit headers of one response, held against each other.

    `windows`: in how many of its windows a limit's budget is whole again; `counter` takes two.
    """

    def __init__(self, headers, windows=1):
        now = time.time()
        self.limit = integer(headers, "X-RateLimit-Limit")
        self.remaining = integer(headers, "X-RateLimit-Remaining")
        self.reset = integer(headers, "X-RateLimit-Reset")
        self.policies = dict(structured(headers, "RateLimit-Policy"))
        self.states = dict(structured(headers, "RateLimit"))
        # A second of grace: the response took a moment to get here.
        assert self.reset >= math.floor(now) - 1, f"reset {self.reset} lies before {now}"
        assert list(self.policies) == list(self.states), "policies and states differ"
        for name, policy in self.policies.items():
            assert set(policy) == {"q", "w"}, f"{name}: {policy}"
            assert set(self.states[name]) in ({"r"}, {"r", "t"}), f"{name}: {self.states[name]}"
            assert self.states[name]["r"] <= policy["q"], f"{name}: more left than there is"
            wait = self.states[name].get("t", 0)
            assert wait <= policy["w"] * windows, f"{name}: waits {wait} of {policy}"
        longest = max(policy["w"] for policy in self.policies.values()) * windows
        assert self.reset <= math.ceil(now) + longest + 1, f"reset {self.reset}, window {longest}"
        assert self.limit in [policy["q"] for policy in self.policies.values()]
        assert self.remaining in [state["r"] for state in self.states.values()]


class Denial(Quota):
    """A 429 as problem details."""

    def __init__(self, status, headers, body, windows=1):
        assert status == 429, f"status {status}: {body!r}"
        super().__init__(headers, windows)
        self.retry_after = integer(headers, "Retry-After")
        assert self.retry_after >= 1, "an immediate retry"
        assert headers.get("Cache-Control") == "no-store", headers.get("Cache-Control")
        assert headers.get("Content-Type") == "application/problem+json"
        self.problem = json.loads(body)
        assert self.problem["type"] == QUOTA_EXCEEDED, self.problem
        assert self.problem["status"] == 429, self.problem
        assert self.problem["title"], self.problem
        assert self.problem["retry_after"] == self.retry_after, self.problem
        assert self.problem["request_id"], self.problem
        self.violated = self.problem["violated-policies"]
        assert self.violated and set(self.violated) <= set(self.policies), self.problem
        waits = [self.states[name]["t"] for name in self.violated]
        assert self.retry_after == max(waits), f"Retry-After {self.retry_after}, t {waits}"


def check_problem(status, headers, body):
    """Any other answer that the proxy makes itself; returns its members."""
    assert headers.get("Content-Type") == "application/problem+json", dict(headers)
    problem = json.loads(body)
    assert problem["status"] == status, problem
    assert problem["title"] and problem["request_id"], problem
    assert "127.0.0.1" not in str(problem), f"inner details: {problem}"
    return problem
