//! What is probably wrong though nothing fails: in the log, the metrics and the API.

use std::io::Write;

use serde_json::Value;

use super::{Looked, limited};
use crate::house::{Client, Upstream};
use crate::support::RedisServer;

fn findings(looked: &Looked) -> Vec<Value> {
    let status = looked.json("/api/v1/status");
    status["findings"].as_array().unwrap().clone()
}

fn metric(looked: &Looked, id: &str) -> String {
    let text = looked.get("/metrics").text();
    let name = format!("tidegate_findings{{id=\"{id}\"}} ");
    let mut lines = text.lines();
    lines
        .find_map(|line| line.strip_prefix(&name))
        .unwrap()
        .to_owned()
}

/// One request of a proxy that is not known.
fn forwarded(looked: &Looked, line: &str) {
    looked.tidegate.get_with("/login", line);
}

#[test]
fn a_proxy_that_is_not_known_is_found() {
    let upstream = Upstream::ok();
    let looked = Looked::start(&limited(&upstream));
    looked.tidegate.get("/login");
    assert_eq!(metric(&looked, "untrusted-forwarded"), "0");
    forwarded(&looked, "Forwarded: for=203.0.113.7\r\n");
    looked.wait_until("it is found", |looked| !findings(looked).is_empty());
    let found = &findings(&looked)[0];
    assert_eq!(
        (&found["id"], &found["severity"], &found["count"]),
        (&"untrusted-forwarded".into(), &"warning".into(), &1.into())
    );
    assert_eq!(
        found["silence"],
        "[log] silence = [\"untrusted-forwarded\"]"
    );
    assert_eq!(metric(&looked, "untrusted-forwarded"), "1");
    assert_eq!(metric(&looked, "one-client"), "0");
    let line = looked.tidegate.wait_for_line("trusted_proxies");
    assert!(line.contains("WARN"), "{line}");
}

#[test]
fn what_is_silenced_is_not_told() {
    let upstream = Upstream::ok();
    let silence = "[log]\nsilence = [\"untrusted-forwarded\"]\n";
    let looked = Looked::start(&format!("{}{silence}", limited(&upstream)));
    forwarded(&looked, "X-Forwarded-For: 203.0.113.7\r\n");
    let looks = |looked: &Looked| looked.json("/api/v1/traffic")["second"].to_string();
    let before = looks(&looked);
    looked.wait_until("it has looked again", |looked| looks(looked) != before);
    assert_eq!(findings(&looked), [] as [Value; 0]);
    assert_eq!(metric(&looked, "untrusted-forwarded"), "0");
}

#[test]
fn a_store_that_forgets_is_found_and_its_round_trip_told() {
    let redis = RedisServer::start_with(&["--maxmemory-policy", "allkeys-lru"]);
    let upstream = Upstream::ok();
    let url = format!("url = \"redis://127.0.0.1:{}\"", redis.port());
    let looked = Looked::start(&format!("{}\n[store]\n{url}\n", limited(&upstream)));
    looked.wait_until("it is found", |looked| !findings(looked).is_empty());
    let found = findings(&looked);
    assert_eq!((found.len(), &found[0]["id"]), (1, &"store-evicts".into()));
    let took = &looked.json("/api/v1/status")["store"]["round_trip_seconds"];
    assert!(took.as_f64().unwrap() > 0.0, "{took}");
}

/// Asks over a new connection, and keeps it; nothing where it is closed unanswered.
fn connect(looked: &Looked) -> Option<Client> {
    let mut client = Client::to(looked.address);
    let asked = "GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n";
    client.stream.write_all(asked.as_bytes()).ok()?;
    let answer = client.head()?;
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    Some(client)
}

#[test]
fn so_many_may_connect_and_no_more() {
    let upstream = Upstream::ok();
    let looked = Looked::start(&limited(&upstream));
    let mut all: Vec<Client> = (0..70).map_while(|_| connect(&looked)).collect();
    // Whoever was there before may still have been leaving.
    assert!((60..=64).contains(&all.len()), "{}", all.len());
    all.truncate(32);
    looked.wait_until("there is room again", |looked| connect(looked).is_some());
}
