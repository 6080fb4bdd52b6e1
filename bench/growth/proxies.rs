//! Proxies that share one Redis: what a decision costs it, how many it makes in a call, and whether
//! a limit that all of them are asked for stays one.

use super::client::{self, Pace, Report};
use super::proxy::{self, Proxy};
use super::{Setting, limits};
use crate::support::RedisServer;
use crate::{page, process};

const PROXIES: [usize; 4] = [1, 2, 3, 4];
/// Requests a second of each proxy, on so many connections.
const RATE: f64 = 2500.0;
const CONNECTIONS: usize = 32;
/// Of the one key that all are asked for, in a second.
const SHARED: usize = 500;

pub fn measure(setting: &Setting) -> String {
    let redis = RedisServer::start();
    if let Some(core) = setting.cores.1 {
        process::pin(&[redis.pid()], core);
    }
    let url = format!("redis://127.0.0.1:{}", redis.port());
    let proxies: Vec<_> = PROXIES
        .iter()
        .map(|_| Proxy::start(setting, &config(&url)))
        .collect();
    let mut rows = Vec::new();
    for many in PROXIES {
        let some = &proxies[..many];
        let paced = burden(setting, &redis, some, Some(RATE * many as f64));
        let full = burden(setting, &redis, some, None);
        let fullest = exactness(setting, some);
        let mut row = vec![many.to_string()];
        for burden in [paced, full] {
            row.push(format!("{:.0}", burden.rate));
            row.push(format!("{:.1}", burden.redis_us));
            row.push(format!("{:.1}", burden.batch));
            row.push(format!("{:.1}", burden.proxy_us));
            row.push(format!("{:.0} / {:.0}", burden.bytes.0, burden.bytes.1));
        }
        row.push(format!("{:.1}", fullest as f64 * 100.0 / SHARED as f64));
        rows.push(row);
    }
    let head = [
        "proxies",
        "2500/s each: decisions/s",
        "us of Redis",
        "decisions in a call",
        "us of the proxy",
        "bytes to / from Redis",
        "as many as can: decisions/s",
        "us of Redis",
        "decisions in a call",
        "us of the proxy",
        "bytes to / from Redis",
        "fullest window, %",
    ];
    page::table(&head, &rows)
}

/// For each decision, all proxies together.
struct Burden {
    rate: f64,
    redis_us: f64,
    proxy_us: f64,
    batch: f64,
    bytes: (f64, f64),
}

fn burden(setting: &Setting, redis: &RedisServer, proxies: &[Proxy], rate: Option<f64>) -> Burden {
    let proxies_us = || {
        proxies
            .iter()
            .map(|proxy| proxy.server.cpu_us())
            .sum::<f64>()
    };
    let redis_us = || process::cpu_us(&[redis.pid()]);
    let before = (proxies_us(), redis_us(), limits::calls(redis), bytes(redis));
    let pace = Pace {
        rate,
        ..Pace::closed(setting.seconds(4.0))
    };
    // Every client has a key of its own.
    let report = load(setting, proxies, pace, |lane, turn| {
        lane as u64 * 10_000 + turn % 50
    });
    assert_eq!(report.other + report.denied, 0, "every request is allowed");
    let each = report.requests() as f64;
    let after = bytes(redis);
    Burden {
        rate: report.rate(),
        redis_us: (redis_us() - before.1) / each,
        proxy_us: (proxies_us() - before.0) / each,
        batch: each / (limits::calls(redis) - before.2),
        bytes: ((after.0 - before.3.0) / each, (after.1 - before.3.1) / each),
    }
}

/// How many of one key were let through in the fullest second, of all that were certainly in it:
/// sent after its beginning, answered before its end.
fn exactness(setting: &Setting, proxies: &[Proxy]) -> usize {
    let pace = Pace {
        note_admissions: true,
        ..Pace::at(2000.0, setting.seconds(4.0))
    };
    let key = u64::from(proxies[0].address.port()) << 32 | proxies.len() as u64;
    let mut admitted = load(setting, proxies, pace, move |_, _| key).admissions;
    admitted.sort_unstable();
    let inside = |from: usize| {
        let end = admitted[from].0 + 1_000_000;
        let rest = admitted[from..].iter();
        rest.take_while(|one| one.0 < end)
            .filter(|one| one.1 < end)
            .count()
    };
    (0..admitted.len()).map(inside).max().unwrap_or(0)
}

fn load(
    setting: &Setting,
    proxies: &[Proxy],
    pace: Pace,
    key: impl Fn(usize, u64) -> u64 + Send + 'static,
) -> Report {
    let addresses: Vec<_> = proxies.iter().map(|proxy| proxy.address).collect();
    client::on_thread(setting.cores.1, move || async move {
        let mut lanes = Vec::new();
        // In turn, so that what is due at once is for different proxies.
        for _ in 0..CONNECTIONS {
            for address in &addresses {
                lanes.push(client::connect(*address, 1).await);
            }
        }
        let request = move |out: &mut Vec<u8>, lane: usize, turn: u64| {
            proxy::get(out, "/", key(lane, turn));
        };
        client::drive(lanes, pace, request).await.0
    })
}

/// Bytes that Redis has read and written.
fn bytes(redis: &RedisServer) -> (f64, f64) {
    let mut connection = redis.connect();
    let text: String = redis::cmd("INFO")
        .arg("stats")
        .query(&mut connection)
        .unwrap();
    let field = |name: &str| {
        let found = text.lines().find_map(|line| line.strip_prefix(name));
        found.unwrap().trim().parse::<f64>().unwrap()
    };
    (
        field("total_net_input_bytes:"),
        field("total_net_output_bytes:"),
    )
}

fn config(url: &str) -> String {
    format!(
        "[server]\nworkers = 1\n[store]\nurl = \"{url}\"\ntimeout = \"2s\"\n\
         [api_key]\nunknown = \"trust\"\n[limit.client]\nrate = \"{SHARED}/s\"\nkey = \"api_key\"\n\
         [[route]]\npath = \"/*\"\nlimits = [\"client\"]\nrespond = {{ body = \"ok\" }}\n"
    )
}
