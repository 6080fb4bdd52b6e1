//! What operators do to single clients: a fresh start, another rate, a closed door, in the embedded
//! store and in Redis; and what would become of a request.

use serde_json::{Value, json};

use super::{Looked, limited};
use crate::house::Upstream;
use crate::support::RedisServer;

/// The id of the client that asked last.
fn id(looked: &Looked) -> Value {
    looked.json("/api/v1/limits/login/clients")["clients"][0]["id"].clone()
}

fn status(looked: &Looked) -> u16 {
    looked.tidegate.get("/login").status
}

/// All of it, in one store.
fn orders_reach_a_client(store: &str) {
    let upstream = Upstream::ok();
    let looked = Looked::start(&format!("{}\n[store]\n{store}\n", limited(&upstream)));
    let statuses: Vec<u16> = (0..3).map(|_| status(&looked)).collect();
    assert_eq!(statuses, [200, 200, 429]);
    let id = id(&looked);
    let path = |what: &str| format!("/api/v1/limits/login/{what}");
    let order = |what: &str, order: &Value| looked.post(&path(what), order);
    let done = order("reset", &json!({ "id": id }));
    assert_eq!(done.status, 200, "{}", done.text());
    looked.tidegate.wait_for_line("overrides: reset");
    looked.wait_until("it begins anew", |looked| status(looked) == 200);
    // Another rate, for an hour, and then its own again. The log says who did it.
    let more = json!({ "id": id, "rate": "1000/h", "for_seconds": 3600, "reason": "a good one" });
    assert_eq!(order("override", &more).status, 200);
    looked.wait_until("it has more", |looked| {
        (0..4).all(|_| status(looked) == 200)
    });
    let listed = looked.json("/api/v1/overrides");
    assert_eq!(listed["overrides"][0]["rates"], "1000/h");
    assert_eq!(listed["overrides"][0]["reason"], "a good one");
    let line = looked.tidegate.wait_for_line("overrides: override");
    for part in [
        "\"limit\":\"login\"",
        "\"rate\":\"1000/h\"",
        "\"by\":\"admin\"",
    ] {
        assert!(line.contains(part), "{part} is missing from {line}");
    }
    assert_eq!(
        order("override", &json!({ "id": id, "remove": true })).status,
        200
    );
    looked.wait_until("it has its own again", |looked| status(looked) == 429);
    assert_eq!(
        order("override", &json!({ "id": id, "remove": true })).status,
        404
    );
    // Kept out, whatever it asks for.
    assert_eq!(
        order("block", &json!({ "id": id, "for_seconds": 60 })).status,
        200
    );
    looked.wait_until("it is kept out", |looked| {
        looked.tidegate.get("/login").text().contains("blocked")
    });
    assert_eq!(
        order("block", &json!({ "id": id, "remove": true })).status,
        200
    );
    assert_eq!(order("reset", &json!({ "id": id })).status, 200);
    looked.wait_until("it is let in", |looked| status(looked) == 200);
    // What would become of the next one, by the counts of now.
    let asked = json!({ "url": "/login", "ip": "127.0.0.1", "live": true });
    let told = looked.post("/api/v1/explain", &asked);
    assert_eq!(told.status, 200, "{}", told.text());
    assert!(told.text().contains("\"login\""), "{}", told.text());
    for nonsense in [
        json!({}),
        json!({ "id": "short" }),
        json!({ "id": id, "rate": "5" }),
        json!({ "id": id, "rate": "5/min", "for_seconds": -1 }),
        json!({ "id": id, "rate": "5/min", "reason": 5 }),
        json!({ "id": id, "rate": "5/min", "for_second": 60 }),
    ] {
        assert_eq!(order("override", &nonsense).status, 400, "{nonsense}");
    }
    assert_eq!(
        looked
            .post("/api/v1/limits/other/reset", &json!({ "id": id }))
            .status,
        404
    );
    assert_eq!(
        looked.post("/api/v1/explain", &json!({ "url": 5 })).status,
        400
    );
}

