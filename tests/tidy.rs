//! The architecture, executed: what house rules say of the sources is checked here, so that a rule
//! that is broken is a test that fails, with the line to look at.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on should stop")]

#[path = "tidy/sentences.rs"]
mod sentences;
#[path = "tidy/structure.rs"]
mod structure;

use std::fs;
use std::path::{Path, PathBuf};

const FILE_LINES: usize = 500;
const LINE_COLUMNS: usize = 100;
const HARD_SENTENCES_OF_A_PAGE: usize = 8;
const HARD_SENTENCES_PER_THOUSAND_WORDS: usize = 5;

/// Words that name nothing (rule 10).
const EMPTY_WORDS: [&str; 6] = ["manager", "handler", "helper", "util", "utils", "common"];

/// Marks of work left open.
const OPEN_MARKS: [&str; 5] = ["TODO", "FIXME", "XXX", "unimplemented!", "#[ignore"];

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

fn files(directory: &Path, ending: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let Ok(entries) = fs::read_dir(directory) else {
        return found;
    };
    for entry in entries {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(files(&path, ending));
        } else if path
            .extension()
            .is_some_and(|extension| extension == ending)
        {
            found.push(path);
        }
    }
    found.sort();
    found
}

/// The folders of sources, in the order in which they depend on each other.
fn source_folders() -> Vec<String> {
    let crates = ["core", "limiter", "import", "replay"];
    let folders = crates.map(|name| format!("crates/{name}/src"));
    folders.into_iter().chain(["src".to_owned()]).collect()
}

fn sources() -> Vec<(String, String)> {
    source_folders()
        .iter()
        .flat_map(|folder| texts(folder))
        .collect()
}

/// The sources of a folder, by their names from the root.
fn texts(folder: &str) -> Vec<(String, String)> {
    let root = root();
    let read = |path: &PathBuf| {
        let name = path.strip_prefix(&root).unwrap().to_str().unwrap();
        (name.to_owned(), fs::read_to_string(path).unwrap())
    };
    files(&root.join(folder), "rs").iter().map(read).collect()
}

/// The name of a source within its crate: `store/redis.rs`.
fn inside(file: &str) -> &str {
    file.rsplit_once("src/").map_or(file, |(_, name)| name)
}

/// The part of a file before its unit tests.
fn shipped(text: &str) -> &str {
    text.split("\n#[cfg(test)]\nmod tests {").next().unwrap()
}

/// The rooms in reading order, as `lib.rs` of a folder of sources declares them.
fn rooms(folder: &str) -> Vec<String> {
    let lib = fs::read_to_string(root().join(folder).join("lib.rs")).unwrap();
    let declared = lib
        .lines()
        .filter_map(|line| line.trim_start_matches("pub ").strip_prefix("mod "));
    declared
        .map(|rest| rest.trim_end_matches(';').to_owned())
        .collect()
}

/// The room that a file belongs to: `store/redis.rs` and `store.rs` are `store`.
fn room_of(file: &str) -> &str {
    inside(file).split(['/', '.']).next().unwrap()
}

/// Names that follow `crate::` in a file, braces included.
fn used_rooms(text: &str) -> Vec<String> {
    let mut used = Vec::new();
    for (at, _) in text.match_indices("crate::") {
        let rest = &text[at + "crate::".len()..];
        let group = rest
            .strip_prefix('{')
            .map(|inner| inner.split('}').next().unwrap());
        let names = group.map_or_else(|| vec![rest], |inner| inner.split(',').collect());
        for name in names {
            let end = |c: char| !(c.is_ascii_lowercase() || c == '_');
            used.push(name.trim().split(end).next().unwrap().to_owned());
        }
    }
    used
}

#[test]
fn a_room_uses_only_rooms_declared_above_it() {
    for folder in source_folders() {
        let rooms = rooms(&folder);
        let place = |name: &str| rooms.iter().position(|room| room == name);
        for (file, text) in texts(&folder) {
            let Some(own) = place(room_of(&file)) else {
                continue;
            };
            for used in used_rooms(shipped(&text)) {
                let is_above = place(&used).is_none_or(|other| other <= own);
                assert!(
                    is_above,
                    "{file} uses crate::{used}, which is declared below it"
                );
            }
        }
    }
}

