//! A second `tidegate run`: it refuses, and nothing of the first process is removed.

use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

use crate::house::{Client, PATIENCE, Upstream, program};
use crate::probe::eventually;
use crate::support::{RedisServer, free_port, mortal};

/// Processes that run files of one directory.
struct Place {
    directory: tempfile::TempDir,
    port: u16,
    _upstream: Upstream,
}

/// A process that ends with its test.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Running {
    fn pid(&self) -> u32 {
        self.0.id()
    }

    fn end(mut self) {
        let sent = Command::new("kill").arg(self.pid().to_string()).status();
        assert!(sent.unwrap().success());
        eventually("it ends", || self.0.try_wait().unwrap().is_some());
    }
}

impl Place {
    fn new() -> Place {
        let place = Place {
            directory: tempfile::tempdir().unwrap(),
            port: free_port(),
            _upstream: Upstream::ok(),
        };
        let port = place.port;
        place.write("proxy.toml", &format!("\"127.0.0.1:{port}\""), "pid");
        place
    }

    fn write(&self, name: &str, listen: &str, pid_file: &str) {
        let url = self._upstream.url();
        let text = format!(
            "listen = [{listen}]\nupstream = \"{url}\"\n[limit.default]\nrate = \"3/h\"\n\
             [server]\nworkers = 2\npid_file = \"{pid_file}\"\n[log]\naccess = \"off\"\n"
        );
        std::fs::write(self.path().join(name), text).unwrap();
    }

    fn path(&self) -> &Path {
        self.directory.path()
    }

    fn command(&self, words: &[&str]) -> Command {
        let mut command = mortal(program());
        command
            .args(words)
            .current_dir(self.path())
            .env("XDG_RUNTIME_DIR", self.path())
            .stdin(Stdio::null());
        command
    }

    /// Starts one that is to run, and waits until it serves.
    fn start(&self, words: &[&str]) -> Running {
        self.start_with(&[], words)
    }

    fn start_with(&self, environment: &[(&str, String)], words: &[&str]) -> Running {
        let log = format!("log.{}", std::fs::read_dir(self.path()).unwrap().count());
        let log = self.path().join(log);
        let mut command = self.command(words);
        command.envs(environment.iter().cloned());
        let file = std::fs::File::create(&log).unwrap();
        let child = command.stdout(Stdio::null()).stderr(file).spawn().unwrap();
        let running = Running(child);
        let said = || std::fs::read_to_string(&log).unwrap();
        eventually("it listens", || said().contains("listening  "));
        running
    }

    /// Starts one that is to refuse. Returns what it says.
    fn refused(&self, words: &[&str]) -> String {
        let output = self.command(words).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "{said}");
        said
    }

    fn reload(&self) -> Output {
        self.command(&["reload"]).output().unwrap()
    }

    fn reloads(&self) -> bool {
        self.reload().status.success()
    }

    fn pid_in_file(&self) -> Option<u32> {
        let text = std::fs::read_to_string(self.path().join("pid")).ok()?;
        text.trim().parse().ok()
    }
}

#[test]
fn a_second_run_of_the_same_file_refuses_and_leaves_everything_of_the_first() {
    let place = Place::new();
    let first = place.start(&["run"]);
    eventually("it can be reloaded", || place.reloads());
    let said = place.refused(&["run"]);
    for part in [
        format!("process {} runs proxy.toml already", first.pid()),
        format!("on http://127.0.0.1:{}", place.port),
        format!("kill -USR2 {}", first.pid()),
        "`--alongside`".to_owned(),
    ] {
        assert!(said.contains(&part), "no `{part}` in {said}");
    }
    // Another port in the meantime makes it no other file.
    place.write(
        "proxy.toml",
        &format!("\"127.0.0.1:{}\"", free_port()),
        "pid",
    );
    assert!(place.refused(&["run"]).contains("runs proxy.toml already"));
    place.write(
        "proxy.toml",
        &format!("\"127.0.0.1:{}\"", place.port),
        "pid",
    );
    assert!(place.reloads(), "{:?}", place.reload());
    assert_eq!(place.pid_in_file(), Some(first.pid()));
    // The limit is what it was.
    let ask = || {
        let mut client = Client::to(([127, 0, 0, 1], place.port).into());
        client.ask("GET / HTTP/1.1\r\nHost: test\r\n\r\n").status
    };
    let admitted = (0..20).filter(|_| ask() == 200).count();
    assert_eq!(admitted, 3);
    first.end();
    assert_eq!(place.pid_in_file(), None);
    // What one has left that was killed keeps none from starting.
    let mut killed = place.start(&["run"]);
    killed.0.kill().unwrap();
    killed.0.wait().unwrap();
    let next = place.start(&["run"]);
    eventually("it can be reloaded", || place.reloads());
    assert_eq!(place.pid_in_file(), Some(next.pid()));
}

