//! Half of the servers go away under load, and nobody who asks for something that bears
//! repetition notices.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;

use super::WIDE;
use super::backend::Backend;
use crate::house::{Client, Tidegate};
use crate::probe::eventually;

const CLIENTS: usize = 8;
const GET: &str = "GET / HTTP/1.1\r\nHost: test\r\n\r\n";

/// Clients that ask all the time.
struct Load {
    stop: Arc<AtomicBool>,
    done: Arc<AtomicUsize>,
    clients: Vec<JoinHandle<HashMap<String, usize>>>,
}

impl Load {
    fn on(proxy: &Tidegate) -> Load {
        let (stop, done) = (Arc::new(AtomicBool::new(false)), Arc::default());
        let clients = (0..CLIENTS).map(|_| {
            let (address, stop) = (proxy.address, Arc::clone(&stop));
            let done: Arc<AtomicUsize> = Arc::clone(&done);
            std::thread::spawn(move || {
                let (mut client, mut answers) = (Client::to(address), HashMap::new());
                while !stop.load(Ordering::Relaxed) {
                    let answer = client.ask(GET);
                    let said = match answer.status {
                        200 => answer.text(),
                        status => status.to_string(),
                    };
                    *answers.entry(said).or_default() += 1;
                    done.fetch_add(1, Ordering::Relaxed);
                }
                answers
            })
        });
        let clients = clients.collect();
        Load {
            stop,
            done,
            clients,
        }
    }

    /// Waits for so many more answers.
    fn more(&self, count: usize) {
        let until = self.done.load(Ordering::Relaxed) + count;
        eventually("there are answers", || {
            self.done.load(Ordering::Relaxed) > until
        });
    }

    /// What was answered, and how often.
    fn end(self) -> HashMap<String, usize> {
        self.stop.store(true, Ordering::Relaxed);
        let mut all = HashMap::new();
        for client in self.clients {
            for (said, count) in client.join().unwrap() {
                *all.entry(said).or_default() += count;
            }
        }
        all
    }
}

fn four() -> Vec<Backend> {
    ["a", "b", "c", "d"].map(Backend::start).into()
}

fn before(backends: &[Backend], api: &str) -> Tidegate {
    let servers: Vec<_> = backends.iter().map(Backend::url).collect();
    Tidegate::start(&format!(
        "[upstream.api]\nservers = {servers:?}\n{api}\n{WIDE}\
         [[route]]\npath = \"/*\"\nupstream = \"api\"\n"
    ))
}

#[track_caller]
fn assert_all_answered(answers: &HashMap<String, usize>) {
    let failed = answers.keys().filter(|said| said.len() > 1);
    assert_eq!(failed.count(), 0, "{answers:?}");
    assert_eq!(answers.len(), 4, "all four have answered: {answers:?}");
}

#[test]
fn half_of_the_servers_are_killed_and_come_back() {
    let mut backends = four();
    let proxy = before(&backends, "eject = { for = \"1s\", max_for = \"1s\" }");
    let load = Load::on(&proxy);
    load.more(500);
    for _ in 0..2 {
        for backend in &mut backends[..2] {
            backend.kill();
        }
        load.more(1_000);
        for backend in &mut backends[..2] {
            backend.restart();
        }
        eventually("they are asked again", || {
            proxy.said().iter().any(|line| line.contains("is back"))
        });
        load.more(500);
    }
    assert_all_answered(&load.end());
}

#[test]
fn half_of_the_servers_freeze_and_thaw() {
    let backends = four();
    let api = "timeout = \"1s\"\neject = { failures = 2, for = \"1s\" }\n\
               retries = { on = [\"closed\", \"timeout\"] }\n\
               health = { path = \"/\", every = \"100ms\", timeout = \"1s\" }";
    let proxy = before(&backends, api);
    let load = Load::on(&proxy);
    load.more(500);
    for backend in &backends[..2] {
        backend.freeze();
    }
    for _ in 0..2 {
        proxy.wait_for_line("is down");
    }
    load.more(1_000);
    for backend in &backends[..2] {
        backend.thaw();
    }
    for _ in 0..2 {
        proxy.wait_for_line("is up again");
    }
    load.more(500);
    assert_all_answered(&load.end());
}

#[test]
fn one_that_flaps_harms_nobody() {
    let mut backends = four();
    let proxy = before(
        &backends,
        "eject = { for = \"100ms\", max_for = \"200ms\" }",
    );
    let load = Load::on(&proxy);
    for _ in 0..8 {
        load.more(200);
        backends[0].kill();
        load.more(200);
        backends[0].restart();
    }
    eventually("it is asked again", || {
        proxy.said().iter().any(|line| line.contains("is back"))
    });
    load.more(500);
    assert_all_answered(&load.end());
}
