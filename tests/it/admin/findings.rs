//! What is probably wrong though nothing fails: in the log, the metrics and the API.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};

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
    let redis = RedisServer::start_with(&["--maxmemory-policy", "volatile-ttl"]);
    let upstream = Upstream::ok();
    let url = format!("url = \"redis://127.0.0.1:{}\"", redis.port());
    let looked = Looked::start(&format!("{}\n[store]\n{url}\n", limited(&upstream)));
    looked.wait_until("it is found", |looked| !findings(looked).is_empty());
    let found = findings(&looked);
    assert_eq!((found.len(), &found[0]["id"]), (1, &"store-evicts".into()));
    let took = &looked.json("/api/v1/status")["store"]["round_trip_seconds"];
    assert!(took.as_f64().unwrap() > 0.0, "{took}");
}

#[test]
fn one_client_with_nearly_all_requests_is_found() {
    let upstream = Upstream::ok();
    let looked = Looked::start(&limited(&upstream));
    let mut client = looked.tidegate.connect();
    for _ in 0..1100 {
        client.ask("GET /login HTTP/1.1\r\nHost: a.test\r\n\r\n");
    }
    looked.wait_until("it is found", |looked| metric(looked, "one-client") == "1");
    let found = findings(&looked);
    let ids: Vec<_> = found.iter().map(|one| &one["id"]).collect();
    assert_eq!(ids, ["one-client"]);
    let line = looked.tidegate.wait_for_line("trusted_proxies");
    assert!(line.contains("login"), "{line}");
}

#[test]
fn a_replica_as_store_is_found() {
    let master = RedisServer::start();
    let port = master.port().to_string();
    let replica = RedisServer::start_with(&["--replicaof", "127.0.0.1", &port]);
    let upstream = Upstream::ok();
    let url = format!("url = \"redis://127.0.0.1:{}\"", replica.port());
    let looked = Looked::start(&format!("{}\n[store]\n{url}\n", limited(&upstream)));
    looked.wait_until("it is found", |looked| {
        metric(looked, "store-replica") == "1"
    });
    let found = findings(&looked);
    assert!(
        found.iter().any(|one| one["id"] == "store-replica"),
        "{found:?}"
    );
}

/// A way to a Redis on which its clock seems to be a hundred seconds ahead: an answer to `TIME` is
/// two texts, the first of which has ten digits. Returns its port.
fn ahead(redis: u16) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for client in listener.incoming().map_while(Result::ok) {
            let server = TcpStream::connect(("127.0.0.1", redis)).unwrap();
            let (mut up, mut down) = (server.try_clone().unwrap(), client.try_clone().unwrap());
            let (mut asks, mut answers) = (client, server);
            std::thread::spawn(move || {
                let _ = std::io::copy(&mut asks, &mut up);
                let _ = up.shutdown(Shutdown::Both);
            });
            std::thread::spawn(move || {
                let mut room = [0; 64 << 10];
                while let Ok(read @ 1..) = answers.read(&mut room) {
                    let answer = moved(&room[..read]);
                    if down.write_all(&answer).is_err() {
                        break;
                    }
                }
                let _ = down.shutdown(Shutdown::Both);
            });
        }
    });
    port
}

fn moved(answer: &[u8]) -> Vec<u8> {
    const START: &[u8] = b"*2\r\n$10\r\n";
    let mut answer = answer.to_vec();
    let found = answer.windows(START.len()).position(|part| part == START);
    let digits = found.and_then(|at| answer.get_mut(at + START.len()..at + START.len() + 10));
    if let Some(digits) = digits {
        let seconds: u64 = str::from_utf8(digits).unwrap().parse().unwrap();
        digits.copy_from_slice((seconds + 100).to_string().as_bytes());
    }
    answer
}

#[test]
fn a_store_whose_clock_is_off_is_found() {
    let redis = RedisServer::start();
    let upstream = Upstream::ok();
    let url = format!("url = \"redis://127.0.0.1:{}\"", ahead(redis.port()));
    let looked = Looked::start(&format!("{}\n[store]\n{url}\n", limited(&upstream)));
    looked.wait_until("it is found", |looked| metric(looked, "store-clock") == "1");
    let found = findings(&looked);
    let clock = found.iter().find(|one| one["id"] == "store-clock").unwrap();
    assert!(clock.to_string().contains("100"), "{clock}");
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
