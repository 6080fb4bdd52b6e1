//! Routes: what a request costs among so many, what the file costs to load, and what requests wait
//! while it is read again.

use std::fmt::Write as _;
use std::process::Command;
use std::time::Instant;

use super::client::{self, Pace, Report};
use super::proxy::{self, Proxy};
use super::{Setting, callgrind, median};
use crate::{page, stage, upstream};

const ROUTES: [usize; 4] = [10, 100, 1000, 10_000];
const ROUNDS: usize = 3;
const CONNECTIONS: usize = 32;
/// Clients, and requests until each has come and each route has been asked for.
const KEYS: u64 = 10_000;
/// Reloads during which a request's wait is measured, at so many requests a second.
const RELOADS: u32 = 20;
const RATE: f64 = 1000.0;

pub fn measure(setting: &Setting) -> String {
    let (backend, _upstream) = upstream::start(&setting.stage, setting.cores.1);
    let upstream = format!("http://{backend}");
    let config = |routes| config(routes, &upstream, 1000);
    let proxies: Vec<_> = ROUTES
        .iter()
        .map(|routes| Proxy::start(setting, &config(*routes)))
        .collect();
    let begun: Vec<_> = proxies
        .iter()
        .map(|proxy| (proxy.server.cpu_us(), proxy.memory().rss_kib))
        .collect();
    let mut costs = vec![Vec::new(); ROUTES.len()];
    for _ in 0..setting.or_quick(ROUNDS, 1) {
        for ((proxy, routes), costs) in proxies.iter().zip(ROUTES).zip(&mut costs) {
            let (cost, report) = proxy.cost(|| load(setting, proxy, routes));
            assert_eq!(report.other + report.denied, 0, "every request is allowed");
            costs.push(cost);
        }
    }
    drop(proxies);
    let mut rows = Vec::new();
    for ((routes, begun), costs) in ROUTES.iter().zip(begun).zip(&mut costs) {
        let counted = callgrind::per_request(setting, (&config(*routes), KEYS), {
            let routes = *routes;
            move |out, turn| get(out, turn, routes)
        });
        let mut row = vec![routes.to_string()];
        row.push(counted.map_or("-".to_owned(), |count| format!("{count:.0}")));
        row.push(format!("{:.1}", median(costs)));
        row.push(format!("{:.0}", begun.0 / 1e3));
        row.push(format!("{:.1}", begun.1 as f64 / 1024.0));
        row.extend(reloads(setting, *routes, &upstream));
        rows.push(row);
    }
    let head = [
        "routes, a limit for each",
        "instructions per request",
        "us per request",
        "ms to start",
        "MiB then",
        "ms to reload",
        "MiB after 20",
        "p99.9 us without",
        "and during reloads",
        "longest without",
        "and during reloads",
    ];
    page::table(&head, &rows)
}

fn load(setting: &Setting, proxy: &Proxy, routes: usize) -> Report {
    let (address, pace) = (proxy.address, Pace::closed(setting.seconds(2.0)));
    client::on_thread(setting.cores.1, move || async move {
        let lanes = client::deal(client::connect(address, CONNECTIONS).await, CONNECTIONS);
        let request = move |out: &mut Vec<u8>, lane: usize, turn: u64| {
            get(out, turn * 7919 + lane as u64 * 31, routes);
        };
        client::drive(lanes, pace, request).await.0
    })
}

fn get(out: &mut Vec<u8>, turn: u64, routes: usize) {
    let route = turn % routes as u64;
    let path = format!("/api/v1/service-{route}/items/{}", turn % 100);
    // As many budgets in use whatever the number of routes.
    proxy::get(out, &path, turn % KEYS);
}

/// Reloads of a file in which one limit has changed, while requests come: how long one takes,
/// what is in memory after all, and what requests wait without them and meanwhile. The
/// proxy has all cores.
fn reloads(setting: &Setting, routes: usize, upstream: &str) -> Vec<String> {
    let text = |rate| config(routes, upstream, rate);
    let proxy = Proxy::launch(&setting.stage, None, &[], &text(1000));
    let during = setting.seconds(5.0);
    let mut quiet = fixed(setting, &proxy, routes, Pace::at(RATE, during));
    let mut took = Vec::new();
    let (config, address) = (proxy.config.clone(), proxy.address);
    let (done, over) = std::sync::mpsc::channel::<()>();
    let core = setting.cores.1;
    let client = std::thread::spawn(move || {
        let mut all = Report::default();
        while over.try_recv() == Err(std::sync::mpsc::TryRecvError::Empty) {
            let pace = Pace::at(RATE, std::time::Duration::from_secs(1));
            all.add(requests(core, address, routes, pace));
        }
        all
    });
    for turn in 0..setting.or_quick(RELOADS, 3) {
        proxy.rewrite(&text(2000 + u64::from(turn)));
        let mut command = Command::new(stage::tidegate());
        command.arg("reload").arg("-c").arg(&config);
        let begun = Instant::now();
        let (status, printed) = setting.stage.output(None, command);
        assert!(status.success(), "{printed}");
        took.push(begun.elapsed().as_secs_f64() * 1e3);
    }
    drop(done);
    let mut busy = client.join().unwrap();
    assert_eq!(busy.other, 0, "every request is answered");
    vec![
        format!("{:.0}", median(&took)),
        format!("{:.1}", proxy.memory().rss_kib as f64 / 1024.0),
        quiet.quantile_us(0.999).to_string(),
        busy.quantile_us(0.999).to_string(),
        quiet.quantile_us(1.0).to_string(),
        busy.quantile_us(1.0).to_string(),
    ]
}

fn fixed(setting: &Setting, proxy: &Proxy, routes: usize, pace: Pace) -> Report {
    requests(setting.cores.1, proxy.address, routes, pace)
}

fn requests(
    core: Option<usize>,
    address: std::net::SocketAddr,
    routes: usize,
    pace: Pace,
) -> Report {
    client::on_thread(core, move || async move {
        let lanes = client::deal(client::connect(address, 8).await, 8);
        let request = move |out: &mut Vec<u8>, lane: usize, turn: u64| {
            get(out, turn * 7919 + lane as u64 * 31, routes);
        };
        client::drive(lanes, pace, request).await.0
    })
}

fn config(routes: usize, upstream: &str, rate: u64) -> String {
    let mut text = format!(
        "upstream = \"{upstream}\"\n[server]\nworkers = 1\n[api_key]\nunknown = \"trust\"\n"
    );
    for route in 0..routes {
        write!(
            text,
            "[limit.l{route}]\nrate = \"{rate}/s\"\nkey = \"api_key\"\n\
             [[route]]\npath = \"/api/v1/service-{route}/items/{{id}}\"\nlimits = [\"l{route}\"]\n"
        )
        .unwrap();
    }
    text
}