/// Each bound is what has been reached; a commit that improves a count lowers its bound.
/// `make structure` prints the counts.
#[test]
fn the_structure_does_not_get_worse() {
    let counts = structure::count(&root(), &source_folders());
    println!("{counts}");
    assert!(
        counts.tuple_parameters.is_empty(),
        "{:#?}",
        counts.tuple_parameters
    );
    let types = &counts.ambiguous_types;
    assert!(types.len() <= 18, "{types:#?}");
    assert!(counts.circles.is_empty(), "{:#?}", counts.circles);
    assert!(counts.files <= 560, "{} files", counts.files);
    assert!(
        counts.production_lines <= 119_900,
        "{} lines",
        counts.production_lines
    );
    assert!(
        counts.p95() <= 40,
        "95 of 100 functions: {} lines",
        counts.p95()
    );
}

/// The library stays one that a reader can know: its public items, methods and re-exports included,
/// and the crates that a program gets with it.
#[test]
fn the_library_is_small() {
    let counts = structure::count(&root(), &["crates/limiter/src".to_owned()]);
    assert!(counts.public_items <= 60, "{} items", counts.public_items);
    let crates = |features: &[&str]| {
        let tree = std::process::Command::new(env!("CARGO"))
            .args([
                "tree",
                "--offline",
                "-p",
                "tidegate-limiter",
                "-e",
                "normal",
            ])
            .args(["--prefix", "none", "--format", "{p}"])
            .args(features)
            .current_dir(root())
            .output()
            .unwrap();
        assert!(tree.status.success(), "{tree:?}");
        let text = String::from_utf8(tree.stdout).unwrap();
        let names = text.lines().map(|line| line.trim_end_matches(" (*)"));
        names.collect::<std::collections::BTreeSet<_>>().len()
    };
    assert!(crates(&[]) <= 60, "{} crates", crates(&[]));
    let redis = crates(&["--features", "redis"]);
    assert!(redis <= 130, "{redis} crates with Redis");
}

/// Texts that people read, by their names from the root: pages, commented configurations, and the
/// sources with the messages.
fn texts_for_people() -> Vec<(String, String)> {
    let root = root();
    let top = fs::read_dir(&root).unwrap();
    let top = top.map(|entry| entry.unwrap().path());
    let top = top.filter(|path| path.extension().is_some_and(|ending| ending == "md"));
    let mut paths: Vec<PathBuf> = top.collect();
    paths.extend(files(&root.join("docs"), "md"));
    paths.extend(["bench/README.md", "proxy.toml", "proxy.reference.toml"].map(|at| root.join(at)));
    for ending in ["js", "html"] {
        paths.extend(files(&root.join("src/admin/dashboard"), ending));
    }
    let read = |path: &PathBuf| {
        let name = path.strip_prefix(&root).unwrap().to_str().unwrap();
        (name.to_owned(), fs::read_to_string(path).unwrap())
    };
    let is_test = |file: &str| file.split(['/', '.']).any(|part| part == "tests");
    let sources = sources().into_iter().filter(|(file, _)| !is_test(file));
    paths.iter().map(read).chain(sources).collect()
}

/// Sentences are short, and name their actor. `TIDEGATE_SENTENCES=1` prints each hard one.
#[test]
fn sentences_are_plain() {
    let readings: Vec<(String, sentences::Reading)> = texts_for_people()
        .iter()
        .map(|(file, text)| (file.clone(), sentences::read(file, text)))
        .collect();
    let words: usize = readings.iter().map(|(_, reading)| reading.words).sum();
    let hard: usize = readings.iter().map(|(_, reading)| reading.hard.len()).sum();
    let print = |(file, reading): &(String, sentences::Reading)| {
        let lines = reading.hard.iter();
        let lines =
            lines.map(|hard| format!("{file}:{}: {}: {}\n", hard.line, hard.why, hard.text));
        lines.collect::<String>()
    };
    if std::env::var_os("TIDEGATE_SENTENCES").is_some() {
        print!("{}", readings.iter().map(print).collect::<String>());
        println!("{hard} hard sentences in {words} words");
    }
    for page in &readings {
        let count = page.1.hard.len();
        assert!(
            count <= HARD_SENTENCES_OF_A_PAGE,
            "{count} hard sentences, at most {HARD_SENTENCES_OF_A_PAGE}\n{}",
            print(page)
        );
    }
    assert!(
        hard * 1000 <= words * HARD_SENTENCES_PER_THOUSAND_WORDS,
        "{hard} hard sentences in {words} words\n{}",
        readings.iter().map(print).collect::<String>()
    );
}

