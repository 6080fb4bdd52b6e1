//! What the schema allows is what the readers take: each setting is tried with a value of each
//! kind, and both must say the same. The files and the documentation's examples fit it.

use std::collections::HashMap;
use std::sync::{LazyLock, Mutex};

use regex::Regex;
use serde_json::{Map, Value, json};
use toml::de::DeTable;

use super::super::diagnostic::{Code, Diagnostic};
use super::super::reference::{self, Setting, as_json};
use super::super::schema::{schema, schema_with_names};
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
            "pattern" => value
                .as_str()
                .is_none_or(|text| matches(rule.as_str().unwrap(), text)),
            "if" => {
                let branch = ["else", "then"][fitting(&json!([rule]), value, at)];
                if let Some(rule) = schema.get(branch) {
                    faults(rule, value, at, found);
                }
                true
            }
            "not" => fitting(&json!([rule]), value, at) == 0,
            "dependencies" => {
                let has = |(key, _): &(&String, _)| value.get(key.as_str()).is_some();
                for (_, one) in rule.as_object().unwrap().iter().filter(has) {
                    faults(one, value, at, found);
                }
                true
            }
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
            // The keyword is about keys that no other one is about, and may be alone.
            "properties" | "patternProperties" | "additionalProperties" => {
                let table = value.as_object().into_iter().flatten();
                for (key, one) in table {
                    let at = format!("{at}.{key}");
                    for rule in rules_of(schema, word, key) {
                        match rule {
                            Value::Bool(false) => found.push(format!("{at}: not a key")),
                            rule => faults(rule, one, &at, found),
                        }
                    }
                }
                true
            }
            "required" => rule.as_array().unwrap().iter().all(|key| {
                value
                    .as_object()
                    .is_none_or(|table| table.contains_key(key.as_str().unwrap()))
            }),
            "$schema" | "title" | "description" | "default" | "examples" | "x-taplo" => true,
            "then" | "else" => true,
            other => panic!("the test does not know `{other}`"),
        };
        if !fine {
            found.push(format!("{at}: {word} {rule}, and it is {value}"));
        }
    }
}

/// What a keyword says of a key.
fn rules_of<'s>(schema: &'s Map<String, Value>, word: &str, key: &str) -> Vec<&'s Value> {
    let own = schema.get("properties").and_then(|all| all.get(key));
    let patterns = schema.get("patternProperties").and_then(Value::as_object);
    let patterns = patterns.into_iter().flatten();
    let fitting = patterns.filter(|(pattern, _)| matches(pattern, key));
    let fitting: Vec<&Value> = fitting.map(|(_, rule)| rule).collect();
    match word {
        "properties" => own.into_iter().collect(),
        "patternProperties" => fitting,
        _ if own.is_some() || !fitting.is_empty() => Vec::new(),
        _ => schema.get(word).into_iter().collect(),
    }
}

/// Whether a text fits a pattern. This crate of regular expressions has no `(?!..)`.
fn matches(pattern: &str, text: &str) -> bool {
    static COMPILED: LazyLock<Mutex<HashMap<String, Regex>>> = LazyLock::new(Mutex::default);
    let found = |pattern: &str| {
        let mut compiled = COMPILED.lock().unwrap();
        let entry = compiled.entry(pattern.to_owned());
        let regex = entry.or_insert_with(|| Regex::new(pattern).unwrap());
        regex.is_match(text)
    };
    match pattern.strip_prefix("^(?!") {
        Some(rest) => !found(&format!("^({rest}")),
        None => found(pattern),
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
        list @ ("route" | "bypass" | "descriptor" | "tls.certificates") => format!("[[{list}]]"),
        "route.rewrite_down" => "[[route]]\n[route.rewrite_down]".to_owned(),
        "upstream.NAME.servers" => "[[upstream.a.servers]]".to_owned(),
        section => format!("[{}]", section.replace("NAME", "a")),
    };
    format!("{header}\n{} = {value}\n", known.key)
}

/// What the readers say about a value.
fn refused(text: &str) -> Vec<Code> {
    let start = text.find('=').unwrap() + 1;
    let found = said(text).into_iter().filter(|one| one.start() > start);
    found.map(|one| one.code).collect()
}

