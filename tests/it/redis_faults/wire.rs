//! The way to Redis fails while Redis is well: a relay in between delays replies, keeps them or
//! breaks off in their middle.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::{Duration, Instant};

use crate::house::{Tidegate, Upstream};
use crate::probe::eventually;
use crate::support::RedisServer;
use crate::weather::{Fault, Weather};

const WHOLE: u8 = 0;
const SLOW: u8 = 1;
/// Until the manner changes.
const KEPT: u8 = 2;
const CUT: u8 = 3;
/// As it should be until someone reads the hash key; from then on replies are kept.
const UNTIL_THE_KEY: u8 = 4;
/// So slow that a connection and its first charge take longer than the making of one may.
const FAR: u8 = 5;

/// Longer than a decision may take.
const DELAY: Duration = Duration::from_millis(300);

/// On a way that is [`FAR`], for a charge, and each time that the hash key is read, which is twice
/// for a connection.
const FAR_DELAY: Duration = Duration::from_millis(150);

/// What is done to replies.
type Manner = Arc<AtomicU8>;

/// Relays connections to `to`; the port they come to.
fn relay(to: u16, manner: &Manner) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let manner = Arc::clone(manner);
    std::thread::spawn(move || {
        for proxy in listener.incoming().map_while(Result::ok) {
            let Ok(redis) = TcpStream::connect(("127.0.0.1", to)) else {
                return;
            };
            let (calls, replies) = (proxy.try_clone().unwrap(), redis.try_clone().unwrap());
            let [heard, done] = [&manner, &manner].map(Arc::clone);
            std::thread::spawn(move || call(calls, redis, &heard));
            std::thread::spawn(move || reply(replies, proxy, &done));
        }
    });
    port
}

fn call(mut from: TcpStream, mut to: TcpStream, manner: &Manner) {
    let mut buffer = [0; 16 << 10];
    let _ = to.set_nodelay(true);
    while let Ok(length @ 1..) = from.read(&mut buffer) {
        let bytes = &buffer[..length];
        let has = |word: &[u8]| bytes.windows(word.len()).any(|part| part == word);
        let of_the_key = has(b"hash-key");
        let of_a_charge = has(b"EVALSHA") && has(b"paid:{");
        if (of_the_key || of_a_charge) && manner.load(Ordering::Relaxed) == FAR {
            // It is run however late it comes.
            std::thread::sleep(FAR_DELAY);
        }
        if of_the_key && manner.load(Ordering::Relaxed) == UNTIL_THE_KEY {
            manner.store(KEPT, Ordering::Relaxed);
        }
        if to.write_all(bytes).is_err() {
            break;
        }
    }
    let _ = (from.shutdown(Shutdown::Both), to.shutdown(Shutdown::Both));
}

fn reply(mut from: TcpStream, mut to: TcpStream, manner: &Manner) {
    let mut buffer = [0; 16 << 10];
    let _ = to.set_nodelay(true);
    while let Ok(length @ 1..) = from.read(&mut buffer) {
        let mut bytes = &buffer[..length];
        let now = manner.load(Ordering::Relaxed);
        match now {
            SLOW => std::thread::sleep(DELAY),
            // What was lost is sent again when it can be.
            KEPT => {
                while manner.load(Ordering::Relaxed) == KEPT {
                    std::thread::sleep(Duration::from_millis(2));
                }
            }
            CUT => bytes = &bytes[..length / 2],
            _ => {}
        }
        if to.write_all(bytes).is_err() || now == CUT {
            break;
        }
    }
    let _ = (from.shutdown(Shutdown::Both), to.shutdown(Shutdown::Both));
}

const FAULTS: [Fault; 3] = [
    Fault {
        name: "slow",
        kinds: &["timeout"],
        begin: |weather| weather.wire.store(SLOW, Ordering::Relaxed),
        end: mend,
    },
    Fault {
        name: "packets lost for a while",
        kinds: &["timeout"],
        begin: |weather| weather.wire.store(KEPT, Ordering::Relaxed),
        end: mend,
    },
    Fault {
        name: "replies cut in half",
        kinds: &["lost", "garbled"],
        begin: |weather| weather.wire.store(CUT, Ordering::Relaxed),
        end: mend,
    },
];

fn mend(weather: &mut Weather) {
    weather.wire.store(WHOLE, Ordering::Relaxed);
}

#[test]
fn a_way_to_redis_that_fails_is_an_outage() {
    for fault in &FAULTS {
        let redis = RedisServer::start();
        let manner = Manner::default();
        let port = relay(redis.port(), &manner);
        let mut weather = Weather::through(redis, port, manner);
        weather.endures(fault);
        weather.ends();
    }
}

#[test]
fn nobody_waits_longer_because_the_hash_key_is_being_read() {
    let (redis, upstream) = (RedisServer::start(), Upstream::ok());
    let manner = Manner::default();
    let proxy = Tidegate::start(&format!(
        "upstream = \"{}\"\n[server]\nworkers = 1\n\
         [store]\nurl = \"redis://127.0.0.1:{}\"\ntimeout = \"10ms\"\non_error = \"deny\"\n\
         [limit.default]\nrate = \"1000/day\"\n",
        upstream.url(),
        relay(redis.port(), &manner)
    ));
    let took = (0..8).map(|_| {
        manner.store(WHOLE, Ordering::Relaxed);
        eventually("the store decides", || proxy.get("/").status == 200);
        manner.store(UNTIL_THE_KEY, Ordering::Relaxed);
        eventually("the key is read", || manner.load(Ordering::Relaxed) == KEPT);
        let asked = Instant::now();
        assert_eq!(proxy.get("/").status, 503);
        asked.elapsed()
    });
    let took: Vec<Duration> = took.collect();
    // A busy machine may delay some, the reading of the key delayed all.
    let best = took.iter().min().unwrap();
    assert!(*best < Duration::from_millis(50), "{took:?}");
}

#[test]
fn what_is_owed_is_charged_once_however_long_connecting_takes() {
    let (redis, upstream) = (RedisServer::start(), Upstream::ok());
    let manner = Manner::default();
    let proxy = Tidegate::start(&format!(
        "upstream = \"{}\"\n[server]\nworkers = 1\n\
         [store]\nurl = \"redis://127.0.0.1:{}\"\nprefix = \"paid:\"\non_error = \"local\"\n\
         [limit.default]\nrate = \"1000/day\"\n[log]\ndecisions = \"decisions.jsonl\"\n",
        upstream.url(),
        relay(redis.port(), &manner)
    ));
    let used = || {
        let answer = proxy.get("/");
        let remaining = answer.header("x-ratelimit-remaining").unwrap();
        999 - remaining.parse::<usize>().unwrap()
    };
    eventually("the store decides", || {
        used();
        redis.run("KEYS paid:{*") != redis::Value::Array(Vec::new())
    });
    let before = used();
    manner.store(KEPT, Ordering::Relaxed);
    (0..50).for_each(|_| assert_eq!(proxy.get("/").status, 200));
    proxy.wait_for_line("on_error");
    manner.store(FAR, Ordering::Relaxed);
    std::thread::sleep(Duration::from_secs(3));
    manner.store(WHOLE, Ordering::Relaxed);
    let mut asked = 0;
    eventually("the store decides again", || {
        used();
        asked += 1;
        proxy.said().iter().any(|line| line.contains("redis: back"))
    });
    let after = used();
    eprintln!("{before} used before, {after} after 50 more and {asked}");
    // And a few that the store ran without being heard, in the beginning.
    let most = before + 50 + asked + 10;
    assert!((before + 50..=most).contains(&after), "{after}");
}
