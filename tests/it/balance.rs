//! Several servers behind the running proxy: who gets which requests.

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
