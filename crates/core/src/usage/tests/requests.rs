//! The bodies of requests, and the members that are read of them.

use super::super::request::{
    BodyMember, BodyMembers, BodyValue, RequestReader, RequestTable, UsageMembers,
};
use super::super::tokens::MAX_UNITS;
use super::*;

fn member(path: &str) -> BodyMember {
    BodyMember::Path(MemberPath::parse(path).unwrap())
}

fn one(text: &str) -> BodyValue {
    BodyValue::One(text.into())
}

fn read_request(table: &Arc<RequestTable>, body: &[u8]) -> BodyMembers {
    let mut reader = RequestReader::new(table);
    reader.read(body);
    let whole = reader.finish();
    for at in 0..=body.len() {
        let (first, second) = body.split_at(at);
        let mut reader = RequestReader::new(table);
        reader.read(first);
        reader.read(second);
        let text = String::from_utf8_lossy(body);
        assert_eq!(reader.finish(), whole, "{text} at {at}");
    }
    for size in 1..4 {
        let mut reader = RequestReader::new(table);
        body.chunks(size).for_each(|chunk| reader.read(chunk));
        assert_eq!(reader.finish(), whole, "by {size}");
    }
    whole
}

pub(super) fn usage_of(body: &str) -> BodyMembers {
    let table = Arc::new(RequestTable::new(Vec::new(), UsageMembers::OfAny));
    read_request(&table, body.as_bytes())
}

fn value_of(wanted: BodyMember, body: &str) -> BodyValue {
    let table = RequestTable::new(
        vec![member("other.name"), wanted.clone()],
        UsageMembers::None,
    );
    let index = table.index_of(&wanted).unwrap();
    let members = read_request(&Arc::new(table), body.as_bytes());
    members.values[index].clone()
}

#[test]
fn a_maximum_in_the_words_of_another_server_does_not_count() {
    let of = |format, body: &str| {
        let table = RequestTable::new(Vec::new(), UsageMembers::Of(format));
        read_request(&Arc::new(table), body.as_bytes()).maximum
    };
    let bodies = [
        r#"{"max_tokens":7}"#,
        r#"{"max_completion_tokens":7}"#,
        r#"{"generationConfig":{"maxOutputTokens":7}}"#,
        r#"{"options":{"num_predict":7}}"#,
        r#"{"inferenceConfig":{"maxTokens":7}}"#,
    ];
    for (format, counts) in [
        (AnswerFormat::OpenAi, [true, true, false, false, false]),
        (AnswerFormat::Anthropic, [true, false, false, false, false]),
        (AnswerFormat::Gemini, [false, false, true, false, false]),
        (AnswerFormat::Ollama, [false, false, false, true, false]),
        (AnswerFormat::Bedrock, [true, false, false, false, true]),
    ] {
        let counted = bodies.map(|body| of(format, body) == Some(7));
        assert_eq!(counted, counts, "{format:?}");
    }
}

