//! Sessions that pages show, done again: every command of a page in its order, in a shell, and each
//! must print what stands below it. Addresses are the test's own; what differs from run to run is
//! named by the test; `..` on a page is any number of lines.

mod situations;

use std::collections::VecDeque;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Stdio};
use std::sync::mpsc::{Receiver, channel};

use tempfile::TempDir;

use crate::house::{PATIENCE, Upstream};
use crate::probe::eventually;
use crate::support::{RedisServer, free_port, mortal};

/// Stands for a part of a line that is not the same in every run.
const ANY: char = '\u{fffc}';

/// A command, and the lines below it.
struct Step {
    command: String,
    shown: Vec<String>,
}

/// A page, and where its commands are run.
struct Session {
    directory: TempDir,
    text: String,
    steps: VecDeque<Step>,
}

impl Session {
    /// `changes` turns the page's addresses into the test's.
    fn of(page: &str, changes: &[(&str, String)]) -> Session {
        let path = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("docs")
            .join(page);
        let mut text = std::fs::read_to_string(path).unwrap();
        for (from, to) in changes {
            assert!(text.contains(from), "{page} has no {from}");
            text = text.replace(from, to);
        }
        Session {
            directory: tempfile::tempdir().unwrap(),
            steps: steps(&text),
            text,
        }
    }

    /// The first block that begins so.
    fn block(&self, begin: &str) -> &str {
        let (_, rest) = self.text.split_once(begin).unwrap();
        rest.split_once("```").unwrap().0
    }

    fn write(&self, name: &str, text: &str) {
        std::fs::write(self.directory.path().join(name), text).unwrap();
    }

    fn read(&self, name: &str) -> String {
        std::fs::read_to_string(self.directory.path().join(name)).unwrap()
    }

    /// The next command, which must be this one.
    fn step(&mut self, begin: &str) -> Step {
        let step = self.steps.pop_front().unwrap();
        assert!(step.command.starts_with(begin), "{}", step.command);
        step
    }

    fn start(&self, command: &str) -> Child {
        let program = Path::new(env!("CARGO_BIN_EXE_tidegate"));
        let folder = program.parent().unwrap().to_str().unwrap();
        let path = format!("{folder}:{}", std::env::var("PATH").unwrap());
        mortal("bash")
            .args(["-c", &format!("exec 2>&1; {command}")])
            .current_dir(self.directory.path())
            .env("PATH", path)
            .env("XDG_RUNTIME_DIR", self.directory.path())
            .env("no_proxy", "*")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap()
    }

    /// What a command prints.
    fn shell(&self, command: &str) -> String {
        let output = self.start(command).wait_with_output().unwrap();
        String::from_utf8(output.stdout).unwrap()
    }

    /// Runs the next command, which prints what the page shows but for `loose` parts.
    fn prints(&mut self, begin: &str, loose: &[&str]) {
        let step = self.step(begin);
        let said = self.shell(&step.command);
        let told = format!("{}\n{said}", step.command);
        let mut lines = said.lines().map(plain);
        let mut skips = false;
        for line in &step.shown {
            if line == ".." {
                skips = true;
                continue;
            }
            let wanted = pattern(line, loose);
            let next = match skips {
                true => lines.find(|line| fits(&wanted, line)),
                false => lines.next(),
            };
            let next = next.unwrap_or_else(|| panic!("there is no `{wanted}` in\n{told}"));
            assert!(
                fits(&wanted, &next),
                "`{wanted}` is not `{next}` in\n{told}"
            );
            skips = false;
        }
        let rest: Vec<String> = lines.collect();
        assert!(
            skips || rest.is_empty(),
            "the page ends before {rest:?}\n{told}"
        );
    }

    /// Begins the next command, which goes on, as `command` where that is said.
    fn begins(&mut self, begin: &str, command: Option<&str>) -> Going {
        let step = self.step(begin);
        let command = command.unwrap_or(&step.command).trim_end_matches(" &");
        Going::new(self.start(&format!("exec {command}")), step.shown)
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            let left: Vec<&String> = self.steps.iter().map(|step| &step.command).collect();
            assert!(left.is_empty(), "never done: {left:?}");
        }
    }
}

