"""Envoy's rate limit service, asked through stubs that are not ours: which rule decides, and what is
charged; against the embedded store and against Redis."""

import sys
import tempfile
import time

import grpc

import service_auth
import service_wire
from calls import OK, OVER, UNLIMITED, Failed, Fleet, check, codes, descriptor, headers, left, until

TOP = """
listen = []
admin  = "127.0.0.1:{admin}"

[decide]
listen = "127.0.0.1:{port}"
"""

LOG = """
[log]
format = "json"
access = "{access}"
sample_allowed = 1.0
"""

# Each rule has another number of units, by which the answer tells which one decided.
MATCHING = [
    ("match", '["a=1", "b"]', 101),
    ("match", '["a", "b=2"]', 102),
    ("match", '["a=1", "b=2"]', 103),
    ("match", '["a=1*", "b=2"]', 104),
    ("match", '["a=12*", "b=2"]', 105),
    ("match", '["a", "b"]', 106),
    ("match", '["b", "a"]', 107),
    ("match", '["a"]', 108),
    ("match", '["a", "b", "c"]', 109),
    ("match", '[{ key = "a=b", value = "c" }]', 110),
    ("match", '["e="]', 111),
    ("match", '["e"]', 112),
    ("match", '["p=x*y"]', 113),
    ("match", '["p=*y"]', 114),
    ("match", '["q=*"]', 115),
    ("match", '["a=1", "a=1"]', 116),
    ("exact first", '["a=1", "b"]', 120),
    ("exact first", '["a", "b=2"]', 121),
    ("pattern first", '["a=x*", "b"]', 122),
    ("pattern first", '["a", "b=2"]', 123),
    ("other", '["a=1", "b=2"]', 124),
    ("Stra\u00dfe", '["\u00fc=\u00e4*"]', 125),
]

FOUND = [
    ("all exact", "match", ["a=1", "b=2"], 103),
    ("exact, then any", "match", ["a=1", "b=9"], 101),
    ("any, then exact", "match", ["a=9", "b=2"], 102),
    ("the longer pattern", "match", ["a=12", "b=2"], 105),
    ("the shorter pattern", "match", ["a=13", "b=2"], 104),
    ("a pattern whose next entry does not fit", "match", ["a=12", "b=9"], 106),
    ("any values", "match", ["a=9", "b=9"], 106),
    ("another order of entries", "match", ["b=2", "a=1"], 107),
    ("one entry", "match", ["a=1"], 108),
    ("three entries", "match", ["a=1", "b=2", "c=3"], 109),
    ("a key that holds =", "match", [("a=b", "c")], 110),
    ("a key that holds =, another value", "match", [("a=b", "d")], None),
    ("a key is no key with value", "match", [("a", "b=c")], 108),
    ("an empty value", "match", [("e", "")], 111),
    ("a value where another rule has the empty one", "match", ["e=1"], 112),
    ("an empty value is any value", "match", [("a", "")], 108),
    ("a star in the middle", "match", ["p=xzy"], 113),
    ("a star at the front", "match", ["p=zzy"], 114),
    ("a star fits nothing too", "match", ["p=xy"], 113),
    ("a star alone", "match", ["q="], 115),
    ("one entry twice", "match", ["a=1", "a=1"], 116),
    ("another case of a value", "match", ["P=xy"], None),
    ("four entries", "match", ["a=1", "b=2", "c=3", "d=4"], None),
    ("another key", "match", ["z=1"], None),
    ("the first exact entry decides", "exact first", ["a=1", "b=2"], 120),
    ("the second one does if it must", "exact first", ["a=3", "b=2"], 121),
    ("a pattern before any value", "pattern first", ["a=xy", "b=2"], 122),
    ("another domain", "other", ["a=1", "b=2"], 124),
    ("another domain has its own rules", "other", ["a=1"], None),
    ("an unknown domain", "nobody", ["a=1"], None),
    ("letters beyond ASCII", "Stra\u00dfe", ["\u00fc=\u00e4\u00f6"], 125),
]


def rule(domain, entries, limits, **more):
    lines = [f'domain = "{domain}"', f"entries = {entries}"]
    if limits is not None:
        lines.append(f"limits = {limits}")
    lines += [f"{key} = {value}" for key, value in more.items()]
    return "[[descriptor]]\n" + "\n".join(lines) + "\n\n"


