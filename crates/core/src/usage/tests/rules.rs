//! Which number counts, and where.

use super::*;

fn openai(answer: &str) -> Reading {
    read_whole(&table(AnswerFormat::OpenAi), Framing::Sse, answer)
}

fn anthropic(answer: &str) -> Reading {
    read_whole(&table(AnswerFormat::Anthropic), Framing::Sse, answer)
}

fn counts(reading: &Reading) -> [Option<u64>; 2] {
    let tokens = reading.tokens.unwrap_or_default();
    [tokens.input, tokens.output]
}

#[test]
fn later_numbers_replace_earlier_ones_of_their_field() {
    let reading = openai(
        "data: {\"usage\":{\"prompt_tokens\":5,\"completion_tokens\":1}}\n\n\
         data: {\"usage\":{\"completion_tokens\":2,\"prompt_tokens\":null}}\n\n\
         data: {\"usage\":null}\n\n\
         data: {\"usage\":{}}\n\n",
    );
    assert_eq!(counts(&reading), [Some(5), Some(2)]);
}

#[test]
fn only_numbers_count() {
    for value in ["\"7\"", "-7", "7.5", "true", "[7]", "{\"a\":7}", "null"] {
        let answer = format!("data: {{\"usage\":{{\"prompt_tokens\":{value}}}}}\n\n");
        assert_eq!(openai(&answer).tokens, None, "{value}");
    }
}

#[test]
fn only_the_object_at_its_own_path_counts() {
    for event in [
        r#"{"metadata":{"usage":{"prompt_tokens":1}}}"#,
        r#"[{"usage":{"prompt_tokens":1}}]"#,
        r#"{"usage":[{"prompt_tokens":1}]}"#,
        r#"{"Usage":{"prompt_tokens":1}}"#,
        r#"{"usage":{"a":{"prompt_tokens":1}}}"#,
        r#"{"choices":[{"usage":{"prompt_tokens":1}}]}"#,
        r#"{"text":"\"usage\":{\"prompt_tokens\":1}"}"#,
        r#"{"text":"\\","a":"\\\"usage\":{\"prompt_tokens\":1}"}"#,
        r#"{"usage ":{"prompt_tokens":1}}"#,
        r#"{"usage":{"prompt_tokens\u0000":1}}"#,
    ] {
        assert_eq!(
            openai(&format!("data: {event}\n\n")).tokens,
            None,
            "{event}"
        );
    }
    let gemini = table(AnswerFormat::Gemini);
    let nested = r#"[[{"usageMetadata":{"promptTokenCount":1}}]]"#;
    assert_eq!(read_whole(&gemini, Framing::Document, nested).tokens, None);
}

#[test]
fn names_may_be_escaped() {
    let event = "data: {\"\\u0075s\\u0061ge\":{\"prompt\\u005ftokens\":5,\
                 \"\\u0063ompletion_tokens\":6},\
                 \"m\\u006fdel\":\"a\\/\\u00e4\\ud83d\\ude00\"}\n\n";
    let reading = openai(event);
    assert_eq!(counts(&reading), [Some(5), Some(6)]);
    assert_eq!(reading.model.as_deref(), Some("a/\u{e4}\u{1f600}"));
}

#[test]
fn an_event_that_is_no_json_says_nothing() {
    for event in [
        r#"{"usage":{"prompt_tokens":5}"#,
        r#"{"usage":{"prompt_tokens":5}}}"#,
        r#"{"usage":{"prompt_tokens":5}} x"#,
        r#"{"usage":{"prompt_tokens":05}}"#,
        r#"{"usage":{"prompt_tokens":5,}}"#,
        r#"{"usage":{"prompt_tokens":5]}"#,
        r#"{"usage":{"prompt_tokens":5},"model":"\x"}"#,
        r#"{"usage":{"prompt_tokens":5},"u\x":1}"#,
        r#"{"usage":{"prompt_tokens":5},"a":tru}"#,
        r#"{"usage":{"prompt_tokens":5},'a':1}"#,
        r#"{"model":"no","usage":{"prompt_tokens":5},NaN:1}"#,
        r#"{"usage":{"prompt_tokens":5 6}}"#,
        r#"{"usage":{"prompt_tokens":5} "a":1}"#,
        r#"{"usage":{"prompt_tokens" 5}}"#,
        r#"{"usage":{"prompt_tokens":+5}}"#,
        r#"{"usage":{"prompt_tokens":5.}}"#,
    ] {
        let reading = openai(&format!("data: {event}\n\n"));
        assert_eq!(reading, Reading::default(), "{event}");
    }
}

