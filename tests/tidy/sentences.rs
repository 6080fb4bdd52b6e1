//! Finds sentences that are hard to read at first sight, in pages, comments of configurations,
//! help of commands, and messages of the program.

use std::path::Path;

use proc_macro2::{Delimiter, TokenStream, TokenTree};

/// The longest sentence that is easy to read.
const MOST_WORDS: usize = 25;
/// The shortest string that counts as a message, characters.
const SHORTEST_MESSAGE: usize = 30;

/// Beginnings of sentences whose subject is a clause, or no actor.
const CLAUSES: [&str; 8] = [
    "who",
    "whom",
    "whose",
    "what",
    "whatever",
    "that which",
    "those that",
    "that of",
];
/// Actors that do not exist.
const ACTORS: [&str; 6] = [
    "nobody",
    "somebody",
    "anybody",
    "everybody",
    "whoever",
    "whomever",
];

/// A text that is read in one go: a paragraph, a comment, a message.
#[derive(Debug, PartialEq)]
struct Passage {
    line: usize,
    text: String,
}

#[derive(Debug, PartialEq)]
pub(super) struct HardSentence {
    pub(super) line: usize,
    pub(super) why: &'static str,
    pub(super) text: String,
}

#[derive(Debug, Default)]
pub(super) struct Reading {
    pub(super) words: usize,
    pub(super) hard: Vec<HardSentence>,
}

/// Reads a file by the ending of its name.
pub(super) fn read(file: &str, text: &str) -> Reading {
    let passages = match Path::new(file)
        .extension()
        .and_then(|ending| ending.to_str())
    {
        Some("md") => paragraphs(text),
        Some("toml") => comments(text),
        Some("js") => scripts(text),
        Some("html") => page_texts(text),
        _ => messages(file, text),
    };
    let mut reading = Reading::default();
    for passage in passages {
        for sentence in sentences(&passage.text) {
            reading.words += words(sentence);
            if let Some(why) = why_hard(sentence) {
                reading.hard.push(HardSentence {
                    line: passage.line,
                    why,
                    text: sentence.to_owned(),
                });
            }
        }
    }
    reading
}

fn why_hard(sentence: &str) -> Option<&'static str> {
    let lower = sentence.to_lowercase();
    let is_question = lower.ends_with('?');
    let begins = |clause: &&str| {
        let rest = lower.strip_prefix(*clause);
        rest.is_some_and(|rest| rest.starts_with(' '))
    };
    let mut all = lower.split(|c: char| !c.is_alphanumeric());
    if words(sentence) > MOST_WORDS {
        Some("over 25 words")
    } else if CLAUSES.iter().any(begins) && !is_question {
        Some("a clause is the subject")
    } else if all.any(|word| ACTORS.contains(&word)) {
        Some("no actor named")
    } else {
        None
    }
}

fn words(sentence: &str) -> usize {
    let parts = sentence.split_whitespace();
    parts
        .filter(|part| part.contains(char::is_alphanumeric))
        .count()
}

/// A sentence ends at a sign before a space and a word that may begin another one.
fn sentences(text: &str) -> Vec<&str> {
    let mut found = Vec::new();
    let mut begin = 0;
    for (at, _) in text.match_indices(' ') {
        let before = text[begin..at].trim_end_matches(['*', ')', '"', '`']);
        let ends = before.ends_with(['.', ';', ':', '!', '?']) && !before.ends_with("..");
        let next = text[at + 1..].chars().next();
        let begins = |c: char| c.is_uppercase() || c.is_ascii_digit() || "`\"([*{".contains(c);
        let may_begin = next.is_some_and(begins);
        if ends && may_begin {
            found.push(text[begin..at].trim());
            begin = at + 1;
        }
    }
    found.push(text[begin..].trim());
    found.retain(|sentence| !sentence.is_empty());
    found
}

/// Paragraphs and entries of lists. Titles, tables, code and pictures have no sentences.
fn paragraphs(text: &str) -> Vec<Passage> {
    let mut found = Vec::new();
    let mut open = false;
    let mut is_code = false;
    for (number, line) in text.lines().enumerate() {
        let trimmed = line.trim_start();
        let is_fence = trimmed.starts_with("```");
        is_code ^= is_fence;
        let other = ["|", "#", "<", "!["]
            .iter()
            .any(|mark| trimmed.starts_with(mark));
        if is_code || is_fence || other || trimmed.is_empty() {
            open = false;
            continue;
        }
        let entry = trimmed
            .strip_prefix("- ")
            .or_else(|| trimmed.strip_prefix("* "));
        let numbered = trimmed
            .trim_start_matches(|c: char| c.is_ascii_digit())
            .strip_prefix(". ")
            .filter(|_| trimmed.starts_with(|c: char| c.is_ascii_digit()));
        let entry = entry.or(numbered);
        open &= entry.is_none();
        push(&mut found, &mut open, number + 1, entry.unwrap_or(trimmed));
    }
    for passage in &mut found {
        passage.text = without_targets(&passage.text);
    }
    found
}

