//! Whether memory grows: a proxy under a load of everything for minutes, requests that are allowed,
//! denied and routed nowhere, uploads, clients that go away in the middle, connections that come
//! and go, reloads, and new keys all the time, while its memory is read each second.
//!
//! `make bench-soak` takes five minutes, `SECONDS=3600 make bench-soak` an hour. Ends with an error
//! if memory has grown.

use std::fmt::Write as _;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::growth::Setting;
use crate::growth::client::{self, Pace, Report};
use crate::growth::proxy::{self, Proxy};
use crate::upstream;

const SECONDS: u64 = 300;
/// Requests a second of each kind of client.
const RATE: f64 = 1500.0;
const LANES: usize = 16;
const RELOAD_EVERY: Duration = Duration::from_secs(5);
/// What growth is: a line through the last two thirds of the run that rises by more than this.
const GROWTH_SHARE: f64 = 0.03;
const GROWTH_KIB: f64 = 1024.0;

/// What was done.
#[derive(Default)]
struct Tally {
    stop: AtomicBool,
    uploads: AtomicU64,
    aborts: AtomicU64,
    fresh: AtomicU64,
    reloads: AtomicU64,
}

pub fn run(words: &[String]) {
    let at = words.iter().position(|word| word == "--seconds");
    let seconds = at.map_or(SECONDS, |at| words[at + 1].parse().unwrap());
    let setting = Setting::new(false);
    let (backend, _upstream) = upstream::start(&setting.stage, setting.cores.1);
    let proxy = Proxy::launch(&setting.stage, None, &[], &config(backend, 0));
    let tally = Arc::new(Tally::default());
    let during = Duration::from_secs(seconds);
    let others = others(&setting, proxy.address, &tally);
    let load = mixed(&setting, proxy.address, during);
    let sampled = sample(&proxy, backend, during, &tally);
    tally.stop.store(true, Ordering::Relaxed);
    let report = load.join().unwrap();
    for other in others {
        other.join().unwrap();
    }
    drop(proxy);
    if !told(&sampled, &report, &tally) {
        std::process::exit(1);
    }
}

/// Memory in KiB, each second; reloads in between.
fn sample(proxy: &Proxy, backend: SocketAddr, during: Duration, tally: &Tally) -> Vec<f64> {
    let begun = Instant::now();
    let pid = Pid::from_raw(i32::try_from(proxy.server.pids()[0]).unwrap()).unwrap();
    let mut sampled = Vec::new();
    let mut reload_at = RELOAD_EVERY;
    while begun.elapsed() < during {
        std::thread::sleep(Duration::from_secs(1));
        sampled.push(proxy.memory().rss_kib as f64);
        if begun.elapsed() >= reload_at {
            reload_at += RELOAD_EVERY;
            let turn = tally.reloads.fetch_add(1, Ordering::Relaxed) + 1;
            proxy.rewrite(&config(backend, turn));
            kill_process(pid, Signal::HUP).unwrap();
        }
    }
    sampled
}

/// Prints the table; whether memory did not grow.
fn told(sampled: &[f64], report: &Report, tally: &Tally) -> bool {
    let warm = sampled.len() / 3;
    let rest = &sampled[warm..];
    let slope = slope(rest);
    let risen = slope * rest.len() as f64;
    let most = (sampled[warm] * GROWTH_SHARE).max(GROWTH_KIB);
    let mib = |kib: f64| format!("{:.1} MiB", kib / 1024.0);
    let count = |count: &AtomicU64| count.load(Ordering::Relaxed).to_string();
    let mut text = String::from("| | |\n|---|--:|\n");
    for (name, value) in [
        ("seconds", sampled.len().to_string()),
        ("requests allowed", report.allowed.to_string()),
        ("denied", report.denied.to_string()),
        ("without a route", report.other.to_string()),
        ("uploads of 64 KiB", count(&tally.uploads)),
        ("given up in the middle", count(&tally.aborts)),
        ("on connections of their own", count(&tally.fresh)),
        ("reloads", count(&tally.reloads)),
        ("RSS after a second", mib(sampled[0])),
        ("after a third", mib(sampled[warm])),
        ("at most", mib(sampled.iter().copied().fold(0.0, f64::max))),
        ("at the end", mib(sampled[sampled.len() - 1])),
        ("fitted slope after a third", format!("{:.2} KiB/s", slope)),
        ("so much in that time", mib(risen)),
    ] {
        writeln!(text, "| {name} | {value} |").unwrap();
    }
    print!("{text}");
    let holds = risen <= most;
    if !holds {
        println!(
            "\nmemory grows: by {} where {} may be noise",
            mib(risen),
            mib(most)
        );
    }
    holds
}

/// Of the line with the least squares, for each step.
fn slope(values: &[f64]) -> f64 {
    let many = values.len() as f64;
    let (middle, mean) = ((many - 1.0) / 2.0, values.iter().sum::<f64>() / many);
    let (mut up, mut down) = (0.0, 0.0);
    for (at, value) in values.iter().enumerate() {
        let from = at as f64 - middle;
        up += from * (value - mean);
        down += from * from;
    }
    if down == 0.0 { 0.0 } else { up / down }
}

