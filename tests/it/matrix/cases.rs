//! Every fault, part by part: how it is done and undone.

use std::io::Write;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::guise::Guise;
use super::scene::Scene;
use crate::house::Client;
use crate::http2::raw::{END_HEADERS, END_STREAM, HEADERS, REQUEST, RST_STREAM, Raw, block, frame};
use crate::names;
use crate::redis_faults::clock;
use crate::support::Chance;
use crate::tls::stage::Authority;

/// What requests may come to while it lasts, besides what they come to always.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owed {
    /// Nothing: everybody is served as if nothing were.
    Service,
    /// The same, and the latency of honest clients is held to its bound: this is an attack.
    Pace,
    /// 502, 503 or 504, and some are.
    Refusal,
    /// 502 to everybody whom the upstream has to answer, and at once as it was when it is over.
    Distrust,
    /// No new connection is of use; whoever has one is served on it.
    Stop,
    /// No new connection; whoever has one is served.
    Patience,
}

pub struct Case {
    pub part: &'static str,
    pub fault: &'static str,
    pub owed: Owed,
    pub make: fn() -> Scene,
    pub begin: fn(&mut Scene),
    pub end: fn(&mut Scene),
}

const fn attack(fault: &'static str, make: fn() -> Scene, begin: fn(&mut Scene)) -> Case {
    Case {
        part: "clients",
        fault,
        owed: Owed::Pace,
        make,
        begin,
        end: Scene::calm,
    }
}

const fn case(part: &'static str, fault: &'static str, owed: Owed, does: Does) -> Case {
    Case {
        part,
        fault,
        owed,
        make: does.0,
        begin: does.1,
        end: does.2,
    }
}

type Does = (fn() -> Scene, fn(&mut Scene), fn(&mut Scene));