#[test]
fn another_file_may_not_have_the_port_the_socket_or_the_pid_file_of_a_process() {
    let place = Place::new();
    let port = place.port;
    place.write(
        "proxy.toml",
        &format!("\"127.0.0.1:{port}\", \"unix:in.sock\""),
        "pid",
    );
    let first = place.start(&["run"]);
    let refused = |listen: &str, pid_file: &str| {
        place.write("other.toml", listen, pid_file);
        place.refused(&["run", "-c", "other.toml"])
    };
    let holder = format!("process {}", first.pid());
    for listen in [format!("\"127.0.0.1:{port}\""), format!("\":{port}\"")] {
        let said = refused(&listen, "other.pid");
        assert!(
            said.contains(&format!("{holder} listens on 127.0.0.1:{port}")),
            "{said}"
        );
        assert!(said.contains(&format!("kill {}", first.pid())), "{said}");
    }
    let said = refused("\"unix:in.sock\"", "other.pid");
    assert!(said.contains(&holder), "{said}");
    let said = refused("\"127.0.0.1:0\"", "pid");
    assert!(
        said.contains(&format!("it names {holder}, which serves")),
        "{said}"
    );
    assert_eq!(place.pid_in_file(), Some(first.pid()));
    std::os::unix::net::UnixStream::connect(place.path().join("in.sock")).unwrap();
    let flags = ["--to", "http://127.0.0.1:1", "--limit", "1/s", "--listen"];
    let said = place.refused(&[&["run"], &flags[..], &[&format!("127.0.0.1:{port}")]].concat());
    assert!(said.contains(&holder), "{said}");
}

#[test]
fn a_reload_takes_no_address_of_another_process() {
    let place = Place::new();
    let _first = place.start(&["run"]);
    place.write("other.toml", "\"127.0.0.1:0\"", "other.pid");
    let _other = place.start(&["run", "-c", "other.toml"]);
    let reload = || {
        place
            .command(&["reload", "-c", "other.toml"])
            .output()
            .unwrap()
    };
    eventually("it can be reloaded", || reload().status.success());
    place.write(
        "other.toml",
        &format!("\"127.0.0.1:{}\"", place.port),
        "other.pid",
    );
    let output = reload();
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(said.contains("cannot listen on 127.0.0.1"), "{said}");
    assert!(said.contains("process "), "{said}");
}

#[test]
fn beside_the_first_when_told_and_in_its_place_once_it_ends() {
    let place = Place::new();
    let first = place.start(&["run"]);
    eventually("it can be reloaded", || place.reloads());
    let second = place.start(&["run", "--alongside"]);
    assert_eq!(place.pid_in_file(), Some(first.pid()));
    assert!(place.reloads());
    first.end();
    eventually("the second one can be reloaded", || place.reloads());
    eventually("the pid file names it", || {
        place.pid_in_file() == Some(second.pid())
    });
    second.end();
    assert_eq!(place.pid_in_file(), None);
    assert!(!place.reloads());
}

#[test]
fn a_file_with_addresses_of_the_environment_runs_several_times_with_one_redis() {
    let redis = RedisServer::start();
    let place = Place::new();
    place.write("proxy.toml", "\"127.0.0.1:${PORT}\"", "pid");
    let file = place.path().join("proxy.toml");
    let text = std::fs::read_to_string(&file).unwrap();
    let store = format!(
        "{text}[store]\nurl = \"redis://127.0.0.1:{}\"\n",
        redis.port()
    );
    std::fs::write(&file, store).unwrap();
    let start = |port: u16| place.start_with(&[("PORT", port.to_string())], &["run"]);
    let (port, first) = (free_port(), start(place.port));
    eventually("it can be reloaded", || {
        let reload = place
            .command(&["reload"])
            .env("PORT", place.port.to_string())
            .output();
        reload.unwrap().status.success()
    });
    let second = start(port);
    assert_eq!(place.pid_in_file(), Some(first.pid()));
    // The same address would take a part of its requests.
    let same = place
        .command(&["run"])
        .env("PORT", port.to_string())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&same.stderr).into_owned();
    assert_eq!(same.status.code(), Some(1), "{said}");
    assert!(
        said.contains(&format!("process {} listens on", second.pid())),
        "{said}"
    );
    assert!(
        said.contains(&format!("kill -USR2 {}", second.pid())),
        "{said}"
    );
    first.end();
    eventually("the pid file names the other", || {
        place.pid_in_file() == Some(second.pid())
    });
}

#[test]
fn of_several_that_start_at_once_one_runs() {
    let place = Place::new();
    let all: Vec<Child> = (0..4)
        .map(|_| {
            let mut command = place.command(&["run"]);
            let command = command.stdout(Stdio::null()).stderr(Stdio::piped());
            command.spawn().unwrap()
        })
        .collect();
    let mut all: Vec<Running> = all.into_iter().map(Running).collect();
    let began = std::time::Instant::now();
    while all.len() > 1 {
        assert!(began.elapsed() < PATIENCE, "{} run", all.len());
        all.retain_mut(|one| one.0.try_wait().unwrap().is_none());
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    eventually("the one that is left serves", || place.reloads());
    assert_eq!(place.pid_in_file(), Some(all[0].pid()));
}
