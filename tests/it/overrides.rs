//! What operators say of single clients: overrides, blocks and resets, made on the command line and
//! held by every proxy of one Redis within a second.

mod commands;

use std::process::{Command, Output};
use std::time::{Duration, Instant};

use crate::house::{Answer, PATIENCE, Tidegate, Upstream};
use crate::pace::Pace;
use crate::probe::{eventually, statuses};
use crate::support::RedisServer;

/// In how much time every proxy must hold to what was said.
const SOON: Duration = Duration::from_secs(1);

/// Two proxies of one Redis, each with its own file of the same text.
struct Fleet {
    redis: RedisServer,
    proxies: [Tidegate; 2],
    upstream: Upstream,
}

const LIMITS: &str = "[limit.by_user]\nrate = \"3/day\"\nkey = \"header:x-user\"\n\
    [limit.roomy]\nrate = \"1000/day\"\nkey = \"header:x-user\"\n\
    [[route]]\npath = \"/roomy\"\nlimits = [\"roomy\"]\n\
    [limit.wide]\nrate = \"1_000_000/day\"\nkey = \"global\"\n\
    [[route]]\npath = \"/*\"\nlimits = [\"by_user\"]\n\
    [[route]]\npath = \"/wide\"\nlimits = [\"wide\"]\n\
    [[route]]\npath = \"/free\"\nlimits = []\n\
    [[bypass]]\npath = \"/healthz\"\n";

impl Fleet {
    fn start() -> Fleet {
        Fleet::before(RedisServer::start())
    }

    fn before(redis: RedisServer) -> Fleet {
        let upstream = Upstream::ok();
        let config = config(&redis, &upstream);
        Fleet {
            proxies: [Tidegate::start(&config), Tidegate::start(&config)],
            redis,
            upstream,
        }
    }

    /// `tidegate limits WORDS`, which works.
    fn limits(&self, words: &str) -> String {
        let output = limits(&self.proxies[0], words);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{words}: {said}");
        assert_eq!(said, "", "{words}");
        String::from_utf8(output.stdout).unwrap()
    }

    /// The same, which does not: its exit code and what it says.
    fn refused(&self, words: &str) -> (i32, String) {
        refused(&self.proxies[0], words)
    }

    /// One request through each proxy.
    fn ask(&self, path: &str, headers: &str) -> Vec<Answer> {
        let ask = |proxy: &Tidegate| proxy.get_with(path, headers);
        self.proxies.iter().map(ask).collect()
    }

    /// Waits until both proxies answer so, for as long as what was said may take.
    fn soon(&self, path: &str, headers: &str, holds: impl Fn(&Answer) -> bool) -> Vec<Answer> {
        let (since, pace) = (Instant::now(), Pace::begin());
        let mut answers = Vec::new();
        for proxy in &self.proxies {
            loop {
                let answer = proxy.get_with(path, headers);
                if holds(&answer) {
                    answers.push(answer);
                    break;
                }
                let waited = since.elapsed();
                let granted = SOON + pace.grants();
                assert!(waited < granted, "still {answer:?} after {waited:?}");
                std::thread::sleep(Duration::from_millis(10));
            }
        }
        answers
    }
}

/// Answered with that status, by that limit.
fn is(status: u16, limit: Option<&str>) -> impl Fn(&Answer) -> bool {
    move |answer| answer.status == status && answer.header("x-ratelimit-limit").as_deref() == limit
}

fn config(redis: &RedisServer, upstream: &Upstream) -> String {
    // A denial of this store is known for a long while: nothing here may be a mere expiry.
    format!(
        "upstream = \"{}\"\n[store]\nurl = \"redis://127.0.0.1:{}\"\ntimeout = \"5s\"\n\
         [log]\naccess = \"stdout\"\n{LIMITS}",
        upstream.url(),
        redis.port()
    )
}

fn limits(proxy: &Tidegate, words: &str) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
    command.arg("limits").args(words.split(' '));
    command.env("USER", "ann").env_remove("SUDO_USER");
    command.current_dir(proxy.directory.path());
    command.output().unwrap()
}

fn refused(proxy: &Tidegate, words: &str) -> (i32, String) {
    let output = limits(proxy, words);
    assert_eq!(String::from_utf8_lossy(&output.stdout), "", "{words}");
    let said = String::from_utf8(output.stderr).unwrap();
    (output.status.code().unwrap(), said)
}

fn seconds(answer: &Answer, header: &str) -> u64 {
    let value = answer.header(header);
    let value = value.unwrap_or_else(|| panic!("no {header}: {answer:?}"));
    value.parse().unwrap()
}

