//! Reloads under load: no request fails, no count is lost, and what is under way stays.
//!
//! Short here; `TIDEGATE_RELOADS=1000 cargo test --release --test it -- reload::load --nocapture`
//! is the long run, and prints its figures.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::Gate;
use futures_util::future::join_all;
use tokio::time::timeout;

use crate::house::{Client, PATIENCE, Seen, Upstream};
use crate::http2::client::{Http2, get};
use crate::probe::eventually;
use crate::support::on_a_worker;

/// What the limit `exact` admits, whatever happens around it.
const EXACT: u64 = 300;
/// What `moved` admits in the end; other files say other numbers.
const MOVED: u64 = 200;
const UPLOAD: usize = 1 << 20;
const DOWNLOAD: usize = 4 << 20;

fn reloads() -> u64 {
    #[allow(clippy::disallowed_methods, reason = "a switch of this test")]
    let wanted = std::env::var("TIDEGATE_RELOADS").ok();
    wanted.and_then(|text| text.parse().ok()).unwrap_or(40)
}

/// Answers by what is asked: uploads with their length, `/down` with much, `/tunnel` with echoes.
fn upstream() -> Upstream {
    Upstream::start(|seen: &Seen, stream: &mut TcpStream| {
        if seen.is_for("/tunnel") {
            let head = "HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\n\
                        Upgrade: echo\r\n\r\n";
            let _ = stream.write_all(head.as_bytes());
            let mut chunk = [0; 1024];
            while let Ok(read @ 1..) = stream.read(&mut chunk) {
                if stream.write_all(&chunk[..read]).is_err() {
                    break;
                }
            }
            return false;
        }
        let body = match seen.is_for("/down") {
            true => vec![b'd'; DOWNLOAD],
            false => seen.body.len().to_string().into_bytes(),
        };
        let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", body.len());
        stream.write_all(&[head.as_bytes(), &body].concat()).is_ok()
    })
}

/// The file of the `turn`-th reload. What all share is what clients depend on.
fn file(turn: u64, upstream: &str, control: &Path) -> String {
    let moved = [MOVED, 150, 500, 10][turn as usize % 4];
    let mut text = format!(
        "[server]\nworkers = 2\ncontrol = \"{}\"\nmax_connections = {}\nidle_timeout = \"{}s\"\n\
         [upstream.api]\nservers = [\"{upstream}\"]\ntimeout = \"{}s\"\n\
         [limit.exact]\nrate = \"{EXACT}/h\"\nkey = \"global\"\n\
         [limit.moved]\nrate = \"{moved}/h\"\nkey = \"global\"\n\
         [[route]]\nname = \"rest\"\npath = \"/*\"\nupstream = \"api\"\nlimits = []\n\
         [[route]]\nname = \"exact\"\npath = \"/exact\"\nupstream = \"api\"\nlimits = [\"exact\"]\n\
         [[route]]\nname = \"moved\"\npath = \"/moved\"\nupstream = \"api\"\nlimits = [\"moved\"]\n",
        control.display(),
        1000 + turn % 3,
        60 + turn % 5,
        30 + turn / 10 % 2,
    );
    for extra in 0..turn % 4 {
        text += &format!(
            "[upstream.other{extra}]\nservers = [\"http://127.0.0.1:{}\"]\n\
             [[route]]\nname = \"extra{extra}\"\npath = \"/extra/{extra}\"\n\
             upstream = \"other{extra}\"\nlimits = [\"exact\"]\n",
            1 + turn % 7,
        );
    }
    text
}

/// What the clients did.
#[derive(Debug, Default)]
struct Tally {
    stop: AtomicBool,
    answered: AtomicU64,
    failed: AtomicU64,
    echoed: AtomicU64,
    exact: AtomicU64,
    moved: AtomicU64,
    denied: AtomicU64,
}

impl Tally {
    fn goes_on(&self) -> bool {
        !self.stop.load(Ordering::Relaxed)
    }

