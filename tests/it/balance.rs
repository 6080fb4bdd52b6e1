//! Several servers behind the running proxy: who gets which requests.

use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::house::{Client, PATIENCE, Tidegate, Upstream};

/// Three servers that are well.
fn three() -> [Upstream; 3] {
    [Upstream::ok(), Upstream::ok(), Upstream::ok()]
}

/// A proxy with one worker before an upstream with these settings.
fn proxy(settings: &str) -> Tidegate {
    Tidegate::start(&format!(
        "[server]\nworkers = 1\n[log]\naccess = \"off\"\n[[route]]\npath = \"/*\"\n\
         upstream = \"app\"\n[upstream.app]\n{settings}\n"
    ))
}

/// `count` requests on one connection.
fn ask(proxy: &Tidegate, count: usize, header: impl Fn(usize) -> String) {
    let mut client = Client::to(proxy.address);
    client.stream.set_read_timeout(Some(PATIENCE)).unwrap();
    for number in 0..count {
        let header = header(number);
        let answer = client.ask(format!("GET / HTTP/1.1\r\nHost: test\r\n{header}\r\n"));
        assert_eq!(answer.status, 200);
    }
}

/// How many requests each has seen.
fn seen(servers: &[Upstream]) -> Vec<usize> {
    servers.iter().map(|server| server.seen().len()).collect()
}

#[test]
fn everybody_gets_some() {
    let servers = three();
    let [a, b, c] = [0, 1, 2].map(|at: usize| servers[at].url());
    let proxy = proxy(&format!(
        "servers = [{{ url = \"{a}\", weight = 3 }}, \"{b}\", \"{c}\"]"
    ));
    ask(&proxy, 1000, |_| String::new());
    let seen = seen(&servers);
    assert!(seen.iter().all(|&seen| seen > 0), "{seen:?}");
}

#[test]
fn shares_are_those_of_the_weights() {
    let servers = three();
    let [a, b, c] = [0, 1, 2].map(|at: usize| servers[at].url());
    let proxy = proxy(&format!(
        "servers = [{{ url = \"{a}\", weight = 3 }}, \"{b}\", \"{c}\"]\n\
         balance = \"hash:header:x-user\""
    ));
    ask(&proxy, 1000, |number| format!("X-User: u{number}\r\n"));
    let seen = seen(&servers);
    assert!((500..700).contains(&seen[0]), "{seen:?}");
    assert!(seen[1] > 100 && seen[2] > 100, "{seen:?}");
}

#[test]
fn a_backup_gets_requests_only_while_the_others_may_not() {
    let broken = Arc::new(AtomicBool::new(false));
    let is_broken = Arc::clone(&broken);
    let main = Upstream::start(move |request, stream| {
        let word = match is_broken.load(Ordering::SeqCst) {
            true => "500 No",
            false => "200 OK",
        };
        if request.head.contains("/wait") {
            std::thread::sleep(std::time::Duration::from_millis(600));
        }
        let answer = format!("HTTP/1.1 {word}\r\nContent-Length: 2\r\n\r\nok");
        stream.write_all(answer.as_bytes()).is_ok()
    });
    let backup = Upstream::ok();
    let count = || [main.seen().len(), backup.seen().len()];
    for balance in ["p2c", "round-robin", "hash:header:x-user"] {
        broken.store(false, Ordering::SeqCst);
        let before = count();
        let proxy = proxy(&format!(
            "servers = [{{ url = \"{}\", backup = true }}, {{ url = \"{}\", max_connections = 1 }}]\n\
             balance = \"{balance}\"\neject = {{ failures = 1, status = [\"500\"], for = \"300ms\" }}",
            backup.url(),
            main.url()
        ));
        let user = |number: usize| format!("X-User: u{number}\r\n");
        ask(&proxy, 20, user);
        assert_eq!(count(), [before[0] + 20, before[1]], "{balance}");
        // Full.
        let mut waiting = proxy.connect();
        waiting.send("GET /wait HTTP/1.1\r\nHost: test\r\n\r\n");
        while main.seen().len() == before[0] + 20 {
            std::thread::yield_now();
        }
        ask(&proxy, 3, user);
        assert_eq!(count(), [before[0] + 21, before[1] + 3], "{balance}");
        assert_eq!(waiting.answer().status, 200);
        // Ejected.
        broken.store(true, Ordering::SeqCst);
        assert_eq!(proxy.get("/").status, 500);
        ask(&proxy, 3, user);
        assert_eq!(count(), [before[0] + 22, before[1] + 6], "{balance}");
        // It comes back.
        broken.store(false, Ordering::SeqCst);
        let until = std::time::Instant::now() + PATIENCE;
        while main.seen().len() == before[0] + 22 {
            assert!(std::time::Instant::now() < until);
            assert_eq!(proxy.get("/").status, 200);
        }
        let back = count();
        ask(&proxy, 3, user);
        assert_eq!(count(), [back[0] + 3, back[1]], "{balance}");
    }
}