#[test]
fn an_override_raises_and_lowers_on_every_proxy_within_a_second() {
    let fleet = Fleet::start();
    let user = "X-User: 7\r\n";
    let first: Vec<Answer> = fleet
        .proxies
        .iter()
        .map(|one| one.get_with("/", user))
        .collect();
    assert_eq!(statuses(&first), [200, 200]);
    assert_eq!(statuses(&fleet.ask("/", user)), [200, 429]);
    assert_eq!(statuses(&fleet.ask("/", user)), [429, 429]);

    let told = fleet.limits("override by_user 7 9/day --for 24h --note paid");
    assert!(told.starts_with("by_user: key "), "{told}");
    assert!(told.contains("(header:x-user) has 9/d until 20"), "{told}");
    fleet.soon("/", user, is(200, Some("9")));
    // Others have what the limit says.
    let other = fleet.proxies[0].get_with("/", "X-User: 8\r\n");
    assert_eq!(other.header("x-ratelimit-limit").as_deref(), Some("3"));

    fleet.limits("override by_user header:x-user=7 2/day");
    fleet.soon("/", user, is(429, Some("2")));
    fleet.limits("override by_user 7 9/s,4/day");
    let several = fleet.soon("/", user, is(429, Some("4")));
    let policy = several[0].header("ratelimit-policy").unwrap();
    assert_eq!(policy, "\"by_user/s\";q=9;w=1, \"by_user/d\";q=4;w=86400");
    fleet.limits("override by_user 7 unlimited");
    fleet.soon("/", user, is(200, None));
    fleet.limits("override by_user 7 --remove");
    fleet.soon("/", user, is(429, Some("3")));
    let (code, said) = fleet.refused("override by_user 7 --remove");
    assert_eq!(
        (code, said.as_str()),
        (1, "error: that key has no override in `by_user`\n")
    );
}

