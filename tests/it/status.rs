//! `[status]`: clients ask how much of their limits is left.

use std::io::Write as _;

use serde_json::Value;

use crate::house::{Answer, Tidegate, Upstream};
use crate::look::command;
use crate::probe::eventually;
use crate::support::RedisServer;

const STATUS: &str = "[status]\npath = \"/rate_limit\"\n";

fn proxy(upstream: &Upstream, settings: &str) -> Tidegate {
    Tidegate::start(&format!(
        "{settings}\n[upstream.app]\nservers = \"{}\"\n\
         [[route]]\npath = \"/*\"\nupstream = \"app\"\n",
        upstream.url()
    ))
}

fn report(answer: &Answer) -> Value {
    assert_eq!(answer.status, 200, "{}", answer.text());
    assert_eq!(answer.header("cache-control").as_deref(), Some("no-store"));
    serde_json::from_str(&answer.text()).unwrap()
}

/// `[used, remaining]` of the only limit.
fn standing(answer: &Answer) -> [u64; 2] {
    let report = report(answer);
    let limit = &report["limits"][0];
    ["used", "remaining"].map(|name| limit[name].as_u64().unwrap())
}

/// Runs it with the embedded store and with Redis.
fn with_each_store(check: impl Fn(&str)) {
    check("");
    let redis = RedisServer::start();
    check(&format!(
        "[store]\nurl = \"redis://127.0.0.1:{}\"\n",
        redis.port()
    ));
}

#[test]
fn a_look_changes_nothing_and_a_client_that_is_out_may_look() {
    with_each_store(|store| {
        let upstream = Upstream::ok();
        let limit = "[limit.default]\nrate = \"2/day\"\nkey = \"global\"\n";
        let proxy = proxy(&upstream, &format!("{store}{STATUS}{limit}"));
        for _ in 0..30 {
            assert_eq!(standing(&proxy.get("/rate_limit")), [0, 2]);
        }
        assert!(upstream.seen().is_empty());
        let answers: Vec<u16> = (0..3).map(|_| proxy.get("/").status).collect();
        assert_eq!(answers, [200, 200, 429]);
        eventually("the next second shows the charges", || {
            standing(&proxy.get("/rate_limit")) == [2, 0]
        });
        let answer = proxy.get("/rate_limit");
        let limit = &report(&answer)["limits"][0];
        assert_eq!(
            (limit["policy"].as_str(), limit["unit"].as_str()),
            (Some("default"), Some("requests"))
        );
        let wait = limit["retry_after"].as_u64().unwrap();
        assert!((86_000..=86_400).contains(&wait), "{limit} {answer:?}");
        assert!(limit["resets_at"].as_str().unwrap().ends_with('Z'));
        let policy = answer.header("ratelimit-policy");
        assert_eq!(policy.as_deref(), Some("\"default\";q=2;w=86400"));
        assert!(
            answer
                .header("ratelimit")
                .unwrap()
                .starts_with("\"default\";r=0;t=")
        );
        assert!(answer.header("retry-after").is_none());
    });
}

#[test]
fn a_script_of_another_site_may_not_read_what_cookies_tell() {
    let upstream = Upstream::ok();
    let limit = "[limit.default]\nrate = \"2/day\"\nkey = \"cookie:sid or ip\"\n";
    let proxy = proxy(&upstream, &format!("{STATUS}{limit}"));
    let headers = "Origin: https://other.example\r\nCookie: sid=1\r\n";
    let answer = proxy.get_with("/rate_limit", headers);
    assert_eq!(standing(&answer), [0, 2]);
    let origin = answer.header("access-control-allow-origin");
    assert_eq!(origin.as_deref(), Some("https://other.example"));
    assert_eq!(answer.header("access-control-allow-credentials"), None);
}

#[test]
fn a_look_at_an_overdrawn_limit_is_told_no_wait_for_the_next_look() {
    let upstream = Upstream::start(|_, stream| {
        let answer = "HTTP/1.1 200 OK\r\nX-Cost: 5\r\nContent-Length: 0\r\n\r\n";
        stream.write_all(answer.as_bytes()).is_ok()
    });
    let proxy = Tidegate::start(&format!(
        "upstream = \"{}\"\n{STATUS}[limit.default]\nrate = \"2/day\"\n\
         [[route]]\npath = \"/*\"\nsettle = \"response-header:x-cost\"\n",
        upstream.url()
    ));
    assert_eq!(proxy.get("/").status, 200);
    eventually("the settlement is seen", || {
        let answer = proxy.get("/rate_limit");
        assert_eq!(answer.header("retry-after"), None);
        standing(&answer) == [5, 0]
    });
}