def matching(fleet):
    """Which rule decides. No count matters, so the embedded store is enough."""
    rules = [rule(domain, entries, f'["{units}/h"]') for domain, entries, units in MATCHING]
    for order, listed in (("as written", rules), ("turned round", rules[::-1])):
        server = fleet.server(f"matching {order}".replace(" ", "-"), TOP + "".join(listed))
        for what, domain, entries, units in FOUND:
            answer = server.call(domain, descriptor(*entries))
            status = answer.statuses[0]
            limit = status.current_limit if status.HasField("current_limit") else None
            found = limit and limit.requests_per_unit
            check(f"rules {order}: {what}", [OK, OK, units], [*codes(answer), found])
            if units is None:
                check(f"rules {order}: {what}: nothing is left or ends", [0, False],
                      [status.limit_remaining, status.HasField("duration_until_reset")])
        server.end()


COUNTING = TOP + LOG + """
[limit.user]
rate = "5/h"
key  = "entry:user"

[limit.address]
rate = "3/h"
key  = "ip"

""" + "".join([
    rule("all", '["one"]', '["2/h"]'),
    rule("all", '["two"]', '["3/h"]'),
    rule("all", '["free"]', "[]"),
    rule("all", '["shadow"]', '["1/h"]', shadow="true"),
    rule("all", '["user"]', '["user"]'),
    rule("all", '["write", "user"]', '["user"]'),
    rule("all", '["remote_address"]', '["address"]'),
    rule("all", '["masked_remote_address"]', '["address"]'),
    rule("all", '["kind", "user"]', '["2/h"]', key='["entry:user"]'),
    rule("all", '["kind=exact", "tenant"]', '["2/h"]'),
    rule("all", '["several"]', '["3/min", "4/h"]'),
    rule("hits", '["ten"]', '["10/h"]'),
    rule("hits", '["second"]', '["4/s"]'),
    rule("report", '["tokens"]', '["1000/h"]', charge='"always"'),
    rule("report", '["plain"]', '["1/h"]'),
    rule("quota", '["q1"]', '["1/h"]', quota="true", metadata='{ service = { one = "left" } }'),
    rule("quota", '["q2"]', '["2/h"]', quota="true", metadata='{ service = { two = "left" } }'),
    rule("quota", '["free"]', "[]", quota="true"),
    rule("quota", '["plain"]', '["1/h"]'),
    rule("names", '["small"]', '["1/h"]', name='"small"'),
    rule("names", '["big"]', '["9/h"]', replaces='["small"]'),
    rule("names", '["blocked"]', None, block="true"),
    rule("own", '["user"]', '["3/h"]'),
])


def together(server):
    """All or nothing."""
    name = server.name
    for _ in range(2):
        server.call("all", "one=a", "two=a")
    answer = server.call("all", "two=a", "one=a", "free=a", "unknown=a")
    check(f"{name}: each descriptor has its own status, in order", [OVER, OK, OVER, OK, OK],
          codes(answer))
    check(f"{name}: what is left after a denial", [1, 0, UNLIMITED, 0], left(answer))
    check(f"{name}: a denied call charges no other descriptor", 1, server.left("all", "two=a"))
    status = answer.statuses
    check(f"{name}: without limit there is no current_limit", [True, True, False, False],
          [one.HasField("current_limit") for one in status])
    answer = server.call("all", "one=b", "one=b")
    check(f"{name}: equal descriptors are charged together", [0, 0], left(answer))
    check(f"{name}: equal descriptors that are too many", [OVER, OVER, OVER, OVER],
          server.codes("all", "one=c", "one=c", "one=c"))
    check(f"{name}: and charge nothing", 2, server.left("all", "one=c"))
    answer = server.call("all", "one=d", "one=e")
    check(f"{name}: other keys of one limit are apart", [1, 1], left(answer))
    answer = server.call("all", "user=u", descriptor("write=1", "user=u"))
    check(f"{name}: two rules of one limit share its count", [3, 3], left(answer))
    answer = server.call("all", descriptor("kind=x", "user=k"), descriptor("kind=y", "user=k"))
    check(f"{name}: `key` leaves entries out", [0, 0], left(answer))
    server.call("all", descriptor("kind=exact", "tenant=t"))
    check(f"{name}: without `key` exact entries do not count", 1,
          server.left("all", "kind=exact", "tenant=t"))
    shadow = [server.codes("all", "shadow=s", "one=f") for _ in range(3)]
    check(f"{name}: a shadow limit is OK and denies nothing",
          [[OK, OK, OK], [OK, OK, OK], [OVER, OK, OVER]], shadow)
    answer = server.call("all", "remote_address=192.0.2.1")
    answer = server.call("all", "masked_remote_address=192.0.2.1")
    check(f"{name}: one client by its address", [1], left(answer))
    server.call("all", "remote_address=2001:db8::1")
    answer = server.call("all", "remote_address=2001:db8::2")
    check(f"{name}: addresses are grouped as [client_ip] says", [1], left(answer))
    answers = [server.call("all", "several=s") for _ in range(4)]
    limit = answers[3].statuses[0].current_limit
    check(f"{name}: the tightest of several limits", [OVER, 3, "MINUTE"],
          [codes(answers[3])[1], limit.requests_per_unit, limit.Unit.Name(limit.unit)])


