//! Answers made by chance, whose strings are full of the words that count elsewhere.

use proptest::collection::vec;
use proptest::prelude::*;

use super::reference::{events, expected};
use super::*;

const NAMES: [&str; 34] = [
    "usage",
    "response",
    "message",
    "choices",
    "delta",
    "model",
    "error",
    "type",
    "prompt_tokens",
    "completion_tokens",
    "total_tokens",
    "input_tokens",
    "output_tokens",
    "cache_read_input_tokens",
    "cache_creation_input_tokens",
    "prompt_tokens_details",
    "cached_tokens",
    "finish_reason",
    "usageMetadata",
    "promptTokenCount",
    "toolUsePromptTokenCount",
    "candidatesTokenCount",
    "thoughtsTokenCount",
    "totalTokenCount",
    "candidates",
    "finishReason",
    "modelVersion",
    "prompt_eval_count",
    "eval_count",
    "done",
    "inputTokens",
    "outputTokens",
    "cacheReadInputTokens",
    "",
];

const TEXTS: [&str; 12] = [
    "",
    "error",
    "stop",
    "\"usage\":{\"prompt_tokens\":1}",
    "{\"usage\":{\"total_tokens\":0}}",
    "\\\"usage\\\"",
    "\u{e4}\u{1f600}\u{4e2d}",
    "a/b\\c\"d",
    "data: {\"usage\":{\"total_tokens\":3}}",
    "}}]}",
    "_tokens\"",
    "eval_count\" TokenCount\"",
];

const NUMBERS: [&str; 16] = [
    "0",
    "1",
    "17",
    "999999",
    "9007199254740991",
    "9007199254740993",
    "18446744073709551615",
    "-1",
    "-0",
    "1.5",
    "3.0",
    "2e2",
    "5E-1",
    "12.50e1",
    "0.0",
    "1e300",
];

const MODEL: &str = "{\"model\":\"m\",\"modelVersion\":\"m\"}";

/// How a byte of a string is written, by chance.
pub(super) fn spell(text: &str, choices: &mut impl Iterator<Item = u8>) -> String {
    let mut spelled = String::from("\"");
    for character in text.chars() {
        let choice = choices.next().unwrap_or(0);
        match character {
            '"' | '\\' if choice < 128 => spelled.extend(['\\', character]),
            '/' if choice < 128 => spelled.push_str("\\/"),
            character if choice < 24 || matches!(character, '"' | '\\') => {
                for unit in character.encode_utf16(&mut [0; 2]) {
                    let escape = match choice % 2 {
                        0 => format!("\\u{unit:04x}"),
                        _ => format!("\\u{unit:04X}"),
                    };
                    spelled.push_str(&escape);
                }
            }
            character => spelled.push(character),
        }
    }
    spelled.push('"');
    spelled
}

