"""What a call reserves before its answer: by the maximum that it names, or by a default; and what
never fits."""

import gzip
import json

from calls import Failed, check, on_both_stores, until
from model import Plan

CONFIG = """
listen = "127.0.0.1:{port}"
admin  = "127.0.0.1:{admin}"

[limit.output]
rate   = "1_000_000/d"
key    = "header:x-key"
counts = "output"

[limit.input]
rate   = "1_000_000/d"
key    = "header:x-key"
counts = "input"

[limit.small]
rate   = "300/d"
key    = "header:x-key"
counts = "tokens"

[limit.money]
rate   = "1_000_000/d"
key    = "header:x-key"
counts = "money"

[limit.calls]
rate   = "5/d"
key    = "header:x-key"
counts = "requests"

[limit.look]
rate   = "300/d"
key    = "header:x-key"
counts = "tokens"

[prices]
"gpt-5*" = { input = 1, output = 10 }

[usage.chat]
format          = "openai"
bytes_per_token = 1
default_output  = 777

[usage.three]
format = "openai"

""" + "".join(f"""[[route]]
name      = "{name}"
path      = "/{name}/*"
upstream  = "{{model}}"
limits    = {limits}
usage     = "{usage}"
refund    = ["4xx", "5xx"]
body_read = "4KiB"

""" for name, limits, usage in [
    ("any", '["output", "input"]', "chat"), ("three", '["output", "input"]', "three"),
    ("small", '["small"]', "three"), ("money", '["money"]', "chat"),
    ("both", '["small", "calls"]', "chat")])

DEFAULT = 777
# Bodies, and the output that they reserve.
BODIES = [
    ('{"max_tokens":10}', 10),
    ('{"max_completion_tokens":20}', 20),
    ('{"max_output_tokens":30}', 30),
    ('{"max_tokens":10,"max_completion_tokens":20,"max_output_tokens":5}', 20),
    ('{"max_tokens":10,"n":3}', 30),
    ('{"n":3,"best_of":5,"max_tokens":10}', 50),
    ('{"n":3}', 3 * DEFAULT),
    ('{"n":0,"max_tokens":10}', 10),
    ('{"n":"3","max_tokens":10}', 10),
    # Words of other APIs name no maximum here.
    ('{"generationConfig":{"maxOutputTokens":9,"candidateCount":2}}', 2 * DEFAULT),
    ('{"options":{"num_predict":8}}', DEFAULT),
    ('{"options":{"num_predict":-1}}', DEFAULT),
    ('{"inferenceConfig":{"maxTokens":6}}', DEFAULT),
    ('{"max_tokens":null}', DEFAULT),
    ('{"max_tokens":"10"}', DEFAULT),
    ('{"max_tokens":1.5}', DEFAULT),
    ('{"max_tokens":-3}', DEFAULT),
    ('{"max_tokens":true}', DEFAULT),
    ('{"max_tokens":[10]}', DEFAULT),
    ('{"max_tokens":0}', DEFAULT),
    ('{"max_tokens":1e2}', 100),
    ('{"max_tokens":10.0}', 10),
    ('{"max_tokens":10,"max_tokens":20}', 20),
    ('{"max_tokens":20,"max_tokens":10}', 20),
    ('{"max_tokens":20,"max_tokens":null}', 20),
    ('{"MAX_tokens":20}', 20),
    ('{"max\\u005ftokens":20}', 20),
    ('{"messages":[{"max_tokens":1}],"tools":{"max_tokens":2}}', DEFAULT),
    ('{"messages":"\\"max_tokens\\":1,","max_tokens":40}', 40),
    (' \n{ "max_tokens" :\t40 }\r\n ', 40),
    ('\ufeff{"max_tokens":40}', 40),
    ('{"max_tokens":40', DEFAULT),
    ('{"max_tokens":40,}', DEFAULT),
    ("max_tokens=40", DEFAULT),
    ("[]", DEFAULT),
    ("", DEFAULT),
    ('{"a":' + "[" * 70 + "]" * 70 + ',"max_tokens":40}', DEFAULT),
    ('{"a":"' + "x" * 5000 + '","max_tokens":40}', DEFAULT),
    ('{"max_tokens":40,"a":"' + "x" * 5000 + '"}', DEFAULT),
]


def estimated(server):
    """An answer that says nothing keeps the reserve, so that it can be read."""
    for number, (body, output) in enumerate(BODIES):
        headers, plan = server.fleet.model.plan(b"{}", framing="length")
        key, sent = f"body-{number}", body.encode()
        found = server.post("/any/v1/chat", sent, {**headers, "x-key": key})
        if found.status != 200 or plan.calls[0].body != sent:
            raise Failed(f"{body[:60]!r}: {found.status}, {plan.calls[0].body!r}")
        check(f"{server.name}: {body[:60]!r} reserves", [output, len(sent)],
              server.counts(["output", "input"], key))
    headers, _ = server.fleet.model.plan(b"{}")
    server.post("/three/v1/chat", '{"max_tokens":11}', {**headers, "x-key": "three"})
    check(f"{server.name}: 17 bytes, three for a token", [11, 6],
          server.counts(["output", "input"], "three"))


