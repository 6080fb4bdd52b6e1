//! `ban` of a limit: a key that is denied often is denied everything for a while.

use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::Value;
use tidegate::limit::ban::DenialRecord;
use tidegate::limit::{Ban, Limit};
use tidegate::store::{Backing, Store};

use crate::admin::Looked;
use crate::cluster::nodes::RedisCluster;
use crate::house::{Answer, Tidegate, Upstream};
use crate::look::command;
use crate::probe::{eventually, statuses};
use crate::support::{Chance, RedisServer, item, limit as limited, log_rule, on_a_worker};
use crate::topologies::sentinels::Constellation;

const SCRIPT: &str = include_str!("../../lua/bans.lua");
const BANNED: &str = "https://iana.org/assignments/http-problem-types#abnormal-usage-detected";

const ROUTES: &str = "[limit.wide]\nrate = \"1_000_000/day\"\n\
    [[route]]\npath = \"/wide\"\nlimits = [\"wide\"]\nupstream = \"app\"\n\
    [[route]]\npath = \"/*\"\nlimits = [\"login\"]\nupstream = \"app\"\n";

/// A limit of one request a day, which bans after five denials.
fn limit(ban: &str) -> String {
    format!(
        "[limit.login]\nrate = \"1/day\"\nkey = \"header:x-user or ip\"\n\
         ban = {{ after = \"5/1h\", {ban} }}\n"
    )
}

fn store(redis: &RedisServer) -> String {
    format!("[store]\nurl = \"redis://127.0.0.1:{}\"\n", redis.port())
}

fn proxy(upstream: &Upstream, settings: &str) -> Tidegate {
    Tidegate::start(&format!(
        "{settings}\n[upstream.app]\nservers = \"{}\"\n{ROUTES}",
        upstream.url()
    ))
}

fn ask(proxy: &Tidegate, user: &str) -> Answer {
    proxy.get_with("/", &format!("X-User: {user}\r\n"))
}

fn is_banned(answer: &Answer) -> bool {
    answer.status == 429 && answer.text().contains(BANNED)
}

/// Makes the only request of the day, and so many denials.
fn deny(proxy: &Tidegate, user: &str, denials: usize) {
    let answers: Vec<Answer> = (0..=denials).map(|_| ask(proxy, user)).collect();
    let mut expected = vec![429; denials + 1];
    expected[0] = 200;
    assert_eq!(statuses(&answers), expected);
    assert!(!answers.iter().any(is_banned));
}

fn wait(answer: &Answer) -> u64 {
    answer.header("retry-after").unwrap().parse().unwrap()
}

fn limits(proxy: &Tidegate, words: &str) -> Value {
    let words: Vec<&str> = ["limits"].into_iter().chain(words.split(' ')).collect();
    let output = command(proxy.directory.path(), &words);
    serde_json::from_slice(&output.stdout).unwrap_or_else(|_| {
        panic!("{words:?}: {}", String::from_utf8_lossy(&output.stderr));
    })
}

fn blocks(proxy: &Tidegate) -> Vec<Value> {
    let list = limits(proxy, "ls --json");
    list["blocks"].as_array().unwrap().clone()
}

/// The denials of the only key that the store has been told of.
fn told_denials(redis: &RedisServer) -> u64 {
    let mut connection = redis.connect();
    let mut keys = redis::cmd("KEYS");
    let keys: Vec<String> = keys.arg("*bans:*").query(&mut connection).unwrap();
    let Some(key) = keys.first() else { return 0 };
    let mut read = redis::cmd("HGET");
    let text: String = read.arg(key).arg("login").query(&mut connection).unwrap();
    let numbers: Vec<u64> = text.split(' ').map(|word| word.parse().unwrap()).collect();
    numbers[2..].chunks(2).map(|of_time| of_time[1]).sum()
}

/// Calls of scripts that Redis has run.
fn calls(redis: &RedisServer) -> u64 {
    let text: String = redis::cmd("INFO")
        .arg("commandstats")
        .query(&mut redis.connect())
        .unwrap();
    let lines = text
        .lines()
        .filter(|line| line.contains("cmdstat_evalsha:"));
    let calls = lines.filter_map(|line| line.split("calls=").nth(1)?.split(',').next());
    calls.map(|calls| calls.parse::<u64>().unwrap()).sum()
}

