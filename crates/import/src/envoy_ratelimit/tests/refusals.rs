//! What the service refuses is refused, with the line and the reason.

use super::{file, import_text};

fn assert_refused(text: &str, expected: &[&str]) {
    let refused = import_text(text).map(|imported| imported.text);
    let expected: Vec<String> = expected
        .iter()
        .map(|line| format!("a.yml:{line}"))
        .collect();
    assert_eq!(refused, Err(expected.join("\n")), "{text}");
}

#[test]
fn files() {
    for (text, expected) in [
        (
            "- a\n",
            "1: the file is no table with `domain` and `descriptors`",
        ),
        ("descriptors:\n", "1: `domain` is missing or empty"),
        ("domain: ''\n", "1: `domain` is missing or empty"),
        (
            "\ndomain: a\n",
            "1: no descriptor has a `rate_limit` that can be kept",
        ),
        ("domain: a\n0.5: b\n", "2: unknown key `0.5`"),
        (
            "domain: a\ndescriptors: x\n",
            "2: `descriptors` must be a list",
        ),
        ("'\n", "1: unclosed quote"),
    ] {
        assert_refused(text, &[expected]);
    }
}

#[test]
fn descriptors() {
    for (text, expected) in [
        ("- a\n", "3: `descriptors` must be a list of tables"),
        ("- value: a\n", "3: a descriptor has no `key`"),
        ("- key: ''\n", "3: a descriptor has no `key`"),
        (
            "- {key: a, value: 1.5}\n",
            "3: `value: 1.5`: the service refuses such a number; write the text in quotes",
        ),
        ("- key: a\n  ratelimit: {}\n", "4: unknown key `ratelimit`"),
        (
            "- key: a\n  value: {name: b}\n",
            "4: `value` must be a text",
        ),
        (
            "- key: a\n  shadow_mode: 'true'\n",
            "4: `shadow_mode` must be `true` or `false`",
        ),
        (
            "- key: a\n  rate_limit: 5\n",
            "4: `rate_limit` must be a table",
        ),
        ("- key: a\n  metadata: 5\n", "4: `metadata` must be a table"),
        (
            "- key: a\n- key: a\n",
            "4: descriptor `a` is in line 3 already",
        ),
        (
            "- {key: a_b, value: c}\n- {key: a, value: b_c}\n",
            "4: descriptor `a_b_c` is in line 3 already",
        ),
        (
            "- {key: a, value: b, share_threshold: true}\n",
            "3: `share_threshold` needs a `value` with `*`",
        ),
    ] {
        assert_refused(&file(text), &[expected]);
    }
}

#[test]
fn rate_limits() {
    let units = "second, minute, hour, day, week, month, year";
    let is_none = format!("4: `fortnight` is no unit: {units}");
    let is_missing = format!("4: `unit` is missing: {units}");
    for (limit, expected) in [
        ("unit: fortnight", is_none.as_str()),
        ("requests_per_unit: 3", &is_missing),
        ("unit: day, unlimited: true", "4: `unlimited` with a `unit`"),
        (
            "unit: day, requests_per_unit: -1",
            "4: `requests_per_unit` must be a number from 0 to 4294967295",
        ),
        (
            "unit: day, name: b, replaces: [{name: b}]",
            "4: `b` replaces itself",
        ),
        (
            "unit: day, replaces: [{name: ''}]",
            "4: `replaces` has an entry without `name`",
        ),
        (
            "unit: day, replaces: [b]",
            "4: `replaces` must be a list of tables",
        ),
    ] {
        let text = file(&format!("- key: a\n  rate_limit: {{{limit}}}\n"));
        assert_refused(&text, &[expected]);
    }
}

#[test]
fn all_faults_are_listed() {
    let text = file("- {key: a, x: 1}\n- {value: b}\n");
    assert_refused(
        &text,
        &["3: unknown key `x`", "4: a descriptor has no `key`"],
    );
}

#[test]
fn a_tree_with_too_many_holes_is_refused() {
    let exact = |index: u32| format!("- {{key: a, value: v{index}}}\n");
    let any = |index: u32| format!("  - {{key: k{index}, rate_limit: {{unit: day}}}}\n");
    let exact: String = (0..2000).map(exact).collect();
    let any: String = (0..2000).map(any).collect();
    let text = file(&format!("{exact}- key: a\n  descriptors:\n{any}"));
    let refused = import_text(&text).map(|imported| imported.text);
    let expected = "a.yml:1: more than 50000 rules, which is too many";
    assert_eq!(refused, Err(expected.to_owned()));
}

#[test]
fn without_a_rule_all_that_is_lost_is_listed() {
    let text = file("- {key: 'b*', rate_limit: {unit: day}}\n");
    let lost = "3: b*: a key here has no pattern; write a rule for each key. The rules below it \
                are left out";
    assert_refused(
        &text,
        &["1: no descriptor has a `rate_limit` that can be kept", lost],
    );
}
