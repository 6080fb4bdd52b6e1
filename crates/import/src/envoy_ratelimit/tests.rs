//! What each part of a file becomes, and what is listed.

mod any_file;
mod old_tree;
mod refusals;

use crate::{Grade, ImportError, Imported, SourceProgram, import};

fn import_text(text: &str) -> Result<Imported, String> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.yml");
    std::fs::write(&path, text).unwrap();
    let prefix = format!("{}/", folder.path().display());
    match import(SourceProgram::EnvoyRatelimit, &[path]) {
        Ok(imported) => Ok(imported),
        Err(error @ ImportError::Syntax(_)) => Err(error.to_string().replace(&prefix, "")),
        Err(error) => panic!("{error}"),
    }
}

/// The notes of a grade, without the file and those of every import.
fn notes(imported: &Imported, grade: Grade) -> Vec<String> {
    let own = imported
        .notes
        .iter()
        .filter(|note| note.grade == grade && note.place.line > 1);
    own.map(|note| format!("{}: {}: {}", note.place.line, note.what, note.why))
        .collect()
}

/// The rules of a text, without their comments.
fn rules_of(imported: &Imported) -> String {
    let lines = imported.text.lines().filter(|line| !line.starts_with('#'));
    let text = lines.collect::<Vec<_>>().join("\n");
    let start = text.find("[[descriptor]]").unwrap();
    text[start..].to_owned()
}

/// A file with these descriptors; the first of them is in line 3.
fn file(descriptors: &str) -> String {
    format!("domain: shop\ndescriptors:\n{descriptors}")
}

fn limited(entry: &str) -> String {
    file(&format!(
        "- {{{entry}, rate_limit: {{unit: minute, requests_per_unit: 5}}}}\n"
    ))
}

