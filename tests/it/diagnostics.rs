//! Broken files, and the exact text that each earns: `tests/fixtures/diagnostics/NAME.toml` beside
//! `NAME.txt`. `TIDEGATE_ACCEPT=1 cargo test --test it -- diagnostics` writes what is said now.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};

use tidegate::config::diagnostic::Code;

use crate::look::command;
use crate::support::{free_port, mortal};

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/diagnostics")
}

fn check(folder: &Path, file: &str, words: &[&str]) -> Output {
    let mut command = mortal(env!("CARGO_BIN_EXE_tidegate"));
    command.env_clear().current_dir(folder);
    command.args(["check", "-c", file]).args(words);
    command.output().unwrap()
}

/// What is said, and the exit code.
fn said(file: &str) -> String {
    let output = check(&folder(), file, &[]);
    let code = output.status.code().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stderr), "", "{file}");
    format!("{}exit {code}\n", String::from_utf8(output.stdout).unwrap())
}

fn corpus() -> Vec<String> {
    let entries = fs::read_dir(folder()).unwrap();
    let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<String> = names.filter(|name| name.ends_with(".toml")).collect();
    names.sort();
    names
}

#[test]
fn every_broken_file_earns_its_text() {
    let mut wrong = String::new();
    let corpus = corpus();
    assert!(corpus.len() >= 60, "{}", corpus.len());
    for file in corpus {
        let path = folder().join(file.replace(".toml", ".txt"));
        let said = said(&file);
        if std::env::var_os("TIDEGATE_ACCEPT").is_some() {
            fs::write(&path, &said).unwrap();
            continue;
        }
        let expected = fs::read_to_string(&path).unwrap_or_default();
        if said != expected {
            wrong.push_str(&format!(
                "-- {file}, expected:\n{expected}-- said:\n{said}\n"
            ));
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
}

#[test]
fn every_mistake_in_the_corpus_says_where_and_what_to_do() {
    for file in corpus() {
        let output = check(&folder(), &file, &["--format", "json"]);
        for line in String::from_utf8(output.stdout).unwrap().lines() {
            let found: serde_json::Value = serde_json::from_str(line).unwrap();
            let labels = found["labels"].as_array().unwrap();
            let has = |key: &str| !found[key].is_null();
            let labelled = labels.iter().any(|label| label["text"] != "");
            assert!(has("help") || has("note") || labelled, "{file}: {line}");
        }
    }
}

#[test]
fn every_kind_of_finding_is_in_the_corpus() {
    let texts = corpus().into_iter().map(|file| said(&file));
    let all: String = texts.collect();
    for code in Code::ALL {
        let code = code.as_str();
        assert!(all.contains(&format!("[{code}]")), "no file earns {code}");
    }
}

#[test]
fn a_file_that_is_too_long_or_not_there_is_said() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("long.toml"), vec![b'#'; (16 << 20) + 1]).unwrap();
    let output = check(folder.path(), "long.toml", &[]);
    let said = String::from_utf8(output.stdout).unwrap();
    assert!(said.contains("longer than 16777216 bytes"), "{said}");
    assert_eq!(output.status.code(), Some(1));
    let output = check(folder.path(), "porxy.toml", &[]);
    let said = String::from_utf8(output.stdout).unwrap();
    assert!(said.contains("help: name another by `-c FILE`"), "{said}");
    assert_eq!(output.status.code(), Some(1));
}

/// The first lines that `tidegate run` prints, up to where it listens.
fn opening(folder: &Path, words: &[&str]) -> String {
    let mut command = mortal(env!("CARGO_BIN_EXE_tidegate"));
    command
        .env_clear()
        .current_dir(folder)
        .arg("run")
        .args(words);
    let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
    let lines = BufReader::new(child.stderr.take().unwrap()).lines();
    let mut said = String::new();
    for line in lines.map_while(Result::ok) {
        said.push_str(&line);
        said.push('\n');
        if line.starts_with("listening") {
            break;
        }
    }
    child.kill().unwrap();
    child.wait().unwrap();
    said
}

#[test]
fn run_says_that_nothing_is_limited_and_how_to_change_it() {
    let folder = tempfile::tempdir().unwrap();
    let listen = format!("127.0.0.1:{}", free_port());
    let to = ["--to", "http://127.0.0.1:9", "--listen", &listen];
    let said = opening(folder.path(), &to);
    assert!(said.contains("nothing is limited"), "{said}");
    assert!(said.contains("`--limit 100/min`"), "{said}");
    let said = opening(folder.path(), &[&to[..], &["--limit", "9/s"]].concat());
    assert!(!said.contains("nothing is limited"), "{said}");
    let file = format!("listen = \"{listen}\"\nupstream = \"http://127.0.0.1:9\"\n");
    fs::write(folder.path().join("proxy.toml"), &file).unwrap();
    let said = opening(folder.path(), &[]);
    assert!(said.contains("nothing is limited"), "{said}");
    assert!(said.contains("`[limit.default]`"), "{said}");
    let meant = format!("{file}[[route]]\npath = \"/*\"\nlimits = []\n");
    fs::write(folder.path().join("proxy.toml"), meant).unwrap();
    let said = opening(folder.path(), &[]);
    assert!(!said.contains("nothing is limited"), "{said}");
}

#[test]
fn run_says_what_check_says_of_a_file_with_mistakes() {
    for file in [
        "timeout_no_unit.toml",
        "upstream_in_limit.toml",
        "limits_section.toml",
    ] {
        let mut command = mortal(env!("CARGO_BIN_EXE_tidegate"));
        command.env_clear().current_dir(folder());
        let output = command.args(["run", "-c", file]).output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        let checked = String::from_utf8(check(&folder(), file, &[]).stdout).unwrap();
        let (findings, _) = checked.rsplit_once("\n\n").unwrap();
        assert!(said.starts_with(findings), "{file}: {said}");
    }
}

#[test]
fn commands_name_the_setting_of_a_store_that_is_away() {
    let folder = tempfile::tempdir().unwrap();
    let port = free_port();
    let config = format!(
        "upstream = \"http://127.0.0.1:1\"\n[store]\nurl = \"redis://127.0.0.1:{port}\"\n\
         [api_key]\nknown = \"redis\"\n[ledger]\n[limit.default]\nrate = \"9/h\"\n"
    );
    std::fs::write(folder.path().join("proxy.toml"), config).unwrap();
    let reason = "the store cannot be connected to: Connection refused";
    for words in [
        &["keys", "list"][..],
        &["keys", "add", "ann"],
        &["usage"],
        &["limits", "ls"],
    ] {
        let output = command(folder.path(), words);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        let first = format!("error: store.url (proxy.toml:3): 127.0.0.1:{port}: {reason}");
        assert!(said.starts_with(&first), "{words:?}: {said}");
        assert!(said.contains("help: start Redis"), "{words:?}: {said}");
    }
}

#[test]
fn replay_without_a_file_names_the_flag_for_one_limit() {
    let folder = tempfile::tempdir().unwrap();
    let output = command(folder.path(), &["replay", "access.log"]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        said.contains("`tidegate replay --limit 100/min LOG`"),
        "{said}"
    );
}