/// The ends of strings do not depend on their escapes, and their texts do not matter.
#[test]
fn escapes_in_texts_that_do_not_matter_are_not_checked() {
    let reading = openai("data: {\"usage\":{\"prompt_tokens\":5},\"a\":\"\\x\\u12\"}\n\n");
    assert_eq!(counts(&reading), [Some(5), None]);
}

/// Python's writer of JSON makes them, for example of the logarithm of 0.
#[test]
fn an_event_may_have_numbers_that_json_lacks() {
    for value in ["NaN", "Infinity", "-Infinity"] {
        let reading = openai(&format!(
            "data: {{\"a\":{value},\"usage\":{{\"prompt_tokens\":5,\
             \"completion_tokens\":{value}}}}}\n\n"
        ));
        assert_eq!(counts(&reading), [Some(5), None], "{value}");
    }
}

/// A stream of Gemini without `alt=sse` is one document.
#[test]
fn a_document_that_breaks_off_has_the_counts_that_have_come() {
    let answer = "[{\"usageMetadata\":{\"promptTokenCount\":7,\"candidatesTokenCount\":50}},\
                  {\"usageMetadata\":{\"promptTokenCount\":7,\"candidatesTokenCount\":99";
    let mut reader = AnswerReader::new(&table(AnswerFormat::Gemini), Framing::Document);
    reader.read(answer.as_bytes());
    assert_eq!(reader.tokens(), None);
    let so_far = reader.tokens_so_far().unwrap();
    assert_eq!((so_far.input, so_far.output), (Some(7), Some(50)));
    reader.read(b"}}]");
    assert_eq!(reader.tokens().unwrap().output, Some(99));
    assert_eq!(reader.tokens_so_far(), reader.tokens());
}

#[test]
fn texts_may_be_deeper_than_the_levels_that_are_checked() {
    let deep = format!("{}\"]}}\"{}", "[".repeat(500), "]".repeat(500));
    let answer = format!(
        "{{\"content\":[{{\"input\":{deep}}}],\
         \"usage\":{{\"input_tokens\":4,\"output_tokens\":2}}}}"
    );
    let reading = read_whole(&table(AnswerFormat::Anthropic), Framing::Document, &answer);
    assert_eq!(counts(&reading), [Some(4), Some(2)]);
}

#[test]
fn a_zero_says_nothing_where_servers_send_it_for_unknown() {
    let start = "data: {\"type\":\"message_start\",\"message\":{\"usage\":\
                 {\"input_tokens\":9,\"cache_read_input_tokens\":3,\"output_tokens\":1}}}\n\n";
    let delta = "data: {\"type\":\"message_delta\",\"usage\":\
                 {\"input_tokens\":0,\"cache_read_input_tokens\":0,\"output_tokens\":0}}\n\n";
    assert_eq!(
        counts(&anthropic(&format!("{start}{delta}"))),
        [Some(12), Some(0)]
    );
    assert_eq!(counts(&anthropic(delta)), [None, Some(0)]);
}

#[test]
fn a_total_stands_for_the_part_that_is_missing() {
    for (usage, expected) in [
        ("\"total_tokens\":9", [Some(0), Some(9)]),
        ("\"total_tokens\":9,\"prompt_tokens\":4", [Some(4), Some(5)]),
        (
            "\"total_tokens\":9,\"completion_tokens\":4",
            [Some(5), Some(4)],
        ),
        (
            "\"total_tokens\":3,\"prompt_tokens\":1,\"completion_tokens\":2",
            [Some(1), Some(2)],
        ),
        (
            "\"total_tokens\":9,\"prompt_tokens\":10",
            [Some(10), Some(0)],
        ),
    ] {
        let reading = openai(&format!("data: {{\"usage\":{{{usage}}}}}\n\n"));
        assert_eq!(counts(&reading), expected, "{usage}");
    }
}

#[test]
fn output_that_only_the_total_has_counts() {
    let cached = |count: u64| format!(",\"prompt_tokens_details\":{{\"cached_tokens\":{count}}}");
    for (prompt, completion, total, details, output) in [
        // Reasoning of xAI.
        (32, 9, 135, String::new(), 103),
        (32, 9, 135, cached(20), 103),
        (32, 9, 41, cached(32), 9),
        (32, 9, 10, String::new(), 9),
        (u64::MAX, 9, 1, String::new(), 9),
        // The input lacks what came from the cache.
        (2, 9, 41, cached(30), 9),
    ] {
        let answer = format!(
            "data: {{\"usage\":{{\"prompt_tokens\":{prompt},\
             \"completion_tokens\":{completion},\"total_tokens\":{total}{details}}}}}\n\n"
        );
        assert_eq!(counts(&openai(&answer))[1], Some(output), "{answer}");
    }
}