    /// Counts one request, which went as it should or did not.
    fn note(&self, went_well: impl FnOnce() -> bool) -> bool {
        let well = catch_unwind(AssertUnwindSafe(went_well)).unwrap_or(false);
        let count = if well { &self.answered } else { &self.failed };
        count.fetch_add(1, Ordering::Relaxed);
        well
    }

    fn get(&self) -> (u64, u64) {
        let load = |count: &AtomicU64| count.load(Ordering::Relaxed);
        (load(&self.answered), load(&self.failed))
    }
}

/// Requests on one connection, again on another if it should ever break.
fn keep_alive(tally: &Tally, proxy: SocketAddr) {
    while tally.goes_on() {
        let mut client = Client::to(proxy);
        while tally.goes_on() {
            let ask = "GET /kept HTTP/1.1\r\nHost: test\r\n\r\n";
            if !tally.note(|| client.ask(ask).text() == "0") {
                break;
            }
        }
    }
}

fn anew(tally: &Tally, proxy: SocketAddr) {
    while tally.goes_on() {
        let ask = "GET /new HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n";
        tally.note(|| Client::to(proxy).ask(ask).text() == "0");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Several requests at a time on one connection of HTTP/2.
fn http2(tally: &Tally, proxy: SocketAddr) {
    on_a_worker(async {
        while tally.goes_on() {
            let client = Http2::to(proxy).await;
            let mut goes_on = true;
            while goes_on && tally.goes_on() {
                let all = join_all((0..4).map(|_| timeout(PATIENCE, client.ask(get("/h2")))));
                for reply in all.await {
                    let well = reply.is_ok_and(|reply| reply.is_ok_and(|one| one.body == "0"));
                    goes_on &= tally.note(|| well);
                }
            }
        }
    });
}

/// Bodies up and down, slow enough that reloads happen amid each.
fn bodies(tally: &Tally, proxy: SocketAddr) {
    let piece = vec![b'u'; UPLOAD / 32];
    while tally.goes_on() {
        tally.note(|| {
            let mut client = Client::to(proxy);
            client.send(format!(
                "POST /up HTTP/1.1\r\nHost: test\r\nContent-Length: {UPLOAD}\r\n\r\n"
            ));
            for _ in 0..32 {
                client.send(&piece);
                std::thread::sleep(Duration::from_millis(2));
            }
            client.answer().text() == UPLOAD.to_string()
        });
        tally.note(|| {
            let mut client = Client::to(proxy);
            let answer = client.ask("GET /down HTTP/1.1\r\nHost: test\r\n\r\n");
            answer.status == 200 && answer.body.len() == DOWNLOAD
        });
    }
}

/// One tunnel for the whole time.
fn tunnel(tally: &Tally, proxy: SocketAddr) {
    tally.note(|| {
        let mut client = Client::to(proxy);
        let answer = client.ask(
            "GET /tunnel HTTP/1.1\r\nHost: test\r\nConnection: upgrade\r\nUpgrade: echo\r\n\r\n",
        );
        assert_eq!(answer.status, 101);
        let mut back = [0; 8];
        while tally.goes_on() {
            let number = tally.echoed.fetch_add(1, Ordering::Relaxed);
            client.send(number.to_be_bytes());
            client.stream.read_exact(&mut back).unwrap();
            assert_eq!(back, number.to_be_bytes());
            std::thread::sleep(Duration::from_millis(1));
        }
        true
    });
}

/// Asks for what is limited; what was let in is counted, and what was not is no failure.
fn limited(tally: &Tally, proxy: SocketAddr) {
    let mut client = Client::to(proxy);
    while tally.goes_on() {
        for (path, admitted) in [("exact", &tally.exact), ("moved", &tally.moved)] {
            tally.note(|| {
                let answer = client.ask(format!("GET /{path} HTTP/1.1\r\nHost: test\r\n\r\n"));
                match answer.status {
                    200 => admitted.fetch_add(1, Ordering::Relaxed),
                    429 => tally.denied.fetch_add(1, Ordering::Relaxed),
                    other => panic!("answered {other}"),
                };
                true
            });
        }
        std::thread::sleep(Duration::from_millis(3));
    }
}

/// Has it reload; whether it did.
fn ask_for_reload(control: &Path) -> bool {
    let mut stream = UnixStream::connect(control).unwrap();
    stream
        .write_all(b"{\"version\":1,\"command\":\"reload\"}\n")
        .unwrap();
    let mut line = String::new();
    BufReader::new(stream).read_line(&mut line).unwrap();
    line.contains("\"ok\":true")
}

struct Storm {
    gate: Gate,
    control: PathBuf,
}

impl Storm {
    fn start() -> Storm {
        let upstream = upstream();
        let directory = tempfile::tempdir().unwrap().keep();
        let control = directory.join("control.sock");
        let gate = Gate::before(upstream, &file(0, "$UPSTREAM", &control));
        eventually("it takes commands", || control.exists());
        Storm { gate, control }
    }

    /// Memory of the proxy, KiB.
    fn resident(&self) -> u64 {
        let pid = self.gate.proxy.pid();
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let number = line.and_then(|line| line.split_whitespace().next());
        number
            .and_then(|number| number.parse().ok())
            .unwrap_or_default()
    }

    /// Every tenth file has mistakes, every seventh reload is a signal.
    fn reload(&self, turn: u64) {
        let url = self.gate.upstream.url();
        if turn % 10 == 9 {
            self.gate.write("[server]\nworkers = \"many\"\n");
            assert!(!ask_for_reload(&self.control), "mistakes were taken");
        }
        self.gate.write(&file(turn, &url, &self.control));
        if turn % 7 == 6 {
            self.gate.proxy.signal("HUP");
        }
        assert!(ask_for_reload(&self.control), "the {turn}th reload failed");
    }
}

#[test]
fn no_request_fails_and_no_count_is_lost() {
    let storm = Storm::start();
    let (tally, proxy, reloads) = (Tally::default(), storm.gate.proxy.address, reloads());
    let settled = std::sync::OnceLock::new();
    let began = Instant::now();
    std::thread::scope(|scope| {
        let clients = [
            http2, keep_alive, keep_alive, keep_alive, anew, bodies, tunnel, limited, limited,
        ];
        for client in clients {
            let tally = &tally;
            scope.spawn(move || client(tally, proxy));
        }
        let stormed = catch_unwind(AssertUnwindSafe(|| {
            for turn in 1..=reloads {
                storm.reload(turn);
                if turn == reloads / 2 {
                    settled.get_or_init(|| storm.resident());
                }
            }
            storm.reload(0);
            let full = || tally.exact.load(Ordering::Relaxed) >= EXACT;
            eventually("the budget is spent", full);
            let full = || tally.moved.load(Ordering::Relaxed) >= MOVED;
            eventually("the other budget is spent", full);
        }));
        tally.stop.store(true, Ordering::Relaxed);
        stormed.unwrap();
    });
    let seconds = began.elapsed().as_secs_f64();
    let (answered, failed) = tally.get();
    eprintln!(
        "{reloads} reloads in {seconds:.1} s: {answered} requests answered as they should, \
         {failed} failed; one tunnel, {} echoes; exact {}, moved {}, denied {}; \
         {} KiB resident at half of it, {} at its end",
        tally.echoed.load(Ordering::Relaxed),
        tally.exact.load(Ordering::Relaxed),
        tally.moved.load(Ordering::Relaxed),
        tally.denied.load(Ordering::Relaxed),
        settled.get().copied().unwrap_or_default(),
        storm.resident(),
    );
    assert_eq!(failed, 0, "{tally:?}");
    assert_eq!(tally.exact.load(Ordering::Relaxed), EXACT);
    // Files of other turns let in more, so there may be more, but never more than the largest.
    let moved = tally.moved.load(Ordering::Relaxed);
    assert!((MOVED..=500).contains(&moved), "{moved}");
}
