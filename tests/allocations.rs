//! What a request costs in allocations: counted over a whole proxy in this process, with one worker
//! and real sockets, while nobody else allocates. A line that grows is a step back on the path.
//!
//! The client and the upstream are here as well, and work in buffers that they have: all that is
//! counted is the proxy's. What it does now and then (a log buffer that is handed over, a table that
//! grows) is less than one for each request and rounded away; each case is counted several times,
//! and the least is taken.

#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    clippy::too_many_lines,
    reason = "a test ends where something is wrong, may look at the clock, and reads as a table"
)]

use std::alloc::System;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use memchr::memmem;
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};
use tidegate::config::parse;
use tidegate::server::listen::{ListenLines, Listeners};
use tidegate::server::{Lifecycle, Reloads, ServerHandles, run};
use tokio::sync::watch;

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

/// Requests before anything is counted: buffers get their size, pools their connection.
const WARM_UP: usize = 50;
/// Requests that are counted together.
const ROUND: usize = 100;
/// How often they are.
const ROUNDS: usize = 5;
/// More than anything here should ever take.
const PATIENCE: Duration = Duration::from_secs(20);

/// A tidegate of one worker on threads of this process.
struct House {
    address: SocketAddr,
    lifecycle: Option<watch::Sender<Lifecycle>>,
    thread: Option<JoinHandle<()>>,
}

impl House {
    fn open(text: &str) -> House {
        let text = format!("listen = \"127.0.0.1:0\"\n{text}\n[server]\nworkers = 1\n");
        let (config, _) = parse("proxy.toml", &text, &|_| None).unwrap();
        let listeners = Listeners::open(ListenLines::new(&config), 1, &mut Vec::new()).unwrap();
        let address = listeners.addresses()[0];
        let (handles, controls) = ServerHandles::new(Arc::new(listeners), 1, None);
        let reloads = Reloads {
            requests: controls.requests,
            watch: false,
            claim: None,
            demo: None,
        };
        let thread = std::thread::spawn(move || run(config, handles, reloads).unwrap());
        House {
            address,
            lifecycle: Some(controls.lifecycle),
            thread: Some(thread),
        }
    }
}

impl Drop for House {
    fn drop(&mut self) {
        drop(self.lifecycle.take());
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

/// A connection, and the one buffer in which it reads.
struct Wire {
    stream: TcpStream,
    buffer: Box<[u8; 64 << 10]>,
}

impl Wire {
    fn of(stream: TcpStream) -> Wire {
        stream.set_nodelay(true).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        Wire {
            stream,
            buffer: Box::new([0; 64 << 10]),
        }
    }

    /// Reads one message, which is framed by its length; nothing where the connection ends.
    fn message(&mut self) -> Option<&[u8]> {
        let mut read = 0;
        loop {
            match self.stream.read(&mut self.buffer[read..]) {
                Ok(more @ 1..) => read += more,
                _ => return None,
            }
            let Some(end) = memmem::find(&self.buffer[..read], b"\r\n\r\n") else {
                continue;
            };
            if read >= end + 4 + length(&self.buffer[..end]) {
                return Some(&self.buffer[..read]);
            }
        }
    }
}

/// What `Content-Length` says.
fn length(head: &[u8]) -> usize {
    const NAME: &[u8] = b"ontent-length: ";
    let lower = memmem::find(head, NAME).or_else(|| memmem::find(head, b"ontent-Length: "));
    let digits = lower.map_or(&[][..], |at| &head[at + NAME.len()..]);
    let digits = digits.iter().take_while(|byte| byte.is_ascii_digit());
    digits.fold(0, |length, digit| length * 10 + usize::from(digit - b'0'))
}

/// An upstream that answers everything with two bytes, for as long as anyone is connected.
fn upstream() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            std::thread::spawn(move || {
                let mut wire = Wire::of(stream);
                while wire.message().is_some() {
                    let answer = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\
                        Content-Type: text/plain\r\nServer: test\r\n\r\nok";
                    wire.stream.write_all(answer).unwrap();
                }
            });
        }
    });
    address
}

/// A port that nobody has, below those that the kernel hands out by itself.
fn free_port() -> u16 {
    let first = (std::process::id() * 97 % 20_000) as u16;
    let mut ports = (0..20_000).map(|turn| 10_240 + (first + turn) % 20_000);
    let free = ports.find(|port| TcpListener::bind(("127.0.0.1", *port)).is_ok());
    free.expect("a free port")
}

/// A real redis-server, killed at the end.
struct Redis(Child, u16);

