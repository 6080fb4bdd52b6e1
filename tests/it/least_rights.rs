//! Quotas, bans, `delay`, known keys and the ledger with a user of Redis that has just the rights of
//! `docs/store.md`.

use std::path::Path;

use crate::house::{Tidegate, Upstream};
use crate::look::command;
use crate::probe::eventually;
use crate::support::RedisServer;

const STORE: &str = include_str!("../../docs/store.md");
const OVERRIDES: &str = include_str!("../../docs/overrides.md");
const KEY: &str = "X-Api-Key: a-key-of-the-least-rights\r\n";

const RULES: &str = "[api_key]\nknown = \"redis\"\n[status]\npath = \"/rate_limit\"\n[ledger]\n\
    [limit.plan]\nrate = [\"1000/month\", \"1000/day\"]\nkey = \"api_key\"\nmissing = \"skip\"\n\
    calendar = { zone = \"Europe/Berlin\", anchor = 15 }\n\
    [limit.slow]\nrate = \"1/100ms\"\nkey = \"path\"\ndelay = \"5s\"\n\
    [limit.login]\nrate = \"1/day\"\nkey = \"header:x-user or ip\"\n\
    ban = { after = \"3/1h\", for = \"1h\" }\n\
    [[route]]\npath = \"/login\"\nlimits = [\"login\"]\n\
    [[route]]\npath = \"/*\"\nlimits = [\"plan\", \"slow\"]\n";

/// The rule of a user, as a page has it.
fn rule(page: &str, user: &str) -> String {
    let begin = format!("ACL SETUSER {user} ");
    let line = page.lines().find(|line| line.starts_with(&begin));
    line.expect("the rule is documented").to_owned()
}

/// The rights that a line of the page adds.
fn more(begin: &str) -> &'static str {
    let line = STORE.lines().find(|line| line.starts_with(begin)).unwrap();
    let rights = line.split('`').find(|part| part.starts_with('+'));
    rights.expect("rights are documented")
}

/// Runs a command for operators beside this file.
fn says(folder: &Path, words: &[&str]) -> String {
    let words = [words, &["-c", "operator.toml"]].concat();
    let output = command(folder, &words);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{words:?}: {said}");
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn the_least_rights_suffice_for_quotas_bans_keys_and_the_ledger() {
    let (redis, upstream) = (RedisServer::start(), Upstream::ok());
    let [bans, ledger] = ["- [Bans]", "- `[ledger]`"].map(more);
    for rule in [
        format!("{} {bans} {ledger}", rule(STORE, "tidegate")),
        rule(OVERRIDES, "operator"),
    ] {
        assert_eq!(redis.run(&rule), redis::Value::Okay, "{rule}");
    }
    let file = |user: &str| {
        let port = redis.port();
        format!(
            "upstream = \"{}\"\n[store]\nurl = \"redis://{user}:SECRET@127.0.0.1:{port}\"\n\
             timeout = \"5s\"\n{RULES}",
            upstream.url()
        )
    };
    let proxy = Tidegate::start(&file("tidegate"));
    let folder = proxy.directory.path();
    std::fs::write(folder.join("operator.toml"), file("operator")).unwrap();
    redis.run("ACL LOG RESET");

    let key = KEY.split_whitespace().nth(1).unwrap();
    says(folder, &["keys", "add", "ann", "--key", key]);
    eventually("the key is known", || {
        let answer = proxy.get_with("/rate_limit", KEY);
        answer.status == 200 && answer.text().contains("plan/month")
    });
    for _ in 0..3 {
        assert_eq!(proxy.get_with("/", KEY).status, 200, "delayed");
    }
    let login = || proxy.get_with("/login", "X-User: eve\r\n");
    assert_eq!(login().status, 200);
    eventually("eve is banned", || {
        login().text().contains("abnormal-usage")
    });
    says(folder, &["limits", "unblock", "header:x-user=eve"]);
    eventually("the ban is over", || {
        !login().text().contains("abnormal-usage")
    });
    eventually("the ledger has it", || {
        let usage = says(folder, &["usage", "--by", "client", "--csv"]);
        usage.contains("\nann,client,3,")
    });
    says(folder, &["keys", "list"]);
    says(folder, &["keys", "remove", "ann"]);
    let denied = redis.run("ACL LOG");
    assert_eq!(denied, redis::Value::Array(Vec::new()), "{denied:?}");
}

#[test]
fn without_the_right_to_renew_a_key_the_store_is_away_and_not_forgetful() {
    let (redis, upstream) = (RedisServer::start(), Upstream::ok());
    let user = "ACL SETUSER some on >SECRET ~* &* +@all -expire";
    assert_eq!(redis.run(user), redis::Value::Okay);
    for algorithm in ["", "algorithm = \"log\"\n"] {
        let proxy = Tidegate::start(&format!(
            "upstream = \"{}\"\n[server]\nworkers = 1\n[store]\n\
             url = \"redis://some:SECRET@127.0.0.1:{}\"\ntimeout = \"5s\"\n\
             [limit.default]\nrate = \"1000/500ms\"\nkey = \"ip\"\n{algorithm}",
            upstream.url(),
            redis.port()
        ));
        eventually("the outage is told", || {
            proxy.get("/");
            let said = proxy.said();
            said.iter()
                .any(|line| line.contains("limits follow on_error"))
        });
    }
}
