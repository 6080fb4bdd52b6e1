//! What is said of a reload.

use super::super::{changes, restarts};
use super::accept;

const BASE: &str = r#"
listen = [":8080", "127.0.0.1:9090"]
trusted_proxies = ["10.0.0.0/8"]

[store]
url = "redis://:${STORE_PASSWORD:-one}@redis.local"

[server]
workers = 2

[limit.search]
rate = "100/min"

[limit.login]
rate = ["5/min", "20/h"]
key = ["ip", "path"]

[upstream.api]
servers = ["http://10.0.0.1:80", "http://10.0.0.2:80"]
timeout = "5s"

[[route]]
name = "search"
path = "/search"
upstream = "api"
limits = ["search"]

[[route]]
path = "/login"
methods = ["POST"]
upstream = "api"
limits = ["login", "search"]

[[route]]
path = "/*"
upstream = "api"
limits = []
"#;

/// What is said when these texts replace each other in the file above.
#[track_caller]
fn told(replaced: &[(&str, &str)], expected: &[&str]) {
    let mut text = BASE.to_owned();
    for (old, new) in replaced {
        assert!(text.contains(old), "no `{old}`");
        text = text.replace(old, new);
    }
    let (old, new) = (accept(BASE).0, accept(&text).0);
    assert_eq!(changes(&old, &new), expected);
}

#[test]
fn the_same_file_changes_nothing() {
    told(&[], &[]);
    told(
        &[("[server]", "# a word\n[server]"), ("\"5s\"", " \"5s\" ")],
        &[],
    );
}

#[test]
fn a_rate_is_told_by_its_limit() {
    told(
        &[("\"100/min\"", "\"50/min\"")],
        &["limit search: 100/min -> 50/min"],
    );
    told(
        &[("\"100/min\"", "\"100/h\"")],
        &[
            "limit search: 100/min -> 100/h",
            "limit search: counts start at zero: a window of another length or kind",
        ],
    );
    told(
        &[("\"20/h\"", "\"30/h\"")],
        &["limit login: 5/min, 20/h -> 5/min, 30/h"],
    );
}

#[test]
fn another_slot_is_told_with_what_it_does() {
    let with = |slot: &str| {
        let text = format!(
            "upstream = \"http://a\"\n[store]\nurl = \"redis://a\"\n\
             [limit.default]\nrate = \"5/h\"\n{slot}"
        );
        accept(&text).0
    };
    assert_eq!(
        changes(&with(""), &with("slot = \"q\"")),
        [
            "limit default: slot q, which was not set",
            "limit default: counts start at zero: its `slot` is another",
        ]
    );
}

#[test]
fn other_keys_of_all_clients_are_told_with_what_that_does() {
    let with = |settings: &str| accept(&format!("upstream = \"http://a\"\n{settings}")).0;
    assert_eq!(
        changes(&with(""), &with("[client_ip]\nipv4_prefix = 24\n")),
        [
            "client_ip: ipv4_prefix 24, which was not set",
            "client_ip: addresses are grouped otherwise: counts by address start at zero, and \
             blocks and overrides of addresses end",
        ]
    );
    let folder = tempfile::tempdir().unwrap();
    let secret = |name: &str, text: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        with(&format!(
            "[store]\nhash_key_file = \"{}\"\n",
            path.display()
        ))
    };
    let (one, other) = (
        secret("one", &"a".repeat(32)),
        secret("two", &"b".repeat(32)),
    );
    let said = changes(&one, &other);
    let expected =
        "store: the hash key is another: counts start at zero, and blocks and overrides end";
    assert!(said.iter().any(|line| line == expected), "{said:?}");
}

#[test]
fn a_key_is_told_with_what_it_does() {
    told(
        &[("[\"ip\", \"path\"]", "\"ip\"")],
        &[
            "limit login: key ip, path -> ip",
            "limit login: counts start at zero: its key is another",
        ],
    );
}

#[test]
fn settings_come_and_go() {
    told(
        &[("timeout = \"5s\"", "idle_timeout = \"3s\"")],
        &[
            "upstream api: idle_timeout 3s, which was not set",
            "upstream api: timeout 5s is no longer set",
        ],
    );
    told(
        &[("[server]\n", "[server]\nmax_headers = 50\n")],
        &["server: max_headers 50, which was not set"],
    );
}

#[test]
fn servers_and_addresses_come_and_go() {
    told(
        &[
            (", \"http://10.0.0.2:80\"", ""),
            ("127.0.0.1:9090", "127.0.0.1:9091"),
        ],
        &[
            "listen 127.0.0.1:9090 removed",
            "listen 127.0.0.1:9091 added",
            "upstream api: server http://10.0.0.2:80 removed",
        ],
    );
    told(
        &[(
            "\"http://10.0.0.1:80\", \"http://10.0.0.2:80\"",
            "\"http://10.0.0.2:80\", \"http://10.0.0.1:80\"",
        )],
        &["upstream api: server: another order"],
    );
}

