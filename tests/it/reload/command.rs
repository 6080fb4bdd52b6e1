//! `tidegate reload`: what it prints, what it exits with, and the socket it talks to.

use std::io::{Read, Write};
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use super::Gate;
use crate::house::Upstream;
use crate::probe::eventually;
use crate::upgrade::lineage::Lineage;

const FIVE: &str = "upstream = \"$UPSTREAM\"\n[limit.default]\nrate = \"5/min\"\n";

/// What the command came to.
#[derive(Debug, PartialEq, Eq)]
struct Said {
    code: i32,
    out: String,
    err: String,
}

fn reload_in(directory: &Path, more: &[&str]) -> Said {
    let output = Command::new(env!("CARGO_BIN_EXE_tidegate"))
        .args(["reload", "-c", "proxy.toml"])
        .args(more)
        .current_dir(directory)
        .output()
        .unwrap();
    Said {
        code: output.status.code().unwrap(),
        out: String::from_utf8(output.stdout).unwrap(),
        err: String::from_utf8(output.stderr).unwrap(),
    }
}

impl Gate {
    fn command(&self, more: &[&str]) -> Said {
        reload_in(self.proxy.directory.path(), more)
    }

    /// Waits for the socket, which is there a moment after the first connection is accepted.
    fn when_it_listens(self) -> Gate {
        eventually("it takes commands", || self.command(&[]).code == 0);
        self
    }

    /// With its socket in the test's own directory.
    fn with_socket(config: &str) -> (Gate, PathBuf) {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("control.sock");
        let section = format!("{config}[server]\ncontrol = \"{}\"\n", path.display());
        let gate = Gate::start(&section);
        // The proxy makes its socket there.
        let _ = directory.keep();
        eventually("its socket is there", || path.exists());
        (gate, path)
    }
}

/// What the socket answers to these bytes.
fn raw(path: &PathBuf, bytes: &[u8]) -> String {
    let mut stream = UnixStream::connect(path).unwrap();
    stream
        .set_read_timeout(Some(Duration::from_secs(20)))
        .unwrap();
    let _ = stream.write_all(bytes);
    let mut said = String::new();
    let _ = stream.read_to_string(&mut said);
    said
}

#[test]
fn it_prints_what_changed() {
    let gate = Gate::start(FIVE).when_it_listens();
    gate.write(&FIVE.replace("5/min", "6/min"));
    let expected = Said {
        code: 0,
        out: "limit default: 5/min -> 6/min\n".to_owned(),
        err: String::new(),
    };
    assert_eq!(gate.command(&[]), expected);
    assert_eq!(gate.command(&[]).out, "no change\n");
    let json = gate.command(&["--json"]);
    assert!(
        json.out.starts_with('{') && json.out.contains("\"ok\":true"),
        "{json:?}"
    );
}

#[test]
fn mistakes_are_printed_and_exit_78() {
    let gate = Gate::start(FIVE).when_it_listens();
    gate.write(&FIVE.replace("rate", "rat"));
    let said = gate.command(&[]);
    assert_eq!((said.code, &*said.out), (78, ""));
    for part in [
        "error[T101]: unknown key `rat`",
        "did you mean `rate`",
        "nothing was changed",
    ] {
        assert!(said.err.contains(part), "{said:?}");
    }
    std::fs::remove_file(gate.file()).unwrap();
    let said = gate.command(&[]);
    assert_eq!(said.code, 1, "{said:?}");
    assert!(said.err.contains("cannot read `proxy.toml`"), "{said:?}");
    assert_eq!(gate.proxy.get("/").status, 200);
}

#[test]
fn doubts_and_what_waits_for_a_restart_are_printed() {
    let gate = Gate::start(&format!("{FIVE}[server]\nworkers = 2\n")).when_it_listens();
    gate.write(&format!(
        "{FIVE}[limit.idle]\nrate = \"1/s\"\n[server]\nworkers = 3\n"
    ));
    let said = gate.command(&[]);
    assert_eq!(said.code, 0, "{said:?}");
    assert!(
        said.err
            .contains("Changing `workers` to 3 needs a restart; still running 2"),
        "{said:?}"
    );
    assert!(
        said.err.contains("warning["),
        "no route uses that limit: {said:?}"
    );
    assert!(said.out.contains("limit idle added"), "{said:?}");
}

#[test]
fn an_address_that_cannot_be_opened_changes_nothing() {
    let gate = Gate::start(FIVE).when_it_listens();
    gate.write(
        &FIVE
            .replace("5/min", "6/min")
            .replace("[limit", "[log]\naccess = \"/nowhere/at/all\"\n[limit"),
    );
    let said = gate.command(&[]);
    assert_eq!(said.code, 1, "{said:?}");
    assert_eq!(
        gate.proxy.get("/").header("x-ratelimit-limit").as_deref(),
        Some("5")
    );
}

