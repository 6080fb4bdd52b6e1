//! The example of the library's page, run as people run it; and the page, which must hold it.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

use crate::house::Client;

/// A running example; killed when it is dropped.
struct Example {
    child: Child,
    address: std::net::SocketAddr,
}

impl Example {
    fn start(name: &str) -> Example {
        // Where the tests themselves were built: there it is built already, or will be reused.
        let program = std::path::Path::new(env!("CARGO_BIN_EXE_tidegate"));
        let folder = program.parent().unwrap();
        let mut cargo = Command::new(env!("CARGO"));
        cargo.args([
            "build",
            "--quiet",
            "--offline",
            "--workspace",
            "--example",
            name,
        ]);
        if !cfg!(debug_assertions) {
            cargo.arg("--release");
        }
        // What cargo tells tests of their package would make it build ring, and all above it, anew.
        for (name, _) in std::env::vars_os() {
            let text = name.to_string_lossy();
            if text.starts_with("CARGO_PKG_") || text.starts_with("CARGO_MANIFEST_") {
                cargo.env_remove(&name);
            }
        }
        let built = cargo
            .arg("--target-dir")
            .arg(folder.parent().unwrap())
            .current_dir(env!("CARGO_MANIFEST_DIR"))
            .status()
            .unwrap();
        assert!(built.success(), "{built}");
        let mut child = Command::new(folder.join("examples").join(name))
            .arg("127.0.0.1:0")
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        let mut stdout = BufReader::new(child.stdout.take().unwrap());
        stdout.read_line(&mut line).unwrap();
        let address = line.trim().strip_prefix("listening  http://");
        let address = address.expect("it says where it listens").parse().unwrap();
        Example { child, address }
    }
}

impl Drop for Example {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn the_axum_example_limits() {
    let example = Example::start("axum_limits");
    let mut client = Client::to(example.address);
    let login = "POST /login HTTP/1.1\r\nHost: test\r\nContent-Length: 0\r\n\r\n";
    for left in ["2", "1", "0"] {
        let answer = client.ask(login);
        assert_eq!((answer.status, answer.text().as_str()), (200, "welcome\n"));
        assert_eq!(answer.header("x-ratelimit-remaining").unwrap(), left);
    }
    let denied = client.ask(login);
    assert_eq!(denied.status, 429);
    assert!(denied.header("retry-after").is_some());
    assert!(denied.text().contains("\"violated-policies\":[\"login\"]"));
    let other = client.ask("GET / HTTP/1.1\r\nHost: test\r\n\r\n");
    assert_eq!((other.status, other.text().as_str()), (200, "hello\n"));
    assert_eq!(other.header("x-ratelimit-limit").unwrap(), "100");
}

#[test]
fn the_page_of_the_library_holds_the_example() {
    let read = |path: &str| {
        let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
        std::fs::read_to_string(root.join(path)).unwrap()
    };
    let example = read("crates/limiter/examples/axum_limits.rs");
    let (_, code) = example.split_once("\n\n").unwrap();
    let page = read("docs/library.md");
    assert!(page.contains(&format!("```rust,no_run\n{code}```\n")));
}
