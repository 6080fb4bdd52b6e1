//! A real Redis fails in every way we know of, while clients ask all the time, with each policy:
//! every request is answered in time, nobody is let through beyond what `on_error` says, and the
//! store is used again soon after it is back.

pub mod clock;
mod hiccups;
mod wire;

use std::time::Duration;

use tidegate::store::redis::OUTAGE_AFTER;

use crate::admin::Looked;
use crate::cluster::nodes::RedisCluster;
use crate::house::{Tidegate, Upstream};
use crate::probe::eventually;
use crate::support::RedisServer;
use crate::weather::{Fault, SHARE, Weather, assert_reduced};

/// It takes connections and answers nothing, or not the one thing that matters.
const SILENT: [Fault; 4] = [
    Fault {
        name: "frozen",
        kinds: &["timeout"],
        begin: |weather| weather.redis.freeze(),
        end: |weather| weather.redis.thaw(),
    },
    Fault {
        name: "paused",
        kinds: &["timeout"],
        begin: |weather| {
            weather.order("CLIENT PAUSE 6000 ALL");
        },
        end: |weather| {
            weather.order("PING");
        },
    },
    Fault {
        name: "paused for writes",
        kinds: &["timeout"],
        begin: |weather| {
            weather.order("CLIENT PAUSE 60000 WRITE");
        },
        end: |weather| {
            weather.order("CLIENT UNPAUSE");
        },
    },
    Fault {
        name: "busy with someone's script",
        kinds: &["timeout", "busy"],
        begin: |weather| {
            weather.order("CONFIG SET lua-time-limit 100");
            let mut other = weather.redis.connect();
            weather.held.push(std::thread::spawn(move || {
                let endless = redis::cmd("EVAL")
                    .arg(&["while true do end", "0"])
                    .exec(&mut other);
                assert!(endless.is_err(), "it was killed");
            }));
        },
        end: |weather| {
            weather.order("SCRIPT KILL");
        },
    },
];

/// It reads and does not write.
const UNWRITABLE: [Fault; 5] = [
    Fault {
        name: "a replica",
        kinds: &["readonly"],
        begin: |weather| {
            weather.order("REPLICAOF 127.0.0.1 1");
        },
        end: |weather| {
            weather.order("REPLICAOF NO ONE");
        },
    },
    Fault {
        name: "a replica without its master",
        kinds: &["masterdown"],
        begin: |weather| {
            weather.order("CONFIG SET replica-serve-stale-data no");
            weather.order("REPLICAOF 127.0.0.1 1");
        },
        end: |weather| {
            weather.order("REPLICAOF NO ONE");
        },
    },
    Fault {
        name: "without its replicas",
        kinds: &["noreplicas"],
        begin: |weather| {
            weather.order("CONFIG SET min-replicas-to-write 1");
        },
        end: |weather| {
            weather.order("CONFIG SET min-replicas-to-write 0");
        },
    },
    Fault {
        name: "out of memory",
        kinds: &["oom"],
        begin: |weather| {
            weather.order("CONFIG SET maxmemory-policy noeviction");
            weather.order("CONFIG SET maxmemory 1mb");
        },
        end: |weather| {
            weather.order("CONFIG SET maxmemory 0");
        },
    },
    Fault {
        name: "unable to save",
        kinds: &["misconf"],
        begin: |weather| {
            // A directory stands where the file should be.
            std::fs::create_dir(weather.redis.directory().join("dump.rdb")).unwrap();
            let seldom = ["CONFIG", "SET", "save", "86400 1000000"];
            weather.order_words(&seldom).unwrap();
            weather.order("CONFIG SET stop-writes-on-bgsave-error yes");
            weather.order("BGSAVE");
            weather.until_info("rdb_last_bgsave_status:err");
        },
        end: |weather| {
            weather.order("CONFIG SET stop-writes-on-bgsave-error no");
        },
    },
];

