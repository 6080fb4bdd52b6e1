//! `tidegate health`: what the health check of a container is told.

use std::net::TcpListener;
use std::path::Path;
use std::time::{Duration, Instant};

use crate::admin::Looked;
use crate::house::{PATIENCE, Tidegate, Upstream};
use crate::look::command;

/// The exit code, and what stands on standard error; on standard output there is nothing.
fn health(directory: &Path, words: &[&str]) -> (Option<i32>, String) {
    let output = command(directory, &[&["health"], words].concat());
    assert_eq!(output.stdout, b"");
    (
        output.status.code(),
        String::from_utf8(output.stderr).unwrap(),
    )
}

fn is_well(directory: &Path, words: &[&str]) {
    assert_eq!(
        health(directory, words),
        (Some(0), String::new()),
        "{words:?}"
    );
}

#[test]
fn one_that_serves_is_well_and_ready_until_it_drains() {
    let upstream = Upstream::ok();
    let mut looked = Looked::start(&format!("upstream = \"{}\"\n", upstream.url()));
    let directory = looked.tidegate.directory.path().to_owned();
    let at = looked.address.to_string();
    // The file says port 0, which is where nobody is found.
    for words in [&["--admin", &at][..], &["--admin", &at, "--ready"]] {
        is_well(&directory, words);
    }
    // One that ends goes on living, and wants no more requests.
    let mut client = looked.tidegate.connect();
    client.send("GET / HTTP/1.1\r\nHost: test\r\n");
    looked.tidegate.signal("TERM");
    looked.wait_until("it drains", |looked| {
        health(
            &directory,
            &["--admin", &looked.address.to_string(), "--ready"],
        )
        .0 == Some(1)
    });
    let (code, said) = health(&directory, &["--admin", &at, "--ready"]);
    assert_eq!(code, Some(1));
    assert!(
        said.starts_with(&format!("error: http://{at}/ answers 503")),
        "{said}"
    );
    is_well(&directory, &["--admin", &at]);
    client.send("\r\n");
    assert_eq!(client.answer().status, 200);
    assert!(looked.tidegate.wait().success());
    let (code, said) = health(&directory, &["--admin", &at]);
    assert_eq!(code, Some(1));
    let nobody = format!("error: no proxy answers at http://{at}/: connection refused\nhelp: ");
    assert!(said.starts_with(&nobody), "{said}");
}

#[test]
fn without_an_admin_it_is_tried_whether_anybody_listens() {
    let upstream = Upstream::ok();
    let mut proxy = Tidegate::start(&format!("upstream = \"{}\"\n", upstream.url()));
    let directory = proxy.directory.path().to_owned();
    let file = directory.join("there.toml");
    let write = |listen: &str| {
        let text = format!("listen = \"{listen}\"\nupstream = \"{}\"\n", upstream.url());
        std::fs::write(&file, text).unwrap();
    };
    let words = ["-c", "there.toml"];
    write(&proxy.address.to_string());
    is_well(&directory, &words);
    // Where it listens on every address, this machine's is asked.
    write(&format!(":{}", proxy.address.port()));
    is_well(&directory, &words);
    let (code, said) = health(&directory, &["-c", "there.toml", "--ready"]);
    assert_eq!(code, Some(1));
    assert!(said.contains("there.toml has none"), "{said}");
    write(&proxy.address.to_string());
    proxy.signal("TERM");
    assert!(proxy.wait().success());
    let (code, said) = health(&directory, &words);
    assert_eq!(code, Some(1));
    assert!(
        said.starts_with(
            "health was not checked: the file has no `admin`. The command only connected to \
             `listen`\n"
        ) && said.contains("\nerror: cannot connect: "),
        "{said}"
    );
    assert!(upstream.seen().is_empty(), "it is no request");
}

#[test]
fn a_unix_socket_is_tried_as_well() {
    let upstream = Upstream::ok();
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("tidegate.sock");
    let text = format!("upstream = \"{}\"\n", upstream.url());
    let file = folder.path().join("unix.toml");
    let listen = format!("listen = \"unix:{}\"\n{text}", socket.display());
    std::fs::write(&file, listen).unwrap();
    let words = ["-c", "unix.toml"];
    let (code, said) = health(folder.path(), &words);
    assert_eq!(code, Some(1));
    assert!(said.contains("\nerror: cannot connect: "), "{said}");
    let listen = format!("[\"127.0.0.1:0\", \"unix:{}\"]", socket.display());
    let proxy = Tidegate::start_listening(folder, &listen, &text);
    is_well(proxy.directory.path(), &words);
}

#[test]
fn one_that_is_silent_is_given_up_and_a_file_that_is_wrong_is_told() {
    // Connections wait here, and nobody takes them.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = silent.local_addr().unwrap().to_string();
    let folder = tempfile::tempdir().unwrap();
    let began = Instant::now();
    let (code, said) = health(folder.path(), &["--admin", &at, "--timeout", "1"]);
    assert_eq!(code, Some(1));
    assert!(said.contains("no answer within 1 s"), "{said}");
    assert!((Duration::from_secs(1)..PATIENCE).contains(&began.elapsed()));
    let (code, said) = health(folder.path(), &[]);
    assert_eq!(code, Some(1));
    assert!(
        said.starts_with("error[T100]: cannot read `proxy.toml`"),
        "{said}"
    );
    let (code, _) = health(folder.path(), &["--timeout", "0"]);
    assert_eq!(code, Some(2));
}
