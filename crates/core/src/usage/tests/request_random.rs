//! Bodies of requests made by chance, and their rules once more, on texts that serde_json reads.

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;

use super::super::request::{
    BodyMember, BodyMembers, BodyValue, RequestReader, RequestTable, StreamOptions, UsageMembers,
};
use super::random::{cut, sizes, spell};
use super::reference::Json;
use super::*;

const NAMES: [&str; 20] = [
    "messages",
    "prompt",
    "max_tokens",
    "Max_Completion_Tokens",
    "n",
    "best_of",
    "model",
    "Model",
    "stream",
    "stream_options",
    "include_usage",
    "options",
    "num_predict",
    "method",
    "params",
    "name",
    "query",
    "operationName",
    "generationConfig",
    "maxOutputTokens",
];

const VALUES: [&str; 22] = [
    "null",
    "true",
    "false",
    "0",
    "7",
    "7.0",
    "70e-1",
    "-3",
    "1.5",
    "1000000",
    "18446744073709551615",
    "1e30",
    "\"\"",
    "\"7\"",
    "\"a\"",
    "\"tools/call\"",
    "\"tools\\/call\"",
    "\"max_tokens\\\":9\"",
    "\"query A { a }\"",
    "\"query B { a(b: \\\"}\\\") } # {\"",
    "\"{ a }\"",
    "\"query A { a } query C { a }\"",
];

/// The only operation of each of the documents above.
fn operation(document: &str) -> BodyValue {
    match document.get(..7) {
        Some("query A") if document.contains("query C") => BodyValue::Missing,
        Some("query A") => BodyValue::One("A".into()),
        Some("query B") => BodyValue::One("B".into()),
        _ => BodyValue::Missing,
    }
}

/// An object of such members, as text. Bytes choose how names are spelled.
fn object(depth: u32) -> BoxedStrategy<String> {
    let value = select(VALUES.to_vec()).prop_map(str::to_owned);
    let value = match depth {
        0 => value.boxed(),
        _ => prop_oneof![
            4 => value,
            2 => object(depth - 1),
            1 => vec(object(depth - 1), 0..3).prop_map(|all| format!("[{}]", all.join(", "))),
        ]
        .boxed(),
    };
    let member = (select(NAMES.to_vec()), value, vec(any::<u8>(), 0..8));
    let member = member.prop_map(|(name, value, choices)| {
        let name = spell(name, &mut choices.into_iter());
        format!("{name}:{value}")
    });
    vec(member, 0..7)
        .prop_map(|members| format!("{{{}}}", members.join(",")))
        .boxed()
}

fn body() -> impl Strategy<Value = String> {
    prop_oneof![
        6 => object(2),
        2 => vec(object(1), 0..4).prop_map(|all| format!(" [{}] ", all.join(","))),
        1 => (object(2), 0_usize..60).prop_map(|(mut body, at)| {
            body.truncate((0..=at).rev().find(|at| body.is_char_boundary(*at)).unwrap_or(0));
            body
        }),
    ]
}

/// All values at a path, in the order of the text.
fn at<'j>(json: &'j Json, path: &str) -> Vec<&'j Json> {
    let mut found = vec![json];
    for name in path.split('.') {
        let members = found.into_iter().filter_map(|json| match json {
            Json::Object(members) => Some(members),
            _ => None,
        });
        let named = members
            .flatten()
            .filter(|(own, _)| own.eq_ignore_ascii_case(name));
        found = named.map(|(_, value)| value).collect();
    }
    found
}

fn value(json: &Json) -> BodyValue {
    let text = match json {
        Json::Text(text) => text.clone(),
        Json::Bool(value) => value.to_string(),
        // As the texts above are written.
        Json::Whole(u64::MAX) => "18446744073709551615".to_owned(),
        Json::Number(value) if *value == 1e30 => "1e30".to_owned(),
        Json::Whole(value) => value.to_string(),
        Json::Number(value) => value.to_string(),
        Json::Null | Json::Array(_) | Json::Object(_) => return BodyValue::Missing,
    };
    BodyValue::One(text.into())
}

/// One value of them all.
fn agreed(values: impl Iterator<Item = BodyValue>) -> Option<BodyValue> {
    values.reduce(|first, next| match first == next {
        true => first,
        false => BodyValue::Ambiguous,
    })
}

