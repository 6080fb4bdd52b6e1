//! What passes both ways at once: trailers, tunnels, and answers that overtake their requests.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::house::{Client, Tidegate, Upstream};
use crate::probe::Probe;

const WIDE: &str = "[limit.default]\nrate = \"1_000_000/day\"\nkey = \"global\"\n";

#[test]
fn trailers_pass_both_ways() {
    let raw = Arc::new(Mutex::new(String::new()));
    let read = raw.clone();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().map_while(Result::ok) {
            let mut bytes = [0; 4096];
            while let Ok(count @ 1..) = stream.read(&mut bytes) {
                let mut text = read.lock().unwrap();
                text.push_str(&String::from_utf8_lossy(&bytes[..count]));
                if text.ends_with("x-in: 1\r\n\r\n") {
                    break;
                }
            }
            for piece in [
                "HTTP/1.1 200 OK\r\nTrailer: X-Sum\r\nTransfer-Encoding: chunked\r\n\r\n",
                "2\r\nok\r\n",
                "0\r\nX-Sum: 7\r\n\r\n",
            ] {
                let _ = stream.write_all(piece.as_bytes());
                std::thread::sleep(Duration::from_millis(20));
            }
        }
    });
    let proxy = Tidegate::start(&format!("upstream = \"http://{address}\"\n{WIDE}"));
    let mut client = proxy.connect();
    client.send(
        "POST /row HTTP/1.1\r\nHost: test\r\nTE: trailers\r\nTrailer: X-In\r\n\
         Transfer-Encoding: chunked\r\nConnection: close, TE\r\n\r\n2\r\nhi\r\n0\r\nX-In: 1\r\n\r\n",
    );
    let text = String::from_utf8(client.rest()).unwrap();
    assert!(
        text.to_lowercase()
            .ends_with("2\r\nok\r\n0\r\nx-sum: 7\r\n\r\n"),
        "{text}"
    );
    let seen = raw.lock().unwrap().clone();
    assert!(seen.ends_with("2\r\nhi\r\n0\r\nx-in: 1\r\n\r\n"), "{seen}");
}

#[test]
fn what_runs_ahead_of_an_upgrade_is_never_a_request() {
    // Agrees to the upgrade late, then says back what it hears.
    let upstream = Upstream::start(|seen, stream| {
        if !seen.is_for("/chat") {
            return stream
                .write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
                .is_ok();
        }
        std::thread::sleep(Duration::from_millis(100));
        let agreed = "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\n\
                      Upgrade: websocket\r\n\r\nhello";
        let _ = stream.write_all(agreed.as_bytes());
        let mut bytes = [0; 1024];
        while let Ok(count @ 1..) = stream.read(&mut bytes) {
            let _ = stream.write_all(&bytes[..count]);
        }
        false
    });
    let probe = Probe::before(upstream, "");
    let ahead = "GET /smuggled HTTP/1.1\r\nHost: test\r\n\r\n";
    let observed = probe.observe(|proxy| {
        let mut client = proxy.connect();
        client.send(format!(
            "GET /chat HTTP/1.1\r\nHost: test\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n\
             {ahead}"
        ));
        let head = client.head().unwrap();
        client.send(ahead);
        client.end_writing();
        (head, String::from_utf8(client.rest()).unwrap())
    });
    let (head, rest) = &observed.client;
    assert!(head.starts_with("HTTP/1.1 101"), "{head}");
    assert_eq!(*rest, format!("hello{ahead}{ahead}"));
    assert_eq!(
        (observed.seen.len(), observed.charged),
        (1, 1),
        "{:#?}",
        observed.seen
    );
}

#[test]
fn a_final_answer_may_come_before_the_body() {
    let early = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = early.local_addr().unwrap();
    std::thread::spawn(move || {
        for mut stream in early.incoming().map_while(Result::ok) {
            std::thread::spawn(move || {
                // It reads the head, and of the body nothing.
                let _ = stream.read(&mut [0; 512]);
                let _ = stream.write_all(
                    b"HTTP/1.1 403 Forbidden\r\nContent-Length: 2\r\nConnection: close\r\n\r\nno",
                );
                std::thread::sleep(crate::house::PATIENCE);
            });
        }
    });
    let proxy = Tidegate::start(&format!("upstream = \"http://{address}\"\n{WIDE}"));
    let head = "POST /row HTTP/1.1\r\nHost: test\r\nContent-Length: 50000000\r\n\r\n";
    for pours in [false, true] {
        let mut client = Client::to(proxy.address);
        client.send(head);
        if pours {
            client.pour(&[b'x'; 65536], 4 << 20);
        }
        let answer = client.try_answer(false).expect("the early answer arrives");
        assert_eq!(
            (answer.status, answer.text().as_str()),
            (403, "no"),
            "pours: {pours}"
        );
    }
}