def hits(server):
    name = server.name
    ask = lambda key, **more: codes(server.call("hits", descriptor(f"ten={key}", **more)))[0]
    check(f"{name}: a descriptor's own hits", [6], left(
        server.call("hits", descriptor("ten=own", hits=4), hits=2)))
    check(f"{name}: hits of the request are of the others", [6, 8], left(
        server.call("hits", descriptor("ten=mine", hits=4), "ten=others", hits=2)))
    check(f"{name}: hits 0 of the request are 1", [9], left(server.call("hits", "ten=zero")))
    check(f"{name}: more hits than the limit", OVER, ask("more", hits=11))
    check(f"{name}: many more hits than the limit", OVER, ask("more", hits=(1 << 64) - 1))
    check(f"{name}: as many hits of the request as there may be", [OVER, OVER],
          codes(server.call("hits", "ten=more", hits=(1 << 32) - 1)))
    check(f"{name}: and nothing is charged", 10, server.left("hits", "ten=more"))
    check(f"{name}: as many hits as the limit", OK, ask("look", hits=10))
    check(f"{name}: one more is denied", OVER, ask("look"))
    check(f"{name}: hits 0 passes at the limit", OK, ask("look", hits=0))
    check(f"{name}: hits 0 has charged nothing", 0, server.left("hits", "ten=look"))
    ask("back", hits=8)
    check(f"{name}: too much is denied", OVER, ask("back", hits=3))
    check(f"{name}: less passes", OK, ask("back", hits=2))
    check(f"{name}: the limit is used up", OVER, ask("back"))
    answer = server.call("hits", descriptor("ten=back", hits=4, gives_back=True))
    check(f"{name}: hits are given back", [OK, OK], codes(answer))
    check(f"{name}: what is left then", [4], left(answer))
    until(f"{name}: they can be used again", 4, lambda: server.left("hits", "ten=back"))
    check(f"{name}: by a call that is not denied any more", OK, ask("back", hits=4))
    check(f"{name}: and no more than these", OVER, ask("back"))
    check(f"{name}: never more is given back than is charged", [OK, OK],
          server.codes("hits", descriptor("ten=back", hits=1000, gives_back=True)))
    until(f"{name}: so the limit is whole, and no more", 10,
          lambda: server.left("hits", "ten=back"))
    check(f"{name}: and not over it", OVER, ask("back", hits=11))
    server.call("hits", descriptor("ten=none", hits=3, gives_back=True))
    check(f"{name}: nothing is given back of nothing", 10, server.left("hits", "ten=none"))
    ask("with", hits=10)
    answer = server.call("hits", descriptor("ten=with", hits=5, gives_back=True),
                         descriptor("ten=over", hits=11))
    check(f"{name}: a denied call gives back too", [OVER, OK, OVER], codes(answer))
    until(f"{name}: and it is free", 5, lambda: server.left("hits", "ten=with"))
    ask("both", hits=10)
    answer = server.call("hits", "ten=both", descriptor("ten=both", hits=3, gives_back=True))
    check(f"{name}: giving back is OK beside a denial of the same", [OVER, OVER, OK, 0, 3],
          [*codes(answer), *left(answer)])
    server.call("hits", descriptor("ten=plain", hits=10))
    message = descriptor("ten=plain", gives_back=True)
    check(f"{name}: hits of the request are given back", [OK, OK],
          codes(server.call("hits", message, hits=3)))
    until(f"{name}: as many as it says", 3, lambda: server.left("hits", "ten=plain"))
    oldest_first(server)


