//! One worker and two, with few connections and with many: how the kernel spreads connections over
//! the workers' sockets, and what comes out of it.

use super::client::{self, Pace, Report};
use super::proxy::{self, Proxy};
use super::{Setting, median};
use crate::{page, process, upstream};

const WORKERS: [usize; 2] = [1, 2];
const CONNECTIONS: [usize; 3] = [4, 16, 64];
/// Each with connections of its own, which are spread anew.
const ROUNDS: usize = 7;

pub fn measure(setting: &Setting) -> String {
    let (backend, _upstream) = upstream::start(&setting.stage, None);
    let proxies = WORKERS.map(|workers| {
        let text = format!(
            "upstream = \"http://{backend}\"\n[server]\nworkers = {workers}\n\
             [api_key]\nunknown = \"trust\"\n\
             [limit.client]\nrate = \"100000/s\"\nkey = \"api_key\"\n\
             [[route]]\npath = \"/*\"\nlimits = [\"client\"]\n"
        );
        Proxy::launch(&setting.stage, None, &[], &text)
    });
    let mut rows = Vec::new();
    for connections in CONNECTIONS {
        for (proxy, workers) in proxies.iter().zip(WORKERS) {
            rows.push(row(setting, proxy, workers, connections));
        }
    }
    let head = [
        "workers, connections",
        "requests/s",
        "us per request",
        "p50 us",
        "p99 us",
        "share of the busier worker, %",
        "at worst, %",
    ];
    page::table(&head, &rows)
}

fn row(setting: &Setting, proxy: &Proxy, workers: usize, connections: usize) -> Vec<String> {
    let mut found: [Vec<f64>; 5] = Default::default();
    for _ in 0..setting.or_quick(ROUNDS, 2) {
        let before = process::threads_us(&proxy.server.pids());
        let (cost, mut report) = proxy.cost(|| load(setting, proxy, connections));
        assert_eq!(report.other + report.denied, 0, "every request is allowed");
        let after = process::threads_us(&proxy.server.pids());
        let mut each: Vec<f64> = after
            .iter()
            .map(|(task, us)| us - before.get(task).copied().unwrap_or_default())
            .collect();
        each.sort_by(f64::total_cmp);
        let busy = each.iter().rev().take(workers).sum::<f64>();
        found[0].push(report.rate());
        found[1].push(cost);
        found[2].push(report.quantile_us(0.5).into());
        found[3].push(report.quantile_us(0.99).into());
        found[4].push(each.last().unwrap() * 100.0 / busy);
    }
    let worst = found[4].iter().copied().fold(0.0, f64::max);
    let [rate, cost, p50, p99, share] = found.each_ref().map(|values| median(values));
    vec![
        format!("{workers}, {connections}"),
        format!("{rate:.0}"),
        format!("{cost:.1}"),
        format!("{p50:.0}"),
        format!("{p99:.0}"),
        format!("{share:.0}"),
        format!("{worst:.0}"),
    ]
}

fn load(setting: &Setting, proxy: &Proxy, connections: usize) -> Report {
    let (address, pace) = (proxy.address, Pace::closed(setting.seconds(1.5)));
    client::on_thread(None, move || async move {
        let lanes = client::deal(client::connect(address, connections).await, connections);
        let request = |out: &mut Vec<u8>, lane: usize, turn: u64| {
            proxy::get(out, "/", (turn * 37 + lane as u64 * 101) % 1000);
        };
        client::drive(lanes, pace, request).await.0
    })
}
