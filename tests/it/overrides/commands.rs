//! The commands themselves: what they refuse and how they say it, the rights they need, and the
//! bounds of what they write.

use tidegate::store::overrides::SCRIPT;

use super::{Fleet, LIMITS, config, limits, refused};
use crate::house::{Tidegate, Upstream};
use crate::probe::eventually;
use crate::support::RedisServer;

#[test]
fn what_is_wrong_is_said_with_what_to_write() {
    let fleet = Fleet::start();
    for (words, code, said) in [
        (
            "show by_usr 7",
            2,
            "error: there is no limit `by_usr` in proxy.toml\nhelp: did you mean `by_user`?\n",
        ),
        (
            "override by_user 7 9/dya",
            2,
            "error: `9/dya` is not a rate: in the window: `dya` is not a unit of time; \
             did you mean `day`?\nhelp: write for example `100/min`, `30/10s`, `unlimited`\n",
        ),
        (
            "override by_user 7",
            2,
            "error: after the key, the rate is missing\n\
             help: write for example `50/min` or `unlimited`, or `--remove`\n",
        ),
        (
            "block 1.2.3.4 --for 11y",
            2,
            "error: `--for 11y`: `y` is not a unit of time; there are `ms s min h d`\n\
             help: write for example `30min`, `24h` or `7d`; without `--for` it lasts until \
             `--remove`\n",
        ),
        (
            "block 1.2.3.4 --for 4000d",
            2,
            "error: `--for 4000d`: at most ten years have an end\n\
             help: write for example `30min`, `24h` or `7d`; without `--for` it lasts until \
             `--remove`\n",
        ),
        (
            "show by_user ip=1.2.3",
            2,
            "error: `1.2.3` is not an address\n\
             help: write for example `ip=192.0.2.7` or `ip=2001:db8::7`\n",
        ),
        (
            "reset by_user path=/x",
            2,
            "error: that is no key of `by_user`, which counts by `header:x-user`\n\
             help: write `header:x-user=VALUE`\n",
        ),
        (
            "block ip=1.2.3.4 --remove",
            1,
            "error: that key is not blocked\n",
        ),
    ] {
        assert_eq!(fleet.refused(words), (code, said.to_owned()), "{words}");
    }
    let mut redis = fleet.redis;
    redis.kill();
    let (code, said) = refused(&fleet.proxies[0], "ls");
    let server = format!("127.0.0.1:{}: ", redis.port());
    assert_eq!(code, 1, "{said}");
    for part in [
        "error: store.url (proxy.toml:",
        &server,
        "Connection refused",
        "\nhelp: start Redis, or correct the URL; `tidegate check --online` tests it\n",
    ] {
        assert!(said.contains(part), "no `{part}` in\n{said}");
    }
    let memory = Tidegate::start(&format!(
        "upstream = \"{}\"\n{LIMITS}",
        fleet.upstream.url()
    ));
    let (code, said) = refused(&memory, "show by_user 7");
    assert_eq!(code, 1);
    assert!(
        said.starts_with("error: proxy.toml keeps counts in the proxy's own"),
        "{said}"
    );
    std::fs::write(memory.directory.path().join("proxy.toml"), "lsten = 1\n").unwrap();
    let (code, said) = refused(&memory, "ls");
    assert_eq!(code, 78, "{said}");
    let (code, _) = refused(&memory, "ls -c nowhere.toml");
    assert_eq!(code, 1);
}

/// The command that makes a user, as a page has it.
fn rule<'p>(page: &'p str, user: &str) -> &'p str {
    let begin = format!("ACL SETUSER {user} ");
    let mut lines = page.lines().filter(|line| line.starts_with(&begin));
    lines.next().expect("the rule is documented")
}

#[test]
fn the_least_rights_suffice_to_say_and_to_hear() {
    let (redis, upstream) = (RedisServer::start(), Upstream::ok());
    let proxys = rule(include_str!("../../../docs/store.md"), "tidegate");
    let operators = rule(include_str!("../../../docs/overrides.md"), "operator");
    for rule in [proxys, operators] {
        assert_eq!(redis.run(rule), redis::Value::Okay, "{rule}");
    }
    let as_user = |user: &str| {
        let login = format!("redis://{user}:SECRET@");
        config(&redis, &upstream).replace("redis://", &login)
    };
    let proxy = Tidegate::start(&as_user("tidegate"));
    let denied = limits(&proxy, "block 127.0.0.1");
    let said = String::from_utf8(denied.stderr).unwrap();
    // In the server's own words, which differ from version to version.
    assert!(said.starts_with("error: the store says "), "{said}");
    assert!(said.contains("can't run this command"), "{said}");
    redis.run("ACL LOG RESET");
    let desk = proxy.directory.path().join("proxy.toml");
    std::fs::write(desk, as_user("operator")).unwrap();
    for words in [
        "override by_user 7 9/s,9/day --for 1h",
        "override by_user 7 --remove",
        "show by_user 7",
        "reset by_user 7",
        "block 127.0.0.1 --for 1h",
        "ls --audit",
    ] {
        let output = limits(&proxy, words);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(
            (output.status.code(), said.as_str()),
            (Some(0), ""),
            "{words}"
        );
    }
    eventually("the block is heard of", || proxy.get("/free").status == 429);
    assert_eq!(
        limits(&proxy, "block 127.0.0.1 --remove").status.code(),
        Some(0)
    );
    eventually("and its end", || proxy.get("/").status == 200);
    let denied = redis.run("ACL LOG");
    assert_eq!(denied, redis::Value::Array(Vec::new()), "{denied:?}");
}

/// One change by the script at a time of the test's own.
fn change(redis: &RedisServer, now_us: u64, words: (&str, &str), lasts_us: u64) -> Vec<i64> {
    let mut command = redis::cmd("EVAL");
    command.arg(SCRIPT).arg(4);
    for name in ["", "version", "changes", "ends"] {
        command.arg(format!("t:{{overrides}}{name}"));
    }
    command.arg(now_us).arg(words.0).arg(words.1).arg(lasts_us);
    command.arg("by x\n").arg(3).arg(5);
    command.query(&mut redis.connect()).unwrap()
}

#[test]
fn the_records_are_bounded_and_what_has_ended_makes_room() {
    let redis = RedisServer::start();
    let set = |now_us, field: &str, lasts_us| change(&redis, now_us, ("set", field), lasts_us);
    assert_eq!(set(1000, "b:1", 500), [1, 1500, 1000]);
    assert_eq!(set(1000, "b:2", 0), [1, 0, 1001], "a version of its own");
    assert_eq!(set(1001, "b:3", 900)[0], 1);
    assert_eq!(set(1499, "b:4", 0), [-1, 0, 0]);
    assert_eq!(
        set(1499, "b:2", 0)[0],
        1,
        "a record that is there may change"
    );
    assert_eq!(set(1500, "b:4", 0)[0], 1);
    assert_eq!(set(1501, "b:3", 0)[0], 1, "it has no end any more");
    assert_eq!(change(&redis, 9000, ("remove", "b:1"), 0)[0], 0);
    assert_eq!(change(&redis, 9000, ("remove", "b:3"), 0)[0], 1);
    assert_eq!(
        change(&redis, 9001, ("reset", "r:login:x"), 0),
        [1, 0, 9001]
    );
    assert_eq!(redis.run("HLEN t:{overrides}"), redis::Value::Int(2));
    assert_eq!(redis.run("ZCARD t:{overrides}ends"), redis::Value::Int(0));
    assert_eq!(redis.run("LLEN t:{overrides}changes"), redis::Value::Int(5));
}
