//! What proxies share, and what each keeps for itself: denials that are not asked again, units taken
//! ahead, the fleet's parts of a limit while Redis is away, and what is owed when it is back.

use std::time::{Duration, Instant};

use crate::house::{Client, Tidegate, Upstream};
use crate::probe::eventually;
use crate::support::RedisServer;

const SHARED: &str = "fleet = \"auto\"\n";
const ALONE: &str = "fleet = 1\n";
/// How long a decision may take. Enough for a machine that does much else.
const TIMEOUT_MS: u64 = 1_000;

fn proxy(upstream: &Upstream, redis: &RedisServer, fleet: &str, limit: &str) -> Tidegate {
    Tidegate::start(&format!(
        "upstream = \"{}\"\n[server]\nworkers = 1\n[log]\naccess = \"off\"\n\
         [store]\nurl = \"redis://127.0.0.1:{}\"\ntimeout = \"{TIMEOUT_MS}ms\"\n{fleet}\
         [limit.default]\nkey = \"header:x-key\"\n{limit}\n",
        upstream.url(),
        redis.port()
    ))
}

fn get(client: &mut Client, key: &str) -> crate::house::Answer {
    client.ask(format!(
        "GET / HTTP/1.1\r\nHost: test\r\nX-Key: {key}\r\n\r\n"
    ))
}

/// How many of so many requests pass.
fn pass(proxy: &Tidegate, key: &str, count: usize) -> usize {
    let mut client = proxy.connect();
    (0..count)
        .filter(|_| get(&mut client, key).status == 200)
        .count()
}

/// How often the script has run.
fn calls(redis: &RedisServer) -> u64 {
    let mut connection = redis.connect();
    let info: String = redis::cmd("INFO")
        .arg("commandstats")
        .query(&mut connection)
        .unwrap();
    let line = info
        .lines()
        .find(|line| line.starts_with("cmdstat_evalsha:"));
    let calls = line.and_then(|line| line.split("calls=").nth(1)?.split(',').next());
    calls.map_or(0, |calls| calls.parse().unwrap())
}

#[test]
fn a_flood_of_denied_requests_costs_redis_next_to_nothing() {
    let (upstream, redis) = (Upstream::ok(), RedisServer::start());
    let proxy = proxy(&upstream, &redis, ALONE, "rate = \"5/h\"");
    assert_eq!(pass(&proxy, "greedy", 5), 5);
    let mut client = proxy.connect();
    let first = get(&mut client, "greedy");
    assert_eq!(first.status, 429);
    let (before, began) = (calls(&redis), Instant::now());
    let batch = "GET / HTTP/1.1\r\nHost: test\r\nX-Key: greedy\r\n\r\n".repeat(100);
    for _ in 0..100 {
        client.send(&batch);
        for _ in 0..100 {
            let answer = client.answer();
            assert_eq!(answer.status, 429);
            for name in [
                "x-ratelimit-limit",
                "x-ratelimit-remaining",
                "ratelimit-policy",
            ] {
                assert_eq!(answer.header(name), first.header(name), "{name}");
            }
            let wait = |answer: &crate::house::Answer| -> u64 {
                answer.header("retry-after").unwrap().parse().unwrap()
            };
            assert!(wait(&answer) <= wait(&first) && wait(&answer) > 3_000);
        }
    }
    let asked = calls(&redis) - before;
    // Who is known to be denied is asked for again now and then.
    let most = 20 + 2 * began.elapsed().as_secs();
    assert!(asked <= most, "10,000 denials, {asked} calls");
    // Others are not kept out by it.
    assert_eq!(pass(&proxy, "modest", 5), 5);
}

#[test]
fn a_denial_ends_when_it_says() {
    let (upstream, redis) = (Upstream::ok(), RedisServer::start());
    let proxy = proxy(&upstream, &redis, ALONE, "rate = \"3/700ms\"");
    let mut client = proxy.connect();
    for _ in 0..5 {
        eventually("it passes again", || get(&mut client, "k").status == 200);
        eventually("it is denied", || get(&mut client, "k").status == 429);
    }
}

#[test]
fn proxies_that_count_each_other_share_a_limit_while_redis_is_away() {
    share_a_limit(SHARED);
}

/// A number that is too small would let each of them admit all of the limit.
#[test]
fn proxies_share_a_limit_whatever_the_file_says_of_their_number() {
    for line in ["", ALONE] {
        let fleet = share_a_limit(line);
        for proxy in fleet.iter().filter(|_| line == ALONE) {
            proxy.wait_for_line("more proxies share the store");
        }
    }
}