/// The same by the key as people write it; and how the client stands.
fn a_key_is_named_as_people_write_it(store: &str) {
    let upstream = Upstream::ok();
    let looked = Looked::start(&format!("{}\n[store]\n{store}\n", limited(&upstream)));
    let statuses: Vec<u16> = (0..3).map(|_| status(&looked)).collect();
    assert_eq!(statuses, [200, 200, 429]);
    let id = id(&looked);
    let show = |key: &str| looked.json(&format!("/api/v1/limits/login/keys/{key}"));
    let shown = show("127.0.0.1");
    assert_eq!((&shown["id"], &shown["key"]), (&id, &json!("ip")));
    let window = &shown["windows"][0];
    assert_eq!(
        (&window["rate"], &window["used"]),
        (&json!("2/h"), &json!(2))
    );
    assert_eq!(
        (&window["remaining"], &window["retry"]),
        (&json!(0), &json!("after"))
    );
    assert!(
        window["retry_seconds"].as_f64().unwrap() > 3000.0,
        "{shown}"
    );
    assert_eq!(
        (&shown["override"], &shown["block"]),
        (&json!(null), &json!(null))
    );
    let short = &id.as_str().unwrap()[..8];
    for same in [
        "ip=127.0.0.1".to_owned(),
        "ip%3D127.0.0.1".to_owned(),
        format!("tag={short}"),
        format!("{short}?by=id"),
        format!("{}?by=id", id.as_str().unwrap()),
    ] {
        assert_eq!(show(&same)["id"], id, "{same}");
    }
    let order = |what: &str, order: &Value| looked.post(&format!("/api/v1/{what}"), order);
    let done = order("limits/login/reset", &json!({ "key": "127.0.0.1" }));
    assert_eq!((done.status, done.text().contains("\"ip\"")), (200, true));
    looked.wait_until("it begins anew", |looked| status(looked) == 200);
    let more = json!({ "key": ["ip=127.0.0.1"], "rate": "1000/h", "by": "ann@desk" });
    assert_eq!(order("limits/login/override", &more).status, 200);
    let shown = show("127.0.0.1");
    assert_eq!(shown["override"]["by"], "ann@desk", "{shown}");
    assert_eq!(shown["windows"][0]["of"], "override");
    // Of no limit in particular.
    assert_eq!(order("block", &json!({ "key": "127.0.0.1" })).status, 200);
    looked.wait_until("it is kept out", |looked| status(looked) == 429);
    assert_eq!(show("127.0.0.1")["block"]["what"], "block");
    assert_eq!(
        order("block", &json!({ "key": "127.0.0.1", "remove": true })).status,
        200
    );
    looked.wait_until("it is let in", |looked| status(looked) == 200);
    let changes = looked.json("/api/v1/changes");
    let whats: Vec<&str> = changes["changes"]
        .as_array()
        .unwrap()
        .iter()
        .map(|one| one["what"].as_str().unwrap())
        .collect();
    assert_eq!(whats, ["block removed", "block", "override", "reset"]);
    for nonsense in [
        json!({ "id": id, "key": "127.0.0.1" }),
        json!({ "key": [] }),
        json!({ "key": 5 }),
        json!({ "key": "no address" }),
        json!({ "key": ["127.0.0.1", "more"] }),
        json!({ "key": "127.0.0.1", "by": "" }),
    ] {
        assert_eq!(
            order("limits/login/reset", &nonsense).status,
            400,
            "{nonsense}"
        );
    }
    let get = |path: &str| looked.get(&format!("/api/v1/limits/{path}")).status;
    assert_eq!(get("other/keys/127.0.0.1"), 404);
    assert_eq!(get("login/keys/no-address"), 400);
    assert_eq!(get("login/keys/"), 400);
    assert_eq!(get("login/keys/abc?by=id"), 400);
    assert_eq!(get("login/keys/abcdefgh?by=id"), 404);
}

#[test]
fn keys_of_the_embedded_store_are_named_as_people_write_them() {
    a_key_is_named_as_people_write_it("url = \"memory:\"");
}

#[test]
fn keys_in_redis_are_named_as_people_write_them() {
    let redis = RedisServer::start();
    let url = format!("url = \"redis://127.0.0.1:{}\"", redis.port());
    a_key_is_named_as_people_write_it(&format!("{url}\ntimeout = \"2s\""));
}

#[test]
fn orders_reach_a_client_of_the_embedded_store() {
    orders_reach_a_client("url = \"memory:\"");
}

#[test]
fn orders_reach_a_client_in_redis() {
    let redis = RedisServer::start();
    let url = format!("url = \"redis://127.0.0.1:{}\"", redis.port());
    orders_reach_a_client(&format!("{url}\ntimeout = \"2s\""));
}

#[test]
fn what_a_request_does_not_take_is_refused() {
    let upstream = Upstream::ok();
    let looked = Looked::start(&limited(&upstream));
    for path in [
        "/api/v1/denials?limt=login",
        "/api/v1/limits/login/clients?to=5",
        "/api/v1/status?limit=login",
    ] {
        let answer = looked.get(path);
        assert_eq!(answer.status, 400, "{path}");
        assert!(
            answer.text().contains("is no parameter"),
            "{}",
            answer.text()
        );
    }
    let by = looked.get("/api/v1/limits/login/keys/192.0.2.7?by=hash");
    assert_eq!(by.status, 400, "{}", by.text());
    assert_eq!(looked.get("/metrics?any=thing").status, 200);
    let long = "é".repeat(150);
    for (path, body, status) in [
        ("explain", json!({ "url": "/login", "header": [] }), 400),
        ("explain", json!({ "url": "/login", "headers": [] }), 200),
        (
            "limits/login/override",
            json!({ "key": "192.0.2.7", "rate": "9/h", "remove": true }),
            400,
        ),
        ("block", json!({ "key": "192.0.2.7", "reason": long }), 200),
        (
            "block",
            json!({ "key": "192.0.2.7", "for_seconds": 5, "remove": true }),
            400,
        ),
        (
            "block",
            json!({ "key": "192.0.2.7", "reason": long.repeat(2) }),
            400,
        ),
    ] {
        let answer = looked.post(&format!("/api/v1/{path}"), &body);
        assert_eq!(answer.status, status, "{path} {body}: {}", answer.text());
    }
}
