//! The documentation, held together: no link leads nowhere, no page is missing from the book, and
//! pages of the book lead to nothing outside it, where readers of the book have no files.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on should stop")]

use std::collections::BTreeSet;
use std::fs;
use std::path::{Component, Path, PathBuf};

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

fn read(page: &str) -> String {
    fs::read_to_string(root().join(page)).unwrap_or_else(|error| panic!("{page}: {error}"))
}

/// Pages in this folder and those below it, by their paths from the root.
fn pages_in(folder: &str) -> Vec<String> {
    let mut found = Vec::new();
    for entry in fs::read_dir(root().join(folder)).unwrap() {
        let entry = entry.unwrap();
        let path = format!("{folder}/{}", entry.file_name().to_str().unwrap());
        if entry.path().is_dir() {
            found.extend(pages_in(&path));
        } else if path.ends_with(".md") {
            found.push(path);
        }
    }
    found.sort();
    found
}

/// Every page that people read.
fn pages() -> Vec<String> {
    let around = fs::read_dir(root()).unwrap();
    let around = around.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let around = around.filter(|name| name.ends_with(".md"));
    let mut pages: Vec<String> = around.collect();
    pages.push("bench/README.md".to_owned());
    pages.extend(pages_in("docs"));
    pages
}

/// Lines outside of code, with their numbers.
fn prose(text: &str) -> Vec<(usize, String)> {
    let mut code = false;
    let mut found = Vec::new();
    for (number, line) in text.lines().enumerate() {
        if line.trim_start().starts_with("```") {
            code = !code;
        } else if !code {
            found.push((number + 1, without_code(line)));
        }
    }
    assert!(!code, "a block of code has no end");
    found
}

/// A line whose `spans of code` are taken out.
fn without_code(line: &str) -> String {
    line.split('`').step_by(2).collect()
}

/// Where a line's links and pictures lead.
fn links(line: &str) -> Vec<String> {
    let parts = line.split("](").skip(1);
    parts
        .filter_map(|rest| rest.split_once(')'))
        .map(|(target, _)| target.to_owned())
        .collect()
}

/// What may stand behind a `#`, made as mdBook and GitHub make it.
fn anchors(text: &str) -> BTreeSet<String> {
    let mut code = false;
    let mut found = BTreeSet::new();
    for line in text.lines() {
        if line.trim_start().starts_with("```") {
            code = !code;
        }
        let title = line.trim_start_matches('#');
        if code || title.len() == line.len() || !title.starts_with(' ') {
            continue;
        }
        let kept = title.trim().chars().filter_map(|c| match c {
            c if c.is_alphanumeric() || c == '_' || c == '-' => Some(c.to_ascii_lowercase()),
            c if c.is_whitespace() => Some('-'),
            _ => None,
        });
        found.insert(kept.collect());
    }
    found
}

/// `to`, as a link on `page` means it: a path from the root.
fn resolved(page: &str, to: &str) -> String {
    let joined = Path::new(page).parent().unwrap().join(to);
    let mut parts: Vec<&str> = Vec::new();
    for part in joined.components() {
        match part {
            Component::ParentDir => {
                parts.pop();
            }
            Component::Normal(name) => parts.push(name.to_str().unwrap()),
            _ => {}
        }
    }
    parts.join("/")
}

#[test]
fn no_link_leads_nowhere() {
    let mut wrong = Vec::new();
    for page in pages() {
        let text = read(&page);
        for (number, line) in prose(&text) {
            for link in links(&line) {
                if let Some(why) = fault(&page, &text, &link) {
                    wrong.push(format!("{page}:{number}: {link}: {why}"));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

fn fault(page: &str, text: &str, link: &str) -> Option<&'static str> {
    if link.starts_with("https://") {
        return None;
    }
    if link.starts_with("http:") || link.contains("://") {
        return Some("not https");
    }
    let (to, anchor) = link.split_once('#').unwrap_or((link, ""));
    let file = match to {
        "" => page.to_owned(),
        to => resolved(page, to),
    };
    if !root().join(&file).exists() {
        return Some("there is no such file");
    }
    if page.starts_with("docs/") && !file.starts_with("docs/") {
        return Some("it leads out of the book");
    }
    let text = match to {
        "" => text.to_owned(),
        _ if anchor.is_empty() => return None,
        _ => read(&file),
    };
    let known = anchor.is_empty() || anchors(&text).contains(anchor);
    (!known).then_some("there is no such heading")
}

#[test]
fn every_page_is_in_the_book_once() {
    let summary = read("docs/SUMMARY.md");
    let listed: Vec<String> = prose(&summary)
        .iter()
        .flat_map(|(_, line)| links(line))
        .map(|link| resolved("docs/SUMMARY.md", &link))
        .collect();
    let unique: BTreeSet<&String> = listed.iter().collect();
    assert_eq!(unique.len(), listed.len(), "a page is listed twice");
    for page in pages_in("docs") {
        let is_in = page == "docs/SUMMARY.md" || unique.contains(&page);
        assert!(is_in, "{page} is missing from docs/SUMMARY.md");
    }
}

#[test]
fn every_page_begins_with_its_title() {
    for page in pages() {
        let text = read(&page);
        assert!(text.starts_with("# "), "{page} does not begin with a title");
    }
}

#[test]
fn headings_become_the_anchors_that_readers_see() {
    let found = anchors("# A `b_c`: d-e, F\n```\n# no\n```\n## `strip_prefix`\n#not\n");
    let expected = ["a-b_c-d-e-f", "strip_prefix"];
    assert_eq!(found, expected.map(str::to_owned).into());
    assert_eq!(
        links("see [a](b.md#c) and ![d](e.svg)"),
        ["b.md#c", "e.svg"]
    );
    assert_eq!(
        resolved("docs/howto/a.md", "../limits.md"),
        "docs/limits.md"
    );
}
