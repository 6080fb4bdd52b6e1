//! What the schema allows is what the readers take: each setting is tried with a value of each
//! kind, and both must say the same. The files and the documentation's examples fit it.

use serde_json::{Value, json};
use toml::de::DeTable;

use super::super::diagnostic::{Code, Diagnostic};
use super::super::reference::{self, Setting, as_json};
use super::super::schema::schema;
use super::super::{load, reader::Surroundings};

const FILES: [&str; 2] = [
    include_str!("../../../proxy.toml"),
    include_str!("../../../proxy.reference.toml"),
];

/// Everything of draft 7 that the schema uses; what is wrong is where it is.
fn faults(schema: &Value, value: &Value, at: &str, found: &mut Vec<String>) {
    let Some(schema) = schema.as_object() else {
        return;
    };
    for (word, rule) in schema {
        let fine = match word.as_str() {
            "type" => match rule {
                Value::Array(kinds) => kinds.iter().any(|kind| is_a(kind, value)),
                kind => is_a(kind, value),
            },
            "enum" => rule.as_array().unwrap().contains(value),
            "const" => rule == value,
            "pattern" => value.as_str().is_none_or(|text| match rule.as_str() {
                Some("\\$\\{") => text.contains("${"),
                _ => text.len() == 3 && text.starts_with(|c| ('1'..='5').contains(&c)),
            }),
            "minimum" => value
                .as_f64()
                .is_none_or(|number| number >= rule.as_f64().unwrap()),
            "maximum" => value
                .as_f64()
                .is_none_or(|number| number <= rule.as_f64().unwrap()),
            "anyOf" => fitting(rule, value, at) > 0,
            "oneOf" => fitting(rule, value, at) == 1,
            "items" => {
                for one in value.as_array().into_iter().flatten() {
                    faults(rule, one, at, found);
                }
                true
            }
            "properties" => {
                for (key, one) in value.as_object().into_iter().flatten() {
                    let known = rule.get(key).or_else(|| schema.get("additionalProperties"));
                    match known.filter(|_| !key.starts_with("x-")) {
                        Some(Value::Bool(false)) => found.push(format!("{at}: no `{key}`")),
                        Some(inner) => faults(inner, one, &format!("{at}.{key}"), found),
                        None => {}
                    }
                }
                true
            }
            "additionalProperties" => {
                let free = !schema.contains_key("properties");
                for (key, one) in value.as_object().into_iter().flatten().filter(|_| free) {
                    if !key.starts_with("x-") {
                        faults(rule, one, &format!("{at}.{key}"), found);
                    }
                }
                true
            }
            "required" => rule.as_array().unwrap().iter().all(|key| {
                value
                    .as_object()
                    .is_none_or(|table| table.contains_key(key.as_str().unwrap()))
            }),
            "$schema" | "title" | "description" | "default" | "examples" => true,
            "patternProperties" => *rule == json!({"^x-": true}),
            other => panic!("the test does not know `{other}`"),
        };
        if !fine {
            found.push(format!("{at}: {word} {rule}, and it is {value}"));
        }
    }
}

/// How many of these schemas have nothing against it.
fn fitting(rules: &Value, value: &Value, at: &str) -> usize {
    let fits = rules.as_array().unwrap().iter().filter(|one| {
        let mut inner = Vec::new();
        faults(one, value, at, &mut inner);
        inner.is_empty()
    });
    fits.count()
}

fn is_a(kind: &Value, value: &Value) -> bool {
    match kind.as_str().unwrap() {
        "object" => value.is_object(),
        "array" => value.is_array(),
        "string" => value.is_string(),
        "boolean" => value.is_boolean(),
        "integer" => value.is_i64(),
        "number" => value.is_number(),
        other => panic!("{other}"),
    }
}

fn faults_of(text: &str, schema: &Value) -> Vec<String> {
    let document = DeTable::parse(text).unwrap_or_else(|error| panic!("{error}\n{text}"));
    let table = toml::de::DeValue::Table(document.into_inner());
    let mut found = Vec::new();
    faults(schema, &as_json(&table), "", &mut found);
    found
}

fn said(text: &str) -> Vec<Diagnostic> {
    let around = Surroundings {
        base: std::path::Path::new(""),
        forwards: true,
        env: &|_| None,
        now_s: 1_800_000_000,
        read: &|_, _| Ok(b"0123456789abcdef".to_vec()),
    };
    match load::read_text("proxy.toml", text, &around).0 {
        Ok((_, found)) | Err(found) => found.list,
    }
}

/// The setting alone, in a section of its kind.
fn alone(known: &Setting, value: &str) -> String {
    let header = match known.section.as_str() {
        "" => String::new(),
        list @ ("route" | "bypass" | "tls.certificates") => format!("[[{list}]]"),
        "upstream.NAME.servers" => "[[upstream.a.servers]]".to_owned(),
        section => format!("[{}]", section.replace("NAME", "a")),
    };
    format!("{header}\n{} = {value}\n", known.key)
}

