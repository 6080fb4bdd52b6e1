//! The ledger: what each client used by day, with real proxies and a real Redis.

mod amounts;
mod cluster;
mod faults;

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::Value;

use crate::admin::Looked;
use crate::cluster::nodes::RedisCluster;
use crate::house::{Answer, Tidegate, Upstream};
use crate::look::command;
use crate::probe::eventually;
use crate::redis_faults::clock;
use crate::support::{Chance, RedisServer};
use crate::topologies::sentinels::Constellation;

const KEYS: &str = "k-acme acme\nk-globex globex\nk-initech initech\nk-nobody\n";
/// The name of the key without one: the beginning of its SHA-256.
const NAMELESS: &str = "sha256:d28d2c313ba0";

const RULES: &str = "[api_key]\nknown = \"keys.txt\"\n[log]\ndecisions = \"decisions\"\n\
                     [limit.plan]\nrate = \"1000/h\"\nkey = \"api_key or ip\"\n\
                     [limit.trial]\nrate = \"5/h\"\nkey = \"api_key or ip\"\nshadow = true\n\
                     [limit.few]\nrate = \"10/h\"\nkey = \"api_key or ip\"\n\
                     [upstream.app]\nservers = \"UPSTREAM\"\n\
                     [[route]]\npath = \"/few\"\nupstream = \"app\"\nlimits = [\"few\"]\n\
                     [[route]]\npath = \"/free\"\nupstream = \"app\"\nlimits = []\n\
                     [[route]]\npath = \"/*\"\nupstream = \"app\"\nlimits = [\"plan\", \"trial\"]\n\
                     [[bypass]]\npath = \"/healthz\"\n\
                     [status]\npath = \"/rate_limit\"\n";

fn start(upstream: &Upstream, store: &str, ledger: &str) -> Looked {
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("keys.txt"), KEYS).unwrap();
    let rules = RULES.replace("UPSTREAM", &upstream.url());
    let config = format!("[ledger]\n{ledger}\n[store]\nurl = \"{store}\"\n{rules}");
    Looked::start_in(directory, &config)
}

fn url(redis: &RedisServer) -> String {
    format!("redis://127.0.0.1:{}", redis.port())
}

fn ask(looked: &Looked, path: &str, key: &str) -> Answer {
    let header = match key {
        "" => String::new(),
        key => format!("X-Api-Key: {key}\r\n"),
    };
    looked.tidegate.get_with(path, &header)
}

/// The requests of each client, by this proxy's admin.
fn requests(looked: &Looked) -> BTreeMap<String, i64> {
    by_client(&looked.json("/api/v1/usage?by=client"), "requests")
}

fn by_client(usage: &Value, count: &str) -> BTreeMap<String, i64> {
    let rows = usage["rows"].as_array().unwrap().iter();
    let one = |row: &Value| {
        let client = row["client"].as_str().unwrap().to_owned();
        (client, row[count].as_i64().unwrap())
    };
    rows.map(one).collect()
}

fn expected(lines: &[(&str, i64)]) -> BTreeMap<String, i64> {
    let lines = lines
        .iter()
        .map(|(name, count)| ((*name).to_owned(), *count));
    lines.collect()
}

fn wait_for(looked: &Looked, lines: &[(&str, i64)]) {
    let expected = expected(lines);
    let mut last = BTreeMap::new();
    eventually(&format!("the ledger has {expected:?}"), || {
        let now = requests(looked);
        if now != last {
            println!("{now:?}");
            last = now;
        }
        last == expected
    });
}

/// The lines of a decision log that allow a request, without those of limits in shadow mode and
/// those of looks at `[status]`, which cost nothing.
fn allowed(directory: &Path) -> usize {
    let text = std::fs::read_to_string(directory.join("decisions")).unwrap();
    let has = |line: &str, word: &str| line.contains(word);
    let is_allowed =
        |line: &&str| has(line, "\"allowed\":true") && !has(line, "\"role\"") && !has(line, ",0]");
    text.lines().filter(is_allowed).count()
}

