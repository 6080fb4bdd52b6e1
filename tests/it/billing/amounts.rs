//! What is billed where the size of a call or the rates of a client are not the usual ones.

use super::{KEYS, ask, by_client, expected, start, url, wait_for};
use crate::admin::Looked;
use crate::house::Upstream;
use crate::probe::eventually;
use crate::support::RedisServer;

const SILENT: &str =
    "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}";
const SCRIPT: &str = include_str!("../../../lua/ledger.lua");

fn with_keys(config: &str) -> Looked {
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("keys.txt"), KEYS).unwrap();
    Looked::start_in(directory, config)
}

/// A body of JSON that is longer than what is read before the decision.
fn long_body() -> String {
    format!("{{\"model\":\"m\",\"text\":\"{}\"}}", "a".repeat(100_000))
}

#[test]
fn a_long_body_of_unknown_length_costs_what_has_come_of_it() {
    let upstream = Upstream::saying(SILENT);
    let looked = with_keys(&format!(
        "upstream = \"{}\"\n[ledger]\n[api_key]\nknown = \"keys.txt\"\n\
         [limit.tokens]\nrate = \"50_000/h\"\nkey = \"api_key\"\ncounts = \"tokens\"\n\
         [[route]]\npath = \"/*\"\nlimits = [\"tokens\"]\nusage = \"openai\"\n",
        upstream.url()
    ));
    let body = long_body();
    let tokens = i64::try_from(body.len().div_ceil(3)).unwrap() + 1024;
    let call = |key: &str, framing: &str, content: &str| {
        let head =
            format!("POST / HTTP/1.1\r\nHost: test\r\nX-Api-Key: {key}\r\n{framing}\r\n\r\n");
        assert_eq!(looked.tidegate.connect().ask(head + content).status, 200);
    };
    let length = format!("Content-Length: {}", body.len());
    call("k-acme", &length, &body);
    let chunks: String = (body.as_bytes().chunks(10_000))
        .map(|chunk| {
            format!(
                "{:x}\r\n{}\r\n",
                chunk.len(),
                str::from_utf8(chunk).unwrap()
            )
        })
        .collect();
    call(
        "k-globex",
        "Transfer-Encoding: chunked",
        &(chunks + "0\r\n\r\n"),
    );
    let mut seen = Default::default();
    eventually("both cost the same", || {
        seen = by_client(&looked.json("/api/v1/usage?by=client"), "tokens");
        seen == expected(&[("acme", tokens), ("globex", tokens)])
    });
    // The limit has the rest back.
    eventually("there is a rest", || {
        let used = looked.json("/api/v1/limits/tokens/keys/api_key=k-globex");
        used["windows"][0]["used"].as_i64() == Some(tokens)
    });
}

#[test]
fn a_client_whose_limits_are_lifted_is_billed() {
    let upstream = Upstream::ok();
    let looked = with_keys(&format!(
        "upstream = \"{}\"\n[ledger]\n[api_key]\nknown = \"keys.txt\"\n\
         [tier]\ndefault = \"free\"\n\
         [limit.default]\nrate = \"9/h\"\nkey = \"api_key\"\nexempt = [\"k-initech\"]\n\
         tiers = {{ free = \"unlimited\" }}\n",
        upstream.url()
    ));
    for key in ["k-acme", "k-globex", "k-initech", "k-acme"] {
        assert_eq!(ask(&looked, "/", key).status, 200);
    }
    wait_for(&looked, &[("acme", 2), ("globex", 1)]);
}

#[test]
fn a_correction_makes_no_line_of_its_own() {
    let redis = RedisServer::start();
    let send = |number: u64, max_clients: u64, lines: &[&str]| -> Vec<i64> {
        let mut command = redis::cmd("EVAL");
        command.arg(SCRIPT).arg(1).arg("lines").arg("process");
        command
            .arg(number)
            .arg(4_102_444_800_000_u64)
            .arg(max_clients)
            .arg(0);
        command.arg(lines).query(&mut redis.connect()).unwrap()
    };
    let bob = [":bob", "1", "5000", "0"];
    assert_eq!(
        send(1, 1, &[&[":ann", "1", "0", "0"], &bob[..]].concat()),
        [1, 1, 5000, 0, 0]
    );
    // An operator raises `max_clients`; then the answer to bob ends.
    assert_eq!(
        send(2, 9, &[":bob", "0", "-4985", "0"]),
        [1, 0, -4985, 0, 0]
    );
    assert_eq!(
        send(2, 9, &[":bob", "0", "-4985", "0"]),
        [1, 0, 0, 0, 0],
        "counts once"
    );
    assert_eq!(redis.run("HEXISTS lines t:bob"), redis::Value::Int(0));
    assert_eq!(redis.run("HINCRBY lines t+ 0"), redis::Value::Int(15));
    assert_eq!(send(3, 9, &bob), [2, 0, 0, 0, 0]);
}

#[test]
fn a_batch_that_cannot_be_written_counts_nothing() {
    let redis = RedisServer::start();
    let looked = start(&Upstream::ok(), &url(&redis), "");
    redis.run("ACL SETUSER default -hincrby");
    assert_eq!(ask(&looked, "/", "k-acme").status, 200);
    looked.tidegate.wait_for_line("the store takes no usage");
    redis.run("ACL SETUSER default +hincrby");
    looked.tidegate.wait_for_line("the store takes usage again");
    wait_for(&looked, &[("acme", 1)]);
}