/// Whether the schema knows of such mistakes in all settings. It need not know of others.
fn is_of_form(code: Code, known: &Setting) -> bool {
    match code {
        Code::WrongType | Code::UnknownWord | Code::BadRate | Code::BadQuantity => true,
        Code::BadKey => (&*known.section, known.key) == ("limit.NAME", "key"),
        _ => false,
    }
}

#[test]
fn the_schema_allows_what_the_readers_take() {
    let mut wrong = String::new();
    let schema = without_required(schema());
    for known in reference::settings() {
        let samples = ["\"zz-none-such\"", "\"${NOT_SET}\"", "1", "0.5", "true"];
        let lists = ["[\"zz-none-such\"]", "[1]", "{}", "[{}]"];
        let forms = [
            "\"10\"",
            "\"10 s\"",
            "\"10secs\"",
            "\"10m\"",
            "\"5/min\"",
            "\" 5_0 / 10 hours \"",
            "\"5 per minute\"",
            "\"unlimited\"",
            "\" unlimited \"",
            "\"64kib\"",
            "\"10K\"",
            "\"ip\"",
            "\" header:x-a  or ip \"",
            "\"ip:a\"",
            "\"header:\"",
            "\"5xx\"",
            "\"6xx\"",
            "[\"404\", \"5/s\"]",
        ];
        let samples = samples.into_iter().chain(lists).chain(forms);
        for value in samples.chain([known.value]) {
            let text = alone(known, value);
            let (read, allowed) = (refused(&text), faults_of(&text, &schema));
            let must = read.iter().any(|code| is_of_form(*code, known));
            let may = must
                || [Code::BadKey, Code::BadHttp]
                    .iter()
                    .any(|one| read.contains(one));
            if must && allowed.is_empty() || !may && !allowed.is_empty() {
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
        "[limit.a]\nrate = \"1/sek\"",
        "[limit.a]\nrate = \"1/s\"\nkey = \"ip and path\"",
        "[limit.\"A b\"]\nrate = \"1/s\"",
        "[server]\nidle_timeout = \"10\"",
        "[[route]]\npath = \"/*\"\nheaders_down = { x-a = true }",
        "[store]\nurl = \"memory:\"\nurls = [\"memory:\"]",
    ] {
        assert_ne!(faults_of(text, &schema()), [""; 0], "{text}");
    }
    for text in [
        "[limit.a]\nconcurrent = 5",
        "[[route]]\npath = \"/*\"\nheaders_up = { a = \"b\", c = false, \"+d\" = [\"e\", \"f\"] }",
        "x-note = 1\n[limit.a]\nrate = \"1/s\"\nx-owner = { team = \"a\" }",
        "[limit.a]\nrate = \"1/s\"\non_error = \"${ON_ERROR:-deny}\"",
        "[upstream.a]\nservers = [\"http://a\", { url = \"http://b\", weight = 2 }]\nretries = 2",
    ] {
        assert_eq!(faults_of(text, &schema()), [""; 0], "{text}");
    }
}

#[test]
fn names_of_a_file_are_offered_and_others_are_allowed() {
    let text = "[limit.login]\nrate = \"1/s\"\nx-a = 1\n[limit.x-note]\n[limit.b.tiers]\n\
        pro = \"2/s\"\n[upstream.api]\nservers = \"http://a\"\nthis is not TOML\n";
    let with_names = schema_with_names(text);
    let offered = |place: &str| with_names.pointer(place).unwrap()["anyOf"][0]["enum"].clone();
    let route = "/properties/route/items/properties";
    assert_eq!(offered(&format!("{route}/limits")), json!(["b", "login"]));
    assert_eq!(
        offered(&format!("{route}/limits/items")),
        json!(["b", "login"])
    );
    assert_eq!(offered(&format!("{route}/upstream")), json!(["api"]));
    assert_eq!(
        offered("/properties/tier/properties/default"),
        json!(["pro"])
    );
    let other = "[[route]]\npath = \"/\"\nlimits = [\"other\"]\nupstream = \"other\"";
    assert_eq!(faults_of(other, &with_names), [""; 0]);
    assert_eq!(schema_with_names(""), schema());
}