#[test]
fn the_ledger_of_two_proxies_has_what_their_decision_logs_allow() {
    let (upstream, redis) = (Upstream::ok(), RedisServer::start());
    let proxies = [(); 2].map(|()| start(&upstream, &url(&redis), ""));
    let mut chance = Chance(7);
    let mut counts: BTreeMap<String, i64> = BTreeMap::new();
    let clients = [
        ("k-acme", "acme"),
        ("k-globex", "globex"),
        ("made-up", "unknown"),
        ("", "unknown"),
    ];
    for _ in 0..150 {
        let (key, name) = chance.pick(&clients);
        let path = chance.pick(&[
            "/",
            "/few",
            "/free",
            "/healthz",
            "/rate_limit",
            "/none/../x",
        ]);
        let proxy = &proxies[usize::try_from(chance.below(2)).unwrap()];
        let answer = ask(proxy, path, key);
        let counts_here = ["/", "/few", "/none/../x"].contains(&path) && answer.status == 200;
        if counts_here {
            *counts.entry(name.to_owned()).or_default() += 1;
        }
    }
    assert!(counts.len() == 3, "{counts:?}");
    let all: Vec<(&str, i64)> = counts
        .iter()
        .map(|(name, count)| (&**name, *count))
        .collect();
    wait_for(&proxies[0], &all);
    wait_for(&proxies[1], &all);
    let of_log = proxies.map(|proxy| {
        let mut tidegate = proxy.tidegate;
        tidegate.signal("TERM");
        assert!(tidegate.wait().success());
        allowed(tidegate.directory.path())
    });
    let of_log: usize = of_log.iter().sum();
    assert_eq!(i64::try_from(of_log).unwrap(), counts.values().sum::<i64>());
}

#[test]
fn a_key_without_a_name_is_known_by_its_hash_and_no_key_is_shown() {
    let upstream = Upstream::ok();
    let looked = start(&upstream, "memory:", "");
    for key in ["k-nobody", "k-nobody", "k-acme"] {
        assert_eq!(ask(&looked, "/", key).status, 200);
    }
    eventually("the ledger has both", || requests(&looked).len() == 2);
    let usage = looked.json("/api/v1/usage");
    let rows = usage["rows"].as_array().unwrap();
    let nameless = rows[1]["client"].as_str().unwrap();
    assert_eq!(nameless, NAMELESS);
    assert!(!usage.to_string().contains("k-"), "{usage}");
    assert_eq!(rows[1]["requests"], 2);
    assert_eq!(rows[0]["kind"], "client");
}

#[test]
fn clients_beyond_the_bound_share_a_line() {
    let (upstream, redis) = (Upstream::ok(), RedisServer::start());
    for store in ["memory:".to_owned(), url(&redis)] {
        let looked = start(&upstream, &store, "max_clients = 1");
        assert_eq!(ask(&looked, "/", "k-globex").status, 200);
        wait_for(&looked, &[("globex", 1)]);
        for key in ["k-acme", "k-globex", "k-initech", "k-acme", "made-up"] {
            assert_eq!(ask(&looked, "/", key).status, 200);
        }
        wait_for(&looked, &[("globex", 2), ("other", 3), ("unknown", 1)]);
        looked
            .tidegate
            .wait_for_line("more clients than `max_clients`");
        let metrics = looked.get("/metrics").text();
        let line = "tidegate_ledger_other_units_total{counts=\"requests\"} 3";
        assert!(metrics.contains(line), "{metrics}");
        assert!(
            metrics.contains("tidegate_ledger_lag_seconds "),
            "{metrics}"
        );
    }
}

#[test]
fn a_sum_that_does_not_fit_holds_up_no_other_usage() {
    let (upstream, redis) = (Upstream::ok(), RedisServer::start());
    let looked = start(&upstream, &url(&redis), "");
    for key in ["k-acme", "k-globex", "k-initech"] {
        assert_eq!(ask(&looked, "/", key).status, 200);
    }
    wait_for(&looked, &[("acme", 1), ("globex", 1), ("initech", 1)]);
    let hashes: Vec<String> =
        redis::from_redis_value(redis.run("KEYS tidegate:{ledger:*")).unwrap();
    for hash in hashes {
        if redis.run(&format!("HEXISTS {hash} r:acme")) == redis::Value::Int(1) {
            redis.run(&format!("HSET {hash} r:acme {}", i64::MAX));
        }
    }
    for key in ["k-acme", "k-globex", "k-initech"] {
        assert_eq!(ask(&looked, "/", key).status, 200);
    }
    wait_for(
        &looked,
        &[("acme", i64::MAX), ("globex", 2), ("initech", 2)],
    );
}