/// A program that goes on.
struct Going {
    child: Child,
    shown: VecDeque<String>,
    lines: Receiver<String>,
}

impl Going {
    fn new(mut child: Child, shown: Vec<String>) -> Going {
        let said = BufReader::new(child.stdout.take().unwrap());
        let (line, lines) = channel();
        std::thread::spawn(move || {
            for text in said.lines().map_while(Result::ok) {
                let _ = line.send(text);
            }
        });
        Going {
            child,
            shown: shown.into(),
            lines,
        }
    }

    /// It says the next so many lines that the page shows.
    fn says(&mut self, count: usize, loose: &[&str]) {
        for line in self.shown.drain(..count) {
            let wanted = pattern(&line, loose);
            let next = self.lines.recv_timeout(PATIENCE);
            let next = plain(&next.unwrap_or_else(|_| panic!("never said: {wanted}")));
            assert!(fits(&wanted, &next), "`{wanted}` is not `{next}`");
        }
    }

    /// Ends it, as Ctrl-C does.
    fn stop(mut self) {
        assert!(self.shown.is_empty(), "never said: {:?}", self.shown);
        let pid = self.child.id().to_string();
        let told = mortal("kill").args(["-INT", &pid]).status().unwrap();
        assert!(told.success());
        eventually("it ends", || self.child.try_wait().unwrap().is_some());
    }
}

impl Drop for Going {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The commands of all `console` blocks. One that ends in `\` goes on in the next line, and so does
/// what is shown before a line that begins with a name of JSON.
fn steps(text: &str) -> VecDeque<Step> {
    let mut steps: VecDeque<Step> = VecDeque::new();
    let blocks = text.split("```console\n").skip(1);
    for line in blocks.flat_map(|block| block.split("```").next().unwrap().lines()) {
        let last = steps.back_mut();
        if let Some(command) = line.strip_prefix('$').map(str::trim) {
            let is_prompt = command.is_empty();
            if !is_prompt {
                let (command, shown) = (command.to_owned(), Vec::new());
                steps.push_back(Step { command, shown });
            }
        } else if let Some(last) = last {
            match last.command.strip_suffix('\\') {
                Some(begun) if last.shown.is_empty() => {
                    last.command = format!("{begun}{}", line.trim());
                }
                _ if line.starts_with('"') && !last.shown.is_empty() => {
                    last.shown.iter_mut().next_back().unwrap().push_str(line);
                }
                _ => last.shown.push(line.to_owned()),
            }
        }
    }
    steps
}

/// A line without what columns and terminals make of it.
fn plain(line: &str) -> String {
    let words: Vec<&str> = line.split_whitespace().collect();
    words.join(" ")
}

fn pattern(line: &str, loose: &[&str]) -> String {
    let mut line = plain(line);
    for part in loose {
        line = line.replace(part, &ANY.to_string());
    }
    line
}

fn fits(pattern: &str, line: &str) -> bool {
    let mut parts = pattern.split(ANY);
    let first = parts.next().unwrap_or_default();
    let Some(mut rest) = line.strip_prefix(first) else {
        return false;
    };
    let parts: Vec<&str> = parts.collect();
    let Some((last, between)) = parts.split_last() else {
        return rest.is_empty();
    };
    for part in between {
        let Some((_, behind)) = rest.split_once(part) else {
            return false;
        };
        rest = behind;
    }
    rest.ends_with(last)
}

/// The addresses of a page's proxy and what is beside it.
struct Addresses {
    upstream: Upstream,
    redis: RedisServer,
    listen: u16,
}

impl Addresses {
    fn new() -> Addresses {
        Addresses {
            upstream: Upstream::ok(),
            redis: RedisServer::start(),
            listen: free_port(),
        }
    }

    fn upstream(&self) -> (&'static str, String) {
        ("http://127.0.0.1:3000", self.upstream.url())
    }

    fn listen(&self) -> (&'static str, String) {
        (":8080", format!(":{}", self.listen))
    }