pub const CASES: [Case; 31] = [
    attack("slow heads, 300", Scene::usual, |it| {
        it.attack(1, slow_heads)
    }),
    attack("slow bodies, 100", Scene::usual, |it| {
        it.attack(1, slow_bodies)
    }),
    attack("slow readers of 8 MiB, 30", Scene::usual, |it| {
        it.attack(1, slow_readers)
    }),
    attack("connect floods, two at a time", Scene::usual, |it| {
        it.attack(2, connects)
    }),
    attack("HTTP/2 streams reset at once", Scene::usual, |it| {
        it.attack(1, resets)
    }),
    attack("idle connections to their cap", idle_cap, |it| {
        it.attack(1, idles)
    }),
    attack("uploads to a dead upstream", Scene::usual, |it| {
        it.attack(2, dead_uploads)
    }),
    attack("leaving in the middle", Scene::usual, |it| {
        it.attack(2, leaves)
    }),
    attack("garbage", Scene::usual, |it| it.attack(1, garbage)),
    attack("fresh keys all the time", Scene::usual, |it| {
        it.attack(1, fresh_keys)
    }),
    case(
        "upstream",
        "killed, started again",
        Owed::Refusal,
        (
            || Scene::before(1, ""),
            |it| it.backends[0].kill(),
            |it| it.backends[0].restart(),
        ),
    ),
    case(
        "upstream",
        "frozen, thawed",
        Owed::Refusal,
        (
            || Scene::before(1, "timeout = \"300ms\""),
            |it| it.backends[0].freeze(),
            |it| it.backends[0].thaw(),
        ),
    ),
    case(
        "upstream",
        "one of two killed",
        Owed::Service,
        (
            || Scene::before(2, ""),
            |it| it.backends[0].kill(),
            |it| it.backends[0].restart(),
        ),
    ),
    case(
        "Redis",
        "killed, started again",
        Owed::Service,
        (
            Scene::counting,
            |it| it.redis.as_mut().unwrap().kill(),
            |it| it.redis.as_mut().unwrap().restart(),
        ),
    ),
    case(
        "Redis",
        "frozen, thawed",
        Owed::Service,
        (
            Scene::counting,
            |it| it.redis.as_ref().unwrap().freeze(),
            |it| it.redis.as_ref().unwrap().thaw(),
        ),
    ),
    case(
        "Redis",
        "out of memory",
        Owed::Service,
        (
            Scene::counting,
            |it| drop(it.redis.as_ref().unwrap().run("CONFIG SET maxmemory 1mb")),
            |it| drop(it.redis.as_ref().unwrap().run("CONFIG SET maxmemory 0")),
        ),
    ),
    case(
        "Redis",
        "its scripts and connections lost",
        Owed::Service,
        (
            Scene::counting,
            |it| {
                it.redis.as_ref().unwrap().run("SCRIPT FLUSH");
                it.redis.as_ref().unwrap().run("CLIENT KILL TYPE normal");
            },
            |_| {},
        ),
    ),
    case(
        "log disk",
        "full, room again",
        Owed::Service,
        (
            Scene::logging,
            |it| {
                let mut filler = std::fs::File::create(it.inside("disk/filler")).unwrap();
                while filler.write_all(&[0; 4096]).is_ok() {}
            },
            |it| std::fs::remove_file(it.inside("disk/filler")).unwrap(),
        ),
    ),
    case(
        "descriptors",
        "none left, some again",
        Owed::Patience,
        (
            Scene::usual,
            |it| it.bound_descriptors(it.descriptors()),
            |it| it.bound_descriptors(1000),
        ),
    ),
    case(
        "memory",
        "no room for keys",
        Owed::Service,
        (
            || Scene::plain("[store]\nmax_keys = 1000\nmax_memory = \"1MiB\"", ""),
            |it| it.attack(2, fresh_keys),
            Scene::calm,
        ),
    ),
    case(
        "clock",
        "Redis an hour ahead, and back",
        Owed::Service,
        (
            || Scene::counting_in(clock::redis()),
            |it| clock::set(it.redis.as_ref().unwrap(), 3600),
            |it| clock::set(it.redis.as_ref().unwrap(), 0),
        ),
    ),
    case(
        "DNS",
        "the name is gone, and back",
        Owed::Service,
        (
            named,
            |it| names::write(&hosts(it), &[]),
            |it| names::write(&hosts(it), &[1]),
        ),
    ),
    case(
        "DNS",
        "the name leads elsewhere",
        Owed::Service,
        (named, |it| names::write(&hosts(it), &[2]), |_| {}),
    ),
    case(
        "certificates",
        "the pair is broken, then new",
        Owed::Service,
        (
            Scene::secure,
            |it| std::fs::write(it.proxy.directory.path().join("one.pem"), "none").unwrap(),
            |it| {
                let folder = it.proxy.directory.path();
                it.kept::<Authority>()
                    .write(folder, "one", &["one.test"], 2999);
            },
        ),
    ),
    case(
        "certificates",
        "the upstream's has expired, then a good one",
        Owed::Distrust,
        (
            Scene::before_guise,
            |it| it.kept::<Guise>().show("expired"),
            |it| it.show_good("upstream_tls_expired"),
        ),
    ),
    case(
        "certificates",
        "the upstream's is of another name, then a good one",
        Owed::Distrust,
        (
            Scene::before_guise,
            |it| it.kept::<Guise>().show("other"),
            |it| it.show_good("upstream_tls_other_name"),
        ),
    ),
    case(
        "certificates",
        "the upstream's is a stranger's, then a good one",
        Owed::Distrust,
        (
            Scene::before_guise,
            |it| it.kept::<Guise>().show("stranger"),
            |it| it.show_good("upstream_tls_unknown_ca"),
        ),
    ),
    case(
        "certificates",
        "clients' authority is another, then theirs",
        Owed::Stop,
        (
            Scene::knowing_clients,
            |it| {
                it.believe("stranger");
                it.wait_for_strangers();
            },
            |it| it.believe("ca"),
        ),
    ),
    case(
        "ourselves",
        "a file with mistakes",
        Owed::Service,
        (
            Scene::usual,
            |it| {
                std::fs::write(it.proxy.directory.path().join("proxy.toml"), "upstream =").unwrap();
                it.proxy.signal("HUP");
            },
            |_| {},
        ),
    ),
    case(
        "ourselves",
        "a storm of reloads",
        Owed::Service,
        (
            Scene::usual,
            |it| {
                for _ in 0..50 {
                    it.proxy.signal("HUP");
                    std::thread::sleep(Duration::from_millis(5));
                }
            },
            |_| {},
        ),
    ),
    case(
        "ourselves",
        "an upgrade",
        Owed::Service,
        (Scene::counting, |it| it.proxy.signal("USR2"), |_| {}),
    ),
];

fn idle_cap() -> Scene {
    Scene::plain("", "max_connections = 400\nidle_timeout = \"200ms\"")
}

fn named() -> Scene {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("hosts");
    let port = names::serve(1, 0);
    names::serve(2, port);
    names::write(&file, &[1]);
    let mut scene = Scene::named(file, port);
    scene.held.push(Box::new(directory));
    scene
}

