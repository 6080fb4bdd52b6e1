//! Servers that are given by name, through the machine's own resolver: its hosts file is another
//! one for the proxy under test.

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener};
use std::path::Path;

use crate::house::Tidegate;
use crate::probe::eventually;

/// A server on this address that answers with the last number of it.
pub fn serve(number: u8, port: u16) -> u16 {
    let listener = TcpListener::bind((Ipv4Addr::new(127, 0, 0, number), port)).unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().map_while(Result::ok) {
            std::thread::spawn(move || {
                let mut heard = [0; 4096];
                while stream.read(&mut heard).is_ok_and(|count| count > 0) {
                    let answer = format!("HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\n{number}");
                    let _ = stream.write_all(answer.as_bytes());
                }
            });
        }
    });
    port
}

/// A proxy before `app.test`, whose addresses end in these numbers.
fn start(hosts: &Path, port: u16) -> Tidegate {
    Tidegate::start_with_hosts(
        hosts,
        &format!(
            "[server]\nworkers = 2\n[log]\naccess = \"off\"\n[[route]]\npath = \"/*\"\n\
             upstream = \"app\"\n[upstream.app]\nservers = \"http://app.test:{port}\"\n\
             dns_every = \"1s\"\nbalance = \"round-robin\"\nidle_timeout = \"100ms\"\n"
        ),
    )
}

pub fn write(hosts: &Path, numbers: &[u8]) {
    let line = |number: &u8| format!("127.0.0.{number} app.test\n");
    std::fs::write(hosts, numbers.iter().map(line).collect::<String>()).unwrap();
}

/// Who answers twenty requests.
fn answering(proxy: &Tidegate) -> BTreeSet<String> {
    (0..20).map(|_| proxy.get("/").text()).collect()
}

fn set(numbers: &[u8]) -> BTreeSet<String> {
    numbers.iter().map(u8::to_string).collect()
}

#[test]
fn names_are_looked_up_again_and_the_last_good_answer_is_kept() {
    let directory = tempfile::tempdir().unwrap();
    let hosts = directory.path().join("hosts");
    let port = serve(1, 0);
    serve(2, port);
    serve(3, port);
    write(&hosts, &[1]);
    let proxy = start(&hosts, port);
    assert_eq!(answering(&proxy), set(&[1]));
    write(&hosts, &[1, 2, 3]);
    eventually("all addresses are servers", || {
        answering(&proxy) == set(&[1, 2, 3])
    });
    write(&hosts, &[2]);
    eventually("it has moved", || answering(&proxy) == set(&[2]));
    write(&hosts, &[]);
    let start = std::time::Instant::now();
    while start.elapsed() < std::time::Duration::from_millis(2500) {
        assert_eq!(answering(&proxy), set(&[2]));
    }
    write(&hosts, &[3, 1]);
    eventually("it is elsewhere", || answering(&proxy) == set(&[1, 3]));
}