#[test]
fn an_address_looks_ten_times_a_second_at_the_store() {
    let upstream = Upstream::ok();
    let limit = "[limit.default]\nrate = \"9/day\"\nkey = \"header:x-user\"\n";
    let proxy = proxy(&upstream, &format!("{STATUS}{limit}"));
    let look = |number: usize| proxy.get_with("/rate_limit", &format!("X-User: {number}\r\n"));
    let statuses: Vec<u16> = (0..40).map(|number| look(number).status).collect();
    assert!(statuses.contains(&429), "{statuses:?}");
    let busy = (0..40)
        .map(look)
        .find(|answer| answer.status == 429)
        .unwrap();
    assert_eq!(busy.header("retry-after").as_deref(), Some("1"));
    eventually("a second later it may look", || look(99).status == 200);
}

#[test]
fn each_client_is_told_its_own_limits_and_tier() {
    let upstream = Upstream::ok();
    let folder = tempfile::tempdir().unwrap();
    let keys = folder.path().join("keys");
    std::fs::write(&keys, "alice-key alice pro\nbob-key bob\n").unwrap();
    let settings = format!(
        "{STATUS}[api_key]\nknown = \"{}\"\n[tier]\ndefault = \"free\"\n\
         [limit.default]\nrate = [\"5/day\", \"3/h\"]\nkey = \"api_key or ip\"\n\
         tiers = {{ pro = \"50/day\" }}\n\
         [limit.by_path]\nrate = \"9/s\"\nkey = \"path\"\n\
         [limit.quiet]\nrate = \"9/s\"\nshadow = true\n",
        keys.display()
    );
    let proxy = proxy(&upstream, &settings);
    let look = |headers: &str| report(&proxy.get_with("/rate_limit", headers));
    assert_eq!(proxy.get_with("/", "X-Api-Key: alice-key\r\n").status, 200);
    assert_eq!(proxy.get_with("/", "X-Api-Key: bob-key\r\n").status, 200);
    let limits = |report: &Value| -> Vec<(String, u64)> {
        let limits = report["limits"].as_array().unwrap().iter();
        limits
            .map(|one| {
                (
                    one["policy"].as_str().unwrap().to_owned(),
                    one["remaining"].as_u64().unwrap(),
                )
            })
            .collect()
    };
    let alice = look("X-Api-Key: alice-key\r\n");
    assert_eq!(limits(&alice), [("default".to_owned(), 49)]);
    assert_eq!(alice["not_told"], serde_json::json!(["by_path"]));
    let bob = look("X-Api-Key: bob-key\r\n");
    let two = [("default/d".to_owned(), 4), ("default/h".to_owned(), 2)];
    assert_eq!(limits(&bob), two);
    // An unknown key is the address, which has asked nothing so far.
    let unknown = look("X-Api-Key: invented\r\n");
    assert_eq!(limits(&unknown)[0].1, 5);
}

#[test]
fn a_blocked_client_is_told_until_when_and_an_outage_is_503() {
    let upstream = Upstream::ok();
    let mut redis = RedisServer::start();
    let store = format!("[store]\nurl = \"redis://127.0.0.1:{}\"\n", redis.port());
    let limit = "[limit.default]\nrate = \"2/day\"\n";
    let proxy = proxy(&upstream, &format!("{store}{STATUS}{limit}"));
    assert!(
        report(&proxy.get("/rate_limit"))
            .get("blocked_until")
            .is_none()
    );
    let folder = tempfile::tempdir().unwrap();
    let file = format!("upstream = \"http://127.0.0.1:9\"\n{store}{limit}");
    std::fs::write(folder.path().join("proxy.toml"), file).unwrap();
    let block = ["limits", "block", "ip=127.0.0.1", "--for", "1h"];
    let blocked = command(folder.path(), &block);
    assert!(
        blocked.status.success(),
        "{}",
        String::from_utf8_lossy(&blocked.stderr)
    );
    eventually("the block holds", || proxy.get("/").status == 429);
    eventually("the client is told", || {
        report(&proxy.get("/rate_limit"))["blocked_until"].is_string()
    });
    redis.kill();
    eventually("the store cannot be asked", || {
        proxy.get("/rate_limit").status == 503
    });
}

fn from(address: &str) -> String {
    format!("X-Forwarded-For: {address}\r\n")
}