#[test]
fn a_request_belongs_to_the_day_of_its_decision_in_the_zone() {
    let (upstream, redis) = (Upstream::ok(), clock::redis());
    let looked = start(&upstream, &url(&redis), "zone = \"+05:30\"");
    let local_s = || i64::try_from(tidegate::clock::unix_us() / 1_000_000).unwrap() + 19_800;
    let midnight_s = (local_s() / 86_400 + 1) * 86_400;
    for (from_midnight, count) in [(-60, 2), (60, 3)] {
        let offset = midnight_s + from_midnight - local_s();
        clock::set(&redis, offset);
        eventually("the clock is set", || {
            let (now_s, _): (i64, i64) = redis::from_redis_value(redis.run("TIME")).unwrap();
            (now_s + 19_800 - midnight_s - from_midnight).abs() <= 2
        });
        for _ in 0..count {
            assert_eq!(ask(&looked, "/", "k-acme").status, 200);
        }
    }
    let day = |day_s: i64| day_of(day_s).to_string();
    let (before, after) = (day(midnight_s - 1), day(midnight_s));
    let path = format!("/api/v1/usage?from={before}&to={after}&by=day");
    let mut days = Vec::new();
    eventually("both days are there", || {
        let usage = looked.json(&path);
        let rows = usage["rows"].as_array().unwrap().iter();
        let of = |row: &Value| {
            let day = row["day"].as_str().unwrap().to_owned();
            format!("{day} {}", row["requests"])
        };
        days = rows.map(of).collect();
        days.len() == 2 && days[1].ends_with(" 3")
    });
    assert_eq!(days, [format!("{before} 2"), format!("{after} 3")]);
}

/// The day of this many seconds since the Unix epoch.
fn day_of(unix_s: i64) -> jiff::civil::Date {
    let at = jiff::Timestamp::from_second(unix_s).unwrap();
    jiff::tz::TimeZone::UTC.to_datetime(at).date()
}

#[test]
fn without_redis_the_days_are_those_of_the_machine() {
    let (upstream, directory) = (Upstream::ok(), tempfile::tempdir().unwrap());
    std::fs::write(directory.path().join("keys.txt"), KEYS).unwrap();
    let [library, offset] = clock::files(directory.path());
    let control = directory.path().join("control.sock");
    let config = format!(
        "admin = \"127.0.0.1:0\"\n{}[ledger]\n[server]\ncontrol = \"{}\"\n",
        RULES.replace("UPSTREAM", &upstream.url()),
        control.display()
    );
    let env = [
        ("LD_PRELOAD", library.as_str()),
        ("CLOCK_OFFSET", offset.as_str()),
    ];
    let tidegate = Tidegate::start_in(directory, &config, &env);
    let line = tidegate.wait_for_line("dashboard  http://");
    let address = line.split('/').nth(2).unwrap().parse().unwrap();
    let looked = Looked { tidegate, address };
    let now_s = i64::try_from(tidegate::clock::unix_us() / 1_000_000).unwrap();
    for days in 0..2 {
        clock::set_in(looked.tidegate.directory.path(), days * 86_400);
        assert_eq!(ask(&looked, "/", "k-acme").status, 200);
    }
    let (from, to) = (day_of(now_s), day_of(now_s + 86_400));
    let path = format!("/api/v1/usage?from={from}&to={to}&by=day");
    eventually("each day has a request", || {
        let usage = looked.json(&path);
        let rows = usage["rows"].as_array().unwrap();
        rows.len() == 2 && rows.iter().all(|row| row["requests"] == 1)
    });
}

