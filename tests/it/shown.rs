//! What logs and lists show of a client can be pasted wherever a client is named: the first
//! characters of its key's hash, and the id of a request that was denied.

use std::process::Output;

use serde_json::Value;

use crate::admin::Looked;
use crate::house::Upstream;
use crate::look::command;
use crate::probe::eventually;
use crate::support::RedisServer;

const USER: &str = "X-User: a-key-of-somebody\r\n";
/// Hashes that begin alike, and that no client has.
const ALIKE: [&str; 2] = ["AQEBAQEBAQEBAQEBAQEBAQ", "AQEBAQEBAQEBAQEBAQEBAw"];

/// What a denial left in the access log: the key and the request's id.
struct Shown {
    key: String,
    request: String,
}

fn config(upstream: &Upstream, store: &str) -> String {
    format!(
        "upstream = \"{}\"\n[store]\n{store}\n[log]\naccess = \"stdout\"\nformat = \"json\"\n\
         [limit.login]\nrate = \"2/h\"\nkey = \"header:x-user or ip\"\n\
         [[route]]\npath = \"/*\"\nlimits = [\"login\"]\n",
        upstream.url()
    )
}

/// Asks until it is denied.
fn denial(looked: &Looked) -> Shown {
    let answers: Vec<_> = (0..3)
        .map(|_| looked.tidegate.get_with("/", USER))
        .collect();
    assert_eq!(answers[2].status, 429, "{answers:?}");
    let line = || {
        let log = looked.tidegate.stdout();
        let line = log.lines().find(|line| line.contains("\"denied\""));
        line.map(|line| serde_json::from_str::<Value>(line).unwrap())
    };
    eventually("the log has it", || line().is_some());
    let line = line().unwrap();
    let shown = Shown {
        key: line["denied_by"][0]["key"].as_str().unwrap().to_owned(),
        request: line["request_id"].as_str().unwrap().to_owned(),
    };
    assert_eq!(shown.key.len(), 8);
    // The client has read the same id.
    let problem: Value = serde_json::from_str(&answers[2].text()).unwrap();
    assert_eq!(problem["request_id"], *shown.request);
    shown
}

fn run(looked: &Looked, words: &[&str]) -> Output {
    command(looked.tidegate.directory.path(), words)
}

