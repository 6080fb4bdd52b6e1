//! `servers` and `balance` of an upstream.

use super::super::render;
use std::time::Duration;

use super::super::{Balance, ServerAddress, UpstreamSettings};
use super::{codes, fine, refuse};
use crate::limit::key::Key;

/// The upstream with these settings.
fn upstream(settings: &str) -> UpstreamSettings {
    let route = "[[route]]\npath = \"/*\"\nupstream = \"a\"\n";
    let config = fine(&format!("[upstream.a]\n{settings}\n{route}"));
    config.upstreams[0].clone()
}

/// The codes of what is wrong with these settings.
fn refused(settings: &str) -> Vec<&'static str> {
    let route = "[[route]]\npath = \"/*\"\nupstream = \"a\"\n";
    codes(&format!("[upstream.a]\n{settings}\n{route}"))
}

#[test]
fn servers_are_urls_or_tables() {
    let all = upstream(
        "servers = [\"http://a\", { url = \"http://b:81\", weight = 3 }, { url = \"unix:/c\" }]",
    );
    let servers: Vec<_> = all
        .servers
        .iter()
        .map(|server| (server.to_string(), server.weight))
        .collect();
    let want = [("http://a:80", 1), ("http://b:81", 3), ("unix:/c", 1)];
    assert_eq!(servers, want.map(|(url, weight)| (url.to_owned(), weight)));
    let one = upstream("servers = { url = \"http://a\", weight = 1000 }");
    assert_eq!(one.servers[0].weight, 1000);
    let tables = upstream("[[upstream.a.servers]]\nurl = \"http://a\"\nweight = 2");
    assert_eq!(
        (tables.servers[0].weight, &tables.servers[0].address),
        (2, &ServerAddress::Http("a".into(), 80))
    );
}

#[test]
fn ways_to_balance_are_read() {
    let balance = |text: &str| upstream(&format!("servers = \"http://a\"\n{text}")).balance;
    assert_eq!(balance(""), Balance::P2c);
    assert_eq!(balance("balance = \"p2c\""), Balance::P2c);
    assert_eq!(balance("balance = \"round-robin\""), Balance::RoundRobin);
    assert_eq!(
        balance("balance = \"hash:cookie:session or ip\""),
        Balance::Hash(Key::parse(["cookie:session or ip"]).unwrap())
    );
}

#[test]
fn a_slow_start_has_a_length_or_is_none() {
    let start = |text: &str| upstream(&format!("servers = \"http://a\"\n{text}")).slow_start;
    assert_eq!(start(""), None);
    assert_eq!(start("slow_start = \"30s\""), Some(Duration::from_secs(30)));
    let refused = |text: &str| refused(&format!("servers = \"http://a\"\nslow_start = {text}"));
    assert_eq!(refused("\"30\""), ["T110"]);
    assert_eq!(refused("\"2d\""), ["T105"]);
}

#[test]
fn what_is_wrong_with_servers_and_balance_is_said() {
    for (settings, code) in [
        ("servers = [{ weight = 3 }]", "T104"),
        ("servers = [{ url = \"http://a\", weight = 0 }]", "T105"),
        ("servers = [{ url = \"http://a\", weight = 1001 }]", "T105"),
        ("servers = [{ url = \"http://a\", backup = true }]", "T124"),
        ("servers = [{ url = \"a\" }]", "T114"),
        ("servers = [{ url = \"http://a\", wieght = 2 }]", "T101"),
        (
            "servers = [\"http://a\", { url = \"http://A:80/\" }]",
            "T119",
        ),
        ("servers = [7]", "T103"),
        ("servers = 7", "T103"),
        ("servers = []", "T105"),
        ("servers = \"http://a\"\nbalance = \"random\"", "T111"),
        ("servers = \"http://a\"\nbalance = \"hash\"", "T111"),
        (
            "servers = \"http://a\"\nbalance = \"hash:cookies:a\"",
            "T111",
        ),
        ("servers = \"http://a\"\nbalance = 7", "T103"),
    ] {
        assert_eq!(refused(settings), [code], "{settings}");
    }
    assert_eq!(
        refused("servers = \"http://a\"\nbalance = \"hash:tier\"").len(),
        1
    );
    let typo = refuse("[upstream.a]\nservers = [{ url = \"http://a\", wieght = 2 }]\n");
    let said = render::human(&typo, false);
    assert!(said.contains("did you mean `weight`?"), "{said}");
}

#[test]
fn bounds_and_queues_are_read() {
    let plain = upstream("servers = \"http://a\"");
    assert_eq!((plain.queue, plain.servers[0].max_connections), (0, None));
    let both = upstream(
        "servers = { url = \"http://a\", max_connections = 9 }\nqueue = 5\nqueue_timeout = \"2s\"",
    );
    assert_eq!((both.queue, both.servers[0].max_connections), (5, Some(9)));
    assert_eq!(both.queue_timeout, Duration::from_secs(2));
    for (settings, code) in [
        (
            "servers = { url = \"http://a\", max_connections = 0 }",
            "T105",
        ),
        ("servers = \"http://a\"\nqueue = -1", "T105"),
        ("servers = \"http://a\"\nqueue = \"5\"", "T103"),
        (
            "servers = \"http://a\"\nqueue = 5\nqueue_timeout = \"0s\"",
            "T105",
        ),
        ("servers = \"http://a\"\ndns_every = \"500ms\"", "T105"),
    ] {
        assert_eq!(refused(settings), [code], "{settings}");
    }
}