#[test]
fn no_client_is_told_the_tier_or_the_block_of_another() {
    let upstream = Upstream::ok();
    let redis = RedisServer::start();
    let folder = tempfile::tempdir().unwrap();
    let keys = folder.path().join("keys");
    std::fs::write(&keys, "pro-key ann pro\nfree-key bob\n").unwrap();
    let store = format!("[store]\nurl = \"redis://127.0.0.1:{}\"\n", redis.port());
    let limit = "[limit.default]\nrate = \"5/day\"\nkey = \"header:x-user\"\nmissing = \"skip\"\n";
    let settings = format!(
        "trusted_proxies = \"127.0.0.1\"\n{store}{STATUS}[api_key]\nknown = \"{}\"\n\
         {limit}tiers = {{ pro = \"50/day\" }}\n",
        keys.display()
    );
    let proxy = proxy(&upstream, &settings);
    let look = |headers: &str| report(&proxy.get_with("/rate_limit", headers));
    let units = |key: &str| {
        let told = look(&format!("X-User: u\r\nX-Api-Key: {key}\r\n"));
        told["limits"][0]["limit"].as_u64()
    };
    assert_eq!([units("pro-key"), units("free-key")], [Some(50), Some(5)]);
    let file = format!("upstream = \"http://127.0.0.1:9\"\n{store}{limit}");
    std::fs::write(folder.path().join("proxy.toml"), file).unwrap();
    let block = command(folder.path(), &["limits", "block", "ip=203.0.113.5"]);
    assert!(block.status.success(), "{block:?}");
    let (blocked, other) = (from("203.0.113.5"), from("203.0.113.6"));
    eventually("the client is told", || {
        look(&blocked).get("blocked_until").is_some()
    });
    // Both ask in one second, and neither has a key.
    assert!(look(&other).get("blocked_until").is_none());
    assert!(look(&blocked).get("blocked_until").is_some());
}

#[test]
fn an_exempt_client_is_not_told_of_a_ban_that_spares_it() {
    let upstream = Upstream::ok();
    let settings = format!(
        "trusted_proxies = \"127.0.0.1\"\n{STATUS}[client_ip]\nipv4_prefix = 24\n\
         [limit.own]\nrate = \"1/day\"\nkey = \"ip\"\nexempt = [\"192.0.2.9\"]\n\
         ban = {{ after = \"2/10min\", for = \"1h\" }}\n\
         [limit.other]\nrate = \"1000/day\"\nkey = \"ip\"\n\
         [[route]]\npath = \"/banning\"\nupstream = \"app\"\nlimits = [\"own\", \"other\"]\n"
    );
    let proxy = proxy(&upstream, &settings);
    let (banned, exempt) = (from("192.0.2.7"), from("192.0.2.9"));
    for _ in 0..4 {
        proxy.get_with("/banning", &banned);
    }
    let look = |headers: &str| report(&proxy.get_with("/rate_limit", headers));
    eventually("the banned client is told", || {
        look(&banned).get("blocked_until").is_some()
    });
    assert_eq!(proxy.get_with("/banning", &exempt).status, 200);
    assert!(look(&exempt).get("blocked_until").is_none());
}

#[test]
fn the_path_is_its_own_and_other_methods_go_to_routes() {
    let upstream = Upstream::ok();
    let limit = "[limit.default]\nrate = \"9/day\"\n";
    let proxy = proxy(&upstream, &format!("{STATUS}{limit}"));
    let mut client = proxy.connect();
    client.send("HEAD /rate_limit HTTP/1.1\r\nHost: any.test\r\n\r\n");
    let head = client.answer_to_head();
    assert_eq!((head.status, head.text().len()), (200, 0));
    assert!(upstream.seen().is_empty());
    let post = "POST /rate_limit HTTP/1.1\r\nHost: t\r\nContent-Length: 0\r\n\r\n";
    assert_eq!(proxy.connect().ask(post).status, 200);
    assert_eq!(upstream.seen().len(), 1);
    let text =
        format!("upstream = \"http://127.0.0.1:9\"\n{STATUS}[[route]]\npath = \"/rate_limit\"\n");
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("proxy.toml"), text).unwrap();
    let check = command(folder.path(), &["check"]);
    assert!(!check.status.success());
    let said = String::from_utf8_lossy(&check.stdout).into_owned()
        + &String::from_utf8_lossy(&check.stderr);
    assert!(
        said.contains("a route has the path of `[status]`"),
        "{said}"
    );
}

#[test]
fn a_slash_at_the_end_makes_no_other_path() {
    let upstream = Upstream::ok();
    for path in ["/rate_limit", "/rate_limit/"] {
        let limit = "[limit.default]\nrate = \"2/day\"\nkey = \"global\"\n";
        let proxy = proxy(&upstream, &format!("[status]\npath = \"{path}\"\n{limit}"));
        for asked in ["/rate_limit", "/rate_limit/"] {
            assert_eq!(standing(&proxy.get(asked)), [0, 2], "{path}: {asked}");
        }
    }
    assert!(upstream.seen().is_empty());
}