#[test]
fn routes_are_told_by_name_or_by_what_they_match() {
    told(
        &[("path = \"/login\"", "path = \"/signin\"")],
        &[
            "route removed: POST /login",
            "route added: POST /signin: limits login, search, methods POST, path /signin, \
             upstream api",
        ],
    );
    told(
        &[
            ("path = \"/search\"", "path = \"/find\""),
            ("limits = []", "limits = [\"search\"]"),
        ],
        &[
            "route /*: limit search added",
            "route search: path /search -> /find",
        ],
    );
}

#[test]
fn a_secret_is_not_told() {
    told(
        &[("redis://:${STORE_PASSWORD:-one}@", "redis://:two@")],
        &["store: url changed"],
    );
    told(
        &[(
            "redis://:${STORE_PASSWORD:-one}@redis.local",
            "redis://:two@other.local",
        )],
        &[
            "store: url redis://***@redis.local -> redis://***@other.local",
            "store: counts are now those of the new store",
        ],
    );
}

#[test]
fn a_text_that_is_secret_by_its_place_is_not_told() {
    let text = |secret: &str| {
        format!(
            "[limit.default]\nrate = \"5/min\"\n\
             exempt = [\"{secret}\", \"10.0.0.1\"]\n\
             [[route]]\npath = \"/a\"\nupstream = \"u\"\n\
             headers_up = {{ authorization = \"{secret}\" }}\n\
             query = {{ token = \"{secret}\" }}\n\
             [upstream.u]\nservers = [\"http://a\"]\nhealth = \"/h?token={secret}\"\n\
             [[bypass]]\nheader = \"x-in\"\nvalue = \"{secret}\"\n"
        )
    };
    let none = accept("upstream = \"http://a\"\n").0;
    let [old, new] = ["hush-one", "hush-two"].map(|secret| accept(&text(secret)).0);
    assert_eq!(
        changes(&old, &new),
        [
            "bypass header x-in, value *** removed",
            "bypass header x-in, value *** added",
            "limit default: exempt *** removed",
            "limit default: exempt *** added",
            "route /a: headers_up: authorization changed",
            "route /a: query: token changed",
            "upstream u: health changed",
        ]
    );
    for lines in [changes(&none, &new), changes(&new, &none)] {
        assert!(!lines.join("\n").contains("hush"), "{lines:?}");
    }
}

#[test]
fn long_lists_of_changes_are_cut() {
    let text = |rate: u32| {
        let limits = (0..300).map(|i| format!("[limit.l{i}]\nrate = \"{rate}/min\"\n"));
        format!("upstream = \"http://a\"\n{}", limits.collect::<String>())
    };
    let (old, new) = (accept(&text(5)).0, accept(&text(6)).0);
    let lines = changes(&old, &new);
    assert_eq!((lines.len(), &*lines[100]), (101, "and 200 more"));
}

#[test]
fn a_file_that_is_named_is_told_when_its_content_changes() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("keys");
    let text = format!(
        "upstream = \"http://a\"\n[tier]\nkeys_file = \"{}\"\n[limit.default]\nrate = \"5/min\"\n\
         tiers = {{ pro = \"9/min\" }}\n",
        path.display()
    );
    std::fs::write(&path, "one pro\n").unwrap();
    let old = accept(&text).0;
    std::fs::write(&path, "two pro\n").unwrap();
    let new = accept(&text).0;
    assert_eq!(
        changes(&old, &new),
        [format!("file {}: content changed", path.display())]
    );
}

#[test]
fn what_takes_a_restart_is_said() {
    let (old, new) = (
        accept(BASE).0,
        accept(&BASE.replace("workers = 2", "workers = 3")).0,
    );
    assert_eq!(
        restarts(&old, &new),
        ["Changing `workers` to 3 needs a restart; still running 2"]
    );
    assert_eq!(restarts(&old, &old), [""; 0]);
}

#[test]
fn a_file_of_counts_stays_until_a_restart() {
    let with = |store: &str| accept(&format!("upstream = \"http://a\"\n[store]\n{store}")).0;
    let (old, mut new) = (with("file = \"one\""), with("file = \"two\""));
    assert_eq!(
        restarts(&old, &new),
        ["Changing `file` of `[store]` needs a restart"]
    );
    new.keep_until_restart(&old);
    assert_eq!(new.store.file, old.store.file);
    let mut redis = with("url = \"redis://127.0.0.1\"");
    redis.keep_until_restart(&old);
    assert_eq!(
        restarts(&redis, &with("file = \"one\"")),
        ["Changing `file` of `[store]` needs a restart"],
        "the counts were in Redis"
    );
    assert_eq!(restarts(&redis, &redis), [""; 0]);
}
