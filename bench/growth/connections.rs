//! Connections that are all in use, at one rate of requests over all of them: what each takes in
//! memory, and what a request costs among so many.

use super::Setting;
use super::client::{self, Pace};
use super::proxy::{self, Proxy};
use crate::{page, upstream};

const CONNECTIONS: [usize; 5] = [100, 1000, 5000, 10_000, 20_000];
const RATE: f64 = 4000.0;
const LANES: usize = 64;
/// Descriptors that proxy and client need beside those of the connections.
const SPARE: u64 = 300;

pub fn measure(setting: &Setting) -> String {
    let (backend, _upstream) = upstream::start(&setting.stage, setting.cores.1);
    let most = usize::try_from(setting.descriptors - SPARE).unwrap();
    let mut rows = Vec::new();
    let mut cut = "";
    for wanted in CONNECTIONS {
        let many = wanted.min(most);
        if many < wanted {
            cut = "\nAs many as the machine lets one process have descriptors for.\n";
        }
        rows.push(row(setting, backend, many));
    }
    let head = [
        "connections",
        "us per request",
        "p50 us",
        "p99 us",
        "RSS MiB",
        "KiB per connection",
    ];
    page::table(&head, &rows) + cut
}

fn row(setting: &Setting, backend: std::net::SocketAddr, many: usize) -> Vec<String> {
    let proxy = Proxy::start(
        setting,
        &format!(
            "upstream = \"http://{backend}\"\n[server]\nworkers = 1\nmax_connections = 30000\n\
             [api_key]\nunknown = \"trust\"\n[limit.client]\nrate = \"1000/s\"\nkey = \"api_key\"\n\
             [[route]]\npath = \"/*\"\nlimits = [\"client\"]\n"
        ),
    );
    let start = proxy.memory().rss_kib;
    // Every connection has had a request before it is measured.
    let warm = Pace::at(
        RATE * 1.5,
        setting.seconds(1.0) + seconds(many as f64 / RATE),
    );
    let pace = Pace::at(RATE, setting.seconds(8.0));
    let (address, server) = (proxy.address, proxy.server.pids());
    let (cost, mut report) = client::on_thread(setting.cores.1, move || async move {
        let streams = client::connect(address, many).await;
        let lanes = client::deal(streams, LANES);
        let (_, streams) = client::drive(lanes, warm, request).await;
        let before = crate::process::cpu_us(&server);
        let (report, streams) = client::drive(client::deal(streams, LANES), pace, request).await;
        let cost = (crate::process::cpu_us(&server) - before) / report.requests() as f64;
        // Memory is read while all are open.
        let rss = crate::process::memory(&server).rss_kib;
        drop(streams);
        ((cost, rss), report)
    });
    assert_eq!(report.other, 0, "every request is answered");
    let (cost, rss) = cost;
    vec![
        many.to_string(),
        format!("{cost:.1}"),
        report.quantile_us(0.5).to_string(),
        report.quantile_us(0.99).to_string(),
        format!("{:.1}", rss as f64 / 1024.0),
        format!("{:.2}", rss.saturating_sub(start) as f64 / many as f64),
    ]
}

fn request(out: &mut Vec<u8>, lane: usize, turn: u64) {
    proxy::get(out, "/", turn % 100 * LANES as u64 + lane as u64);
}

fn seconds(seconds: f64) -> std::time::Duration {
    std::time::Duration::from_secs_f64(seconds)
}
