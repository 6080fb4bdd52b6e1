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
    looked.wait_until("it begins anew", |looked| status(looked) == 200);
    // Another rate, for an hour, and then its own again.
    let more = json!({ "id": id, "rate": "1000/h", "for_seconds": 3600, "reason": "a good one" });
    assert_eq!(order("override", &more).status, 200);
    looked.wait_until("it has more", |looked| {
        (0..4).all(|_| status(looked) == 200)
    });
    let listed = looked.json("/api/v1/overrides");
    assert_eq!(listed["overrides"][0]["rates"], "1000/h");
    assert_eq!(listed["overrides"][0]["reason"], "a good one");
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