/// As the readers say that a value is of the wrong kind, or no word of theirs.
fn refused(text: &str) -> Option<Code> {
    let start = text.find('=').unwrap() + 1;
    let of_it = |one: &Diagnostic| one.start() > start;
    let kinds = [Code::WrongType, Code::UnknownWord];
    let mut found = said(text).into_iter().filter(of_it);
    let found = found.find(|one| kinds.contains(&one.code));
    found.map(|one| one.code)
}

#[test]
fn the_schema_allows_what_the_readers_take() {
    let mut wrong = String::new();
    let schema = without_required(schema());
    for known in reference::settings() {
        let samples = ["\"zz-none-such\"", "\"${NOT_SET}\"", "1", "0.5", "true"];
        let samples = samples
            .into_iter()
            .chain(["[\"zz-none-such\"]", "[1]", "{}", "[{}]"]);
        for value in samples.chain([known.value]) {
            let text = alone(known, value);
            let (read, allowed) = (refused(&text), faults_of(&text, &schema));
            if read.is_none() != allowed.is_empty() {
                wrong.push_str(&format!("{text}read: {read:?}; allowed: {allowed:?}\n\n"));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
}

#[test]
fn the_schema_has_all_words_of_a_setting() {
    let schema = without_required(schema());
    let mut words = 0;
    for known in reference::settings() {
        let text = alone(known, "\"zz-none-such\"");
        let found = said(&text)
            .into_iter()
            .find(|one| one.code == Code::UnknownWord);
        let Some(found) = found else { continue };
        let quoted = found.message.split("`\"").skip(1);
        for word in quoted.map(|rest| rest.split('"').next().unwrap()) {
            words += 1;
            let text = alone(known, &format!("\"{word}\""));
            assert_eq!(faults_of(&text, &schema), [""; 0], "{text}");
        }
    }
    assert!(words > 20, "{words}");
}

/// For files that show a part only.
fn without_required(mut schema: Value) -> Value {
    match &mut schema {
        Value::Object(table) => {
            table.remove("required");
            table.remove("oneOf");
            table
                .values_mut()
                .for_each(|one| *one = without_required(one.take()));
        }
        Value::Array(values) => {
            values
                .iter_mut()
                .for_each(|one| *one = without_required(one.take()));
        }
        _ => {}
    }
    schema
}

#[test]
fn files_fit_the_schema() {
    for text in FILES {
        assert_eq!(faults_of(text, &schema()), [""; 0]);
    }
    let live: String = FILES[1].lines().map(uncommented).collect();
    let (live, _) = live.split_once("[store]").unwrap();
    assert_eq!(faults_of(live, &schema()), [""; 0]);
}

/// A line whose setting is shown behind a `#`.
fn uncommented(line: &str) -> String {
    let rest = line.strip_prefix("# ").unwrap_or(line);
    let key = rest.split_once('=').map_or(" ", |(key, _)| key.trim_end());
    let is_key = key
        .bytes()
        .all(|byte| byte.is_ascii_lowercase() || byte == b'_');
    format!("{}\n", if is_key { rest } else { line })
}

#[test]
fn examples_of_the_documentation_fit_the_schema() {
    let schema = without_required(schema());
    for example in super::pages::examples() {
        if example.is_ours() {
            assert_eq!(
                faults_of(&example.text, &schema),
                [""; 0],
                "{}",
                example.place
            );
        }
    }
}

#[test]
fn mistakes_do_not_fit_it() {
    for text in [
        "lisen = \":8080\"",
        "[limit.a]\nkye = \"ip\"",
        "[limit.a]\nrate = 100",
        "[limit.a]\nrate = \"1/s\"\non_error = \"open\"",
        "[limit.a]\nrate = \"1/s\"\nmissing = true",
        "[[route]]\nlimits = []",
        "[route]\npath = \"/*\"",
        "[upstream.a]\nhealth = \"/\"",
        "[upstream.a]\nservers = [{ url = \"http://a\", wieght = 2 }]",
        "[server]\nhttp2 = \"yes\"",
        "[limit.a]\nrate = \"1/s\"\ntiers = { pro = 5 }",
        "[limit.a]\nkey = \"ip\"",
        "[limit.a]\nrate = \"1/s\"\nconcurrent = 5",
    ] {
        assert_ne!(faults_of(text, &schema()), [""; 0], "{text}");
    }
    for text in [
        "[limit.a]\nconcurrent = 5",
        "x-note = 1\n[limit.a]\nrate = \"1/s\"\nx-owner = { team = \"a\" }",
        "[limit.a]\nrate = \"1/s\"\non_error = \"${ON_ERROR:-deny}\"",
        "[upstream.a]\nservers = [\"http://a\", { url = \"http://b\", weight = 2 }]\nretries = 2",
    ] {
        assert_eq!(faults_of(text, &schema()), [""; 0], "{text}");
    }
}
