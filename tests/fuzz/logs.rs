//! Access logs: lines hold what clients sent, and clients choose it to do harm.

use tidegate::replay::entry::{LineFormat, TargetParts};
use tidegate::replay::json::{MemberMapping, TokenFrom};
use tidegate::replay::logs::{LineReader, LogOptions};
use tidegate::replay::tokens::CallField;

use crate::both;

const WORDS: &[&str] = &[
    "192.0.2.1",
    "::1",
    "-",
    " ",
    " - - ",
    "[",
    "]",
    "10/Oct/2025:13:55:36 +0000",
    "2025-10-10T13:55:36Z",
    "13:55:36.123",
    "\"",
    "\\\"",
    "\\x22",
    "GET / HTTP/1.1",
    "GET",
    "POST ",
    "/a?b=c",
    " HTTP/1.1",
    "200",
    " 512",
    "\"-\"",
    "{",
    "}",
    ":",
    ",",
    "\"time\":",
    "\"ts\":",
    "\"request\":",
    "\"remote_addr\":",
    "\"uri\":",
    "\"method\":",
    "\"status\":",
    "\"headers\":",
    "\"usage\":",
    "\"prompt_tokens\":",
    "\"reserved\":",
    " tokens 1+2 of 3 exact",
    "1760104536.5",
    "1e400",
    "-1",
    "true",
    "null",
    "\\u0000",
    "\\ud800",
    "[[[[",
    "\u{20ac}",
    "\0",
    "\u{1b}[31m",
    "http://h/p",
    "#",
    "ClientAddr",
    "\"RequestPath\":",
    "0.001",
    "99999999999999999999",
];
const FORMATS: [Option<LineFormat>; 7] = [
    None,
    Some(LineFormat::Common),
    Some(LineFormat::Combined),
    Some(LineFormat::Json),
    Some(LineFormat::Caddy),
    Some(LineFormat::Own),
    Some(LineFormat::OwnText),
];

#[test]
fn any_line_is_an_entry_or_a_fault() {
    bolero::check!(name = "logs")
        .with_max_len(128)
        .for_each(|input: &[u8]| both(input, WORDS, check));
}

fn check(text: &[u8]) {
    for format in FORMATS {
        let mapping = MemberMapping {
            tokens: vec![TokenFrom {
                field: CallField::Input,
                member: "usage.method".to_owned(),
            }],
            ..MemberMapping::default()
        };
        let mut reader = LineReader::new(&LogOptions { format, mapping });
        for line in text.split(|byte| *byte == b'\n') {
            // A line is read alike wherever it stands, but that some have no date of their own.
            let first = reader.read(line).map(|(entry, _)| target_of(&entry.target));
            let again = reader.read(line).map(|(entry, _)| target_of(&entry.target));
            assert_eq!(
                first,
                again,
                "{format:?} {:?}",
                String::from_utf8_lossy(line)
            );
        }
    }
}

fn target_of(target: &str) -> (usize, bool) {
    let parts = TargetParts::split(target);
    let query = parts.query.map_or(0, str::len);
    (parts.path.len() + query, parts.host.is_some())
}