fn hosts(scene: &Scene) -> std::path::PathBuf {
    scene.kept::<tempfile::TempDir>().path().join("hosts")
}

const TICK: Duration = Duration::from_millis(200);
/// What attackers rest: without it they would measure who gets the machine.
const REST: Duration = Duration::from_millis(1);

/// So many connections that begin with `first`, and send a byte of `drop` now and then.
fn drip(to: (SocketAddr, usize), first: &str, drop: &[u8], stop: &AtomicBool) {
    let fresh = || {
        let mut client = Client::to(to.0);
        client.send(first);
        client
    };
    let mut all: Vec<Client> = (0..to.1).map(|_| fresh()).collect();
    while !stop.load(Ordering::Relaxed) {
        for one in &mut all {
            if one.stream.write_all(drop).is_err() {
                *one = fresh();
            }
        }
        std::thread::sleep(TICK);
    }
}

fn slow_heads(address: SocketAddr, stop: &AtomicBool) {
    drip((address, 300), "GET /open HTTP/1.1\r\nX-A: ", b"a", stop);
}

fn slow_bodies(address: SocketAddr, stop: &AtomicBool) {
    let head = "POST /open HTTP/1.1\r\nHost: test\r\nX-Key: slow\r\nContent-Length: 100000\r\n\r\n";
    drip((address, 100), head, b"a", stop);
}

fn slow_readers(address: SocketAddr, stop: &AtomicBool) {
    let get = "GET /big HTTP/1.1\r\nHost: test\r\nX-Key: slow\r\n\r\n";
    drip((address, 30), get, b"", stop);
}

fn until(stop: &AtomicBool, mut act: impl FnMut()) {
    while !stop.load(Ordering::Relaxed) {
        act();
    }
}

fn connects(address: SocketAddr, stop: &AtomicBool) {
    until(stop, || {
        drop(std::net::TcpStream::connect(address));
        std::thread::sleep(REST);
    });
}

fn resets(address: SocketAddr, stop: &AtomicBool) {
    until(stop, || {
        let mut raw = Raw::to(address, &[]);
        let head = block(&REQUEST);
        for stream in (1..20_000).step_by(2) {
            let begun = frame(HEADERS, END_STREAM | END_HEADERS, stream, &head);
            let reset = frame(RST_STREAM, 0, stream, &8_u32.to_be_bytes());
            if !raw.send(&[begun, reset].concat()) || stop.load(Ordering::Relaxed) {
                return;
            }
            if stream % 20 == 1 {
                std::thread::sleep(REST);
            }
        }
    });
}

/// More than there may be; those beyond wait to be accepted.
fn idles(address: SocketAddr, stop: &AtomicBool) {
    let mut kept = Vec::new();
    until(stop, || {
        kept.push(std::net::TcpStream::connect(address));
        if kept.len() > 350 {
            kept.drain(..10);
        }
        std::thread::sleep(2 * REST);
    });
}

fn dead_uploads(address: SocketAddr, stop: &AtomicBool) {
    let head = "POST /dead HTTP/1.1\r\nHost: test\r\nX-Key: up\r\nContent-Length: 8388608\r\n\r\n";
    until(stop, || {
        let mut client = Client::to(address);
        client.send(head);
        client.pour(&[b'x'; 65_536], 8 << 20);
        std::thread::sleep(10 * REST);
    });
}

fn leaves(address: SocketAddr, stop: &AtomicBool) {
    let head =
        "POST /open HTTP/1.1\r\nHost: test\r\nX-Key: gone\r\nContent-Length: 9999\r\n\r\nhalf";
    until(stop, || {
        Client::to(address).send(head);
        Client::to(address).send("GET /big HTTP/1.1\r\nHost: test\r\nX-Key: gone\r\n\r\n");
        std::thread::sleep(2 * REST);
    });
}

fn garbage(address: SocketAddr, stop: &AtomicBool) {
    let mut chance = Chance(7);
    until(stop, || {
        let bytes: Vec<u8> = (0..200).map(|_| chance.below(256) as u8).collect();
        Client::to(address).send(bytes);
        std::thread::sleep(REST);
    });
}

fn fresh_keys(address: SocketAddr, stop: &AtomicBool) {
    let (mut client, mut chance) = (Client::to(address), Chance(u64::from(address.port())));
    until(stop, || {
        let key = chance.next();
        client.ask(format!(
            "GET /open HTTP/1.1\r\nHost: test\r\nX-Key: {key}\r\n\r\n"
        ));
        std::thread::sleep(REST / 4);
    });
}
