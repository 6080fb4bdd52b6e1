//! `enforce = "20%"`: a limit that denies a share of its clients, and only counts the others.

use crate::house::{Tidegate, Upstream};
use crate::probe::eventually;
use crate::support::RedisServer;

const CLIENTS: usize = 200;

fn proxy(upstream: &Upstream, redis: &RedisServer, enforce: &str) -> Tidegate {
    Tidegate::start(&format!(
        "[store]\nurl = \"redis://127.0.0.1:{}\"\n[limit.plan]\nrate = \"1/day\"\nkey = \"header:x-user\"\n\
         enforce = \"{enforce}\"\n[upstream.app]\nservers = \"{}\"\n\
         [[route]]\npath = \"/*\"\nupstream = \"app\"\nlimits = [\"plan\"]\n",
        redis.port(),
        upstream.url()
    ))
}

/// Which clients are denied.
fn denied(proxy: &Tidegate) -> Vec<bool> {
    let ask = |number| proxy.get_with("/", &format!("X-User: {number}\r\n"));
    (0..CLIENTS)
        .map(|number| ask(number).status == 429)
        .collect()
}

#[test]
fn a_client_is_always_in_the_share_or_never_and_a_higher_share_keeps_it() {
    let (upstream, redis) = (Upstream::ok(), RedisServer::start());
    let first = proxy(&upstream, &redis, "20%");
    assert_eq!(denied(&first), vec![false; CLIENTS]);
    let fifth = denied(&first);
    let count = fifth.iter().filter(|denied| **denied).count();
    assert!((20..=60).contains(&count), "{count} of {CLIENTS}");
    assert_eq!(denied(&proxy(&upstream, &redis, "20%")), fifth);
    let half = denied(&proxy(&upstream, &redis, "50%"));
    assert!(half.iter().filter(|denied| **denied).count() > count);
    assert!(fifth.iter().zip(&half).all(|(fifth, half)| *half || !fifth));
    assert_eq!(
        denied(&proxy(&upstream, &redis, "100%")),
        vec![true; CLIENTS]
    );
    // The others are counted, as by a limit in shadow mode.
    eventually("every client is counted", || {
        match redis.run("KEYS *plan*") {
            redis::Value::Array(keys) => keys.len() == CLIENTS,
            _ => false,
        }
    });
}