const SAID: &str = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 69\r\n\r\n\
                    {\"model\":\"m\",\"usage\":{\"prompt_tokens\":60,\"completion_tokens\":   40}}\n";
const FAILED: &str = "HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n";

#[test]
fn tokens_and_money_are_corrected_to_what_answers_say() {
    let upstream = Upstream::start(|seen, stream| {
        use std::io::Write as _;
        let said = if seen.is_for("/broken") { FAILED } else { SAID };
        stream.write_all(said.as_bytes()).is_ok()
    });
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("keys.txt"), KEYS).unwrap();
    let looked = Looked::start_in(
        directory,
        &format!(
            "[ledger]\n[api_key]\nknown = \"keys.txt\"\n\
             [prices]\nm = {{ input = 1.0, output = 10.0 }}\n\
             [log]\naccess = \"stdout\"\nsample_allowed = 1.0\n\
             [usage.chat]\nformat = \"openai\"\n\
             [limit.tokens]\nrate = \"100000/h\"\nkey = \"api_key\"\ncounts = \"tokens\"\n\
             [upstream.app]\nservers = \"{}\"\n\
             [[route]]\npath = \"/*\"\nupstream = \"app\"\nlimits = [\"tokens\"]\n\
             usage = \"chat\"\nrefund = [\"503\"]\n",
            upstream.url()
        ),
    );
    let body = "{\"model\":\"m\",\"max_tokens\":4000}";
    let call = |path: &str| {
        let mut client = looked.tidegate.connect();
        let head = format!(
            "POST {path} HTTP/1.1\r\nHost: test\r\nX-Api-Key: k-acme\r\nContent-Length: {}\r\n\r\n",
            body.len()
        );
        client.ask(head + body).status
    };
    assert_eq!([call("/"), call("/"), call("/broken")], [200, 200, 503]);
    // 2 x (60 input at 1, 40 output at 10) millionths; what was refunded costs nothing.
    let mut usage = Value::Null;
    eventually("the ledger has the final tokens", || {
        usage = looked.json("/api/v1/usage?by=client");
        by_client(&usage, "tokens") == expected(&[("acme", 200)])
    });
    assert_eq!(by_client(&usage, "requests"), expected(&[("acme", 3)]));
    assert_eq!(by_client(&usage, "money"), expected(&[("acme", 920)]));
    let log = looked.tidegate.stdout();
    let logged = |line: &str| {
        let line: Value = serde_json::from_str(line).unwrap();
        let tokens = |name: &str| line[name].as_i64().unwrap_or(0);
        tokens("tokens_in") + tokens("tokens_out")
    };
    println!("{log}");
    let sum: i64 = log.lines().map(logged).sum();
    assert!(sum == 200 || sum == 0, "{log}");
}

#[test]
fn a_call_is_billed_by_the_model_that_it_asked_for() {
    let upstream = Upstream::saying(SAID);
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("keys.txt"), KEYS).unwrap();
    let looked = Looked::start_in(
        directory,
        &format!(
            "upstream = \"{}\"\n[ledger]\n[api_key]\nknown = \"keys.txt\"\n\
             [prices]\nnamed = {{ input = 1.0, output = 10.0 }}\n\
             [limit.calls]\nrate = \"9/h\"\nkey = \"api_key\"\ncounts = \"requests\"\n\
             [[route]]\npath = \"/*\"\nlimits = [\"calls\"]\nusage = \"openai\"\n",
            upstream.url()
        ),
    );
    let body = "{\"model\":\"named\"}";
    let head = format!(
        "POST / HTTP/1.1\r\nHost: test\r\nX-Api-Key: k-acme\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    assert_eq!(looked.tidegate.connect().ask(head + body).status, 200);
    eventually("the ledger has its price", || {
        let usage = looked.json("/api/v1/usage?by=client");
        by_client(&usage, "money") == expected(&[("acme", 460)])
    });
}