#[test]
fn denials_of_two_proxies_begin_one_ban_that_both_hold() {
    let (upstream, redis) = (Upstream::ok(), RedisServer::start());
    let settings = store(&redis) + &limit("for = \"1h\"");
    let proxies = [proxy(&upstream, &settings), proxy(&upstream, &settings)];
    deny(&proxies[0], "a", 2);
    for _ in 0..2 {
        assert_eq!(ask(&proxies[1], "a").status, 429);
    }
    eventually("the store has four denials", || told_denials(&redis) == 4);
    assert!(!is_banned(&ask(&proxies[0], "a")));
    let since = Instant::now();
    for proxy in &proxies {
        eventually("the ban holds", || is_banned(&ask(proxy, "a")));
    }
    assert!(since.elapsed() < Duration::from_secs(5));
    let answer = ask(&proxies[1], "a");
    let problem: Value = serde_json::from_str(&answer.text()).unwrap();
    assert_eq!(problem["violated-policies"][0], "login");
    assert!((3590..=3600).contains(&wait(&answer)), "{answer:?}");
    assert_eq!(problem["retry_after"], wait(&answer));
    // Other clients are served.
    assert_eq!(ask(&proxies[1], "b").status, 200);
    let blocks = blocks(&proxies[1]);
    assert_eq!(blocks.len(), 1);
    assert_eq!(
        (&blocks[0]["by"], &blocks[0]["ban"]),
        (&"ban:login".into(), &"login".into())
    );
}

#[test]
fn banned_requests_ask_the_store_nothing_and_an_operator_ends_the_ban() {
    let (upstream, redis) = (Upstream::ok(), RedisServer::start());
    let proxy = proxy(
        &upstream,
        &(store(&redis) + &limit("for = \"1h\", again = 3")),
    );
    deny(&proxy, "a", 5);
    eventually("the ban holds", || is_banned(&ask(&proxy, "a")));
    let before = calls(&redis);
    for _ in 0..200 {
        assert!(is_banned(&ask(&proxy, "a")));
    }
    // Maintenance runs no script of decisions.
    assert_eq!(calls(&redis), before);
    let unblocked = limits(&proxy, "unblock header:x-user=a --json");
    assert!(unblocked["tag"].is_string(), "{unblocked}");
    eventually("the ban has ended", || !is_banned(&ask(&proxy, "a")));
    eventually("the next ban is a first one again", || {
        is_banned(&ask(&proxy, "a"))
    });
    let answer = ask(&proxy, "a");
    assert!((3590..=3600).contains(&wait(&answer)), "{answer:?}");
}

#[test]
fn an_operator_takes_back_denials_that_began_no_ban() {
    let (upstream, redis) = (Upstream::ok(), RedisServer::start());
    let proxy = proxy(&upstream, &(store(&redis) + &limit("for = \"1h\"")));
    deny(&proxy, "a", 3);
    eventually("the store has the denials", || told_denials(&redis) == 3);
    let unblocked = limits(&proxy, "unblock header:x-user=a --json");
    assert_eq!(told_denials(&redis), 0);
    let audit = limits(&proxy, "ls --audit --json");
    assert_eq!(audit["changes"][0]["tag"], unblocked["tag"], "{audit}");
    let directory = proxy.directory.path();
    for user in ["header:x-user=a", "header:x-user=never"] {
        let again = command(directory, &["limits", "unblock", user]);
        assert_eq!(again.status.code(), Some(1), "{again:?}");
    }
}

#[test]
fn a_ban_soon_after_another_lasts_longer() {
    for with_redis in [true, false] {
        let (upstream, redis) = (Upstream::ok(), RedisServer::start());
        let store = match with_redis {
            true => store(&redis),
            false => String::new(),
        };
        let ban = limit("for = \"2s\", again = 100, max_for = \"1h\"");
        let proxy = proxy(&upstream, &(store + &ban));
        deny(&proxy, "a", 5);
        eventually("the ban holds", || is_banned(&ask(&proxy, "a")));
        assert!(wait(&ask(&proxy, "a")) <= 2);
        eventually("it ends", || !is_banned(&ask(&proxy, "a")));
        eventually("the next one begins", || is_banned(&ask(&proxy, "a")));
        let answer = ask(&proxy, "a");
        assert!((150..=200).contains(&wait(&answer)), "{answer:?}");
    }
}

