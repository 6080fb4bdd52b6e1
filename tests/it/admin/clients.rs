//! The page of one client, the search for clients, and the patches that promote a limit.

use std::io::Write;
use std::process::{Command, Stdio};

use serde_json::{Value, json};

use super::Looked;
use crate::house::{Client, Upstream};
use crate::support::RedisServer;

fn config(upstream: &Upstream, store: &str) -> String {
    format!(
        r#"
        upstream = "{}"
        [limit.user]
        rate = "2/h"
        key = "header:x-user"
        [limit.address]
        rate = "100/h"
        [limit.tried]
        rate = "50/h"
        candidate = "1/h"
        shadow = true
        key = "header:x-user"
        [[route]]
        name = "all"
        path = "/*"
        limits = ["user", "address", "tried"]
        [store]
        {store}
        "#,
        upstream.url()
    )
}

fn ask(looked: &Looked, user: &str) -> u16 {
    let lines = format!("Host: a\r\nX-User: {user}\r\n");
    let request = format!("GET /page HTTP/1.1\r\n{lines}\r\n");
    Client::to(looked.tidegate.address).ask(request).status
}

fn clients(looked: &Looked, key: &str) -> Vec<Value> {
    let found = looked.json(&format!("/api/v1/clients/{key}"));
    found["clients"].as_array().unwrap().clone()
}

fn names(client: &Value) -> Vec<&str> {
    let limits = client["limits"].as_array().unwrap();
    limits
        .iter()
        .map(|one| one["limit"].as_str().unwrap())
        .collect()
}

fn a_client_is_found_with_its_timeline(store: &str) {
    let upstream = Upstream::ok();
    let looked = Looked::start(&config(&upstream, store));
    for status in [200, 200, 429] {
        assert_eq!(ask(&looked, "ann"), status);
    }
    let found = clients(&looked, "ann");
    assert_eq!(found.len(), 1, "{found:?}");
    let ann = &found[0];
    assert_eq!(names(ann), ["user", "tried"]);
    assert_eq!(
        (&ann["key"], &ann["block"]),
        (&json!("header:x-user"), &json!(null))
    );
    let user = &ann["limits"][0];
    assert_eq!(
        (&user["rates"], &user["windows"][0]["used"]),
        (&json!(["2/h"]), &json!(2))
    );
    assert_eq!(
        (&user["mode"], &ann["limits"][1]["mode"]),
        (&json!("enforced"), &json!("shadow"))
    );
    let timeline = user["timeline"].as_array().unwrap();
    let sum = |name: &str| -> u64 { timeline.iter().map(|one| one[name].as_u64().unwrap()).sum() };
    assert_eq!((timeline.len(), sum("requests"), sum("denied")), (60, 3, 1));
    let used = timeline.iter().map(|one| one["used"].as_f64().unwrap());
    assert_eq!(used.fold(0.0, f64::max), 1.0);
    let busy = timeline.iter().find(|one| one["units"] == 2).unwrap();
    assert_eq!(
        (&busy["used_units"], &user["counts"]),
        (&json!(2), &json!("costs"))
    );

    // The same client by its hash, and by the id of a denied request.
    let denials = looked.json("/api/v1/denials?shadow=false");
    let (id, request) = (&ann["id"], &denials["denials"][0]["request_id"]);
    let (id, request) = (id.as_str().unwrap(), request.as_str().unwrap());
    for key in [
        format!("{id}?by=id"),
        id[..8].to_owned(),
        request.to_owned(),
    ] {
        let found = clients(&looked, &key);
        assert_eq!((found.len(), &found[0]["id"]), (1, &json!(id)), "{key}");
        assert!(names(&found[0]).contains(&"user"), "{key}");
    }
    // An address is a key of one limit and could be one of others, which know nothing of it.
    let address = clients(&looked, "127.0.0.1");
    assert_eq!((address.len(), names(&address[0])), (1, vec!["address"]));
    // A client without requests has the limits that its key fits.
    let new = clients(&looked, "ben");
    assert_eq!(names(&new[0]), ["user", "tried"]);
    assert_eq!(new[0]["limits"][0]["timeline"], json!([]));
    assert_eq!(looked.get("/api/v1/clients/tag=AAAAAAAA").status, 404);

    let order = json!({ "id": id, "for_seconds": 60, "reason": "ticket 4711" });
    assert_eq!(looked.post("/api/v1/limits/user/block", &order).status, 200);
    let blocked = &clients(&looked, "ann")[0];
    assert_eq!(blocked["block"]["reason"], "ticket 4711");
}

