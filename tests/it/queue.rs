//! Servers with as many requests as they may have, and requests that wait for them.

use std::io::Write;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use crate::house::{Answer, Tidegate, Upstream};
use crate::probe::eventually;
use crate::reload::Gate;

/// A server that answers when it is told to, and knows how many requests it had at once.
struct Slow {
    upstream: Upstream,
    state: Arc<State>,
}

#[derive(Default)]
struct State {
    /// Answers that may be given.
    permits: Mutex<usize>,
    more: Condvar,
    under_way: AtomicUsize,
    most: AtomicUsize,
}

impl Slow {
    fn start() -> Slow {
        let state = Arc::new(State::default());
        let own = Arc::clone(&state);
        let upstream = Upstream::start(move |_, stream| {
            let now = own.under_way.fetch_add(1, Ordering::SeqCst) + 1;
            own.most.fetch_max(now, Ordering::SeqCst);
            let mut permits = own.permits.lock().unwrap();
            while *permits == 0 {
                permits = own.more.wait(permits).unwrap();
            }
            *permits -= 1;
            drop(permits);
            own.under_way.fetch_sub(1, Ordering::SeqCst);
            let ok = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
            stream.write_all(ok.as_bytes()).is_ok()
        });
        Slow { upstream, state }
    }

    fn answer(&self, count: usize) {
        *self.state.permits.lock().unwrap() += count;
        self.state.more.notify_all();
    }

    fn under_way(&self) -> usize {
        self.state.under_way.load(Ordering::SeqCst)
    }

    fn most(&self) -> usize {
        self.state.most.load(Ordering::SeqCst)
    }
}

/// A proxy with four workers before an upstream with these settings.
fn proxy(settings: &str) -> Tidegate {
    Tidegate::start(&config(settings))
}

fn config(settings: &str) -> String {
    format!(
        "[server]\nworkers = 4\n[log]\naccess = \"off\"\n[[route]]\npath = \"/*\"\n\
         upstream = \"app\"\n[upstream.app]\n{settings}\n"
    )
}

/// A request on a connection of its own, in a thread of its own.
fn ask(proxy: &Tidegate) -> std::thread::JoinHandle<Answer> {
    let mut client = proxy.connect();
    std::thread::spawn(move || client.ask("GET / HTTP/1.1\r\nHost: test\r\n\r\n"))
}

fn capped(server: &Slow, cap: usize) -> String {
    let url = server.upstream.url();
    format!("servers = {{ url = \"{url}\", max_connections = {cap} }}")
}

#[test]
fn a_cap_holds_over_all_workers_and_the_others_wait() {
    let server = Slow::start();
    let settings = capped(&server, 3);
    let proxy = proxy(&format!("{settings}\nqueue = 100\nqueue_timeout = \"20s\""));
    let asked: Vec<_> = (0..40).map(|_| ask(&proxy)).collect();
    eventually("the server has as many as it may", || {
        server.under_way() == 3
    });
    server.answer(40);
    for asked in asked {
        assert_eq!(asked.join().unwrap().status, 200);
    }
    assert_eq!(server.most(), 3);
    assert_eq!(server.upstream.seen().len(), 40);
}

#[test]
fn without_a_queue_the_next_one_is_refused_at_once() {
    let server = Slow::start();
    let proxy = proxy(&capped(&server, 1));
    let first = ask(&proxy);
    eventually("the first is there", || server.under_way() == 1);
    let refused = proxy.get("/");
    assert_eq!(refused.status, 503);
    assert_eq!(refused.header("retry-after").as_deref(), Some("1"));
    server.answer(2);
    assert_eq!(first.join().unwrap().status, 200);
    assert_eq!(proxy.get("/").status, 200);
}

#[test]
fn a_queue_is_bounded_in_number_and_in_time() {
    let server = Slow::start();
    let settings = capped(&server, 1);
    let proxy = proxy(&format!("{settings}\nqueue = 2\nqueue_timeout = \"300ms\""));
    let first = ask(&proxy);
    eventually("the first is there", || server.under_way() == 1);
    let start = Instant::now();
    let three: Vec<_> = (0..3).map(|_| ask(&proxy)).collect();
    let three: Vec<_> = three
        .into_iter()
        .map(|asked| asked.join().unwrap())
        .collect();
    assert!(three.iter().all(|answer| answer.status == 503));
    assert!(
        three
            .iter()
            .all(|answer| answer.header("retry-after").is_some())
    );
    let took = start.elapsed();
    assert!(took >= Duration::from_millis(300), "{took:?}");
    server.answer(1);
    assert_eq!(first.join().unwrap().status, 200);
    assert_eq!(server.upstream.seen().len(), 1);
}

#[test]
fn what_is_full_gives_way_to_what_has_room() {
    let (full, free) = (Slow::start(), Slow::start());
    let (one, two) = (full.upstream.url(), free.upstream.url());
    let proxy = proxy(&format!(
        "servers = [{{ url = \"{one}\", max_connections = 1 }}, \"{two}\"]\n\
         balance = \"hash:path\"\nqueue = 9"
    ));
    let asked: Vec<_> = (0..6).map(|_| ask(&proxy)).collect();
    eventually("all are somewhere", || {
        full.under_way() + free.under_way() == 6
    });
    assert!(full.most() <= 1);
    full.answer(6);
    free.answer(6);
    for asked in asked {
        assert_eq!(asked.join().unwrap().status, 200);
    }
}

#[test]
fn clients_that_leave_the_queue_leave_no_gap() {
    let server = Slow::start();
    let settings = capped(&server, 1);
    let proxy = proxy(&format!("{settings}\nqueue = 3\nqueue_timeout = \"20s\""));
    let first = ask(&proxy);
    eventually("the first is there", || server.under_way() == 1);
    for _ in 0..20 {
        let mut client = proxy.connect();
        client.send("GET /gone HTTP/1.1\r\nHost: test\r\n\r\n");
    }
    let last = ask(&proxy);
    server.answer(100);
    assert_eq!(first.join().unwrap().status, 200);
    // It was refused only if those who left were still there.
    let last = last.join().unwrap();
    assert!(matches!(last.status, 200 | 503));
    eventually("there is room again", || proxy.get("/").status == 200);
}

#[test]
fn requests_with_room_after_a_reload_do_not_stand_behind_the_queue_before_it() {
    let queue = "queue = 2\nqueue_timeout = \"20s\"";
    for has_other_server in [false, true] {
        let (full, free) = (Slow::start(), Slow::start());
        let before = config(&format!("{}\n{queue}", capped(&full, 1)));
        let after = match has_other_server {
            false => capped(&full, 50),
            true => capped(&free, 1),
        };
        let gate = Gate::before(Upstream::ok(), &before);
        let first = ask(&gate.proxy);
        eventually("the first is there", || full.under_way() == 1);
        let three: Vec<_> = (0..3).map(|_| ask(&gate.proxy)).collect();
        // Only the third one is refused, so the others wait then.
        eventually("two wait", || three.iter().any(|asked| asked.is_finished()));
        gate.reload(&config(&format!("{after}\n{queue}")));
        let next = ask(&gate.proxy);
        eventually("the next one has room", || {
            full.under_way() + free.under_way() == 2
        });
        full.answer(4);
        free.answer(1);
        let statuses = three.into_iter().map(|asked| asked.join().unwrap().status);
        assert_eq!(statuses.filter(|status| *status == 200).count(), 2);
        assert_eq!(first.join().unwrap().status, 200);
        assert_eq!(next.join().unwrap().status, 200);
    }
}