/// Tests run what is released: `cfg(test)` adds items, and changes no function and no type.
#[test]
fn no_function_is_another_one_in_tests() {
    for (file, text) in sources() {
        assert!(
            !text.contains("cfg!(test)"),
            "{file} asks whether it is tested"
        );
        assert!(
            !text.contains("cfg(not(test))"),
            "{file} leaves code out of tests"
        );
        let lines: Vec<&str> = text.lines().collect();
        for pair in lines.windows(2) {
            let [attribute, item] = pair else {
                continue;
            };
            let is_inside = attribute.starts_with(' ') && attribute.trim() == "#[cfg(test)]";
            let is_function = ["fn ", "pub"]
                .iter()
                .any(|word| item.trim().starts_with(word));
            assert!(
                !is_inside || is_function,
                "{file}: cfg(test) before `{item}`"
            );
        }
    }
}

#[test]
fn every_room_is_declared_and_every_declared_room_exists() {
    for folder in source_folders() {
        let rooms = rooms(&folder);
        for (file, _) in texts(&folder) {
            let room = room_of(&file);
            let is_known =
                matches!(room, "main" | "lib") || rooms.iter().any(|known| known == room);
            assert!(is_known, "{file} belongs to no room of lib.rs");
        }
        for room in rooms {
            let file = root().join(&folder).join(format!("{room}.rs"));
            assert!(file.exists(), "no {}", file.display());
        }
    }
}

#[test]
fn there_is_no_mod_rs() {
    for (file, _) in sources() {
        assert!(
            !file.ends_with("mod.rs"),
            "{file}: name it after its module"
        );
    }
}

#[test]
fn the_words_are_pure() {
    let words = ["certificate", "client", "limit", "path", "route"];
    let impure = [
        "tokio",
        "std::time",
        "std::fs",
        "std::net::Tcp",
        "std::thread",
        "tracing",
        "async ",
    ];
    for (file, text) in sources() {
        if !words.contains(&room_of(&file)) {
            continue;
        }
        for word in impure {
            // Durations are values; only reading a clock is impure.
            let text = shipped(&text).replace("std::time::Duration", "");
            let code = text
                .lines()
                .filter(|line| !line.trim_start().starts_with("//"));
            for line in code {
                assert!(
                    !line.contains(word),
                    "{file} is a word and uses {word}: {line}"
                );
            }
        }
    }
}

#[test]
fn files_fit_and_lines_fit() {
    for (file, text) in sources().into_iter().chain(texts("bench")) {
        let lines = text.lines().count();
        assert!(
            lines <= FILE_LINES,
            "{file} has {lines} lines, at most {FILE_LINES}"
        );
        for (number, line) in text.lines().enumerate() {
            let columns = line.chars().count();
            assert!(
                columns <= LINE_COLUMNS,
                "{file}:{} has {columns} columns, at most {LINE_COLUMNS}",
                number + 1
            );
        }
    }
}

#[test]
fn every_file_says_what_it_is() {
    for (file, text) in sources().into_iter().chain(texts("bench")) {
        assert!(
            text.starts_with("//! "),
            "{file} does not open with what it is"
        );
    }
    for path in files(&root().join("lua"), "lua") {
        let text = fs::read_to_string(&path).unwrap();
        assert!(
            text.starts_with("-- "),
            "{} does not open with its contract",
            path.display()
        );
    }
}

#[test]
fn nothing_is_left_open() {
    let mut all: Vec<(String, String)> = sources();
    for (folder, ending) in [("tests", "rs"), ("lua", "lua")] {
        for path in files(&root().join(folder), ending) {
            if !path.ends_with("tests/tidy.rs") {
                all.push((
                    path.display().to_string(),
                    fs::read_to_string(&path).unwrap(),
                ));
            }
        }
    }
    for (file, text) in all {
        for mark in OPEN_MARKS {
            assert!(!text.contains(mark), "{file} has {mark}");
        }
    }
}