/// Adds a line to the last passage if that goes on, or begins one.
fn push(found: &mut Vec<Passage>, open: &mut bool, line: usize, text: &str) {
    match found.last_mut().filter(|_| *open) {
        Some(last) => {
            last.text.push(' ');
            last.text.push_str(text);
        }
        None => found.push(Passage {
            line,
            text: text.to_owned(),
        }),
    }
    *open = true;
}

/// `[text](target)` without its target.
fn without_targets(text: &str) -> String {
    let mut parts = text.split("](");
    let mut kept = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        kept.push(']');
        kept.push_str(part.split_once(')').map_or("", |(_, rest)| rest));
    }
    kept
}

/// The comments of a script, and its strings that are long enough to be messages.
fn scripts(text: &str) -> Vec<Passage> {
    let mut found = Vec::new();
    let mut open = false;
    for (number, line) in text.lines().enumerate() {
        let trimmed = line.trim();
        let marks = ["// ", "/** ", "* "];
        let comment = marks.iter().find_map(|mark| trimmed.strip_prefix(mark));
        if let Some(comment) = comment {
            let comment = comment.trim_end_matches("*/");
            push(&mut found, &mut open, number + 1, comment);
            continue;
        }
        open = false;
        let mut quote = None;
        let mut begin = 0;
        for (at, c) in line.char_indices() {
            match quote {
                None if matches!(c, '\'' | '`' | '"') => (quote, begin) = (Some(c), at + 1),
                Some(end) if c == end => {
                    quote = None;
                    let message = &line[begin..at];
                    if message.len() >= SHORTEST_MESSAGE && message.contains(' ') {
                        push(&mut found, &mut false, number + 1, message);
                    }
                }
                _ => {}
            }
        }
    }
    found
}

/// The texts of a page of HTML, and the attributes that screen readers and fields show.
fn page_texts(text: &str) -> Vec<Passage> {
    let mut found = Vec::new();
    for (number, line) in text.lines().enumerate() {
        let between = line.split('>').filter_map(|part| part.split('<').next());
        let shown = ["aria-label=\"", "placeholder=\""];
        let attributes = shown.iter().flat_map(|name| line.split(name).skip(1));
        let attributes = attributes.filter_map(|rest| rest.split('"').next());
        for text in between.chain(attributes).filter(|text| text.contains(' ')) {
            push(&mut found, &mut false, number + 1, text.trim());
        }
    }
    found
}

/// The comment of each setting with the lines that continue it, and blocks of comments.
fn comments(text: &str) -> Vec<Passage> {
    let mut found = Vec::new();
    let mut open = false;
    for (number, line) in text.lines().enumerate() {
        let indented = line.len() - line.trim_start().len() > 20;
        let prose = line.trim_start().strip_prefix("# ");
        match (prose, setting_comment(line)) {
            (_, Some(comment)) => {
                open = false;
                push(&mut found, &mut open, number + 1, comment);
            }
            (Some(prose), None) if !prose.starts_with('[') => {
                // A block above a section does not go on the comment of a setting.
                let goes_on_block = number > 0 && !text_is_setting(text, number - 1);
                open &= indented || goes_on_block;
                push(&mut found, &mut open, number + 1, prose.trim());
            }
            _ => open = false,
        }
    }
    found
}

fn text_is_setting(text: &str, number: usize) -> bool {
    text.lines()
        .nth(number)
        .is_some_and(|line| setting_comment(line).is_some())
}

/// The comment behind `key = value`, also of a setting that is itself a comment.
fn setting_comment(line: &str) -> Option<&str> {
    let line = line.strip_prefix("# ").unwrap_or(line);
    let (key, value) = line.split_once('=')?;
    let key = key.trim();
    let is_key = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
    if key.is_empty() || !key.chars().all(is_key) {
        return None;
    }
    let (_, comment) = value
        .rsplit_once(" # ")
        .or_else(|| value.rsplit_once("\t# "))?;
    Some(comment.trim())
}

/// Long strings of what is released; in files of commands also the texts of `--help`.
fn messages(file: &str, text: &str) -> Vec<Passage> {
    let stream: TokenStream = text.parse().expect("a source that compiles");
    let mut found = Vec::new();
    let has_help = file.starts_with("src/cli");
    collect(stream, has_help, &mut found);
    found
}