fn member_of(element: &Json, member: &BodyMember) -> Option<BodyValue> {
    let text = |path| agreed(at(element, path).into_iter().map(value));
    match member {
        BodyMember::Path(path) => text(path.as_str()),
        BodyMember::McpMethod => text("method"),
        BodyMember::McpTool => {
            let methods = at(element, "method");
            let call = |json: &&Json| matches!(json, Json::Text(text) if text == "tools/call");
            text("params.name").filter(|_| methods.iter().any(call))
        }
        BodyMember::GraphqlOperation => match text("operationName") {
            Some(BodyValue::Ambiguous) => Some(BodyValue::Ambiguous),
            Some(BodyValue::One(name)) if !name.is_empty() => Some(BodyValue::One(name)),
            _ => agreed(at(element, "query").into_iter().map(|json| match json {
                Json::Text(document) => operation(document),
                _ => BodyValue::Missing,
            })),
        },
    }
}

fn greatest(elements: &[&Json], paths: &[&str]) -> Option<u64> {
    let all = elements
        .iter()
        .flat_map(|element| paths.iter().flat_map(|path| at(element, path)));
    all.filter_map(Json::whole).max()
}

fn stream_options(elements: &[&Json]) -> StreamOptions {
    let mut all = elements
        .iter()
        .flat_map(|element| at(element, "stream_options"));
    match (all.next(), all.next()) {
        (None, _) => StreamOptions::Absent,
        (Some(Json::Null), None) => StreamOptions::Null,
        (Some(options @ Json::Object(_)), None) if at(options, "include_usage").is_empty() => {
            StreamOptions::Object
        }
        _ => StreamOptions::Closed,
    }
}

fn expected(table: &RequestTable, body: &str) -> BodyMembers {
    let none = BodyMembers {
        values: vec![BodyValue::Missing; table.members.len()],
        ..BodyMembers::default()
    };
    let Ok(json) = serde_json::from_str::<Json>(body) else {
        return none;
    };
    let elements: Vec<&Json> = match &json {
        Json::Array(elements) => elements.iter().collect(),
        _ => vec![&json],
    };
    // One charge does not pay for several elements.
    let values = table.members.iter().map(|member| {
        let mut values = elements
            .iter()
            .filter_map(|element| member_of(element, member));
        match (values.next(), values.next()) {
            (Some(_), Some(_)) => BodyValue::Ambiguous,
            (value, _) => value.unwrap_or_default(),
        }
    });
    let values: Vec<BodyValue> = values.collect();
    let model = match &values[0] {
        BodyValue::One(model) => Some(model.clone()),
        _ => None,
    };
    let maxima = [
        "max_tokens",
        "max_completion_tokens",
        "options.num_predict",
        "generationConfig.maxOutputTokens",
    ];
    let bools = |path| {
        let all = elements.iter().flat_map(move |element| at(element, path));
        all.filter_map(|json| match json {
            Json::Bool(value) => Some(*value),
            _ => None,
        })
    };
    BodyMembers {
        model,
        maximum: greatest(&elements, &maxima).filter(|maximum| *maximum > 0),
        raised: 0,
        answers: greatest(&elements, &["n", "best_of"]).unwrap_or(1).max(1),
        is_stream: bools("stream").any(|value| value),
        include_usage: bools("stream_options.include_usage").next_back(),
        stream_options: stream_options(&elements),
        has_prompt: ["messages", "prompt"].iter().any(|path| {
            let mut values = elements.iter().flat_map(|element| at(element, path));
            values.any(|json| matches!(json, Json::Array(_) | Json::Text(_)))
        }),
        is_whole: matches!(json, Json::Object(_)),
        values,
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1024))]

    #[test]
    fn a_body_is_read_as_serde_reads_it(body in body(), sizes in sizes()) {
        let path = |text| BodyMember::Path(MemberPath::parse(text).unwrap());
        let members = vec![
            path("model"),
            path("options.name"),
            path("query"),
            BodyMember::McpMethod,
            BodyMember::McpTool,
            BodyMember::GraphqlOperation,
        ];
        let table = Arc::new(RequestTable::new(members, UsageMembers::OfAny));
        let mut reader = RequestReader::new(&table);
        for chunk in cut(body.as_bytes(), &sizes) {
            reader.read(chunk);
        }
        prop_assert_eq!(reader.finish(), expected(&table, &body), "{}", body);
    }
}