def oldest_first(server):
    """Given back are the oldest, so that no second holds more than the limit."""
    ask = lambda **more: codes(server.call("hits", descriptor("second=s", **more)))[0]
    begin = time.monotonic()
    passed = [ask(hits=3)]
    time.sleep(0.6)
    passed += [ask(hits=1), ask(hits=1, gives_back=True), ask(hits=1)]
    time.sleep(max(0, begin + 1.1 - time.monotonic()))
    # Two of the second half are still in this second.
    passed += [ask(hits=3), ask(hits=2)]
    check(f"{server.name}: the oldest are given back", [OK, OK, OK, OK, OVER, OK], passed)


def reports(server):
    name = server.name
    token = lambda **more: server.call("report", descriptor("tokens=t", **more))
    check(f"{name}: 990 of 1000", [10], left(token(hits=990)))
    report = token(hits=50)
    check(f"{name}: a report above the limit is denied", [OVER, OVER], codes(report))
    check(f"{name}: and says what is left with it", [[0], "0"],
          [left(report), headers(report)["x-ratelimit-remaining"]])
    until(f"{name}: and counts: a look is denied then", [OVER, OVER],
          lambda: codes(token(hits=0)))
    check(f"{name}: a report beside a denied descriptor", [OVER, OK, OVER], codes(
        server.call("report", descriptor("tokens=other", hits=7), descriptor("plain=p", hits=2))))
    check(f"{name}: counts too", 993, server.left("report", "tokens=other"))
    check(f"{name}: the other was not charged", 1, server.left("report", "plain=p"))
    server.call("report", descriptor("tokens=last", hits=1000))
    check(f"{name}: beside a denied report", [OVER, OVER, OK],
          server.codes("report", "tokens=last", "plain=r"))
    check(f"{name}: others are not charged", 1, server.left("report", "plain=r"))
    same = lambda hits: descriptor("tokens=same", hits=hits)
    check(f"{name}: two reports of one limit", [OVER, OVER, OVER],
          server.codes("report", same(990), same(50)))
    until(f"{name}: count both", [OVER, OVER], lambda: server.codes("report", same(0)))
    server.call("report", descriptor("tokens=same", hits=40, gives_back=True))
    until(f"{name}: no more and no less", [OK, OK], lambda: server.codes("report", same(0)))
    check(f"{name}: and the limit is used up", [OVER, OVER], server.codes("report", same(1)))
    huge = descriptor("tokens=huge", hits=(1 << 64) - 1)
    check(f"{name}: the largest report", [OVER, OVER], server.codes("report", huge))
    until(f"{name}: counts", [OVER, OVER],
          lambda: server.codes("report", descriptor("tokens=huge", hits=0)))


def quotas(server):
    name = server.name
    ask = lambda: server.call("quota", "q1=a", "q2=a")
    first, second, third = ask(), ask(), ask()
    check(f"{name}: quota that is left", [OK, OK, OK], codes(first))
    check(f"{name}: one quota over", [OK, OVER, OK], codes(second))
    check(f"{name}: all quotas over", [OVER, OVER, OVER], codes(third))
    tables = lambda answer: json_of(answer).get("metadata", {}).get("service", {})
    check(f"{name}: metadata say which service has quota left",
          [{"one": "left", "two": "left"}, {"two": "left"}, {}],
          [tables(answer) for answer in (first, second, third)])
    check(f"{name}: metadata name the domain", "quota", json_of(first)["domain"])
    check(f"{name}: nothing that passes has metadata", False, third.HasField("dynamic_metadata"))
    server.call("quota", "plain=b")
    check(f"{name}: another descriptor denies", [OVER, OK, OVER],
          server.codes("quota", "q2=b", "plain=b"))
    check(f"{name}: and the quota is charged", 1, server.left("quota", "q2=b"))
    server.call("quota", "q1=d")
    check(f"{name}: quota without a bound is never over", [OK, OVER, OK],
          server.codes("quota", "q1=d", "free=d"))
    check(f"{name}: a single quota denies", [OVER, OVER], server.codes("quota", descriptor(
        "q1=c", hits=2)))


def json_of(answer):
    return service_wire.MessageToDict(answer.dynamic_metadata)


