//! API keys that become known while the proxy runs: those in Redis, and those that a service knows.

mod callback;

use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::admin::Looked;
use crate::house::{Tidegate, Upstream, program};
use crate::look::command;
use crate::pace::Pace;
use crate::probe::eventually;
use crate::support::RedisServer;

/// Requests with a key of their own each.
const INVENTED: usize = 60;
const LIMIT: &str = "[limit.default]\nrate = \"10/h\"\nkey = \"api_key or ip\"\n";

/// The status of a request with this key.
fn status(proxy: &Tidegate, key: &str) -> u16 {
    proxy.get_with("/", &format!("X-Api-Key: {key}\r\n")).status
}

fn invented(proxy: &Tidegate) -> usize {
    let statuses = (0..INVENTED).map(|number| status(proxy, &format!("{number:08x}-made-up")));
    statuses.filter(|status| *status == 200).count()
}

/// The number of requests with this key that pass, of so many.
fn passes(proxy: &Tidegate, key: &str, of: usize) -> usize {
    (0..of).filter(|_| status(proxy, key) == 200).count()
}

fn keys_in_redis(upstream: &Upstream, redis: &RedisServer, rules: &str) -> String {
    format!(
        "upstream = \"{}\"\n[store]\nurl = \"redis://127.0.0.1:{}\"\ntimeout = \"5s\"\n\
         [api_key]\nknown = \"redis\"\n{rules}",
        upstream.url(),
        redis.port()
    )
}

/// Runs `tidegate keys` beside a proxy.
fn keys(proxy: &Tidegate, words: &[&str]) -> Output {
    let words = [&["keys"], words].concat();
    command(proxy.directory.path(), &words)
}