impl Redis {
    fn start() -> Redis {
        let port = free_port();
        let child = Command::new("setpriv")
            .args(["--pdeathsig", "KILL", "redis-server", "--bind", "127.0.0.1"])
            .args(["--save", "", "--appendonly", "no", "--port"])
            .arg(port.to_string())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let since = Instant::now();
        while TcpStream::connect(("127.0.0.1", port)).is_err() {
            assert!(since.elapsed() < PATIENCE, "redis-server does not start");
            std::thread::sleep(Duration::from_millis(10));
        }
        Redis(child, port)
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// What one request took of the heap.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Cost {
    allocations: usize,
    bytes: usize,
}

/// Sends the same request over and over on one connection, and counts.
fn cost_of(address: SocketAddr, request: &[u8], status: &[u8]) -> Cost {
    let mut wire = Wire::of(TcpStream::connect(address).unwrap());
    let mut ask = |times: usize, status: Option<&[u8]>| {
        for _ in 0..times {
            wire.stream.write_all(request).unwrap();
            let answer = wire.message().expect("an answer");
            let is_expected = status.is_none_or(|status| answer[9..].starts_with(status));
            assert!(is_expected, "{}", String::from_utf8_lossy(answer));
        }
    };
    ask(WARM_UP, None);
    let round = |_| {
        let region = Region::new(ALLOCATOR);
        ask(ROUND, Some(status));
        let change = region.change();
        let each = |total: usize| (total + ROUND / 2) / ROUND;
        Cost {
            allocations: each(change.allocations + change.reallocations),
            bytes: each(change.bytes_allocated),
        }
    };
    (0..ROUNDS).map(round).min().unwrap()
}

/// A configuration, a request, the status of its answer, and what it may cost at most.
struct Case {
    name: &'static str,
    config: String,
    request: Vec<u8>,
    status: &'static [u8],
    most: Cost,
}

fn get(more: &str) -> Vec<u8> {
    let head = "GET /api/items/17?page=2 HTTP/1.1\r\nHost: shop.example\r\n\
        User-Agent: test/1.0\r\nAccept: */*\r\n";
    format!("{head}{more}\r\n").into_bytes()
}

fn post(bytes: usize) -> Vec<u8> {
    let head = format!("POST /api/items HTTP/1.1\r\nHost: shop.example\r\nContent-Length: {bytes}");
    let mut request = format!("{head}\r\n\r\n").into_bytes();
    request.resize(request.len() + bytes, b'x');
    request
}

fn cases(redis: u16, log: &str) -> Vec<Case> {
    let upstream = upstream();
    let quiet = "[log]\naccess = \"off\"\n";
    let to = format!("upstream = \"http://{upstream}\"\n");
    let limit =
        |rate: &str, key: &str| format!("[limit.default]\nrate = \"{rate}\"\nkey = \"{key}\"\n");
    let store = format!("[store]\nurl = \"redis://127.0.0.1:{redis}\"\ntimeout = \"5s\"\n");
    let most = |allocations, bytes| Cost { allocations, bytes };
    let case = |name, config, request, status, most| Case {
        name,
        config,
        request,
        status,
        most,
    };
    // The rate-limit headers of an answer take two allocations: the text of their values, and the
    // reference count that lets the values share it. The body of a denial lies in the same text.
    // A decision by Redis takes six more: the redis crate packs the call and returns each value of
    // the reply as an object. A codec that spared four of them was not worth 5 % of the CPU.
    let (open, shut) = (limit("10000000/h", "ip"), limit("1/d", "ip"));
    vec![
        case(
            "plain",
            format!("{to}{quiet}"),
            get(""),
            b"200",
            most(0, 100),
        ),
        case(
            "limited, embedded store",
            format!("{to}{quiet}{open}"),
            get(""),
            b"200",
            most(2, 200),
        ),
        case(
            "limited by API key",
            format!(
                "{to}{quiet}[api_key]\nunknown = \"trust\"\n{}",
                limit("10000000/h", "api_key")
            ),
            get("X-Api-Key: 0123456789\r\n"),
            b"200",
            most(3, 250),
        ),
        case(
            "limited, Redis",
            format!("{to}{quiet}{store}{open}"),
            get(""),
            b"200",
            most(8, 1_500),
        ),
        case(
            "denied, embedded store",
            format!("{to}{quiet}{shut}"),
            get(""),
            b"429",
            most(3, 1_100),
        ),
        case(
            "denied, asked by a script",
            format!("{to}{quiet}{shut}"),
            get("Origin: https://shop.example\r\n"),
            b"429",
            most(3, 1_100),
        ),
        case(
            "denied, known from Redis",
            format!("{to}{quiet}{store}{shut}"),
            get(""),
            b"429",
            most(3, 1_100),
        ),
        case(
            "plain, logged",
            format!("{to}[log]\naccess = \"{log}\"\nformat = \"json\"\nsample_allowed = 1.0\n"),
            get(""),
            b"200",
            most(1, 650),
        ),
        case(
            "plain, with an id",
            format!("{to}{quiet}[headers]\nrequest_id = \"x-request-id\"\n"),
            get(""),
            b"200",
            most(4, 700),
        ),
        case(
            "POST of 16 KiB",
            format!("{to}{quiet}"),
            post(16 << 10),
            b"200",
            most(5, 20_000),
        ),
    ]
}

#[test]
fn a_request_costs_a_small_fixed_number_of_allocations() {
    let redis = Redis::start();
    let directory = tempfile::tempdir().unwrap();
    let log = directory.path().join("access.log");
    let mut over = String::new();
    for case in cases(redis.1, log.to_str().unwrap()) {
        let house = House::open(&case.config);
        let cost = cost_of(house.address, &case.request, case.status);
        let line = format!("{:<28} {cost:?}, at most {:?}\n", case.name, case.most);
        print!("{line}");
        if cost.allocations > case.most.allocations || cost.bytes > case.most.bytes {
            over.push_str(&line);
        }
    }
    assert!(over.is_empty(), "more than before:\n{over}");
}
