//! Another configuration for a running proxy: what changes, what stays, and what never gets in.

mod command;
mod counts;
mod listen;
mod load;
mod settings;
mod watched;

use std::path::PathBuf;

use crate::house::{Tidegate, Upstream};

/// A proxy in front of an upstream, whose file can be written again.
pub struct Gate {
    pub proxy: Tidegate,
    pub upstream: Upstream,
}

impl Gate {
    /// `$UPSTREAM` in `config` is the upstream's URL.
    pub fn start(config: &str) -> Gate {
        Gate::before(Upstream::ok(), config)
    }

    pub fn before(upstream: Upstream, config: &str) -> Gate {
        let config = config.replace("$UPSTREAM", &upstream.url());
        let proxy = Tidegate::start(&config);
        Gate { proxy, upstream }
    }

    pub fn file(&self) -> PathBuf {
        self.proxy.directory.path().join("proxy.toml")
    }

    /// Puts another file in the place of the first one, whole, as editors do.
    pub fn write(&self, config: &str) {
        self.write_whole(&format!("listen = \"127.0.0.1:0\"\n{config}"));
    }

    /// The same with a `listen` of its own.
    pub fn write_whole(&self, config: &str) {
        let text = config.replace("$UPSTREAM", &self.upstream.url());
        let new = self.file().with_extension("new");
        std::fs::write(&new, text).unwrap();
        std::fs::rename(&new, self.file()).unwrap();
    }

    /// Writes it and has it read; what was said, up to the line that it is done.
    pub fn reload(&self, config: &str) -> Vec<String> {
        self.write(config);
        self.hang_up()
    }

    /// SIGHUP; what was said, up to how it ended.
    pub fn hang_up(&self) -> Vec<String> {
        self.proxy.signal("HUP");
        let mut said = Vec::new();
        loop {
            let line = self.proxy.wait_for_line("reload: ");
            let end = line.contains("reload: done") || line.contains("nothing was changed");
            said.push(line);
            if end {
                return said;
            }
        }
    }
}

/// Whether one of the lines has `part`.
#[track_caller]
pub fn assert_said(said: &[String], part: &str) {
    assert!(
        said.iter().any(|line| line.contains(part)),
        "no `{part}`: {said:#?}"
    );
}

#[test]
fn another_upstream_and_another_route() {
    let gate = Gate::start("upstream = \"$UPSTREAM\"");
    let other = Upstream::saying("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nother");
    let mut client = gate.proxy.connect();
    let ask = "GET /a HTTP/1.1\r\nHost: test\r\n\r\n";
    assert_eq!(client.ask(ask).text(), "ok");
    let said = gate.reload(&format!("upstream = \"{}\"", other.url()));
    assert_said(
        &said,
        &format!("upstream: {} -> {}", gate.upstream.url(), other.url()),
    );
    // The same connection, another configuration.
    assert_eq!(client.ask(ask).text(), "other");
    let said =
        gate.reload("[[route]]\nname = \"left\"\npath = \"/left\"\nupstream = \"$UPSTREAM\"\n");
    assert_said(&said, "route added: left");
    assert_eq!(client.ask(ask).status, 404);
    assert_eq!(
        client
            .ask("GET /left HTTP/1.1\r\nHost: test\r\n\r\n")
            .text(),
        "ok"
    );
}

#[test]
fn a_file_with_mistakes_changes_nothing_and_says_why() {
    let gate = Gate::start("upstream = \"$UPSTREAM\"\n[limit.default]\nrate = \"5/h\"\n");
    assert_eq!(gate.proxy.get("/").status, 200);
    let good = std::fs::read(gate.file()).unwrap();
    let mistakes: [(&[u8], &str); 6] = [
        (b"", "upstream"),
        (b"upstream = \"http://", "not TOML"),
        (b"\xff\xfe", "UTF-16"),
        (
            b"upstrem = \"http://127.0.0.1:1\"",
            "did you mean `upstream`",
        ),
        (
            b"upstream = \"http://a\"\n[limit.default]\nrate = \"five\"",
            "rate",
        ),
        (
            b"upstream = \"http://a\"\n[store]\nurl = \"redis://h\"\npassword_file = \"none\"",
            "none",
        ),
    ];
    for (text, part) in mistakes {
        std::fs::write(gate.file(), text).unwrap();
        let said = gate.hang_up();
        assert_said(&said, "nothing was changed");
        assert_said(&said, part);
        assert_eq!(
            gate.proxy.get("/").header("x-ratelimit-limit").as_deref(),
            Some("5")
        );
    }
    std::fs::remove_file(gate.file()).unwrap();
    assert_said(&gate.hang_up(), "cannot read");
    std::fs::write(gate.file(), good).unwrap();
    assert_said(&gate.hang_up(), "no change");
    let answer = gate.proxy.get("/");
    assert_eq!(
        answer.status, 429,
        "eight requests, counted all along: {answer:?}"
    );
}