#[test]
fn a_request_that_no_other_server_takes_is_sent_to_a_backup() {
    let backup = Upstream::ok();
    let gone = crate::support::free_port();
    let proxy = proxy(&format!(
        "servers = [\"http://127.0.0.1:{gone}\", {{ url = \"{}\", backup = true }}]",
        backup.url()
    ));
    ask(&proxy, 5, |_| String::new());
    assert_eq!(backup.seen().len(), 5);
}

#[test]
fn turns_are_taken_in_order() {
    let servers = three();
    let [a, b, c] = [0, 1, 2].map(|at: usize| servers[at].url());
    let proxy = proxy(&format!(
        "servers = [{{ url = \"{a}\", weight = 2 }}, \"{b}\", \"{c}\"]\nbalance = \"round-robin\""
    ));
    ask(&proxy, 40, |_| String::new());
    assert_eq!(seen(&servers), [20, 10, 10]);
}

#[test]
fn a_key_stays_with_its_server_in_every_process() {
    let servers = three();
    let urls: Vec<String> = servers
        .iter()
        .map(|server| format!("\"{}\"", server.url()))
        .collect();
    let settings = |urls: &[String]| {
        format!(
            "servers = [{}]\nbalance = \"hash:cookie:session\"",
            urls.join(", ")
        )
    };
    let session = |number: usize| format!("Cookie: session=s{}\r\n", number % 60);
    let of = |server: &Upstream| {
        let mut sessions: Vec<String> = server
            .seen()
            .iter()
            .map(|seen| seen.header("cookie").unwrap())
            .collect();
        sessions.sort();
        sessions.dedup();
        sessions
    };
    ask(&proxy(&settings(&urls)), 120, session);
    let before: Vec<_> = servers.iter().map(of).collect();
    // Nobody was seen by two of them.
    assert_eq!(before.iter().map(Vec::len).sum::<usize>(), 60);
    assert!(before.iter().all(|sessions| sessions.len() > 5));
    let turned = [urls[2].clone(), urls[0].clone(), urls[1].clone()];
    ask(&proxy(&settings(&turned)), 60, session);
    assert_eq!(servers.iter().map(of).collect::<Vec<_>>(), before);
    // One less: what the others had, they still have.
    ask(&proxy(&settings(&urls[..2])), 60, session);
    for server in 0..2 {
        let after = of(&servers[server]);
        assert!(before[server].iter().all(|had| after.contains(had)));
    }
    assert_eq!(of(&servers[2]), before[2]);
}

#[test]
fn requests_without_the_key_go_anywhere() {
    let servers = three();
    let [a, b, c] = [0, 1, 2].map(|at: usize| servers[at].url());
    let proxy = proxy(&format!(
        "servers = [\"{a}\", \"{b}\", \"{c}\"]\nbalance = \"hash:header:x-user\""
    ));
    ask(&proxy, 300, |_| String::new());
    assert!(seen(&servers).iter().all(|&seen| seen > 0));
    let before = seen(&servers);
    ask(&proxy, 50, |_| "X-User: ada\r\n".to_owned());
    let after = seen(&servers);
    let grown = before
        .iter()
        .zip(&after)
        .filter(|(before, after)| before != after);
    assert_eq!(grown.count(), 1);
}