def names(server):
    name = server.name
    check(f"{name}: a small one", [[OK, OK], [OVER, OVER]],
          [server.codes("names", "small=x") for _ in range(2)])
    answer = server.call("names", "small=x", "big=x")
    check(f"{name}: is replaced", [OK, OK, OK], codes(answer))
    check(f"{name}: and has no limit then", [0, 8], left(answer))
    check(f"{name}: in any order", [OK, OK, OK], server.codes("names", "big=x", "small=x"))
    answer = server.call("names", "blocked=x", "big=y")
    check(f"{name}: blocked", [OVER, OVER, OK], codes(answer))
    check(f"{name}: no wait ends a block", False, "retry-after" in headers(answer))
    check(f"{name}: a block charges no other", 9, server.left("names", "big=y"))


def own_limits(server, believing):
    """Limits that callers bring."""
    name, hour, minute = server.name, 3, 2
    ask = lambda server, unit, units, *entries: server.call(
        "own", descriptor(*entries, limit=(units, unit)))
    ignored = [ask(server, hour, 1, "user=a") for _ in range(3)]
    check(f"{name}: a brought limit is ignored", [[2], [1], [0]], [left(one) for one in ignored])
    until(f"{name}: and is a finding", True, lambda: "decide-overrides" in server.findings())
    answers = [ask(believing, hour, 2, "user=a") for _ in range(3)]
    check(f"{name}: a brought limit that is believed", [[OK, OK], [OK, OK], [OVER, OVER]],
          [codes(one) for one in answers])
    limit = answers[0].statuses[0].current_limit
    check(f"{name}: is the current one", [2, hour], [limit.requests_per_unit, limit.unit])
    check(f"{name}: the rule's own is apart", 3, believing.left("own", "user=a"))
    check(f"{name}: another brought limit is apart", [4],
          left(ask(believing, minute, 5, "user=a")))
    check(f"{name}: another value is apart", [1], left(ask(believing, hour, 2, "user=b")))
    check(f"{name}: where no rule is, the limit holds", [1],
          left(ask(believing, hour, 2, "user=a", "more=1")))
    check(f"{name}: entries are counted whole", [1],
          left(ask(believing, hour, 2, "user=a", "more=2")))
    check(f"{name}: a limit of 0", [OVER, OVER], codes(ask(believing, hour, 0, "user=z")))
    check(f"{name}: an unknown unit is no limit", 3,
          ask(believing, 0, 1, "user=y").statuses[0].current_limit.requests_per_unit)
    # The counters are checked each second.
    # The admin looks at the counters each second.
    time.sleep(1.1)
    check(f"{name}: what is believed is no finding", False,
          "decide-overrides" in believing.findings())


def operators(server, believing):
    """An operator's block holds, whatever a caller brings."""
    name = believing.name
    client = descriptor("remote_address=192.0.2.77", limit=(5, 3))
    for one in (server, believing):
        one.block("192.0.2.77")
    until(f"{name}: an operator's block", [OVER, OVER],
          lambda: server.codes("all", "remote_address=192.0.2.77"))
    until(f"{name}: with a brought limit", [OVER, OVER], lambda: believing.codes("all", client))
    check(f"{name}: others pass", [OK, OK], server.codes("all", "remote_address=192.0.2.78"))
    back = descriptor("remote_address=192.0.2.77", gives_back=True)
    check(f"{name}: and give back", [OK, OK], server.codes("all", back))


def counting(fleet, name, store):
    server = fleet.server(name, COUNTING + store)
    believing = COUNTING.replace("[decide]", "[decide]\noverrides = true")
    apart = store and store + 'prefix = "believing:"\n'
    believing = fleet.server(f"{name}-believing", believing + apart)
    for group in (together, hits, reports, quotas, names):
        group(server)
    own_limits(server, believing)
    operators(server, believing)
    service_wire.watched(server)
    service_wire.json(server)
    return server


def main():
    with tempfile.TemporaryDirectory() as directory:
        fleet = Fleet(directory)
        try:
            redis, shared = fleet.redis()
            matching(fleet)
            counting(fleet, "embedded", "")
            counting(fleet, "redis", shared)
            service_wire.main(fleet, shared)
            service_auth.main(fleet, shared)
        except (Failed, grpc.RpcError):
            fleet.show_logs()
            raise
        finally:
            fleet.end()


if __name__ == "__main__":
    main()