    /// The client's address must not depend on what the machine calls itself.
    fn localhost(&self) -> (&'static str, String) {
        ("localhost:8080", format!("127.0.0.1:{}", self.listen))
    }

    /// A busy machine may take longer for an answer than Redis does.
    fn store(&self) -> (&'static str, String) {
        let url = format!(
            "redis://127.0.0.1:{}\"\ntimeout = \"5s\"",
            self.redis.port()
        );
        ("redis://127.0.0.1\"", url)
    }
}

#[test]
fn the_tutorial() {
    let at = Addresses::new();
    let admin = free_port();
    let redis = format!("127.0.0.1:{}", at.redis.port());
    let mut page = Session::of(
        "tutorial.md",
        &[
            at.localhost(),
            at.upstream(),
            at.listen(),
            ("127.0.0.1:9180", format!("127.0.0.1:{admin}")),
            ("127.0.0.1:6379", redis.clone()),
            ("redis://127.0.0.1", format!("redis://{redis}")),
        ],
    );
    let own = |text: &str| {
        let text = text.replace(":8080", &format!(":{}", at.listen));
        text.replace("http://127.0.0.1:3000", &at.upstream.url())
    };
    // The quick start, without fetching and building it.
    page.step("git clone");
    let quick = include_str!("../../proxy.toml");
    page.write("proxy.toml", &own(quick));
    let mut demo = page.begins("make run", Some("tidegate demo"));
    let dashboard = format!("127.0.0.1:{admin}");
    demo.says(7, &["(2", "33503", &at.upstream.url(), &dashboard]);
    demo.says(2, &["localhost", "127.0.0.1"]);
    let asked = format!(
        "for i in $(seq 12); do curl -so /dev/null -w '%{{http_code}} ' 127.0.0.1:{}; done",
        at.listen
    );
    assert_eq!(page.shell(&asked), "200 ".repeat(10) + "429 429 ");
    demo.stop();
    std::fs::remove_file(page.directory.path().join("proxy.toml")).unwrap();

    page.prints("tidegate init --minimal", &[]);
    page.write("proxy.toml", &own(&page.read("proxy.toml")));
    page.prints("cat proxy.toml", &[]);
    page.prints("tidegate check", &[]);
    let mut proxy = page.begins("tidegate run", None);
    proxy.says(3, &["(2"]);
    page.prints("curl -si", &["1795349014"]);
    page.prints("tidegate try", &["4817", "4814", "56"]);
    proxy.stop();
    tighter(&mut page, &at);
}

/// From the second half of the page on.
fn tighter(page: &mut Session, at: &Addresses) {
    let file = format!("# proxy.toml\n{}", page.block("```toml\n# proxy.toml\n"));
    page.write("proxy.toml", &file.replace("5/min", "5perminute"));
    page.prints("tidegate check", &[]);
    page.write("proxy.toml", &file);
    let proxy = running(page);
    page.prints("for i in $(seq 7)", &[]);
    page.prints("tidegate status", &["0.1.0", "0 0 95 % 0", "0 0 0 % 2"]);
    let mut tap = page.begins("tidegate tap", None);
    tap.says(1, &[]);
    let denied = format!("curl -s -d x=1 127.0.0.1:{}/login", at.listen);
    assert!(page.shell(&denied).contains("\"status\":429"));
    tap.says(1, &["15:26:52", "LEfdwnTk", "1 min", "989f7811c983aff5"]);
    tap.stop();
    page.prints("tidegate explain", &[]);
    let store = page.block("With\n\n```toml\n").to_owned();
    page.write("proxy.toml", &format!("{file}{store}"));
    page.prints("tidegate check --online", &["7.0.15"]);
    page.prints("tidegate reload", &[]);
    page.prints("tidegate limits show", &["i491FunB"]);
    proxy.stop();
}

#[test]
fn behind_a_cdn() {
    let mut page = Session::of("howto/cdn.md", &[]);
    page.write("proxy.toml", page.block("```toml\n# proxy.toml\n"));
    page.prints("tidegate explain", &[]);
    page.prints("tidegate explain", &[]);
}