#[test]
fn a_client_of_the_embedded_store_is_found_with_its_timeline() {
    a_client_is_found_with_its_timeline("");
}

#[test]
fn a_client_in_redis_is_found_with_its_timeline() {
    let redis = RedisServer::start();
    let url = format!("url = \"redis://127.0.0.1:{}\"", redis.port());
    a_client_is_found_with_its_timeline(&url);
}

const USAGE: &str = r#"
    [limit.tokens]
    rate = "1000/h"
    key = "header:x-user"
    counts = "tokens"
    [limit.spend]
    rate = "5000000/d"
    key = "header:x-user"
    counts = "money"
    [prices]
    "*" = { input = 1000, output = 2000 }
    [usage.chat]
    format = "openai"
    [[route]]
    name = "model"
    path = "/*"
    limits = ["tokens", "spend"]
    usage = "chat"
"#;

#[test]
fn tokens_and_money_of_a_client_and_of_a_route_are_told() {
    let upstream = Upstream::start(|_, stream| {
        let body = r#"{"usage":{"prompt_tokens":100,"completion_tokens":150,"total_tokens":250}}"#;
        let length = body.len();
        let head = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n";
        let answer = format!("{head}Content-Length: {length}\r\n\r\n{body}");
        stream.write_all(answer.as_bytes()).is_ok()
    });
    let looked = Looked::start(&format!("upstream = \"{}\"\n{USAGE}", upstream.url()));
    let call = |maximum: u64| {
        let body = format!("{{\"max_tokens\":{maximum}}}");
        let lines = format!(
            "Host: a\r\nX-User: ann\r\nContent-Length: {}\r\n",
            body.len()
        );
        let request = format!("POST /chat HTTP/1.1\r\n{lines}\r\n{body}");
        Client::to(looked.tidegate.address).ask(request).status
    };
    let settled = |count: u64| {
        looked.wait_until("calls are settled", |looked| {
            let routes = looked.json("/api/v1/routes");
            routes["routes"][0]["usage"]["outcomes"]["exact"] == count
        });
    };
    // The admin takes what workers note every 100 ms, one worker after the other: of two requests in
    // that time on two workers it cannot tell which was the last.
    let noted = |used: u64| {
        looked.wait_until("the call is noted", |looked| {
            looked.json("/api/v1/limits/tokens/clients")["clients"][0]["used"] == used
        });
    };
    // The body has 18 bytes: 6 tokens of input.
    assert_eq!(call(494), 200);
    settled(1);
    noted(500);
    assert_eq!(call(494), 200);
    settled(2);
    noted(750);
    assert_eq!(call(894), 429);
    let routes = looked.json("/api/v1/routes");
    let usage = &routes["routes"][0]["usage"];
    assert_eq!(
        (&usage["tokens"]["input"], &usage["tokens"]["output"]),
        (&json!(200), &json!(300))
    );
    assert_eq!(usage["estimate_ratio"], 0.5);
    let none = routes["routes"].as_array().unwrap().last().unwrap();
    assert_eq!(
        (&none["name"], &none["usage"]),
        (&json!("(none)"), &json!(null))
    );

    let ann = &clients(&looked, "ann")[0];
    let [tokens, spend] = [0, 1].map(|place| &ann["limits"][place]);
    assert_eq!(
        (&tokens["counts"], &spend["counts"]),
        (&json!("tokens"), &json!("money"))
    );
    assert_eq!(tokens["windows"][0]["used"], 500);
    // 200 x 1000 + 300 x 2000 for a million tokens.
    assert_eq!(spend["windows"][0]["used"], 800_000);
    let timeline = tokens["timeline"].as_array().unwrap().iter();
    let busy = timeline.filter(|one| one["units"] == 1000);
    // The second call was admitted with the 250 tokens of the first one and its own reserve. The
    // denial may be in a later step.
    let most = busy.filter_map(|one| one["used_units"].as_u64()).max();
    assert_eq!(most, Some(750));
    let busiest = looked.json("/api/v1/limits/tokens/clients");
    let client = &busiest["clients"][0];
    assert_eq!(
        (&client["used"], &client["units"]),
        (&json!(500), &json!(1000))
    );
    let limits = looked.json("/api/v1/limits");
    assert_eq!(limits["limits"][1]["counts"], "money");
    let denials = looked.json("/api/v1/denials");
    let rate = &denials["denials"][0]["rates"][0];
    assert_eq!(
        (&rate["counts"], &rate["used"], &rate["cost"]),
        (&json!("tokens"), &json!(500), &json!(900))
    );
}

