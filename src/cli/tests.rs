//! The commands in the documentation exist, with the flags that they have there.

use std::path::{Path, PathBuf};

use clap::{Command, CommandFactory};

use super::{Cli, demo};
use crate::config;

/// Every page of the documentation, in their order.
fn pages() -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut all = vec![root.join("README.md"), root.join("SECURITY.md")];
    let mut folders = vec![root.join("docs")];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|ending| ending == "md") {
                all.push(path);
            }
        }
    }
    all.sort();
    all
}

/// The words of a shell line that runs `tidegate`, up to a pipe, a redirection or a comment.
fn words(line: &str) -> Option<Vec<&str>> {
    let line = line.trim_start().trim_start_matches("$ ");
    let mut words = line
        .split_whitespace()
        .skip_while(|word| word.contains('='));
    let own = ["tidegate", "./target/release/tidegate"];
    words.next().filter(|word| own.contains(word))?;
    let ends = ["|", "||", ">", "&", "&&", "#", "<", "\\"];
    let words = words.take_while(|word| !ends.contains(word));
    let words: Vec<&str> = words
        .map(|word| word.trim_matches(['[', ']', ';']))
        .collect();
    // `tidegate 0.1.0` is printed, and `tidegate = "0.1"` is Cargo's.
    let begins = |word: &&str| word.starts_with(|c: char| c.is_ascii_lowercase() || c == '-');
    words.first().is_none_or(begins).then_some(words)
}

fn fault(words: &[&str]) -> Option<String> {
    let top = Cli::command();
    let mut at: &Command = &top;
    // A subcommand also has the global flags of the commands before it.
    let mut above: Vec<&Command> = Vec::new();
    for word in words {
        let has = |fits: &dyn Fn(&clap::Arg) -> bool| {
            let all = above.iter().copied().chain([at]);
            all.flat_map(Command::get_arguments).any(fits)
        };
        if let Some(long) = word.strip_prefix("--").filter(|long| !long.is_empty()) {
            let long = long.split('=').next().unwrap_or_default();
            let known = long == "help"
                || long == "version"
                || has(&|one: &clap::Arg| one.get_long() == Some(long));
            if !known {
                return Some(format!("{} has no --{long}", at.get_name()));
            }
        } else if let Some(short) = word.strip_prefix('-').and_then(|rest| rest.chars().next()) {
            if short.is_ascii_alphabetic()
                && !has(&|one: &clap::Arg| one.get_short() == Some(short))
            {
                return Some(format!("{} has no -{short}", at.get_name()));
            }
        } else if let Some(inner) = at.find_subcommand(word) {
            above.push(at);
            at = inner;
        } else if above.is_empty() {
            return Some(format!("there is no `{word}`"));
        }
    }
    None
}

#[test]
fn commands_of_the_documentation_exist() {
    let (mut wrong, mut commands) = (Vec::new(), 0);
    for page in pages() {
        let text = std::fs::read_to_string(&page).unwrap();
        let mut code = false;
        for (number, line) in text.lines().enumerate() {
            code ^= line.trim_start().starts_with("```");
            let Some(words) = words(line).filter(|_| code) else {
                continue;
            };
            commands += 1;
            if let Some(why) = fault(&words) {
                wrong.push(format!("{}:{}: {why}", page.display(), number + 1));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(commands > 50, "{commands}");
}

#[test]
fn what_there_is_not_is_found() {
    let fault = |line: &str| fault(&words(line).unwrap());
    assert_eq!(
        fault("$ tidegate limits show login ip=1.2.3.4 --json"),
        None
    );
    assert_eq!(fault("A=b tidegate run -c x &"), None);
    let said = fault("tidegate cheque").unwrap();
    assert!(said.contains("cheque"), "{said}");
    let said = fault("tidegate check --onlin").unwrap();
    assert!(said.contains("--onlin"), "{said}");
    assert_eq!(words("tidegate-like words"), None);
}

fn tries(limit: &str) -> Option<u64> {
    let text = format!("upstream = \"http://10.0.0.1:1\"\n[limit.default]\n{limit}\n");
    let (config, _) = config::parse("proxy.toml", &text, &|_| None).unwrap();
    demo::tries_until_denied(&config)
}

#[test]
fn the_loop_ends_with_a_denial() {
    assert_eq!(tries("rate = \"10/10s\""), Some(12));
    assert_eq!(tries("rate = [\"100/min\", \"2000/h\"]"), Some(102));
    assert_eq!(tries("rate = \"100/min\"\ncost = 10"), Some(12));
    assert_eq!(
        tries("rate = \"100/min\"\nkey = \"api_key or ip\""),
        Some(102)
    );
    for free in [
        "rate = \"1000/min\"",
        "rate = \"9/min\"\nshadow = true",
        "concurrent = 9",
        "rate = \"9/min\"\nkey = \"header:x-a\"\nmissing = \"skip\"",
    ] {
        assert_eq!(tries(free), None, "{free}");
    }
}