/// Makes a key known, and returns it.
fn add(proxy: &Tidegate, words: &[&str]) -> String {
    let output = keys(proxy, &[&["add"], words].concat());
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

/// Waits until `is_so`, and asserts that this takes no longer than a second.
fn within_a_second(what: &str, is_so: impl Fn() -> bool) {
    let (began, pace) = (Instant::now(), Pace::begin());
    eventually(what, &is_so);
    let took = began.elapsed();
    let granted = pace.grants();
    assert!(
        took < Duration::from_secs(1) + granted,
        "{what}: {took:?}, granted {granted:?}"
    );
}

#[test]
fn keys_are_known_and_removed_within_a_second_on_every_proxy() {
    let (upstream, redis) = (Upstream::ok(), RedisServer::start());
    let config = keys_in_redis(&upstream, &redis, LIMIT);
    let config = config.replace("[api_key]", "[api_key]\nunknown = \"deny\"");
    let proxies = [Tidegate::start(&config), Tidegate::start(&config)];
    assert_eq!(invented(&proxies[0]), 0);
    let key = add(&proxies[0], &["acme", "--anchor", "15"]);
    assert!(key.starts_with("tgk_") && key.len() == 52, "{key}");
    for proxy in &proxies {
        within_a_second("the key is known", || status(proxy, &key) == 200);
    }
    let listed = keys(&proxies[1], &["list", "--json"]);
    let listed: Value = serde_json::from_slice(&listed.stdout).unwrap();
    assert_eq!(listed[0]["name"], "acme");
    assert_eq!(listed[0]["anchor"], "15");
    let text = String::from_utf8(keys(&proxies[1], &["list"]).stdout).unwrap();
    let id = &listed[0]["sha256"].as_str().unwrap()[..12];
    assert!(text.contains(id) && !text.contains(&key), "{text}");
    // Redis never has the key itself.
    let mut connection = redis.connect();
    let all: Vec<String> = redis::cmd("HVALS")
        .arg("tidegate:keys")
        .query(&mut connection)
        .unwrap();
    let fields: Vec<String> = redis::cmd("HKEYS")
        .arg("tidegate:keys")
        .query(&mut connection)
        .unwrap();
    assert_eq!((all.len(), fields.len()), (1, 1));
    assert!(!all[0].contains(&key) && fields[0] != key);
    let removed = keys(&proxies[0], &["remove", "acme"]);
    assert!(removed.status.success(), "{removed:?}");
    for proxy in &proxies {
        within_a_second("the key is unknown", || status(proxy, &key) == 401);
    }
    let again = keys(&proxies[0], &["remove", "acme"]);
    assert_eq!(again.status.code(), Some(1), "{again:?}");
}

#[test]
fn invented_keys_earn_nothing_and_known_ones_have_their_tier() {
    let (upstream, redis) = (Upstream::ok(), RedisServer::start());
    let rules = format!("{LIMIT}tiers = {{ pro = \"15/h\" }}\n");
    let looked = Looked::start(&keys_in_redis(&upstream, &redis, &rules));
    let proxy = &looked.tidegate;
    let key = add(proxy, &["acme", "--tier", "pro"]);
    let given = add_given(proxy, "bolt", "a-key-that-was-made-elsewhere");
    assert_eq!(given, "", "a given key is not printed");
    looked.wait_until("both keys are known", |looked| {
        let metrics = looked.get("/metrics").text();
        metrics.contains("tidegate_known_keys 2\n")
    });
    assert_eq!(passes(proxy, &key, 20), 15);
    assert_eq!(passes(proxy, "a-key-that-was-made-elsewhere", 20), 10);
    assert_eq!(invented(proxy), 10, "they share the budget of the address");
    let status = looked.json("/api/v1/status");
    assert_eq!(status["known_keys"]["source"], "redis");
    assert_eq!(status["known_keys"]["keys"], 2);
    // The first key's tier is changed, and it has a second key.
    let changed = keys(proxy, &["add", "acme", "--key", &key]);
    let said = String::from_utf8(changed.stderr).unwrap();
    assert!(said.contains("has this tier and anchor now"), "{said}");
    let taken = keys(proxy, &["add", "thief", "--key", &key]);
    assert_eq!(taken.status.code(), Some(1));
    let explained = |key: &str, live: &[&str]| {
        let header = format!("x-api-key: {key}");
        let words = [&["explain", "GET", "/", "-H", &header], live].concat();
        let output = command(proxy.directory.path(), &words);
        let text = String::from_utf8(output.stdout).unwrap();
        text.split_whitespace().collect::<Vec<_>>().join(" ")
    };
    let known = explained(&key, &["--live"]);
    assert!(known.contains("known as acme, in Redis"), "{known}");
    let unknown = explained("made-up", &["--live"]);
    assert!(unknown.contains("Redis does not have it"), "{unknown}");
    let offline = explained(&key, &[]);
    assert!(
        offline.contains("--live looks for it in Redis"),
        "{offline}"
    );
}

/// Makes a key known that is given on standard input.
fn add_given(proxy: &Tidegate, name: &str, key: &str) -> String {
    use std::io::Write;
    let mut child = Command::new(program())
        .args(["keys", "add", name, "--key", "-"])
        .current_dir(proxy.directory.path())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut input = child.stdin.take().unwrap();
    input.write_all(format!("{key}\n").as_bytes()).unwrap();
    drop(input);
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn the_last_known_keys_stay_while_redis_is_away() {
    let (upstream, mut redis) = (Upstream::ok(), RedisServer::start());
    let config = keys_in_redis(&upstream, &redis, "unknown = \"deny\"\n") + LIMIT;
    let config = config.replace("\"5s\"", "\"100ms\"");
    let looked = Looked::start(&config);
    let key = add(&looked.tidegate, &["acme"]);
    looked.wait_until("the key is known", |looked| {
        status(&looked.tidegate, &key) == 200
    });
    redis.kill();
    looked.wait_until("the outage is noticed", |looked| {
        looked.json("/api/v1/status")["store"]["up"] == false
    });
    assert_eq!(status(&looked.tidegate, &key), 200);
    assert_eq!(status(&looked.tidegate, "made-up"), 401);
    assert_eq!(looked.get("/readyz").status, 200);
    // A proxy that starts now knows none, and says so.
    let late = Tidegate::start(&format!("admin = \"127.0.0.1:0\"\n{config}"));
    let line = late.wait_for_line("dashboard  http://");
    let address = line.split('/').nth(2).unwrap().parse().unwrap();
    let late = Looked {
        tidegate: late,
        address,
    };
    assert_eq!(status(&late.tidegate, &key), 401);
    let ready = late.get("/readyz");
    assert_eq!(ready.status, 503);
    assert!(ready.text().contains("API keys"), "{}", ready.text());
    redis.restart();
    let key = add(&looked.tidegate, &["acme"]);
    for proxy in [&looked, &late] {
        proxy.wait_until("the key is known", |proxy| {
            status(&proxy.tidegate, &key) == 200
        });
    }
    assert_eq!(late.get("/readyz").status, 200);
}

#[test]
fn the_keys_of_a_thousand_changes_are_all_known() {
    let (upstream, redis) = (Upstream::ok(), RedisServer::start());
    let config = keys_in_redis(&upstream, &redis, "unknown = \"deny\"\n") + LIMIT;
    let proxy = Tidegate::start(&config);
    let first = add(&proxy, &["first"]);
    eventually("the first key is known", || status(&proxy, &first) == 200);
    // More changes than the store keeps, while the proxy cannot read.
    redis.freeze();
    redis.thaw();
    let mut connection = redis.connect();
    let script = redis::Script::new(include_str!("../../lua/known_keys.lua"));
    for number in 0..1500 {
        let digest = tidegate::limit::key::KeyDigest::new(format!("key-{number}").as_bytes());
        let mut call = script.prepare_invoke();
        call.key("tidegate:keys");
        call.key("tidegate:keys.version{tidegate:keys}");
        call.key("tidegate:keys.changes{tidegate:keys}");
        call.arg("set").arg(digest.to_hex());
        call.arg(format!("name n{number}\n")).arg(100_000).arg(1000);
        let _: redis::Value = call.invoke(&mut connection).unwrap();
    }
    eventually("the last key is known", || {
        status(&proxy, "key-1499") == 200
    });
    for number in [0, 1, 499, 500, 1498] {
        assert_eq!(status(&proxy, &format!("key-{number}")), 200, "{number}");
    }
    assert_eq!(status(&proxy, "key-1500"), 401);
}

#[test]
fn keys_in_redis_need_a_redis() {
    let folder = tempfile::tempdir().unwrap();
    let file = "upstream = \"http://127.0.0.1:1\"\n[api_key]\nknown = \"redis\"\n";
    std::fs::write(folder.path().join("proxy.toml"), file).unwrap();
    let checked = command(folder.path(), &["check"]);
    let said = String::from_utf8_lossy(&checked.stderr).into_owned()
        + &String::from_utf8_lossy(&checked.stdout);
    assert!(said.contains("T136"), "{said}");
    let file = "upstream = \"http://127.0.0.1:1\"\n";
    std::fs::write(folder.path().join("proxy.toml"), file).unwrap();
    let refused = command(folder.path(), &["keys", "list"]);
    assert_eq!(refused.status.code(), Some(1), "{refused:?}");
}

#[test]
fn a_key_that_could_not_be_shown_is_named() {
    let (redis, upstream) = (RedisServer::start(), Upstream::ok());
    let proxy = Tidegate::start(&keys_in_redis(&upstream, &redis, LIMIT));
    let output = Command::new(program())
        .current_dir(proxy.directory.path())
        .args(["keys", "add", "alice"])
        .stdout(
            std::fs::File::options()
                .write(true)
                .open("/dev/full")
                .unwrap(),
        )
        .output()
        .unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(
        said.contains("the new key is lost: remove it with"),
        "{said}"
    );
}