#[derive(Clone, Debug)]
enum Tree {
    Word(&'static str),
    Number(&'static str),
    Text(&'static str),
    Array(Vec<Tree>),
    Object(Vec<(&'static str, Tree)>),
}

impl Tree {
    fn write(&self, text: &mut String, choices: &mut impl Iterator<Item = u8>) {
        let mut space = |text: &mut String| match choices.next() {
            Some(0..20) => text.push(' '),
            Some(20..24) => text.push('\t'),
            _ => {}
        };
        space(text);
        match self {
            Tree::Word(word) | Tree::Number(word) => text.push_str(word),
            Tree::Text(value) => text.push_str(&spell(value, choices)),
            Tree::Array(values) => {
                text.push('[');
                for (index, value) in values.iter().enumerate() {
                    if index > 0 {
                        text.push(',');
                    }
                    value.write(text, choices);
                }
                text.push(']');
            }
            Tree::Object(members) => {
                text.push('{');
                for (index, (name, value)) in members.iter().enumerate() {
                    if index > 0 {
                        text.push(',');
                    }
                    text.push_str(&spell(name, choices));
                    text.push(':');
                    value.write(text, choices);
                }
                text.push('}');
            }
        }
        if choices.next().is_some_and(|choice| choice < 16) {
            text.push(' ');
        }
    }
}

fn tree() -> impl Strategy<Value = Tree> {
    let name = || proptest::sample::select(NAMES.to_vec());
    let leaf = prop_oneof![
        2 => proptest::sample::select(vec!["true", "false", "null"]).prop_map(Tree::Word),
        4 => proptest::sample::select(NUMBERS.to_vec()).prop_map(Tree::Number),
        2 => proptest::sample::select(TEXTS.to_vec()).prop_map(Tree::Text),
    ];
    let any = leaf.prop_recursive(4, 24, 5, move |inner| {
        prop_oneof![
            1 => vec(inner.clone(), 0..4).prop_map(Tree::Array),
            3 => vec((name(), inner), 0..5).prop_map(Tree::Object),
        ]
    });
    // Many texts must have counts where they count.
    let usage = (
        proptest::sample::select(vec!["usage", "usageMetadata", "response", "message", ""]),
        vec(
            (proptest::sample::select(NAMES.to_vec()), any.clone()),
            1..5,
        ),
        vec(
            (proptest::sample::select(NAMES.to_vec()), any.clone()),
            0..4,
        ),
    );
    let usage = usage.prop_map(|(name, counts, mut others)| {
        match name {
            "" => others.extend(counts),
            "response" | "message" => {
                others.push((name, Tree::Object(vec![("usage", Tree::Object(counts))])));
            }
            _ => others.push((name, Tree::Object(counts))),
        }
        Tree::Object(others)
    });
    prop_oneof![1 => any, 3 => usage]
}

/// One event of a stream, in one of the ways that the standard allows.
fn event_text(tree: &Tree, bytes: &[u8], line_end: &str) -> String {
    let mut choices = bytes.iter().copied().cycle().take(4096);
    let mut json = String::new();
    tree.write(&mut json, &mut choices);
    let choice = bytes.first().copied().unwrap_or(0);
    if choice < 30 {
        // Whatever was cut is no JSON.
        let at = json.len() * usize::from(choice) / 30;
        json.truncate(
            (0..=at)
                .rev()
                .find(|at| json.is_char_boundary(*at))
                .unwrap_or(0),
        );
    }
    let space = if choice % 3 == 0 { "" } else { " " };
    let mut text = String::new();
    match choice % 5 {
        0 => text.push_str(&format!("event: x{line_end}")),
        1 => text.push_str(&format!(": _tokens\"{line_end}")),
        2 => text.push_str(&format!("id:1{line_end}{line_end}")),
        _ => {}
    }
    match json.find(", ").filter(|_| choice % 4 == 0) {
        Some(comma) => {
            let (first, second) = json.split_at(comma);
            text.push_str(&format!("data:{space}{first}{line_end}"));
            text.push_str(&format!("data:{space}{second}{line_end}"));
        }
        None => text.push_str(&format!("data:{space}{json}{line_end}")),
    }
    if choice % 7 == 0 {
        text.push_str(&format!("data{line_end}"));
    }
    text.push_str(line_end);
    text
}

pub(super) fn cut<'b>(bytes: &'b [u8], sizes: &[usize]) -> Vec<&'b [u8]> {
    let mut chunks = Vec::new();
    let (mut rest, mut sizes) = (bytes, sizes.iter().cycle());
    while !rest.is_empty() {
        let size = sizes
            .next()
            .map_or(rest.len(), |size| (*size).min(rest.len()).max(1));
        let (chunk, behind) = rest.split_at(size);
        chunks.push(chunk);
        rest = behind;
    }
    chunks
}

fn formats() -> impl Strategy<Value = AnswerFormat> {
    proptest::sample::select(AnswerFormat::ALL.to_vec())
}

type Event = (Tree, Vec<u8>, &'static str);

fn stream() -> impl Strategy<Value = Vec<Event>> {
    let line_end = proptest::sample::select(vec!["\n", "\r", "\r\n"]);
    vec((tree(), vec(any::<u8>(), 1..64), line_end), 1..8)
}

pub(super) fn sizes() -> impl Strategy<Value = Vec<usize>> {
    vec(
        prop_oneof![1_usize..12, 1_usize..400, Just(4096_usize)],
        1..6,
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn a_stream_is_read_as_serde_reads_its_events(
        format in formats(),
        stream in stream(),
        sizes in sizes(),
        is_cut: bool,
        is_named: bool,
    ) {
        let texts = stream.iter().map(|(tree, bytes, end)| event_text(tree, bytes, end));
        // Events are left out only once the model is known.
        let model = if is_named { format!("data: {MODEL}\n\n") } else { String::new() };
        let mut text: String = [model].into_iter().chain(texts).collect();
        if is_cut {
            text.truncate(text.trim_end().len());
        }
        let table = table(format);
        let wanted = expected(format, &events(text.as_bytes()));
        for scanning in [EventScanning::All, EventScanning::Sparse] {
            let chunks = cut(text.as_bytes(), &sizes);
            let reading = read(&table, Framing::Sse, scanning, chunks);
            prop_assert_eq!(&reading, &wanted, "{:?} {}", scanning, text);
        }
    }

    #[test]
    fn lines_are_read_as_serde_reads_them(
        format in formats(),
        trees in vec((tree(), vec(any::<u8>(), 1..64)), 1..8),
        sizes in sizes(),
        is_named: bool,
    ) {
        let lines = trees.iter().map(|(tree, bytes)| {
            let mut line = String::new();
            tree.write(&mut line, &mut bytes.iter().copied().cycle().take(4096));
            line
        });
        let model = is_named.then(|| MODEL.to_owned());
        let lines: Vec<String> = model.into_iter().chain(lines).collect();
        let text = lines.join("\r\n");
        let table = table(format);
        let wanted = expected(format, &lines);
        for scanning in [EventScanning::All, EventScanning::Sparse] {
            let reading = read(&table, Framing::Lines, scanning, cut(text.as_bytes(), &sizes));
            prop_assert_eq!(&reading, &wanted, "{:?} {}", scanning, text);
        }
    }

    #[test]
    fn a_document_is_read_as_serde_reads_it(
        format in formats(),
        (tree, bytes) in (tree(), vec(any::<u8>(), 1..64)),
        sizes in sizes(),
        cut_at in 0_usize..4000,
    ) {
        let mut text = String::new();
        tree.write(&mut text, &mut bytes.iter().copied().cycle().take(4096));
        if let Tree::Array(_) | Tree::Object(_) = tree {
            let whole = cut_at >= text.len();
            if !whole {
                let at = (0..=cut_at).rev().find(|at| text.is_char_boundary(*at));
                text.truncate(at.unwrap_or(0));
            }
            let table = table(format);
            let chunks = cut(text.as_bytes(), &sizes);
            let reading = read(&table, Framing::Document, EventScanning::All, chunks);
            let wanted = expected(format, &[text.clone()]);
            prop_assert_eq!(reading.model, wanted.model, "{}", &text);
            // A document is all that there is, so its counts are the last ones.
            prop_assert_eq!(reading.is_final, wanted.tokens.is_some() || wanted.is_error);
            if !wanted.is_error {
                prop_assert_eq!(reading.tokens, wanted.tokens, "{}", &text);
            }
        }
    }

    /// Bytes of any kind, with the words among them, wherever they are cut.
    #[test]
    fn any_bytes_are_read_alike_in_any_pieces(
        format in formats(),
        words in vec(
            proptest::sample::select(vec![
                "data:", "data: ", "\n", "\r", "\n\n", "\r\n\r\n", "{\"usage\":{",
                "\"prompt_tokens\":1", "}", "}}", "{\"model\":\"m\"}", ",", "\"error\":1",
                "\"", "\\", "\\u00", "\\u005f", "_tokens\"", "[", "]", ":x\n", "\u{feff}",
                "event: error\n", "null", "{\"a\":\"", "{\"eval_count\":2}",
                "{\"usageMetadata\":{\"promptTokenCount\":4}}", "{", "\0", "[DONE]",
                "{\"error\":{}}", "{\"message\":{\"usage\":{\"input_tokens\":3}}}",
            ]),
            0..40,
        ),
        sizes in sizes(),
        other_sizes in sizes(),
        framing in proptest::sample::select(vec![
            Framing::Sse, Framing::Lines, Framing::Document, Framing::EventStream,
        ]),
    ) {
        let text = words.concat();
        let table = table(format);
        let whole = read_whole(&table, framing, &text);
        for (scanning, sizes) in [
            (EventScanning::All, &sizes),
            (EventScanning::Sparse, &sizes),
            (EventScanning::Sparse, &other_sizes),
        ] {
            let reading = read(&table, framing, scanning, cut(text.as_bytes(), sizes));
            prop_assert_eq!(&reading, &whole, "{:?} {:?}", scanning, text);
        }
    }
}