def encoded(server):
    """A compressed body is not read, a chunked one is."""
    packed = gzip.compress(b'{"max_tokens":40}')
    headers, plan = server.fleet.model.plan(b"{}")
    server.post("/any/v1/chat", packed, {**headers, "x-key": "packed", "content-encoding": "gzip"})
    check(f"{server.name}: a compressed body reserves by its length", [DEFAULT, len(packed)],
          server.counts(["output", "input"], "packed"))
    check(f"{server.name}: and arrives as it is", packed, plan.calls[0].body)
    body = b'{"max_tokens":40,"messages":[1,2,3]}'
    headers, plan = server.fleet.model.plan(b"{}")
    pieces = (body[at:at + 3] for at in range(0, len(body), 3))
    connection = server.connect()
    connection.request("POST", "/any/v1/chat", pieces, {**headers, "x-key": "chunked"},
                       encode_chunked=True)
    check(f"{server.name}: a chunked body passes", 200, connection.getresponse().status)
    check(f"{server.name}: and reserves", [40, len(body)],
          server.counts(["output", "input"], "chunked"))
    check(f"{server.name}: and arrives whole", body, plan.calls[0].body)


def never(server):
    """A maximum that the client names is never lowered; a guess is."""
    name = server.name
    post = lambda path, body, key, plan: server.post(
        path, body, {**server.fleet.model.plan(plan)[0], "x-key": key})
    found = post("/small/v1", '{"max_tokens":301}', "big", Plan([b"{}"]))
    check(f"{name}: a maximum that never fits", (429, None),
          (found.status, found.headers.get("retry-after")))
    check(f"{name}: charges nothing", 0, server.count("small", "big"))
    found = post("/small/v1", "{}", "guess", Plan([b"{}"]))
    check(f"{name}: a guess is lowered to the limit", (200, 300),
          (found.status, server.count("small", "guess")))
    found = post("/small/v1", "{}", "guess", Plan([b"{}"]))
    check(f"{name}: and fits again only when the limit is free", (429, True),
          (found.status, "retry-after" in found.headers))
    said = Plan([b'{"usage":{"prompt_tokens":3,"completion_tokens":4}}'])
    found = post("/small/v1", "{}", "first", said)
    check(f"{name}: the first call of a small key passes", 200, found.status)
    until(f"{name}: and is settled", 7, lambda: server.count("small", "first"))
    lying = Plan([b'{"usage":{"prompt_tokens":500,"completion_tokens":4000}}'])
    found = post("/small/v1", '{"max_tokens":10}', "lies", lying)
    until(f"{name}: usage above the maximum is charged", 4500,
          lambda: server.count("small", "lies"))
    found = post("/small/v1", '{"max_tokens":1}', "lies", said)
    check(f"{name}: and nothing passes then", 429, found.status)
    found = post("/both/v1", '{"max_tokens":301}', "both", said)
    check(f"{name}: a denied call charges no other limit", (429, 0),
          (found.status, server.count("calls", "both")))
    for number in range(5):
        found = post("/both/v1", '{"max_tokens":2}', "both", said)
        check(f"{name}: call {number} passes", 200, found.status)
    found = post("/both/v1", '{"max_tokens":2}', "both", said)
    check(f"{name}: requests count as one each", (429, 5),
          (found.status, server.count("calls", "both")))


def money(server):
    name = server.name
    said = lambda model: Plan([json.dumps(
        {"model": model, "usage": {"prompt_tokens": 3, "completion_tokens": 4}}).encode()])
    post = lambda body, key, plan: server.post(
        "/money/v1", body, {**server.fleet.model.plan(plan)[0], "x-key": key})
    body = '{"model":"gpt-5","max_tokens":10}'
    post(body, "keeps", Plan([b"{}"]))
    check(f"{name}: money is reserved by the request's model", len(body) + 100,
          server.count("money", "keeps"))
    post(body, "priced", said("gpt-5-mini"))
    until(f"{name}: and settled by the answer's", 43, lambda: server.count("money", "priced"))
    found = post('{"model":"other"}', "other", said("other"))
    check(f"{name}: a model without a price is refused", 400, found.status)
    found = post("{}", "none", said("gpt-5"))
    check(f"{name}: so is a call without a model", 400, found.status)
    post(body, "changed", said("other"))
    until(f"{name}: an answer of a model without a price has that of the request's", 43,
          lambda: server.count("money", "changed"))


def main(fleet, name, store):
    server = fleet.server(name, CONFIG + store)
    estimated(server)
    encoded(server)
    never(server)
    money(server)


if __name__ == "__main__":
    on_both_stores(main)