#[test]
fn plans() {
    let at = Addresses::new();
    let changes = [at.localhost(), at.upstream(), at.listen(), at.store()];
    let mut page = Session::of("howto/plans.md", &changes);
    page.write("proxy.toml", page.block("```toml\n# proxy.toml\n"));
    let tiers = page.block("```text\n# key").to_owned();
    page.write("tiers.txt", &format!("# key{tiers}"));
    let proxy = running(&page);
    for _ in 0..3 {
        page.prints("curl", &[]);
    }
    page.write(
        "tiers.txt",
        &format!("# key{}", tiers.replace("free", "pro")),
    );
    page.prints("tidegate reload", &[]);
    page.prints("curl", &[]);
    page.prints(
        "tidegate limits override",
        &["1V3oJD43", "2026-11-23T11:49:06Z"],
    );
    proxy.stop();
}

#[test]
fn keys() {
    let at = Addresses::new();
    let changes = [at.localhost(), at.upstream(), at.listen(), at.store()];
    let mut page = Session::of("howto/keys.md", &changes);
    page.write("proxy.toml", page.block("```toml\n# proxy.toml\n"));
    page.write("keys.txt", page.block("```text\n"));
    let proxy = running(&page);
    page.prints("for i", &[]);
    for _ in 0..2 {
        page.prints("curl", &[]);
    }
    page.prints("tidegate explain", &[]);
    proxy.stop();
    let block = "## Keys in Redis\n\n```toml\n# proxy.toml\n";
    page.write("proxy.toml", page.block(block));
    let own = [
        "39ab54bc9722",
        "bc9957b1f3d62812ef4c6175ed6cc7ed4949b6e908e75c4e",
        "2026-11-26T07:24:46.175Z",
        "ops@proxy-1",
    ];
    for command in ["keys add", "keys list", "keys remove"] {
        page.prints(&format!("tidegate {command}"), &own);
    }
}

#[test]
fn regions() {
    let at = Addresses::new();
    let (other, second) = (RedisServer::start(), free_port());
    let changes = [
        at.upstream(),
        (":8081", format!(":{}", at.listen)),
        (":8082", format!(":{second}")),
        (":6391", format!(":{}", at.redis.port())),
        (":6392", format!(":{}", other.port())),
        ("\"25ms\"", "\"5s\"".to_owned()),
    ];
    let mut page = Session::of("howto/regions.md", &changes);
    page.write("proxy.toml", page.block("```toml\n# proxy.toml\n"));
    let go = |page: &mut Session| {
        let step = page.step("LISTEN=");
        let command = step.command.trim_end_matches('&');
        listening(Going::new(
            page.start(&format!("exec env {command}")),
            Vec::new(),
        ))
    };
    let proxies = [go(&mut page), go(&mut page)];
    for took in ["2913", "2428"] {
        page.prints("tidegate try", &[took]);
    }
    proxies.into_iter().for_each(Going::stop);
}

#[test]
fn changes() {
    let at = Addresses::new();
    let changes = [at.localhost(), at.upstream(), at.listen(), at.store()];
    let mut page = Session::of("howto/upgrades.md", &changes);
    page.write("proxy.toml", page.block("```toml\n# proxy.toml\n"));
    let proxy = running(&page);
    page.prints("sed", &[]);
    page.prints("tidegate check", &[]);
    page.prints("tidegate reload", &[]);
    let file = page.read("proxy.toml");
    page.write("proxy.toml", &file.replace("rate = \"900", "rte  = \"900"));
    page.prints("tidegate reload; echo", &["14"]);
    // Upgrades have tests of their own.
    page.steps.clear();
    proxy.stop();
}

fn running(page: &Session) -> Going {
    listening(Going::new(page.start("exec tidegate run"), Vec::new()))
}

fn listening(going: Going) -> Going {
    let mut said = String::new();
    while !said.starts_with("listening  http://") {
        said = going.lines.recv_timeout(PATIENCE).unwrap();
    }
    going
}
