//! Limits on one route: what each costs the proxy and Redis, and that all are asked at once.

use std::fmt::Write as _;

use super::client::{self, Pace, Report};
use super::proxy::{self, Proxy};
use super::{Setting, callgrind, median};
use crate::support::RedisServer;
use crate::{page, process, upstream};

const LIMITS: [usize; 4] = [1, 2, 4, 8];
const CONNECTIONS: usize = 32;
const KEYS: u64 = 1000;
const ROUNDS: usize = 3;

pub fn measure(setting: &Setting) -> String {
    let redis = RedisServer::start();
    if let Some(core) = setting.cores.1 {
        process::pin(&[redis.pid()], core);
    }
    let (backend, _upstream) = upstream::start(&setting.stage, setting.cores.1);
    let url = format!("redis://127.0.0.1:{}", redis.port());
    let upstream = format!("http://{backend}");
    let mut proxies = Vec::new();
    for limits in LIMITS {
        let embedded = Proxy::start(setting, &config(limits, "memory:", &upstream));
        let shared = Proxy::start(setting, &config(limits, &url, &upstream));
        proxies.push((embedded, shared));
    }
    let mut found: Vec<[Vec<f64>; 4]> = vec![Default::default(); LIMITS.len()];
    for _ in 0..setting.or_quick(ROUNDS, 1) {
        for ((embedded, shared), found) in proxies.iter().zip(&mut found) {
            let (cost, _) = embedded.cost(|| load(setting, embedded));
            found[0].push(cost);
            let before = (process::cpu_us(&[redis.pid()]), calls(&redis));
            let (cost, report) = shared.cost(|| load(setting, shared));
            assert_eq!(report.other + report.denied, 0, "every request is allowed");
            let each = report.requests() as f64;
            found[1].push(cost);
            found[2].push((process::cpu_us(&[redis.pid()]) - before.0) / each);
            found[3].push((calls(&redis) - before.1) / each);
        }
    }
    drop(proxies);
    let mut rows = Vec::new();
    for (limits, found) in LIMITS.iter().zip(&found) {
        let text = config(*limits, "memory:", &upstream);
        let counted = callgrind::per_request(setting, (&text, KEYS), |out, turn| {
            proxy::get(out, "/", turn % KEYS);
        });
        let mut row = vec![limits.to_string()];
        row.push(counted.map_or("-".to_owned(), |count| format!("{count:.0}")));
        row.extend(found[..3].iter().map(|us| format!("{:.1}", median(us))));
        row.push(format!("{:.3}", median(&found[3])));
        rows.push(row);
    }
    page::table(
        &[
            "limits on the route",
            "embedded: instructions",
            "embedded: us",
            "Redis: us of the proxy",
            "Redis: us of Redis",
            "Redis: calls",
        ],
        &rows,
    )
}

fn load(setting: &Setting, proxy: &Proxy) -> Report {
    let (address, pace) = (proxy.address, Pace::closed(setting.seconds(2.0)));
    client::on_thread(setting.cores.1, move || async move {
        let lanes = client::deal(client::connect(address, CONNECTIONS).await, CONNECTIONS);
        let request = |out: &mut Vec<u8>, lane: usize, turn: u64| {
            proxy::get(out, "/", (turn * 37 + lane as u64 * 101) % KEYS);
        };
        client::drive(lanes, pace, request).await.0
    })
}

/// Calls of scripts so far.
pub fn calls(redis: &RedisServer) -> f64 {
    let mut connection = redis.connect();
    let text: String = redis::cmd("INFO")
        .arg("commandstats")
        .query(&mut connection)
        .unwrap();
    let lines = text.lines().filter(|line| line.starts_with("cmdstat_eval"));
    let calls = lines.filter_map(|line| line.split("calls=").nth(1)?.split(',').next());
    calls.map(|calls| calls.parse::<f64>().unwrap()).sum()
}

fn config(limits: usize, store: &str, upstream: &str) -> String {
    let mut text = format!(
        "upstream = \"{upstream}\"\n[server]\nworkers = 1\n\
         [store]\nurl = \"{store}\"\ntimeout = \"2s\"\n[api_key]\nunknown = \"trust\"\n"
    );
    let names: Vec<String> = (0..limits).map(|limit| format!("\"l{limit}\"")).collect();
    for name in &names {
        write!(
            text,
            "[limit.{name}]\nrate = \"1000/s\"\nkey = \"api_key\"\n"
        )
        .unwrap();
    }
    write!(
        text,
        "[[route]]\npath = \"/*\"\nlimits = [{}]\n",
        names.join(", ")
    )
    .unwrap();
    text
}