#[test]
fn counts_before_the_last_ones_are_not_final() {
    let count = |choices: &str| {
        let event = format!(
            "data: {{\"choices\":{choices},\
             \"usage\":{{\"prompt_tokens\":1,\"completion_tokens\":2}}}}\n\n"
        );
        openai(&event).is_final
    };
    assert!(count("[]"));
    assert!(count("[{\"finish_reason\":\"stop\"}]"));
    assert!(!count("[{\"finish_reason\":null}]"));
    assert!(!count("[{\"delta\":{}}]"));
    let start = "data: {\"message\":{\"usage\":{\"input_tokens\":9,\"output_tokens\":1}}}\n\n";
    assert!(!anthropic(start).is_final);
}

/// A format of configured paths does not say which counts are the last ones, so its end does.
#[test]
fn configured_counts_are_final_at_the_end() {
    let mut reader = AnswerReader::new(&custom_table(TextCount::Ignored), Framing::Lines);
    reader.read(b"{\"stats\":{\"tokens_in\":1,\"tokens_out\":2}}\n");
    assert!(!reader.is_final());
    assert!(reader.tokens().is_some());
    reader.finish();
    assert!(reader.is_final());
}

/// A client that closes right behind the last byte has got a whole answer.
#[test]
fn a_document_is_final_at_its_last_byte() {
    let answer = include_bytes!("answers/openai_embeddings.json");
    let answer = answer.trim_ascii_end();
    let mut reader = AnswerReader::new(&table(AnswerFormat::OpenAi), Framing::Document);
    reader.read(&answer[..answer.len() - 1]);
    assert!(!reader.is_final());
    assert_eq!(reader.tokens(), None);
    reader.read(&answer[answer.len() - 1..]);
    assert!(reader.is_final());
    reader.read(b" and more");
    assert!(reader.is_final());
}

#[test]
fn an_error_makes_counts_void_that_are_not_the_last_ones() {
    let first = "data: {\"message\":{\"usage\":{\"input_tokens\":9,\"output_tokens\":1}}}\n\n";
    let last = "data: {\"usage\":{\"output_tokens\":8}}\n\n";
    for error in [
        "data: {\"type\":\"error\"}\n\n",
        "data: {\"type\":\"\\u0065rr\\u006fr\"}\n\n",
        "data: {\"error\":{\"message\":\"x\"}}\n\n",
        "data: {\"error\":\"x\"}\n\n",
        "data: {\"err\\u006fr\":{}}\n\n",
    ] {
        let reading = anthropic(&format!("{first}{error}"));
        assert!(reading.is_error && reading.tokens.is_none(), "{error}");
        let reading = anthropic(&format!("{first}{last}{error}"));
        assert!(!reading.is_error && reading.is_final, "{error}");
    }
    for other in [
        "data: {\"error\":null}\n\n",
        "data: {\"type\":\"errors\"}\n\n",
        "data: {\"type\":\"err\"}\n\n",
        "data: {\"delta\":{\"error\":{}}}\n\n",
    ] {
        assert!(!anthropic(&format!("{first}{other}")).is_error, "{other}");
    }
    let document = table(AnswerFormat::OpenAi);
    let reading = read_whole(&document, Framing::Document, "{\"error\":{\"code\":400}}");
    assert!(reading.is_error);
}

#[test]
fn an_exception_ends_an_event_stream() {
    let metadata = fixtures::message(":event-type", "metadata", "{\"usage\":{\"inputTokens\":1}}");
    let exception = fixtures::message(
        ":exception-type",
        "throttlingException",
        "{\"message\":\"slow down\"}",
    );
    let table = table(AnswerFormat::Bedrock);
    let all = [metadata.as_slice(), exception.as_slice()].concat();
    for size in 1..all.len() {
        let reading = read(
            &table,
            Framing::EventStream,
            EventScanning::All,
            all.chunks(size),
        );
        assert!(reading.is_final && !reading.is_error);
    }
}

