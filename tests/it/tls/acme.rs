//! Certificates that the proxy gets for itself, from a real authority for tests (Pebble), which
//! looks at the proxy as Let's Encrypt does, and rejects good nonces now and then.

use std::io::Read;
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, Stdio};

use tempfile::TempDir;

use super::WIDE;
use super::stage::Authority;
use crate::house::{Client, Tidegate, Upstream};
use crate::probe::eventually;
use crate::support::{free_port, mortal};

/// Pebble, and a server of names to which every name is 127.0.0.1.
struct Pebble {
    processes: Vec<Child>,
    port: u16,
}

impl Pebble {
    /// Looks at names on these ports; its certificates last for so many seconds.
    fn start(folder: &Path, ports: (u16, u16), lasts: u64) -> Pebble {
        Pebble::start_at(free_port(), folder, ports, lasts)
    }

    fn start_at(port: u16, folder: &Path, (http, tls): (u16, u16), lasts: u64) -> Pebble {
        Authority::new(folder, "pebble-ca").write(folder, "pebble", &["localhost"], 2999);
        let (names, control) = (free_port(), free_port());
        let config = format!(
            r#"{{"pebble": {{"listenAddress": "127.0.0.1:{port}",
                "managementListenAddress": "127.0.0.1:{}",
                "certificate": "pebble.pem", "privateKey": "pebble.key",
                "httpPort": {http}, "tlsPort": {tls}, "ocspResponderURL": "",
                "certificateValidityPeriod": {lasts}}}}}"#,
            free_port()
        );
        std::fs::write(folder.join("pebble.json"), config).unwrap();
        let mut processes = Vec::new();
        let mut run = |words: &[&str]| {
            let child = mortal(words[0])
                .args(&words[1..])
                .env("PEBBLE_VA_NOSLEEP", "1")
                // Of a hundred. A request is made three times, and an order takes a dozen: with 20
                // every tenth order would fail for this alone, and wait before the next.
                .env("PEBBLE_WFE_NONCEREJECT", "5")
                .current_dir(folder)
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .spawn()
                .unwrap();
            processes.push(child);
        };
        let (dns, control) = (format!("127.0.0.1:{names}"), format!("127.0.0.1:{control}"));
        let names_are_told = control.clone();
        run(&[
            "pebble-challtestsrv",
            "-defaultIPv6",
            "",
            "-defaultIPv4",
            "127.0.0.1",
            "-dns01",
            &dns,
            "-http01",
            "",
            "-https01",
            "",
            "-tlsalpn01",
            "",
            "-management",
            &control,
        ]);
        run(&["pebble", "-config", "pebble.json", "-dnsserver", &dns]);
        eventually("Pebble listens", || {
            TcpStream::connect(("127.0.0.1", port)).is_ok()
                && TcpStream::connect(&names_are_told).is_ok()
        });
        Pebble { processes, port }
    }
}

impl Drop for Pebble {
    fn drop(&mut self) {
        for process in &mut self.processes {
            let _ = process.kill();
            let _ = process.wait();
        }
    }
}

/// Where a proxy listens, plain and with TLS.
#[derive(Clone, Copy)]
struct Ports {
    plain: u16,
    tls: u16,
}

fn ports() -> Ports {
    Ports {
        plain: free_port(),
        tls: free_port(),
    }
}

fn proxy(directory: TempDir, ports: Ports, (pebble, acme): (u16, &str)) -> Tidegate {
    let Ports { plain, tls } = ports;
    let url = Upstream::ok().url();
    let config = format!(
        "upstream = \"{url}\"\n[tls]\nlisten = \"127.0.0.1:{tls}\"\nredirect = true\n\
         [tls.acme]\ndomains = [\"a.test\", \"b.test\"]\ncontact = \"ops@a.test\"\nterms = true\n\
         cache = \"kept\"\nca = \"pebble-ca.pem\"\n\
         directory = \"https://localhost:{pebble}/dir\"\n{acme}\n{WIDE}"
    );
    Tidegate::start_listening(directory, &format!("127.0.0.1:{plain}"), &config)
}

/// The serial number and the names of what is shown for this name.
fn shown(ports: Ports, name: &str) -> Option<(String, String)> {
    let look = format!(
        "timeout 20 openssl s_client -connect 127.0.0.1:{} -servername {name} </dev/null \
         2>/dev/null | openssl x509 -noout -serial -ext subjectAltName 2>/dev/null",
        ports.tls
    );
    let mut child = std::process::Command::new("sh")
        .args(["-c", &look])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut said = String::new();
    let mut output = child.stdout.take().unwrap();
    output.read_to_string(&mut said).unwrap();
    child.wait().unwrap();
    let (serial, names) = said.split_once('\n')?;
    Some((serial.to_owned(), names.to_owned()))
}