#[test]
fn the_embedded_store_bans_at_once_and_an_address_is_banned_everywhere() {
    let upstream = Upstream::ok();
    let looked = Looked::start(&format!(
        "[upstream.app]\nservers = \"{}\"\n[status]\npath = \"/look\"\n\
         [log]\naccess = \"stdout\"\nformat = \"json\"\n\
         decisions = \"decisions.jsonl\"\n{}{ROUTES}",
        upstream.url(),
        limit("for = \"1h\"")
    ));
    let proxy = &looked.tidegate;
    let ask = |path: &str| proxy.get(path);
    assert_eq!(ask("/wide").status, 200);
    let answers: Vec<Answer> = (0..7).map(|_| ask("/")).collect();
    assert_eq!(statuses(&answers), [200, 429, 429, 429, 429, 429, 429]);
    assert!(!is_banned(&answers[5]) && is_banned(&answers[6]));
    assert!(is_banned(&ask("/wide")));
    let look: Value = serde_json::from_str(&ask("/look").text()).unwrap();
    assert!(look["blocked_until"].is_string(), "{look}");
    eventually("the access log has the ban", || {
        let log = proxy.stdout();
        let mut lines = log.lines().filter(|line| line.contains("\"banned\""));
        lines.any(|line| line.contains("\"login\""))
    });
    let path = proxy.directory.path().join("decisions.jsonl");
    eventually("the decision log has the ban", || {
        let text = std::fs::read_to_string(&path).unwrap_or_default();
        text.contains("\"ban\":\"login\"")
    });
}

#[test]
fn operators_see_who_is_banned_and_until_when() {
    let upstream = Upstream::ok();
    let looked = Looked::start(&format!(
        "[upstream.app]\nservers = \"{}\"\n{}{ROUTES}",
        upstream.url(),
        limit("for = \"1h\"")
    ));
    for status in [200, 429, 429, 429, 429, 429, 429] {
        assert_eq!(looked.tidegate.get("/").status, status);
    }
    let metrics = looked.get("/metrics").text();
    for sample in [
        "tidegate_bans_total{limit=\"login\"} 1\n",
        "tidegate_banned 1\n",
    ] {
        assert!(metrics.contains(sample), "{sample}\n{metrics}");
    }
    let listed = &looked.json("/api/v1/overrides")["overrides"][0];
    assert_eq!(
        (&listed["what"], &listed["ban"]),
        (&"block".into(), &"login".into())
    );
    assert!(listed["until"].is_number(), "{listed}");
    assert_eq!(looked.json("/api/v1/status")["store"]["banned"], 1);
    let address = looked.address.to_string();
    let see = |words: &[&str]| {
        let words = [words, &["--admin", &address]].concat();
        let output = command(looked.tidegate.directory.path(), &words);
        String::from_utf8(output.stdout).unwrap()
    };
    let top = see(&["top", "--once"]);
    assert!(top.contains("(header:x-user or ip) by login for"), "{top}");
    let explained = see(&["explain", "GET", "/", "--ip", "127.0.0.1", "--live"]);
    assert!(
        explained.contains("`limit.login` banned the client until"),
        "{explained}"
    );
    let rule = "5 denials in 1h ban a key for 1h";
    assert!(explained.contains(rule), "{explained}");
    let limits = looked.json("/api/v1/limits");
    let [ban, none] = ["login", "wide"].map(|name| {
        let mut limits = limits["limits"].as_array().unwrap().iter();
        limits.find(|limit| limit["name"] == name).unwrap()["ban"].clone()
    });
    assert_eq!(
        (&ban["after"], &ban["window_seconds"]),
        (&5.into(), &3600.0.into())
    );
    assert_eq!(ban["for_seconds"], 3600.0);
    assert!(none.is_null(), "{none}");
    let id = listed["id"].as_str().unwrap();
    let body = serde_json::json!({ "id": id, "remove": true });
    let answer = looked.post("/api/v1/limits/login/block", &body);
    assert_eq!(answer.status, 200, "{}", answer.text());
    assert!(!is_banned(&looked.tidegate.get("/")));
    assert!(
        looked
            .get("/metrics")
            .text()
            .contains("tidegate_banned 0\n")
    );
}

