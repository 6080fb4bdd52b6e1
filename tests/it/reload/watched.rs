//! `run --watch`: every way in which files change, and none of them half.

use std::io::Write;
use std::os::unix::fs::symlink;
use std::time::{Duration, Instant};

use super::{Gate, assert_said};
use crate::house::{PATIENCE, Tidegate, Upstream};
use crate::probe::eventually;

const FIVE: &str = "upstream = \"$UPSTREAM\"\n[limit.default]\nrate = \"5/min\"\n";

fn limit_of(gate: &Gate) -> Option<String> {
    gate.proxy.get("/").header("x-ratelimit-limit")
}

#[track_caller]
fn becomes(gate: &Gate, rate: &str) {
    eventually(&format!("{rate} in force"), || {
        limit_of(gate).as_deref() == Some(rate)
    });
}

fn watching(config: &str) -> Gate {
    let upstream = Upstream::ok();
    let config = config.replace("$UPSTREAM", &upstream.url());
    Gate {
        proxy: Tidegate::start_watching(&config),
        upstream,
    }
}

impl Gate {
    /// The whole file for a rate.
    fn text(&self, rate: &str) -> String {
        let config = FIVE
            .replace("$UPSTREAM", &self.upstream.url())
            .replace("5/min", rate);
        format!("listen = \"127.0.0.1:0\"\n{config}")
    }
}

#[test]
fn written_over_and_renamed_over() {
    let gate = watching(FIVE);
    std::fs::write(gate.file(), gate.text("6/min")).unwrap();
    becomes(&gate, "6");
    gate.write(&FIVE.replace("5/min", "7/min"));
    becomes(&gate, "7");
    // As some editors do: away, and then anew.
    std::fs::rename(gate.file(), gate.file().with_extension("toml~")).unwrap();
    std::fs::write(gate.file(), gate.text("8/min")).unwrap();
    becomes(&gate, "8");
    std::fs::remove_file(gate.file()).unwrap();
    gate.proxy.wait_for_line("cannot read");
    assert_eq!(limit_of(&gate).as_deref(), Some("8"));
    std::fs::write(gate.file(), gate.text("9/min")).unwrap();
    becomes(&gate, "9");
}

#[test]
fn links_that_are_swapped() {
    // `proxy.toml` -> `..data/proxy.toml`, `..data` -> `..one`: as Kubernetes mounts a ConfigMap.
    let gate = watching(FIVE);
    let at = |name: &str| gate.proxy.directory.path().join(name);
    for (directory, rate) in [("..one", "6/min"), ("..two", "7/min")] {
        std::fs::create_dir(at(directory)).unwrap();
        std::fs::write(at(directory).join("proxy.toml"), gate.text(rate)).unwrap();
    }
    symlink("..one", at("..data")).unwrap();
    symlink("..data/proxy.toml", at("link")).unwrap();
    std::fs::rename(at("link"), gate.file()).unwrap();
    becomes(&gate, "6");
    symlink("..two", at("..data_tmp")).unwrap();
    std::fs::rename(at("..data_tmp"), at("..data")).unwrap();
    std::fs::remove_dir_all(at("..one")).unwrap();
    becomes(&gate, "7");
}

#[test]
fn a_file_that_is_still_written_is_not_taken() {
    // Nobody knows of a file that is left for so long that more of it comes.
    const LEFT: Duration = Duration::from_millis(300);
    let until = Instant::now() + PATIENCE;
    loop {
        let gate = watching(FIVE);
        // Its first half would be a right file too: one without a limit.
        let text = gate.text("6/min");
        let mut file = std::fs::File::create(gate.file()).unwrap();
        let (mut written, mut longest) = (Instant::now(), Duration::ZERO);
        let mut half_was_taken = false;
        for line in text.split_inclusive('\n') {
            file.write_all(line.as_bytes()).unwrap();
            file.flush().unwrap();
            longest = longest.max(written.elapsed());
            written = Instant::now();
            half_was_taken |= limit_of(&gate).is_none();
            std::thread::sleep(Duration::from_millis(60));
        }
        drop(file);
        becomes(&gate, "6");
        let said = gate.proxy.said();
        half_was_taken |= said.iter().any(|line| line.contains("nothing was changed"));
        if !half_was_taken {
            return;
        }
        // A machine that keeps everyone waiting has left it.
        assert!(longest > LEFT, "half of it was taken: {said:#?}");
        assert!(Instant::now() < until, "it is always left for {longest:?}");
    }
}

#[test]
fn mistakes_are_told_once_and_nothing_is_reset() {
    let gate = watching(FIVE);
    for _ in 0..3 {
        gate.proxy.get("/");
    }
    gate.write(&FIVE.replace("5/min", "5/fortnight"));
    gate.proxy.wait_for_line("nothing was changed");
    gate.write(FIVE);
    gate.proxy.wait_for_line("no change");
    let left = gate.proxy.get("/").header("x-ratelimit-remaining");
    assert_eq!(left.as_deref(), Some("1"));
    let said = gate.proxy.said();
    assert!(
        said.iter()
            .all(|line| !line.contains("nothing was changed")),
        "{said:#?}"
    );
}

#[test]
fn files_that_it_names_are_watched() {
    let directory = tempfile::tempdir().unwrap();
    let keys = directory.path().join("keys");
    std::fs::write(&keys, "one gold\n").unwrap();
    let gate = watching(&format!(
        "upstream = \"$UPSTREAM\"\n[tier]\nkeys_file = \"{}\"\n[limit.default]\nrate = \"5/min\"\n\
         tiers = {{ gold = \"50/min\" }}\n",
        keys.display()
    ));
    let limit = |key: &str| {
        let answer = gate.proxy.get_with("/", &format!("x-api-key: {key}\r\n"));
        answer.header("x-ratelimit-limit")
    };
    assert_eq!(limit("one").as_deref(), Some("50"));
    assert_eq!(limit("two").as_deref(), Some("5"));
    std::fs::write(&keys, "two gold\n").unwrap();
    let said = vec![gate.proxy.wait_for_line("content changed")];
    assert_said(&said, "keys");
    eventually("the other key is gold", || {
        limit("two").as_deref() == Some("50")
    });
    assert_eq!(limit("one").as_deref(), Some("5"));
}