#[test]
fn an_override_ends_when_it_said() {
    let fleet = Fleet::start();
    let user = "X-User: 7\r\n";
    assert_eq!(fleet.proxies[0].get_with("/roomy", user).status, 200);
    let before = Instant::now();
    fleet.limits("override roomy 7 1/day --for 4s");
    let after = Instant::now();
    // A denial that would be known for a day, were it not for the end of what it follows from.
    fleet.soon("/roomy", user, is(429, Some("1")));
    let lasts = Duration::from_secs(4);
    while before.elapsed() < lasts - Duration::from_millis(100) {
        let held = fleet.ask("/roomy", user);
        if before.elapsed() < lasts {
            assert_eq!(statuses(&held), [429, 429], "until its end");
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    std::thread::sleep((after + lasts).saturating_duration_since(Instant::now()));
    fleet.soon("/roomy", user, is(200, Some("1000")));
    let line = fleet.proxies[0].wait_for_line("override ended");
    assert!(line.contains("roomy"), "{line}");
}

#[test]
fn a_block_keeps_its_client_out_everywhere_and_says_how_long() {
    let fleet = Fleet::start();
    assert_eq!(fleet.proxies[0].get("/wide").status, 200);
    fleet.limits("block 127.0.0.1 --for 6s");
    let (made, pace) = (Instant::now(), Pace::begin());
    let blocked = fleet.soon("/wide", "", |answer| answer.status == 429);
    for answer in &blocked {
        answer.assert_problem(429);
        let text = answer.text();
        assert!(text.contains("\"title\":\"Blocked\""), "{text}");
        assert!(text.contains("http-problem-types#quota-exceeded"), "{text}");
        assert!(text.contains("\"violated-policies\":[\"block\"]"), "{text}");
        assert_eq!(
            answer.header("x-ratelimit-limit"),
            None,
            "nothing was asked"
        );
        assert!(
            (1..=6).contains(&seconds(answer, "retry-after")),
            "{answer:?}"
        );
    }
    for path in ["/", "/wide", "/free"] {
        assert_eq!(
            statuses(&fleet.ask(path, "X-User: 9\r\n")),
            [429, 429],
            "{path}"
        );
    }
    assert_eq!(
        statuses(&fleet.ask("/healthz", "")),
        [200, 200],
        "a bypass is one"
    );
    // Denied until the named second, allowed at it.
    let answer = fleet.proxies[1].get("/free");
    let wait = Duration::from_secs(seconds(&answer, "retry-after"));
    assert_eq!(fleet.proxies[1].get("/free").status, 429);
    assert!(made.elapsed() + wait < Duration::from_secs(7) + pace.grants());
    std::thread::sleep(wait);
    assert_eq!(statuses(&fleet.ask("/free", "")), [200, 200]);
    let line = fleet.proxies[0].wait_for_line("block ended");
    assert!(line.contains("\"key\":\""), "{line}");
    eventually("its line in the access log", || {
        let log = fleet.proxies[0].stdout();
        log.lines().any(|line| {
            line.contains("\"reason\":\"blocked\"")
                && line.contains("\"denied_by\":[{\"limit\":\"block\",\"key\":\"")
                && line.contains("\"outcome\":\"denied\"")
        })
    });
}

#[test]
fn a_block_without_an_end_names_none() {
    let fleet = Fleet::start();
    let key = "X-Api-Key: abc==\r\n";
    fleet.limits("block abc==");
    let blocked = fleet.soon("/free", key, |answer| answer.status == 429);
    assert_eq!(blocked[0].header("retry-after"), None);
    assert_eq!(statuses(&fleet.ask("/free", "")), [200, 200], "others");
    let two = "X-Api-Key: abc==\r\nX-Api-Key: other\r\n";
    assert_eq!(
        statuses(&fleet.ask("/free", two)),
        [400, 400],
        "hidden behind another"
    );
    // Also whatever else a limit counts by, where it does.
    fleet.limits("block header:x-user=7");
    fleet.soon("/", "X-User: 7\r\n", |answer| answer.status == 429);
    assert_eq!(statuses(&fleet.ask("/wide", "X-User: 7\r\n")), [200, 200]);
    // Who starts later knows it from the first request on.
    let late = Tidegate::start(&config(&fleet.redis, &fleet.upstream));
    assert_eq!(late.get_with("/free", key).status, 429);
    // And while the store is away.
    fleet.redis.freeze();
    let path_of_a_limit = late.get_with("/wide", key);
    assert_eq!(path_of_a_limit.status, 429, "{path_of_a_limit:?}");
    assert!(path_of_a_limit.text().contains("Blocked"));
    fleet.redis.thaw();
    fleet.limits("block api_key=abc== --remove");
    fleet.soon("/free", key, |answer| answer.status == 200);
    let (code, said) = fleet.refused("block api_key=abc== --remove");
    assert_eq!(
        (code, said.as_str()),
        (1, "error: that key is not blocked\n")
    );
}

#[test]
fn a_reset_lets_pass_at_once() {
    let fleet = Fleet::start();
    let user = "X-User: 7\r\n";
    let spent: Vec<u16> = (0..4)
        .flat_map(|_| statuses(&fleet.ask("/", user)))
        .collect();
    assert_eq!(spent, [200, 200, 200, 429, 429, 429, 429, 429]);
    let shown = fleet.limits("show by_user 7");
    let row = shown.lines().find(|line| line.starts_with("by_user  3/d"));
    let row: Vec<&str> = row
        .unwrap_or_else(|| panic!("{shown}"))
        .split_whitespace()
        .collect();
    assert_eq!(row[1..4], ["3/d", "3", "0"], "{shown}");
    let told = fleet.limits("reset by_user 7");
    assert!(
        told.ends_with("(header:x-user) starts at zero within a second\n"),
        "{told}"
    );
    let passed = fleet.soon("/", user, |answer| answer.status == 200);
    assert_eq!(
        passed[0].header("x-ratelimit-remaining").as_deref(),
        Some("2")
    );
    // A show charges nothing.
    let shown = |_| fleet.limits("show by_user 7 --json");
    let shown: Vec<String> = (0..3).map(shown).collect();
    assert!(shown[2].contains("\"used\":2,\"remaining\":1"), "{shown:?}");
    assert!(
        shown[2].contains("\"retry\":\"now\",\"retry_us\":0"),
        "{shown:?}"
    );
}

#[test]
fn every_change_is_listed_and_told_once_by_each_proxy() {
    let fleet = Fleet::start();
    for proxy in &fleet.proxies {
        // What was said before it first read is not news to it.
        eventually("it has read", || {
            fleet.limits("reset by_user none");
            std::thread::sleep(Duration::from_millis(600));
            proxy
                .said()
                .iter()
                .any(|line| line.contains("overrides: reset"))
        });
    }
    std::thread::sleep(Duration::from_millis(600));
    fleet.proxies.iter().for_each(|proxy| drop(proxy.said()));
    fleet.limits("override by_user 7 9/day --for 24h --note paid");
    fleet.limits("block 203.0.113.9 --for 1h");
    fleet.limits("reset by_user 8");
    for proxy in &fleet.proxies {
        let line = proxy.wait_for_line("overrides: override");
        for part in [
            "\"level\":\"INFO\"",
            "\"limit\":\"by_user\"",
            "\"rate\":\"9/d\"",
            "\"until\":\"20",
            "\"by\":\"ann@",
            "\"note\":\"paid\"",
        ] {
            assert!(line.contains(part), "{part} is missing from {line}");
        }
        proxy.wait_for_line("overrides: block");
        proxy.wait_for_line("overrides: reset");
        std::thread::sleep(Duration::from_millis(600));
        let more: Vec<String> = proxy.said();
        assert!(
            !more.iter().any(|line| line.contains("overrides: ")),
            "{more:?}"
        );
    }
    let listed = fleet.limits("ls");
    for part in [
        "by_user  3/d",
        "by_user   ",
        "9/d   until 20",
        "ann@",
        "paid",
        "(ip)  until 20",
    ] {
        assert!(listed.contains(part), "{part} is missing from {listed}");
    }
    let audit = fleet.limits("ls --audit");
    let changes = audit.lines().skip_while(|line| !line.starts_with("AT "));
    let newest: Vec<&str> = changes.skip(1).take(3).collect();
    for (line, what) in newest.iter().zip(["reset", "block", "override"]) {
        assert!(line.contains(what), "{audit}");
    }
    // It reads as JSON does.
    let json = fleet.limits("ls --audit --json");
    let read = |path: &str| -> String {
        let script = format!("return tostring(cjson.decode(ARGV[1]){path})");
        let mut command = redis::cmd("EVAL");
        command.arg(script).arg(0).arg(&json);
        command.query(&mut fleet.redis.connect()).unwrap()
    };
    assert_eq!(read(".limits[1].limit"), "by_user");
    assert_eq!(read(".overrides[1].rate"), "9/d");
    assert_eq!(read(".overrides[1].counts_by"), "header:x-user");
    assert_eq!(read(".blocks[1].counts_by"), "ip");
    assert_eq!(read(".changes[1].change"), "reset");
    assert!(
        !json.contains("203.0.113.9"),
        "a client's key in the clear: {json}"
    );
    assert_eq!(json.lines().count(), 1);
    // Nothing of it is in Redis in the clear either.
    let all: String = redis::cmd("EVAL")
        .arg("return cjson.encode(redis.call('HGETALL', KEYS[1]))")
        .arg(1)
        .arg("tidegate:{overrides}")
        .query(&mut fleet.redis.connect())
        .unwrap();
    assert!(
        all.contains("until ") && !all.contains("203.0.113.9"),
        "{all}"
    );
    // The shown part of a hash stands for the whole.
    let hash = read(".blocks[1].key");
    fleet.limits(&format!("block tag={hash} --remove"));
    assert!(!fleet.limits("ls").contains("BLOCK"));
}

#[test]
fn a_store_that_is_emptied_has_no_overrides() {
    let fleet = Fleet::start();
    fleet.limits("block 127.0.0.1");
    fleet.soon("/free", "", |answer| answer.status == 429);
    fleet.redis.run("FLUSHALL");
    fleet.soon("/free", "", |answer| answer.status == 200);
    fleet.limits("block 127.0.0.1");
    fleet.soon("/free", "", |answer| answer.status == 429);
    // A record that says nothing sound is none, and the others hold.
    let tag = "AQEBAQEBAQEBAQEBAQEBAQ";
    for (field, value) in [
        (format!("o:by_user:{tag}"), "rule log 0 0 0\n"),
        ("nonsense".to_owned(), "x"),
    ] {
        let mut command = redis::cmd("HSET");
        command.arg("tidegate:{overrides}").arg(field).arg(value);
        command.exec(&mut fleet.redis.connect()).unwrap();
    }
    fleet.limits("block 203.0.113.9");
    fleet.proxies[1].wait_for_line("cannot be read are left out");
    assert_eq!(statuses(&fleet.ask("/free", "")), [429, 429]);
}

#[test]
fn thousands_of_overrides_are_read_beside_the_decisions() {
    let fleet = Fleet::start();
    let mut many = redis::cmd("EVAL");
    many.arg(
        "for i = 1, 20000 do redis.call('HSET', KEYS[1], 'b:' .. \
         string.format('%021dA', i), 'until 0\\nat 1\\nby x\\n') end",
    );
    many.arg(1).arg("tidegate:{overrides}");
    many.exec(&mut fleet.redis.connect()).unwrap();
    fleet.limits("block 203.0.113.9");
    let until = Instant::now() + PATIENCE;
    let (mut slowest, pace) = (Duration::ZERO, Pace::begin());
    loop {
        let asked = Instant::now();
        let answer = fleet.proxies[0].get("/wide");
        slowest = slowest.max(asked.elapsed());
        assert_eq!(answer.status, 200);
        let said = fleet.proxies[0].said();
        if said.iter().any(|line| line.contains("overrides: block")) {
            break;
        }
        assert!(Instant::now() < until);
    }
    assert!(slowest < pace.grants(), "{slowest:?}");
}