#[test]
fn exempt_clients_are_never_banned() {
    let upstream = Upstream::ok();
    let limit = "[limit.login]\nrate = \"1/day\"\nexempt = [\"vip\"]\n\
        ban = { after = \"2/1h\", for = \"1h\" }\n";
    let proxy = proxy(&upstream, limit);
    let answers: Vec<Answer> = (0..4).map(|_| proxy.get("/")).collect();
    assert_eq!(statuses(&answers), [200, 429, 429, 429]);
    assert!(is_banned(&answers[3]));
    // The same address, with an exempt key.
    for path in ["/", "/wide"] {
        let answer = proxy.get_with(path, "X-Api-Key: vip\r\n");
        assert_eq!(answer.status, 200, "{}", answer.text());
    }
}

#[test]
fn a_proxy_without_its_store_bans_for_itself() {
    let (upstream, mut redis) = (Upstream::ok(), RedisServer::start());
    let settings = store(&redis) + &limit("for = \"1h\"");
    let proxies = [proxy(&upstream, &settings), proxy(&upstream, &settings)];
    assert_eq!(ask(&proxies[0], "a").status, 200);
    redis.kill();
    eventually("the ban holds here", || is_banned(&ask(&proxies[0], "a")));
    assert!(!is_banned(&ask(&proxies[1], "a")));
    redis.restart();
    eventually("the store is back", || ask(&proxies[1], "c").status == 200);
    // On a busy machine one answer was none of a ban.
    eventually("the ban goes on", || {
        let answer = ask(&proxies[0], "a");
        let is_banned = is_banned(&answer);
        if !is_banned {
            println!("not banned: {} {}", answer.status, answer.text());
        }
        is_banned
    });
    assert!(!is_banned(&ask(&proxies[1], "a")));
}

/// Tells the script denials of one key at a time of the test's own. Returns the state, until when
/// the key is blocked, and the number of the ban.
fn tell(connection: &mut redis::Connection, ban: &Ban, count: u64, now_us: u64) -> [u64; 3] {
    let mut call = redis::cmd("EVAL");
    call.arg(SCRIPT).arg(4);
    for name in ["", "version", "ends", "bans:x"] {
        call.arg(format!("t:{{overrides}}{name}"));
    }
    call.arg(now_us).arg(10);
    call.arg("login").arg("b:x").arg(count).arg(ban.after);
    call.arg(ban.window_us).arg(ban.first_us).arg(ban.again);
    call.arg(ban.max_us).arg("by ban:login\n");
    let reply: Vec<u64> = call.query(connection).unwrap();
    assert_eq!((reply[0] > 0, reply[1]), (reply[2] == 1, now_us));
    reply[2..].try_into().unwrap()
}

#[test]
fn the_script_and_its_twin_begin_the_same_bans() {
    let redis = RedisServer::start();
    let mut connection = redis.connect();
    let mut begun = 0;
    for seed in 1..=20 {
        let mut chance = Chance(seed);
        let ban = Ban {
            after: 1 + chance.below(9),
            window_us: 1 + chance.below(5_000_000),
            first_us: 1 + chance.below(3_000_000),
            again: 1 + chance.below(4),
            max_us: 3_000_000 + chance.below(20_000_000),
        };
        redis.run("FLUSHALL");
        let (mut twin, mut blocked_until_us) = (DenialRecord::default(), 0);
        // Keys must not expire by the server's own clock.
        let mut now_us = 4_000_000_000_000_000;
        for _ in 0..200 {
            now_us += match chance.below(9) {
                0 => chance.below(40_000_000),
                _ => chance.below(1_000_000),
            };
            let count = 1 + chance.below(3);
            let told = tell(&mut connection, &ban, count, now_us);
            if now_us < blocked_until_us {
                assert_eq!(told, [2, blocked_until_us, 0]);
                continue;
            }
            let expected = match twin.add(&ban, count, now_us) {
                None => [0, 0, 0],
                Some(one) => {
                    blocked_until_us = now_us + one.length_us;
                    begun += 1;
                    [1, blocked_until_us, u64::from(one.level)]
                }
            };
            assert_eq!(told, expected, "seed {seed}");
        }
    }
    assert!(begun > 100, "{begun}");
}

