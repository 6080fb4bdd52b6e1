//! Certificates that change while clients come: the new one is shown soon, and nobody notices.

use std::io::{Read, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use rustls::version::TLS13;

use super::WIDE;
use super::stage::{Stage, connect};
use crate::probe::eventually;

/// The certificate that is shown for `one.test`, DER.
fn shown(stage: &Stage) -> Vec<u8> {
    let config = stage.client(&[&TLS13]);
    let mut client = connect(&config, stage.secure, "one.test");
    client
        .write_all(b"GET / HTTP/1.1\r\nHost: one.test\r\nConnection: close\r\n\r\n")
        .unwrap();
    let mut answer = String::new();
    client.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    client.conn.peer_certificates().unwrap()[0].to_vec()
}

/// Another pair for `one`, by renaming over both files.
fn renew(stage: &Stage) {
    let (pem, key) = stage.ca.sign("one", &["one.test", "localhost"], 2999);
    for (ending, text) in [("pem", pem), ("key", key)] {
        let next = stage.file(&format!("next.{ending}"));
        std::fs::write(&next, text).unwrap();
        std::fs::rename(next, stage.file(&format!("one.{ending}"))).unwrap();
    }
}

#[test]
fn a_pair_is_swapped_under_load_without_a_failed_request() {
    let stage = Stage::start("", WIDE);
    let first = shown(&stage);
    let (stop, asked) = (AtomicBool::new(false), AtomicUsize::new(0));
    let config = stage.client(&[&TLS13]);
    std::thread::scope(|scope| {
        for kept in [false, false, true] {
            let (stop, asked, config) = (&stop, &asked, Arc::clone(&config));
            let address = stage.secure;
            scope.spawn(move || {
                let mut client = connect(&config, address, "one.test");
                while !stop.load(Ordering::Relaxed) {
                    if !kept {
                        client = connect(&config, address, "one.test");
                    }
                    client
                        .write_all(b"GET / HTTP/1.1\r\nHost: one.test\r\n\r\n")
                        .unwrap();
                    let mut answer = Vec::new();
                    while !answer.ends_with(b"\r\n\r\nok") {
                        let mut chunk = [0; 4096];
                        let read = client.read(&mut chunk).unwrap();
                        assert!(read > 0, "ended: {}", String::from_utf8_lossy(&answer));
                        answer.extend_from_slice(&chunk[..read]);
                    }
                    assert!(answer.starts_with(b"HTTP/1.1 200"));
                    asked.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        let mut known = vec![first];
        for _ in 0..2 {
            renew(&stage);
            eventually("a new certificate is shown", || {
                let now = shown(&stage);
                let new = !known.contains(&now);
                if new {
                    known.push(now);
                }
                new
            });
        }
        eventually("many have asked", || asked.load(Ordering::Relaxed) > 100);
        stop.store(true, Ordering::Relaxed);
    });
    stage
        .proxy
        .wait_for_line("a new certificate for one.test, localhost");
}

#[test]
fn a_pair_that_is_not_right_is_not_used_and_the_log_says_why() {
    let stage = Stage::start("", WIDE);
    let first = shown(&stage);
    let (pem, key) = stage.ca.sign("one", &["one.test"], 2999);
    // Whole, since half a file is another mistake.
    let replace = |text: &str| {
        std::fs::write(stage.file("next.pem"), text).unwrap();
        std::fs::rename(stage.file("next.pem"), stage.file("one.pem")).unwrap();
    };
    replace(&pem);
    let line = stage
        .proxy
        .wait_for_line("the proxy keeps the certificate in use");
    assert!(line.contains("not the key of `cert`"), "{line}");
    assert_eq!(shown(&stage), first);
    replace(&pem[..pem.len() / 2]);
    stage
        .proxy
        .wait_for_line("the proxy keeps the certificate in use");
    std::fs::remove_file(stage.file("one.pem")).unwrap();
    let line = stage
        .proxy
        .wait_for_line("the proxy keeps the certificate in use");
    assert!(line.contains("No such file"), "{line}");
    assert_eq!(shown(&stage), first);
    // The other pair is none the worse for it.
    stage.curled("two.test", "/", &[]);
    std::fs::write(stage.file("one.pem"), &pem).unwrap();
    std::fs::write(stage.file("one.key"), &key).unwrap();
    eventually("the whole pair is used", || shown(&stage) != first);
}

#[test]
fn a_symlink_that_leads_elsewhere_is_a_change() {
    let stage = Stage::start("", WIDE);
    let first = shown(&stage);
    let (pem, key) = stage.ca.sign("one", &["one.test"], 2999);
    std::fs::create_dir(stage.file("..data")).unwrap();
    std::fs::write(stage.file("..data/one.pem"), pem).unwrap();
    std::fs::write(stage.file("..data/one.key"), key).unwrap();
    for name in ["one.pem", "one.key"] {
        std::os::unix::fs::symlink(format!("..data/{name}"), stage.file("link")).unwrap();
        std::fs::rename(stage.file("link"), stage.file(name)).unwrap();
    }
    eventually("the linked pair is used", || shown(&stage) != first);
}

#[test]
fn the_authorities_of_clients_are_read_again_too() {
    let stage = Stage::start("client_ca = \"clients.pem\"", WIDE);
    let eve = ["--cert", "eve.pem", "--key", "eve.key"];
    assert!(!stage.curl("one.test", "/", &eve).status.success());
    std::fs::copy(stage.file("stranger.pem"), stage.file("clients.pem")).unwrap();
    eventually("strangers are believed", || {
        stage.curl("one.test", "/", &eve).status.success()
    });
    let ann = ["--cert", "ann.pem", "--key", "ann.key"];
    assert!(!stage.curl("one.test", "/", &ann).status.success());
}

#[test]
fn another_configuration_brings_other_certificates() {
    let stage = Stage::start("", WIDE);
    let file = stage.file("proxy.toml");
    let text = std::fs::read_to_string(&file).unwrap();
    assert!(!stage.curl("new.test", "/", &[]).status.success());
    let folder = stage.proxy.directory.path();
    stage.ca.write(folder, "new", &["new.test"], 2999);
    std::fs::write(&file, text.replace("two.", "new.")).unwrap();
    stage.proxy.signal("HUP");
    eventually("the new name has its certificate", || {
        stage.curl("new.test", "/", &[]).status.success()
    });
    assert!(!stage.curl("two.test", "/", &[]).status.success());
}