fn share_a_limit(line: &str) -> [Tidegate; 3] {
    let (upstream, mut redis) = (Upstream::ok(), RedisServer::start());
    let limit = "rate = \"10/day\"";
    let start = || proxy(&upstream, &redis, line, limit);
    let fleet = [start(), start(), start()];
    let mut connection = redis.connect();
    eventually("all are counted", || {
        let count: u32 = redis::cmd("ZCARD")
            .arg("tidegate:fleet")
            .query(&mut connection)
            .unwrap();
        count == 3
    });
    // Each hears of the others within a second of the last one's word.
    std::thread::sleep(Duration::from_millis(3000));
    redis.kill();
    let mut admitted: Vec<usize> = fleet.iter().map(|one| pass(one, "k", 8)).collect();
    admitted.sort_unstable();
    assert_eq!(admitted, [3, 3, 4], "{line}");
    fleet
}

#[test]
fn what_was_admitted_alone_is_owed_when_redis_is_back() {
    let (upstream, redis) = (Upstream::ok(), RedisServer::start());
    let proxy = proxy(&upstream, &redis, ALONE, "rate = \"10/day\"");
    assert_eq!(pass(&proxy, "k", 4), 4);
    redis.freeze();
    eventually("the breaker is open", || {
        let began = Instant::now();
        get(&mut proxy.connect(), "other");
        began.elapsed() < Duration::from_millis(TIMEOUT_MS / 4)
    });
    assert_eq!(pass(&proxy, "k", 3), 3, "4 of 10 are known here");
    // A shorter outage would not be told.
    proxy.wait_for_line("limits follow on_error");
    redis.thaw();
    proxy.wait_for_line("redis: back");
    let left: usize = get(&mut proxy.connect(), "k")
        .header("x-ratelimit-remaining")
        .unwrap()
        .parse()
        .unwrap();
    assert_eq!(left, 2, "4, then 3 alone, then 1");
    assert_eq!(pass(&proxy, "k", 10), 2);
}

#[test]
fn a_leased_key_holds_its_limit_and_needs_few_calls() {
    let (upstream, redis) = (Upstream::ok(), RedisServer::start());
    let limit = "rate = \"2000/s\"\nalgorithm = \"log\"\nlease = \"20ms\"";
    let fleet: Vec<Tidegate> = (0..2)
        .map(|_| proxy(&upstream, &redis, ALONE, limit))
        .collect();
    let began = Instant::now();
    let flood = |address| {
        let mut client = Client::to(address);
        let batch = "GET / HTTP/1.1\r\nHost: test\r\nX-Key: hot\r\n\r\n".repeat(20);
        let (mut passed, mut asked) = (Vec::new(), 0_u64);
        while began.elapsed() < Duration::from_secs(3) {
            client.send(&batch);
            for _ in 0..20 {
                asked += 1;
                if client.answer().status == 200 {
                    passed.push(began.elapsed());
                }
            }
        }
        (passed, asked)
    };
    let flood = &flood;
    let found: Vec<_> = std::thread::scope(|scope| {
        let addresses = fleet.iter().map(|proxy| proxy.address);
        let threads: Vec<_> = addresses
            .map(|address| scope.spawn(move || flood(address)))
            .collect();
        threads.into_iter().map(|one| one.join().unwrap()).collect()
    });
    let asked: u64 = found.iter().map(|(_, asked)| asked).sum();
    let mut passed: Vec<Duration> = found.into_iter().flat_map(|(passed, _)| passed).collect();
    passed.sort_unstable();
    // An answer comes after its admission, by as long as a busy machine takes: windows that much
    // shorter than a second hold no more than the limit.
    let (mut from, mut fullest) = (0, 0);
    for (index, at) in passed.iter().enumerate() {
        while passed[from] + Duration::from_millis(700) <= *at {
            from += 1;
        }
        fullest = fullest.max(index - from + 1);
    }
    assert!(fullest <= 2000, "{fullest} in 700 ms");
    let calls = calls(&redis);
    // A machine that is so slow that few requests come within one lease has nothing of it.
    assert!(
        calls < asked || asked < 3_000,
        "{calls} calls for {asked} requests"
    );
    assert!(passed.len() > 200, "{}", passed.len());
}

#[test]
fn proxies_with_different_files_share_what_has_one_name() {
    let (redis, upstream) = (RedisServer::start(), Upstream::ok());
    let [tight, wide] = ["10/min", "20/min"]
        .map(|rate| proxy(&upstream, &redis, ALONE, &format!("rate = \"{rate}\"")));
    assert_eq!(pass(&tight, "k", 15), 10);
    // The same count, by another rate.
    assert_eq!(pass(&wide, "k", 15), 10);
    assert_eq!(pass(&tight, "k", 5), 0);
    assert_eq!(
        pass(&tight, "other", 15),
        10,
        "nobody else is denied for it"
    );
}