#[test]
fn each_part_of_a_rule_is_kept() {
    for (entry, expected) in [
        ("key: a", r#"entries = ["a"]~limits  = ["5/min"]"#),
        (
            "key: a, value: x",
            r#"entries = ["a=x"]~limits  = ["5/min"]"#,
        ),
        (
            "key: a, value: 'x*y'",
            r#"entries = ["a=x*y"]~limits  = ["5/min"]"#,
        ),
        (
            "key: a, value: 404",
            r#"entries = ["a=404"]~limits  = ["5/min"]"#,
        ),
        (
            "key: a, value: 010",
            r#"entries = ["a=010"]~limits  = ["5/min"]"#,
        ),
        (
            "key: a, value: yes",
            r#"entries = ["a=yes"]~limits  = ["5/min"]"#,
        ),
        (
            "key: a, value: '1.5'",
            r#"entries = ["a=1.5"]~limits  = ["5/min"]"#,
        ),
        (
            "key: a, value: 10.0.0.1",
            r#"entries = ["a=10.0.0.1"]~limits  = ["5/min"]"#,
        ),
        (
            "key: a, value: x=y",
            r#"entries = ["a=x=y"]~limits  = ["5/min"]"#,
        ),
        (
            "key: a=b",
            r#"entries = [{ key = "a=b" }]~limits  = ["5/min"]"#,
        ),
        (
            "key: a=b, value: c",
            r#"entries = [{ key = "a=b", value = "c" }]~limits  = ["5/min"]"#,
        ),
        ("key: a, value: ~", r#"entries = ["a"]~limits  = ["5/min"]"#),
        (
            "key: a, value: 'x*', share_threshold: true",
            r#"entries = ["a=x*"]~limits  = ["5/min"]~key     = "global""#,
        ),
        (
            "key: a, shadow_mode: on",
            r#"entries = ["a"]~limits  = ["5/min"]~shadow  = true"#,
        ),
        (
            "key: a, quota_mode: true",
            r#"entries = ["a"]~limits  = ["5/min"]~quota   = true"#,
        ),
    ] {
        let imported = import_text(&limited(entry)).unwrap();
        let expected = expected.replace('~', "\n");
        let expected = format!("[[descriptor]]\ndomain  = \"shop\"\n{expected}");
        assert_eq!(rules_of(&imported), expected, "{entry}");
        assert_eq!(notes(&imported, Grade::Lost), [""; 0], "{entry}");
    }
    let metadata = "key: a, metadata: {n: 0x10, f: 1.0, b: yes, t: '1', l: [a, 2], 'x y': {z: w}}";
    let text = rules_of(&import_text(&limited(metadata)).unwrap());
    let expected = r#"{ n = 16, f = 1.0, b = true, t = "1", l = ["a", 2], "x y" = { z = "w" } }"#;
    assert!(text.ends_with(&format!("metadata = {expected}")), "{text}");
}

#[test]
fn each_unit_is_a_window() {
    for (limit, expected) in [
        ("unit: second, requests_per_unit: 1", r#"limits  = ["1/s"]"#),
        (
            "unit: MINUTE, requests_per_unit: 4294967295",
            r#"limits  = ["4294967295/min"]"#,
        ),
        (
            "unit: Hour, requests_per_unit: 1_000",
            r#"limits  = ["1000/h"]"#,
        ),
        (
            "unit: day, requests_per_unit: 0x10",
            r#"limits  = ["16/d"]"#,
        ),
        ("unit: week, requests_per_unit: 2", r#"limits  = ["2/7d"]"#),
        (
            "unit: month, requests_per_unit: 2",
            r#"limits  = ["2/30d"]"#,
        ),
        (
            "unit: year, requests_per_unit: 2",
            r#"limits  = ["2/365d"]"#,
        ),
        ("unit: day, requests_per_unit: 0", "block   = true"),
        ("unit: day", "block   = true"),
        ("unlimited: true", "limits  = []"),
        ("unlimited: true, requests_per_unit: 3", "limits  = []"),
    ] {
        let text = file(&format!("- {{key: a, rate_limit: {{{limit}}}}}\n"));
        let text = rules_of(&import_text(&text).unwrap());
        assert!(text.ends_with(expected), "{limit}: {text}");
    }
}

/// Writes each text into a file of its own, and imports all, or their folder.
fn import_files(texts: &[&str], is_folder: bool) -> Result<Imported, String> {
    let folder = tempfile::tempdir().unwrap();
    let mut paths = Vec::new();
    for (index, text) in texts.iter().enumerate() {
        let path = folder.path().join(format!("{index}.yml"));
        std::fs::write(&path, text).unwrap();
        paths.push(path);
    }
    if is_folder {
        paths = vec![folder.path().to_owned()];
    }
    let prefix = format!("{}/", folder.path().display());
    import(SourceProgram::EnvoyRatelimit, &paths)
        .map_err(|error| error.to_string().replace(&prefix, ""))
}

#[test]
fn each_domain_is_a_file() {
    let domain = |name: &str| {
        format!("domain: {name}\ndescriptors:\n- {{key: a, rate_limit: {{unit: day}}}}\n")
    };
    let (one, two) = (domain("one"), domain("two"));
    let expected = r#"[[descriptor]]
domain  = "one"
entries = ["a"]
block   = true

[[descriptor]]
domain  = "two"
entries = ["a"]
block   = true"#;
    for is_folder in [false, true] {
        let imported = import_files(&[&one, &two], is_folder).unwrap();
        assert_eq!(rules_of(&imported), expected);
    }
    let refused = import_files(&[&one, &two, &one], false).map(|imported| imported.text);
    let expected = "2.yml:1: domain `one` is in 0.yml:1 already; write both into one file, also \
                    if MERGE_DOMAIN_CONFIG is set";
    assert_eq!(refused, Err(expected.to_owned()));
}

#[test]
fn a_replaced_name_is_that_of_all_its_rules() {
    let limit = |key: &str, limit: &str| {
        format!("- {{key: {key}, rate_limit: {{unit: hour, requests_per_unit: 5, {limit}}}}}\n")
    };
    let rules = [
        limit("a", "name: small"),
        limit("b", "name: small"),
        limit(
            "c",
            "name: large, replaces: [{name: small}, {name: none}, {name: small}]",
        ),
        limit("d", "name: \"s\\n\""),
    ];
    let imported = import_text(&file(&rules.concat())).unwrap();
    let text = rules_of(&imported);
    for line in [
        "name    = \"small\"\n",
        "name    = \"small-2\"\n",
        "name     = \"large\"\n",
        "replaces = [\"small\", \"small-2\"]\n",
        "name    = \"s \"\n",
    ] {
        assert!(text.contains(line), "{line}{text}");
    }
    assert_eq!(
        notes(&imported, Grade::Differs),
        [
            "4: name small: the rule is `small-2` here: another rule has the name",
            "6: name s : the rule is `s ` here: a name has at most 200 characters, and no control \
             characters",
        ]
    );
    let needless = "5: replaces none of c: no rule of this domain has the name, so it replaced \
                    nothing";
    assert_eq!(notes(&imported, Grade::Needless), [needless]);
}

#[test]
fn a_subtree_keeps_its_calls_from_other_rules() {
    let text = file(
        "- key: tenant\n  descriptors:\n  - {key: user, rate_limit: {unit: day}}\n\
         - key: tenant\n  value: acme\n  descriptors:\n  - {key: plan, rate_limit: {unit: day}}\n\
         - {key: tenant, value: free}\n",
    );
    let imported = import_text(&text).unwrap();
    let rules = rules_of(&imported);
    for entries in ["\"tenant=acme\", \"user\"", "\"tenant=free\", \"user\""] {
        let rule = format!("entries = [{entries}]\nlimits  = []");
        assert!(rules.contains(&rule), "{rules}");
    }
    assert!(imported.text.contains("\n# "), "{rules}");
    let tail = "the service finds no limit behind it, and does not go back to line 5. A rule with \
                `limits = []` keeps it so. Remove the rule if line 5 should count here";
    assert_eq!(
        notes(&imported, Grade::Differs),
        [
            format!("6: tenant=acme, user: {tail}"),
            format!("10: tenant=free, user: {tail}"),
        ]
    );
}

#[test]
fn what_is_not_kept_is_listed() {
    let limit = "rate_limit: {unit: hour, requests_per_unit: 5}";
    for (text, grade, expected) in [
        (
            format!("- {{key: a, value: 'x*', {limit}}}\n- {{key: a, value: '*yz', {limit}}}\n"),
            Grade::Differs,
            "4: a=*yz: line 3 takes some of the same values, and the service tries it first. Here \
             the pattern with more letters is first",
        ),
        (
            format!("- {{key: a, value: 'x*', {limit}}}\n- {{key: a, value: '*y', {limit}}}\n"),
            Grade::Lost,
            "4: a=*y: line 3 takes some of the same calls, and its patterns have as many \
             letters. Change one of them, so that no call fits both",
        ),
        (
            format!("- {{key: a, value: '*', {limit}}}\n- {{key: a, value: 'y*', {limit}}}\n"),
            Grade::Needless,
            "4: a=y*: line 3 takes all its values before, so it never counted",
        ),
        (
            format!("- {{key: a, value_to_metric: true, {limit}}}\n"),
            Grade::Lost,
            "3: value_to_metric: no value of a client becomes a label of a metric",
        ),
        (
            format!("- {{key: a, descriptors: [{{key: a, {limit}}}]}}\n"),
            Grade::Lost,
            "3: the second `a` of a, a: a key takes the first entry of a name, so all values of \
             this one share a count",
        ),
        (
            "- {key: a, shadow_mode: true, rate_limit: {unit: day}}\n".to_owned(),
            Grade::Differs,
            "3: shadow_mode of a: 0 requests in shadow mode deny none. The rule is unlimited \
             here, and counts nothing",
        ),
        (
            format!("- {{key: a, {limit}}}\n- {{key: 'b*', {limit}}}\n"),
            Grade::Lost,
            "4: b*: a key here has no pattern; write a rule for each key. The rules below it are \
             left out",
        ),
        (
            format!("- {{key: a, {limit}}}\n- {{key: b, metadata: {{x: 1}}}}\n"),
            Grade::Needless,
            "4: metadata: there is no `rate_limit` beside it, so it does nothing",
        ),
    ] {
        let imported = import_text(&file(&text)).unwrap();
        assert_eq!(notes(&imported, grade), [expected], "{text}");
    }
}

#[test]
fn every_import_says_what_differs() {
    let imported = import_text(&limited("key: a_b, value: 'c*'")).unwrap();
    let general = imported.notes.iter().filter(|note| note.place.line == 1);
    let whats: Vec<&str> = general.map(|note| note.what.as_str()).collect();
    let expected = [
        "[decide] listen",
        "[decide] overrides",
        "denials",
        "keys and values",
        "patterns",
        "windows",
    ];
    assert_eq!(whats, expected);
    let head = "\nlisten = []\n\n[decide]\nlisten    = \"127.0.0.1:8081\"\noverrides = true\n";
    assert!(imported.text.contains(head), "{}", imported.text);
}
