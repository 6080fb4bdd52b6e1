//! Whose budget a request is counted against: copies, spellings and the want of a key, and what
//! clients and proxies say of addresses.

use std::collections::HashSet;

use crate::bypass::guarded;
use crate::house::{Tidegate, Upstream};
use crate::support::RedisServer;

/// Each API key is an identity.
const TRUST: &str = "[api_key]\nunknown = \"trust\"\n";

/// Asks with each set of headers; what came of it, in order.
fn asked(rules: &str, headers: &[&str]) -> Vec<u16> {
    let upstream = Upstream::ok();
    let proxy = guarded(&upstream, rules);
    let found: Vec<u16> = headers
        .iter()
        .map(|headers| proxy.get_with("/row", headers).status)
        .collect();
    let served = found.iter().filter(|status| **status == 200).count();
    assert_eq!(upstream.seen().len(), served);
    found
}

#[test]
fn copies_and_spellings_of_a_key_are_one_key() {
    let by = |key: &str| format!("[limit.default]\nrate = \"1/day\"\nkey = {key}\n");
    let header = asked(
        &by("\"header:X-User\""),
        &[
            "X-User: jo\r\n",
            "x-user: jo\r\n",
            "X-USER:   jo  \r\n",
            "X-User: jo\r\nX-User: jo\r\n",
            "X-User: jo\r\nX-User: other\r\n",
            "X-User: other\r\nX-User: jo\r\n",
            "X-User: \r\nX-User: jo\r\n",
            "X-User: JO\r\n",
        ],
    );
    assert_eq!(header, [200, 429, 429, 429, 400, 400, 429, 200]);
    let trusted = format!("{TRUST}{}", by("\"api_key\""));
    let api_key = asked(
        &trusted,
        &[
            "X-Api-Key: k\r\n",
            "Authorization: Bearer k\r\n",
            "Authorization: bearer    k\r\n",
            "X-Api-Key: k\r\nX-Api-Key: fresh\r\n",
            "Authorization: Bearer k\r\nAuthorization: Bearer fresh\r\n",
        ],
    );
    assert_eq!(api_key, [200, 429, 429, 400, 400]);
    let cookie = asked(
        &by("\"cookie:s\""),
        &[
            "Cookie: s=v\r\n",
            "Cookie: a=b; s=v\r\n",
            "Cookie: s=\"v\"\r\n",
            "Cookie: a=b\r\nCookie: s=v\r\n",
            "Cookie: s=v; s=fresh\r\n",
        ],
    );
    assert_eq!(cookie, [200, 429, 429, 429, 400]);
    let both = asked(
        &by("[\"header:X-A\", \"header:X-B\"]"),
        &[
            "X-A: a\r\nX-B: b\r\n",
            "X-A: a,b\r\nX-B: \r\n",
            "X-A: ab\r\n",
            "X-B: b\r\nX-A: a\r\n",
        ],
    );
    assert_eq!(
        both[..3],
        [200, 200, 200],
        "parts never run into each other"
    );
    assert_eq!(both[3], 429);
}