fn gets_one(challenge: &str) {
    let directory = tempfile::tempdir().unwrap();
    let ports = ports();
    let pebble = Pebble::start(directory.path(), (ports.plain, ports.tls), 86_400);
    let acme = format!("challenge = \"{challenge}\"");
    let mut first = proxy(directory, ports, (pebble.port, &acme));
    // Before it has one it turns everybody away.
    first.wait_for_line("a new certificate for a.test, b.test");
    let (serial, names) = shown(ports, "b.test").unwrap();
    assert!(
        names.contains("DNS:a.test") && names.contains("DNS:b.test"),
        "{names}"
    );
    // What proved it is gone, and plain requests are sent to https again.
    let mut client = Client::to(SocketAddr::from(([127, 0, 0, 1], ports.plain)));
    let answer = client.ask(
        "GET /.well-known/acme-challenge/x HTTP/1.1\r\nHost: a.test\r\nConnection: close\r\n\r\n",
    );
    assert_eq!(answer.status, 308);
    let kept = first.directory.path().join("kept");
    let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&kept), 0o700);
    for file in std::fs::read_dir(&kept).unwrap() {
        assert_eq!(mode(&file.unwrap().path()), 0o600);
    }
    // Another process has it from the first moment on, and asks nobody.
    let saved = tempfile::tempdir().unwrap();
    let copy = std::process::Command::new("cp")
        .args(["-r", "kept", "pebble-ca.pem"])
        .arg(saved.path())
        .current_dir(first.directory.path())
        .status();
    assert!(copy.unwrap().success());
    first.signal("TERM");
    first.wait();
    drop(pebble);
    let _second = proxy(saved, ports, (free_port(), &acme));
    assert_eq!(shown(ports, "a.test").unwrap().0, serial);
}

#[test]
fn names_are_proved_on_the_plain_listener() {
    gets_one("http-01");
}

#[test]
fn names_are_proved_within_tls() {
    gets_one("tls-alpn-01");
}

#[test]
fn a_certificate_is_renewed_before_it_ends() {
    let directory = tempfile::tempdir().unwrap();
    let ports = ports();
    let pebble = Pebble::start(directory.path(), (ports.plain, ports.tls), 6);
    let proxy = proxy(directory, ports, (pebble.port, ""));
    proxy.wait_for_line("a new certificate");
    let first = shown(ports, "a.test").unwrap().0;
    proxy.wait_for_line("a new certificate");
    eventually("another one is shown", || {
        shown(ports, "a.test").is_some_and(|(serial, _)| serial != first)
    });
}

#[test]
fn an_authority_that_refuses_or_is_away_is_asked_again() {
    let directory = tempfile::tempdir().unwrap();
    let ports = ports();
    // It looks where nobody listens.
    let pebble = Pebble::start(directory.path(), (free_port(), free_port()), 86_400);
    let proxy = proxy(directory, ports, (pebble.port, ""));
    let failed = || proxy.wait_for_line("no certificate for a.test, b.test");
    let mut line = failed();
    assert!(line.contains("next attempt in 10s"), "{line}");
    // Three good nonces that are rejected are another reason.
    while line.contains("badNonce") {
        line = failed();
    }
    assert!(line.contains("connection refused"), "{line}");
    assert!(shown(ports, "a.test").is_none());
}

#[test]
fn an_account_that_the_authority_has_lost_is_made_again() {
    let directory = tempfile::tempdir().unwrap();
    let ports = ports();
    let first = Pebble::start(directory.path(), (ports.plain, ports.tls), 6);
    let proxy = proxy(directory, ports, (first.port, ""));
    proxy.wait_for_line("a new certificate");
    // It forgets everything at its end.
    let port = first.port;
    drop(first);
    let folder = proxy.directory.path();
    let _second = Pebble::start_at(port, folder, (ports.plain, ports.tls), 6);
    proxy.wait_for_line("the authority does not know the account: making a new one");
    proxy.wait_for_line("a new certificate");
}

#[test]
fn the_log_says_why_an_authority_cannot_be_reached() {
    let directory = tempfile::tempdir().unwrap();
    Authority::new(directory.path(), "pebble-ca");
    let proxy = proxy(directory, ports(), (free_port(), ""));
    let line = proxy.wait_for_line("no certificate for a.test, b.test");
    assert!(line.contains("Connection refused"), "{line}");
}