#[test]
fn names_name_something() {
    for (file, text) in sources() {
        let stem = Path::new(&file).file_stem().unwrap().to_str().unwrap();
        assert!(
            !EMPTY_WORDS.contains(&stem),
            "{file}: that name says nothing"
        );
        for line in shipped(&text).lines() {
            let mut words = line
                .split_whitespace()
                .skip_while(|word| !matches!(*word, "struct" | "enum" | "trait" | "mod" | "type"));
            let (Some(_), Some(name)) = (words.next(), words.next()) else {
                continue;
            };
            let name = name.to_lowercase();
            for empty in EMPTY_WORDS {
                let says_nothing = name.trim_end_matches(['{', ';', ' ']).ends_with(empty)
                    && !line.trim_start().starts_with("//");
                assert!(!says_nothing, "{file}: `{line}` is named {empty}");
            }
        }
    }
}

#[test]
fn only_the_path_charges_and_sends() {
    let allowed = |file: &str, call: &str| {
        let path = match call {
            "store.charge(" => file == "exchange/admit.rs",
            _ => ["proxy/forward.rs", "proxy/error_page.rs"].contains(&file),
        };
        path || file.starts_with("store") || file.starts_with("upstream")
    };
    for (file, text) in sources() {
        let file = inside(&file);
        for call in ["store.charge(", "upstreams.send("] {
            let calls = shipped(&text).contains(call);
            assert!(!calls || allowed(file, call), "{file} calls {call}..)");
        }
    }
}

#[test]
fn raw_toml_stays_in_the_configuration() {
    for (file, text) in sources() {
        let uses = shipped(&text).contains("toml::");
        // A file of another program is no configuration of ours.
        let may = room_of(&file) == "config" || file == "crates/import/src/tree.rs";
        assert!(!uses || may, "src/{file} reads TOML");
    }
}

/// Each promise of docs/threats.md names the test that holds it.
#[test]
fn each_row_of_the_threats_names_a_test() {
    let page = fs::read_to_string(root().join("docs/threats.md")).unwrap();
    let rows = page.lines().filter(|line| {
        let is_head = line.starts_with("|--") || line.ends_with("| test |");
        line.starts_with('|') && !is_head
    });
    let rows: Vec<&str> = rows.collect();
    assert!(rows.len() > 60, "{}", rows.len());
    for row in rows {
        let cells = row.trim_matches('|').rsplit_once('|');
        let tests = cells.map_or("", |(_, tests)| tests);
        let names_one = tests.contains("::") && tests.contains('`');
        assert!(names_one, "docs/threats.md names no test: {row}");
    }
}

/// The file of a module, in whichever crate it is.
fn unit_tests(module: &str) -> String {
    let found = source_folders().into_iter().find_map(|folder| {
        let file = format!("{folder}/{module}.rs");
        root().join(&file).exists().then_some(file)
    });
    found.unwrap_or_else(|| format!("src/{module}.rs"))
}

/// Every test that docs/threats.md names is there: a defence whose test is gone is none.
#[test]
fn the_tests_of_the_threats_are_there() {
    let page = fs::read_to_string(root().join("docs/threats.md")).unwrap();
    let names = page.split('`').skip(1).step_by(2);
    let named: Vec<&str> = names
        .filter(|name| name.contains("::") && !name.ends_with("::"))
        .collect();
    assert!(named.len() > 100, "{named:?}");
    for name in named {
        let (module, test) = name.rsplit_once("::").unwrap();
        let path = module.replace("::", "/");
        let module = match path.split_once('/') {
            Some(("fuzz", target)) => format!("tests/fuzz/{target}.rs"),
            Some(("unit", file)) => unit_tests(file),
            _ => format!("tests/it/{path}.rs"),
        };
        let text = fs::read_to_string(root().join(&module)).unwrap_or_default();
        let lines: Vec<&str> = text.lines().collect();
        let is_it =
            |pair: &[&str]| pair[0].ends_with("test]") && pair[1].contains(&format!("fn {test}("));
        let is_there = lines.windows(2).any(is_it);
        assert!(
            is_there,
            "docs/threats.md names {name}, and {module} has no such test"
        );
    }
}
