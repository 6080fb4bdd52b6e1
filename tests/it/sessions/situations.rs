//! Sessions of how-tos that need more around them: a Redis that goes and comes back, an application
//! that is slow, a log of yesterday.

use std::fmt::Write as _;
use std::io::Write as _;
use std::sync::{Condvar, Mutex};

use super::{Addresses, Session, running};
use crate::house::{PATIENCE, Upstream};
use crate::probe::eventually;
use crate::support::{Chance, free_port};

#[test]
fn outages() {
    let mut at = Addresses::new();
    let admin = free_port();
    let redis = format!("redis://127.0.0.1:{}\"", at.redis.port());
    let changes = [
        at.localhost(),
        at.upstream(),
        at.listen(),
        ("127.0.0.1:9180", format!("127.0.0.1:{admin}")),
        ("redis://127.0.0.1\"", redis),
        ("\"25ms\"", "\"5s\"".to_owned()),
        // A busy machine takes its time for all these clients.
        ("\"100/min\"", "\"100/h\"".to_owned()),
    ];
    let mut page = Session::of("howto/outages.md", &changes);
    page.write("proxy.toml", page.block("```toml\n# proxy.toml\n"));
    page.write("redis.pid", &at.redis.pid().to_string());
    let proxy = running(&page);
    page.prints("for i in $(seq 40)", &[]);
    page.prints("kill", &[]);
    let status = format!("curl -s 127.0.0.1:{admin}/metrics | grep '^tidegate_degraded '");
    eventually("it is away", || page.shell(&status).ends_with(" 1\n"));
    page.prints("curl -si", &[]);
    page.prints("curl -si -d", &["e7b674b0a7e49a75"]);
    page.prints("curl -so", &[]);
    page.prints("for i in $(seq 80)", &[]);
    // How one hears of it stands below what comes after it.
    page.steps.swap(0, 1);
    page.prints("tidegate status", &["8 s"]);
    at.redis.restart();
    eventually("it is back", || page.shell(&status).ends_with(" 0\n"));
    page.prints("curl -si", &[]);
    proxy.stop();
}

/// An application that nobody leaves before so many are in at once; it says how many there ever were.
fn crowded(many: usize) -> Upstream {
    // How many are in, and were at most.
    let (inside, came) = (Mutex::new((0, 0)), Condvar::new());
    Upstream::start(move |_, stream| {
        let mut count = inside.lock().unwrap();
        count.0 += 1;
        count.1 = count.1.max(count.0);
        came.notify_all();
        let waits = came.wait_timeout_while(count, PATIENCE, |count| count.1 < many);
        drop(waits.unwrap());
        // Whoever should not be let in has time to come.
        std::thread::sleep(std::time::Duration::from_millis(20));
        let mut count = inside.lock().unwrap();
        count.0 -= 1;
        let body = format!("taken, {} at once at most\n", count.1);
        drop(count);
        let length = body.len();
        let answer = format!("HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n{body}");
        stream.write_all(answer.as_bytes()).is_ok()
    })
}

#[test]
fn webhooks() {
    let mut at = Addresses::new();
    at.upstream = crowded(8);
    let changes = [
        at.localhost(),
        at.upstream(),
        at.listen(),
        at.store(),
        ("\"8s\"", "\"60s\"".to_owned()),
    ];
    let mut page = Session::of("howto/webhooks.md", &changes);
    page.write("proxy.toml", page.block("```toml\n# proxy.toml\n"));
    page.write("providers.txt", "127.0.0.0/8\n");
    let proxy = running(&page);
    page.prints("for i in $(seq 80)", &[]);
    page.prints("curl", &[]);
    proxy.stop();
}

/// Yesterday's: quiet clients, ten that come in bursts, and a script.
fn yesterday() -> String {
    const HOURS: u64 = 6;
    let mut chance = Chance(449);
    let mut asked: Vec<(u64, String)> = Vec::new();
    let address = |client: u64| match client.is_multiple_of(2) {
        true => format!("198.51.100.{}", 20 + client / 2),
        false => format!("203.0.113.{}", 20 + client / 2),
    };
    for client in 0..438 {
        for _ in 0..1 + chance.below(4) {
            let mut second = chance.below(HOURS * 3600 - 120);
            for _ in 0..1 + chance.below(13) {
                asked.push((second, address(client)));
                second += 1 + chance.below(7);
            }
        }
    }
    for (client, burst) in (438..448).zip([45, 38, 33, 31, 28, 27, 25, 24, 23, 22]) {
        for five_minutes in 0..HOURS * 12 {
            let begin = five_minutes * 300 + chance.below(200);
            // They are not at their busiest always.
            for turn in 0..burst - chance.below(16) {
                asked.push((begin + turn * 58 / burst, address(client)));
            }
        }
    }
    asked.extend((0..900).map(|turn| (7620 + turn * 7 / 10, "192.0.2.77".to_owned())));
    asked.sort();
    let mut log = String::new();
    for (second, ip) in asked {
        let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
        let time = format!("22/Nov/2026:{hour:02}:{minute:02}:{second:02} +0000");
        let line = format!("{ip} - - [{time}] \"GET /search?q=a HTTP/1.1\" 200 512 \"-\" \"-\"");
        writeln!(log, "{line}").unwrap();
    }
    log
}

#[test]
fn numbers() {
    let mut page = Session::of("howto/numbers.md", &[]);
    page.write("proxy.toml", page.block("```toml\n# proxy.toml\n"));
    page.write("access.log", &yesterday());
    page.prints("tidegate replay", &[]);
    page.prints("cat rates.patch", &[]);
}