#[test]
fn the_greatest_maximum_counts() {
    for (body, maximum) in [
        (r#"{"max_tokens":7}"#, Some(7)),
        (r#"{"max_tokens":7,"max_completion_tokens":5}"#, Some(7)),
        (r#"{"max_output_tokens":9,"max_tokens":7}"#, Some(9)),
        (r#"{"generationConfig":{"maxOutputTokens":3}}"#, Some(3)),
        (r#"{"generation_config":{"max_output_tokens":3}}"#, Some(3)),
        (r#"{"options":{"num_predict":4,"seed":9}}"#, Some(4)),
        (r#"{"inferenceConfig":{"maxTokens":6}}"#, Some(6)),
        (r#"{"max_tokens":7,"max_tokens":2}"#, Some(7)),
        (r#"{"max_tokens":7,"max_tokens":null}"#, Some(7)),
        (r#"{"MAX_TOKENS":7}"#, Some(7)),
        (r#"{"max\u005ftokens":7}"#, Some(7)),
        (r#"{"max_tokens":1e3}"#, Some(1000)),
        (r#"{"max_tokens":99999999999999999999}"#, Some(MAX_UNITS)),
        (r#"{"max_tokens":0}"#, None),
        (r#"{"max_tokens":-1}"#, None),
        (r#"{"max_tokens":7.5}"#, None),
        (r#"{"max_tokens":"7"}"#, None),
        (r#"{"max_tokens":null}"#, None),
        (r#"{"max_tokens":[7]}"#, None),
        (r#"{"a":{"max_tokens":7}}"#, None),
        (r#"{"options":{"max_tokens":7}}"#, None),
        (r#"{"num_predict":7}"#, None),
        (r#"{"messages":[{"content":"\"max_tokens\":7"}]}"#, None),
        (r#"{"messages":[{"content":"\\","max_tokens":7}]}"#, None),
        ("", None),
    ] {
        assert_eq!(usage_of(body).maximum, maximum, "{body}");
    }
}

#[test]
fn the_greatest_number_of_answers_counts() {
    for (body, answers) in [
        (r#"{}"#, 1),
        (r#"{"n":0}"#, 1),
        (r#"{"n":3}"#, 3),
        (r#"{"n":3,"best_of":5}"#, 5),
        (r#"{"n":3,"n":2}"#, 3),
        (r#"{"candidateCount":4}"#, 4),
        (r#"{"generationConfig":{"candidateCount":2}}"#, 2),
        (r#"{"n":null,"best_of":"8"}"#, 1),
        (r#"{"n":99999999999999999999}"#, MAX_UNITS),
    ] {
        assert_eq!(usage_of(body).answers, answers, "{body}");
    }
}

#[test]
fn a_body_names_its_model_and_whether_it_streams() {
    let members =
        usage_of(r#"{"model":"gpt-5","stream":true,"stream_options":{"include_usage":false}}"#);
    assert_eq!(members.model.as_deref(), Some("gpt-5"));
    assert!(members.is_stream && members.is_whole);
    assert_eq!(members.include_usage, Some(false));
    let members = usage_of(r#"{"model":"a","model":"b","stream":null}"#);
    assert_eq!(members.model, None);
    assert!(!members.is_stream && members.include_usage.is_none());
    assert_eq!(
        usage_of(r#"{"model":"a","Model":"a"}"#).model.as_deref(),
        Some("a")
    );
}

#[test]
fn only_a_closed_object_has_members() {
    let nested = |levels: usize| {
        let inner = format!("{}{}", "[".repeat(levels - 1), "]".repeat(levels - 1));
        format!("{{\"max_tokens\":7,\"a\":{inner}}}")
    };
    for (body, maximum, is_whole) in [
        (r#" {"max_tokens":7} "#.to_owned(), Some(7), true),
        ("\u{feff}{\"max_tokens\":7}".to_owned(), Some(7), true),
        (
            r#"{"max_tokens":7}{"max_tokens":8}"#.to_owned(),
            Some(7),
            false,
        ),
        (r#"{"max_tokens":7} x"#.to_owned(), Some(7), false),
        (r#"{"max_tokens":7"#.to_owned(), None, false),
        (r#"{"max_tokens":7,}"#.to_owned(), None, false),
        (r#"{"max_tokens":7,"a":NaN}"#.to_owned(), Some(7), true),
        (
            r#"{"a":[Infinity,-Infinity],"max_tokens":7}"#.to_owned(),
            Some(7),
            true,
        ),
        (r#"{"max_tokens":7,"a":-NaN}"#.to_owned(), None, false),
        (r#"{"max_tokens":7,"a":Inf}"#.to_owned(), None, false),
        (r#"x{"max_tokens":7}"#.to_owned(), None, false),
        (r#""max_tokens""#.to_owned(), None, false),
        (nested(64), Some(7), true),
        (nested(65), None, false),
    ] {
        let members = usage_of(&body);
        assert_eq!(members.maximum, maximum, "{body}");
        assert_eq!(members.is_whole, is_whole, "{body}");
    }
}

#[test]
fn a_reader_is_done_once_it_can_learn_no_more() {
    let table = Arc::new(RequestTable::new(vec![member("a")], UsageMembers::OfAny));
    let is_done = |body: &str| {
        let mut reader = RequestReader::new(&table);
        reader.read(body.as_bytes());
        reader.is_done()
    };
    let deep = "{\"a\":".repeat(65);
    for body in ["{}", "[]", "{\"a\":1} ", "x", "{\"a\" 1", "{]", &deep] {
        assert!(is_done(body), "{body}");
    }
    for body in [
        "",
        " ",
        "{",
        "{\"a\":1",
        "[{}",
        "{\"a\":{}",
        &deep[..deep.len() - 5],
    ] {
        assert!(!is_done(body), "{body}");
    }
}

#[test]
fn a_member_of_a_key_is_a_string_a_number_or_a_boolean() {
    let long = "x".repeat(257);
    for (value, expected) in [
        (r#""gpt-5""#, one("gpt-5")),
        (r#""\u0061\"\u00e4""#, one("a\"\u{e4}")),
        (r#""""#, one("")),
        ("12", one("12")),
        ("12.0", one("12")),
        ("12e0", one("12")),
        ("-0", one("-0")),
        ("-12.50", one("-12.50")),
        ("1e400", one("1e400")),
        ("18446744073709551616", one("18446744073709551616")),
        ("true", one("true")),
        ("false", one("false")),
        ("null", BodyValue::Missing),
        ("[]", BodyValue::Missing),
        ("{}", BodyValue::Missing),
        (r#"["a"]"#, BodyValue::Missing),
        (&format!("\"{}\"", &long[1..]), one(&long[1..])),
        (&format!("\"{long}\""), BodyValue::Missing),
    ] {
        let body = format!("{{\"a\":1,\"user\":{{\"id\":{value}}}}}");
        assert_eq!(value_of(member("user.id"), &body), expected, "{value}");
    }
    assert_eq!(
        value_of(member("user.id"), r#"{"user":[{"id":1}]}"#),
        BodyValue::Missing
    );
    assert_eq!(
        value_of(member("user.id"), r#"{"id":1,"user":2}"#),
        BodyValue::Missing
    );
    assert_eq!(value_of(member("a[]"), r#"{"a":[1]}"#), BodyValue::Missing);
    assert_eq!(value_of(member("a[]"), r#"{"a[]":1}"#), one("1"));
}

#[test]
fn a_member_with_two_values_is_ambiguous() {
    for (body, expected) in [
        (r#"{"a":"x","a":"x"}"#, one("x")),
        (r#"{"a":"1","a":1.0}"#, one("1")),
        (r#"{"a":"x","a":"y"}"#, BodyValue::Ambiguous),
        (r#"{"a":"x","A":"y"}"#, BodyValue::Ambiguous),
        (r#"{"a":"x","\u0061":"y"}"#, BodyValue::Ambiguous),
        (r#"{"a":"x","a":null}"#, BodyValue::Ambiguous),
        (r#"{"a":[],"a":"x","a":"x"}"#, BodyValue::Ambiguous),
        (r#"{"a":null,"a":{}}"#, BodyValue::Missing),
    ] {
        assert_eq!(value_of(member("a"), body), expected, "{body}");
        assert_eq!(value_of(member("A"), body), expected, "{body}");
    }
    let body = r#"{"a":{"b":"x"},"a":{"b":"y"}}"#;
    assert_eq!(value_of(member("a.b"), body), BodyValue::Ambiguous);
}

#[test]
fn a_name_is_read_as_go_folds_it() {
    for (body, expected) in [
        ("{\"to\u{212a}en\u{17f}\":\"x\"}", one("x")),
        (r#"{"to\u212aen\u017F":"x"}"#, one("x")),
        (
            "{\"to\u{212a}en\u{17f}\":\"x\",\"tokens\":\"y\"}",
            BodyValue::Ambiguous,
        ),
        ("{\"to\u{212b}en\u{17f}\":\"x\"}", BodyValue::Missing),
        ("{\"to\u{212a}en\u{16f}\":\"x\"}", BodyValue::Missing),
        ("{\"token\u{17f}\u{17f}\":\"x\"}", BodyValue::Missing),
    ] {
        assert_eq!(value_of(member("tokens"), body), expected, "{body}");
    }
    let polish = "{\"zło\u{17f}ć\":\"x\"}";
    assert_eq!(value_of(member("złosć"), polish), one("x"));
    assert_eq!(value_of(member("10€"), r#"{"10€":"x"}"#), one("x"));
}

#[test]
fn only_a_call_names_a_tool() {
    for (body, expected) in [
        (
            r#"{"method":"tools/call","params":{"name":"search"}}"#,
            one("search"),
        ),
        (
            r#"{"params":{"name":"search"},"method":"tools/call"}"#,
            one("search"),
        ),
        (
            r#"{"Method":"tools/call","Params":{"Name":"search"}}"#,
            one("search"),
        ),
        (
            r#"{"method":"prompts/get","params":{"name":"search"}}"#,
            BodyValue::Missing,
        ),
        (
            r#"{"method":"tools/call","params":{"arguments":{"name":"a"}}}"#,
            BodyValue::Missing,
        ),
        (
            r#"{"method":"ping","method":"tools/call","params":{"name":"search"}}"#,
            one("search"),
        ),
        (
            r#"{"method":"tools/call","params":{"name":"a","name":"b"}}"#,
            BodyValue::Ambiguous,
        ),
        (
            r#"[{"method":"tools/call","params":{"name":"a"}},
                {"method":"prompts/get","params":{"name":"b"}},"c",[],null]"#,
            one("a"),
        ),
        (
            r#"[{"method":"tools/call","params":{"name":"a"}},
                {"method":"tools/call","params":{"name":"b"}}]"#,
            BodyValue::Ambiguous,
        ),
        (
            r#"[{"method":"tools/call","params":{"name":"a"}},
                {"method":"tools/call","params":{"name":"a"}}]"#,
            BodyValue::Ambiguous,
        ),
        (
            r#"[{"method":"ping"},{"params":{"name":"a"}}]"#,
            BodyValue::Missing,
        ),
        (
            r#"[[{"method":"tools/call","params":{"name":"a"}}]]"#,
            BodyValue::Missing,
        ),
        ("[]", BodyValue::Missing),
    ] {
        assert_eq!(value_of(BodyMember::McpTool, body), expected, "{body}");
    }
    let method = |body| value_of(BodyMember::McpMethod, body);
    assert_eq!(method(r#"{"method":"ping"}"#), one("ping"));
    assert_eq!(method(r#"{"method":1}"#), one("1"));
    assert_eq!(method(r#"[{"method":"ping"},{"id":1}]"#), one("ping"));
    assert_eq!(
        method(r#"[{"method":"ping"},{"method":"ping"}]"#),
        BodyValue::Ambiguous
    );
}

#[test]
fn an_operation_has_one_name() {
    for (query, expected) in [
        ("query A { a }", one("A")),
        (
            "\u{feff}mutation _a1($x: [In!]! = [{b: \"}\"}]) @d(y: 1) { a(x: $x) { b } }",
            one("_a1"),
        ),
        ("subscription A{a}", one("A")),
        (
            "fragment F on T { a } query A { ...F } fragment query on T { b }",
            one("A"),
        ),
        ("# query B\nquery A { a # }\n }", one("A")),
        ("query A { a(b: \"{\\\"\") }", one("A")),
        (
            "query A { a(b: \"\"\"} \\\"\"\" \" \"\" }\"\"\", c: \"\") }",
            one("A"),
        ),
        ("query query { a }", one("query")),
        ("{ a }", BodyValue::Missing),
        ("query { a }", BodyValue::Missing),
        ("query ($a: Int) { a }", BodyValue::Missing),
        ("query @d { a }", BodyValue::Missing),
        ("query A { a } query B { b }", BodyValue::Missing),
        ("query A { a } { b }", BodyValue::Missing),
        ("query A { a } type B { b: Int }", BodyValue::Missing),
        ("query A { a", BodyValue::Missing),
        ("query A { a } }", BodyValue::Missing),
        ("query A { a(b: \"\"\"x }", BodyValue::Missing),
        ("query A", BodyValue::Missing),
        ("", BodyValue::Missing),
    ] {
        let query = serde_json::to_string(query).unwrap();
        let value = |body: String| value_of(BodyMember::GraphqlOperation, &body);
        assert_eq!(value(format!("{{\"query\":{query}}}")), expected, "{query}");
        assert_eq!(
            value(format!("{{\"query\":{query},\"operationName\":\"B\"}}")),
            one("B")
        );
        for none in ["null", "\"\"", "{}"] {
            let body = format!("{{\"operationName\":{none},\"query\":{query}}}");
            assert_eq!(value(body), expected, "{query}");
        }
    }
    let value = |body| value_of(BodyMember::GraphqlOperation, body);
    let twice = r#"{"query":"query A{a}","query":"query B{a}"}"#;
    assert_eq!(value(twice), BodyValue::Ambiguous);
    let twice = r#"{"query":"query A{a}","query":"{a}"}"#;
    assert_eq!(value(twice), BodyValue::Ambiguous);
    let twice = r#"{"query":"query A{a}","operationName":"A","operationName":null}"#;
    assert_eq!(value(twice), BodyValue::Ambiguous);
    let batch = r#"[{"query":"query A{a}"},{"query":"query A{a}"}]"#;
    assert_eq!(value(batch), BodyValue::Ambiguous);
    assert_eq!(value(r#"{"query":{"a":"query A{a}"}}"#), BodyValue::Missing);
}

#[test]
fn one_member_may_have_several_uses() {
    let members = ["model", "max_tokens", "method", "query"].map(member);
    let mut all = members.to_vec();
    all.extend([
        BodyMember::McpTool,
        BodyMember::McpMethod,
        BodyMember::GraphqlOperation,
    ]);
    let table = Arc::new(RequestTable::new(all, UsageMembers::OfAny));
    let body = r#"{"model":"m","max_tokens":5,"method":"tools/call","params":{"name":"t"},
                   "query":"query A{a}"}"#;
    let members = read_request(&table, body.as_bytes());
    let expected = ["m", "5", "tools/call", "query A{a}", "t", "tools/call", "A"].map(one);
    assert_eq!(members.values, expected);
    assert_eq!(members.model.as_deref(), Some("m"));
    assert_eq!(members.maximum, Some(5));
}

#[test]
fn a_table_has_so_many_paths() {
    use super::super::request::MAX_PATHS;
    let path = |index: usize| member(&format!("a{index}.b{index}.c.d.e.f.g.h"));
    let mut members: Vec<BodyMember> = (0..=MAX_PATHS).map(path).collect();
    members.extend([BodyMember::McpTool, BodyMember::GraphqlOperation, path(0)]);
    let table = Arc::new(RequestTable::new(members, UsageMembers::OfAny));
    let bodies = (0..=MAX_PATHS).map(|index| {
        format!(
            "\"a{index}\":{{\"b{index}\":{{\"c\":{{\"d\":{{\"e\":{{\"f\":{{\"g\":\
             {{\"h\":{index}}}}}}}}}}}}}}}"
        )
    });
    let body: Vec<String> = bodies.collect();
    let body = format!("{{\"n\":2,{}}}", body.join(","));
    let members = read_request(&table, body.as_bytes());
    for (index, value) in members.values.iter().enumerate() {
        let expected = match index {
            0..MAX_PATHS => one(&index.to_string()),
            _ if index == MAX_PATHS + 3 => one("0"),
            _ => BodyValue::Missing,
        };
        assert_eq!(*value, expected, "{index}");
    }
    assert_eq!(members.answers, 2);
}