fn collect(stream: TokenStream, has_help: bool, found: &mut Vec<Passage>) {
    let mut tokens = stream.into_iter().peekable();
    let mut open = false;
    while let Some(token) = tokens.next() {
        match token {
            TokenTree::Punct(sign) if sign.as_char() == '#' => {
                // `#![..]` and `//!` are of the file.
                if matches!(tokens.peek(), Some(TokenTree::Punct(inner)) if inner.as_char() == '!')
                {
                    tokens.next();
                    tokens.next();
                    continue;
                }
                let Some(TokenTree::Group(group)) = tokens.peek() else {
                    continue;
                };
                let attribute = group.stream().to_string();
                if attribute.replace(' ', "").starts_with("cfg(test)") {
                    skip_item(&mut tokens);
                } else if let Some(doc) = attribute.strip_prefix("doc = ") {
                    let line = group.span_open().start().line;
                    let doc = literal_text(doc).unwrap_or_default();
                    let doc = doc.trim();
                    tokens.next();
                    if has_help && doc.is_empty() {
                        open = false;
                    } else if has_help {
                        push(found, &mut open, line, doc);
                    }
                    continue;
                }
            }
            TokenTree::Group(group) => collect(group.stream(), has_help, found),
            TokenTree::Literal(literal) => {
                let text = literal_text(&literal.to_string());
                let text = text.filter(|text| text.len() >= SHORTEST_MESSAGE);
                let line = literal.span().start().line;
                // The lines of a text are items of a list, or lines of output.
                for text in text.iter().flat_map(|text| text.lines()) {
                    let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
                    found.push(Passage { line, text });
                }
            }
            _ => {}
        }
        open = false;
    }
}

/// Skips the attribute and its item: to the end of its block, or its semicolon.
fn skip_item(tokens: &mut impl Iterator<Item = TokenTree>) {
    for token in tokens {
        match token {
            TokenTree::Group(group) if group.delimiter() == Delimiter::Brace => return,
            TokenTree::Punct(sign) if sign.as_char() == ';' => return,
            _ => {}
        }
    }
}

/// The value of a literal of text.
fn literal_text(literal: &str) -> Option<String> {
    if !literal.starts_with(['"', 'r']) {
        return None;
    }
    let literal: syn::Lit = syn::parse_str(literal).ok()?;
    match literal {
        syn::Lit::Str(text) => Some(text.value()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(file: &str, text: &str) -> Vec<(usize, &'static str)> {
        let hard = read(file, text).hard;
        hard.iter().map(|hard| (hard.line, hard.why)).collect()
    }

    #[test]
    fn pages_have_paragraphs_and_lists() {
        let long = "word ".repeat(26);
        let text = format!(
            "# What\n\nWhat is it? Fine.\nWho comes is first.\n\n- {long}\n- {long}.\n\n\
             ```\nnobody\n```\n| nobody |\n\nAsk [nobody](https://example.com/a b c)."
        );
        let expected = [
            (3, "a clause is the subject"),
            (6, "over 25 words"),
            (7, "over 25 words"),
            (14, "no actor named"),
        ];
        assert_eq!(found("a.md", &text), expected);
    }

    #[test]
    fn settings_have_comments() {
        let text = "# What it is.\n[store]\nurl = \"#a\"   # whom to ask\n\
                    # key = 1   # fine\n                         # for nobody\n";
        let expected = [
            (1, "a clause is the subject"),
            (3, "a clause is the subject"),
            (4, "no actor named"),
        ];
        assert_eq!(found("a.toml", text), expected);
    }

    #[test]
    fn the_dashboard_has_comments_and_messages() {
        let text = "/**\n * Who asks.\n */\n// Fine.\nsay('nobody reads this long message', 'who asks');\n\
                    say(`nobody here ${short}`);\n";
        let expected = [(2, "a clause is the subject"), (5, "no actor named")];
        assert_eq!(found("src/page.js", text), expected);
        let text =
            "<p id=\"nobody\">All is fine.</p>\n<p aria-label=\"Who asks most\">nobody asks</p>\n";
        let expected = [(2, "no actor named"), (2, "a clause is the subject")];
        assert_eq!(found("src/page.html", text), expected);
    }

    #[test]
    fn sources_have_messages_and_help() {
        let text = "/// Nobody.\nfn a() { say(\"nobody reads this long \\\n  message\"); b(\"nobody\") }\n\
                    #[cfg(test)]\nmod tests { const A: &str = \"nobody reads this message of a test\"; }";
        assert_eq!(found("src/a.rs", text), [(2, "no actor named")]);
        let expected = [(1, "no actor named"), (2, "no actor named")];
        assert_eq!(found("src/cli/a.rs", text), expected);
    }
}