/// Small requests on kept connections: of ten, six bring a key that nobody had before, two are one
/// client's that is over its limit, one has no route, one has a parameter.
fn mixed(
    setting: &Setting,
    address: SocketAddr,
    during: Duration,
) -> std::thread::JoinHandle<Report> {
    let core = setting.cores.1;
    std::thread::spawn(move || {
        client::on_thread(core, move || async move {
            let lanes = client::deal(client::connect(address, LANES).await, LANES);
            let pace = Pace::at(RATE, during);
            client::drive(lanes, pace, |out, lane, turn| match turn % 10 {
                0 | 1 => proxy::get(out, "/hot", 1),
                2 => proxy::get(out, &format!("/nowhere/{turn}"), 1),
                3 => proxy::get(out, &format!("/of/{turn}/mine"), lane as u64),
                _ => proxy::get(out, "/any", (turn << 8 | lane as u64) + 1000),
            })
            .await
            .0
        })
    })
}

type Threads = Vec<std::thread::JoinHandle<()>>;

fn others(setting: &Setting, address: SocketAddr, tally: &Arc<Tally>) -> Threads {
    let core = setting.cores.1;
    let each = [upload, abort, fresh];
    let thread = |what: fn(SocketAddr, Arc<Tally>) -> Pinned| {
        let tally = Arc::clone(tally);
        std::thread::spawn(move || client::on_thread(core, move || what(address, tally)))
    };
    each.into_iter().map(thread).collect()
}

type Pinned = std::pin::Pin<Box<dyn Future<Output = ()>>>;

const PAUSE: Duration = Duration::from_millis(10);

fn upload(address: SocketAddr, tally: Arc<Tally>) -> Pinned {
    Box::pin(async move {
        let mut stream = client::connect(address, 1).await.pop().unwrap();
        let body = vec![b'u'; 64 << 10];
        let head = format!(
            "POST /any HTTP/1.1\r\nHost: bench.test\r\nX-Api-Key: up\r\n\
             Content-Length: {}\r\n\r\n",
            body.len()
        );
        let request = [head.as_bytes(), &body].concat();
        let mut scratch = Vec::new();
        while !tally.stop.load(Ordering::Relaxed) {
            if client::ask(&mut stream, &request, &mut scratch).await == 0 {
                stream = client::connect(address, 1).await.pop().unwrap();
            }
            tally.uploads.fetch_add(1, Ordering::Relaxed);
            tokio::time::sleep(PAUSE).await;
        }
    })
}

/// Goes away in the middle of a body, or before the answer.
fn abort(address: SocketAddr, tally: Arc<Tally>) -> Pinned {
    Box::pin(async move {
        while !tally.stop.load(Ordering::Relaxed) {
            let mut stream = client::connect(address, 1).await.pop().unwrap();
            let head =
                b"POST /any HTTP/1.1\r\nHost: bench.test\r\nContent-Length: 100000\r\n\r\nhalf";
            let _ = stream.write_all(head).await;
            if tally
                .aborts
                .fetch_add(1, Ordering::Relaxed)
                .is_multiple_of(2)
            {
                tokio::time::sleep(PAUSE).await;
            }
            drop(stream);
            let mut stream = client::connect(address, 1).await.pop().unwrap();
            let _ = stream
                .write_all(b"GET /any HTTP/1.1\r\nHost: bench.test\r\n\r\n")
                .await;
            drop(stream);
            tokio::time::sleep(PAUSE).await;
        }
    })
}

/// A connection for each request.
fn fresh(address: SocketAddr, tally: Arc<Tally>) -> Pinned {
    Box::pin(async move {
        let request = b"GET /any HTTP/1.1\r\nHost: bench.test\r\nConnection: close\r\n\r\n";
        while !tally.stop.load(Ordering::Relaxed) {
            let mut stream = client::connect(address, 1).await.pop().unwrap();
            let _ = stream.write_all(request).await;
            let mut answer = Vec::new();
            let _ = stream.read_to_end(&mut answer).await;
            tally.fresh.fetch_add(1, Ordering::Relaxed);
            tokio::time::sleep(PAUSE).await;
        }
    })
}

fn config(backend: SocketAddr, turn: u64) -> String {
    let rate = 1000 + turn % 7;
    let mut text = format!(
        "[server]\nworkers = 2\n[upstream.api]\nservers = [\"http://{backend}\"]\n\
         [api_key]\nunknown = \"trust\"\n[limit.client]\nrate = \"{rate}/5s\"\nkey = \"api_key\"\n\
         [limit.hot]\nrate = \"50/s\"\nkey = \"global\"\n\
         [[route]]\npath = \"/*\"\nmethods = [\"DELETE\"]\nupstream = \"api\"\nlimits = []\n\
         [[route]]\npath = \"/any\"\nupstream = \"api\"\nlimits = [\"client\"]\n\
         [[route]]\npath = \"/hot\"\nupstream = \"api\"\nlimits = [\"hot\"]\n\
         [[route]]\npath = \"/of/{{id}}/mine\"\nupstream = \"api\"\nlimits = [\"client\"]\n"
    );
    for extra in 0..turn % 5 * 20 {
        write!(
            text,
            "[[route]]\npath = \"/extra/{extra}\"\nupstream = \"api\"\nlimits = [\"client\"]\n"
        )
        .unwrap();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slope_is_what_each_step_adds() {
        assert_eq!(slope(&[3.0, 5.0, 7.0, 9.0]), 2.0);
        assert_eq!(slope(&[4.0; 10]), 0.0);
        assert_eq!(slope(&[1.0]), 0.0);
    }
}