/// It does not want us.
const UNWELCOME: [Fault; 4] = [
    Fault {
        name: "another password",
        kinds: &["noauth", "lost"],
        begin: |weather| {
            weather.order("CONFIG SET requirepass rotated");
            weather.order("CLIENT KILL TYPE normal SKIPME yes");
        },
        end: |weather| {
            weather.order("CONFIG SET requirepass ");
        },
    },
    Fault {
        name: "no permission",
        kinds: &["noperm"],
        begin: |weather| {
            weather.order("ACL SETUSER default -evalsha -eval");
        },
        end: |weather| {
            weather.order("ACL SETUSER default +evalsha +eval");
        },
    },
    Fault {
        name: "no permission for anything",
        kinds: &["noperm", "lost"],
        begin: |weather| {
            weather.order("ACL SETUSER default nocommands +acl|setuser");
            weather.redis.run("CLIENT KILL TYPE normal");
        },
        end: |weather| {
            weather.order("ACL SETUSER default allcommands");
        },
    },
    Fault {
        name: "too many clients",
        kinds: &["maxclients", "lost"],
        begin: |weather| {
            weather.order("CONFIG SET maxclients 1");
            weather.order("CLIENT KILL TYPE normal SKIPME yes");
        },
        end: |weather| {
            weather.order("CONFIG SET maxclients 1000");
        },
    },
];

/// It goes and comes back with all it knew.
const RESTARTED: [Fault; 2] = [
    Fault {
        name: "killed after a save",
        kinds: &["lost", "refused"],
        begin: |weather| {
            weather.order("CLIENT PAUSE 1000 WRITE");
            weather.order("SAVE");
            weather.redis.kill();
            weather.let_go();
        },
        end: |weather| weather.redis.restart(),
    },
    Fault {
        name: "loading",
        kinds: &["lost", "refused", "loading"],
        begin: |weather| {
            let many = "for i = 1, 3000 do redis.call('SET', 'x' .. i, 'x') end";
            weather.order_words(&["EVAL", many, "0"]).unwrap();
            weather.order("CLIENT PAUSE 1000 WRITE");
            weather.order("SAVE");
            weather.redis.kill();
            weather.let_go();
            // A key takes a millisecond, and after each it has an ear for others.
            let slow = ["--key-load-delay", "1000"];
            let attentive = ["--loading-process-events-interval-bytes", "1024"];
            weather.redis.will_have(&[slow, attentive].concat(), &[]);
            weather.redis.restart();
            weather.until_info("loading:1");
        },
        end: |weather| weather.until_info("loading:0"),
    },
];

/// It goes and comes back empty.
const EMPTIED: [Fault; 1] = [Fault {
    name: "killed",
    kinds: &["lost", "refused"],
    begin: |weather| {
        weather.redis.kill();
        weather.let_go();
        // So long that pauses between attempts have grown as far as they do.
        std::thread::sleep(Duration::from_secs(3));
    },
    end: |weather| weather.redis.restart(),
}];

fn endures_all(faults: &[Fault]) -> Weather {
    let mut weather = Weather::fair(RedisServer::start());
    faults.iter().for_each(|fault| weather.endures(fault));
    weather
}

#[test]
fn a_silent_redis_is_an_outage() {
    endures_all(&SILENT).ends();
}

#[test]
fn a_redis_that_does_not_write_is_an_outage() {
    endures_all(&UNWRITABLE).ends();
}

#[test]
fn a_redis_that_does_not_want_us_is_an_outage() {
    endures_all(&UNWELCOME).ends();
}

#[test]
fn a_redis_that_goes_and_comes_back_is_an_outage() {
    endures_all(&RESTARTED).ends();
}

#[test]
fn a_redis_that_comes_back_empty_is_an_outage() {
    let mut weather = endures_all(&EMPTIED);
    weather.stirs("restarted at once", |weather| {
        weather.redis.restart();
        weather.let_go();
    });
    weather.ends_forgetful();
}

#[test]
fn redis_may_be_away_at_the_start() {
    let mut weather = Weather::before(RedisServer::down());
    weather.endures(&Fault {
        name: "down at the start",
        kinds: &[],
        begin: |_| {},
        end: |weather| weather.redis.restart(),
    });
    weather.ends();
}