#[test]
fn a_shadow_limit_and_a_candidate_have_their_patch() {
    let upstream = Upstream::ok();
    let looked = Looked::start(&config(&upstream, ""));
    for _ in 0..3 {
        ask(&looked, "ann");
    }
    let path = |limit: &str| format!("/api/v1/limits/{limit}/promotions");
    let told = looked.json(&path("tried"));
    let [shadow, candidate] = [0, 1].map(|place| &told["promotions"][place]);
    assert_eq!(
        (&shadow["what"], &candidate["what"]),
        (&json!("shadow"), &json!("candidate"))
    );
    // The last request was denied by the other limit.
    assert!(candidate["denied"].as_u64().unwrap() >= 1, "{told}");
    let patch = shadow["patch"].as_str().unwrap();
    assert!(
        patch.starts_with("--- a/proxy.toml\n+++ b/proxy.toml\n@@ "),
        "{patch}"
    );
    assert!(patch.contains("\n-        shadow = true\n"), "{patch}");
    let patch = candidate["patch"].as_str().unwrap();
    assert!(patch.contains("\n+        rate = \"1/h\"\n"), "{patch}");
    assert_eq!(looked.json(&path("user"))["promotions"], json!([]));
    assert_eq!(looked.get(&path("other")).status, 404);
}

#[test]
fn a_promotion_applies_to_a_file_with_windows_line_ends() {
    let upstream = Upstream::ok();
    let looked = Looked::start(&config(&upstream, "").replace('\n', "\r\n"));
    let told = looked.json("/api/v1/limits/tried/promotions");
    let file = looked.tidegate.directory.path().join("proxy.toml");
    let text = std::fs::read_to_string(&file).unwrap();
    let patch = told["promotions"][0]["patch"].as_str().unwrap();
    let mut program = Command::new("git")
        .args(["apply", "-"])
        .current_dir(looked.tidegate.directory.path())
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    let mut input = program.stdin.take().unwrap();
    input.write_all(patch.as_bytes()).unwrap();
    drop(input);
    assert!(program.wait().unwrap().success(), "{patch}");
    let expected = text.replace("        shadow = true\r\n", "");
    assert_eq!(std::fs::read_to_string(&file).unwrap(), expected);
}

#[test]
fn denials_are_listed_up_to_a_moment() {
    let upstream = Upstream::ok();
    let looked = Looked::start(&config(&upstream, ""));
    for user in ["ann", "ben"] {
        let statuses: Vec<u16> = (0..3).map(|_| ask(&looked, user)).collect();
        assert_eq!(statuses, [200, 200, 429]);
    }
    let denials = |query: &str| {
        let told = looked.json(&format!("/api/v1/denials?shadow=false{query}"));
        told["denials"].as_array().unwrap().clone()
    };
    let all = denials("");
    assert_eq!(all.len(), 2);
    let first = all[1]["at"].as_f64().unwrap();
    let until = denials(&format!("&until={first:.6}"));
    assert_eq!((until.len(), &until[0]["id"]), (1, &all[1]["id"]));
    assert_eq!(denials("&until=1").len(), 0);
    for wrong in ["until=soon", "shadow=maybe", "shadow="] {
        let answer = looked.get(&format!("/api/v1/denials?{wrong}"));
        assert_eq!(answer.status, 400, "{wrong}");
    }
}