/// What clients write chooses neither the length nor the slot of a name in Redis, and no name stays.
#[test]
fn names_in_redis_are_of_one_form_and_expire() {
    let (upstream, redis) = (Upstream::ok(), RedisServer::start());
    let limit = |name: &str, more: &str| {
        format!("[limit.{name}]\nrate = \"5/min\"\nkey = \"header:x-key\"\n{more}\n")
    };
    let proxy = Tidegate::start(&format!(
        "upstream = \"{}\"\n[store]\nurl = \"redis://127.0.0.1:{}\"\ntimeout = \"5s\"\n{}{}",
        upstream.url(),
        redis.port(),
        limit("exact", ""),
        limit("roughly", "algorithm = \"counter\"")
            + "[[route]]\npath = \"/*\"\nlimits = [\"exact\", \"roughly\"]\n",
    ));
    let long = "k".repeat(4000);
    let odd = [
        "{slot}1",
        "{slot}2",
        "{slot}",
        "{}",
        "}{",
        "a}.exact.{b",
        "a:b",
        "a.b",
        "*",
        "k",
        &long,
    ];
    for key in odd {
        let answer = proxy.get_with("/", &format!("X-Key: {key}\r\n"));
        assert_eq!(answer.status, 200, "{key}");
    }
    let mut connection = redis.connect();
    for limit in ["exact", "roughly"] {
        let found = redis::cmd("KEYS")
            .arg(format!("*}}{limit}.*"))
            .query(&mut connection);
        let found: Vec<String> = found.unwrap();
        assert_eq!(found.len(), odd.len(), "{found:?}");
        let mut slots = HashSet::new();
        for name in &found {
            assert_eq!(name.len(), found[0].len(), "{found:?}");
            let (_, rest) = name.split_once('{').unwrap();
            let (slot, rest) = rest.split_once('}').unwrap();
            assert!(!rest.contains(['{', '}']) && slot.len() == 22, "{name}");
            assert!(slots.insert(slot), "{found:?}");
            let left_ms = redis::cmd("PTTL").arg(name).query::<i64>(&mut connection);
            assert!((1..=600_000).contains(&left_ms.unwrap()), "{name} stays");
        }
    }
}

#[test]
fn query_keys_have_one_spelling() {
    let upstream = Upstream::ok();
    let rules = "[limit.default]\nrate = \"1/day\"\nkey = \"query:k\"\n";
    let proxy = guarded(&upstream, rules);
    for (target, status) in [
        ("/?k=v", 200),
        ("/other?a=b&k=v", 429),
        ("/?%6b=v", 429),
        ("/?k=%76", 429),
        ("/?k=v&k=fresh", 400),
        ("/?k=fresh&k=v", 400),
        ("/?k=v&k=v", 429),
        ("/?K=v", 200),
    ] {
        assert_eq!(proxy.get(target).status, status, "{target}");
    }
}

#[test]
fn a_missing_key_means_what_the_limit_says() {
    let policy = |word: &str| {
        format!(
            "[limit.default]\nrate = \"1/day\"\nkey = \"header:X-User\"\nmissing = \"{word}\"\n"
        )
    };
    let absent = [
        "X-User: jo\r\n",
        "",
        "X-User:\r\n",
        "X-User:  \r\n",
        "X-User: jo\r\n",
    ];
    assert_eq!(asked(&policy("ip"), &absent), [200, 200, 429, 429, 429]);
    assert_eq!(asked(&policy("shared"), &absent), [200, 200, 429, 429, 429]);
    assert_eq!(asked(&policy("deny"), &absent), [200, 400, 400, 400, 429]);
    assert_eq!(asked(&policy("skip"), &absent), [200, 200, 200, 200, 429]);
    // A key that spells an address is not that address's budget, and none is shared's.
    let forged = ["", "X-User: 127.0.0.1\r\n", "X-User: shared\r\n"];
    assert_eq!(asked(&policy("ip"), &forged), [200, 200, 200]);
    assert_eq!(asked(&policy("shared"), &forged), [200, 200, 200]);
}

#[test]
fn an_untrusted_peer_is_counted_as_itself() {
    let rules = "[limit.default]\nrate = \"1/day\"\nkey = \"ip\"\n";
    let spoofs = [
        "",
        "X-Forwarded-For: 192.0.2.1\r\n",
        "X-Forwarded-For: 192.0.2.1, 192.0.2.2\r\nX-Forwarded-For: 192.0.2.3\r\n",
        "Forwarded: for=192.0.2.4\r\n",
        "X-Real-IP: 192.0.2.5\r\n",
        "True-Client-IP: 192.0.2.6\r\nCF-Connecting-IP: 192.0.2.6\r\n",
    ];
    let mut expected = vec![429; spoofs.len()];
    expected[0] = 200;
    assert_eq!(asked(rules, &spoofs), expected);
}