#[test]
fn without_a_proxy_or_a_socket_it_says_so() {
    let gate = Gate::start(&format!("{FIVE}[server]\ncontrol = \"off\"\n"));
    let said = gate.command(&[]);
    assert_eq!(said.code, 2, "{said:?}");
    assert!(said.err.contains("SIGHUP"), "{said:?}");
    gate.write(FIVE);
    let said = gate.command(&[]);
    assert_eq!(said.code, 1, "{said:?}");
    assert!(
        said.err.contains("no proxy of proxy.toml answers at /"),
        "{said:?}"
    );
}

#[test]
fn the_socket_is_its_users_alone_and_goes_when_it_goes() {
    let (mut gate, path) = Gate::with_socket(FIVE);
    assert_eq!(std::fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
    assert_eq!(gate.command(&[]).code, 0);
    // The file no longer says where: the command can be told.
    gate.write(FIVE);
    let said = gate.command(&["--control", path.to_str().unwrap()]);
    assert!(
        said.err.contains("Changing `control` needs a restart"),
        "{said:?}"
    );
    gate.proxy.signal("TERM");
    gate.proxy.wait();
    assert!(!path.exists());
}

#[test]
fn a_socket_that_was_swept_away_comes_back() {
    let (gate, path) = Gate::with_socket(FIVE);
    std::fs::remove_file(&path).unwrap();
    eventually("it is there again", || path.exists());
    assert_eq!(gate.command(&[]).code, 0);
}

#[test]
fn what_is_no_command_is_refused_and_harms_nobody() {
    let (gate, path) = Gate::with_socket(FIVE);
    for (bytes, part) in [
        (&b"reload\n"[..], "not a line of JSON"),
        (b"\n", "not a line of JSON"),
        (b"{}\n", "speaks version 1"),
        (
            b"{\"version\":2,\"command\":\"reload\"}\n",
            "speaks version 1",
        ),
        (
            b"{\"version\":1,\"command\":\"explode\"}\n",
            "no such command",
        ),
    ] {
        let said = raw(&path, bytes);
        assert!(said.contains(part) && said.contains("\"code\":2"), "{said}");
    }
    let long = vec![b'x'; 1 << 20];
    assert!(!raw(&path, &long).contains("\"ok\":true"));
    // More at once than are listened to, all silent: it goes on as they end.
    let silent: Vec<UnixStream> = (0..20)
        .map(|_| UnixStream::connect(&path).unwrap())
        .collect();
    drop(silent);
    eventually("it listens again", || gate.command(&[]).code == 0);
    assert_eq!(gate.proxy.get("/").status, 200);
}

#[test]
fn an_upgraded_proxy_has_the_socket() {
    let upstream = Upstream::ok();
    let settings = format!("upstream = \"{}\"", upstream.url());
    let mut proxies = Lineage::start("\"127.0.0.1:0\"", &settings, "control = \"control.sock\"");
    let directory = proxies.directory.path().to_owned();
    eventually("the first one obeys", || {
        reload_in(&directory, &[]).code == 0
    });
    let old = proxies.upgrade();
    proxies.wait_for_end(old);
    eventually("the new one obeys", || reload_in(&directory, &[]).code == 0);
}

#[test]
fn a_store_that_does_not_answer_is_told() {
    let gate = Gate::start(FIVE).when_it_listens();
    let port = crate::support::free_port();
    gate.write(&format!(
        "{FIVE}[store]\nurl = \"redis://127.0.0.1:{port}\"\n"
    ));
    let said = gate.command(&[]);
    assert_eq!(said.code, 0, "{said:?}");
    assert!(said.err.contains("The store does not answer"), "{said:?}");
}

#[test]
fn the_reload_that_repairs_a_password_reports_no_old_error() {
    let redis = crate::support::RedisServer::start();
    redis.run("CONFIG SET requirepass right");
    let store = |password: &str| {
        let port = redis.port();
        format!("{FIVE}[store]\nurl = \"redis://:{password}@127.0.0.1:{port}\"\n")
    };
    let gate = Gate::start(&store("wrong")).when_it_listens();
    eventually("the store is away", || {
        gate.command(&[]).err.contains("The store does not answer")
    });
    gate.write(&store("right"));
    let said = gate.command(&[]);
    assert_eq!((said.code, said.err.as_str()), (0, ""), "{said:?}");
    gate.write(&store("wrong"));
    let said = gate.command(&[]);
    assert!(said.err.contains("The store does not answer"), "{said:?}");
}