fn csv(directory: &Path, words: &[&str]) -> String {
    let words = [&["usage", "--csv"][..], words].concat();
    let output = command(directory, &words);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{said}");
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn a_proxy_that_ends_sends_what_it_has_and_the_command_exports_it() {
    let (upstream, redis) = (Upstream::ok(), RedisServer::start());
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("keys.txt"), KEYS).unwrap();
    let rules = RULES.replace("UPSTREAM", &upstream.url());
    let config = format!("{rules}[ledger]\n[store]\nurl = \"{}\"\n", url(&redis));
    let mut proxy = Tidegate::start_in(directory, &config, &[]);
    for key in ["k-globex", "k-acme", "k-globex", "made-up"] {
        let answer = proxy.get_with("/", &format!("X-Api-Key: {key}\r\n"));
        assert_eq!(answer.status, 200);
    }
    proxy.signal("TERM");
    assert!(proxy.wait().success());
    let directory = proxy.directory.path();
    let today = csv(directory, &["--by", "day"]);
    let today = today
        .split("\r\n")
        .nth(1)
        .unwrap()
        .split(',')
        .next()
        .unwrap()
        .to_owned();
    let expected = format!(
        "client,kind,day,requests,tokens,money\r\nacme,client,{today},1,0,0.000000\r\n\
         globex,client,{today},2,0,0.000000\r\nunknown,unknown,{today},1,0,0.000000\r\n"
    );
    assert_eq!(csv(directory, &[]), expected);
    assert_eq!(
        csv(directory, &["--from", &today, "--to", &today]),
        expected
    );
    let none = csv(directory, &["--from", "2020-01-01", "--to", "2020-01-31"]);
    assert_eq!(none, "client,kind,day,requests,tokens,money\r\n");
    let json = command(directory, &["usage", "--json", "--by", "client"]);
    let json: Value = serde_json::from_slice(&json.stdout).unwrap();
    assert_eq!(json["total"]["requests"], 4);
    let table = command(directory, &["usage"]);
    let table = String::from_utf8(table.stdout).unwrap();
    assert!(
        table.lines().last().unwrap().starts_with("total"),
        "{table}"
    );
    let wrong = command(directory, &["usage", "--from", "yesterday"]);
    assert_eq!(wrong.status.code(), Some(2));
}

#[test]
fn the_ledger_is_in_a_cluster_and_behind_sentinels_too() {
    let upstream = Upstream::ok();
    let (cluster, constellation) = (RedisCluster::start(false, &[]), Constellation::start());
    for store in [cluster.url(), constellation.url()] {
        let proxies = [(); 2].map(|()| start(&upstream, &store, "max_clients = 3"));
        for proxy in &proxies {
            for key in ["k-acme", "k-globex", "k-initech", "made-up", "k-acme"] {
                assert_eq!(ask(proxy, "/", key).status, 200);
            }
        }
        let all = [("acme", 4), ("globex", 2), ("initech", 2), ("unknown", 2)];
        wait_for(&proxies[0], &all);
        wait_for(&proxies[1], &all);
    }
}

#[test]
fn a_proxy_without_a_ledger_says_so() {
    let upstream = Upstream::ok();
    let looked = Looked::start(&format!("upstream = \"{}\"", upstream.url()));
    assert_eq!(looked.get("/api/v1/usage").status, 404);
    let with = start(&upstream, "memory:", "");
    for (query, status) in [("by=limit", 400), ("from=2026-13-01", 400), ("by=", 200)] {
        let answer = with.get(&format!("/api/v1/usage?{query}"));
        assert_eq!(answer.status, status, "{query}: {}", answer.text());
    }
    assert!(!looked.get("/metrics").text().contains("tidegate_ledger"));
}

#[test]
fn a_request_that_gives_its_booking_back_is_not_billed() {
    let upstream = Upstream::ok();
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("keys.txt"), KEYS).unwrap();
    let looked = Looked::start_in(
        directory,
        &format!(
            "upstream = \"{}\"\n[ledger]\n[api_key]\nknown = \"keys.txt\"\n[limit.default]\n\
             rate = \"1/3s\"\nkey = \"global\"\ndelay = \"1min\"\n",
            upstream.url()
        ),
    );
    assert_eq!(ask(&looked, "/", "k-acme").status, 200);
    let held = || {
        let metrics = looked.get("/metrics").text();
        metrics.contains("tidegate_waiting{limit=\"default\"} 1")
    };
    let mut leaver = looked.tidegate.connect();
    leaver.send("GET / HTTP/1.1\r\nHost: test\r\nX-Api-Key: k-globex\r\n\r\n");
    eventually("it is held", held);
    drop(leaver);
    eventually("it has left", || !held());
    assert_eq!(ask(&looked, "/", "k-acme").status, 200, "held, and billed");
    wait_for(&looked, &[("acme", 2)]);
}