#[test]
fn a_redis_that_comes_and_goes_fills_no_log() {
    const OUTAGES: usize = 9;
    let (redis, upstream) = (RedisServer::start(), Upstream::ok());
    let looked = Looked::start(&format!(
        "upstream = \"{}\"\n[store]\nurl = \"redis://127.0.0.1:{}\"\ntimeout = \"100ms\"\n\
         [limit.default]\nrate = \"1_000_000/day\"\n[log]\naccess = \"off\"\n",
        upstream.url(),
        redis.port()
    ));
    let degraded = |is: u8| {
        let line = format!("tidegate_degraded {is}");
        looked.wait_until(&line, |looked| {
            // A worker notices by a decision of its own.
            assert_eq!(looked.tidegate.get("/").status, 200);
            looked.get("/metrics").text().contains(&line)
        });
    };
    let mut lines = Vec::new();
    degraded(0);
    for _ in 0..OUTAGES {
        redis.freeze();
        degraded(1);
        // Long enough for a line of its own.
        std::thread::sleep(OUTAGE_AFTER * 2);
        redis.thaw();
        degraded(0);
    }
    eventually("the rest is summed up", || {
        lines.extend(looked.tidegate.said());
        lines.iter().any(|line| line.contains("more times in"))
    });
    let of = |part: &str| lines.iter().filter(|line| line.contains(part)).count();
    let (begun, ended, sums) = (
        of("until it is back"),
        of("redis: back"),
        of("more times in"),
    );
    // A sum may be written while Redis is away; then it says so, and a line says when it is back.
    assert!((5..=5 + sums).contains(&begun), "{lines:#?}");
    assert!((5..=5 + sums).contains(&ended), "{lines:#?}");
}

#[test]
fn an_outage_is_no_second_helping() {
    // The proxy's own admissions are known to its local store, and what was admitted before an
    // outage that Redis survives still counts after it.
    let mut weather = Weather::fair(RedisServer::start());
    assert_eq!(weather.all[0].pass("glutton", 15), 15);
    weather.redis.freeze();
    weather.gathers();
    let meanwhile = weather.all[0].pass("glutton", 60);
    assert!(
        meanwhile <= SHARE - 15,
        "{meanwhile} during the outage, 15 before it"
    );
    weather.redis.thaw();
    weather.clears("the freeze");
    let after = weather.all[0].pass("glutton", 60);
    assert!(after <= 40 - 15, "{after} after it, 15 before");
    weather.ends();
}

#[test]
fn a_full_redis_still_denies() {
    let mut weather = Weather::fair(RedisServer::start());
    for one in &weather.all {
        assert_eq!(one.pass("sated", 60), 40);
    }
    weather.order("CONFIG SET maxmemory 1mb");
    weather.gathers();
    for one in &weather.all {
        for _ in 0..20 {
            // Also where it would be let through, or told that there is no store.
            assert_eq!(one.ask("sated").status, 429, "{}", one.policy);
        }
    }
    weather.order("CONFIG SET maxmemory 0");
    weather.clears("full memory");
    weather.ends();
}

/// Fills the servers, and empties them. Nothing but the proxy's own work follows.
fn notices_without_requests(servers: &[&RedisServer], url: &str) {
    let upstream = Upstream::ok();
    let proxy = Tidegate::start(&format!(
        "upstream = \"{}\"\n[store]\nurl = \"{url}\"\ntimeout = \"10s\"\n\
         [limit.default]\nrate = \"1000/day\"\nkey = \"header:x-key\"\n\
         [server]\nworkers = 1\n",
        upstream.url(),
    ));
    let ask = |key: u32| proxy.get_with("/a", &format!("X-Key: {key}\r\n")).status;
    assert_eq!(ask(0), 200);
    let all = |order: &str| servers.iter().for_each(|server| _ = server.run(order));
    all("CONFIG SET maxmemory 1mb");
    for key in 1..60 {
        ask(key);
    }
    proxy.wait_for_line("follow on_error until");
    all("CONFIG SET maxmemory 0");
    proxy.wait_for_line("redis: back");
}

#[test]
fn a_proxy_without_requests_notices_that_redis_takes_writes_again() {
    let redis = RedisServer::start();
    notices_without_requests(&[&redis], &format!("redis://127.0.0.1:{}", redis.port()));
}

#[test]
fn so_it_does_with_the_nodes_of_a_cluster() {
    let cluster = RedisCluster::start(false, &[]);
    let nodes: Vec<&RedisServer> = cluster.nodes.iter().collect();
    notices_without_requests(&nodes, &cluster.url());
}

