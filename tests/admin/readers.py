"""Prometheus's own parsers and schemathesis, against the admin of a running tidegate; and a validator
of JSON Schema for what editors are told of proxy.toml."""

import http.client
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import tomllib
import urllib.request

import jsonschema_rs
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics
from prometheus_client.parser import text_string_to_metric_families as plain

import running

CONFIG = """
listen = "127.0.0.1:0"
admin  = "127.0.0.1:0"
upstream = "{upstream}"

[limit.login]
rate = ["3/min", "100/h"]

[limit.tried]
rate      = "2/min"
shadow    = true
candidate = "1/min"

[[route]]
name   = 'odd "name" \\\\ here'
path   = "/login"
limits = ["login", "tried"]

[log]
access = "off"

[server]
control = "{control}"
"""


def samples(admin, parse, accept):
    """Every sample of /metrics, as a parser understands it."""
    request = urllib.request.Request(f"http://{admin}/metrics", headers={"Accept": accept})
    with urllib.request.urlopen(request, timeout=10) as answer:
        text, media = answer.read().decode(), answer.headers["Content-Type"]
    assert media.startswith(accept), media
    families = list(parse(text))
    names = [family.name for family in families]
    assert len(names) == len(set(names)), "a family twice"
    return {(one.name, tuple(sorted(one.labels.items()))): one.value
            for family in families for one in family.samples}


def read_metrics(address, admin):
    both = [(openmetrics, "application/openmetrics-text"), (plain, "text/plain")]
    before = [samples(admin, *form) for form in both]
    assert before[0].keys() == before[1].keys(), "the two forms differ"
    connection = http.client.HTTPConnection(address, timeout=10)
    for method, path in [("GET", "/login")] * 5 + [("POST", "/login"), ("ODD", "/"), ("GET", "/a")]:
        connection.request(method, path)
        connection.getresponse().read()
    after = samples(admin, *both[0])
    for key, value in before[0].items():
        grows = key[0].endswith(("_total", "_count", "_bucket", "_sum"))
        assert key in after, f"{key} is gone"
        assert not grows or after[key] >= value, f"{key} shrank"

    def of(name, **labels):
        wanted = set(labels.items())
        return sum(value for (found, pairs), value in after.items()
                   if found == name and wanted <= set(pairs))

    route = 'odd "name" \\\\ here'
    assert of("tidegate_http_requests_total") == 8, of("tidegate_http_requests_total")
    assert of("tidegate_http_requests_total", route=route, code="429") == 3, after
    assert of("tidegate_http_request_duration_seconds_count") == 8
    assert of("tidegate_decisions_total", limit="login", decision="denied") == 3
    assert of("tidegate_upstream_requests_total") == 5
    print(f"metrics: {len(after)} samples, read by both parsers")


def read_schema():
    """What `tidegate schema` prints is a schema, and our files fit it."""
    root = pathlib.Path(__file__).parents[2]
    text = subprocess.run([os.environ["TIDEGATE"], "schema"], check=True, capture_output=True).stdout
    schema = json.loads(text)
    jsonschema_rs.meta.validate(schema)
    validator = jsonschema_rs.Draft7Validator(schema)
    for name in ["proxy.toml", "proxy.reference.toml"]:
        validator.validate(tomllib.loads((root / name).read_text()))
    for wrong in ['lisen = ":8080"', "[limit.a]\nrate = 100", '[limit.a]\nkey = "ip"',
                  '[limit.a]\nrate = "1/s"\nkye = "ip"']:
        assert not validator.is_valid(tomllib.loads(wrong)), wrong
    print("schema: proxy.toml and the reference fit it")


def main():
    read_schema()
    with tempfile.TemporaryDirectory() as name:
        directory = pathlib.Path(name)
        process, address, admin = running.start(directory, CONFIG)
        try:
            while True:
                try:
                    urllib.request.urlopen(f"http://{admin}/readyz", timeout=10)
                    break
                except urllib.error.HTTPError as error:
                    assert error.code == 503
            read_metrics(address, admin)
            token = (directory / "control.token").read_text()
            checks = "not_a_server_error,status_code_conformance,content_type_conformance," \
                "response_headers_conformance,response_schema_conformance"
            # A stream has no end, and its answer no schema; a test of its own reads it.
            subprocess.run(
                [sys.argv[1], "run", f"http://{admin}/openapi.json", "--checks", checks,
                 "--exclude-path", "/api/v1/denials/stream", "--max-examples", "30",
                 "--header", f"Authorization: Bearer {token}", "--seed", "1",
                 "--request-timeout", "10", "--phases", "examples,coverage,fuzzing"],
                check=True, timeout=500, cwd=directory)
        finally:
            process.terminate()
            assert process.wait(20) == 0


if __name__ == "__main__":
    main()