#[test]
fn a_text_within_a_text_counts_if_it_is_json() {
    let metrics = r#""amazon-bedrock-invocationMetrics":{"inputTokenCount":3}"#;
    let event = |payload: &str| fixtures::message(":event-type", "chunk", payload);
    let forged = format!("{{\"type\":\"x\",\"text\":{metrics:?},\"bytes\":\"eyJhIjoxfQ==\"}}");
    for (message, input) in [
        (fixtures::chunk(&format!("{{{metrics}}}")), Some(3)),
        (fixtures::chunk(&format!("{{{metrics}")), None),
        (fixtures::chunk(&format!("{{{metrics}}} x")), None),
        (fixtures::chunk(&format!("{{\"a\":{{{metrics}}}}}")), None),
        (fixtures::chunk(&forged), None),
        (event("{\"bytes\":\"!\"}"), None),
        (event("{\"bytes\":\"eyJ"), None),
        (event("{\"bytes\":null}"), None),
    ] {
        let good =
            fixtures::chunk(r#"{"amazon-bedrock-invocationMetrics":{"outputTokenCount":4}}"#);
        let all = [message, good].concat();
        for size in [1, 5, all.len()] {
            let table = table(AnswerFormat::Bedrock);
            let chunks = all.chunks(size);
            let reading = read(&table, Framing::EventStream, EventScanning::All, chunks);
            assert_eq!(counts(&reading), [input, Some(4)]);
        }
    }
}

#[test]
fn headers_of_bedrock_have_counts() {
    use super::super::format::header_tokens;
    let all = |name: &str| match name {
        "x-amzn-bedrock-input-token-count" => Some("10"),
        "x-amzn-bedrock-output-token-count" => Some(" 7 "),
        "x-amzn-bedrock-cache-read-input-token-count" => Some("5"),
        _ => None,
    };
    let tokens = header_tokens(all).unwrap();
    assert_eq!([tokens.input, tokens.output], [Some(15), Some(7)]);
    assert_eq!([tokens.cached, tokens.cache_write], [5, 0]);
    assert_eq!(header_tokens(|_| Some("-1")), None);
    assert_eq!(header_tokens(|_| None), None);
}

#[test]
fn a_broken_message_ends_the_reading() {
    let good = fixtures::message(":event-type", "metadata", "{\"usage\":{\"inputTokens\":1}}");
    let mut broken = good.clone();
    broken[..4].copy_from_slice(&20_u32.to_be_bytes());
    let all = [broken, good].concat();
    let table = table(AnswerFormat::Bedrock);
    let reading = read(
        &table,
        Framing::EventStream,
        EventScanning::All,
        all.chunks(3),
    );
    assert_eq!(reading, Reading::default());
}

#[test]
fn a_model_is_kept_up_to_its_bound() {
    let name = "\u{e4}".repeat(40);
    let reading = openai(&format!("data: {{\"model\":\"x{name}\"}}\n\n"));
    assert_eq!(reading.model, Some(format!("x{}", "\u{e4}".repeat(30))));
    let reading = openai(
        "data: {\"model\":\"\"}\n\ndata: {\"model\":null}\n\n\
         data: {\"model\":\"first\"}\n\ndata: {\"model\":\"second\"}\n\n",
    );
    assert_eq!(reading.model.as_deref(), Some("first"));
}

#[test]
fn content_types_tell_the_framing() {
    for (value, framing) in [
        ("text/event-stream", Some(Framing::Sse)),
        ("Text/Event-Stream; charset=utf-8", Some(Framing::Sse)),
        ("application/json", Some(Framing::Document)),
        ("application/problem+json", Some(Framing::Document)),
        ("application/x-ndjson", Some(Framing::Lines)),
        (
            "application/vnd.amazon.eventstream",
            Some(Framing::EventStream),
        ),
        ("text/plain", None),
        ("", None),
    ] {
        assert_eq!(Framing::of_content_type(value), framing, "{value}");
    }
}

#[test]
fn paths_of_members_have_bounds() {
    for (text, is_path) in [
        ("usage", true),
        ("stats.tokens_in", true),
        ("a.b.c.d.e.f.g.h", true),
        ("a.b.c.d.e.f.g.h.i", false),
        ("", false),
        ("a..b", false),
        (".a", false),
    ] {
        assert_eq!(MemberPath::parse(text).is_ok(), is_path, "{text}");
    }
    assert!(MemberPath::parse(&"x".repeat(40)).is_ok());
    assert!(MemberPath::parse(&"x".repeat(41)).is_err());
}

#[test]
fn every_format_has_its_table() {
    for format in AnswerFormat::ALL {
        let table = AnswerTable::new(format, TextCount::Counted);
        let counts = super::super::format::rows(format);
        assert!(
            table.paths.role(1).is_some() || counts.len() > 1,
            "{format:?}"
        );
        for row in counts {
            let end = row.steps.iter().try_fold(0, |node, step| match step {
                super::super::paths::PathStep::Member(name) => {
                    Some(table.paths.member(node, name.as_bytes()))
                }
                super::super::paths::PathStep::Elements => Some(table.paths.elements(node, 2)),
            });
            let role = end.and_then(|node| table.paths.role(node));
            assert_eq!(role, Some(row.role), "{format:?} {:?}", row.steps);
        }
    }
}