#[test]
fn the_client_behind_trusted_proxies_is_the_last_that_is_not_one() {
    let rules = "[limit.default]\nrate = \"1/day\"\nkey = \"ip\"\n";
    let trusting = format!("trusted_proxies = [\"127.0.0.1\", \"10.0.0.0/8\"]\n{rules}");
    let one = |chains: &[&str]| {
        let headers: Vec<String> = chains
            .iter()
            .map(|chain| {
                chain
                    .split('|')
                    .map(|line| format!("X-Forwarded-For: {line}\r\n"))
                    .collect()
            })
            .collect();
        let headers: Vec<&str> = headers.iter().map(String::as_str).collect();
        asked(&trusting, &headers)
    };
    for same in [
        // Whatever stands on the left, 192.0.2.7 is the client.
        &[
            "192.0.2.7",
            "6.6.6.6, 192.0.2.7",
            "6.6.6.6|192.0.2.7",
            "192.0.2.7, 10.0.0.9",
        ][..],
        &[
            "192.0.2.7",
            "192.0.2.7:1234",
            "garbage, 192.0.2.7",
            "\"192.0.2.7\"",
            ",,192.0.2.7,,",
        ],
        &[
            "192.0.2.7",
            "::ffff:192.0.2.7",
            "[::ffff:192.0.2.7]:80",
            "::FFFF:c000:0207",
        ],
        &[
            "6.6.6.6|192.0.2.7|10.0.0.1, 10.0.0.2",
            "192.0.2.7",
            "7.7.7.7, 192.0.2.7, 10.0.0.3",
        ],
        // A /64 is one client, whichever of its addresses it writes.
        &[
            "2001:db8::1",
            "2001:db8::2",
            "2001:db8:0:0:ffff::1",
            "[2001:db8::3]:443",
            "2001:db8::1%eth0",
        ],
        // What cannot be read on the right was not written by a proxy of ours: it is the peer.
        &[
            "",
            "unknown",
            "192.0.2.7, garbage",
            "1.2.3.4.5",
            "192.0.2.7 192.0.2.8",
            "0x7f.1",
        ],
        // All are proxies: the first of them.
        &["10.1.1.1", "10.1.1.1, 10.2.2.2", "10.1.1.1, 127.0.0.1"],
    ] {
        let mut expected = vec![429; same.len()];
        expected[0] = 200;
        assert_eq!(one(same), expected, "{same:?}");
    }
    assert_eq!(
        one(&["192.0.2.7", "192.0.2.8", "2001:db8::1", "2001:db8:0:1::1"]),
        [200; 4]
    );
}

#[test]
fn a_limit_without_a_rate_refuses_requests_without_its_key() {
    let limit = "[limit.default]\nrate = \"unlimited\"\nkey = \"header:X-User\"\n";
    let policy = |more: &str| format!("{limit}{more}\n");
    let absent = ["X-User: jo\r\n", "", "X-User: jo\r\n"];
    assert_eq!(
        asked(&policy("missing = \"deny\""), &absent),
        [200, 400, 200]
    );
    for free in ["", "missing = \"deny\"\nshadow = true"] {
        assert_eq!(asked(&policy(free), &absent), [200, 200, 200], "{free}");
    }
}

#[test]
fn proxies_that_hash_keys_with_different_secrets_are_told() {
    let (upstream, redis) = (Upstream::ok(), RedisServer::start());
    let start = |secret: &str| {
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join("secret"), secret.repeat(32)).unwrap();
        let config = format!(
            "upstream = \"{}\"\n[store]\nurl = \"redis://127.0.0.1:{}\"\ntimeout = \"5s\"\n\
             hash_key_file = \"secret\"\n[limit.default]\nrate = \"9/day\"\n",
            upstream.url(),
            redis.port()
        );
        let proxy = Tidegate::start_in(directory, &config, &[]);
        assert_eq!(proxy.get("/").status, 200);
        proxy
    };
    let warnings = |proxy: &Tidegate| {
        let said = proxy.said();
        said.iter()
            .filter(|line| line.contains("another secret"))
            .count()
    };
    let equal = [start("0a"), start("0a")];
    let other = start("0b");
    other.wait_for_line("another secret");
    assert_eq!(equal.each_ref().map(warnings), [0, 0]);
    assert_eq!(warnings(&other), 0, "once");
    let again = start("0b");
    assert_eq!(warnings(&again), 0, "the last one has the same");
}