/// Asks until the client is banned on this path; the seconds that the ban still lasts.
fn ban_on(proxy: &Tidegate, path: &str, user: &str) -> u64 {
    let mut left = 0;
    eventually("the ban begins", || {
        let answer = proxy.get_with(path, &format!("X-User: {user}\r\n"));
        let is_banned = is_banned(&answer);
        left = if is_banned { wait(&answer) } else { 0 };
        is_banned
    });
    left
}

#[test]
fn bans_hold_and_begin_and_end_through_a_failover() {
    let (mut constellation, upstream) = (Constellation::start(), Upstream::ok());
    let first = constellation.master().unwrap();
    let short = "[limit.short]\nrate = \"1/day\"\nkey = \"header:x-user\"\n\
        ban = { after = \"5/1h\", for = \"2s\", again = 100, max_for = \"1h\" }\n\
        [[route]]\npath = \"/short\"\nlimits = [\"short\"]\nupstream = \"app\"\n";
    let store = format!("[store]\nurl = \"{}\"\n", constellation.url());
    let settings = store + &limit("for = \"1h\"") + short;
    let proxies = [proxy(&upstream, &settings), proxy(&upstream, &settings)];
    deny(&proxies[0], "a", 5);
    for proxy in &proxies {
        eventually("the ban holds", || is_banned(&ask(proxy, "a")));
    }
    assert!(ban_on(&proxies[0], "/short", "growing") <= 2);
    constellation.replicated(first);

    constellation.kill(first);
    let (_, second) = loop {
        assert!(proxies.iter().all(|proxy| is_banned(&ask(proxy, "a"))));
        if constellation.master().is_some_and(|master| master != first) {
            break constellation.agreed(first);
        }
    };
    for proxy in &proxies {
        proxy.wait_for_line("redis: back");
        assert!(is_banned(&ask(proxy, "a")));
    }
    // The new master has the denials and the bans so far.
    assert!(ban_on(&proxies[1], "/short", "growing") > 100);
    deny(&proxies[1], "b", 5);
    for proxy in &proxies {
        eventually("a ban of the new master holds", || {
            is_banned(&ask(proxy, "b"))
        });
    }
    limits(&proxies[0], "unblock header:x-user=a --json");
    for proxy in &proxies {
        eventually("the ban has ended", || !is_banned(&ask(proxy, "a")));
    }
    assert_eq!(constellation.master(), Some(second));
}

#[test]
fn a_cluster_begins_one_ban_for_all_its_proxies() {
    let cluster = RedisCluster::start(false, &[]);
    let settings = cluster.settings(Duration::from_secs(10));
    let ban = Ban {
        after: 6,
        window_us: 3_600_000_000,
        first_us: 3_600_000_000,
        again: 2,
        max_us: 3_600_000_000,
    };
    let limit = Arc::new(Limit {
        ban: Some(ban),
        ..Limit::clone(&limited("login", log_rule(1, Duration::from_secs(60))))
    });
    let check = item(&limit, 1, 1);
    on_a_worker(async {
        let backings = [(); 2].map(|()| Backing::new(&settings, None).unwrap());
        let stores = [backings[0].open(), backings[1].open()];
        for store in &stores {
            store.ready().await;
            for _ in 0..3 {
                store.count_denial(&check, store.hash_key().generation);
            }
        }
        let since = Instant::now();
        let is_banned = |store: &Store| {
            let blocks = store.overrides();
            blocks.is_some_and(|blocks| blocks.block_of(check.tag).is_some())
        };
        while !stores.iter().all(is_banned) {
            assert!(since.elapsed() < Duration::from_secs(20), "no ban begins");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        let begun = backings
            .iter()
            .map(|one| one.bans_begun().get("login").copied());
        assert_eq!(begun.map(|count| count.unwrap_or(0)).sum::<u64>(), 1);
    });
}
