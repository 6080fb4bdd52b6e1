//! What is told of single clients: who asks most, how many use how much, and each denial as it is
//! made.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use serde_json::Value;

use super::{Looked, limited};
use crate::house::{Client, PATIENCE, Upstream};

/// A request whose client has this address.
fn ask(looked: &Looked, client: &str) -> u16 {
    let line = format!("X-Forwarded-For: {client}\r\n");
    looked.tidegate.get_with("/login?secret=1", &line).status
}

fn start() -> Looked {
    let trusted = "trusted_proxies = [\"127.0.0.1\"]\n";
    Looked::start(&format!("{trusted}{}", limited(&Upstream::ok())))
}

#[test]
fn the_busiest_clients_and_the_use_of_a_limit_are_told() {
    let looked = start();
    for number in 0..20 {
        ask(&looked, &format!("10.0.{number}.1"));
    }
    for _ in 0..9 {
        ask(&looked, "10.0.0.1");
    }
    let clients = looked.json("/api/v1/limits/login/clients?top=3");
    let list = clients["clients"].as_array().unwrap();
    assert_eq!((list.len(), &clients["requests"]), (3, &29.into()));
    assert_eq!(
        (&list[0]["requests"], &list[0]["denied"]),
        (&10.into(), &8.into())
    );
    assert_eq!(list[0]["id"].as_str().unwrap().len(), 22);
    assert_eq!(list[0]["key"], Value::Null);
    let login = looked.json("/api/v1/limits")["limits"][0].clone();
    let used = &login["use"];
    assert_eq!((&used["clients"], &used["q50"]), (&20.into(), &19.into()));
    assert_eq!((&used["q100"], &used["denied"]), (&1.into(), &1.into()));
    assert_eq!(login["headroom"], 0.0);
    // The one on trial has its crowd too.
    let tried = looked.json("/api/v1/limits/tried/clients");
    assert_eq!(tried["clients"][0]["denied"], 9);
    assert_eq!(looked.get("/api/v1/limits/other/clients").status, 404);
    assert_eq!(looked.get("/api/v1/limits/login/clients?top=0").status, 400);
    // No address is told, nor what stands in a query.
    assert!(!clients.to_string().contains("10.0."));
}

#[test]
fn denials_are_told_as_they_are_made() {
    let looked = start();
    let mut following = Client::to(looked.address);
    let path = "/api/v1/denials/stream?limit=login";
    following.send(format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n"));
    let head = following.head().unwrap();
    assert!(head.contains("text/event-stream"), "{head}");
    let statuses: Vec<u16> = (0..3).map(|_| ask(&looked, "203.0.113.7")).collect();
    assert_eq!(statuses, [200, 200, 429]);
    let mut text = String::new();
    while !text.contains("data: {") || !text.ends_with("\n\n\r\n") {
        text.push_str(&following.some());
    }
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix("data: "))
        .unwrap();
    let denial: Value = serde_json::from_str(line).unwrap();
    assert_eq!(
        (&denial["limit"], &denial["route"]),
        (&"login".into(), &"login".into())
    );
    assert_eq!(
        (&denial["method"], &denial["path"]),
        (&"GET".into(), &"/login".into())
    );
    assert_eq!(denial["client"], "203.0.113.0/24");
    assert!(denial["retry_after"].as_u64().unwrap() > 3000);
    // Those of the limit on trial are told too, once their answers have ended.
    let tried = |looked: &Looked| {
        let listed = looked.json("/api/v1/denials")["denials"].clone();
        let (tried, real): (Vec<Value>, Vec<Value>) =
            (listed.as_array().unwrap().iter().cloned()).partition(|one| one["shadow"] == true);
        assert_eq!(real, std::slice::from_ref(&denial));
        tried
    };
    looked.wait_until("both are told", |looked| tried(looked).len() == 2);
    let tried = &tried(&looked)[0];
    assert_eq!(
        (&tried["limit"], &tried["path"]),
        (&"tried".into(), &"/login".into())
    );
    assert_eq!(
        (&tried["id"], &tried["client"]),
        (&denial["id"], &denial["client"])
    );
}

#[test]
fn a_flood_of_denials_is_told_in_part_and_counted() {
    let looked = start();
    let mut following = Client::to(looked.address);
    following.send("GET /api/v1/denials/stream HTTP/1.1\r\nHost: localhost\r\n\r\n");
    following.head().unwrap();
    let mut client = looked.tidegate.connect();
    let request = "GET /login HTTP/1.1\r\nHost: test\r\n\r\n";
    // More at once than are kept until somebody looks, for as long as that takes.
    let is_told = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_told.load(Ordering::Relaxed) {
                client.send(request.repeat(500));
                (0..500).for_each(|_| drop(client.answer()));
            }
        });
        let until = Instant::now() + PATIENCE;
        let mut text = String::new();
        while !text.contains("event: dropped") && Instant::now() < until {
            text.push_str(&following.some());
        }
        is_told.store(true, Ordering::Relaxed);
        assert!(text.contains("event: dropped"), "{text}");
    });
    let listed = looked.json("/api/v1/denials");
    assert!(listed["denials"].as_array().unwrap().len() <= 200);
}

#[test]
fn a_reload_is_asked_for_with_the_token_alone() {
    let looked = start();
    let post = |lines: &str, body: &str| looked.post_with("/api/v1/reload", lines, body);
    let json = "Content-Type: application/json\r\n";
    assert_eq!(post(json, "{}").status, 401);
    let bearer = format!("Authorization: Bearer {}\r\n", looked.token());
    assert_eq!(post(&bearer, "{}").status, 415);
    let both = format!("{json}{bearer}");
    assert_eq!(post(&both, "[]").status, 400);
    assert_eq!(post(&both, "{").status, 400);
    assert_eq!(post(&both, &"1".repeat(100_000)).status, 413);
    let done = post(&both, "{}");
    assert_eq!(done.status, 200, "{}", done.text());
    let done: Value = serde_json::from_slice(&done.body).unwrap();
    assert_eq!(
        (&done["done"], &done["changes"]),
        (&true.into(), &Value::Array(Vec::new()))
    );
    std::fs::write(
        looked.tidegate.directory.path().join("proxy.toml"),
        "listen = 5",
    )
    .unwrap();
    let refused = post(&both, "{}");
    assert_eq!(refused.status, 422);
    assert!(refused.text().contains("T103"), "{}", refused.text());
}
