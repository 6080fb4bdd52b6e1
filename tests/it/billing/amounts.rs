//! What is billed where the size of a call or the rates of a client are not the usual ones.

use super::{ask, start, url, wait_for};
use crate::house::Upstream;
use crate::support::RedisServer;

const SCRIPT: &str = include_str!("../../../lua/ledger.lua");

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
