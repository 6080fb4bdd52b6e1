//! Instructions per request, as callgrind counts them: on a busy machine as on a quiet one.

use std::net::SocketAddr;
use std::process::Command;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process_group};

use super::Setting;
use super::client;
use super::proxy::Proxy;

/// Requests of the two runs; what starting takes is in both.
const REQUESTS: (u64, u64) = (300, 2300);
const PATIENCE: Duration = Duration::from_secs(120);

/// Instructions of the proxy for one request; nothing where valgrind is not installed. Before those
/// that are counted come `first`, so that what is made once for a key or a route is there.
pub fn per_request(
    setting: &Setting,
    (config, first): (&str, u64),
    request: impl Fn(&mut Vec<u8>, u64) + Clone + Send + 'static,
) -> Option<f64> {
    Command::new("valgrind").arg("--version").output().ok()?;
    // Whatever disturbs a run adds to it.
    let least = |requests| {
        let count = || total(setting, config, first + requests, request.clone());
        Some(count()?.min(count()?))
    };
    Some((least(REQUESTS.1)? - least(REQUESTS.0)?) / (REQUESTS.1 - REQUESTS.0) as f64)
}

fn total(
    setting: &Setting,
    config: &str,
    requests: u64,
    request: impl Fn(&mut Vec<u8>, u64) + Send + 'static,
) -> Option<f64> {
    let counted = setting.stage.folder("callgrind").join("out");
    let by = [
        "valgrind".to_owned(),
        "--tool=callgrind".to_owned(),
        format!("--callgrind-out-file={}", counted.display()),
    ];
    let mut proxy = Proxy::launch(&setting.stage, setting.cores.0, &by, config);
    send(proxy.address, requests, request);
    let group = Pid::from_raw(i32::try_from(proxy.server.pids()[0]).unwrap())?;
    let _ = kill_process_group(group, Signal::TERM);
    let end = Instant::now() + PATIENCE;
    while !proxy.server.is_over() && Instant::now() < end {
        std::thread::sleep(Duration::from_millis(20));
    }
    let text = std::fs::read_to_string(counted).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("totals: "));
    line?.trim().parse().ok()
}

fn send(address: SocketAddr, requests: u64, request: impl Fn(&mut Vec<u8>, u64) + Send + 'static) {
    client::on_thread(None, move || async move {
        let mut streams = client::connect(address, 1).await;
        let (mut out, mut scratch) = (Vec::new(), Vec::new());
        for turn in 0..requests {
            out.clear();
            request(&mut out, turn);
            let status = client::ask(&mut streams[0], &out, &mut scratch).await;
            assert!((200..300).contains(&status), "answered {status}");
        }
    });
}