#[test]
fn what_a_full_redis_does_not_count_is_charged_to_it_before_anybody_asks_it_again() {
    let (redis, upstream) = (RedisServer::start(), Upstream::ok());
    let proxy = Tidegate::start(&format!(
        "upstream = \"{}\"\n\
         [store]\nurl = \"redis://127.0.0.1:{}\"\ntimeout = \"10s\"\non_error = \"local\"\n\
         [limit.tight]\nrate = \"40/day\"\nkey = \"header:x-key\"\n\
         [[route]]\npath = \"/*\"\nlimits = [\"tight\"]\n\
         [server]\nworkers = 1\n",
        upstream.url(),
        redis.port()
    ));
    let mut client = proxy.connect();
    for key in 0..5 {
        let head = format!("GET / HTTP/1.1\r\nHost: test\r\nX-Key: {key}\r\n\r\n");
        let mut passed = |count| {
            let asked = (0..count).filter(|_| {
                client.send(&head);
                client.answer().status == 200
            });
            asked.count()
        };
        let before = passed(10);
        redis.run("CONFIG SET maxmemory 1mb");
        let meanwhile = passed(20);
        redis.run("CONFIG SET maxmemory 0");
        assert_eq!((before, meanwhile, passed(60)), (10, 20, 10));
    }
}

#[test]
fn denials_hide_no_outage_of_writes() {
    let refusals = [
        ("REPLICAOF 127.0.0.1 1", "REPLICAOF NO ONE"),
        (
            "CONFIG SET min-replicas-to-write 1",
            "CONFIG SET min-replicas-to-write 0",
        ),
    ];
    for (begin, end) in refusals {
        let (redis, upstream) = (RedisServer::start(), Upstream::ok());
        let looked = Looked::start(&format!(
            "upstream = \"{}\"\n[store]\nurl = \"redis://127.0.0.1:{}\"\non_error = \"deny\"\n\
             [limit.default]\nrate = \"1/day\"\nkey = \"header:x-key\"\n\
             [log]\naccess = \"off\"\n",
            upstream.url(),
            redis.port()
        ));
        let keys = std::cell::Cell::new(1);
        let ask = |key: u32| {
            looked
                .tidegate
                .get_with("/", &format!("X-Key: {key}\r\n"))
                .status
        };
        assert_eq!((ask(0), ask(0)), (200, 429));
        redis.run(begin);
        looked.wait_until("the outage is noticed", |looked| {
            let key = keys.replace(keys.get() + 1);
            assert_eq!((ask(key), ask(0)), (503, 429), "{begin}");
            looked
                .get("/metrics")
                .text()
                .contains("tidegate_degraded 1")
        });
        redis.run(end);
        looked.wait_until("writes work again", |looked| {
            looked
                .get("/metrics")
                .text()
                .contains("tidegate_degraded 0")
        });
        assert_eq!(ask(1), 200);
    }
}

#[test]
fn a_password_may_be_rotated_and_back() {
    // The proxies know a password; the server's changes and comes back.
    let mut weather = Weather::before(RedisServer::start());
    for password in ["first", "second"] {
        let change = format!("CONFIG SET requirepass {password}");
        weather.clears("a password");
        weather.order(&change);
        // Whoever is in stays in.
        weather.clears("a change of password");
        weather.order("CLIENT KILL TYPE normal SKIPME yes");
        weather.gathers();
        weather.order("CONFIG SET requirepass ");
        weather.clears("the old password");
    }
    weather.ends();
}

#[test]
fn a_wrong_password_is_an_outage_and_no_secret() {
    let redis = RedisServer::start_with(&["--requirepass", "right"]);
    let upstream = Upstream::ok();
    let proxy = Tidegate::start(&format!(
        "upstream = \"{}\"\n[store]\nurl = \"redis://:wrong-secret@127.0.0.1:{}\"\n\
         on_error = \"deny\"\n[limit.default]\nrate = \"5/day\"\n",
        upstream.url(),
        redis.port()
    ));
    let warning = proxy.wait_for_line("redis: the store");
    assert!(!warning.contains("wrong-secret"), "{warning}");
    assert_reduced("a wrong password", &proxy.get("/"));
    assert!(upstream.seen().is_empty());
    // The operator gives the server the password that the proxy has.
    let mut operator = redis::Client::open(format!("redis://:right@127.0.0.1:{}", redis.port()))
        .and_then(|client| client.get_connection())
        .unwrap();
    let rotation = ["SET", "requirepass", "wrong-secret"];
    redis::cmd("CONFIG")
        .arg(&rotation)
        .exec(&mut operator)
        .unwrap();
    eventually("it is let in", || proxy.get("/").status == 200);
}