fn done(looked: &Looked, words: &[&str]) -> String {
    let output = run(looked, words);
    assert!(output.status.success(), "{words:?}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

fn refused(looked: &Looked, words: &[&str]) -> String {
    let output = run(looked, words);
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{words:?}: {said}");
    said
}

fn everything_shown_can_be_pasted(store: &str) {
    let upstream = Upstream::ok();
    let looked = Looked::start_on_a_known_port(&config(&upstream, store));
    let shown = denial(&looked);
    let of_user = |name: &str| -> Value {
        let told = done(&looked, &["limits", "show", "login", name, "--json"]);
        serde_json::from_str(&told).unwrap()
    };
    let tag = of_user("header:x-user=a-key-of-somebody")["tag"].clone();
    let whole = tag.as_str().unwrap();
    assert!(whole.starts_with(&shown.key));
    let (short, request) = (
        format!("tag={}", shown.key),
        format!("request={}", shown.request),
    );
    for name in [&*shown.key, &short, whole, &shown.request, &request] {
        assert_eq!(of_user(name)["tag"], tag, "{name}");
        let told = looked.json(&format!("/api/v1/limits/login/keys/{name}"));
        assert_eq!(
            (&told["id"], &told["windows"][0]["used"]),
            (&tag, &2.into()),
            "{name}"
        );
    }
    // What is done to it, it feels.
    done(&looked, &["limits", "override", "login", &shown.key, "9/h"]);
    let status = || looked.tidegate.get_with("/", USER).status;
    looked.wait_until("it has more", |_| status() == 200);
    done(
        &looked,
        &["limits", "override", "login", &shown.request, "--remove"],
    );
    done(&looked, &["limits", "reset", "login", &shown.key]);
    looked.wait_until("it begins anew", |_| status() == 200);
    done(&looked, &["limits", "block", &shown.key]);
    looked.wait_until("it is kept out", |_| status() == 429);
    done(&looked, &["limits", "block", &shown.key, "--remove"]);
    // Denials are found by either, and not by a hash that goes on in another way.
    let other = if whole[8..].starts_with('x') {
        'y'
    } else {
        'x'
    };
    for query in [
        format!("request_id={}", shown.request),
        format!("key={}", shown.key),
    ] {
        let told = looked.json(&format!("/api/v1/denials?{query}"));
        assert_eq!(told["denials"][0]["id"], tag, "{told}");
        assert_eq!(
            looked.json(&format!("/api/v1/denials?{query}{other}"))["denials"],
            serde_json::json!([])
        );
    }
    let address = looked.address.to_string();
    let tap = |id: &str| ["tap", "--admin", &address, "--request", id].map(str::to_owned);
    let words = tap(&shown.request);
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    assert!(done(&looked, &words).contains(&format!("key {}", shown.key)));
    let words = tap("no-such-request");
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    assert!(refused(&looked, &words).contains("the access log has every one"));
}

/// Two clients whose hashes begin alike, and one that nobody knows.
fn what_is_not_clear_is_asked_back(store: &str) {
    let upstream = Upstream::ok();
    let looked = Looked::start_on_a_known_port(&config(&upstream, store));
    for tag in ALIKE {
        let tag = format!("tag={tag}");
        done(&looked, &["limits", "override", "login", &tag, "5/h"]);
    }
    for name in ["AQEBAQEB", "tag=AQEB"] {
        for words in [
            &["limits", "show", "login", name][..],
            &["limits", "reset", "login", name],
            &["limits", "override", "login", name, "7/h"],
            &["limits", "block", name],
        ] {
            let said = refused(&looked, words);
            assert!(
                said.contains("is the beginning of 2 clients' hashes"),
                "{said}"
            );
            assert!(
                ALIKE
                    .iter()
                    .all(|tag| said.contains(&format!("`tag={tag}`"))),
                "{said}"
            );
        }
    }
    let answer = looked.get("/api/v1/limits/login/keys/AQEBAQEB");
    assert_eq!(answer.status, 409, "{}", answer.text());
    assert!(ALIKE.iter().all(|tag| answer.text().contains(tag)));
    let said = refused(&looked, &["limits", "show", "login", "tag=BBBBBBBB"]);
    assert!(
        said.contains("no client is known with a hash like `BBBBBBBB`"),
        "{said}"
    );
    assert!(said.contains("write all 22 characters"), "{said}");
    assert_eq!(
        looked.get("/api/v1/limits/login/keys/tag=BBBBBBBB").status,
        404
    );
    let one = done(&looked, &["limits", "show", "login", ALIKE[0]]);
    assert!(one.contains("5/h"), "{one}");
}

#[test]
fn everything_shown_can_be_pasted_with_the_embedded_store() {
    everything_shown_can_be_pasted("url = \"memory:\"");
    what_is_not_clear_is_asked_back("url = \"memory:\"");
}

#[test]
fn everything_shown_can_be_pasted_with_redis() {
    let redis = RedisServer::start();
    let store = format!(
        "url = \"redis://127.0.0.1:{}\"\ntimeout = \"5s\"",
        redis.port()
    );
    everything_shown_can_be_pasted(&store);
    what_is_not_clear_is_asked_back(&store);
}

#[test]
fn a_client_among_many_is_found_by_what_the_log_shows() {
    const CLIENTS: usize = 2000;
    let upstream = Upstream::ok();
    let redis = RedisServer::start();
    let url = format!(
        "url = \"redis://127.0.0.1:{}\"\ntimeout = \"5s\"",
        redis.port()
    );
    for store in ["url = \"memory:\"", &url] {
        let looked = Looked::start_on_a_known_port(&config(&upstream, store));
        let shown = denial(&looked);
        // Busier than it, so that no list of the busiest has it.
        let mut client = looked.tidegate.connect();
        for number in 0..CLIENTS {
            let ask = format!("GET / HTTP/1.1\r\nHost: test\r\nX-User: k{number}\r\n\r\n");
            assert_eq!(client.ask(&ask).status, 200);
        }
        let told = done(&looked, &["limits", "show", "login", &shown.key, "--json"]);
        let told: Value = serde_json::from_str(&told).unwrap();
        assert!(
            told["tag"].as_str().unwrap().starts_with(&shown.key),
            "{told}"
        );
        assert!(told.to_string().contains("\"used\":2"), "{told}");
    }
}
